"""Data access for the verifiers: reads the log and its leaves from PostgreSQL, and the anchors from the vault.

One read-only snapshot transaction, so that everything is of one moment. Batches are prefetched: the next one is read while
the last one is verified, and no more than that is held in memory.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TypeVar

import psycopg
from psycopg import sql

from audit.anchored import (
    AnchorSource,
    Chain,
    MonthAnchors,
    delegations_in,
    list_anchors,
    month_anchors,
    note_key,
    read,
    read_together,
    together,
)
from audit.checking.inspection import Batch, Leaf, MonthState, SetAside, UnsealedRecord
from audit.checking.lost_history import StoredBreak
from audit.checking.range_judge import SMALL, RangeJudges, judge_all
from audit.checking.row_range import RowRange
from audit.checking.row_reader import SEALED_WITHIN, SESSION, RowQueries, read_erasures, read_rows
from audit.errors import NoteError
from audit.heads.inspection import HeadBatch, StoredEntry
from audit.heads.vaulted import VaultedHeads, list_heads, read_entries
from audit.heads.vaulted import note_key as head_key
from audit.holding.doubts import HoldTables
from audit.holding.tables import read_hold_tables
from audit.ledger.delegated_keys import DELEGATIONS
from audit.ledger.partitions import month_start, next_month, partition_name
from audit.proof.keys import PublicKey
from audit.proof.record import Row

BATCH_LEAVES = 500
AHEAD = 2  # batches
LAST_MOMENT = datetime.max.replace(tzinfo=UTC)

_TIME = """to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS {}"""
# A custom type could show one value to a reader and another as JSON, so its column gets a name that the verifier rejects.
COLUMNS = """
SELECT attname, atttypid = 'timestamptz'::regtype, CASE WHEN atttypid = ANY (
    '{uuid,text,varchar,int4,float8,bool,jsonb,bytea,timestamptz}'::regtype[]) THEN attname::text
    ELSE format('%s of the type %s', attname, format_type(atttypid, NULL)) END FROM pg_attribute
WHERE attrelid = 'public.audit_logs'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_MONTHS = """
WITH RECURSIVE months AS (
    SELECT min(month) AS month FROM public.audit_leaves
    UNION ALL
    SELECT (SELECT min(l.month) FROM public.audit_leaves l WHERE l.month > m.month) FROM months m WHERE m.month IS NOT NULL
)
SELECT month FROM months WHERE month IS NOT NULL
UNION SELECT month FROM public.audit_checkpoints UNION SELECT month FROM public.audit_anchors
"""
# Only a real table counts: a view or a foreign table could show the verifier other rows than it shows to others.
_PARTITION = """
SELECT FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
WHERE inhparent = 'public.audit_logs'::regclass AND c.relname = %s AND c.relkind = 'r' AND NOT inhdetachpending
"""
_MANIFEST = """
SELECT manifest_key, manifest_version, manifest_sha256 FROM public.audit_archives
WHERE month = %s AND state IN ('verified', 'detached', 'dropped') ORDER BY step DESC LIMIT 1
"""
_CHECKPOINTS = "SELECT tree_size, note FROM public.audit_checkpoints WHERE month = %s AND tree_size > %s AND tree_size <= %s"
_CHECKPOINTS_FROM_LAST = """
SELECT tree_size, note FROM public.audit_checkpoints WHERE month = %s AND tree_size < %s ORDER BY tree_size DESC LIMIT 100
"""
_CHECKPOINT = "SELECT note FROM public.audit_checkpoints WHERE month = %s AND tree_size = %s"
_ANCHORS = (
    "SELECT tree_size FROM public.audit_anchors WHERE month = %s AND tree_size > %s AND tree_size <= %s"
)
_BREAKS = "SELECT number, note FROM public.audit_breaks WHERE month = %s"
_NEWEST_HEAD = "SELECT coalesce(max(tree_size), 0) FROM public.audit_heads"
_RECORD = """
SELECT EXISTS (SELECT FROM public.audit_leaves WHERE log_id = asked) OR EXISTS (SELECT FROM public.audit_logs WHERE log_id = asked)
FROM (SELECT %s::uuid) AS record (asked)
"""
_LEAVES = """
SELECT leaf_index, log_id::text, leaf_hash FROM public.audit_leaves
WHERE month = %s AND leaf_index >= %s AND leaf_index < %s ORDER BY leaf_index
"""
_LEAVES_BEYOND = """
SELECT count(*) OVER (), leaf_index, log_id::text FROM public.audit_leaves
WHERE month = %s AND leaf_index >= %s ORDER BY leaf_index LIMIT 1
"""
_KEYLESS = """
SELECT asked::text FROM unnest(%s::uuid[]) AS asked
WHERE NOT EXISTS (SELECT FROM public.audit_row_keys k WHERE k.log_id = asked)
"""
_UNSEALED = """
SELECT log_id::text, timestamp, leaf_hash, schema_version, {signed} FROM public.audit_logs r
WHERE timestamp >= %s AND timestamp < %s AND NOT EXISTS (
    SELECT FROM public.audit_leaves l
    WHERE l.log_id = r.log_id AND l.month = date_trunc('month', r.timestamp AT TIME ZONE 'UTC')::date)
"""
_SIGNED = "signature, writer::text, sequence, heartbeat"
_UNSIGNED = "NULL::bytea, NULL::text, NULL::integer, NULL::jsonb"
_OPEN = "SELECT trail, signature FROM public.audit_open WHERE signature IS NOT NULL"
_SET_ASIDE = """
SELECT log_id::text, timestamp, (kept ->> 'leaf_hash')::bytea, (kept ->> 'signature')::bytea FROM public.audit_set_aside
"""
_HEAD_ENTRIES = """
SELECT entry_index, e.month, e.tree_size, entry, leaf_hash, c.note FROM public.audit_head_entries e
LEFT JOIN public.audit_checkpoints c ON c.month = e.month AND c.tree_size = e.tree_size
WHERE entry_index >= %s AND entry_index < %s
"""
_HEAD_COUNT = """
SELECT greatest((SELECT max(entry_index) + 1 FROM public.audit_head_entries), (SELECT max(tree_size) FROM public.audit_heads),
                (SELECT max(tree_size) FROM public.audit_head_anchors), 0)
"""
_HEADS = "SELECT tree_size, note FROM public.audit_heads WHERE tree_size > %s AND tree_size <= %s"
_PUBLISHED = "SELECT tree_size FROM public.audit_head_anchors WHERE tree_size > %s AND tree_size <= %s"
_NEWEST_PUBLISHED = "SELECT note FROM public.audit_head_anchors ORDER BY tree_size DESC LIMIT 1"
# Of each month the newest anchor, if the log of heads had begun by then and has nothing as new of the month.
_UNLOGGED = """
SELECT month, size FROM (
    SELECT DISTINCT ON (month) month, tree_size AS size, anchored_at FROM public.audit_anchors ORDER BY month, tree_size DESC) a
WHERE anchored_at > (SELECT min(appended_at) + interval '1 minute' FROM public.audit_head_entries) AND NOT EXISTS (
    SELECT FROM public.audit_head_entries e WHERE e.month = a.month AND e.tree_size >= a.size)
"""
# The first eight digits of a log file's name. A standby has no current file.
_TIMELINE = """
SELECT ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer
"""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Period:
    """A time range, `until` exclusive. A tree covers a whole month, so it is always checked as a whole."""

    since: datetime
    until: datetime

    def within(self, month: date) -> "Period":
        begin, end = month_start(month), month_start(next_month(month))
        return Period(max(self.since, begin), min(self.until, end))

    @property
    def is_empty(self) -> bool:
        return self.since >= self.until


EVER = Period(datetime.min.replace(tzinfo=UTC), LAST_MOMENT)


@dataclass(slots=True)
class StoredEvidence:
    """The `LogEvidence` of one database and one vault. Its connection is used by one thread at a time."""

    connection: psycopg.Connection
    vault: AnchorSource
    period: Period
    now: datetime
    judges: RangeJudges | None = None  # without them this process judges all
    _has_vault: bool = True
    _anchors: dict[date, MonthAnchors] = field(default_factory=dict)
    _chains: dict[date, Chain] = field(default_factory=dict)
    _queries: RowQueries | None = None
    _columns: Sequence[str] = ()
    _is_signed: bool = True  # a log of an older version has no such columns
    _has_breaks: bool = False
    _heads: VaultedHeads = field(default_factory=VaultedHeads)
    _states: dict[date, MonthState] = field(default_factory=dict)

    def begin(self) -> None:
        """List the vault first: an anchor written in between is already in the database, and not the other way round."""
        self._anchors = list_anchors(self.vault)
        self._heads = list_heads(self.vault)
        self.connection.autocommit = True
        self.connection.execute(SESSION.encode(), prepare=False)
        columns = self.connection.execute(COLUMNS).fetchall()
        self._columns = [alias for *_, alias in columns]
        self._is_signed = "signature" in {name for name, *_ in columns}
        where = "log_id = ANY(%s::uuid[]) AND timestamp >= %s AND timestamp < %s"
        statement = rows_statement(columns, where, "signature" if self._is_signed else "NULL::bytea")
        self._queries = RowQueries(statement, self._has_table("audit_erasures"), self.now)
        if self.judges:
            self.judges.begin(self.connection, self._queries)
        self._has_breaks = self._has_table("audit_breaks")

    def months(self) -> list[date]:
        found = {month for (month,) in self.connection.execute(_MONTHS)}
        return sorted(found | set(self._anchors))

    def state(self, month: date) -> MonthState:
        if month not in self._states:
            self._states[month] = self._state(month)
        return self._states[month]

    def is_in_period(self, month: date) -> bool:
        return not self.period.within(month).is_empty

    def checkpoints_from_last(self, month: date) -> Iterator[tuple[int, str]]:
        below = 2**62
        while found := self.connection.execute(_CHECKPOINTS_FROM_LAST, (month, below)).fetchall():
            yield from found
            below = found[-1][0]

    def anchors_from_last(self, month: date) -> Iterator[tuple[int, bytes]]:
        chain = self._chain(month)
        for size in reversed(chain.sizes):
            yield size, read(self.vault, chain.key(size))

    def checkpoint(self, month: date, size: int) -> str | None:
        found = self.connection.execute(_CHECKPOINT, (month, size)).fetchone()
        return found[0] if found else None

    def batches(self, month: date, end: int, keys: Sequence[PublicKey], known: int = 0) -> Iterator[Batch]:
        """While some batches are judged, the next ones are read."""
        self._chains.pop(month, None)  # it is read from its begin
        begins = range(0, end, BATCH_LEAVES)
        judges = self.judges if self.judges and self.judges.size > 1 and end >= SMALL else None
        read = _prefetched(
            self._batch(month, begin, min(begin + BATCH_LEAVES, end), known, is_read=judges is None)
            for begin in begins
        )
        yield from judge_all(read, keys, judges)

    def leaves_beyond(self, month: date, end: int) -> tuple[int, int, str] | None:
        return self.connection.execute(_LEAVES_BEYOND, (month, end)).fetchone()

    def unsealed(self) -> Iterator[UnsealedRecord]:
        statement = _UNSEALED.format(signed=_SIGNED if self._is_signed else _UNSIGNED).encode()
        with self.connection.cursor("unsealed") as cursor:
            cursor.execute(statement, (self.period.since, self.period.until))
            for log_id, timestamp, *signed in cursor:
                yield UnsealedRecord(log_id, timestamp, timestamp < self.now - SEALED_WITHIN, *signed)

    def open_requests(self) -> Iterator[tuple[Row, bytes | None]]:
        if self._is_signed:
            yield from self.connection.execute(_OPEN)

    def set_aside(self) -> Iterator[SetAside]:
        if self._has_table("audit_set_aside"):
            for row in self.connection.execute(_SET_ASIDE):
                yield SetAside(*row)

    def hold_tables(self) -> HoldTables:
        if not self._has_table("audit_holds"):
            return HoldTables()
        try:
            return read_hold_tables(self.connection)
        except psycopg.errors.UndefinedColumn:  # each row is found to be altered then
            return HoldTables()

    def delegations(self) -> list[str]:
        found = (
            self.connection.execute(DELEGATIONS).fetchall() if self._has_table("audit_delegations") else []
        )
        lines = [line for (line,) in found]
        return lines + delegations_in(self.vault, lines)

    def origins(self) -> set[str]:
        return {name for (name,) in self.connection.execute("SELECT origin FROM public.audit_origin")}

    def since(self, month: date) -> datetime:
        return self.period.within(month).since

    def breaks(self, month: date) -> list[StoredBreak]:
        """Those of the database and those of the vault, with what the vault holds of the lost leaves."""
        lines = self.connection.execute(_BREAKS, (month,)).fetchall() if self._has_breaks else []
        stored: dict[int, str] = dict(lines)
        if not self._has_vault:  # the database is believed, because only its own heads are compared with it
            notes = {number: note.encode() for number, note in lines}
            self._anchors[month] = MonthAnchors(month, breaks=notes)
        anchors = self._anchors_of(month)
        return [
            self._break(anchors, number, stored.get(number))
            for number in sorted(stored.keys() | anchors.breaks.keys())
        ]

    def _break(self, anchors: MonthAnchors, number: int, stored: str | None) -> StoredBreak:
        since = anchors.read_breaks()[number - 1 :]
        found = StoredBreak(number, anchors.breaks.get(number), stored)
        if since:
            before, lost = anchors.chain(number - 1), since[0].lost.size
            found.has_event = self.connection.execute(_RECORD, (since[0].event,)).fetchone() == (True,)
            found.since = min(each.kept.size for each in since)
            found.leaves, _ = before.leaves(self.vault, found.since, lost)
            beyond = before.between(found.since, max([lost, *before.sizes]))
            keys = {size: before.key(size) for size in beyond}
            read_heads = read_together(self.vault, list(keys.values()))
            found.heads = {size: read_heads[key] for size, key in keys.items()}
        return found

    def count_anchors(self) -> int:
        ((count,),) = self.connection.execute("SELECT count(*) FROM public.audit_anchors").fetchall()
        return int(count)

    def vault_notes(self) -> Iterator[bytes]:
        for anchors in self._anchors.values():
            for branch, sizes in anchors.sizes.items():
                for size in sorted(sizes, reverse=True):
                    yield read(self.vault, note_key(anchors.month, size, branch))

    def heads(self) -> "StoredHeads | None":
        """The log of heads; None in a log of an older version."""
        if not self._has_table("audit_head_entries"):
            return None
        return StoredHeads(self.connection, self.vault, self._heads, has_vault=self._has_vault)

    def newest_head(self) -> int | None:
        """The size of the log of heads as the database has it; None if that is of an older version."""
        if not self._has_table("audit_heads"):
            return None
        ((size,),) = self.connection.execute(_NEWEST_HEAD).fetchall()
        return int(size)

    @property
    def has_vault(self) -> bool:
        """False once the vault was found to be another log's."""
        return self._has_vault

    def leave_vault(self) -> None:
        self._has_vault = False
        self._anchors.clear()
        self._chains.clear()

    def timeline(self) -> int | None:
        try:
            with self.connection.transaction():
                ((timeline,),) = self.connection.execute(_TIMELINE).fetchall()
        except psycopg.Error:  # not every service has it
            return None
        return int(timeline)

    def manifest(self, month: date) -> tuple[bytes | None, str]:
        """Read the recorded version, because a later one is not ours. An invalid key counts as a missing manifest."""
        ((key, version, digest),) = self.connection.execute(_MANIFEST, (month,)).fetchall()
        try:
            return read(self.vault, key, version), digest
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError):
            return None, digest

    def _batch(self, month: date, begin: int, end: int, known: int, *, is_read: bool) -> Batch:
        """With the rows, or with what the judges need to read them."""
        leaves = [
            Leaf(*row)
            for row in self.connection.execute(_LEAVES, (month, begin, end), binary=True).fetchall()
        ]
        checkpoints = self.connection.execute(_CHECKPOINTS, (month, begin, end)).fetchall()
        chain = self._chain(month)
        anchors = {size: chain.key(size) for size in chain.between(begin, end)}
        read_notes = read_together(self.vault, list(anchors.values()))
        notes = {size: read_notes[key] for size, key in anchors.items()}
        recorded = self.connection.execute(_ANCHORS, (month, begin, end)).fetchall()
        anchored, damaged = chain.leaves(self.vault, begin, end)
        batch = Batch(
            begin, end, leaves, dict(checkpoints), notes, anchored, anchors_damaged=damaged,
            anchors_lost=[size for (size,) in recorded if self._has_vault and size not in notes and not self._is_in_vault(month, size)],
        )  # fmt: skip
        if leaves and self.is_in_period(month):
            if self.state(month) == "attached" and end > known:
                self._add_rows(month, batch, is_read=is_read)
            elif self.state(month) == "archived":
                self._add_keyless(batch)
        return batch

    def _add_keyless(self, batch: Batch) -> None:
        log_ids = [leaf.log_id for leaf in batch.leaves]
        batch.keyless = frozenset(name for (name,) in self.connection.execute(_KEYLESS, (log_ids,)))
        if batch.keyless:
            assert self._queries
            batch.erasures = read_erasures(self.connection, self._queries, sorted(batch.keyless))

    def _add_rows(self, month: date, batch: Batch, *, is_read: bool) -> None:
        leaves = [
            (index, log_id, batch.anchored.get(index) or stored) for index, log_id, stored in batch.leaves
        ]
        period, whole = self.period.within(month), EVER.within(month)
        wanted = RowRange(leaves, (whole.since, whole.until), (period.since, period.until))
        batch.columns = self._columns
        if is_read:
            assert self._queries
            batch.stored = read_rows(self.connection, self._queries, wanted)
        else:
            batch.wanted = wanted

    def _state(self, month: date) -> MonthState:
        if self.connection.execute(_PARTITION, (partition_name(month),)).fetchone() is not None:
            return "attached"
        is_archived = (
            self._has_table("audit_archives") and self.connection.execute(_MANIFEST, (month,)).fetchone()
        )
        return "archived" if is_archived else "missing"

    def _has_table(self, name: str) -> bool:
        found = self.connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f"public.{name}",)).fetchone()
        return found == (True,)

    def _chain(self, month: date) -> Chain:
        if month not in self._chains:
            self._chains[month] = self._anchors_of(month).chain()
        return self._chains[month]

    def _anchors_of(self, month: date) -> MonthAnchors:
        return self._anchors.get(month, MonthAnchors(month))

    def _is_in_vault(self, month: date, size: int) -> bool:
        """Lists the vault again: the anchor may have been written after `begin`."""
        return size in month_anchors(self.vault, month).chain().heads


@dataclass(slots=True)
class StoredHeads:
    """The `HeadsEvidence` of one database and one vault, which was listed before the database was read."""

    connection: psycopg.Connection
    vault: AnchorSource
    listed: VaultedHeads
    has_vault: bool

    def batches(self) -> Iterator[HeadBatch]:
        ((count,),) = self.connection.execute(_HEAD_COUNT).fetchall()
        if count > self.listed.size and self.has_vault:  # entries that were appended since the listing
            now = list_heads(self.vault)
            self.listed = VaultedHeads(
                now.sizes, [(first, last) for first, last in now.files if first < count]
            )
        end = max(count, self.listed.size) if self.has_vault else count
        for begin in range(0, end, BATCH_LEAVES):
            yield self._batch(begin, min(begin + BATCH_LEAVES, end))

    def anchored(self, month: date, size: int, branch: int) -> bytes | None:
        try:
            return read(self.vault, note_key(month, size, branch))
        except FileNotFoundError:
            return None

    def unlogged(self) -> list[tuple[date, int]]:
        return self.connection.execute(_UNLOGGED).fetchall()

    def newest_published(self) -> str | None:
        found = self.connection.execute(_NEWEST_PUBLISHED).fetchone()
        return found[0] if found else None

    def _batch(self, begin: int, end: int) -> HeadBatch:
        rows = self.connection.execute(_HEAD_ENTRIES, (begin, end), binary=True).fetchall()
        entries = {index: StoredEntry(*rest) for index, *rest in rows}
        heads: dict[int, str] = dict(self.connection.execute(_HEADS, (begin, end)).fetchall())
        if not self.has_vault:
            vaulted = {index: entry.entry for index, entry in entries.items()}
            return HeadBatch(begin, end, entries, vaulted, heads, {}, frozenset())
        sizes = [size for size in self.listed.sizes if begin < size <= end]
        read_heads = read_together(self.vault, [head_key(size) for size in sizes])
        published = self.connection.execute(_PUBLISHED, (begin, end)).fetchall()
        return HeadBatch(
            begin, end, entries, self._vaulted(begin, end), heads,
            vaulted_heads={size: read_heads[head_key(size)] for size in sizes},
            published=frozenset(size for (size,) in published if not self._is_in_vault(size)),
        )  # fmt: skip

    def _vaulted(self, begin: int, end: int) -> dict[int, str]:
        """Those that can be read: the others are not in the vault any more."""
        files = [file for file in self.listed.files if file[0] < end and file[1] > begin]
        found: dict[int, str] = {}
        for entries in together(self._entries, files):
            found |= entries
        return {index: entry for index, entry in found.items() if begin <= index < end}

    def _entries(self, file: tuple[int, int]) -> dict[int, str]:
        try:
            return dict(read_entries(self.vault, [file]))
        except (NoteError, FileNotFoundError):
            return {}

    def _is_in_vault(self, size: int) -> bool:
        """A head that was published since the listing."""
        try:
            return bool(read(self.vault, head_key(size)))
        except FileNotFoundError:
            return False


def columns_as_hashed(columns: Iterable[tuple[str, bool, str]]) -> sql.Composed:
    """The columns of the table `l`, so that `row_to_json` gives them in the form in which they are hashed."""
    return sql.SQL(", ").join(
        sql.SQL(_TIME if is_time else "{} AS {}").format(sql.Identifier("l", name), sql.Identifier(alias))
        for name, is_time, alias in columns
    )


def rows_statement(
    columns: Iterable[tuple[str, bool, str]], condition: str, signature: str = "NULL::bytea"
) -> bytes:
    """SQL for ids and rows as JSON: all columns, including those added later, in the form in which they are hashed.

    And for the signature by itself, if it is wanted before the JSON is read.
    """
    listed = columns_as_hashed(columns).as_string()
    return (
        f"SELECT r.log_id::text, row_to_json(r)::text, {signature} FROM (SELECT {listed} FROM public.audit_logs l WHERE {condition}) r"  # noqa: S608
    ).encode()


def _prefetched(items: Iterable[Item]) -> Iterator[Item]:
    """Prefetch: reads the next items in a thread while the caller works on the current one."""
    source = iter(items)
    with ThreadPoolExecutor(1) as reader:
        coming = deque(reader.submit(next, source, None) for _ in range(AHEAD))
        while (item := coming.popleft().result()) is not None:
            coming.append(reader.submit(next, source, None))
            yield item
