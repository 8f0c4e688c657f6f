"""Who may do what, tried with every role: the log is insert-only for everybody, and nobody is trusted for being local."""

import os
import pwd
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from audit.ledger import Ledger
from audit.partitions import partition_name
from audit.record import Trail
from engine.providers.postgres import PROGRAMS
from engine.wiring import Database, now
from tests.conftest import Records

PARENT, PARTITION = "audit_logs", partition_name(now().date())
ROLES = ("affidavit_engine", "affidavit_sealer", "affidavit_archiver", "affidavit_auditor")
VERBS = {
    "SELECT": "SELECT count(*) FROM {}",
    "INSERT": "INSERT INTO {} DEFAULT VALUES",
    "UPDATE": "UPDATE {} SET reason = NULL",
    "DELETE": "DELETE FROM {}",
    "TRUNCATE": "TRUNCATE {}",
}
ALLOWED = {
    ("affidavit_engine", PARENT, "INSERT"),
    ("affidavit_auditor", PARENT, "SELECT"),
    ("affidavit_auditor", PARTITION, "SELECT"),
}
REFUSED = [case for case in product(ROLES, (PARENT, PARTITION), VERBS) if case not in ALLOWED]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another system user")


@pytest.fixture(scope="module", autouse=True)
async def row(database: Database) -> AsyncIterator[Trail]:
    """A whole row, so that a verb that touches rows has one to touch."""
    async with database.pool("affidavit_engine") as pool:
        ledger = Ledger(pool)
        await ledger.start()
        trail = Trail(
            log_id=uuid4(), query_id=uuid4(), timestamp=now(), endpoint="test", user_query_text="What is it?",
            outcome="refused", reason="not_covered", filters={"module": 1}, citations=[], chunks_returned=[],
        )  # fmt: skip
        await ledger.open(trail)
        await ledger.close(trail, now())
        await ledger.stop()
        yield trail


@contextmanager
def logged_in(database: Database, role: str) -> Iterator[psycopg.Connection]:
    """A login of its own, not a `SET ROLE` that the role could take back."""
    with psycopg.connect(make_conninfo(database.url, user=role), autocommit=True) as connection:
        yield connection


@pytest.fixture
def owner(database: Database) -> Iterator[psycopg.Connection]:
    """The superuser: the strongest login there is."""
    with psycopg.connect(database.url) as connection:
        yield connection
        connection.rollback()


def test_the_engine_inserts_a_whole_row(row: Trail, records: Records) -> None:
    (found,) = records.of(row.query_id)
    assert found["partition"] == PARTITION
    assert (found["user_query_text"], found["filters"]) == ("What is it?", {"module": 1})


# Seen red with SELECT granted to the engine, and with UPDATE on the partition granted to it.
@pytest.mark.parametrize(("role", "table", "verb"), REFUSED)
def test_a_verb_that_is_not_granted_is_refused(database: Database, role: str, table: str, verb: str) -> None:
    with logged_in(database, role) as connection, pytest.raises(errors.InsufficientPrivilege) as refusal:
        connection.execute(VERBS[verb].format(table).encode())
    assert "permission denied for table" in str(refusal.value)


@pytest.mark.parametrize("table", [PARENT, PARTITION])
def test_the_auditor_reads_the_log(database: Database, row: Trail, table: str) -> None:
    with logged_in(database, "affidavit_auditor") as connection:
        query = f"SELECT count(*) FROM {table} WHERE query_id = %s"
        assert connection.execute(query.encode(), (row.query_id,)).fetchone() == (1,)


@pytest.mark.parametrize(("table", "verb"), list(product(("api_keys", "audit_open"), VERBS)))
def test_the_auditor_has_nothing_else_to_look_at(database: Database, table: str, verb: str) -> None:
    statement = VERBS[verb].replace("reason", {"api_keys": "revoked_at", "audit_open": "trail"}[table])
    with logged_in(database, "affidavit_auditor") as connection:
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute(statement.format(table).encode())


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO audit_logs DEFAULT VALUES RETURNING log_id",
        "INSERT INTO audit_logs DEFAULT VALUES ON CONFLICT (log_id, timestamp) DO UPDATE SET reason = 'x'",
        "COPY audit_logs TO STDOUT",
        "SELECT reason FROM audit_logs LIMIT 0",
        "ALTER TABLE audit_logs DISABLE TRIGGER ALL",
        f"ALTER TABLE audit_logs DETACH PARTITION {PARTITION}",
        f"DROP TABLE {PARTITION}",
        f"CREATE RULE quiet AS ON INSERT TO {PARENT} DO INSTEAD NOTHING",
        "CREATE OR REPLACE FUNCTION audit_refuse_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        "CREATE TABLE mine (n int)",
        "SET session_replication_role = replica",
        "SET ROLE affidavit_owner",
        "INSERT INTO api_keys VALUES ('k', 'c', sha256(''), '{ask}')",
        "UPDATE api_keys SET revoked_at = NULL",
        "DELETE FROM chunks",
        "UPDATE chunks SET text = 'another'",
        "UPDATE audit_open SET owner = 0",
        "DELETE FROM schema_migrations",
    ],
)
def test_the_engine_finds_no_way_around(database: Database, statement: str) -> None:
    with logged_in(database, "affidavit_engine") as connection:
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute(statement.encode())


# Seen red with the triggers left out, and on the partition's TRUNCATE with only that trigger left out.
@pytest.mark.parametrize(
    ("table", "verb"), list(product((PARENT, PARTITION), ("UPDATE", "DELETE", "TRUNCATE")))
)
def test_even_the_owner_changes_nothing(owner: psycopg.Connection, table: str, verb: str) -> None:
    with pytest.raises(errors.InsufficientPrivilege, match=f"insert-only: {verb} is refused"):
        owner.execute(VERBS[verb].format(table).encode())


def test_a_month_made_later_is_kept_as_well(owner: psycopg.Connection) -> None:
    owner.execute("SELECT audit_make_month('2091-05-01')")
    owner.execute(
        "INSERT INTO audit_logs (log_id, query_id, user_query_text, timestamp, endpoint, outcome, schema_version,"
        " leaf_hash) VALUES (gen_random_uuid(), gen_random_uuid(), '', '2091-05-31 23:59:59Z', '', '', 1, '')"
    )
    for verb in ("UPDATE", "DELETE", "TRUNCATE"):
        with pytest.raises(errors.InsufficientPrivilege, match="insert-only"), owner.transaction():
            owner.execute(VERBS[verb].format("audit_logs_2091_05").encode())


def test_nobody_logs_in_as_the_owner(database: Database) -> None:
    with pytest.raises(psycopg.OperationalError, match="not permitted to log in"):
        psycopg.connect(make_conninfo(database.url, user="affidavit_owner"))


def test_roles_have_no_passwords_and_no_powers(owner: psycopg.Connection) -> None:
    assert owner.execute("SELECT rolname FROM pg_authid WHERE rolpassword IS NOT NULL").fetchall() == []
    powers = "rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls"
    rows = owner.execute(
        f"SELECT rolname FROM pg_roles WHERE rolname LIKE 'affidavit%' AND ({powers})".encode()
    )
    assert rows.fetchall() == []


def folder_of(database: Database) -> Path:
    return Path(str(conninfo_to_dict(database.url)["host"]))


def psql_as(account: str, database: Database) -> str:
    """What the shipped psql says when that system user tries every role of the house."""
    user = pwd.getpwnam(account)
    said = []
    for role in ("postgres", *ROLES):
        done = subprocess.run(
            [PROGRAMS / "psql", "--no-password", "--command=SELECT 'in'",
             make_conninfo(database.url, user=role)],
            user=user.pw_uid, group=user.pw_gid, extra_groups=[], cwd="/", env={}, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 2, done.stdout
        said.append(done.stdout)
    return "".join(said)


@as_root
def test_the_folder_of_the_socket_is_closed(database: Database) -> None:
    assert folder_of(database).stat().st_mode & 0o777 == 0o700
    assert psql_as("nobody", database).count("Permission denied") == 1 + len(ROLES)


# Seen red with "trust" in pg_hba.conf.
@as_root
@pytest.mark.parametrize("account", ["nobody", "affidavit"])
def test_the_server_trusts_nobody_even_with_the_folder_open(database: Database, account: str) -> None:
    """Not even the system user that it runs as: only who owns the data."""
    folder = folder_of(database)
    mode = folder.stat().st_mode
    folder.chmod(mode | 0o011)
    try:
        assert psql_as(account, database).count("Peer authentication failed") == 1 + len(ROLES)
    finally:
        folder.chmod(mode)


def test_every_rule_of_admission_asks_the_operating_system(owner: psycopg.Connection) -> None:
    rules = owner.execute("SELECT type, auth_method, options, error FROM pg_hba_file_rules").fetchall()
    assert rules == [("local", "peer", ["map=house"], None)]


def test_no_network_port_is_listened_on(owner: psycopg.Connection, database: Database) -> None:
    assert owner.execute("SHOW listen_addresses").fetchone() == ("",)
    postmaster = int((database.settings.data_dir / "postgres/postmaster.pid").read_text().split()[0])
    held = {str(link.readlink()) for link in Path(f"/proc/{postmaster}/fd").iterdir()}
    sockets = [line.split() for kind in ("tcp", "tcp6") for line in _lines(Path(f"/proc/net/{kind}"))]
    assert held.isdisjoint({f"socket:[{socket[9]}]" for socket in sockets})
    assert any(name.startswith("socket:") for name in held)


def _lines(table: Path) -> list[str]:
    return table.read_text().splitlines()[1:] if table.exists() else []


def test_the_record_of_a_month_is_kept_in_utc(owner: psycopg.Connection) -> None:
    """Whatever the session's time zone: the border of a month is not where somebody lives."""
    owner.execute("SET timezone = 'Pacific/Auckland'")
    bound = owner.execute(
        "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = %s", (PARTITION,)
    ).fetchone()
    first = datetime.strptime(PARTITION, "audit_logs_%Y_%m").replace(tzinfo=UTC)
    row = owner.execute("SELECT %s::timestamptz::text", (first,)).fetchone()
    assert bound is not None and row is not None and f"FROM ('{row[0]}')" in bound[0]
