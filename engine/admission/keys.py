"""API keys and their repository: `aff_<key id>_<secret><checksum>`. Each is shown once; the database stores its digest.

The prefix lets secret scanners recognise a leaked key, the key id is the lookup key, and the checksum rejects a typing
error without a database query.
"""

import asyncio
import hmac
import logging
import re
import secrets
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from hashlib import sha256
from typing import Any

from psycopg.rows import class_row
from psycopg_pool import AsyncConnectionPool

from audit.proof.record import Trail
from engine.admission.key_trail import StoredKey
from engine.admission.operator_events import OperatorEvents
from engine.errors import ConfigurationError, UnauthenticatedError
from engine.models import PERSON, Client
from engine.ports import Clock
from engine.storage.database import borrowed

PREFIX = "aff"
KEY_ID_BYTES = 5
SECRET_BYTES = 32  # 256 bits cannot be guessed, so a fast hash is enough
FINGERPRINT_DIGITS = 32
WRITE_S = 5.0  # timeout of a write, which runs in the background
RETRY_S = 1.0  # pause before a failed write is retried

_KEY = re.compile(
    rf"(?P<body>{PREFIX}_(?P<key_id>[0-9a-f]{{{2 * KEY_ID_BYTES}}})_[0-9a-f]{{{2 * SECRET_BYTES}}})(?P<checksum>[0-9a-f]{{8}})"
)
_NO_DIGEST = b"\x00" * 32  # compared if the key does not exist, so that every refusal takes the same time

_ALL = """
SELECT key_id, client_id, scopes, books, rate_limit, created_at, revoked_at,
       (SELECT max(day) FROM api_key_uses WHERE api_key_uses.key_id = api_keys.key_id) AS last_used_on
FROM api_keys ORDER BY created_at
"""
_STORED = """
SELECT key_id, client_id, digest, scopes, books, rate_limit, created_at, revoked_at FROM api_keys ORDER BY created_at
"""
_ONE = """
SELECT digest, client_id, scopes, revoked_at IS NULL OR revoked_at > now(), rate_limit, books, revoked_at
FROM api_keys WHERE key_id = %s
"""
_VALID = """
SELECT key_id, client_id FROM api_keys
WHERE (revoked_at IS NULL OR revoked_at > now()) AND (key_id = %s OR client_id = %s) FOR UPDATE
"""
_UNROTATED = "SELECT client_id FROM api_keys WHERE key_id = %s AND revoked_at IS NULL FOR UPDATE"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Key:
    """The stored description of a key, without its secret."""

    key_id: str
    client_id: str
    scopes: list[str]
    books: list[str] | None
    rate_limit: str | None
    created_at: datetime
    revoked_at: datetime | None
    last_used_on: date | None


class ApiKeys:
    """The repository of API keys, the table `api_keys`. Changing a key needs operator events; authentication does not."""

    def __init__(self, pool: AsyncConnectionPool, operator_events: OperatorEvents | None = None) -> None:
        self._pool = pool
        self._operator_events = operator_events

    async def authenticate(self, secret: str | None) -> Client:
        key_id = key_id_of(secret) if secret else None
        row = await self._row(key_id) if key_id else None
        expected = row[0] if row else _NO_DIGEST
        is_same = hmac.compare_digest(digest(secret or ""), expected)
        if row is None or not is_same or not row[3]:
            raise UnauthenticatedError
        return _client(key_id, row)

    async def holder(self, key_id: str) -> Client:
        """The holder of a valid key, without its secret: a public token names the key that has made it."""
        row = await self._row(key_id)
        if row is None or not row[3]:
            raise UnauthenticatedError
        return _client(key_id, row)

    async def create(
        self, client_id: str, scopes: Sequence[str], rate_limit: str | None, books: Sequence[str] = ()
    ) -> str:
        """Creates a key and returns it. Only its digest is stored."""
        if client_id.startswith(PERSON):
            raise ConfigurationError(
                f"A key's client cannot be named {PERSON}…: records name so who signed in to the console at an identity provider."
            )
        key_id, secret = mint()
        granted = {"scopes": list(scopes), "rate_limit": rate_limit, "books": list(books) or None}
        async with borrowed(self._pool) as connection:
            async with self._event(
                "create", client_id, key_id, **granted, fingerprint=fingerprint(digest(secret))
            ):
                await connection.execute(
                    "INSERT INTO api_keys (key_id, client_id, digest, scopes, rate_limit, books)"
                    " VALUES (%s, %s, %s, %s, %s, %s)",
                    (key_id, client_id, digest(secret), *granted.values()),
                )
        return secret

    async def rotate(self, key_id: str, overlap: timedelta) -> str | None:
        """A new key with the same rights; the old one stays valid for the overlap. None if the key does not exist or was
        rotated before."""
        new_id, secret = mint()
        async with borrowed(self._pool) as connection:
            row = await (await connection.execute(_UNROTATED, (key_id,))).fetchone()
            if row is None:
                return None
            about = {
                "new_key_id": new_id,
                "overlap_s": round(overlap.total_seconds()),
                "fingerprint": fingerprint(digest(secret)),
            }
            async with self._event("rotate", row[0], key_id, **about):
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
        async with borrowed(self._pool) as connection:
            cursor = connection.cursor(row_factory=class_row(Key))
            await cursor.execute(_ALL)
            return await cursor.fetchall()

    async def stored(self) -> list[StoredKey]:
        """As they are in the table, to be compared with their records."""
        async with borrowed(self._pool) as connection:
            rows = await (await connection.execute(_STORED)).fetchall()
        return [
            StoredKey(key_id, client_id, fingerprint(stored), *rest)
            for key_id, client_id, stored, *rest in rows
        ]

    async def revoke(self, *, key_id: str | None = None, client_id: str | None = None) -> int:
        """Revokes one key, or all keys of a client, and returns how many of them were valid."""
        async with borrowed(self._pool) as connection:
            cursor = await connection.execute(_VALID, (key_id, client_id))
            found = await cursor.fetchall()
            for name, owner in found:
                async with self._event("revoke", owner, name):
                    await connection.execute(
                        "UPDATE api_keys SET revoked_at = clock_timestamp() WHERE key_id = %s", (name,)
                    )
                # One by one, so that a later failure cannot undo what this event has recorded.
                await connection.commit()
        return len(found)

    async def note_uses(self, uses: Sequence[tuple[str, date]]) -> None:
        async with borrowed(self._pool) as connection:
            await connection.execute(
                "INSERT INTO api_key_uses SELECT * FROM unnest(%s::text[], %s::date[]) ON CONFLICT DO NOTHING",
                ([key_id for key_id, _ in uses], [day for _, day in uses]),
            )

    def _event(
        self, command: str, client_id: str, key_id: str, **about: Any
    ) -> AbstractAsyncContextManager[Trail]:
        assert self._operator_events, "A key is changed only where the change can be recorded"
        return self._operator_events.event(f"keys {command}", client_id=client_id, key_id=key_id, **about)

    async def _row(self, key_id: str) -> tuple[Any, ...] | None:
        async with borrowed(self._pool) as connection:
            return await (await connection.execute(_ONE, (key_id,))).fetchone()


class KeyUses:
    """Write-behind of the days on which keys were used: once per key and day, in the background, with retries."""

    def __init__(self, write: Callable[[Sequence[tuple[str, date]]], Awaitable[None]], clock: Clock) -> None:
        self._write = write
        self._clock = clock
        self._noted: dict[str, date] = {}
        self._unwritten: set[tuple[str, date]] = set()
        self._writing: asyncio.Task[None] | None = None

    def note(self, key_id: str) -> None:
        """Notes a use. Call it for valid keys only, so that their number bounds the memory."""
        today = self._clock().date()
        if self._noted.get(key_id) == today:
            return
        self._noted[key_id] = today
        self._unwritten.add((key_id, today))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())

    async def close(self) -> None:
        """Makes one last attempt at writing."""
        if self._writing:
            self._writing.cancel()
            await asyncio.wait([self._writing])
        if self._unwritten and not await self._try_write():
            log.error(
                "The last uses of %s API keys could not be written to the database and are lost",
                len(self._unwritten),
            )

    async def _write_all(self) -> None:
        while self._unwritten:
            if not await self._try_write():
                await asyncio.sleep(RETRY_S)

    async def _try_write(self) -> bool:
        uses = sorted(self._unwritten)
        try:
            async with asyncio.timeout(WRITE_S):
                await self._write(uses)
        except Exception as failure:  # noqa: BLE001  after any failure the uses stay queued and are retried
            log.warning("The uses of API keys could not be written (%s); retrying", type(failure).__name__)
            return False
        self._unwritten.difference_update(uses)
        return True


def _client(key_id: str | None, row: tuple[Any, ...]) -> Client:
    _, client_id, scopes, _, rate_limit, books, ends_at = row
    return Client(client_id, key_id, frozenset(scopes), rate_limit, frozenset(books or ()), ends_at)


def mint() -> tuple[str, str]:
    """Generates a key id and its key."""
    key_id, secret = secrets.token_hex(KEY_ID_BYTES), secrets.token_hex(SECRET_BYTES)
    body = f"{PREFIX}_{key_id}_{secret}"
    return key_id, body + _checksum(body)


def key_id_of(key: str) -> str | None:
    """The id in a well-formed key; None if the format or the checksum is wrong."""
    found = _KEY.fullmatch(key)
    return found["key_id"] if found and _checksum(found["body"]) == found["checksum"] else None


def digest(key: str) -> bytes:
    return sha256(key.encode()).digest()


def fingerprint(stored: bytes) -> str:
    """What a record says of a key's digest, so that another secret in its place is found."""
    return sha256(stored).hexdigest()[:FINGERPRINT_DIGITS]


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"
