"""PgBouncer between the engine and PostgreSQL: with sessions of its own all works; where they are shared, every command refuses."""

import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from audit.proof.keys import SigningKey
from audit.session import Session
from engine import wiring
from engine.errors import ConfigurationError
from engine.providers.postgres import ROOT_STAND_IN, EmbeddedPostgres
from engine.storage.database import as_role
from engine.storage.pooler import check_sessions
from tests.command_line import affidavit, affidavit_within
from tests.conftest import running
from tests.upstreams.pgbouncer import pooled

pytestmark = pytest.mark.campaign

DROPPING = "ignore_startup_parameters = options"  # many have it for other programs


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """Migrated, and PgBouncer may come in."""
    with TemporaryDirectory(prefix="affidavit-test-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        made = EmbeddedPostgres(Path(folder))
        made.start()
        with (Path(folder) / "postgres" / "pg_ident.conf").open("a") as names:
            names.write(f"house {ROOT_STAND_IN} all\n")
        made._run("pg_ctl", "reload", folder=made._home)
        assert affidavit("migrate", DATABASE_URL=made.url, data_dir=Path(folder)).returncode == 0
        yield made
        made.stop()


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="affidavit-test-", ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o755)
        yield Path(made)


REFUSED = {
    "transaction": ("transaction", "", "shares sessions between transactions"),
    "transaction, dropping": ("transaction", DROPPING, "shares sessions between transactions"),
    "statement": ("statement", "", "shares sessions between transactions"),
    "not reset": ("session", "server_reset_query =", "hands a session on with its role"),
    "one session": ("session", "default_pool_size = 1", "no second session"),
}  # fmt: skip


# Before, `doctor` took more than a minute, and `migrate` said "Check that it runs".
@pytest.mark.parametrize("pooler", REFUSED)
@pytest.mark.parametrize("command", ["doctor", "migrate", "audit seal --once", "serve --port 0"])
def test_a_pooler_that_shares_sessions_is_refused_in_words(
    server: EmbeddedPostgres, folder: Path, pooler: str, command: str
) -> None:
    mode, more, words = REFUSED[pooler]
    with pooled(server.url, folder / "pooler", mode, more) as url:
        said = affidavit(*command.split(), data_dir=folder / "data", DATABASE_URL=url)
    assert (said.returncode, words in said.stderr) == (1, True), said.stderr
    assert "name PostgreSQL itself in DATABASE_URL" in said.stderr
    assert "pool_mode = session" in said.stderr


# Before, a role was asked for at start-up: "refuses the settings", "drops the settings".
@pytest.mark.parametrize("more", ["", DROPPING], ids=["refusing", "dropping"])
def test_an_engine_works_through_a_pooler_of_sessions(
    server: EmbeddedPostgres, folder: Path, more: str
) -> None:
    data = folder / "data"
    data.mkdir()
    SigningKey.create(data / "signing.key")
    with pooled(server.url, folder / "pooler", "session", f"{more}\ndefault_pool_size = 60") as url:
        database = f"made_{'dropping' if more else 'refusing'}"
        with psycopg.connect(server.url, autocommit=True) as superuser:
            superuser.execute(f"CREATE DATABASE {database}".encode())
        address = make_conninfo(url, dbname=database)

        def run(*command: object) -> str:
            said = affidavit_within(600, *command, data_dir=data, DATABASE_URL=address)
            assert said.returncode == 0, (command, said.stdout, said.stderr)
            return said.stdout

        run("migrate")
        run("ingest", wiring.SAMPLE_BOOK, "--book", "physical-ai")
        key = run("keys", "create", "--client", "site").split()[-1]
        with running(data, command="serve", DATABASE_URL=address) as engine:
            for _ in range(3):
                told = httpx.post(
                    f"{engine.url}/v1/query", json={"query": "What does an IMU measure?"},
                    headers={"Authorization": f"Bearer {key}"}, timeout=10,
                )  # fmt: skip
                assert told.status_code == 200, told.text
        run("audit", "seal", "--once")
        assert run("audit", "verify").startswith("VALID")
        assert "3" in run("audit", "query", "SELECT count(*) FROM audit_logs WHERE endpoint = '/v1/query'")
        doctor = affidavit("doctor", data_dir=data, DATABASE_URL=address).stdout
        assert re.search(r"^ok +roles", doctor, re.MULTILINE), doctor


@pytest.mark.parametrize("more", ["", DROPPING], ids=["refusing", "dropping"])
def test_every_session_has_the_role_that_was_asked_for(
    server: EmbeddedPostgres, folder: Path, more: str
) -> None:
    """Also where a role before it had the same session of PostgreSQL's."""
    with pooled(server.url, folder / "pooler", "session", more) as url:
        for role in ("affidavit_auditor", "affidavit_engine", "affidavit_auditor"):
            with Session.connect(as_role(url, role)) as connection:
                found = connection.execute("SELECT current_user, current_setting('row_security')").fetchone()
                assert found == (role, "off")
                connection.rollback()  # takes nothing back
                assert connection.execute("SELECT current_user").fetchone() == (role,)
        with psycopg.connect(url) as other:
            assert other.execute("SELECT current_user").fetchone() == ("postgres",)


@pytest.mark.parametrize("mode", ["transaction", "statement", "session"])
async def test_sessions_that_are_shared_are_found(server: EmbeddedPostgres, folder: Path, mode: str) -> None:
    with pooled(server.url, folder / "pooler", mode) as url:
        if mode == "session":
            await check_sessions(url)
        else:
            with pytest.raises(ConfigurationError, match="shares sessions between transactions"):
                await check_sessions(url)


async def test_postgresql_itself_is_not_refused(server: EmbeddedPostgres) -> None:
    await check_sessions(server.url)


async def test_a_database_that_is_away_is_no_pooler() -> None:
    await check_sessions("postgresql://nobody@127.0.0.1:1/nothing")
