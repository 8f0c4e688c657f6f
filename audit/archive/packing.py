"""Packs a month's records in a process for each core. Each reads its ranges of leaves itself, in the snapshot of the export.

So no record goes through a pipe before it is packed, and PostgreSQL works for all of them at once.
"""

import os
from collections.abc import Callable, Iterator
from datetime import date
from typing import NamedTuple

import psycopg

from audit import worker_pool
from audit.archive.encoder import EncodedRecords, encode_records
from audit.checking.row_reader import joined_session, shared_snapshot
from audit.errors import ExportError
from audit.worker_pool import WorkerPool

BATCH_ROWS = 250  # some 2 MB; several batches are held at once
SMALL = 2_000  # records of a month, less than a second: not worth a process
PACKING_S = 600.0  # a batch takes less than a second
NICE = 10  # requests go first
PROCESSES_MAX = 16  # each has a connection to the database


Range = tuple[int, int]  # of leaves
Packing = Callable[[Range], EncodedRecords]


class Packers(NamedTuple):
    """The address, in the role of the export's session, from which so many processes read."""

    address: str = ""
    processes: int = 1


HERE = Packers()  # this process alone


class MonthRecords(NamedTuple):
    """A month's sealed records, and the statement that reads a range of them."""

    month: date
    size: int
    statement: bytes

    def ranges(self) -> Iterator[Range]:
        for begin in range(0, self.size, BATCH_ROWS):
            yield begin, min(begin + BATCH_ROWS, self.size)


def pack(connection: psycopg.Connection, records: MonthRecords, packers: Packers) -> Iterator[EncodedRecords]:
    """All ranges in order. The connection's transaction must have a snapshot, and stay open to the end."""
    processes = min(packers.processes, PROCESSES_MAX)
    if processes == 1 or records.size < SMALL:
        yield from map(_packing(connection, records), records.ranges())
        return
    with WorkerPool(__name__, processes, PACKING_S) as pool:
        set_up = packers.address, shared_snapshot(connection), records
        yield from pool.in_order(set_up, records.ranges())


def _packing(connection: psycopg.Connection, records: MonthRecords) -> Packing:
    def packed(wanted: Range) -> EncodedRecords:
        begin, end = wanted
        found = (
            connection.cursor(binary=True).execute(records.statement, (records.month, begin, end)).fetchall()
        )
        if [row[0] for row in found] != list(range(begin, end)):
            raise ExportError(
                f"Some leaves of {records.month:%Y-%m} from {begin} on are missing or duplicated. Run `affidavit audit verify`"
            )
        return encode_records(found)

    return packed


# In the processes


def _joined(told: tuple[str, str, MonthRecords]) -> Packing:
    address, snapshot, records = told
    return _packing(joined_session(address, snapshot), records)


if __name__ == "__main__":
    os.nice(NICE)
    worker_pool.serve(_joined)
