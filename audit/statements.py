"""The writer's connection to PostgreSQL: batches of entries in, one transaction each."""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime

import psycopg

from audit.entry import Entry, ids, listed
from audit.group_commit import AwayError, RefusedError

WRITE_S = 5.0  # a batch takes milliseconds: whoever needs longer is away
WIND_UP_S = 0.1  # psycopg, once interrupted, waits ten seconds for a server that is silent; interrupted again, it goes

WRITE = "SELECT audit_write(%s::json, %s::json, %s::uuid[], %s::json)"


def arguments(entries: Sequence[Entry]) -> tuple[object, ...]:
    return (
        listed(entries, "opened"), listed(entries, "noted"), ids(entries, "closed"), listed(entries, "closed"),
    )  # fmt: skip


class MissingMonthError(AwayError):
    """There is no partition for one of the rows; one can be made."""


class Statements:
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
            raise RefusedError(type(failure).__name__) from None
        except psycopg.errors.CheckViolation:
            raise MissingMonthError("No partition") from None
        except (psycopg.Error, OSError, TimeoutError) as failure:
            await self.close()
            raise AwayError(type(failure).__name__) from None
        except UnicodeEncodeError:
            raise RefusedError("UnicodeEncodeError") from None

    async def make_month(self, of: str) -> None:
        """For a row that came too late or too early for the months that are there."""
        try:
            async with asyncio.timeout(WRITE_S), asyncio.timeout(WRITE_S - WIND_UP_S):
                connection = await self._connected()
                await connection.execute("SELECT audit_make_month(%s)", (datetime.fromisoformat(of).date(),))
        except (psycopg.Error, OSError, TimeoutError) as failure:
            await self.close()
            raise AwayError(type(failure).__name__) from None

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            with contextlib.suppress(psycopg.Error):
                await connection.close()

    async def _connected(self) -> psycopg.AsyncConnection:
        if self._connection is None or self._connection.closed:
            self._connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
        return self._connection
