"""Query engine over all storage tiers: one table `audit_logs` for the months in PostgreSQL and those in the vault.

A query that touches no archived month runs in PostgreSQL alone. All others run in DuckDB, which reads the database in the
auditor's role, and from the vault only the months and columns that it needs. Each month is read from exactly one place, so
that no row appears twice: from the database while it is attached there, else from its archive.

What a query goes through is compared with the shipped schema while its transaction is open: its locks keep every table and
view as it was read. If an answer could show other rows than `verify` checks, it is withheld and the differences are named.
A warning beside the answer would not do: a pipe or a dashboard takes the forged rows and loses the warning.
"""

# ruff: noqa: S608  only times of our own, quoted

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from sys import getsizeof
from typing import Any

import duckdb
import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict

from audit.access.shown_columns import shown_columns
from audit.archive.rows import RowKeys
from audit.checking.evidence import EVER, Period
from audit.definitions.comparison import Difference, differences
from audit.errors import AuditError, MisleadingSchemaError, QueryError, UnansweredError
from audit.proof.record import PERSONAL
from audit.query import duckdb_session
from audit.query.archived_rows import ArchivedMonth, ArchivedRows
from audit.query.dialect import strip_schema
from audit.query.duckdb_session import PreparedQuery, ReadableTable, UnionView
from audit.session import Session
from audit.vault import Vault

FORGED = "The query is not answered: the database is not as it was shipped, and could show other rows than `verify` checks."
NAMED = 10  # differences in the words of a refusal
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

_TRANSIENT = (psycopg.OperationalError, duckdb.InterruptException)
_LESS = "Ask for less: a shorter period (--from, --to), fewer columns, a count instead of rows, or a LIMIT"
_LIMITS: dict[type[Exception], str] = {
    errors.LockNotAvailable: "A table of the log is being changed now. Try again in a minute",
    errors.ConfigurationLimitExceeded: f"The query needs more room for temporary files than auditors have. {_LESS}",
    errors.DiskFull: f"The query needs more room for temporary files than the database's disk has. {_LESS}",
}
_UNSHOWABLE = (duckdb.Error, ValueError, OverflowError)  # the last two: a value, as a time before year 1
_UNREADABLE = "There is no answer: the database or the archive cannot be read now. Try again later"
_POOLED = (
    "There is no answer: between here and PostgreSQL is a connection pooler, and through it a query over archived months would"
    " not have the auditor's rights. Name PostgreSQL itself in DATABASE_URL"
)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Columns and rows; the archived months of the period, and those of them that were opened; and differences of the
    database from the shipped schema that cannot change the answer.
    """

    names: list[str]
    rows: list[tuple[Any, ...]]
    archived: list[date]
    opened: list[date]
    differences: list[Difference]


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """How long a query may take, and how much memory it and its answer may need."""

    seconds: float
    bytes_max: int


@dataclass(slots=True)
class TieredLog:
    """The log of one database and one vault. `url` is the auditor's login; `shipped` are the digests of the schema."""

    url: str
    vault: Vault
    shipped: Mapping[str, str]
    limits: QueryLimits
    period: Period = EVER
    row_keys: RowKeys | None = None  # if given, personal columns of archived rows are decrypted
    _interrupt: Callable[[], object] | None = None
    _is_interrupted: threading.Event = field(default_factory=threading.Event)
    _is_late: threading.Event = field(default_factory=threading.Event)

    def query(self, statement: str) -> QueryResult:
        """Run one SELECT within the limits. `QueryError` for a wrong statement."""
        timer = threading.Timer(self.limits.seconds, self._end)
        timer.start()
        try:
            return self._query(statement)
        except MisleadingSchemaError:
            raise
        except UnansweredError as failure:
            if self._is_late.is_set():
                raise UnansweredError(
                    f"The query was stopped after {self.limits.seconds:g} s, the limit that audit.query_s sets. {_LESS}"
                ) from failure
            raise
        finally:
            timer.cancel()

    def shown_columns(self, statement: str) -> frozenset[str]:
        """The personal columns that it reads, whichever tier has them."""
        try:
            with Session.connect(self.url) as connection:
                return shown_columns(connection, strip_schema(statement))
        except QueryError:  # it names the table of one month
            return PERSONAL
        except psycopg.Error as failure:
            raise self._explained(failure) from failure

    def _end(self) -> None:
        self._is_late.set()
        self.interrupt()

    def _query(self, statement: str) -> QueryResult:
        """Retries if a month was detached or attached meanwhile."""
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
        except (QueryError, psycopg.Error, *_UNSHOWABLE) as failure:
            with suppress(psycopg.Error):  # what was forged may be why it failed
                self._compare_anew()
            if isinstance(failure, QueryError):
                raise
            if self._is_unreadable(failure):
                raise UnansweredError(_UNREADABLE) from None  # DuckDB's message could contain the login
            raise self._explained(failure) from failure
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
        with Session.connect(self.url, autocommit=True) as connection:
            found = [ArchivedMonth(row[0], (row[1], row[2], row[3])) for row in connection.execute(_ARCHIVED)]
        return [item for item in found if not self.period.within(item.month).is_empty]

    def _query_database(self, statement: str) -> QueryResult:
        with Session.connect(self.url) as connection, self._interrupted_by(connection.cancel):
            if self.period != EVER:
                _limit_to_period(connection, self.period)
                statement = strip_schema(statement)
            connection.execute("SET TRANSACTION READ ONLY")
            names, rows = self._fetch(connection, statement)
            return QueryResult(names, rows, [], [], self._compare(connection))

    def _fetch(
        self, connection: psycopg.Connection, statement: str
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        rows, size = [], 0
        cursor = connection.cursor()
        for row in cursor.stream(statement.encode()):
            size += sum(map(_size, row))
            if size > self.limits.bytes_max:
                raise UnansweredError(self._too_much)
            rows.append(row)
        if not rows:  # then a stream does not say its columns
            return _column_names(connection, statement), rows
        return [column.name for column in cursor.description or ()], rows

    def _compare(self, connection: psycopg.Connection) -> list[Difference]:
        found = differences(connection, self.shipped)
        if misleading := [each for each in found if each.misleads]:
            lines = [f"  {each}" for each in misleading[:NAMED]]
            if len(misleading) > NAMED:
                lines.append(f"  And {len(misleading) - NAMED} more: run `affidavit doctor`.")
            raise MisleadingSchemaError("\n".join([FORGED, *lines]))
        return found

    def _is_unreadable(self, failure: Exception) -> bool:
        return isinstance(failure, duckdb.IOException) or _contains_login(str(failure), self.url)

    def _explained(self, failure: Exception) -> AuditError:
        if isinstance(failure, duckdb.OutOfMemoryException):
            return UnansweredError(self._too_much)
        if words := _LIMITS.get(type(failure)):
            return UnansweredError(words)
        if isinstance(failure, _TRANSIENT):
            return UnansweredError(f"There is no answer: {str(failure).strip()}")
        if (
            isinstance(failure, psycopg.ProgrammingError | psycopg.InternalError) and failure.sqlstate is None
        ):  # the server took it, and sent no rows
            return QueryError("The query failed: it is empty, or gives no rows. Write one SELECT")
        return QueryError(f"The query failed: {str(failure).strip()}")

    @property
    def _too_much(self) -> str:
        return (
            f"The query or its answer needs more than {self.limits.bytes_max / 1024**2:,.0f} MiB of memory, the limit that"
            f" audit.query_bytes_max sets. {_LESS}"
        )

    def _query_all_tiers(self, statement: str, archived: Sequence[ArchivedMonth]) -> QueryResult:
        with Session.connect(self.url, autocommit=True) as connection:
            tables = {name: ReadableTable(name, *columns) for name, *columns in connection.execute(_TABLES)}
            has_erased = _has_erased(connection, tables, archived)
            login = connection.execute(duckdb_session.LOGIN).fetchone()
        log = tables["audit_logs"].columns
        archive = ArchivedRows(log, self.vault, archived)
        configuration = duckdb_session.configuration(self.limits.bytes_max)
        connecting = duckdb.connect(":memory:", config=configuration)
        with closing(connecting) as session, self._interrupted_by(session.interrupt):
            duckdb_session.attach_log(session, self.url)
            if duckdb_session.login(session) != login:
                raise UnansweredError(_POOLED)
            prepared = PreparedQuery.prepare(session, statement, tables)
            session.register(duckdb_session.ARCHIVED_ROWS, archive)
            duckdb_session.add_functions(session, self.row_keys)
            view = UnionView(log, archived, self.period, self.row_keys is not None, has_erased)
            prepared.create_views(session, view.sql())
            session.execute(duckdb_session.LOCKED)
            session.begin()  # keeps its locks in the database until the definitions are compared
            try:
                found = duckdb_session.fetch(prepared.execute(session), self.limits.bytes_max)
            except duckdb.Error as failure:
                raise archive.failure or failure from failure
            others = self._compare_anew()
        return QueryResult(*found, [item.month for item in archived], sorted(archive.opened), others)

    def _compare_anew(self) -> list[Difference]:
        with Session.connect(self.url, autocommit=True) as connection:
            return self._compare(connection)


def _size(value: Any) -> int:
    return len(str(value)) if isinstance(value, dict | list) else getsizeof(value)


def _column_names(connection: psycopg.Connection, statement: str) -> list[str]:
    connection.pgconn.prepare(b"", statement.encode())
    described = connection.pgconn.describe_prepared(b"")
    return [str((described.fname(number) or b"").decode()) for number in range(described.nfields)]


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
