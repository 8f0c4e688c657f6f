"""Rows that stand for many requests: `repeat_count` is their exact number.

A request is answered once a count that includes it is durable, in the open record of its row. Requests wait for the same
write together (group commit). So if the process is killed, the row, closed as `abandoned`, counts every request that was
answered. The row is written when its minute is over, or when the server stops.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field

from audit.errors import LedgerUnavailableError
from audit.ledger.ledger import Ledger
from audit.proof.record import Trail
from engine.ports import Clock


@dataclass(slots=True)
class SharedRow:
    """A row to be written, and the requests that wait to be counted in it."""

    trail: Trail
    ends_at: float
    is_open: bool = False
    waiting: int = 0
    has_waiting: asyncio.Event = field(default_factory=asyncio.Event)
    _counted: asyncio.Future[None] | None = None  # of all who wait

    def counted(self) -> asyncio.Future[None]:
        """One more request; done once its count is durable, for all who wait together, so whoever leaves must not cancel
        it. `LedgerUnavailableError` if it could not be counted."""
        if self._counted is None:
            self._counted = asyncio.get_running_loop().create_future()
            self.has_waiting.set()
        self.waiting += 1
        return self._counted

    def take_waiting(self) -> tuple[int, asyncio.Future[None] | None]:
        """Those who wait; whoever comes from now on is counted with the next."""
        taken = self.waiting, self._counted
        self.waiting, self._counted = 0, None
        self.has_waiting.clear()
        return taken


class Beat:
    """Rows with news are counted together, in one batch of the ledger, and then again after a pause. Each for itself they
    would wait for each other's batches."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._counting = 0
        self._may_begin = asyncio.Event()
        self._may_begin.set()

    async def __aenter__(self) -> None:
        """At the next beat, with all that are ready in the same turn of the event loop."""
        await self._may_begin.wait()
        if self._counting == 0:
            asyncio.get_running_loop().call_soon(self._may_begin.clear)
        self._counting += 1

    async def __aexit__(self, *_: object) -> None:
        self._counting -= 1
        if self._counting == 0:
            asyncio.get_running_loop().call_later(self._pause_s, self._may_begin.set)


class SharedRows:
    """Writes the shared rows of one process."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        monotonic: Callable[[], float],
        *,
        within_s: float,
        interval_s: Callable[[int], float] | None = None,
        beat_s: float | None = None,
    ) -> None:
        """Each row pauses for `interval_s` after a count that so many requests waited for, or all are counted together
        and pause for `beat_s`."""
        self._ledger = ledger
        self._clock = clock
        self._monotonic = monotonic
        self._within_s = within_s
        self._interval_s = interval_s
        self._beat = nullcontext() if beat_s is None else Beat(beat_s)
        self._rows: dict[asyncio.Task[None], SharedRow] = {}
        self._is_stopping = asyncio.Event()

    def __len__(self) -> int:
        return len(self._rows)

    def begin(self, trail: Trail, ends_at: float) -> SharedRow:
        row = SharedRow(trail, ends_at)
        task = asyncio.create_task(self._write_until_end(row))
        self._rows[task] = row
        task.add_done_callback(self._rows.pop)
        return row

    async def close(self) -> None:
        """Writes all rows."""
        self._is_stopping.set()
        for row in self._rows.values():
            row.has_waiting.set()
        if self._rows:
            await asyncio.wait(self._rows)

    async def _write_until_end(self, row: SharedRow) -> None:
        """A row that cannot be closed is an orphan, which the ledger closes later."""
        while not self._is_stopping.is_set() and (left_s := row.ends_at - self._monotonic()) > 0:
            await _within(left_s, row.has_waiting)
            if row.waiting and not self._is_stopping.is_set():
                pause_s = min(self._interval_s(row.waiting), left_s) if self._interval_s else 0.0
                async with self._beat:
                    await self._count_waiting(row, self._note)
                if pause_s:
                    await _within(pause_s, self._is_stopping)
        await self._count_waiting(row, self._close)

    async def _count_waiting(self, row: SharedRow, write: Callable[[SharedRow], Awaitable[None]]) -> None:
        """Adds the waiting requests to the count, and takes them out again if the write fails."""
        waiting, counted = row.take_waiting()
        row.trail.repeat_count += waiting
        try:
            async with asyncio.timeout(self._within_s):
                await write(row)
        except (LedgerUnavailableError, TimeoutError) as failure:
            row.trail.repeat_count -= waiting
            if counted:
                counted.set_exception(LedgerUnavailableError(type(failure).__name__))
                counted.exception()  # if all who waited have gone, nobody else looks at it
        else:
            if counted:
                counted.set_result(None)

    async def _note(self, row: SharedRow) -> None:
        """Notes the count right after opening too: opening is idempotent, so a retry keeps the count of the first try."""
        if not row.is_open:
            await self._ledger.open(row.trail)
            row.is_open = True
        await self._ledger.note(row.trail)

    async def _close(self, row: SharedRow) -> None:
        await self._ledger.close(row.trail, self._clock())


async def _within(seconds: float, event: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
