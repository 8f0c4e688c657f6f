"""Connection of the writer: one transaction a batch, idempotent by `log_id`; and the settings that a durable commit needs."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime

import psycopg
from psycopg import errors

from audit.errors import ArchivedMonthError, MissingMonthError, PermanentWriteError, TransientWriteError
from audit.ledger.entry import Entry, ids, listed
from audit.session import AsyncSession

WRITE_S = (
    4.0  # timeout; a batch takes milliseconds, and a request must learn of its end within its five seconds
)
WIND_UP_S = 0.1  # a cancelled psycopg waits ten seconds for a silent server; a second cancellation ends that

WRITE = "SELECT audit_write(%s::json, %s::json, %s::uuid[], %s::json)"
_BEGIN_AND_WRITE = f"BEGIN; {WRITE}"  # one message and one round trip; a prepared statement would need two
_NO_LOCKS_OF_A_STALLED_PROCESS = "SET idle_in_transaction_session_timeout = '5s'"
ARCHIVED = "AF001"  # SQLSTATE of sql/0013 for a row of a month that is being archived


# The writer sets synchronous_commit for itself, but a login that weakens it shows an intention. An unlogged table is
# emptied by the first crash, whatever the settings.
_WEAKNESSES = r"""
SELECT format('%s is off: a power cut loses or spoils records. Run: ALTER SYSTEM SET %s = on; SELECT pg_reload_conf();', name, name) AS weakness
FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off'
UNION ALL
SELECT format('synchronous_commit is %s: a power cut loses records. Run: ALTER DATABASE %I SET synchronous_commit = on;',
              reset_val, current_database())
FROM pg_settings WHERE name = 'synchronous_commit' AND reset_val NOT IN ('on', 'remote_apply')
  AND source NOT IN ('database', 'user', 'database user', 'global')  -- they are the next ones
UNION ALL
SELECT format('%s for %s %s: a power cut loses records. Run: ALTER %s RESET synchronous_commit;', configured,
              CASE WHEN setrole = 0 THEN 'all roles' ELSE 'the role ' || pg_get_userbyid(setrole) END,
              CASE WHEN setdatabase = 0 THEN 'in all databases' ELSE 'in this database' END,
              CASE WHEN setrole <> 0 THEN format('ROLE %I', pg_get_userbyid(setrole)) || CASE
                       WHEN setdatabase <> 0 THEN format(' IN DATABASE %I', current_database()) ELSE '' END
                   WHEN setdatabase <> 0 THEN format('DATABASE %I', current_database()) ELSE 'ROLE ALL' END)
FROM pg_db_role_setting CROSS JOIN LATERAL unnest(setconfig) AS configured
WHERE configured ~* '^synchronous_commit=' AND configured !~* '=(on|true|yes|1|remote_apply)$'
  AND setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
  AND (setrole = 0 OR pg_get_userbyid(setrole) = session_user OR pg_get_userbyid(setrole) LIKE 'affidavit\_%')
UNION ALL
SELECT format('The table %s is not logged: a crash empties it. ALTER TABLE %s SET LOGGED.', relname, relname)
FROM pg_class
WHERE relkind IN ('r', 'p') AND relpersistence <> 'p'
  AND relnamespace = 'public'::regnamespace AND relname LIKE 'audit\_%'
ORDER BY weakness
"""
# Who may not see the state of a standby sees its line all the same. A base backup takes over nothing.
_STANDBYS = """
SELECT count(*), current_setting('synchronous_standby_names') FROM pg_stat_replication r
WHERE state IS DISTINCT FROM 'backup' AND NOT EXISTS (
    SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')
"""
_PERMANENT = (
    psycopg.DataError, errors.UniqueViolation, errors.NotNullViolation, UnicodeEncodeError,
    errors.ProgramLimitExceeded, errors.StatementTooComplex,  # to the driver a failure of the server, but the row's
)  # fmt: skip


def arguments(entries: Sequence[Entry]) -> tuple[object, ...]:
    return (
        listed(entries, "opened"), listed(entries, "noted"), ids(entries, "closed"), listed(entries, "closed"),
    )  # fmt: skip


class DatabaseWriter:
    """One connection, opened on demand and dropped when it fails. One batch at a time."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._connection: psycopg.AsyncConnection | None = None

    async def write(self, entries: Sequence[Entry], before_commit: Callable[[], None] | None = None) -> None:
        """Durable when it returns. A driver's message may repeat rows, so only the type of its failure is passed on.

        `before_commit` may raise, and then nothing is written: a server that wakes up late commits nothing by itself.
        """
        try:
            async with asyncio.timeout(WRITE_S), asyncio.timeout(WRITE_S - WIND_UP_S):
                connection = await self._connected()
                if before_commit is None or not any(entry.kind == "closed" for entry in entries):
                    await connection.execute(WRITE, arguments(entries), prepare=True)
                    return
                await _transacted(connection, arguments(entries), before_commit)
        except _PERMANENT as failure:
            raise PermanentWriteError(type(failure).__name__) from None
        except errors.CheckViolation:
            raise MissingMonthError("No partition") from None
        except (psycopg.Error, OSError, TimeoutError) as failure:
            raise await self._said(failure) from None

    async def make_month(self, of: str) -> None:
        """Make the month of a row that is older or newer than the months that exist."""
        await self._asked("SELECT audit_make_month(%s)", (datetime.fromisoformat(of).date(),))

    async def discard_if_stored(self, entry: Entry) -> bool:
        """Whether this very row is in the database or in the archive. If so, its open record is deleted."""
        found = await self._asked("SELECT audit_holds(%s::json)", (listed([entry], "closed"),))
        if found:
            await self._asked("DELETE FROM audit_open WHERE log_id = %s RETURNING true", (entry.log_id,))
        return found

    async def _asked(self, statement: str, values: tuple[object, ...]) -> bool:
        try:
            async with asyncio.timeout(WRITE_S), asyncio.timeout(WRITE_S - WIND_UP_S):
                connection = await self._connected()
                return await (await connection.execute(statement.encode(), values)).fetchone() == (True,)
        except (psycopg.Error, OSError, TimeoutError) as failure:
            raise await self._said(failure) from None

    async def _said(self, failure: Exception) -> Exception:
        if is_archived(failure):
            return ArchivedMonthError("The month is archived")
        await self.close()
        return TransientWriteError(type(failure).__name__)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            with contextlib.suppress(psycopg.Error):
                await connection.close()

    async def _connected(self) -> psycopg.AsyncConnection:
        if self._connection is None or self._connection.closed:
            self._connection = await AsyncSession.connect(self._conninfo, autocommit=True)
            await self._connection.execute(_NO_LOCKS_OF_A_STALLED_PROCESS)
        return self._connection


async def _transacted(
    connection: psycopg.AsyncConnection, values: tuple[object, ...], before_commit: Callable[[], None]
) -> None:
    try:
        await psycopg.AsyncClientCursor(connection).execute(_BEGIN_AND_WRITE, values)
        before_commit()
        await connection.commit()
    except BaseException:
        with contextlib.suppress(psycopg.Error):  # the connection is closed, and the failure is what it was
            await connection.rollback()
        raise


def is_archived(failure: Exception) -> bool:
    return isinstance(failure, psycopg.Error) and failure.sqlstate == ARCHIVED


async def weaknesses(connection: psycopg.AsyncConnection) -> list[str]:
    """Settings with which PostgreSQL may lose a commit that it acknowledged, each with what to do. Cheap enough for every minute."""
    cursor = await connection.execute(_WEAKNESSES.encode())
    return [message for (message,) in await cursor.fetchall()]


async def failover_losses(connection: psycopg.AsyncConnection) -> str:
    """What a failover to a standby can lose, and which setting prevents it; empty if it loses nothing, or if there is no standby."""
    ((standbys, named),) = await (await connection.execute(_STANDBYS.encode())).fetchall()
    if not standbys or named.strip():
        return ""
    return (
        f"{standbys} standbys receive this database asynchronously: if one takes over, it lacks the records that it had not"
        " received yet, although readers have their answers and receipts. On the primary, run:"
        " ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; SELECT pg_reload_conf();"
    )
