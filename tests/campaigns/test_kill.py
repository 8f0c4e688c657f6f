"""Nothing acknowledged is lost and nothing is recorded twice, whichever process is killed at whichever moment."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from engine.providers.postgres import EmbeddedPostgres
from engine.storage.data_folder import ExclusiveLock
from tests.campaigns.load import ANSWER_S, QUESTIONS, READERS, fetch, heard_out, in_threads, unlimited_folder
from tests.conftest import Records, Running, running

GONE_S = 10
CANARY = "canary-94d2e0"
KEYS = ("ANTHROPIC_API_KEY", "COHERE_API_KEY", "QDRANT_API_KEY")


@dataclass(frozen=True, slots=True)
class First:
    """The very first `affidavit up` on a folder."""

    data: Path
    seconds: float
    said: list[str]


@pytest.fixture(scope="module")
def first() -> Iterator[First]:
    with unlimited_folder("affidavit-kill-") as folder:
        started = time.monotonic()
        with running(folder) as engine:
            seconds = time.monotonic() - started
        yield First(folder, seconds, engine.said)


@pytest.fixture
def data(first: First) -> Path:
    return first.data


@dataclass(slots=True)
class Asked:
    """What readers were told, and a bell that rings at each answer."""

    answers: int = 0  # so many, and in this moment …
    strike: Callable[[], None] = lambda: None  # … this happens
    receipts: dict[str, str] = field(default_factory=dict)
    failures: int = 0
    heard: threading.Condition = field(default_factory=threading.Condition)
    is_over: threading.Event = field(default_factory=threading.Event)

    def hear(self, response: httpx.Response) -> None:
        with self.heard:
            if response.is_success:
                body = response.json()
                self.receipts[body["query_id"]] = body["receipt"]["leaf_hash"]
                if len(self.receipts) == self.answers:
                    self.strike()
            else:
                self.failures += 1
            self.heard.notify_all()

    def wait_for_answers(self, count: int) -> None:
        with self.heard:
            assert self.heard.wait_for(lambda: len(self.receipts) >= count, ANSWER_S)


@contextmanager
def readers(engine: Running, answers: int = 0, strike: Callable[[], None] = lambda: None) -> Iterator[Asked]:
    """Four who ask one question after the other, until the end of the block or of the server."""
    asked = Asked(answers, strike)

    def ask() -> None:
        headers = {"Authorization": f"Bearer {engine.key}"}
        with httpx.Client(base_url=engine.url, headers=headers, timeout=ANSWER_S) as client:
            while not asked.is_over.is_set():
                try:
                    asked.hear(client.post("/v1/query", json={"query": random.choice(QUESTIONS)}))
                except httpx.TransportError:
                    return

    with in_threads(ask, READERS, asked.is_over):
        yield asked


def left_open(data: Path) -> set[str]:
    """The records that a killed engine left open, once the database has noticed its death."""
    deadline = time.monotonic() + GONE_S
    while fetch(data, "SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'affidavit %'"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return {
        row[0]
        for row in fetch(
            data, "SELECT trail ->> 'query_id' FROM audit_open WHERE trail ->> 'endpoint' <> 'heartbeat'"
        )
    }


def assert_all_on_record(data: Path, receipts: dict[str, str]) -> None:
    rows = Records(EmbeddedPostgres(data).url).where("true")
    counted = Counter(str(row["query_id"]) for row in rows)
    assert {name: count for name, count in counted.items() if count > 1} == {}
    leaves = {str(row["query_id"]): row["leaf_hash"].hex() for row in rows}
    assert {name: leaves.get(name) for name in receipts} == receipts
    assert fetch(data, "SELECT * FROM audit_open WHERE trail ->> 'endpoint' <> 'heartbeat'") == []


def outcomes(data: Path, query_ids: set[str]) -> list[str]:
    found = Records(EmbeddedPostgres(data).url).where("query_id::text = ANY(%s)", list(query_ids))
    return [row["outcome"] for row in found]


def processes_of(data: Path) -> set[str]:
    """Whatever runs of this folder: by its command, or by the folder that it works in."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            command = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            if str(data) in command or (process / "cwd").readlink().is_relative_to(data):
                found.add(f"{process.name} {command}")
    return found


def is_quiet(data: Path) -> bool:
    deadline = time.monotonic() + GONE_S
    while processes_of(data) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not processes_of(data)


# Seen red with a ledger that writes its row 50 ms after it said so (an acknowledged answer was still open) and with
# `_close_abandoned` doing nothing (what the killed engine had open stayed open).
def test_no_answer_is_lost_and_none_recorded_twice_when_the_engine_is_killed(data: Path) -> None:
    receipts: dict[str, str] = {}
    orphans: set[str] = set()
    for delay_s in (0.0, 0.0, random.uniform(0, 0.1)):  # with the answer just out, and at any moment
        with running(data) as engine:
            blow = threading.Timer(delay_s, engine.process.kill)
            strike = blow.start if delay_s else engine.process.kill
            with readers(engine, random.randint(1, 25), strike) as asked:
                engine.process.wait(ANSWER_S)
        receipts |= asked.receipts
        orphans |= left_open(data)
        assert orphans.isdisjoint(receipts)
    with running(data):
        assert_all_on_record(data, receipts)
        assert outcomes(data, orphans) == ["abandoned"] * len(orphans)
        assert "abandoned" not in outcomes(data, set(receipts))
    assert orphans


# Whether each commit was durable is asked by the campaign in test_crash_campaign.py.
def test_no_answer_is_lost_and_none_recorded_twice_when_the_database_is_killed(data: Path) -> None:
    with running(data) as engine, heard_out(engine), readers(engine) as asked:
        asked.wait_for_answers(random.randint(5, 25))
        os.kill(int((data / "postgres/postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        asked.wait_for_answers(len(asked.receipts) + 2 * READERS)  # from the spool, which outlives the engine
    with running(data) as engine:
        assert_all_on_record(data, asked.receipts)
        with readers(engine) as more:
            more.wait_for_answers(READERS)
        assert_all_on_record(data, asked.receipts | more.receipts)


# Before: the server stayed dead, and every record stayed in the spool.
def test_a_database_that_is_killed_comes_back_by_itself(data: Path) -> None:
    with running(data) as engine, heard_out(engine), readers(engine) as asked:
        asked.wait_for_answers(READERS)
        os.kill(int((data / "postgres/postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        deadline = time.monotonic() + ANSWER_S
        while httpx.get(f"{engine.url}/readyz", timeout=ANSWER_S).json()["records"] != "ready":
            assert time.monotonic() < deadline
        asked.wait_for_answers(len(asked.receipts) + READERS)
    with running(data):
        assert_all_on_record(data, asked.receipts)


def test_ctrl_c_after_the_database_died_is_still_an_orderly_end(data: Path) -> None:
    with running(data) as engine:
        with heard_out(engine):
            with ExclusiveLock(EmbeddedPostgres(data)._lock):  # so that nobody starts it again
                os.kill(int((data / "postgres/postmaster.pid").read_text().split()[0]), signal.SIGKILL)
                response = httpx.get(f"{engine.url}/readyz", timeout=ANSWER_S)
            parts = response.json()
            assert parts["database"] == "unavailable; records wait in the spool"
            assert response.status_code == 200  # or a load balancer would take away all that still answers
        assert engine.process.wait(GONE_S) == 0
    assert "Traceback" not in "\n".join(engine.said)
    assert is_quiet(data), processes_of(data)


def test_ctrl_c_ends_an_idle_engine_in_order_and_leaves_no_process(data: Path) -> None:
    with running(data) as engine:
        assert processes_of(data)
        engine.process.send_signal(signal.SIGINT)
        assert engine.process.wait(GONE_S) == 0
    assert is_quiet(data), processes_of(data)


def test_ctrl_c_lets_the_requests_in_flight_finish(data: Path) -> None:
    with running(data) as engine, readers(engine) as asked:
        asked.wait_for_answers(READERS)
        engine.process.send_signal(signal.SIGINT)
        assert engine.process.wait(GONE_S) == 0
    assert asked.failures == 0
    with running(data):
        assert_all_on_record(data, asked.receipts)
        assert fetch(data, "SELECT count(*) FROM audit_logs WHERE outcome = 'abandoned' AND timestamp >"
                     " (SELECT max(timestamp) FROM audit_logs) - interval '3 s'") == [(0,)]  # fmt: skip


# Before: the vendors' keys were in the environment of the postmaster, of the index worker and of the server's workers.
@pytest.mark.parametrize("command", ["up", "serve --workers 2"])
def test_no_child_has_a_vendors_key_in_its_environment(
    data: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may read the environment of a child, such as the system user of the database, must not find a key there."""
    for name in KEYS:
        monkeypatch.setenv(name, CANARY)
    with running(data, command=command) as engine:
        httpx.post(f"{engine.url}/v1/query", json={"query": "What does an IMU measure?"}, timeout=ANSWER_S)
        children = {line.split()[0] for line in processes_of(data) | workers_of(engine)}
        children -= {str(engine.process.pid)}
        assert len(children) >= 2
        for pid in children:
            with suppress(FileNotFoundError, ProcessLookupError):
                assert CANARY not in Path(f"/proc/{pid}/environ").read_text(errors="replace"), pid


def workers_of(engine: Running) -> set[str]:
    children = Path(f"/proc/{engine.process.pid}/task/{engine.process.pid}/children").read_text()
    return set(children.split())


def test_the_second_start_ingests_nothing_and_is_quicker(first: First, data: Path) -> None:
    assert any("Ingesting" in line for line in first.said)
    started = time.monotonic()
    with running(data) as engine:
        seconds = time.monotonic() - started
    assert not any("Ingesting" in line for line in engine.said)
    assert seconds < 0.8 * first.seconds
