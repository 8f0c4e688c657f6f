"""What a verifier reads: the log and its leaves out of PostgreSQL, the anchors out of the vault. It judges nothing.

One transaction sees everything as it stood at one moment. While a batch is verified the next one is read, and no more
than that is ever held.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TypeVar

import psycopg
from psycopg import sql

from audit.checking.inspection import Batch, Erasure, Leaf, MonthState
from audit.errors import VaultDamagedError
from audit.proof.merkle import HASH_BYTES
from audit.vault import Vault

BATCH_LEAVES = 1_000  # some 8 MB of records: enough to be fast, little enough to hold three of them
LAST_MOMENT = datetime.max.replace(tzinfo=UTC)
SEALED_WITHIN = timedelta(seconds=60)  # a sealer needs ten; older and unsealed is worth a word

# Nobody who may set defaults for a role or a database decides how we read; and no policy hides rows from us unsaid.
_SESSION = """
SET search_path = pg_catalog;
SET row_security = off;
SET bytea_output = hex;
SET extra_float_digits = 1;
SET timezone = 'UTC';
SET jit = off;
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY
"""
_TIME = """to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS {}"""
# A type that is none of ours could show one value to a reader and another as JSON; its column is named so that it is noticed.
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
# A real table: a view or a foreign one could show a verifier other rows than everybody else.
_PARTITION = """
SELECT FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
WHERE inhparent = 'public.audit_logs'::regclass AND c.relname = %s AND c.relkind = 'r' AND NOT inhdetachpending
"""
_ARCHIVED = (
    "SELECT FROM public.audit_archives WHERE month = %s AND state IN ('verified', 'detached', 'dropped')"
)
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
_LEAVES = """
SELECT leaf_index, log_id::text, leaf_hash FROM public.audit_leaves
WHERE month = %s AND leaf_index >= %s AND leaf_index < %s ORDER BY leaf_index
"""
_LEAVES_BEYOND = """
SELECT count(*) OVER (), leaf_index, log_id::text FROM public.audit_leaves
WHERE month = %s AND leaf_index >= %s ORDER BY leaf_index LIMIT 1
"""
_ASIDE = """
SELECT log_id::text FROM public.audit_logs
WHERE log_id = ANY(%s::uuid[]) AND timestamp >= %s AND timestamp < %s AND NOT (timestamp >= %s AND timestamp < %s)
"""
# The record that says so may be of a month that has left for the archive: then its leaf vouches for it.
_ERASURES = """
SELECT log_id::text, erasure_id, log_id, event, erased_at, commitments, key_id, signature, CASE
    WHEN EXISTS (SELECT FROM public.audit_leaves s WHERE s.log_id = e.event) THEN 'sealed'
    WHEN NOT EXISTS (SELECT FROM public.audit_logs l WHERE l.log_id = e.event AND l.timestamp = e.erased_at)
    THEN 'missing' WHEN erased_at < %s THEN 'late' ELSE 'waiting' END
FROM public.audit_erasures e WHERE log_id = ANY(%s::uuid[])
"""
_KEYLESS = """
SELECT asked::text FROM unnest(%s::uuid[]) AS asked
WHERE NOT EXISTS (SELECT FROM public.audit_row_keys k WHERE k.log_id = asked)
"""
_UNSEALED = """
SELECT log_id::text, timestamp FROM public.audit_logs r
WHERE timestamp >= %s AND timestamp < %s AND NOT EXISTS (
    SELECT FROM public.audit_leaves l
    WHERE l.log_id = r.log_id AND l.month = date_trunc('month', r.timestamp AT TIME ZONE 'UTC')::date)
"""

_ANCHOR = re.compile(r"anchors/([0-9]{4}-[0-9]{2})/([0-9]{12})\.note")
_ANCHORED = re.compile(r"anchors/([0-9]{4}-[0-9]{2})/([0-9]{12})-([0-9]{12})\.leaves")

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Period:
    """The times that are asked for, `until` exclusive. Trees are whole months, so they are checked as a whole."""

    since: datetime
    until: datetime

    def within(self, month: date) -> "Period":
        begin, end = _moment(month), _moment(following(month))
        return Period(max(self.since, begin), min(self.until, end))

    @property
    def is_empty(self) -> bool:
        return self.since >= self.until


EVER = Period(datetime.min.replace(tzinfo=UTC), LAST_MOMENT)


@dataclass(slots=True)
class StoredEvidence:
    """The evidence of one log. Its connection is used by one thread at a time."""

    connection: psycopg.Connection
    vault: Vault
    period: Period
    now: datetime
    _anchors: dict[date, "_Anchors"] = field(default_factory=dict)
    _rows: bytes = b""
    _has_erasures: bool = False
    _states: dict[date, MonthState] = field(default_factory=dict)

    def begin(self) -> None:
        """The vault first: what is anchored in between is in the database already, and not the other way round."""
        self._anchors = _anchors(self.vault)
        self.connection.autocommit = True
        self.connection.execute(_SESSION.encode(), prepare=False)
        columns = self.connection.execute(COLUMNS).fetchall()
        self._rows = rows_statement(
            columns, "log_id = ANY(%s::uuid[]) AND timestamp >= %s AND timestamp < %s"
        )
        self._has_erasures = self._has_table("audit_erasures")

    def months(self) -> list[date]:
        found = {month for (month,) in self.connection.execute(_MONTHS)}
        return sorted(found | set(self._anchors))

    def state(self, month: date) -> MonthState:
        if month not in self._states:
            self._states[month] = self._state(month)
        return self._states[month]

    def is_asked_for(self, month: date) -> bool:
        return not self.period.within(month).is_empty

    def checkpoints_from_last(self, month: date) -> Iterator[tuple[int, str]]:
        below = 2**62
        while found := self.connection.execute(_CHECKPOINTS_FROM_LAST, (month, below)).fetchall():
            yield from found
            below = found[-1][0]

    def anchors_from_last(self, month: date) -> Iterator[tuple[int, bytes]]:
        for size in reversed(self._anchors_of(month).sizes):
            yield size, _content_of(self.vault, note_key(month, size))

    def checkpoint(self, month: date, size: int) -> str | None:
        found = self.connection.execute(_CHECKPOINT, (month, size)).fetchone()
        return found[0] if found else None

    def batches(self, month: date, end: int) -> Iterator[Batch]:
        return _ahead(
            self._batch(month, begin, min(begin + BATCH_LEAVES, end)) for begin in range(0, end, BATCH_LEAVES)
        )

    def leaves_beyond(self, month: date, end: int) -> tuple[int, int, str] | None:
        return self.connection.execute(_LEAVES_BEYOND, (month, end)).fetchone()

    def unsealed(self) -> Iterator[tuple[str, datetime, bool]]:
        with self.connection.cursor("unsealed") as cursor:
            cursor.execute(_UNSEALED, (self.period.since, self.period.until))
            for log_id, timestamp in cursor:
                yield log_id, timestamp, timestamp < self.now - SEALED_WITHIN

    def manifest(self, month: date) -> tuple[bytes | None, str]:
        """By the version that was recorded: whatever lies over it since is none of ours. What is no key holds nothing."""
        ((key, version, digest),) = self.connection.execute(_MANIFEST, (month,)).fetchall()
        try:
            return _content_of(self.vault, key, version), digest
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError):
            return None, digest

    def _batch(self, month: date, begin: int, end: int) -> Batch:
        leaves = [Leaf(*row) for row in self.connection.execute(_LEAVES, (month, begin, end), binary=True)]
        checkpoints: dict[int, str] = dict(
            self.connection.execute(_CHECKPOINTS, (month, begin, end)).fetchall()
        )
        anchors = self._anchors_of(month)
        notes = {size: _content_of(self.vault, note_key(month, size)) for size in anchors.between(begin, end)}
        remembered = self.connection.execute(_ANCHORS, (month, begin, end)).fetchall()
        anchored, damaged = anchors.leaves(self.vault, begin, end)
        batch = Batch(
            begin, end, leaves, checkpoints, notes, anchored, rows={}, anchors_damaged=damaged,
            anchors_lost=[size for (size,) in remembered if size not in notes and not self._is_kept(month, size)],
        )  # fmt: skip
        if leaves and self.is_asked_for(month):
            if self.state(month) == "there":
                self._add_rows(month, batch)
            elif self.state(month) == "archived":
                self._add_keyless(batch)
        return batch

    def _add_keyless(self, batch: Batch) -> None:
        names = [leaf.log_id for leaf in batch.leaves]
        batch.keyless = frozenset(name for (name,) in self.connection.execute(_KEYLESS, (names,)))
        if batch.keyless and self._has_erasures:
            batch.erasures = self._erasures(sorted(batch.keyless))

    def _add_rows(self, month: date, batch: Batch) -> None:
        names = [leaf.log_id for leaf in batch.leaves]
        asked, whole = self.period.within(month), Period(_moment(month), _moment(following(month)))
        found = self.connection.execute(self._rows, (names, asked.since, asked.until), binary=True)
        rows = defaultdict(list)
        for log_id, text in found:
            rows[log_id].append(text)
        batch.rows = rows
        if asked != whole:
            places = (names, whole.since, whole.until, asked.since, asked.until)
            batch.aside = frozenset(name for (name,) in self.connection.execute(_ASIDE, places))
        if self._has_erasures:
            batch.erasures = self._erasures(names)

    def _erasures(self, names: Sequence[str]) -> Mapping[str, list[Erasure]]:
        found: dict[str, list[Erasure]] = defaultdict(list)
        for log_id, *line in self.connection.execute(_ERASURES, (self.now - SEALED_WITHIN, names)):
            found[log_id].append(Erasure(*line))
        return found

    def _state(self, month: date) -> MonthState:
        name = f"audit_logs_{month:%Y_%m}"
        if self.connection.execute(_PARTITION, (name,)).fetchone() is not None:
            return "there"
        is_archived = (
            self._has_table("audit_archives")
            and self.connection.execute(_ARCHIVED, (month,)).fetchone() is not None
        )
        return "archived" if is_archived else "gone"

    def _has_table(self, name: str) -> bool:
        found = self.connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f"public.{name}",)).fetchone()
        return found == (True,)

    def _anchors_of(self, month: date) -> "_Anchors":
        return self._anchors.setdefault(month, _Anchors(month))

    def _is_kept(self, month: date, size: int) -> bool:
        """Anchored since we looked."""
        return note_key(month, size) in self.vault.keys(note_key(month, size))


@dataclass(slots=True)
class _Anchors:
    """What the vault holds of one month: sizes of notes, and files of leaves."""

    month: date
    sizes: list[int] = field(default_factory=list)
    files: list[tuple[int, int]] = field(default_factory=list)
    _past: int = 0  # files that no later batch needs: batches come in order
    _held: dict[tuple[int, int], bytes] = field(default_factory=dict)  # those that reach into the next batch

    def between(self, begin: int, end: int) -> list[int]:
        return self.sizes[bisect_right(self.sizes, begin) : bisect_right(self.sizes, end)]

    def leaves(self, vault: Vault, begin: int, end: int) -> tuple[dict[int, bytes], list[int]]:
        """Those from `begin` to before `end`, and the sizes of anchors whose leaves are not all there, or two."""
        found: dict[int, bytes] = {}
        damaged = []
        while self._past < len(self.files) and self.files[self._past][1] <= begin:
            self._past += 1
        for first, last in self.files[self._past : bisect_right(self.files, (end - 1, LAST_INDEX))]:
            content = self._content(vault, first, last, end)
            known = {
                index: content[(index - first) * HASH_BYTES : (index - first + 1) * HASH_BYTES]
                for index in range(max(begin, first), min(end, last))
            }
            is_whole = len(content) == (last - first) * HASH_BYTES
            if is_whole and all(found.get(index, leaf) == leaf for index, leaf in known.items()):
                found |= known
            else:
                damaged.append(last)
        return found, damaged

    def _content(self, vault: Vault, first: int, last: int, end: int) -> bytes:
        content = self._held.pop((first, last), None) or _content_of(
            vault, leaves_key(self.month, first, last)
        )
        if last > end:
            self._held[first, last] = content
        return content


LAST_INDEX = 10**12  # keys have twelve digits


def note_key(month: date, size: int) -> str:
    return f"anchors/{month:%Y-%m}/{size:012d}.note"


def leaves_key(month: date, first: int, last: int) -> str:
    return f"anchors/{month:%Y-%m}/{first:012d}-{last:012d}.leaves"


def following(month: date) -> date:
    return (month.replace(day=1) + timedelta(days=32)).replace(day=1)


def _content_of(vault: Vault, key: str, version: str | None = None) -> bytes:
    """What is damaged is judged as if it were nothing: that is not what was signed either."""
    try:
        return vault.get(key, version)
    except VaultDamagedError:
        return b""


def _anchors(vault: Vault) -> dict[date, _Anchors]:
    found: dict[date, _Anchors] = {}
    for key in vault.keys("anchors/"):
        note, leaves = _ANCHOR.fullmatch(key), _ANCHORED.fullmatch(key)
        named = note or leaves
        if not named:
            continue
        month = date.fromisoformat(f"{named[1]}-01")
        anchors = found.setdefault(month, _Anchors(month))
        if note:
            anchors.sizes.append(int(note[2]))
        elif leaves:
            anchors.files.append((int(leaves[2]), int(leaves[3])))
    for anchors in found.values():
        anchors.sizes.sort()
        anchors.files.sort()
    return found


def rows_statement(columns: Iterable[tuple[str, bool, str]], condition: str) -> bytes:
    """Their ids, and the rows as JSON: all columns, also those that were added later, written as they are hashed."""
    names = [
        sql.SQL(_TIME if is_time else "{} AS {}").format(sql.Identifier("l", name), sql.Identifier(told))
        for name, is_time, told in columns
    ]
    listed = sql.SQL(", ").join(names).as_string()
    return (
        f"SELECT r.log_id::text, row_to_json(r)::text FROM (SELECT {listed} FROM public.audit_logs l WHERE {condition}) r"  # noqa: S608
    ).encode()


def _ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items, each read while the one before is worked on."""
    source = iter(items)
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, source, None)
        while (item := coming.result()) is not None:
            coming = reader.submit(next, source, None)
            yield item


def _moment(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
