"""What is recorded of one request, and the hash that proves it. Pure: no clock, no database, no randomness.

A field of `Trail` is a column of `audit_logs`, in the same order. To record something more: add the field here, fill it
where it is known, and add the column in a new file of `sql/`.
"""

import json
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

SCHEMA_VERSION = 1

Json = dict[str, Any] | list[Any]

# Free text and whatever points at a person: hashed only under the row's salt, so that forgetting the salt forgets them.
PERSONAL = frozenset(
    {
        "user_query_text",
        "retrieval_query",
        "chunks_returned",
        "llm_prompt",
        "llm_response",
        "answer_text",
        "released_text",
        "citations",
        "selected_text",
        "filters",
        "filter_message",
        "end_user",
        "client_address",
    }
)

# Numbers that the database holds as floats: 1 and 1.0 are one value and must have one hash.
_FLOATS = frozenset(
    {"confidence_score", "retrieval_confidence", "generation_confidence", "best_score", "threshold"}
)

# What says how the row is kept, not what happened: it may change without making the proof false.
UNHASHED = frozenset({"spooled", "salt", "leaf_hash", "erased_at"})


@dataclass(slots=True, kw_only=True)
class Trail:
    """One request as it unfolds, and in the end its row."""

    log_id: UUID
    query_id: UUID
    answer_id: UUID | None = None
    user_query_text: str = ""
    source_mode: str | None = None
    retrieval_query: str | None = None
    chunks_retrieved_count: int | None = None
    chunks_returned: Json | None = None
    retrieval_latency_ms: int | None = None
    llm_prompt: str | None = None
    llm_response: str | None = None
    answer_text: str | None = None
    confidence_score: float | None = None
    citations: Json | None = None
    success: bool | None = None
    error_message: str | None = None
    timestamp: datetime
    request_id: str | None = None
    client_id: str | None = None
    key_id: str | None = None
    end_user: str | None = None
    client_address: str | None = None
    session_id: UUID | None = None
    book_id: str | None = None
    endpoint: str
    http_status: int | None = None
    outcome: str = "open"
    reason: str | None = None
    error_type: str | None = None
    selected_text: str | None = None
    filters: Json | None = None
    top_k: int | None = None
    confidence_level: str | None = None
    retrieval_confidence: float | None = None
    generation_confidence: float | None = None
    index_generation: UUID | None = None
    embedder: str | None = None
    calibration_id: str | None = None
    threshold: float | None = None
    model_requested: str | None = None
    model_used: str | None = None
    provider_request_id: str | None = None
    stop_reason: str | None = None
    tokens_input: int | None = None
    tokens_output: int | None = None
    generation_latency_ms: int | None = None
    total_latency_ms: int | None = None
    limit_decision: str | None = None
    repeat_count: int = 1
    prompt_sha256: str | None = None
    settings_sha256: str | None = None
    code_version: str | None = None
    spooled: bool = False
    schema_version: int = SCHEMA_VERSION
    salt: bytes | None = None
    leaf_hash: bytes | None = None
    erased_at: datetime | None = None
    calibration_kind: str | None = None
    best_score: float | None = None
    filter_message: str | None = None
    rerank: str | None = None
    released_text: str | None = None
    instruction_like: list[str] | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """The reader's own proof that the record must exist."""

    log_id: UUID
    leaf_hash: str
    issued_at: datetime


COLUMNS = tuple(field.name for field in fields(Trail))


def leaf_hash(trail: Trail) -> bytes:
    """The row's leaf in the Merkle tree: SHA-256 over a zero byte and the row's canonical JSON."""
    if trail.salt is None:
        raise ValueError("A row needs its salt before it can be hashed")
    return sha256(b"\x00" + canonical_json(_hashed_fields(trail, trail.salt))).digest()


def canonical_json(value: Any) -> bytes:
    """Keys sorted, no spaces, UTF-8, no escapes that are not needed: one value has exactly one text."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain
    ).encode()


def commitment(salt: bytes, name: str, value: Any) -> str:
    """Stands for a personal value in the hash. Says nothing about the value once the salt is gone."""
    return sha256(salt + name.encode() + b"\x00" + canonical_json(value)).hexdigest()


def _hashed_fields(trail: Trail, salt: bytes) -> dict[str, Any]:
    hashed = {}
    for name in COLUMNS:
        value = getattr(trail, name)
        if name in UNHASHED:
            continue
        if name in _FLOATS and type(value) is int:
            value = float(value)
        hashed[name] = commitment(salt, name, value) if name in PERSONAL and value is not None else value
    return hashed


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no canonical form")
