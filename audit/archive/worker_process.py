"""A worker process for the archive: packs and checks chunks beside the parent, so that both cores work.

It is started anew instead of forked, so it shares nothing with the parent and holds only what it needs. It limits its
memory, because the archives that it reads may be forged.
"""

import pickle
import resource
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from typing import Any, TypeVar

from audit import worker
from audit.worker import Message, Worker

WAITING_MAX = 4  # results that wait for an earlier one, or are on their way
MEMORY_BYTES_MAX = 2**31  # a file that was made to expand for ever is stopped here
TASK_S = 3600.0  # a chunk takes seconds

Input = TypeVar("Input")
Result = TypeVar("Result")
Task = Callable[[Input], Result]


def in_order(task: Task[Input, Result], items: Iterable[Input], *, alone: bool = False) -> Iterator[Result]:
    """The results in the order of the items. Both processes work, or the worker alone; exceptions are re-raised."""
    with ThreadPoolExecutor(1) as thread, ExitStack() as stack:
        start = cache(partial(_start, stack))
        waiting: deque[Future[Result]] = deque()
        in_worker: Future[Result] | None = None
        for place, item in enumerate(items):
            if alone or (place and (in_worker is None or in_worker.done())):
                in_worker = thread.submit(_result, start(), task, item)
                waiting.append(in_worker)
            else:
                waiting.append(_done(task, item))
            while waiting and (waiting[0].done() or len(waiting) > WAITING_MAX):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _start(stack: ExitStack) -> Worker:
    """Starts the worker lazily, at the first task that needs it, and kills it at the end: it has nothing to finish."""
    process = Worker(worker.command(__name__))
    stack.callback(process.end)
    return process


def _result(process: Worker, task: Task[Input, Result], item: Input) -> Any:
    _, reply = process.request(b"", _pickled((task, item)), deadline_s=TASK_S)
    is_returned, result = pickle.loads(reply)  # noqa: S301  from the process that we started
    if not is_returned:
        raise result
    return result


def _done(task: Task[Input, Result], item: Input) -> Future[Result]:
    future: Future[Result] = Future()
    future.set_result(task(item))
    return future


# In the worker's process


def _perform(_: bytes, request: bytes) -> Message:
    task, item = pickle.loads(request)  # noqa: S301  from the process that started this one
    try:
        reply = _pickled((True, task(item)))
    except Exception as failure:  # noqa: BLE001  it is raised in the parent
        reply = _pickled((False, failure))
    return b"", reply


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    worker.serve(*worker.channel(), _perform)
