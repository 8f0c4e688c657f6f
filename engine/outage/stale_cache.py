"""What the database said last about something: used again for a second, and for as long as it is away.

One asks and all who want the same wait for it. Whoever has a word to fall back on waits only a moment; the question
itself is asked to its end in the background, so that a slow database is heard as well.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from engine.errors import DatabaseUnavailableError

FRESH_S = 1.0  # within it a revoked key is refused and a new edition seen, in every process
STALE_S = 600.0  # so long a word counts while the database is away: longer than an outage should last
REFRESH_WAIT_S = 0.3  # what a request may lose to a database that is away, if it can do without
OPEN_S = FRESH_S - REFRESH_WAIT_S  # then one request looks again, so that a look is never older than a second
QUERY_S = 5.0  # the longest that a request lives; then the connection is wanted back
WIND_UP_S = 0.05  # to let go of a connection
NAMES_MAX = 10_000  # of each kind: anybody can make up keys and books, and may not fill the memory with them

Said = TypeVar("Said")


class CircuitBreaker:
    """Whether the database was found away a moment ago. What holds for one name holds for all, so they share it."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.now = monotonic
        self._look_at: float | None = None

    def allow_request(self) -> bool:
        """By everybody while the database is there; by one now and then while it is away."""
        if self._look_at is None:
            return True
        if self.now() < self._look_at:
            return False
        self._look_at = self.now() + REFRESH_WAIT_S
        return True

    def record_failure(self) -> None:
        self._look_at = self.now() + OPEN_S

    def record_success(self) -> None:
        self._look_at = None


@dataclass(frozen=True, slots=True)
class Word(Generic[Said]):
    said: Said | None  # nothing: there is no such thing
    asked_at: float


@dataclass(frozen=True, slots=True)
class Asking(Generic[Said]):
    task: asyncio.Task[Said | None]
    asked_at: float


class StaleIfErrorCache(Generic[Said]):
    """The last word on each name."""

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker
        self._known: OrderedDict[Hashable, Word[Said]] = OrderedDict()
        self._unknown: OrderedDict[Hashable, Word[Said]] = OrderedDict()
        self._asking: dict[Hashable, Asking[Said]] = {}
        self._work = Work()

    async def get(self, name: Hashable, ask: Callable[[], Awaitable[Said | None]]) -> Said | None:
        """What there is of this name; None if there is nothing. `DatabaseUnavailableError` if nobody can say."""
        word = self._known.get(name) or self._unknown.get(name)
        if word and self._age_s(word) < FRESH_S:
            return word.said
        if word is None or word.said is None or self._age_s(word) >= STALE_S:
            return await self._answer(name, ask)
        if not self._breaker.allow_request():
            return word.said
        try:
            async with asyncio.timeout(REFRESH_WAIT_S):
                return await self._answer(name, ask)
        except (TimeoutError, DatabaseUnavailableError):
            self._breaker.record_failure()
            return word.said

    async def close(self) -> None:
        await self._work.close()

    def _age_s(self, word: Word[Said] | Asking[Said]) -> float:
        return self._breaker.now() - word.asked_at

    async def _answer(self, name: Hashable, ask: Callable[[], Awaitable[Said | None]]) -> Said | None:
        """Of a question that was asked within the second, whoever asked it; it goes on when one of them leaves."""
        asking = self._asking.get(name)
        if asking is None or self._age_s(asking) >= FRESH_S:
            now = self._breaker.now()
            asking = Asking(self._work.begin(self._heard(name, ask, now)), now)
            self._asking[name] = asking
        try:
            return await asyncio.shield(asking.task)
        except DatabaseUnavailableError as failure:
            raise DatabaseUnavailableError from failure  # an error of its own for each request: it will name it

    async def _heard(
        self, name: Hashable, ask: Callable[[], Awaitable[Said | None]], asked_at: float
    ) -> Said | None:
        try:
            async with asyncio.timeout(QUERY_S):
                said = await ask()
        except (TimeoutError, DatabaseUnavailableError) as failure:
            self._breaker.record_failure()
            raise DatabaseUnavailableError from failure
        finally:
            current = self._asking.get(name)
            if current and current.asked_at == asked_at:
                del self._asking[name]
        self._breaker.record_success()
        self._keep(name, Word(said, asked_at))
        return said

    def _keep(self, name: Hashable, word: Word[Said]) -> None:
        """As of when it was asked, not heard: what the database did meanwhile, it may not have looked at."""
        before = self._known.pop(name, None) or self._unknown.pop(name, None)
        latest = before if before and before.asked_at > word.asked_at else word
        words = self._unknown if latest.said is None else self._known
        words[name] = latest
        if len(words) > NAMES_MAX:
            words.popitem(last=False)


class Work:
    """What goes on beside the requests."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, Said]) -> asyncio.Task[Said]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Any]) -> None:
        """A failure has been heard by those who waited; if all had left, nobody needs to know."""
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def close(self) -> None:
        """The database's driver, once interrupted, waits for a server that does not answer; twice, it lets go."""
        for _ in range(2):
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=WIND_UP_S)
