"""Judges the records of a large package in several processes. Pure: no network and no database.

A thread would not do: it would wait for the interpreter's lock.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from audit.package.records import Judge, JudgedLines, Lines, Surroundings
from audit.package.verification import Judging, Workers, in_this_process

if TYPE_CHECKING:  # they load sockets, and most packages are judged in one process
    from concurrent.futures import Executor, Future

SMALL = 10_000  # records, two seconds: not worth a process
AHEAD = 2  # batches for each process

_judge: Judge | None = None  # of a worker process


def in_processes(jobs: int) -> Workers:
    return partial(_open, jobs)


def _open(jobs: int, about: Surroundings) -> AbstractContextManager[Judging]:
    if jobs < 2 or about.manifest.counts["records"] < SMALL:  # noqa: PLR2004
        return in_this_process(about)
    return _pool(jobs, about)


@contextmanager
def _pool(jobs: int, about: Surroundings) -> Iterator[Judging]:
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415
    from multiprocessing import get_context  # noqa: PLC0415

    # Spawned, not forked: a fork copies the locks of other threads as they are.
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (about,)) as pool:
        yield partial(_judged, pool, jobs * AHEAD, about)


def _judged(
    pool: "Executor", ahead: int, about: Surroundings, batches: Iterator[Lines]
) -> Iterator[JudgedLines]:
    """In their order, and never more of them than are waited for: memory does not grow with the package."""
    waiting: deque[tuple[Lines, Future[JudgedLines] | None]] = deque()
    for batch in batches:
        waiting.append((batch, _submitted(pool, batch)))
        if len(waiting) > ahead:
            yield _result(about, *waiting.popleft())
    while waiting:
        yield _result(about, *waiting.popleft())


def _submitted(pool: "Executor", batch: Lines) -> "Future[JudgedLines] | None":
    """None once a process was killed: then the pool takes nothing any more."""
    try:
        return pool.submit(_perform, batch)
    except RuntimeError:
        return None


def _result(about: Surroundings, batch: Lines, judged: "Future[JudgedLines] | None") -> JudgedLines:
    """If its process was killed, this one does its work."""
    try:
        if judged is not None:
            return judged.result()
    except RuntimeError:
        pass
    return Judge(about).judge(batch)


# In a worker process


def _begin(about: Surroundings) -> None:
    global _judge  # noqa: PLW0603  one for each process
    _judge = Judge(about)


def _perform(batch: Lines) -> JudgedLines:
    assert _judge
    return _judge.judge(batch)
