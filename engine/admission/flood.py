"""Requests that nobody's key stands behind: counted when they come in a flood, so that the log is no lever.

Of each address, the first 60 such requests of a minute leave a row each, like any other. From the next one on there is
one row for each kind of answer, and its `repeat_count` says exactly how many it stands for. The minute begins with the
address's first such request; the row is written when it ends, or when the server stops.

A counted request is answered once a count that includes it is durable, in the open record of the row to come. Several
wait for one note, at most `NOTE_S`. So after a kill the record, closed as `abandoned`, holds every answer that was
given; what it lacks was answered by nobody. The wait also slows down whoever makes the flood, and nobody else.

Each process counts for itself: with several of them, an address has 60 rows, and then one, in each.
"""

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from audit.errors import LedgerUnavailableError
from audit.ledger.ledger import Ledger
from audit.proof.record import Trail
from engine.errors import AuditUnavailableError
from engine.ports import Clock

ROWS_MAX = 60  # of an address and minute; more tell nothing new
MINUTE_S = 60.0
NOTE_S = 0.25  # four notes a second at most for each flood, however many requests it has
ADDRESSES_MAX = 10_000  # about 5 MB; whoever comes after them is counted with all others who do
STREET_BITS = 64  # of an IPv6 address: one subscriber has all addresses behind it
SERVER_ERROR = 500
SEVERAL = "several"  # endpoints
ELSEWHERE = ""  # no address of its own


@dataclass(slots=True)
class Count:
    """A row to come, and who waits to be counted in it."""

    trail: Trail
    is_open: bool = False
    waiting: list[asyncio.Future[None]] = field(default_factory=list)


@dataclass(slots=True)
class Minute:
    """What came from an address since its first request."""

    address: str
    ends_at: float
    rows: int = 0
    counts: dict[int, Count] = field(default_factory=dict)


class FloodCounter:
    """The counting of one process."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        monotonic: Callable[[], float],
        *,
        within_s: float,
        minute_s: float = MINUTE_S,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._monotonic = monotonic
        self._within_s = within_s
        self._minute_s = minute_s
        self._minutes: dict[str, Minute] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = asyncio.Event()

    async def count_if_flooding(self, trail: Trail) -> bool:
        """Whether this failed request stands in a common row, which its trail then names; else it needs its own."""
        if trail.client_id or trail.http_status is None or trail.http_status >= SERVER_ERROR:
            return False
        minute = self._minute_of(street(trail.client_address))
        if minute.rows < ROWS_MAX:
            minute.rows += 1
            return False
        if trail.http_status not in minute.counts:
            minute.counts[trail.http_status] = Count(_common(trail, minute.address))
            self._begin(minute, minute.counts[trail.http_status])
        await self._wait(minute.counts[trail.http_status], trail)
        return True

    async def close(self) -> None:
        """All counts become rows."""
        self._is_stopping.set()
        self._minutes.clear()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _minute_of(self, address: str) -> Minute:
        """They stand in the order of their ends, so those that are over are in front."""
        now = self._monotonic()
        while self._minutes and next(iter(self._minutes.values())).ends_at <= now:
            del self._minutes[next(iter(self._minutes))]
        if address not in self._minutes and len(self._minutes) >= ADDRESSES_MAX:
            address = ELSEWHERE
        return self._minutes.setdefault(address, Minute(address, now + self._minute_s))

    async def _wait(self, count: Count, trail: Trail) -> None:
        trail.query_id = count.trail.query_id
        counted = asyncio.get_running_loop().create_future()
        count.waiting.append(counted)
        try:
            async with asyncio.timeout(NOTE_S + 2 * self._within_s):
                await counted
        except (LedgerUnavailableError, TimeoutError):
            failure = AuditUnavailableError()
            failure.query_id = trail.query_id
            raise failure from None

    def _begin(self, minute: Minute, count: Count) -> None:
        task = asyncio.create_task(self._keep(minute, count))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep(self, minute: Minute, count: Count) -> None:
        """Until the minute is over or the server stops; then the row. What cannot be closed the ledger ends later."""
        while not self._is_stopping.is_set() and (left_s := minute.ends_at - self._monotonic()) > 0:
            if count.waiting:
                await self._durably(count, self._note)
            await self._pause(min(NOTE_S, left_s))
        await self._durably(count, self._close)

    async def _durably(self, count: Count, write: Callable[[Count], Awaitable[None]]) -> None:
        """Whoever waits by now is in the count once it is durable, and is not if it cannot be."""
        waiting, count.waiting = count.waiting, []
        count.trail.repeat_count += len(waiting)
        try:
            async with asyncio.timeout(self._within_s):
                await write(count)
        except (LedgerUnavailableError, TimeoutError) as failure:
            count.trail.repeat_count -= len(waiting)
            _answer(waiting, LedgerUnavailableError(type(failure).__name__))
        else:
            _answer(waiting, None)

    async def _note(self, count: Count) -> None:
        """Noted also when just opened: one that was opened at a second try has the count of the first."""
        if not count.is_open:
            await self._ledger.open(count.trail)
            count.is_open = True
        await self._ledger.note(count.trail)

    async def _close(self, count: Count) -> None:
        await self._ledger.close(count.trail, self._clock())

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._is_stopping.wait()
        except TimeoutError:
            """Nothing stopped us."""


def street(address: str | None) -> str:
    """What is counted as one address."""
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:
        return address or ELSEWHERE
    if found.version == 4:  # noqa: PLR2004
        return str(found)
    return str(ipaddress.ip_network((found.packed, STREET_BITS), strict=False))


def _common(trail: Trail, address: str) -> Trail:
    """Of many requests only what they share."""
    return replace(
        trail,
        endpoint=SEVERAL,
        request_id=None,
        client_address=address or None,
        error_message=f"More than {ROWS_MAX} requests without a valid key in a minute: those beyond are counted here",
        repeat_count=0,
    )


def _answer(waiting: Sequence[asyncio.Future[None]], failure: Exception | None) -> None:
    for counted in waiting:
        if counted.done():  # it left meanwhile, and is counted all the same
            continue
        if failure:
            counted.set_exception(failure)
        else:
            counted.set_result(None)
