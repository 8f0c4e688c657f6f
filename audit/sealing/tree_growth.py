"""Grows the Merkle tree of a month: appends unsealed rows as leaves and signs the new head (a checkpoint).

It signs only a tree that extends the last checkpoint and whose root two paths agree on: a frontier that takes the
leaves from the log, and a recursion over the leaves read back from their table. So a bit flip in memory is detected before it is signed.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime

from psycopg import AsyncConnection
from psycopg.errors import UniqueViolation
from psycopg_pool import AsyncConnectionPool

from audit.errors import TreeMismatchError
from audit.proof import merkle
from audit.proof.checkpoint import Link
from audit.proof.merkle import Frontier
from audit.sealing import log_tables
from audit.sealing.breaks import HistoryBreaks, break_lines
from audit.sealing.log_tables import LogCheckpoints, UnsealedRow, fetch, stored_leaves

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
    signed_from: int | None = None  # as in its last checkpoint
    server: str = ""  # that was compared with the vault

    def copy(self) -> "_Tree":
        return _Tree(self.frontier.copy(), self.chunks.copy(), self.note, self.signed_from, self.server)


@dataclass(slots=True)
class TreeGrowth:
    """The trees of all months that this process has sealed so far."""

    pool: AsyncConnectionPool
    checkpoints: LogCheckpoints
    breaks: HistoryBreaks
    clock: Callable[[], datetime]
    has_new_line: bool = False  # a month says since its newest checkpoint from where on its rows are signed
    _trees: dict[date, _Tree] = field(default_factory=dict)

    async def is_signed(self) -> bool:
        """Whether a checkpoint of the log says that its rows are signed. The vault is asked too: the database could forget."""
        async with self.pool.connection() as connection:
            notes = await log_tables.newest_notes(connection)
        return says_signed(notes) or await asyncio.to_thread(self._is_signed_in_vault)

    def _is_signed_in_vault(self) -> bool:
        newest = {
            key.split("/")[1]: key
            for key in sorted(self.breaks.vault.keys("anchors/"))
            if key.endswith(".note")
        }
        return says_signed(self.breaks.vault.get(key).decode(errors="replace") for key in newest.values())

    async def seal_batch(
        self, month: date, rows: Sequence[UnsealedRow], lock: str, *, is_signed: bool
    ) -> int | None:
        """The number of rows that became leaves; None if another sealer is at work.

        Rows that are not signed are those of older versions, and none once a checkpoint says that rows are signed.
        """
        if month not in self._trees:
            self._trees[month] = await self._rebuild(month)
        tree = self._trees[month].copy()
        try:
            async with log_tables.transaction(self.pool) as connection:
                if not await log_tables.take_lock(connection, lock, log_tables.SEALING):
                    return None
                if await log_tables.server_of(connection) != tree.server:
                    self.forget(
                        month
                    )  # one that took over may be older than the vault, and still as new as our tree
                    return None
                if not is_signed and says_signed(await log_tables.newest_notes(connection)):
                    return None
                await self._catch_up(connection, month, tree)
                new = await log_tables.not_sealed(connection, rows)
                if new:
                    await self._extend(connection, month, tree, new, is_signed=is_signed)
        except UniqueViolation:  # another sealer was faster: our transaction is undone
            return None
        self.has_new_line |= tree.signed_from != self._trees[month].signed_from
        self._trees[month] = tree
        return len(new)

    def forget(self, month: date) -> None:
        """Its history was broken, or the database is another one: nothing that was read before counts."""
        self._trees.pop(month, None)

    async def _rebuild(self, month: date) -> _Tree:
        """The month's tree from its leaves. No lock is held meanwhile, because it takes long for many."""
        tree = _Tree(server=await self.breaks.check(month))
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
        tree.note, tree.signed_from = note, checkpoint.signed_from

    async def _extend(
        self,
        connection: AsyncConnection,
        month: date,
        tree: _Tree,
        rows: Sequence[UnsealedRow],
        *,
        is_signed: bool,
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
        if is_signed and tree.signed_from is None:
            tree.signed_from = first
        breaks = await break_lines(connection, self.checkpoints, month)
        tree.note = await self.checkpoints.sign(
            Link(month, size, root), sealed_at, previous, tree.signed_from, breaks
        )
        await connection.execute(_INSERT_CHECKPOINT, (month, size, tree.note, sealed_at))


def says_signed(notes: Iterable[str]) -> bool:
    return any("\nsigned " in note for note in notes)


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
