"""Specification 003: `/query` names the sources of an answer as `chapter/section`; a refusal has none.

It has no stream of its own, and its own list of error types. `/chapters` and `/health` are of its family too (lookups.py).
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from engine.http import v1
from engine.http.problems import ErrorTypes
from engine.http.stream import Format
from engine.http.v1 import fitting
from engine.http.widgets.contract import Contract, Share, SourceList, Words, typed_events
from engine.models import Answer, Excerpt

_CITED: dict[str, Any] = {
    "chapter": "Sensors and state estimation", "section": "Inertial measurement units", "page": "42",
    "chunk_text": "An IMU measures acceleration and angular velocity.",
}  # fmt: skip

# The specification's list has no type for a key, a limit, a time-out or a record. `agent`: its agents declined to go on.
ERROR_TYPES: ErrorTypes = {
    "auth": "unknown",
    "rate_limit": "agent",
    "timeout": "agent",
    "audit": "database",
}


class MessageBody(BaseModel):
    """A question to `/query`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"question": "What does an IMU measure?"}]})

    question: fitting(1)  # type: ignore[valid-type]  # the limit is an argument
    selected_text: v1.Selection = None


class PlaceBody(BaseModel):
    """A source with its first quotation."""

    chapter: str
    section: str
    page: str
    chunk_text: str


class ReplyBody(BaseModel):
    """`sources` and `citations` have the same order, which the marks in the answer count."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "answer": "An IMU measures acceleration and angular velocity. [1]",
                    "sources": [f"{_CITED['chapter']}/{_CITED['section']}"], "citations": [_CITED],
                    "confidence": 0.82, "processing_time_ms": 44,
                }
            ]
        }
    )  # fmt: skip

    answer: Words
    sources: list[str]
    citations: list[PlaceBody]
    confidence: Share
    processing_time_ms: Annotated[int, Field(ge=0)]


def reply(answer: Answer) -> ReplyBody:
    firsts = [cited[0] for cited in PLACES.sources(answer)]
    return ReplyBody(
        answer=PLACES.text(answer),
        sources=[_place(first) for first in firsts],
        citations=[
            PlaceBody(chapter=first.chapter, section=first.section, page=first.page, chunk_text=first.excerpt)
            for first in firsts
        ],
        confidence=v1.share(answer.trail.confidence_score),
        processing_time_ms=answer.took_ms,
    )


def _place(excerpt: Excerpt) -> str:
    return f"{excerpt.chapter}/{excerpt.section}"


PLACES = SourceList(_place)
CONTRACTS = (
    Contract(
        ("/query",), "Ask the default book of the settings (spec 003).",
        MessageBody, lambda body: {"text": body.question, "selected_text": body.selected_text},
        ReplyBody, Format(reply, typed_events(reply, PLACES)), error_types=ERROR_TYPES,
    ),
)  # fmt: skip
