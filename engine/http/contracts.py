"""The bodies of /v1: what comes in, checked, and what goes out, field for field."""

import json
import re
from dataclasses import asdict
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from engine.errors import BadRequestError, InvalidFieldError, UnknownBookError
from engine.models import Answer, Evidence, Filters, Question, Quoted, Refusal

QUESTION_CHARACTERS_MAX = 1000  # spec 002, decision 5
SELECTION_WORDS_MAX = 200  # spec 000
TOP_K_MAX = 10  # spec 001

_BOOK_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def _fits(text: str) -> str:
    """Counted without the space around it, kept with it."""
    if not 1 <= len(text.strip()) <= QUESTION_CHARACTERS_MAX:
        raise ValueError(f"must have 1 to {QUESTION_CHARACTERS_MAX} characters, and has {len(text.strip())}")
    return text


def _is_short_enough(selection: str | None) -> str | None:
    """A selection of nothing is no selection."""
    count = len((selection or "").split())
    if count > SELECTION_WORDS_MAX:
        raise ValueError(f"may have at most {SELECTION_WORDS_MAX} words, and has {count}")
    return selection if count else None


class QueryFilters(BaseModel):
    model_config = ConfigDict(extra="forbid")

    chapter: str | None = None
    section: str | None = None
    module: Annotated[int, Field(strict=True, ge=1, le=10)] | None = None
    difficulty: Literal["beginner", "intermediate", "advanced"] | None = None
    tags: Annotated[list[str], Field(max_length=20)] = []


class QueryRequest(BaseModel):
    """A question. It is searched, answered and recorded word for word."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"query": "What does an IMU measure?"}]}
    )

    query: Annotated[str, AfterValidator(_fits)]
    selected_text: Annotated[str | None, AfterValidator(_is_short_enough)] = None
    session_id: UUID | None = None
    user_id: str | None = None
    top_k: Annotated[int, Field(strict=True, ge=1, le=TOP_K_MAX)] | None = None
    filters: QueryFilters = QueryFilters()


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


class TokensBody(BaseModel):
    input: int
    output: int
    total: int


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
    reason: str | None
    answer: str
    citations: list[CitationBody]
    confidence_score: float | None
    confidence_level: Literal["high", "medium", "low"] | None
    retrieval_confidence: float | None
    generation_confidence: float | None
    source_mode: Literal["full-book", "context-restricted"]
    model_used: str | None
    tokens_used: TokensBody
    timings: TimingsBody
    session_id: UUID | None
    filter_message: str | None
    nearest: list[NearestBody]
    receipt: ReceiptBody


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
    """The body of a query, or the error that says what is wrong with it."""
    if not _BOOK_ID.fullmatch(book_id):
        raise UnknownBookError
    try:
        asked = QueryRequest.model_validate(_json_object(body))
    except ValidationError as wrong:
        first = wrong.errors(include_input=False, include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise InvalidFieldError(
            f"{name}: {first['msg'].removeprefix('Value error, ')}.", field=name
        ) from None
    filters = asked.filters
    return Question(
        text=asked.query,
        book_id=book_id,
        top_k=asked.top_k or top_k,
        selected_text=asked.selected_text,
        filters=Filters(
            filters.chapter, filters.section, filters.module, filters.difficulty, tuple(filters.tags)
        ),
        session_id=asked.session_id,
        end_user=end_user or asked.user_id,
    )


def response(answer: Answer) -> QueryResponse:
    trail, outcome = answer.trail, answer.outcome
    refused = outcome if isinstance(outcome, Refusal) else None
    tokens_input, tokens_output = trail.tokens_input or 0, trail.tokens_output or 0
    return QueryResponse.model_validate(
        {
            "query_id": trail.query_id,
            "answer_id": trail.answer_id,
            "book_id": trail.book_id,
            "outcome": trail.outcome,
            "reason": trail.reason,
            "answer": trail.answer_text,
            "citations": trail.citations or [],
            "confidence_score": trail.confidence_score,
            "confidence_level": trail.confidence_level,
            "retrieval_confidence": trail.retrieval_confidence,
            "generation_confidence": trail.generation_confidence,
            "source_mode": trail.source_mode,
            "model_used": trail.model_used,
            "tokens_used": {
                "input": tokens_input, "output": tokens_output, "total": tokens_input + tokens_output
            },
            "timings": {
                "retrieval_ms": trail.retrieval_latency_ms or 0,
                "generation_ms": trail.generation_latency_ms or 0,
                "audit_ms": answer.audit_latency_ms,
                "total_ms": (trail.total_latency_ms or 0) + answer.audit_latency_ms,
            },
            "session_id": trail.session_id,
            "filter_message": trail.filter_message,
            "nearest": [_nearest(item) for item in refused.nearest] if refused else [],
            "receipt": {
                "log_id": answer.receipt.log_id,
                "leaf_hash": answer.receipt.leaf_hash,
                "issued_at": answer.receipt.issued_at.isoformat(),
                "key_id": answer.receipt.key_id,
                "signature": answer.receipt.signature,
            },
        }
    )  # fmt: skip


def source(item: Evidence) -> dict[str, Any]:
    """A passage that the answer will be written from, as the event `sources` names it."""
    return {"chunk_id": item.passage.chunk_id, "page": item.passage.start_page} | _nearest(item)


def sentence(quoted: Quoted) -> dict[str, Any]:
    """A proven sentence with its quotations, as the event `sentence` carries it."""
    citations = [CitationBody.model_validate(asdict(excerpt)).model_dump() for excerpt in quoted.excerpts]
    return {"text": quoted.text, "citations": citations}


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_no_key_twice)
    except UnicodeDecodeError:
        raise BadRequestError("The body is not valid UTF-8.") from None
    except (ValueError, RecursionError):  # no JSON, a number of thousands of digits, brackets beyond counting
        raise BadRequestError("The body is not valid JSON.") from None
    if not isinstance(value, dict):
        raise BadRequestError("The body must be a JSON object.")
    _check_text(value)
    return value


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BadRequestError("The body has the same key twice.")
    return found


def _check_text(value: Any) -> None:
    """No string, wherever it stands, may hold what a database cannot store and a reader cannot have typed."""
    if isinstance(value, str):
        if "\x00" in value:
            raise BadRequestError("The body contains a NUL character.")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise BadRequestError("The body contains half of a character.")
    for part in value if isinstance(value, list) else value.items() if isinstance(value, dict) else ():
        _check_text(list(part) if isinstance(part, tuple) else part)


def _nearest(item: Evidence) -> dict[str, Any]:
    first = item.passage.sentences[0]
    url = f"{item.passage.url}#{first.anchor}" if first.anchor else item.passage.url
    return {
        "section": item.passage.section,
        "chapter": item.passage.chapter,
        "url": url,
        "score": round(item.candidate.score, 4),
    }
