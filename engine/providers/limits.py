"""How often somebody may ask, counted by the `limits` library: in this process, or in Redis for all processes.

A moving window: of any minute exactly so many requests are let through, however they are spread. A reader's name is a
digest where it is counted, so that no personal text lies in Redis.
"""

import asyncio
import functools
import logging
import math
import time
from dataclasses import dataclass, replace
from hashlib import sha256

from limits import RateLimitItem, parse
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from engine.errors import LimiterUnavailableError, RateLimitedError
from engine.models import Allowance, Client, EndUser, Quota, Rates
from engine.outage.stale_cache import CircuitBreaker

ANSWER_S = (
    0.5  # Redis takes a millisecond; whoever waits longer has none, and the answer has its own five seconds
)
RETRIES = 1  # a connection that was kept may be dead after a restart of Redis; a second one is new
TURNS = 16  # requests of one process that ask at once. Others wait for a turn: a crowd is not a Redis that is away
PREFIX = "affidavit"
OPERATOR = Allowance("operator")

log = logging.getLogger(__name__)


class MemoryLimits:
    """Counts in this process. Enough for one; several share a Redis."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._counter = MovingWindowRateLimiter(MemoryStorage())

    async def admit(self, client: Client, reader: EndUser | None) -> Allowance:
        return await _decided(self._counter, _limits(self._rates, client, reader))

    async def close(self) -> None: ...


class RedisLimits:
    """Counts for all processes together.

    While Redis is away, a reader's limit cannot be held, so a request that names one is refused. A key without readers
    is a site's own: it is let through up to its limit in each process, and the record says so.
    """

    def __init__(self, rates: Rates, url: str, breaker: CircuitBreaker) -> None:
        self._rates = rates
        self._breaker = breaker
        self._turns = asyncio.Semaphore(TURNS)
        self._connections = ConnectionPool.from_url(
            url, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S,
            retry=Retry(NoBackoff(), RETRIES),
        )  # fmt: skip
        storage = RedisStorage(
            f"async+{url}", implementation="redispy", key_prefix=PREFIX,
            connection_pool=self._connections,  # type: ignore[arg-type]  # its options are said to be plain values only
        )  # fmt: skip
        self._counter = MovingWindowRateLimiter(storage)
        self._alone = MemoryLimits(rates)
        self._is_away = False

    async def admit(self, client: Client, reader: EndUser | None) -> Allowance:
        if client.key_id is None:
            return OPERATOR
        async with self._turns:
            allowance = await self._shared(client, reader) if self._breaker.allow_request() else None
        return allowance or await self._without_redis(client, reader)

    async def close(self) -> None:
        await self._connections.aclose()

    async def _shared(self, client: Client, reader: EndUser | None) -> Allowance | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                allowance = await _decided(self._counter, _limits(self._rates, client, reader))
        except (RedisError, OSError, TimeoutError) as failure:
            self._breaker.record_failure()
            self._notice(failure)
            return None
        self._breaker.record_success()
        self._notice(None)
        return allowance

    async def _without_redis(self, client: Client, reader: EndUser | None) -> Allowance:
        if reader:
            return Allowance("refused: Redis is away", refusal=LimiterUnavailableError())
        allowance = await self._alone.admit(client, None)
        return replace(allowance, decision=f"{allowance.decision}, by this process alone: Redis is away")

    def _notice(self, failure: Exception | None) -> None:
        """Once for each time that it goes and comes, not for each request."""
        if failure and not self._is_away:
            log.error(
                "Redis does not answer (%s): each process counts keys alone, and readers are refused",
                type(failure).__name__,
            )
        elif self._is_away and not failure:
            log.warning("Redis answers again: limits are shared")
        self._is_away = failure is not None


@dataclass(frozen=True, slots=True)
class _Limit:
    policy: str
    rate: str
    name: str

    @property
    def item(self) -> RateLimitItem:
        return _parsed(self.rate)


def _limits(rates: Rates, client: Client, reader: EndUser | None) -> list[_Limit]:
    """The reader's, if one is named, then the key's. An operator at the terminal has none."""
    if client.key_id is None:
        return []
    key = _Limit("key", client.rate_limit or rates.per_key, client.key_id)
    if reader is None:
        return [key]
    return [_Limit(reader.tier, rates.of(reader.tier), name_of(client, reader)), key]


def name_of(client: Client, reader: EndUser) -> str:
    return sha256(f"{client.client_id}\n{reader.name}".encode()).hexdigest()


async def _decided(counter: MovingWindowRateLimiter, limits: list[_Limit]) -> Allowance:
    """A reader over their limit takes nothing from the key; a key that is used up takes nothing from its readers, but
    for those who ask for its last request at the same moment."""
    if not limits:
        return OPERATOR
    *readers, key = limits
    if readers and not await counter.test(key.item, key.policy, key.name):
        return _refused(key, await _quota(counter, key))
    quotas = []
    for limit in limits:
        is_admitted = await counter.hit(limit.item, limit.policy, limit.name)
        quotas.append(await _quota(counter, limit))
        if not is_admitted:
            return _refused(limit, quotas[-1])
    rates = " and ".join(limit.rate for limit in limits)
    return Allowance(f"admitted {rates}", min(quotas, key=lambda quota: quota.remaining))


def _refused(limit: _Limit, quota: Quota) -> Allowance:
    who = "this API key" if limit.policy == "key" else "this reader"
    return Allowance(
        f"refused: {limit.rate} of {who}",
        replace(quota, remaining=0),
        RateLimitedError(
            f"The limit of {who} is reached. Try again a little later.", retry_after_s=max(1, quota.reset_s)
        ),
    )


async def _quota(counter: MovingWindowRateLimiter, limit: _Limit) -> Quota:
    stats = await counter.get_window_stats(limit.item, limit.policy, limit.name)
    return Quota(
        policy=limit.policy,
        limit=limit.item.amount,
        window_s=limit.item.get_expiry(),
        remaining=max(0, stats.remaining),
        reset_s=max(0, math.ceil(stats.reset_time - time.time())),
    )


@functools.cache
def _parsed(rate: str) -> RateLimitItem:
    return parse(rate)
