"""Each file of sql/ is applied once, in order, whole or not at all, and never edited afterwards."""

import itertools
import shutil
import threading
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from psycopg import errors

from audit import auditor
from audit.erasure.target import ErasureTarget
from audit.proof.checkpoint import Checkpoint, sign_note
from audit.proof.keys import SigningKey
from audit.proof.merkle import root
from audit.proof.record import bytes_of
from audit.proof.verdict import Verdict
from engine.errors import ConfigurationError
from engine.settings import HOUSE
from engine.storage.database import Database
from engine.storage.migrate import migrate, pending
from engine.wiring import now
from tests.databases import empty_database
from tests.logs.recorded import make_months
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog

OURS = HOUSE / "sql"


@pytest.fixture
def url(database: Database) -> Iterator[str]:
    """A database of its own in the running server."""
    with empty_database(database) as made:
        yield made


@pytest.fixture
def connection(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files that only work in their order."""
    (tmp_path / "0001_a.sql").write_text("CREATE TABLE steps (name text);")
    (tmp_path / "0002_b.sql").write_text("INSERT INTO steps VALUES ('second');")
    (tmp_path / "0010_c.sql").write_text("INSERT INTO steps SELECT 'after ' || max(name) FROM steps;")
    return tmp_path


def tables(connection: psycopg.Connection) -> set[str]:
    rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    return {row[0] for row in rows}


def steps(connection: psycopg.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT name FROM steps").fetchall()]


def recorded(connection: psycopg.Connection) -> list[str]:
    rows = connection.execute("SELECT name FROM schema_migrations ORDER BY applied_at").fetchall()
    return [row[0] for row in rows]


def test_our_own_files_apply_in_order(connection: psycopg.Connection) -> None:
    names = sorted(file.name for file in OURS.glob("[0-9]*.sql"))
    assert migrate(connection, OURS) == names
    assert recorded(connection) == names
    assert {"books", "chunks", "api_keys", "audit_logs", "audit_open"} <= tables(connection)


def test_files_apply_in_the_order_of_their_numbers(connection: psycopg.Connection, folder: Path) -> None:
    assert migrate(connection, folder) == ["0001_a.sql", "0002_b.sql", "0010_c.sql"]
    assert steps(connection) == ["second", "after second"]


def test_a_second_run_applies_nothing(url: str, folder: Path) -> None:
    for expected in (["0001_a.sql", "0002_b.sql", "0010_c.sql"], []):
        with psycopg.connect(url) as connection:
            assert migrate(connection, folder) == expected
    with psycopg.connect(url) as connection:
        assert steps(connection) == ["second", "after second"]


def test_a_new_file_is_the_only_one_applied(connection: psycopg.Connection, folder: Path) -> None:
    migrate(connection, folder)
    (folder / "0011_d.sql").write_text("INSERT INTO steps VALUES ('new');")
    assert migrate(connection, folder) == ["0011_d.sql"]
    assert steps(connection) == ["second", "after second", "new"]


# Seen red with the comparison of digests taken out of `_apply`.
def test_an_edited_applied_file_is_refused_by_name(connection: psycopg.Connection, folder: Path) -> None:
    migrate(connection, folder)
    (folder / "0002_b.sql").write_text("INSERT INTO steps VALUES ('rewritten');")
    (folder / "0011_d.sql").write_text("INSERT INTO steps VALUES ('new');")
    with pytest.raises(ConfigurationError, match=r"0002_b\.sql was edited"):
        migrate(connection, folder)
    assert steps(connection) == ["second", "after second"]
    assert pending(connection, folder) == ["0011_d.sql"]


# Seen red with `connection.transaction()` taken out of `_apply`: what could not be registered stayed.
@pytest.mark.parametrize(
    "fault",
    [
        "SELECT 1/0;",
        "SYNTAX ERROR;",
        "INSERT INTO missing VALUES (1);",
        "ALTER TABLE schema_migrations ADD CHECK (name <> '0002_b.sql');",
    ],
)
def test_a_failing_file_leaves_nothing_behind(
    connection: psycopg.Connection, folder: Path, fault: str
) -> None:
    (folder / "0002_b.sql").write_text(f"CREATE TABLE half (n int); {fault}")
    with pytest.raises(ConfigurationError, match=r"0002_b\.sql failed and was rolled back"):
        migrate(connection, folder)
    assert tables(connection) == {"schema_migrations", "steps"}
    assert recorded(connection) == ["0001_a.sql"]
    assert steps(connection) == []
    assert pending(connection, folder) == ["0002_b.sql", "0010_c.sql"]


def test_a_mended_file_applies_and_the_later_ones_follow(
    connection: psycopg.Connection, folder: Path
) -> None:
    (folder / "0002_b.sql").write_text("SELECT 1/0;")
    with pytest.raises(ConfigurationError):
        migrate(connection, folder)
    (folder / "0002_b.sql").write_text("INSERT INTO steps VALUES ('mended');")
    assert migrate(connection, folder) == ["0002_b.sql", "0010_c.sql"]
    assert steps(connection) == ["mended", "after mended"]


def test_a_failed_migrator_lets_go_of_the_lock(url: str, folder: Path) -> None:
    (folder / "0010_c.sql").write_text("SELECT 1/0;")
    with psycopg.connect(url) as first, psycopg.connect(url) as second:
        with pytest.raises(ConfigurationError):
            migrate(first, folder)
        second.execute("SET lock_timeout = '2s'")
        second.commit()
        (folder / "0010_c.sql").write_text("SELECT 1;")
        assert migrate(second, folder) == ["0010_c.sql"]


def test_a_file_cannot_leave_its_role_to_the_next(connection: psycopg.Connection, folder: Path) -> None:
    (folder / "0002_b.sql").write_text("SET ROLE affidavit_auditor;")
    (folder / "0010_c.sql").write_text("INSERT INTO steps SELECT current_user;")
    migrate(connection, folder)
    assert steps(connection) == [connection.info.user]


# Seen red with the lock taken out of `migrate`: the second one failed on a table that was there.
@pytest.mark.parametrize("migrators", [2, 5])
def test_migrators_at_once_apply_each_file_once(url: str, folder: Path, migrators: int) -> None:
    (folder / "0002_b.sql").write_text("SELECT pg_sleep(0.1); INSERT INTO steps VALUES ('second');")
    together = threading.Barrier(migrators)
    applied: list[list[str]] = []

    def run() -> None:
        with psycopg.connect(url) as connection:
            together.wait(10)
            applied.append(migrate(connection, folder))

    threads = [threading.Thread(target=run) for _ in range(migrators)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(itertools.chain(*applied)) == ["0001_a.sql", "0002_b.sql", "0010_c.sql"]
    assert len(applied) == migrators
    with psycopg.connect(url) as connection:
        assert steps(connection) == ["second", "after second"]


def test_pending_tells_the_truth_and_changes_nothing(connection: psycopg.Connection, folder: Path) -> None:
    assert pending(connection, folder) == ["0001_a.sql", "0002_b.sql", "0010_c.sql"]
    assert tables(connection) == set()
    migrate(connection, folder)
    assert pending(connection, folder) == []
    (folder / "0011_d.sql").write_text("SELECT 1;")
    assert pending(connection, folder) == ["0011_d.sql"]
    assert recorded(connection) == ["0001_a.sql", "0002_b.sql", "0010_c.sql"]


def test_the_running_database_has_nothing_pending(database: Database) -> None:
    assert database.pending() == []
    assert database.migrate() == []


JANUARYS = "audit_logs_2025_01"


def detach(url: str, *, is_interrupted: bool) -> None:
    with psycopg.connect(url) as reader, psycopg.connect(url, autocommit=True) as connection:
        if not is_interrupted:
            connection.execute(f"ALTER TABLE audit_logs DETACH PARTITION {JANUARYS}".encode())
            return
        reader.execute("SELECT count(*) FROM audit_logs")
        connection.execute("SET statement_timeout = '300ms'")
        with pytest.raises(errors.QueryCanceled):
            connection.execute(f"ALTER TABLE audit_logs DETACH PARTITION {JANUARYS} CONCURRENTLY".encode())


def seal_as_before(log: SealedLog, month: date) -> None:
    """As a version that did not sign rows sealed the first two of a month."""
    rows = [log.rows[month, place] for place in range(2)]
    leaves = [bytes_of(row["leaf_hash"]) for row in rows]
    with psycopg.connect(log.url) as connection:
        (origin,) = connection.execute("SELECT origin FROM audit_origin").fetchone() or ("",)
        for index, (row, leaf) in enumerate(zip(rows, leaves, strict=True)):
            connection.execute(
                "INSERT INTO audit_leaves VALUES (%s, %s, %s, %s, now())", (month, index, row["log_id"], leaf)
            )
        note = sign_note(Checkpoint(origin, month, 2, root(leaves), now()), log.key)
        connection.execute("INSERT INTO audit_checkpoints VALUES (%s, 2, %s, now())", (month, note))


# Seen red with the column added to the log alone: nothing of a detached month could be erased any more.
@pytest.mark.parametrize("is_interrupted", [False, True], ids=["detached", "half detached"])
async def test_records_of_schema_version_2_are_proven_and_erased_as_before(
    url: str, database: Database, tmp_path: Path, is_interrupted: bool
) -> None:
    """Written and sealed before `details` was there; one of their months is detached when the column comes."""
    before = tmp_path / "sql"
    before.mkdir()
    for file in OURS.glob("*.sql"):
        if file.name < "0015" or file.name[:4] in {
            "0022",
            "0024",
            "0032",
        }:  # and the locks, breaks and delegations that a sealer of today asks for
            shutil.copy(file, before)
    log = SealedLog(Database(url, database.settings), tmp_path, SigningKey.create(tmp_path / "signing.key"))
    with psycopg.connect(url) as connection:
        migrate(connection, before)
        make_months(connection, (JANUARY, FEBRUARY, now().date()))
    for month in (JANUARY, FEBRUARY):
        log.write(month, 0, 1, schema_version=2, details=None)
    for month in (JANUARY, FEBRUARY):
        seal_as_before(log, month)
    proof = await log.prove(log.rows[JANUARY, 0])
    detach(url, is_interrupted=is_interrupted)
    log.database.migrate()
    log.write(FEBRUARY, 2)
    assert await log.seal() == {}
    done = await log.erase(ErasureTarget(query_id=UUID(log.rows[JANUARY, 0]["query_id"])))
    assert (done.records, done.left) == (1, [])
    with psycopg.connect(url) as connection:
        connection.execute(
            f"ALTER TABLE audit_logs ATTACH PARTITION {JANUARYS}"
            " FOR VALUES FROM ('2025-01-01 00:00:00+00') TO ('2025-02-01 00:00:00+00')".encode()
        )
    assert await log.seal() == {}
    report = log.inspect()
    assert (report.verdict, report.findings) == (Verdict.VALID, [])
    assert report.counted["records were erased, and are proven"] == 1
    for row in (log.rows[JANUARY, 1], log.rows[FEBRUARY, 1], log.rows[FEBRUARY, 2]):
        assert auditor.check(await log.prove(row), log.keys).verdict is Verdict.VALID
    assert auditor.check(await log.prove(log.rows[JANUARY, 0]), log.keys).verdict is Verdict.ERASED
    assert auditor.check(proof, log.keys).verdict is Verdict.VALID


# Seen red with names without a schema: the log was made there, and nobody could read it.
def test_a_schema_of_the_migrators_name_does_not_get_the_tables(url: str, folder: Path) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(f"CREATE SCHEMA {connection.info.user}".encode())
    with psycopg.connect(url) as connection:
        migrate(connection, folder)
        assert tables(connection) == {"schema_migrations", "steps"}
