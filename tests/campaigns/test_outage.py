"""PostgreSQL is away for a while under load: every question is answered, and every request has its row in the end.

An engine in a process of its own, readers over HTTP, and a database that is stopped, or frozen, and comes back. A few
seconds in `make test`, a minute in a campaign.
"""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from engine.outage.stale_cache import FRESH_S
from engine.providers.postgres import EmbeddedPostgres
from engine.storage.data_folder import ExclusiveLock
from tests.campaigns.load import QUESTIONS, fetch, heard_out, unlimited_folder
from tests.conftest import CAMPAIGN_ROUNDS, Records, Running, running
from tests.prepared import with_sample_book

ROUNDS = CAMPAIGN_ROUNDS or 1
OUTAGE_S = 4.0 if ROUNDS == 1 else 60.0  # long enough for all that is remembered to be stale
READERS = 8
PROMISE_S = 5.0 + 0.1
DRAINED_S = 30
SOON_S = 30  # more than anything takes on a busy machine
PAUSE_S = (
    0.02  # between two questions of a reader: so many at once that a machine of two cores keeps its promise
)


@pytest.fixture(scope="module")
def data() -> Iterator[Path]:
    with unlimited_folder("affidavit-outage-") as folder:
        with_sample_book(folder)
        yield folder


@pytest.fixture
def engine(data: Path) -> Iterator[Running]:
    """Its own database may be stopped under it: it is there again at the end, or the next one could not start."""
    with running(data) as started, heard_out(started):
        yield started


@dataclass(frozen=True, slots=True)
class Told:
    """A request, and what came of it."""

    request_id: str
    asked_at: float
    told_at: float
    status: int
    text: str


@dataclass(slots=True)
class Load:
    """What readers were told, in the order it was said."""

    told: list[Told] = field(default_factory=list)
    heard: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def answers(self, count: int) -> None:
        """So many more."""
        wanted = len(self.told) + count
        async with self.heard, asyncio.timeout(SOON_S):
            await self.heard.wait_for(lambda: len(self.told) >= wanted)

    def between(self, begin: float, end: float) -> list[Told]:
        """Those that were asked and told in this time."""
        return [told for told in self.told if begin < told.asked_at and told.told_at < end]


@asynccontextmanager
async def loaded(engine: Running, chunk_id: str, readers: int = READERS) -> AsyncIterator[Load]:
    """Readers who ask one thing after the other until the end of the block: in one piece, as a stream, for a passage."""
    load = Load()
    over = asyncio.Event()

    async def read(http: httpx.AsyncClient) -> None:
        for n in itertools.count():
            if over.is_set():
                return
            told = await ask(http, n, chunk_id)
            async with load.heard:
                load.told.append(told)
                load.heard.notify_all()
            await asyncio.sleep(PAUSE_S)

    async with reader(engine) as http, asyncio.TaskGroup() as group:
        for _ in range(readers):
            group.create_task(read(http))
        yield load
        over.set()


def reader(engine: Running, key: str | None = None) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {key or engine.key}"}
    return httpx.AsyncClient(base_url=engine.url, headers=headers, timeout=30)


async def ask(http: httpx.AsyncClient, n: int, chunk_id: str) -> Told:
    headers = {"X-Request-ID": str(uuid.uuid4())}
    asked_at = time.monotonic()
    if n % 3 == 0:
        response = await http.get(f"/v1/chunks/{chunk_id}", headers=headers)
    else:
        if n % 3 == 1:
            headers["Accept"] = "text/event-stream"
        response = await http.post("/v1/query", json={"query": random.choice(QUESTIONS)}, headers=headers)
    return Told(headers["X-Request-ID"], asked_at, time.monotonic(), response.status_code, response.text)


async def cited_passage(engine: Running) -> str:
    async with reader(engine) as http:
        response = await http.post("/v1/query", json={"query": "What does an IMU measure?"})
        return str(response.json()["citations"][0]["chunk_id"])


@contextmanager
def stopped(data: Path) -> Iterator[None]:
    """No connection, no socket: as if its machine were gone, so that the engine cannot start it again either."""
    server = EmbeddedPostgres(data)
    with ExclusiveLock(server._lock):
        server._control("stop", "--mode=immediate")
        yield
    server.start()


@contextmanager
def frozen(data: Path) -> Iterator[None]:
    """Connections stay open and nobody answers on them."""
    home = (data / "postgres").resolve()
    pids = [
        int(process.name) for process in Path("/proc").glob("[0-9]*") if is_in(process, home)
    ]  # the postmaster first: it starts no others then
    for pid in sorted(pids):
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def is_in(process: Path, home: Path) -> bool:
    try:
        return (process / "cwd").readlink() == home
    except OSError:
        return False


def records_of(data: Path) -> Records:
    return Records(EmbeddedPostgres(data).url)


async def drained(data: Path) -> None:
    """Nothing is open and nothing waits in the spool."""
    async with asyncio.timeout(DRAINED_S):
        while not is_drained(data):  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.05)


def is_drained(data: Path) -> bool:
    if any(path.stat().st_size for path in (data / "spool").glob("*.spool")):
        return False
    try:
        return fetch(data, "SELECT 1 FROM audit_open") == []
    except psycopg.OperationalError:
        return False


def assert_answered(told: Told) -> None:
    assert told.status == 200, told.text
    assert "event: error" not in told.text
    assert told.told_at - told.asked_at <= PROMISE_S


def rows_of(data: Path, asked: list[Told]) -> dict[str, dict[str, Any]]:
    """Exactly one for each."""
    names = [told.request_id for told in asked]
    rows = records_of(data).where("request_id = ANY(%s)", names)
    assert Counter(row["request_id"] for row in rows) == Counter(names)
    return {row["request_id"]: row for row in rows}


Outage = Callable[[Path], AbstractContextManager[None]]


# Seen red with the wiring's `ApiKeys(pool)`, with its `Registry(pool)`, and without a spool: 503 as long as it was away.
@pytest.mark.parametrize("outage", [stopped, frozen])
async def test_g1_g2_while_the_database_is_away_all_is_answered_and_nothing_is_lost(
    data: Path, engine: Running, outage: Outage
) -> None:
    async with loaded(engine, await cited_passage(engine)) as load:
        await load.answers(READERS * 3)
        with outage(data):
            begin = time.monotonic()
            await asyncio.sleep(OUTAGE_S)
            await load.answers(READERS)
            end = time.monotonic()
        await load.answers(READERS * 6)
    for told in load.told:
        assert_answered(told)
    await drained(data)
    rows = rows_of(data, load.told)
    assert {row["outcome"] for row in rows.values()} <= {"answered", "refused", "served"}
    meanwhile = load.between(begin, end)
    assert len(meanwhile) >= READERS
    assert all(rows[told.request_id]["spooled"] for told in meanwhile)
    assert not rows[load.told[0].request_id]["spooled"]
    print(f"{len(meanwhile)} of {len(load.told)} requests in {end - begin:.0f} s without a database")


async def test_in_an_outage_only_who_was_known_before_is_let_in(data: Path, engine: Running) -> None:
    chunk_id = await cited_passage(engine)
    stranger = "aff_0123456789_" + "0" * 64
    from tests.build import checksummed

    wrong = [("nonsense", 401), (checksummed(stranger), 503)]
    with stopped(data):
        await asyncio.sleep(FRESH_S)
        async with reader(engine) as http:
            assert_answered(known := await ask(http, 0, chunk_id))
        told = []
        for key, status in wrong:
            async with reader(engine, key) as http:
                told.append(await ask(http, 0, chunk_id))
                assert told[-1].status == status, told[-1].text
    await drained(data)
    rows = rows_of(data, [known, *told])
    assert rows[known.request_id]["client_id"] == "demo"
    assert [rows[item.request_id]["error_type"] for item in told] == ["auth", "database"]
    assert all(row["spooled"] for row in rows.values())


async def test_a_key_that_is_revoked_after_an_outage_is_soon_refused(data: Path, engine: Running) -> None:
    """The engine finds the way back by itself, also when nobody has asked for a while."""
    chunk_id = await cited_passage(engine)
    async with reader(engine) as http:
        with stopped(data):
            for _ in range(3):
                await asyncio.sleep(FRESH_S)
                assert_answered(await ask(http, 0, chunk_id))
        fetch(data, "UPDATE api_keys SET revoked_at = now() RETURNING 1")
        async with asyncio.timeout(SOON_S):
            while (await ask(http, 0, chunk_id)).status != 401:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.1)
