"""API keys: `aff_<key id>_<secret><checksum>`. The secret is shown once; the database keeps a digest of the whole.

The prefix lets scanners recognise a leaked key, the key id finds its row, the checksum rejects a typing error without
asking the database.
"""

import asyncio
import hmac
import logging
import re
import secrets
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from hashlib import sha256
from typing import Any

import psycopg
from psycopg.rows import class_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from audit.proof.record import Trail
from engine.admission.operator_events import OperatorEvents
from engine.errors import DatabaseUnavailableError, UnauthenticatedError
from engine.models import Client
from engine.ports import Clock

PREFIX = "aff"
KEY_ID_BYTES = 5
SECRET_BYTES = 32  # 256 bits: nobody guesses it, so a fast hash is enough
USE_S = 5.0  # to write a use, beside the requests
PAUSE_S = 1.0  # before a database that did not take it is tried again

_KEY = re.compile(
    rf"(?P<body>{PREFIX}_(?P<key_id>[0-9a-f]{{{2 * KEY_ID_BYTES}}})_[0-9a-f]{{{2 * SECRET_BYTES}}})(?P<checksum>[0-9a-f]{{8}})"
)
_NOBODY = b"\x00" * 32  # compared when there is no such key, so that all refusals take the same time

_ALL = """
SELECT key_id, client_id, scopes, books, rate_limit, created_at, revoked_at,
       (SELECT max(day) FROM api_key_uses WHERE api_key_uses.key_id = api_keys.key_id) AS last_used_on
FROM api_keys ORDER BY created_at
"""
_ONE = """
SELECT digest, client_id, scopes, revoked_at IS NULL OR revoked_at > now(), rate_limit, books, revoked_at
FROM api_keys WHERE key_id = %s
"""
_GOOD = """
SELECT key_id, client_id FROM api_keys
WHERE (revoked_at IS NULL OR revoked_at > now()) AND (key_id = %s OR client_id = %s) FOR UPDATE
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Key:
    """What is known of a key, without the key."""

    key_id: str
    client_id: str
    scopes: list[str]
    books: list[str] | None
    rate_limit: str | None
    created_at: datetime
    revoked_at: datetime | None
    last_used_on: date | None


class ApiKeys:
    """The keys of this deployment, in the table `api_keys`. Who only asks whose a key is needs no register."""

    def __init__(self, pool: AsyncConnectionPool, operator_events: OperatorEvents | None = None) -> None:
        self._pool = pool
        self._operator_events = operator_events

    async def authenticate(self, secret: str | None) -> Client:
        key_id = key_id_of(secret) if secret else None
        row = await self._row(key_id) if key_id else None
        expected = row[0] if row else _NOBODY
        is_same = hmac.compare_digest(digest(secret or ""), expected)
        if row is None or not is_same or not row[3]:
            raise UnauthenticatedError
        _, client_id, scopes, _, rate_limit, books, ends_at = row
        return Client(client_id, key_id, frozenset(scopes), rate_limit, frozenset(books or ()), ends_at)

    async def create(
        self, client_id: str, scopes: Sequence[str], rate_limit: str | None, books: Sequence[str] = ()
    ) -> str:
        """A new key; the returned secret is not kept anywhere."""
        key_id, secret = mint()
        granted = {"scopes": list(scopes), "rate_limit": rate_limit, "books": list(books) or None}
        async with self._connection() as connection:
            async with self._event("create", client_id, key_id, **granted):
                await connection.execute(
                    "INSERT INTO api_keys (key_id, client_id, digest, scopes, rate_limit, books)"
                    " VALUES (%s, %s, %s, %s, %s, %s)",
                    (key_id, client_id, digest(secret), *granted.values()),
                )
        return secret

    async def rotate(self, key_id: str, overlap: timedelta) -> str | None:
        """A new secret with the same rights; the old one is good for the overlap. None if there is no such key, or if
        it was rotated before."""
        new_id, secret = mint()
        async with self._connection() as connection:
            client_id = await _client_of(connection, key_id)
            if client_id is None:
                return None
            about = {"new_key_id": new_id, "overlap_s": round(overlap.total_seconds())}
            async with self._event("rotate", client_id, key_id, **about):
                await connection.execute(
                    "INSERT INTO api_keys (key_id, client_id, digest, scopes, rate_limit, books)"
                    " SELECT %s, client_id, %s, scopes, rate_limit, books FROM api_keys WHERE key_id = %s",
                    (new_id, digest(secret), key_id),
                )
                await connection.execute(
                    "UPDATE api_keys SET revoked_at = clock_timestamp() + %s WHERE key_id = %s",
                    (overlap, key_id),
                )
        return secret

    async def all(self) -> list[Key]:
        async with self._connection() as connection:
            cursor = connection.cursor(row_factory=class_row(Key))
            await cursor.execute(_ALL)
            return await cursor.fetchall()

    async def revoke(self, *, key_id: str | None = None, client_id: str | None = None) -> int:
        """Revoke one key, or all of a client; how many were good until now."""
        async with self._connection() as connection:
            cursor = await connection.execute(_GOOD, (key_id, client_id))
            found = await cursor.fetchall()
            for name, owner in found:
                async with self._event("revoke", owner, name):
                    await connection.execute(
                        "UPDATE api_keys SET revoked_at = clock_timestamp() WHERE key_id = %s", (name,)
                    )
                await connection.commit()  # each for itself: no later failure makes this row a lie
        return len(found)

    async def note_uses(self, uses: Sequence[tuple[str, date]]) -> None:
        async with self._connection() as connection:
            await connection.execute(
                "INSERT INTO api_key_uses SELECT * FROM unnest(%s::text[], %s::date[]) ON CONFLICT DO NOTHING",
                ([key_id for key_id, _ in uses], [day for _, day in uses]),
            )

    def _event(
        self, command: str, client_id: str, key_id: str, **about: Any
    ) -> AbstractAsyncContextManager[Trail]:
        assert self._operator_events, "Only who can record it may change a key"
        return self._operator_events.event(f"keys {command}", client_id=client_id, key_id=key_id, **about)

    async def _row(
        self, key_id: str
    ) -> tuple[bytes, str, list[str], bool, str | None, list[str] | None, datetime | None] | None:
        async with self._connection() as connection:
            cursor = await connection.execute(_ONE, (key_id,))
            return await cursor.fetchone()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[psycopg.AsyncConnection]:
        try:
            async with self._pool.connection() as connection:
                yield connection
        except (psycopg.Error, PoolTimeout) as failure:
            raise DatabaseUnavailableError from failure


class KeyUses:
    """On which days a key was used. Each process writes a day of a key once, beside the requests, until it is written."""

    def __init__(self, write: Callable[[Sequence[tuple[str, date]]], Awaitable[None]], clock: Clock) -> None:
        self._write = write
        self._clock = clock
        self._noted: dict[str, date] = {}
        self._unwritten: set[tuple[str, date]] = set()
        self._writing: asyncio.Task[None] | None = None

    def note(self, key_id: str) -> None:
        """Of a good key, so there are no more of them than keys."""
        today = self._clock().date()
        if self._noted.get(key_id) == today:
            return
        self._noted[key_id] = today
        self._unwritten.add((key_id, today))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())

    async def close(self) -> None:
        """One last try for what is not written yet."""
        if self._writing:
            self._writing.cancel()
            await asyncio.wait([self._writing])
        if self._unwritten and not await self._try_write():
            log.error("The last uses of %s keys could not be written", len(self._unwritten))

    async def _write_all(self) -> None:
        while self._unwritten:
            if not await self._try_write():
                await asyncio.sleep(PAUSE_S)

    async def _try_write(self) -> bool:
        uses = sorted(self._unwritten)
        try:
            async with asyncio.timeout(USE_S):
                await self._write(uses)
        except Exception as failure:  # noqa: BLE001  whatever it is, the uses are kept and tried again
            log.warning("Uses of keys could not be written (%s)", type(failure).__name__)
            return False
        self._unwritten.difference_update(uses)
        return True


async def _client_of(connection: psycopg.AsyncConnection, key_id: str) -> str | None:
    cursor = await connection.execute(
        "SELECT client_id FROM api_keys WHERE key_id = %s AND revoked_at IS NULL FOR UPDATE", (key_id,)
    )
    row = await cursor.fetchone()
    return row[0] if row else None


def mint() -> tuple[str, str]:
    """A key id and the whole key."""
    key_id, secret = secrets.token_hex(KEY_ID_BYTES), secrets.token_hex(SECRET_BYTES)
    body = f"{PREFIX}_{key_id}_{secret}"
    return key_id, body + _checksum(body)


def key_id_of(key: str) -> str | None:
    """The id in a well-formed key; None if it cannot be one of ours."""
    found = _KEY.fullmatch(key)
    return found["key_id"] if found and _checksum(found["body"]) == found["checksum"] else None


def digest(key: str) -> bytes:
    return sha256(key.encode()).digest()


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"
