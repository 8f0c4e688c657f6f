"""Questions in the queue, from their key to their row: an upstream that holds them stands for an engine that has enough to do."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest

from audit.proof.record import Trail
from engine.admission.overload.concurrency_limit import ConcurrencyLimit
from engine.admission.overload.recent_keys import RecentKeys
from engine.admission.overload.turnstile import ROOM_MIN, Turnstile
from engine.answer import Asked, Engine, Rules
from engine.errors import OverloadedError, RequestError, UnauthenticatedError, UnknownBookError
from engine.models import Allowance, Client, Question
from engine.ports import NullExchange
from engine.wiring import now

LONG_S = 60.0
OPERATOR = Client("operator", None, frozenset({"ask"}))


@dataclass
class Parts:
    """All parts of an engine but its queue. The library holds each question until its test lets it go, and has no book."""

    may_go: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    worked_on: list[str] = field(default_factory=list)
    rows: list[Trail] = field(default_factory=list)

    async def authenticate(self, secret: str | None) -> Client:
        if not secret or secret == "wrong":
            raise UnauthenticatedError
        return Client(secret, secret, frozenset({"ask"}))

    async def admit(self, *_: Any) -> Allowance:
        return Allowance("admitted")

    async def count_if_flooding(self, _: Trail) -> bool:
        return False

    async def open(self, _: Trail) -> None: ...

    async def close(self, trail: Trail, _: Any) -> None:
        self.rows.append(trail)

    async def live(self, book_id: str) -> Any:
        self.worked_on.append(book_id)
        await self.may_go.acquire()
        raise UnknownBookError

    def row(self) -> Trail:
        (found,) = self.rows
        return found


@pytest.fixture
def parts() -> Parts:
    return Parts()


def engine_of(parts: Any, *, total_s: float = LONG_S, generation_s: float = 1.0) -> Engine:
    """Works on one question at a time, with room for as few as there ever is."""
    turnstile = Turnstile(ConcurrencyLimit(1, 1, 1), time.monotonic)
    turnstile._service_s = LONG_S
    rules = Rules(
        total_s=total_s, retrieval_s=LONG_S, generation_s=generation_s, audit_s=1.0, threshold=0.6,
        confidence_weights=(0.6, 0.4), confidence_levels=(0.85, 0.7), default_generation_confidence=0.8,
        instructions=parts, settings_sha256="", prompt_sha256="", code_version="",
    )  # fmt: skip
    return Engine(
        keyring=parts, limiter=parts, flood=parts, turnstile=turnstile, refused_rows=parts,
        recent_keys=RecentKeys(time.monotonic), library=parts, retriever=parts, generator=parts, ledger=parts,
        rules=rules, clock=now, new_id=uuid4, monotonic=time.monotonic,
    )  # fmt: skip


def asked(client_id: str, **about: Any) -> Asked:
    """A question about a book that is named like its client."""

    async def read() -> Question:
        return Question("What is asked?", client_id, 5)

    return Asked("/v1/query", "r-1", NullExchange(read), secret=client_id, **about)


async def answered(engine: Engine, question: Asked) -> RequestError:
    with pytest.raises(RequestError) as ended:
        await engine.answer(question)
    return ended.value


async def ask(engine: Engine, *clients: str) -> list[asyncio.Task[RequestError]]:
    """Each is worked on, waits or has been refused."""
    tasks = []
    for client_id in clients:
        tasks.append(asyncio.create_task(answered(engine, asked(client_id))))
        for _ in range(20):
            await asyncio.sleep(0)
    return tasks


async def test_a_question_that_finds_no_room_is_refused_at_once_with_its_row(parts: Parts) -> None:
    engine = engine_of(parts)
    crowd = await ask(engine, *(f"a{number}" for number in range(1 + 2 * ROOM_MIN)))
    failure = await answered(engine, asked("b"))
    assert isinstance(failure, OverloadedError) and failure.retry_after_s
    row = parts.row()
    assert (row.http_status, row.error_type, row.client_id) == (503, "network", "b")
    assert (row.user_query_text, row.query_id) == ("What is asked?", failure.query_id)
    for _ in crowd:
        parts.may_go.release()
    assert {type(failure) for failure in await asyncio.gather(*crowd)} == {UnknownBookError}
    assert len(parts.rows) == len(crowd) + 1
    assert (engine.turnstile.serving, engine.turnstile.waiting) == (0, 0)


# Seen red with first in, first out over all clients.
async def test_the_second_client_is_worked_on_before_the_tenth_question_of_the_first(parts: Parts) -> None:
    engine = engine_of(parts)
    crowd = await ask(engine, *["a"] * 6, "b", "b")
    for _ in crowd:
        parts.may_go.release()
    await asyncio.gather(*crowd)
    assert parts.worked_on == ["a", "a", "b", "a", "b", "a", "a", "a"]


# Seen red with `wait_s` as long as the whole request: it was a 504, and its time was over.
async def test_a_question_whose_turn_comes_too_late_is_refused_and_never_worked_on(parts: Parts) -> None:
    engine = engine_of(parts, total_s=2.05)  # a twentieth of a second to wait
    before = engine.turnstile.enter("a")
    await engine.turnstile.wait(before, 0.0)
    assert isinstance(await answered(engine, asked("b")), OverloadedError)
    before.leave()
    assert parts.worked_on == []
    assert (parts.row().http_status, parts.row().user_query_text) == (503, "What is asked?")
    assert (engine.turnstile.serving, engine.turnstile.waiting) == (0, 0)


async def test_whoever_disconnects_while_waiting_leaves_the_queue_and_has_a_row(parts: Parts) -> None:
    engine = engine_of(parts)
    first, gone, last = await ask(engine, "a", "a", "b")
    gone.cancel()
    await asyncio.wait([gone])
    assert (engine.turnstile.serving, engine.turnstile.waiting) == (1, 1)
    assert (parts.row().outcome, parts.row().user_query_text) == ("client_gone", "What is asked?")
    parts.may_go.release()
    parts.may_go.release()
    await asyncio.gather(first, last)
    assert parts.worked_on == ["a", "b"]


# Seen red without the `leave` at the end of `_on_record`.
async def test_a_ticket_from_the_connection_is_given_back_however_the_request_ends(parts: Parts) -> None:
    engine = engine_of(parts)
    for secret in ("wrong", "a"):
        ticket = engine.turnstile.enter("a")
        parts.may_go.release()
        await answered(engine, asked(secret, ticket=ticket))
        assert (ticket.state, engine.turnstile.serving, engine.turnstile.waiting) == ("left", 0, 0)


# Seen red with a question that enters again although it has a ticket.
async def test_a_ticket_from_the_connection_is_the_only_one(parts: Parts) -> None:
    engine = engine_of(parts)
    ticket = engine.turnstile.enter("a")
    task = asyncio.create_task(answered(engine, asked("a", ticket=ticket)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert parts.worked_on == ["a"]
    assert (engine.turnstile.serving, engine.turnstile.waiting) == (1, 0)
    assert ticket.state == "served"
    parts.may_go.release()
    await task


async def test_an_operator_is_not_turned_away_by_readers(parts: Parts) -> None:
    engine = engine_of(parts)
    crowd = await ask(engine, *(f"a{number}" for number in range(1 + 2 * ROOM_MIN)))
    own = asyncio.create_task(answered(engine, asked("operator", operator=OPERATOR)))
    for _ in range(len(crowd) + 1):
        parts.may_go.release()
    assert isinstance(await own, UnknownBookError)
    await asyncio.gather(*crowd)
