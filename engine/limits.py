"""Whom a limit counts: the key that asks, and the reader behind the site that holds it, by their tier."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from engine.errors import InvalidFieldError

HEADER = "X-End-User"
RATE = re.compile(r"[1-9][0-9]{0,8}/(second|minute|hour|day)")  # as in the settings

Tier = Literal["anonymous", "authenticated"]


@dataclass(frozen=True, slots=True)
class EndUser:
    """A reader as their site names them, in one spelling, so that nobody is counted twice."""

    name: str
    tier: Tier


@dataclass(frozen=True, slots=True)
class Rates:
    """How often somebody may ask, such as "100/minute"."""

    per_key: str
    anonymous: str
    authenticated: str

    def of(self, tier: Tier) -> str:
        return self.anonymous if tier == "anonymous" else self.authenticated


def end_user_of(named: str | None) -> EndUser | InvalidFieldError | None:
    """Who is named by `user:<uuid>` or `anon:<address>`; an error that is not raised yet, for it counts as a request."""
    if named is None:
        return None
    kind, _, name = named.partition(":")
    try:
        if kind == "user":
            return EndUser(f"user:{_uuid(name)}", "authenticated")
        if kind == "anon":
            return EndUser(f"anon:{_address(name)}", "anonymous")
    except ValueError:
        """Neither an id nor an address: the same as of no kind."""
    return InvalidFieldError(f"{HEADER}: must be `user:<uuid>` or `anon:<address>`, once.", field=HEADER)


def _uuid(name: str) -> UUID:
    found = UUID(name)
    if str(found) != name.lower():
        raise ValueError("Braces, or no hyphens")
    return found


def _address(name: str) -> str:
    found = ipaddress.ip_address(name)
    if isinstance(found, ipaddress.IPv6Address) and found.scope_id is not None:
        raise ValueError("A scope could be any text")
    return str(found)
