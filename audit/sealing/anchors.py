"""Anchoring: copies the newest checkpoint of each month, and the leaves under it, into write-once storage.

The database could be rewritten by its owner, or restored from an old backup; the copy in the vault shows that.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime

from psycopg import AsyncConnection, Rollback
from psycopg_pool import AsyncConnectionPool

from audit.anchored import DELEGATED, delegation_key, leaves_key, note_key
from audit.errors import TreeMismatchError
from audit.proof.merkle import Frontier
from audit.sealing.breaks import break_lines
from audit.sealing.head_growth import HeadEntry, HeadGrowth
from audit.sealing.log_tables import (
    ANCHORING,
    LogCheckpoints,
    fetch,
    put_once,
    stored_leaves,
    take_lock,
    transaction,
)
from audit.vault import Vault
from audit.vault_owner import check_vault

ANCHOR_LEAVES = 100_000  # about so many in one file: some 3 MB

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
_INSERT_ANCHOR = """
INSERT INTO audit_anchors (month, tree_size, vault_key, vault_version, anchored_at) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT DO NOTHING
"""


@dataclass(slots=True)
class VaultAnchors:
    pool: AsyncConnectionPool
    checkpoints: LogCheckpoints
    vault: Vault
    heads: HeadGrowth
    clock: Callable[[], datetime]
    may_begin_vault: bool = False  # although the log was anchored in another one
    _is_ours: bool = False
    _kept: set[str] | None = None  # the vault's keys of delegations
    _anchored: dict[date, Frontier] = field(default_factory=dict)

    async def check_vault(self) -> None:
        """`WrongVaultError` if the vault is not this log's."""
        async with self.pool.connection() as connection:
            await self._check_vault(connection)

    async def _check_vault(self, connection: AsyncConnection) -> None:
        if not self._is_ours:
            self._is_ours = await check_vault(connection, self.vault, may_begin=self.may_begin_vault)

    async def put_delegations(self, lines: Sequence[str]) -> None:
        """So that archives and proofs can be checked when the database is gone."""
        if not lines:
            return
        if self._kept is None:
            self._kept = set(await asyncio.to_thread(self.vault.keys, DELEGATED))
        for line in lines:
            if (key := delegation_key(line)) not in self._kept:
                await put_once(self.vault, key, f"{line}\n".encode())
                self._kept.add(key)

    async def months(self) -> list[date]:
        """The months with a checkpoint that is not anchored yet."""
        async with self.pool.connection() as connection:
            return [month for (month,) in await fetch(connection, _UNANCHORED)]

    async def put_next(self, month: date, lock: str) -> bool:
        """Write the month's next anchor, and append it to the log of heads; false if there is none, or if another sealer is at work.

        The leaves go first: an anchored note must never lack the leaves that explain it. `WrongVaultError` if they would come
        among another log's, or the log's anchors into two vaults.
        """
        try:
            is_put = await self._put_next(month, lock)
        except BaseException:
            self.heads.forget()
            raise
        if is_put:
            self.heads.keep()
        return is_put

    async def _put_next(self, month: date, lock: str) -> bool:
        is_appended = False
        async with transaction(self.pool) as connection:
            if not await take_lock(connection, lock, ANCHORING):
                return False
            found = await fetch(connection, _NEXT_ANCHOR, {"month": month, "count": ANCHOR_LEAVES})
            if not found:
                return False
            ((anchored, size, note),) = found
            await self._check_vault(connection)  # now that no other sealer can begin another vault
            frontier, leaves = await self._leaves(connection, month, anchored, size)
            if frontier.root() != self.checkpoints.open(month, size, note).root:
                raise TreeMismatchError(
                    f"{month:%Y-%m}: the first {size} leaves are not those that were signed"
                )
            branch = len(await break_lines(connection, self.checkpoints, month))
            await put_once(self.vault, leaves_key(month, anchored, size, branch), b"".join(leaves))
            key = note_key(month, size, branch)
            version = await put_once(self.vault, key, note.encode())
            await connection.execute(_INSERT_ANCHOR, (month, size, key, version, self.clock()))
            is_appended = await self.heads.append(connection, HeadEntry(month, size, note))
            if not is_appended:
                raise Rollback
        if is_appended:
            self._anchored[month] = frontier
            self._is_ours = True
        return is_appended

    def forget(self, month: date) -> None:
        """Its history was broken: nothing that was read before counts."""
        self._anchored.pop(month, None)

    async def _leaves(
        self, connection: AsyncConnection, month: date, anchored: int, size: int
    ) -> tuple[Frontier, list[bytes]]:
        """The tree of this size, and those of its leaves that no anchor holds yet."""
        frontier = self._anchored.get(month, Frontier()).copy()
        new: list[bytes] = []
        for begin, end in ((frontier.size, anchored), (anchored, size)):
            async for leaves in stored_leaves(connection, month, begin, end):
                for leaf in leaves:
                    frontier.append(leaf)
                if begin == anchored:
                    new += leaves
        return frontier, new
