"""Grows the Merkle tree of a month: appends unsealed rows as leaves and signs the new head (a checkpoint).

It signs only a tree that extends the last checkpoint and whose root two paths agree on: a frontier that takes the
leaves from the log, and a recursion over the leaves read back from their table. So a bit flip in memory is detected before it is signed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.errors import UniqueViolation
from psycopg_pool import AsyncConnectionPool

from audit.errors import TreeMismatchError
from audit.ledger.partitions import month_start, next_month
from audit.proof import merkle
from audit.proof.checkpoint import Link
from audit.proof.merkle import Frontier
from audit.sealing import log_tables
from audit.sealing.breaks import HistoryBreaks, break_lines
from audit.sealing.log_tables import LogCheckpoints, UnsealedRow, fetch, stored_leaves

BATCH_ROWS = 10_000  # one transaction: a backlog is worked off without holding the lock for long
NIL = UUID(int=0)

_EARLIER = """
SELECT month, tree_size, note FROM audit_checkpoints WHERE month < %s ORDER BY month DESC, tree_size DESC LIMIT 1
"""
_INSERT_LEAVES = """
INSERT INTO audit_leaves (month, leaf_index, log_id, leaf_hash, sealed_at)
SELECT %s, %s + place - 1, log_id, leaf_hash, %s
FROM unnest(%b::uuid[], %b::bytea[]) WITH ORDINALITY AS rows(log_id, leaf_hash, place)
"""
_INSERT_CHECKPOINT = (
    "INSERT INTO audit_checkpoints (month, tree_size, note, created_at) VALUES (%s, %s, %s, %s)"
)


@dataclass(slots=True)
class _Tree:
    """A month's tree on both paths, and the checkpoint that it was last compared with."""

    frontier: Frontier = field(default_factory=Frontier)
    chunks: list[bytes] = field(default_factory=list)
    note: str = ""

    def copy(self) -> "_Tree":
        return _Tree(self.frontier.copy(), self.chunks.copy(), self.note)


@dataclass(slots=True)
class TreeGrowth:
    """The trees of all months that this process has sealed so far."""

    pool: AsyncConnectionPool
    checkpoints: LogCheckpoints
    breaks: HistoryBreaks
    clock: Callable[[], datetime]
    _trees: dict[date, _Tree] = field(default_factory=dict)

    async def seal_batch(
        self, month: date, after: tuple[datetime, UUID], lock: str
    ) -> list[UnsealedRow] | None:
        """The rows that became leaves; None if another sealer is at work."""
        if month not in self._trees:
            self._trees[month] = await self._rebuild(month)
        tree = self._trees[month].copy()
        try:
            async with log_tables.transaction(self.pool) as connection:
                if not await log_tables.take_lock(connection, lock, log_tables.SEALING):
                    return None
                await self._catch_up(connection, month, tree)
                # Rows of earlier months may have come meanwhile.
                begin, end = max(after, (month_start(month), NIL)), month_start(next_month(month))
                rows = await log_tables.unsealed_rows(connection, begin, end, BATCH_ROWS)
                if rows:
                    await self._extend(connection, month, tree, rows)
        except UniqueViolation:  # another sealer was faster: our transaction is undone
            return None
        self._trees[month] = tree
        return rows

    def forget(self, month: date) -> None:
        """Its history was broken: nothing that was read before counts."""
        self._trees.pop(month, None)

    async def _rebuild(self, month: date) -> _Tree:
        """The month's tree from its leaves. No lock is held meanwhile, because it takes long for many."""
        tree = _Tree()
        await self.breaks.check(month)
        async with self.pool.connection() as connection:
            await self._catch_up(connection, month, tree)
        return tree

    async def _catch_up(self, connection: AsyncConnection, month: date, tree: _Tree) -> None:
        """Take over what other sealers did, if it extends our tree and is what they signed."""
        size, note, is_more = await log_tables.last_head(connection, month)
        if is_more:
            raise TreeMismatchError(
                f"{month:%Y-%m}: there are leaves after its last checkpoint, of size {size}"
            )
        if note == tree.note:
            return
        if size <= tree.frontier.size:
            raise TreeMismatchError(
                f"{month:%Y-%m}: its last checkpoint, of size {tree.frontier.size}, is missing or was replaced;"
                f" the last one is of size {size}"
            )
        checkpoint = self.checkpoints.open(month, size, note)
        if not await _read_back(connection, month, tree, size) == tree.frontier.root() == checkpoint.root:
            raise TreeMismatchError(f"{month:%Y-%m}: the first {size} leaves are not those that were signed")
        tree.note = note

    async def _extend(
        self, connection: AsyncConnection, month: date, tree: _Tree, rows: Sequence[UnsealedRow]
    ) -> None:
        first, sealed_at = tree.frontier.size, self.clock()
        for row in rows:
            tree.frontier.append(row.leaf_hash)
        size, root = tree.frontier.size, tree.frontier.root()
        log_ids, leaves = [row.log_id for row in rows], [row.leaf_hash for row in rows]
        await connection.execute(_INSERT_LEAVES, (month, first, sealed_at, log_ids, leaves))
        if await _read_back(connection, month, tree, size) != root:
            raise TreeMismatchError(
                f"{month:%Y-%m}: two ways to compute the root of {size} leaves do not agree, so it was not signed"
            )
        earlier = await fetch(connection, _EARLIER, (month,))
        previous = self.checkpoints.open(*earlier[0]).link if earlier else None
        breaks = await break_lines(connection, self.checkpoints, month)
        tree.note = self.checkpoints.sign(Link(month, size, root), sealed_at, previous, breaks)
        await connection.execute(_INSERT_CHECKPOINT, (month, size, tree.note, sealed_at))


async def _read_back(connection: AsyncConnection, month: date, tree: _Tree, size: int) -> bytes:
    """The root by recursion over the stored leaves, the second path. The frontier takes the leaves that it lacks."""
    begin = len(tree.chunks) * log_tables.CHUNK_LEAVES
    tail: list[bytes] = []
    async for leaves in stored_leaves(connection, month, begin, size):
        for leaf in leaves[max(0, tree.frontier.size - begin) :]:
            tree.frontier.append(leaf)
        begin += len(leaves)
        (tree.chunks if len(leaves) == log_tables.CHUNK_LEAVES else tail).append(merkle.root(leaves))
    return merkle.root([*tree.chunks, *tail])
