"""The writer's connection to PostgreSQL: batches of entries in, one transaction each."""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime

import psycopg

from audit.errors import ArchivedMonthError, MissingMonthError, PermanentWriteError, TransientWriteError
from audit.ledger.entry import Entry, ids, listed

WRITE_S = 5.0  # a batch takes milliseconds: whoever needs longer is away
WIND_UP_S = 0.1  # psycopg, once interrupted, waits ten seconds for a server that is silent; interrupted again, it goes

WRITE = "SELECT audit_write(%s::json, %s::json, %s::uuid[], %s::json)"
ARCHIVED = "AF001"  # what sql/0013 says of a row for a month that has begun to leave


def arguments(entries: Sequence[Entry]) -> tuple[object, ...]:
    return (
        listed(entries, "opened"), listed(entries, "noted"), ids(entries, "closed"), listed(entries, "closed"),
    )  # fmt: skip


class DatabaseWriter:
    """One connection that is made when it is needed and thrown away when it fails. One batch at a time."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._connection: psycopg.AsyncConnection | None = None

    async def write(self, entries: Sequence[Entry]) -> None:
        """Durable when it returns. The driver's words repeat rows, so only its kind of failure is told on."""
        try:
            async with asyncio.timeout(WRITE_S), asyncio.timeout(WRITE_S - WIND_UP_S):
                connection = await self._connected()
                await connection.execute(WRITE, arguments(entries), prepare=True)
        except (
            psycopg.DataError,
            psycopg.errors.UniqueViolation,
            psycopg.errors.NotNullViolation,
        ) as failure:
            raise PermanentWriteError(type(failure).__name__) from None
        except psycopg.errors.CheckViolation:
            raise MissingMonthError("No partition") from None
        except (psycopg.Error, OSError, TimeoutError) as failure:
            raise await self._said(failure) from None
        except UnicodeEncodeError:
            raise PermanentWriteError("UnicodeEncodeError") from None

    async def make_month(self, of: str) -> None:
        """For a row that came too late or too early for the months that are there."""
        await self._asked("SELECT audit_make_month(%s)", (datetime.fromisoformat(of).date(),))

    async def holds(self, entry: Entry) -> bool:
        """Whether this very row is there, or in the archive. Then its open record has no more to say."""
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
            self._connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
        return self._connection


def is_archived(failure: Exception) -> bool:
    return isinstance(failure, psycopg.Error) and failure.sqlstate == ARCHIVED
