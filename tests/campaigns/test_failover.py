"""A real asynchronous failover: acknowledged and anchored records are lost, are named, and sealing goes on behind a signed break."""

import contextlib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from audit.proof.keys import SigningKey
from audit.proof.verdict import Verdict
from engine import settings as settings_file
from engine.providers.postgres import EmbeddedPostgres
from engine.storage.database import Database
from engine.wiring import now
from tests.command_line import affidavit
from tests.logs.recorded import make_months
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog

LOST = 65


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
