"""Specification 001: conversations, as `/api/v1/query` with its `StreamChunk`s.

The specification writes its fields in snake_case (Python) and in camelCase (TypeScript), and clients of both exist: both are
read, and both are said. Its widgets keep the id of a session in the browser and know no way out of a failure, so a session that
cannot be continued begins anew; `/v1/query` answers 404. Sessions are read and deleted as on `/v1/sessions` (routes.py).
"""

# ruff: noqa: N815  the specification's own names

from collections.abc import Iterable
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

from engine.http import v1
from engine.http.stream import Format
from engine.http.v1 import fitting
from engine.http.widgets.contract import EACH, Contract, DataEvents, Json, Share, also
from engine.models import Answer

_SESSION_ID = "4a6f4b0e-0f2b-4d8c-9f0e-2f1d7f3c5b60"
_TOKENS = {"input": 0, "output": 0, "total": 0}
_SOURCE: Json = {
    "chapter_id": "03-sensors-and-state-estimation", "chapter_title": "Sensors and state estimation",
    "relevance_score": 0.83, "excerpt": "An IMU measures acceleration and angular velocity.", "position": 1,
    "chapterId": "03-sensors-and-state-estimation", "chapterTitle": "Sensors and state estimation", "relevanceScore": 0.83,
}  # fmt: skip
_ANSWERED: Json = {
    "answer": "An IMU measures acceleration and angular velocity. [1]", "sources": [_SOURCE], "confidence": 0.82,
    "session_id": _SESSION_ID, "session_token": None, "tokens_used": _TOKENS, "filter_message": None,
    "sessionId": _SESSION_ID, "sessionToken": None, "tokensUsed": _TOKENS, "filterMessage": None,
}  # fmt: skip


class ConversedBody(BaseModel):
    """A question of a conversation."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"query": "What does an IMU measure?", "top_k": 5}]}
    )

    query: fitting(1)  # type: ignore[valid-type]  # the limit is an argument
    user_id: UUID | None = also("user_id", "userId")
    session_id: v1.AnySessionId = also("session_id", "sessionId")
    filters: v1.QueryFilters | None = None
    top_k: v1.TopK | None = also("top_k", "topK")
    selected_text: v1.Selection = also("selected_text", "selectedText")


class BothSpellings(BaseModel):
    """Each field in camelCase is the one in snake_case once more."""

    @model_validator(mode="before")
    @classmethod
    def twice(cls, given: Any) -> Any:
        return {_camel_case(name): value for name, value in given.items()} | given


class CitedBody(BothSpellings):
    chapter_id: str
    chapter_title: str
    relevance_score: Share
    excerpt: str
    position: Annotated[int, Field(ge=1)]
    chapterId: str
    chapterTitle: str
    relevanceScore: Share


class ConversationBody(BothSpellings):
    """With sessions switched off, its session is the id of this query, and nothing is stored under it."""

    model_config = ConfigDict(json_schema_extra={"examples": [_ANSWERED]})

    answer: str
    sources: list[CitedBody]
    confidence: Share
    session_id: UUID
    session_token: str | None
    tokens_used: v1.TokensBody
    filter_message: str | None
    sessionId: UUID
    sessionToken: str | None
    tokensUsed: v1.TokensBody
    filterMessage: str | None


def conversation(answer: Answer) -> ConversationBody:
    whole = v1.response(answer)
    return ConversationBody.model_validate(
        {
            "answer": EACH.text(answer),
            "sources": [source.model_dump() for source in whole.sources],
            "confidence": whole.confidence,
            "session_id": whole.session_id or whole.query_id,
            "session_token": whole.session_token,
            "tokens_used": whole.tokens_used.model_dump(),
            "filter_message": whole.session_message or whole.filter_message,
        }
    )


def events() -> DataEvents:
    """The specification's `StreamChunk`s. The last one also names the session."""

    def last(answer: Answer) -> Iterable[Json]:
        yield {"chunk": "", "done": True} | conversation(answer).model_dump(mode="json", exclude={"answer"})

    return DataEvents(
        EACH,
        chunk=lambda text: {"chunk": text, "done": False},
        last=last,
        failure=lambda detail: {"chunk": "", "done": True, "error": detail},
    )


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


CONTRACTS = (
    Contract(
        ("/api/v1/query",), "Ask the default book of the settings (spec 001).",
        ConversedBody, v1.question_fields, ConversationBody, Format(conversation, events), has_sessions=True,
    ),
)  # fmt: skip
