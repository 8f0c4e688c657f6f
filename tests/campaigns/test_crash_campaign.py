"""Load, and kills at random points: no acknowledged answer is lost, none is recorded twice, no request is without a row.

`make campaign` makes hundreds of rounds. Rounds cycle through what is killed: the engine, PostgreSQL in two ways, both.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest
from psycopg.rows import dict_row

from engine.providers.postgres import EmbeddedPostgres
from tests.campaigns.load import ANSWER_S, QUESTIONS, in_threads, unlimited_folder
from tests.conftest import CAMPAIGN_ROUNDS, Running, running
from tests.prepared import with_sample_book

ROUNDS = CAMPAIGN_ROUNDS * 10 if CAMPAIGN_ROUNDS > 1 else 4
SABOTAGED_ROUNDS_MAX = 12
READERS = 6
SETTLED_S = 60  # how long a record may stay open after its process died
KINDS = ("engine", "database, at once", "database, killed", "both")


@dataclass(slots=True)
class Told:
    """What the readers were told, by the id that each request was given."""

    statuses: dict[str, int] = field(default_factory=dict)
    leaves: dict[str, str] = field(default_factory=dict)
    heard: threading.Condition = field(default_factory=threading.Condition)
    is_over: threading.Event = field(default_factory=threading.Event)

    def hear(self, request_id: str, response: httpx.Response) -> None:
        with self.heard:
            self.statuses[request_id] = response.status_code
            if response.is_success:
                self.leaves[request_id] = response.json()["receipt"]["leaf_hash"]
            self.heard.notify_all()

    def wait_for(self, count: int) -> None:
        with self.heard:
            assert self.heard.wait_for(lambda: len(self.statuses) >= count, ANSWER_S)


@pytest.fixture
def data() -> Iterator[Path]:
    with unlimited_folder("affidavit-crash-") as folder:
        with_sample_book(folder)
        yield folder


def test_no_answer_is_lost_and_no_request_is_without_its_row(data: Path) -> None:
    assert list(campaign(data, ROUNDS)) == []


def test_the_campaign_sees_a_commit_that_was_not_durable(data: Path) -> None:
    """Seeded: `synchronous_commit = off` inside the writer's own statement."""
    with running(data), psycopg.connect(EmbeddedPostgres(data).url, autocommit=True) as connection:
        (text,) = connection.execute("SELECT pg_get_functiondef('audit_write'::regproc)").fetchone() or ("",)
        connection.execute(text.replace("'on'", "'off'").encode())
    assert any("lost" in found for found in campaign(data, SABOTAGED_ROUNDS_MAX))


def campaign(data: Path, rounds: int) -> Iterator[str]:
    """What was found wrong, in plain words; nothing, if all is well."""
    told = Told()
    with ExitStack() as stack:
        engine = _started(stack, data)
        for number in range(rounds):
            kind = KINDS[number % len(KINDS)]
            _strike(data, engine, told, kind)
            if kind in {"engine", "both"}:
                engine = _started(stack, data)
            _settle(data)
            yield from (f"round {number}, {kind}: {wrong}" for wrong in _wrong(data, told))


def _strike(data: Path, engine: Running, told: Told, kind: str) -> None:
    with _load(engine, told):
        told.wait_for(len(told.statuses) + random.randint(1, 60))
        time.sleep(random.uniform(0, 0.05))  # any point of the next request
        if kind != "engine":
            _kill_database(data, at_once=kind == "database, at once")
        if kind in {"engine", "both"}:
            engine.process.kill()
            engine.process.wait(ANSWER_S)
            return
        told.wait_for(len(told.statuses) + 3 * READERS)
        EmbeddedPostgres(data).start()


def _kill_database(data: Path, *, at_once: bool) -> None:
    postgres = EmbeddedPostgres(data)
    if at_once:
        postgres._control("stop", "--mode=immediate")
    else:
        os.kill(int((data / "postgres/postmaster.pid").read_text().split()[0]), signal.SIGKILL)


@contextmanager
def _load(engine: Running, told: Told) -> Iterator[None]:
    """Readers who ask one question after the other, until the end of the block or of the engine."""
    told.is_over.clear()

    def ask() -> None:
        with httpx.Client(base_url=engine.url, timeout=ANSWER_S) as client:
            while not told.is_over.is_set():
                headers = {"Authorization": f"Bearer {engine.key}", "X-Request-ID": str(uuid4())}
                try:
                    body = {"query": random.choice(QUESTIONS)}
                    told.hear(headers["X-Request-ID"], client.post("/v1/query", json=body, headers=headers))
                except httpx.TransportError:
                    return

    with in_threads(ask, READERS, told.is_over):
        yield


def _started(stack: ExitStack, data: Path) -> Running:
    engine = stack.enter_context(running(data))
    assert engine.process.stdout is not None
    listening = threading.Thread(target=engine.said.extend, args=(engine.process.stdout,), daemon=True)
    listening.start()  # a full pipe must not hold it up
    return engine


def _settle(data: Path) -> None:
    """What was open is closed, and what was spooled is in the database."""
    deadline = time.monotonic() + SETTLED_S
    while _fetch(data, "SELECT log_id FROM audit_open") or _spooled_bytes(data):
        assert time.monotonic() < deadline, "records stay open, or in the spool"
        time.sleep(0.1)


def _spooled_bytes(data: Path) -> int:
    return sum(path.stat().st_size for path in (data / "spool").glob("*.spool"))


def _wrong(data: Path, told: Told) -> Iterator[str]:
    rows = _fetch(
        data, "SELECT query_id, request_id, http_status, leaf_hash FROM audit_logs WHERE request_id <> ''"
    )
    by_request = Counter(row["request_id"] for row in rows)
    leaves = {row["request_id"]: row["leaf_hash"].hex() for row in rows}
    lost = [name for name, leaf in told.leaves.items() if leaves.get(name) != leaf]
    twice = [name for name, count in by_request.items() if count > 1]
    without = [name for name in told.statuses if name not in by_request]
    refused = Counter(status for status in told.statuses.values() if status != 200)
    if lost:
        yield f"{len(lost)} acknowledged answers lost"
    if twice or len(rows) != len({row["query_id"] for row in rows}):
        yield f"{len(twice)} requests recorded twice"
    if without:
        yield f"{len(without)} requests without a row"
    if refused:
        yield f"refused: {dict(refused)}"


def _fetch(data: Path, query: str) -> list[dict[str, Any]]:
    with psycopg.connect(EmbeddedPostgres(data).url, row_factory=dict_row) as connection:
        return connection.execute(query.encode()).fetchall()
