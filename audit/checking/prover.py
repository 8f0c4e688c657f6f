"""Builds inclusion proofs: the proof bundle of one record, for the command line and for HTTP.

The roots of full chunks of leaves never change, so they are cached: a proof then reads two chunks and not a whole month.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from uuid import UUID

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from audit.checking.evidence import COLUMNS, rows_statement
from audit.errors import MissingRecordError, ProofUnavailableError, UnprovenError, UnsealedRecordError
from audit.heads.tlog_proof import TlogProof
from audit.proof import merkle
from audit.proof.bundle import Bundle, are_commitments, encode, month_of, time_of
from audit.proof.keys import ID_BYTES, NAME, PublicKey
from audit.proof.record import SCHEMA_VERSIONS, Row, bytes_of, leaf_hash
from audit.proof.row_signature import is_row_signed

CHUNK_LEAVES = 1_024  # a power of two: the tree over the chunks' roots is the tree over the leaves
SEALED_IN_S = 10  # a sealer needs no longer

_LEAVES_MISSING = "Leaves of the month are missing, so nothing can be proven. Run `affidavit audit verify`"
_COMMITMENTS_MISSING = (
    "The record was erased, but its stored commitments are missing. Run `affidavit audit verify`"
)
_COVERED = """
SELECT l.leaf_index, c.tree_size, c.note, (SELECT count(*) FROM public.audit_breaks b WHERE b.month = l.month)
FROM public.audit_leaves l
CROSS JOIN LATERAL (SELECT tree_size, note FROM public.audit_checkpoints c
    WHERE c.month = l.month AND c.tree_size > l.leaf_index ORDER BY tree_size LIMIT 1) c
WHERE l.log_id = %s::uuid AND l.month = %s
"""
_LEAVES = """
SELECT leaf_hash FROM public.audit_leaves WHERE month = %s AND leaf_index >= %s AND leaf_index < %s ORDER BY leaf_index
"""
# In the smallest tree whose head is an entry of the log of heads, under a published head with a quorum if there is one.
_HEADS = """
SELECT l.leaf_index, e.tree_size, e.entry, (SELECT count(*) FROM public.audit_breaks b WHERE b.month = l.month),
       e.entry_index, h.tree_size, h.note
FROM public.audit_leaves l
CROSS JOIN LATERAL (SELECT e.* FROM public.audit_head_entries e
    JOIN public.audit_checkpoints c ON c.month = e.month AND c.tree_size = e.tree_size AND c.note = e.entry
    WHERE e.month = l.month AND e.tree_size > l.leaf_index ORDER BY e.tree_size LIMIT 1) e
CROSS JOIN LATERAL (SELECT tree_size, note FROM public.audit_head_anchors a
    WHERE a.tree_size > e.entry_index ORDER BY has_quorum DESC, tree_size LIMIT 1) h
WHERE l.log_id = %s::uuid AND l.month = %s
"""
_HEAD_LEAVES = "SELECT leaf_hash FROM public.audit_head_entries WHERE entry_index < %s ORDER BY entry_index"
_DELEGATED = (
    "SELECT line FROM public.audit_delegations WHERE starts_with(line, %s) AND line LIKE '%% delegated %%'"
)
_ERASED = "SELECT commitments FROM public.audit_erasures WHERE log_id = %s::uuid"


# A month, and how many breaks its history has: after each one others take the places of the lost leaves.
_Branch = tuple[date, int]


class Prover:
    """Reads in the auditor's role. Its cache belongs to one process."""

    def __init__(self, pool: AsyncConnectionPool) -> None:
        self._pool = pool
        self._chunk_roots: dict[_Branch, list[bytes]] = defaultdict(list)
        self._reading: dict[_Branch, asyncio.Lock] = defaultdict(asyncio.Lock)  # single flight
        self._proving: set[asyncio.Task[bytes]] = set()

    async def row(self, query_id: UUID) -> Row:
        """The record of a query, in the form in which it is hashed."""
        async with self._connected() as connection:
            columns = await (await connection.execute(COLUMNS)).fetchall()
            statement = rows_statement(columns, "query_id = %s")
            found = await (await connection.execute(statement, (query_id,))).fetchone()
        if found is None:
            raise MissingRecordError(f"There is no record of query {query_id}")
        row: Row = json.loads(found[1])
        return row

    def begin(self, row: Row) -> asyncio.Task[bytes]:
        """`prove` for who cannot wait for it: it goes on without them, so that the next proof of this month is quick."""
        proving = asyncio.create_task(self.prove(row))
        self._proving.add(proving)
        proving.add_done_callback(self._ended)
        return proving

    def _ended(self, proving: asyncio.Task[bytes]) -> None:
        self._proving.discard(proving)
        if not proving.cancelled():
            proving.exception()  # whoever waits for it is told

    async def close(self) -> None:
        for proving in self._proving:
            proving.cancel()
        await asyncio.gather(*self._proving, return_exceptions=True)

    async def prove(self, row: Row) -> bytes:
        """The proof bundle, in the smallest signed tree that contains the record."""
        if row["schema_version"] not in SCHEMA_VERSIONS:
            raise UnprovenError(
                f"This program cannot prove records of schema version {row['schema_version']}"
            )
        month = month_of(row)
        async with self._connected() as connection:
            found = await (await connection.execute(_COVERED, (row["log_id"], month))).fetchone()
        if found is None:
            raise UnsealedRecordError(f"The record is not sealed yet. Ask again in {SEALED_IN_S} s.")
        index, size, note, breaks = found
        proof = await self._proof((month, breaks), index, size)
        committed = None if row["erased_at"] is None else await self._commitments(row)
        return encode(Bundle(row, index, proof, note, committed, await self._delegation(row)))

    async def _delegation(self, row: Row) -> PublicKey | None:
        """Of the key that signed the row, if it is a delegated one. Whether it counts is for a verifier to say."""
        if not row.get("signature"):
            return None
        key_id = f"{NAME}+{row['signature'][2 : 2 + 2 * ID_BYTES]}"
        async with self._connected() as connection:
            known = await (
                await connection.execute("SELECT to_regclass('public.audit_delegations')")
            ).fetchone()
            if known == (None,):
                return None
            lines = await (await connection.execute(_DELEGATED, (f"{key_id}+",))).fetchall()
        at, leaf = time_of(row), bytes_of(row["leaf_hash"])
        for key in (PublicKey.of(line) for (line,) in lines):
            is_in_time = key.delegation and key.delegation.begin <= at < key.delegation.until
            if is_in_time and is_row_signed(
                bytes_of(row["signature"]), row["log_id"], leaf, at, [PublicKey(key.raw)]
            ):
                return key
        return None

    async def prove_in_heads(self, row: Row) -> tuple[bytes, str]:
        """The proof bundle under an anchored head of the month, and the .tlog-proof that this head is in the log of heads."""
        month = month_of(row)
        async with self._connected() as connection:
            found = await (await connection.execute(_HEADS, (row["log_id"], month))).fetchone()
        if found is None:
            raise UnsealedRecordError(
                "The record is in no head of the log of heads that is published yet. Look at `affidavit audit status`"
            )
        index, size, entry, breaks, entry_index, heads, note = found
        proof = await self._proof((month, breaks), index, size)
        committed = None if row["erased_at"] is None else await self._commitments(row)
        async with self._connected() as connection:
            leaves = [leaf for (leaf,) in await (await connection.execute(_HEAD_LEAVES, (heads,))).fetchall()]
        if len(leaves) < heads:
            raise UnprovenError(_LEAVES_MISSING)
        of_head = TlogProof(entry_index, merkle.inclusion_proof(leaves, entry_index), note, entry.encode())
        return encode(Bundle(row, index, proof, entry, committed)), str(of_head)

    async def _proof(self, branch: _Branch, index: int, size: int) -> list[bytes]:
        """The path within the record's chunk, then the path among the chunks' roots."""
        chunk, place = divmod(index, CHUNK_LEAVES)
        begin = chunk * CHUNK_LEAVES
        inside = await self._leaves(branch[0], begin, min(begin + CHUNK_LEAVES, size))
        roots = await self._roots(branch, size)
        if len(inside) <= place:
            raise UnprovenError(_LEAVES_MISSING)
        return [*merkle.inclusion_proof(inside, place), *merkle.inclusion_proof(roots, chunk)]

    async def _roots(self, branch: _Branch, size: int) -> list[bytes]:
        month, roots = branch[0], self._chunk_roots[branch]
        async with self._reading[branch]:
            while len(roots) < size // CHUNK_LEAVES:
                await self._read_chunk(month, roots)
        full, rest = divmod(size, CHUNK_LEAVES)
        last = [merkle.root(await self._leaves(month, size - rest, size))] if rest else []
        return roots[:full] + last

    async def _read_chunk(self, month: date, roots: list[bytes]) -> None:
        begin = len(roots) * CHUNK_LEAVES
        leaves = await self._leaves(month, begin, begin + CHUNK_LEAVES)
        if len(leaves) < CHUNK_LEAVES:
            raise UnprovenError(_LEAVES_MISSING)
        roots.append(merkle.root(leaves))

    async def _leaves(self, month: date, begin: int, end: int) -> list[bytes]:
        async with self._connected() as connection:
            cursor = await connection.execute(_LEAVES, (month, begin, end), binary=True)
            return [leaf for (leaf,) in await cursor.fetchall()]

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """A connection. The driver's messages are not passed on: they may contain a row."""
        try:
            async with self._pool.connection() as connection:
                yield connection
        except (psycopg.Error, PoolTimeout) as failure:
            raise ProofUnavailableError(f"The database could not be read: {type(failure).__name__}") from None

    async def _commitments(self, row: Row) -> dict[str, str]:
        async with self._connected() as connection:
            known = await (await connection.execute("SELECT to_regclass('public.audit_erasures')")).fetchone()
            if known == (None,):
                raise UnprovenError(_COMMITMENTS_MISSING)
            rows = await (await connection.execute(_ERASED, (row["log_id"],))).fetchall()
        sealed = row["leaf_hash"].removeprefix("\\x")
        for (commitments,) in rows:
            if are_commitments(commitments) and leaf_hash(row, commitments).hex() == sealed:
                return dict(commitments)
        raise UnprovenError(_COMMITMENTS_MISSING)
