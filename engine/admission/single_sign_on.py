"""Single sign-on: what binds a sign-in to the browser that began it, and which role a person's groups give (pure).

Nothing is stored before a person is known, so nobody can fill a table with sign-ins that they only begin: the browser keeps one
secret in a cookie, and `state`, `nonce` and PKCE's verifier are digests of it.
"""

import base64
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from engine.ports import IdentityProvider

RETURN = (
    "/console/sign-in/return"  # below the console's address: where the provider sends the browser back to
)
SECRET_BYTES = 32  # 256 bits cannot be guessed, so plain digests of it cannot either


@dataclass(frozen=True, slots=True)
class Attempt:
    """One sign-in, from leaving for the provider to coming back."""

    secret: str

    @classmethod
    def begin(cls) -> "Attempt":
        return cls(secrets.token_urlsafe(SECRET_BYTES))

    @property
    def state(self) -> str:
        """Comes back with the answer: another browser's answer has another one (login CSRF)."""
        return self._derived("state")

    @property
    def nonce(self) -> str:
        """Comes back inside the signed token: a token of another sign-in has another one (replay)."""
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        """Redeems the code: one that was stolen or injected belongs to another one (PKCE)."""
        return self._derived("verifier")

    @property
    def challenge(self) -> str:
        """What the provider is told of the verifier (S256)."""
        return base64.urlsafe_b64encode(sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()

    def _derived(self, purpose: str) -> str:
        return sha256(f"affidavit sign-in {purpose}\n{self.secret}".encode(errors="replace")).hexdigest()


@dataclass(frozen=True, slots=True)
class Roles:
    """Which groups of a provider have which role, as the settings say."""

    issuer: str
    auditors: frozenset[str]
    reviewers: frozenset[str]
    leads: frozenset[str]

    def granting(self, groups: Iterable[str]) -> list[str]:
        """Those of the groups that give a role."""
        return sorted((self.auditors | self.reviewers | self.leads) & frozenset(groups))

    def scopes(self, groups: Iterable[str]) -> frozenset[str]:
        """As an API key of the highest of the roles would have them. Empty: no role, and nobody gets in."""
        given = frozenset(groups)
        if self.leads & given:
            return frozenset({"audit", "lead"})
        if self.reviewers & given:
            return frozenset({"audit", "review"})
        return frozenset({"audit"}) if self.auditors & given else frozenset()


@dataclass(frozen=True, slots=True)
class SingleSignOn:
    """How people sign in to the console at an identity provider."""

    provider: IdentityProvider
    roles: Roles
    address: str  # of the console, as browsers see it
