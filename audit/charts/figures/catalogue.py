"""Every chart under its name."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from audit.charts.figures import by_day, changes, totals
from audit.charts.figures.by_day import Prices
from audit.charts.figures.chart import Chart
from audit.charts.figures.chart_log import ChartLog
from audit.charts.figures.choice import ChartChoice

CHARTS: Mapping[str, Callable[[ChartLog], Chart]] = {
    "outcomes": by_day.outcomes,
    "refusals": by_day.refusals,
    "gate": totals.gate,
    "latency": totals.latency,
    "latency-by-day": by_day.latency_by_day,
    "tokens": by_day.tokens,
    "sealing": by_day.sealing,
    "books": totals.books,
    "chapters": totals.chapters,
    "clients": totals.clients,
    "changes": changes.changes,
}
NAMES = (*CHARTS, "cost")

DrawCharts = Callable[[ChartChoice, Sequence[str]], Awaitable[list[Chart]]]


def chart_of(name: str, log: ChartLog, prices: Prices, currency: str) -> Chart:
    return by_day.cost(log, prices, currency) if name == "cost" else CHARTS[name](log)
