"""A pool of worker processes of one module: each is set up by a first message, and then does one task after another.

What a set-up costs, such as a connection to the database, is paid once for each process.
"""

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Self

from audit import worker
from audit.errors import WorkerEndedError
from audit.worker import Message, Worker

_SET_UP = b"set up"
# glibc gives each large block back to the system, and gets it anew for the next task: a tenth of the time went into that.
_KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**26), "MALLOC_TRIM_THRESHOLD_": str(2**26)}

Task = Callable[[Any], object]


class WorkerPool:
    """Each process is started for a first task. One that died is replaced at the next."""

    def __init__(self, module: str, size: int, task_s: float) -> None:
        self.size = size
        self.peers = [Peer(module, task_s) for _ in range(size)]
        self._free: SimpleQueue[Peer] = SimpleQueue()
        for peer in self.peers:
            self._free.put(peer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self.peers:
            peer.close()

    def ask(self, set_up: object, item: object) -> Any:
        """The result of one task, from whichever process is free. What it raises is raised here; `WorkerEndedError` if it dies."""
        peer = self._free.get()
        try:
            return peer.ask(set_up, item)
        finally:
            self._free.put(peer)

    def in_order(self, set_up: object, items: Iterable[object]) -> Iterator[Any]:
        """The results in the order of the items, of which all processes together are a few ahead."""
        waiting: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(self.size) as senders:
            for item in items:
                waiting.append(senders.submit(self.ask, set_up, item))
                while waiting and (waiting[0].done() or len(waiting) > 2 * self.size):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()


class Peer:
    """One process."""

    def __init__(self, module: str, task_s: float) -> None:
        self._module, self._task_s = module, task_s
        self.worker: Worker | None = None
        self._told: object = None

    def ask(self, set_up: object, item: object) -> Any:
        try:
            return self._result(set_up, item)
        except (WorkerEndedError, OSError):
            self.worker = self._told = None  # another one is started for the next task
            raise
        except Exception:
            self._told = None  # such as a lost connection
            raise

    def _result(self, set_up: object, item: object) -> Any:
        self.worker = self.worker or Worker(
            worker.command(self._module), env=worker.environment() | _KEPT_MEMORY
        )
        if self._told != set_up:
            self._request(_SET_UP, set_up)
            self._told = set_up
        return self._request(b"", item)

    def _request(self, header: bytes, value: object) -> Any:
        assert self.worker
        _, reply = self.worker.request(header, pickled(value), deadline_s=self._task_s)
        is_returned, result = pickle.loads(reply)  # noqa: S301  from the process that we started
        if not is_returned:
            raise result
        return result

    def close(self) -> None:
        if self.worker:
            self.worker.end()


# In the processes


def serve(set_up: Callable[[Any], Task]) -> None:
    """Does tasks until the parent ends; each set-up gives what does the tasks after it."""
    worker.serve(*worker.channel(), _TaskServer(set_up).perform)


class _TaskServer:
    def __init__(self, set_up: Callable[[Any], Task]) -> None:
        self._set_up = set_up
        self._task: Task | None = None

    def perform(self, header: bytes, request: bytes) -> Message:
        try:
            return b"", pickled((True, self._done(header, pickle.loads(request))))  # noqa: S301  from our parent
        except Exception as failure:  # noqa: BLE001  it is raised in the parent
            return b"", pickled((False, failure))

    def _done(self, header: bytes, value: Any) -> object:
        if header != _SET_UP:
            assert self._task
            return self._task(value)
        self._task = self._set_up(value)
        return None


def pickled(value: object) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
