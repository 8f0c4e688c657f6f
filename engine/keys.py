"""API keys: `aff_<key id>_<secret><checksum>`. The secret is shown once; the database keeps a digest of the whole.

The prefix lets scanners recognise a leaked key, the key id finds its row, the checksum rejects a typing error without
asking the database.
"""

import hmac
import re
import secrets
import zlib
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

import psycopg
from psycopg.rows import class_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from engine.errors import DatabaseUnavailableError, UnauthenticatedError
from engine.models import Client

PREFIX = "aff"
KEY_ID_BYTES = 5
SECRET_BYTES = 32  # 256 bits: nobody guesses it, so a fast hash is enough

_KEY = re.compile(
    rf"(?P<body>{PREFIX}_(?P<key_id>[0-9a-f]{{{2 * KEY_ID_BYTES}}})_[0-9a-f]{{{2 * SECRET_BYTES}}})(?P<checksum>[0-9a-f]{{8}})"
)
_NOBODY = b"\x00" * 32  # compared when there is no such key, so that all refusals take the same time


@dataclass(frozen=True, slots=True)
class Key:
    """What is known of a key, without the key."""

    key_id: str
    client_id: str
    scopes: list[str]
    rate_limit: str | None
    created_at: datetime
    revoked_at: datetime | None


class ApiKeys:
    """The keys of this deployment, in the table `api_keys`."""

    def __init__(self, pool: AsyncConnectionPool) -> None:
        self._pool = pool

    async def authenticate(self, secret: str | None) -> Client:
        key_id = key_id_of(secret) if secret else None
        row = await self._row(key_id) if key_id else None
        expected = row[0] if row else _NOBODY
        is_same = hmac.compare_digest(digest(secret or ""), expected)
        if row is None or not is_same or row[3]:
            raise UnauthenticatedError
        return Client(row[1], key_id, frozenset(row[2]), row[4])

    async def create(self, client_id: str, scopes: list[str], rate_limit: str | None) -> str:
        """A new key; the returned secret is not kept anywhere."""
        key_id, secret = mint()
        async with self._pool.connection() as connection:
            await connection.execute(
                "INSERT INTO api_keys (key_id, client_id, digest, scopes, rate_limit) VALUES (%s, %s, %s, %s, %s)",
                (key_id, client_id, digest(secret), scopes, rate_limit),
            )
        return secret

    async def all(self) -> list[Key]:
        async with self._pool.connection() as connection:
            cursor = connection.cursor(row_factory=class_row(Key))
            await cursor.execute(
                "SELECT key_id, client_id, scopes, rate_limit, created_at, revoked_at FROM api_keys ORDER BY created_at"
            )
            return await cursor.fetchall()

    async def revoke(self, *, key_id: str | None = None, client_id: str | None = None) -> int:
        """Revoke one key, or all of a client; how many were valid until now."""
        async with self._pool.connection() as connection:
            cursor = await connection.execute(
                "UPDATE api_keys SET revoked_at = now() WHERE revoked_at IS NULL AND (key_id = %s OR client_id = %s)",
                (key_id, client_id),
            )
        return cursor.rowcount

    async def _row(self, key_id: str) -> tuple[bytes, str, list[str], bool, str | None] | None:
        try:
            async with self._pool.connection() as connection:
                cursor = await connection.execute(
                    "SELECT digest, client_id, scopes, revoked_at IS NOT NULL, rate_limit FROM api_keys"
                    " WHERE key_id = %s",
                    (key_id,),
                )
                return await cursor.fetchone()
        except (psycopg.Error, PoolTimeout) as failure:
            raise DatabaseUnavailableError from failure


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
