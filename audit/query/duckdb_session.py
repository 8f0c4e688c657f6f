"""DuckDB session over the log: an in-memory database with the log attached read-only, locked down before the query runs.

The query was checked as a syntax tree (`dialect.py`); the text that DuckDB generates from the tree is checked again.
"""

# ruff: noqa: S608  only names and times of our own, quoted

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_postgres_scanner
import pyarrow as pa

from audit.archive.box import open_box
from audit.archive.parquet import spell_jsonb
from audit.archive.rows import RowKeys
from audit.checking.evidence import Period
from audit.ledger.partitions import month_start, next_month
from audit.proof.record import PERSONAL
from audit.query.archived_rows import ArchivedMonth
from audit.query.dialect import check, normalize, tables_in, translate

ARCHIVED_ROWS = "archived_rows"
ANSWER_ROWS = 10_000  # of an answer at a time
_TYPES = {
    "uuid": "UUID", "text": "VARCHAR", "varchar": "VARCHAR", "int2": "SMALLINT", "int4": "INTEGER", "int8": "BIGINT",
    "float4": "FLOAT", "float8": "DOUBLE", "bool": "BOOLEAN", "jsonb": "JSON", "json": "JSON", "bytea": "BLOB",
    "timestamptz": "TIMESTAMPTZ", "date": "DATE",
}  # fmt: skip
_EXTENSION = Path(duckdb_extension_postgres_scanner.__file__).parent.joinpath(
    "extensions", f"v{duckdb.__version__}", "postgres_scanner.duckdb_extension"
)
# A sandbox: DuckDB downloads nothing, writes no file, and cannot read Python variables as tables.
CONFIGURATION: dict[str, Any] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
    "temp_directory": "",
    "secret_directory": "/dev/null",
    "threads": 2,  # an auditor's question leaves processors to an engine on the same machine
}
# PostgreSQL's semantics of times, divisions, nulls and arrows. The optimizer top_n is off because with nulls first a LIMIT
# loses rows of PostgreSQL: duckdb-postgres issue 564.
_POSTGRES_SEMANTICS = """
SET TimeZone = 'UTC';
SET integer_division = true;
SET default_null_order = 'nulls_last_on_asc_first_on_desc';
SET lambda_syntax = 'DISABLE_SINGLE_ARROW';
SET disabled_optimizers = 'top_n';
"""
LOGIN = "SELECT current_user::text"
LOCKED = "SET enable_external_access = false; SET lock_configuration = true"
_MACROS = """
CREATE TYPE jsonb AS JSON;
CREATE MACRO jsonb_array_length(list) AS json_array_length(list)::integer;
CREATE MACRO jsonb_typeof(item) AS CASE lower(json_type(item))
    WHEN 'varchar' THEN 'string' WHEN 'ubigint' THEN 'number' WHEN 'bigint' THEN 'number' WHEN 'double' THEN 'number'
    ELSE lower(json_type(item)) END;
CREATE MACRO to_char(moment, form) AS strftime(moment, replace(replace(replace(replace(replace(replace(replace(
    form, 'YYYY', '%Y'), 'MM', '%m'), 'DD', '%d'), 'HH24', '%H'), 'MI', '%M'), 'SS', '%S'), 'US', '%f'))
"""


@dataclass(frozen=True, slots=True)
class ReadableTable:
    name: str
    columns: Mapping[str, str]
    definition: str | None  # of a view


@dataclass(frozen=True, slots=True)
class UnionView:
    """The SELECT of the one view `audit_logs`: a UNION of the months in PostgreSQL and the archived months.

    Every row comes from exactly one place: PostgreSQL's part excludes the archived months by time.
    """

    columns: Mapping[str, str]
    archived: Sequence[ArchivedMonth]
    period: Period
    is_open: bool  # personal columns are decrypted
    has_erased: bool  # records of these months were erased after they were archived

    def sql(self) -> str:
        names = ", ".join(typed(name, kind) for name, kind in self.columns.items())
        select = f"SELECT {names} FROM log.public.audit_logs WHERE"
        hot = [f"{select} {time_range(period)}" for period in self._periods_in_database()]
        return " UNION ALL ".join([*hot, self._select_archived()])

    def _periods_in_database(self) -> Iterator[Period]:
        """The gaps between the archived months."""
        begin = self.period.since
        for item in self.archived:
            if begin < (month := month_start(item.month)):
                yield Period(begin, month)
            begin = month_start(next_month(item.month))
        if begin < self.period.until:
            yield Period(begin, self.period.until)

    def _select_archived(self) -> str:
        cells = [f"{self._expression(name, kind)} AS {quoted(name)}" for name, kind in self.columns.items()]
        boxes = ", open_box(log_id, personal) AS opened" if self.is_open else ""
        months = ", ".join(f"DATE '{item.month}'" for item in self.archived)
        source = f"(SELECT *{boxes} FROM {ARCHIVED_ROWS}) r"
        if self.has_erased:
            source += (
                " LEFT JOIN (SELECT log_id, min(erased_at) AS erased_at FROM log.public.audit_erasures"
                f" WHERE month IN ({months}) GROUP BY log_id) e ON e.log_id = r.log_id::uuid"
            )
        return f"SELECT {', '.join(cells)} FROM {source} WHERE {time_range(self.period, 'r.')}"

    def _expression(self, name: str, kind: str) -> str:
        path = literal(f'$."{name}"')
        if name == "erased_at" and self.has_erased:
            return "coalesce(r.erased_at, e.erased_at)"
        if name == "salt" and self.is_open:
            return f"unhex(substr(r.opened ->> {path}, 3))"
        if name in PERSONAL and self.is_open:
            return f"spell_jsonb(r.opened -> {path})::JSON" if kind == "jsonb" else f"(r.opened ->> {path})"
        if name in PERSONAL | {"salt"}:
            return f"NULL::{_TYPES[kind]}"
        return f"r.{quoted(name)}::{_TYPES[kind]}"


def typed(name: str, kind: str) -> str:
    return f"{quoted(name)}::JSON AS {quoted(name)}" if kind in {"json", "jsonb"} else quoted(name)


def time_range(period: Period, table: str = "") -> str:
    since, until = period.since.isoformat(), period.until.isoformat()
    return f"{table}timestamp >= TIMESTAMPTZ '{since}' AND {table}timestamp < TIMESTAMPTZ '{until}'"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """The check syntax tree of a query, and the tables and views that it needs."""

    tree: str
    tables: Mapping[str, ReadableTable]  # without the log
    views: Mapping[str, str]  # syntax trees in the order of their dependencies
    reserved: Collection[str]

    @classmethod
    def prepare(
        cls, session: duckdb.DuckDBPyConnection, statement: str, tables: Mapping[str, ReadableTable]
    ) -> "PreparedQuery":
        taken = session.execute("SELECT view_name FROM duckdb_views() WHERE database_name <> 'log'")
        reserved = {ARCHIVED_ROWS, *(name for (name,) in taken.fetchall())}
        columns = {name: table.columns for name, table in tables.items()}
        tree = translate(_parse(session, normalize(statement)), columns, reserved)
        needed, views = tables_in(tree), dict[str, str]()
        for table in reversed(list(tables.values())):  # newest first: a view reads older ones
            if table.name in needed and table.definition:
                parsed = _parse(session, normalize(table.definition.rstrip("; \n")))
                views[table.name] = translate(parsed, columns, reserved)
                needed |= tables_in(views[table.name])
        needed -= {"audit_logs"} | views.keys()
        plain = {name: table for name, table in tables.items() if name in needed}
        return cls(tree, plain, dict(reversed(views.items())), reserved)

    def create_views(self, session: duckdb.DuckDBPyConnection, log: str) -> None:
        """Create the tables and views that the query needs, under their names in PostgreSQL."""
        session.execute(f"CREATE VIEW audit_logs AS {log}")
        for name, table in self.tables.items():
            columns = ", ".join(typed(column, kind) for column, kind in table.columns.items())
            session.execute(f"CREATE VIEW {quoted(name)} AS SELECT {columns} FROM log.public.{quoted(name)}")
        for name, tree in self.views.items():
            session.execute(f"CREATE VIEW {quoted(name)} AS {self._to_sql(session, tree)}")

    def execute(self, session: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
        """Check the text that DuckDB generates from the tree once more, and run exactly that text."""
        text = self._to_sql(session, self.tree)
        check(_parse(session, text), {"audit_logs", *self.tables, *self.views}, self.reserved)
        return session.execute(text)

    @staticmethod
    def _to_sql(session: duckdb.DuckDBPyConnection, tree: str) -> str:
        ((text,),) = session.execute("SELECT json_deserialize_sql(?)", [tree]).fetchall()
        return str(text)


def _parse(session: duckdb.DuckDBPyConnection, statement: str) -> str:
    ((tree,),) = session.execute("SELECT json_serialize_sql(?)", [statement]).fetchall()
    return str(tree)


def attach_log(session: duckdb.DuckDBPyConnection, url: str) -> None:
    session.execute(f"LOAD {literal(str(_EXTENSION))}")
    session.execute(f"ATTACH {literal(url)} AS log (TYPE postgres, READ_ONLY)")
    session.execute(_POSTGRES_SEMANTICS)
    session.execute(_MACROS)


def login(session: duckdb.DuckDBPyConnection) -> Any:
    """The role that DuckDB's own connections to the log have: their address asks for it at start-up, which a pooler may drop."""
    return session.execute(f"SELECT * FROM postgres_query('log', {literal(LOGIN)})").fetchone()


def add_functions(session: duckdb.DuckDBPyConnection, row_keys: RowKeys | None) -> None:
    def open_boxes(log_ids: Any, boxes: Any) -> Any:
        assert row_keys
        return pa.array(_open_boxes(log_ids.to_pylist(), boxes.to_pylist(), row_keys), pa.string())

    def spell(texts: Any) -> Any:
        return pa.array([text and spell_jsonb(json.loads(text)) for text in texts.to_pylist()], pa.string())

    add = partial(session.create_function, type="arrow", null_handling="special")
    add("open_box", open_boxes, ["VARCHAR", "BLOB"], "VARCHAR")
    add("spell_jsonb", spell, ["VARCHAR"], "VARCHAR")


def _open_boxes(log_ids: Sequence[str], boxes: Sequence[bytes | None], row_keys: RowKeys) -> list[str | None]:
    """The decrypted boxes; None if there is no box or its key was destroyed."""
    keys = row_keys([log_id for log_id, box in zip(log_ids, boxes, strict=True) if box])
    return [
        spell_jsonb(open_box(box, keys[log_id], log_id)) if box and log_id in keys else None
        for log_id, box in zip(log_ids, boxes, strict=True)
    ]


def configuration(bytes_max: int) -> dict[str, Any]:
    return CONFIGURATION | {"memory_limit": f"{bytes_max // 1024}KiB"}


def fetch(found: duckdb.DuckDBPyConnection, bytes_max: int) -> tuple[list[str], list[tuple[Any, ...]]]:
    """DuckDB's own limit does not count the answer, so it is counted here."""
    described = [(name, str(kind)) for name, kind, *_ in found.description or ()]
    reader = found.to_arrow_reader(ANSWER_ROWS)
    batches, size = [], 0
    for batch in reader:
        size += batch.nbytes
        if size > bytes_max:
            raise duckdb.OutOfMemoryException("The answer is too large")
        batches.append(batch)
    table = pa.Table.from_batches(batches, reader.schema)
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
    """Converts an interval as psycopg does: a year has 365 days, a month 30."""
    years, months = divmod(months, 12)
    return timedelta(365 * years + 30 * months + days, microseconds=nanoseconds // 1000)
