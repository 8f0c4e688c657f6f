"""Value object and validation of an erasure request: whose records to erase, or of which query, and on which basis.

A person may be recorded in several spellings of one name, and all of them must be found.
"""

import contextlib
import ipaddress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from audit.erasure import personal

NETWORK_BITS = (
    64  # as engine/admission/end_user.py and docusaurus/src/gateway/admission/address.ts group IPv6
)
NAME_CHARACTERS_MIN = 4  # a shorter name occurs in any text


@dataclass(frozen=True, slots=True)
class ErasureTarget:
    names: tuple[str, ...] = ()  # every spelling in which the person may be recorded
    query_id: UUID | None = None

    @property
    def queries(self) -> list[UUID]:
        return [self.query_id] if self.query_id else []

    def matches(self, trail: dict[str, Any]) -> bool:
        return trail.get("end_user") in self.names or trail.get("query_id") == str(self.query_id)


def spellings(user: str) -> tuple[str, ...]:
    """All spellings in which a reader may be recorded: as the site wrote the name, and as we normalise it."""
    user = user.strip()
    name = user.removeprefix("user:").removeprefix("anon:")
    if not name:
        raise ValueError("Name a reader: user:<uuid>, anon:<address>, or the name that the site sent.")
    names = {name, name.lower(), name.upper()}
    with contextlib.suppress(ValueError):
        names |= {str(UUID(name)), str(UUID(name)).upper(), UUID(name).hex}
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(name)
        names |= {str(address), address.exploded, *_network_of(address)}
    kinds = [kind for kind in ("user:", "anon:") if user.startswith(kind)] or ["user:", "anon:"]
    return tuple(sorted({user, *names, *(f"{kind}{each}" for kind in kinds for each in names)}))


def _network_of(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> set[str]:
    """With a public token, and by the gateway, a visitor is recorded by the network that one subscriber owns."""
    if isinstance(address, ipaddress.IPv4Address):
        return set()
    network = ipaddress.ip_network((address.packed, NETWORK_BITS), strict=False).network_address
    return {str(network), network.exploded}


def check_basis(basis: str, target: ErasureTarget) -> None:
    """Refuse a basis with personal data, because it is never erased. A person's real name cannot be recognised here."""
    if not basis.strip():
        raise ValueError("State the basis, for example a ticket number: it is recorded.")
    names = {name.partition(":")[2] or name for name in target.names}
    is_named = any(name.lower() in basis.lower() for name in names if len(name) >= NAME_CHARACTERS_MIN)
    if is_named or personal.find(basis):
        raise ValueError(
            "The basis is kept forever, so it must not contain personal data: name a ticket number instead."
        )
