"""More is asked than can be answered: whoever finds no room is refused at once and on record, the others are answered in time."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import uvicorn
from uvicorn.server import ServerState

from audit.errors import LedgerUnavailableError
from engine.admission.overload.concurrency_limit import ConcurrencyLimit
from engine.admission.overload.recent_keys import RecentKeys
from engine.admission.overload.refused_rows import CLIENTS_MAX, RefusedRows, pause_s
from engine.admission.overload.turnstile import ROOM_MIN, Turnstile
from engine.admission.proxies import TrustedProxies
from engine.admission.shared_rows import SharedRows
from engine.connections.occupancy import Occupancy
from engine.connections.protocol import PatientProtocol
from engine.errors import OverloadedError
from engine.house import House
from engine.http.app import create_app
from engine.models import Client, Draft
from engine.storage.database import Database
from engine.wiring import now, open_keys
from tests.asking import IMU, Scripted, asked, draft
from tests.conftest import Records

LONG_S = 60.0
HOLDER = Client("holder", "k-1", frozenset({"ask"}))


@dataclass
class Crowd:
    """A server that works on one question at a time, as long as its test wants, with room for as few as there ever is."""

    house: House
    began: datetime = field(default_factory=now)
    port: int = 0
    metrics: Any = None
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    is_answering: asyncio.Event = field(default_factory=asyncio.Event)
    connections: list["Connection"] = field(default_factory=list)

    @property
    def database_url(self) -> str:
        assert isinstance(self.house.pool.conninfo, str)
        return self.house.pool.conninfo

    @property
    def turnstile(self) -> Turnstile:
        return self.house.engine.turnstile

    async def connect(self) -> "Connection":
        self.connections.append(Connection(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.connections[-1]

    async def fill(self, key: str) -> list["Connection"]:
        """Until no other question of this client finds room."""
        found = []
        for number in range(1 + ROOM_MIN):
            connection = await self.connect()
            connection.ask(key)
            found.append(connection)
            await until(lambda: self.turnstile.serving + self.turnstile.waiting > number)  # noqa: B023
        await self.is_answering.wait()
        return found


@dataclass
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def ask(self, key: str, more: str = "", *, path: str = "/v1/query") -> None:
        head, body = request(key, more, path)
        self.writer.write(head + body)

    async def told(self) -> tuple[int, dict[str, str], dict[str, Any]]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")[:-2]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = json.loads(await self.reader.readexactly(int(headers["content-length"])))
        return int(first.split()[1]), headers, body


def request(key: str, more: str = "", path: str = "/v1/query") -> tuple[bytes, bytes]:
    body = json.dumps({"query": IMU}).encode()
    lines = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n{more}"
    return f"{lines}Content-Length: {len(body)}\r\n\r\n".encode(), body


def rows_of(house: House, ledger: Any = None) -> RefusedRows:
    rows = SharedRows(ledger or house.engine.ledger, now, time.monotonic, within_s=5.0, interval_s=pause_s)
    return RefusedRows(rows, time.monotonic)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  what the server has done tells no event here
        await asyncio.sleep(0.001)


@asynccontextmanager
async def crowded(house: House, ledger: Any = None, **parts: Any) -> AsyncIterator[Crowd]:
    """At the end of the block the rows of the refused are written."""
    crowd = Crowd(house)

    async def hold(_: Any) -> Draft:
        crowd.is_answering.set()
        await crowd.may_answer.wait()
        return draft()

    turnstile = Turnstile(ConcurrencyLimit(1, 1, 1), time.monotonic)
    turnstile._service_s = LONG_S
    rows, recent = rows_of(house, ledger), RecentKeys(time.monotonic)
    rules = replace(house.engine.rules, total_s=LONG_S, generation_s=LONG_S / 2)
    engine = replace(
        house.engine, turnstile=turnstile, refused_rows=rows, recent_keys=recent, generator=Scripted(hold), rules=rules
    )  # fmt: skip
    crowd.house = replace(house, engine=engine, **parts)
    app = create_app(lambda: nullcontext(crowd.house))
    async with app.router.lifespan_context(app) as state:
        assert state is not None
        crowd.metrics = state["metrics"]
        config = uvicorn.Config(app, log_config=None, access_log=False)
        visitor = partial(
            PatientProtocol, config, ServerState(), dict(state), Occupancy(100, TrustedProxies.named(()))
        )
        server = await asyncio.get_running_loop().create_server(visitor, "127.0.0.1", 0)
        crowd.port = server.sockets[0].getsockname()[1]
        try:
            yield crowd
        finally:
            crowd.may_answer.set()
            for connection in crowd.connections:
                connection.writer.close()
            await until(lambda: not turnstile.serving + turnstile.waiting)
            server.close()
            await rows.close()


@pytest.fixture
async def client_id() -> str:
    return f"crowd-{uuid4()}"


@pytest.fixture
async def own_key(database: Database, client_id: str) -> str:
    async with open_keys(database) as keys:
        return await keys.create(client_id, ["ask"], "100000/minute")


# Seen red with a refusal that is sent before its count is durable, and with one that is not counted.
async def test_whoever_finds_no_room_is_told_when_to_ask_again_and_is_on_record(
    house: House, records: Records, own_key: str, client_id: str
) -> None:
    async with crowded(house) as crowd:
        await crowd.fill(own_key)
        late = await crowd.connect()
        told = []
        for number in range(20):
            late.ask(own_key, f"X-Request-ID: late-{number}\r\n")
            told.append(await late.told())
            assert late_rows(crowd) == [number + 1]
        metrics = await crowd.metrics.page()
    assert {status for status, _, _ in told} == {503}
    assert all(1 <= int(headers["retry-after"]) == problem["retry_after"] for _, headers, problem in told)
    _, headers, problem = told[7]
    assert (
        headers["content-type"] == "application/problem+json"
        and headers["x-content-type-options"] == "nosniff"
    )
    assert problem["request_id"] == headers["x-request-id"] == "late-7"
    assert (
        problem["error_type"] == "network"
        and problem["retryable"]
        and problem["title"] == OverloadedError.title
    )
    (row,) = records.where("client_id = %s AND http_status = 503", client_id)
    assert str(row["query_id"]) == problem["query_id"]
    assert (row["endpoint"], row["outcome"], row["repeat_count"]) == ("several", "failed", 20)
    assert len(records.where("client_id = %s AND http_status = 200", client_id)) == 1 + ROOM_MIN
    assert 'reason="network",status="503"} 20' in metrics


def late_rows(crowd: Crowd) -> list[int]:
    """How many requests each row of refused ones counts so far, as the database says."""
    with psycopg.connect(crowd.database_url) as connection:
        found = connection.execute(
            "SELECT (trail ->> 'repeat_count')::int FROM audit_open WHERE trail ->> 'http_status' = '503'"
            " AND (trail ->> 'timestamp')::timestamptz >= %s",
            (crowd.began,),
        ).fetchall()
    return [count for (count,) in found]


# Seen red with an answer to the first bytes: the rest of the body was read as the next request.
async def test_a_refused_question_is_read_to_its_end_and_the_next_one_after_it(
    house: House, records: Records, own_key: str, client_id: str
) -> None:
    head, body = request(own_key)
    async with crowded(house) as crowd:
        await crowd.fill(own_key)
        late = await crowd.connect()
        late.writer.write(head + body[:3])
        await late.writer.drain()
        await until(lambda: late_rows(crowd) == [1])
        late.writer.write(body[3:] + head + body + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert [(await late.told())[0] for _ in range(3)] == [503, 503, 200]
    counted = records.where("client_id = %s AND http_status = 503", client_id)
    assert [row["repeat_count"] for row in counted] == [2]


# Seen red without a way around: it was answered by the framework, with a row of its own.
async def test_another_client_finds_room_and_is_served_before_the_crowd(
    house: House, records: Records, own_key: str, key: str
) -> None:
    async with crowded(house) as crowd:
        crowd.turnstile._service_s = 0.5 / 18  # room for eighteen: one client may take sixteen
        for _ in range(16):
            (await crowd.connect()).ask(own_key)
        await crowd.is_answering.wait()
        await until(lambda: crowd.turnstile.waiting == 15)
        other = await crowd.connect()
        other.ask(key, "X-Request-ID: other\r\n")
        await until(lambda: crowd.turnstile.waiting == 16 and "tests" in crowd.turnstile._queue._of)
        crowd.may_answer.set()
        status, _, _ = await other.told()
        assert status == 200
        assert crowd.turnstile.waiting >= 10


# Seen red with a `_decide` that stands in the queue until its turn: its row came when there was nobody to tell.
async def test_whoever_disconnects_while_waiting_leaves_the_queue_and_has_a_row(
    house: House, records: Records, own_key: str, client_id: str
) -> None:
    async with crowded(house) as crowd:
        *_, last = await crowd.fill(own_key)
        last.writer.transport.abort()
        await until(lambda: crowd.turnstile.waiting < ROOM_MIN)
        assert (crowd.turnstile.serving, crowd.turnstile.waiting) == (1, ROOM_MIN - 1)
        await until(lambda: bool(records.where("client_id = %s AND outcome = 'client_gone'", client_id)))
    gone = records.where("client_id = %s AND outcome = 'client_gone'", client_id)
    assert [row["user_query_text"] for row in gone] == [IMU]
    assert gone[0]["retrieval_latency_ms"] is None


# Seen red without `wait_s`: it was answered when its time for a generation was over.
async def test_a_question_whose_turn_comes_too_late_is_refused_and_never_answered(
    house: House, records: Records
) -> None:
    rules = replace(house.engine.rules, total_s=3.0, audit_s=1.0, generation_s=1.95)
    turnstile = Turnstile(ConcurrencyLimit(1, 1, 1), time.monotonic)
    engine = replace(house.engine, rules=rules, turnstile=turnstile)
    before = turnstile.enter("another")
    await turnstile.wait(before, 0.0)
    with pytest.raises(OverloadedError) as refused:
        await engine.answer(asked())
    before.leave()
    (row,) = records.of(refused.value.query_id)
    assert (row["http_status"], row["user_query_text"], row["repeat_count"]) == (503, IMU, 1)
    assert row["retrieval_latency_ms"] is None
    assert (turnstile.serving, turnstile.waiting) == (0, 0)


# Seen red with a ticket that only the pipeline gives back: the room of whoever failed before it was lost.
async def test_a_ticket_from_the_connection_is_given_back_however_the_request_ends(
    house: House, own_key: str
) -> None:
    async with crowded(house) as crowd:
        await crowd.fill(own_key)
        waiting = crowd.turnstile.waiting
        crowd.turnstile._service_s = 0.0001
        wrong = await crowd.connect()
        wrong.ask(own_key, path="/v1/books/no-such-book/query")
        await until(lambda: crowd.turnstile.waiting > waiting)
        wrong.writer.transport.abort()
        malformed = await crowd.connect()
        head, _ = request(own_key)
        malformed.writer.write(head + b"}" * 100)
        assert (await malformed.told())[0] == 400
        await until(lambda: crowd.turnstile.waiting == waiting)


class Broken:
    """A ledger that takes no count."""

    async def open(self, _: Any) -> None:
        raise LedgerUnavailableError

    async def note(self, _: Any) -> None:
        raise LedgerUnavailableError

    async def close(self, *_: Any) -> None:
        raise LedgerUnavailableError


# Seen red with a response that does not look at the count.
async def test_whoever_cannot_be_counted_is_told_so(house: House, own_key: str) -> None:
    async with crowded(house, Broken()) as crowd:
        await crowd.fill(own_key)
        late = await crowd.connect()
        late.ask(own_key)
        status, _, problem = await late.told()
    assert (status, problem["error_type"], problem["query_id"]) == (503, "audit", None)


async def test_a_page_of_a_listed_site_may_read_its_refusal(house: House, own_key: str) -> None:
    site = "https://book.example.org"
    async with crowded(house, allowed_origins=frozenset({site})) as crowd:
        await crowd.fill(own_key)
        late = await crowd.connect()
        for _ in range(2):  # the first is known to the keyring alone
            late.ask(own_key, f"Origin: {site}\r\n")
            status, headers, _ = await late.told()
            assert (status, headers["access-control-allow-origin"], headers["vary"]) == (503, site, "Origin")
            assert "Retry-After" in headers["access-control-expose-headers"]


async def test_more_clients_than_there_are_rows_share_one(house: House, records: Records) -> None:
    began = now()
    rows = rows_of(house)
    engine = replace(house.engine, refused_rows=rows)
    clients = [replace(HOLDER, client_id=f"{uuid4()}", key_id=f"k-{n}") for n in range(CLIENTS_MAX + 3)]
    await asyncio.gather(*(engine.count_refused(client)[1] for client in clients for _ in range(2)))
    await rows.close()
    written = records.where("endpoint = 'several' AND http_status = 503 AND timestamp >= %s", began)
    by_client: dict[str | None, int] = {row["client_id"]: row["repeat_count"] for row in written}
    assert by_client.pop(None) == 6
    assert by_client == {client.client_id: 2 for client in clients[:CLIENTS_MAX]}
