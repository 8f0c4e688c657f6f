"""What weakens the database's word is found: no setting of the server, a database or a role, and no table goes unseen."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from audit.ledger.database_writer import failover_losses, weaknesses
from audit.ledger.spool import ASIDE_FILE
from audit.proof.keys import SigningKey, public_file
from audit.proof.record import Trail
from engine import settings as settings_file
from engine import wiring
from engine.cli.doctor import examine
from engine.errors import ConfigurationError
from engine.storage.database import Database
from engine.wiring import now
from engine.wiring.signing import row_key
from tests.databases import migrated_database
from tests.logs.recorded import write

LOGIN = "durability_login"


@pytest.fixture(scope="module")
async def own(anyio_backend: str) -> AsyncIterator[Database]:
    """A server of its own: its settings are spoilt here."""
    with TemporaryDirectory(prefix="affidavit-test-", ignore_cleanup_errors=True) as folder:
        settings = settings_file.load({}, data_dir=Path(folder))
        async with wiring.open_database(settings, lambda _: None) as opened:
            yield opened


@pytest.fixture
def superuser(own: Database) -> Iterator[psycopg.Connection]:
    with psycopg.connect(own.url, autocommit=True) as connection:
        yield connection


async def found(database: Database, user: str = "affidavit_engine") -> list[str]:
    async with await psycopg.AsyncConnection.connect(make_conninfo(database.url, user=user)) as connection:
        return await weaknesses(connection)


async def test_our_own_server_has_none(own: Database) -> None:
    assert await found(own) == []


# Seen red with `full_page_writes` left out of what is looked at.
@pytest.mark.parametrize("name", ["fsync", "full_page_writes"])
async def test_a_setting_of_the_server_is_found(
    own: Database, superuser: psycopg.Connection, name: str
) -> None:
    superuser.execute(f"ALTER SYSTEM SET {name} = off".encode())
    superuser.execute("SELECT pg_reload_conf()")
    try:
        while superuser.execute(f"SHOW {name}".encode()).fetchone() != ("off",):
            """The server reads its file when it comes to it."""
        said = await found(own)
        assert len(said) == 1
        assert said[0].startswith(f"{name} is off: a power cut")
    finally:
        superuser.execute(f"ALTER SYSTEM RESET {name}".encode())
        superuser.execute("SELECT pg_reload_conf()")
        while superuser.execute(f"SHOW {name}".encode()).fetchone() != ("on",):
            """Else the next test would see it."""


# Each seen red with its part of the WHERE taken out.
@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        ("ROLE affidavit_engine", "off", "synchronous_commit=off for the role affidavit_engine in all databases"),
        ("ROLE affidavit_sealer", "local", "synchronous_commit=local for the role affidavit_sealer in all databases"),
        ("ROLE affidavit_owner", "remote_write", "=remote_write for the role affidavit_owner in all databases"),
        ("ROLE affidavit_engine IN DATABASE affidavit", "FALSE", "the role affidavit_engine in this database"),
        ("DATABASE affidavit", "'0'", "for all roles in this database"),
        ("ROLE ALL", "no", "for all roles in all databases"),
    ],
)  # fmt: skip
async def test_a_setting_of_a_role_or_database_is_found(
    own: Database, superuser: psycopg.Connection, where: str, value: str, words: str
) -> None:
    superuser.execute(f"ALTER {where} SET synchronous_commit = {value}".encode())
    try:
        assert words in " ".join(await found(own))
        assert words in " ".join(await found(own, "affidavit_auditor"))
        superuser.execute((await found(own))[0].partition("Run: ")[2].encode())
        assert await found(own) == []
    finally:
        superuser.execute(f"ALTER {where} RESET synchronous_commit".encode())
    assert await found(own) == []


async def test_what_the_login_of_this_session_got_from_elsewhere_is_found(own: Database) -> None:
    url = make_conninfo(own.url, user="affidavit_engine", options="-c synchronous_commit=off")
    async with await psycopg.AsyncConnection.connect(url) as connection:
        (said,) = await weaknesses(connection)
        assert said.startswith("synchronous_commit is off")
        await connection.execute("SET LOCAL synchronous_commit = on")
        assert len(await weaknesses(connection)) == 1


@pytest.mark.parametrize("value", ["on", "remote_apply", "true"])
async def test_what_is_as_strong_is_no_weakness(
    own: Database, superuser: psycopg.Connection, value: str
) -> None:
    superuser.execute(f"ALTER ROLE affidavit_engine SET synchronous_commit = {value}".encode())
    try:
        assert await found(own) == []
    finally:
        superuser.execute("ALTER ROLE affidavit_engine RESET synchronous_commit")


async def test_what_others_do_with_their_own_is_no_weakness_of_ours(
    own: Database, superuser: psycopg.Connection
) -> None:
    """A role for reports, another database on the same server: the log must not stop for them."""
    other = sql.Identifier(f"other_{uuid4().hex}")
    superuser.execute(f"CREATE ROLE {LOGIN}".encode())
    superuser.execute(sql.SQL("CREATE DATABASE {}").format(other))
    try:
        superuser.execute(f"ALTER ROLE {LOGIN} SET synchronous_commit = off".encode())
        superuser.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(other))
        assert await found(own) == []
    finally:
        superuser.execute(f"DROP ROLE {LOGIN}".encode())
        superuser.execute(sql.SQL("DROP DATABASE {}").format(other))


async def test_a_table_that_a_crash_would_empty_is_found(
    own: Database, superuser: psycopg.Connection
) -> None:
    superuser.execute("ALTER TABLE audit_open SET UNLOGGED")
    try:
        (said,) = await found(own)
        assert said.startswith("The table audit_open is not logged")
    finally:
        superuser.execute("ALTER TABLE audit_open SET LOGGED")


@contextmanager
def receiving(own: Database, superuser: psycopg.Connection) -> Iterator[None]:
    """Something that receives the write-ahead log, as a standby does."""
    rules = own.settings.data_dir / "postgres" / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(before + "local replication all peer map=house\n")
    superuser.execute("SELECT pg_reload_conf()")
    try:
        with contextlib.ExitStack() as standby:
            while True:
                with contextlib.suppress(
                    psycopg.OperationalError
                ):  # the server reads its file when it comes to it
                    standby.enter_context(
                        psycopg.connect(make_conninfo(own.url, replication="true"), autocommit=True)
                    )
                    break
            yield
    finally:
        rules.write_text(before)
        superuser.execute("SELECT pg_reload_conf()")


async def test_doctor_says_what_a_failover_to_an_asynchronous_standby_would_lose(
    own: Database, superuser: psycopg.Connection
) -> None:
    assert (await of_doctor(own, "replication"))[0] == "ok"
    with receiving(own, superuser):
        state, words = await of_doctor(own, "replication")
        assert (state, "1 standbys" in words, "synchronous_standby_names" in words) == ("failed", True, True)
        assert await wiring.warnings_at_start(own.settings, own) == [words]
        async with await psycopg.AsyncConnection.connect(
            make_conninfo(own.url, user="affidavit_engine")
        ) as unprivileged:
            assert await failover_losses(unprivileged) == words
        for statement in words.partition("run: ")[2].split("; "):
            superuser.execute(statement.encode())
        try:
            with psycopg.connect(own.url, autocommit=True) as looking:
                while looking.execute("SHOW synchronous_standby_names").fetchone() == ("",):
                    """The server reads its file when it comes to it."""
                async with await psycopg.AsyncConnection.connect(own.url) as connection:
                    assert await failover_losses(connection) == ""
        finally:
            superuser.execute("ALTER SYSTEM RESET synchronous_standby_names")
            superuser.execute("SELECT pg_reload_conf()")


async def of_doctor(own: Database, part: str) -> tuple[str, str]:
    findings = {finding.part: finding for finding in await examine(own.settings, own)}
    return findings[part].state, findings[part].words


# Before: a traceback, because the history of the migrations was to be made again.
async def test_a_database_that_takes_no_writes_is_opened_and_doctor_says_so(
    own: Database, superuser: psycopg.Connection
) -> None:
    assert (await of_doctor(own, "database"))[0] == "ok"
    change = f"ALTER DATABASE {superuser.info.dbname} SET default_transaction_read_only = "
    superuser.execute(f"{change} on".encode())
    try:
        with pytest.raises(ConfigurationError, match="takes no writes"):
            async with wiring.open_database(own.settings) as again:
                await wiring.make_months_ahead(again, now().date())
        state, words = await of_doctor(own, "database")
        assert (state, "default_transaction_read_only is on" in words) == ("failed", True)
        with psycopg.connect(superuser.info.dsn, autocommit=True) as owner:  # begins as read-only as any
            owner.execute(words.partition("run as its owner: ")[2].encode())
        assert (await of_doctor(own, "database"))[0] == "ok"
    finally:
        superuser.execute(f"{change} off".encode())


async def test_doctor_says_it(own: Database, superuser: psycopg.Connection) -> None:
    assert (await of_doctor(own, "durability"))[0] == "ok"
    superuser.execute("ALTER ROLE affidavit_engine SET synchronous_commit = off")
    try:
        state, words = await of_doctor(own, "durability")
        assert (state, "affidavit_engine" in words) == ("failed", True)
    finally:
        superuser.execute("ALTER ROLE affidavit_engine RESET synchronous_commit")


# Seen red with each of them left out of `QUIET`.
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log_error_verbosity", "default"), ("log_min_messages", "warning"), ("log_min_error_statement", "error"),
        ("log_statement", "mod"), ("log_min_duration_statement", "0"), ("log_parameter_max_length_on_error", "-1"),
    ],
)  # fmt: skip
async def test_doctor_says_if_the_log_of_a_server_would_repeat_rows(
    own: Database, superuser: psycopg.Connection, name: str, value: str
) -> None:
    assert (await of_doctor(own, "server log"))[0] == "ok"
    superuser.execute(f"ALTER DATABASE affidavit SET {name} = '{value}'".encode())
    try:
        state, words = await of_doctor(own, "server log")
        assert state == "failed"
        assert f"{name} = " in words
        superuser.execute(words.partition("run as a superuser: ")[2].encode())
        assert (await of_doctor(own, "server log"))[0] == "ok"
    finally:
        superuser.execute(f"ALTER DATABASE affidavit RESET {name}".encode())


@pytest.fixture
def unsigned(own: Database, tmp_path: Path) -> Iterator[Database]:
    """A log that nobody has signed, with a data folder of its own."""
    with migrated_database(own) as made:
        yield Database(made.url, settings_file.load({}, data_dir=tmp_path))


async def test_doctor_looks_after_the_signing_key(unsigned: Database) -> None:
    own, path = unsigned, unsigned.settings.data_dir / unsigned.settings.audit.signing_key_file
    assert await of_doctor(own, "signing key") == ("ok", "created at first use")
    key = SigningKey.ensured(path)
    assert await of_doctor(own, "signing key") == ("ok", f"{key.key_id}, 1 public keys in signing.key.pub")
    public_file(path).write_text(f"{SigningKey.create(path.with_name('another.key')).public}\n")
    state, words = await of_doctor(own, "signing key")
    assert (state, f"lacks {key.public}" in words) == ("failed", True)
    path.chmod(0o644)
    state, words = await of_doctor(own, "signing key")
    assert (state, "can be read by others" in words) == ("failed", True)


async def test_doctor_says_what_waits_in_the_spool(own: Database) -> None:
    folder = own.settings.data_dir / own.settings.audit.spool_dir
    assert await of_doctor(own, "spool") == ("ok", f"{folder}, empty")
    folder.mkdir(exist_ok=True)
    aside = folder / ASIDE_FILE
    aside.write_text("digest an entry\n")
    try:
        state, words = await of_doctor(own, "spool")
        assert (state, words.startswith("1 entries in")) == ("missing", True)
    finally:
        aside.unlink()


# Seen red with only the rows looked at: with the vault away, all seemed well.
async def test_doctor_says_what_is_not_sealed_or_anchored(
    own: Database, superuser: psycopg.Connection
) -> None:
    late = wiring.now() - timedelta(minutes=2)
    superuser.execute("SELECT audit_make_month(%s)", (late.date(),))
    signer = row_key(own).at(late)
    write(superuser, Trail(log_id=uuid4(), query_id=uuid4(), timestamp=late, endpoint="test"), key=signer)
    state, words = await of_doctor(own, "sealing")
    assert (state, words.startswith("1 records are not sealed")) == ("failed", True), words
    superuser.execute("SET session_replication_role = replica")
    superuser.execute("DELETE FROM audit_logs")
    superuser.execute("TRUNCATE audit_leaves, audit_checkpoints, audit_anchors")
    superuser.execute("INSERT INTO audit_checkpoints VALUES ('2031-01-01', 3, 'note', %s)", (late,))
    assert await of_doctor(own, "sealing") == (
        "failed",
        "2031-01 not anchored: check that the vault can be written",
    )
    superuser.execute("INSERT INTO audit_anchors VALUES ('2031-01-01', 3, 'k', 'v', %s)", (late,))
    state, words = await of_doctor(own, "sealing")
    assert (state, words.startswith("2031-01: 3 sealed, 3 anchored, last at")) == ("ok", True)
    superuser.execute("TRUNCATE audit_checkpoints, audit_anchors")
