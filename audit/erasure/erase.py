"""Erasure of personal data: the right to be forgotten, and the end of retention. Every existing proof stays valid.

A record in PostgreSQL loses its personal columns and its salt, and a line of `audit_erasures` keeps their commitments. An
archived record loses its key (crypto-shredding). Each batch is one transaction with its signed lines, and its event in the
log is durable before the commit: a kill leaves all of a batch or nothing of it, and a retry is safe and goes on from there.

Only records that match their sealed leaf are erased, because afterwards a change could not be proven any more.
"""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from audit.erasure import spool_erasure
from audit.erasure.target import ErasureTarget
from audit.errors import ErasureTooEarlyError, ErasureUnavailableError, NothingToEraseError
from audit.ledger.spool import ASIDE_FILE
from audit.proof.checkpoint import erasure_text
from audit.proof.keys import PublicKey, Signer
from audit.proof.record import Row, Trail, commitments, leaf_hash
from audit.proof.row_signature import is_open_signed, sign_open

BATCH_ROWS = 1_000  # some 8 MB of records
KEYS_BATCH = 10_000  # each has a line of 300 bytes
PAUSE_S = 0.25
LOCK_WAIT_S = 1.0  # added to the time limit of the erasure
ALL = 2**31 - 1

log = logging.getLogger(__name__)

_TO_ERASE = "SELECT * FROM audit_to_erase(%s::text[], %s::uuid[], %s, %s, %s::uuid[], %s)"
_UNSEALED = "SELECT audit_unsealed_of(%s::text[], %s::uuid[], %s)"
_KEYS = "SELECT * FROM audit_keys_to_destroy(%s::text[], %s::uuid[], %s, %s)"
_ERASE = "SELECT audit_erase(%s::json)"
_TURNS = "SELECT audit_turns(%s::text[])"
_OPEN = "SELECT audit_open_of(%s::text[], %s::uuid[], %s)"
_OPEN_TO_EMPTY = "SELECT * FROM audit_open_to_empty(%s::text[], %s::uuid[])"
_EMPTY_OPEN = "SELECT audit_empty_open(%s, %s)"
_FORGET_SESSIONS = "SELECT audit_forget_sessions(%s::text[], %s::uuid[])"
_FORGET_TURN = "SELECT audit_forget_turn(%s)"
_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', %s, true)"
_ERASED_BEFORE = "SELECT count(DISTINCT log_id) FROM audit_erasures WHERE query_id = %s"

# Deleted values remain in their pages, and samples of them in the statistics, until a table is vacuumed and analyzed.
_UNVACUUMED = """
SELECT m.relation::text FROM audit_months m JOIN pg_stat_all_tables s ON s.relid = m.relation
WHERE EXISTS (SELECT FROM audit_erasures e WHERE e.month = m.month
    AND e.erased_at > coalesce(s.last_vacuum, '-infinity') - interval '1 hour') ORDER BY 1
"""
_ALWAYS_VACUUMED = ("audit_row_keys", "audit_open", "chat_sessions", "chat_messages", "source_citations")

# An event of the log, durable when the block has ended.
Event = Callable[[], AbstractAsyncContextManager[Trail]]


@dataclass(slots=True)
class ErasureReport:
    erasure_id: UUID
    records: int = 0  # in PostgreSQL
    archived: int = 0  # their keys were destroyed
    already: int = 0  # erased before
    conversations: int = 0
    open: int = 0  # emptied
    set_aside: int = 0  # dead letters of the spool
    left: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.records or self.archived or self.conversations or self.open or self.set_aside)


@dataclass(frozen=True, slots=True)
class _Erasure:
    basis: str
    event: Event
    done: ErasureReport


@dataclass(frozen=True, slots=True)
class _Batch:
    """Records that may be erased; those that differ from their sealed leaf; those that are not sealed yet."""

    rows: list[Row]
    refused: list[str]
    unsealed: list[str]

    @property
    def skipped(self) -> list[str]:
        return self.refused + self.unsealed

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self.skipped)


@dataclass(slots=True)
class Eraser:
    """Works in the archiver's role, on autocommit connections. `within_s` limits the wait for records in flight."""

    pool: AsyncConnectionPool
    key: Signer
    public_keys: Callable[[], Sequence[PublicKey]]
    spool: Path | None
    within_s: float
    monotonic: Callable[[], float]
    new_id: Callable[[], UUID]
    _vacuuming: asyncio.Task[None] | None = None
    _is_vacuum_due: bool = False

    async def erase(self, target: ErasureTarget, basis: str, event: Event) -> ErasureReport:
        """Erase all records of a person, or of one query. `ErasureTooEarlyError` if some are not sealed in time."""
        ((already,),) = await self._fetch(_ERASED_BEFORE, target.query_id)
        done = ErasureReport(self.new_id(), already=already)
        erasure = _Erasure(basis, event, done)
        turns = [query_id for (query_id,) in await self._fetch(_TURNS, list(target.names))]
        await self._wait_for(target, turns)
        refused = await self._erase_conversations(target, turns, erasure)
        skipped = list(refused)
        while True:
            found = await self._find_records(target.names, target.queries, skipped=skipped)
            skipped += found.skipped
            refused += found.refused
            keys = [] if found.rows else await self._keys_to_destroy(target.names, target.queries)
            if found.is_empty and not keys:
                break
            await self._erase_batch(found.rows, keys, erasure)
        done.left += _describe_refused(refused)
        self._overwrite_spool(target, done)
        if target.query_id and done.is_empty and not (done.already or done.left):
            raise NothingToEraseError
        return done

    async def end_retention(
        self, until: datetime, basis: str, event: Event, progress: Callable[[str, int], None]
    ) -> ErasureReport:
        """Erase all records before this moment. An archived month loses its keys once all of the month is before it."""
        done, refused, unsealed = ErasureReport(self.new_id()), list[str](), list[str]()
        erasure, since = _Erasure(basis, event, done), datetime.min.replace(tzinfo=UTC)
        while True:
            found = await self._find_records((), (), since, until, refused + unsealed)
            if found.is_empty:
                break
            refused += found.refused
            unsealed += found.unsealed
            oldest = sorted(found.rows, key=_timestamp)[:BATCH_ROWS]  # each partition returns its own oldest
            await self._erase_batch(oldest, [], erasure)
            if oldest and not found.skipped:
                since = _timestamp(oldest[-1])
            progress("records", done.records)
        while keys := await self._keys_to_destroy((), (), before=until.date().replace(day=1)):
            await self._erase_batch([], keys, erasure)
            progress("archived records", done.archived)
        done.left += _describe_refused(refused)
        if unsealed:
            done.left.append(f"{len(unsealed)} records are not sealed yet: the next run erases them")
        return done

    async def vacuum(self) -> list[str]:
        """Remove erased values from pages and statistics, in the owner's role. Returns the tables of the log."""
        async with self._connected() as connection:
            await connection.execute("SET ROLE affidavit_owner")
            try:
                unvacuumed = [name for (name,) in await (await connection.execute(_UNVACUUMED)).fetchall()]
                for name in [*unvacuumed, *_ALWAYS_VACUUMED]:
                    await connection.execute(f"VACUUM (ANALYZE) {name}".encode())
                if unvacuumed:
                    # For the statistics of the partitioned table. PostgreSQL 18 need not analyze each partition again.
                    only = "ONLY " if connection.info.server_version >= 180000 else ""  # noqa: PLR2004
                    await connection.execute(f"ANALYZE {only}audit_logs".encode())
            finally:
                await connection.execute("RESET ROLE")
        return unvacuumed

    def vacuum_soon(self) -> None:
        """Start it in the background, so that no request waits for it."""
        self._is_vacuum_due = True
        if self._vacuuming is None or self._vacuuming.done():
            self._vacuuming = asyncio.create_task(self._vacuum_in_background())

    async def close(self) -> None:
        if self._vacuuming:
            self._vacuuming.cancel()
            await asyncio.wait([self._vacuuming])

    async def _vacuum_in_background(self) -> None:
        while self._is_vacuum_due:
            self._is_vacuum_due = False
            try:
                await self.vacuum()
            except ErasureUnavailableError as failure:
                log.warning(
                    "Erased values are still in the pages of their tables; the next erasure retries it. %s",
                    failure,
                )

    async def _wait_for(self, target: ErasureTarget, turns: Sequence[UUID]) -> None:
        """Poll until all records in flight are sealed: open requests, spooled entries and unsealed rows. Takes seconds.

        Does not wait for records of requests that begin after this moment.
        """
        ((now,),) = await self._fetch("SELECT clock_timestamp()")
        arguments = (list(target.names), [*target.queries, *turns], now)
        deadline = self.monotonic() + self.within_s
        while self.monotonic() < deadline:
            if not await self._has_pending(target, arguments):
                return
            await asyncio.sleep(PAUSE_S)
        ((unsealed,),) = await self._fetch(_UNSEALED, *arguments)
        if unsealed:
            raise ErasureTooEarlyError(
                f"{unsealed} of the records are not sealed yet, so nothing was erased: their proofs would be lost."
                " Check that the server or `affidavit audit seal` is running, and try again in a few seconds. If `affidavit"
                " audit status` names rows that the engine did not sign: these are never sealed, and must be removed first."
            )

    async def _has_pending(self, target: ErasureTarget, arguments: tuple[Any, ...]) -> bool:
        counts = [await self._fetch(statement, *arguments) for statement in (_OPEN, _UNSEALED)]
        if counts != [[(0,)], [(0,)]]:
            return True
        return bool(self.spool and spool_erasure.count_waiting(self.spool, target.matches))

    async def _erase_conversations(
        self, target: ErasureTarget, turns: Sequence[UUID], erasure: _Erasure
    ) -> list[str]:
        """Erase conversations and the records of their turns in one transaction: only the conversation leads to them.

        Returns the records that differ from their sealed leaf.
        """
        found = await self._find_records((), turns, most=ALL)
        if found.unsealed:
            raise ErasureTooEarlyError(
                f"{len(found.unsealed)} records of a conversation are not sealed yet, so nothing was erased:"
                " try again in a few seconds."
            )
        in_tables = {row["log_id"] for row in found.rows}
        keys = [key for key in await self._keys_to_destroy((), turns, ALL) if str(key[0]) not in in_tables]
        done = erasure.done
        async with self._transaction() as connection:
            names, queries = list(target.names), target.queries
            done.open = await self._empty_open(connection, names, queries)
            done.conversations = await _scalar(connection, _FORGET_SESSIONS, names, list(turns))
            if target.query_id:
                done.conversations += await _scalar(connection, _FORGET_TURN, target.query_id)
            if found.rows or done.open or done.conversations:
                await self._erase_in_transaction(connection, found.rows, [], erasure)
            if keys:
                await self._erase_in_transaction(connection, [], keys, erasure)
        if done.open:
            done.left.append(
                f"{done.open} requests are still open because their process has died. Their records so far are erased;"
                " if another machine has their last entries in its spool, erase again when that machine is back"
            )
        return found.refused

    async def _empty_open(
        self, connection: psycopg.AsyncConnection, names: Sequence[str], queries: Sequence[UUID]
    ) -> int:
        """Empties open records, and signs what is left of those that the engine signed."""
        found = await (await connection.execute(_OPEN_TO_EMPTY, (names, queries))).fetchall()
        keys = self.public_keys() if found else ()
        for log_id, trail, emptied, signature in found:
            is_ours = is_open_signed(signature, trail, keys)
            again = sign_open(emptied, self.key) if is_ours else None
            await connection.execute(_EMPTY_OPEN, (log_id, again))
        return len(found)

    async def _erase_batch(
        self, rows: Sequence[Row], keys: Sequence[tuple[Any, ...]], erasure: _Erasure
    ) -> None:
        if rows or keys:
            async with self._transaction() as connection:
                await self._erase_in_transaction(connection, rows, keys, erasure)

    async def _erase_in_transaction(
        self,
        connection: psycopg.AsyncConnection,
        rows: Sequence[Row],
        keys: Sequence[tuple[Any, ...]],
        erasure: _Erasure,
    ) -> None:
        """The event is durable when its block ends, and only then the caller commits this transaction."""
        done = erasure.done
        async with erasure.event() as trail:
            common = {"erasure_id": done.erasure_id, "event": trail.log_id, "basis": erasure.basis}
            lines = [self._line(common, trail.timestamp, **_erasure_fields(row)) for row in rows]
            lines += [
                self._line(common, trail.timestamp, log_id=log_id, query_id=query_id, month=month)
                for log_id, query_id, month in keys
            ]
            erased = await _scalar(connection, _ERASE, json.dumps(lines, default=str))
            trail.reason = f"erasure {done.erasure_id}: {erased} records"
        done.records += erased if rows else 0
        done.archived += erased if keys else 0

    def _line(self, common: dict[str, Any], erased_at: datetime, **record: Any) -> dict[str, Any]:
        text = erasure_text(common["erasure_id"], UUID(str(record["log_id"])), common["event"], erased_at)
        signature = base64.b64encode(self.key.sign(text)).decode()
        return common | record | {
            "erased_at": erased_at.isoformat(), "key_id": self.key.key_id, "signature": signature
        }  # fmt: skip

    async def _find_records(
        self,
        names: Sequence[str],
        queries: Sequence[UUID],
        since: datetime | None = None,
        until: datetime | None = None,
        skipped: Sequence[str] = (),
        most: int = BATCH_ROWS,
    ) -> _Batch:
        batch = _Batch([], [], [])
        arguments = (list(names), list(queries), since, until, list(skipped), most)
        for leaf, row in await self._fetch(_TO_ERASE, *arguments):
            if leaf is None:
                batch.unsealed.append(row["log_id"])
            elif _matches_leaf(row, leaf):
                batch.rows.append(row)
            else:
                batch.refused.append(row["log_id"])
        return batch

    async def _keys_to_destroy(
        self,
        names: Sequence[str],
        queries: Sequence[UUID],
        most: int = KEYS_BATCH,
        before: date | None = None,
    ) -> list[tuple[Any, ...]]:
        return await self._fetch(_KEYS, list(names), list(queries), before, most)

    def _overwrite_spool(self, target: ErasureTarget, done: ErasureReport) -> None:
        if self.spool is None:
            return
        names = [*target.names, *map(str, target.queries)]
        done.set_aside, damaged = spool_erasure.overwrite_set_aside(self.spool, target.matches, names)
        if damaged:
            done.left.append(
                f"{damaged} damaged lines in {ASIDE_FILE} may belong to this person: inspect the file"
            )
        done.left += [
            f"{count} entries in the spool file {name} are not in the database yet: start the engine on this machine,"
            " then erase again"
            for name, count in spool_erasure.count_waiting(self.spool, target.matches).items()
        ]

    async def _fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        async with self._connected() as connection:
            return await (await connection.execute(statement.encode(), values)).fetchall()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """A transaction with a lock timeout: an archiver or another erasure may hold the lock for a while."""
        async with self._connected() as connection, connection.transaction():
            await connection.execute(_LOCK_TIMEOUT, (f"{LOCK_WAIT_S + self.within_s:.0f}s",))
            yield connection

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """A connection. The driver's messages are not passed on: they may contain a row."""
        try:
            async with self.pool.connection() as connection:
                yield connection
        except psycopg.errors.LockNotAvailable:
            raise ErasureUnavailableError(
                "Nothing was erased, because a month is being archived or another erasure is running. Try again shortly."
            ) from None
        except (psycopg.Error, PoolTimeout) as failure:
            raise ErasureUnavailableError(
                f"The database is unavailable ({type(failure).__name__}). Nothing is half done: try again."
            ) from None


def _describe_refused(refused: Sequence[str]) -> list[str]:
    named = f"{', '.join(refused[:10])}{', …' if len(refused) > 10 else ''}"  # noqa: PLR2004
    words = f"{len(refused)} records differ from what was sealed, so they were kept as evidence: {named}. Run `affidavit audit verify`"
    return [words] if refused else []


def _matches_leaf(row: Row, leaf: bytes) -> bool:
    try:
        return leaf_hash(row) == leaf
    except (ValueError, TypeError):
        return False


def _erasure_fields(row: Row) -> dict[str, Any]:
    return {
        "log_id": row["log_id"], "query_id": row["query_id"], "timestamp": row["timestamp"],
        "month": f"{row['timestamp'][:7]}-01", "commitments": commitments(row),
    }  # fmt: skip


def _timestamp(row: Row) -> datetime:
    return datetime.fromisoformat(row["timestamp"])


async def _scalar(connection: psycopg.AsyncConnection, statement: str, *values: Any) -> int:
    (found,) = await (await connection.execute(statement.encode(), values)).fetchone() or (0,)
    return int(found)
