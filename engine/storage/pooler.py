"""Refuses a connection pooler that gives no session of its own: there a role is not set, or is set for somebody else too.

Everything here relies on sessions: a role with few rights and pinned settings for each, leases that are session names,
prepared statements, and cursors over a snapshot. A pooler that pools whole sessions gives them.
"""

import asyncio
import contextlib

import psycopg

from engine.errors import ConfigurationError

WAIT_S = 5.0  # a pooler whose sessions are all taken lets a client wait for minutes
WIND_UP_S = 0.1  # a cancelled psycopg waits for a silent server; a second cancellation ends that
_MARK = "SET affidavit.session = 'ours'"
_IS_MARKED = "SELECT current_setting('affidavit.session', true) = 'ours', pg_backend_pid()"
_PID = "SELECT pg_backend_pid()"
ADVICE = (
    "Affidavit sets a role with few rights for each of its sessions and pools its connections itself: name PostgreSQL itself in"
    " DATABASE_URL, past the pooler (database.connections_max limits the connections), or set pool_mode = session for this"
    " database, with server_reset_query = DISCARD ALL."
)


async def check_sessions(url: str) -> None:
    """`ConfigurationError` in front of such a pooler. A database that does not answer is left to whoever needs it."""
    with contextlib.suppress(psycopg.OperationalError, TimeoutError):
        async with await _connected(url) as first:
            pid = await _pid(first)
            # A pooler gives a process id of its own invention when it connects.
            if pid == first.info.backend_pid:
                return
            if await _is_shared(url, first, pid):
                raise ConfigurationError(
                    "DATABASE_URL leads to a connection pooler that shares sessions between transactions, such as PgBouncer"
                    f" with pool_mode = transaction or statement. {ADVICE}"
                )
            await first.execute(_MARK)
        async with await _connected(url) as next_one:
            if await (await next_one.execute(_IS_MARKED)).fetchone() == (True, pid):
                raise ConfigurationError(
                    "DATABASE_URL leads to a connection pooler that hands a session on with its role and its settings, such"
                    f" as PgBouncer with an empty server_reset_query. {ADVICE}"
                )


async def _is_shared(url: str, first: psycopg.AsyncConnection, pid: int) -> bool:
    """While another transaction is open, a session of its own is still the same one."""
    try:
        async with (
            await _connected(url) as second,
            asyncio.timeout(WAIT_S),
            asyncio.timeout(WAIT_S - WIND_UP_S),
        ):
            await second.execute("BEGIN")
            other = await _pid(second)
            return other == pid or await _pid(first) != pid
    except psycopg.errors.ProtocolViolation:  # it refuses transactions
        return True
    except TimeoutError:
        raise ConfigurationError(
            f"DATABASE_URL leads to a connection pooler that gives no second session within {WAIT_S:.0f} s. Raise its pool size"
            f" to the connections of all engines and commands. {ADVICE}"
        ) from None


async def _connected(url: str) -> psycopg.AsyncConnection:
    return await psycopg.AsyncConnection.connect(url, autocommit=True)


async def _pid(connection: psycopg.AsyncConnection) -> int:
    found = await (await connection.execute(_PID)).fetchone()
    return int(found[0]) if found else 0
