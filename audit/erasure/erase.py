"""Erasure of personal data: the right to be forgotten, and the end of retention. Every existing proof stays valid.

A record in PostgreSQL loses its personal columns and its salt, and a line of `audit_erasures` keeps their commitments. An
archived record loses its key (crypto-shredding). Each batch is one transaction with its signed lines, and its event in the
log is durable before the commit: a kill leaves all of a batch or nothing of it, and a retry is safe and goes on from there.

Only records that match their sealed leaf are erased, because afterwards a change could not be proven any more.

What a hold covers is not erased. A request for it waits, signed, and `finish` carries it out when no hold covers it any more,
however often it is interrupted. No hold changes between the look for holds and the end of a person's erasure.
"""

import asyncio
import base64
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from audit.erasure import spool_erasure
from audit.erasure.target import ErasureTarget
from audit.errors import (
    ErasureTooEarlyError,
    ErasureUnavailableError,
    HeldError,
    LedgerUnavailableError,
    NothingToEraseError,
)
from audit.holding.doubts import unsigned_releases
from audit.holding.hold import SALT_BYTES, Scope, is_line_signed, signed_line, subject_of
from audit.holding.tables import HOLDS, REQUESTS, SUBJECTS
from audit.ledger.delegated_keys import DELEGATIONS
from audit.ledger.spool import ASIDE_FILE
from audit.proof.checkpoint import erasure_text
from audit.proof.keys import KeyRing, PublicKey, RowSigner
from audit.proof.record import Row, Trail, commitments, leaf_hash
from audit.proof.row_signature import is_open_signed, sign_open
from audit.sealing.forged_rows import AT_ALL_TIMES, put_aside, split_unsealed
from audit.sealing.log_tables import UnsealedRow

BATCH_ROWS = 1_000  # some 8 MB of records
KEYS_BATCH = 10_000  # each has a line of 300 bytes
PAUSE_S = 0.25
FINISH_EVERY_S = 60.0
HOLDS_MET_MAX = 10  # added during one run of retention; more is no coincidence, and a run must end
LOCK_WAIT_S = 1.0  # added to the time limit of the erasure
ALL = 2**31 - 1

log = logging.getLogger(__name__)

_TO_ERASE = "SELECT * FROM audit_to_erase(%s::text[], %s::uuid[], %s, %s, %s::uuid[], %s)"
_KEYS = "SELECT * FROM audit_keys_to_destroy(%s::text[], %s::uuid[], %s, %s)"
_ERASE = "SELECT audit_erase(%s::json)"
_TURNS = "SELECT audit_turns(%s::text[])"
_OPEN = "SELECT audit_open_of(%s::text[], %s::uuid[], %s)"
_OPEN_TO_EMPTY = "SELECT * FROM audit_open_to_empty(%s::text[], %s::uuid[])"
_EMPTY_OPEN = "SELECT audit_empty_open(%s, %s)"
_FORGET_SESSIONS = "SELECT audit_forget_sessions(%s::text[], %s::uuid[])"
_FORGET_TURN = "SELECT audit_forget_turn(%s)"
_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', %s, true)"
_SHARE_HOLDS = "SELECT audit_share_holds()"
_HOLDS_AGAINST = "SELECT * FROM audit_holds_against(%s::text[], %s::uuid[])"
_SCOPES = "SELECT hold_id, names, query_id, client_id, since, until FROM audit_active_holds(false)"
_HELD_BEFORE = "SELECT audit_count_held_before(%s)"
_IS_DUE = "SELECT audit_is_erasure_due()"
_ASK = "SELECT audit_ask_erasure(%s::json, %s::text[], %s)"
_END_REQUESTS = "SELECT audit_end_requests(%s::json, %s::text[])"
_FORGET_SUBJECTS = "SELECT audit_forget_subjects(%s)"
_IS_NAMED = "SELECT count(*) FROM audit_hold_subjects WHERE names && %s::text[]"
_HELD = "AF002"  # the SQLSTATE with which the database refuses what a hold covers
_ERASED_BEFORE = "SELECT count(DISTINCT log_id) FROM audit_erasures WHERE query_id = %s"

# Deleted values remain in their pages, and samples of them in the statistics, until a table is vacuumed and analyzed.
_UNVACUUMED = """
SELECT m.relation::text FROM audit_months m JOIN pg_stat_all_tables s ON s.relid = m.relation
WHERE EXISTS (SELECT FROM audit_erasures e WHERE e.month = m.month
    AND e.erased_at > coalesce(s.last_vacuum, '-infinity') - interval '1 hour') ORDER BY 1
"""
# A key of an index of words outlives its last record, whatever is vacuumed. One that was not finished is of no use to anybody.
_WORD_INDEXES = """
SELECT indexrelid::regclass::text, indisvalid FROM pg_index JOIN pg_class i ON i.oid = indexrelid JOIN pg_am a ON a.oid = relam
WHERE indrelid = %s::regclass AND amname = 'gin'
"""
_ALWAYS_VACUUMED = (
    "audit_row_keys", "audit_open", "audit_hold_subjects", "chat_sessions", "chat_messages", "source_citations", "console_people"
)  # fmt: skip

# An event of the log, durable when the block has ended.
Event = Callable[[], AbstractAsyncContextManager[Trail]]


@dataclass(slots=True)
class ErasureReport:
    erasure_id: UUID
    records: int = 0  # in PostgreSQL
    archived: int = 0  # their keys were destroyed
    already: int = 0  # erased before
    conversations: int = 0  # and what the console knows of a person who signed in there
    open: int = 0  # emptied
    set_aside: int = 0  # dead letters of the spool
    held: int = 0  # passed over by retention, because a hold covers them
    left: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.records or self.archived or self.conversations or self.open or self.set_aside)


@dataclass(slots=True)
class _Erasure:
    basis: str
    event: Event
    done: ErasureReport
    holds_met: int = 0


@dataclass(frozen=True, slots=True)
class _Request:
    """A request for an erasure that waits."""

    request_id: UUID
    target: ErasureTarget
    basis: str
    doubt: str  # why it is not carried out, although no hold forbids it


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
    key: RowSigner
    public_keys: Callable[[], Sequence[PublicKey]]
    spool: Path | None
    within_s: float
    monotonic: Callable[[], float]
    new_id: Callable[[], UUID]
    _vacuuming: asyncio.Task[None] | None = None
    _is_vacuum_due: bool = False
    _alone: asyncio.Lock = field(default_factory=asyncio.Lock)  # an erasure of a person needs two connections

    async def erase(self, target: ErasureTarget, basis: str, event: Event) -> ErasureReport:
        """Erase all records of a person, or of one query. `ErasureTooEarlyError` if some are not sealed in time.

        `HeldError` if a hold covers any of them: then nothing is erased, and the request waits.
        """
        turns = await self._turns(target)
        if not await self._holds_against(target, turns):
            await self._wait_for(target, turns)
        async with self._while_holds_stay():
            if holds := await self._holds_against(target, turns):
                raise await self._ask(target, basis, event, holds)
            return await self._erase(target, turns, self.new_id(), basis, event)

    async def finish(self, event: Event) -> list[ErasureReport]:
        """Carry out the requests that waited for a hold and are not held any more. What cannot be done now waits on."""
        done = []
        for request in await self._waiting():
            turns = await self._turns(request.target)
            if await self._holds_against(request.target, turns):
                continue
            try:
                report = await self._finish(request, turns, event)
            except HeldError:
                continue
            except ErasureTooEarlyError as early:
                report = ErasureReport(request.request_id, left=[str(early)])
            except NothingToEraseError:
                report = ErasureReport(request.request_id)
            done.append(report)
        return done

    @asynccontextmanager
    async def finishing(self, engine: AsyncConnectionPool, event: Event) -> AsyncIterator[None]:
        """Until the block ends, carry out every minute what waited for a hold: whoever released it may have been killed.

        Whether there is anything is asked in the engine's role, because its login may lack the archiver's.
        """
        task = asyncio.create_task(self._finish_again_and_again(engine, event))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _finish_again_and_again(self, engine: AsyncConnectionPool, event: Event) -> None:
        while True:
            try:
                if await _is_due(engine) and any(not done.is_empty for done in await self.finish(event)):
                    self.vacuum_soon()
            except (ErasureUnavailableError, LedgerUnavailableError) as failure:
                log.warning("An erasure that waited for a hold is due and was not carried out. %s", failure)
            await asyncio.sleep(FINISH_EVERY_S)

    async def _finish(self, request: _Request, turns: Sequence[UUID], event: Event) -> ErasureReport:
        if request.doubt:
            return ErasureReport(request.request_id, left=[request.doubt])
        await self._wait_for(request.target, turns)
        async with self._while_holds_stay():
            if await self._holds_against(request.target, turns):
                raise HeldError("A hold was added meanwhile.")
            return await self._erase(request.target, turns, request.request_id, request.basis, event)

    async def _turns(self, target: ErasureTarget) -> list[UUID]:
        return [query_id for (query_id,) in await self._fetch(_TURNS, list(target.names))]

    async def _erase(
        self, target: ErasureTarget, turns: Sequence[UUID], erasure_id: UUID, basis: str, event: Event
    ) -> ErasureReport:
        ((already,),) = await self._fetch(_ERASED_BEFORE, target.query_id)
        done = ErasureReport(erasure_id, already=already)
        erasure = _Erasure(basis, event, done)
        await self._set_aside_forged(erasure, target.names, [*target.queries, *turns])
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
        if self._overwrite_spool(target, done):
            await self._end_requests(target, event)
        if target.query_id and done.is_empty and not (done.already or done.left):
            raise NothingToEraseError
        return done

    async def end_retention(
        self, until: datetime, basis: str, event: Event, progress: Callable[[str, int], None]
    ) -> ErasureReport:
        """Erase all records before this moment. An archived month loses its keys once all of the month is before it."""
        await self._check_releases()
        done, refused, unsealed = ErasureReport(self.new_id()), list[str](), list[str]()
        erasure, since = _Erasure(basis, event, done), datetime.min.replace(tzinfo=UTC)
        await self._set_aside_forged(erasure, None, until=until)
        while True:
            found = await self._find_records((), (), since, until, refused + unsealed)
            if found.is_empty:
                break
            refused += found.refused
            unsealed += found.unsealed
            oldest = sorted(found.rows, key=_timestamp)[:BATCH_ROWS]  # each partition returns its own oldest
            if not await self._is_batch_erased(oldest, [], erasure):
                continue
            if oldest and not found.skipped:
                since = _timestamp(oldest[-1])
            progress("records", done.records)
        while keys := await self._keys_to_destroy((), (), before=until.date().replace(day=1)):
            if await self._is_batch_erased([], keys, erasure):
                progress("archived records", done.archived)
        await self._fetch(_FORGET_SUBJECTS, until)
        await self._note_held(until, erasure)
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
                for name in unvacuumed:
                    await _rebuild_word_indexes(connection, name)
                if unvacuumed:
                    # For the statistics of the partitioned table. PostgreSQL 18 need not analyze each partition again.
                    only = "ONLY " if connection.info.server_version >= 180000 else ""  # noqa: PLR2004
                    await connection.execute(f"ANALYZE {only}audit_logs".encode())
            finally:
                # RESET leads to the login, which may do more: the role is set after the start (audit/session.py).
                await connection.execute("SET ROLE affidavit_archiver")
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

    async def _holds_against(self, target: ErasureTarget, turns: Sequence[UUID]) -> dict[UUID, int]:
        """The holds that forbid this erasure, each with the number of records that it covers; those in the spool too."""
        await self._check_releases()
        found = dict(await self._fetch(_HOLDS_AGAINST, list(target.names), [*target.queries, *turns]))
        for hold_id, names, *criteria in await self._fetch(_SCOPES) if self.spool else ():
            scope = Scope(tuple(names or ()), *criteria)
            if hold_id not in found and self._is_in_spool(target, scope):
                found[hold_id] = 0
        return found

    def _is_in_spool(self, target: ErasureTarget, scope: Scope) -> bool:
        def is_both(trail: dict[str, Any]) -> bool:
            return target.matches(trail) and scope.covers(trail)

        assert self.spool
        return bool(
            spool_erasure.count_waiting(self.spool, is_both)
            or spool_erasure.count_set_aside(self.spool, is_both)
        )

    async def _check_releases(self) -> None:
        """The database takes every release for one; a forged one has no signature of this log."""
        async with self._connected() as connection:
            keys = await self._keys(connection)
        if forged := unsigned_releases(await self._lines(HOLDS), keys):
            raise ErasureUnavailableError(
                f"The release of the hold {forged[0]} was not signed by this log, so nothing was erased. Find out who else can write"
                " to the database, and have a superuser delete that line of audit_holds."
            )

    async def _ask(
        self, target: ErasureTarget, basis: str, event: Event, holds: dict[UUID, int]
    ) -> HeldError:
        """The attempt is a record of the log. Whoever asks again finds the request that waits."""
        waiting = [
            request.request_id for request in await self._waiting() if _is_same(request.target, target)
        ]
        request_id = waiting[0] if waiting else self.new_id()
        async with event() as trail:
            if not waiting:
                salt = secrets.token_bytes(SALT_BYTES)
                line = signed_line(
                    "erasure request", self.key, request_id=request_id, change="asked", at=trail.timestamp, basis=basis,
                    subject=subject_of(target.names, salt) if target.names else None, query_id=target.query_id,
                    event=trail.log_id,
                )  # fmt: skip
                given = (list(target.names), salt) if target.names else (None, None)
                async with self._transaction() as connection:
                    await connection.execute(_ASK.encode(), (json.dumps(line), *given))
            trail.reason = f"erasure request {request_id}: waits for {len(holds)} holds"
        records = max(holds.values())
        return HeldError(_describe_held(request_id, holds), request_id, tuple(holds), records)

    async def _waiting(self) -> list[_Request]:
        lines = await self._lines(REQUESTS)
        subjects = {one: (names, salt) for one, names, salt in await self._fetch(SUBJECTS)}
        done = {line["request_id"] for line in lines if line["change"] == "done"}
        async with self._connected() as connection:
            keys = await self._keys(connection)
        return [
            _request(line, subjects.get(line["request_id"]), keys)
            for line in lines
            if line["request_id"] not in done
        ]

    async def _end_requests(self, target: ErasureTarget, event: Event) -> None:
        """What waited for this erasure is done, and no hold that has ended names the person any more."""
        waiting = [request for request in await self._waiting() if _is_within(request.target, target)]
        ((named,),) = await self._fetch(_IS_NAMED, list(target.names))
        if not waiting and not named:
            return
        async with event() as trail:
            lines = [
                signed_line(
                    "erasure request", self.key, request_id=request.request_id, change="done", at=trail.timestamp,
                    basis=request.basis, event=trail.log_id,
                )
                for request in waiting
            ]  # fmt: skip
            async with self._transaction() as connection:
                ended = await _scalar(connection, _END_REQUESTS, json.dumps(lines), list(target.names))
            trail.reason = f"{ended} erasure requests are done"

    async def _note_held(self, until: datetime, erasure: _Erasure) -> None:
        ((held,),) = await self._fetch(_HELD_BEFORE, until)
        if held:
            async with erasure.event() as trail:
                trail.reason = f"{held} records are under a hold and stay"
        erasure.done.held = held

    @asynccontextmanager
    async def _while_holds_stay(self) -> AsyncIterator[None]:
        """Until the block ends, no hold is added or released."""
        async with self._alone, self._transaction() as connection:
            await connection.execute(_SHARE_HOLDS)
            yield

    async def _lines(self, statement: str) -> list[dict[str, Any]]:
        async with self._connected() as connection, connection.cursor(row_factory=dict_row) as cursor:
            return await (await cursor.execute(statement.encode())).fetchall()

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
        waiting, unknown = await self._count_unsealed(arguments)
        if unknown:
            raise ErasureTooEarlyError(
                f"{unknown} of the records are signed by a key that the .pub here lacks, so nothing was erased: after a rotation"
                " they may be the engine's. Add the key's line. If it is none of yours, take them out with `affidavit audit set-aside`."
            )
        if waiting:
            raise ErasureTooEarlyError(
                f"{waiting} of the records are not sealed yet, so nothing was erased: their proofs would be lost."
                " Check that the server or `affidavit audit seal` is running, and try again in a few seconds."
            )

    async def _has_pending(self, target: ErasureTarget, arguments: tuple[Any, ...]) -> bool:
        ((opened,),) = await self._fetch(_OPEN, *arguments)
        if opened or any(await self._count_unsealed(arguments)):
            return True
        return bool(self.spool and spool_erasure.count_waiting(self.spool, target.matches))

    async def _count_unsealed(self, arguments: tuple[Any, ...]) -> tuple[int, int]:
        """Those that the sealer will take, and those of a key that is not known here: it never takes what the engine did not sign."""
        async with self._connected() as connection:
            unsealed = await split_unsealed(connection, await self._keys(connection), *arguments)
            return len(unsealed.waiting), len(unsealed.unknown)

    async def _set_aside_forged(
        self,
        erasure: _Erasure,
        names: Sequence[str] | None,
        queries: Sequence[UUID] = (),
        until: datetime = AT_ALL_TIMES,
    ) -> None:
        """Rows that no engine signed have no proof to keep, and no leaf: they leave the log, and are named."""
        done = erasure.done
        async with self._transaction() as connection:
            keys = await self._keys(connection)
            forged = (await split_unsealed(connection, keys, names, queries, until)).forged
            if not forged:
                return
            async with erasure.event() as trail:
                await put_aside(connection, forged, (), trail.log_id)
                trail.reason = f"erasure {done.erasure_id}: {len(forged)} rows that the engine did not sign were set aside"
        done.records += len(forged)
        done.left.append(_describe_forged(forged))

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
        keys = await self._keys(connection) if found else ()
        for log_id, trail, emptied, signature in found:
            is_ours = is_open_signed(signature, trail, keys)
            again = await asyncio.to_thread(self._signed_again, emptied) if is_ours else None
            await connection.execute(_EMPTY_OPEN, (log_id, again))
        return len(found)

    def _signed_again(self, trail: Row) -> bytes:
        """By a key of its own time, when another process ran."""
        at = datetime.fromisoformat(trail["timestamp"])
        self.key.cover(at, at)
        return sign_open(trail, self.key.at(at))

    async def _keys(self, connection: psycopg.AsyncConnection) -> KeyRing:
        lines = await (await connection.execute(DELEGATIONS)).fetchall()
        return KeyRing.of(self.public_keys()).with_delegations([line for (line,) in lines])

    async def _erase_batch(
        self, rows: Sequence[Row], keys: Sequence[tuple[Any, ...]], erasure: _Erasure
    ) -> None:
        if rows or keys:
            async with self._transaction() as connection:
                await self._erase_in_transaction(connection, rows, keys, erasure)

    async def _is_batch_erased(
        self, rows: Sequence[Row], keys: Sequence[tuple[Any, ...]], erasure: _Erasure
    ) -> bool:
        """False if a hold was added since the look for these records: the next look passes over what it covers."""
        try:
            await self._erase_batch(rows, keys, erasure)
        except HeldError:
            erasure.holds_met += 1
            if erasure.holds_met > HOLDS_MET_MAX:
                raise
            return False
        return True

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
        key = self.key.at(erased_at)
        signature = base64.b64encode(key.sign(text)).decode()
        return common | record | {
            "erased_at": erased_at.isoformat(), "key_id": key.key_id, "signature": signature
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

    def _overwrite_spool(self, target: ErasureTarget, done: ErasureReport) -> bool:
        """Whether nothing of theirs is on its way into the database any more."""
        if self.spool is None:
            return True
        names = [*target.names, *map(str, target.queries)]
        done.set_aside, damaged = spool_erasure.overwrite_set_aside(self.spool, target.matches, names)
        if damaged:
            done.left.append(
                f"{damaged} damaged lines in {ASIDE_FILE} may belong to this person: inspect the file"
            )
        waiting = spool_erasure.count_waiting(self.spool, target.matches)
        done.left += [
            f"{count} entries in the spool file {name} are not in the database yet: start the engine on this machine,"
            " then erase again"
            for name, count in waiting.items()
        ]
        return not waiting

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
            if getattr(failure, "sqlstate", None) == _HELD:
                raise HeldError("A hold covers these records, so nothing was erased.") from None
            raise ErasureUnavailableError(
                f"The database is unavailable ({type(failure).__name__}). Nothing is half done: try again."
            ) from None


def _describe_forged(forged: Sequence[UnsealedRow]) -> str:
    return (
        f"{len(forged)} of the records were rows that the engine did not sign: {_listed([str(row.log_id) for row in forged])}. They were"
        " taken out of the log, without what was personal in them. Find out who else can write to the database"
    )


async def _rebuild_word_indexes(connection: psycopg.AsyncConnection, table: str) -> None:
    for name, is_valid in await (await connection.execute(_WORD_INDEXES, (table,))).fetchall():
        how = "REINDEX INDEX CONCURRENTLY" if is_valid else "DROP INDEX CONCURRENTLY"
        await connection.execute(f"{how} {name}".encode())


async def _is_due(engine: AsyncConnectionPool) -> bool:
    try:
        async with engine.connection() as connection:
            return await (await connection.execute(_IS_DUE)).fetchone() == (True,)
    except (psycopg.Error, PoolTimeout):
        return False  # asked again in a minute


def _request(
    line: dict[str, Any], subject: tuple[list[str], bytes] | None, keys: Sequence[PublicKey]
) -> _Request:
    """Nobody may have the engine erase and sign what this log was not asked for."""
    names, salt = subject or ([], b"")
    is_ours = is_line_signed("erasure request", line, keys)
    if not is_ours or (line["subject"] and line["subject"] != subject_of(names, bytes(salt))):
        doubt = (
            f"the erasure request {line['request_id']} is not as this log signed it: run `affidavit doctor`"
        )
    else:
        doubt = ""
    return _Request(line["request_id"], ErasureTarget(tuple(names), line["query_id"]), line["basis"], doubt)


def _is_same(one: ErasureTarget, other: ErasureTarget) -> bool:
    return one.query_id == other.query_id and set(one.names) == set(other.names)


def _is_within(one: ErasureTarget, other: ErasureTarget) -> bool:
    """Whether who has erased the second has erased the first: the same query, or a person under some of these names."""
    if one.query_id:
        return one.query_id == other.query_id
    return bool(one.names) and set(one.names) <= set(other.names)


def _describe_held(request_id: UUID, holds: dict[UUID, int]) -> str:
    listed = ", ".join(map(str, holds))
    return (
        f"HELD: {max(holds.values())} of the records are under a hold ({listed}), so nothing was erased. The request is kept as"
        f" {request_id}; it is carried out when the hold is released, and need not be made again."
    )


def _listed(log_ids: Sequence[str]) -> str:
    return f"{', '.join(log_ids[:10])}{', …' if len(log_ids) > 10 else ''}"  # noqa: PLR2004


def _describe_refused(refused: Sequence[str]) -> list[str]:
    words = f"{len(refused)} records differ from what was sealed, so they were kept as evidence: {_listed(refused)}. Run `affidavit audit verify`"
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
