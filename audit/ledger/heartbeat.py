"""Heartbeat rows of a serving process: each says which of its records must be in the log.

So whoever makes the database drop records, and not only the engine's statements, leaves a gap that a verifier names.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from audit.errors import LedgerUnavailableError
from audit.ledger.ledger import Ledger
from audit.proof.record import Trail

ENDPOINT = "heartbeat"
EVERY_S = 60.0
LAST_S = 2.0  # an orderly stop waits so long for its last one

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    ledger: Ledger
    clock: Callable[[], datetime]
    new_id: Callable[[], UUID]
    every_s: float = EVERY_S

    @contextlib.asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Beats now, every minute, and at the end of the block."""
        stop = asyncio.Event()
        task = asyncio.create_task(self._beat_until(stop))
        try:
            yield
        finally:
            stop.set()  # and no cancellation: a heartbeat that is open is closed first
            await asyncio.wait([task], timeout=LAST_S)
            task.cancel()
            await asyncio.wait([task])

    async def beat(self) -> None:
        trail = Trail(
            log_id=self.new_id(), query_id=self.new_id(), timestamp=self.clock(), endpoint=ENDPOINT,
            outcome="recorded", success=True,
        )  # fmt: skip
        await self.ledger.beat(trail, self.clock)

    async def _beat_until(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._try()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.every_s):
                    await stop.wait()
        await self._try()

    async def _try(self) -> None:
        """The next one tells what a failed one would have told."""
        try:
            await self.beat()
        except LedgerUnavailableError as failure:
            log.warning("A heartbeat could not be recorded (%s); the next one says the same", failure)
