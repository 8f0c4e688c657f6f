"""A reader of the log can stop nobody: no lock that anything depends on can be taken with an auditor's rights."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import make_conninfo

from audit.archive import month_table
from audit.ledger import partitions
from audit.proof.keys import SigningKey
from engine.cli import doctor
from engine.errors import ConfigurationError
from engine.settings import HOUSE
from engine.storage import migrate as migrations
from engine.storage.database import ARCHIVER, AUDITOR, Database, changing
from engine.wiring import now, open_registry
from tests.conftest import ROOT
from tests.databases import empty_database, scratch_log
from tests.logs.sealed_log import SealedLog
from tests.logs.writers import ledger_on, open_records, trail

WITHIN_S = 8
MARCH = date(2025, 3, 1)
# All that were ever taken here: by hashes of names, by numbers of ours, and the archive's by month.
FORMER = (
    "pg_advisory_lock(hashtext('audit_make_month'))",
    "pg_advisory_lock(hashtext('audit_erasure'))",
    "pg_advisory_lock(hashtextextended('ingest a-book', 0))",
    f"pg_advisory_lock({0xAFF1DA})",
    f"pg_advisory_lock({0xAFF15EA1})",
    f"pg_advisory_lock({0xAFF1A2C4})",
    f"pg_advisory_lock({0xAFF1A3}, {2025 * 12 + 3})",
)


# Seen red with one in `lock_book`.
def test_nothing_here_takes_a_lock_that_anybody_can_take() -> None:
    code = [file for folder in ("audit", "engine", "ingest") for file in (ROOT / folder).rglob("*.py")]
    assert [
        file
        for file in [*code, HOUSE / "sql" / "schema.sql"]
        if re.search("pg_(try_)?advisory", file.read_text())
    ] == []


@pytest.fixture(scope="module")
async def log(database: Database) -> AsyncIterator[Database]:
    async with scratch_log(database) as made:
        yield made


@contextmanager
def auditor(url: str) -> Iterator[psycopg.Connection]:
    """Under a login of its own: rights follow the login, and not a name that a session gives itself."""
    with psycopg.connect(make_conninfo(url, user=AUDITOR), autocommit=True) as connection:
        yield connection


@pytest.fixture
def holding(log: Database) -> Iterator[None]:
    """An auditor who holds every advisory lock that could matter."""
    with auditor(log.url) as connection:
        for lock in FORMER:
            connection.execute(f"SELECT {lock}".encode())
        yield


# Seen red with `pg_advisory_xact_lock` in `audit_make_month`: neither months nor a start, until the auditor leaves.
@pytest.mark.usefixtures("holding")
async def test_months_are_made_and_an_engine_starts(log: Database) -> None:
    async with asyncio.timeout(WITHIN_S), log.pool("affidavit_engine") as pool:
        await partitions.make_months_ahead(pool, now().date())
        ledger = ledger_on(pool)
        await ledger.start()
        await ledger.stop()


# Seen red with `pg_try_advisory_xact_lock`: nothing was sealed, and nobody said so.
@pytest.mark.usefixtures("holding")
async def test_rows_are_sealed_and_anchored(log: Database, tmp_path: Path) -> None:
    sealed = SealedLog(log, tmp_path, SigningKey.create(tmp_path / "signing.key"))
    this_month = now().date().replace(day=1)
    sealed.write(this_month, 0)
    async with asyncio.timeout(WITHIN_S):
        assert await sealed.seal() == {}
    with psycopg.connect(log.url) as connection:
        assert connection.execute("SELECT count(*) FROM audit_anchors").fetchone() == (1,)


# Seen red with `pg_advisory_xact_lock` in `audit_erase`.
@pytest.mark.usefixtures("holding")
def test_records_are_erased(log: Database) -> None:
    with psycopg.connect(log.url, options=f"-c role={ARCHIVER} -c statement_timeout=8s") as connection:
        assert connection.execute("SELECT audit_erase('[]')").fetchone() == (0,)


# Seen red with `pg_try_advisory_lock` in `month_table.lock`: it said "another archiver is working on it".
@pytest.mark.usefixtures("holding")
async def test_a_month_is_archived(log: Database) -> None:
    async with changing(log.url, ARCHIVER) as connection, month_table.lock(connection, MARCH) as is_locked:
        assert is_locked


# Seen red with `pg_advisory_lock` in `lock_book`.
@pytest.mark.usefixtures("holding")
async def test_a_book_is_ingested(log: Database) -> None:
    async with asyncio.timeout(WITHIN_S), open_registry(log) as registry, registry.lock_book("a-book"):
        pass


# Seen red with `pg_advisory_lock` in `migrate`.
@pytest.mark.usefixtures("holding")
def test_migrations_are_applied(log: Database) -> None:
    with psycopg.connect(log.url, options="-c statement_timeout=8s -c lock_timeout=8s") as connection:
        assert migrations.migrate(connection, HOUSE / "sql") == []


# Seen red with `pg_try_advisory_xact_lock(owner)`: whoever could read pg_locks kept the requests of the dead open for ever.
async def test_nobody_can_pass_for_a_process_that_died(log: Database) -> None:
    left = uuid4()
    async with log.pool("affidavit_engine", 3) as pool:
        dying = ledger_on(pool)
        await dying.start()
        await dying.open(trail(log_id=left))
        owner = dying._owner
        await dying.stop()
        with auditor(log.url) as passing:
            passing.execute("SELECT pg_advisory_lock(%s)", (owner,))
            passing.execute(
                "SELECT set_config('application_name', %s, false)", (f"affidavit lease {owner:x}",)
            )
            next_one = ledger_on(pool)
            assert await next_one.start() == 1
            await next_one.stop()
    assert open_records(log, left) == 0


# Seen red with the functions open to everybody, and with SELECT and UPDATE on `audit_locks` granted to the auditor.
@pytest.mark.parametrize(
    "attack",
    [
        "SELECT audit_lock('month')",
        "SELECT audit_claim('affidavit archive 2025-03')",
        "SELECT FROM audit_locks FOR UPDATE",
        "LOCK TABLE audit_locks IN ACCESS SHARE MODE",
        "LOCK TABLE schema_migrations IN ROW EXCLUSIVE MODE",
        "SELECT FROM schema_migrations FOR KEY SHARE",
        "SELECT FROM audit_logs FOR KEY SHARE",
        "LOCK TABLE audit_logs IN ROW EXCLUSIVE MODE",
    ],
)
def test_an_auditor_takes_no_lock_of_ours(log: Database, attack: str) -> None:
    with (
        auditor(log.url) as connection,
        pytest.raises(errors.InsufficientPrivilege),
        connection.transaction(),
    ):
        connection.execute(attack.encode())


# Seen red with `RESET application_name` taken out, and with the question for living sessions taken out.
async def test_a_claim_is_one_connections_and_ends_with_it(log: Database) -> None:
    async with changing(log.url, ARCHIVER) as first, changing(log.url, ARCHIVER) as second:
        async with month_table.lock(first, MARCH) as is_ours, month_table.lock(second, MARCH) as is_theirs:
            assert (is_ours, is_theirs) == (True, False)
        async with month_table.lock(second, MARCH) as is_theirs:
            assert is_theirs
        await first.execute("SELECT audit_claim('affidavit archive 2025-03')")
        await first.close()
        await gone(second, "affidavit archive 2025-03")
        async with month_table.lock(second, MARCH) as is_theirs:
            assert is_theirs


async def gone(connection: psycopg.AsyncConnection, name: str) -> None:
    """The server needs a moment to notice."""
    async with asyncio.timeout(WITHIN_S):
        while await (  # noqa: ASYNC110  a fact of the server
            await connection.execute("SELECT 1 FROM pg_stat_activity WHERE application_name = %s", (name,))
        ).fetchone():
            await asyncio.sleep(0.01)


# Seen red without `lock_timeout`: the file waited for ever, and every request queued behind it.
def test_a_migration_does_not_wait_for_a_readers_open_transaction(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "LOCK_S", 1)
    (tmp_path / "0001_a.sql").write_text("CREATE TABLE steps (name text)")
    with empty_database(database) as url, psycopg.connect(url) as reader, psycopg.connect(url) as migrator:
        migrations.migrate(migrator, tmp_path)
        reader.execute("SELECT FROM steps")
        (tmp_path / "0002_b.sql").write_text("ALTER TABLE steps ADD COLUMN number int")
        with pytest.raises(ConfigurationError, match="Close long queries"):
            migrations.migrate(migrator, tmp_path)
        reader.rollback()
        assert migrations.migrate(migrator, tmp_path) == ["0002_b.sql"]


# Seen red before: no limit but the server's.
def test_a_login_as_auditor_begins_with_limits_and_cannot_lift_all(log: Database) -> None:
    with auditor(log.url) as connection:
        limits = dict(
            connection.execute(
                "SELECT name, current_setting(name) FROM unnest(ARRAY['statement_timeout', 'lock_timeout',"
                " 'idle_in_transaction_session_timeout', 'temp_file_limit']) AS name"
            ).fetchall()
        )
        assert limits == {
            "statement_timeout": "5min", "lock_timeout": "10s", "idle_in_transaction_session_timeout": "1min",
            "temp_file_limit": "4GB",
        }  # fmt: skip
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute("SET temp_file_limit = -1")
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute("ALTER ROLE affidavit_auditor CONNECTION LIMIT -1")
        assert connection.execute(
            "SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user"
        ).fetchone() == (20,)


# Seen red before sql/0025: each session could fill the disk with lines of the server's log.
def test_a_login_as_auditor_writes_nothing_into_the_servers_log(log: Database) -> None:
    marks = [uuid4().hex for _ in range(3)]
    with auditor(log.url) as connection:
        connection.execute(f"DO $$ BEGIN RAISE LOG '{marks[0]}'; END $$".encode())
        connection.execute("SET debug_print_plan = on")
        connection.execute(f"SELECT '{marks[1]}' AS \"{marks[1]}\"".encode())
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute("SET log_min_messages = debug5")
    with psycopg.connect(log.url) as superuser:
        superuser.execute(f"DO $$ BEGIN RAISE LOG '{marks[2]}'; END $$".encode())
    written = (log.settings.data_dir / "postgres" / "server.log").read_text()
    assert [mark in written for mark in marks] == [False, False, True]


async def test_doctor_says_what_a_superuser_must_run_where_one_did_not_migrate(log: Database) -> None:
    async def found() -> doctor.CheckResult:
        lines = await doctor.examine(log.settings, log)
        return next(line for line in lines if line.part == "readers")

    assert (await found()).state == "ok"
    with psycopg.connect(log.url, autocommit=True) as superuser:
        superuser.execute("GRANT EXECUTE ON FUNCTION lo_create(oid), lo_unlink(oid) TO PUBLIC")
        line = await found()
        assert line.state == "missing"
        _, _, remedy = line.words.partition("run as a superuser: ")
        assert remedy == (
            "REVOKE EXECUTE ON FUNCTION pg_catalog.lo_create(oid), pg_catalog.lo_unlink(oid) FROM PUBLIC"
        )
        superuser.execute(remedy.encode())
    assert (await found()).state == "ok"


# Seen red with the REVOKE for whoever migrates: no privileges could be revoked, a dozen times, and nothing that helps.
def test_who_is_no_superuser_migrates_and_is_told_what_to_ask_for(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"migrator_{uuid4().hex}"
    with empty_database(database) as url, psycopg.connect(url, autocommit=True) as superuser:
        migrations.migrate(superuser, HOUSE / "sql")
        (writers,) = superuser.execute("SELECT count(*) FROM audit_disk_writers()").fetchone() or (None,)
        assert writers == 0
        superuser.execute("GRANT EXECUTE ON FUNCTION lo_create(oid) TO PUBLIC")
        superuser.execute("DROP FUNCTION audit_disk_writers")
        superuser.execute(f"CREATE ROLE {name} LOGIN IN ROLE affidavit_owner".encode())
        try:
            with psycopg.connect(make_conninfo(url, user=name)) as migrator:
                migrator.add_notice_handler(migrations._warn)
                migrator.execute((HOUSE / "sql" / "0025_disk_writers.sql").read_bytes())
        finally:
            superuser.execute(f"DROP ROLE {name}".encode())
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "let a superuser run REVOKE EXECUTE ON FUNCTION pg_catalog.lo_create(oid) FROM PUBLIC" in told[0]
    assert "let a superuser set log_min_messages = 'fatal'" in told[1]


# Seen red with locks that do not come back, as before: "there is no lock seal" at every round, and nothing was sealed again.
async def test_locks_that_a_superuser_deleted_come_back(log: Database) -> None:
    with psycopg.connect(log.url) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("DELETE FROM audit_locks")
    for role, name in (
        ("sealer", "seal"),
        ("sealer", "anchor"),
        ("archiver", "erasure"),
        ("engine", "month"),
    ):
        for waits in (False, True):
            with psycopg.connect(log.url) as connection:
                connection.execute(f"SET ROLE affidavit_{role}".encode())
                assert connection.execute("SELECT audit_lock(%s, %s)", (name, waits)).fetchone() == (True,)
    with psycopg.connect(log.url) as one, psycopg.connect(log.url) as other:
        assert one.execute("SELECT audit_lock('seal', false)").fetchone() == (True,)
        assert other.execute("SELECT audit_lock('seal', false)").fetchone() == (False,)
