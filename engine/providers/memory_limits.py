"""How often a key may ask."""

import time

from limits import parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import MovingWindowRateLimiter

from engine.errors import RateLimitedError
from engine.models import Client


class MemoryLimits:
    """Counts in this process. Enough for one; several share a Redis."""

    def __init__(self, per_key: str) -> None:
        self._per_key = per_key
        self._counter = MovingWindowRateLimiter(MemoryStorage())

    async def admit(self, client: Client) -> str:
        if client.key_id is None:
            return "operator"
        rate = client.rate_limit or self._per_key
        limit = parse(rate)
        if await self._counter.hit(limit, client.key_id):
            return f"admitted {rate}"
        window = await self._counter.get_window_stats(limit, client.key_id)
        raise RateLimitedError(retry_after_s=max(1, round(window.reset_time - time.time())))
