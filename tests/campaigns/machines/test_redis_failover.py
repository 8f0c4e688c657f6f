"""Limits in a Redis that fails over: behind Sentinel a reader's limit holds exactly, or the reader is refused."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from engine import settings as settings_file
from engine import wiring
from engine.errors import ConfigurationError, LimiterUnavailableError
from engine.models import Allowance, Client, EndUser
from engine.outage.stale_cache import CircuitBreaker
from engine.providers.limits import RedisLimits
from engine.settings import Limits
from tests.upstreams.redis_sentinel import Node, RedisSentinel, redis_sentinel
from tests.upstreams.redis_server import needs_redis

RATES = Limits(per_key="1000000/minute", anonymous="50/hour", authenticated="50/hour", body_bytes=65536)
SITE = Client("site", "0123456789", frozenset({"ask"}))
READER = EndUser("anon:192.0.2.7", "anonymous")
SOON_S = 20

pytestmark = needs_redis


@pytest.fixture
def house() -> Iterator[RedisSentinel]:
    with redis_sentinel() as started:
        yield started


@pytest.fixture
async def engines(house: RedisSentinel) -> AsyncIterator[list[RedisLimits]]:
    made = [RedisLimits(RATES, house.url, CircuitBreaker(time.monotonic)) for _ in range(3)]
    yield made
    for limits in made:
        await limits.close()


async def ask(engines: list[RedisLimits], times: int) -> list[Allowance]:
    """The same reader, through one engine after the other."""
    return [await engines[number % len(engines)].admit(SITE, READER) for number in range(times)]


def admitted(found: list[Allowance]) -> int:
    return sum(allowance.refusal is None for allowance in found)


def kill(node: Node) -> None:
    node.kill()


def freeze(node: Node) -> None:
    node.freeze()


# Seen red with readers let through by `_without_redis`: more than fifty.
@pytest.mark.parametrize("strike", [kill, freeze])
async def test_a_failover_forgets_nobody_who_was_let_in(
    house: RedisSentinel, engines: list[RedisLimits], strike: Callable[[Node], None]
) -> None:
    before = house.master()
    found = await ask(engines, 30)
    assert admitted(found) == 30
    strike(before)
    began = time.monotonic()
    async with asyncio.timeout(SOON_S):
        while not admitted(again := await ask(engines, 3)):
            assert all(isinstance(each.refusal, LimiterUnavailableError) for each in again)
            found += again
    print(f"readers were refused for {time.monotonic() - began:.1f} s")
    assert house.wait_for_another_master(before) is not before
    found += again + await ask(engines, 60)
    # Some were counted, and their answer was lost in the failover: those were refused.
    assert 30 < admitted(found) <= 50
    if strike is freeze:
        before.thaw()
    assert admitted(await ask(engines, 30)) == 0


# Seen red without the wait for a replica: all were let in, and a failover would have forgotten them.
async def test_without_a_replica_readers_are_refused(
    house: RedisSentinel, engines: list[RedisLimits]
) -> None:
    master = house.master()
    for node in house.nodes:
        if node is not master:
            node.kill()
    assert admitted(await ask(engines, 3)) == 0
    assert (await engines[0].admit(SITE, None)).refusal is None


# Seen red with Sentinels that are asked for half a second each: while the first hung nobody was let in.
async def test_a_sentinel_that_hangs_delays_nobody_for_long(
    house: RedisSentinel, engines: list[RedisLimits]
) -> None:
    house.sentinels[0].freeze()
    assert admitted(await ask(engines, 6)) == 6
    house.sentinels[0].thaw()


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://127.0.0.1/limits",
        "redis+sentinel://127.0.0.1:26379",
        "redis+sentinel://h:1,:2/limits",
    ],
)
def test_a_sentinel_address_that_is_incomplete_is_refused(tmp_path: Path, url: str) -> None:
    given = {"AFFIDAVIT_PROVIDERS__LIMITS": "redis", "REDIS_URL": url}
    with pytest.raises(ConfigurationError, match="must name each Sentinel"):
        wiring.LIMITERS["redis"](settings_file.load(given, data_dir=tmp_path))
