"""Group commit: many writers share one flush to disk. The entries that queue up during one batch are the next batch.

There is no waiting window, so a single writer is as fast as without it.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from audit.errors import PermanentWriteError, TransientWriteError
from audit.ledger.entry import Entry

BATCH_MAX = 256  # rows of some kilobytes: one statement stays small, and a bad row is soon found
WAITING_MAX = 2048  # no database writes more in half a second: fail at once instead of queueing more

Flush = Callable[[Sequence[Entry]], Awaitable[None]]


class GroupCommit:
    """A queue whose consumers (`run`) take batches. A refused entry fails alone, not with its batch."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Entry, asyncio.Future[None]]] = deque()
        self._has_some = asyncio.Event()
        self._idle = 0

    async def write(self, entry: Entry) -> None:
        """Returns when the entry is durable."""
        if len(self._waiting) >= WAITING_MAX:
            raise TransientWriteError("The queue is full")
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((entry, done))
        self._has_some.set()
        await done

    async def run(self, flush: Flush) -> None:
        """Consume for ever. Several consumers may run at once: while one writes its batch, another gathers the next."""
        while True:
            self._idle += 1
            await self._has_some.wait()
            batch = self._gathered(min(BATCH_MAX, math.ceil(len(self._waiting) / self._idle)))
            self._idle -= 1
            if batch:
                await _write(flush, [entry for entry, _ in batch], [done for _, done in batch])

    def _gathered(self, count: int) -> list[tuple[Entry, asyncio.Future[None]]]:
        """A fair share of the queue. Entries whose writers have timed out are skipped: they went to the spool."""
        batch: list[tuple[Entry, asyncio.Future[None]]] = []
        while self._waiting and len(batch) < count:
            entry, done = self._waiting.popleft()
            if not done.done():
                batch.append((entry, done))
        if not self._waiting:
            self._has_some.clear()
        return batch


async def _write(flush: Flush, entries: Sequence[Entry], dones: Sequence[asyncio.Future[None]]) -> None:
    try:
        await flush(entries)
    except PermanentWriteError as refused:
        if len(entries) == 1:
            _end(dones, refused)
            return
        for entry, done in zip(entries, dones, strict=True):
            await _write(flush, [entry], [done])
    except TransientWriteError as unavailable:
        _end(dones, unavailable)
    except Exception as fault:
        _end(dones, TransientWriteError(type(fault).__name__))
        raise
    else:
        _end(dones, None)


def _end(dones: Sequence[asyncio.Future[None]], failure: Exception | None) -> None:
    for done in dones:
        if done.done():
            continue
        if failure:
            done.set_exception(failure)
        else:
            done.set_result(None)
