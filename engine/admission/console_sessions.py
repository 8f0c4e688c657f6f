"""Sessions of the console: an API key, exchanged for the secret of a cookie. The table holds its digest alone.

A session ends when its key does, when it is signed out, `IDLE` after its last request, and `LIFETIME` after it began.
"""

import secrets
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from psycopg_pool import AsyncConnectionPool

from engine.errors import UnauthenticatedError
from engine.models import Client
from engine.storage.database import borrowed

SECRET_BYTES = 32
LIFETIME = timedelta(hours=10)
IDLE = timedelta(minutes=45)
_TOUCHED_EVERY = timedelta(minutes=1)  # a session's row is not written at every request

# A session whose key was revoked, or has lost its scope, is none.
_HOLDER = """
SELECT k.client_id, k.key_id, k.scopes, k.rate_limit, k.books, k.revoked_at, s.last_seen_at < now() - %(touched)s
FROM console_sessions s JOIN api_keys k USING (key_id)
WHERE s.digest = %(digest)s AND s.created_at > now() - %(lifetime)s AND s.last_seen_at > now() - %(idle)s
  AND (k.revoked_at IS NULL OR k.revoked_at > now()) AND 'audit' = ANY (k.scopes)
"""
_TOUCH = "UPDATE console_sessions SET last_seen_at = now() WHERE digest = %s"
_BEGIN = "INSERT INTO console_sessions (digest, key_id) VALUES (%s, %s)"
_END = "DELETE FROM console_sessions WHERE digest = %s"
_FORGET_ENDED = "DELETE FROM console_sessions WHERE created_at <= now() - %s OR last_seen_at <= now() - %s"


@dataclass(frozen=True, slots=True)
class ConsoleSessions:
    """The repository of the table `console_sessions`."""

    pool: AsyncConnectionPool

    async def begin(self, key_id: str) -> str:
        """The secret of a new session of this key. What has ended meanwhile is forgotten."""
        secret = secrets.token_urlsafe(SECRET_BYTES)
        async with borrowed(self.pool) as connection:
            await connection.execute(_FORGET_ENDED, (LIFETIME, IDLE))
            await connection.execute(_BEGIN, (digest(secret), key_id))
        return secret

    async def holder(self, secret: str | None) -> Client:
        """Who is signed in with this secret. `UnauthenticatedError` if nobody is."""
        if secret is None:
            raise UnauthenticatedError
        wanted = {"digest": digest(secret), "lifetime": LIFETIME, "idle": IDLE, "touched": _TOUCHED_EVERY}
        async with borrowed(self.pool) as connection:
            row = await (await connection.execute(_HOLDER, wanted)).fetchone()
            if row is None:
                raise UnauthenticatedError
            *known, is_touched_long_ago = row
            if is_touched_long_ago:
                await connection.execute(_TOUCH, (digest(secret),))
        client_id, key_id, scopes, rate_limit, books, ends_at = known
        return Client(client_id, key_id, frozenset(scopes), rate_limit, frozenset(books or ()), ends_at)

    async def end(self, secret: str) -> None:
        async with borrowed(self.pool) as connection:
            await connection.execute(_END, (digest(secret),))


def digest(secret: str) -> bytes:
    return sha256(secret.encode(errors="replace")).digest()


def form_token(secret: str) -> str:
    """What a form of this session carries, so that no other site can send one (CSRF)."""
    return sha256(b"affidavit console form\n" + secret.encode(errors="replace")).hexdigest()
