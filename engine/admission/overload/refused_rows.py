"""Rows of refused questions: while more is asked than can be answered, each client has one row a minute for all of them.

A row for each would take the time that answers need: it costs a fifth of an answer, and a flood has ten refusals for each
answer. The first clients of a minute have a row each; with more of them at once, the others share one.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from audit.proof.record import Trail
from engine.admission.shared_rows import SharedRow, SharedRows
from engine.models import Client

MINUTE_S = 60.0
CLIENTS_MAX = 8  # with rows of their own: each is counted anew some dozen times a second
OTHER_CLIENTS = ""
PAUSE_S = 0.005  # between two counts: a refusal has 50 ms

NewTrail = Callable[[Client | None], Trail]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RefusedRows:
    """The rows of one process."""

    rows: SharedRows
    monotonic: Callable[[], float]
    minute_s: float = MINUTE_S
    _of: dict[str, SharedRow] = field(default_factory=dict)

    def count(self, client: Client, new_trail: NewTrail) -> tuple[SharedRow, asyncio.Future[None]]:
        """The row that counts this question, and when it does. `new_trail` makes a row's trail, for a client or for several."""
        row = self._row_of(client, new_trail)
        return row, row.counted()

    def _row_of(self, client: Client, new_trail: NewTrail) -> SharedRow:
        now = self.monotonic()
        group = client.key_id or client.client_id
        row = self._of.get(group)
        if row and now < row.ends_at:
            return row
        self._of = {name: each for name, each in self._of.items() if now < each.ends_at}
        if len(self._of) >= CLIENTS_MAX:
            group = OTHER_CLIENTS
            if row := self._of.get(group):
                return row
        about = client if group else None
        log.warning(
            "More questions arrive than can be answered: those refused are counted in one row a minute"
        )
        row = self._of[group] = self.rows.begin(new_trail(about), now + self.minute_s)
        return row

    async def close(self) -> None:
        """Writes the rows."""
        self._of.clear()
        await self.rows.close()
