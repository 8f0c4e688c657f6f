"""What a request costs where no machine makes a difference: commits, round trips, bytes, embeddings, calls of functions.

A ceiling is a little above what was counted. Who lowers a cost lowers its ceiling; who raises one has to say why.
"""

import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import mode
from types import FrameType
from typing import Any

import httpx
import psycopg
import pytest

from audit.ledger.database_writer import WRITE
from engine.house import House
from engine.logs import JsonLineFormatter
from engine.providers.minilm import MiniLm
from tests.conftest import ROOT
from tests.in_process import application

IMU = {"query": "What does an IMU measure?"}
TRIES = 5  # the least of them: a background task may run within one
OURS = tuple(f"{ROOT / room}/" for room in ("audit", "engine", "ingest"))

STEPS = ("opened", "noted", "ended", "closed")  # the arguments of the statement
ROUND_TRIPS = 3  # the first commit by itself; two for the second, which can be withdrawn between them
OPENED_BYTES_MAX, CLOSED_BYTES_MAX, LINE_BYTES_MAX = 1_600, 14_000, 400
CALLS_MAX = 8_400  # of our own functions


@dataclass
class Written:
    """What the ledger wrote of requests with a question, step by step, and how often it waited for the database."""

    steps: list[tuple[str, str]] = field(default_factory=list)
    round_trips: int = 0


@pytest.fixture
async def asking(house: House, key: str) -> AsyncIterator[httpx.AsyncClient]:
    """Everything that is cached for longer than a request is: the passages, the units, the key's use."""
    async with application(house, key=key) as (_, client):
        for _ in range(2):
            await _ask(client)
        yield client


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    seen, of_ledger = Written(), set[int]()
    execute, wait = psycopg.AsyncCursor.execute, psycopg.AsyncConnection.wait

    async def noting(self: Any, statement: Any, values: Any = None, **named: Any) -> Any:
        if str(statement).endswith(WRITE):
            of_ledger.add(id(self.connection))
            texts = zip(STEPS, values, strict=True)
            seen.steps += [(step, text) for step, text in texts if text and IMU["query"] in text]
        return await execute(self, statement, values, **named)

    async def counting(self: Any, *given: Any, **named: Any) -> Any:
        seen.round_trips += id(self) in of_ledger
        return await wait(self, *given, **named)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", noting)
    monkeypatch.setattr(psycopg.AsyncConnection, "wait", counting)
    return seen


async def test_a_request_takes_two_commits(asking: httpx.AsyncClient, written: Written) -> None:
    await _ask(asking)
    assert [step for step, _ in written.steps] == ["opened", "closed"]


async def test_its_two_commits_take_three_round_trips(asking: httpx.AsyncClient, written: Written) -> None:
    counted = []
    for _ in range(TRIES):
        written.round_trips = 0
        await _ask(asking)
        counted.append(written.round_trips)
    assert mode(counted) == ROUND_TRIPS  # the first of a connection is not counted whole


async def test_its_record_and_its_line_stay_small(
    asking: httpx.AsyncClient, written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "engine.http.middleware"):
        await _ask(asking)
    opened, closed = [len(text.encode()) for _, text in written.steps]
    lines = [JsonLineFormatter().format(line) for line in caplog.records if line.message == "Request"]
    assert (len(lines), opened < OPENED_BYTES_MAX, closed < CLOSED_BYTES_MAX) == (1, True, True)
    assert len(lines[0].encode()) < LINE_BYTES_MAX


async def test_a_question_is_embedded_once(
    asking: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    embed = MiniLm._embed

    def counting(self: MiniLm, text: str) -> Any:
        texts.append(text)
        return embed(self, text)

    monkeypatch.setattr(MiniLm, "_embed", counting)
    await _ask(asking)
    assert texts == [IMU["query"]]


async def test_our_own_functions_are_called_as_often_as_they_were(asking: httpx.AsyncClient) -> None:
    counted = []
    for _ in range(TRIES):
        with _calls() as calls:
            await _ask(asking)
        counted.append(calls[0])
    assert min(counted) < CALLS_MAX


async def _ask(client: httpx.AsyncClient) -> None:
    answered = await client.post("/v1/query", json=IMU)
    assert answered.json()["outcome"] == "answered", answered.text


@contextmanager
def _calls() -> Iterator[list[int]]:
    """How many functions of ours begin in this thread, or go on."""
    counted = [0]

    def note(frame: FrameType, event: str, _: object) -> None:
        counted[0] += event == "call" and frame.f_code.co_filename.startswith(OURS)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield counted
    finally:
        sys.setprofile(before)
