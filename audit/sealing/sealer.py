"""The sealer: gives committed rows their place in the month's Merkle tree, signs its head and anchors that in the vault.

Order is assigned after the commit: an id or a time says nothing about when a transaction commits, so a cursor on them
loses rows. Unsealed is what has no leaf. Several sealers may run; two primary keys (a leaf's index, a row's id) let only
one of them win, and the advisory lock merely spares the others the work.

It signs only what extends the last checkpoint and what two paths agree on: a frontier that takes the leaves from the log,
and a recursion over the leaves read back from their table. If the evidence does not fit, that month is sealed no further.
Nothing is ever repaired here: an auditor must see what happened.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.errors import UniqueViolation
from psycopg_pool import AsyncConnectionPool

from audit.errors import NoteError, TreeMismatchError, UnfamiliarKeyError, UnknownKeyError, VaultConflictError
from audit.proof import merkle
from audit.proof.checkpoint import Checkpoint, Link, open_note, sign_note
from audit.proof.keys import PublicKey, SigningKey
from audit.proof.merkle import Frontier
from audit.vault import Vault

BATCH_ROWS = 10_000  # one transaction: a backlog is worked off without holding the lock for long
CHUNK_LEAVES = 1_024  # a power of two, so that the tree over the chunks' roots is the tree over the leaves
ANCHOR_LEAVES = 100_000  # about so many in one file: some 3 MB
RECENT = timedelta(minutes=15)  # who commits later than that, the full search finds
FULL_SHARE = 20  # one twentieth of the time may go into the full search
LAST_S = 3.0  # an orderly stop waits so long for its last round; what it misses, the next start seals

log = logging.getLogger(__name__)

_LOCK = 0xAFF15EA1  # one sealer at a time works; the others have better things to do
_ANCHOR_LOCK = 0xAFF1A2C4
_BEFORE_ALL, _AFTER_ALL = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
_NIL = UUID(int=0)

# A sealer that froze must not keep the others waiting.
_TRANSACTION = """
SELECT set_config('synchronous_commit', 'on', true), set_config('lock_timeout', '10s', true),
       set_config('idle_in_transaction_session_timeout', '10s', true)
"""
_TRY_LOCK = "SELECT pg_try_advisory_xact_lock(%s)"
_WAIT_FOR_LOCK = "SELECT pg_advisory_xact_lock(%s) IS NOT NULL"

_UNSEALED = """
SELECT log_id, timestamp, leaf_hash FROM audit_logs l
WHERE timestamp >= %(moment)s AND timestamp < %(until)s AND (timestamp, log_id) > (%(moment)s, %(log_id)s)
  AND octet_length(leaf_hash) = 32 AND NOT EXISTS (SELECT FROM audit_leaves s WHERE s.log_id = l.log_id)
ORDER BY timestamp, log_id LIMIT %(count)s
"""

# In one statement, so that both are of one moment: the month's last checkpoint, and whether a leaf stands after it.
_LAST = """
SELECT coalesce(c.tree_size, 0), coalesce(c.note, ''), EXISTS (
    SELECT FROM audit_leaves WHERE month = %(month)s AND leaf_index >= coalesce(c.tree_size, 0))
FROM (SELECT) AS always LEFT JOIN LATERAL (
    SELECT tree_size, note FROM audit_checkpoints WHERE month = %(month)s ORDER BY tree_size DESC LIMIT 1) c ON true
"""
_EARLIER = """
SELECT month, tree_size, note FROM audit_checkpoints WHERE month < %s ORDER BY month DESC, tree_size DESC LIMIT 1
"""
_LEAVES = """
SELECT leaf_hash FROM audit_leaves WHERE month = %s AND leaf_index >= %s AND leaf_index < %s ORDER BY leaf_index
"""
_INSERT_LEAVES = """
INSERT INTO audit_leaves (month, leaf_index, log_id, leaf_hash, sealed_at)
SELECT %s, %s + place - 1, log_id, leaf_hash, %s
FROM unnest(%b::uuid[], %b::bytea[]) WITH ORDINALITY AS rows(log_id, leaf_hash, place)
"""
_INSERT_CHECKPOINT = (
    "INSERT INTO audit_checkpoints (month, tree_size, note, created_at) VALUES (%s, %s, %s, %s)"
)
_NOTE = "SELECT note FROM audit_checkpoints WHERE month = %s AND tree_size = %s"
_INSERT_ANCHOR = """
INSERT INTO audit_anchors (month, tree_size, vault_key, vault_version, anchored_at) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT DO NOTHING
"""
_INSERT_KEY = (
    "INSERT INTO audit_keys (key_id, public_key, created_at) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
)

# The months with a checkpoint newer than their last anchor, found by stepping through the index from month to month.
_UNANCHORED = """
WITH RECURSIVE months AS (
    SELECT min(month) AS month FROM audit_checkpoints
    UNION ALL
    SELECT (SELECT min(c.month) FROM audit_checkpoints c WHERE c.month > m.month) FROM months m WHERE m.month IS NOT NULL
)
SELECT month FROM months m
WHERE (SELECT max(tree_size) FROM audit_checkpoints c WHERE c.month = m.month)
    > coalesce((SELECT max(tree_size) FROM audit_anchors a WHERE a.month = m.month), 0) ORDER BY month
"""
_NEXT_ANCHOR = """
SELECT anchored, tree_size, note FROM (
    SELECT coalesce((SELECT max(tree_size) FROM audit_anchors WHERE month = %(month)s), 0) AS anchored,
           (SELECT max(tree_size) FROM audit_checkpoints WHERE month = %(month)s) AS newest) AS heads
CROSS JOIN LATERAL (
    SELECT tree_size, note FROM audit_checkpoints
    WHERE month = %(month)s AND tree_size > anchored AND tree_size >= least(newest, anchored + %(count)s)
    ORDER BY tree_size LIMIT 1) AS next
"""


@dataclass(frozen=True, slots=True)
class SealingResult:
    """What one round did."""

    rows: int = 0
    anchors: int = 0


@dataclass(frozen=True, slots=True)
class UnsealedRow:
    log_id: UUID
    timestamp: datetime
    leaf_hash: bytes

    @property
    def month(self) -> date:
        return self.timestamp.astimezone(UTC).date().replace(day=1)


@dataclass(slots=True)
class _Tree:
    """A month's tree on both paths, and the checkpoint that it was last compared with."""

    frontier: Frontier = field(default_factory=Frontier)
    chunks: list[bytes] = field(default_factory=list)
    note: str = ""

    def copy(self) -> "_Tree":
        return _Tree(self.frontier.copy(), self.chunks.copy(), self.note)


class Sealer:
    """One of however many. What it finds wrong stands in `failures`, by month, until the process ends."""

    def __init__(
        self,
        pool: AsyncConnectionPool,
        key: SigningKey,
        public_keys: Callable[[], Sequence[PublicKey]],
        vault: Vault,
        *,
        seal_every_s: float,
        anchor_every_s: float,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._key = key
        self._public_keys = public_keys  # read each time: another sealer may have a newer key already
        self._vault = vault
        self._seal_every_s = seal_every_s
        self._anchor_every_s = anchor_every_s
        self._clock = clock
        self._monotonic = monotonic
        self.failures: dict[date, str] = {}
        self._unfamiliar: dict[date, str] = {}
        self._origin = ""
        self._trees: dict[date, _Tree] = {}
        self._anchored: dict[date, Frontier] = {}
        self._full_at_s = self._anchor_at_s = 0.0
        self._trouble = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Seal and anchor until told to stop, and then once more. No trouble ends it: the rows wait, and it tries again."""
        while not stop.is_set():
            await self._try(self._round)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seal_every_s):
                    await stop.wait()
        await self._try(self._last_round)

    async def seal_once(self) -> SealingResult:
        """Everything that is committed now, sealed and anchored."""
        return SealingResult(
            await self._seal(_BEFORE_ALL, _WAIT_FOR_LOCK), await self._anchor(_WAIT_FOR_LOCK)
        )

    async def _round(self) -> None:
        is_full = self._monotonic() >= self._full_at_s
        await self._seal(_BEFORE_ALL if is_full else self._clock() - RECENT, _TRY_LOCK)
        if self._monotonic() >= self._anchor_at_s:
            await self._anchor(_TRY_LOCK)
            self._anchor_at_s = self._monotonic() + self._anchor_every_s

    async def _last_round(self) -> None:
        async with asyncio.timeout(LAST_S):
            await self.seal_once()

    async def _try(self, work: Callable[[], Awaitable[None]]) -> None:
        """Says what is wrong when that begins, and when it is over. A driver's words could repeat a row: they stay here."""
        trouble = ""
        try:
            await work()
        except Exception as failure:  # noqa: BLE001  whatever it is, sealing later is better than never
            trouble = type(failure).__name__
        if trouble and trouble != self._trouble:
            log.warning(
                "Nothing can be sealed or anchored (%s). The rows wait, and it is tried again.", trouble
            )
        if self._trouble and not trouble:
            log.warning("Rows are sealed and anchored again.")
        self._trouble = trouble

    async def _seal(self, since: datetime, lock: str) -> int:
        """Walk through what has no leaf, by time, a batch of one month after the other; how many rows were sealed."""
        for month in self._unfamiliar:
            self.failures.pop(month, None)
        await self._introduce()
        at, sealed, searched_s = (since, _NIL), 0, 0.0
        while True:
            began_s = self._monotonic()
            found = await self._find(at)
            searched_s += self._monotonic() - began_s
            if found is None:
                break
            if found.month in self.failures:
                at = (_end_of(found.month), _NIL)
                continue
            with self._stopping(found.month):
                rows = await self._seal_batch(found.month, at, lock)
                if rows is None:
                    return sealed
                sealed += len(rows)
                at = (rows[-1].timestamp, rows[-1].log_id) if rows else at
        if since == _BEFORE_ALL:
            self._full_at_s = self._monotonic() + (FULL_SHARE - 1) * searched_s
        return sealed

    async def _introduce(self) -> None:
        """Learn which log this is, and leave the public key with it."""
        if self._origin:
            return
        async with self._transaction() as connection:
            key = self._key.public
            await connection.execute(_INSERT_KEY, (key.key_id, str(key), self._clock()))
            ((origin,),) = await _fetch(connection, "SELECT origin FROM audit_origin")
        self._origin = origin

    async def _find(self, at: tuple[datetime, UUID]) -> UnsealedRow | None:
        async with self._pool.connection() as connection:
            rows = await _unsealed(connection, at, _AFTER_ALL, 1)
        return rows[0] if rows else None

    async def _seal_batch(
        self, month: date, at: tuple[datetime, UUID], lock: str
    ) -> list[UnsealedRow] | None:
        """The rows that got their place; None if another sealer is at it."""
        if month not in self._trees:
            self._trees[month] = await self._rebuilt(month)
        tree = self._trees[month].copy()
        try:
            async with self._transaction() as connection:
                if not await _take_lock(connection, lock, _LOCK):
                    return None
                await self._catch_up(connection, month, tree)
                begin = max(at, (_begin_of(month), _NIL))  # rows of earlier months may have come meanwhile
                rows = await _unsealed(connection, begin, _end_of(month), BATCH_ROWS)
                if rows:
                    await self._extend(connection, month, tree, rows)
        except UniqueViolation:  # somebody sealed them meanwhile: all of ours is undone
            return None
        self._trees[month] = tree
        return rows

    async def _rebuilt(self, month: date) -> _Tree:
        """The month's tree from its leaves. It takes long for many, so nobody is kept waiting by a lock meanwhile."""
        tree = _Tree()
        await self._compare_with_vault(month)
        async with self._pool.connection() as connection:
            await self._catch_up(connection, month, tree)
        return tree

    async def _compare_with_vault(self, month: date) -> None:
        """What was anchored must be here: an older copy of the database would be sealed into a second history."""
        keys = await asyncio.to_thread(self._vault.keys, f"anchors/{month:%Y-%m}/")
        newest = max((key for key in keys if key.endswith(".note")), default=None)
        if newest is None:
            return
        anchored = await asyncio.to_thread(self._vault.get, newest)
        size = int(newest.rpartition("/")[2].removesuffix(".note"))
        async with self._pool.connection() as connection:
            stored = await _fetch(connection, _NOTE, (month, size))
        if [(anchored.decode(),)] != stored:
            raise TreeMismatchError(
                f"{month:%Y-%m}: the vault holds a checkpoint of size {size} that the database does not hold;"
                " an older copy of the database may have been restored"
            )

    async def _catch_up(self, connection: AsyncConnection, month: date, tree: _Tree) -> None:
        """Take over what other sealers did, if it extends what is known here and is what they signed."""
        ((size, note, is_more),) = await _fetch(connection, _LAST, {"month": month})
        if is_more:
            raise TreeMismatchError(f"{month:%Y-%m}: leaves stand after its last checkpoint, of size {size}")
        if note == tree.note:
            return
        if size <= tree.frontier.size:
            raise TreeMismatchError(
                f"{month:%Y-%m}: its last checkpoint, of size {tree.frontier.size}, is gone or is another one now;"
                f" the last one is of size {size}"
            )
        checkpoint = self._opened(month, size, note)
        if not await _read_back(connection, month, tree, size) == tree.frontier.root() == checkpoint.root:
            raise TreeMismatchError(f"{month:%Y-%m}: the first {size} leaves are not those that were signed")
        tree.note = note

    async def _extend(
        self, connection: AsyncConnection, month: date, tree: _Tree, rows: Sequence[UnsealedRow]
    ) -> None:
        first, sealed_at = tree.frontier.size, self._clock()
        for row in rows:
            tree.frontier.append(row.leaf_hash)
        size, root = tree.frontier.size, tree.frontier.root()
        log_ids, leaves = [row.log_id for row in rows], [row.leaf_hash for row in rows]
        await connection.execute(_INSERT_LEAVES, (month, first, sealed_at, log_ids, leaves))
        if await _read_back(connection, month, tree, size) != root:
            raise TreeMismatchError(
                f"{month:%Y-%m}: two ways to compute the root of {size} leaves do not agree, so it was not signed"
            )
        previous = await self._previous(connection, month)
        tree.note = sign_note(Checkpoint(self._origin, month, size, root, sealed_at, previous), self._key)
        await connection.execute(_INSERT_CHECKPOINT, (month, size, tree.note, sealed_at))

    async def _previous(self, connection: AsyncConnection, month: date) -> Link | None:
        for earlier, size, note in await _fetch(connection, _EARLIER, (month,)):
            return self._opened(earlier, size, note).link
        return None

    def _opened(self, month: date, size: int, note: str) -> Checkpoint:
        try:
            checkpoint = open_note(note, self._public_keys())
        except UnknownKeyError as wrong:
            raise UnfamiliarKeyError(f"{month:%Y-%m}: its checkpoint of size {size}: {wrong}") from None
        except NoteError as wrong:
            raise TreeMismatchError(f"{month:%Y-%m}: its checkpoint of size {size}: {wrong}") from None
        if (checkpoint.origin, checkpoint.month, checkpoint.size) != (self._origin, month, size):
            raise TreeMismatchError(f"{month:%Y-%m}: its checkpoint of size {size} is one of another tree")
        return checkpoint

    async def _anchor(self, lock: str) -> int:
        """Bring every month's newest checkpoint into the vault; how many anchors that took."""
        async with self._pool.connection() as connection:
            months = [month for (month,) in await _fetch(connection, _UNANCHORED)]
        count = 0
        for month in months:
            while month not in self.failures:
                with self._stopping(month):
                    if not await self._anchor_next(month, lock):
                        break
                    count += 1
        return count

    async def _anchor_next(self, month: date, lock: str) -> bool:
        """The leaves first: an anchored note must never lack the leaves that explain it."""
        async with self._transaction() as connection:
            if not await _take_lock(connection, lock, _ANCHOR_LOCK):
                return False
            found = await _fetch(connection, _NEXT_ANCHOR, {"month": month, "count": ANCHOR_LEAVES})
            if not found:
                return False
            ((anchored, size, note),) = found
            frontier, leaves = await self._leaves_to_anchor(connection, month, anchored, size)
            if frontier.root() != self._opened(month, size, note).root:
                raise TreeMismatchError(
                    f"{month:%Y-%m}: the first {size} leaves are not those that were signed"
                )
            folder = f"anchors/{month:%Y-%m}"
            await self._put(f"{folder}/{anchored:012}-{size:012}.leaves", b"".join(leaves))
            version = await self._put(f"{folder}/{size:012}.note", note.encode())
            anchor = (month, size, f"{folder}/{size:012}.note", version, self._clock())
            await connection.execute(_INSERT_ANCHOR, anchor)
        self._anchored[month] = frontier
        return True

    async def _leaves_to_anchor(
        self, connection: AsyncConnection, month: date, anchored: int, size: int
    ) -> tuple[Frontier, list[bytes]]:
        frontier = self._anchored.get(month, Frontier()).copy()
        leaves: list[bytes] = []
        for begin, end in ((frontier.size, anchored), (anchored, size)):
            async for piece in _stored(connection, month, begin, end):
                for leaf in piece:
                    frontier.append(leaf)
                if begin == anchored:
                    leaves += piece
        return frontier, leaves

    async def _put(self, key: str, content: bytes) -> str:
        try:
            return await asyncio.to_thread(self._vault.put, key, content)
        except VaultConflictError:
            raise TreeMismatchError(
                f"The vault holds another {key}: two histories were signed, and this is the second one"
            ) from None

    @contextlib.contextmanager
    def _stopping(self, month: date) -> Iterator[None]:
        """Evidence that does not fit ends the sealing of its month, and of no other."""
        try:
            yield
        except TreeMismatchError as wrong:
            is_known = self._unfamiliar.get(month) == str(wrong)
            self.failures[month] = str(wrong)
            if isinstance(wrong, UnfamiliarKeyError):
                self._unfamiliar[month] = str(wrong)
            if is_known:
                return
            log.error("Sealing of this month has stopped. %s. Look into it: `affidavit audit verify`.", wrong)  # noqa: TRY400  the place in our code explains nothing

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        async with self._pool.connection() as connection, connection.transaction():
            await connection.execute(_TRANSACTION)
            yield connection


async def _read_back(connection: AsyncConnection, month: date, tree: _Tree, size: int) -> bytes:
    """The root by recursion over the stored leaves, the second path. Leaves new to the frontier join it on the way."""
    begin = len(tree.chunks) * CHUNK_LEAVES
    tail: list[bytes] = []
    async for leaves in _stored(connection, month, begin, size):
        for leaf in leaves[max(0, tree.frontier.size - begin) :]:
            tree.frontier.append(leaf)
        begin += len(leaves)
        (tree.chunks if len(leaves) == CHUNK_LEAVES else tail).append(merkle.root(leaves))
    return merkle.root([*tree.chunks, *tail])


async def _stored(
    connection: AsyncConnection, month: date, begin: int, end: int
) -> AsyncIterator[list[bytes]]:
    """The stored leaves from one index to before another, in pieces."""
    for at in range(begin, end, CHUNK_LEAVES):
        until = min(at + CHUNK_LEAVES, end)
        leaves = [leaf for (leaf,) in await _fetch(connection, _LEAVES, (month, at, until))]
        if len(leaves) != until - at:
            raise TreeMismatchError(f"{month:%Y-%m}: of the leaves {at} to {until - 1} some are missing")
        yield leaves


async def _unsealed(
    connection: AsyncConnection, at: tuple[datetime, UUID], until: datetime, count: int
) -> list[UnsealedRow]:
    wanted = {"moment": at[0], "log_id": at[1], "until": until, "count": count}
    return [UnsealedRow(*row) for row in await _fetch(connection, _UNSEALED, wanted)]


async def _take_lock(connection: AsyncConnection, lock: str, number: int) -> bool:
    ((is_ours,),) = await _fetch(connection, lock, (number,))
    return bool(is_ours)


async def _fetch(
    connection: AsyncConnection, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()
) -> list[Any]:
    cursor = await connection.execute(statement.encode(), values, binary=True)
    return await cursor.fetchall()


def _begin_of(month: date) -> datetime:
    return datetime(month.year, month.month, 1, tzinfo=UTC)


def _end_of(month: date) -> datetime:
    return _begin_of((month + timedelta(days=31)).replace(day=1))
