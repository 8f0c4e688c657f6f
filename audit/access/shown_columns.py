"""Which personal columns a SQL statement reads. PostgreSQL itself is the judge, by its check of rights on columns.

The statement is planned, and not run, over empty temporary tables that stand for the log and its views, without the right to
read their personal columns. If PostgreSQL refuses that, it is asked once for each personal column. So names, aliases, `*`,
whole rows, subqueries and functions mean what they mean when the statement runs. Whatever this cannot see through counts as
all personal columns: a statement that cannot be planned, another table, a function that runs SQL of its own.
"""

import re
from collections.abc import Collection, Iterable, Sequence

import psycopg
from psycopg import errors, sql
from psycopg.pq import ExecStatus

from audit.access.relations import IMPERSONAL, LOG_VIEWS, Relation
from audit.errors import QueryError
from audit.proof.record import PERSONAL

_COLUMNS = """
SELECT c.relname, json_object_agg(a.attname, format_type(a.atttypid, a.atttypmod) ORDER BY a.attnum)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'public'::regnamespace AND c.relname = ANY (%s) GROUP BY c.relname
"""
# What may be executed beside PostgreSQL's own functions may run any SQL.
_FOREIGN_FUNCTIONS = """
SELECT DISTINCT proname FROM pg_proc
WHERE pronamespace <> ALL ('{pg_catalog,information_schema}'::regnamespace[]) AND has_function_privilege(oid, 'EXECUTE')
"""
# Planning locks each table and view that the statement names, wherever its name came from.
_NAMED = """
SELECT n.nspname, c.relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE l.pid = pg_backend_pid() AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relnamespace <> pg_my_temp_schema()
"""
# PostgreSQL's own functions that run SQL which they are given, and names in Unicode escapes, which hide any of these.
_RUNS_SQL = re.compile(r"_to_xml|ts_stat|ts_rewrite|\bu&|\x00", re.IGNORECASE)
_SAMPLES = frozenset(
    {"pg_statistic", "pg_statistic_ext_data", "pg_stats", "pg_stats_ext", "pg_stats_ext_exprs"}
)


def shown_columns(connection: psycopg.Connection, statement: str) -> frozenset[str]:
    """The personal columns that it reads. `statement` names the log's views without their schema; nothing of this is kept."""
    if _RUNS_SQL.search(statement) or _calls(statement, connection.execute(_FOREIGN_FUNCTIONS)):
        return PERSONAL
    found = connection.execute(_COLUMNS, (list(LOG_VIEWS),)).fetchall()
    relations = [Relation(*row) for row in found if row[0] in statement.lower()]
    connection.commit()  # its locks are not the statement's
    try:
        with connection.transaction(force_rollback=True):
            _stand_in(connection, relations)
            return _read(connection, statement, relations)
    except (psycopg.Error, QueryError):  # also where there may be no temporary tables
        return PERSONAL


def _read(connection: psycopg.Connection, statement: str, relations: Sequence[Relation]) -> frozenset[str]:
    if not _needs(connection, statement, relations, PERSONAL):
        return frozenset()
    sources = {source for relation in relations for source in relation.personal().values()}
    read = frozenset(source for source in sources if _needs(connection, statement, relations, {source}))
    if not read or _needs(connection, statement, relations, ()):  # it was refused for another reason
        return PERSONAL
    return read


def _needs(
    connection: psycopg.Connection, statement: str, relations: Sequence[Relation], withheld: Collection[str]
) -> bool:
    """Whether PostgreSQL refuses to plan it without these personal columns."""
    with connection.transaction(force_rollback=True):
        for relation in relations:
            personal = relation.personal()
            given = [sql.Identifier(name) for name in relation.columns if personal.get(name) not in withheld]
            grant = sql.SQL("GRANT SELECT ({}) ON pg_temp.{} TO CURRENT_USER")
            connection.execute(grant.format(sql.SQL(", ").join(given), sql.Identifier(relation.name)))
        try:
            with connection.transaction():
                _plan(connection, statement)
        except errors.InsufficientPrivilege:
            return True
        _check_known(connection)
        return False


def _stand_in(connection: psycopg.Connection, relations: Iterable[Relation]) -> None:
    """Temporary tables come before those of `public`, and their owner can give up the right to read them."""
    for relation in relations:
        name = sql.Identifier(relation.name).as_string()
        columns = ", ".join(
            f"{sql.Identifier(column).as_string()} {kind}" for column, kind in relation.columns.items()
        )
        connection.execute(f"CREATE TEMPORARY TABLE {name} ({columns})".encode())
        connection.execute(f"REVOKE ALL ON pg_temp.{name} FROM CURRENT_USER".encode())


def _plan(connection: psycopg.Connection, statement: str) -> None:
    """By the extended protocol, which takes one statement and no more. The option in brackets keeps it from bringing its own."""
    found = connection.pgconn.exec_params(b"EXPLAIN (COSTS off) " + statement.encode(), None)
    if found.status != ExecStatus.TUPLES_OK:
        raise errors.error_from_result(found)


def _check_known(connection: psycopg.Connection) -> None:
    """It may name the stand-ins, evidence, books, and catalogs without samples of values."""
    for schema, name in connection.execute(_NAMED):
        is_catalog = schema in {"pg_catalog", "information_schema"} and name not in _SAMPLES
        if not is_catalog and not (schema == "public" and name in IMPERSONAL):
            raise QueryError(f"Whether {schema}.{name} has personal columns is not known")


def _calls(statement: str, functions: Iterable[tuple[str]]) -> bool:
    return any(
        re.search(rf"(?<!\w){re.escape(name)}(?!\w)", statement, re.IGNORECASE) for (name,) in functions
    )
