"""Erasure endpoint, `POST /v1/erasures`: request body, response body, and the call of the eraser.

The record of an erasure names the action and the API key, but never the erased person.
"""

from functools import partial
from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints

from audit.erasure.target import ErasureTarget, check_basis, spellings
from audit.errors import ErasureTooEarlyError, ErasureUnavailableError, HeldError, NothingToEraseError
from engine.errors import (
    DatabaseUnavailableError,
    ForbiddenError,
    InvalidFieldError,
    NotSealedError,
    UnderHoldError,
    UnknownRecordError,
)
from engine.house import House
from engine.http import v1
from engine.models import Client

ERASE = frozenset({"erase"})
USER_CHARACTERS_MAX = 200  # `user:` and a UUID has 41
BASIS_CHARACTERS_MAX = 500

_EITHER: list[JsonValue] = [{"required": ["user_id"]}, {"required": ["query_id"]}]


class ErasureRequest(BaseModel):
    """The records of a reader, or the record of one query: exactly one of the two."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "oneOf": _EITHER,
            "examples": [
                {"user_id": "user:6f1c1f0e-9f0a-4d0b-8a53-8a8d1d3b6a52", "basis": "GDPR Art. 17, ticket 4711"}
            ],
        },
    )

    user_id: Annotated[
        str | None,
        Field(
            min_length=1, max_length=USER_CHARACTERS_MAX, pattern=r"\S",
            description="`user:<uuid>`, `anon:<address>`, or the name that the site gave",
        ),
    ] = None  # fmt: skip
    query_id: UUID | None = None
    basis: Annotated[
        str,
        StringConstraints(min_length=1, max_length=BASIS_CHARACTERS_MAX, pattern=r"\S"),
        Field(description="The reason. It stays on record, so it must not name the person."),
    ]


class ErasureBody(BaseModel):
    """What was erased. Each line of `left` says what could not be erased, and what to do about it."""

    erasure_id: UUID
    records: int
    archived: int
    already: Annotated[int, Field(description="Records of this query that were erased before")]
    conversations: int
    open: int
    set_aside: int
    left: list[str]


async def erased(house: House, body: bytes, client: Client) -> ErasureBody:
    if client.books:
        raise ForbiddenError(
            "The API key is valid but only for some books, and an erasure reaches all of them."
        )
    asked = v1.read(body, ErasureRequest)
    target = _target(asked)
    event = partial(
        house.operator_events.event, "audit erase", client_id=client.client_id, key_id=client.key_id
    )
    try:
        done = await house.eraser.erase(target, asked.basis, event)
    except ErasureTooEarlyError:
        raise NotSealedError(
            "Some of the records are not sealed yet, so nothing was erased. Please try again in a few seconds."
        ) from None
    except HeldError as held:
        raise UnderHoldError(_describe_held(held)) from None
    except NothingToEraseError:
        raise UnknownRecordError("There is no record of this query, and none was erased.") from None
    except ErasureUnavailableError as failure:
        raise DatabaseUnavailableError(str(failure)) from None
    finally:
        house.eraser.vacuum_soon()  # also after a timeout: part of the erasure may be done
    return ErasureBody.model_validate(done, from_attributes=True)


def _describe_held(held: HeldError) -> str:
    if held.request_id is None:
        return "A legal hold was added meanwhile. Please ask again: the request is kept then."
    return (
        "A legal hold covers some of the records, so nothing was erased. The request is kept as"
        f" {held.request_id} and carried out when the hold ends. You need not ask again."
    )


def _target(asked: ErasureRequest) -> ErasureTarget:
    if (asked.user_id is None) == (asked.query_id is None):
        raise InvalidFieldError("user_id: give exactly one of user_id and query_id.", field="user_id")
    field = "user_id"
    try:
        target = ErasureTarget(spellings(asked.user_id) if asked.user_id else (), asked.query_id)
        field = "basis"
        check_basis(asked.basis, target)
    except ValueError as wrong:
        raise InvalidFieldError(f"{field}: {wrong}", field=field) from None
    return target
