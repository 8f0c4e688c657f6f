"""PostgreSQL gone, slow, read-only, full or without the month: records wait in the spool, and arrive."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from audit.checking.status import _gaps_of_spool, spool_files
from audit.errors import LedgerUnavailableError
from audit.ledger.entry import Entry, check
from audit.ledger.ledger import Ledger
from audit.ledger.spool import ASIDE_FILE, Spool
from audit.proof.record import Trail, hashed, leaf_hash, row_of
from audit.proof.row_signature import sign_open
from engine.storage.database import Database
from engine.wiring import now
from tests.conftest import ROOT, Records, campaign_only
from tests.databases import scratch_log
from tests.logs.writers import KEY, MEBIBYTE, ledger_on, open_records, rebuilt, trail

ENGINE = "affidavit_engine"
ARRIVED_S = 10

# A process that answered while the database was away, and was killed before that came back.
DYING = """
import asyncio, sys
from pathlib import Path
from uuid import UUID
import psycopg
from audit.proof.record import Trail
from engine.storage.database import open_pool
from engine.wiring import now
from tests.logs.writers import MEBIBYTE, ledger_on

async def main(url, superuser, name, folder, answered, under_way):
    asked = [Trail(log_id=UUID(name), query_id=UUID(name), timestamp=now(), endpoint="dying") for name in (answered, under_way)]
    async with open_pool(url, "affidavit_engine", size_max=3, wait_s=5) as pool:
        ledger = ledger_on(pool, Path(folder))
        await ledger.start()
        for one in asked:
            await ledger.open(one)
        outside = await psycopg.AsyncConnection.connect(superuser, autocommit=True)
        for statement in (
            "ALTER DATABASE {} ALLOW_CONNECTIONS false",
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{}'",
        ):
            await outside.execute(statement.format(name).encode())
        asked[0].outcome = "answered"
        receipt = await ledger.close(asked[0], now())
        print(receipt.leaf_hash, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def log(database: Database) -> AsyncIterator[Database]:
    """A log of its own: it goes away and comes back."""
    async with scratch_log(database) as made:
        yield made


@pytest.fixture
def rows(log: Database) -> Records:
    return Records(log.url)


@asynccontextmanager
async def writing(log: Database, folder: Path | None, **about: Any) -> AsyncIterator[Ledger]:
    async with log.pool(ENGINE, 3) as pool:
        ledger = ledger_on(pool, folder, **about)
        await ledger.start()
        try:
            yield ledger
        finally:
            await ledger.stop()


@pytest.fixture
def weak(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is found to be wrong with the database's durability."""
    found: list[str] = []

    async def weaknesses(_: psycopg.AsyncConnection) -> list[str]:
        return list(found)

    monkeypatch.setattr("audit.ledger.ledger.weaknesses", weaknesses)
    return found


def execute(log: Database, *statements: str) -> None:
    with psycopg.connect(log.url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def elsewhere(log: Database) -> psycopg.Connection:
    """As superuser, from outside of the log's database."""
    return psycopg.connect(make_conninfo(log.url, dbname="postgres"), autocommit=True)


@contextmanager
def gone(log: Database) -> Iterator[None]:
    name = sql.Identifier(str(conninfo_to_dict(log.url)["dbname"]))
    with elsewhere(log) as connection:
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
            (name.as_string().strip('"'),),
        )
        yield
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))


@contextmanager
def slow(log: Database) -> Iterator[None]:
    with psycopg.connect(log.url) as connection:
        connection.execute("LOCK TABLE audit_logs, audit_open")
        yield


@contextmanager
def read_only(log: Database) -> Iterator[None]:
    name = sql.Identifier(str(conninfo_to_dict(log.url)["dbname"]))
    with elsewhere(log) as connection:
        for state in ("on", "off"):
            setting = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}")
            connection.execute(setting.format(name, sql.SQL(state)))
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
                (name.as_string().strip('"'),),
            )
            if state == "on":
                yield


@contextmanager
def full(log: Database) -> Iterator[None]:
    """What PostgreSQL says when its disk is full."""
    execute(
        log,
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = 'disk_full'; END $$",
        "CREATE TRIGGER full_disk BEFORE INSERT ON audit_open EXECUTE FUNCTION full_disk()",
        "CREATE TRIGGER full_disk BEFORE INSERT ON audit_logs EXECUTE FUNCTION full_disk()",
    )
    yield
    execute(log, "DROP TRIGGER full_disk ON audit_open", "DROP TRIGGER full_disk ON audit_logs")


AWAY = [gone, slow, read_only, full]


async def arrived(rows: Records, *asked: Trail) -> list[dict[str, Any]]:
    """The rows, once the spool is drained."""
    async with asyncio.timeout(ARRIVED_S):
        while True:
            found = rows.where("log_id = ANY(%s)", [one.log_id for one in asked])
            if len(found) == len(asked):
                return found
            await asyncio.sleep(0.02)  # another process writes them: there is nothing to await


# Seen red: all requests waited while a piece of the spool was parsed and hashed.
@pytest.mark.parametrize("is_dead", [False, True])
async def test_what_is_drained_is_checked_beside_the_event_loop(
    log: Database, rows: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_dead: bool
) -> None:
    asked, threads = trail(), set[int]()

    def checked(entry: Entry) -> None:
        threads.add(threading.get_ident())
        check(entry)

    monkeypatch.setattr("audit.ledger.spool.check", checked)
    async with writing(log, tmp_path, within_s=0.5) as ledger:
        with gone(log):
            await ledger.close(asked, now())
            if is_dead:
                await ledger.stop()
        if not is_dead:
            await arrived(rows, asked)
    async with writing(log, tmp_path):
        await arrived(rows, asked)
    assert threads
    assert threading.get_ident() not in threads


# Seen red with `_drain` doing nothing, and with the spool's entries marked as not spooled.
@pytest.mark.parametrize("away", [gone, *map(campaign_only, AWAY[1:])])
async def test_what_is_answered_while_the_database_is_away_arrives_when_it_is_back(
    log: Database, rows: Records, tmp_path: Path, away: Callable[[Database], AbstractContextManager[None]]
) -> None:
    before, during, across = trail(), [trail(outcome="answered") for _ in range(20)], trail()
    async with writing(log, tmp_path, within_s=1.0) as ledger:
        await ledger.open(before)
        await ledger.close(before, now())
        await ledger.open(across)
        with away(log):
            await asyncio.gather(*(answered(ledger, one) for one in during))
            await ledger.note(across)
            assert ledger.is_spooling
        receipts = {await ledger.close(across, now())}
        found = await arrived(rows, before, *during, across)
        after = trail()
        await spool_is_drained(ledger)
        await answered(ledger, after)
    spooled = {row["log_id"] for row in found if row["spooled"]}
    assert spooled >= {one.log_id for one in during}
    assert before.log_id not in spooled
    assert receipts.pop().leaf_hash in {row["leaf_hash"].hex() for row in found}
    assert all(leaf_hash(row_of(rebuilt(row))) == row["leaf_hash"] for row in found)
    assert rows.of(after.query_id)[0]["spooled"] is False
    assert open_records(log, *(one.log_id for one in (before, *during, across, after))) == 0


async def answered(ledger: Ledger, asked: Trail) -> str:
    await ledger.open(asked)
    await ledger.note(asked)
    return (await ledger.close(asked, now())).leaf_hash


@pytest.mark.parametrize("away", [gone, *map(campaign_only, AWAY[1:])])
async def test_without_a_spool_nothing_is_acknowledged_while_the_database_is_away(
    log: Database, rows: Records, away: Callable[[Database], AbstractContextManager[None]]
) -> None:
    async with writing(log, None, within_s=0.5) as ledger:
        asked = trail()
        with away(log):
            with pytest.raises(LedgerUnavailableError):
                await ledger.open(asked)
            with pytest.raises(LedgerUnavailableError):
                await ledger.close(asked, now())
        async with asyncio.timeout(ARRIVED_S):
            while True:
                try:
                    await answered(ledger, trail())
                    break
                except LedgerUnavailableError:
                    continue
        assert len(rows.of(asked.query_id)) <= 1  # a slow database may take after all what was given up


async def test_a_full_spool_takes_nothing_and_nothing_is_acknowledged(
    log: Database, rows: Records, tmp_path: Path
) -> None:
    kept, lost = trail(), trail(user_query_text="x" * 3000)
    async with writing(log, tmp_path, within_s=0.5, bytes_max=3000) as ledger:
        with slow(log):
            await ledger.close(kept, now())
            with pytest.raises(LedgerUnavailableError):
                await ledger.close(lost, now())
        await arrived(rows, kept)
    assert rows.of(lost.query_id) == []


async def test_a_month_that_is_missing_is_made_and_nothing_is_lost(
    log: Database, rows: Records, tmp_path: Path
) -> None:
    late = trail(timestamp=datetime(2025, 2, 28, 23, 59, 59, tzinfo=UTC))
    async with writing(log, tmp_path) as ledger:
        await answered(ledger, late)
        (row,) = await arrived(rows, late)
    assert (row["partition"], row["spooled"]) == ("audit_logs_2025_02", True)


def died(log: Database, tmp_path: Path) -> tuple[tuple[UUID, UUID], str]:
    """The requests of a killed process, one answered from its spool and one under way, and the leaf that was promised."""
    names, name = (uuid4(), uuid4()), str(conninfo_to_dict(log.url)["dbname"])
    process = subprocess.Popen(
        [sys.executable, "-c", DYING, log.url, make_conninfo(log.url, dbname="postgres"), name, str(tmp_path), *map(str, names)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None and process.stdin is not None
    promised = process.stdout.readline().strip()
    os.kill(process.pid, signal.SIGKILL)
    process.wait(ARRIVED_S)
    process.stdin.close()
    process.stdout.close()
    with elsewhere(log) as connection:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())
    return names, promised


# Seen red with what dead processes left not drained before their orphans are closed.
async def test_what_a_dead_process_had_spooled_arrives_before_its_orphans_are_closed(
    log: Database, rows: Records, tmp_path: Path
) -> None:
    """Its client holds the answer: the row must say so, and not that it was abandoned."""
    names, promised = died(log, tmp_path)
    async with writing(log, tmp_path):
        found = {row["log_id"]: row for row in rows.where("endpoint = 'dying'")}
    assert found[names[0]]["leaf_hash"].hex() == promised
    assert found[names[0]]["spooled"]
    assert found[names[1]]["outcome"] == "abandoned"
    assert open_records(log, *names) == 0
    assert list(tmp_path.glob("*.spool")) == []


# Seen red: the answer was `abandoned`, and nothing said that it had been on record.
@pytest.mark.campaign
async def test_acknowledged_bytes_that_vanish_from_the_spool_are_told_of(
    log: Database, rows: Records, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names, _ = died(log, tmp_path)
    (path,) = tmp_path.glob("*.spool")
    os.truncate(path, path.stat().st_size - 300)
    async with writing(log, tmp_path) as ledger:
        await ledger.maintain()
    assert f"300 acknowledged bytes of {path.name} are missing" in caplog.text
    assert f"{path.name} was cut: 300 acknowledged bytes" in (tmp_path / ASIDE_FILE).read_text()
    (told,) = rows.where("endpoint = 'spool'")
    assert told["details"] == {"spool": path.name, "bytes_missing": 300}
    assert told["outcome"] == "recorded"
    for row in rows.where("log_id = ANY(%s)", list(names)):
        assert row["outcome"] == "abandoned"
        assert "it may have been answered" in row["error_message"]
    (words,) = [words for words in gaps_of(tmp_path) if ASIDE_FILE in words]
    assert "vanished" in words


def gaps_of(folder: Path) -> list[str]:
    return _gaps_of_spool(spool_files(folder), now())


# Seen red: neither came back, because the check that failed was taken for a missing month, and the driver's class for a
# row that is too large is that of a failed server.
@pytest.mark.parametrize("code", ["check_violation", "program_limit_exceeded", "statement_too_complex"])
async def test_a_row_that_is_always_refused_holds_nothing_up(
    log: Database, rows: Records, tmp_path: Path, code: str
) -> None:
    execute(
        log,
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN IF NEW.endpoint = 'bad' THEN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON audit_logs FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    bad, good = trail(endpoint="bad"), trail()
    spool = Spool.open(tmp_path, 5, MEBIBYTE)
    await spool.append([Entry.closed(one.log_id, hashed(row_of(one), bytes(32))) for one in (bad, good)])
    spool.close()
    async with writing(log, tmp_path):
        await arrived(rows, good)
    assert str(bad.log_id) in (tmp_path / ASIDE_FILE).read_text()


async def test_the_orphans_of_another_machine_wait_for_it(
    log: Database, rows: Records, tmp_path: Path
) -> None:
    """Its spool may hold their end. After an hour it has lost it, and nobody waits any more."""
    recent, old = trail(), trail()
    with psycopg.connect(log.url) as connection:
        for left, age in ((recent, "0 s"), (old, "2 h")):
            connection.execute(
                "INSERT INTO audit_open (log_id, opened_at, owner, spool, trail, signature)"
                " VALUES (%s, now() - %s::interval, 4711, %s, %s, %s)",
                (
                    left.log_id,
                    age,
                    uuid4(),
                    psycopg.types.json.Jsonb(row_of(left)),
                    sign_open(row_of(left), KEY),
                ),
            )
    async with writing(log, tmp_path) as ledger:
        await ledger.maintain()
    assert open_records(log, recent.log_id) == 1
    assert open_records(log, old.log_id) == 0
    assert rows.of(old.query_id)[0]["outcome"] == "abandoned"


# Seen red with FORGOTTEN_S left out of `_ABANDONED`: it stayed open for ever.
async def test_a_request_of_ours_that_was_lost_is_closed_and_one_under_way_is_not(
    log: Database, rows: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.ledger.orphans.FORGOTTEN_S", 0)
    lost, under_way = trail(), trail()
    async with writing(log, None) as ledger:
        await ledger.open(lost)
        await ledger.open(under_way)
        with pytest.raises(LedgerUnavailableError):
            await ledger.close(trail(log_id=lost.log_id, http_status=2**40), now())
        assert await ledger.maintain() + await ledger.maintain() == 1
        (row,) = rows.of(lost.query_id)
        assert (row["outcome"], row["http_status"]) == ("not_acknowledged", 503)
        await ledger.close(under_way, now())
    assert rows.of(under_way.query_id)[0]["outcome"] == "open"


async def test_what_the_database_will_never_take_is_set_aside_and_holds_nothing_up(
    log: Database, rows: Records, tmp_path: Path
) -> None:
    bad, good = trail(http_status=2**40), trail()
    async with writing(log, tmp_path, within_s=0.5) as ledger:
        with slow(log):
            await ledger.close(bad, now())
            await ledger.close(good, now())
        await arrived(rows, good)
    assert str(bad.log_id) in (tmp_path / ASIDE_FILE).read_text()
    assert (tmp_path / ASIDE_FILE).stat().st_mode & 0o777 == 0o600


# Seen red with `audit_holds` answering true for any row of the same id.
async def test_two_rows_of_one_request_are_never_taken_for_one(log: Database, rows: Records) -> None:
    asked = trail()
    async with writing(log, None) as ledger:
        await ledger.close(asked, now())
        with pytest.raises(LedgerUnavailableError):
            await ledger.close(asked, now())
    assert len(rows.of(asked.query_id)) == 1


# Seen red with 'off' in `audit_write`.
async def test_no_setting_of_a_role_weakens_a_commit(log: Database, rows: Records) -> None:
    execute(
        log,
        "CREATE TABLE said (synchronous_commit text)",
        "GRANT INSERT ON said TO PUBLIC",
        "CREATE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO said VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$",
        "CREATE CONSTRAINT TRIGGER say AFTER INSERT ON audit_open DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION say()",
    )
    name = conninfo_to_dict(log.url)["dbname"]
    with elsewhere(log) as connection:
        role = f'ALTER ROLE affidavit_engine IN DATABASE "{name}" SET synchronous_commit = {{}}'
        connection.execute(role.format("off").encode())
        asked = trail()
        async with log.pool(ENGINE, 3) as pool:
            ledger = ledger_on(pool)
            ledger._begin(*(partial(ledger._commits.run, lane.write) for lane in ledger._lanes))
            ledger._alive.is_held.set()
            await ledger.open(
                asked
            )  # at the end of its transaction, when it counts, the setting is looked at
            await ledger.stop()
    with psycopg.connect(log.url) as connection:
        assert connection.execute("SELECT * FROM said").fetchall() == [("on",)]


async def test_a_database_that_loses_what_it_acknowledged_is_not_relied_on(
    log: Database,
    rows: Records,
    tmp_path: Path,
    weak: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = trail()
    async with writing(log, tmp_path) as ledger:
        weak.append("fsync is off")
        with caplog.at_level(logging.ERROR):
            await ledger.maintain()
        assert "fsync is off" in caplog.text
        await answered(ledger, asked)
        assert ledger.is_spooling
        assert rows.of(asked.query_id) == []
        weak.clear()
        await ledger.maintain()
        await arrived(rows, asked)


# Seen red: ready, while every request got 503.
async def test_such_a_database_takes_no_record_for_the_readiness_either(
    log: Database, tmp_path: Path, weak: list[str]
) -> None:
    async with writing(log, None) as bare, writing(log, tmp_path) as spooling:
        weak.append("fsync is off")
        await asyncio.gather(bare.maintain(), spooling.maintain())
        assert [await ledger.taker() for ledger in (bare, spooling)] == [None, "spool"]


# Seen red with orphans closed while our own spool held their end: the reader's receipt named a row that never came.
async def test_what_was_answered_while_the_database_was_not_relied_on_is_never_abandoned(
    log: Database, rows: Records, tmp_path: Path, weak: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.ledger.orphans.FORGOTTEN_S", 0)
    asked = trail(outcome="answered")
    async with writing(log, tmp_path) as ledger:
        await ledger.open(asked)
        weak.append("fsync is off")
        await ledger.maintain()
        receipt = await ledger.close(asked, now())
        await ledger.maintain()
        await ledger.maintain()
        weak.clear()
        await ledger.maintain()
        (row,) = await arrived(rows, asked)
    assert row["leaf_hash"].hex() == receipt.leaf_hash
    assert not (tmp_path / ASIDE_FILE).exists()


# Seen red with `tend` draining before it looked at what `weaknesses` found.
async def test_what_a_dead_process_left_is_not_given_to_a_database_that_loses_it(
    log: Database, rows: Records, tmp_path: Path, weak: list[str]
) -> None:
    left = trail()
    spool = Spool.open(tmp_path, 5, MEBIBYTE)
    await spool.append([Entry.closed(left.log_id, hashed(row_of(left), bytes(32)))])
    spool.close()
    weak.append("fsync is off")
    async with writing(log, tmp_path) as ledger:
        assert spool.path.exists()
        assert rows.of(left.query_id) == []
        weak.clear()
        await ledger.maintain()
        await arrived(rows, left)
    assert not spool.path.exists()


# Seen red with everything sent to the spool until an instant at which it is empty: it never came.
async def test_spooling_ends_under_steady_load(
    log: Database, rows: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, is_over = os.fsync, asyncio.Event()

    def slowly(descriptor: int) -> None:
        time.sleep(0.02)
        fsync(descriptor)

    monkeypatch.setattr("audit.ledger.spool.os.fsync", slowly)

    async def reader(ledger: Ledger) -> None:
        while not is_over.is_set():
            await answered(ledger, trail())

    async with writing(log, tmp_path, bytes_max=64 * MEBIBYTE) as ledger:
        with slow(log):
            await answered(ledger, trail())
        async with asyncio.TaskGroup() as group:
            for _ in range(16):
                group.create_task(reader(ledger))
            await spool_is_drained(ledger)
            is_over.set()


# Seen red with the drain woken only by those who waited to the end: the record lay there until the next one came.
async def test_what_was_given_up_while_it_was_spooled_arrives_too(
    log: Database, rows: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, asked = os.fsync, trail()

    def slowly(descriptor: int) -> None:
        time.sleep(0.5)
        fsync(descriptor)

    async with writing(log, tmp_path, within_s=0.5) as ledger:
        with slow(log):
            monkeypatch.setattr("audit.ledger.spool.os.fsync", slowly)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await ledger.note(asked)
        await spool_is_drained(ledger)


async def spool_is_drained(ledger: Ledger) -> None:
    async with asyncio.timeout(ARRIVED_S):
        while ledger.is_spooling:  # noqa: ASYNC110  it ends in another task's own time
            await asyncio.sleep(0.02)


async def test_too_many_at_once_are_refused_and_not_kept(log: Database) -> None:
    async with writing(log, None, within_s=60.0) as ledger:  # what is let in must not run out of time here
        with slow(log):
            ends = [asyncio.ensure_future(ledger.close(trail(), now())) for _ in range(3000)]
            done, _ = await asyncio.wait(ends, timeout=2.0)
            refused = [end for end in done if isinstance(end.exception(), LedgerUnavailableError)]
            assert 0 < len(refused) < 3000
        await asyncio.wait(ends)
        assert sum(end.exception() is None for end in ends) == 3000 - len(refused)
