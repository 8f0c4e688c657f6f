"""What an auditor's login reads is in the log, although that login can write none of it: once, under its own name."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from audit.access.access import Access
from audit.checking.status import gaps
from audit.ledger import reported_reads
from audit.ledger.database_writer import arguments as real_arguments
from audit.ledger.entry import Entry
from audit.proof.keys import SigningKey
from audit.proof.record import PERSONAL
from audit.query.tiers import TieredLog
from engine import settings as settings_file
from engine import wiring
from engine.cli import main
from engine.storage.database import Database
from tests.conftest import ROOT
from tests.databases import migrated_database
from tests.logs.recorded import make_months

ALICE, BOB = "auditor_alice", "auditor_bob"
QUESTIONS = "SELECT user_query_text FROM audit_logs"
ACCESS: dict[str, Any] = {
    "access": {"who": "somebody else", "filter": "f", "columns": ["details"], "records": 9}
}


@pytest.fixture(scope="module")
def log(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A log of its own, the folder of its operators, and two logins of auditors."""
    folder = tmp_path_factory.mktemp("operators")
    SigningKey.create(folder / "signing.key")
    with migrated_database(database) as made, psycopg.connect(made.url, autocommit=True) as superuser:
        make_months(superuser, [wiring.now().date()])
        for login in (ALICE, BOB):
            superuser.execute(f"CREATE ROLE {login} LOGIN IN ROLE affidavit_auditor".encode())
        yield Database(made.url, settings_file.load({"DATABASE_URL": made.url}, data_dir=folder))
    with psycopg.connect(database.url, autocommit=True) as superuser:
        for login in (ALICE, BOB):
            superuser.execute(f"DROP ROLE {login}".encode())


@pytest.fixture(autouse=True)
def empty(log: Database) -> None:
    with psycopg.connect(log.url) as superuser:
        superuser.execute("DELETE FROM audit_reads_waiting")


def as_login(log: Database, login: str) -> psycopg.Connection:
    return psycopg.connect(make_conninfo(log.url, user=login), autocommit=True)


def accesses(log: Database) -> list[dict[str, Any]]:
    with psycopg.connect(log.url, row_factory=dict_row) as superuser:
        return superuser.execute("SELECT * FROM audit_access ORDER BY read_at").fetchall()


def waiting(log: Database) -> int:
    with psycopg.connect(log.url) as superuser:
        ((count,),) = superuser.execute("SELECT count(*) FROM audit_reads_waiting").fetchall()
    return int(count)


async def drain(log: Database) -> None:
    """As any engine that starts."""
    async with wiring.open_ledger(log):
        pass


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(log: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command of an auditor, on a machine that has no key."""

    def run(login: str, *words: str) -> tuple[int, str, str]:
        url = make_conninfo(log.url, user=login)
        settings = settings_file.load({"DATABASE_URL": url}, data_dir=tmp_path)
        given = main.parser().parse_args(["audit", *words])
        code = asyncio.run(given.run(settings, given))
        return code, *capsys.readouterr()

    return run


# Seen red without the report: the query was answered, and no row said so.
def test_what_an_auditors_login_reads_becomes_a_signed_record(log: Database, run: Run) -> None:
    before = len(accesses(log))
    assert run(ALICE, "query", QUESTIONS, "--basis", "case 12", "--json") == (0, "[]\n", "")
    asyncio.run(drain(log))
    *others, row = accesses(log)
    assert len(others) == before
    assert [row[name] for name in ("who", "role", "through", "asked_for", "records", "basis", "outcome")] == [
        ALICE, "auditor", "affidavit audit query", QUESTIONS, 0, "case 12", "recorded",
    ]  # fmt: skip
    assert json.loads(row["personal_columns"]) == ["user_query_text"]
    assert waiting(log) == 0
    with psycopg.connect(log.url) as superuser:
        signed = superuser.execute("SELECT signature FROM audit_logs WHERE query_id = %s", (row["query_id"],))
        assert signed.fetchone() != (None,)


def test_a_count_leaves_no_record(log: Database, run: Run) -> None:
    assert run(ALICE, "query", "SELECT outcome, count(*) FROM audit_logs GROUP BY 1")[0] == 0
    assert waiting(log) == 0


# Seen red with the report after the query.
def test_a_read_that_cannot_be_reported_does_not_happen(
    log: Database, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TieredLog, "query", lambda *_: pytest.fail("it was read"))
    with psycopg.connect(log.url, autocommit=True) as superuser:
        superuser.execute("REVOKE EXECUTE ON FUNCTION audit_report_read FROM affidavit_auditor")
        try:
            with pytest.raises(Exception, match="permission denied for function audit_report_read"):
                run(ALICE, "query", QUESTIONS)
        finally:
            superuser.execute("GRANT EXECUTE ON FUNCTION audit_report_read TO affidavit_auditor")


# Seen red with current_user for session_user, which is the owner of the function.
def test_nobody_reports_in_anothers_name(log: Database) -> None:
    with as_login(log, BOB) as bob:
        bob.execute("SELECT audit_report_read('audit query', %s)", (Jsonb(ACCESS),))
        with pytest.raises(errors.InsufficientPrivilege):
            bob.execute("SET SESSION AUTHORIZATION auditor_alice")
    with psycopg.connect(log.url) as superuser:
        superuser.execute("UPDATE audit_reads_waiting SET has_ended = true")
    asyncio.run(drain(log))
    assert (accesses(log)[-1]["who"], accesses(log)[-1]["records"]) == (BOB, None)


# Seen red with audit_end_read without the login, and without "once".
def test_nobody_changes_or_takes_back_what_waits(log: Database) -> None:
    with as_login(log, BOB) as bob, as_login(log, ALICE) as alice:
        ((read_id,),) = bob.execute(
            "SELECT audit_report_read('audit query', %s)", (Jsonb(ACCESS),)
        ).fetchall()
        for statement in (
            "DELETE FROM audit_reads_waiting", "UPDATE audit_reads_waiting SET login = 'x'", "TRUNCATE audit_reads_waiting",
            "INSERT INTO audit_reads_waiting (login, command, details) VALUES ('x', 'y', '{}')",
            "SELECT details FROM audit_reads_waiting", "SELECT audit_take_reads('0 s', 10)", "DROP TABLE audit_reads_waiting",
        ):  # fmt: skip
            for login in (alice, bob):
                with pytest.raises(errors.InsufficientPrivilege):
                    login.execute(statement.encode())
        alice.execute("SELECT audit_end_read(%s, 1)", (read_id,))
        replaced = Jsonb({"access": {"filter": "nothing"}, "more": 1})
        bob.execute("SELECT audit_end_read(%s, 2, %s)", (read_id, replaced))
        bob.execute("SELECT audit_end_read(%s, 3)", (read_id,))
    with psycopg.connect(log.url) as superuser:
        rows = superuser.execute("SELECT login, records, details FROM audit_reads_waiting").fetchall()
    assert rows == [(BOB, 2, ACCESS | {"more": 1})]


# Seen red without the fallback: each round of maintenance failed, and nothing was recorded any more. Seen red with details that
# the driver reads: no engine started any more.
@pytest.mark.parametrize(
    "details",
    [
        "[1]",
        '"text"',
        "null",
        '{"access": 3}',
        '{"access": {"records": 12345678901234567890123}}',
        '{"asks": [[1e400]]}',
        '{"x": 1e5000}',
        '{"access": ' + "[" * 1500 + "]" * 1500 + "}",
    ],
    ids=str.__len__,
)
def test_no_report_holds_up_the_others(log: Database, details: str) -> None:
    with as_login(log, BOB) as bob:
        for said in (details, '{"access": {"filter": "after"}}'):
            ((read_id,),) = bob.execute("SELECT audit_report_read('audit query', %s)", (said,)).fetchall()
            bob.execute("SELECT audit_end_read(%s, %s)", (read_id, 2**63 - 1))
    asyncio.run(drain(log))
    assert waiting(log) == 0
    with psycopg.connect(log.url) as superuser:
        count = (
            "SELECT count(*) FROM audit_logs WHERE timestamp > now() - interval '1 minute' AND log_id = %s"
        )
        assert superuser.execute(count, (read_id,)).fetchone() == (1,)


# Seen red without the shape: the page of reads failed for everybody, because no column was named.
@pytest.mark.parametrize(
    ("said", "asked_for", "columns"),
    [
        ({}, "null", PERSONAL), ({"columns": ["chunks"], "filter": 3}, "3", PERSONAL), ({"columns": "details"}, "null", PERSONAL),
        ({"columns": [[1], "details"], "filter": "f"}, "f", {"details"}), ({"columns": ["details", "x"], "filter": "f"}, "f", {"details"}),
    ],
)  # fmt: skip
def test_a_report_has_the_shape_of_any_access(
    log: Database, said: dict[str, Any], asked_for: str, columns: frozenset[str]
) -> None:
    with as_login(log, BOB) as bob:
        ((read_id,),) = bob.execute(
            "SELECT audit_report_read('audit query', %s)", (Jsonb({"access": said}),)
        ).fetchall()
        bob.execute("SELECT audit_end_read(%s, 1)", (read_id,))
    asyncio.run(drain(log))
    row = accesses(log)[-1]
    assert (row["who"], row["asked_for"]) == (BOB, asked_for)
    assert json.loads(row["personal_columns"]) == sorted(columns)


# Seen red without the guard: the engine did not start.
def test_an_engine_starts_although_no_report_can_be_recorded(log: Database) -> None:
    with as_login(log, BOB) as bob:
        ((read_id,),) = bob.execute(
            "SELECT audit_report_read('audit query', %s)", (Jsonb(ACCESS),)
        ).fetchall()
        bob.execute("SELECT audit_end_read(%s, 1)", (read_id,))
    with psycopg.connect(log.url, autocommit=True) as superuser:
        superuser.execute("REVOKE EXECUTE ON FUNCTION audit_take_reads FROM affidavit_engine")
        try:
            asyncio.run(drain(log))
        finally:
            superuser.execute("GRANT EXECUTE ON FUNCTION audit_take_reads TO affidavit_engine")
    assert waiting(log) == 1
    asyncio.run(drain(log))
    assert waiting(log) == 0


# Seen red with one write for all: the engine did not start.
def test_a_report_that_the_database_does_not_take_keeps_none_waiting(
    log: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with as_login(log, BOB) as bob:
        for said in ({"access": {"filter": "good"}}, {"access": {"filter": "bad"}}):
            ((read_id,),) = bob.execute(
                "SELECT audit_report_read('audit query', %s)", (Jsonb(said),)
            ).fetchall()
            bob.execute("SELECT audit_end_read(%s, 1)", (read_id,))
    monkeypatch.setattr(reported_reads, "arguments", without_bad)
    asyncio.run(drain(log))
    assert [row["asked_for"] for row in accesses(log)[-2:]] == ["good", '{"access": {"filter": "bad"}}']


def without_bad(entries: Sequence[Entry]) -> tuple[object, ...]:
    given = real_arguments(entries)
    return tuple("{" if '"filter":"bad"' in re.sub(r"\s", "", str(each)) else each for each in given)


def test_a_report_is_of_a_read_and_of_nothing_else(log: Database) -> None:
    with as_login(log, BOB) as bob, pytest.raises(errors.CheckViolation):
        bob.execute("SELECT audit_report_read('keys create', '{}')")


def test_one_login_does_not_fill_the_disk(log: Database) -> None:
    with as_login(log, BOB) as bob:
        with pytest.raises(errors.CheckViolation):
            bob.execute("SELECT audit_report_read('audit query', %s)", (Jsonb({"access": "x" * 32_000}),))
        report = "SELECT audit_report_read('audit query', '{}') FROM generate_series(1, %s)"
        bob.execute(report, (1000,))
        with pytest.raises(errors.ConfigurationLimitExceeded):
            bob.execute(report, (1,))
    with as_login(log, ALICE) as alice:
        alice.execute(report, (1,))


# Seen red without the lock: each connection counted only its own.
def test_reports_at_once_are_not_more(log: Database) -> None:
    report = "SELECT audit_report_read('audit query', '{}') FROM generate_series(1, %s)"
    with as_login(log, BOB) as one, as_login(log, BOB) as two, as_login(log, ALICE) as alice:
        two.execute("SET lock_timeout = '100ms'")
        with one.transaction():
            one.execute(report, (1000,))
            alice.execute(report, (1,))
            with pytest.raises(errors.LockNotAvailable):
                two.execute(report, (1,))
    assert waiting(log) == 1001


# Seen red without the number for each login: all of one were taken, and the other's waited.
def test_one_login_neither_fills_the_log_nor_keeps_others_waiting(log: Database) -> None:
    for login, count in ((BOB, 300), (ALICE, 1)):
        with as_login(log, login) as reader:
            reader.execute(
                "SELECT audit_report_read('audit query', '{}') FROM generate_series(1, %s)", (count,)
            )
    with psycopg.connect(log.url) as superuser:
        superuser.execute("UPDATE audit_reads_waiting SET has_ended = true")
        taken = superuser.execute(
            "SELECT login, count(*) FROM audit_take_reads('1 h', 100) GROUP BY 1 ORDER BY 1"
        )
        assert taken.fetchall() == [(ALICE, 1), (BOB, 20)]


# Seen red with a cut by characters.
@pytest.mark.parametrize("character", ["x", "字", "\x01", '"', "😀"])
def test_a_long_statement_of_ours_is_short_enough_to_be_reported(log: Database, character: str) -> None:
    details = Access(BOB, character * 100_000, basis="case 12").as_details()
    assert re.search(r" … and \d+ characters more$", details["filter"])
    with as_login(log, BOB) as bob:
        bob.execute("SELECT audit_report_read('audit query', %s)", (Jsonb({"access": details}),))


def test_a_read_that_did_not_end_is_recorded_as_such(log: Database) -> None:
    with as_login(log, BOB) as bob:
        bob.execute("SELECT audit_report_read('audit query', %s)", (Jsonb(ACCESS),))
    asyncio.run(drain(log))
    assert waiting(log) == 1, "it may still run"
    with psycopg.connect(log.url) as superuser:
        superuser.execute("UPDATE audit_reads_waiting SET read_at = read_at - interval '16 minutes'")
    asyncio.run(drain(log))
    assert (waiting(log), accesses(log)[0]["outcome"]) == (0, "abandoned")


async def test_status_says_how_many_wait(log: Database) -> None:
    with as_login(log, BOB) as bob:
        bob.execute("SELECT audit_report_read('audit query', %s)", (Jsonb(ACCESS),))
    with psycopg.connect(log.url) as superuser:
        superuser.execute("UPDATE audit_reads_waiting SET read_at = read_at - interval '1 hour'")
    found = await wiring.status_of(log.settings, log)
    assert found.reads_waiting.count == 1
    assert [
        gap for gap in gaps(found, wiring.now()) if gap.startswith("1 reads of auditors wait to be recorded")
    ]


DRAIN = """
import asyncio, sys
from pathlib import Path
from engine import settings, wiring
from engine.storage.database import Database
given = settings.load({"DATABASE_URL": sys.argv[1]}, data_dir=Path(sys.argv[2]))
async def run():
    while True:
        async with wiring.open_ledger(Database(sys.argv[1], given)):
            pass
        print("done", flush=True)
asyncio.run(run())
"""


DYING = """
import asyncio, os, signal, sys
from pathlib import Path
import psycopg
from audit.ledger import reported_reads
from engine import settings, wiring
from engine.storage.database import Database
given = settings.load({"DATABASE_URL": sys.argv[1]}, data_dir=Path(sys.argv[2]))
real, leave = reported_reads.arguments, psycopg.AsyncTransaction.__aexit__
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def before_the_record(entries):
    die()
def before_the_end(entries):
    async def end(*_):
        die()
    psycopg.AsyncTransaction.__aexit__ = end
    return real(entries)
reported_reads.arguments = {"record": before_the_record, "end": before_the_end}[sys.argv[3]]
async def run():
    async with wiring.open_ledger(Database(sys.argv[1], given)):
        pass
asyncio.run(run())
"""


# Seen red with the report taken in a transaction of its own: it was lost.
@pytest.mark.parametrize("place", ["record", "end"])
def test_an_engine_that_dies_while_it_records_loses_nothing_and_repeats_nothing(
    log: Database, place: str
) -> None:
    before = len(accesses(log))
    with as_login(log, ALICE) as alice:
        ((read_id,),) = alice.execute(
            "SELECT audit_report_read('audit query', %s)", (Jsonb(ACCESS),)
        ).fetchall()
        alice.execute("SELECT audit_end_read(%s, 1)", (read_id,))
    command = [sys.executable, "-c", DYING, log.url, str(log.settings.data_dir), place]
    died = subprocess.run(command, cwd=ROOT, env=dict(os.environ), check=False, capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    asyncio.run(drain(log))
    assert (waiting(log), len(accesses(log)) - before) == (0, 1)


@pytest.mark.campaign
def test_each_report_becomes_one_record_through_kills(log: Database) -> None:
    before, sent = len(accesses(log)), list[str]()
    command = [sys.executable, "-c", DRAIN, log.url, str(log.settings.data_dir)]
    for round_ in range(8):
        with (
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=dict(os.environ)) as engine,
            as_login(log, ALICE) as alice,
        ):
            assert engine.stdout
            engine.stdout.readline()  # it runs
            for _ in range(40):
                sent.append(str(uuid4()))
                details = {"access": {"filter": sent[-1], "columns": []}}
                ((read_id,),) = alice.execute(
                    "SELECT audit_report_read('audit query', %s)", (Jsonb(details),)
                ).fetchall()
                alice.execute("SELECT audit_end_read(%s, %s)", (read_id, round_))
                if len(sent) % 40 == 5 * round_:
                    engine.send_signal(signal.SIGKILL)
            engine.kill()
    while waiting(log):
        asyncio.run(drain(log))
    found = [row["asked_for"] for row in accesses(log)[before:]]
    assert sorted(found) == sorted(sent)
