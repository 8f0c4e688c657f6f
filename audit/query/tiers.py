"""One table `audit_logs` over all tiers: the months in PostgreSQL, and those that live in the vault.

Whatever touches no archived month is asked of PostgreSQL alone. The rest is asked by DuckDB: it reads the database as the
auditor, and of the vault the months and columns that are needed. A month is read in one place, so that no row appears
twice: in the database as long as it is attached there, else in its archive.
"""

# ruff: noqa: S608  names and times of our own, quoted

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, BinaryIO

import duckdb
import duckdb_extension_postgres_scanner
import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from pyarrow.fs import LocalFileSystem

from audit.archive import parquet
from audit.checking.evidence import EVER, Period, month_start, next_month
from audit.checking.month_tiers import read_manifest
from audit.errors import ArchiveError, QueryError, UnansweredError, VaultError
from audit.proof import archive_format
from audit.proof.record import PERSONAL
from audit.query.dialect import checked, readable, tables_of, understood, unqualified
from audit.vault import Vault

TRIES = 5  # a month that is just leaving or coming back makes one try useless, not five

_EXTENSION = Path(duckdb_extension_postgres_scanner.__file__).parent.joinpath(
    "extensions", f"v{duckdb.__version__}", "postgres_scanner.duckdb_extension"
)
# Nothing is fetched or installed, no file written, and no variable of ours is a table.
_CONFIGURATION: dict[str, Any] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
    "temp_directory": "",
    "secret_directory": "/dev/null",
}
# As PostgreSQL understands times, divisions, nulls and arrows. With nulls first, a limit loses rows of PostgreSQL's:
# duckdb-postgres issue 564.
_MANNERS = """
SET TimeZone = 'UTC';
SET integer_division = true;
SET default_null_order = 'nulls_last_on_asc_first_on_desc';
SET lambda_syntax = 'DISABLE_SINGLE_ARROW';
SET disabled_optimizers = 'top_n';
"""
_LOCKED = "SET enable_external_access = false; SET lock_configuration = true"
_MACROS = """
CREATE TYPE jsonb AS JSON;
CREATE MACRO jsonb_array_length(list) AS json_array_length(list)::integer;
CREATE MACRO jsonb_typeof(item) AS CASE lower(json_type(item))
    WHEN 'varchar' THEN 'string' WHEN 'ubigint' THEN 'number' WHEN 'bigint' THEN 'number' WHEN 'double' THEN 'number'
    ELSE lower(json_type(item)) END;
CREATE MACRO to_char(moment, form) AS strftime(moment, replace(replace(replace(replace(replace(replace(replace(
    form, 'YYYY', '%Y'), 'MM', '%m'), 'DD', '%d'), 'HH24', '%H'), 'MI', '%M'), 'SS', '%S'), 'US', '%f'))
"""

_TYPES = {
    "uuid": "UUID", "text": "VARCHAR", "varchar": "VARCHAR", "int2": "SMALLINT", "int4": "INTEGER", "int8": "BIGINT",
    "float4": "FLOAT", "float8": "DOUBLE", "bool": "BOOLEAN", "jsonb": "JSON", "json": "JSON", "bytea": "BLOB",
    "timestamptz": "TIMESTAMPTZ", "date": "DATE",
}  # fmt: skip

# What may be read under which columns and types, by whoever is connected. Months are read through their table.
_TABLES = """
SELECT c.relname, json_object_agg(a.attname, t.typname ORDER BY a.attnum),
       CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
  AND c.relname !~ '^audit_logs_[0-9]{4}_[0-9]{2}$' AND has_column_privilege(c.oid, a.attnum, 'SELECT')
GROUP BY c.oid, c.relname, c.relkind ORDER BY c.oid
"""
_ARCHIVED = """
SELECT DISTINCT ON (month) month, manifest_key, manifest_version, manifest_sha256 FROM public.audit_archives a
WHERE manifest_key IS NOT NULL AND EXISTS (
        SELECT FROM public.audit_archives v WHERE v.month = a.month AND v.state = 'verified')
  AND NOT EXISTS (
        SELECT FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
        WHERE inhparent = 'public.audit_logs'::regclass AND NOT inhdetachpending
          AND c.relname = to_char(a.month, '"audit_logs_"YYYY_MM'))
ORDER BY month, step DESC
"""
_HAS_ERASED = "SELECT EXISTS (SELECT FROM public.audit_erasures WHERE month = ANY(%s))"

_ARCHIVE = "archived_rows"

RowKeys = Callable[[Sequence[str]], Mapping[str, bytes]]  # by log_id; what was erased has none


_UNANSWERED = (psycopg.OperationalError, duckdb.OutOfMemoryException, duckdb.InterruptException)
_UNREADABLE = "There is no answer: the database or the archive cannot be read just now"


@dataclass(frozen=True, slots=True)
class Archived:
    """A month that is read from the vault."""

    month: date
    manifest: tuple[str, str, str]  # its key in the vault, version and digest


@dataclass(frozen=True, slots=True)
class ReadableTable:
    """What auditors may read, with its columns and their types in PostgreSQL."""

    name: str
    columns: Mapping[str, str]
    definition: str | None  # of a view


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The answer, in the order asked for; and the archived months that were in question, and that were opened."""

    names: list[str]
    rows: list[tuple[Any, ...]]
    archived: list[date]
    opened: list[date]


@dataclass(slots=True)
class TieredLog:
    """The log of one database and one vault. `url` logs in as the auditor."""

    url: str
    vault: Vault
    period: Period = EVER
    row_keys: RowKeys | None = None  # given: personal columns of archived rows are shown
    _interrupt: Callable[[], object] | None = None
    _is_interrupted: threading.Event = field(default_factory=threading.Event)

    def ask(self, question: str) -> QueryResult:
        """Asked again if a month left or came back meanwhile. `QueryError` says what is wrong with the question."""
        try:
            for _ in range(TRIES):
                archived = self._archived()
                found = self._ask_all(question, archived) if archived else self._ask_database(question)
                if self._archived() == archived:
                    return found
        except (psycopg.Error, duckdb.Error) as failure:
            if isinstance(failure, duckdb.IOException) or _tells_login(str(failure), self.url):
                raise UnansweredError(_UNREADABLE) from None  # its words are not for the one who asks
            if isinstance(failure, _UNANSWERED):
                raise UnansweredError(f"There is no answer: {str(failure).strip()}") from failure
            raise QueryError(f"This cannot be asked: {str(failure).strip()}") from failure
        raise UnansweredError("Months are just leaving the database. Please ask again in a moment")

    def interrupt(self) -> None:
        """From another thread: what is being asked ends."""
        self._is_interrupted.set()
        if self._interrupt:
            self._interrupt()

    @contextmanager
    def _interrupted_by(self, interrupt: Callable[[], object]) -> Iterator[None]:
        self._interrupt = interrupt
        try:
            if self._is_interrupted.is_set():
                raise UnansweredError("Interrupted")
            yield
        finally:
            self._interrupt = None

    def _archived(self) -> list[Archived]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = [Archived(row[0], (row[1], row[2], row[3])) for row in connection.execute(_ARCHIVED)]
        return [item for item in found if not self.period.within(item.month).is_empty]

    def _ask_database(self, question: str) -> QueryResult:
        """As one statement that may change nothing."""
        with psycopg.connect(self.url) as connection, self._interrupted_by(connection.cancel):
            if self.period != EVER:
                _narrow(connection, self.period)
                question = unqualified(question)
            connection.execute("SET TRANSACTION READ ONLY")
            cursor = connection.execute(question.encode(), prepare=True)
            rows = cursor.fetchall() if cursor.description else []
            return QueryResult([column.name for column in cursor.description or ()], rows, [], [])

    def _ask_all(self, question: str, archived: Sequence[Archived]) -> QueryResult:
        with psycopg.connect(self.url, autocommit=True) as connection:
            tables = {name: ReadableTable(name, *about) for name, *about in connection.execute(_TABLES)}
            has_erased = _has_erased(connection, tables, archived)
        log = tables["audit_logs"].columns
        archive = _ArchivedRows(log).of(self.vault, archived)
        with (
            closing(duckdb.connect(":memory:", config=_CONFIGURATION)) as session,
            self._interrupted_by(session.interrupt),
        ):
            _attach(session, self.url)
            asked = _Asked.of(session, question, tables)
            session.register(_ARCHIVE, archive)
            _add_functions(session, self.row_keys)
            rows = _Rows(log, archived, self.period, self.row_keys is not None, has_erased)
            asked.show(session, rows.everywhere())
            session.execute(_LOCKED)
            try:
                names, values = _fetched(asked.ask(session))
            except duckdb.Error as failure:
                raise archive.failure or failure from failure
        return QueryResult(names, values, [item.month for item in archived], sorted(archive.opened))


@dataclass(frozen=True, slots=True)
class _Asked:
    """The question as it is going to be asked, and the tables and views that it needs."""

    tree: str
    tables: Mapping[str, ReadableTable]  # the log excepted
    views: Mapping[str, str]  # as trees, each after those that it reads
    reserved: Collection[str]

    @classmethod
    def of(
        cls, session: duckdb.DuckDBPyConnection, question: str, tables: Mapping[str, ReadableTable]
    ) -> "_Asked":
        taken = session.execute(
            "SELECT view_name FROM duckdb_views() WHERE database_name <> 'log'"
        ).fetchall()
        reserved = {_ARCHIVE, *(name for (name,) in taken)}
        columns = {name: table.columns for name, table in tables.items()}
        tree = understood(_parsed(session, readable(question)), columns, reserved)
        needed, views = tables_of(tree), dict[str, str]()
        for table in reversed(list(tables.values())):  # the youngest first: a view reads older ones
            if table.name in needed and table.definition:
                parsed = _parsed(session, readable(table.definition.rstrip("; \n")))
                views[table.name] = understood(parsed, columns, reserved)
                needed |= tables_of(views[table.name])
        plain = {
            name: table for name, table in tables.items() if name in needed - {"audit_logs"} - views.keys()
        }
        return cls(tree, plain, dict(reversed(views.items())), reserved)

    def show(self, session: duckdb.DuckDBPyConnection, log: str) -> None:
        """What it needs, under the names that it has for auditors."""
        session.execute(f"CREATE VIEW audit_logs AS {log}")
        for name, table in self.tables.items():
            columns = ", ".join(_typed(column, kind) for column, kind in table.columns.items())
            session.execute(
                f"CREATE VIEW {_quoted(name)} AS SELECT {columns} FROM log.public.{_quoted(name)}"
            )
        for name, tree in self.views.items():
            session.execute(f"CREATE VIEW {_quoted(name)} AS {self._written(session, tree)}")

    def ask(self, session: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
        """Checked once more as it is written: what is asked is what was let through."""
        written = self._written(session, self.tree)
        checked(_parsed(session, written), {"audit_logs", *self.tables, *self.views}, self.reserved)
        return session.execute(written)

    @staticmethod
    def _written(session: duckdb.DuckDBPyConnection, tree: str) -> str:
        ((written,),) = session.execute("SELECT json_deserialize_sql(?)", [tree]).fetchall()
        return str(written)


def _parsed(session: duckdb.DuckDBPyConnection, question: str) -> str:
    ((tree,),) = session.execute("SELECT json_serialize_sql(?)", [question]).fetchall()
    return str(tree)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The one table of all tiers, in SQL."""

    columns: Mapping[str, str]
    archived: Sequence[Archived]
    period: Period
    is_open: bool  # what is personal is shown
    has_erased: bool  # since they were archived

    def everywhere(self) -> str:
        names = ", ".join(_typed(name, kind) for name, kind in self.columns.items())
        hot = [f"SELECT {names} FROM log.public.audit_logs WHERE {_times(period)}" for period in self._hot()]
        return " UNION ALL ".join([*hot, self._cold()])

    def _hot(self) -> Iterator[Period]:
        """The times between the archived months."""
        begin = self.period.since
        for item in self.archived:
            if begin < (month := month_start(item.month)):
                yield Period(begin, month)
            begin = month_start(next_month(item.month))
        if begin < self.period.until:
            yield Period(begin, self.period.until)

    def _cold(self) -> str:
        columns = ", ".join(
            f"{self._value(name, kind)} AS {_quoted(name)}" for name, kind in self.columns.items()
        )
        boxes = ", opened_box(log_id, personal) AS opened" if self.is_open else ""
        months = ", ".join(f"DATE '{item.month}'" for item in self.archived)
        source = f"(SELECT *{boxes} FROM {_ARCHIVE}) r"
        if self.has_erased:
            source += (
                " LEFT JOIN (SELECT log_id, min(erased_at) AS erased_at FROM log.public.audit_erasures"
                f" WHERE month IN ({months}) GROUP BY log_id) e ON e.log_id = r.log_id::uuid"
            )
        return f"SELECT {columns} FROM {source} WHERE {_times(self.period, 'r.')}"

    def _value(self, name: str, kind: str) -> str:
        """What an archived row has in this column."""
        path = _text(f'$."{name}"')
        if name == "erased_at" and self.has_erased:
            return "coalesce(r.erased_at, e.erased_at)"
        if name == "salt" and self.is_open:
            return f"unhex(substr(r.opened ->> {path}, 3))"
        if name in PERSONAL and self.is_open:
            return f"spelled_json(r.opened -> {path})::JSON" if kind == "jsonb" else f"(r.opened ->> {path})"
        if name in PERSONAL | {"salt"}:
            return f"NULL::{_TYPES[kind]}"
        return f"r.{_quoted(name)}::{_TYPES[kind]}"


class _ArchivedRows(ds.InMemoryDataset):  # type: ignore[misc]
    """The rows of archived months to DuckDB, which says what it needs; each month is found and opened when it is.

    Arrow would read them in threads of its own, which with a file of Python's ends in a deadlock. So it only judges which
    months and row groups can fit, and what is left is read by whoever asks.
    """

    def __init__(self, columns: Mapping[str, str]) -> None:
        super().__init__(parquet.schema(columns).empty_table())
        self.opened: set[date] = set()
        self.failure: UnansweredError | None = None

    def of(self, vault: Vault, archived: Sequence[Archived]) -> "_ArchivedRows":
        self._vault = vault
        self._archived = archived
        return self

    def scanner(self, *, columns: Sequence[str], filter: ds.Expression | None = None, **_: Any) -> "_Scan":  # noqa: A002
        return _Scan(self, columns, filter)

    def batches(self, columns: Sequence[str], condition: ds.Expression | None) -> Iterator[pa.RecordBatch]:
        whole = [(month_start(item.month), month_start(next_month(item.month))) for item in self._archived]
        for number in _fitting(whole, condition, self.schema):
            with self._open(self._archived[number]) as source:
                yield from _read(pq.ParquetFile(source), self.schema, columns, condition)

    def _open(self, item: Archived) -> BinaryIO:
        try:
            place = read_manifest(self._vault, *item.manifest).files[archive_format.PARQUET]
            source = self._vault.open(place.key, place.version)
        except (OSError, VaultError, ArchiveError) as failure:
            self.failure = UnansweredError(f"The archive of {item.month:%Y-%m} cannot be read: {failure}")
            raise self.failure from failure
        self.opened.add(item.month)
        return source


@dataclass(frozen=True, slots=True)
class _Scan:
    """What DuckDB needs of the rows: these columns, where this is so."""

    rows: _ArchivedRows
    columns: Sequence[str]
    condition: ds.Expression | None

    def to_reader(self) -> pa.RecordBatchReader:
        schema = pa.schema([self.rows.schema.field(name) for name in self.columns])
        return pa.RecordBatchReader.from_batches(schema, self.rows.batches(self.columns, self.condition))


def _read(
    file: pq.ParquetFile, schema: pa.Schema, columns: Sequence[str], condition: ds.Expression | None
) -> Iterator[pa.RecordBatch]:
    """What an older month lacks is null."""
    there = [name for name in columns if name in file.schema_arrow.names]
    times = [_times_of(file.metadata.row_group(number)) for number in range(file.num_row_groups)]
    groups = _fitting(times, condition, schema)
    wanted = pa.schema([schema.field(name) for name in columns])
    for batch in file.iter_batches(row_groups=groups, columns=there, use_threads=False):
        cells = [
            batch.column(field.name).cast(field.type)
            if field.name in there
            else pa.nulls(len(batch), field.type)
            for field in wanted
        ]
        table = pa.ReadableTable.from_arrays(cells, schema=wanted) if cells else batch
        yield from (table if condition is None else table.filter(condition)).to_batches()


def _times_of(group: pq.RowGroupMetaData) -> tuple[datetime, datetime]:
    """The first time in it, and one after the last."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == "timestamp" and column.statistics is not None:
            return column.statistics.min, column.statistics.max + timedelta(microseconds=1)
    return EVER.since, EVER.until


def _fitting(
    times: Sequence[tuple[datetime, datetime]], condition: ds.Expression | None, schema: pa.Schema
) -> list[int]:
    """Which of these spans may hold a row of which the condition is true: Arrow knows, and opens nothing for it."""
    kind, time = ds.ParquetFileFormat(), ds.field("timestamp")
    fragments = []
    for number, period in enumerate(times):
        begin, end = (pa.scalar(moment, pa.timestamp("us", tz="UTC")) for moment in period)
        within = (time >= begin) & (time < end)
        fragments.append(kind.make_fragment(str(number), LocalFileSystem(), partition_expression=within))
    found = ds.FileSystemDataset(fragments, schema, kind, LocalFileSystem())
    return [int(fragment.path) for fragment in found.get_fragments(filter=condition)]


def _narrow(connection: psycopg.Connection, period: Period) -> None:
    """The log, and every view of it, has only records of these times: names of our own come before those of the schema."""
    views = [ReadableTable(*row) for row in connection.execute(_TABLES) if row[2]]
    narrowed = f"SELECT * FROM public.audit_logs WHERE {_times(period)}"
    for name, definition in [("audit_logs", narrowed), *((view.name, view.definition) for view in views)]:
        statement = sql.SQL("CREATE TEMPORARY VIEW {} AS ").format(sql.Identifier(name)).as_string()
        connection.execute(f"{statement}{definition}".encode())


def _tells_login(words: str, url: str) -> bool:
    """DuckDB repeats what it connects with, the password too."""
    password = conninfo_to_dict(url).get("password")
    return url in words or bool(password and str(password) in words)


def _attach(session: duckdb.DuckDBPyConnection, url: str) -> None:
    """The database as it is to the auditor; DuckDB writes nothing there."""
    session.execute(f"LOAD {_text(str(_EXTENSION))}")
    session.execute(f"ATTACH {_text(url)} AS log (TYPE postgres, READ_ONLY)")
    session.execute(_MANNERS)
    session.execute(_MACROS)


def _add_functions(session: duckdb.DuckDBPyConnection, row_keys: RowKeys | None) -> None:
    def opened(log_ids: Any, boxes: Any) -> Any:
        assert row_keys
        return pa.array(_opened(log_ids.to_pylist(), boxes.to_pylist(), row_keys), pa.string())

    def spelled(texts: Any) -> Any:
        return pa.array([text and _spelled(json.loads(text)) for text in texts.to_pylist()], pa.string())

    add = partial(session.create_function, type="arrow", null_handling="special")
    add("opened_box", opened, ["VARCHAR", "BLOB"], "VARCHAR")
    add("spelled_json", spelled, ["VARCHAR"], "VARCHAR")


def _opened(log_ids: Sequence[str], boxes: Sequence[bytes | None], row_keys: RowKeys) -> list[str | None]:
    """What is in the boxes; nothing in those whose key was destroyed."""
    keys = row_keys([log_id for log_id, box in zip(log_ids, boxes, strict=True) if box])
    return [
        _spelled(archive_format.open_box(box, keys[log_id], log_id)) if box and log_id in keys else None
        for log_id, box in zip(log_ids, boxes, strict=True)
    ]


def _spelled(value: Any) -> str:
    """As PostgreSQL writes jsonb: shorter names first, and numbers with all their digits."""
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: (len(name.encode()), name.encode()))
        return "{" + ", ".join(f"{encode_basestring(name)}: {_spelled(value[name])}" for name in names) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_spelled, value)) + "]"
    if isinstance(value, str):
        return encode_basestring(value)
    return format(Decimal(repr(value)), "f") if isinstance(value, float) else json.dumps(value)


def _has_erased(
    connection: psycopg.Connection, tables: Mapping[str, ReadableTable], archived: Sequence[Archived]
) -> bool:
    if "audit_erasures" not in tables:
        return False
    found = connection.execute(_HAS_ERASED, ([item.month for item in archived],)).fetchone()
    return found == (True,)


def _fetched(found: duckdb.DuckDBPyConnection) -> tuple[list[str], list[tuple[Any, ...]]]:
    described = [(name, str(kind)) for name, kind, *_ in found.description or ()]
    table = found.to_arrow_table()
    columns = [_values(column, kind) for column, (_, kind) in zip(table.columns, described, strict=True)]
    return [name for name, _ in described], list(zip(*columns, strict=True))


def _values(column: pa.ChunkedArray, kind: str) -> list[Any]:
    values = column.to_pylist()
    if kind == "JSON":
        return [None if value is None else json.loads(value) for value in values]
    if kind == "INTERVAL":
        return [None if value is None else _interval(*value) for value in values]
    return list(values)


def _interval(months: int, days: int, nanoseconds: int) -> timedelta:
    """As psycopg counts: a year has 365 days, a month 30."""
    years, months = divmod(months, 12)
    return timedelta(365 * years + 30 * months + days, microseconds=nanoseconds // 1000)


def _typed(name: str, kind: str) -> str:
    return f"{_quoted(name)}::JSON AS {_quoted(name)}" if kind in {"json", "jsonb"} else _quoted(name)


def _times(period: Period, table: str = "") -> str:
    since, until = period.since.isoformat(), period.until.isoformat()
    return f"{table}timestamp >= TIMESTAMPTZ '{since}' AND {table}timestamp < TIMESTAMPTZ '{until}'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
