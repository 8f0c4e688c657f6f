"""Who is connected, and which connection is closed when a process is full: the one idle the longest (pure).

Idle is a connection without a request in progress, also one whose request has not arrived completely. A connection counts by
the address of its peer, never by a header; our own proxies bring many clients, so they may have as many as there are.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Protocol

from engine.admission.flood import network_of
from engine.admission.proxies import TrustedProxies

PER_ADDRESS_MAX = 256  # many readers behind one address; a flood from it holds no more requests than these


class Guest(Protocol):
    """A connection. It calls `leave` when it is closed."""

    def cut_off(self) -> None: ...


@dataclass(slots=True)
class Occupancy:
    """The connections of one process."""

    in_all: int
    proxies: TrustedProxies
    is_ending: bool = False  # the server stops: whoever is connected gets one more answer
    _groups: dict[Guest, str] = field(default_factory=dict)
    _idle: dict[Guest, None] = field(default_factory=dict)  # the longest idle one first
    _idle_of: defaultdict[str, dict[Guest, None]] = field(default_factory=lambda: defaultdict(dict))
    _count_of: Counter[str] = field(default_factory=Counter)

    @property
    def is_full(self) -> bool:
        """Of requests in progress: nobody can be asked to leave."""
        return len(self._groups) >= self.in_all and not self._idle

    def enter(self, guest: Guest, peer: str) -> bool:
        """Makes room for a guest who is idle yet. False if its address has too many requests in progress."""
        group = network_of(peer)
        is_limited = not self.proxies.trusts(peer)
        if is_limited and self._count_of[group] >= self.per_address:
            if not self._idle_of[group]:
                return False
            self._cut_off_oldest(self._idle_of[group])
        if len(self._groups) >= self.in_all:
            self._cut_off_oldest(self._idle)
        self._groups[guest] = group
        self._count_of[group] += 1
        self.rest(guest)
        return True

    @property
    def per_address(self) -> int:
        """Where descriptors are few, half of them: readers may share an address with an attacker."""
        return min(PER_ADDRESS_MAX, self.in_all // 2)

    def occupy(self, guest: Guest) -> None:
        """A request of it is in progress."""
        if guest in self._groups:
            self._idle.pop(guest, None)
            self._idle_of[self._groups[guest]].pop(guest, None)

    def rest(self, guest: Guest) -> None:
        """No request of it is in progress. One that has been idle already stays as old as it is."""
        if guest in self._groups:
            self._idle.setdefault(guest)
            self._idle_of[self._groups[guest]].setdefault(guest)

    def leave(self, guest: Guest) -> None:
        if guest not in self._groups:
            return
        self.occupy(guest)
        group = self._groups.pop(guest)
        self._count_of[group] -= 1
        if not self._count_of[group]:
            del self._count_of[group], self._idle_of[group]

    def _cut_off_oldest(self, idle: dict[Guest, None]) -> None:
        oldest = next(iter(idle))
        self.leave(oldest)
        oldest.cut_off()
