"""What charts read: the rollups of the period, and the sealed leaves that are in none yet, counted by the same rules."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date

import psycopg
from psycopg import sql

from audit.charts.figures.choice import ChartChoice
from audit.charts.rollups import stored
from audit.charts.rollups.rollup import MADE_WITH, OF_A_BOOK, Count, CountKey, Counts, counts_of
from audit.charts.rollups.sealed_facts import ArchivedRows, SealedFacts
from audit.errors import RollupError

LIVE_LEAVES_MAX = 100_000  # some seconds
_LAGS = frozenset({"seal_lag", "anchor_lag"})

_SUMS = """
SELECT {columns}, sum(count)::bigint, sum(total)::bigint, min(first_at), max(last_at) FROM public.audit_rollup_counts
WHERE measure = %(measure)s AND day >= %(since)s AND day < %(until)s AND {filters} GROUP BY {groups}
"""


@dataclass(slots=True)
class ChartLog:
    """With the rights of an auditor. What is in no rollup is counted once, for all charts of a page.

    The connection is in one transaction that sees one state: a leaf is in a rollup for all reads or for none.
    """

    connection: psycopg.Connection
    archived: ArchivedRows
    choice: ChartChoice
    _live: Counts | None = field(default=None)

    def sums(self, measure: str, *by: str, value: str | None = None) -> Counts:
        """The counts of a measure, or of one value of it, added up by these members of their keys."""
        found = self._stored(measure, by, _filters(measure, self.choice, value))
        for key, count in added_up(self._live_counts(), self.choice, measure, by, value).items():
            found.setdefault(key, Count()).add(count)
        return found

    def _stored(self, measure: str, by: Iterable[str], filters: dict[str, str]) -> Counts:
        names = list(by)
        columns = sql.SQL(", ").join(map(sql.Identifier, names)) if names else sql.SQL("NULL")
        limits = [sql.SQL("{} = {}").format(sql.Identifier(name), value) for name, value in filters.items()]
        statement = sql.SQL(_SUMS).format(
            columns=columns, groups=columns if names else sql.SQL("()"), filters=sql.SQL(" AND ").join([sql.SQL("true"), *limits])
        )  # fmt: skip
        given = {"measure": measure, "since": self.choice.since, "until": self.choice.until}
        width = max(1, len(names))
        return {
            CountKey(measure=measure, **dict(zip(names, row, strict=False))): Count(*row[width:])
            for row in self.connection.execute(statement, given)
            if row[width] is not None
        }

    def _live_counts(self) -> Counts:
        if self._live is None:
            ranges = [*self._uncovered()]
            if (count := sum(end - begin for _, begin, end in ranges)) > LIVE_LEAVES_MAX:
                raise RollupError(
                    f"{count} sealed records of these months are in no rollup yet. Run `affidavit audit rollup`, then try again."
                    " A rollup ends at an anchored head: if none is missing, anchor with `affidavit audit seal --once` first."
                )
            facts = SealedFacts(self.connection, self.archived)
            self._live = counts_of(fact for place in ranges for fact in facts.between(*place))
        return self._live

    def _uncovered(self) -> Iterable[tuple[date, int, int]]:
        covered = stored.rollups(self.connection)
        for month, size in stored.sealed_sizes(self.connection).items():
            if self.choice.since.replace(day=1) <= month < self.choice.until:
                of_month = [rollup for rollup in covered if rollup.month == month]
                for begin, end in stored.uncovered(size, of_month):
                    yield month, begin, end


def added_up(
    counts: Mapping[CountKey, Count],
    choice: ChartChoice,
    measure: str,
    by: Iterable[str],
    value: str | None = None,
) -> Counts:
    """What PostgreSQL adds up in `_SUMS`."""
    names, filters, found = tuple(by), _filters(measure, choice, value), Counts()
    for key, count in counts.items():
        is_in = key.measure == measure and key.day and choice.since <= key.day < choice.until
        if is_in and all(getattr(key, name) == wanted for name, wanted in filters.items()):
            kept = CountKey(measure=measure, **{name: getattr(key, name) for name in names})
            found.setdefault(kept, Count()).add(count)
    return found


def _filters(measure: str, choice: ChartChoice, value: str | None) -> dict[str, str]:
    """Those that the measure knows: lags are of all records, chapters of all clients, models of all books."""
    given = {"book_id": choice.book_id, "client_id": choice.client_id, "outcome": choice.outcome}
    known = {"book_id", "client_id", "outcome"}
    if measure in _LAGS:
        known = set()
    elif measure in MADE_WITH:
        known = {"book_id"} if measure in OF_A_BOOK else set()
    elif measure == "chapters":
        known = {"book_id", "outcome"}
    given, known = given | {"value": value}, known | {"value"}
    return {name: wanted for name, wanted in given.items() if wanted is not None and name in known}
