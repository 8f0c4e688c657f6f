"""Specification 002: the book in the address, and each sentence with its source in full, `[Source: … (Page …) - "…"]`.

The bodies are those of `/v1`, which follows the same specification. Unlike there, unknown fields are ignored, and the stream,
of which the specification knows nothing, has no named events.
"""

from pydantic import ConfigDict

from engine.http import v1
from engine.http.stream import Format
from engine.http.widgets.contract import Contract, typed_events

CHAT = ("/chat/query", "/chat/book/{book_id}/query")


class BookQuestionBody(v1.RenewingRequest):
    """A question about a book."""

    model_config = ConfigDict(
        extra="ignore", json_schema_extra={"examples": [{"query": "What does an IMU measure?"}]}
    )


CONTRACTS = (
    Contract(
        CHAT, "Ask one book; without its id, the default book of the settings (spec 002).",
        BookQuestionBody, v1.question_fields, v1.QueryResponse, Format(v1.response, typed_events(v1.response, None)),
        has_sessions=True,
    ),
)  # fmt: skip
