"""Judges ranges of rows in a process for each core. Each reads its ranges itself, in the snapshot of the first one.

So no row goes through a pipe, and PostgreSQL works for all of them at once. A thread would not do: it would wait for the
interpreter's lock.
"""

import contextlib
import os
import pickle
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Self

import psycopg

from audit import worker
from audit.checking.judgement import judge
from audit.checking.row_range import JudgedRange, RowRange, StoredRows
from audit.checking.row_reader import SESSION, RowQueries, Source, read_rows
from audit.checking.signature_check import FastKeys
from audit.errors import WorkerEndedError
from audit.proof.keys import PublicKey
from audit.session import Session
from audit.worker import Message, Worker

if TYPE_CHECKING:
    from audit.checking.inspection import Batch

JUDGING_S = 600.0  # a range takes less than a second
SMALL = 1_000  # leaves of a month, a fifth of a second: not worth a process
PROCESSES_MAX = 16  # each has a connection to the database
_SNAPSHOT = "SELECT pg_export_snapshot()"


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

    def __init__(self, address: str) -> None:
        self._address = address
        self._source: Source | None = None
        self.size = min(len(os.sched_getaffinity(0)), PROCESSES_MAX)
        self._free: SimpleQueue[_Peer] = SimpleQueue()
        self._peers = [_Peer() for _ in range(self.size)]
        for peer in self._peers:
            self._free.put(peer)
        self._here: psycopg.Connection | None = None
        self._is_here = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self._peers:
            peer.end()
        self._close()

    def _close(self) -> None:
        if self._here:
            self._here.close()
            self._here = None

    def begin(self, connection: psycopg.Connection, queries: RowQueries) -> None:
        """Share this session's snapshot."""
        self._close()
        ((snapshot,),) = connection.execute(_SNAPSHOT).fetchall()
        self._source = Source(self._address, snapshot, queries)

    def judge(self, wanted: RowRange, keys: Sequence[PublicKey]) -> JudgedRange:
        assert self._source
        peer = self._free.get()
        try:
            return peer.judge(self._source, wanted, keys)
        except (WorkerEndedError, OSError):
            return self._judge_here(self._source, wanted, keys)
        finally:
            self._free.put(peer)

    def _judge_here(self, source: Source, wanted: RowRange, keys: Sequence[PublicKey]) -> JudgedRange:
        with self._is_here:
            self._here = self._here or _connected(source)
            return judge_here(read_rows(self._here, source.queries, wanted), keys)


class _Peer:
    """A process, started for its first range."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._told: tuple[Source, Sequence[PublicKey]] | None = None

    def judge(self, source: Source, wanted: RowRange, keys: Sequence[PublicKey]) -> JudgedRange:
        try:
            return self._judged(source, wanted, keys)
        except (WorkerEndedError, OSError):
            self._worker = self._told = None  # another one is started for the next range
            raise

    def _judged(self, source: Source, wanted: RowRange, keys: Sequence[PublicKey]) -> JudgedRange:
        self._worker = self._worker or Worker(worker.command(__name__))
        if self._told != (source, keys):
            self._worker.request(_BEGIN, _pickled((source, keys)), deadline_s=JUDGING_S)
            self._told = (source, keys)
        _, reply = self._worker.request(b"", _pickled(wanted), deadline_s=JUDGING_S)
        judged: JudgedRange = pickle.loads(reply)  # noqa: S301  from the process that we started
        return judged

    def end(self) -> None:
        if self._worker:
            self._worker.end()


def _connected(source: Source) -> psycopg.Connection:
    connection = Session.connect(source.address, autocommit=True)
    connection.execute(SESSION.encode(), prepare=False)
    connection.execute(f"SET TRANSACTION SNAPSHOT '{source.snapshot}'".encode())
    return connection


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


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


# In the processes

_BEGIN = b"begin"


class _Judge:
    """One session and one set of keys, both from the first message."""

    def perform(self, header: bytes, request: bytes) -> Message:
        if header == _BEGIN:
            source, self._keys = pickle.loads(request)  # noqa: S301  from the process that started this one
            self._connection, self._queries = _connected(source), source.queries
            self._signers = FastKeys(self._keys)
            return b"", b""
        wanted = pickle.loads(request)  # noqa: S301  from the process that started this one
        stored = read_rows(self._connection, self._queries, wanted)
        return b"", _pickled(_judged(stored, self._keys, self._signers))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, psycopg.Error):  # the process that asked does its work then
        worker.serve(*worker.channel(), _Judge().perform)
