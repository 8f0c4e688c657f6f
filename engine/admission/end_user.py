"""Whom a limit counts: the key that asks, and the reader behind the site that holds it, by their tier."""

import ipaddress
from uuid import UUID

from engine.errors import InvalidFieldError
from engine.models import EndUser

HEADER = "X-End-User"


def parse_end_user(named: str | None) -> EndUser | InvalidFieldError | None:
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
