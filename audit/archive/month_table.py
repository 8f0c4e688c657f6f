"""SQL of the archive's state machine: freezes, compares, detaches, attaches, rebuilds and drops a month's table.

It must not delay requests. A lock that a request could queue behind is taken with the short timeout LOCK_MS and retried
later; a statement that only waits for readers blocks no request, so its timeout is longer.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass, replace
from datetime import date, datetime
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

from psycopg import AsyncConnection, Connection
from psycopg.errors import Error, LockNotAvailable

from audit.errors import HeldError, MonthNotReadyError
from audit.ledger.partitions import next_month, partition_name
from audit.proof.merkle import Frontier
from audit.proof.record import Row

LOCK_MS = 50  # short enough not to delay a request noticeably
READERS_MS = 10_000  # a detach waits for all readers of the month, and no request queues behind it
PAUSE_S = 0.2
RETRY_S = 60.0  # after that the command reports that the table is in use
LEAVES = 10_000  # in one read

State = Literal["frozen", "uploaded", "verified", "detached", "dropped", "restored"]

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

# One statement, so that all counts are of one moment.
_STANDING = """
SELECT (SELECT count(*) FROM audit_logs WHERE timestamp >= %(begin)s AND timestamp < %(end)s),
       (SELECT count(*) FROM audit_leaves WHERE month = %(month)s),
       (SELECT count(*) FROM audit_logs r WHERE timestamp >= %(begin)s AND timestamp < %(end)s AND NOT EXISTS (
            SELECT FROM audit_leaves l WHERE l.log_id = r.log_id AND l.month = %(month)s)),
       coalesce((SELECT max(tree_size) FROM audit_anchors WHERE month = %(month)s), 0),
       (SELECT count(*) FROM audit_open WHERE opened_at >= %(begin)s AND opened_at < %(end)s)
"""
_HOLD_ERASURES = "SELECT audit_lock('erasure')"
_IS_HELD = "SELECT audit_is_month_held(%s)"
_HELD = "AF002"  # the SQLSTATE with which the database refuses what a hold covers

# The key is derived, so that a retry gives the same key. Erased records get none.
_KEYS = """
INSERT INTO audit_row_keys (log_id, query_id, month, key, subject, client_id, timestamp)
SELECT log_id, query_id, %(month)s,
       sha256('affidavit row key 1'::bytea || '\\x00'::bytea || salt || uuid_send(log_id)),
       sha256(pepper || convert_to(end_user, 'UTF8')), client_id, timestamp
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
SELECT count(*), count(*) FILTER (WHERE l.log_id IS NULL), count(*) FILTER (WHERE r.salt IS NOT NULL AND
           k.key IS DISTINCT FROM sha256('affidavit row key 1'::bytea || '\\x00'::bytea || r.salt || uuid_send(r.log_id)))
FROM {table} r
LEFT JOIN audit_leaves l ON l.log_id = r.log_id AND l.month = %(month)s AND l.leaf_hash = r.leaf_hash
LEFT JOIN audit_row_keys k ON k.log_id = r.log_id
"""
_LEAVES = """
SELECT leaf_hash FROM audit_leaves WHERE month = %s AND leaf_index >= %s ORDER BY leaf_index LIMIT %s
"""
_KEYS_OF = "SELECT log_id::text, key FROM audit_row_keys WHERE log_id = ANY(%s::uuid[])"
_ERASED_AT = "SELECT DISTINCT ON (log_id) log_id::text, erased_at::text FROM audit_erasures WHERE log_id = ANY(%s::uuid[])"
_KEEP_COMMITMENTS = "SELECT audit_keep_commitments(%s, %s)"
_DETACH = "ALTER TABLE audit_logs DETACH PARTITION {table} {how}"
_ATTACH = "ALTER TABLE audit_logs ATTACH PARTITION {table} FOR VALUES FROM ('{begin}') TO ('{end}')"
_DROP = "DROP TABLE {table}; DELETE FROM audit_months WHERE month = '{month}'"
_TABLE = """
CREATE TABLE {table} (LIKE audit_logs INCLUDING ALL);
CREATE TRIGGER audit_logs_keep_all BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_change();
GRANT SELECT ON {table} TO affidavit_auditor, affidavit_archiver;
DELETE FROM audit_months WHERE month = '{month}';
INSERT INTO audit_months VALUES ('{table}', '{month}')
"""
_FILL = "INSERT INTO {table} SELECT * FROM json_populate_recordset(NULL::audit_logs, %s::json)"

Arguments = ParamSpec("Arguments")
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class ManifestPlace:
    key: str
    version: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Month:
    month: date
    state: State | None = None
    since: datetime | None = None
    rows: int = 0
    manifest: ManifestPlace | None = None
    table: str | None = None  # its current name, quoted
    is_attached: bool = False
    is_pending: bool = False  # a detach was interrupted: its rows are hidden until the detach is finished

    def __str__(self) -> str:
        return f"{self.month:%Y-%m}"


@dataclass(frozen=True, slots=True)
class MonthCounts:
    """Counts that must agree before a month may be archived."""

    rows: int
    leaves: int
    unsealed: int
    anchored: int
    open: int

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self.leaves)

    @property
    def is_sealed(self) -> bool:
        return not self.unsealed and self.anchored == self.leaves

    @property
    def obstacle(self) -> str:
        if self.open:
            return f"{self.open} of its requests are still open; run `affidavit audit status`"
        if self.unsealed:
            return f"{self.unsealed} of its records are not sealed yet; run `affidavit audit seal`"
        if self.anchored != self.leaves:
            return "its last checkpoint is not anchored in the vault yet; run `affidavit audit seal`"
        if self.rows != self.leaves:
            return f"it has {self.rows} records and {self.leaves} leaves; run `affidavit audit verify`"
        return ""


@dataclass(frozen=True, slots=True)
class RestoredRow:
    row: Row
    commitments: Mapping[str, str]


async def read_month(connection: AsyncConnection, month: date) -> Month:
    found = await list_months(connection, month)
    return found[0] if found else Month(month)


async def list_months(connection: AsyncConnection, month: date | None = None) -> list[Month]:
    """All months that ever had a table, the oldest first; or only this one."""
    rows = await _fetch(connection, _MONTHS, (month,))
    return [
        Month(each, state, since, count, ManifestPlace(*place) if place[0] else None, *table)
        for each, state, since, count, *place, table in ((*row[:7], row[7:]) for row in rows)
    ]


@asynccontextmanager
async def lock(connection: AsyncConnection, month: date) -> AsyncIterator[bool]:
    """Claim the month for this connection until the block ends. False if another archiver works on it."""
    claim = f"affidavit archive {month:%Y-%m}"
    ((is_locked,),) = await _fetch(connection, "SELECT audit_claim(%s)", (claim,))
    try:
        yield is_locked
    finally:
        if is_locked and not connection.broken:  # a broken connection has released the claim
            await connection.execute("RESET application_name")


async def record_step(
    connection: AsyncConnection, month: date, state: State, rows: int, manifest: ManifestPlace | None
) -> None:
    place = astuple(manifest) if manifest else (None, None, None)
    await connection.execute(_RECORD, (month, state, rows, *place))


async def count(connection: AsyncConnection, month: date) -> MonthCounts:
    (counts,) = await _fetch(connection, _STANDING, _bounds(month))
    return MonthCounts(*counts)


def _retried(work: Callable[Arguments, Awaitable[Done]]) -> Callable[Arguments, Awaitable[Done]]:
    """Retry decorator: begins again while somebody else holds a lock on the table."""

    @wraps(work)
    async def retried(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Done:
        until = time.monotonic() + RETRY_S
        while True:
            try:
                return await work(*args, **kwargs)
            except LockNotAvailable:
                if time.monotonic() > until:
                    raise MonthNotReadyError(
                        "its table has been in use for a minute; close long queries, or run the command again later"
                    ) from None
            await asyncio.sleep(PAUSE_S)

    return retried


@_retried
async def freeze(connection: AsyncConnection, month: Month) -> int:
    """Refuse new rows of the month and make the keys of its personal columns. Returns its final number of rows."""
    async with connection.transaction():
        await block_erasures(connection)
        await _change_as_owner(connection, _FREEZE, month)
        now = await count(connection, month.month)
        if now.obstacle:
            raise MonthNotReadyError(now.obstacle)
        await connection.execute(_KEYS, _bounds(month.month))
    return now.rows


async def block_erasures(connection: AsyncConnection) -> None:
    """Take the erasures' lock until the current transaction ends; waits for a running erasure."""
    await connection.execute(f"SET LOCAL lock_timeout = {READERS_MS}".encode())
    await connection.execute(_HOLD_ERASURES)


async def compare(connection: AsyncConnection, month: Month, root: bytes) -> None:
    """Check that the archive with this root contains all that the table contains, and that each record has its key."""
    (counts,) = await _fetch(connection, _COMPARED.format(table=month.table), _bounds(month.month))
    if counts != (month.rows, 0, 0):
        raise MonthNotReadyError(
            f"its table has {counts[0]} records, {counts[1]} without their leaf and {counts[2]} without their key, and"
            f" its archive has {month.rows}, so nothing was removed. Run `affidavit audit verify`"
        )
    if await _root(connection, month.month) != (month.rows, root):
        message = "the archive belongs to another tree than the month; run `affidavit audit verify`"
        raise MonthNotReadyError(message)


@_retried
async def detach(connection: AsyncConnection, month: Month) -> None:
    """Detach the month's partition concurrently. Also finishes a detach that was interrupted."""
    now = await read_month(connection, month.month)
    if now.is_attached:
        how = "FINALIZE" if now.is_pending else "CONCURRENTLY"
        async with _owner_session(connection):
            await connection.execute(_DETACH.format(table=now.table, how=how).encode())


@_retried
async def attach(connection: AsyncConnection, month: Month) -> None:
    """Attach a detached month again; if it was frozen, it still refuses new rows."""
    async with connection.transaction():
        await _change_as_owner(connection, (_FREEZE + ";" if month.state else "") + _ATTACH, month)


@asynccontextmanager
async def rebuilding(connection: AsyncConnection, month: Month) -> AsyncIterator[Month]:
    """Create the month's table, to be filled and compared in the block, and attach it at the end; all in one transaction."""
    made = replace(month, table=f"public.{partition_name(month.month)}")
    async with connection.transaction():
        await _change_as_owner(connection, _TABLE, made, READERS_MS)
        yield made
        await _change_as_owner(connection, f"{_FREEZE};{_ATTACH}", made, READERS_MS)


async def fill(connection: AsyncConnection, month: Month, rows: Sequence[RestoredRow]) -> None:
    """Insert the rows. Erased records get their time of erasure and their commitments from the database."""
    erased = {str(restored.row["log_id"]): restored for restored in rows if not restored.row.get("salt")}
    for log_id, erased_at in await _fetch(connection, _ERASED_AT, (list(erased),)):
        erased[log_id].row.setdefault("erased_at", erased_at)
        await connection.execute(_KEEP_COMMITMENTS, (log_id, json.dumps(erased[log_id].commitments)))
    if lost := [log_id for log_id, restored in erased.items() if "erased_at" not in restored.row]:
        raise MonthNotReadyError(f"{len(lost)} records have lost their key and were never erased: {lost[0]}")
    async with _owner_role(connection):
        texts = json.dumps([restored.row for restored in rows])
        await connection.execute(_FILL.format(table=month.table).encode(), (texts,))


async def is_held(connection: AsyncConnection, month: Month) -> bool:
    ((held,),) = await _fetch(connection, _IS_HELD, (month.month,))
    return bool(held)


@_retried
async def drop(connection: AsyncConnection, month: Month) -> None:
    try:
        async with connection.transaction():
            await block_erasures(connection)  # and holds: one that is being added is waited for
            await _change_as_owner(connection, _DROP, month)
    except Error as failure:
        if failure.sqlstate == _HELD:
            raise HeldError(f"{month} has records under a hold") from None
        raise


def read_row_keys(connection: Connection, log_ids: Sequence[str]) -> dict[str, bytes]:
    """The keys of these records; erased ones have none."""
    return dict(connection.execute(_KEYS_OF, (list(log_ids),)).fetchall())


async def _root(connection: AsyncConnection, month: date) -> tuple[int, bytes]:
    tree = Frontier()
    while leaves := await _fetch(connection, _LEAVES, (month, tree.size, LEAVES)):
        for (leaf,) in leaves:
            tree.append(leaf)
    return tree.size, tree.root() if tree.size else b""


async def _change_as_owner(
    connection: AsyncConnection, statements: str, month: Month, lock_ms: int = LOCK_MS
) -> None:
    """Run DDL in the current transaction, in the role of the table's owner."""
    text = statements.format(table=month.table, **_bounds(month.month))
    async with _owner_role(connection):
        await connection.execute(f"SET LOCAL lock_timeout = {lock_ms}".encode())
        await connection.execute(text.encode())
        await connection.execute(f"SET LOCAL lock_timeout = {READERS_MS}".encode())


@asynccontextmanager
async def _owner_role(connection: AsyncConnection) -> AsyncIterator[None]:
    """Switch to the owner's role for a block of a transaction. A rollback resets the role by itself."""
    await connection.execute(f"SET LOCAL ROLE {_OWNER}".encode())
    yield
    await connection.execute(f"SET LOCAL ROLE {_ARCHIVER}".encode())


@asynccontextmanager
async def _owner_session(connection: AsyncConnection) -> AsyncIterator[None]:
    """Switch to the owner's role for statements that cannot run in a transaction."""
    await connection.execute(f"SET ROLE {_OWNER}; SET lock_timeout = {READERS_MS}".encode())
    try:
        yield
    finally:
        if not connection.broken:
            await connection.execute(f"SET ROLE {_ARCHIVER}; RESET lock_timeout".encode())


def _bounds(month: date) -> dict[str, Any]:
    return {"month": month, "begin": f"{month} 00:00:00+00", "end": f"{next_month(month)} 00:00:00+00"}


async def _fetch(connection: AsyncConnection, statement: str, values: Any = ()) -> list[Any]:
    return await (await connection.execute(statement.encode(), values)).fetchall()
