"""The audit record of one request: its columns, its canonical text and its hash. Pure: no clock, no database, no randomness.

A field of `Trail` is a column of `audit_logs`, in the same order. To record something more: add the field here, fill it
where it is known, and add the column in a new file of `sql/`. Rows that lack it keep their hash.

A `Row` is the record as it is hashed, proven and archived: the columns that are not null, as JSON. How the hash is
made is specified in `audit/__init__.py`.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

from audit.proof.canonical import canonical_text

SCHEMA_VERSION = 4
SCHEMA_VERSIONS = (2, 3, SCHEMA_VERSION)  # known rules; 3 added `details`, and 4 what numbers and signs a row
SIGNED_FROM = 4  # from this version on every row is signed
SALT_BYTES = 32  # 256 bits: nobody guesses it, so a commitment cannot be reversed by trying values

Json = dict[str, Any] | list[Any]
Row = dict[str, Any]

# Free text and personal data: hashed only under the row's salt, so that deleting the salt makes the hashes meaningless.
PERSONAL = frozenset(
    {
        "user_query_text", "retrieval_query", "chunks_returned", "llm_prompt", "llm_response", "answer_text",
        "released_text", "citations", "selected_text", "filters", "filter_message", "details", "end_user", "client_address",
    }
)  # fmt: skip

# How the row is stored, not what happened: these columns may change without invalidating the proof.
UNHASHED = frozenset({"spooled", "salt", "leaf_hash", "erased_at", "signature"})

_NOT_PLAIN = PERSONAL | UNHASHED

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


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
    details: Json | None = None
    writer: UUID | None = None
    sequence: int | None = None
    heartbeat: Json | None = None
    signature: bytes | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """The reader's own proof that the record must exist: the writer's signature over the other fields."""

    log_id: UUID
    leaf_hash: str
    issued_at: datetime
    key_id: str
    signature: str


@dataclass(frozen=True, slots=True)
class HashedRow:
    """A row in its final form: canonical JSON with its salt and its hash."""

    text: str
    leaf_hash: bytes


COLUMNS = tuple(field.name for field in fields(Trail))
_RECORDED = tuple(name for name in COLUMNS if name != "spooled")  # which the writer adds later

_ENCODERS: dict[type, Callable[[Any], str]] = {
    UUID: str,
    bytes: lambda value: f"\\x{value.hex()}",
    datetime: lambda value: value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
}

_encoded = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def row_of(trail: Trail) -> Row:
    """The trail as JSON: ids and bytes as text, times in UTC to the microsecond."""
    values = ((name, getattr(trail, name)) for name in _RECORDED)
    return {name: _plain(value) for name, value in values if value is not None}


def text_of(row: Row) -> str:
    """The row as JSON that PostgreSQL can hold."""
    return _encoded(storable(row))


def storable(row: Row) -> Row:
    """The row as PostgreSQL can hold it: U+0000 and halves of surrogate pairs become U+FFFD."""
    if _is_storable(_encoded(row)):
        return row
    replaced: Row = _replaced(row)
    return replaced


def hashed(row: Row, salt: bytes) -> HashedRow:
    """Hash the row under this salt. Each value is encoded once, for the hash and for the database alike."""
    texts = _texts(row)
    if not _is_storable("".join(texts.values())):
        # Only here: a reader may have typed these six characters, and they stay.
        texts = _texts(_replaced(row))
    leaf = leaf_of(texts, commitments_of(texts, salt))
    stored = texts | {"salt": canonical_text(_plain(salt)), "leaf_hash": canonical_text(_plain(leaf))}
    return HashedRow(joined(stored), leaf)


def leaf_hash(row: Mapping[str, Any], committed: Mapping[str, str] | None = None) -> bytes:
    """The row's leaf in the Merkle tree. For an erased row, give its stored commitments: they replace the erased values."""
    texts = _texts(row)
    return leaf_of(texts, commitments_of(texts, _salt(row)) if committed is None else committed)


def leaf_of_parsed(
    row: Mapping[str, Any], texts: Mapping[str, str], committed: Mapping[str, str] | None = None
) -> bytes:
    """The same for a row of which the canonical texts are at hand."""
    return leaf_of(texts, commitments_of(texts, _salt(row)) if committed is None else committed)


def commitments(row: Mapping[str, Any]) -> dict[str, str]:
    """The salted hashes that replace the personal values in the leaf. They reveal nothing once the salt is deleted."""
    return commitments_of(_texts(row), _salt(row))


def commitments_of(texts: Mapping[str, str], salt: bytes) -> dict[str, str]:
    """The commitments of canonical texts: see `audit/__init__.py`, 3."""
    return {
        name: sha256(b"".join((salt, name.encode(), b"\x00", text.encode()))).hexdigest()
        for name, text in texts.items()
        if name in PERSONAL
    }


def leaf_of(texts: Mapping[str, str], committed: Mapping[str, str]) -> bytes:
    """The leaf of a row from its canonical texts: see `audit/__init__.py`, 4."""
    plain = {name: text for name, text in texts.items() if name not in _NOT_PLAIN}
    replaced_by = {name: canonical_text(value) for name, value in committed.items()}
    return sha256(b"\x00" + joined(plain | replaced_by).encode()).digest()


def joined(texts: Mapping[str, str]) -> str:
    """An object of canonical texts under plain names."""
    return "{" + ",".join([f'"{name}":{texts[name]}' for name in sorted(texts)]) + "}"


def bytes_of(text: str) -> bytes:
    """Parse bytes as PostgreSQL writes them: `\\x` and two lower-case hexadecimal digits for each."""
    if not text.startswith("\\x"):
        raise ValueError("Bytes are written as \\x and hexadecimal digits")
    return bytes.fromhex(text[2:])


def _replaced(value: Any) -> Any:
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, list | tuple):
        return [_replaced(item) for item in value]
    if isinstance(value, dict):
        return {_replaced(key): _replaced(item) for key, item in value.items()}
    return value


def _texts(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: canonical_text(value)
        for name, value in row.items()
        if value is not None and name not in UNHASHED
    }


def _salt(row: Mapping[str, Any]) -> bytes:
    if row.get("salt") is None:
        raise ValueError("A row needs its salt before it can be hashed")
    return bytes_of(row["salt"])


def _is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\\u0000" not in text


def _plain(value: Any) -> Any:
    encode = _ENCODERS.get(type(value))
    return encode(value) if encode else value
