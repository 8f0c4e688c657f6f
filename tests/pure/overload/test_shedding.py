"""Refusals where a connection is read, over real sockets: counted first, framed rightly, and the connection goes on."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from audit.errors import LedgerUnavailableError
from audit.proof.record import Trail
from engine.admission.overload.concurrency_limit import ConcurrencyLimit
from engine.admission.overload.recent_keys import RecentKeys
from engine.admission.overload.refused_rows import CLIENTS_MAX, PAUSE_S, RefusedRows
from engine.admission.overload.turnstile import Ticket, Turnstile
from engine.admission.proxies import TrustedProxies
from engine.admission.shared_rows import SharedRows
from engine.connections.occupancy import Occupancy
from engine.connections.protocol import PatientProtocol
from engine.errors import OverloadedError
from engine.http.metrics import Figures
from engine.http.request_context import TICKET
from engine.models import Client
from engine.wiring import now

HOLDER = Client("holder", "k-1", frozenset({"ask"}))
BODY = b'{"query": "a"}'
SITE = "https://book.example.org"


@dataclass
class Counted:
    """A ledger that keeps what it was told, when its test lets it."""

    may_note: asyncio.Event = field(default_factory=asyncio.Event)
    is_noting: asyncio.Event = field(default_factory=asyncio.Event)
    is_broken: bool = False
    noted: list[int] = field(default_factory=list)
    rows: list[Trail] = field(default_factory=list)

    async def open(self, _: Trail) -> None:
        if self.is_broken:
            raise LedgerUnavailableError

    async def note(self, trail: Trail) -> None:
        self.is_noting.set()
        await self.may_note.wait()
        self.noted.append(trail.repeat_count)

    async def close(self, trail: Trail, _: Any) -> None:
        self.rows.append(trail)


class Crowd:
    """A server whose queue is full. Its application answers 200, and keeps the tickets."""

    def __init__(self) -> None:
        self.ledger = Counted()
        ledger: Any = self.ledger
        self.turnstile = Turnstile(ConcurrencyLimit(1, 1, 1), time.monotonic)
        self.turnstile._service_s = 60.0
        self.recent_keys = RecentKeys(lambda: 0.0)
        self.recent_keys.note("key", None, HOLDER)
        self.recent_keys.note("key", SITE, HOLDER)
        rows = SharedRows(ledger, now, time.monotonic, within_s=5.0, beat_s=PAUSE_S)
        self.refused_rows = RefusedRows(rows, time.monotonic)
        self.tickets: list[Ticket | None] = []
        self.figures = Figures()
        self.occupancy = Occupancy(100, TrustedProxies.named(()))
        self.house = SimpleNamespace(engine=self, body_bytes_max=100, allowed_origins=frozenset({SITE}))
        self.server_state = ServerState()
        self.port = 0
        self.connections: list[Connection] = []

    def fill(self) -> list[Ticket]:
        found: list[Ticket] = []
        with suppress(OverloadedError):
            while True:
                found.append(self.turnstile.enter(f"crowd-{len(found)}"))
        return found

    def count_refused(self, client: Client) -> Any:
        return self.refused_rows.count(client, trail_of)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.tickets.append(scope["state"].get(TICKET))
        while (await receive()).get("more_body"):
            """Reads the body."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})

    async def connect(self) -> "Connection":
        self.connections.append(Connection(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.connections[-1]


def trail_of(client: Client | None) -> Trail:
    return Trail(
        log_id=uuid4(), query_id=uuid4(), timestamp=now(), endpoint="several", repeat_count=0,
        client_id=client.client_id if client else None,
    )  # fmt: skip


@dataclass
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def ask(self, *more: str, key: str = "key", body: bytes = BODY) -> None:
        self.writer.write(head(*more, key=key, length=len(body)) + body)

    async def told(self) -> tuple[int, dict[str, str], dict[str, Any]]:
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = json.loads(await self.reader.readexactly(int(headers["content-length"])))
        return int(first.split()[1]), headers, body


def head(*more: str, key: str = "key", length: int = len(BODY)) -> bytes:
    lines = [
        "POST /v1/query HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {key}",
        *more,
        f"Content-Length: {length}",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@pytest.fixture
async def crowd() -> AsyncIterator[Crowd]:
    crowd = Crowd()
    config = uvicorn.Config(crowd, log_config=None, access_log=False)
    state = {"house": crowd.house, "metrics": SimpleNamespace(figures=crowd.figures)}
    visitor = partial(PatientProtocol, config, crowd.server_state, state, crowd.occupancy)
    server = await asyncio.get_running_loop().create_server(visitor, "127.0.0.1", 0)
    crowd.port = server.sockets[0].getsockname()[1]
    yield crowd
    crowd.ledger.may_note.set()
    await crowd.refused_rows.close()
    for connection in crowd.connections:
        connection.writer.transport.abort()
    server.close()
    for _ in range(3):  # the other side learns of it
        await asyncio.sleep(0.001)
    if crowd.turnstile._looking:
        crowd.turnstile._looking.cancel()


# Seen red with a response that does not wait for the count.
async def test_nobody_is_refused_before_the_count_is_durable(crowd: Crowd) -> None:
    crowd.fill()
    connection = await crowd.connect()
    connection.ask("X-Request-ID: r-7")
    await crowd.ledger.is_noting.wait()
    told = asyncio.create_task(connection.told())
    done, _ = await asyncio.wait([told], timeout=0.05)
    assert not done
    crowd.ledger.may_note.set()
    status, headers, problem = await told
    assert (status, headers["retry-after"], problem["retry_after"]) == (503, "30", 30)
    assert (headers["content-type"], headers["cache-control"]) == ("application/problem+json", "no-store")
    assert headers["x-request-id"] == problem["request_id"] == "r-7"
    assert (problem["error_type"], problem["retryable"]) == ("network", True)
    assert problem["type"] == "urn:affidavit:problem:Overloaded"
    await crowd.refused_rows.close()
    (row,) = crowd.ledger.rows
    assert (row.client_id, row.repeat_count, str(row.query_id)) == ("holder", 1, problem["query_id"])
    assert crowd.figures.families["affidavit_requests_total"] and not crowd.tickets


# Seen red with an answer to the head alone, whose body was then read as the next request.
async def test_a_refused_question_is_read_to_its_end_and_the_next_one_after_it(crowd: Crowd) -> None:
    crowd.fill()
    crowd.ledger.may_note.set()
    connection = await crowd.connect()
    connection.writer.write(head() + BODY[:3])
    await crowd.ledger.is_noting.wait()
    connection.writer.write(BODY[3:] + head() + BODY + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert [(await connection.told())[0] for _ in range(3)] == [503, 503, 200]
    assert crowd.ledger.noted[-1] == 2


# Seen red with a response that does not look at what became of the count.
async def test_whoever_cannot_be_counted_is_told_so(crowd: Crowd) -> None:
    crowd.fill()
    crowd.ledger.is_broken = True
    connection = await crowd.connect()
    connection.ask()
    status, _, problem = await connection.told()
    assert (status, problem["error_type"], problem["query_id"]) == (503, "audit", None)


# Seen red with a protocol that forgets the ticket: the engine took a second place for the same question.
async def test_a_question_that_finds_room_keeps_its_ticket(crowd: Crowd) -> None:
    first, *_ = crowd.fill()
    first.leave()
    connection = await crowd.connect()
    connection.ask()
    assert (await connection.told())[0] == 200
    (ticket,) = crowd.tickets
    assert ticket and (ticket.client_id, ticket.state) == ("holder", "entered")


async def test_while_there_is_room_for_everybody_nothing_is_looked_at(crowd: Crowd) -> None:
    connection = await crowd.connect()
    connection.ask()
    assert (await connection.told())[0] == 200
    assert crowd.tickets == [None]


@pytest.mark.parametrize(
    "more", [{"key": "another"}, {"body": b"a" * 200}], ids=["an unknown key", "a body beyond its limit"]
)
async def test_what_the_engine_has_to_judge_goes_to_it(crowd: Crowd, more: dict[str, Any]) -> None:
    crowd.fill()
    connection = await crowd.connect()
    connection.ask(**more)
    assert (await connection.told())[0] == 200
    assert crowd.tickets == [None]


async def test_a_page_of_a_listed_site_may_read_its_refusal(crowd: Crowd) -> None:
    crowd.fill()
    crowd.ledger.may_note.set()
    connection = await crowd.connect()
    connection.ask(f"Origin: {SITE}")
    status, headers, _ = await connection.told()
    assert (status, headers["access-control-allow-origin"], headers["vary"]) == (503, SITE, "Origin")
    assert "Retry-After" in headers["access-control-expose-headers"]


# Seen red with a `shutdown` that closes at once: the client's question had no response.
async def test_a_server_that_stops_answers_whom_it_refuses(crowd: Crowd) -> None:
    crowd.fill()
    connection = await crowd.connect()
    connection.ask()
    await crowd.ledger.is_noting.wait()
    crowd.occupancy.is_ending = True
    (guest,) = crowd.server_state.connections
    guest.shutdown()
    crowd.ledger.may_note.set()
    assert (await connection.told())[0] == 503
    assert await connection.reader.read() == b""


async def test_whoever_leaves_while_the_count_is_written_is_in_it(crowd: Crowd) -> None:
    crowd.fill()
    connection = await crowd.connect()
    connection.ask()
    await crowd.ledger.is_noting.wait()
    connection.writer.transport.abort()
    crowd.ledger.may_note.set()
    await crowd.refused_rows.close()
    assert [row.repeat_count for row in crowd.ledger.rows] == [1]


# Seen red without a bound: each client had a row.
async def test_more_clients_than_there_are_rows_share_one(crowd: Crowd) -> None:
    crowd.ledger.may_note.set()
    clients = [Client(f"c-{number}", f"k-{number}", frozenset()) for number in range(CLIENTS_MAX + 3)]
    await asyncio.gather(*(crowd.count_refused(client)[1] for client in clients for _ in range(2)))
    await crowd.refused_rows.close()
    counted: dict[str | None, int] = {row.client_id: row.repeat_count for row in crowd.ledger.rows}
    assert counted.pop(None) == 6
    assert counted == {f"c-{number}": 2 for number in range(CLIENTS_MAX)}
