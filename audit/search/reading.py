"""One record with all that belongs to it: its passages, its proof, its conversation, what was thought of it, its erasure and holds."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from audit.checking.prover import Prover
from audit.errors import UnansweredError, UnprovenError
from audit.proof.keys import PublicKey
from audit.proof.record import Row
from audit.search.finding import SHOWN, FoundRecord
from audit.search.standing import JudgedRung, RecordStanding, ladder

TURNS_MAX = 100
FEEDBACK_MAX = 20
PATIENCE_S = 0.15  # the first proof of a month of a million records takes two seconds, and a page has less
_BEING_PROVEN = "Its path through the month's tree is being computed, for the first time here. Load this page again in some seconds."

_ROW = "SELECT * FROM audit_logs WHERE query_id = %s ORDER BY timestamp LIMIT 1"
_PASSAGES = """
SELECT chunk_id, text, chapter, section, filename, url, start_page, sentences FROM chunks WHERE chunk_id = ANY(%s)
"""
_TURNS = f"""
SELECT {", ".join(SHOWN)} FROM audit_logs WHERE session_id = %s ORDER BY timestamp, log_id LIMIT {TURNS_MAX}
"""  # noqa: S608
_FEEDBACK = f"""
SELECT timestamp AS given_at, (details ->> 'helpful')::boolean AS helpful, details ->> 'reason' AS complaint FROM audit_logs
WHERE details ->> 'query_id' = %s AND endpoint = '/v1/feedback' AND outcome = 'served'
ORDER BY timestamp DESC LIMIT {FEEDBACK_MAX}
"""  # noqa: S608
_STANDING = """
SELECT l.month, l.leaf_index, l.sealed_at, c.tree_size, c.created_at, a.tree_size, a.vault_key, a.anchored_at,
       h.tree_size, h.has_quorum, h.anchored_at
FROM audit_leaves l
LEFT JOIN LATERAL (SELECT tree_size, created_at FROM audit_checkpoints c
    WHERE c.month = l.month AND c.tree_size > l.leaf_index ORDER BY tree_size LIMIT 1) c ON true
LEFT JOIN LATERAL (SELECT tree_size, vault_key, anchored_at FROM audit_anchors a
    WHERE a.month = l.month AND a.tree_size > l.leaf_index ORDER BY tree_size LIMIT 1) a ON true
LEFT JOIN LATERAL (SELECT s.tree_size, s.has_quorum, s.anchored_at FROM audit_head_entries e
    JOIN audit_head_anchors s ON s.tree_size > e.entry_index
    WHERE e.month = l.month AND e.tree_size > l.leaf_index ORDER BY s.has_quorum DESC, s.tree_size LIMIT 1) h ON true
WHERE l.log_id = %s
"""
_ERASURE = (
    "SELECT erased_at, basis, event FROM audit_erasures WHERE log_id = %s ORDER BY erased_at DESC LIMIT 1"
)
_HELD = "SELECT audit_is_held(query_id, end_user, NULL, client_id, timestamp, NULL) FROM audit_logs WHERE log_id = %s AND timestamp = %s"


@dataclass(frozen=True, slots=True)
class GivenFeedback:
    given_at: datetime
    helpful: bool | None
    complaint: str | None


@dataclass(frozen=True, slots=True)
class RecordedErasure:
    erased_at: datetime
    basis: str
    event: UUID


@dataclass(frozen=True, slots=True)
class WholeRecord:
    """`row` has every column. `proof` is empty where there is none; then the ladder says why."""

    row: dict[str, Any]
    passages: dict[str, dict[str, Any]]
    rungs: Sequence[JudgedRung]
    turns: list[FoundRecord] = field(default_factory=list)
    feedback: list[GivenFeedback] = field(default_factory=list)
    erasure: RecordedErasure | None = None
    is_held: bool = False
    standing: RecordStanding | None = None


@dataclass(slots=True)
class RecordReader:
    """Reads in the auditor's role."""

    pool: AsyncConnectionPool
    prover: Prover

    async def record(
        self, query_id: UUID, keys: Sequence[PublicKey], books: Sequence[str] | None = None
    ) -> WholeRecord | None:
        """None: there is none, or the reader's key is not for its book."""
        async with self._connected() as connection:
            row = await (
                await connection.cursor(row_factory=dict_row).execute(_ROW.encode(), (query_id,))
            ).fetchone()
            if row is None or (books is not None and row["book_id"] not in books):
                return None
            passages = await _passages(connection, row)
            standing = await _standing(connection, row["log_id"])
            turns = await _turns(connection, row, books)
            feedback = await _all(connection, GivenFeedback, _FEEDBACK, str(query_id))
            erasure = next(iter(await _all(connection, RecordedErasure, _ERASURE, row["log_id"])), None)
            held = await (await connection.execute(_HELD, (row["log_id"], row["timestamp"]))).fetchone()
        proof, why = await self._proof(query_id)
        rungs = ladder(row, passages, proof, why, standing, keys)
        return WholeRecord(row, passages, rungs, turns, feedback, erasure, held == (True,), standing)

    async def _proof(self, query_id: UUID) -> tuple[bytes, str]:
        """The bundle, or why there is none."""
        try:
            row: Row = await self.prover.row(query_id)
            async with asyncio.timeout(PATIENCE_S):
                return await asyncio.shield(self.prover.begin(row)), ""
        except UnprovenError as missing:
            return b"", str(missing)
        except TimeoutError:
            return b"", _BEING_PROVEN

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """A connection. The driver's messages are not passed on: they may contain a row."""
        try:
            async with self.pool.connection() as connection:
                yield connection
        except (psycopg.Error, PoolTimeout) as failure:
            raise UnansweredError(
                f"The record could not be read now: {type(failure).__name__}. Try again in a moment"
            ) from None


async def _passages(connection: psycopg.AsyncConnection, row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    named = [*_list(row["citations"]), *_list(row["chunks_returned"])]
    ids = [each["chunk_id"] for each in named if isinstance(each.get("chunk_id"), str)]
    found = await connection.cursor(row_factory=dict_row).execute(_PASSAGES.encode(), (ids,))
    return {each["chunk_id"]: each for each in await found.fetchall()}


def _list(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


async def _turns(
    connection: psycopg.AsyncConnection, row: dict[str, Any], books: Sequence[str] | None
) -> list[FoundRecord]:
    if row["session_id"] is None:
        return []
    found = await _all(connection, FoundRecord, _TURNS, row["session_id"])
    return [
        each for each in found if each.log_id != row["log_id"] and (books is None or each.book_id in books)
    ]


async def _standing(connection: psycopg.AsyncConnection, log_id: UUID) -> RecordStanding | None:
    found = await (await connection.execute(_STANDING, (log_id,))).fetchone()
    return RecordStanding(*found) if found else None


async def _all(connection: psycopg.AsyncConnection, kind: type, statement: str, value: object) -> list[Any]:
    cursor: psycopg.AsyncCursor[Any] = connection.cursor(row_factory=class_row(kind))
    return await (await cursor.execute(statement.encode(), (value,))).fetchall()
