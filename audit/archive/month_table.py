"""A month's table on its way out and back: looked at, frozen, compared, detached, attached, rebuilt, dropped.

No request waits for it. What needs a lock that a request could queue behind asks for it for LOCK_MS and tries again
later; what merely waits for readers holds up nobody, and may take longer.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, Literal, TypeVar

from psycopg import AsyncConnection, Connection
from psycopg.errors import LockNotAvailable

from audit.checking.evidence import next_month
from audit.errors import MonthNotReadyError
from audit.proof.merkle import Frontier
from audit.proof.record import Row

LOCK_MS = 50  # no request may feel it
READERS_MS = 10_000  # a detach waits until nobody reads the month any more, and nobody queues behind it
PAUSE_S = 0.2
PATIENCE_S = 60.0  # then somebody is told that the table is in use
LEAVES = 10_000  # read at a time

State = Literal["frozen", "uploaded", "verified", "detached", "dropped", "restored"]

_LOCK = 0xAFF1A3  # with the month's number: one archiver at a time works on a month
_OWNER, _ARCHIVER = "affidavit_owner", "affidavit_archiver"

_MONTHS = """
SELECT m.month, a.state, a.at, coalesce(a.rows, 0), a.manifest_key, a.manifest_version, a.manifest_sha256,
       t.name, coalesce(t.is_attached, false), coalesce(t.is_pending, false)
FROM (SELECT month FROM audit_months WHERE month IS NOT NULL UNION SELECT month FROM audit_archives) m
LEFT JOIN LATERAL (SELECT * FROM audit_archives WHERE month = m.month ORDER BY step DESC LIMIT 1) a ON true
LEFT JOIN LATERAL (
    SELECT format('%%I.%%I', nspname, relname) AS name, inhrelid IS NOT NULL AS is_attached, inhdetachpending AS is_pending
    FROM audit_months k JOIN pg_class c ON c.oid = k.relation JOIN pg_namespace n ON n.oid = relnamespace
    LEFT JOIN pg_inherits ON inhrelid = c.oid AND inhparent = 'audit_logs'::regclass
    WHERE k.month = m.month) t ON true
WHERE m.month = coalesce(%s, m.month) ORDER BY m.month
"""
_RECORD = """
INSERT INTO audit_archives (month, state, rows, manifest_key, manifest_version, manifest_sha256)
VALUES (%s, %s, %s, %s, %s, %s)
"""

# In one statement, so that all numbers are of one moment.
_STANDING = """
SELECT (SELECT count(*) FROM audit_logs WHERE timestamp >= %(begin)s AND timestamp < %(end)s),
       (SELECT count(*) FROM audit_leaves WHERE month = %(month)s),
       (SELECT count(*) FROM audit_logs r WHERE timestamp >= %(begin)s AND timestamp < %(end)s AND NOT EXISTS (
            SELECT FROM audit_leaves l WHERE l.log_id = r.log_id AND l.month = %(month)s)),
       coalesce((SELECT max(tree_size) FROM audit_anchors WHERE month = %(month)s), 0),
       (SELECT count(*) FROM audit_open WHERE opened_at >= %(begin)s AND opened_at < %(end)s)
"""
_HOLD_ERASURES = "SELECT pg_advisory_xact_lock(hashtext('audit_erasure'))"

# Derived, so that it is the same key however often this is repeated; and never for whom somebody has asked to forget.
_KEYS = """
INSERT INTO audit_row_keys (log_id, query_id, month, key, subject)
SELECT log_id, query_id, %(month)s,
       sha256('affidavit row key 1'::bytea || '\\x00'::bytea || salt || uuid_send(log_id)),
       sha256(pepper || convert_to(end_user, 'UTF8'))
FROM audit_logs r, audit_pepper
WHERE timestamp >= %(begin)s AND timestamp < %(end)s AND salt IS NOT NULL AND erased_at IS NULL
  AND NOT EXISTS (SELECT FROM audit_erasures e WHERE e.log_id = r.log_id)
ON CONFLICT DO NOTHING
"""
_FREEZE = """
CREATE OR REPLACE TRIGGER audit_logs_frozen BEFORE INSERT ON {table}
    FOR EACH ROW EXECUTE FUNCTION audit_refuse_late();
CREATE OR REPLACE TRIGGER audit_logs_frozen_keep BEFORE UPDATE OR DELETE ON {table}
    FOR EACH ROW EXECUTE FUNCTION audit_refuse_change()
"""
_COMPARED = """
SELECT count(*), count(*) FILTER (WHERE l.log_id IS NULL), count(*) FILTER (WHERE k.log_id IS NULL AND r.salt IS NOT NULL)
FROM {table} r
LEFT JOIN audit_leaves l ON l.log_id = r.log_id AND l.month = %(month)s AND l.leaf_hash = r.leaf_hash
LEFT JOIN audit_row_keys k ON k.log_id = r.log_id
"""
_LEAVES = (
    "SELECT leaf_hash FROM audit_leaves WHERE month = %s AND leaf_index >= %s ORDER BY leaf_index LIMIT %s"
)
_KEYS_OF = "SELECT log_id::text, key FROM audit_row_keys WHERE log_id = ANY(%s::uuid[])"
_ERASED_AT = "SELECT DISTINCT ON (log_id) log_id::text, erased_at::text FROM audit_erasures WHERE log_id = ANY(%s::uuid[])"
_KEEP_COMMITMENTS = "SELECT audit_keep_commitments(%s, %s)"
_DETACH = "ALTER TABLE audit_logs DETACH PARTITION {table} {how}"
_ATTACH = "ALTER TABLE audit_logs ATTACH PARTITION {table} FOR VALUES FROM ('{begin}') TO ('{end}')"
_DROP = "DROP TABLE {table}"
_UNGUARD = "DELETE FROM audit_months WHERE month = %s"
_TABLE = """
CREATE TABLE {table} (LIKE audit_logs INCLUDING ALL);
CREATE TRIGGER audit_logs_keep_all BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_change();
GRANT SELECT ON {table} TO affidavit_auditor, affidavit_archiver;
DELETE FROM audit_months WHERE month = '{month}';
INSERT INTO audit_months VALUES ('{table}', '{month}')
"""
_FILL = "INSERT INTO {table} SELECT * FROM json_populate_recordset(NULL::audit_logs, %s::json)"

Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class ManifestPlace:
    """Where the month's manifest is, and what it must be."""

    key: str
    version: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Month:
    """How far a month is, and where its rows are."""

    month: date
    state: State | None = None
    since: datetime | None = None
    rows: int = 0
    manifest: ManifestPlace | None = None
    table: str | None = None  # quoted; whatever it was renamed to
    is_attached: bool = False
    is_pending: bool = False  # a detach was interrupted: its rows are hidden until that is finished

    def __str__(self) -> str:
        return f"{self.month:%Y-%m}"


@dataclass(frozen=True, slots=True)
class MonthCounts:
    """What must be at rest before a month may leave."""

    rows: int
    leaves: int
    unsealed: int
    anchored: int
    open: int

    @property
    def is_sealed(self) -> bool:
        return not self.unsealed and self.anchored == self.leaves

    @property
    def trouble(self) -> str:
        if self.open:
            return f"{self.open} requests of it are open still; see `affidavit audit status`"
        if self.unsealed:
            return f"{self.unsealed} records of it are not sealed yet; `affidavit audit seal` must run"
        if self.anchored != self.leaves:
            return "its last tree head is not in the vault yet; `affidavit audit seal` must run"
        if self.rows != self.leaves:
            return f"it has {self.rows} records and {self.leaves} leaves; see `affidavit audit verify`"
        return ""


@dataclass(frozen=True, slots=True)
class Again:
    """A row as it comes back from an archive, and what stands for its personal columns."""

    row: Row
    commitments: Mapping[str, str]


async def months(connection: AsyncConnection) -> list[Month]:
    """All that ever had a table, the oldest first."""
    return await _months(connection, None)


async def look(connection: AsyncConnection, month: date) -> Month:
    found = await _months(connection, month)
    return found[0] if found else Month(month)


async def _months(connection: AsyncConnection, month: date | None) -> list[Month]:
    rows = await _fetch(connection, _MONTHS, (month,))
    return [
        Month(each, state, since, count, ManifestPlace(*place) if place[0] else None, *table)
        for each, state, since, count, *place, table in ((*row[:7], row[7:]) for row in rows)
    ]


@asynccontextmanager
async def locked(connection: AsyncConnection, month: date) -> AsyncIterator[bool]:
    """Whether the month is ours until the end of the block; else another archiver works on it."""
    number = (_LOCK, month.year * 12 + month.month)
    ((is_ours,),) = await _fetch(connection, "SELECT pg_try_advisory_lock(%s, %s)", number)
    try:
        yield is_ours
    finally:
        if is_ours and not connection.broken:  # else the lock went with the connection
            await connection.execute("SELECT pg_advisory_unlock(%s, %s)", number)


async def record(
    connection: AsyncConnection, month: date, state: State, rows: int, manifest: ManifestPlace | None
) -> None:
    place = (manifest.key, manifest.version, manifest.sha256) if manifest else (None, None, None)
    await connection.execute(_RECORD, (month, state, rows, *place))


async def count(connection: AsyncConnection, month: date) -> MonthCounts:
    ((rows, leaves, unsealed, anchored, is_open),) = await _fetch(connection, _STANDING, _bounds(month))
    return MonthCounts(rows, leaves, unsealed, anchored, is_open)


async def freeze(connection: AsyncConnection, month: Month) -> int:
    """Close the month for new rows and make the keys of its personal columns; how many rows it has, for good."""

    async def frozen() -> int:
        async with connection.transaction():
            await hold_erasures(connection)
            await _change(connection, _FREEZE, month)
            now = await count(connection, month.month)
            if now.trouble:
                raise MonthNotReadyError(now.trouble)
            await connection.execute(_KEYS, _bounds(month.month))
        return now.rows

    return await _patiently(frozen)


async def hold_erasures(connection: AsyncConnection) -> None:
    """None begins before the transaction that is under way has ended, and none is half done."""
    await connection.execute(f"SET LOCAL lock_timeout = {READERS_MS}".encode())
    await connection.execute(_HOLD_ERASURES)


async def compare(connection: AsyncConnection, month: Month, root: bytes) -> None:
    """Whether the archive with this root holds all that the table holds, and each record has its key."""
    (counts,) = await _fetch(connection, _COMPARED.format(table=month.table), _bounds(month.month))
    if counts != (month.rows, 0, 0):
        raise MonthNotReadyError(
            f"its table has {counts[0]} records, {counts[1]} of them without their leaf and {counts[2]} without"
            f" their key, and the archive {month.rows}; nothing was removed. See `affidavit audit verify`"
        )
    if await _root(connection, month.month) != (month.rows, root):
        raise MonthNotReadyError(
            "the archive is of another tree than the month; see `affidavit audit verify`"
        )


async def detach(connection: AsyncConnection, month: Month) -> None:
    """Take the month out of the log while everybody goes on. Also finishes a detach that was interrupted."""

    async def detached() -> None:
        now = await look(connection, month.month)
        if now.is_attached:
            how = "FINALIZE" if now.is_pending else "CONCURRENTLY"
            async with _as_owner(connection, READERS_MS):
                await connection.execute(_DETACH.format(table=now.table, how=how).encode())

    await _patiently(detached)


async def attach(connection: AsyncConnection, month: Month) -> None:
    """Bring a detached month back, as it was; with the refusal of new rows, if it was frozen."""

    async def attached() -> None:
        async with connection.transaction():
            await _change(connection, (_FREEZE + ";" if month.state else "") + _ATTACH, month)

    await _patiently(attached)


@asynccontextmanager
async def rebuilding(connection: AsyncConnection, month: Month) -> AsyncIterator[Month]:
    """The month's table made anew, to be filled and compared in the block, and attached at its end; or nothing at all."""
    made = replace(month, table=f"public.audit_logs_{month.month:%Y_%m}")
    async with connection.transaction():
        await _change(connection, _TABLE, made, READERS_MS)
        yield made
        await _change(connection, f"{_FREEZE};{_ATTACH}", made, READERS_MS)


async def fill(connection: AsyncConnection, month: Month, rows: Sequence[Again]) -> None:
    """What was erased comes back as it is remembered: when, and what stands for it."""
    erased = {str(again.row["log_id"]): again for again in rows if not again.row.get("salt")}
    for log_id, erased_at in await _fetch(connection, _ERASED_AT, (list(erased),)):
        erased[log_id].row.setdefault("erased_at", erased_at)
        await connection.execute(_KEEP_COMMITMENTS, (log_id, json.dumps(erased[log_id].commitments)))
    if lost := [log_id for log_id, again in erased.items() if "erased_at" not in again.row]:
        raise MonthNotReadyError(f"{len(lost)} records have lost their key and were never erased: {lost[0]}")
    async with _role(connection):
        texts = json.dumps([again.row for again in rows])
        await connection.execute(_FILL.format(table=month.table).encode(), (texts,))


async def drop(connection: AsyncConnection, month: Month) -> None:
    async def dropped() -> None:
        async with connection.transaction():
            await _change(connection, _DROP, month)
            async with _role(connection):
                await connection.execute(_UNGUARD, (month.month,))

    await _patiently(dropped)


def read_row_keys(connection: Connection, log_ids: Sequence[str]) -> dict[str, bytes]:
    """The keys that are left: who was forgotten has none."""
    found = connection.execute(_KEYS_OF, (list(log_ids),))
    return dict(found.fetchall())


async def _root(connection: AsyncConnection, month: date) -> tuple[int, bytes]:
    tree = Frontier()
    while leaves := await _fetch(connection, _LEAVES, (month, tree.size, LEAVES)):
        for (leaf,) in leaves:
            tree.append(leaf)
    return tree.size, tree.root() if tree.size else b""


async def _change(connection: AsyncConnection, statements: str, month: Month, lock_ms: int = LOCK_MS) -> None:
    """In the transaction that is under way, as the table's owner."""
    begin, end = _bounds(month.month)["begin"], _bounds(month.month)["end"]
    text = statements.format(table=month.table, month=month.month, begin=begin, end=end)
    async with _role(connection):
        await connection.execute(f"SET LOCAL lock_timeout = {lock_ms}".encode())
        await connection.execute(text.encode())
        await connection.execute(f"SET LOCAL lock_timeout = {READERS_MS}".encode())


@asynccontextmanager
async def _role(connection: AsyncConnection) -> AsyncIterator[None]:
    """A transaction that fails takes the role back by itself."""
    await connection.execute(f"SET LOCAL ROLE {_OWNER}".encode())
    yield
    await connection.execute(f"SET LOCAL ROLE {_ARCHIVER}".encode())


@asynccontextmanager
async def _as_owner(connection: AsyncConnection, lock_ms: int) -> AsyncIterator[None]:
    """For what cannot run in a transaction."""
    await connection.execute(f"SET ROLE {_OWNER}; SET lock_timeout = {lock_ms}".encode())
    try:
        yield
    finally:
        if not connection.broken:
            await connection.execute(f"SET ROLE {_ARCHIVER}; RESET lock_timeout".encode())


async def _patiently(work: Callable[[], Awaitable[Done]]) -> Done:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await work()
        except LockNotAvailable:
            if time.monotonic() > until:
                raise MonthNotReadyError(
                    "somebody has been using its table for long; run this again later"
                ) from None
        await asyncio.sleep(PAUSE_S)


def _bounds(month: date) -> dict[str, Any]:
    return {"month": month, "begin": f"{month} 00:00:00+00", "end": f"{next_month(month)} 00:00:00+00"}


async def _fetch(connection: AsyncConnection, statement: str, values: Any = ()) -> list[Any]:
    return await (await connection.execute(statement.encode(), values)).fetchall()
