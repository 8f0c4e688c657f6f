"""The writer of the audit log: a request opens with a durable record and closes with its row.

Both are transactions of their own with `synchronous_commit = on`, so what is acknowledged survives a power cut. A
request that is open when its process dies is closed as `abandoned` by the next one to start: while a process lives it
holds an advisory lock, and a record whose lock is free has lost its owner.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from audit.record import COLUMNS, Receipt, Trail, canonical_json, leaf_hash

SALT_BYTES = 32
LOCK_S = 10.0  # a database that takes longer to grant a free lock is not there
GRACE_S = 1.0  # a living process whose connection was lost has its lock again by then
LOCK_PAUSE_S = 0.05  # between two tries to reach a database that has gone

_JSON_COLUMNS = frozenset({"chunks_returned", "citations", "filters", "instruction_like"})

_INSERT_ROW = (
    sql.SQL("INSERT INTO audit_logs ({}) VALUES ({})")
    .format(
        sql.SQL(", ").join(map(sql.Identifier, COLUMNS)), sql.SQL(", ").join(map(sql.Placeholder, COLUMNS))
    )
    .as_bytes()
)
_INSERT_OPEN = "INSERT INTO audit_open (log_id, opened_at, owner, trail) VALUES (%s, %s, %s, %s)"
_ABANDONED = "SELECT trail FROM audit_open WHERE owner <> %s AND pg_try_advisory_xact_lock(owner)"
_NOTE = "UPDATE audit_open SET trail = %s WHERE log_id = %s"
_DURABLE = "SET LOCAL synchronous_commit = on"


class LedgerUnavailableError(Exception):
    """The record could not be made durable, so nothing may be answered."""


class Ledger:
    """Opens and closes records. One for each process."""

    def __init__(self, pool: AsyncConnectionPool) -> None:
        self._pool = pool
        self._owner = secrets.randbits(63)
        self._is_locked = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Take this process's lock, then close what dead processes left open; how many that were."""
        self._keeping = asyncio.create_task(self._keep_lock())
        async with asyncio.timeout(LOCK_S):
            await self._is_locked.wait()
        return await self._close_abandoned()

    async def stop(self) -> None:
        """The lock goes with its connection."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
            self._keeping = None

    async def open(self, trail: Trail) -> None:
        """From here on the request is on record, whatever happens to this process."""
        async with self._failing_as_one():
            await self._is_locked.wait()
            body = Jsonb(_fields(trail), dumps=canonical_json)
            async with self._transaction() as connection:
                await connection.execute(_DURABLE)
                await connection.execute(_INSERT_OPEN, (trail.log_id, trail.timestamp, self._owner, body))

    async def note(self, trail: Trail) -> None:
        """What has happened since the record was opened, durable before anybody sees it."""
        async with self._failing_as_one():
            body = Jsonb(_fields(trail), dumps=canonical_json)
            async with self._transaction() as connection:
                await connection.execute(_DURABLE)
                await connection.execute(_NOTE, (body, trail.log_id))

    async def close(self, trail: Trail, issued_at: datetime) -> Receipt:
        """Write the row, once and for ever. Only after this may an answer leave."""
        async with self._failing_as_one():
            sealed = _sealed(trail)
            async with self._transaction() as connection:
                await _write_row(connection, sealed)
        assert sealed.leaf_hash is not None
        return Receipt(trail.log_id, sealed.leaf_hash.hex(), issued_at)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """BEGIN, the statements and COMMIT in one way to the server and back, where psycopg's own takes three.

        Done when the server has confirmed all of it; the first failure is raised, and the server then skips the rest.
        """
        async with self._pool.connection() as connection:
            await connection.set_autocommit(True)  # asks nobody: no BEGIN is sent but ours
            async with connection.pipeline():
                await connection.execute("BEGIN")
                yield connection
                await connection.execute("COMMIT")

    @asynccontextmanager
    async def _failing_as_one(self) -> AsyncIterator[None]:
        """Whatever goes wrong is one thing to the caller; the driver's words repeat the row and stay here."""
        try:
            yield
        except (psycopg.Error, PoolTimeout, ValueError) as failure:
            raise LedgerUnavailableError(type(failure).__name__) from None

    async def _keep_lock(self) -> None:
        """Hold the lock that says this process lives, on a connection of its own, and take it anew when that is lost."""
        assert isinstance(self._pool.conninfo, str)
        while True:
            with contextlib.suppress(psycopg.Error):
                async with await psycopg.AsyncConnection.connect(
                    self._pool.conninfo, autocommit=True
                ) as alive:
                    await alive.execute("SELECT pg_advisory_lock(%s)", (self._owner,))
                    self._is_locked.set()
                    async for _ in alive.notifies():
                        """Nobody notifies us: this ends when the connection does."""
            if not self._is_locked.is_set():
                await asyncio.sleep(LOCK_PAUSE_S)
            self._is_locked.clear()

    async def _close_abandoned(self) -> int:
        closed = 0
        async with self._pool.connection() as connection:
            if not await (await connection.execute(_ABANDONED, (self._owner,))).fetchone():
                return 0
        await asyncio.sleep(GRACE_S)
        async with self._pool.connection() as connection, connection.transaction():
            cursor = await connection.execute(_ABANDONED, (self._owner,))
            for (body,) in await cursor.fetchall():
                trail = _trail(body)
                trail.outcome, trail.success = "abandoned", False
                trail.error_message = "The process died while it worked on this request"
                with contextlib.suppress(
                    psycopg.errors.CheckViolation
                ):  # its month is missing: it stays open
                    async with connection.transaction():
                        await _write_row(connection, _sealed(trail))
                        closed += 1
        return closed


def _sealed(trail: Trail) -> Trail:
    """The trail with a fresh salt and the hash over both; the hash is the row's last word."""
    salted = replace(trail, salt=secrets.token_bytes(SALT_BYTES))
    return replace(salted, leaf_hash=leaf_hash(salted))


async def _write_row(connection: psycopg.AsyncConnection, sealed: Trail) -> None:
    await connection.execute(_DURABLE)
    await connection.execute("DELETE FROM audit_open WHERE log_id = %s", (sealed.log_id,))
    await connection.execute(_INSERT_ROW, _row(sealed))


def _row(trail: Trail) -> dict[str, object]:
    return {
        name: Jsonb(value) if name in _JSON_COLUMNS and value is not None else value
        for name, value in _fields(trail).items()
    }


def _fields(trail: Trail) -> dict[str, object]:
    """Not `asdict`, which copies all of it, down to the last passage."""
    return {name: getattr(trail, name) for name in COLUMNS}


def _trail(body: dict[str, object]) -> Trail:
    """The open record read back from its JSON, in which times and ids are text."""
    typed = dict(body)
    for name in ("log_id", "query_id", "session_id", "index_generation"):
        typed[name] = UUID(str(body[name])) if body[name] else None
    typed["timestamp"] = datetime.fromisoformat(str(body["timestamp"])).astimezone(UTC)
    return Trail(**typed)  # type: ignore[arg-type]  # written by `open` from a Trail
