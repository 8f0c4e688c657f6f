"""Streaming export of a sealed month into archive files. Fails if the month does not match its last checkpoint.

Everything is read in one snapshot, batch by batch in the order of the leaves, so the memory does not grow with the month.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg import IsolationLevel, sql

from audit.archive.parquet import TYPES, SortedWriter
from audit.archive.rows import Records, encode_records
from audit.archive.worker_process import in_order
from audit.checking.evidence import COLUMNS, rows_statement
from audit.errors import ArchiveError, ExportError, NoteError, WorkerEndedError
from audit.progress import Progress
from audit.proof import archive_format
from audit.proof.archive_format import Exported
from audit.proof.bundle import are_commitments
from audit.proof.checkpoint import Checkpoint, open_note
from audit.proof.keys import PublicKey
from audit.proof.merkle import Frontier
from audit.proof.record import PERSONAL, Row, leaf_hash

BATCH_ROWS = 250  # some 2 MB; several batches are held at once

LEAF, ERASURE, FIRST_COLUMN = 1, 3, 4  # column numbers of `_BATCH`

_SESSION = """
SET LOCAL search_path = pg_catalog; SET LOCAL row_security = off; SET LOCAL timezone = 'UTC'; SET LOCAL jit = off;
SET LOCAL bytea_output = hex; SET LOCAL extra_float_digits = 1
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
SELECT l.leaf_index, l.leaf_hash, k.key, {erasure}, {columns} FROM public.audit_leaves l
LEFT JOIN {records} r ON r.log_id = l.log_id LEFT JOIN public.audit_row_keys k ON k.log_id = l.log_id
WHERE l.month = %s AND l.leaf_index >= %s AND l.leaf_index < %s ORDER BY l.leaf_index
"""
_ERASURE = """CASE WHEN r.erased_at IS NOT NULL THEN (SELECT json_agg(DISTINCT e.commitments::text) FROM public.audit_erasures e
    WHERE e.log_id = l.log_id AND e.commitments IS NOT NULL) END"""


def export(
    connection: psycopg.Connection,
    month: date,
    folder: Path,
    public_keys: Sequence[PublicKey],
    code_version: str,
    progress: Progress,
) -> Exported:
    """Write the month's files into an empty folder. Deterministic: the same month gives the same bytes."""
    with _snapshot(connection):
        table, columns = _table(connection, month), _columns(connection)
        origin, note, checkpoint = _last_checkpoint(connection, month, public_keys)
        batches = _read_batches(connection, table, month, columns, checkpoint.size)
        tree, versions = _write_rows(
            batches, columns, folder, lambda done: progress(f"{month:%Y-%m}", done, checkpoint.size)
        )
    if (tree.size, tree.root()) != (checkpoint.size, checkpoint.root):
        raise ExportError(
            f"The leaves of {month:%Y-%m} do not have the root of its last checkpoint. Run `affidavit audit verify`"
        )
    (folder / archive_format.CHECKPOINT).write_text(note, "utf-8")
    lines = [f"{key.line}\n" for key in public_keys if _is_of(key, month)]
    (folder / archive_format.KEYS).write_text("".join(lines), "utf-8")
    (folder / archive_format.SPECIFICATION).write_bytes(archive_format.SPECIFICATION_FILE.read_bytes())
    return Exported(
        origin, month, tree.size, checkpoint.root, sorted(versions), columns, code_version,
        {name: folder / name for name in archive_format.NAMES},
    )  # fmt: skip


def _is_of(key: PublicKey, month: date) -> bool:
    """Not the delegations of all years."""
    given = key.delegation
    return given is None or given.begin.date().replace(day=1) <= month <= given.until.date()


def _write_rows(
    batches: Iterator[Records], columns: dict[str, str], folder: Path, progress: Callable[[int], None]
) -> tuple[Frontier, set[int]]:
    tree = Frontier()
    versions: set[int] = set()
    with (
        (folder / archive_format.EVIDENCE).open("xb") as evidence,
        (folder / archive_format.LEAVES).open("xb") as leaves,
        SortedWriter(folder / archive_format.PARQUET, columns) as rows,
    ):
        try:
            for encoded in in_order(partial(encode_records, columns), batches):
                evidence.write(encoded.evidence)
                leaves.write(b"".join(encoded.leaves))
                rows.add(encoded.batch)
                versions.update(encoded.batch.column("schema_version").unique().to_pylist())
                for leaf in encoded.leaves:
                    tree.append(leaf)
                progress(tree.size)
        except (ArchiveError, WorkerEndedError) as wrong:
            raise ExportError(str(wrong)) from None
    return tree, versions


def _read_batches(
    connection: psycopg.Connection, table: str, month: date, columns: dict[str, str], size: int
) -> Iterator[Records]:
    """Read a range of leaves at a time, so that no large sort is needed."""
    records = sql.SQL(table)  # quoted by PostgreSQL itself
    leaves, rows, has_erasures = _fetch(connection, sql.SQL(_COUNTS).format(records=records), (month,))[0]
    if not leaves == rows == size:
        raise ExportError(
            f"{month:%Y-%m} has {rows} records, {leaves} leaves, and a last checkpoint of size {size}:"
            " these must be equal. Run `affidavit audit verify`"
        )
    statement = sql.SQL(_BATCH).format(
        records=records, columns=sql.SQL(", ").join(_selected(name, kind) for name, kind in columns.items()),
        erasure=sql.SQL(_ERASURE if has_erasures else "NULL::json"),
    )  # fmt: skip
    for begin in range(0, size, BATCH_ROWS):
        found = _fetch(connection, statement, (month, begin, begin + BATCH_ROWS))
        if [row[0] for row in found] != list(range(begin, min(begin + BATCH_ROWS, size))):
            raise ExportError(
                f"Some leaves of {month:%Y-%m} from {begin} on are missing or duplicated. Run `affidavit audit verify`"
            )
        yield _select_commitments(connection, columns, found)


def _select_commitments(
    connection: psycopg.Connection, columns: dict[str, str], found: list[tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    """Select the line of an erased record whose commitments give its leaf. Ignores forged lines."""
    place = FIRST_COLUMN + list(columns).index("log_id")
    many = [row[place] for row in found if len(row[ERASURE] or ()) > 1]
    hashed = _rows_as_hashed(connection, many) if many else {}
    chosen = [_matching_commitments(row[ERASURE], hashed.get(row[place]), row[LEAF]) for row in found]
    return [(*row[:ERASURE], text, *row[FIRST_COLUMN:]) for row, text in zip(found, chosen, strict=True)]


def _rows_as_hashed(connection: psycopg.Connection, log_ids: list[str]) -> dict[str, Row]:
    statement = rows_statement(connection.execute(COLUMNS).fetchall(), "log_id = ANY(%s::uuid[])")
    return {log_id: json.loads(text) for log_id, text, _ in connection.execute(statement, (log_ids,))}


def _matching_commitments(texts: list[str] | None, row: Row | None, leaf: bytes) -> str | None:
    if not texts:
        return None
    for text in texts if row else ():
        commitments = json.loads(text)
        if row and are_commitments(commitments) and leaf_hash(row, commitments) == leaf:
            return text
    return texts[0]


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


def _selected(name: str, kind: str) -> sql.Composed:
    """The SQL expression for a column: ids as text; JSON and personal columns as JSON text of PostgreSQL."""
    form = "r.{}"
    if kind in {"uuid", "jsonb"}:
        form = "r.{}::text"
    elif name in PERSONAL:
        form = "to_json(r.{})::text"
    return sql.SQL(form).format(sql.Identifier(name))


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


def _fetch(
    connection: psycopg.Connection, statement: sql.Composed, values: Sequence[object]
) -> list[tuple[Any, ...]]:
    return connection.cursor(binary=True).execute(statement, values).fetchall()
