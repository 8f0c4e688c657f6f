"""Makes the rollups that are missing, and makes those anew whose rules or erasures have changed.

A rollup ends at an anchored head, so that a copy of its proof is outside of the database. It begins where the last one ended: a
record that is sealed late is counted in a later rollup, under its own day, and none is counted twice.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

import psycopg
from psycopg import errors

from audit.charts.rollups import stored
from audit.charts.rollups.fact import SealedFact
from audit.charts.rollups.rollup import VERSION, Rollup, counts_of
from audit.charts.rollups.sealed_facts import ArchivedRows, SealedFacts
from audit.errors import RollupsBusyError
from audit.progress import Progress
from audit.proof.checkpoint import read_note

AFTER_MIDNIGHT = timedelta(
    minutes=15
)  # by then the day's last records are sealed and anchored, if nothing is wrong
SHOWN_ROWS = 5_000
LIVE_ROWS = 10_000  # a chart counts them in a third of a second


@dataclass(frozen=True, slots=True)
class RollupKeeper:
    """With the rights of a sealer; the connection commits by itself."""

    connection: psycopg.Connection
    archived: ArchivedRows
    clock: Callable[[], datetime]

    def is_due(self) -> bool:
        """Whether a day is over since the last rollup, or so many rows came that charts would have to count them each time."""
        now, last = self.clock(), stored.made_last_at(self.connection)
        day_begin = datetime.combine(now.astimezone(UTC).date(), time(), UTC)
        is_over = last is None or (last < day_begin and now >= day_begin + AFTER_MIDNIGHT)
        return is_over or stored.uncovered_count(self.connection) > LIVE_ROWS

    def make(self, show: Progress) -> list[Rollup]:
        """Returns what was made. `RollupsBusyError` while another process makes them."""
        made: list[Rollup] = []
        due = [*self._stale(), *self._missing()]
        for number, rollup in enumerate(due, start=1):
            try:
                with stored.alone(self.connection):
                    counts = counts_of(self._facts(rollup, show))
                    if stored.put(self.connection, rollup, counts, self.clock()):
                        made.append(rollup)
            except errors.LockNotAvailable:
                raise RollupsBusyError(
                    "Another process makes the rollups now, as a running engine does. Try again when it is done."
                ) from None
            show("rollups", number, len(due))
        return made

    def _missing(self) -> Iterator[Rollup]:
        covered = stored.rollups(self.connection)
        for month in stored.sealed_sizes(self.connection):
            ends = [rollup.tree_size for rollup in covered if rollup.month == month]
            begin = max(ends, default=0)
            if found := stored.anchored_head(self.connection, month, begin):
                yield self._rollup(month, begin, *found)

    def _rollup(self, month: date, begin: int, size: int, note: str) -> Rollup:
        erased = stored.erased_in(self.connection, month, begin, size)
        return Rollup(month, begin, size, read_note(note).root, VERSION, erased)

    def _stale(self) -> Iterator[Rollup]:
        """Of other rules; or with chapters of records that have been erased since."""
        for old in stored.rollups(self.connection):
            erased = stored.erased_in(self.connection, old.month, old.first_leaf, old.tree_size)
            if old.version != VERSION or old.erased != erased:
                yield Rollup(old.month, old.first_leaf, old.tree_size, old.root, VERSION, erased)

    def _facts(self, rollup: Rollup, show: Progress) -> Iterator[SealedFact]:
        """Of an archived month no chapter is known: if it is counted anew, its chapters are one number."""
        facts = SealedFacts(self.connection, self.archived)
        size = rollup.tree_size - rollup.first_leaf
        for number, fact in enumerate(facts.between(rollup.month, rollup.first_leaf, rollup.tree_size)):
            if number % SHOWN_ROWS == 0:
                show(f"rows of {rollup.month:%Y-%m}", number, size)
            yield fact
