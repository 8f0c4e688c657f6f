"""Rate limiting with a moving window: in this process, or by the `limits` library in Redis for all processes. Behind Sentinel
a request is let in once a replica has counted it too, so that a failover forgets none.

A moving window admits exactly the given number of requests in any minute, however they are distributed. Readers are
counted by a digest of their name, so that Redis stores no personal text.
"""

import asyncio
import functools
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from limits import RateLimitItem, WindowStats, parse
from limits.aio.storage import RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from engine.errors import ConfigurationError, LimiterUnavailableError, RateLimitedError
from engine.models import Allowance, Client, EndUser, Quota
from engine.outage.stale_cache import CircuitBreaker
from engine.ports import Limiter
from engine.settings import Limits, Settings

TIMEOUT_S = 0.5  # Redis takes a millisecond, and waiting longer would use up the time of the answer
RETRIES = 1  # after a restart of Redis a pooled connection is dead; the retry opens a new one
CONCURRENCY_MAX = 16  # requests of one process at a time; more would look like an outage, so the others queue
ASK_SENTINEL_S = 0.1  # of each Sentinel in turn: one that hangs leaves time to ask the next
REPLICATE_MS = 200  # a replica on the same network has a count within a millisecond
PREFIX = "affidavit"
SENTINEL = ("redis+sentinel://", "rediss+sentinel://")
OPERATOR = Allowance("operator")
NAMES = 1024  # in memory: few enough to look at all of them now and then

log = logging.getLogger(__name__)


def memory(settings: Settings) -> Limiter:
    return MemoryLimits(settings.limits)


def redis(settings: Settings) -> Limiter:
    url = settings.redis.url.get_secret_value()
    if not url.startswith(("redis://", "rediss://", *SENTINEL)):
        raise ConfigurationError(
            "Rate limits in Redis need an address: set REDIS_URL to redis://…, rediss://… or"
            " redis+sentinel://HOST:PORT,HOST:PORT/NAME."
        )
    if url.startswith(SENTINEL) and not _is_complete(url):
        raise ConfigurationError(
            "REDIS_URL must name each Sentinel with its port, and then the master that they watch:"
            " redis+sentinel://HOST:PORT,HOST:PORT/NAME."
        )
    return RedisLimits(settings.limits, url, CircuitBreaker(time.monotonic))


class MemoryLimits:
    """Counts in this process. Several processes need Redis."""

    def __init__(self, rates: Limits) -> None:
        self._rates = rates
        self._counter = MovingWindows(time.time)

    def set_rates(self, *, per_key: str, anonymous: str, authenticated: str) -> None:
        rates = {"per_key": per_key, "anonymous": anonymous, "authenticated": authenticated}
        self._rates = self._rates.model_copy(update=rates)

    async def admit(self, client: Client, reader: EndUser | None) -> Allowance:
        return await _decided(self._counter, _limits(self._rates, client, reader))

    async def close(self) -> None: ...


class RedisLimits:
    """Counts for all processes together, behind a circuit breaker.

    While Redis is unavailable, a reader's limit cannot be enforced, so a request that names a reader is refused. A request
    without one falls back to a limit per process, and the record says so.
    """

    def __init__(self, rates: Limits, url: str, breaker: CircuitBreaker) -> None:
        self._rates = rates
        self._breaker = breaker
        self._slots = asyncio.Semaphore(CONCURRENCY_MAX)
        self._connections = _connections(url)
        self._replicated = Redis(connection_pool=self._connections) if url.startswith(SENTINEL) else None
        storage = RedisStorage(
            "async+redis://", implementation="redispy", key_prefix=PREFIX,
            connection_pool=self._connections,  # type: ignore[arg-type]  # its type stubs allow plain values only
        )  # fmt: skip
        self._counter = MovingWindowRateLimiter(storage)
        self._fallback = MemoryLimits(rates)
        self._is_unavailable = False

    def set_rates(self, *, per_key: str, anonymous: str, authenticated: str) -> None:
        rates = {"per_key": per_key, "anonymous": anonymous, "authenticated": authenticated}
        self._rates = self._rates.model_copy(update=rates)
        self._fallback.set_rates(**rates)

    async def admit(self, client: Client, reader: EndUser | None) -> Allowance:
        if client.limited_as is None:
            return OPERATOR
        async with self._slots:
            allowance = await self._shared(client, reader) if self._breaker.allow_request() else None
        return allowance or await self._without_redis(client, reader)

    async def close(self) -> None:
        await self._connections.aclose()

    async def _shared(self, client: Client, reader: EndUser | None) -> Allowance | None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                allowance = await _decided(self._counter, _limits(self._rates, client, reader))
                if self._replicated and not allowance.refusal:
                    await _await_replica(self._replicated)
        except (RedisError, OSError, TimeoutError) as failure:
            self._breaker.record_failure()
            self._log_change(failure)
            return None
        self._breaker.record_success()
        self._log_change(None)
        return allowance

    async def _without_redis(self, client: Client, reader: EndUser | None) -> Allowance:
        if reader:
            return Allowance("refused: Redis is unavailable", refusal=LimiterUnavailableError())
        allowance = await self._fallback.admit(client, None)
        return replace(
            allowance, decision=f"{allowance.decision}, by this process alone: Redis is unavailable"
        )

    def _log_change(self, failure: Exception | None) -> None:
        """Logs each transition once, not each request."""
        if failure and not self._is_unavailable:
            log.error(
                "Redis is unavailable (%s): each process limits API keys by itself, and requests that name a reader are refused",
                type(failure).__name__,
            )
        elif self._is_unavailable and not failure:
            log.warning("Redis is available again: all processes share the limits")
        self._is_unavailable = failure is not None


class _MasterPool(SentinelConnectionPool):
    """Connections to the master, wherever the Sentinels say that it is now."""

    async def aclose(self) -> None:
        await super().aclose()
        for sentinel in self.sentinel_manager.sentinels:
            await sentinel.aclose()


def _connections(url: str) -> ConnectionPool:
    patience = _patience(TIMEOUT_S, RETRIES)
    if not url.startswith(SENTINEL):
        return ConnectionPool.from_url(url, **patience)
    at = urlsplit(url)
    named = {name: unquote(text) for name in ("username", "password") if (text := getattr(at, name))}
    others = {
        name.removeprefix("sentinel_"): texts[-1]
        for name, texts in parse_qs(at.query).items()
        if name in {"sentinel_username", "sentinel_password"}
    }
    is_encrypted = at.scheme.startswith("rediss")
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        _sentinels(url),
        sentinel_kwargs=_patience(ASK_SENTINEL_S, 0) | others | ({"ssl": True} if is_encrypted else {}),
    )
    name = at.path.strip("/")
    return _MasterPool(name, sentinels, ssl=is_encrypted, **patience, **named)  # type: ignore[no-untyped-call]


def _patience(seconds: float, retries: int) -> dict[str, Any]:
    return {
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        "retry": Retry(NoBackoff(), retries),
    }


def _sentinels(url: str) -> list[tuple[str, int]]:
    addresses = urlsplit(url).netloc.rpartition("@")[2].split(",")
    return [(host.strip("[]"), int(port)) for host, _, port in (each.rpartition(":") for each in addresses)]


def _is_complete(url: str) -> bool:
    try:
        return all(host and port for host, port in _sentinels(url)) and bool(urlsplit(url).path.strip("/"))
    except ValueError:
        return False


async def _await_replica(master: Redis) -> None:
    """A failover must not forget whom it let in: a replica has this write, and so all before it, or Redis is unavailable.

    `WAIT` counts writes of its own connection only, so it comes right behind one.
    """
    async with master.pipeline(transaction=False) as commands:
        commands.set(f"{PREFIX}:replicated", "")
        commands.wait(1, REPLICATE_MS)
        *_, replicas = await commands.execute()
    if not replicas:
        raise RedisError("No replica has the count")


@dataclass(slots=True)
class MovingWindows:
    """Counts in memory, with the interface of the library, whose own storage asks a thread about each name at each request."""

    clock: Callable[[], float]
    _hits: dict[str, "_Hits"] = field(default_factory=dict)
    _names_max: int = NAMES  # then those who have not asked for long are forgotten

    async def test(self, item: RateLimitItem, *identifiers: str) -> bool:
        return len(self._recent(item, identifiers)) < item.amount

    async def hit(self, item: RateLimitItem, *identifiers: str) -> bool:
        recent = self._recent(item, identifiers)
        if len(recent) >= item.amount:
            return False
        recent.append(self.clock())
        return True

    async def get_window_stats(self, item: RateLimitItem, *identifiers: str) -> WindowStats:
        recent = self._recent(item, identifiers)
        began = recent[0] if recent else self.clock()
        return WindowStats(began + item.get_expiry(), item.amount - len(recent))

    def _recent(self, item: RateLimitItem, identifiers: tuple[str, ...]) -> deque[float]:
        """The times at which a name was admitted within its window, oldest first."""
        name, window_s = item.key_for(*identifiers), item.get_expiry()
        if name not in self._hits:
            self._make_room()
        hits = self._hits.setdefault(name, _Hits(window_s))
        hits.forget_before(self.clock() - window_s)
        return hits.times

    def _make_room(self) -> None:
        if len(self._hits) < self._names_max:
            return
        now = self.clock()
        self._hits = {name: hits for name, hits in self._hits.items() if hits.is_within(now)}
        self._names_max = max(NAMES, 2 * len(self._hits))


@dataclass(slots=True)
class _Hits:
    window_s: int
    times: deque[float] = field(default_factory=deque)

    def forget_before(self, at: float) -> None:
        while self.times and self.times[0] < at:
            self.times.popleft()

    def is_within(self, now: float) -> bool:
        return bool(self.times) and self.times[-1] >= now - self.window_s


@dataclass(frozen=True, slots=True)
class _Limit:
    policy: str
    rate: str
    name: str

    @property
    def item(self) -> RateLimitItem:
        return _parsed(self.rate)


_parsed = functools.cache(parse)


def _limits(rates: Limits, client: Client, reader: EndUser | None) -> list[_Limit]:
    """The reader's limit, if one is named, and the key's. An operator at the terminal has no limit."""
    if client.limited_as is None:
        return []
    key = _Limit("key", client.rate_limit or rates.per_key, client.limited_as)
    if reader is None:
        return [key]
    rate = rates.anonymous if reader.tier == "anonymous" else rates.authenticated
    return [_Limit(reader.tier, rate, name_of(client, reader)), key]


def name_of(client: Client, reader: EndUser) -> str:
    return sha256(f"{client.client_id}\n{reader.name}".encode()).hexdigest()


async def _decided(counter: MovingWindowRateLimiter | MovingWindows, limits: list[_Limit]) -> Allowance:
    """A reader over the limit does not count against the key, and an exhausted key not against its readers, except for a
    race for the key's last request."""
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
            f"The rate limit of {who} is reached. Wait for the time given in Retry-After, then try again.",
            retry_after_s=max(1, quota.reset_s),
        ),
    )


async def _quota(counter: MovingWindowRateLimiter | MovingWindows, limit: _Limit) -> Quota:
    stats = await counter.get_window_stats(limit.item, limit.policy, limit.name)
    return Quota(
        policy=limit.policy,
        limit=limit.item.amount,
        window_s=limit.item.get_expiry(),
        remaining=max(0, stats.remaining),
        reset_s=max(0, math.ceil(stats.reset_time - time.time())),
    )
