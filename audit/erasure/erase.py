"""Forgetting a person, and whatever is older than it may be kept; every older proof stays.

A record in PostgreSQL loses its personal columns and its salt, and a line of `audit_erasures` keeps what stands for them
in its hash. An archived one loses its key. Both are one transaction with the line, which is signed; the row of the log that
says what was done is on disk before it is committed, so a kill leaves either all of a batch or nothing, and the next
run goes on from there.

Only what is sealed is erased, and only if it is what was sealed: afterwards nobody could tell.
"""

import asyncio
import base64
import contextlib
import ipaddress
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

from audit.erasure import personal, spool_erasure
from audit.errors import ErasureTooEarlyError, ErasureUnavailableError, NothingToEraseError
from audit.ledger.spool import ASIDE_FILE
from audit.proof.checkpoint import erasure_text
from audit.proof.keys import Signer
from audit.proof.record import Row, Trail, commitments, leaf_hash

BATCH_ROWS = 1_000  # some 8 MB of records
KEYS_BATCH = 10_000  # a line of 300 bytes for each
PAUSE_S = 0.25
LOCK_S = 1.0  # beside what may be waited for anyway
ALL = 2**31 - 1
SHORT = 3  # a name of so few characters stands in any text

log = logging.getLogger(__name__)

_TO_ERASE = "SELECT * FROM audit_to_erase(%s::text[], %s::uuid[], %s, %s, %s::uuid[], %s)"
_UNSEALED = "SELECT audit_unsealed_of(%s::text[], %s::uuid[], %s)"
_KEYS = "SELECT * FROM audit_keys_to_destroy(%s::text[], %s::uuid[], %s, %s)"
_ERASE = "SELECT audit_erase(%s::json)"
_TURNS = "SELECT audit_turns(%s::text[])"
_OPEN = "SELECT audit_open_of(%s::text[], %s::uuid[], %s)"
_FORGET_OPEN = "SELECT audit_forget_open(%s::text[], %s::uuid[])"
_FORGET_SESSIONS = "SELECT audit_forget_sessions(%s::text[], %s::uuid[])"
_FORGET_TURN = "SELECT audit_forget_turn(%s)"
_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', %s, true)"
_BEFORE = "SELECT count(DISTINCT log_id) FROM audit_erasures WHERE query_id = %s"

# What was deleted lies in its page, and a sample of it among the statistics, until this is done.
_UNTIDY = """
SELECT m.relation::text FROM audit_months m JOIN pg_stat_all_tables s ON s.relid = m.relation
WHERE EXISTS (SELECT FROM audit_erasures e WHERE e.month = m.month
    AND e.erased_at > coalesce(s.last_vacuum, '-infinity') - interval '1 hour') ORDER BY 1
"""
_ALWAYS_TIDIED = ("audit_row_keys", "audit_open", "chat_sessions", "chat_messages", "source_citations")

Event = Callable[[], AbstractAsyncContextManager[Trail]]  # a row of the log, written when the block has ended


@dataclass(frozen=True, slots=True)
class ErasureTarget:
    """Whose records, or of which query."""

    who: tuple[str, ...] = ()  # in each of the spellings in which one may be recorded
    query_id: UUID | None = None

    @property
    def queries(self) -> list[UUID]:
        return [self.query_id] if self.query_id else []

    def concerns(self, told: dict[str, Any]) -> bool:
        return told.get("end_user") in self.who or told.get("query_id") == str(self.query_id)


@dataclass(slots=True)
class ErasureReport:
    """What was done, and what is left to do."""

    erasure_id: UUID
    records: int = 0  # in PostgreSQL
    archived: int = 0  # whose keys were destroyed
    already: int = 0  # erased before
    conversations: int = 0
    open: int = 0  # emptied
    set_aside: int = 0  # lines of the spool that no database ever took
    left: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.records or self.archived or self.conversations or self.open or self.set_aside)


@dataclass(frozen=True, slots=True)
class _Found:
    """Records that may be erased, and those that are not what was sealed, or not sealed yet."""

    rows: list[Row]
    refused: list[str]
    unsealed: list[str]

    @property
    def passed_over(self) -> list[str]:
        return self.refused + self.unsealed

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self.passed_over)


class Eraser:
    """Works as the archiver, on connections that commit by themselves. `within_s` is what it may wait for records that are still on their way."""

    def __init__(
        self,
        pool: AsyncConnectionPool,
        key: Signer,
        spool: Path | None,
        *,
        within_s: float,
        monotonic: Callable[[], float],
        new_id: Callable[[], UUID],
    ) -> None:
        self._pool = pool
        self._key = key
        self._spool = spool
        self._within_s = within_s
        self._monotonic = monotonic
        self._new_id = new_id
        self._tidying: asyncio.Task[None] | None = None
        self._is_untidy = False

    async def forget(self, target: ErasureTarget, basis: str, event: Event) -> ErasureReport:
        """All that is here of a person, or of one query. `ErasureTooEarlyError` if some of it is not sealed in time."""
        done = ErasureReport(self._new_id(), already=await self._erased_before(target))
        turns = await self._turns(target)
        await self._wait_for(target, turns)
        refused = await self._forget_conversations(target, turns, basis, event, done)
        passed_over = list(refused)
        while True:
            found = await self._find(target.who, target.queries, passed_over=passed_over)
            passed_over += found.passed_over
            refused += found.refused
            keys = [] if found.rows else await self._keys(target.who, target.queries)
            if found.is_empty and not keys:
                break
            await self._erase(found.rows, keys, basis, event, done)
        done.left += _tampered(refused)
        self._look_at_spool(target, done)
        if target.query_id and done.is_empty and not (done.already or done.left):
            raise NothingToEraseError
        return done

    async def end_retention(
        self, until: datetime, basis: str, event: Event, progress: Callable[[str, int], None]
    ) -> ErasureReport:
        """Of all records before this moment. Archived months lose their keys when all of the month is before it."""
        done, refused, unsealed = ErasureReport(self._new_id()), list[str](), list[str]()
        since = datetime.min.replace(tzinfo=UTC)
        while True:
            found = await self._find((), (), since, until, refused + unsealed)
            if found.is_empty:
                break
            refused += found.refused
            unsealed += found.unsealed
            oldest = sorted(found.rows, key=_time)[:BATCH_ROWS]  # each table gives its own first ones
            await self._erase(oldest, [], basis, event, done)
            if oldest and not found.passed_over:
                since = _time(oldest[-1])
            progress("records", done.records)
        while keys := await self._keys((), (), until.date().replace(day=1)):
            await self._erase([], keys, basis, event, done)
            progress("archived records", done.archived)
        done.left += _tampered(refused)
        if unsealed:
            done.left.append(f"{len(unsealed)} records are not sealed yet: they are erased when they are")
        return done

    async def tidy(self) -> list[str]:
        """Clear what was erased out of pages and statistics, as the owner; which tables that were."""
        async with self._connected() as connection:
            await connection.execute("SET ROLE affidavit_owner")
            try:
                untidy = [name for (name,) in await (await connection.execute(_UNTIDY)).fetchall()]
                for name in [*untidy, *_ALWAYS_TIDIED]:
                    await connection.execute(f"VACUUM (ANALYZE) {name}".encode())
                if untidy:
                    await connection.execute(await _statement_for_all(connection))
            finally:
                await connection.execute("RESET ROLE")
        return untidy

    def tidy_soon(self) -> None:
        """Beside the requests."""
        self._is_untidy = True
        if self._tidying is None or self._tidying.done():
            self._tidying = asyncio.create_task(self._tidy_all())

    async def close(self) -> None:
        if self._tidying:
            self._tidying.cancel()
            await asyncio.wait([self._tidying])

    async def _tidy_all(self) -> None:
        while self._is_untidy:
            self._is_untidy = False
            try:
                await self.tidy()
            except ErasureUnavailableError as failure:
                log.warning(
                    "What was erased still lies in its pages; the next erasure clears it. %s", failure
                )

    async def _wait_for(self, target: ErasureTarget, turns: Sequence[UUID]) -> None:
        """What is open ends in a row, what is spooled comes, what is a row is sealed: all of it within seconds. Whoever
        goes on asking meanwhile makes new records, which are not waited for."""
        (now,) = await self._fetch_one("SELECT clock_timestamp()")
        asked = (list(target.who), [*target.queries, *turns], now)
        deadline = self._monotonic() + self._within_s
        while self._monotonic() < deadline:
            if not await self._is_on_its_way(target, asked):
                return
            await asyncio.sleep(PAUSE_S)
        (unsealed,) = await self._fetch_one(_UNSEALED, *asked)
        if unsealed:
            raise ErasureTooEarlyError(
                f"{unsealed} of the records are not sealed yet, so nothing was erased: a proof would be lost."
                " Is `affidavit audit seal` or the server running? Then try again in some seconds."
            )

    async def _is_on_its_way(self, target: ErasureTarget, asked: tuple[Any, ...]) -> bool:
        counts = [await self._fetch_one(statement, *asked) for statement in (_OPEN, _UNSEALED)]
        return counts != [(0,), (0,)] or bool(
            self._spool and spool_erasure.count_waiting(self._spool, target.concerns)
        )

    async def _forget_conversations(
        self, target: ErasureTarget, turns: Sequence[UUID], basis: str, event: Event, done: ErasureReport
    ) -> list[str]:
        """With the records of their turns in one transaction: without the conversation nothing leads to those. Which are
        not what was sealed."""
        found = await self._find((), turns, most=ALL)
        if found.unsealed:
            raise ErasureTooEarlyError(
                f"{len(found.unsealed)} records of a conversation are not sealed yet, so nothing was erased:"
                " try again in some seconds."
            )
        in_tables = {row["log_id"] for row in found.rows}
        keys = [key for key in await self._keys((), turns, most=ALL) if str(key[0]) not in in_tables]
        async with self._transaction() as connection:
            who, queries = list(target.who), target.queries
            done.open = await _one(connection, _FORGET_OPEN, who, queries)
            done.conversations = await _one(connection, _FORGET_SESSIONS, who, list(turns))
            if target.query_id:
                done.conversations += await _one(connection, _FORGET_TURN, target.query_id)
            if found.rows or done.open or done.conversations:
                await self._erase_in(connection, found.rows, [], basis, event, done)
            if keys:
                await self._erase_in(connection, [], keys, basis, event, done)
        if done.open:
            done.left.append(
                f"{done.open} requests are open and their process did not end them. What was recorded of them is erased;"
                " if their end lies in the spool of another machine, erase again when that is back"
            )
        return found.refused

    async def _turns(self, target: ErasureTarget) -> list[UUID]:
        async with self._connected() as connection:
            rows = await (await connection.execute(_TURNS, (list(target.who),))).fetchall()
        return [query_id for (query_id,) in rows]

    async def _erase(
        self,
        rows: Sequence[Row],
        keys: Sequence[tuple[Any, ...]],
        basis: str,
        event: Event,
        done: ErasureReport,
    ) -> None:
        if rows or keys:
            async with self._transaction() as connection:
                await self._erase_in(connection, rows, keys, basis, event, done)

    async def _erase_in(
        self,
        connection: psycopg.AsyncConnection,
        rows: Sequence[Row],
        keys: Sequence[tuple[Any, ...]],
        basis: str,
        event: Event,
        done: ErasureReport,
    ) -> None:
        """The event's row is durable when its block ends, and only then is this transaction committed."""
        async with event() as trail:
            about = {"erasure_id": done.erasure_id, "event": trail.log_id, "basis": basis}
            lines = [self._line(about, trail.timestamp, **_of_row(row)) for row in rows]
            lines += [
                self._line(about, trail.timestamp, log_id=log_id, query_id=query_id, month=month)
                for log_id, query_id, month in keys
            ]
            erased = await _one(connection, _ERASE, json.dumps(lines, default=str))
            trail.reason = f"erasure {done.erasure_id}: {erased} records"
        done.records += erased if rows else 0
        done.archived += erased if keys else 0

    def _line(self, about: dict[str, Any], erased_at: datetime, **record: Any) -> dict[str, Any]:
        text = erasure_text(about["erasure_id"], UUID(str(record["log_id"])), about["event"], erased_at)
        signature = base64.b64encode(self._key.sign(text)).decode()
        return about | record | {
            "erased_at": erased_at.isoformat(), "key_id": self._key.key_id, "signature": signature
        }  # fmt: skip

    async def _find(
        self,
        who: Sequence[str],
        queries: Sequence[UUID],
        since: datetime | None = None,
        until: datetime | None = None,
        passed_over: Sequence[str] = (),
        most: int = BATCH_ROWS,
    ) -> _Found:
        asked = (list(who), list(queries), since, until, list(passed_over), most)
        async with self._connected() as connection:
            found = await (await connection.execute(_TO_ERASE, asked)).fetchall()
        sealed = [(leaf, row) for leaf, row in found if leaf is not None]
        good = [row for leaf, row in sealed if _is_as_sealed(row, leaf)]
        bad = [row["log_id"] for leaf, row in sealed if not _is_as_sealed(row, leaf)]
        return _Found(good, bad, [row["log_id"] for leaf, row in found if leaf is None])

    async def _keys(
        self,
        who: Sequence[str],
        queries: Sequence[UUID],
        before: date | None = None,
        most: int = KEYS_BATCH,
    ) -> list[tuple[Any, ...]]:
        async with self._connected() as connection:
            cursor = await connection.execute(_KEYS, (list(who), list(queries), before, most))
            return await cursor.fetchall()

    def _look_at_spool(self, target: ErasureTarget, done: ErasureReport) -> None:
        if self._spool is None:
            return
        names = [*target.who, *map(str, target.queries)]
        done.set_aside, damaged = spool_erasure.overwrite_set_aside(self._spool, target.concerns, names)
        if damaged:
            done.left.append(f"{damaged} damaged lines are set aside in {ASIDE_FILE}: look whose they are")
        done.left += [
            f"{count} entries wait in {name}: a process of this machine has not written them to the database yet;"
            " erase again when it has"
            for name, count in spool_erasure.count_waiting(self._spool, target.concerns).items()
        ]

    async def _erased_before(self, target: ErasureTarget) -> int:
        (count,) = await self._fetch_one(_BEFORE, target.query_id)
        return int(count)

    async def _fetch_one(self, statement: str, *values: Any) -> tuple[Any, ...]:
        async with self._connected() as connection:
            return await (await connection.execute(statement.encode(), values)).fetchone() or ()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """Whoever makes keys for the archive, or erases too, is waited for, and not for ever."""
        async with self._connected() as connection, connection.transaction():
            await connection.execute(_LOCK_TIMEOUT, (f"{LOCK_S + self._within_s:.0f}s",))
            yield connection

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """The driver's words stay here: they may repeat a row."""
        try:
            async with self._pool.connection() as connection:
                yield connection
        except psycopg.errors.LockNotAvailable:
            raise ErasureUnavailableError(
                "A month is being archived, or somebody else erases: please try again shortly."
            ) from None
        except (psycopg.Error, PoolTimeout) as failure:
            raise ErasureUnavailableError(
                f"The database did not do it ({type(failure).__name__}): nothing is half done, try again."
            ) from None


def spellings(user: str) -> tuple[str, ...]:
    """All ways in which a reader may stand in the log: as the site named them, and as we write that name."""
    user = user.strip()
    name = user.removeprefix("user:").removeprefix("anon:")
    if not name:
        raise ValueError("Name a reader: user:<uuid>, anon:<address>, or as the site named them.")
    names = {name, name.lower(), name.upper()}
    with contextlib.suppress(ValueError):
        names |= {str(UUID(name)), str(UUID(name)).upper(), UUID(name).hex}
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(name)
        names |= {str(address), address.exploded}
    kinds = [kind for kind in ("user:", "anon:") if user.startswith(kind)] or ["user:", "anon:"]
    return tuple(sorted({user, *names, *(f"{kind}{each}" for kind in kinds for each in names)}))


def check_basis(basis: str, target: ErasureTarget) -> None:
    """It stays when everything else is gone. A name is not recognised; who writes one leaves it there."""
    if not basis.strip():
        raise ValueError("Say on which basis it is erased: that is recorded.")
    names = {name.partition(":")[2] or name for name in target.who}
    is_named = any(name.lower() in basis.lower() for name in names if len(name) > SHORT)
    if is_named or personal.find(basis):
        raise ValueError(
            "The basis stays on record, so it must not name the person: name the request instead."
        )


def _tampered(refused: Sequence[str]) -> list[str]:
    named = f"{', '.join(refused[:10])}{', …' if len(refused) > 10 else ''}"  # noqa: PLR2004
    words = f"{len(refused)} records are not what was sealed, and stay as evidence: {named}. See `affidavit audit verify`"
    return [words] if refused else []


def _is_as_sealed(row: Row, leaf: bytes) -> bool:
    try:
        return leaf_hash(row) == leaf
    except (ValueError, TypeError):
        return False


def _of_row(row: Row) -> dict[str, Any]:
    return {
        "log_id": row["log_id"], "query_id": row["query_id"], "timestamp": row["timestamp"],
        "month": f"{row['timestamp'][:7]}-01", "commitments": commitments(row),
    }  # fmt: skip


def _time(row: Row) -> datetime:
    return datetime.fromisoformat(row["timestamp"])


async def _one(connection: psycopg.AsyncConnection, statement: str, *values: Any) -> int:
    (found,) = await (await connection.execute(statement.encode(), values)).fetchone() or (0,)
    return int(found)


async def _statement_for_all(connection: psycopg.AsyncConnection) -> bytes:
    """The log's own statistics are those of all months together; newer servers need not look at each again."""
    return b"ANALYZE ONLY audit_logs" if connection.info.server_version >= 180000 else b"ANALYZE audit_logs"  # noqa: PLR2004
