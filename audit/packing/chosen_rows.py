"""Reads what goes into a package: months, heads, chosen records with their places, erasures, passages. Data access.

All of it in one read-only snapshot in the auditor's role. Only the personal columns of archived records need another role.
"""

# ruff: noqa: S608  our own names

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, NamedTuple

from audit.archive.reader import read_rows
from audit.archive.rows import RowKeys
from audit.checking.evidence import COLUMNS, rows_statement
from audit.checking.inspection import MonthState
from audit.checking.month_tiers import read_manifest
from audit.errors import UnmadeError
from audit.ledger.partitions import month_start, next_month
from audit.package.manifest import time_text
from audit.packing.choice import Choice
from audit.packing.period_evidence import PeriodEvidence
from audit.progress import Progress
from audit.proof import passage_id
from audit.proof.bundle import are_commitments
from audit.proof.merkle import StoredTree
from audit.proof.record import Row, commitments, leaf_hash
from audit.vault import Vault

READ_ROWS = 500
READ_LEAVES = 50_000

_HEADS = """
SELECT DISTINCT ON (month) month, tree_size, note FROM public.audit_checkpoints
WHERE month >= %s AND month <= %s ORDER BY month, tree_size DESC
"""
_LEAVES = "SELECT leaf_hash FROM public.audit_leaves WHERE month = %s AND leaf_index < %s ORDER BY leaf_index"
CHOSEN = """
SELECT l.leaf_index, r.log_id::text FROM public.audit_leaves l
JOIN public.audit_logs r ON r.log_id = l.log_id AND r.timestamp >= %(month_begin)s AND r.timestamp < %(month_end)s
WHERE {condition} AND l.month = %(month)s AND l.leaf_index >= %(begin)s AND l.leaf_index < %(size)s ORDER BY l.leaf_index
"""
_ERASURES = """
SELECT log_id::text, commitments, json_build_object('erasure_id', erasure_id, 'log_id', log_id, 'event', event, 'key_id', key_id,
    'signature', signature), erased_at
FROM public.audit_erasures WHERE log_id = ANY(%s::uuid[]) ORDER BY log_id, erased_at, erasure_id
"""
_ERASURES_COUNT = "SELECT count(*) FROM public.audit_erasures"
_MANIFEST = """
SELECT manifest_key, manifest_version, manifest_sha256 FROM public.audit_archives
WHERE month = %s AND manifest_key IS NOT NULL ORDER BY step DESC LIMIT 1
"""
_NAMES = (*passage_id.COVERED, *passage_id.DERIVED)
_PASSAGES = f"SELECT {', '.join(_NAMES)} FROM public.chunks WHERE chunk_id = ANY(%s) ORDER BY chunk_id"
_ORIGIN = "SELECT origin FROM public.audit_origin"


class MonthHead(NamedTuple):
    month: date
    size: int
    note: str


class ChosenRow(NamedTuple):
    """A record, its place, and in place of the personal values their commitments if those are gone or withheld."""

    leaf_index: int
    row: Row
    commitments: Mapping[str, str] | None
    erasures: Sequence[Mapping[str, Any]]  # the signed lines


@dataclass(slots=True)
class ChosenRows:
    """The log of one database and one vault, seen through a choice. `row_keys` opens archived records."""

    evidence: PeriodEvidence
    vault: Vault
    choice: Choice
    row_keys: RowKeys
    progress: Progress
    _rows: bytes = field(default=b"", init=False)

    def __post_init__(self) -> None:
        columns = self.evidence.connection.execute(COLUMNS).fetchall()
        self._rows = rows_statement(
            columns, "log_id = ANY(%s::uuid[]) AND timestamp >= %s AND timestamp < %s"
        )

    def origin(self) -> str:
        found = self.evidence.connection.execute(_ORIGIN).fetchone()
        if found is None:
            raise UnmadeError(
                "Nothing of this log was ever sealed, so there is nothing to prove. Run `affidavit audit seal --once`."
            )
        return str(found[0])

    def count_erasures(self) -> int:
        ((count,),) = self.evidence.connection.execute(_ERASURES_COUNT).fetchall()
        return int(count)

    def heads(self) -> list[MonthHead]:
        """The newest checkpoint of each month of the period."""
        last = _month(self.choice.until)
        if month_start(last) == self.choice.until:  # the end is exclusive
            last = _month_before(last)
        found = self.evidence.connection.execute(_HEADS, (_month(self.choice.since), last))
        return [MonthHead(*row) for row in found]

    def tier(self, month: date) -> MonthState:
        return self.evidence.state(month)

    def tree(self, head: MonthHead) -> StoredTree:
        leaves = bytearray()
        with self.evidence.connection.cursor("leaves", binary=True) as cursor:
            cursor.itersize = READ_LEAVES
            cursor.execute(_LEAVES, (head.month, head.size))
            for (leaf,) in cursor:
                leaves += leaf
        tree = StoredTree(bytes(leaves))
        if tree.size != head.size:
            raise UnmadeError(
                f"{head.size - tree.size} leaves of {head.month:%Y-%m} are missing, so nothing of it can be proven. Run `affidavit audit verify`."
            )
        return tree

    def rows(self, head: MonthHead, begin: int) -> Iterator[ChosenRow]:
        """The chosen records from this leaf on, in the order of the leaves."""
        state = self.tier(head.month)
        if state == "attached":
            yield from self._rows_in_database(head, begin)
        elif state == "archived":
            yield from self._rows_in_archive(head, begin)

    def passages(self, chunk_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        for at in range(0, len(chunk_ids), READ_ROWS):
            some = chunk_ids[at : at + READ_ROWS]
            for row in self.evidence.connection.execute(_PASSAGES, (some,)):
                yield dict(zip(_NAMES, row, strict=True))

    def unsealed(self) -> dict[date, int]:
        found: dict[date, int] = {}
        for record in self.evidence.unsealed():
            month = _month(record.timestamp)
            found[month] = found.get(month, 0) + 1
        return found

    def statement(self) -> str:
        condition, _ = self.choice.condition()
        return " ".join(CHOSEN.format(condition=condition).split())

    def _rows_in_database(self, head: MonthHead, begin: int) -> Iterator[ChosenRow]:
        condition, values = self.choice.condition()
        begins, ends = month_start(head.month), month_start(next_month(head.month))
        values |= {
            "month": head.month,
            "month_begin": begins,
            "month_end": ends,
            "begin": begin,
            "size": head.size,
        }
        with self.evidence.connection.cursor("chosen") as cursor:
            cursor.itersize = READ_ROWS
            cursor.execute(CHOSEN.format(condition=condition).encode(), values)
            while places := cursor.fetchmany(READ_ROWS):
                yield from self._whole_rows(head.month, {log_id: index for index, log_id in places})

    def _whole_rows(self, month: date, indexes: Mapping[str, int]) -> Iterator[ChosenRow]:
        log_ids = list(indexes)
        times = (month_start(month), month_start(next_month(month)))
        found = self.evidence.connection.execute(self._rows, (log_ids, *times))
        rows = {log_id: json.loads(text) for log_id, text, _ in found}
        lines = self._erasures([log_id for log_id, row in rows.items() if row["erased_at"] is not None])
        for log_id, index in indexes.items():
            row, erasures = rows[log_id], lines.get(log_id, [])
            yield ChosenRow(index, row, self._commitments(row, erasures), [line for _, line in erasures])

    def _commitments(self, row: Row, erasures: Sequence[tuple[Any, Any]]) -> Mapping[str, str] | None:
        if row["erased_at"] is None:
            # Without any personal column there is nothing to withhold.
            is_damaged = row.get("salt") is None
            return (None if is_damaged else commitments(row) or None) if self.choice.is_redacted else None
        sealed = row["leaf_hash"].removeprefix("\\x")
        known = [found for found, _ in erasures if are_commitments(found)]
        fitting = (found for found in known if leaf_hash(row, found).hex() == sealed)
        return next(fitting, known[0] if known else {})

    def _rows_in_archive(self, head: MonthHead, begin: int) -> Iterator[ChosenRow]:
        place = self.evidence.connection.execute(_MANIFEST, (head.month,)).fetchone()
        assert place
        needs_keys = not self.choice.is_redacted or self.choice.needs_names
        keys: RowKeys = self.row_keys if needs_keys else _no_keys
        index = -1
        for batch in read_rows(self.vault, read_manifest(self.vault, *place), keys, self.progress):
            lines = self._erasures([row["log_id"] for row, _ in batch])
            for row, committed in batch:
                index += 1
                if begin <= index < head.size and self.choice.matches(row):
                    is_withheld = self.choice.is_redacted or row.get("salt") is None
                    erasures = [line for _, line in lines.get(row["log_id"], [])]
                    yield ChosenRow(index, row, (committed or None) if is_withheld else None, erasures)

    def _erasures(self, log_ids: Sequence[str]) -> dict[str, list[tuple[Any, Mapping[str, Any]]]]:
        found: dict[str, list[tuple[Any, Mapping[str, Any]]]] = {}
        if log_ids:
            for log_id, committed, line, erased_at in self.evidence.connection.execute(_ERASURES, (log_ids,)):
                found.setdefault(log_id, []).append((committed, line | {"erased_at": time_text(erased_at)}))
        return found


def _no_keys(_: Sequence[str]) -> Mapping[str, bytes]:
    return {}


def _month(moment: datetime) -> date:
    return moment.date().replace(day=1)


def _month_before(month: date) -> date:
    return month.replace(year=month.year - (month.month == 1), month=(month.month - 2) % 12 + 1)
