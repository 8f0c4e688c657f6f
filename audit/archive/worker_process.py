"""A worker process for what reads archives: it works on chunks beside the parent, so that both cores work.

It is started anew instead of forked, so it shares nothing with the parent and holds only what it needs. It limits its
memory, because the archives that it reads may be forged.
"""

import resource
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

from audit import worker_pool
from audit.worker_pool import Peer

WAITING_MAX = 4  # results that wait for an earlier one, or are on their way
MEMORY_BYTES_MAX = 2**31  # a file that was made to expand for ever is stopped here
TASK_S = 3600.0  # a chunk takes seconds

Input = TypeVar("Input")
Result = TypeVar("Result")
Task = Callable[[Input], Result]


def in_order(task: Task[Input, Result], items: Iterable[Input], *, alone: bool = False) -> Iterator[Result]:
    """The results in the order of the items. Both processes work, or the worker alone; exceptions are re-raised."""
    with closing(Peer(__name__, TASK_S)) as peer, ThreadPoolExecutor(1) as thread:
        waiting: deque[Future[Result]] = deque()
        in_worker: Future[Result] | None = None
        for place, item in enumerate(items):
            if alone or (place and (in_worker is None or in_worker.done())):
                in_worker = thread.submit(peer.ask, task, item)
                waiting.append(in_worker)
            else:
                waiting.append(_done(task, item))
            while waiting and (waiting[0].done() or len(waiting) > WAITING_MAX):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _done(task: Task[Input, Result], item: Input) -> Future[Result]:
    future: Future[Result] = Future()
    future.set_result(task(item))
    return future


# In the worker's process


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    worker_pool.serve(lambda task: task)
