"""Faults of the disk and of the database under load: what each client was told is what its row says, in every round.

A row may differ from what its client saw only if it says so: `not_acknowledged`, in itself or in a later row about it;
or `abandoned`, if its process was killed.
"""

import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from engine.providers.postgres import EmbeddedPostgres
from tests import conftest
from tests.campaigns.load import ANSWER_S, QUESTIONS, in_threads, unlimited_folder
from tests.campaigns.test_outage import frozen, stopped
from tests.conftest import CAMPAIGN_ROUNDS, Running, running
from tests.prepared import with_sample_book

ROUNDS = CAMPAIGN_ROUNDS if CAMPAIGN_ROUNDS > 1 else 8
READERS = 6
SETTLED_S = 180  # what was refused is closed after half a minute, and looked at every quarter
FAULT_S = (0.2, 3.0)
SPOOL_BYTES_MAX = 400_000  # some forty records: it is full in the middle of a fault
BUDGET = {"AFFIDAVIT_BUDGET__AUDIT_S": "0.5", "AFFIDAVIT_BUDGET__TOTAL_S": "5.0"}  # as shipped

Fault = Callable[[Path], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Told:
    """What a client saw."""

    status: int | None  # None: the connection broke
    query_id: str | None = None
    outcome: str | None = None


@dataclass(slots=True)
class Load:
    told: dict[str, Told] = field(default_factory=dict)
    is_over: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, value in BUDGET.items():
        monkeypatch.setitem(conftest.PATIENCE, name, value)
    with unlimited_folder("affidavit-agree-") as folder:
        monkeypatch.setenv("AFFIDAVIT_AUDIT__SPOOL_BYTES_MAX", str(SPOOL_BYTES_MAX))
        with_sample_book(folder)
        yield folder


@pytest.fixture
def data_without_spool(data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AFFIDAVIT_AUDIT__SPOOL_DIR", "")
    return data


# Seen red: 503 with the id of no row, and rows that said `answered` or `abandoned` of requests that got 503.
def test_rows_and_clients_agree_in_every_round(data: Path) -> None:
    assert campaign(data, FAULTS, ROUNDS) == []


def test_rows_and_clients_agree_without_a_spool(data_without_spool: Path) -> None:
    assert campaign(data_without_spool, FAULTS, ROUNDS) == []


# Seen red: `/readyz` said ready while every request got 503.
def test_a_full_disk_is_seen_before_and_told_of_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real one: a file system in memory, as large as the engine needs and a little more."""
    with tempfile.TemporaryDirectory(prefix="affidavit-full-") as folder, ExitStack() as stack:
        monkeypatch.setenv("AFFIDAVIT_LIMITS__PER_KEY", "1000000/minute")
        if subprocess.run([*SMALL_DISK, folder, "true"], check=False, capture_output=True).returncode:
            pytest.skip("Nobody may mount a file system here.")
        engine = started(stack, Path(folder), within=[*SMALL_DISK, folder])
        data = Path(f"/proc/{engine.process.pid}/root{folder}")
        load = Load()
        with asking(engine, load):
            wait_for(engine, 200)
            fill(data / "filler")
            wait_for(engine, 503)
            time.sleep(2 * max(FAULT_S))
            (data / "filler").unlink()
            wait_for(engine, 200)
        url = make_conninfo(EmbeddedPostgres(Path(folder)).url, host=str(data / "postgres"))
        settle(data, url)
        found = wrong(rows_of(url), load.told)
    statuses = Counter(told.status for told in load.told.values())
    print(f"a full disk: {statuses}")
    assert found == []
    assert statuses[503]


SMALL_DISK = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs -o size=600m,mode=755 tmpfs "$0" && exec "$@"',
)


def fill(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 65536)
    with suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            file.write(b"x")


def wait_for(engine: Running, status: int) -> None:
    """Until a load balancer would see it."""
    deadline = time.monotonic() + ANSWER_S
    while httpx.get(f"{engine.url}/readyz", timeout=ANSWER_S).status_code != status:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def campaign(data: Path, faults: dict[str, Fault], rounds: int) -> list[str]:
    """What was found wrong, in plain words."""
    load, names = Load(), list(faults)
    with ExitStack() as stack:
        engine = started(stack, data)
        for number in range(rounds):
            name = names[number % len(names)]
            with asking(engine, load), faults[name](data):
                time.sleep(random.uniform(*FAULT_S))
                if number % 7 == 6:
                    engine.process.kill()
                    engine.process.wait(ANSWER_S)
            if engine.process.poll() is not None:
                engine = started(stack, data)
        url = EmbeddedPostgres(data).url
        settle(data, url)
        found = wrong(rows_of(url), load.told)
    print(
        f"{rounds} rounds, {len(load.told)} requests: {Counter(told.status for told in load.told.values())}"
    )
    return found


def started(stack: ExitStack, data: Path, within: Sequence[str] = ()) -> Running:
    engine = stack.enter_context(running(data, within=within))
    assert engine.process.stdout is not None
    threading.Thread(target=engine.said.extend, args=(engine.process.stdout,), daemon=True).start()
    return engine


@contextmanager
def asking(engine: Running, load: Load) -> Iterator[None]:
    load.is_over.clear()

    def ask() -> None:
        with httpx.Client(base_url=engine.url, timeout=ANSWER_S) as client:
            while not load.is_over.is_set() and engine.process.poll() is None:
                request_id = str(uuid4())
                headers = {"Authorization": f"Bearer {engine.key}", "X-Request-ID": request_id}
                try:
                    load.told[request_id] = random.choice(REQUESTS)(client, headers)
                except httpx.TransportError:
                    load.told[request_id] = Told(None)

    with in_threads(ask, READERS, load.is_over):
        yield


def question(client: httpx.Client, headers: dict[str, str]) -> Told:
    return told_by(client.post("/v1/query", json={"query": random.choice(QUESTIONS)}, headers=headers))


def streamed(client: httpx.Client, headers: dict[str, str]) -> Told:
    headers = headers | {"Accept": "text/event-stream"}
    response = client.post("/v1/query", json={"query": random.choice(QUESTIONS)}, headers=headers)
    if not response.headers["content-type"].startswith("text/event-stream"):
        return told_by(response)
    last = response.text.strip().split("\n\n")[-1]
    name, data = (line.partition(": ")[2] for line in last.split("\n"))
    body = json.loads(data)
    return Told(200 if name == "done" else body["status"], body["query_id"], body.get("outcome"))


def unknown(client: httpx.Client, headers: dict[str, str]) -> Told:
    return told_by(client.get("/nothing", headers=headers))


def invalid(client: httpx.Client, headers: dict[str, str]) -> Told:
    return told_by(client.post("/v1/query", json={"query": ""}, headers=headers))


def told_by(response: httpx.Response) -> Told:
    body = response.json()
    return Told(response.status_code, body.get("query_id"), body.get("outcome"))


REQUESTS = (question, question, question, streamed, unknown, invalid)


# The faults


@contextmanager
def killed(data: Path) -> Iterator[None]:
    """The engine starts it again."""
    os.kill(int((data / "postgres/postmaster.pid").read_text().split()[0]), signal.SIGKILL)
    yield
    EmbeddedPostgres(data).start()


@contextmanager
def locked(data: Path) -> Iterator[None]:
    with psycopg.connect(EmbeddedPostgres(data).url) as connection:
        insist(connection, "LOCK TABLE audit_logs, audit_open")
        yield


def triggered(body: str, kind: str, table: str) -> Fault:
    @contextmanager
    def fault(data: Path) -> Iterator[None]:
        execute(
            data,
            f"CREATE OR REPLACE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$",
            f"CREATE {kind} EXECUTE FUNCTION fault()",
        )
        yield
        execute(data, f"DROP TRIGGER fault ON {table}")

    return fault


def execute(data: Path, *statements: str) -> None:
    with psycopg.connect(EmbeddedPostgres(data).url, autocommit=True) as connection:
        for statement in statements:
            insist(connection, statement)


def insist(connection: psycopg.Connection, statement: str) -> None:
    """The writers lock the same tables in another order."""
    while True:
        try:
            connection.execute(statement.encode())
        except psycopg.errors.DeadlockDetected:
            connection.rollback()
        else:
            return


NO_SPACE = "RAISE EXCEPTION 'No space left on device' USING ERRCODE = 'disk_full';"
FAULTS: dict[str, Fault] = {
    "killed": killed,
    "stopped": stopped,
    "frozen": frozen,
    "locked": locked,
    "full": triggered(NO_SPACE, "TRIGGER fault BEFORE INSERT ON audit_logs FOR EACH ROW", "audit_logs"),
    "no room to open": triggered(
        NO_SPACE, "TRIGGER fault BEFORE INSERT ON audit_open FOR EACH ROW", "audit_open"
    ),
    "late": triggered(
        "PERFORM pg_sleep(0.5 * random()); RETURN NULL;",
        "CONSTRAINT TRIGGER fault AFTER INSERT ON audit_logs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW",
        "audit_logs",
    ),
    "full at the commit": triggered(
        f"IF random() < 0.3 THEN {NO_SPACE} END IF; RETURN NULL;",
        "CONSTRAINT TRIGGER fault AFTER INSERT ON audit_logs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW",
        "audit_logs",
    ),
}


# What came of it


def settle(data: Path, url: str) -> None:
    """Until nothing is open and nothing waits in the spool."""
    deadline = time.monotonic() + SETTLED_S
    while not is_settled(data, url):
        assert time.monotonic() < deadline, "records stay open, or in the spool"
        time.sleep(0.5)


def is_settled(data: Path, url: str) -> bool:
    try:
        with psycopg.connect(url) as connection:
            is_open = connection.execute("SELECT 1 FROM audit_open LIMIT 1").fetchone()
    except psycopg.OperationalError:
        return False
    return is_open is None and not any(path.stat().st_size for path in (data / "spool").glob("*.spool"))


def rows_of(url: str) -> list[dict[str, Any]]:
    columns = "query_id::text, request_id, http_status, outcome, endpoint, details"
    with psycopg.connect(url, row_factory=dict_row) as connection:
        return connection.execute(f"SELECT {columns} FROM audit_logs".encode()).fetchall()


def wrong(rows: list[dict[str, Any]], told: dict[str, Told]) -> list[str]:
    by_request = defaultdict(list)
    for row in rows:
        by_request[row["request_id"]].append(row)
    by_query = {row["query_id"]: row for row in rows}
    corrected = {row["details"]["query_id"] for row in rows if row["endpoint"] == "ledger"}
    found = []
    for request_id, client in told.items():
        own = by_request[request_id]
        if len(own) > 1:
            found.append(f"recorded twice: {client}")
        if client.query_id and client.query_id not in by_query:
            found.append(f"the id of no row: {client}")
        if not own and client.status is not None and client.status < 500:
            found.append(f"no row: {client}")
        found += [f"{client} but {row}" for row in own if not agree(client, row, corrected)]
    return found


def agree(client: Told, row: dict[str, Any], corrected: set[str]) -> bool:
    if client.status is None:
        return True
    if row["outcome"] in {"not_acknowledged", "abandoned"} or row["query_id"] in corrected:
        return client.status == 503
    ids = client.query_id in {None, row["query_id"]}
    return ids and row["http_status"] == client.status and client.outcome in {None, row["outcome"]}
