"""Schema migrations: applies each file of sql/ once, in the order of their numbers, forward only.

The digest of each applied file is stored, and a file that was edited later stops the run: the database was not built from it.
"""

import logging
from hashlib import sha256
from pathlib import Path

import psycopg

from engine.errors import ConfigurationError

log = logging.getLogger(__name__)

FILES = "[0-9]*.sql"  # schema.sql, beside them, is for readers
LOCK = 0xAFF1DA  # an advisory lock: one process migrates at a time, whichever replica starts first

_CREATE_HISTORY = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    name text PRIMARY KEY, sha256 text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now()
)
"""


def migrate(connection: psycopg.Connection, folder: Path) -> list[str]:
    """Applies the pending files and returns their names."""
    connection.autocommit = True
    connection.add_notice_handler(_warn)
    connection.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
    try:
        connection.execute(_CREATE_HISTORY)
        applied = _applied(connection)
        return [file.name for file in sorted(folder.glob(FILES)) if _apply(connection, file, applied)]
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", (LOCK,))


def pending(connection: psycopg.Connection, folder: Path) -> list[str]:
    """The names of the files that are not applied yet."""
    connection.autocommit = True
    known = connection.execute("SELECT to_regclass('schema_migrations') IS NOT NULL").fetchone()
    applied = _applied(connection) if known and known[0] else {}
    return [file.name for file in sorted(folder.glob(FILES)) if file.name not in applied]


def _applied(connection: psycopg.Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT name, sha256 FROM schema_migrations").fetchall())


def _apply(connection: psycopg.Connection, file: Path, applied: dict[str, str]) -> bool:
    text = file.read_bytes()
    digest = sha256(text).hexdigest()
    if file.name in applied:
        if applied[file.name] != digest:
            raise ConfigurationError(
                f"sql/{file.name} was edited after it was applied. Restore the file, and put the change into a new one."
            )
        return False
    try:
        with connection.transaction():
            connection.execute(text)
            connection.execute("RESET ROLE")
            connection.execute(
                "INSERT INTO schema_migrations (name, sha256) VALUES (%s, %s)", (file.name, digest)
            )
    except psycopg.Error as failure:
        raise ConfigurationError(f"sql/{file.name} failed and was rolled back: {failure}") from failure
    return True


def _warn(notice: psycopg.errors.Diagnostic) -> None:
    """Logs a warning that PostgreSQL raised while it applied a file."""
    if notice.severity_nonlocalized == "WARNING":
        log.warning(notice.message_primary)
