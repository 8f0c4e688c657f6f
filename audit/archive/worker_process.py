"""One more process, for work that is bound to a core. It is started anew: it shares nothing, and holds only what it needs."""

import pickle
import resource
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from subprocess import PIPE, Popen
from typing import Any, Self, TypeVar

from audit.errors import ArchiveWorkerError

WAITING_MAX = 4  # results that are done and must wait for an earlier one, or are on their way

MEMORY_BYTES_MAX = 2**31  # a file that somebody made to expand for ever ends there

_START = "import sys; sys.path[:] = {path!r}; from audit.archive.worker_process import serve; serve()"

Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Callable[[Item], Result]


def in_order(work: Work[Item, Result], items: Iterable[Item], *, alone: bool = False) -> Iterator[Result]:
    """The results in the order of the items. Both processes work, or the other one alone; what work raises is raised here."""
    with _Second() as second:
        waiting: deque[Future[Result]] = deque()
        theirs: Future[Result] | None = None
        for place, item in enumerate(items):
            if alone or (place and (theirs is None or theirs.done())):
                theirs = second.ask(work, item)
                waiting.append(theirs)
            else:
                waiting.append(_done(work, item))
            while waiting and (waiting[0].done() or len(waiting) > WAITING_MAX):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def serve() -> None:
    """What the other process does, until there is no more."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        try:
            work, item = pickle.load(source)  # noqa: S301  from the process that started this one
        except EOFError:
            return
        try:
            answer = (True, work(item))
        except Exception as failure:  # noqa: BLE001  it is raised where it was asked for
            answer = (False, failure)
        pickle.dump(answer, sink, pickle.HIGHEST_PROTOCOL)
        sink.flush()


class _Second:
    """The other process, from the first time that it is asked."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._process: Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._process.kill()  # it has nothing to finish
        self._thread.shutdown()
        if self._process:
            with self._process:
                pass

    def ask(self, work: Work[Item, Result], item: Item) -> Future[Result]:
        if self._process is None:
            command = [sys.executable, "-c", _START.format(path=sys.path)]
            self._process = Popen(command, stdin=PIPE, stdout=PIPE)
        return self._thread.submit(_asked, self._process, work, item)


def _asked(process: Popen[bytes], work: Work[Item, Result], item: Item) -> Any:
    assert process.stdin and process.stdout
    try:
        pickle.dump((work, item), process.stdin, pickle.HIGHEST_PROTOCOL)
        process.stdin.flush()
        is_well, answer = pickle.load(process.stdout)  # noqa: S301  from the process that we started
    except (OSError, EOFError, pickle.UnpicklingError):
        raise ArchiveWorkerError("The second process ended in the middle of its work") from None
    if not is_well:
        raise answer
    return answer


def _done(work: Work[Item, Result], item: Item) -> Future[Result]:
    future: Future[Result] = Future()
    future.set_result(work(item))
    return future
