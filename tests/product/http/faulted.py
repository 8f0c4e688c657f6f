"""An engine whose model, embedder and database misbehave, and what its readers must be told."""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import psycopg

from engine import settings as settings_file
from engine import wiring
from engine.answer import Engine
from engine.house import House
from engine.http.app import create_app
from engine.providers.claude import Claude
from engine.settings import PROMPT
from engine.storage.database import Database
from tests.conftest import CAMPAIGN_ROUNDS, Records
from tests.upstreams import faults, listening, messages
from tests.upstreams.messages import CANARY, REQUEST_ID, Fault, Upstream

ROUNDS = CAMPAIGN_ROUNDS or 1
AT_ONCE = 32 if CAMPAIGN_ROUNDS else 4
PROMISE_S = 5.0 + 0.1  # what the product promises; so it is asserted
SOON_S = 10.0  # what is left is closed at once; a leak stays
DRAINED_S = 30
PATIENCE_S = 1.5
KEY = "sk-canary-of-the-key"
QUESTION = {"query": "What does an IMU measure?"}
TIMED_OUT = "Query processing timed out. Try a simpler question."


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
    async with listening(create_app(lambda: nullcontext(house)), lifespan="on") as url:
        yield url


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


def open_records(database: Database) -> int:
    with psycopg.connect(database.url) as connection:
        return int(next(connection.execute("SELECT count(*) FROM audit_open"))[0])


@asynccontextmanager
async def house_as_shipped(database: Database) -> AsyncIterator[House]:
    """With the limits that the product comes with."""
    settings = settings_file.load({}, data_dir=database.settings.data_dir)
    async with wiring.open_house(settings, replace(database, settings=settings)) as opened:
        yield opened


@asynccontextmanager
async def leaving_nothing() -> AsyncIterator[None]:
    """No task and no connection that was not there before."""
    tasks, sockets = tasks_alive(), tcp_sockets()
    yield
    await until(lambda: tasks_alive() <= tasks)
    await until(lambda: tcp_sockets() <= sockets)
