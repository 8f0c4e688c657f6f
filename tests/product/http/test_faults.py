"""Five seconds, one row, the right status: whatever the language model, the embedder and the database do.

Every fault is met over real HTTP on both sides: a reader's client, the whole application, the vendor's own SDK, a
server that misbehaves. `make campaign` repeats the matrix and sends ten thousand requests through all of it.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from engine import wiring
from engine.admission.keys import ApiKeys
from engine.house import House
from engine.ports import Embedder
from engine.providers.cohere import CohereEmbedder
from engine.settings import Settings
from engine.storage.database import Database
from tests.conftest import CAMPAIGN_ROUNDS, Records, campaign_only
from tests.databases import locked
from tests.product.http.faulted import (
    AT_ONCE,
    EXPECTED,
    GOOD,
    KEY,
    PROMISE_S,
    QUESTION,
    ROUNDS,
    SLOW,
    Expected,
    Reader,
    Told,
    address_with,
    asking,
    check,
    check_all,
    house_as_shipped,
    leaving_nothing,
    open_records,
    patient,
    reading,
    rows_of,
    until,
    upstream_with,
)
from tests.upstreams import embed, faults

pytestmark = pytest.mark.rounds  # and what promises five seconds is asserted there without neighbours


@pytest.fixture(scope="module")
async def house(anyio_backend: str, database: Database) -> AsyncIterator[House]:
    async with house_as_shipped(database) as opened:
        yield opened


# One of each kind stays in `make test`; `make promises` has them all, and the machine to itself.
QUICK = {"500", "hang after headers", "early close", "wrong text"}


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    async with leaving_nothing():
        yield


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    "name", [name if name in QUICK else campaign_only(name) for name in EXPECTED if name in faults.FAULTS]
)
async def test_g3_a_model_that_misbehaves(house: House, key: str, records: Records, name: str) -> None:
    """Cold in both modes, and many at once of a provider that has answered well before."""
    async with (
        upstream_with(None) as upstream,
        asking(house, key, upstream.url) as warm,
        asking(house, key, upstream.url) as cold,
        asking(house, key, upstream.url) as cold_stream,
    ):
        upstream.write = faults.true_blocks
        await check_all(records, [await warm.ask(stream=False)], GOOD)
        upstream.fault = faults.FAULTS[name]
        for _ in range(ROUNDS):
            first, streamed, many = await asyncio.gather(
                cold.ask(stream=False), cold_stream.ask(stream=True), warm.ask_often()
            )
            await check_all(records, [first, streamed, *many], EXPECTED[name])
            await until(lambda: upstream.in_flight == 0)
        assert len(upstream.requests) <= 1 + ROUNDS * (2 + AT_ONCE)  # no second tries


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("name", ["refuse", "hang on connect"])
async def test_g3_a_model_that_cannot_be_reached(house: House, key: str, records: Records, name: str) -> None:
    async with address_with(name) as url, asking(house, key, url) as reader:
        for _ in range(ROUNDS):
            await check_all(records, await reader.ask_often(), EXPECTED[name])


# A machine under load may take the missing tenth of a second itself: then it is a timeout, and its row says so.
@pytest.mark.usefixtures("nothing_left")
async def test_g3_an_answer_just_in_time_is_an_answer(house: House, key: str, records: Records) -> None:
    async with upstream_with(faults.FAULTS["2.4 s"]) as upstream, asking(house, key, upstream.url) as reader:
        answers = await asyncio.gather(*(reader.ask(stream=bool(n % 2)) for n in range(4)))
    rows = await rows_of(records, answers)
    for told in answers:
        is_late = rows[told.request_id]["http_status"] == 504
        check(told, SLOW if is_late else GOOD, rows[told.request_id])
    assert any(told.body.get("outcome") == "answered" for told in answers)


STALLS = {
    "the keys": ("api_keys", Expected(504, "timeout", "request took longer than 4.5 s", request_id=None)),
    "the book": ("books", Expected(504, "timeout", "book took longer than 2.0 s", request_id=None)),
    "the passages": ("chunks", Expected(504, "timeout", "retrieval took longer than 2.0 s", request_id=None)),
}


# What an engine that remembers nothing yet makes of it; of the other kind see test_cached_library.py.
@pytest.mark.campaign
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("name", STALLS)
async def test_g3_a_database_that_stalls(
    house: House, database: Database, key: str, records: Records, name: str
) -> None:
    table, expected = STALLS[name]
    retriever = replace(house.engine.retriever, library=house.library)
    forgetful = replace(house.engine, keyring=ApiKeys(house.pool), library=house.library, retriever=retriever)
    async with reading(forgetful, house, key) as reader:
        with locked(database, table):
            answers = await asyncio.gather(reader.ask(stream=False), reader.ask(stream=True))
    await check_all(records, list(answers), expected)


@pytest.fixture
async def spoolless(house: House, settings: Settings) -> AsyncIterator[House]:
    """Its records have nowhere to wait."""
    audit = settings.audit.model_copy(update={"spool_dir": ""})
    ledger = wiring.ledger_of(settings.model_copy(update={"audit": audit}), house.pool)
    await ledger.start()
    yield replace(house, engine=replace(house.engine, ledger=ledger))
    await ledger.stop()


# No record, no answer: and the reader is told so in time.
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("table", ["audit_open", "audit_logs"])
async def test_g1_a_record_that_cannot_be_written_is_no_answer(
    spoolless: House, database: Database, key: str, table: str
) -> None:
    async with reading(spoolless.engine, spoolless, key) as reader:
        with locked(database, table):
            answers = await asyncio.gather(reader.ask(stream=False), reader.ask(stream=True))
        for told in answers:
            assert told.seconds <= PROMISE_S
            assert (told.body["status"], told.body["error_type"]) == (503, "audit")
            assert "answer" not in told.body
        assert (await reader.ask(stream=False)).body["outcome"] == "answered"


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("table", ["audit_open", "audit_logs"])
async def test_g1_a_record_that_the_database_does_not_take_waits_in_the_spool(
    house: House, database: Database, key: str, records: Records, table: str
) -> None:
    async with reading(house.engine, house, key) as reader:
        with locked(database, table):
            answers = await asyncio.gather(reader.ask(stream=False), reader.ask(stream=True))
        await check_all(records, list(answers), replace(GOOD, request_id=None))


@contextlib.contextmanager
def frozen(database: Database) -> Iterator[None]:
    """The engine's sessions do not run, and do not hear that they are to stop."""
    with psycopg.connect(database.url) as connection:
        found = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'affidavit affidavit_engine'"
        )
        pids = [row[0] for row in found]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def ask_while_frozen(house: House, database: Database, key: str) -> list[Told]:
    async with reading(house.engine, house, key) as reader:
        assert (await reader.ask(stream=False)).status == 200
        with frozen(database):
            answers = await asyncio.gather(*(reader.ask(stream=bool(n % 2)) for n in range(4)))
    assert all(told.seconds <= PROMISE_S for told in answers)
    return answers


# Seen red with one interruption at the end of the time instead of two: the driver waits for its session for ten seconds.
@pytest.mark.usefixtures("nothing_left")
async def test_g3_a_frozen_database(spoolless: House, database: Database, key: str) -> None:
    answers = await ask_while_frozen(spoolless, database, key)
    assert {told.status for told in answers} <= {503, 504}


@pytest.mark.usefixtures("nothing_left")
async def test_g3_a_frozen_database_is_done_without(
    house: House, database: Database, key: str, records: Records
) -> None:
    answers = await ask_while_frozen(house, database, key)
    await check_all(records, answers, replace(GOOD, request_id=None))


@asynccontextmanager
async def asking_with(embedder: Embedder, house: House, key: str) -> AsyncIterator[Reader]:
    retriever = replace(house.engine.retriever, embedder=embedder)
    async with reading(patient(replace(house.engine, retriever=retriever)), house, key) as reader:
        yield reader


@asynccontextmanager
async def cohere(house: House, url: str) -> AsyncIterator[CohereEmbedder]:
    made = CohereEmbedder(api_key=KEY, base_url=url, model="embed-v4.0", query_timeout_s=2.0,
                          dimension=house.engine.retriever.embedder.dimension)  # fmt: skip
    yield made
    await made.close()


async def far_too_long(_: list[str]) -> None:
    await asyncio.sleep(10 if CAMPAIGN_ROUNDS else 4)


async def too_long(_: list[str]) -> None:
    await asyncio.sleep(2.1)


BUSY = Expected(503, "network", "TooManyRequestsError", request_id=None)
BROKEN = Expected(503, "network", "InternalServerError", request_id=None)
UNFOUND = Expected(504, "timeout", "retrieval took longer than 2.0 s", request_id=None)
EMBEDDING: dict[str, tuple[dict[str, Any], Expected]] = {
    "far too long": ({"wait": far_too_long}, UNFOUND),
    "2.1 s": ({"wait": too_long}, UNFOUND),
    "429": ({"failures": [429] * AT_ONCE}, BUSY),
    "500": ({"failures": [500] * AT_ONCE}, BROKEN),
}


@pytest.mark.campaign
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("name", EMBEDDING)
async def test_g3_an_embedder_that_misbehaves(house: House, key: str, records: Records, name: str) -> None:
    told, expected = EMBEDDING[name]
    async with embed.serving() as upstream, cohere(house, upstream.url) as embedder:
        for attribute, value in told.items():
            setattr(upstream, attribute, value)
        async with asking_with(embedder, house, key) as reader:
            await check_all(records, await reader.ask_often(), expected)


@pytest.mark.usefixtures("nothing_left")
async def test_g2_a_reader_who_leaves_while_the_record_is_closed_has_one(
    house: House, database: Database, key: str, records: Records
) -> None:
    before = open_records(database)
    patient = replace(house.engine, rules=replace(house.engine.rules, audit_s=2.0))
    async with reading(patient, house, key) as reader:
        with locked(database, "audit_logs") as lock:
            asking = asyncio.create_task(reader.ask(stream=False))
            await until(lambda: open_records(database) > before)
            await asyncio.sleep(0.5)  # it is retrieved, written, and waits for the lock
            asking.cancel()
            await asyncio.wait([asking])
            await asyncio.sleep(0.1)  # the engine hears of it
            lock.rollback()
        await until(lambda: open_records(database) == before)
    (row,) = records.where("true ORDER BY timestamp DESC LIMIT 1")
    assert row["user_query_text"] == QUESTION["query"]


def waits_for(database: Database, table: str) -> bool:
    with psycopg.connect(database.url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass", (table,)
        )
        return bool(next(found)[0])
