"""The time line of what answers were made with. Pure but for the counts that it asks for."""

from collections import defaultdict
from datetime import UTC, datetime, time
from itertools import groupby

from audit.charts.figures.chart import Chart, TimeLine, TimeSpan
from audit.charts.figures.chart_log import ChartLog
from audit.charts.figures.choice import ChartChoice
from audit.charts.rollups.rollup import MADE_WITH, Count, CountKey

TICKS = 6
WORDS = {
    "model_requested": "model asked for", "model_used": "model", "prompt_sha256": "prompt", "settings_sha256": "settings",
    "code_version": "code", "calibration_id": "calibration", "embedder": "embedder", "index_generation": "edition",
}  # fmt: skip
SHORT = 12  # characters of a digest or an id

_Sighting = tuple[CountKey, Count]


def changes(log: ChartLog) -> Chart:
    """A span is of days on which a value was seen, without another one between; within a day the first sightings order them."""
    lanes: dict[tuple[str, str | None], list[_Sighting]] = defaultdict(list)
    for what in MADE_WITH:
        for key, count in log.sums(what, "day", "book_id", "value").items():
            lanes[what, key.book_id].append((key, count))
    rows, drawn = [], []
    for (what, book), sightings in lanes.items():
        name = f"{WORDS[what]} of {book}" if book else WORDS[what]
        spans = [_span_of(group) for group in _runs(sightings)]
        rows += [
            [WORDS[what], book, value, str(begin), str(end), records] for value, begin, end, records in spans
        ]
        drawn.append((name, [_drawn(log.choice, value, begin, end) for value, begin, end, _ in spans]))
    changed = sum(len(spans) - 1 for _, spans in drawn)
    said = (
        f"{changed} changes in {len(drawn)} things that answers are made with."
        if drawn
        else "There is nothing in this period."
    )
    return Chart(
        "changes", "Changes of what answers are made with", f"{log.choice.words()}. {said}",
        TimeLine(drawn, _ticks(log.choice)), ["what", "book", "value", "first seen", "last seen", "records"], rows,
        "Of two values that take turns within a day, only the first sighting of each counts.",
    )  # fmt: skip


def _runs(sightings: list[_Sighting]) -> list[list[_Sighting]]:
    ordered = sorted(
        sightings,
        key=lambda item: (item[1].first_at or datetime.min.replace(tzinfo=UTC), item[0].value or ""),
    )
    return [list(group) for _, group in groupby(ordered, key=lambda item: item[0].value)]


def _span_of(run: list[_Sighting]) -> tuple[str, datetime, datetime, int]:
    begins = [count.first_at for _, count in run if count.first_at]
    ends = [count.last_at for _, count in run if count.last_at]
    return run[0][0].value or "", min(begins), max(ends), sum(count.count for _, count in run)


def _drawn(choice: ChartChoice, value: str, begin: datetime, end: datetime) -> TimeSpan:
    label = value if len(value) <= 2 * SHORT else f"{value[:SHORT]}…"
    return TimeSpan(label, _place(choice, begin), _place(choice, end))


def _place(choice: ChartChoice, at: datetime) -> float:
    since = datetime.combine(choice.since, time(), UTC)
    until = datetime.combine(choice.until, time(), UTC)
    return min(1.0, max(0.0, (at - since) / (until - since)))


def _ticks(choice: ChartChoice) -> list[tuple[str, float]]:
    steps = choice.steps()
    every = -(-len(steps) // TICKS)
    return [(str(step), _place(choice, datetime.combine(step, time(), UTC))) for step in steps[::every]]
