"""Reads the rows of sealed leaves, month by month in the order of their leaves: from the database, or from the month's archive."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import psycopg

from audit.checking.evidence import COLUMNS, rows_statement
from audit.errors import DeliveryError
from audit.export.formats import SealedRow
from audit.export.position import Position
from audit.ledger.partitions import month_start, next_month, partition_name
from audit.proof.record import Row

BATCH_ROWS = 500

_SIZES = """
WITH RECURSIVE months AS (
    SELECT min(month) AS month FROM public.audit_checkpoints
    UNION ALL
    SELECT (SELECT min(c.month) FROM public.audit_checkpoints c WHERE c.month > m.month) FROM months m WHERE m.month IS NOT NULL
)
SELECT month, (SELECT max(tree_size) FROM public.audit_checkpoints c WHERE c.month = m.month)
FROM months m WHERE month IS NOT NULL ORDER BY month
"""
_LEAVES = """
SELECT leaf_index, log_id::text, leaf_hash FROM public.audit_leaves
WHERE month = %s AND leaf_index >= %s AND leaf_index < %s ORDER BY leaf_index
"""
_IS_ATTACHED = """
SELECT FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
WHERE inhparent = 'public.audit_logs'::regclass AND c.relname = %s AND NOT inhdetachpending
"""
_WHOLE = "log_id = ANY(%s::uuid[]) AND timestamp >= %s AND timestamp < %s"

_Leaf = tuple[int, str, bytes]
ArchivedRows = Callable[[date], Iterator[Row]]  # an archived month's rows, in the order of their leaves


@dataclass(frozen=True, slots=True)
class SealedRows:
    """Reads with the rights of an auditor. Its connection commits by itself, so that each round sees what is sealed since."""

    connection: psycopg.Connection
    archived: ArchivedRows
    since: date | None = None  # rows of earlier months are not exported

    def after(self, position: Position) -> Iterator[list[SealedRow]]:
        """All batches that are not delivered yet."""
        for month, size in self.connection.execute(_SIZES).fetchall():
            begin = position.next_leaf(month)
            if self.since and month < self.since:
                continue
            self._check_history(month, position)
            if begin < size:
                yield from self.between(month, begin, size)

    def between(self, month: date, begin: int, end: int) -> Iterator[list[SealedRow]]:
        if self.connection.execute(_IS_ATTACHED, (partition_name(month),)).fetchone() is None:
            yield from self._from_archive(month, begin, end)
            return
        for at in range(begin, end, BATCH_ROWS):
            yield self._from_database(month, at, min(at + BATCH_ROWS, end))

    def _from_database(self, month: date, begin: int, end: int) -> list[SealedRow]:
        leaves = self._leaves(month, begin, end)
        columns = self.connection.execute(COLUMNS).fetchall()
        until = (month_start(month), month_start(next_month(month)))
        statement = rows_statement(columns, _WHOLE)
        found = self.connection.execute(statement, ([log_id for _, log_id, _ in leaves], *until)).fetchall()
        rows: Mapping[str, Row] = {log_id: json.loads(text) for log_id, text, _ in found}
        return [_sealed(month, leaf, rows.get(leaf[1])) for leaf in leaves]

    def _from_archive(self, month: date, begin: int, end: int) -> Iterator[list[SealedRow]]:
        leaves = iter(self._leaves(month, begin, end))
        batch: list[SealedRow] = []
        for index, row in enumerate(self.archived(month)):
            if index < begin:
                continue
            leaf = next(leaves, None)
            if leaf is None:
                break
            batch.append(_sealed(month, leaf, row if row["log_id"] == leaf[1] else None))
            if len(batch) == BATCH_ROWS:
                yield batch
                batch = []
        if batch:
            yield batch
        if next(leaves, None) is not None:
            raise DeliveryError(
                f"The archive of {month:%Y-%m} has fewer rows than the log has leaves. {_VERIFY}"
            )

    def _leaves(self, month: date, begin: int, end: int) -> list[_Leaf]:
        found: Sequence[_Leaf] = self.connection.execute(_LEAVES, (month, begin, end), binary=True).fetchall()
        if [index for index, *_ in found] != list(range(begin, end)):
            raise DeliveryError(f"Leaves of {month:%Y-%m} between {begin} and {end} are missing. {_VERIFY}")
        return list(found)

    def _check_history(self, month: date, position: Position) -> None:
        """After a failover or a restore other rows may stand where delivered ones stood."""
        known = position.months.get(f"{month:%Y-%m}")
        if known is None:
            return
        last = known.next_leaf - 1
        found = self.connection.execute(_LEAVES, (month, last, last + 1), binary=True).fetchone()
        if found is None or found[2].hex() != known.last_hash:
            raise DeliveryError(
                f"The leaf {last} of {month:%Y-%m} is not the one that was delivered: the log's history was broken by a failover"
                f" or a restore, or it was changed. {_VERIFY} Then begin a new export with another position."
            )


_VERIFY = "Run `affidavit audit verify`."


def _sealed(month: date, leaf: _Leaf, row: Row | None) -> SealedRow:
    index, log_id, leaf_hash = leaf
    if row is None:
        raise DeliveryError(f"The row of leaf {index} of {month:%Y-%m} ({log_id}) is missing. {_VERIFY}")
    return SealedRow(month, index, leaf_hash, row)
