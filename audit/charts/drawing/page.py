"""The charts of a page: each with its words, its picture, the numbers behind it, and its CSV. Pure."""

from collections.abc import Mapping, Sequence

from audit.charts.drawing.drawn import svg
from audit.charts.figures.chart import Chart
from audit.charts.figures.choice import ChartChoice
from audit.markup import Markup, joined, table, tag

ROWS_MAX = 400  # of a table on the page; the CSV has all


def sections(drawn: Sequence[Chart], choice: ChartChoice, address: str) -> Markup:
    """The costs only where they have prices. `address` is the page's own, to which a click on a bar leads with a filter more."""
    return joined(
        [_section(chart, choice, address) for chart in drawn if chart.name != "cost" or not chart.is_empty]
    )


def _section(chart: Chart, choice: ChartChoice, address: str) -> Markup:
    def href(chosen: Mapping[str, str]) -> str:
        return f"{address}?{choice.query(chosen)}"

    picture = Markup(svg(chart, href, has_style=False))
    file = tag(
        "a", "CSV", href=f"{address}/{chart.name}.csv?{choice.query()}", aria_label=f"{chart.title} as CSV"
    )
    words = chart.description.removeprefix(choice.words()).removeprefix(". ")
    return tag(
        "section", tag("h2", chart.title), tag("p", words, class_="small"),
        tag("div", picture, class_="table", tabindex="0", role="region", aria_label=f"Picture: {chart.title}"), _numbers(chart),
        tag("p", chart.note, " " if chart.note else None, file, class_="small"), id=chart.name, aria_label=chart.title,
    )  # fmt: skip


def _numbers(chart: Chart) -> Markup | None:
    if chart.is_empty:
        return None
    rows = [
        ["" if cell is None else cell if isinstance(cell, str) else f"{cell:,}" for cell in line]
        for line in chart.rows[:ROWS_MAX]
    ]
    more = f" (the first {ROWS_MAX} of {len(chart.rows)} rows)" if len(chart.rows) > ROWS_MAX else ""
    return tag("details", tag("summary", "The numbers", more), table(chart.heading, rows, chart.title))
