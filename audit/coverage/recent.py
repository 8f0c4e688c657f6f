"""The coverage as it was lately. On a long log it takes longer to count than a page may take, so it is read in the background."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from audit.checking.status import Status
from audit.coverage.months import MonthCoverage

FRESH_S = 15.0
SHARE_MAX = 0.05  # of the time in which it is read: on a log of ten million records that keeps a processor busy for seconds
PATIENCE_S = 2.5


@dataclass(frozen=True, slots=True)
class Coverage:
    """The months and the state of the log, as they were at a moment."""

    at: datetime
    months: list[MonthCoverage]
    status: Status


class RecentCoverage:
    """One reading at a time, whoever asks."""

    def __init__(
        self,
        read: Callable[[], Awaitable[Coverage]],
        monotonic: Callable[[], float],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._read = read
        self._monotonic = monotonic
        self._patience_s = patience_s
        self._newest: Coverage | None = None
        self._fresh_until = 0.0
        self._reading: asyncio.Task[None] | None = None

    async def get(self) -> Coverage | None:
        """The newest; None while the first reading takes longer than a page can wait. Its failure is the caller's, or, if it
        comes later, that of whoever asks next."""
        if self._newest is None or self._monotonic() > self._fresh_until:
            reading = self._reading
            if reading is None or (reading.done() and not reading.exception()):
                reading = self._reading = asyncio.create_task(self._read_again())
            await asyncio.wait([reading], timeout=self._patience_s)
            if reading.done():
                self._reading = None if self._reading is reading else self._reading
                reading.result()
        return self._newest

    async def close(self) -> None:
        if self._reading:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read_again(self) -> None:
        began = self._monotonic()
        self._newest = await self._read()
        ended = self._monotonic()
        self._fresh_until = ended + max(FRESH_S, (ended - began) / SHARE_MAX)
