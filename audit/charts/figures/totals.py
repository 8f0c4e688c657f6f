"""Charts of a whole period: against the gate, by stage, by book, chapter and client. Pure but for the counts that they ask for."""

from collections import defaultdict
from collections.abc import Callable

from audit.charts.figures.by_day import HOW_NEAR, PROMISED_MS, SHARES
from audit.charts.figures.chart import Bars, Cell, Chart, ChartMark, ChartSeries, Columns, Filter, Ranges
from audit.charts.figures.chart_log import ChartLog
from audit.charts.rollups.buckets import MARGIN_STEP, percentile
from audit.charts.rollups.rollup import STAGES, CountKey

BARS_MAX = 15
NOTHING = "There is nothing in this period."


def gate(log: ChartLog) -> Chart:
    """How far the best score was from the threshold."""
    histogram: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for key, count in log.sums("gate", "outcome", "bucket").items():
        name = key.outcome if key.outcome in {"answered", "refused"} else "other"
        histogram[name or "other"][key.bucket or 0] += count.count
    counted = {bucket for buckets in histogram.values() for bucket in buckets}
    shown = range(min(counted, default=0), max(counted, default=-1) + 1)
    series = [
        ChartSeries(name, [histogram[name].get(bucket, 0) for bucket in shown], colour, chosen)
        for name, colour, chosen in (
            ("answered", 0, {"outcome": "answered"}),
            ("refused", 1, {"outcome": "refused"}),
            ("other", 7, {}),
        )
        if name in histogram
    ]
    labels = [f"{bucket * MARGIN_STEP:+.2f}" for bucket in shown]
    mark = ChartMark("the gate", -shown.start) if 0 in range(shown.start, shown.stop + 1) else None
    picture = Columns(labels, series, "best score minus threshold", "questions", (), mark)
    below, above = (sum(buckets.get(near, 0) for buckets in histogram.values()) for near in (-1, 0))
    words = f"Near misses: {below} questions within {MARGIN_STEP} below the gate, {above} within {MARGIN_STEP} above."
    rows = [[label, *(item.values[at] for item in series)] for at, label in enumerate(labels)]
    return Chart(
        "gate", "Confidence against the gate", f"{log.choice.words()}. {words if counted else NOTHING}", picture,
        ["from", *(item.name for item in series)], rows, f"Each column is {MARGIN_STEP} wide and begins at its label.",
    )  # fmt: skip


def latency(log: ChartLog) -> Chart:
    """Where the time goes, against what readers are promised."""
    histograms: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for key, count in log.sums("latency", "value", "bucket").items():
        histograms[key.value or ""][key.bucket or 0] += count.count
    stages = [stage for stage in STAGES if stage in histograms]
    series = [
        ChartSeries(name, [percentile(histograms[stage], share) for stage in stages], number)
        for number, (name, share) in enumerate(SHARES)
    ]
    rows: list[list[Cell]] = [
        [stage, sum(histograms[stage].values()), *(round(item.values[at] or 0, 1) for item in series)]
        for at, stage in enumerate(stages)
    ]
    said = ", ".join(f"{row[0]} p50 {row[2]:,.0f}, p95 {row[3]:,.0f}, p99 {row[4]:,.0f} ms" for row in rows)
    return Chart(
        "latency", "Time by stage", f"{log.choice.words()}. {said or NOTHING}",
        Ranges(stages, series, "time taken", ChartMark("five seconds", PROMISED_MS)),
        ["stage", "questions", "p50 (ms)", "p95 (ms)", "p99 (ms)"], rows, HOW_NEAR,
    )  # fmt: skip


def books(log: ChartLog) -> Chart:
    return _bars(
        log, "books", "Questions by book", "questions", "book_id", lambda key: {"book": key.book_id or ""}
    )


def clients(log: ChartLog) -> Chart:
    return _bars(
        log, "clients", "Questions by client", "questions", "client_id", lambda key: {"client": key.client_id or ""}
    )  # fmt: skip


def chapters(log: ChartLog) -> Chart:
    """By the chapter of the best citation."""
    note = "Chapters are not counted by client, so no filter by client applies. Chapters of erased records are not known."
    return _bars(
        log, "chapters", "Answers by chapter of the best citation", "chapters", "value", lambda key: {"book": key.book_id or ""}, note
    )  # fmt: skip


def _bars(
    log: ChartLog, name: str, title: str, measure: str, by: str, filter_of: Callable[[CountKey], Filter], note: str = ""
) -> Chart:  # fmt: skip
    members = ("book_id", by) if by == "value" else (by,)
    counts = log.sums(measure, *members)
    largest = sorted(counts.items(), key=lambda item: (-item[1].count, [str(part) for part in item[0]]))
    labels = [_label(key, by) for key, _ in largest]
    values = [count.count for _, count in largest]
    filters: list[Filter] = [filter_of(key) if getattr(key, members[0]) else {} for key, _ in largest]
    rows = [[*(getattr(key, member) for member in members), count.count] for key, count in largest]
    if len(largest) > BARS_MAX:
        labels[BARS_MAX:] = [f"{len(largest) - BARS_MAX} others"]
        values[BARS_MAX:], filters[BARS_MAX:] = [sum(values[BARS_MAX:])], [{}]
    said = f"{sum(values):,}: {', '.join(f'{label} {value:,}' for label, value in zip(labels[:5], values[:5], strict=True))}."
    heading = [*(_HEADINGS.get(member, "chapter") for member in members), "count"]
    words = f"{log.choice.words()}. {said if values else NOTHING}"
    return Chart(name, title, words, Bars(labels, values, "questions", filters), heading, rows, note)


_HEADINGS = {"book_id": "book", "client_id": "client"}


def _label(key: CountKey, by: str) -> str:
    value = getattr(key, by)
    if by == "value":
        return f"{value} ({key.book_id})" if value is not None else f"chapter unknown ({key.book_id})"
    return value if value is not None else "none"
