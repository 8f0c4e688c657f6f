"""Public tokens: short-lived, for pages that ask directly because no gateway holds their site's key (pure).

The site's server makes one with its API key. A page shows it to everybody, so it lasts minutes and can only ask, and judge
what it was told: about one book, from one origin, within the limits of its key, and only as long as the key is valid.

Nothing is stored. A token is its own claims and their MAC, under a secret that is derived from the signing key, which all
replicas share and the database never sees. So each engine behind one address accepts the tokens of the others, and nobody who
reads or writes the database can make one. Once the signing key is replaced, so are all tokens.
"""

import base64
import hmac
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Protocol

from engine.errors import ExpiredTokenError, ForbiddenError, UnauthenticatedError
from engine.models import Client
from engine.ports import Clock

PREFIX = "afp_"
TTL_S, TTL_S_MAX = 300, 900
ASKING = frozenset({"ask"})

_LABEL = b"affidavit public tokens 1\n"  # no record, receipt or tree head begins like this
_CHARACTERS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class PublicToken:
    """What a token says: whose it is, and what for."""

    key_id: str
    origin: str
    book_id: str
    expires_s: int  # since 1970

    @property
    def expires_at(self) -> datetime:
        return datetime.fromtimestamp(self.expires_s, UTC)


class Holders(Protocol):
    """Authenticates API keys, and finds the holder of a valid key by its id alone."""

    async def authenticate(self, secret: str | None) -> Client: ...

    async def holder(self, key_id: str) -> Client: ...


class PublicTokens:
    """Makes and reads tokens. `sign` is of the signing key, whose signature of one message is always the same."""

    def __init__(self, sign: Callable[[bytes], bytes]) -> None:
        self._secret = sha256(sign(_LABEL)).digest()

    def make(
        self, key_id: str, origin: str, book_id: str, now: datetime, ttl_s: int
    ) -> tuple[str, PublicToken]:
        expires_at = now + timedelta(seconds=ttl_s)
        token = PublicToken(key_id, origin, book_id, int(expires_at.timestamp()))
        claims = _encoded(json.dumps(asdict(token)).encode())
        return f"{PREFIX}{claims}.{self._mac(claims)}", token

    def read(self, text: str) -> PublicToken | None:
        """None if it is not a token of ours, whole and unaltered. It may have expired."""
        claims, _, mac = text.removeprefix(PREFIX).partition(".")
        if not is_public(text) or not text.isascii() or not hmac.compare_digest(mac, self._mac(claims)):
            return None
        return PublicToken(**json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))))

    def _mac(self, claims: str) -> str:
        return _encoded(hmac.digest(self._secret, claims.encode(), "sha256"))


class TokenKeyring:
    """A keyring that takes public tokens beside API keys."""

    def __init__(self, keys: Holders, tokens: PublicTokens, origins: frozenset[str], clock: Clock) -> None:
        self._keys = keys
        self._tokens = tokens
        self._origins = origins
        self._clock = clock

    def allowing(self, origins: frozenset[str]) -> "TokenKeyring":
        """The same keys and tokens, for these sites."""
        return TokenKeyring(self._keys, self._tokens, origins, self._clock)

    async def authenticate(self, secret: str | None) -> Client:
        """Who asks with a token is its key's client, for one book and from one origin, which the caller compares."""
        if secret is None or not is_public(secret):
            return await self._keys.authenticate(secret)
        token = self._tokens.read(secret)
        if token is None:
            raise UnauthenticatedError
        holder = await self._keys.holder(token.key_id)
        check(token, holder, self._origins, self._clock())
        return replace(holder, scopes=ASKING, books=frozenset({token.book_id}), public_origin=token.origin)


def is_public(secret: str) -> bool:
    return secret.startswith(PREFIX) and len(secret) <= _CHARACTERS_MAX


def check(token: PublicToken, holder: Client, origins: frozenset[str], now: datetime) -> None:
    """Raises unless the token still counts, and its site and its key may still ask about that book."""
    if token.expires_at <= now:
        raise ExpiredTokenError
    if token.origin not in origins or not ASKING & holder.scopes or not holder.may_ask(token.book_id):
        raise ForbiddenError(
            "The site or the API key of this public token may no longer ask about this book."
        )


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
