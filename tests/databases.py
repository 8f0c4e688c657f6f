"""Databases of a test's own in the running server, and tables that are locked."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from engine import wiring
from engine.database import Database
from engine.wiring import now


@contextlib.contextmanager
def locked(database: Database, table: str) -> Iterator[psycopg.Connection]:
    """Nobody else can read or write this table."""
    with psycopg.connect(database.url) as connection:
        connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        yield connection


@contextlib.contextmanager
def empty_database(database: Database) -> Iterator[str]:
    """The address of a new database in the running server, which has the roles."""
    name = f"empty_{uuid4().hex}"
    with psycopg.connect(database.url, autocommit=True) as superuser:
        superuser.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield make_conninfo(database.url, dbname=name)
        superuser.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@asynccontextmanager
async def scratch_log(database: Database) -> AsyncIterator[Database]:
    """A log of its own in the running server."""
    name = sql.Identifier(f"log_{uuid4().hex}")
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        made = Database(make_conninfo(database.url, dbname=name.as_string().strip('"')), database.settings)
        made.migrate()
        await wiring.make_months_ahead(made, now().date())
        yield made
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
