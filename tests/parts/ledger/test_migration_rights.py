"""Who may not migrate is told which right is missing, and what an administrator must run: and that is enough."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from engine.errors import ConfigurationError
from engine.providers.postgres import EmbeddedPostgres
from engine.settings import HOUSE
from engine.storage.database import Database
from engine.storage.migrate import migrate
from engine.storage.rights import ROLES
from tests.command_line import affidavit
from tests.databases import empty_database

LAST = max(file.name for file in (HOUSE / "sql").glob("[0-9]*.sql"))


@pytest.fixture
def login(database: Database) -> Iterator[str]:
    with login_of(database) as name:
        yield name


@pytest.fixture
def second(database: Database) -> Iterator[str]:
    with login_of(database) as name:
        yield name


@contextlib.contextmanager
def login_of(database: Database) -> Iterator[str]:
    """Its name has to be quoted."""
    name = f'ops "{uuid4().hex[:8]}"'
    with psycopg.connect(database.url, autocommit=True) as superuser:
        superuser.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        yield name
        superuser.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture
def url(database: Database, login: str, second: str) -> Iterator[str]:
    """Made after the logins and dropped before them, because they own parts of it."""
    with empty_database(database) as made:
        yield made


def let_an_administrator_run(url: str, said: str) -> list[str]:
    """What the message says, as it is."""
    statements = [line.strip() for line in said.partition("\n\n")[2].splitlines()]
    with psycopg.connect(url, autocommit=True) as administrator:
        for statement in statements:
            administrator.execute(statement.encode())
    return statements


def migrate_as(url: str, login: str) -> list[str]:
    with psycopg.connect(make_conninfo(url, user=login)) as connection:
        return migrate(connection, HOUSE / "sql")


def test_a_login_without_rights_is_told_what_an_administrator_runs(url: str, login: str) -> None:
    said = affidavit("migrate", DATABASE_URL=make_conninfo(url, user=login))
    assert said.returncode == 1
    assert f"The login {login} cannot migrate this database" in said.stderr
    assert "ADMIN OPTION on affidavit_owner" in said.stderr and "Traceback" not in said.stderr
    with psycopg.connect(url) as looking:
        assert looking.execute("SELECT to_regclass('schema_migrations')").fetchone() == (None,)
    (grant, own) = let_an_administrator_run(url, said.stderr)
    assert grant.endswith("WITH ADMIN OPTION;") and own.startswith("ALTER DATABASE")
    assert migrate_as(url, login)[-1] == LAST


def test_another_login_than_the_first_is_told_whose_the_history_is(url: str, login: str, second: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        migrate_as(url, login)
    let_an_administrator_run(url, str(refused.value))
    migrate_as(url, login)
    with pytest.raises(ConfigurationError, match="did so before") as refused:
        migrate_as(url, second)
    assert let_an_administrator_run(url, str(refused.value))[0].startswith("GRANT")
    assert migrate_as(url, second) == []


def test_nobody_is_told_to_become_a_superuser(url: str, login: str) -> None:
    with psycopg.connect(url) as first:
        migrate(first, HOUSE / "sql")
    with pytest.raises(ConfigurationError, match=r"Migrate as postgres$") as refused:
        migrate_as(url, login)
    assert "GRANT" not in str(refused.value)


@pytest.mark.campaign
def test_on_a_new_server_the_roles_are_among_the_statements() -> None:
    with TemporaryDirectory(prefix="affidavit-test-", ignore_cleanup_errors=True) as folder:
        server = EmbeddedPostgres(Path(folder))
        server.start()
        try:
            with psycopg.connect(server.url, autocommit=True) as superuser:
                superuser.execute("CREATE ROLE site LOGIN; CREATE ROLE maker LOGIN CREATEROLE")
            with pytest.raises(ConfigurationError, match="It lacks CREATEROLE") as refused:
                migrate_as(server.url, "site")
            statements = let_an_administrator_run(server.url, str(refused.value))
            assert [line.split()[2] for line in statements[: len(ROLES)]] == list(ROLES)
            assert migrate_as(server.url, "site")[-1] == LAST
            with psycopg.connect(server.url, autocommit=True) as superuser:
                superuser.execute("CREATE DATABASE second")
            second = make_conninfo(server.url, dbname="second")
            with pytest.raises(ConfigurationError, match="which somebody else made") as refused:
                migrate_as(second, "maker")
            let_an_administrator_run(second, str(refused.value))
            assert migrate_as(second, "maker")[-1] == LAST
        finally:
            server.stop()
