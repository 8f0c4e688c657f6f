"""Streaming export of a sealed month into archive files. Fails if the month does not match its last checkpoint.

Everything is read in one snapshot, batch by batch in the order of the leaves, so the memory does not grow with the month.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from hashlib import file_digest, sha256
from pathlib import Path

import psycopg
from psycopg import IsolationLevel, sql

from audit.archive.encoder import EncodedRecords
from audit.archive.packing import HERE, MonthRecords, Packers, pack
from audit.archive.parquet import TYPES, SortedWriter
from audit.archive.reader import batch_lines, read_lines
from audit.archive.rows import batch_of
from audit.archive.worker_process import in_order
from audit.checking.evidence import COLUMNS, columns_as_hashed
from audit.errors import ArchiveError, ExportError, NoteError, WorkerEndedError
from audit.progress import Progress
from audit.proof import archive_format
from audit.proof.archive_format import Exported
from audit.proof.checkpoint import Checkpoint, open_note
from audit.proof.keys import PublicKey
from audit.proof.merkle import Frontier

_SESSION = """
SET LOCAL search_path = pg_catalog; SET LOCAL row_security = off; SET LOCAL timezone = 'UTC'; SET LOCAL jit = off;
SET LOCAL bytea_output = hex; SET LOCAL extra_float_digits = 1; SET LOCAL plan_cache_mode = force_custom_plan
"""
_TABLE = "SELECT relation::text FROM public.audit_months WHERE month = %s"  # its current name, quoted
_COLUMNS = """
SELECT attname, (SELECT typname FROM pg_type t WHERE t.oid = atttypid) FROM pg_attribute
WHERE attrelid = 'public.audit_logs'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_HEAD = """
SELECT origin, note FROM public.audit_origin, public.audit_checkpoints WHERE month = %s ORDER BY tree_size DESC LIMIT 1
"""
_COUNTS = """
SELECT (SELECT count(*) FROM public.audit_leaves WHERE month = %s), (SELECT count(*) FROM {records}),
       to_regclass('public.audit_erasures') IS NOT NULL
"""
_BATCH = """
SELECT s.leaf_index, s.leaf_hash, k.key, {erasure}, row_to_json(r)::text FROM public.audit_leaves s
LEFT JOIN (SELECT {columns} FROM {records} l) r ON r.log_id = s.log_id
LEFT JOIN public.audit_row_keys k ON k.log_id = s.log_id
WHERE s.month = %s AND s.leaf_index >= %s AND s.leaf_index < %s ORDER BY s.leaf_index
"""
_ERASURE = """CASE WHEN r.erased_at IS NOT NULL THEN (SELECT json_agg(DISTINCT e.commitments::text) FROM public.audit_erasures e
    WHERE e.log_id = s.log_id AND e.commitments IS NOT NULL) END"""


def export(
    connection: psycopg.Connection,
    month: date,
    folder: Path,
    public_keys: Sequence[PublicKey],
    code_version: str,
    progress: Progress,
    *,
    packers: Packers = HERE,
    with_copy: bool = False,
) -> Exported:
    """Write the month's files into an empty folder. Deterministic: the same month gives the same bytes."""
    files = _Files(folder)
    with _snapshot(connection):
        table, columns = _table(connection, month), _columns(connection)
        origin, note, checkpoint = _last_checkpoint(connection, month, public_keys)
        packed = pack(connection, _records(connection, table, month, checkpoint.size), packers)
        tree, versions = _write_rows(
            packed, files, lambda done: progress(f"{month:%Y-%m}", done, checkpoint.size)
        )
    if (tree.size, tree.root()) != (checkpoint.size, checkpoint.root):
        raise ExportError(
            f"The leaves of {month:%Y-%m} do not have the root of its last checkpoint. Run `affidavit audit verify`"
        )
    files.write(archive_format.CHECKPOINT, note.encode())
    lines = [f"{key.line}\n" for key in public_keys if _is_of(key, month)]
    files.write(archive_format.KEYS, "".join(lines).encode())
    files.write(archive_format.SPECIFICATION, archive_format.SPECIFICATION_FILE.read_bytes())
    if with_copy:
        _write_copy(files, columns, lambda done: progress(archive_format.PARQUET, done, tree.size))
    return Exported(
        origin, month, tree.size, checkpoint.root, sorted(versions), columns, code_version,
        {name: folder / name for name in files.digests}, files.digests,
    )  # fmt: skip


@dataclass(slots=True)
class _Files:
    """The files, and the digests of what was written into them: what is read back later must have the same."""

    folder: Path
    digests: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def open(self, name: str) -> Iterator[Callable[[bytes], None]]:
        digest = sha256()
        with (self.folder / name).open("xb") as file:

            def write(content: bytes) -> None:
                digest.update(content)
                file.write(content)

            yield write
        self.digests[name] = digest.hexdigest()

    def write(self, name: str, content: bytes) -> None:
        with self.open(name) as write:
            write(content)


def _is_of(key: PublicKey, month: date) -> bool:
    """Not the delegations of all years."""
    given = key.delegation
    return given is None or given.begin.date().replace(day=1) <= month <= given.until.date()


def _write_rows(
    packed: Iterator[EncodedRecords], files: _Files, progress: Callable[[int], None]
) -> tuple[Frontier, set[int]]:
    tree = Frontier()
    versions: set[int] = set()
    with files.open(archive_format.EVIDENCE) as evidence, files.open(archive_format.LEAVES) as leaves:
        try:
            for encoded in packed:
                evidence(encoded.evidence)
                leaves(b"".join(encoded.leaves))
                versions |= encoded.versions
                for leaf in encoded.leaves:
                    tree.append(leaf)
                progress(tree.size)
        except (ArchiveError, WorkerEndedError) as wrong:
            raise ExportError(str(wrong)) from None
    return tree, versions


def _write_copy(files: _Files, columns: dict[str, str], progress: Callable[[int], None]) -> None:
    """The convenience copy, from the evidence. It proves nothing, so its digest is that of the file."""
    path, done = files.folder / archive_format.PARQUET, 0
    lines = batch_lines(read_lines(files.folder / archive_format.EVIDENCE))
    try:
        with SortedWriter(path, columns) as rows:
            for batch in in_order(partial(batch_of, columns), lines):
                rows.add(batch)
                progress(done := done + len(batch))
    except (ArchiveError, WorkerEndedError) as wrong:
        raise ExportError(str(wrong)) from None
    with path.open("rb") as file:
        files.digests[archive_format.PARQUET] = file_digest(file, "sha256").hexdigest()


def _records(connection: psycopg.Connection, table: str, month: date, size: int) -> MonthRecords:
    """Read a range of leaves at a time, so that no large sort is needed."""
    records = sql.SQL(table)  # quoted by PostgreSQL itself
    counts = sql.SQL(_COUNTS).format(records=records)
    ((leaves, rows, has_erasures),) = connection.execute(counts, (month,)).fetchall()
    if not leaves == rows == size:
        raise ExportError(
            f"{month:%Y-%m} has {rows} records, {leaves} leaves, and a last checkpoint of size {size}:"
            " these must be equal. Run `affidavit audit verify`"
        )
    statement = sql.SQL(_BATCH).format(
        records=records, columns=columns_as_hashed(connection.execute(COLUMNS).fetchall()),
        erasure=sql.SQL(_ERASURE if has_erasures else "NULL::json"),
    )  # fmt: skip
    return MonthRecords(month, size, statement.as_string().encode())


def _table(connection: psycopg.Connection, month: date) -> str:
    found = connection.execute(_TABLE, (month,)).fetchone()
    if found is None:
        raise ExportError(f"The log has no table for {month:%Y-%m}")
    return str(found[0])


def _columns(connection: psycopg.Connection) -> dict[str, str]:
    columns: dict[str, str] = dict(connection.execute(_COLUMNS).fetchall())
    for name, kind in columns.items():
        if kind not in TYPES:
            raise ExportError(f"The log's column {name} is of the type {kind}, which archives do not support")
    return columns


def _last_checkpoint(
    connection: psycopg.Connection, month: date, public_keys: Sequence[PublicKey]
) -> tuple[str, str, Checkpoint]:
    """The log's origin, and the month's last checkpoint."""
    found = connection.execute(_HEAD, (month,)).fetchone()
    if found is None:
        raise ExportError(f"{month:%Y-%m} has no checkpoint: nothing of it is sealed")
    origin, note = found
    try:
        checkpoint = open_note(note, public_keys)
    except NoteError as wrong:
        raise ExportError(f"The last checkpoint of {month:%Y-%m}: {wrong}") from None
    if (checkpoint.origin, checkpoint.month) != (origin, month):
        raise ExportError(f"The last checkpoint of {month:%Y-%m} belongs to another tree")
    return origin, note, checkpoint


@contextmanager
def _snapshot(connection: psycopg.Connection) -> Iterator[None]:
    before = connection.isolation_level, connection.read_only
    connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
    try:
        with connection.transaction():
            connection.execute(_SESSION, prepare=False)
            yield
    finally:
        connection.isolation_level, connection.read_only = before
