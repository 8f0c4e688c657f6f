"""Request and response bodies of /v1: the parser and validator of requests, and the schemas of responses."""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from engine import errors
from engine.book_id import book_id_of
from engine.models import Answer, Excerpt, Filters, Question, Quoted, Refusal, RetrievedPassage
from engine.refusals import RefusalReason

QUESTION_CHARACTERS_MAX = 1000  # spec 002, decision 5
SELECTION_WORDS_MAX = 200  # spec 000
TOP_K_MAX = 10  # spec 001
TAGS_MAX = 20
JSON_DEPTH_MAX = 4  # the tags of the filters, at depth 3, are the deepest value of any contract
JSON_ITEMS_MAX = 100  # five times as many tags as any contract takes
NO_ID = "not an id"
NAME_CHARACTERS_MAX = 100  # of an unknown field: its name is repeated in the error, and the client chose it

_HALF = re.compile("[\ud800-\udfff]")

# Replacements for pydantic's messages that are about pydantic or repeat the client's text.
_MESSAGES = {
    "missing": "is required",
    "uuid_parsing": "must be a UUID",
    "uuid_type": "must be a UUID",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}

# The fields of a response that are columns of its record.
_AS_RECORDED = (
    "query_id", "answer_id", "book_id", "outcome", "reason", "confidence_score", "confidence_level",
    "retrieval_confidence", "generation_confidence", "source_mode", "model_used", "session_id", "filter_message",
)  # fmt: skip

Body = TypeVar("Body", bound=BaseModel)

# Not whitespace to Python; other languages do not count U+001C as whitespace.
_INK = r"[^\s\u001c-\u001f\u0085]"


def fitting(characters_min: int) -> Any:
    """The text of a question: its length counts without surrounding whitespace, which is kept. The limit of 500 words
    (spec 000) needs no check: 501 words do not fit into a thousand characters."""

    def fits(text: str) -> str:
        characters = len(text.strip())
        if not characters_min <= characters <= QUESTION_CHARACTERS_MAX:
            allowed = f"{characters_min} to {QUESTION_CHARACTERS_MAX} characters"
            raise ValueError(f"must have {allowed}, but has {characters}")
        return text

    said = {
        "type": "string",
        "minLength": characters_min,
        "maxLength": QUESTION_CHARACTERS_MAX,
        "pattern": _INK if characters_min == 1 else rf"{_INK}[\s\S]{{{characters_min - 2},}}{_INK}",
    }
    return Annotated[str, AfterValidator(fits), WithJsonSchema(said)]


def _short_selection(selection: str | None) -> str | None:
    """An empty selection counts as none."""
    count = len((selection or "").split())
    if count > SELECTION_WORDS_MAX:
        raise ValueError(f"may have at most {SELECTION_WORDS_MAX} words, but has {count}")
    return selection if count else None


Selection = Annotated[
    str | None,
    AfterValidator(_short_selection),
    Field(description=f"At most {SELECTION_WORDS_MAX} words of the book; only they are searched."),
]


TopK = Annotated[int, Field(strict=True, ge=1, le=TOP_K_MAX)]


def _session_or_none(sent: str | None) -> UUID | str | None:
    """An empty id counts as none."""
    try:
        return UUID(sent) if sent and sent.strip() else None
    except ValueError:
        return NO_ID


AnySessionId = Annotated[
    str | None,
    AfterValidator(_session_or_none),
    Field(description="If this session cannot be continued, a new one begins."),
]


class QueryFilters(BaseModel):
    model_config = ConfigDict(extra="forbid")

    chapter: str | None = None
    section: str | None = None
    module: Annotated[int, Field(strict=True, ge=1, le=10)] | None = None
    difficulty: Literal["beginner", "intermediate", "advanced"] | None = None
    tags: Annotated[list[str], Field(max_length=TAGS_MAX)] | None = None


class QueryRequest(BaseModel):
    """A question. It is searched, answered and recorded word for word."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"query": "What does an IMU measure?"}]}
    )

    query: fitting(1)  # type: ignore[valid-type]  # the limit is an argument
    selected_text: Selection = None
    session_id: UUID | None = None
    user_id: UUID | None = None
    top_k: TopK | None = None
    filters: QueryFilters | None = None


class RenewingRequest(QueryRequest):
    """A question whose session may begin anew."""

    session_id: AnySessionId = None  # type: ignore[assignment]  # more ids than the usual request


class CitationBody(BaseModel):
    n: int
    chunk_id: str
    section: str
    chapter: str
    filename: str
    page: str
    url: str
    excerpt: str
    start: int
    end: int
    score: float


class NearestBody(BaseModel):
    section: str
    chapter: str
    url: str
    score: float


class SourceBody(BaseModel):
    """A quotation with the field names of spec 001."""

    chapter_id: str
    chapter_title: str
    relevance_score: Annotated[float, Field(ge=0, le=1)]
    excerpt: str
    position: Annotated[int, Field(ge=1)]


class TokensBody(BaseModel):
    input: Annotated[int, Field(ge=0)]
    output: Annotated[int, Field(ge=0)]
    total: Annotated[int, Field(ge=0)]


class TimingsBody(BaseModel):
    retrieval_ms: int
    generation_ms: int
    audit_ms: int
    total_ms: int


class ReceiptBody(BaseModel):
    log_id: UUID
    leaf_hash: str
    issued_at: str
    key_id: str
    signature: str


class QueryResponse(BaseModel):
    """An answer with its quotations, or a refusal; always with the receipt of its record."""

    query_id: UUID
    answer_id: UUID | None
    book_id: str
    outcome: Literal["answered", "refused"]
    reason: RefusalReason | None
    answer: str
    citations: list[CitationBody]
    sources: list[SourceBody]
    confidence: Annotated[float, Field(ge=0, le=1, description="0 in a refusal, else as confidence_score")]
    confidence_score: float | None
    confidence_level: Literal["high", "medium", "low"] | None
    retrieval_confidence: float | None
    generation_confidence: float | None
    source_mode: Literal["full-book", "context-restricted"]
    model_used: str | None
    tokens_used: TokensBody
    timings: TimingsBody
    session_id: UUID | None
    session_token: Annotated[
        str | None, Field(description="The token of a new session: send it as X-Session-Token to continue.")
    ]
    session_message: Annotated[
        str | None, Field(description="Why the session is a new one, or does not contain this turn.")
    ]
    filter_message: str | None
    nearest: list[NearestBody]
    receipt: ReceiptBody


class ChatMessageBody(BaseModel):
    """A question or an answer in a session."""

    id: UUID
    session_id: UUID
    query_id: UUID
    role: Literal["user", "assistant"]
    content: str
    tokens_used: TokensBody | None
    confidence: float | None
    sources: list[SourceBody]
    created_at: datetime


class SessionBody(BaseModel):
    """A stored conversation."""

    id: UUID
    user_id: UUID | None
    created_at: datetime
    last_activity_at: datetime
    messages: list[ChatMessageBody]


class DeletedBody(BaseModel):
    id: UUID
    deleted: Literal[True] = True


class PassageBody(BaseModel):
    chunk_id: str
    book_id: str
    chapter: str
    section: str
    filename: str
    page: str
    url: str
    text: str


def question(body: bytes, book_id: str, end_user: str | None, top_k: int) -> Question:
    """Parses the body of a query. The error names the invalid field."""
    check_book_id(book_id)
    return asked_with(question_fields(read(body, QueryRequest)), book_id, end_user, top_k)


def renewing_question(body: bytes, book_id: str, end_user: str | None, top_k: int) -> Question:
    """The same, but an id that no session can have is noted instead of refused."""
    check_book_id(book_id)
    return asked_with(question_fields(read(body, RenewingRequest)), book_id, end_user, top_k)


def asked_with(fields: dict[str, Any], book_id: str, end_user: str | None, top_k: int) -> Question:
    """The question of these fields; None counts as left out. A reader named in the header goes before one in the body."""
    given = {"top_k": top_k} | {name: value for name, value in fields.items() if value is not None}
    return Question(book_id=book_id, **given | ({"end_user": end_user} if end_user else {}))


def question_fields(asked: Any) -> dict[str, Any]:
    """What a body with the fields of a `QueryRequest` says of a question."""
    given = asked.filters or QueryFilters()
    return {
        "text": asked.query,
        "top_k": asked.top_k,
        "selected_text": asked.selected_text,
        "filters": Filters(
            given.chapter, given.section, given.module, given.difficulty, tuple(given.tags or ())
        ),
        "session_id": None if asked.session_id == NO_ID else asked.session_id,
        "session_not_continued": NO_ID if asked.session_id == NO_ID else None,
        "end_user": f"user:{asked.user_id}" if asked.user_id else None,
    }


def check_book_id(book_id: str) -> None:
    try:
        book_id_of(book_id)
    except ValueError:
        raise errors.UnknownBookError from None


def read(body: bytes, kind: type[Body]) -> Body:
    """Parses and validates a body; no value is altered. The error names the first invalid field."""
    value = json_object(body)
    check_values(value)
    return validated(value, kind)


def validated(value: dict[str, Any], kind: type[Body]) -> Body:
    try:
        return kind.model_validate(value)
    except ValidationError as wrong:
        first = wrong.errors(include_input=False, include_url=False, include_context=False)[0]
    name = _name(first["loc"])
    if first["type"] == "extra_forbidden":  # the message is recorded, and the client chose this name
        raise errors.InvalidFieldError("This is not a field of the request.", field=name)
    what = _MESSAGES.get(first["type"], first["msg"].removeprefix("Value error, "))
    raise errors.InvalidFieldError(f"{name}: {what}.", field=name)


def response(answer: Answer) -> QueryResponse:
    trail = answer.trail
    tokens_input, tokens_output = trail.tokens_input or 0, trail.tokens_output or 0
    refused = answer.outcome if isinstance(answer.outcome, Refusal) else None
    return QueryResponse.model_validate(
        {name: getattr(trail, name) for name in _AS_RECORDED}
        | {
            "answer": trail.answer_text,
            "citations": trail.citations or [],
            "sources": [_cited(item) for item in excerpts(answer)],
            "confidence": share(trail.confidence_score),
            "tokens_used": {
                "input": tokens_input, "output": tokens_output, "total": tokens_input + tokens_output
            },
            "timings": {
                "retrieval_ms": trail.retrieval_latency_ms or 0,
                "generation_ms": trail.generation_latency_ms or 0,
                "audit_ms": answer.audit_latency_ms,
                "total_ms": answer.took_ms,
            },
            "session_token": answer.session_token,
            "session_message": answer.session_message,
            "nearest": [_nearest(item) for item in refused.nearest] if refused else [],
            "receipt": receipt(answer),
        }
    )  # fmt: skip


def excerpts(answer: Answer) -> tuple[Excerpt, ...]:
    return () if isinstance(answer.outcome, Refusal) else answer.outcome.excerpts


def receipt(answer: Answer) -> ReceiptBody:
    given = answer.receipt
    return ReceiptBody(
        log_id=given.log_id, leaf_hash=given.leaf_hash, issued_at=given.issued_at.isoformat(), key_id=given.key_id,
        signature=given.signature,
    )  # fmt: skip


def share(value: float | None) -> float:
    """Clamps to 0..1, because the settings' weights may add up to more. None becomes 0."""
    return min(1.0, max(0.0, value or 0.0))


def _cited(item: Excerpt) -> dict[str, Any]:
    """A quotation with the field names of spec 001."""
    return {
        "chapter_id": item.chapter_id, "chapter_title": item.chapter, "relevance_score": share(item.score),
        "excerpt": item.excerpt, "position": item.n,
    }  # fmt: skip


def source(item: RetrievedPassage) -> dict[str, Any]:
    """A passage for the event `sources`: the answer will be written from it."""
    return {"chunk_id": item.passage.chunk_id, "page": item.passage.start_page} | _nearest(item)


def sentence(quoted: Quoted) -> dict[str, Any]:
    """A proven sentence with its quotations, for the event `sentence`."""
    citations = [CitationBody.model_validate(asdict(excerpt)).model_dump() for excerpt in quoted.excerpts]
    return {"text": quoted.text, "citations": citations}


def json_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_no_key_twice, parse_constant=_no_number)
    except UnicodeDecodeError:
        raise errors.NotUtf8Error from None
    except RecursionError:
        raise errors.TooDeepError from None
    except ValueError:  # not JSON, or a number with thousands of digits
        raise errors.NotJsonError from None
    if not isinstance(value, dict):
        raise errors.NotJsonError
    return value


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise errors.KeyTwiceError(field=_name([name]))
        found[name] = value
    return found


def _no_number(name: str) -> None:
    """Rejects NaN and Infinity, which Python parses and JSON does not have."""
    raise ValueError(name)


def check_values(value: Any, path: tuple[str | int, ...] = ()) -> None:
    """Rejects values that no field of any contract may contain, at any depth."""
    if len(path) > JSON_DEPTH_MAX:
        raise errors.TooDeepError(field=_name(path[:1]))
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, list | dict):
        if len(value) > JSON_ITEMS_MAX:
            raise errors.TooManyItemsError(field=_name(path))
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            _check_text(str(name), path)
            check_values(part, (*path, name))


def _check_text(text: str, path: tuple[str | int, ...]) -> None:
    """Rejects characters that PostgreSQL cannot store and no reader can have typed."""
    if "\x00" in text:
        raise errors.NulError(field=_name(path))
    if _HALF.search(text):
        raise errors.HalfCharacterError(field=_name(path))


def _name(path: Iterable[str | int]) -> str | None:
    """The path of a field, such as `filters.tags.0`; None for the body itself. Shortened, because a client may choose it."""
    name = ".".join(map(str, path))[:NAME_CHARACTERS_MAX]
    return name.encode(errors="replace").decode() or None


def _nearest(item: RetrievedPassage) -> dict[str, Any]:
    passage, score = item.passage, round(item.candidate.score, 4)
    anchor = passage.sentences[0].anchor
    url = f"{passage.url}#{anchor}" if anchor else passage.url
    return {"section": passage.section, "chapter": passage.chapter, "url": url, "score": score}
