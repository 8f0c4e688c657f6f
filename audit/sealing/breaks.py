"""Breaks of the history: after a failover or a restore that lost leaves, an operator states it, and sealing goes on.

The database must be an older copy of what the vault holds, and nothing else: its leaves and the lost ones together must have
the root that was anchored. So a break can hide neither a changed leaf nor a deleted one, and it names the lost range for ever.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from audit.anchored import MonthAnchors, break_key, month_anchors
from audit.errors import HistoryWholeError, TreeMismatchError
from audit.proof.checkpoint import BreakLine, HistoryBreak, Link
from audit.proof.merkle import Frontier
from audit.sealing.log_tables import (
    ANCHORING,
    SEALING,
    WAIT_FOR_LOCK,
    LogCheckpoints,
    fetch,
    last_head,
    put_once,
    server_of,
    stored_leaves,
    take_lock,
    transaction,
)
from audit.vault import Vault

_BREAKS = "SELECT note FROM audit_breaks WHERE month = %s ORDER BY number"
_COUNTS = "SELECT month, count(*) FROM audit_breaks GROUP BY month"
_NOTE = "SELECT note FROM audit_checkpoints WHERE month = %s AND tree_size = %s"
_INSERT = """
INSERT INTO audit_breaks (month, number, kept_size, lost_size, note, event, created_at) VALUES (%s, %s, %s, %s, %s, %s, %s)
"""


async def break_lines(
    connection: AsyncConnection, checkpoints: LogCheckpoints, month: date
) -> tuple[BreakLine, ...]:
    """How the month's next head names the breaks before it."""
    notes = [note for (note,) in await fetch(connection, _BREAKS, (month,))]
    return tuple(checkpoints.open_break(month, at, note).line(note) for at, note in enumerate(notes, 1))


async def break_counts(pool: AsyncConnectionPool) -> dict[date, int]:
    async with pool.connection() as connection:
        return dict(await fetch(connection, _COUNTS))


@dataclass(frozen=True, slots=True)
class HistoryBreaks:
    pool: AsyncConnectionPool
    checkpoints: LogCheckpoints
    vault: Vault
    clock: Callable[[], datetime]

    async def check(self, month: date) -> str:
        """The server that was compared with the vault.

        `TreeMismatchError` unless it holds everything anchored: sealing an older copy would make a second history.
        """
        anchors = await asyncio.to_thread(month_anchors, self.vault, month)
        newest = anchors.chain().sizes[-1:]
        async with self.pool.connection() as connection:
            server = await server_of(connection)
            notes = [note.encode() for (note,) in await fetch(connection, _BREAKS, (month,))]
            if notes != list(anchors.breaks.values()):
                raise TreeMismatchError(
                    f"{month:%Y-%m}: the vault and the database do not hold the same breaks of its history"
                )
            for size in newest:
                stored = await fetch(connection, _NOTE, (month, size))
                anchored = await asyncio.to_thread(self.vault.get, anchors.chain().key(size))
                if [(anchored.decode(),)] != stored:
                    raise TreeMismatchError(
                        f"{month:%Y-%m}: the vault holds a checkpoint of size {size} that the database does not hold; an"
                        " older copy of the database may have been restored, or a standby promoted that lacked it. If"
                        f" nothing newer can be found, run `affidavit audit break --month {month:%Y-%m} --basis TEXT`"
                    )
            for broken in anchors.read_breaks()[-1:]:
                await self._check_kept(connection, broken.kept)
        return server

    async def _check_kept(self, connection: AsyncConnection, kept: Link) -> None:
        stored = await fetch(connection, _NOTE, (kept.month, kept.size))
        found = [self.checkpoints.open(kept.month, kept.size, note).root for (note,) in stored]
        if kept.size and found != [kept.root]:
            raise TreeMismatchError(
                f"{kept.month:%Y-%m}: the database does not hold the checkpoint of size {kept.size}, which its break kept"
            )

    async def declare(self, month: date, basis: str, event: UUID) -> HistoryBreak:
        """State that the leaves are lost which the vault knows and the database does not. `HistoryWholeError` if there are none."""
        await self.checkpoints.register(self.pool, self.clock())
        anchors = await asyncio.to_thread(month_anchors, self.vault, month)
        await self._take_over(anchors)
        async with transaction(self.pool) as connection:
            for name in (SEALING, ANCHORING):
                await take_lock(connection, WAIT_FOR_LOCK, name)
            kept, tree = await self._kept(connection, month)
            lost = await self._lost(anchors, kept, tree)
            number = len(anchors.breaks) + 1
            broken = self.checkpoints.break_of(kept, lost, number, self.clock(), event, basis)
            note = await self.checkpoints.sign_break(broken)
            await put_once(self.vault, break_key(month, number), note.encode())
            await self._insert(connection, broken, note)
        return broken

    async def _take_over(self, anchors: MonthAnchors) -> None:
        """Breaks that the vault has and the database lacks: it has lost them again, or whoever stated them was killed."""
        async with transaction(self.pool) as connection:
            stored = {note for (note,) in await fetch(connection, _BREAKS, (anchors.month,))}
            for number, note in sorted(anchors.breaks.items()):
                text = note.decode(errors="replace")
                broken = self.checkpoints.open_break(anchors.month, number, text)
                if text not in stored:
                    await self._insert(connection, broken, text)

    async def _insert(self, connection: AsyncConnection, broken: HistoryBreak, note: str) -> None:
        place = (broken.month, broken.number, broken.kept.size, broken.lost.size)
        await connection.execute(_INSERT, (*place, note, broken.event, broken.issued_at))

    async def _kept(self, connection: AsyncConnection, month: date) -> tuple[Link, Frontier]:
        """The tree that the database has, which must be what was signed."""
        size, note, is_more = await last_head(connection, month)
        tree = Frontier()
        async for leaves in stored_leaves(connection, month, 0, size):
            for leaf in leaves:
                tree.append(leaf)
        is_signed = not size or self.checkpoints.open(month, size, note).root == tree.root()
        if is_more or not is_signed:
            raise TreeMismatchError(
                f"{month:%Y-%m}: the database is no older copy of what was sealed: its leaves are not those that were"
                " signed. Run `affidavit audit verify`; no break is stated over this"
            )
        return Link(month, size, tree.root()), tree

    async def _lost(self, anchors: MonthAnchors, kept: Link, tree: Frontier) -> Link:
        """The largest head that the vault knows, which the lost leaves must lead to from the kept tree."""
        chain, month = anchors.chain(), anchors.month
        heads = [broken.kept for broken in anchors.read_breaks()[-1:]]
        for size in chain.sizes[-1:]:
            note = await asyncio.to_thread(self.vault.get, chain.key(size))
            heads.append(self.checkpoints.open(month, size, note.decode(errors="replace")).link)
        lost = max(heads, key=lambda head: head.size, default=kept)
        if lost.size <= kept.size:
            raise HistoryWholeError(
                f"The database holds all that the vault holds of {month:%Y-%m}, so its history is not broken"
            )
        leaves, _ = await asyncio.to_thread(chain.leaves, self.vault, kept.size, lost.size)
        for index in range(kept.size, lost.size):
            tree.append(leaves.get(index, b""))
        if tree.root() != lost.root:
            raise TreeMismatchError(
                f"{month:%Y-%m}: the database is no older copy of what the vault holds: its leaves and those of the vault do"
                f" not have the anchored root of size {lost.size}. Run `affidavit audit verify`; no break is stated over this"
            )
        return lost
