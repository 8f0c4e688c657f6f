"""An answer sentence by sentence: nothing shown that is not proven and on record, whatever the client does meanwhile."""

import asyncio
import contextlib
import json
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import uvicorn

from audit.errors import LedgerUnavailableError
from audit.ledger.ledger import Ledger
from audit.proof.record import Receipt, Trail
from engine.errors import ModelBusyError, OutOfTimeError
from engine.house import House
from engine.http import stream
from engine.http.app import create_app
from engine.models import Citation, Claim, Draft, Generation, Question, Retrieved, RetrievedPassage
from engine.retrieval.retrieve import Retriever
from engine.storage.database import Database
from tests import upstreams
from tests.conftest import Records

IMU = {"query": "What does an IMU measure?"}
OFF_TOPIC = {"query": "Who won the football world cup in 1998?"}
EVENTS = "text/event-stream"
SOON_S = 10  # far more than anything here takes, and less than anybody waits for a hanging test

Event = tuple[str, dict[str, Any]]
Step = Callable[[Sequence[RetrievedPassage], Draft], Claim | None]


@dataclass
class Stepwise:
    """A generator that says each sentence when the test says so, and notices when it is cut off."""

    name: str = "stepwise"
    steps: asyncio.Queue[Step | None] = field(default_factory=asyncio.Queue)
    is_asked: asyncio.Event = field(default_factory=asyncio.Event)
    is_left: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(
        self, question: Question, evidence: Sequence[RetrievedPassage], draft: Draft
    ) -> AsyncIterator[Claim]:
        draft.prompt = "the prompt"
        self.is_asked.set()
        try:
            while step := await self.steps.get():
                claim = step(evidence, draft)
                if claim:
                    draft.raw += claim.text
                    draft.tokens_output += 7
                    yield claim
        finally:
            self.is_left.set()

    async def close(self) -> None: ...

    def say(self, number: int = 0, text: str = "") -> None:
        """A sentence of the best passage, or a text that cites it."""

        def quote(evidence: Sequence[RetrievedPassage], _: Draft) -> Claim:
            cited = evidence[0].passage.sentence_text(number)
            return Claim(text or cited, (Citation(0, number, number + 1, cited),))

        self.steps.put_nowait(quote)

    def lie(self, text: str) -> None:
        self.steps.put_nowait(lambda *_: Claim(text, (Citation(0, 0, 1, text),)))

    def fail(self, failure: Exception) -> None:
        def failing(*_: Any) -> None:
            raise failure

        self.steps.put_nowait(failing)

    def end(self, **about: Any) -> None:
        def finish(_: Sequence[RetrievedPassage], draft: Draft) -> None:
            for name, value in ({"is_complete": True, "stop_reason": "end_turn"} | about).items():
                setattr(draft, name, value)

        self.steps.put_nowait(finish)
        self.steps.put_nowait(None)


class Talkative(Stepwise):
    """Says an answer of 45 kB to everybody at once; its stream is twice that."""

    async def write(
        self, question: Question, evidence: Sequence[RetrievedPassage], draft: Draft
    ) -> AsyncIterator[Claim]:
        cited = evidence[0].passage.sentence_text(0)
        yield Claim("m" * 45_000, (Citation(0, 0, 1, cited),))
        draft.is_complete, draft.stop_reason = True, "end_turn"


async def nothing() -> None: ...


@dataclass
class Overheard:
    """The real ledger, with what a test does in between."""

    ledger: Ledger
    before_note: Callable[[], Awaitable[None]] = nothing
    before_close: Callable[[], Awaitable[None]] = nothing
    closed: asyncio.Queue[Trail] = field(default_factory=asyncio.Queue)

    async def open(self, trail: Trail) -> None:
        await self.ledger.open(trail)

    async def note(self, trail: Trail) -> None:
        await self.before_note()
        await self.ledger.note(trail)

    def has_record(self, log_id: uuid.UUID) -> bool:
        return self.ledger.has_record(log_id)

    async def close(self, trail: Trail, issued_at: datetime) -> Receipt:
        await self.before_close()
        receipt = await self.ledger.close(trail, issued_at)
        self.closed.put_nowait(trail)
        return receipt


@dataclass
class Served:
    """An engine on a port of this machine, in this process."""

    generator: Stepwise
    ledger: Overheard
    port: int
    key: str
    server: uvicorn.Server
    client: httpx.AsyncClient

    @contextlib.asynccontextmanager
    async def asking(self, body: Any = IMU, **headers: str) -> AsyncIterator[httpx.Response]:
        asked = self.client.stream("POST", "/v1/query", json=body, headers={"Accept": EVENTS} | headers)
        async with asked as response:
            yield response

    async def connect(
        self, *, accept: str = EVENTS, request_id: str = "", body: bytes | None = None
    ) -> "Raw":
        """A request by hand, its reply unread."""
        said = json.dumps(IMU).encode() if body is None else body
        raw = Raw(*await asyncio.open_connection("127.0.0.1", self.port))
        raw.writer.write(self.head(accept, request_id, len(json.dumps(IMU))) + said)
        await raw.writer.drain()
        return raw

    def head(self, accept: str = EVENTS, request_id: str = "", length: int = 0, *more: str) -> bytes:
        lines = [
            "POST /v1/query HTTP/1.1", "Host: here", f"Authorization: Bearer {self.key}", f"Accept: {accept}",
            f"X-Request-ID: {request_id or uuid.uuid4()}", f"Content-Length: {length}", *more,
        ]  # fmt: skip
        return "\r\n".join([*lines, "", ""]).encode()

    async def closed(self) -> Trail:
        return await asyncio.wait_for(self.ledger.closed.get(), SOON_S)

    async def is_quiet(self) -> None:
        """No request is being worked on and nobody is connected."""
        state = self.server.server_state
        async with asyncio.timeout(SOON_S):
            while state.tasks or state.connections:  # noqa: ASYNC110  uvicorn has no event for it
                await asyncio.sleep(0.01)


@dataclass
class Raw:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def until(self, words: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(words), SOON_S)

    def leave(self) -> None:
        self.writer.transport.abort()


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve(house: House, key: str) -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(*, sent_bytes: int = 0, parts: dict[str, Any] | None = None, **rules: Any) -> Served:
            generator, ledger = Stepwise(), Overheard(house.engine.ledger)
            rules = {
                "generation_s": SOON_S,
                "total_s": 2 * SOON_S,
                "audit_s": 2.0,
            } | rules  # a busy disk is no failure
            made = {"generator": generator, "ledger": ledger} | (parts or {})
            engine = replace(house.engine, rules=replace(house.engine.rules, **rules), **made)  # type: ignore[arg-type]  # parts of a test
            listening = socket.create_server(("127.0.0.1", 0), backlog=300)
            if sent_bytes:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sent_bytes)
            server = await stack.enter_async_context(listened(replace(house, engine=engine), listening))
            port = listening.getsockname()[1]
            client = httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}",
                headers={"Authorization": f"Bearer {key}"},
                timeout=SOON_S,
            )
            await stack.enter_async_context(client)
            return Served(generator, ledger, port, key, server, client)

        yield start


@contextlib.asynccontextmanager
async def listened(house: House, listening: socket.socket) -> AsyncIterator[uvicorn.Server]:
    app = create_app(lambda: nullcontext(house))
    server = upstreams._Server(uvicorn.Config(app, log_level="critical", lifespan="on", server_header=False))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    await server.is_listening.wait()
    try:
        yield server
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, SOON_S)


@pytest.fixture
async def served(serve: Serve) -> Served:
    return await serve()


async def events(response: httpx.Response) -> AsyncIterator[Event]:
    """Each is two lines and an empty one, to the letter."""
    rest = b""
    async for part in response.aiter_bytes():
        rest += part
        while b"\n\n" in rest:
            event, rest = rest.split(b"\n\n", 1)
            name, data = event.split(b"\n")
            assert name.startswith(b"event: ") and data.startswith(b"data: ")
            yield name[7:].decode(), json.loads(data[6:])
    assert not rest


def opened(database: Database, request_id: str) -> list[dict[str, Any]]:
    """What stands in the open record, as another connection sees it."""
    with psycopg.connect(database.url) as connection:
        found = connection.execute(
            "SELECT trail FROM audit_open WHERE trail ->> 'request_id' = %s", (request_id,)
        )
        return [trail for (trail,) in found]


def the_row(records: Records, database: Database, request_id: str) -> dict[str, Any]:
    """Exactly one, and nothing left open."""
    (row,) = records.where("request_id = %s", request_id)
    assert opened(database, request_id) == []
    return row


async def test_sources_then_each_sentence_then_the_object_that_json_mode_returns(served: Served) -> None:
    for _ in range(2):
        served.generator.say(0)
        served.generator.say(1)
        served.generator.end(confidence=0.9)
    async with served.asking() as response:
        heard = [event async for event in events(response)]
    whole = (await served.client.post("/v1/query", json=IMU)).json()
    assert [name for name, _ in heard] == ["sources", "sentence", "sentence", "done"]
    sources, first, second, done = (data for _, data in heard)
    assert len(sources["sources"]) == 5
    assert done["answer"] == f"{first['text']} {second['text']}"
    assert done["citations"] == first["citations"] + second["citations"]
    assert [item["n"] for item in done["citations"]] == [1, 2]
    assert sources["sources"][0]["chunk_id"] == done["citations"][0]["chunk_id"]
    for each in (done, whole):
        for changing in ("query_id", "answer_id", "timings", "receipt"):
            assert each.pop(changing)
    assert done == whole


async def test_the_headers_keep_proxies_from_holding_events_back(served: Served) -> None:
    served.generator.say()
    served.generator.end()
    async with served.asking(**{"X-Request-ID": "stream-headers"}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache, no-transform"
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["x-request-id"] == "stream-headers"
        assert response.headers["x-content-type-options"] == "nosniff"


# Seen red without `_LINE_ENDS`: httpx, like many a client, takes the three for ends of lines.
async def test_no_text_breaks_the_line_it_stands_in(served: Served) -> None:
    hostile = "Über 机器人 مرحبا 👩\u200d🚀\u2028data: x\u2029event: x\x85\r\n\n\n\revent: x\x0b\x0c\x1c <b>"
    served.generator.say(0, hostile)
    served.generator.end()
    async with served.asking() as response:
        lines = [line async for line in response.aiter_lines()]
    names = [line for line in lines if line.startswith("event:")]
    assert names == ["event: sources", "event: sentence", "event: done"]
    sentence, done = (json.loads(lines[number].removeprefix("data: ")) for number in (4, 7))
    assert sentence["text"].startswith(hostile)
    assert done["answer"] == sentence["text"]


async def test_a_doubtful_answer_is_marked_once_it_is_known_to_be_doubtful(served: Served) -> None:
    served.generator.say()
    served.generator.end(confidence=0.0)
    async with served.asking() as response:
        _, (_, sentence), (_, done) = [event async for event in events(response)]
    assert done["confidence_level"] == "low"
    assert done["answer"] == f"[Low confidence: check the sources.] {sentence['text']}"


# Seen red with `exchange.show(event)` before `ledger.note(trail)` in answer.py.
async def test_g1_nothing_is_shown_before_it_stands_in_the_open_record(
    served: Served, database: Database
) -> None:
    heard: list[Event] = []
    heard_before_note: list[int] = []

    async def round_trip() -> None:
        """Whatever was said already is there when another request has been answered."""
        await served.client.get("/healthz")
        heard_before_note.append(len(heard))

    served.ledger.before_note = round_trip
    async with served.asking(**{"X-Request-ID": "durable-first"}) as response:
        shown = ""
        served.generator.say(0)
        async for name, data in events(response):
            heard.append((name, data))
            if name == "sentence":
                shown = f"{shown} {data['text']}".strip()
                (trail,) = opened(database, "durable-first")
                assert trail["released_text"] == shown
                served.generator.say(1) if len(heard) == 2 else served.generator.end()
    assert [name for name, _ in heard] == ["sources", "sentence", "sentence", "done"]
    assert heard_before_note == [0, 1, 2]


async def test_g1_a_record_that_cannot_be_noted_at_first_is_a_problem_with_its_status(served: Served) -> None:
    async def broken() -> None:
        raise LedgerUnavailableError

    served.ledger.before_note = broken
    served.generator.say()
    async with served.asking() as response:
        problem = json.loads(await response.aread())
    assert (response.status_code, problem["error_type"]) == (503, "audit")
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["retry-after"]
    assert not served.generator.is_asked.is_set()


async def test_g1_a_record_that_stalls_later_lets_no_further_sentence_out(
    serve: Serve, database: Database
) -> None:
    """Another connection holds the open record, so the second sentence's note waits in PostgreSQL itself."""
    served = await serve(audit_s=0.3)
    async with served.asking(**{"X-Request-ID": "stalled"}) as response:
        heard = events(response)
        served.generator.say(0)
        assert [(await anext(heard))[0] for _ in range(2)] == ["sources", "sentence"]
        with psycopg.connect(database.url) as holding:
            holding.execute("SELECT 1 FROM audit_open WHERE trail ->> 'request_id' = 'stalled' FOR UPDATE")
            served.generator.say(1)
            rest = [event async for event in heard]
            holding.rollback()
            deletion = "DELETE FROM audit_open WHERE trail ->> 'request_id' = 'stalled'"
            await asyncio.to_thread(
                holding.execute, deletion
            )  # the engine's own transaction ends in this loop
    ((name, problem),) = rest
    assert (name, problem["status"], problem["error_type"]) == ("error", 503, "audit")
    assert served.generator.is_left.is_set()


# Seen red with `is_proven` always true.
async def test_g5_an_unproven_sentence_is_never_shown(served: Served, records: Records) -> None:
    served.generator.lie("Robots will rule the world.")
    served.generator.say(0, "It has 7919 axes.")
    served.generator.say(0)
    served.generator.lie("They already do.")
    served.generator.end()
    async with served.asking() as response:
        body = (await response.aread()).decode()
    assert body.count("event: sentence") == 1
    assert "rule the world" not in body and "7919" not in body and "already do" not in body
    (row,) = records.of((await served.closed()).query_id)
    assert "rule the world" in row["llm_response"]
    assert row["released_text"] == row["answer_text"]


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ({"is_complete": False, "stop_reason": "max_tokens"}, "citation_failed"),
        ({"has_abstained": True}, "insufficient_evidence"),
        ({"is_complete": False, "stop_reason": "refusal"}, "model_refused"),
    ],
)
async def test_what_was_shown_of_an_answer_that_became_a_refusal_stays_on_record(
    served: Served, records: Records, ending: dict[str, Any], reason: str
) -> None:
    served.generator.say()
    served.generator.lie("And this is not true.")
    served.generator.end(**ending)
    async with served.asking() as response:
        heard = [event async for event in events(response)]
    assert [name for name, _ in heard] == ["sources", "sentence", "done"]
    done = heard[-1][1]
    assert (done["outcome"], done["reason"], done["citations"]) == ("refused", reason, [])
    (row,) = records.of(done["query_id"])
    assert row["released_text"] == heard[1][1]["text"]
    assert (row["outcome"], row["answer_text"]) == ("refused", done["answer"])


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/v1/query", IMU, {"Authorization": "Bearer wrong"}, 401),
        ("/v1/query", {"query": ""}, {}, 422),
        ("/v1/query", {"query": "a" * 70_000}, {}, 413),
        ("/v1/books/no-such-book/query", IMU, {}, 404),
    ],
)
async def test_a_failure_before_the_first_event_is_a_problem_with_its_status(
    served: Served, records: Records, path: str, body: Any, headers: dict[str, str], status: int
) -> None:
    response = await served.client.post(path, json=body, headers={"Accept": EVENTS} | headers)
    assert (response.status_code, response.json()["status"]) == (status, status)
    assert response.headers["content-type"] == "application/problem+json"
    assert records.of(response.json()["query_id"])[0]["http_status"] == status


async def test_a_refusal_at_the_gate_is_done_and_nothing_else(served: Served) -> None:
    async with served.asking(OFF_TOPIC) as response:
        ((name, done),) = [event async for event in events(response)]
    assert (name, done["outcome"], done["reason"]) == ("done", "refused", "not_covered")
    assert done["nearest"] and done["receipt"]


@pytest.mark.parametrize(
    ("failure", "status"),
    [(ModelBusyError(), 503), (OutOfTimeError(), 504), (ZeroDivisionError("canary"), 500)],
)
async def test_a_failure_afterwards_is_an_event_and_the_stream_ends_in_order(
    served: Served, records: Records, failure: Exception, status: int
) -> None:
    served.generator.say()
    served.generator.fail(failure)
    async with served.asking() as response:
        heard = [event async for event in events(response)]
    assert [name for name, _ in heard] == ["sources", "sentence", "error"]
    problem = heard[-1][1]
    assert (problem["status"], problem["request_id"]) == (status, response.headers["x-request-id"])
    assert "canary" not in str(problem)
    (row,) = records.of(problem["query_id"])
    assert (row["outcome"], row["http_status"]) == ("failed", status)
    assert row["released_text"] == heard[1][1]["text"]
    assert (await served.client.get("/healthz")).is_success


async def test_time_that_runs_out_between_two_sentences_is_an_event(serve: Serve, records: Records) -> None:
    served = await serve(generation_s=0.2)
    served.generator.say()
    async with served.asking() as response:
        heard = [event async for event in events(response)]
    assert [name for name, _ in heard] == ["sources", "sentence", "error"]
    assert heard[-1][1]["status"] == 504
    assert "generation" in records.of(heard[-1][1]["query_id"])[0]["error_message"]


@dataclass
class Lingering:
    """A retriever that never comes back."""

    is_asked: asyncio.Event = field(default_factory=asyncio.Event)
    is_left: asyncio.Event = field(default_factory=asyncio.Event)

    async def retrieve(self, question: Question, generation: Generation) -> Retrieved:
        self.is_asked.set()
        try:
            await asyncio.Event().wait()
            raise AssertionError
        finally:
            self.is_left.set()


@dataclass
class Remembering:
    """A retriever that finds for everybody what it found for the first."""

    retriever: Retriever
    found: Retrieved | None = None

    async def retrieve(self, question: Question, generation: Generation) -> Retrieved:
        self.found = self.found or await self.retriever.retrieve(question, generation)
        return self.found


@pytest.mark.parametrize("accept", [EVENTS, "application/json"])
async def test_a_client_that_leaves_during_retrieval_takes_it_along(
    serve: Serve, records: Records, database: Database, accept: str
) -> None:
    retriever = Lingering()
    served = await serve(parts={"retriever": retriever}, retrieval_s=SOON_S)
    request_id = str(uuid.uuid4())
    client = await served.connect(accept=accept, request_id=request_id)
    await asyncio.wait_for(retriever.is_asked.wait(), SOON_S)
    client.leave()
    await asyncio.wait_for(retriever.is_left.wait(), 1)
    await served.closed()
    row = the_row(records, database, request_id)
    assert (row["outcome"], row["success"], row["http_status"]) == ("client_gone", False, None)
    assert row["user_query_text"] == IMU["query"]
    assert row["model_requested"] is None


@pytest.mark.parametrize("accept", [EVENTS, "application/json"])
async def test_a_client_that_leaves_during_generation_takes_it_along(
    served: Served, records: Records, database: Database, accept: str
) -> None:
    """Seen red with `_watch` doing nothing."""
    request_id = str(uuid.uuid4())
    client = await served.connect(accept=accept, request_id=request_id)
    await asyncio.wait_for(served.generator.is_asked.wait(), SOON_S)
    served.generator.say()
    if accept == EVENTS:
        await client.until(b"event: sentence")
    client.leave()
    await asyncio.wait_for(served.generator.is_left.wait(), 1)
    await served.closed()
    row = the_row(records, database, request_id)
    assert (row["outcome"], row["success"]) == ("client_gone", False)
    assert row["llm_prompt"] == "the prompt"
    assert row["chunks_returned"]
    if accept == EVENTS:
        assert row["tokens_output"] == 7
        assert row["released_text"].startswith(row["llm_response"])


# Seen red with a cancel scope of anyio, which cancels again and again: the driver gave the connection up.
async def test_a_client_that_leaves_does_not_cost_a_connection_to_the_database(
    serve: Serve, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    served = await serve(audit_s=SOON_S)
    client = await served.connect(request_id="during-note")
    await asyncio.wait_for(served.generator.is_asked.wait(), SOON_S)
    with psycopg.connect(database.url, autocommit=True) as looking, psycopg.connect(database.url) as holding:
        holding.execute("SELECT 1 FROM audit_open WHERE trail ->> 'request_id' = 'during-note' FOR UPDATE")
        served.generator.say()
        async with asyncio.timeout(SOON_S):
            while looking.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone() is None:  # noqa: ASYNC110  PostgreSQL has no event for it
                await asyncio.sleep(0.01)
        client.leave()
        await asyncio.wait_for(served.generator.is_left.wait(), SOON_S)
    assert (await served.closed()).outcome == "client_gone"
    assert [record.message for record in caplog.records if record.name.startswith("psycopg")] == []


# Seen red with a body that ended early taken for a bad request.
async def test_a_client_that_leaves_while_it_still_sends_is_gone(
    served: Served, records: Records, database: Database
) -> None:
    request_id = str(uuid.uuid4())
    client = await served.connect(request_id=request_id, body=b'{"query":')
    (await served.client.get("/healthz")).raise_for_status()
    client.leave()
    await served.closed()
    row = the_row(records, database, request_id)
    assert (row["outcome"], row["user_query_text"], row["client_id"]) == ("client_gone", "", "tests")


# Seen red with `ledger.close` not kept from being broken off: the row was missing.
@pytest.mark.parametrize("accept", [EVENTS, "application/json"])
async def test_a_client_that_leaves_while_the_row_is_written_leaves_the_whole_row(
    served: Served, records: Records, database: Database, accept: str
) -> None:
    request_id = str(uuid.uuid4())
    is_closing, may_close = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        is_closing.set()
        await may_close.wait()

    served.ledger.before_close = wait
    served.generator.say()
    served.generator.end()
    client = await served.connect(accept=accept, request_id=request_id)
    await asyncio.wait_for(is_closing.wait(), SOON_S)
    client.leave()
    for _ in range(2):  # the server notices the reset before it answers others
        (await served.client.get("/healthz")).raise_for_status()
    may_close.set()
    await served.closed()
    row = the_row(records, database, request_id)
    assert (row["outcome"], row["success"]) == ("answered", True)


async def test_who_only_stops_sending_counts_as_gone(
    served: Served, records: Records, database: Database
) -> None:
    """Half-closed: uvicorn does not tell it from a client that left, and no client of HTTP/1.1 needs it."""
    request_id = str(uuid.uuid4())
    client = await served.connect(request_id=request_id)
    await asyncio.wait_for(served.generator.is_asked.wait(), SOON_S)
    client.writer.write_eof()
    await served.closed()
    assert the_row(records, database, request_id)["outcome"] == "client_gone"
    client.leave()


async def test_clients_that_leave_leave_nothing_behind(served: Served, records: Records) -> None:
    """Tasks, open files and the connections to the database are what they were."""

    async def leave(accept: str) -> None:
        client = await served.connect(accept=accept, request_id=f"leaving-{uuid.uuid4()}")
        client.leave()

    async def leave_ten_times_ten() -> None:
        for _ in range(10):
            await asyncio.gather(*map(leave, 5 * [EVENTS, "application/json"]))
            for _ in range(10):
                await served.closed()
        await served.is_quiet()

    await leave_ten_times_ten()  # the pool has all its connections now
    tasks, files = len(asyncio.all_tasks()), len(list(Path("/proc/self/fd").iterdir()))
    await leave_ten_times_ten()
    assert len(asyncio.all_tasks()) <= tasks + 2  # the pool may be renewing one
    assert len(list(Path("/proc/self/fd").iterdir())) <= files + 2
    rows = records.where("request_id LIKE 'leaving-%%'")
    assert [row["outcome"] for row in rows] == ["client_gone"] * 200


async def test_the_server_that_stops_lets_a_stream_finish(serve: Serve) -> None:
    served = await serve()
    async with served.asking() as response:
        heard = events(response)
        await anext(heard)
        served.server.should_exit = True
        served.generator.say()
        assert (await anext(heard))[0] == "sentence"
        served.generator.end()
        assert [name async for name, _ in heard] == ["done"]


async def test_a_server_that_is_told_not_to_wait_records_what_it_broke_off(
    served: Served, records: Records, database: Database
) -> None:
    async with served.asking(**{"X-Request-ID": "broken-off"}) as response:
        heard = events(response)
        await anext(heard)
        served.generator.say()
        await anext(heard)
        for task in served.server.server_state.tasks:
            task.cancel()
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(heard)
    await served.closed()
    row = the_row(records, database, "broken-off")
    assert (row["outcome"], row["tokens_output"]) == ("client_gone", 7)


def say_much(generator: Stepwise, sentences: int = 10, characters: int = 30_000) -> None:
    for _ in range(sentences):
        generator.say(0, "m" * characters)
    generator.end()


async def stalled_reader(served: Served, request_id: str = "") -> socket.socket:
    """Asks, and then takes no more than a few kilobytes."""
    asking = socket.socket()
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    asking.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(asking, ("127.0.0.1", served.port))
    body = json.dumps(IMU).encode()
    await loop.sock_sendall(asking, served.head(request_id=request_id, length=len(body)) + body)
    return asking


async def test_a_reader_who_does_not_read_holds_up_nobody_and_is_given_up(
    serve: Serve, records: Records, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen red with a `_send_within` without its timeout."""
    monkeypatch.setattr(stream, "READ_S", 0.5)
    served = await serve(sent_bytes=4096)
    say_much(served.generator)
    with await stalled_reader(served, "not-reading"):
        await served.closed()
        row = the_row(records, database, "not-reading")
        assert row["outcome"] == "answered"
        assert row["total_latency_ms"] < 5000
        served.generator.say()
        served.generator.end()
        async with served.asking() as response:
            assert [name async for name, _ in events(response)] == ["sources", "sentence", "done"]
        if tasks := served.server.server_state.tasks:  # none is left if both requests have ended already
            await asyncio.wait_for(asyncio.wait(tasks), SOON_S)


async def test_a_reader_who_was_given_up_before_the_end_does_not_change_the_answer(
    serve: Serve, records: Records, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen red with an outbox that takes nothing more once its reader was given up."""
    monkeypatch.setattr(stream, "READ_S", 0.05)
    served = await serve(sent_bytes=4096)
    for _ in range(5):
        served.generator.say(0, "m" * 30_000)
    with await stalled_reader(served, "given-up"):
        await asyncio.wait_for(served.generator.is_asked.wait(), SOON_S)
        await asyncio.sleep(0.5)  # ten times the patience
        say_much(served.generator, 2)
        await served.closed()
    assert the_row(records, database, "given-up")["outcome"] == "answered"


@pytest.mark.campaign
async def test_two_hundred_readers_who_do_not_read_disturb_nobody(house: House, serve: Serve) -> None:
    parts = {"generator": Talkative(), "retriever": Remembering(house.engine.retriever)}
    served = await serve(sent_bytes=4096, audit_s=SOON_S, parts=parts)
    tasks = served.server.server_state.tasks
    with ExitStack() as readers:
        for _ in range(25):
            for _ in range(8):
                readers.enter_context(await stalled_reader(served))
            for _ in range(8):
                trail = await served.closed()
                assert trail.outcome == "answered", trail.error_message
        assert len(tasks) == 200
        async with served.asking() as response:
            assert [name async for name, _ in events(response)] == ["sources", "sentence", "done"]
    await asyncio.wait_for(asyncio.wait(tasks), SOON_S)


async def test_a_reader_who_is_slow_gets_everything(serve: Serve) -> None:
    served = await serve(sent_bytes=4096)
    say_much(served.generator)
    with await stalled_reader(served) as reader:
        await served.closed()
        received = b""
        while not received.endswith(b"\r\n0\r\n\r\n"):
            received += await asyncio.get_running_loop().sock_recv(reader, 65_536)
    assert received.count(b"event: sentence") == 10
    assert received.count(b"event: done") == 1


@pytest.mark.parametrize(
    ("accept", "streams"),
    [
        ("text/event-stream", True),
        ("Text/Event-Stream", True),
        ("text/event-stream, */*;q=0.1", True),
        ("text/event-stream;q=0.9, application/json;q=0.8", True),
        ("text/event-stream, */*", True),
        ("application/json, text/event-stream;q=0.1", False),
        ("application/json, text/event-stream", False),
        ("text/event-stream;q=0", False),
        ("text/event-stream;q=much", False),
        ("text/event-streams", False),
        ("text/*", False),
        ("*/*", False),
        ("", False),
    ],
)
async def test_only_who_prefers_events_gets_them(served: Served, accept: str, streams: bool) -> None:
    served.generator.say()
    served.generator.end()
    response = await served.client.post("/v1/query", json=IMU, headers={"Accept": accept})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith(EVENTS if streams else "application/json")


async def test_a_client_of_http_1_0_reads_until_the_end_of_the_connection(served: Served) -> None:
    served.generator.say()
    served.generator.end()
    client = Raw(*await asyncio.open_connection("127.0.0.1", served.port))
    body = json.dumps(IMU).encode()
    head = served.head(length=len(body)).replace(b"HTTP/1.1", b"HTTP/1.0")
    client.writer.write(head + body)
    reply = await asyncio.wait_for(client.reader.read(), SOON_S)
    head, events_sent = reply.split(b"\r\n\r\n", 1)
    assert b"chunked" not in head.lower()
    assert events_sent.startswith(b"event: sources\n")
    assert events_sent.count(b"event: ") == 3 and events_sent.endswith(b"}\n\n")
    client.leave()


async def test_pipelined_questions_are_answered_in_order_on_one_connection(served: Served) -> None:
    body = json.dumps(IMU).encode()
    client = Raw(*await asyncio.open_connection("127.0.0.1", served.port))
    client.writer.write(b"".join(served.head(request_id=name, length=len(body)) + body for name in "ab"))
    for name in ("a", "b"):
        served.generator.say()
        served.generator.end()
        reply = await client.until(b"\r\n0\r\n\r\n")
        assert f"X-Request-ID: {name}".lower().encode() in reply.lower()
        assert reply.count(b"event: done") == 1
    client.leave()


async def test_who_asks_before_sending_the_body_is_told_to_go_on_only_with_a_good_key(served: Served) -> None:
    body = json.dumps(IMU).encode()
    served.generator.say()
    served.generator.end()
    client = Raw(*await asyncio.open_connection("127.0.0.1", served.port))
    client.writer.write(served.head(EVENTS, "", len(body), "Expect: 100-continue"))
    assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
    client.writer.write(body)
    assert (await client.until(b"\r\n0\r\n\r\n")).startswith(b"HTTP/1.1 200")
    client.leave()
    stranger = Raw(*await asyncio.open_connection("127.0.0.1", served.port))
    asked = served.head(EVENTS, "", len(body), "Expect: 100-continue")
    stranger.writer.write(asked.replace(served.key.encode(), b"wrong"))
    assert (await stranger.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 401")
    stranger.leave()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_question_is_posted(served: Served, method: str) -> None:
    response = await served.client.request(method, "/v1/query", headers={"Accept": EVENTS})
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
