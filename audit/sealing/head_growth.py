"""Grows the log of heads: one tree over the anchored heads of all months, which witnesses can watch.

A month's head is appended in the transaction that records its anchor, and its entry is in the vault before that commits. So
after a crash, and after a failover that lost entries in the database, the vault has them, and they are taken over from
there: the log of heads never takes another turn than the one that a witness may have seen. As with the months' trees, only
a root that two paths agree on is signed.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import pairwise
from typing import NamedTuple

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from audit.errors import (
    HeadsMismatchError,
    NoteError,
    UnfamiliarKeyError,
    UnknownKeyError,
    VaultConflictError,
)
from audit.heads.head import LogHead, entry_leaf, open_head, sign_head
from audit.heads.vaulted import encode_entries, entries_key, list_heads, read_entries
from audit.proof import merkle
from audit.proof.checkpoint import open_note
from audit.proof.merkle import Frontier
from audit.sealing import log_tables
from audit.sealing.log_tables import ANCHORING, CHUNK_LEAVES, LogCheckpoints, fetch
from audit.vault import Vault

_LAST = """
SELECT coalesce(h.tree_size, 0), coalesce(h.note, ''), EXISTS (
    SELECT FROM audit_head_entries WHERE entry_index >= coalesce(h.tree_size, 0))
FROM (SELECT) AS always LEFT JOIN LATERAL (SELECT tree_size, note FROM audit_heads ORDER BY tree_size DESC LIMIT 1) h ON true
"""
_LEAVES = "SELECT leaf_hash FROM audit_head_entries WHERE entry_index >= %s AND entry_index < %s ORDER BY entry_index"
_ENTRIES = (
    "SELECT entry FROM audit_head_entries WHERE entry_index >= %s AND entry_index < %s ORDER BY entry_index"
)
_IS_KNOWN = "SELECT EXISTS (SELECT FROM audit_head_entries WHERE leaf_hash = %s)"
_INSERT_ENTRY = """
INSERT INTO audit_head_entries (entry_index, month, tree_size, entry, leaf_hash, appended_at) VALUES (%s, %s, %s, %s, %s, %s)
"""
_INSERT_HEAD = "INSERT INTO audit_heads (tree_size, note, created_at) VALUES (%s, %s, %s)"


class HeadEntry(NamedTuple):
    month: date
    size: int
    note: str


@dataclass(slots=True)
class _HeadTree:
    """On both paths, and the signed head that it was last compared with."""

    frontier: Frontier = field(default_factory=Frontier)
    chunks: list[bytes] = field(default_factory=list)  # roots of the full ones
    note: str = ""

    def copy(self) -> "_HeadTree":
        return _HeadTree(self.frontier.copy(), self.chunks.copy(), self.note)


@dataclass(slots=True)
class HeadGrowth:
    pool: AsyncConnectionPool
    checkpoints: LogCheckpoints
    vault: Vault
    clock: Callable[[], datetime]
    _tree: _HeadTree = field(default_factory=_HeadTree)
    _grown: _HeadTree | None = None  # until it is committed
    _server: str = ""  # that was compared with the vault; empty: none, or something failed since
    _vault_ends: int | None = None  # the vault lacks the entries from here on; None: no entry

    async def take_over(self) -> bool:
        """What the vault has of the log of heads and the database lacks; once for each run of a server and each failure.

        False if that was done before.
        """
        async with self.pool.connection() as connection:
            server = await log_tables.server_of(connection)
            if server == self._server:
                return False
            stored = (await fetch(connection, _LAST))[0][0]
        size, entries = await asyncio.to_thread(self._in_vault, max(0, stored - 1))
        async with log_tables.transaction(self.pool) as connection:
            await log_tables.take_lock(connection, log_tables.WAIT_FOR_LOCK, ANCHORING)
            tree = _HeadTree()
            await self._catch_up(connection, tree)
            await self._compare(connection, tree.frontier.size, dict(entries))
            lacking = [entry for index, entry in entries if index >= tree.frontier.size]
            if lacking:
                await self._extend(connection, tree, lacking)
        self._tree, self._server = tree, server
        self._vault_ends = size if size < tree.frontier.size else None
        return True

    async def append(self, connection: AsyncConnection, entry: HeadEntry) -> bool:
        """In the transaction that records the entry's anchor, under its lock. False if the vault must be looked at first.

        What was appended counts once `keep` is called, after the commit.
        """
        if await log_tables.server_of(connection) != self._server:
            return False
        tree = self._tree.copy()
        await self._catch_up(connection, tree)
        ((is_known,),) = await fetch(connection, _IS_KNOWN, (entry_leaf(entry.note.encode()),))
        self._grown = tree
        if is_known:  # taken over from the vault, where it was before a crash
            return True
        begin = tree.frontier.size if self._vault_ends is None else self._vault_ends
        await self._extend(connection, tree, [entry])
        return await self._into_vault(connection, begin, tree.frontier.size)

    def keep(self) -> None:
        """The transaction was committed."""
        if self._grown:
            self._tree, self._grown, self._vault_ends = self._grown, None, None

    def forget(self) -> None:
        """It was not, or nobody knows: the vault may have more than the database."""
        self._grown, self._server = None, ""

    async def proof(self, connection: AsyncConnection, old: int, size: int) -> list[bytes]:
        """That the tree of `size` entries begins with the tree of `old` entries."""
        return [await self._node(connection, *beside) for beside in merkle.consistency_ranges(old, size)]

    async def newest(self, connection: AsyncConnection) -> tuple[int, str]:
        """Size and note of the newest signed head, which was compared with its entries.

        Size 0 if there is none, or if the server is another one than was compared with the vault.
        """
        if await log_tables.server_of(connection) != self._server:
            return 0, ""
        tree = self._tree.copy()
        await self._catch_up(connection, tree)
        self._tree = tree
        return tree.frontier.size, tree.note

    def _in_vault(self, begin: int) -> tuple[int, list[tuple[int, HeadEntry]]]:
        """How many entries the vault has, and those from about this index on."""
        held = list_heads(self.vault)
        try:
            found = [
                (index, self._entry(note))
                for index, note in read_entries(self.vault, held.files_from(begin))
                if index >= begin
            ]
        except UnknownKeyError as wrong:
            raise UnfamiliarKeyError(f"An entry of the log of heads in the vault: {wrong}") from None
        except NoteError as wrong:
            raise HeadsMismatchError(f"The log of heads in the vault cannot be read: {wrong}") from None
        return held.size, found

    def _entry(self, note: str) -> HeadEntry:
        head = open_note(note, self.checkpoints.public_keys())
        if head.origin != self.checkpoints.origin:
            raise NoteError(f"an entry is of another log, {head.origin}")
        return HeadEntry(head.month, head.size, note)

    async def _compare(self, connection: AsyncConnection, size: int, in_vault: dict[int, HeadEntry]) -> None:
        """The last entry of the database is the vault's, if the vault has it."""
        stored = await fetch(connection, _ENTRIES, (size - 1, size)) if size - 1 in in_vault else []
        if stored and stored[0][0] != in_vault[size - 1].note:
            raise HeadsMismatchError(
                f"The entry {size - 1} of the log of heads is not the one in the vault: two histories were signed"
            )

    async def _catch_up(self, connection: AsyncConnection, tree: _HeadTree) -> None:
        """Take over what other sealers did, if it extends our tree and is what they signed."""
        ((size, note, is_more),) = await fetch(connection, _LAST)
        if is_more:
            raise HeadsMismatchError(f"The log of heads has entries after its last head, of size {size}")
        if note == tree.note:
            return
        if size <= tree.frontier.size:
            raise HeadsMismatchError(
                f"The last head of the log of heads, of size {tree.frontier.size}, is missing or was replaced;"
                f" the last one is of size {size}"
            )
        head = self.open(note)
        if not await self._read_back(connection, tree, size) == tree.frontier.root() == head.root:
            raise HeadsMismatchError(
                f"The first {size} entries of the log of heads are not those that were signed"
            )
        tree.note = note

    def open(self, note: str) -> LogHead:
        try:
            head, _ = open_head(note, self.checkpoints.public_keys())
        except UnknownKeyError as wrong:
            raise UnfamiliarKeyError(f"The log of heads: {wrong}") from None
        except NoteError as wrong:
            raise HeadsMismatchError(f"The log of heads: {wrong}") from None
        if head.origin != self.checkpoints.origin:
            raise HeadsMismatchError(f"The last head of the log of heads is of another log, {head.origin}")
        return head

    async def _extend(
        self, connection: AsyncConnection, tree: _HeadTree, entries: Sequence[HeadEntry]
    ) -> None:
        first, now = tree.frontier.size, self.clock()
        for index, (month, size, note) in enumerate(entries, first):
            leaf = entry_leaf(note.encode())
            tree.frontier.append(leaf)
            await connection.execute(_INSERT_ENTRY, (index, month, size, note, leaf, now))
        size, root = tree.frontier.size, tree.frontier.root()
        if await self._read_back(connection, tree, size) != root:
            raise HeadsMismatchError(
                f"Two ways to compute the root of {size} heads do not agree, so it was not signed"
            )
        tree.note = sign_head(LogHead(self.checkpoints.origin, size, root), self.checkpoints.key)
        await connection.execute(_INSERT_HEAD, (size, tree.note, now))

    async def _into_vault(self, connection: AsyncConnection, begin: int, end: int) -> bool:
        """False if it has other entries there: those of a sealer that has ended before its commit."""
        self._server, server = "", self._server  # until the commit the vault may be ahead
        entries = [entry for (entry,) in await fetch(connection, _ENTRIES, (begin, end))]
        try:
            await asyncio.to_thread(self.vault.put, entries_key(begin, end), encode_entries(entries))
        except VaultConflictError:
            return False
        self._server = server
        return True

    async def _read_back(self, connection: AsyncConnection, tree: _HeadTree, size: int) -> bytes:
        """The root by recursion over the stored leaves, the second path. The frontier takes the leaves that it lacks."""
        begin = len(tree.chunks) * CHUNK_LEAVES
        tail: list[bytes] = []
        for at, until in pairwise([*range(begin, size, CHUNK_LEAVES), size]):
            leaves = await _leaves(connection, at, until)
            for leaf in leaves[max(0, tree.frontier.size - at) :]:
                tree.frontier.append(leaf)
            (tree.chunks if len(leaves) == CHUNK_LEAVES else tail).append(merkle.root(leaves))
        return merkle.root([*tree.chunks, *tail])

    async def _node(self, connection: AsyncConnection, begin: int, end: int) -> bytes:
        """The root over some leaves. A range of more than a chunk begins at one."""
        if end - begin <= CHUNK_LEAVES:
            return merkle.root(await _leaves(connection, begin, end))
        full = end // CHUNK_LEAVES
        last = (
            [merkle.root(await _leaves(connection, full * CHUNK_LEAVES, end))] if end % CHUNK_LEAVES else []
        )
        return merkle.root([*self._tree.chunks[begin // CHUNK_LEAVES : full], *last])


async def _leaves(connection: AsyncConnection, begin: int, end: int) -> list[bytes]:
    leaves = [leaf for (leaf,) in await fetch(connection, _LEAVES, (begin, end))]
    if len(leaves) != end - begin:
        raise HeadsMismatchError(f"Some of the entries {begin} to {end - 1} of the log of heads are missing")
    return leaves
