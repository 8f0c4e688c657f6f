"""Rate-limits the rows of unauthenticated requests, so that a flood of them cannot fill the audit log.

A public token is no secret: who sends one and is turned away counts as unauthenticated.

The first 60 such requests of an address in a minute get one row each, like any other request. All further ones share one
row for each HTTP status (shared_rows.py). The minute begins with the address's first such request.

A counted request waits for the next count of its row, for `WRITE_INTERVAL_S` or, the more requests wait, for longer. This
throttles the flood, and only the flood: to `ANSWERS_A_SECOND` for each address, as far as `WRITE_INTERVAL_MAX_S` allows.

Each process counts on its own: with several processes, an address gets 60 rows and a shared one in each.
"""

import asyncio
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from audit.errors import LedgerUnavailableError
from audit.ledger.ledger import Ledger
from audit.proof.record import Trail
from engine.admission.shared_rows import SharedRow, SharedRows
from engine.errors import AuditUnavailableError
from engine.ports import Clock

ROWS_MAX = 60  # per address and minute; more rows would add no information
MINUTE_S = 60.0
WRITE_INTERVAL_S = 0.25  # at most four writes a second for each flood, however many requests it has
WRITE_INTERVAL_MAX_S = 2.0  # nobody waits longer, whatever the flood
ANSWERS_A_SECOND = 100  # of one flood; each takes a millisecond from everybody else
ADDRESSES_MAX = 10_000  # about 5 MB; all further addresses are counted together
NETWORK_BITS = 64  # of an IPv6 address: one subscriber owns the whole network
# Each gets its row. What is not implemented is the client's to know, and whoever likes can ask an identity provider that is down.
OWN_FAULTS = frozenset(range(500, 600)) - {501, 502}
SEVERAL = "several"  # the endpoint of a shared row
OTHER_ADDRESSES = ""  # the group of all addresses beyond ADDRESSES_MAX


@dataclass(slots=True)
class AddressWindow:
    """The fixed window of one address: its unauthenticated requests since the first one."""

    address: str
    ends_at: float
    rows: int = 0
    shared: dict[int, SharedRow] = field(default_factory=dict)


class FloodCounter:
    """The counters of one process."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        monotonic: Callable[[], float],
        *,
        within_s: float,
        minute_s: float = MINUTE_S,
    ) -> None:
        self._monotonic = monotonic
        self._within_s = within_s
        self._minute_s = minute_s
        self._windows: dict[str, AddressWindow] = {}
        self._rows = SharedRows(ledger, clock, monotonic, within_s=within_s, interval_s=_interval_s)

    async def count_if_flooding(self, trail: Trail) -> bool:
        """Counts a failed request in a shared row, whose id goes into its trail. False if the request gets its own row."""
        if _is_known(trail) or trail.http_status is None or trail.http_status in OWN_FAULTS:
            return False
        window = self._window_of(network_of(trail.client_address))
        if window.rows < ROWS_MAX:
            window.rows += 1
            return False
        if trail.http_status not in window.shared:
            shared = _shared_trail(trail, window.address)
            window.shared[trail.http_status] = self._rows.begin(shared, window.ends_at)
        await self._wait(window.shared[trail.http_status], trail)
        return True

    async def close(self) -> None:
        """Writes all shared rows."""
        self._windows.clear()
        await self._rows.close()

    def _window_of(self, address: str) -> AddressWindow:
        """Windows are in the order of their ends, so the expired ones come first."""
        now = self._monotonic()
        while self._windows and next(iter(self._windows.values())).ends_at <= now:
            del self._windows[next(iter(self._windows))]
        if address not in self._windows and len(self._windows) >= ADDRESSES_MAX:
            address = OTHER_ADDRESSES
        return self._windows.setdefault(address, AddressWindow(address, now + self._minute_s))

    async def _wait(self, row: SharedRow, trail: Trail) -> None:
        trail.query_id = row.trail.query_id
        try:
            async with asyncio.timeout(WRITE_INTERVAL_MAX_S + 2 * self._within_s):
                await asyncio.shield(row.counted())
        except (LedgerUnavailableError, TimeoutError):
            failure = AuditUnavailableError()
            if row.is_open:
                failure.query_id = trail.query_id
            raise failure from None


def _interval_s(answers: int) -> float:
    """Until the next answers of a flood that has just had so many."""
    return min(max(WRITE_INTERVAL_S, answers / ANSWERS_A_SECOND), WRITE_INTERVAL_MAX_S)


def network_of(address: str | None) -> str:
    """The group of addresses that is counted as one: an IPv4 address, or an IPv6 network."""
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:
        return address or OTHER_ADDRESSES
    if found.version == 4:  # noqa: PLR2004
        return str(found)
    return str(ipaddress.ip_network((found.packed, NETWORK_BITS), strict=False))


def _is_known(trail: Trail) -> bool:
    """Whether a key's holder sent it. A visitor with a public token is known once the limits have admitted the request."""
    is_visitor = isinstance(trail.details, dict) and "public_token" in trail.details
    is_admitted = (trail.limit_decision or "").startswith("admitted")
    return trail.client_id is not None and (is_admitted or not is_visitor)


def _shared_trail(trail: Trail, address: str) -> Trail:
    """The trail of a shared row: only what its requests have in common."""
    return replace(
        trail,
        endpoint=SEVERAL,
        request_id=None,
        client_id=None,
        key_id=None,
        end_user=None,
        limit_decision=None,
        details=None,
        client_address=address or None,
        error_message=f"More than {ROWS_MAX} requests without a valid key in a minute, or turned away with a public token:"
        " those beyond are counted here",
        repeat_count=0,
    )
