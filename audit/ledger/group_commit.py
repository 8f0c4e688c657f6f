"""Group commit: many writers share one flush to disk. The entries that queue up during one batch are the next batch.

There is no waiting window, so a single writer is as fast as without it.

A writer that gives up withdraws its entry, so that nothing is recorded that its client was not told: an entry is left out
for certain until its batch begins to commit. From then on only the end of the commit tells, so the writer waits for it.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from audit.errors import PermanentWriteError, TransientWriteError, WithdrawnError
from audit.ledger.entry import Entry

BATCH_MAX = 256  # rows of some kilobytes: one statement stays small, and a bad row is soon found
WAITING_MAX = 2048  # no database writes more in half a second: fail at once instead of queueing more

BeforeCommit = Callable[[], None]  # raises `WithdrawnError` if the batch must not be committed
Flush = Callable[[Sequence[Entry], BeforeCommit], Awaitable[None]]


@dataclass(eq=False, slots=True)
class PendingWrite:
    """An entry on its way to the disk. `done` ends when it is durable, or refused."""

    entry: Entry
    done: asyncio.Future[None]
    is_committing: bool = False
    is_withdrawn: bool = False
    is_needless: bool = False  # it is durable elsewhere

    async def wait(self) -> None:
        """Until the entry is durable. Whoever is cancelled meanwhile withdraws it himself."""
        await asyncio.shield(self.done)

    async def wait_within(self, seconds: float) -> None:
        """Like `wait`, but gives up in time if that is certain."""
        await asyncio.wait([self.done], timeout=seconds)
        if not self.done.done() and self.withdraw():
            raise TransientWriteError("It was not written in time")
        await self.wait()

    @property
    def is_written(self) -> bool:
        return self.done.done() and not self.done.cancelled() and self.done.exception() is None

    def withdraw(self) -> bool:
        """True if the entry will surely not be written; False if it may be already."""
        self.is_withdrawn = not self.is_committing
        return self.is_withdrawn


class GroupCommit:
    """A queue whose consumers (`run`) take batches. A refused entry fails alone, not with its batch."""

    def __init__(self) -> None:
        self._waiting: deque[PendingWrite] = deque()
        self._has_some = asyncio.Event()
        self._idle = 0

    def put(self, entry: Entry) -> PendingWrite:
        """Queue an entry to be written."""
        if len(self._waiting) >= WAITING_MAX:
            raise TransientWriteError("The queue is full")
        write = PendingWrite(entry, asyncio.get_running_loop().create_future())
        write.done.add_done_callback(_retrieve)
        self._waiting.append(write)
        self._has_some.set()
        return write

    async def run(self, flush: Flush) -> None:
        """Consume for ever. Several consumers may run at once: while one writes its batch, another gathers the next."""
        while True:
            self._idle += 1
            await self._has_some.wait()
            batch = self._gathered(min(BATCH_MAX, math.ceil(len(self._waiting) / self._idle)))
            self._idle -= 1
            if batch:
                await _write(flush, batch)

    def _gathered(self, count: int) -> list[PendingWrite]:
        """A fair share of the queue, without what was withdrawn or is needless."""
        batch: list[PendingWrite] = []
        while self._waiting and len(batch) < count:
            write = self._waiting.popleft()
            if not (write.is_withdrawn or write.is_needless):
                batch.append(write)
        if not self._waiting:
            self._has_some.clear()
        return batch


async def _write(flush: Flush, batch: Sequence[PendingWrite]) -> None:
    try:
        await flush([write.entry for write in batch], partial(_begin_commit, batch))
    except WithdrawnError:
        if rest := [write for write in batch if not write.is_withdrawn]:
            await _write(flush, rest)
    except PermanentWriteError as refused:
        if len(batch) == 1:
            _end(batch, refused)
            return
        for write in batch:
            write.is_committing = False
        for write in batch:
            await _write(flush, [write])
    except TransientWriteError as unavailable:
        _end(batch, unavailable)
    except Exception as fault:
        _end(batch, TransientWriteError(type(fault).__name__))
        raise
    else:
        _end(batch, None)


def _begin_commit(batch: Sequence[PendingWrite]) -> None:
    if any(write.is_withdrawn for write in batch):
        raise WithdrawnError
    for write in batch:
        write.is_committing = True


def _end(batch: Sequence[PendingWrite], failure: Exception | None) -> None:
    for write in batch:
        if write.done.done():
            continue
        if failure:
            write.done.set_exception(failure)
        else:
            write.done.set_result(None)


def _retrieve(done: asyncio.Future[None]) -> None:
    """The failure of a write that nobody waits for any more is no unhandled one."""
    if not done.cancelled():
        done.exception()
