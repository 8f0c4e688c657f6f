"""Judges ranges of rows in a process for each core. Each reads its ranges itself, in the snapshot of the first one.

So no row goes through a pipe, and PostgreSQL works for all of them at once. A thread would not do: it would wait for the
interpreter's lock.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Self

import psycopg

from audit import worker_pool
from audit.checking.judgement import judge
from audit.checking.row_range import JudgedRange, RowRange, StoredRows
from audit.checking.row_reader import RowQueries, Source, joined_session, read_rows, shared_snapshot
from audit.checking.signature_check import FastKeys
from audit.errors import WorkerEndedError
from audit.proof.keys import PublicKey
from audit.worker_pool import Task, WorkerPool

if TYPE_CHECKING:
    from audit.checking.inspection import Batch

JUDGING_S = 600.0  # a range takes less than a second
SMALL = 1_000  # leaves of a month, a fifth of a second: not worth a process
PROCESSES_MAX = 16  # each has a connection to the database


def judge_all(
    batches: Iterable["Batch"], keys: Sequence[PublicKey], judges: "RangeJudges | None" = None
) -> Iterator["Batch"]:
    """The batches in their order, judged: those whose rows were not read by the processes, the others here."""
    waiting: deque[tuple[Batch, Future[JudgedRange]]] = deque()
    size = judges.size if judges else 1
    with ThreadPoolExecutor(size) as senders:
        for batch in batches:
            if batch.wanted and judges:
                waiting.append((batch, senders.submit(judges.judge, batch.wanted, keys)))
            else:
                waiting.append((batch, _done(judge_here(batch.stored, keys))))
            while waiting and (waiting[0][1].done() or len(waiting) > 2 * size):
                yield _with(*waiting.popleft())
        while waiting:
            yield _with(*waiting.popleft())


def judge_here(stored: StoredRows, keys: Sequence[PublicKey]) -> JudgedRange:
    return _judged(stored, keys, FastKeys(keys))


class RangeJudges:
    """The processes, each started for a first range. If one is killed, this process does its work."""

    def __init__(self, address: str, size: int) -> None:
        """With a size of one this process judges all by itself: it has the only core."""
        self.size = min(size, PROCESSES_MAX)
        self.pool = WorkerPool(__name__, self.size, JUDGING_S)
        self._address = address
        self._source: Source | None = None
        self._here: psycopg.Connection | None = None
        self._is_here = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *given: object) -> None:
        self.pool.__exit__(*given)
        self._close()

    def _close(self) -> None:
        if self._here:
            self._here.close()
            self._here = None

    def begin(self, connection: psycopg.Connection, queries: RowQueries) -> None:
        """Share this session's snapshot."""
        self._close()
        self._source = Source(self._address, shared_snapshot(connection), queries)

    def judge(self, wanted: RowRange, keys: Sequence[PublicKey]) -> JudgedRange:
        assert self._source
        try:
            judged: JudgedRange = self.pool.ask((self._source, keys), wanted)
        except (WorkerEndedError, OSError, psycopg.Error):
            return self._judge_here(self._source, wanted, keys)
        return judged

    def _judge_here(self, source: Source, wanted: RowRange, keys: Sequence[PublicKey]) -> JudgedRange:
        with self._is_here:
            self._here = self._here or joined_session(source.address, source.snapshot)
            return judge_here(read_rows(self._here, source.queries, wanted), keys)


def _judged(stored: StoredRows, keys: Sequence[PublicKey], signers: FastKeys) -> JudgedRange:
    found = defaultdict(list)
    for index, row in stored.rows:
        found[index].append(judge(row, keys, signers))
    return JudgedRange(dict(found), stored.outside_period)


def _with(batch: "Batch", coming: Future[JudgedRange]) -> "Batch":
    judged, outside_period = coming.result()
    return replace(batch, judged=judged, outside_period=outside_period)


def _done(judged: JudgedRange) -> Future[JudgedRange]:
    done: Future[JudgedRange] = Future()
    done.set_result(judged)
    return done


# In the processes


def _judging(told: tuple[Source, Sequence[PublicKey]]) -> Task:
    """One session and one set of keys."""
    source, keys = told
    connection, signers = joined_session(source.address, source.snapshot), FastKeys(keys)

    def judged(wanted: RowRange) -> JudgedRange:
        return _judged(read_rows(connection, source.queries, wanted), keys, signers)

    return judged


if __name__ == "__main__":
    worker_pool.serve(_judging)
