"""Who may do what, tried with every role: the log is insert-only for everybody, and nobody is trusted for being local."""

import os
import pwd
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from audit.ledger.partitions import months_from, partition_name
from audit.proof.keys import SigningKey
from audit.proof.record import Trail
from engine.providers.postgres import PROGRAMS
from engine.storage.database import Database
from engine.wiring import now
from tests.conftest import Records
from tests.databases import migrated_database
from tests.logs.recorded import make_months, write

PARENT, PARTITION = "audit_logs", partition_name(now().date())
ROLES = ("affidavit_engine", "affidavit_sealer", "affidavit_archiver", "affidavit_auditor")
ENGINE, SEALER, ARCHIVER, AUDITOR = ROLES
MONTHS = months_from(now().date(), 3)
EVIDENCE = (
    "audit_anchors",
    "audit_archives",
    "audit_breaks",
    "audit_head_anchors",
    "audit_head_entries",
    "audit_heads",
    "audit_checkpoints",
    "audit_erasure_requests",
    "audit_delegations",
    "audit_erasures",
    "audit_holds",
    "audit_keys",
    "audit_leaves",
    "audit_origin",
)
VERBS = {
    "SELECT": "SELECT count(*) FROM {}",
    "INSERT": "INSERT INTO {} DEFAULT VALUES",
    "UPDATE": "UPDATE {} SET reason = NULL",
    "DELETE": "DELETE FROM {}",
    "TRUNCATE": "TRUNCATE {}",
}
WHOLE = {  # verbs that need no column; none of them would change anything
    "SELECT": "SELECT FROM {table} LIMIT 0",
    "DELETE": "DELETE FROM {table} WHERE false",
    "TRUNCATE": "TRUNCATE {table}",
}
EACH_COLUMN = {
    "SELECT": "SELECT {column} FROM {table} LIMIT 0",
    "INSERT": "INSERT INTO {table} ({column}) VALUES (DEFAULT)",
    "UPDATE": "UPDATE {table} SET {column} = DEFAULT WHERE false",
}

# All that anybody may do, by table and view. What is not here is refused; a new table needs a line.
ALLOWED = {
    "api_keys": {ENGINE: "SELECT"},
    "audit_access": {AUDITOR: "SELECT"},
    "audit_anchors": {SEALER: "SELECT INSERT", AUDITOR: "SELECT", ARCHIVER: "SELECT"},
    "audit_archives": {ENGINE: "SELECT", SEALER: "SELECT", AUDITOR: "SELECT", ARCHIVER: "SELECT INSERT"},
    "audit_archives_step_seq": {},
    "audit_breaks": {SEALER: "SELECT INSERT", AUDITOR: "SELECT"},
    "audit_head_anchors": {SEALER: "SELECT INSERT", AUDITOR: "SELECT"},
    "audit_head_entries": {SEALER: "SELECT INSERT", AUDITOR: "SELECT"},
    "audit_heads": {SEALER: "SELECT INSERT", AUDITOR: "SELECT"},
    "audit_changes": {AUDITOR: "SELECT"},
    "audit_checkpoints": {ENGINE: "SELECT", SEALER: "SELECT INSERT", AUDITOR: "SELECT", ARCHIVER: "SELECT"},
    "audit_citations": {AUDITOR: "SELECT"},
    "audit_delegations": {ENGINE: "SELECT INSERT(line)", SEALER: "SELECT", AUDITOR: "SELECT", ARCHIVER: "SELECT"},
    "audit_delegations_number_seq": {},
    "audit_erasures": {SEALER: "SELECT(log_id,month)", AUDITOR: "SELECT", ARCHIVER: "SELECT"},
    "audit_erasure_requests": {AUDITOR: "SELECT", ARCHIVER: "SELECT"},
    "audit_feedback": {AUDITOR: "SELECT"},
    "audit_hold_subjects": {AUDITOR: "SELECT", ARCHIVER: "SELECT"},
    "audit_holds": {AUDITOR: "SELECT", ARCHIVER: "SELECT"},
    "audit_keys": {ENGINE: "SELECT", SEALER: "SELECT INSERT", AUDITOR: "SELECT", ARCHIVER: "SELECT"},
    "audit_leaves": {SEALER: "SELECT INSERT", AUDITOR: "SELECT", ARCHIVER: "SELECT"},
    "audit_locks": {},
    "audit_logs": {
        ENGINE: "INSERT", SEALER: "SELECT(leaf_hash,log_id,schema_version,signature,timestamp)", AUDITOR: "SELECT", ARCHIVER: "SELECT",
    },
    "audit_logs_YYYY_MM": {AUDITOR: "SELECT", ARCHIVER: "SELECT"},
    "audit_low_confidence": {AUDITOR: "SELECT"},
    "audit_months": {AUDITOR: "SELECT", ARCHIVER: "SELECT"},
    "audit_open": {
        ENGINE: "SELECT INSERT UPDATE(signature,trail) DELETE", AUDITOR: "SELECT", ARCHIVER: "SELECT",
    },
    "audit_origin": {SEALER: "SELECT", AUDITOR: "SELECT", ARCHIVER: "SELECT"},
    "audit_pepper": {ARCHIVER: "SELECT"},
    "audit_questions": {AUDITOR: "SELECT"},
    "audit_reporters": {},
    "audit_reads_waiting": {AUDITOR: "SELECT(login,read_at,read_id)"},
    "audit_refusals": {AUDITOR: "SELECT"},
    "audit_requests_by_day": {AUDITOR: "SELECT"},
    "audit_rollup_counts": {SEALER: "SELECT INSERT", AUDITOR: "SELECT"},
    "audit_rollup_sums": {SEALER: "SELECT INSERT", AUDITOR: "SELECT"},
    "audit_rollups": {SEALER: "SELECT INSERT DELETE", AUDITOR: "SELECT"},
    "audit_reviews": {AUDITOR: "SELECT"},
    "audit_row_keys": {ARCHIVER: "SELECT INSERT DELETE", AUDITOR: "SELECT(log_id,month)"},
    "audit_saved_views": {ENGINE: "SELECT INSERT DELETE"},
    "audit_set_aside": {AUDITOR: "SELECT", ARCHIVER: "SELECT"},
    "audit_slow_requests": {AUDITOR: "SELECT"},
    "books": {ENGINE: "SELECT INSERT UPDATE(live_generation,title)", AUDITOR: "SELECT"},
    "calibrations": {ENGINE: "SELECT", AUDITOR: "SELECT"},
    "chat_messages": {ENGINE: "SELECT INSERT"},
    "chat_messages_number_seq": {},
    "api_key_uses": {ENGINE: "INSERT"},
    "chat_sessions": {ENGINE: "SELECT INSERT UPDATE(last_activity_at) DELETE"},
    "chunks": {ENGINE: "SELECT INSERT", AUDITOR: "SELECT"},
    "console_people": {ENGINE: "SELECT INSERT(issuer,person_id,subject) UPDATE(last_seen_at) DELETE"},
    "console_sessions": {ENGINE: "SELECT INSERT(digest,granted,key_id,person_id) UPDATE(last_seen_at) DELETE"},
    "console_sign_ins": {ENGINE: "SELECT INSERT(digest) DELETE"},
    "documents": {ENGINE: "SELECT INSERT DELETE", AUDITOR: "SELECT"},
    "embeddings": {ENGINE: "SELECT INSERT"},
    "generation_chunks": {ENGINE: "SELECT INSERT DELETE", AUDITOR: "SELECT"},
    "generation_terms": {ENGINE: "SELECT INSERT DELETE"},
    "generations": {
        ENGINE: "SELECT INSERT UPDATE(calibration,index_checked_at,index_digest,published_at,reading,state) DELETE", AUDITOR: "SELECT",
    },
    "verification_runs": {ENGINE: "SELECT INSERT UPDATE", AUDITOR: "SELECT"},
    "source_citations": {ENGINE: "SELECT INSERT"},
    "schema_migrations": {ENGINE: "SELECT", AUDITOR: "SELECT"},
}  # fmt: skip
CALLED_BY: dict[str, list[str] | None] = {
    "audit_active_holds": [ARCHIVER],
    "audit_ask_erasure": [ARCHIVER],
    "audit_change_hold": [ARCHIVER],
    "audit_claim": [ARCHIVER, ENGINE],
    "audit_count_held": [ARCHIVER, AUDITOR],
    "audit_count_held_before": [ARCHIVER],
    "audit_covers": None,
    "audit_disk_writers": [AUDITOR],
    "audit_end_read": [AUDITOR],
    "audit_end_requests": [ARCHIVER],
    "audit_erase": [ARCHIVER],
    "audit_empty_open": [ARCHIVER],
    "audit_forget_sessions": [ARCHIVER],
    "audit_forget_subjects": [ARCHIVER],
    "audit_forget_turn": [ARCHIVER],
    "audit_held_sessions": [ENGINE],
    "audit_holds": [ENGINE],
    "audit_holds_against": [ARCHIVER],
    "audit_holds_delaying": [ARCHIVER, AUDITOR],
    "audit_is_erased": None,
    "audit_is_erasure_due": [ENGINE],
    "audit_is_held": [AUDITOR],
    "audit_is_month_held": [ARCHIVER],
    "audit_is_open_held": None,
    "audit_is_session_held": [ENGINE],
    "audit_is_turn_held": None,
    "audit_keep_commitments": [ARCHIVER],
    "audit_keys_to_destroy": [ARCHIVER],
    "audit_lock": [ARCHIVER, ENGINE, SEALER],
    "audit_make_month": [ENGINE],
    "audit_open_of": [ARCHIVER],
    "audit_open_to_empty": [ARCHIVER],
    "audit_personal_columns": None,
    "audit_put_aside": [ARCHIVER],
    "audit_report_read": [AUDITOR],
    "audit_rollup_rows": [AUDITOR, SEALER],
    "audit_say_held": None,
    "audit_search_words": [ARCHIVER, AUDITOR, ENGINE],
    "audit_sessions": [ARCHIVER, ENGINE],
    "audit_share_holds": [ARCHIVER],
    "audit_tables": None,
    "audit_take_reads": [ENGINE],
    "audit_to_erase": [ARCHIVER],
    "audit_turns": [ARCHIVER],
    "audit_unsealed_of": [ARCHIVER],
    "audit_write": [ENGINE],
    "purge_old_chat_sessions": [ENGINE],
}

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another system user")


@pytest.fixture(scope="module", autouse=True)
def row(database: Database) -> Trail:
    """A whole row, so that a verb that touches rows has one to touch."""
    trail = Trail(
        log_id=uuid4(), query_id=uuid4(), timestamp=now(), endpoint="test", user_query_text="What is it?",
        outcome="refused", reason="not_covered", filters={"module": 1}, citations=[], chunks_returned=[],
    )  # fmt: skip
    key = SigningKey.ensured(database.settings.data_dir / database.settings.audit.signing_key_file)
    with logged_in(database, ENGINE) as connection:
        write(connection, trail, key=key)
    return trail


@pytest.fixture(scope="module")
def fresh(database: Database) -> Iterator[Database]:
    """A database of its own in the running server, with what the migrations make and nothing else."""
    with migrated_database(database) as made:
        with psycopg.connect(made.url) as within:
            make_months(within, MONTHS)
        yield made


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


def relations(database: Database) -> dict[str, list[str]]:
    """Every table and view of the house with its columns, whoever made it and whatever its schema."""
    with psycopg.connect(database.url) as connection:
        rows = connection.execute(
            "SELECT c.oid::regclass::text, array_agg(a.attname) FROM pg_class c"
            " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
            " WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.relnamespace NOT IN"
            " ('pg_catalog'::regnamespace, 'information_schema'::regnamespace, 'pg_toast'::regnamespace)"
            " GROUP BY c.oid ORDER BY 1"
        ).fetchall()
    return dict(rows)


def is_let(connection: psycopg.Connection, statement: str) -> bool:
    """Whether it gets past the grants; what comes then does not matter here."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(statement.encode())
    except errors.InsufficientPrivilege as refusal:
        return "permission denied for" not in str(refusal)  # a trigger's refusal is no grant's
    except (errors.ObjectNotInPrerequisiteState, errors.WrongObjectType, errors.FeatureNotSupported):
        return False  # a view that cannot be written to
    except psycopg.Error:
        return True
    return True


def may(connection: psycopg.Connection, table: str, columns: list[str]) -> str:
    """What this login may do with it, as `ALLOWED` writes it."""
    found = []
    for verb in ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE"):
        if verb in EACH_COLUMN:
            let = [
                column
                for column in columns
                if is_let(connection, EACH_COLUMN[verb].format(table=table, column=f'"{column}"'))
            ]
            found += [verb if let == columns else f"{verb}({','.join(sorted(let))})"] if let else []
        if verb in WHOLE and not any(word.startswith(verb) for word in found):
            found += [verb] if is_let(connection, WHOLE[verb].format(table=table)) else []
    return " ".join(found)


# Seen red with SELECT on audit_logs for the engine, UPDATE (reason) on a partition for the archiver, TRUNCATE on
# audit_keys for the sealer, and with a table that has no line.
@pytest.mark.parametrize("role", ROLES)
def test_each_role_may_do_with_each_table_what_is_allowed_and_nothing_else(
    fresh: Database, role: str
) -> None:
    with psycopg.connect(make_conninfo(fresh.url, user=role)) as connection:
        found = {table: may(connection, table, columns) for table, columns in relations(fresh).items()}
    expected = {table: ALLOWED[kind_of(table)].get(role, "") for table in found}
    assert found == expected


def test_every_line_of_what_is_allowed_has_its_table(fresh: Database) -> None:
    assert {kind_of(table) for table in relations(fresh)} == set(ALLOWED)


def kind_of(table: str) -> str:
    return re.sub(r"^audit_logs_\d{4}_\d{2}$", "audit_logs_YYYY_MM", table)


# Seen red with SELECT on a view for PUBLIC.
def test_nobody_else_was_granted_anything(fresh: Database) -> None:
    """Not PUBLIC, not a role of elsewhere; and no right to hang triggers on a table or to refer to it."""
    with psycopg.connect(fresh.url) as connection:
        rows = connection.execute(
            "SELECT relname, grantee::regrole::text, privilege_type FROM pg_class, aclexplode(relacl)"
            " WHERE relnamespace = 'public'::regnamespace AND grantee <> relowner"
            " AND (grantee::regrole::text <> ALL(%s) OR privilege_type IN ('REFERENCES', 'TRIGGER', 'MAINTAIN')"
            "      OR is_grantable)",
            (list(ROLES),),
        ).fetchall()
    assert rows == []


def test_each_function_is_called_by_those_it_is_for(fresh: Database) -> None:
    with psycopg.connect(fresh.url) as connection:
        rows = connection.execute(
            "SELECT proname, array_agg(role ORDER BY role) FILTER (WHERE has_function_privilege(role, oid, 'EXECUTE'))"
            " FROM pg_proc, unnest(%s::text[]) AS role"
            " WHERE pronamespace = 'public'::regnamespace AND prorettype <> 'trigger'::regtype GROUP BY proname",
            (list(ROLES),),
        ).fetchall()
    assert dict(rows) == CALLED_BY


# Seen red with `SET search_path` taken from `audit_make_month`.
def test_a_function_with_its_owners_rights_looks_for_names_in_one_place(fresh: Database) -> None:
    with psycopg.connect(fresh.url) as connection:
        rows = connection.execute(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosecdef"
            " AND NOT coalesce(proconfig @> ARRAY['search_path=public, pg_temp'], false)"
        ).fetchall()
    assert rows == []


@pytest.mark.parametrize("table", [PARENT, PARTITION])
def test_the_auditor_reads_the_log(database: Database, row: Trail, table: str) -> None:
    with logged_in(database, "affidavit_auditor") as connection:
        query = f"SELECT count(*) FROM {table} WHERE query_id = %s"
        assert connection.execute(query.encode(), (row.query_id,)).fetchone() == (1,)


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


WAYS = (
    "SET ROLE affidavit_owner",
    "SET SESSION AUTHORIZATION postgres",
    "SET session_replication_role = replica",
    "CREATE TABLE mine (n int)",
    "CREATE SCHEMA mine",
    "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "SELECT rolpassword FROM pg_authid",
    "SELECT pg_read_file('postgresql.conf')",
    "COPY audit_open TO PROGRAM 'cat'",
    "ALTER TABLE audit_leaves DISABLE TRIGGER ALL",
    "DROP TABLE audit_anchors",
    "DROP VIEW audit_questions",
    "ALTER SYSTEM SET fsync = off",
    "GRANT affidavit_owner TO affidavit_engine",
    "SELECT pg_stat_reset()",
    "SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000))",
    "SELECT pg_logical_emit_message(true, 'x', repeat('x', 1000)::bytea)",
    "SELECT lo_creat(-1)",
    "SELECT lo_create(0)",
    "SELECT lo_from_bytea(0, repeat('x', 1000)::bytea)",
    "SELECT lo_put(1, 0, 'x')",
    "SELECT lo_truncate64(lo_open(1, 131072), 1000000000000)",
    "SELECT lowrite(lo_open(1, 131072), 'x')",
    "SELECT lo_unlink(1)",
    "SELECT lo_import('/etc/hostname')",
)


# The large objects and messages were seen red before sql/0025: with an auditor's login they filled the disk.
# A table is detached and dropped by its owner; what keeps it then: tests/parts/archive/test_drop_guard.py.
@pytest.mark.parametrize(
    ("role", "statement"),
    [way for way in product(ROLES, WAYS) if way != (ARCHIVER, "SET ROLE affidavit_owner")],
)
def test_no_role_finds_a_way_around(database: Database, role: str, statement: str) -> None:
    with logged_in(database, role) as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute(statement.encode())


@pytest.mark.parametrize(("role", "other"), [pair for pair in product(ROLES, ROLES) if pair[0] != pair[1]])
def test_no_role_becomes_another(database: Database, role: str, other: str) -> None:
    with logged_in(database, role) as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute(f"SET ROLE {other}".encode())


# Seen red with the triggers left out, and on the partition's TRUNCATE with only that trigger left out.
@pytest.mark.parametrize("role", ["postgres", "affidavit_owner"])
@pytest.mark.parametrize("verb", ["UPDATE", "DELETE", "TRUNCATE"])
def test_even_the_owner_changes_no_record_of_any_month(fresh: Database, role: str, verb: str) -> None:
    with psycopg.connect(fresh.url) as connection:
        for month in MONTHS:
            when = datetime(month.year, month.month, 1, tzinfo=UTC)
            write(connection, Trail(log_id=uuid4(), query_id=uuid4(), timestamp=when, endpoint="test"))
        connection.execute(f"SET LOCAL ROLE {role}".encode())
        for table in (PARENT, *map(partition_name, MONTHS)):
            with pytest.raises(errors.InsufficientPrivilege, match=f"insert-only: {verb} is refused"):
                with connection.transaction():
                    connection.execute(VERBS[verb].format(table).encode())
        connection.rollback()


# Seen red with audit_origin left out of the loop that makes the triggers.
@pytest.mark.parametrize("role", ["postgres", "affidavit_owner"])
@pytest.mark.parametrize("verb", ["UPDATE", "DELETE", "TRUNCATE"])
def test_even_the_owner_changes_no_evidence(fresh: Database, role: str, verb: str) -> None:
    columns = relations(fresh)
    with psycopg.connect(fresh.url) as connection:
        connection.execute(f"SET LOCAL ROLE {role}".encode())
        for table in EVIDENCE:
            statement = {
                "UPDATE": f"UPDATE {table} SET {columns[table][0]} = DEFAULT",
                "DELETE": f"DELETE FROM {table}",
                "TRUNCATE": f"TRUNCATE {table}",
            }[verb]
            with pytest.raises(
                errors.InsufficientPrivilege, match=f"{table} is insert-only: {verb} is refused"
            ):
                with connection.transaction():
                    connection.execute(statement.encode())


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
