"""Readers of several engines: what each was told, from their own side, and what the log says of it."""

import asyncio
import contextlib
import itertools
import json
import random
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.campaigns.load import QUESTIONS
from tests.campaigns.machines.house import Engine, Machines

READERS_EACH = 2
PAUSE_S = 0.1  # between two questions of a reader, so that two cores have time for all the processes
TICK_S = 0.02
GIVEN_UP_S = 30
READER = "user:7b1c4f0e-3f5a-4a52-9d0e-0a3c5c1f6b11"


@dataclass(frozen=True, slots=True)
class Told:
    """A request, and what came of it. Status 0: the connection ended without a response."""

    engine: int
    request_id: str
    asked_at: float
    told_at: float
    status: int
    leaf_hash: str = ""  # of the receipt

    @property
    def is_answered(self) -> bool:
        return self.status == 200


@dataclass(slots=True)
class Crowd:
    told: list[Told] = field(default_factory=list)
    late_s: float = 0.0  # the longest that this process itself had to wait for its turn

    async def wait_for_answers(self, count: int, engine: int) -> None:
        async with asyncio.timeout(GIVEN_UP_S * 2):
            while sum(told.engine == engine and told.is_answered for told in self.told) < count:  # noqa: ASYNC110
                await asyncio.sleep(TICK_S)

    def since(self, begin: float) -> list[Told]:
        return [told for told in self.told if told.told_at >= begin]


@contextlib.asynccontextmanager
async def crowd(house: Machines, readers_each: int = READERS_EACH) -> AsyncIterator[Crowd]:
    """Readers of each engine, until the end of the block: a third as a stream, a third in the name of somebody."""
    made, over = Crowd(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(_watch_the_clock(made, over))
        for number, engine in enumerate(house.engines):
            for _ in range(readers_each):
                group.create_task(_read(number, engine, house.key, made, over))
        try:
            yield made
        finally:
            over.set()


async def _read(number: int, engine: Engine, key: str, made: Crowd, over: asyncio.Event) -> None:
    async with httpx.AsyncClient(
        base_url=engine.url, headers={"Authorization": f"Bearer {key}"}, timeout=GIVEN_UP_S
    ) as client:
        for n in itertools.count():
            if over.is_set():
                return
            if engine.is_serving:
                made.told.append(await _ask(client, number, n))
            await asyncio.sleep(PAUSE_S)


async def _ask(client: httpx.AsyncClient, number: int, n: int) -> Told:
    request_id, asked_at = str(uuid.uuid4()), time.monotonic()
    headers = {"X-Request-ID": request_id}
    if n % 3 == 0:
        headers["Accept"] = "text/event-stream"
    if n % 3 == 1:
        headers["X-End-User"] = READER
    try:
        response = await client.post("/v1/query", json={"query": random.choice(QUESTIONS)}, headers=headers)
    except httpx.TransportError:
        return Told(number, request_id, asked_at, time.monotonic(), 0)
    status, leaf_hash = _end_of(response)
    return Told(number, request_id, asked_at, time.monotonic(), status, leaf_hash)


def _end_of(response: httpx.Response) -> tuple[int, str]:
    """Of a stream the last event decides."""
    if not response.is_success:
        return response.status_code, ""
    body = _last_event(response.text) if "event:" in response.text[:10] else response.json()
    receipt = body.get("receipt")
    return (200, receipt["leaf_hash"]) if receipt else (int(body.get("status", 0)), "")


def _last_event(text: str) -> dict[str, Any]:
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    found: dict[str, Any] = json.loads(data[-1])
    return found


async def _watch_the_clock(made: Crowd, over: asyncio.Event) -> None:
    while not over.is_set():
        began = time.monotonic()
        await asyncio.sleep(TICK_S)
        made.late_s = max(made.late_s, time.monotonic() - began - TICK_S)


def wrong_in(house: Machines, told: list[Told]) -> Iterator[str]:
    """What the log lacks of what readers were told, in plain words; nothing, if all is well."""
    rows = house.fetch(
        "SELECT request_id, leaf_hash FROM audit_logs WHERE request_id = ANY(%s)",
        [one.request_id for one in told],
    )
    counted = Counter(row["request_id"] for row in rows)
    leaves = {row["request_id"]: row["leaf_hash"].hex() for row in rows}
    answered = [one for one in told if one.is_answered]
    if without := [one for one in answered if leaves.get(one.request_id) != one.leaf_hash]:
        yield f"{len(without)} of {len(answered)} answers without their row"
    if twice := [name for name, count in counted.items() if count > 1]:
        yield f"{len(twice)} requests with two rows"
