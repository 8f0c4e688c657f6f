"""A parser for end users' names: `user:<uuid>` or `anon:<address>`, in one canonical spelling.

The rate limit counts by this name, so two spellings of one reader must be equal.
"""

import ipaddress
from uuid import UUID

from engine.models import EndUser


def parse_end_user(name: str) -> EndUser:
    """`ValueError` if it is not a valid name."""
    kind, _, value = name.partition(":")
    if kind == "user":
        user_id = UUID(value)
        if str(user_id) != value.lower():
            raise ValueError("The UUID must have hyphens and no braces")
        return EndUser(f"user:{user_id}", "authenticated")
    if kind == "anon":
        address = ipaddress.ip_address(value)
        if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
            raise ValueError("The address must have no scope, which could be any text")
        return EndUser(f"anon:{address}", "anonymous")
    raise ValueError("It must be `user:<uuid>` or `anon:<address>`")


def visitor(address: str) -> EndUser:
    """A reader whom only an address tells apart: of IPv6 its /64 network, which one subscriber owns."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        found = ipaddress.IPv6Network((int(found) >> 64 << 64, 64)).network_address
    return EndUser(f"anon:{found}", "anonymous")


def user_id_of(name: str | None) -> UUID | None:
    """The id of a reader with an account; None for an anonymous or unnamed one."""
    kind, _, value = (name or "").partition(":")
    try:
        return UUID(value) if kind == "user" else None
    except ValueError:
        return None
