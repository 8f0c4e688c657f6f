"""Databases of a test's own in the running server, and tables that are locked."""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from audit.proof.keys import SigningKey
from engine import settings as settings_file
from engine import wiring
from engine.providers.postgres import EmbeddedPostgres
from engine.settings import Settings
from engine.storage.database import Database
from engine.wiring import now
from tests.conftest import free_port


@contextlib.contextmanager
def locked(database: Database, table: str) -> Iterator[psycopg.Connection]:
    """Nobody else can read or write this table."""
    with psycopg.connect(database.url) as connection:
        connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        yield connection


def new_database(database: Database, template: str = "template1") -> str:
    """The address of a new database in the running server, which has the roles; or of a copy."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(database.url, autocommit=True) as superuser:
        making = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        superuser.execute(making.format(sql.Identifier(name), sql.Identifier(template)))
    return make_conninfo(database.url, dbname=name)


@contextlib.contextmanager
def empty_database(database: Database, template: str = "template1") -> Iterator[str]:
    """A new database until the end of the block, if no test fails in it."""
    url = new_database(database, template)
    yield url
    with psycopg.connect(database.url, autocommit=True) as superuser:
        name = sql.Identifier(str(conninfo_to_dict(url)["dbname"]))
        superuser.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@asynccontextmanager
async def scratch_log(database: Database) -> AsyncIterator[Database]:
    """A log of its own in the running server, with this month and those ahead."""
    with migrated_database(database) as made:
        await wiring.make_months_ahead(made, now().date())
        yield made


@contextlib.contextmanager
def copied_database(database: Database, template: str) -> Iterator[str]:
    """The address of a copy, with what its roles begin a session with: PostgreSQL does not copy that."""
    with empty_database(database, template) as url:
        with psycopg.connect(url, autocommit=True) as copy:
            for role, setting, value in copy.execute(_BEGINS_WITH, (template,)).fetchall():
                begins = sql.SQL("ALTER ROLE {} IN DATABASE {} SET {} = {}")
                names = map(sql.Identifier, (role, copy.info.dbname, setting))
                copy.execute(begins.format(*names, sql.Literal(value)))
        yield url


_BEGINS_WITH = """
SELECT rolname, split_part(setting, '=', 1), substr(setting, strpos(setting, '=') + 1)
FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase JOIN pg_roles r ON r.oid = setrole, unnest(setconfig) setting
WHERE datname = %s
"""


@contextlib.contextmanager
def migrated_database(database: Database) -> Iterator[Database]:
    with empty_database(database) as url:
        made = Database(url, database.settings)
        made.migrate()
        yield made


@contextlib.contextmanager
def data_of_its_own(database: Database, probes: Sequence[str] = (), **environment: str) -> Iterator[Settings]:
    """Settings with a database in the running server without a book, an index, a signing key, and these probes if there are any.

    It knows the embeddings of the sample book and of the shipped probes, which are ten seconds of a core.
    """
    with (
        tempfile.TemporaryDirectory(prefix="affidavit-data-", ignore_cleanup_errors=True) as folder,
        migrated_database(database) as made,
    ):
        with psycopg.connect(database.url) as source, psycopg.connect(made.url) as target:
            known = source.execute("SELECT * FROM embeddings").fetchall()
            target.cursor().executemany("INSERT INTO embeddings VALUES (%s, %s, %s, %s)", known)
        SigningKey.create(Path(folder, "signing.key"))
        if probes:
            few = Path(folder, "few.txt")
            few.write_text("\n".join(probes))
            environment["AFFIDAVIT_CALIBRATION__PROBES_FILE"] = str(few)
        yield settings_file.load({"DATABASE_URL": made.url} | environment, data_dir=Path(folder))


@contextlib.contextmanager
def server_over_tcp(folder: Path) -> Iterator[str]:
    """The address of a PostgreSQL of its own, as engines on other machines reach it: over TCP, with a password."""
    server, port = EmbeddedPostgres(folder), free_port()
    server.start()
    with psycopg.connect(server.url, autocommit=True) as superuser:
        superuser.execute("ALTER ROLE postgres PASSWORD 'over tcp'")
    server.stop()
    with (server._home / "pg_hba.conf").open("a") as rules:
        rules.write("host all all 127.0.0.1/32 scram-sha-256\n")
    server._control("start", f"--options=-k . -c listen_addresses=127.0.0.1 -c port={port}")
    try:
        yield make_conninfo(server.url, host="127.0.0.1", port=port, password="over tcp")
    finally:
        server._control("stop", "--mode=fast")
