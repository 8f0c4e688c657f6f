"""What somebody pasted into the search: an id, a hash, a receipt, a proof, or words (pure)."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from audit.proof.bundle import BYTES_MAX

_HASH = re.compile(r"(?:\\x|0x|sha256:)?([0-9a-fA-F]{64})")
_NAME = re.compile(r"[!-~]{4,200}")  # of a request, here or at a provider: no spaces
_NAMED = (
    "log_id",
    "query_id",
    "answer_id",
    "request_id",
    "session_id",
    "leaf_hash",
    "chunk_id",
    "provider_request_id",
)
_WITHIN = ("row", "receipt", "answer", "data")  # of a proof, an answer, an answer in an envelope


class Pasted(NamedTuple):
    """What may name a record. `kind`: id (any UUID), hash (of a leaf or a passage), name (of a request), or a column's name."""

    kind: str
    value: str


def pasted(text: str) -> Pasted | None:
    """None: these are words to search for."""
    stripped = text.strip()
    if stripped.startswith("{"):
        return _of_json(stripped)
    if found := _uuid(stripped):
        return Pasted("id", found)
    if match := _HASH.fullmatch(stripped):
        return Pasted("hash", match[1].lower())
    if _NAME.fullmatch(stripped) and re.search(r"[0-9_]", stripped):
        return Pasted("name", stripped)
    return None


def _of_json(text: str) -> Pasted | None:
    if len(text) > BYTES_MAX:
        return None
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return None
    named = dict(_named(read)) if isinstance(read, dict) else {}
    return next((_known(name, named[name]) for name in _NAMED if name in named), None)


def _named(read: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The outer names count for more than the inner ones."""
    for inner in _WITHIN:
        if isinstance(found := read.get(inner), dict):
            yield from _named(found)
    yield from ((name, read[name]) for name in _NAMED if isinstance(read.get(name), str))


def _known(name: str, value: str) -> Pasted | None:
    if name in ("leaf_hash", "chunk_id"):
        match = _HASH.fullmatch(value)
        return Pasted("hash", match[1].lower()) if match else None
    if name in ("request_id", "provider_request_id"):
        return Pasted("name", value[:200]) if "\x00" not in value else None
    found = _uuid(value)
    return Pasted(name, found) if found else None


def _uuid(text: str) -> str:
    try:
        return str(UUID(text)) if len(text) in (32, 36) else ""
    except ValueError:
        return ""
