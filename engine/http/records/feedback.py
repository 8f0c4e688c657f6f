"""Feedback, `POST /v1/feedback`: whether an answer or a refusal helped, and what was wrong with it.

There is no free text on purpose: a reader would put personal data into it, which nobody expects in a rating.
"""

from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from audit.errors import ProofUnavailableError, UnprovenError
from audit.proof.record import Row
from engine import trail as noting
from engine.errors import DatabaseUnavailableError, UnknownRecordError
from engine.house import House
from engine.http import v1
from engine.models import Client, Trail

Complaint = Literal["wrong", "beside_the_point", "incomplete", "outdated", "other"]


class FeedbackRequest(BaseModel):
    """What a reader thinks of an answer or a refusal. Sent again, it replaces what was said before."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"query_id": "5f0c3a52-7f0e-4c2e-9d55-0b8a4c1f6a10", "helpful": False, "reason": "incomplete"}
            ]
        },
    )

    query_id: UUID
    helpful: StrictBool
    reason: Annotated[Complaint | None, Field(description="What is wrong with it")] = None


class FeedbackBody(BaseModel):
    """The feedback is on record."""

    query_id: UUID
    recorded: Literal[True] = True


async def given(house: House, body: bytes, client: Client, trail: Trail) -> FeedbackBody:
    said = v1.read(body, FeedbackRequest)
    noting.note_feedback(trail, said.query_id, helpful=said.helpful, reason=said.reason)
    try:
        question = await house.prover.row(said.query_id)
    except ProofUnavailableError:
        raise DatabaseUnavailableError from None
    except UnprovenError:
        question = {}
    if not _is_own(question, client, trail):
        raise UnknownRecordError(
            "You have no answer or refusal with this query_id. Send the query_id that came with it."
        )
    trail.book_id = question["book_id"]
    return FeedbackBody(query_id=said.query_id)


def _is_own(question: Row, client: Client, trail: Trail) -> bool:
    """All visitors of a site share its public token, so with one only the reader who asked is told apart from the others."""
    is_clients = question.get("client_id") == client.client_id and client.may_ask(
        question.get("book_id") or ""
    )
    is_readers = client.public_origin is None or question.get("end_user") == trail.end_user
    return is_clients and is_readers and question.get("outcome") in ("answered", "refused")
