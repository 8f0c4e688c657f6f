"""A flood without a key leaves few rows that stand for every request of it, whatever happens to the server."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from audit.errors import LedgerUnavailableError
from audit.proof.record import Trail
from engine.admission import flood as flood_module
from engine.admission.flood import ROWS_MAX, FloodCounter, network_of
from engine.answer import Asked, Engine
from engine.errors import AuditUnavailableError, RequestError, UnauthenticatedError, UnknownBookError
from engine.house import House
from engine.models import Client, EndUser, Question
from engine.ports import NullExchange
from engine.wiring import now
from tests.build import STRANGE
from tests.conftest import Records


class NotFoundError(RequestError):
    status = 404
    error_type = "validation"


def asked(address: str | None, secret: str | None = STRANGE, **about: Any) -> Asked:
    return Asked("/v1/query", str(uuid4()), client_address=address, secret=secret, **about)


@asynccontextmanager
async def flooded(house: House, *, minute_s: float = 60, ledger: Any = None) -> AsyncIterator[Engine]:
    """An engine with a count of its own; at the end of the block it stops in good order."""
    engine = replace(house.engine, ledger=ledger or house.engine.ledger)
    flood = FloodCounter(engine.ledger, now, time.monotonic, within_s=5.0, minute_s=minute_s)
    try:
        yield replace(engine, flood=flood)
    finally:
        await flood.close()


async def refused(engine: Engine, address: str | None, times: int, **about: Any) -> list[RequestError]:
    async def refuse() -> RequestError:
        with pytest.raises(RequestError) as caught:
            await engine.answer(asked(address, **about))
        return caught.value

    found = []
    for start in range(0, times, 100):
        found += await asyncio.gather(*(refuse() for _ in range(min(100, times - start))))
    return found


def rows_of(records: Records, address: str | None) -> list[dict[str, Any]]:
    return records.where("client_address = %s", address)


# Seen red with `repeat_count` beginning at 1.
async def test_a_flood_leaves_sixty_rows_and_one_that_counts_the_rest(house: House, records: Records) -> None:
    address = "198.51.100.1"
    async with flooded(house) as engine:
        failures = await refused(engine, address, 1000)
        assert len(rows_of(records, address)) == ROWS_MAX
    assert {failure.status for failure in failures} == {401}
    rows = rows_of(records, address)
    assert Counter(row["repeat_count"] for row in rows) == {1: ROWS_MAX, 1000 - ROWS_MAX: 1}
    (common,) = [row for row in rows if row["repeat_count"] > 1]
    assert (common["http_status"], common["outcome"], common["success"]) == (401, "failed", False)
    assert (common["endpoint"], common["request_id"], common["error_type"]) == ("several", None, "auth")
    named = Counter(failure.query_id for failure in failures)
    assert set(named) == {row["query_id"] for row in rows}
    assert named[common["query_id"]] == 1000 - ROWS_MAX


async def test_the_row_is_written_when_the_minute_ends_and_the_next_minute_begins_anew(
    house: House, records: Records
) -> None:
    address = "198.51.100.2"
    async with flooded(house, minute_s=1.0) as engine:
        await refused(engine, address, 100)
        async with asyncio.timeout(60):
            while len(rows_of(records, address)) <= ROWS_MAX:  # noqa: ASYNC110  it is written when the minute ends
                await asyncio.sleep(0.02)
        assert sum(row["repeat_count"] for row in rows_of(records, address)) == 100
        await refused(engine, address, 10)
        assert len(rows_of(records, address)) == ROWS_MAX + 1 + 10
    assert sum(row["repeat_count"] for row in rows_of(records, address)) == 110


# Seen red with only 401 counted: every 404 had a row of its own.
async def test_all_ways_in_share_the_count_and_each_status_has_its_row(
    house: House, records: Records
) -> None:
    address = "198.51.100.3"
    async with flooded(house) as engine:
        for _ in range(20):
            await refused(engine, address, 1)
            with pytest.raises(UnauthenticatedError):
                await engine.serve(asked(address), nothing)
            await engine.reject(asked(address, None), NotFoundError())
        assert len(rows_of(records, address)) == ROWS_MAX
        await asyncio.gather(
            *(engine.reject(asked(address, None), NotFoundError()) for _ in range(30)),
            *(engine.reject(asked(address), NotFoundError()) for _ in range(7)),
            refused(engine, address, 5),
        )
    counted = Counter[int]()
    for row in rows_of(records, address):
        counted[row["http_status"]] += row["repeat_count"]
    assert counted == {401: 40 + 7 + 5, 404: 20 + 30}
    assert len(rows_of(records, address)) == ROWS_MAX + 2


async def nothing(_: Client, __: Trail) -> None: ...


# Seen red with every failure counted.
async def test_who_has_a_key_leaves_a_row_each(house: House, records: Records) -> None:
    address = "198.51.100.4"
    operator = Client("known", None, frozenset({"ask"}))

    async def read() -> Question:
        return Question("Where?", "no-such-book", 5)

    async with flooded(house) as engine:
        failures = await refused(engine, address, 70, operator=operator, exchange=NullExchange(read))
    assert {type(failure) for failure in failures} == {UnknownBookError}
    assert Counter(row["repeat_count"] for row in rows_of(records, address)) == {1: 70}


@dataclass
class PublicKeyring:
    """Of one key with a public token that everybody knows."""

    client: Client

    async def authenticate(self, _: str | None) -> Client:
        return self.client


@pytest.mark.parametrize(("origin", "status"), [("https://evil.example", 403), ("https://book.example", 429)])
# Seen red with every request that has a key, also a public token's, left a row of its own.
async def test_visitors_who_are_turned_away_with_a_public_token_share_a_row(
    house: House, records: Records, origin: str, status: int
) -> None:
    address = f"198.51.100.{status % 256}"
    visitor = Client(
        f"site-{uuid4()}", f"{uuid4()}", frozenset({"ask"}), "1/hour", public_origin="https://book.example"
    )
    async with flooded(house) as engine:
        of_visitors = replace(engine, keyring=PublicKeyring(visitor))
        await engine.limiter.admit(visitor, None)  # the key's only request of this hour
        failures = await refused(
            of_visitors, address, 100, origin=origin, end_user=EndUser("anon:::1", "anonymous")
        )
    assert {failure.status for failure in failures} == {status}
    rows = rows_of(records, address)
    assert Counter(row["repeat_count"] for row in rows) == {1: ROWS_MAX, 100 - ROWS_MAX: 1}
    (common,) = [row for row in rows if row["repeat_count"] > 1]
    assert [common[name] for name in ("client_id", "key_id", "end_user", "limit_decision", "details")] == [
        None
    ] * 5
    assert {row["client_id"] for row in rows if row is not common} == {visitor.client_id}


async def test_addresses_are_counted_apart(house: House, records: Records) -> None:
    async with flooded(house) as engine:
        await asyncio.gather(refused(engine, "198.51.100.5", 80), refused(engine, "198.51.100.6", 90))
    for address, count in (("198.51.100.5", 80), ("198.51.100.6", 90)):
        rows = rows_of(records, address)
        assert (len(rows), sum(row["repeat_count"] for row in rows)) == (ROWS_MAX + 1, count)


@pytest.mark.parametrize(
    ("address", "counted_as"),
    [
        ("192.0.2.1", "192.0.2.1"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"), ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("testclient", "testclient"), (None, ""), ("", ""),
    ],
)  # fmt: skip
def test_one_subscriber_is_one_address(address: str | None, counted_as: str) -> None:
    assert network_of(address) == counted_as


# Seen red without `ADDRESSES_MAX`: the count remembered every address.
async def test_the_memory_of_the_count_is_bounded_and_the_books_balance(
    house: House, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flood_module, "ADDRESSES_MAX", 5)
    before = {row["log_id"] for row in records.where("http_status = 401")}
    async with flooded(house) as engine:
        await asyncio.gather(*(refused(engine, f"203.0.113.{number}", 2) for number in range(100)))
        assert len(engine.flood._windows) <= 6
    rows = [row for row in records.where("http_status = 401") if row["log_id"] not in before]
    assert sum(row["repeat_count"] for row in rows) == 200
    (common,) = [row for row in rows if row["repeat_count"] > 1]
    assert (common["client_address"], common["repeat_count"]) == (None, 190 - ROWS_MAX)


async def test_minutes_that_are_over_are_forgotten(house: House) -> None:
    clock = [0.0]
    flood = FloodCounter(house.engine.ledger, now, lambda: clock[0], within_s=5.0)
    for number in range(50):
        assert not await flood.count_if_flooding(trail(f"203.0.113.{number}"))
    clock[0] += 60
    assert not await flood.count_if_flooding(trail("203.0.113.99"))
    assert list(flood._windows) == ["203.0.113.99"]


def trail(address: str) -> Trail:
    return Trail(
        log_id=uuid4(), query_id=uuid4(), timestamp=now(), endpoint="test", client_address=address,
        outcome="failed", http_status=401,
    )  # fmt: skip


# --- Nothing is answered that is not counted, and nothing is lost


class Slow:
    """A ledger whose notes can be held back or refused."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger
        self.is_noting = asyncio.Event()
        self.may_note = asyncio.Event()
        self.is_broken = False

    async def open(self, trail: Trail) -> None:
        await self._ledger.open(trail)

    async def note(self, trail: Trail) -> None:
        self.is_noting.set()
        await self.may_note.wait()
        if self.is_broken:
            raise LedgerUnavailableError
        await self._ledger.note(trail)

    def has_record(self, log_id: UUID) -> bool:
        return bool(self._ledger.has_record(log_id))

    async def close(self, trail: Trail, issued_at: Any) -> Any:
        return await self._ledger.close(trail, issued_at)


# Seen red with `count_if_flooding` returning before the note.
async def test_nobody_is_answered_before_the_count_is_durable(house: House, records: Records) -> None:
    address, ledger = "198.51.100.7", Slow(house.engine.ledger)
    async with flooded(house, ledger=ledger) as engine:
        await refused(engine, address, ROWS_MAX)
        beyond = asyncio.create_task(refused(engine, address, 10))
        await ledger.is_noting.wait()
        done, _ = await asyncio.wait([beyond], timeout=0.2)
        assert not done
        ledger.may_note.set()
        assert len(await beyond) == 10
    assert sum(row["repeat_count"] for row in rows_of(records, address)) == ROWS_MAX + 10


# Seen red with a count that keeps those who were told 503.
async def test_who_cannot_be_counted_is_told_so_and_is_not_in_the_count(
    house: House, records: Records
) -> None:
    address, ledger = "198.51.100.8", Slow(house.engine.ledger)
    ledger.may_note.set()
    async with flooded(house, ledger=ledger) as engine:
        await refused(engine, address, ROWS_MAX + 5)
        ledger.is_broken = True
        untold = await refused(engine, address, 7)
        assert {type(failure) for failure in untold} == {AuditUnavailableError}
        assert {type(failure.query_id) for failure in untold} == {UUID}
        ledger.is_broken = False
        await refused(engine, address, 3)
    assert sum(row["repeat_count"] for row in rows_of(records, address)) == ROWS_MAX + 5 + 3


async def test_who_leaves_while_the_count_is_written_is_in_it(house: House, records: Records) -> None:
    address, ledger = "198.51.100.9", Slow(house.engine.ledger)
    async with flooded(house, ledger=ledger) as engine:
        await refused(engine, address, ROWS_MAX)
        leaving = asyncio.create_task(engine.answer(asked(address)))
        await ledger.is_noting.wait()
        leaving.cancel()
        with suppress(asyncio.CancelledError):
            await leaving
        ledger.may_note.set()
    assert sum(row["repeat_count"] for row in rows_of(records, address)) == ROWS_MAX + 1


# Seen red with a `_write_until_end` that closes the row without those who wait: they were told 503.
async def test_who_waits_when_the_server_stops_is_counted_and_answered(
    house: House, records: Records
) -> None:
    address = "198.51.100.10"
    async with flooded(house) as engine:
        await refused(engine, address, ROWS_MAX + 1)
        (count,) = engine.flood._windows[address].shared.values()
        waiting = asyncio.create_task(refused(engine, address, 10))
        while count.waiting < 10:  # noqa: ASYNC110  as soon as the loop has turned
            await asyncio.sleep(0)
    assert {failure.status for failure in await waiting} == {401}
    assert sum(row["repeat_count"] for row in rows_of(records, address)) == ROWS_MAX + 11


# --- The server stopped and killed
