"""Searches that auditors keep: each has an owner, and nobody else changes it or, unless it is shared, knows of it.

A frozen result is also the evidence of what was found: for each month the size and the root of its tree at that moment, and the
leaves that were found below it. It shows the same records for ever; of one that was erased since, that it was.
"""

import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from audit.errors import SearchRefusedError, UnansweredError
from audit.ledger.partitions import month_start, next_month
from audit.proof.checkpoint import read_note
from audit.search.criteria import Criteria
from audit.search.finding import SHOWN, Finder, FoundRecord

FROZEN_MAX = 5_000  # records: what a person can still look through, and a row that stays small
NAME_CHARACTERS_MAX = 200
SAVED_MAX = 500  # of one owner

_COLUMNS = "view_id, owner, name, filter, is_shared, made_at, heads, leaves"
_SEEN = "FROM audit_saved_views WHERE (owner = %(who)s OR is_shared)"
_ALL = f"SELECT {_COLUMNS.replace('leaves', 'NULL::jsonb AS leaves')} {_SEEN} ORDER BY name, made_at"
_ONE = f"SELECT {_COLUMNS} {_SEEN} AND view_id = %(view)s"
_SAVE = f"""
INSERT INTO audit_saved_views ({_COLUMNS})
SELECT %s, %s, %s, %s, %s, %s, %s, %s WHERE (SELECT count(*) FROM audit_saved_views WHERE owner = %s) < {SAVED_MAX}
"""  # noqa: S608
_DELETE = "DELETE FROM audit_saved_views WHERE view_id = %s AND owner = %s"
_HEADS = "SELECT DISTINCT ON (month) month, note FROM audit_checkpoints WHERE month = ANY(%s) ORDER BY month, tree_size DESC"
_LEAVES = "SELECT log_id, month, leaf_index FROM audit_leaves WHERE log_id = ANY(%s)"
_LOG_IDS = "SELECT log_id, leaf_index FROM audit_leaves WHERE month = %s AND leaf_index = ANY(%s) ORDER BY leaf_index DESC"
_HEAD = "SELECT note FROM audit_checkpoints WHERE month = %s AND tree_size = %s"
_ROWS = f"""
SELECT {", ".join(SHOWN)} FROM audit_logs
WHERE log_id IN (SELECT log_id FROM audit_leaves WHERE month = %s AND leaf_index = ANY(%s)) AND timestamp >= %s AND timestamp < %s
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class SavedView:
    """`heads`: by month [size, root]; `leaves`: by month their indexes. Both only of a frozen result."""

    view_id: UUID
    owner: str
    name: str
    filter: str
    is_shared: bool
    made_at: datetime
    heads: Mapping[str, Sequence[Any]] | None = None
    leaves: Mapping[str, Sequence[int]] | None = None

    @property
    def is_frozen(self) -> bool:
        return self.heads is not None


@dataclass(frozen=True, slots=True)
class FrozenRow:
    """A record of a frozen result. `found` is None if its month is not in the database any more."""

    month: str
    leaf_index: int
    found: FoundRecord | None


@dataclass(frozen=True, slots=True)
class FrozenResult:
    """`changed`: months whose tree had another root at that size, which only a break of its history explains."""

    rows: list[FrozenRow]
    changed: list[str]

    @property
    def rows_here(self) -> list[FoundRecord]:
        return [row.found for row in self.rows if row.found]

    @property
    def erased(self) -> int:
        return sum(found.erased_at is not None for found in self.rows_here)

    @property
    def archived(self) -> int:
        return len(self.rows) - len(self.rows_here)


@dataclass(slots=True)
class SavedViews:
    """`pool` is in the engine's role, which alone may keep them; `finder` reads in the auditor's."""

    pool: AsyncConnectionPool
    finder: Finder

    async def seen_by(self, who: str) -> list[SavedView]:
        """Without their leaves, which are many: `one` has them."""
        async with _connected(self.pool) as connection:
            cursor = connection.cursor(row_factory=class_row(SavedView))
            return await (await cursor.execute(_ALL.encode(), {"who": who})).fetchall()

    async def one(self, who: str, view_id: UUID) -> SavedView | None:
        """None: there is none, or it is somebody else's."""
        async with _connected(self.pool) as connection:
            cursor = connection.cursor(row_factory=class_row(SavedView))
            found = await cursor.execute(_ONE.encode(), {"who": who, "view": view_id})
            return await found.fetchone()

    async def save(self, view: SavedView) -> None:
        """`SearchRefusedError` if its owner has too many, or it has no name."""
        if not 0 < len(view.name) <= NAME_CHARACTERS_MAX or "\x00" in view.name:
            raise SearchRefusedError(f"Give a name of at most {NAME_CHARACTERS_MAX} characters.")
        evidence = [None if each is None else Jsonb(each) for each in (view.heads, view.leaves)]
        values = (
            view.view_id,
            view.owner,
            view.name,
            view.filter,
            view.is_shared,
            view.made_at,
            *evidence,
            view.owner,
        )
        async with _connected(self.pool) as connection:
            if (await connection.execute(_SAVE.encode(), values)).rowcount != 1:
                raise SearchRefusedError(f"You have {SAVED_MAX} saved views already. Delete some first.")

    async def delete(self, who: str, view_id: UUID) -> bool:
        """Whether there was one of theirs."""
        async with _connected(self.pool) as connection:
            return (await connection.execute(_DELETE, (view_id, who))).rowcount == 1

    async def freeze(self, criteria: Criteria) -> tuple[dict[str, list[Any]], dict[str, list[int]]]:
        """The heads and the leaves of what is found now. What is not under a signed head yet is left out."""
        rows = await self.finder.all_until(criteria, FROZEN_MAX)
        if len(rows) > FROZEN_MAX:
            raise SearchRefusedError(
                f"It finds more than {FROZEN_MAX} records. Narrow the filter, then freeze its result."
            )
        async with _connected(self.finder.pool) as connection:
            leaves = await (await connection.execute(_LEAVES, ([row.log_id for row in rows],))).fetchall()
            months = sorted({month for _, month, _ in leaves})
            notes = await (await connection.execute(_HEADS, (months,))).fetchall()
        heads = {f"{month:%Y-%m}": _head(note) for month, note in notes}
        below = {
            month: sorted(index for _, of, index in leaves if f"{of:%Y-%m}" == month and index < size)
            for month, (size, _) in heads.items()
        }
        return heads, below

    async def thaw(self, view: SavedView, books: Sequence[str] | None = None) -> FrozenResult:
        """The same records, as they are now, newest month first."""
        rows, changed = list[FrozenRow](), list[str]()
        async with _connected(self.finder.pool) as connection:
            for month, indexes in sorted((view.leaves or {}).items(), reverse=True):
                rows += await _of_month(connection, month, indexes, books)
                if not await _is_same(connection, month, (view.heads or {})[month]):
                    changed.append(month)
        return FrozenResult(rows, changed)


async def _of_month(
    connection: psycopg.AsyncConnection, month: str, indexes: Sequence[int], books: Sequence[str] | None
) -> list[FrozenRow]:
    first = date.fromisoformat(f"{month}-01")
    bounds = (first, list(indexes), month_start(first), month_start(next_month(first)))
    cursor = connection.cursor(row_factory=class_row(FoundRecord))
    found = {row.log_id: row for row in await (await cursor.execute(_ROWS.encode(), bounds)).fetchall()}
    leaves = await connection.execute(_LOG_IDS, (first, list(indexes)))
    rows = [FrozenRow(month, index, found.get(log_id)) for log_id, index in await leaves.fetchall()]
    return [row for row in rows if books is None or (row.found and row.found.book_id in books)]


async def _is_same(connection: psycopg.AsyncConnection, month: str, head: Sequence[Any]) -> bool:
    """Whether the tree of this size still has this root, as its checkpoint says."""
    first = date.fromisoformat(f"{month}-01")
    notes = await (await connection.execute(_HEAD, (first, head[0]))).fetchall()
    return any(_head(note) == list(head) for (note,) in notes)


def _head(note: str) -> list[Any]:
    checkpoint = read_note(note)
    return [checkpoint.size, base64.b64encode(checkpoint.root).decode()]


@asynccontextmanager
async def _connected(pool: AsyncConnectionPool) -> AsyncIterator[psycopg.AsyncConnection]:
    """A connection. The driver's messages are not passed on: they may contain a row."""
    try:
        async with pool.connection() as connection:
            yield connection
    except (psycopg.Error, PoolTimeout) as failure:
        raise UnansweredError(
            f"Saved views cannot be read now: {type(failure).__name__}. Try again in a moment"
        ) from None
