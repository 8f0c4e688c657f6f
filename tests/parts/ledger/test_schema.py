"""sql/schema.sql is the schema: the migrations give exactly it, and it gives exactly that.

Seen red on a migration with one more column, a changed view, a right granted and a function opened to everybody.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from engine.migrate import migrate
from engine.settings import HOUSE
from engine.wiring import Database
from tests.schema import SCHEMA, dump


@contextmanager
def empty(database: Database) -> Iterator[psycopg.Connection]:
    """A new database in the running server, which has the roles."""
    name = f"schema_{uuid4().hex}"
    with psycopg.connect(database.url, autocommit=True) as superuser:
        superuser.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        with psycopg.connect(make_conninfo(database.url, dbname=name), autocommit=True) as connection:
            yield connection
        superuser.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_the_migrations_give_exactly_the_committed_schema(database: Database) -> None:
    with empty(database) as connection:
        migrate(connection, HOUSE / "sql")
        assert dump(connection) == SCHEMA.read_text(), "Run `make schema`, and read what changed."


def test_the_committed_schema_alone_gives_the_same(database: Database) -> None:
    """So nothing is missing in it."""
    with empty(database) as connection:
        connection.execute(SCHEMA.read_bytes())
        assert _without_casts(dump(connection)) == _without_casts(SCHEMA.read_text())


def _without_casts(schema: str) -> str:
    """PostgreSQL writes a list of varchar with its casts elsewhere each time that it reads it back."""
    return re.sub(r"::(?:character varying|text)|\[\]|[()]", "", schema)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE audit_logs ADD COLUMN extra text",
        "CREATE OR REPLACE VIEW audit_slow_requests WITH (security_invoker = true) AS"
        " SELECT timestamp, query_id, client_id, book_id, endpoint, outcome, error_type, total_latency_ms,"
        " retrieval_latency_ms, generation_latency_ms, 0 AS other_ms FROM audit_logs",
        "GRANT UPDATE ON audit_leaves TO affidavit_engine",
        "GRANT EXECUTE ON FUNCTION audit_make_month TO PUBLIC",
        "ALTER TABLE audit_logs DISABLE TRIGGER audit_logs_keep",
        "DROP EVENT TRIGGER audit_refuse_drop",
    ],
)
def test_a_change_of_the_schema_is_seen(database: Database, change: str) -> None:
    with empty(database) as connection:
        connection.execute(SCHEMA.read_bytes())
        before = dump(connection)
        connection.execute("SET search_path TO public")
        connection.execute(change.encode())
        assert dump(connection) != before
