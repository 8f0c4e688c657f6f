"""Readiness of the log: tries whether a record could be written now, in PostgreSQL or else in the spool. Leaves no row.

The try is a whole record that is rolled back, because a full disk, a lock or a read-only server is seen only by writing.
Anybody may ask, so there is one try in a while for all who ask.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from audit.errors import AuditError

EVERY_S = 5.0
PROBE_CHARACTERS = 1 << 14  # random, so that they need more room than most records
TRY_S = 1.0  # a record has half a second

Taker = Literal["database", "spool"]


class WriteProbe:
    def __init__(
        self, try_database: Callable[[], Awaitable[None]], try_spool: Callable[[], Awaitable[None]] | None
    ) -> None:
        self._takers: dict[Taker, Callable[[], Awaitable[None]]] = {"database": try_database}
        if try_spool:
            self._takers["spool"] = try_spool
        self._alone = asyncio.Lock()
        self._tried_at = float("-inf")
        self._found: Taker | None = None

    async def taker(self) -> Taker | None:
        """Who takes the next record; None if nobody does, so that no answer may leave."""
        async with self._alone:
            now = asyncio.get_running_loop().time()
            if now - self._tried_at >= EVERY_S:
                self._found, self._tried_at = await self._try_all(), now
            return self._found

    async def _try_all(self) -> Taker | None:
        for taker, attempt in self._takers.items():
            try:
                async with asyncio.timeout(TRY_S):
                    await attempt()
            except (AuditError, TimeoutError):
                continue
            return taker
        return None
