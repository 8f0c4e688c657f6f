"""Connections that set their role and their settings once they are connected, and not while they connect.

A pooler such as PgBouncer refuses or drops `options` at start-up. What a session sets for itself holds wherever the session is
its own: with PostgreSQL itself, and behind a pooler that pools sessions.
"""

import asyncio
import re
from typing import Any, Self

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

SET_S = 5.0  # a pooler accepts a client also while its server is away, and then lets it wait
WIND_UP_S = 0.1  # a cancelled psycopg waits for a silent server; a second cancellation ends that
_SETTING = re.compile(r"-c ([a-z_.]+)=((?:\\.|[^\\ ])*)")


class Session(psycopg.Connection[TupleRow]):
    @classmethod
    def connect(cls, conninfo: str = "", *, autocommit: bool = False, **given: Any) -> Self:
        """As psycopg's, but `options` are only ours: see `engine/storage/database.py`."""
        address, settings = _divided(conninfo)
        opened = super().connect(address, autocommit=True, **given)
        try:
            opened.execute(settings)
            opened.autocommit = autocommit
        except BaseException:
            opened.close()
            raise
        return opened


class AsyncSession(psycopg.AsyncConnection[TupleRow]):
    @classmethod
    async def connect(cls, conninfo: str = "", *, autocommit: bool = False, **given: Any) -> Self:
        """As `Session.connect`."""
        address, settings = _divided(conninfo)
        opened = await super().connect(address, autocommit=True, **given)
        try:
            async with asyncio.timeout(SET_S), asyncio.timeout(SET_S - WIND_UP_S):
                await opened.execute(settings)
                await opened.set_autocommit(autocommit)
        except BaseException as failure:
            await opened.close()
            if isinstance(failure, TimeoutError):
                raise errors.ConnectionTimeout(
                    "The server accepts a connection, and then says nothing"
                ) from None
            raise
        return opened


def _divided(conninfo: str) -> tuple[str, sql.Composed]:
    """The address without its `options`, and the statement that sets them."""
    given = conninfo_to_dict(conninfo)
    options = str(given.pop("options", None) or "")
    settings = [
        sql.SQL("set_config({}, {}, false)").format(name, re.sub(r"\\(.)", r"\1", value))
        for name, value in _SETTING.findall(options)
    ]
    return make_conninfo("", **given), sql.SQL("SELECT ") + sql.SQL(", ").join(settings)
