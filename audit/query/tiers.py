"""Query engine over all storage tiers: one table `audit_logs` for the months in PostgreSQL and those in the vault.

A query that touches no archived month runs in PostgreSQL alone. All others run in DuckDB, which reads the database in the
auditor's role, and from the vault only the months and columns that it needs. Each month is read from exactly one place, so
that no row appears twice: from the database while it is attached there, else from its archive.
"""

# ruff: noqa: S608  only times of our own, quoted

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import duckdb
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from audit.archive.rows import RowKeys
from audit.checking.evidence import EVER, Period
from audit.errors import QueryError, UnansweredError
from audit.query import duckdb_session
from audit.query.archived_rows import ArchivedMonth, ArchivedRows
from audit.query.dialect import strip_schema
from audit.query.duckdb_session import PreparedQuery, ReadableTable, UnionView
from audit.vault import Vault

TRIES = 5  # a retry is needed only when a month is detached or attached during the query

# The tables and views that this login may read, with columns and types. Partitions are read through `audit_logs`.
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

_TRANSIENT = (psycopg.OperationalError, duckdb.OutOfMemoryException, duckdb.InterruptException)
_UNREADABLE = "There is no answer: the database or the archive cannot be read now. Try again later"


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Columns and rows; the archived months of the period, and those of them that were opened."""

    names: list[str]
    rows: list[tuple[Any, ...]]
    archived: list[date]
    opened: list[date]


@dataclass(slots=True)
class TieredLog:
    """The log of one database and one vault. `url` is the auditor's login."""

    url: str
    vault: Vault
    period: Period = EVER
    row_keys: RowKeys | None = None  # if given, personal columns of archived rows are decrypted
    _interrupt: Callable[[], object] | None = None
    _is_interrupted: threading.Event = field(default_factory=threading.Event)

    def query(self, statement: str) -> QueryResult:
        """Run one SELECT. Retries if a month was detached or attached meanwhile. `QueryError` for a wrong statement."""
        try:
            for _ in range(TRIES):
                archived = self._archived_months()
                found = (
                    self._query_all_tiers(statement, archived)
                    if archived
                    else self._query_database(statement)
                )
                if self._archived_months() == archived:
                    return found
        except (psycopg.Error, duckdb.Error) as failure:
            if isinstance(failure, duckdb.IOException) or _contains_login(str(failure), self.url):
                raise UnansweredError(_UNREADABLE) from None  # DuckDB's message could contain the login
            if isinstance(failure, _TRANSIENT):
                raise UnansweredError(f"There is no answer: {str(failure).strip()}") from failure
            raise QueryError(f"The query failed: {str(failure).strip()}") from failure
        raise UnansweredError(
            "Months are being moved between the database and the archive. Try again in a moment"
        )

    def interrupt(self) -> None:
        """Cancel the running query. Called from another thread."""
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

    def _archived_months(self) -> list[ArchivedMonth]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = [ArchivedMonth(row[0], (row[1], row[2], row[3])) for row in connection.execute(_ARCHIVED)]
        return [item for item in found if not self.period.within(item.month).is_empty]

    def _query_database(self, statement: str) -> QueryResult:
        with psycopg.connect(self.url) as connection, self._interrupted_by(connection.cancel):
            if self.period != EVER:
                _limit_to_period(connection, self.period)
                statement = strip_schema(statement)
            connection.execute("SET TRANSACTION READ ONLY")
            cursor = connection.execute(statement.encode(), prepare=True)
            rows = cursor.fetchall() if cursor.description else []
            return QueryResult([column.name for column in cursor.description or ()], rows, [], [])

    def _query_all_tiers(self, statement: str, archived: Sequence[ArchivedMonth]) -> QueryResult:
        with psycopg.connect(self.url, autocommit=True) as connection:
            tables = {name: ReadableTable(name, *columns) for name, *columns in connection.execute(_TABLES)}
            has_erased = _has_erased(connection, tables, archived)
        log = tables["audit_logs"].columns
        archive = ArchivedRows(log, self.vault, archived)
        connecting = duckdb.connect(":memory:", config=duckdb_session.CONFIGURATION)
        with closing(connecting) as session, self._interrupted_by(session.interrupt):
            duckdb_session.attach_log(session, self.url)
            prepared = PreparedQuery.prepare(session, statement, tables)
            session.register(duckdb_session.ARCHIVED_ROWS, archive)
            duckdb_session.add_functions(session, self.row_keys)
            view = UnionView(log, archived, self.period, self.row_keys is not None, has_erased)
            prepared.create_views(session, view.sql())
            session.execute(duckdb_session.LOCKED)
            try:
                names, values = duckdb_session.fetch(prepared.execute(session))
            except duckdb.Error as failure:
                raise archive.failure or failure from failure
        return QueryResult(names, values, [item.month for item in archived], sorted(archive.opened))


def _limit_to_period(connection: psycopg.Connection, period: Period) -> None:
    """Limit the log and its views to the period, by temporary views: their schema precedes `public` in the search path."""
    views = [ReadableTable(*row) for row in connection.execute(_TABLES) if row[2]]
    limited = f"SELECT * FROM public.audit_logs WHERE {duckdb_session.time_range(period)}"
    for name, definition in [("audit_logs", limited), *((view.name, view.definition) for view in views)]:
        statement = sql.SQL("CREATE TEMPORARY VIEW {} AS ").format(sql.Identifier(name)).as_string()
        connection.execute(f"{statement}{definition}".encode())


def _contains_login(message: str, url: str) -> bool:
    """DuckDB's messages may repeat the connection string, with the password."""
    password = conninfo_to_dict(url).get("password")
    return url in message or bool(password and str(password) in message)


def _has_erased(
    connection: psycopg.Connection, tables: Mapping[str, ReadableTable], archived: Sequence[ArchivedMonth]
) -> bool:
    if "audit_erasures" not in tables:
        return False
    found = connection.execute(_HAS_ERASED, ([item.month for item in archived],)).fetchone()
    return found == (True,)
