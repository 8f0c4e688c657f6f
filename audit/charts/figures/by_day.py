"""Charts along the days of a period. Pure but for the counts that they ask for."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta

from audit.charts.figures.chart import Chart, ChartMark, ChartSeries, Columns, Filter, LineChart
from audit.charts.figures.chart_log import ChartLog
from audit.charts.figures.choice import ChartChoice
from audit.charts.rollups.buckets import ERROR, percentile
from audit.charts.rollups.rollup import CountKey, Counts

PROMISED_MS = 5_000.0
OUTCOMES = (
    "answered", "refused", "served", "failed", "client_gone", "abandoned", "not_acknowledged", "recorded",
)  # fmt: skip
COLOURS = 8
OTHERS = "others"
SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
HOW_NEAR = f"Percentiles come from histograms: each is at most {ERROR:.0%} off."
NO_FILTER = "Counted for all requests together: no filter applies."

Prices = Mapping[str, tuple[float, float]]  # of a million tokens, read and written, by model
_Table = dict[str, dict[date, float]]  # values by series and step


def outcomes(log: ChartLog) -> Chart:
    """Heartbeats and commands are records and no requests: they show only if they are asked for."""
    table = _table(log.choice, log.sums("requests", "step", "outcome"), lambda key: key.outcome or "")
    if log.choice.outcome != "recorded":
        table.pop("recorded", None)
    names = sorted(table, key=lambda name: OUTCOMES.index(name) if name in OUTCOMES else len(OUTCOMES))
    series = [
        _series(log.choice, name, table[name], _outcome_colour(name), {"outcome": name}) for name in names
    ]
    said = _summed(table, "requests")
    return _columns(log.choice, "outcomes", "Requests by outcome", said, series, "requests")


def refusals(log: ChartLog) -> Chart:
    counts = log.sums("requests", "step", "outcome", "value")
    refused = {key: count for key, count in counts.items() if key.outcome == "refused"}
    table = _largest(_table(log.choice, refused, lambda key: key.value or "no reason"))
    series = [
        _series(log.choice, name, values, number, {"outcome": "refused"})
        for number, (name, values) in enumerate(table.items())
    ]
    said = _summed(table, "refusals")
    return _columns(log.choice, "refusals", "Refusals by reason", said, series, "refusals")


def tokens(log: ChartLog) -> Chart:
    table = _largest(_tokens(log))
    series = [
        _series(log.choice, name, values, number, {}) for number, (name, values) in enumerate(table.items())
    ]
    return _columns(log.choice, "tokens", "Tokens by model", _summed(table, "tokens"), series, "tokens")


def cost(log: ChartLog, prices: Prices, currency: str) -> Chart:
    """Tokens of models without a price are not counted, and the note says so."""
    sums = [log.sums(measure, "step", "value") for measure in ("tokens_input", "tokens_output") if prices]
    used = {key.value for counts in sums for key in counts}
    table: _Table = defaultdict(lambda: defaultdict(float))
    for number, counts in enumerate(sums):
        for key, count in counts.items():
            if key.day and key.value and key.value in prices:
                paid = count.total * prices[key.value][number] / 1e6
                table[key.value][log.choice.step_of(key.day)] += paid
    unpriced = sorted(name or "no model" for name in used if name not in prices)
    note = f"Without a price in `[prices]`: {', '.join(unpriced)}." if unpriced else ""
    note = note if prices else "No model has a price: see `[prices]` in the settings."
    series = [
        _series(log.choice, name, values, number, {})
        for number, (name, values) in enumerate(_largest(table).items())
    ]
    said = _summed(table, currency)
    return _columns(log.choice, "cost", "Cost by model", said, series, currency, note)


def latency_by_day(log: ChartLog) -> Chart:
    histograms = _histograms(log.choice, log.sums("latency", "step", "bucket", value="total"))
    series = [
        ChartSeries(name, [_percentile(histograms, step, share) for step in log.choice.steps()], number)
        for number, (name, share) in enumerate(SHARES)
    ]
    return _lines(
        log.choice, "latency-by-day", "Time of a whole question", series, HOW_NEAR, ChartMark("five seconds", PROMISED_MS)
    )  # fmt: skip


def sealing(log: ChartLog) -> Chart:
    """From the begin of a request until its row is sealed, and until a head over it is in the vault."""
    series = []
    for number, (measure, name) in enumerate((("seal_lag", "sealed"), ("anchor_lag", "anchored"))):
        histograms = _histograms(log.choice, log.sums(measure, "step", "bucket"))
        for place, (share_name, share) in enumerate((SHARES[0], SHARES[2])):
            values = [_percentile(histograms, step, share) for step in log.choice.steps()]
            series.append(ChartSeries(f"{name} {share_name}", values, 2 * number + place))
    return _lines(
        log.choice,
        "sealing",
        "Time until a record is sealed and anchored",
        series,
        f"From the begin of the request, so the time of its answer is in it. {HOW_NEAR} {NO_FILTER}",
    )


def _table(choice: ChartChoice, counts: Counts, name_of: Callable[[CountKey], str]) -> _Table:
    table: _Table = defaultdict(lambda: defaultdict(float))
    for key, count in counts.items():
        if key.day:
            table[name_of(key)][choice.step_of(key.day)] += count.count
    return table


def _tokens(log: ChartLog) -> _Table:
    table: _Table = defaultdict(lambda: defaultdict(float))
    for measure, way in (("tokens_input", "read"), ("tokens_output", "written")):
        for key, count in log.sums(measure, "step", "value").items():
            if key.day:
                table[f"{key.value or 'no model'}, {way}"][log.choice.step_of(key.day)] += count.total
    return table


def _largest(table: _Table) -> _Table:
    """As many series as colours; the smaller ones together."""
    names = sorted(table, key=lambda name: (-sum(table[name].values()), name))
    if len(names) <= COLOURS:
        return {name: table[name] for name in sorted(names)}
    others: dict[date, float] = defaultdict(float)
    for name in names[COLOURS - 1 :]:
        for step, value in table[name].items():
            others[step] += value
    return {name: table[name] for name in names[: COLOURS - 1]} | {OTHERS: others}


def _outcome_colour(name: str) -> int:
    return OUTCOMES.index(name) if name in OUTCOMES else COLOURS - 1


def _series(
    choice: ChartChoice, name: str, values: Mapping[date, float], colour: int, chosen: Filter
) -> ChartSeries:
    return ChartSeries(name, [values.get(step, 0) for step in choice.steps()], colour, chosen)


def _columns(
    choice: ChartChoice,
    name: str,
    title: str,
    said: str,
    series: Sequence[ChartSeries],
    unit: str,
    note: str = "",
) -> Chart:
    steps = choice.steps()
    picture = Columns(
        [str(step) for step in steps], series, f"{choice.step} (UTC)", unit, [_narrowed(choice, step) for step in steps]
    )  # fmt: skip
    rows = [[label, *cells] for label, cells in _cells(steps, series)] if series else []
    heading = [choice.step, *(item.name for item in series)]
    return Chart(name, title, f"{choice.words()}. {said}", picture, heading, rows, note)


def _lines(
    choice: ChartChoice,
    name: str,
    title: str,
    series: Sequence[ChartSeries],
    note: str,
    mark: ChartMark | None = None,
) -> Chart:
    steps = choice.steps()
    picture = LineChart([str(step) for step in steps], series, "time taken", mark)
    rows = [
        [label, *(None if cell is None else round(cell, 1) for cell in cells)]
        for label, cells in _cells(steps, series)
        if any(cell is not None for cell in cells)
    ]
    worst = {
        item.name: max((value for value in item.values if value is not None), default=None) for item in series
    }
    said = ", ".join(f"{series} {value:,.0f} ms" for series, value in worst.items() if value is not None)
    words = f"The highest of a {choice.step}: {said}." if said else "There is nothing in this period."
    heading = [choice.step, *(f"{item.name} (ms)" for item in series)]
    return Chart(name, title, f"{choice.words()}. {words}", picture, heading, rows, note)


def _cells(steps: Sequence[date], series: Sequence[ChartSeries]) -> list[tuple[str, list[float | None]]]:
    return [(str(step), [item.values[at] for item in series]) for at, step in enumerate(steps)]


def _summed(table: _Table, unit: str) -> str:
    sums = {name: sum(values.values()) for name, values in table.items()}
    named = ", ".join(f"{name} {_number(total)}" for name, total in sums.items())
    return f"{_number(sum(sums.values()))} {unit}: {named}." if sums else "There is nothing in this period."


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def _narrowed(choice: ChartChoice, step: date) -> Filter:
    """The period of one step."""
    after = step + {"day": timedelta(1), "week": timedelta(7), "month": timedelta(31)}[choice.step]
    after = after.replace(day=1) if choice.step == "month" else after
    return {"from": str(max(step, choice.since)), "to": str(min(after, choice.until))}


def _histograms(choice: ChartChoice, counts: Counts) -> dict[date, dict[int, int]]:
    found: dict[date, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for key, count in counts.items():
        if key.day and key.bucket is not None:
            found[choice.step_of(key.day)][key.bucket] += count.count
    return found


def _percentile(histograms: Mapping[date, Mapping[int, int]], step: date, share: float) -> float | None:
    return percentile(histograms[step], share) if step in histograms else None
