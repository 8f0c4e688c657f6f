"""How often somebody may ask: exactly so often, in one process and in several, and nobody unseen while Redis is away."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import redis
from limits import parse

from engine import settings as settings_file
from engine import wiring
from engine.admission.end_user import parse_end_user
from engine.answer import Asked
from engine.errors import ConfigurationError, LimiterUnavailableError, RateLimitedError, RequestError
from engine.house import House
from engine.http.request_context import end_user
from engine.models import RATE, Client, EndUser, Question, Trail
from engine.outage.stale_cache import OPEN_S, CircuitBreaker
from engine.ports import NullExchange
from engine.providers import limits as limits_in_redis
from engine.providers.limits import NAMES, MemoryLimits, MovingWindows, RedisLimits, name_of
from engine.settings import Limits
from engine.storage.database import Database
from tests.conftest import ROOT, Records, running
from tests.in_process import application
from tests.upstreams.redis_server import RedisServer, needs_redis, redis_server

RATES = Limits(per_key="100/minute", anonymous="10/hour", authenticated="50/hour", body_bytes=65536)
PATIENCE_S = 60.0
SITE = Client("site", "0123456789", frozenset({"ask"}))
READER = EndUser("user:7b1c4f0e-3f5a-4a52-9d0e-0a3c5c1f6b11", "authenticated")
PASSER_BY = EndUser("anon:192.0.2.7", "anonymous")
IMU = {"query": "What does an IMU measure?"}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as started:
        yield started


@pytest.fixture
async def shared(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RedisLimits]:
    """It never gives Redis up: who counts is tested here, and a busy machine can be slow for half a second."""
    monkeypatch.setattr(limits_in_redis, "TIMEOUT_S", PATIENCE_S)
    with redis.Redis.from_url(server.url) as connection:
        connection.flushall()
    limits = RedisLimits(RATES, server.url, CircuitBreaker(time.monotonic))
    yield limits
    await limits.close()


@dataclass(slots=True)
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


async def admitted(limits: Any, client: Client, reader: EndUser | None, times: int) -> int:
    found = await asyncio.gather(*(limits.admit(client, reader) for _ in range(times)))
    return sum(allowance.refusal is None for allowance in found)


# --- Who is counted


@pytest.mark.parametrize(
    ("named", "name", "tier"),
    [
        ("user:7b1c4f0e-3f5a-4a52-9d0e-0a3c5c1f6b11", "user:7b1c4f0e-3f5a-4a52-9d0e-0a3c5c1f6b11", "authenticated"),
        ("user:7B1C4F0E-3F5A-4A52-9D0E-0A3C5C1F6B11", "user:7b1c4f0e-3f5a-4a52-9d0e-0a3c5c1f6b11", "authenticated"),
        ("anon:192.0.2.7", "anon:192.0.2.7", "anonymous"),
        ("anon:2001:DB8:0:0:0:0:0:1", "anon:2001:db8::1", "anonymous"),
    ],
)  # fmt: skip
def test_a_reader_has_one_name_however_it_is_spelled(named: str, name: str, tier: str) -> None:
    assert parse_end_user(named) == EndUser(name, tier)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "named",
    ["", "user:", "anon:", "user", "anon", "user:ada", "anon:ada", "root:1", "user:192.0.2.7", " user:7b1c4f0e-3f5a-4a52-9d0e-0a3c5c1f6b11",
     "user:{7b1c4f0e-3f5a-4a52-9d0e-0a3c5c1f6b11}", "user:urn:uuid:7b1c4f0e-3f5a-4a52-9d0e-0a3c5c1f6b11",
     "user:7b1c4f0e3f5a4a529d0e0a3c5c1f6b11", "USER:7b1c4f0e-3f5a-4a52-9d0e-0a3c5c1f6b11", "anon:192.0.2.007", "anon:192.0.2.7/24",
     "anon:fe80::1%a reader's name", "anon:192.0.2.7,anon:192.0.2.8", "anon:3221225991", "user:\x00"],
)  # fmt: skip
def test_any_other_name_of_a_reader_is_an_error(named: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  the wording is the caller's
        parse_end_user(named)


@pytest.mark.parametrize(
    "rate", ["0/minute", "1/week", "10", "/hour", "1e3/hour", "10/minute ", "10 per minute"]
)
def test_what_is_no_rate_is_no_rate(rate: str) -> None:
    assert not RATE.fullmatch(rate)


# --- Exactly so many


# Seen red with `test` and a later `hit` in place of one `hit`: all got through.
@pytest.mark.parametrize("reader", [None, EndUser("anon:192.0.2.9", "anonymous")])
async def test_of_a_thousand_requests_in_one_process_exactly_as_many_as_allowed_get_through(
    reader: EndUser | None,
) -> None:
    assert await admitted(MemoryLimits(RATES), SITE, reader, 1000) == (10 if reader else 100)


# Seen red with a window that forgets all of its requests once the oldest is over.
async def test_in_any_minute_as_many_get_through_as_allowed_and_no_fewer() -> None:
    chance, clock, item = random.Random(3), Clock(), parse("5/minute")
    windows, let_in = MovingWindows(clock), list[float]()
    for _ in range(500):
        clock.now += chance.expovariate(1 / 10)
        recent = [at for at in let_in if at >= clock.now - 60]
        assert await windows.test(item, "a") == (len(recent) < 5)
        stats = await windows.get_window_stats(item, "a")
        assert (stats.remaining, stats.reset_time) == (5 - len(recent), (recent or [clock.now])[0] + 60)
        if await windows.hit(item, "a"):
            let_in.append(clock.now)
        assert len([at for at in let_in if at >= clock.now - 60]) <= 5


# Seen red without `_make_room`: each name that ever asked was kept.
async def test_readers_who_have_not_asked_for_long_are_forgotten_and_the_others_are_not() -> None:
    clock, item = Clock(), parse("1/minute")
    windows = MovingWindows(clock)
    for number in range(3 * NAMES):
        clock.now += 60 / NAMES
        assert await windows.hit(item, f"reader {number}")
        assert not await windows.hit(item, f"reader {number}")
    assert len(windows._hits) <= 2 * NAMES
    assert not await windows.hit(item, f"reader {3 * NAMES - 2}")


@needs_redis
@pytest.mark.parametrize("reader", [None, PASSER_BY])
async def test_redis_lets_exactly_as_many_through(shared: RedisLimits, reader: EndUser | None) -> None:
    assert await admitted(shared, SITE, reader, 1000) == (10 if reader else 100)


ASK_500_TIMES = """
import asyncio, json, sys, time
from engine.outage.stale_cache import CircuitBreaker
from engine.settings import Limits
from engine.models import Client
from engine.providers import limits as limits_in_redis
from engine.providers.limits import RedisLimits

limits_in_redis.TIMEOUT_S = 60.0

async def main(url):
    rates = Limits(per_key="100/minute", anonymous="10/hour", authenticated="50/hour", body_bytes=65536)
    limits = RedisLimits(rates, url, CircuitBreaker(time.monotonic))
    site = Client("site", "0123456789", frozenset({"ask"}))
    print("ready", flush=True)
    sys.stdin.readline()
    found = []
    for _ in range(50):
        found += await asyncio.gather(*(limits.admit(site, None) for _ in range(10)))
    await limits.close()
    print(json.dumps([allowance.decision for allowance in found]))

asyncio.run(main(sys.argv[1]))
"""


# Seen red with `MemoryLimits` in each process: 200 got through.
@needs_redis
def test_of_a_thousand_requests_to_two_processes_exactly_a_hundred_get_through(
    server: RedisServer,
) -> None:
    with redis.Redis.from_url(server.url) as connection:
        connection.flushall()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ASK_500_TIMES, server.url], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    decisions = Counter(
        word for process in processes for word in json.loads(process.communicate(timeout=60)[0])
    )
    assert decisions == {"admitted 100/minute": 100, "refused: 100/minute of this API key": 900}


async def test_each_reader_is_counted_alone_and_each_site_names_its_own() -> None:
    limits = MemoryLimits(RATES)
    other_site = Client("other", "9876543210", frozenset({"ask"}))
    assert await admitted(limits, SITE, PASSER_BY, 20) == 10
    assert await admitted(limits, SITE, EndUser("anon:192.0.2.8", "anonymous"), 20) == 10
    assert await admitted(limits, other_site, PASSER_BY, 20) == 10
    assert await admitted(limits, SITE, READER, 60) == 50


# Seen red with the key hit before its reader: the key was used up by a reader who was over the limit.
async def test_a_reader_over_their_limit_takes_nothing_from_the_site() -> None:
    limits = MemoryLimits(RATES)
    assert await admitted(limits, SITE, PASSER_BY, 500) == 10
    assert await admitted(limits, SITE, None, 500) == 90


# Seen red without the look at the key beforehand.
async def test_a_site_over_its_limit_takes_nothing_from_its_readers() -> None:
    limits = MemoryLimits(RATES.model_copy(update={"per_key": "1/second"}))
    await limits.admit(SITE, None)
    for _ in range(100):
        found = await limits.admit(SITE, PASSER_BY)
        assert found.decision == "refused: 1/second of this API key"
    assert found.quota and found.quota.policy == "key"
    await asyncio.sleep(1)  # until the key is free again: no event says so
    again = await limits.admit(SITE, PASSER_BY)
    assert again.decision == "admitted 10/hour and 1/second"
    stats = await limits._counter.get_window_stats(parse("10/hour"), "anonymous", name_of(SITE, PASSER_BY))
    assert stats.remaining == 9


async def test_an_operator_is_not_limited() -> None:
    found = await MemoryLimits(RATES).admit(Client("operator", None, frozenset()), None)
    assert (found.decision, found.quota, found.refusal) == ("operator", None, None)


@needs_redis
async def test_no_reader_is_named_in_redis(shared: RedisLimits, server: RedisServer) -> None:
    await shared.admit(SITE, PASSER_BY)
    with redis.Redis.from_url(server.url) as connection:
        names = b" ".join(connection.keys())
    assert SITE.key_id and SITE.key_id.encode() in names
    assert b"192.0.2.7" not in names


# --- Redis away


# Seen red with readers let through by `_without_redis`.
@needs_redis
async def test_while_redis_is_away_readers_are_refused_and_keys_counted_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with redis_server() as own:
        clock = Clock()
        limits = RedisLimits(RATES, own.url, CircuitBreaker(clock))
        assert (await limits.admit(SITE, PASSER_BY)).refusal is None
        own.stop()
        for _ in range(3):
            refused = await limits.admit(SITE, PASSER_BY)
            assert isinstance(refused.refusal, LimiterUnavailableError)
            assert refused.decision == "refused: Redis is unavailable"
        alone = [await limits.admit(SITE, None) for _ in range(101)]
        assert alone[0].decision == "admitted 100/minute, by this process alone: Redis is unavailable"
        assert [found.refusal is None for found in alone] == [True] * 100 + [False]
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        own.start()
        clock.now += OPEN_S
        back = await limits.admit(SITE, PASSER_BY)
        assert back.refusal is None and "away" not in back.decision
        assert "Redis is available again" in caplog.records[-1].message
        await limits.close()


# Seen red without a time limit around Redis.
@needs_redis
async def test_a_redis_that_hangs_is_away() -> None:
    with redis_server() as own:
        limits = RedisLimits(RATES, own.url, CircuitBreaker(time.monotonic))
        await limits.admit(SITE, None)
        os.kill(own.process.pid, signal.SIGSTOP)
        async with asyncio.timeout(5):
            found = await limits.admit(SITE, READER)
        assert isinstance(found.refusal, LimiterUnavailableError)
        os.kill(own.process.pid, signal.SIGCONT)
        await limits.close()


def test_redis_needs_an_address(tmp_path: Path) -> None:
    settings = settings_file.load({"AFFIDAVIT_PROVIDERS__LIMITS": "redis"}, data_dir=tmp_path)
    with pytest.raises(ConfigurationError, match="REDIS_URL"):
        wiring.LIMITERS["redis"](settings)


# --- In the engine and over HTTP


def asked(client: Client = SITE, **about: Any) -> Asked:
    return Asked("/v1/query", str(uuid4()), operator=client, **about)


async def nothing(_: Client, __: Trail) -> None: ...


async def test_the_row_says_who_asked_and_what_was_decided(house: House, records: Records) -> None:
    engine = replace(house.engine, limiter=MemoryLimits(RATES.model_copy(update={"anonymous": "1/hour"})))
    first, second = (asked(end_user=parse_end_user("anon:2001:DB8::7")) for _ in range(2))
    await engine.serve(first, nothing)
    with pytest.raises(RateLimitedError) as caught:
        await engine.serve(second, nothing)
    (admitted_row,) = records.where("request_id = %s", first.request_id)
    (refused_row,) = records.of(caught.value.query_id)
    assert admitted_row["limit_decision"] == "admitted 1/hour and 100/minute"
    assert (refused_row["http_status"], refused_row["limit_decision"]) == (
        429,
        "refused: 1/hour of this reader",
    )
    assert refused_row["end_user"] == admitted_row["end_user"] == "anon:2001:db8::7"
    assert 3590 <= (caught.value.retry_after_s or 0) <= 3600


async def test_a_name_that_is_none_is_told_and_counts_against_the_key(house: House, records: Records) -> None:
    engine = replace(house.engine, limiter=MemoryLimits(RATES.model_copy(update={"per_key": "1/minute"})))
    failures = []
    for _ in range(2):
        with pytest.raises(RequestError) as caught:
            await engine.serve(asked(end_user=end_user(["the-secret-name"])), nothing)
        failures.append(caught.value)
    assert [failure.status for failure in failures] == [422, 429]
    assert failures[0].field == "X-End-User"
    assert "the-secret-name" not in str(records.of(failures[0].query_id)) + str(failures[0])


# Seen red with the limit looked at after retrieval.
async def test_nothing_is_asked_of_any_provider_before_the_limit(house: House) -> None:
    class Untouchable:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was asked")

    class Unread(NullExchange):
        async def read(self) -> Question:
            raise AssertionError("The body was read")

    limiter = MemoryLimits(RATES.model_copy(update={"per_key": "1/minute"}))
    await limiter.admit(SITE, None)
    parts: Any = {name: Untouchable() for name in ("library", "retriever", "generator")}
    engine = replace(house.engine, limiter=limiter, **parts)
    with pytest.raises(RateLimitedError):
        await engine.answer(asked(exchange=Unread()))


@asynccontextmanager
async def over_http(house: House, limiter: Any, key: str) -> AsyncIterator[httpx.AsyncClient]:
    async with application(house, key=key, engine=replace(house.engine, limiter=limiter)) as (_, client):
        yield client


def quota(response: httpx.Response) -> tuple[int, int, int]:
    names = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")
    limit, remaining, reset = (int(response.headers[name]) for name in names)
    return limit, remaining, reset


async def test_every_counted_answer_says_how_much_is_left(house: House, key: str, database: Database) -> None:
    limiter = MemoryLimits(RATES)
    async with wiring.open_keys(database) as keys:
        own = await keys.create("counting", ["ask"], None)
    async with over_http(house, limiter, own) as client:
        answered = await client.post("/v1/query", json=IMU)
        missing = await client.get(f"/v1/chunks/{'0' * 64}")
        invalid = await client.post("/v1/query", content=b"{")
        nowhere = await client.get("/nothing")
        stream = await client.post("/v1/query", json=IMU, headers={"Accept": "text/event-stream"})
        named = await client.post("/v1/query", json=IMU, headers={"X-End-User": PASSER_BY.name})
        unnamed = await client.post("/v1/query", json=IMU, headers={"X-End-User": ""})
        stranger = await client.post("/v1/query", json=IMU, headers={"Authorization": "Bearer nonsense"})
    responses = (answered, missing, invalid, nowhere, stream)
    assert [response.status_code for response in responses] == [200, 404, 400, 404, 200]
    assert [quota(response)[:2] for response in responses] == [(100, 100 - n) for n in range(1, 6)]
    assert all(0 < quota(response)[2] <= 60 for response in responses)
    assert answered.headers["RateLimit-Policy"] == '"key";q=100;w=60'
    assert answered.headers["RateLimit"].startswith('"key";r=99;t=')
    assert quota(named)[:2] == (10, 9)
    assert named.headers["RateLimit-Policy"] == '"anonymous";q=10;w=3600'
    assert (unnamed.status_code, unnamed.json()["field"]) == (422, "X-End-User")
    assert stranger.status_code == 401 and "RateLimit-Limit" not in stranger.headers


async def test_a_reader_over_their_limit_is_told_when_to_come_back(
    house: House, database: Database, records: Records
) -> None:
    async with wiring.open_keys(database) as keys:
        own = await keys.create("telling", ["ask"], None)
    async with over_http(
        house, MemoryLimits(RATES.model_copy(update={"authenticated": "1/hour"})), own
    ) as client:
        client.headers["X-End-User"] = READER.name
        responses = [await client.post("/v1/query", json=IMU) for _ in range(2)]
    assert [response.status_code for response in responses] == [200, 429]
    assert quota(responses[1])[:2] == (1, 0)
    assert 3590 <= int(responses[1].headers["Retry-After"]) == quota(responses[1])[2] <= 3600
    assert responses[1].json()["error_type"] == "rate_limit"
    assert len(records.of(responses[1].json()["query_id"])) == 1


@needs_redis
async def test_a_reader_is_told_that_nobody_can_count(
    house: House, database: Database, records: Records
) -> None:
    async with wiring.open_keys(database) as keys:
        own = await keys.create("uncounted", ["ask"], None)
    with redis_server() as gone:
        limiter = RedisLimits(RATES, gone.url, CircuitBreaker(time.monotonic))
    async with over_http(house, limiter, own) as client:
        named = await client.post("/v1/query", json=IMU, headers={"X-End-User": READER.name})
        unnamed = await client.post("/v1/query", json=IMU)
    await limiter.close()
    problem = named.json()
    assert (named.status_code, problem["error_type"], problem["retryable"]) == (503, "rate_limit", True)
    assert named.headers["Retry-After"]
    assert unnamed.status_code == 200
    assert records.of(problem["query_id"])[0]["limit_decision"] == "refused: Redis is unavailable"
    decision = records.of(unnamed.json()["query_id"])[0]["limit_decision"]
    assert decision == "admitted 100/minute, by this process alone: Redis is unavailable"


# Seen red with `AFFIDAVIT_PROVIDERS__LIMITS=memory`: each server let a hundred through.
@needs_redis
@pytest.mark.campaign
async def test_two_servers_let_exactly_a_hundred_of_a_thousand_requests_through_and_record_them_all(
    server: RedisServer, data_dir: Path, database: Database, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFFIDAVIT_PROVIDERS__LIMITS", "redis")
    monkeypatch.setenv("REDIS_URL", server.url)
    async with wiring.open_keys(database) as keys:
        own = await keys.create("two-servers", ["ask"], "100/minute")
    headers = {"Authorization": f"Bearer {own}"}
    with running(data_dir, command="serve") as one, running(data_dir, command="serve") as two:
        async with httpx.AsyncClient(headers=headers, timeout=30) as client:

            async def ask(url: str, times: int) -> list[int]:
                path = f"{url}/v1/chunks/{'0' * 64}"  # of no passage: 404 for those who get through
                return [(await client.get(path)).status_code for _ in range(times)]

            found = await asyncio.gather(*(ask(url, 50) for url in (one.url, two.url) for _ in range(10)))
    assert Counter(status for statuses in found for status in statuses) == {404: 100, 429: 900}
    rows = records.where("client_id = 'two-servers' AND endpoint LIKE '/v1/%%'")
    assert Counter(row["http_status"] for row in rows) == {404: 100, 429: 900}
