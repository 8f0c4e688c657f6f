"""Sessions of the console: an API key or a sign-in at an identity provider, exchanged for the secret of a cookie. The table
holds its digest alone.

A session ends when its key does, when it is signed out, `IDLE` after its last request, and `LIFETIME` after it began. One of a
person ends too when the settings name another provider or none, or give none of the groups a role any more.

Records name a person by a random id, because they keep a client's name for ever. The table `console_people` alone joins the id
with the issuer and the subject, until the person is erased, or was not here for as long as personal data is kept.
"""

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from psycopg_pool import AsyncConnectionPool

from engine.admission.single_sign_on import Attempt, Roles
from engine.errors import UnauthenticatedError
from engine.models import PERSON, Client, Identity
from engine.storage.database import borrowed

SECRET_BYTES = 32
PERSON_BYTES = 8
LIFETIME = timedelta(hours=10)
IDLE = timedelta(minutes=45)
_TOUCHED_EVERY = timedelta(minutes=1)  # a session's row is not written at every request

# A session whose key was revoked, or has lost its scope, is none.
_HOLDER = """
SELECT s.last_seen_at < now() - %(touched)s, p.person_id, p.issuer, p.subject, s.granted,
       k.client_id, k.key_id, k.scopes, k.rate_limit, k.books, k.revoked_at
FROM console_sessions s LEFT JOIN console_people p USING (person_id) LEFT JOIN api_keys k USING (key_id)
WHERE s.digest = %(digest)s AND s.created_at > now() - %(lifetime)s AND s.last_seen_at > now() - %(idle)s
  AND (p.person_id IS NOT NULL OR (k.revoked_at IS NULL OR k.revoked_at > now()) AND 'audit' = ANY (k.scopes))
"""
_TOUCH = "UPDATE console_sessions SET last_seen_at = now() WHERE digest = %s"
_BEGIN = "INSERT INTO console_sessions (digest, key_id) VALUES (%s, %s)"
_ONCE = "INSERT INTO console_sign_ins (digest) VALUES (%s) ON CONFLICT DO NOTHING"
_PERSON = """
INSERT INTO console_people (person_id, issuer, subject) VALUES (%s, %s, %s)
ON CONFLICT (issuer, subject) DO UPDATE SET last_seen_at = now() RETURNING person_id
"""
_BEGIN_OF_PERSON = "INSERT INTO console_sessions (digest, person_id, granted) VALUES (%s, %s, %s)"
_FORGET_SIGN_INS = "DELETE FROM console_sign_ins WHERE ended_at <= now() - %s"
_FORGET_PEOPLE = "DELETE FROM console_people WHERE last_seen_at <= now() - %s"
_END = "DELETE FROM console_sessions WHERE digest = %s"
_FORGET_ENDED = "DELETE FROM console_sessions WHERE created_at <= now() - %s OR last_seen_at <= now() - %s"


@dataclass(frozen=True, slots=True)
class ConsoleSessions:
    """The repository of the table `console_sessions`."""

    pool: AsyncConnectionPool
    roles: Roles | None = None  # at the identity provider of the settings
    people_kept: timedelta = LIFETIME  # after their last sign-in

    async def begin(self, key_id: str) -> str:
        """The secret of a new session of this key. What has ended meanwhile is forgotten."""
        secret = secrets.token_urlsafe(SECRET_BYTES)
        async with borrowed(self.pool) as connection:
            await connection.execute(_FORGET_ENDED, (LIFETIME, IDLE))
            await connection.execute(_BEGIN, (digest(secret), key_id))
        return secret

    async def begin_of_person(self, person: Identity, attempt: Attempt) -> tuple[str, Client]:
        """The secret of a new session, and whose it is. `UnauthenticatedError` if this sign-in was used before."""
        assert self.roles
        secret, granted = secrets.token_urlsafe(SECRET_BYTES), self.roles.granting(person.groups)
        async with borrowed(self.pool) as connection, connection.transaction():
            await connection.execute(_FORGET_ENDED, (LIFETIME, IDLE))
            await connection.execute(_FORGET_SIGN_INS, (LIFETIME,))
            await connection.execute(_FORGET_PEOPLE, (self.people_kept,))
            if not (await connection.execute(_ONCE, (digest(attempt.secret),))).rowcount:
                raise UnauthenticatedError(
                    "This sign-in was used before. Go back to the console and begin again."
                )
            new_id = PERSON + secrets.token_hex(PERSON_BYTES)
            found = await connection.execute(_PERSON, (new_id, person.issuer, person.subject))
            (person_id,) = await found.fetchone() or (new_id,)
            await connection.execute(_BEGIN_OF_PERSON, (digest(secret), person_id, granted))
        return secret, self._person(person_id, person)

    async def holder(self, secret: str | None) -> Client:
        """Who is signed in with this secret. `UnauthenticatedError` if nobody is."""
        if secret is None:
            raise UnauthenticatedError
        wanted = {"digest": digest(secret), "lifetime": LIFETIME, "idle": IDLE, "touched": _TOUCHED_EVERY}
        async with borrowed(self.pool) as connection:
            row = await (await connection.execute(_HOLDER, wanted)).fetchone()
            if row is None:
                raise UnauthenticatedError
            is_touched_long_ago, person_id, issuer, subject, granted, *key = row
            client = (
                self._person(person_id, Identity(issuer, subject, tuple(granted)))
                if person_id
                else _of_key(*key)
            )
            if is_touched_long_ago:
                await connection.execute(_TOUCH, (digest(secret),))
        return client

    def _person(self, person_id: str, person: Identity) -> Client:
        """By the settings of now."""
        roles = self.roles
        scopes = roles.scopes(person.groups) if roles and roles.issuer == person.issuer else frozenset()
        if not scopes:
            raise UnauthenticatedError
        return Client(person_id, None, scopes, person=person)

    async def end(self, secret: str) -> None:
        async with borrowed(self.pool) as connection:
            await connection.execute(_END, (digest(secret),))


def _of_key(
    client_id: str,
    key_id: str,
    scopes: list[str],
    rate_limit: str | None,
    books: list[str] | None,
    ends_at: datetime | None,
) -> Client:
    return Client(client_id, key_id, frozenset(scopes), rate_limit, frozenset(books or ()), ends_at)


def digest(secret: str) -> bytes:
    return sha256(secret.encode(errors="replace")).digest()


def form_token(secret: str) -> str:
    """What a form of this session carries, so that no other site can send one (CSRF)."""
    return sha256(b"affidavit console form\n" + secret.encode(errors="replace")).hexdigest()
