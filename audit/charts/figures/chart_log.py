"""What charts read: the rollups of the period, and the sealed leaves that are in none yet, counted by the same rules."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

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
SELECT {columns}, sum(count)::bigint, sum(total)::bigint, min(first_at), max(last_at) FROM public.{table}
WHERE measure = %(measure)s AND day >= %(since)s AND day < %(until)s AND {filters} GROUP BY {groups}
"""


# A week begins on Monday, as in `ChartChoice.step_of`.
_STEPS = {step: sql.SQL("date_trunc({}, day::timestamp)::date").format(step) for step in ("week", "month")}
_OF_ALL, _OF_EACH = (
    "audit_rollup_sums",
    "audit_rollup_counts",
)  # the sums over all books and clients are far fewer

_ByMeasure = dict[str, Counts]
_Uncovered = tuple[date, int, int]  # a month, and the leaves of it that are in no rollup


@dataclass(slots=True)
class LiveCounts:
    """What is in no rollup, counted once for all pages: of leaves that are anchored no count changes any more.

    But for an erasure, which takes a chapter away: then it is all counted anew.
    """

    _kept: dict[tuple[date, int], tuple[int, _ByMeasure]] = field(default_factory=dict)
    _erasures: int = 0

    def of(self, log: "ChartLog", ranges: Sequence[_Uncovered]) -> list[_ByMeasure]:
        if (erasures := stored.erasures(log.connection)) != self._erasures:
            self._kept, self._erasures = {}, erasures
        facts, found = SealedFacts(log.connection, log.archived), list[_ByMeasure]()
        for month, begin, end in ranges:
            at, counts = self._kept.get((month, begin), (begin, {}))
            anchored = max(at, min(end, stored.anchored_size(log.connection, month)))
            _merge(counts, counts_of(facts.between(month, at, anchored)))
            self._kept[month, begin] = (
                anchored,
                counts,
            )  # until the process ends: a rollup of them is made once a day
            waiting: _ByMeasure = {}
            _merge(waiting, counts_of(facts.between(month, anchored, end)))
            found += [counts, waiting]
        return found


@dataclass(slots=True)
class ChartLog:
    """With the rights of an auditor. What is in no rollup is counted once, for all charts of a page.

    The connection is in one transaction that sees one state: a leaf is in a rollup for all reads or for none.
    """

    connection: psycopg.Connection
    archived: ArchivedRows
    choice: ChartChoice
    live: LiveCounts = field(default_factory=LiveCounts)
    _live: list[_ByMeasure] | None = field(default=None)

    def sums(self, measure: str, *by: str, value: str | None = None) -> Counts:
        """The counts of a measure, or of one value of it, added up by these members of their keys.

        `step` is the day on which the step of the chart begins; it is the day of the keys.
        """
        found = self._stored(measure, by, _filters(measure, self.choice, value))
        for counts in self._live_counts():
            for key, count in added_up(counts.get(measure, {}), self.choice, measure, by, value).items():
                found.setdefault(key, Count()).add(count)
        return found

    def _stored(self, measure: str, by: Iterable[str], filters: dict[str, str]) -> Counts:
        names = list(by)
        columns = sql.SQL(", ").join(map(self._column, names)) if names else sql.SQL("NULL")
        table = _OF_EACH if {"book_id", "client_id"} & {*names, *filters} else _OF_ALL
        limits = [sql.SQL("{} = {}").format(sql.Identifier(name), value) for name, value in filters.items()]
        statement = sql.SQL(_SUMS).format(
            table=sql.Identifier(table), columns=columns, groups=columns if names else sql.SQL("()"), filters=sql.SQL(" AND ").join([sql.SQL("true"), *limits])
        )  # fmt: skip
        given = {"measure": measure, "since": self.choice.since, "until": self.choice.until}
        width, members = max(1, len(names)), list(map(_member, names))
        return {
            CountKey(measure=measure, **dict(zip(members, row, strict=False))): Count(*row[width:])
            for row in self.connection.execute(statement, given, binary=True)
            if row[width] is not None
        }

    def _column(self, name: str) -> sql.Composable:
        return _STEPS.get(self.choice.step, sql.Identifier("day")) if name == "step" else sql.Identifier(name)

    def _live_counts(self) -> list[_ByMeasure]:
        if self._live is None:
            ranges = [*self._uncovered()]
            if (count := sum(end - begin for _, begin, end in ranges)) > LIVE_LEAVES_MAX:
                raise RollupError(
                    f"{count} sealed records of these months are in no rollup yet. Run `affidavit audit rollup`, then try again."
                    " A rollup ends at an anchored head: if none is missing, anchor with `affidavit audit seal --once` first."
                )
            self._live = self.live.of(self, ranges)
        return self._live

    def _uncovered(self) -> Iterable[_Uncovered]:
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
            found.setdefault(_narrowed(key, measure, names, choice), Count()).add(count)
    return found


def _narrowed(key: CountKey, measure: str, names: Iterable[str], choice: ChartChoice) -> CountKey:
    """With these members alone."""
    members: dict[str, Any] = {_member(name): getattr(key, _member(name)) for name in names}
    if "step" in names and key.day:
        members["day"] = choice.step_of(key.day)
    return CountKey(measure=measure, **members)


def _merge(kept: _ByMeasure, counts: Counts) -> None:
    for key, count in counts.items():
        kept.setdefault(key.measure, {}).setdefault(key, Count()).add(count)


def _member(name: str) -> str:
    return "day" if name == "step" else name


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
