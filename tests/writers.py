"""Logs and ledgers for tests: each with a database, a key, and a spool where one is named, of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool

from audit.ledger.ledger import Ledger, Spooling
from audit.proof.keys import SigningKey
from engine import wiring
from engine.wiring import Database, now

KEY = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
MEBIBYTE = 1024 * 1024


def ledger_on(
    pool: AsyncConnectionPool, folder: Path | None = None, *, bytes_max: int = MEBIBYTE, within_s: float = 5.0
) -> Ledger:
    return Ledger(pool, KEY, now, within_s=within_s, spooling=Spooling(folder, bytes_max) if folder else None)


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
