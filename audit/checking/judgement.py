"""Judges one record: whether it is what was sealed, and whether the engine signed it. Pure."""

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

from audit.fast_json import ParsedRow, read_row
from audit.proof.bundle import are_commitments
from audit.proof.canonical import canonical_text
from audit.proof.checkpoint import erasure_text
from audit.proof.keys import KeyRing, PublicKey, RowKeys
from audit.proof.record import PERSONAL, SCHEMA_VERSIONS
from audit.proof.row_signature import is_row_signed
from audit.proof.verdict import PROVEN, Verdict


class Erasure(NamedTuple):
    """A line of audit_erasures, and the state of the log record that announces it."""

    erasure_id: UUID
    log_id: UUID
    event: UUID
    erased_at: datetime
    commitments: Any
    key_id: str
    signature: str
    event_state: Literal["sealed", "waiting", "late", "missing"]

    def is_signed(self, keys: Sequence[PublicKey]) -> bool:
        """Whether one of these keys signed it. An attacker who only controls the database has none of them."""
        text = erasure_text(self.erasure_id, self.log_id, self.event, self.erased_at)
        try:
            signature = base64.b64decode(self.signature, validate=True)
        except ValueError:
            return False
        return any(key.verify(signature, text) for key in KeyRing.of(keys).named(self.key_id, self.erased_at))


class StoredRow(NamedTuple):
    """A row of audit_logs as JSON, the leaf that it must have (the vault's, if that has it), and its signature."""

    log_id: str
    sealed: bytes
    text: str
    signature: bytes | None
    erasures: Sequence[Erasure]


class Judged(NamedTuple):
    """What a whole log's verification needs of a row."""

    verdict: Verdict
    message: str
    is_signed: bool | None  # None: it has no signature
    schema_version: Any
    timestamp: str
    numbered: Mapping[str, Any]


def judge(stored: StoredRow, keys: Sequence[PublicKey], signers: RowKeys) -> Judged:
    """`signers` are the same keys, for the rows' own signatures."""
    parsed = _read(stored.text)
    row = parsed.row
    verdict, message = _judge(parsed, stored.sealed, stored.erasures, keys)
    is_signed = None
    if stored.signature is not None:
        at = datetime.fromisoformat(row["timestamp"])
        is_signed = verdict in PROVEN and is_row_signed(
            stored.signature, stored.log_id, stored.sealed, at, signers
        )
    numbered = {name: row.get(name) for name in ("writer", "sequence", "heartbeat")}
    return Judged(verdict, message, is_signed, row["schema_version"], row["timestamp"], numbered)


def _read(text: str) -> ParsedRow:
    try:
        return read_row(text)
    except (ValueError, TypeError):  # no record of ours has such a value
        return ParsedRow(json.loads(text), {}, {}, "", canonical_text)


def _judge(
    parsed: ParsedRow, sealed: bytes, erasures: Sequence[Erasure], keys: Sequence[PublicKey]
) -> tuple[Verdict, str]:
    row = parsed.row
    if (version := row["schema_version"]) not in SCHEMA_VERSIONS:
        return Verdict.CANNOT_TELL, f"The record has schema version {version}, which this program cannot hash"
    if row["leaf_hash"] != f"\\x{sealed.hex()}":
        return Verdict.TAMPERED, "The record's stored hash is not the sealed one"
    if row["erased_at"] is not None:
        return _judge_erased(parsed, sealed, erasures, keys)
    try:
        is_same = parsed.leaf(parsed.commitments()) == sealed
    except (ValueError, TypeError):
        return Verdict.TAMPERED, "The record cannot be hashed: its salt is missing or damaged"
    return (Verdict.VALID, "") if is_same else (Verdict.TAMPERED, "The record is not what was sealed")


# The verdict on an erasure by the state of the record that announces it, best first.
_RECORDED: Mapping[str, tuple[Verdict, str]] = {
    "sealed": (Verdict.ERASED, ""),
    "waiting": (Verdict.ERASED, ""),
    "late": (Verdict.UNSEALED, "The record was erased, but the record of its erasure is not sealed"),
    "missing": (Verdict.TAMPERED, "The record was emptied, but the log has no record of its erasure"),
}


def _judge_erased(
    parsed: ParsedRow, sealed: bytes, erasures: Sequence[Erasure], keys: Sequence[PublicKey]
) -> tuple[Verdict, str]:
    """A legitimate erasure has a line under the signing key, and a sealed record of its own in the log."""
    row = parsed.row
    if row["salt"] is not None or any(row.get(name) for name in PERSONAL):
        return Verdict.TAMPERED, "The record is marked as erased, but still has personal values"
    if not erasures:
        return Verdict.CANNOT_TELL, "The record was erased, but its stored commitments are missing"
    known = (one for one in erasures if are_commitments(one.commitments))
    fitting = [one for one in known if parsed.leaf(one.commitments) == sealed]
    if not fitting:
        return Verdict.TAMPERED, "The erased record is not what was sealed"
    return judge_erasure(fitting, keys)


def judge_erasure(erasures: Sequence[Erasure], keys: Sequence[PublicKey]) -> tuple[Verdict, str]:
    signed = [one for one in erasures if one.is_signed(keys)]
    if not signed:
        return Verdict.TAMPERED, "The record was emptied, but none of the given keys signed its erasure"
    return _RECORDED[min((one.event_state for one in signed), key=list(_RECORDED).index)]
