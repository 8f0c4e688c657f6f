"""The database login of docs/how-to/postgresql-rights.md, made with the page's own SQL: `serve` needs all that it grants."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from engine.storage.database import Database
from tests.conftest import Records, running
from tests.manual.documented import PAGES

SECTIONS = dict(
    re.findall(
        r"^## (.+?)\n(.+?)(?=^## |\Z)", PAGES["docs/how-to/postgresql-rights.md"], re.MULTILINE | re.DOTALL
    )
)
pytestmark = pytest.mark.campaign  # each start of `serve` takes some seconds
LOGIN, AUDITOR = "site", "auditor_2026"
SEALED_S = 60


def shown(section: str) -> str:
    (statements,) = re.findall(r"```sql\n(.+?)```", SECTIONS[section], re.DOTALL)
    return str(statements)


GRANTED = re.search(rf"GRANT (.+) TO {LOGIN};", shown("The engine's login"))[1].split(", ")  # type: ignore[index]


@pytest.fixture
def superuser(database: Database) -> Iterator[psycopg.Connection]:
    """After the page's SQL; afterwards the server knows neither login."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        try:
            for section in ("The engine's login", "An auditor's login"):
                connection.execute(shown(section).encode())
            yield connection
        finally:
            for login in (LOGIN, AUDITOR):
                connection.execute(f"DROP ROLE IF EXISTS {login}".encode())


def as_login(database: Database, login: str) -> str:
    return make_conninfo(database.url, user=login)


def test_the_login_of_the_page_is_enough_to_answer_and_to_seal(
    superuser: psycopg.Connection, database: Database, data_dir: Path, key: str, records: Records
) -> None:
    with running(data_dir, command="serve", DATABASE_URL=as_login(database, LOGIN)) as engine:
        asked = httpx.post(
            f"{engine.url}/v1/query", json={"query": "What does an IMU measure?"},
            headers={"Authorization": f"Bearer {key}"}, timeout=10,
        ).json()  # fmt: skip
        assert asked["outcome"] == "answered", asked
        (row,) = records.of(asked["query_id"])
        deadline = time.monotonic() + SEALED_S
        while not superuser.execute("SELECT FROM audit_leaves WHERE log_id = %s", [row["log_id"]]).rowcount:
            assert time.monotonic() < deadline, "it was not sealed"
            time.sleep(0.1)


# Seen red: the message said only that the database does not run or has another address.
@pytest.mark.parametrize("missing", GRANTED)
def test_serve_needs_each_of_the_roles_and_names_the_one_that_is_missing(
    superuser: psycopg.Connection, database: Database, data_dir: Path, missing: str
) -> None:
    superuser.execute(f"REVOKE {missing} FROM {LOGIN}".encode())
    needed = f"No connection to the database as {missing} within 5 s: its login is not a member of that role"
    with (
        pytest.raises(AssertionError, match=needed),
        running(data_dir, command="serve", DATABASE_URL=as_login(database, LOGIN)),
    ):
        pass


def test_the_auditors_login_reads_the_log_and_becomes_nobody_else(
    superuser: psycopg.Connection, database: Database
) -> None:
    with psycopg.connect(as_login(database, AUDITOR), autocommit=True) as auditor:
        auditor.execute("SELECT count(*) FROM audit_logs")
        for role in [granted for granted in GRANTED if granted != "affidavit_auditor"]:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                auditor.execute(f"SET ROLE {role}".encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            auditor.execute("DELETE FROM audit_logs")
