"""Judges rows in two processes, so that two cores are busy. A thread would not do: it would wait for the interpreter's lock."""

import contextlib
import pickle
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Self

from audit import worker
from audit.checking.judgement import Judged, StoredRow, judge
from audit.checking.signature_check import FastKeys
from audit.errors import WorkerEndedError
from audit.proof.keys import ID_BYTES, KeyRing, PublicKey, fingerprint_of
from audit.worker import Message, Worker

if TYPE_CHECKING:  # what it imports costs the second process more than its work on a batch
    from audit.checking.inspection import Batch

JUDGING_S = 600.0  # a batch takes less than a second
SMALL = 250  # rows, 50 ms: not worth a process
AHEAD = 2  # batches for the second process: the one that it works on, and the next
WAITING_MAX = 4  # batches that are judged or in work

BatchJudge = Callable[[Iterable["Batch"], Sequence[PublicKey]], Iterator["Batch"]]


def judge_all(batches: Iterable["Batch"], keys: Sequence[PublicKey]) -> Iterator["Batch"]:
    """The `BatchJudge` of one process."""
    for batch in batches:
        yield _with(batch, judge_here([row for _, row in batch.stored_rows()], keys))


def judge_here(rows: Sequence[StoredRow], keys: Sequence[PublicKey]) -> list[Judged]:
    signers = FastKeys(keys)
    return [judge(row, keys, signers) for row in rows]


class SecondJudge:
    """A second process, started for the first large batch. If it is killed, this one does its work."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._is_asked = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker:
            self._worker.end()

    def judge_all(self, batches: Iterable["Batch"], keys: Sequence[PublicKey]) -> Iterator["Batch"]:
        """A `BatchJudge`: the second process gets as many as it can judge, and this one judges the others meanwhile."""
        waiting: deque[tuple[Batch, Future[list[Judged]]]] = deque()
        with ThreadPoolExecutor(AHEAD) as senders:
            for batch in batches:
                rows = [row for _, row in batch.stored_rows()]
                is_free = sum(not judged.done() for _, judged in waiting) < AHEAD
                if is_free and len(rows) >= SMALL:
                    waiting.append((batch, senders.submit(self.judge, rows, keys)))
                else:
                    waiting.append((batch, _done(judge_here(rows, keys))))
                while waiting and (waiting[0][1].done() or len(waiting) > WAITING_MAX):
                    ready, judged = waiting.popleft()
                    yield _with(ready, judged.result())
            for ready, judged in waiting:
                yield _with(ready, judged.result())

    def judge(self, rows: Sequence[StoredRow], keys: Sequence[PublicKey]) -> list[Judged]:
        request = _pickled((rows, _needed(rows, keys)))  # while the process works on another request
        try:
            with self._is_asked:
                self._worker = self._worker or Worker(worker.command(__name__))
                _, reply = self._worker.request(b"", request, deadline_s=JUDGING_S)
        except (WorkerEndedError, OSError):
            return judge_here(rows, keys)
        judged: list[Judged] = pickle.loads(reply)  # noqa: S301  from the process that we started
        return judged


def _needed(rows: Sequence[StoredRow], keys: Sequence[PublicKey]) -> KeyRing:
    named = {row.signature[:ID_BYTES] for row in rows if row.signature}
    erasers = {erasure.key_id for row in rows for erasure in row.erasures}
    return KeyRing.of(keys).narrowed(named | set(map(fingerprint_of, erasers)))


def _with(batch: "Batch", judged: Iterable[Judged]) -> "Batch":
    found = defaultdict(list)
    for (index, _), row in zip(batch.stored_rows(), judged, strict=True):
        found[index].append(row)
    return replace(batch, judged=found)


def _done(judged: list[Judged]) -> Future[list[Judged]]:
    done: Future[list[Judged]] = Future()
    done.set_result(judged)
    return done


# In the second process


def _perform(_: bytes, request: bytes) -> Message:
    rows, keys = pickle.loads(request)  # noqa: S301  from the process that started this one
    return b"", _pickled(judge_here(rows, keys))


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        worker.serve(*worker.channel(), _perform)
