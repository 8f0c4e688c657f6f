"""sql/schema.sql is the schema: the migrations give exactly it, and it gives exactly that.

Seen red on a migration with one more column, a changed view, a right granted and a function opened to everybody.
"""

import json
import re
from collections.abc import Iterator

import psycopg
import pytest

from engine.settings import HOUSE
from engine.storage.database import Database
from engine.storage.migrate import migrate
from tests.databases import empty_database
from tests.schema import DEFINITIONS, SCHEMA, dump, dump_digests


@pytest.fixture
def connection(database: Database) -> Iterator[psycopg.Connection]:
    with empty_database(database) as url, psycopg.connect(url, autocommit=True) as opened:
        yield opened


def test_the_migrations_give_exactly_the_committed_schema(connection: psycopg.Connection) -> None:
    migrate(connection, HOUSE / "sql")
    assert dump(connection) == SCHEMA.read_text(), "Run `make schema`, and read what changed."


def test_the_migrations_give_exactly_the_committed_definitions(connection: psycopg.Connection) -> None:
    migrate(connection, HOUSE / "sql")
    assert dump_digests(connection) == DEFINITIONS.read_text(), "Run `make schema`, and read what changed."


def test_definitions_are_the_same_when_a_schema_was_restored(connection: psycopg.Connection) -> None:
    """PostgreSQL writes some of them with other casts then: that is no difference. Nor is what the months hold."""
    connection.execute(SCHEMA.read_bytes())
    shipped = json.loads(DEFINITIONS.read_text()).items()
    expected = {name: digest for name, digest in shipped if not name.startswith("migration ")}
    assert json.loads(dump_digests(connection)) == expected


def test_the_committed_schema_alone_gives_the_same(connection: psycopg.Connection) -> None:
    """So nothing is missing in it."""
    connection.execute(SCHEMA.read_bytes())
    assert _without_casts(dump(connection)) == _without_casts(SCHEMA.read_text())


def _without_casts(schema: str) -> str:
    """PostgreSQL writes a list of varchar with its casts elsewhere each time that it reads it back."""
    return re.sub(r"::(?:character varying|text)|\[\]|[()]", "", schema)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE audit_logs ADD COLUMN extra text",
        (
            "CREATE OR REPLACE VIEW audit_slow_requests WITH (security_invoker = true) AS"
            " SELECT timestamp, query_id, client_id, book_id, endpoint, outcome, error_type, total_latency_ms,"
            " retrieval_latency_ms, generation_latency_ms, 0 AS other_ms FROM audit_logs"
        ),
        "GRANT UPDATE ON audit_leaves TO affidavit_engine",
        "GRANT EXECUTE ON FUNCTION audit_make_month TO PUBLIC",
        "ALTER TABLE audit_logs DISABLE TRIGGER audit_logs_keep",
        "DROP EVENT TRIGGER audit_refuse_drop",
    ],
)
def test_a_change_of_the_schema_is_seen(connection: psycopg.Connection, change: str) -> None:
    connection.execute(SCHEMA.read_bytes())
    before = dump(connection)
    connection.execute("SET search_path TO public")
    connection.execute(change.encode())
    assert dump(connection) != before
