"""The log as the sealer sees it: transactions and locks, unsealed rows, stored leaves, and its checkpoints."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from audit.errors import NoteError, TreeMismatchError, UnfamiliarKeyError, UnknownKeyError, VaultConflictError
from audit.proof.checkpoint import (
    BreakLine,
    Checkpoint,
    HistoryBreak,
    Link,
    open_break,
    open_note,
    sign_break,
    sign_note,
)
from audit.proof.keys import HeadSigner, PublicKey
from audit.vault import Vault

CHUNK_LEAVES = 1_024  # a power of two, so that the tree over the chunks' roots is the tree over the leaves

SEALING, ANCHORING = "seal", "anchor"  # one sealer works at a time; the others do not wait for it

TRY_LOCK = "SELECT audit_lock(%s, false)"
WAIT_FOR_LOCK = "SELECT audit_lock(%s)"

# Timeouts, so that a sealer that hangs does not block the others.
_TRANSACTION = """
SELECT set_config('synchronous_commit', 'on', true), set_config('lock_timeout', '10s', true),
       set_config('idle_in_transaction_session_timeout', '10s', true)
"""
_UNSEALED = """
SELECT log_id, timestamp, leaf_hash, schema_version, signature FROM audit_logs l
WHERE timestamp >= %(moment)s AND timestamp < %(until)s AND (timestamp, log_id) > (%(moment)s, %(log_id)s)
  AND octet_length(leaf_hash) = 32 AND NOT EXISTS (SELECT FROM audit_leaves s WHERE s.log_id = l.log_id)
ORDER BY timestamp, log_id LIMIT %(count)s
"""
_SEALED = "SELECT log_id FROM audit_leaves WHERE log_id = ANY(%s)"
# The newest checkpoint of each month, found by stepping through the index from month to month.
_NEWEST = """
WITH RECURSIVE months AS (
    SELECT max(month) AS month FROM audit_checkpoints
    UNION ALL
    SELECT (SELECT max(c.month) FROM audit_checkpoints c WHERE c.month < m.month) FROM months m WHERE m.month IS NOT NULL
)
SELECT (SELECT note FROM audit_checkpoints c WHERE c.month = m.month ORDER BY tree_size DESC LIMIT 1)
FROM months m WHERE month IS NOT NULL
"""
_INSERT_KEY = """
INSERT INTO audit_keys (key_id, public_key, created_at) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING
"""
# A standby that took over, a restored disk and a database made anew differ from what was before in one of them.
_SERVER = """
SELECT oid || ' ' || pg_postmaster_start_time()
FROM pg_database WHERE datname = current_database()
"""
# One statement, so that both are of one moment: the month's last checkpoint, and whether there is a leaf after it.
_LAST = """
SELECT coalesce(c.tree_size, 0), coalesce(c.note, ''), EXISTS (
    SELECT FROM audit_leaves WHERE month = %(month)s AND leaf_index >= coalesce(c.tree_size, 0))
FROM (SELECT) AS always LEFT JOIN LATERAL (
    SELECT tree_size, note FROM audit_checkpoints WHERE month = %(month)s ORDER BY tree_size DESC LIMIT 1) c ON true
"""
_LEAVES = """
SELECT leaf_hash FROM audit_leaves WHERE month = %s AND leaf_index >= %s AND leaf_index < %s ORDER BY leaf_index
"""


@dataclass(frozen=True, slots=True)
class UnsealedRow:
    log_id: UUID
    timestamp: datetime
    leaf_hash: bytes
    schema_version: int
    signature: bytes | None

    @property
    def month(self) -> date:
        return self.timestamp.astimezone(UTC).date().replace(day=1)

    @property
    def place(self) -> tuple[datetime, UUID]:
        """Its primary key, in the order in which rows are searched."""
        return self.timestamp, self.log_id


@asynccontextmanager
async def transaction(pool: AsyncConnectionPool) -> AsyncIterator[AsyncConnection]:
    async with pool.connection() as connection, connection.transaction():
        await connection.execute(_TRANSACTION)
        yield connection


async def fetch(
    connection: AsyncConnection, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()
) -> list[Any]:
    cursor = await connection.execute(statement.encode(), values, binary=True)
    return await cursor.fetchall()


async def server_of(connection: AsyncConnection) -> str:
    """Which run of which server this is."""
    ((server,),) = await fetch(connection, _SERVER)
    return str(server)


async def take_lock(connection: AsyncConnection, lock: str, name: str) -> bool:
    """Take the lock of this name until the transaction ends; false if another sealer holds it."""
    ((is_ours,),) = await fetch(connection, lock, (name,))
    return bool(is_ours)


async def unsealed_rows(
    connection: AsyncConnection, after: tuple[datetime, UUID], until: datetime, count: int
) -> list[UnsealedRow]:
    wanted = {"moment": after[0], "log_id": after[1], "until": until, "count": count}
    return [UnsealedRow(*row) for row in await fetch(connection, _UNSEALED, wanted)]


async def not_sealed(connection: AsyncConnection, rows: Sequence[UnsealedRow]) -> list[UnsealedRow]:
    """Those that no other sealer has sealed meanwhile."""
    sealed = {log_id for (log_id,) in await fetch(connection, _SEALED, ([row.log_id for row in rows],))}
    return [row for row in rows if row.log_id not in sealed]


async def newest_notes(connection: AsyncConnection) -> list[str]:
    return [note for (note,) in await fetch(connection, _NEWEST)]


async def last_head(connection: AsyncConnection, month: date) -> tuple[int, str, bool]:
    """Size and note of the month's last checkpoint, and whether there is a leaf that it does not cover."""
    ((size, note, is_more),) = await fetch(connection, _LAST, {"month": month})
    return size, note, is_more


async def put_once(vault: Vault, key: str, content: bytes) -> str:
    """Write into the vault, and return the version."""
    try:
        return await asyncio.to_thread(vault.put, key, content)
    except VaultConflictError:
        raise TreeMismatchError(
            f"The vault already holds another {key}: two histories were signed, and this is the second"
        ) from None


async def stored_leaves(
    connection: AsyncConnection, month: date, begin: int, end: int
) -> AsyncIterator[list[bytes]]:
    """The stored leaves from index `begin` to before `end`, in chunks."""
    for at in range(begin, end, CHUNK_LEAVES):
        until = min(at + CHUNK_LEAVES, end)
        leaves = [leaf for (leaf,) in await fetch(connection, _LEAVES, (month, at, until))]
        if len(leaves) != until - at:
            raise TreeMismatchError(f"{month:%Y-%m}: some of the leaves {at} to {until - 1} are missing")
        yield leaves


@dataclass(slots=True)
class LogCheckpoints:
    """Signs and opens checkpoints. An opened one must be of the expected month and size of this very log."""

    key: HeadSigner
    public_keys: Callable[[], Sequence[PublicKey]]  # called each time: another sealer may have a newer key
    _origin: str = ""

    @property
    def origin(self) -> str:
        return self._origin

    async def register(self, pool: AsyncConnectionPool, now: datetime) -> None:
        """Read the log's identity, and store the public key beside the log; once for each process."""
        if self._origin:
            return
        async with transaction(pool) as connection:
            key = self.key.public
            await connection.execute(_INSERT_KEY, (key.key_id, str(key), now))
            ((origin,),) = await fetch(connection, "SELECT origin FROM audit_origin")
        self._origin = origin  # only once it is committed, so that a lost connection is tried again

    async def sign(
        self, tree: Link, issued_at: datetime, previous: Link | None, signed_from: int | None,
        breaks: tuple[BreakLine, ...] = (),
    ) -> str:  # fmt: skip
        checkpoint = Checkpoint(
            self._origin, tree.month, tree.size, tree.root, issued_at, previous, signed_from, breaks
        )
        return await asyncio.to_thread(sign_note, checkpoint, self.key)  # the key may be far away

    def break_of(
        self, kept: Link, lost: Link, number: int, issued_at: datetime, event: UUID, basis: str
    ) -> HistoryBreak:
        return HistoryBreak(self._origin, kept.month, number, kept, lost, issued_at, event, basis)

    async def sign_break(self, broken: HistoryBreak) -> str:
        return await asyncio.to_thread(sign_break, broken, self.key)

    def open_break(self, month: date, number: int, note: str) -> HistoryBreak:
        place = f"{month:%Y-%m}: the break {number} of its history"
        try:
            broken = open_break(note, self.public_keys())
        except UnknownKeyError as wrong:
            raise UnfamiliarKeyError(f"{place}: {wrong}") from None
        except NoteError as wrong:
            raise TreeMismatchError(f"{place}: {wrong}") from None
        if (broken.origin, broken.month, broken.number) != (self._origin, month, number):
            raise TreeMismatchError(f"{place} is one of another tree")
        return broken

    def open(self, month: date, size: int, note: str) -> Checkpoint:
        place = f"{month:%Y-%m}: its checkpoint of size {size}"
        try:
            checkpoint = open_note(note, self.public_keys())
        except UnknownKeyError as wrong:
            raise UnfamiliarKeyError(f"{place}: {wrong}") from None
        except NoteError as wrong:
            raise TreeMismatchError(f"{place}: {wrong}") from None
        if (checkpoint.origin, checkpoint.month, checkpoint.size) != (self._origin, month, size):
            raise TreeMismatchError(f"{place} is one of another tree")
        return checkpoint
