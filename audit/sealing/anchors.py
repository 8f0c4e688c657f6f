"""Anchoring: copies the newest checkpoint of each month, and the leaves under it, into write-once storage.

The database could be rewritten by its owner, or restored from an old backup; the copy in the vault shows that.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from audit.anchored import leaves_key, note_key
from audit.errors import TreeMismatchError
from audit.proof.merkle import Frontier
from audit.sealing.breaks import break_lines
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
    clock: Callable[[], datetime]
    _anchored: dict[date, Frontier] = field(default_factory=dict)

    async def months(self) -> list[date]:
        """The months with a checkpoint that is not anchored yet."""
        async with self.pool.connection() as connection:
            return [month for (month,) in await fetch(connection, _UNANCHORED)]

    async def put_next(self, month: date, lock: str) -> bool:
        """Write the month's next anchor; false if there is none, or if another sealer is at work.

        The leaves go first: an anchored note must never lack the leaves that explain it.
        """
        async with transaction(self.pool) as connection:
            if not await take_lock(connection, lock, ANCHORING):
                return False
            found = await fetch(connection, _NEXT_ANCHOR, {"month": month, "count": ANCHOR_LEAVES})
            if not found:
                return False
            ((anchored, size, note),) = found
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
        self._anchored[month] = frontier
        return True

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
