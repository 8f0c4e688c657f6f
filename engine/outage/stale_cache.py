"""A stale-if-error cache: values with a short TTL that are served stale while the database is unavailable.

A value is fresh for one second, so that a revoked key or a new edition takes effect at once everywhere. During an outage
it is served for up to ten minutes, so that questions are still answered.

Concurrent lookups of one name share one query. A request that has a stale value to fall back on waits only a moment for
the query; the query itself runs to its end in the background, so that a slow database still refreshes the cache.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from engine.errors import DatabaseUnavailableError

FRESH_S = 1.0  # TTL: within it every process refuses a revoked key and sees a new edition
STALE_S = 600.0  # how long a value is served during an outage: longer than an outage should last
REFRESH_WAIT_S = 0.3  # the longest that a request with a stale value waits for an unavailable database
OPEN_S = FRESH_S - REFRESH_WAIT_S  # then one request probes again, so that no state is older than a second
QUERY_S = 5.0  # the longest that a request lives; after that its connection goes back to the pool
CANCEL_S = 0.05  # to release a connection after a cancellation
ENTRIES_MAX = 10_000  # of each kind: anybody can invent keys and books, which must not fill the memory

Value = TypeVar("Value")


class CircuitBreaker:
    """A circuit breaker: after a failure requests skip the database, except for one probe at a time.

    All caches share one, because an outage concerns every name alike.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.now = monotonic
        self._probe_at: float | None = None

    def allow_request(self) -> bool:
        """True for every caller while the database is available; during an outage, for one caller per interval."""
        if self._probe_at is None:
            return True
        if self.now() < self._probe_at:
            return False
        self._probe_at = self.now() + REFRESH_WAIT_S
        return True

    def record_failure(self) -> None:
        self._probe_at = self.now() + OPEN_S

    def record_success(self) -> None:
        self._probe_at = None


@dataclass(frozen=True, slots=True)
class CachedValue(Generic[Value]):
    value: Value | None  # None is cached too: the name does not exist
    queried_at: float


@dataclass(frozen=True, slots=True)
class RunningQuery(Generic[Value]):
    task: asyncio.Task[Value | None]
    queried_at: float


class StaleIfErrorCache(Generic[Value]):
    """An LRU cache of values by name. Unknown names are cached apart, so that they cannot evict known ones."""

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker
        self._known: OrderedDict[Hashable, CachedValue[Value]] = OrderedDict()
        self._unknown: OrderedDict[Hashable, CachedValue[Value]] = OrderedDict()
        self._running: dict[Hashable, RunningQuery[Value]] = {}
        self._tasks = BackgroundTasks()

    async def get(self, name: Hashable, query: Callable[[], Awaitable[Value | None]]) -> Value | None:
        """The value of a name; None if it does not exist. `DatabaseUnavailableError` if it is neither cached nor available."""
        cached = self._known.get(name) or self._unknown.get(name)
        if cached and self._age_s(cached) < FRESH_S:
            return cached.value
        if cached is None or cached.value is None or self._age_s(cached) >= STALE_S:
            return await self._query(name, query)
        if not self._breaker.allow_request():
            return cached.value
        try:
            async with asyncio.timeout(REFRESH_WAIT_S):
                return await self._query(name, query)
        except (TimeoutError, DatabaseUnavailableError):
            self._breaker.record_failure()
            return cached.value

    async def close(self) -> None:
        await self._tasks.close()

    def _age_s(self, item: CachedValue[Value] | RunningQuery[Value]) -> float:
        return self._breaker.now() - item.queried_at

    async def _query(self, name: Hashable, query: Callable[[], Awaitable[Value | None]]) -> Value | None:
        """Joins a query that began within the last second, or starts one. It goes on if a waiting request is cancelled."""
        running = self._running.get(name)
        if running is None or self._age_s(running) >= FRESH_S:
            now = self._breaker.now()
            running = RunningQuery(self._tasks.start(self._query_and_store(name, query, now)), now)
            self._running[name] = running
        try:
            return await asyncio.shield(running.task)
        except DatabaseUnavailableError as failure:
            raise DatabaseUnavailableError from failure  # each request needs its own error, to put its id into it

    async def _query_and_store(
        self, name: Hashable, query: Callable[[], Awaitable[Value | None]], queried_at: float
    ) -> Value | None:
        try:
            async with asyncio.timeout(QUERY_S):
                value = await query()
        except (TimeoutError, DatabaseUnavailableError) as failure:
            self._breaker.record_failure()
            raise DatabaseUnavailableError from failure
        finally:
            current = self._running.get(name)
            if current and current.queried_at == queried_at:
                del self._running[name]
        self._breaker.record_success()
        self._store(name, CachedValue(value, queried_at))
        return value

    def _store(self, name: Hashable, new: CachedValue[Value]) -> None:
        """Values age from the start of their query: a later change in the database may not be in the result."""
        before = self._known.pop(name, None) or self._unknown.pop(name, None)
        latest = before if before and before.queried_at > new.queried_at else new
        entries = self._unknown if latest.value is None else self._known
        entries[name] = latest
        if len(entries) > ENTRIES_MAX:
            entries.popitem(last=False)


class BackgroundTasks:
    """Tasks that run beside the requests and are cancelled on close."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Value]) -> asyncio.Task[Value]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._discard)
        return task

    def _discard(self, task: asyncio.Task[Any]) -> None:
        """Retrieves the exception: waiting requests have received it already, and asyncio would log it as unhandled."""
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def close(self) -> None:
        """Cancels twice: after one cancellation the database's driver still waits for a server that does not respond."""
        for _ in range(2):
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=CANCEL_S)
