"""Every chart under its name."""

from collections.abc import Callable, Mapping
from typing import Protocol

from audit.charts.figures import by_day, changes, totals
from audit.charts.figures.by_day import Prices
from audit.charts.figures.chart import Chart
from audit.charts.figures.chart_log import ChartLog
from audit.charts.figures.choice import ChartChoice
from audit.markup import Markup

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


class Charts(Protocol):
    """Draws for pages that do not wait for long; raises if it cannot. No sections: they are being drawn, for who asks again."""

    async def sections(self, choice: ChartChoice, address: str) -> Markup | None: ...

    async def csv(self, choice: ChartChoice, name: str) -> str: ...


def chart_of(name: str, log: ChartLog, prices: Prices, currency: str) -> Chart:
    return by_day.cost(log, prices, currency) if name == "cost" else CHARTS[name](log)
