"""Reads what is counted of sealed leaves: from the database, or from a month's archive. Only reads."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime

import psycopg

from audit.charts.rollups.fact import SealedFact, archived_fact
from audit.errors import RollupError
from audit.ledger.partitions import partition_name
from audit.proof.record import Row

PAGE_LEAVES = 20_000

_ROWS = "SELECT * FROM public.audit_rollup_rows(%s, %s, %s)"
_LEAVES = """
SELECT leaf_index, log_id::text, sealed_at FROM public.audit_leaves
WHERE month = %s AND leaf_index >= %s AND leaf_index < %s ORDER BY leaf_index
"""
_ANCHORS = "SELECT tree_size, anchored_at FROM public.audit_anchors WHERE month = %s ORDER BY tree_size"
_IS_ATTACHED = """
SELECT FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
WHERE inhparent = 'public.audit_logs'::regclass AND c.relname = %s AND NOT inhdetachpending
"""
_VERIFY = "Run `affidavit audit verify`."

ArchivedRows = Callable[[date], Iterator[Row]]  # an archived month's rows, in the order of their leaves


@dataclass(frozen=True, slots=True)
class SealedFacts:
    connection: psycopg.Connection
    archived: ArchivedRows

    def between(self, month: date, begin: int, end: int) -> Iterator[SealedFact]:
        """Of each of these leaves. `RollupError` if a row is missing, or is not that of its leaf."""
        anchors = self.connection.execute(_ANCHORS, (month,)).fetchall()
        sizes = [size for size, _ in anchors]
        times: Sequence[datetime | None] = [*(at for _, at in anchors), None]

        def anchored_at(index: int) -> datetime | None:
            return times[bisect_right(sizes, index)]

        if self.is_attached(month):
            for at in range(begin, end, PAGE_LEAVES):
                yield from self._from_database(month, at, min(at + PAGE_LEAVES, end), anchored_at)
        else:
            yield from self._from_archive(month, begin, end, anchored_at)

    def is_attached(self, month: date) -> bool:
        return self.connection.execute(_IS_ATTACHED, (partition_name(month),)).fetchone() is not None

    def _from_database(
        self, month: date, begin: int, end: int, anchored_at: Callable[[int], datetime | None]
    ) -> Iterator[SealedFact]:
        found = self.connection.execute(_ROWS, (month, begin, end), binary=True).fetchall()
        for wanted, (index, sealed_at, log_id, is_whole, *columns) in zip(
            range(begin, end), found, strict=False
        ):
            if index != wanted or not is_whole:
                raise RollupError(
                    f"Leaf {wanted} of {month:%Y-%m} ({log_id}) has no row, or another one. {_VERIFY}"
                )
            yield SealedFact(sealed_at, anchored_at(index), *columns)
        if len(found) != end - begin:
            raise RollupError(f"{month:%Y-%m} lacks leaves between {begin} and {end}. {_VERIFY}")

    def _from_archive(
        self, month: date, begin: int, end: int, anchored_at: Callable[[int], datetime | None]
    ) -> Iterator[SealedFact]:
        leaves = self.connection.execute(_LEAVES, (month, begin, end)).fetchall()
        rows = self.archived(month)
        for _ in range(begin):
            next(rows, None)
        for index, log_id, sealed_at in leaves:
            row = next(rows, None)
            if row is None or row["log_id"] != log_id:
                raise RollupError(f"The archive of {month:%Y-%m} lacks leaf {index} ({log_id}). {_VERIFY}")
            yield archived_fact(row, sealed_at, anchored_at(index))
        if len(leaves) != end - begin:
            raise RollupError(f"{month:%Y-%m} lacks leaves between {begin} and {end}. {_VERIFY}")
