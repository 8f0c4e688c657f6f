"""The writer of the audit log: a request opens with a durable record and closes with its row.

Both are transactions of their own with `synchronous_commit = on`, so what is acknowledged survives a power cut. A
request that is open when its process dies is closed as `abandoned` by the next one to start: while a process lives it
holds an advisory lock, and a record whose lock is free has lost its owner.
"""

import secrets
from dataclasses import asdict, replace
from datetime import UTC, datetime
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from audit.record import COLUMNS, Receipt, Trail, canonical_json, leaf_hash

SALT_BYTES = 32

_JSON_COLUMNS = frozenset({"chunks_returned", "citations", "filters"})

_INSERT_ROW = sql.SQL("INSERT INTO audit_logs ({}) VALUES ({})").format(
    sql.SQL(", ").join(map(sql.Identifier, COLUMNS)), sql.SQL(", ").join(map(sql.Placeholder, COLUMNS))
)
_INSERT_OPEN = "INSERT INTO audit_open (log_id, opened_at, owner, trail) VALUES (%s, %s, %s, %s)"
_ABANDONED = "SELECT trail FROM audit_open WHERE owner <> %s AND pg_try_advisory_xact_lock(owner)"
_DURABLE = "SET LOCAL synchronous_commit = on"


class LedgerUnavailableError(Exception):
    """The record could not be made durable, so nothing may be answered."""


class Ledger:
    """Opens and closes records. One for each process."""

    def __init__(self, pool: AsyncConnectionPool) -> None:
        self._pool = pool
        self._owner = secrets.randbits(63)
        self._alive: psycopg.AsyncConnection | None = None

    async def start(self) -> int:
        """Take this process's lock, then close what dead processes left open; how many that were."""
        self._alive = await self._pool.getconn()
        await self._alive.set_autocommit(True)
        await self._alive.execute("SELECT pg_advisory_lock(%s)", (self._owner,))
        return await self._close_abandoned()

    async def stop(self) -> None:
        if self._alive is not None:
            await self._alive.execute("SELECT pg_advisory_unlock(%s)", (self._owner,))
            await self._pool.putconn(self._alive)
            self._alive = None

    async def open(self, trail: Trail) -> None:
        """From here on the request is on record, whatever happens to this process."""
        body = Jsonb(asdict(trail), dumps=canonical_json)
        try:
            async with self._pool.connection() as connection, connection.pipeline():
                await connection.execute(_DURABLE)
                await connection.execute(_INSERT_OPEN, (trail.log_id, trail.timestamp, self._owner, body))
        except (psycopg.Error, PoolTimeout) as failure:
            raise LedgerUnavailableError from failure

    async def close(self, trail: Trail, issued_at: datetime) -> Receipt:
        """Write the row, once and for ever. Only after this may an answer leave."""
        sealed = _sealed(trail)
        try:
            async with self._pool.connection() as connection, connection.pipeline():
                await _write_row(connection, sealed)
        except (psycopg.Error, PoolTimeout) as failure:
            raise LedgerUnavailableError from failure
        assert sealed.leaf_hash is not None
        return Receipt(trail.log_id, sealed.leaf_hash.hex(), issued_at)

    async def _close_abandoned(self) -> int:
        async with self._pool.connection() as connection:
            cursor = await connection.execute(_ABANDONED, (self._owner,))
            left_open = [_trail(row[0]) for row in await cursor.fetchall()]
            for trail in left_open:
                trail.outcome, trail.success = "abandoned", False
                trail.error_message = "The process died while it worked on this request"
                await _write_row(connection, _sealed(trail))
        return len(left_open)


def _sealed(trail: Trail) -> Trail:
    """The trail with a fresh salt and the hash over both; the hash is the row's last word."""
    salted = replace(trail, salt=secrets.token_bytes(SALT_BYTES))
    return replace(salted, leaf_hash=leaf_hash(salted))


async def _write_row(connection: psycopg.AsyncConnection, sealed: Trail) -> None:
    await connection.execute(_DURABLE)
    await connection.execute("DELETE FROM audit_open WHERE log_id = %s", (sealed.log_id,))
    await connection.execute(_INSERT_ROW, _row(sealed))


def _row(trail: Trail) -> dict[str, object]:
    row = {name: getattr(trail, name) for name in COLUMNS}
    return {
        name: Jsonb(value) if name in _JSON_COLUMNS and value is not None else value
        for name, value in row.items()
    }


def _trail(body: dict[str, object]) -> Trail:
    """The open record read back from its JSON, in which times and ids are text."""
    typed = dict(body)
    for name in ("log_id", "query_id", "session_id", "index_generation"):
        typed[name] = UUID(str(body[name])) if body[name] else None
    typed["timestamp"] = datetime.fromisoformat(str(body["timestamp"])).astimezone(UTC)
    return Trail(**typed)  # type: ignore[arg-type]  # written by `open` from a Trail
