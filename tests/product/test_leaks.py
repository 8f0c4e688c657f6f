"""Canaries through every field of a request and every column of the log; then every other place is searched for them.

They may stand in audit_logs, audit_open and the spool, which are made for them. Nowhere else: not in PostgreSQL's own
log, not in what the engine prints, not in a problem, a metric, or the words of an exception and of what caused it.
"""

import asyncio
import json
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import httpx
import psycopg
import pytest

from audit.errors import LedgerUnavailableError
from audit.ledger.ledger import Ledger
from audit.proof.record import Trail
from engine import wiring
from engine.admission import keys
from engine.errors import StatementError
from engine.storage.database import Database
from engine.wiring import now
from tests.conftest import PATIENCE, READY_S, ROOT, free_port
from tests.databases import scratch_log
from tests.logs.recorded import write

CANARY = "canary-4f27b0"
OWN = "canary-own-4f27b0"  # what a client is told back: its own request id, the name of a field that we do not know

Place = Literal["server.log", "stdout", "stderr", "problems", "answers' headers", "/readyz", "/metrics"]


@dataclass(frozen=True, slots=True)
class Attack:
    """A request with canaries in it."""

    name: str
    path: str = "/v1/query"
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()
    method: str = "POST"


def asks(name: str, headers: tuple[tuple[str, str], ...] = (), **body: Any) -> Attack:
    return Attack(name, body=json.dumps({"query": "What is an IMU?"} | body).encode(), headers=headers)


def gets(name: str, path: str) -> Attack:
    return Attack(name, path, method="GET")


def well_formed_key() -> str:
    """A key that nobody has, right in all its parts."""
    return keys.mint()[1]


HOSTILE = f"{CANARY} '; DROP TABLE audit_logs; -- %s %(a)s {{}} \\x00 \u202e \U0001f9bf"

ATTACKS = [
    asks("question", query=HOSTILE),
    asks("question, answered", query=f"What does an IMU measure? {CANARY}"),
    asks("question too long", query=CANARY * 100),
    asks("question of a wrong type", query=[CANARY]),
    asks("NUL", query=f"{CANARY}\0"),
    asks("half a character", query=f"{CANARY}\ud800"),
    asks("selection", selected_text=HOSTILE),
    asks("selection too long", selected_text=f"{CANARY} " * 201),
    asks("session", session_id=CANARY),
    asks("user", user_id=HOSTILE),
    asks("user of a wrong type", user_id={CANARY: CANARY}),
    asks("top_k", top_k=CANARY),
    asks("top_k beyond all numbers", top_k=10**400),
    asks("chapter", filters={"chapter": HOSTILE, "section": CANARY, "tags": [CANARY]}),
    asks("module", filters={"module": CANARY}),
    asks("difficulty", filters={"difficulty": CANARY}),
    asks("tags of a wrong type", filters={"tags": {CANARY: 1}}),
    Attack("unknown field", body=json.dumps({"query": "a", OWN: CANARY}).encode()),
    Attack("no JSON", body=f'{{"query": {CANARY}'.encode()),
    Attack("no UTF-8", body=f'{{"query": "{CANARY}'.encode() + b'\xff"}'),
    Attack("a key twice", body=f'{{"query": "a", "query": "{CANARY}"}}'.encode()),
    Attack("a list", body=json.dumps([CANARY]).encode()),
    Attack("too large", body=CANARY.encode() * 10_000),
    asks("key", (("Authorization", f"Bearer {CANARY}"),)),
    asks("key with a NUL escape", (("Authorization", f"Bearer aff_{CANARY}%00"),)),
    asks("another scheme", (("Authorization", f"Basic {CANARY}"),)),
    asks("end user", (("X-End-User", f"user:{HOSTILE}".encode("ascii", "replace").decode()),)),
    asks("request id", (("X-Request-ID", OWN),)),
    asks("request id that is not echoed", (("X-Request-ID", f"{CANARY} \"'"),)),
    asks("other headers", (("Cookie", CANARY), ("User-Agent", CANARY), ("Referer", CANARY), ("X-Forwarded-For", CANARY))),
    asks("events", (("Accept", "text/event-stream"),), query=HOSTILE),
    asks("events that fail", (("Accept", "text/event-stream"),), session_id=CANARY),
    Attack("book", f"/v1/books/{CANARY}/query", b'{"query": "a"}'),
    Attack("book with a NUL", f"/v1/books/{CANARY}%00/query", b'{"query": "a"}'),
    Attack("parameter", f"/v1/query?token={CANARY}", b'{"query": "a"}'),
    gets("passage", f"/v1/chunks/{CANARY}"),
    gets("passage with a NUL", f"/v1/chunks/{CANARY}%00%ed%a0%80"),
    gets("receipt", f"/v1/receipts/{CANARY}"),
    gets("nothing there", f"/{CANARY}?q={CANARY}"),
    Attack("wrong method", f"/v1/query?q={CANARY}", method="DELETE"),
]  # fmt: skip


@pytest.fixture(scope="module")
def places(
    data_dir: Path, database: Database, key: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What stands where once an engine in a process of its own has met all of it."""
    port, stderr = free_port(), tmp_path_factory.mktemp("leaks") / "stderr"
    with stderr.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "engine.cli", "serve", "--port", str(port), "--data-dir", str(data_dir)],
            stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, env=os.environ | PATIENCE,
        )  # fmt: skip
    assert process.stdout is not None
    said = process.stdout.readline()
    try:
        assert said.startswith("Affidavit is ready"), stderr.read_text()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            found = asked_all(client, key)
    finally:
        process.terminate()
        rest, _ = process.communicate(timeout=READY_S)
    log = (data_dir / "postgres/server.log").read_text(errors="replace")
    return found | {"server.log": log, "stdout": said + rest, "stderr": stderr.read_text()}


def asked_all(client: httpx.Client, key: str) -> dict[str, str]:
    problems, headers = [], []
    for attack in ATTACKS:
        sent = {"Authorization": f"Bearer {key}"} | dict(attack.headers)
        response = client.request(attack.method, attack.path, content=attack.body, headers=sent)
        headers.append(str(response.headers))
        if response.status_code >= 400 or "event: error" in response.text:
            problems.append(f"{attack.name}: {response.text}")
    wrong = client.post(
        "/v1/query", json={"query": "a"}, headers={"Authorization": f"Bearer {well_formed_key()}"}
    )
    assert wrong.status_code == 401
    assert len(problems) > len(ATTACKS) / 2
    return {
        "problems": "\n".join(problems), "answers' headers": "\n".join(headers),
        "/readyz": client.get("/readyz").text, "/metrics": client.get("/metrics").text,
    }  # fmt: skip


# Seen red with the words of a ValidationError in the problem, with them printed, and with each address printed
# (uvicorn's own log of requests).
@pytest.mark.parametrize(
    "place", ["server.log", "stdout", "stderr", "problems", "answers' headers", "/readyz", "/metrics"]
)
def test_nothing_of_a_request_stands_where_it_does_not_belong(places: dict[str, str], place: Place) -> None:
    assert [line for line in places[place].splitlines() if CANARY in line] == []
    assert "DETAIL" not in places[place]
    if place not in {"problems", "answers' headers"}:
        told = [line for line in places[place].splitlines() if OWN in line]
        assert all(json.loads(line)["request_id"] == OWN for line in told)  # by it a line is found again


def test_the_attacks_arrived(places: dict[str, str], database: Database) -> None:
    """Else nothing would have been found because nothing was sent."""
    with psycopg.connect(database.url) as connection:
        columns = ("user_query_text", "selected_text", "filters::text")
        for column in columns:
            query = f"SELECT count(*) FROM audit_logs WHERE {column} LIKE %s"
            (count,) = connection.execute(query.encode(), (f"%{CANARY}%",)).fetchone() or (0,)
            assert count > 0, column


WRONG_TYPES: dict[str, tuple[Any, ...]] = {
    "list": ([CANARY, "\0"], {CANARY: 1}),
    "str": (CANARY, f"{CANARY}\0\ud800", CANARY * 50, {CANARY: CANARY}),
    "int": (CANARY, 2**40, 1.5),
    "float": (CANARY, float("nan"), 10**400),
    "bool": (CANARY, [CANARY]),
    "UUID": (CANARY,),
    "datetime": (CANARY, datetime(2001, 1, 1, tzinfo=UTC)),
    "Json": (CANARY, {CANARY: f"\0{CANARY}"}, {f"\ud800{CANARY}": 1}, [float("inf")], {CANARY: object()}),
}  # fmt: skip


def spoilt() -> Iterator[Trail]:
    """A record for every column and every value that PostgreSQL or we cannot take there."""
    for field in fields(Trail):
        kind = next((kind for kind in WRONG_TYPES if kind in str(field.type)), "Json")
        for value in WRONG_TYPES[kind]:
            given: dict[str, Any] = {
                "log_id": uuid4(), "query_id": uuid4(), "timestamp": now(), "endpoint": "leaks",
                "user_query_text": CANARY, "end_user": CANARY, "citations": [{"excerpt": CANARY}],
            }  # fmt: skip
            yield Trail(**(given | {field.name: value}))


@pytest.fixture(scope="module")
async def own_log(database: Database) -> AsyncIterator[Database]:
    async with scratch_log(database) as made:
        yield made


@pytest.fixture
async def ledger(own_log: Database, tmp_path: Path) -> AsyncIterator[Ledger]:
    """Its spool and its key in a folder of their own."""
    settings = own_log.settings.model_copy(update={"data_dir": tmp_path})
    async with own_log.pool("affidavit_engine") as pool:
        made = wiring.ledger_of(settings, pool)
        await made.start()
        yield made
        await made.stop()


async def words_of(work: Any) -> str:
    """What a logger would print of its failure, with all that caused it; "" if there is none."""
    try:
        await work
    except LedgerUnavailableError as failure:
        return "".join(traceback.format_exception(failure))
    return ""


# Seen red with `from failure` for `from None` in audit/statements.py and audit/ledger.py, and with the driver's words told on.
async def test_no_failure_to_record_repeats_what_was_to_be_recorded(
    ledger: Ledger, data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said = [
        await words_of(step)
        for trail in spoilt()
        for step in (ledger.open(trail), ledger.note(trail), ledger.close(trail, now()))
    ]
    assert sum(map(bool, said)) > 30
    assert_silent("\n".join(said), caplog.text, server_log(data_dir))


async def test_a_second_row_of_a_request_repeats_neither(
    ledger: Ledger, data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trail = Trail(log_id=uuid4(), query_id=uuid4(), timestamp=now(), endpoint=CANARY, user_query_text=CANARY)
    await ledger.close(trail, now())
    trail.answer_text = f"another {CANARY}"
    assert await words_of(ledger.close(trail, now()))
    assert_silent(await words_of(ledger.close(trail, now())), caplog.text, server_log(data_dir))


# Seen red without `log_min_messages = log`: an error's first line quotes a value of the wrong type.
async def test_an_auditors_mistake_stays_with_the_auditor(own_log: Database, data_dir: Path) -> None:
    """PostgreSQL's answer is theirs to read, and repeats a row; the server's log is read by others."""
    with psycopg.connect(own_log.url) as connection:
        write(
            connection,
            Trail(log_id=uuid4(), query_id=uuid4(), timestamp=now(), endpoint="l", end_user=CANARY),
        )
    for statement in (
        "SELECT end_user::int FROM audit_logs WHERE end_user IS NOT NULL",
        f"SELECT '{CANARY}'::uuid",
        f"SELECT * FROM nowhere WHERE name = '{CANARY}'",
        f'SELECT "{CANARY}" FROM audit_logs',
        f"SELECT '{{\"a\": {CANARY}}}'::jsonb",
    ):
        with pytest.raises(StatementError):
            await own_log.read("affidavit_auditor", statement)
    assert_silent(server_log(data_dir))


async def test_keys_and_books_that_do_not_exist_are_not_repeated(own_log: Database, data_dir: Path) -> None:
    async with wiring.open_keys(own_log) as known, wiring.open_registry(own_log) as registry:
        ends = await asyncio.gather(
            known.authenticate(CANARY), known.authenticate(f"{CANARY}\0"), known.authenticate(well_formed_key()),
            registry.live(CANARY), registry.live(f"{CANARY}\0"), registry.passages([f"{CANARY}\0"]),
            return_exceptions=True,
        )  # fmt: skip
    failures = [end for end in ends if isinstance(end, Exception)]
    assert len(failures) >= 5
    assert_silent(*("".join(traceback.format_exception(each)) for each in failures), server_log(data_dir))


def server_log(data_dir: Path) -> str:
    return (data_dir / "postgres/server.log").read_text(errors="replace")


def assert_silent(*texts: str) -> None:
    lines = [line for text in texts for line in text.splitlines()]
    assert [line for line in lines if CANARY in line] == []
    assert [line for line in lines if "DETAIL" in line or "Failing row" in line] == []
