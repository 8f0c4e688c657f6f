"""Compares the holds in the database with the log's records of them (pure).

A superuser can change the tables without a record. The log cannot be changed without `affidavit audit verify` naming it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from audit.holding.hold import Kind, Line, is_line_signed, person_key, subject_of
from audit.proof.keys import PublicKey
from audit.proof.row_signature import is_row_signed

_REASON = re.compile(r"hold ([0-9a-f-]{36}): (added|released)")


class ChangeRecord(NamedTuple):
    """A record of the log that says that a hold was changed."""

    log_id: str
    timestamp: datetime
    leaf_hash: bytes
    signature: bytes | None
    reason: str


@dataclass(frozen=True, slots=True)
class HoldTables:
    """The lines of the tables, and which records of the log there are."""

    holds: Sequence[Line] = ()
    requests: Sequence[Line] = ()
    subjects: Mapping[UUID, tuple[Sequence[str], bytes]] = field(default_factory=dict)
    events: frozenset[UUID] = frozenset()  # those of the lines that the log has, wherever it has them
    records: Sequence[ChangeRecord] = ()

    def is_released(self, hold_id: UUID) -> bool:
        return any(line["hold_id"] == hold_id and line["change"] == "released" for line in self.holds)

    def is_done(self, request_id: UUID) -> bool:
        return any(line["request_id"] == request_id and line["change"] == "done" for line in self.requests)


def hold_doubts(tables: HoldTables, keys: Sequence[PublicKey]) -> list[str]:
    """What is not as the log and the signatures say; empty when all is well."""
    return [
        *_doubts_of_lines("hold", "hold_id", tables.holds, tables, keys),
        *_doubts_of_lines("erasure request", "request_id", tables.requests, tables, keys),
        *_doubts_of_releases(tables),
        *_doubts_of_subjects(tables),
        *_deleted_lines(tables, keys),
    ]


def unsigned_releases(holds: Sequence[Line], keys: Sequence[PublicKey]) -> list[UUID]:
    """Holds that the database takes for released, although this log did not release them."""
    return [
        line["hold_id"]
        for line in holds
        if line["change"] == "released" and not is_line_signed("hold", line, keys)
    ]


def _doubts_of_lines(
    kind: Kind, name: str, lines: Sequence[Line], tables: HoldTables, keys: Sequence[PublicKey]
) -> Iterator[str]:
    for line in lines:
        what = f"the {kind} {line[name]} ({line['change']})"
        if not is_line_signed(kind, line, keys):
            yield f"{what} was not signed by this log"
        elif line["event"] not in tables.events:
            yield f"{what} has no record in the log"


def _doubts_of_releases(tables: HoldTables) -> Iterator[str]:
    added = {line["hold_id"] for line in tables.holds if line["change"] == "added"}
    for line in tables.holds:
        if line["change"] != "released":
            continue
        if line["hold_id"] not in added:
            yield f"the hold {line['hold_id']} was released and never added"
        if person_key(line["actor"]) == person_key(line["approved_by"] or line["actor"]):
            yield f"the hold {line['hold_id']} was released by one person alone"


def _doubts_of_subjects(tables: HoldTables) -> Iterator[str]:
    known = {line["hold_id"]: line for line in tables.holds if line["change"] == "added"}
    known |= {line["request_id"]: line for line in tables.requests if line["change"] == "asked"}
    for one, line in known.items():
        names = tables.subjects.get(one)
        is_over = tables.is_released(one) or tables.is_done(one)
        if line["subject"] and names is None and not is_over:
            yield f"the names of {_named(line)} were deleted"
        elif names and subject_of(names[0], bytes(names[1])) != line["subject"]:
            yield f"the names of {_named(line)} were changed"
    for one in tables.subjects.keys() - known.keys():
        yield f"there are names of {one}, and neither a hold nor a request"


def _deleted_lines(tables: HoldTables, keys: Sequence[PublicKey]) -> Iterator[str]:
    """The record of a change was closed after its commit, so its line must be there."""
    lines = {(str(line["hold_id"]), line["change"]) for line in tables.holds}
    for record in tables.records:
        found = _REASON.fullmatch(record.reason)
        is_ours = is_row_signed(record.signature, record.log_id, record.leaf_hash, record.timestamp, keys)
        if found and is_ours and (found[1], found[2]) not in lines:
            yield f"the hold {found[1]} ({found[2]}) is in the log, and was deleted from audit_holds"


def _named(line: Line) -> Any:
    return f"the hold {line['hold_id']}" if "hold_id" in line else f"the erasure request {line['request_id']}"
