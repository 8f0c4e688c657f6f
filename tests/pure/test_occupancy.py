"""Who must leave when it is full, with guests who are only names."""

from dataclasses import dataclass, field

import pytest

from engine.admission.proxies import TrustedProxies
from engine.connections.occupancy import Occupancy

HERE, ELSEWHERE = "203.0.113.1", "203.0.113.2"


@dataclass(eq=False)
class Named:
    """A guest."""

    house: "Guests"
    is_cut_off: bool = False

    def cut_off(self) -> None:
        self.is_cut_off = True


@dataclass
class Guests:
    """An occupancy of six, three of them of one address."""

    occupancy: Occupancy = field(default_factory=lambda: Occupancy(6, TrustedProxies.named(["10.0.0.0/8"])))

    def come(self, count: int, peer: str, *, busy: bool = False) -> list[Named]:
        came = [Named(self) for _ in range(count)]
        for guest in came:
            assert self.occupancy.enter(guest, peer)
            if busy:
                self.occupancy.occupy(guest)
        return came


# Seen red with the newest that leaves.
def test_the_one_that_has_been_idle_the_longest_leaves() -> None:
    guests = Guests()
    first, second, third = guests.come(3, HERE)
    guests.occupancy.occupy(first)
    guests.occupancy.rest(first)  # it has just had an answer
    guests.come(3, ELSEWHERE)
    guests.come(1, "203.0.113.3")
    assert [guest.is_cut_off for guest in (first, second, third)] == [False, True, False]


# Seen red with a guest that becomes young by a byte.
def test_idle_guests_do_not_become_younger() -> None:
    guests = Guests()
    first, second = guests.come(2, HERE)
    guests.occupancy.rest(first)
    guests.come(5, "10.0.0.1")
    assert (first.is_cut_off, second.is_cut_off) == (True, False)


# Seen red without a limit for each address.
def test_an_address_makes_room_among_its_own() -> None:
    guests = Guests()
    others = guests.come(2, ELSEWHERE)
    mine = guests.come(3, HERE)
    guests.come(2, HERE)
    assert [guest.is_cut_off for guest in (*others, *mine)] == [False, False, True, True, False]


def test_an_address_that_is_busy_with_all_it_may_have_gets_no_more() -> None:
    guests = Guests()
    guests.come(3, HERE, busy=True)
    assert not guests.occupancy.enter(Named(guests), HERE)
    assert guests.occupancy.enter(Named(guests), ELSEWHERE)


# Seen red with a proxy that counts like anybody else.
def test_a_trusted_proxy_may_bring_as_many_as_there_is_room_for() -> None:
    guests = Guests()
    guests.come(6, "10.1.2.3", busy=True)
    assert guests.occupancy.is_full


@pytest.mark.parametrize("leaving", [0, 5])
def test_it_is_full_while_nobody_can_leave(leaving: int) -> None:
    guests = Guests()
    busy = guests.come(3, HERE, busy=True) + guests.come(3, ELSEWHERE, busy=True)
    assert guests.occupancy.is_full
    guests.occupancy.leave(busy[leaving])
    assert not guests.occupancy.is_full


def test_one_network_of_ipv6_is_one_address() -> None:
    guests = Guests()
    mine = [guest for number in range(4) for guest in guests.come(1, f"2001:db8::{number}")]
    assert [guest.is_cut_off for guest in mine] == [True, False, False, False]
