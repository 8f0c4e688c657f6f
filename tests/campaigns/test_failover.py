"""A real asynchronous failover: acknowledged and anchored records are lost, are named, and sealing goes on behind a signed break."""

import contextlib
import socket
import time
from collections.abc import Iterator
from datetime import date
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlencode

import httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from audit.proof.keys import SigningKey
from audit.proof.verdict import Verdict
from engine import settings as settings_file
from engine import wiring
from engine.providers.postgres import EmbeddedPostgres
from engine.storage.database import AUDITOR, HOST_S, Database, reading
from engine.wiring import now
from tests.command_line import affidavit
from tests.conftest import running
from tests.logs.recorded import make_months
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog

LOST = 65
COMMANDS = ("migrate", "audit partitions", "audit seal --once", "audit status", "books")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a Unix socket's name must fit into it."""
    with TemporaryDirectory(prefix="affidavit-test-", ignore_cleanup_errors=True) as made:
        yield Path(made)


@contextlib.contextmanager
def primary_of(folder: Path) -> Iterator[EmbeddedPostgres]:
    (folder / "primary").mkdir()
    server = EmbeddedPostgres(folder / "primary")
    server.start()
    with (folder / "primary" / "postgres" / "pg_hba.conf").open("a") as rules:
        rules.write("local replication all peer map=house\n")
    if server._account:  # the servers run as it
        with (folder / "primary" / "postgres" / "pg_ident.conf").open("a") as names:
            names.write(f"house {server._account.pw_name} all\n")
    server._run("pg_ctl", "reload", folder=server._home)
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def standby_of(primary: EmbeddedPostgres, folder: Path) -> Iterator[EmbeddedPostgres]:
    """It receives what the primary writes, asynchronously."""
    (folder / "standby").mkdir()
    server = EmbeddedPostgres(folder / "standby")
    home = server._home
    primary._run(
        "pg_basebackup", "--pgdata", str(folder / "primary" / "postgres" / "copy"), "--write-recovery-conf",
        "--wal-method=stream", "--checkpoint=fast", "--dbname", primary.url, folder=primary._home,
    )  # fmt: skip
    (folder / "primary" / "postgres" / "copy").rename(home)
    for copied in home.glob(".s.PGSQL.*"):  # the primary's socket lies in its folder
        copied.unlink()
    server._launch()
    try:
        yield server
    finally:
        server.stop()


def wait_until(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(statement.encode()).fetchone() != (True,):
            """The servers get there by themselves."""


async def test_records_lost_by_an_asynchronous_failover_are_named_and_sealing_goes_on(folder: Path) -> None:
    settings = settings_file.load({}, data_dir=folder)
    with primary_of(folder) as primary, standby_of(primary, folder) as standby:
        log = SealedLog(Database(primary.url, settings), folder, SigningKey.create(folder / "signing.key"))
        log.database.migrate()
        with psycopg.connect(log.url) as inside:
            make_months(inside, (JANUARY, FEBRUARY, now().date().replace(day=1)))
        log.write(FEBRUARY, *range(120))
        assert await log.seal() == {}
        with psycopg.connect(log.url) as asking:
            (behind,) = asking.execute("SELECT pg_current_wal_lsn()").fetchone() or ("",)
        wait_until(standby.url, f"SELECT pg_last_wal_replay_lsn() >= '{behind}'")
        doctor = affidavit("doctor", data_dir=folder, DATABASE_URL=log.url).stdout
        assert "synchronous_standby_names" in doctor
        with psycopg.connect(standby.url, autocommit=True) as cut:
            cut.execute("ALTER SYSTEM SET primary_conninfo = ''")
            cut.execute("SELECT pg_reload_conf()")
        wait_until(log.url, "SELECT count(*) = 0 FROM pg_stat_replication")
        log.write(FEBRUARY, *range(120, 120 + LOST))
        assert await log.seal() == {}
        receipts = [log.rows[FEBRUARY, at] for at in range(120, 120 + LOST)]
        primary._control("stop", "--mode=immediate")
        with psycopg.connect(standby.url, autocommit=True) as promoting:
            promoting.execute("SELECT pg_promote(true)")
        surviving = SealedLog(Database(standby.url, settings), folder, log.key)
        surviving.write(FEBRUARY, 500)
        await check_break(surviving, receipts)


def forms_of(*servers: EmbeddedPostgres) -> dict[str, str]:
    """The address of whichever takes writes, as people write it."""
    given = [conninfo_to_dict(server.url) for server in servers]
    hosts, of = ",".join(str(each["host"]) for each in given), given[0]
    named = f"host={hosts} dbname={of['dbname']} user={of['user']} target_session_attrs=read-write"
    query = urlencode({"host": hosts, "user": str(of["user"]), "target_session_attrs": "read-write"})
    return {"keywords": named, "url": f"postgresql:///{of['dbname']}?{query}"}


# The standby is named first, so that a client that takes any server fails.
@pytest.mark.campaign
def test_an_engine_that_knows_both_servers_finds_the_successor_of_a_killed_leader(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SigningKey.create(folder / "signing.key")
    with primary_of(folder) as primary:
        assert affidavit("migrate", data_dir=folder, DATABASE_URL=primary.url).returncode == 0
        with standby_of(primary, folder) as standby:
            with psycopg.connect(primary.url, autocommit=True) as leading:
                leading.execute("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'")
                leading.execute("SELECT pg_reload_conf()")
            wait_until(
                primary.url, "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'quorum'"
            )
            for address in forms_of(standby, primary).values():
                for command in COMMANDS:
                    said = affidavit(*command.split(), data_dir=folder, DATABASE_URL=address)
                    assert said.returncode == 0, (command, said.stdout, said.stderr)
            monkeypatch.setenv("DATABASE_URL", address)
            made = affidavit(
                "ingest", wiring.SAMPLE_BOOK, "--book", "physical-ai", data_dir=folder, DATABASE_URL=address
            )
            assert made.returncode == 0, made.stderr
            secret = affidavit(
                "keys", "create", "--client", "site", data_dir=folder, DATABASE_URL=address
            ).stdout.split()[-1]
            with (
                running(folder, command="serve") as engine,
                httpx.Client(
                    base_url=engine.url, headers={"Authorization": f"Bearer {secret}"}, timeout=10
                ) as client,
            ):
                told = [asked(client) for _ in range(3)]
                primary._control("stop", "--mode=immediate")
                told += [asked(client) for _ in range(3)]
                with psycopg.connect(standby.url, autocommit=True) as promoting:
                    promoting.execute("SELECT pg_promote(true)")
                told += [asked(client) for _ in range(3)]
                wait_until(standby.url, "SELECT NOT EXISTS (SELECT FROM audit_open)")
            answered = [query_id for status, query_id in told if status == 200]
            assert told[-1][0] == told[0][0] == 200, told
            with psycopg.connect(standby.url) as looking:
                rows = looking.execute(
                    "SELECT query_id::text FROM audit_logs WHERE endpoint = '/v1/query' AND http_status = 200"
                )
                assert sorted(name for (name,) in rows) == sorted(answered)
            verified = affidavit("audit", "verify", data_dir=folder, DATABASE_URL=address)
            assert verified.stdout.split()[0] == "VALID", verified.stdout


@contextlib.contextmanager
def swallowing() -> Iterator[int]:
    """A host that takes connections and says nothing, as one behind a firewall or whose machine is frozen."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield int(listening.getsockname()[1])


# Seen red with the limits of single connections, which hold for each host, and with PGHOST left out of account: 10 s.
@pytest.mark.campaign
@pytest.mark.parametrize("form", ["address", "environment"])
async def test_a_first_host_that_swallows_everything_is_passed_over(
    folder: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with primary_of(folder) as primary, swallowing() as port:
        assert affidavit("migrate", data_dir=folder, DATABASE_URL=primary.url).returncode == 0
        given = conninfo_to_dict(primary.url)
        parts = {"host": f"127.0.0.1,{given['host']}", "port": f"{port},5432"}
        parts |= {name: str(given[name]) for name in ("user", "dbname")}
        url = make_conninfo("", **parts)
        if form == "environment":
            url = "postgresql://"
            for name, value in parts.items():
                monkeypatch.setenv({"dbname": "PGDATABASE"}.get(name, f"PG{name.upper()}"), value)
        settings = settings_file.load({"DATABASE_URL": url}, data_dir=folder)
        async with wiring.open_database(settings) as database:
            for connect in (partial(reading, database.url, AUDITOR), partial(psycopg.connect, database.url)):
                began = time.monotonic()
                with connect() as connection:
                    assert connection.execute("SELECT 1").fetchone() == (1,)
                assert time.monotonic() - began < 2 * HOST_S


def asked(client: httpx.Client) -> tuple[int, str]:
    response = client.post("/v1/query", json={"query": "What does an IMU measure?"})
    return response.status_code, str(response.json().get("query_id"))


async def check_break(log: SealedLog, lost: list[dict[str, object]]) -> None:
    month = date(2025, 2, 1)
    assert f"audit break --month {month:%Y-%m}" in (await log.seal())[month]
    assert log.inspect().verdict is Verdict.MISSING
    said = affidavit(
        "audit",
        "break",
        "--month",
        "2025-02",
        "--basis",
        "failover",
        data_dir=log.folder,
        DATABASE_URL=log.url,
    )
    assert (said.returncode, said.stdout.split(" are lost")[0]) == (
        0,
        f"Stated: the leaves 120 to {119 + LOST} of 2025-02",
    ), said.stderr
    report = log.inspect()
    assert report.verdict is Verdict.LOST_BY_FAILOVER
    assert f"{LOST} of their {LOST} records are gone" in str(report)
    assert len(lost) == LOST
    log.write(FEBRUARY, 501)
    assert await log.seal() == {}
    assert log.inspect().verdict is Verdict.LOST_BY_FAILOVER
