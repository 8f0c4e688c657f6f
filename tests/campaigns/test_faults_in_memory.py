"""Thousands of requests with a fault each: nothing of them stays in memory."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from engine.house import House
from engine.storage.database import Database
from tests.product.http.faulted import (
    AT_ONCE,
    EXPECTED,
    PROMISE_S,
    ROUNDS,
    SLOW,
    asking,
    house_as_shipped,
    leaving_nothing,
    upstream_with,
)
from tests.upstreams import faults

REQUESTS = 10_000 if ROUNDS > 1 else 3_000
WARM = 2_000  # from here on nothing more may stay
GROWTH_MAX = 1.1


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


QUICK = [name for name, expected in EXPECTED.items() if expected != SLOW and name in faults.FAULTS]
SLOW_SHARE = 0.02  # one in fifty takes all its time; more would only make the campaign longer


# Each request has a fault of its own: what is kept of each would be seen.
@pytest.fixture(scope="module")
async def house(anyio_backend: str, database: Database) -> AsyncIterator[House]:
    async with house_as_shipped(database) as opened:
        yield opened


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    async with leaving_nothing():
        yield


@pytest.mark.usefixtures("nothing_left")
async def test_thousands_of_faults_leave_nothing_in_memory(house: House, key: str) -> None:
    chance, left, grown_from = random.Random(5), iter(range(REQUESTS)), 0.0
    slow = [name for name, expected in EXPECTED.items() if expected == SLOW and name in faults.FAULTS]
    async with AsyncExitStack() as stack:
        upstreams, readers = {}, {}
        for name in (*QUICK, *slow):
            upstreams[name] = await stack.enter_async_context(upstream_with(faults.FAULTS[name]))
            readers[name] = await stack.enter_async_context(asking(house, key, upstreams[name].url))

        async def ask_on() -> None:
            nonlocal grown_from
            for number in left:
                name = chance.choice(slow if chance.random() < SLOW_SHARE else QUICK)
                told = await readers[name].ask(stream=chance.random() < 0.5)
                upstreams[name].requests.clear()
                upstreams[name].headers.clear()
                assert told.seconds <= PROMISE_S
                if number == WARM:
                    grown_from = resident_mb()
                if number % 1000 == 0:
                    print(f"after {number} requests {resident_mb():.1f} MB")

        await asyncio.gather(*(ask_on() for _ in range(AT_ONCE)))
    print(f"from {grown_from:.1f} MB to {resident_mb():.1f} MB")
    assert resident_mb() <= grown_from * GROWTH_MAX
