"""Five seconds, one row, the right status: whatever the language model, the embedder and the database do.

Every fault is met over real HTTP on both sides: a reader's client, the whole application, the vendor's own SDK, a
server that misbehaves. `make campaign` repeats the matrix and sends ten thousand requests through all of it.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import uvicorn

from engine import settings as settings_file
from engine import wiring
from engine.admission.keys import ApiKeys
from engine.answer import Engine
from engine.database import Database
from engine.house import House
from engine.http.app import create_app
from engine.ports import Embedder
from engine.providers.claude import Claude
from engine.providers.cohere import CohereEmbedder
from engine.settings import Settings
from engine.wiring import PROMPT
from tests.conftest import Records, free_port
from tests.databases import locked
from tests.upstreams import _Server, embed, faults, messages
from tests.upstreams.messages import CANARY, REQUEST_ID, Fault, Upstream

ROUNDS = int(os.environ.get("CAMPAIGN_ROUNDS", "1"))  # `make campaign` asks for more
AT_ONCE = 32
PROMISE_S = 5.0 + 0.1  # what the product promises; so it is asserted
SOON_S = 2.0  # a connection that is left is closed at once; a busy machine notices a little later
DRAINED_S = 30
PATIENCE_S = 1.5
KEY = "sk-canary-of-the-key"
QUESTION = {"query": "What does an IMU measure?"}
TIMED_OUT = "Query processing timed out. Try a simpler question."

REQUESTS = 10_000  # of a campaign
WARM = 2_000  # from here on nothing more may stay
GROWTH_MAX = 1.1


@dataclass(frozen=True, slots=True)
class Expected:
    """What the reader is told, and what the row says."""

    status: int
    error_type: str | None = None
    says: str = ""  # stands in the row's error_message
    reason: str | None = None
    request_id: str | None = REQUEST_ID


SLOW = Expected(504, "timeout", "generation took longer than 2.5 s")
LIE = Expected(200, reason="citation_failed")
GOOD = Expected(200)


def failed(says: str, request_id: str | None = REQUEST_ID) -> Expected:
    return Expected(502, "llm", says, request_id=request_id)


def busy(says: str) -> Expected:
    return Expected(503, "llm", says)


EXPECTED: dict[str, Expected] = {
    "refuse": failed("APIConnectionError; request unnamed, after 0 characters", None),
    "hang on connect": replace(SLOW, request_id=None),
    "hang before headers": replace(SLOW, request_id=None),
    "hang after headers": SLOW,
    "hang after a sentence": SLOW,
    "trickle": SLOW,
    "pings": SLOW,
    "2.6 s": SLOW,
    "400": failed("status 400, invalid_request_error; request req_1"),
    "401": failed("status 401, authentication_error; request req_1"),
    "429": busy("status 429, rate_limit_error; request req_1"),
    "500": busy("status 500, api_error; request req_1"),
    "529": busy("status 529, overloaded_error; request req_1"),
    "500 of its own words": busy("status 500, no known type; request req_1"),
    "overloaded in the stream": busy("status 200, overloaded_error; request req_1, after "),
    "rejected in the stream": failed("status 200, invalid_request_error; request req_1, after "),
    "malformed JSON": failed("JSONDecodeError; request req_1, after "),
    "event without its fields": failed("the stream ended early; request req_1, after "),
    "event of another shape": failed("a malformed event; request req_1, after "),
    "text that is none": failed("a malformed event; request req_1, after "),
    "counts that are none": failed("a malformed event; request req_1, after "),
    "HTML": failed("the stream ended early; request unnamed, after 0 characters", None),
    "JSON": failed("the stream ended early; request unnamed, after 0 characters", None),
    "empty body": failed("the stream ended early; request unnamed, after 0 characters", None),
    "early end": failed("the stream ended early; request req_1, after "),
    "early close": failed("RemoteProtocolError; request req_1, after "),
    "reset": failed("ReadError; request req_1, after "),
    "text without end": failed("an answer without end; request req_1, after "),
    "one enormous event": failed("an answer without end; request req_1, after "),
    "one enormous block": failed("an answer without end; request req_1, after "),
    "wrong text": LIE,
    "wrong index": LIE,
    "index out of range": LIE,
    "passage not sent": LIE,
    "index below zero": LIE,
    "index in words": failed("a malformed event; request req_1, after "),
    "NUL in the text": LIE,
    "half a character": LIE,
    "max_tokens": LIE,
    "pause_turn": LIE,
    "unknown stop": LIE,
    "refusal": Expected(200, reason="model_refused"),
    "empty answer": Expected(200, reason="insufficient_evidence"),
    "thinking first": GOOD,
    "several blocks": GOOD,
    "none": GOOD,
}


@dataclass(slots=True)
class Told:
    """All that a reader was told, and how long it took."""

    request_id: str
    status: int
    seconds: float
    text: str
    headers: httpx.Headers
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def body(self) -> dict[str, Any]:
        """What the answer comes to: the object, the problem, or the last event's."""
        return self.events[-1][1] if self.events else json.loads(self.text)


@dataclass(slots=True)
class Reader:
    """Asks over HTTP, for one piece or for a stream."""

    http: httpx.AsyncClient
    url: str

    async def ask(self, *, stream: bool) -> Told:
        headers = {"X-Request-ID": str(uuid.uuid4())}
        if stream:
            headers["Accept"] = "text/event-stream"
        started = time.monotonic()
        response = await self.http.post(f"{self.url}/v1/query", json=QUESTION, headers=headers)
        told = Told(headers["X-Request-ID"], response.status_code, time.monotonic() - started, response.text,
                    response.headers)  # fmt: skip
        if response.headers["content-type"].startswith("text/event-stream"):
            told.events = [event_of(part) for part in response.text.split("\n\n") if part]
        return told

    async def ask_often(self) -> list[Told]:
        return list(await asyncio.gather(*(self.ask(stream=bool(n % 2)) for n in range(AT_ONCE))))


def event_of(part: str) -> tuple[str, dict[str, Any]]:
    name, _, data = part.partition("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


@asynccontextmanager
async def serving(house: House) -> AsyncIterator[str]:
    """The application on this house, in this process."""
    app = create_app(lambda: nullcontext(house))
    port = free_port()
    server = _Server(uvicorn.Config(app, port=port, log_level="warning"))
    serves = asyncio.create_task(server.serve())
    await server.is_listening.wait()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serves


@asynccontextmanager
async def claude(url: str) -> AsyncIterator[Claude]:
    made = Claude(model="claude-haiku-5-5", max_output_tokens=700, api_key=KEY, base_url=url, timeout_s=2.5,
                  system=PROMPT.read_text())  # fmt: skip
    yield made
    await made.close()


@asynccontextmanager
async def reading(engine: Engine, house: House, key: str) -> AsyncIterator[Reader]:
    """A reader of an application with this engine."""
    headers = {"Authorization": f"Bearer {key}"}
    limits = httpx.Limits(
        max_connections=None, keepalive_expiry=1
    )  # sooner than the server, or the two would race
    async with (
        serving(replace(house, engine=engine)) as url,
        httpx.AsyncClient(headers=headers, limits=limits, timeout=30) as http,
    ):
        yield Reader(http, url)


def patient(engine: Engine) -> Engine:
    """For thirty-two at once on a busy machine, where something else than the record is looked at. What is promised to
    the reader stays as it is."""
    rules = engine.rules
    return replace(
        engine, rules=replace(rules, audit_s=rules.audit_s + PATIENCE_S, total_s=rules.total_s + PATIENCE_S)
    )


@asynccontextmanager
async def asking(house: House, key: str, url: str) -> AsyncIterator[Reader]:
    """A reader of an application whose model is at this address, and was never spoken to."""
    async with claude(url) as generator:
        async with reading(patient(replace(house.engine, generator=generator)), house, key) as reader:
            yield reader


@asynccontextmanager
async def upstream_with(fault: Fault | None) -> AsyncIterator[Upstream]:
    async with messages.serving() as upstream:
        upstream.fault = fault
        yield upstream


def address_with(name: str) -> AbstractAsyncContextManager[str]:
    return nullcontext(faults.refusing()) if name == "refuse" else faults.deaf()


def check(told: Told, expected: Expected, row: dict[str, Any]) -> None:
    """In time, told rightly, recorded rightly, and nothing said that is not ours to say."""
    assert told.seconds <= PROMISE_S
    assert row["total_latency_ms"] <= PROMISE_S * 1000
    if expected.status == 200:
        check_outcome(told, expected, row)
    else:
        check_failure(told, expected, row)
    assert row["http_status"] == expected.status
    assert row["provider_request_id"] == expected.request_id
    for secret in (CANARY, KEY, "127.0.0.1:"):
        assert secret not in told.text
        assert secret not in str(row)


def check_outcome(told: Told, expected: Expected, row: dict[str, Any]) -> None:
    assert told.status == 200
    assert told.body["reason"] == row["reason"] == expected.reason
    assert told.body["outcome"] == row["outcome"] == ("refused" if expected.reason else "answered")
    assert row["success"] is (expected.reason is None)
    assert [name for name, _ in told.events] in ([], stream_of(told, "done"))


def check_failure(told: Told, expected: Expected, row: dict[str, Any]) -> None:
    """A stream that has begun fails as an event; everything else as a problem of its own."""
    if told.events:
        assert [name for name, _ in told.events] == stream_of(told, "error")
        assert told.status == 200
    else:
        assert told.status == expected.status
        assert told.headers["content-type"] == "application/problem+json"
        assert ("retry-after" in told.headers) is (expected.status == 503)
    assert (told.body["status"], told.body["error_type"]) == (expected.status, expected.error_type)
    assert told.body["detail"] == TIMED_OUT or expected.status != 504
    assert told.body["request_id"] == told.request_id
    assert str(row["query_id"]) == told.body["query_id"]
    assert (row["outcome"], row["success"]) == ("failed", False)
    assert row["error_type"] == expected.error_type
    assert expected.says in row["error_message"]
    assert told.body["detail"] in row["error_message"]


def stream_of(told: Told, last: str) -> list[str]:
    """The sources, what was proven until then, and the end."""
    return ["sources", *("sentence" for name, _ in told.events if name == "sentence"), last]


async def rows_of(records: Records, answers: list[Told]) -> dict[str, dict[str, Any]]:
    """Exactly one row for each, once the spool has been drained of those that the database was too slow for."""
    names = [told.request_id for told in answers]
    async with asyncio.timeout(DRAINED_S):
        while len(rows := records.where("request_id = ANY(%s)", names)) < len(names):  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.1)
    assert sorted(row["request_id"] for row in rows) == sorted(names)
    return {row["request_id"]: row for row in rows}


async def check_all(records: Records, answers: list[Told], expected: Expected) -> None:
    """Each of them; and nothing was shown that is not on record."""
    rows = await rows_of(records, answers)
    for told in answers:
        row = rows[told.request_id]
        check(told, expected, row)
        shown = [data["text"] for name, data in told.events if name == "sentence"]
        if shown:
            assert row["released_text"] == " ".join(shown)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not condition():  # noqa: ASYNC110  nobody tells when a socket is gone
            await asyncio.sleep(0.01)


def tasks_alive() -> set[asyncio.Task[Any]]:
    """Without the test's own."""
    return {task for task in asyncio.all_tasks() if "TestRunner" not in repr(task.get_coro())}


def tcp_sockets() -> int:
    """Connections of this process: the vendor's, the readers'. The database's are of another kind."""
    inodes = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]}
    return sum(target.partition("[")[2].rstrip("]") in inodes for target in open_files())


def open_files() -> Iterator[str]:
    for number in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield str(number.readlink())


@pytest.fixture(scope="module")
async def house(anyio_backend: str, database: Database) -> AsyncIterator[House]:
    """With the limits that the product comes with."""
    settings = settings_file.load({}, data_dir=database.settings.data_dir)
    async with wiring.open_house(settings, replace(database, settings=settings)) as opened:
        yield opened


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    tasks, sockets = tasks_alive(), tcp_sockets()
    yield
    await until(lambda: tasks_alive() <= tasks)
    await until(lambda: tcp_sockets() <= sockets)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("name", [name for name in EXPECTED if name in faults.FAULTS])
async def test_g3_a_model_that_misbehaves(house: House, key: str, records: Records, name: str) -> None:
    """Cold in both modes, and thirty-two at once of a provider that has answered well before."""
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
    await asyncio.sleep(10)


async def too_long(_: list[str]) -> None:
    await asyncio.sleep(2.1)


BUSY = Expected(503, "network", "TooManyRequestsError", request_id=None)
BROKEN = Expected(503, "network", "InternalServerError", request_id=None)
UNFOUND = Expected(504, "timeout", "retrieval took longer than 2.0 s", request_id=None)
EMBEDDING: dict[str, tuple[dict[str, Any], Expected]] = {
    "10 s": ({"wait": far_too_long}, UNFOUND),
    "2.1 s": ({"wait": too_long}, UNFOUND),
    "429": ({"failures": [429] * AT_ONCE}, BUSY),
    "500": ({"failures": [500] * AT_ONCE}, BROKEN),
}


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


def open_records(database: Database) -> int:
    with psycopg.connect(database.url) as connection:
        return int(next(connection.execute("SELECT count(*) FROM audit_open"))[0])


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


QUICK = [name for name, expected in EXPECTED.items() if expected != SLOW and name in faults.FAULTS]
SLOW_SHARE = 0.02  # one in fifty takes all its time; more would only make the campaign longer


# Ten thousand requests, each with a fault of its own: what is kept of each would be seen.
@pytest.mark.skipif(ROUNDS == 1, reason="only in a campaign: it takes some minutes")
@pytest.mark.usefixtures("nothing_left")
async def test_ten_thousand_faults_leave_nothing_in_memory(house: House, key: str) -> None:
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
