"""Trusted proxies: only their `X-Forwarded-For` names the client (pure).

Anybody can send that header. If it were believed, every request of a flood could have an address of its own.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_WITH_PORT = re.compile(r"\[(?P<v6>[^\]]*)\](:\d+)?|(?P<v4>[\d.]+):\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """The addresses and networks of our proxies. Empty: no proxy is trusted."""

    networks: tuple[Network, ...]

    @classmethod
    def named(cls, names: Iterable[str]) -> "TrustedProxies":
        """Of `10.0.0.7` or `fd00::/8`. `ValueError` if one is neither an address nor a network."""
        return cls(tuple(ipaddress.ip_network(name) for name in names))

    def client_behind(self, peer: str | None, forwarded_for: Sequence[str]) -> str | None:
        """Read from the right, because each proxy appends whom it saw: the first that is no proxy of ours is the client.
        Whatever stands left of it the client may have made up."""
        client = _plain(peer)
        if client is None:
            return peer
        seen = ",".join(forwarded_for).split(",")
        while seen and self._includes(client):
            before = _plain(seen.pop())
            if before is None:
                break
            client = before
        return str(client)

    def trusts(self, peer: str | None) -> bool:
        address = _plain(peer)
        return address is not None and self._includes(address)

    def _includes(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def _plain(text: str | None) -> Address | None:
    """In one spelling: without a port or a zone, and IPv4 inside IPv6 as IPv4. None if it is not an address."""
    bare = (text or "").strip()
    if found := _WITH_PORT.fullmatch(bare):
        bare = found["v6"] or found["v4"] or ""
    try:
        address = ipaddress.ip_address(bare.partition("%")[0])
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, ipaddress.IPv6Address) else address
