"""Whose question it is, without asking the database: keys and tokens with which questions were let in a moment ago.

So a refusal under load costs no lookup, and a revoked key is refused as one within a second, as everywhere.
"""

from collections.abc import Callable
from hashlib import sha256

from engine.models import Client

FRESH_S = 1.0


class RecentKeys:
    """By digest, and by the site whose page asks. Two generations of a second each bound what is kept."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._began_at = monotonic()
        self._now: dict[bytes, tuple[float, Client]] = {}
        self._before: dict[bytes, tuple[float, Client]] = {}

    def note(self, secret: str, origin: str | None, client: Client) -> None:
        now = self._monotonic()
        if now - self._began_at > FRESH_S:
            self._began_at, self._before, self._now = now, self._now, {}
        self._now[_name(secret, origin)] = now, client

    def holder(self, secret: str, origin: str | None) -> Client | None:
        """None if it is not known: then the keyring decides."""
        name = _name(secret, origin)
        noted = self._now.get(name) or self._before.get(name)
        return noted[1] if noted and self._monotonic() - noted[0] < FRESH_S else None


def _name(secret: str, origin: str | None) -> bytes:
    return sha256(f"{secret} {origin or ''}".encode()).digest()
