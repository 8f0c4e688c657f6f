"""Schema migrations: applies each file of sql/ once, in the order of their numbers, forward only.

The digest of each applied file is stored, and a file that was edited later stops the run: the database was not built from it.
"""

import logging
from hashlib import sha256
from pathlib import Path

import psycopg

from engine.errors import ConfigurationError
from engine.storage.rights import check_rights

log = logging.getLogger(__name__)

FILES = "[0-9]*.sql"  # schema.sql, beside them, is for readers
LOCK_S = 10  # for a table that a file changes: requests queue behind a file that waits for a long query

_CREATE_HISTORY = """
CREATE TABLE IF NOT EXISTS public.schema_migrations (
    name text PRIMARY KEY, sha256 text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now()
)
"""
_HAS_HISTORY = "SELECT to_regclass('public.schema_migrations') IS NOT NULL"
_LOCK_HISTORY = "LOCK TABLE public.schema_migrations IN SHARE ROW EXCLUSIVE MODE"


def migrate(connection: psycopg.Connection, folder: Path) -> list[str]:
    """Applies the pending files and returns their names."""
    connection.autocommit = True
    connection.add_notice_handler(_warn)
    check_rights(connection)
    _create_history(connection)
    return [file.name for file in sorted(folder.glob(FILES)) if _apply(connection, file)]


def pending(connection: psycopg.Connection, folder: Path) -> list[str]:
    """The names of the files that are not applied yet."""
    connection.autocommit = True
    has_history = connection.execute(_HAS_HISTORY).fetchone() == (True,)
    applied = _applied(connection) if has_history else {}
    return [file.name for file in sorted(folder.glob(FILES)) if file.name not in applied]


def _create_history(connection: psycopg.Connection) -> None:
    """`IF NOT EXISTS` does not look at what another process is about to commit; the second look sees it.

    Nothing is written if it exists: a database that takes no writes is still opened, for `affidavit doctor` to say so.
    """
    if connection.execute(_HAS_HISTORY).fetchone() == (True,):
        return
    try:
        connection.execute(_CREATE_HISTORY)
    except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject):
        connection.execute(_CREATE_HISTORY)


def _applied(connection: psycopg.Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT name, sha256 FROM public.schema_migrations").fetchall())


def _apply(connection: psycopg.Connection, file: Path) -> bool:
    """Under a lock for which a reader of the table has no right: whichever replica is first applies it, the others wait."""
    text = file.read_bytes()
    digest = sha256(text).hexdigest()
    if _is_applied(file, digest, _applied(connection)):
        return False
    try:
        with connection.transaction():
            connection.execute(_LOCK_HISTORY)
            if _is_applied(file, digest, _applied(connection)):
                return False
            # A schema with the name of whoever migrates does not get the tables.
            connection.execute(
                f"SET LOCAL search_path = public; SET LOCAL lock_timeout = '{LOCK_S}s'".encode()
            )
            connection.execute(text)
            connection.execute("RESET ROLE")
            connection.execute(
                "INSERT INTO public.schema_migrations (name, sha256) VALUES (%s, %s)", (file.name, digest)
            )
    except psycopg.errors.LockNotAvailable as failure:
        raise ConfigurationError(
            f"sql/{file.name} was not applied: somebody has been reading a table that it changes for {LOCK_S} s."
            " Close long queries and open transactions (see pg_stat_activity), then run it again."
        ) from failure
    except psycopg.Error as failure:
        raise ConfigurationError(f"sql/{file.name} failed and was rolled back: {failure}") from failure
    return True


def _is_applied(file: Path, digest: str, applied: dict[str, str]) -> bool:
    if applied.get(file.name, digest) != digest:
        raise ConfigurationError(
            f"sql/{file.name} was edited after it was applied. Restore the file, and put the change into a new one."
        )
    return file.name in applied


def _warn(notice: psycopg.errors.Diagnostic) -> None:
    """Logs a warning that PostgreSQL raised while it applied a file."""
    if notice.severity_nonlocalized == "WARNING":
        log.warning(notice.message_primary)
