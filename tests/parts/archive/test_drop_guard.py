"""No table of the log goes before its month was read back from the vault and found whole."""

from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg import errors

from engine.cli import doctor
from engine.storage.database import Database
from tests.logs.archiving import tables
from tests.logs.sealed_log import JANUARY, SealedLog, sealed_log

VERIFIED = """
INSERT INTO audit_archives (month, state, rows, manifest_key, manifest_version, manifest_sha256)
VALUES (%s, 'verified', 5, 'k', 'v', 's')
"""


@pytest.fixture(scope="module")
async def log(
    anyio_backend: str, database: Database, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path_factory.mktemp("log")) as made:
        yield made


def is_refused(log: SealedLog, *statements: str, role: str | None = None) -> bool:
    """As the superuser, or as a role of the house. Nothing is changed."""
    with psycopg.connect(log.url) as connection:
        try:
            if role:
                connection.execute(f"SET ROLE {role}".encode())
            for statement in statements:
                connection.execute(statement.encode())
        except errors.InsufficientPrivilege as refused:
            return "and stays" in str(refused) or "archived stays" in str(refused)
        finally:
            connection.rollback()
    return False


# Seen red with the event trigger left out, and with `m.relation = d.objid` compared by name.
@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE audit_logs_2025_01"],
        ["DROP TABLE audit_logs_2025_01 CASCADE"],
        ["DROP TABLE audit_logs CASCADE"],
        ["DROP SCHEMA public CASCADE"],
        ["ALTER TABLE audit_logs DETACH PARTITION audit_logs_2025_01", "DROP TABLE audit_logs_2025_01"],
        ["ALTER TABLE audit_logs_2025_01 RENAME TO scrap", "DROP TABLE scrap"],
        [
            "CREATE SCHEMA elsewhere", "ALTER TABLE audit_logs_2025_01 SET SCHEMA elsewhere",
            "DROP SCHEMA elsewhere CASCADE",
        ],
        ["ALTER TABLE audit_logs DROP COLUMN answer_text CASCADE"],
        ["ALTER TABLE audit_logs RENAME TO requests", "DROP TABLE requests CASCADE"],
        ["DROP OWNED BY affidavit_owner CASCADE"],
    ],
    ids=" / ".join,
)  # fmt: skip
def test_a_table_of_the_log_is_not_dropped_whatever_it_is_called(
    log: SealedLog, statements: list[str]
) -> None:
    assert is_refused(log, *statements)
    assert {"audit_logs_2025_01", "audit_logs_2025_02"} <= tables(log)


@pytest.mark.parametrize("role", ["affidavit_owner", "affidavit_archiver"])
def test_the_owner_of_the_tables_is_refused_too(log: SealedLog, role: str) -> None:
    assert is_refused(log, "SET ROLE affidavit_owner", "DROP TABLE audit_logs_2025_01", role=role)


def test_a_month_that_is_only_uploaded_is_not_dropped(log: SealedLog) -> None:
    with psycopg.connect(log.url) as connection:
        connection.execute(VERIFIED.replace("verified", "uploaded").encode(), (JANUARY,))
        with pytest.raises(errors.InsufficientPrivilege, match="no verified archive"):
            connection.execute("DROP TABLE audit_logs_2025_01")
        connection.rollback()


def test_the_verified_archive_of_one_month_lets_no_other_go(log: SealedLog) -> None:
    with psycopg.connect(log.url) as connection:
        connection.execute(VERIFIED.encode(), (JANUARY,))
        with connection.transaction(force_rollback=True):
            connection.execute("DROP TABLE audit_logs_2025_01")
        with pytest.raises(errors.InsufficientPrivilege, match="audit_logs_2025_02"):
            connection.execute("DROP TABLE audit_logs_2025_01, audit_logs_2025_02")
        connection.rollback()


def test_other_tables_are_dropped_as_ever(log: SealedLog) -> None:
    with psycopg.connect(log.url) as connection:
        connection.execute("CREATE TABLE scrap (id int)")
        connection.execute("DROP TABLE scrap")
        connection.rollback()


def test_nobody_of_the_house_can_take_the_guard_away(log: SealedLog) -> None:
    for statement in (
        "DROP EVENT TRIGGER audit_refuse_drop",
        "ALTER EVENT TRIGGER audit_refuse_drop DISABLE",
        "DROP FUNCTION audit_guard.refuse_drop CASCADE",
        "DROP SCHEMA audit_guard CASCADE",
        "CREATE OR REPLACE FUNCTION audit_guard.refuse_drop() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'",
    ):
        with psycopg.connect(log.url) as connection:
            connection.execute("SET ROLE affidavit_owner")
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(statement.encode())


async def test_doctor_says_whether_the_guard_stands(log: SealedLog) -> None:
    settings = log.database.settings
    assert (await doctor._drop_guard(settings, log.database))[0] == "ok"
    with psycopg.connect(log.url) as connection:
        connection.execute("ALTER EVENT TRIGGER audit_refuse_drop DISABLE")
    assert (await doctor._drop_guard(settings, log.database))[0] == "missing"
    with psycopg.connect(log.url) as connection:
        connection.execute("ALTER EVENT TRIGGER audit_refuse_drop ENABLE")
