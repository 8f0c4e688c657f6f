"""Charts of sealed records over any period: the filters are in the address, and each chart is a table and a CSV too."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from urllib.parse import urlencode

from audit.charts.drawing.drawn import csv, svg
from audit.charts.figures.by_day import OUTCOMES
from audit.charts.figures.catalogue import NAMES
from audit.charts.figures.chart import Chart
from audit.charts.figures.choice import ChartChoice
from audit.errors import AuditError, RollupError
from audit.markup import Markup, joined, tag
from engine.errors import InvalidFieldError, StatementError, UnavailableError
from engine.http.console import layout
from engine.http.console.visit import Download, Sheet, Visit

DAYS = 30
PERIODS = (("7 days", 7), ("30 days", 30), ("90 days", 90), ("a year", 365))
YEARS_MAX = 20
YEARS = range(1970, 3000)  # of a period: there are days before and after each
LATER = "The database cannot be read now, or not within the seconds that a page has. Try a shorter period, or again later."
UNREAD = "An archived month of this period cannot be read now. Choose other months, or ask the operator: `affidavit audit status`."
ROWS_MAX = 400  # of a table on the page; the CSV has all


async def show(visit: Visit) -> Sheet:
    """The costs are drawn only where the settings have prices."""
    choice = _choice(visit)
    visit.note(filter=_query(choice))
    try:
        drawn = await visit.house.charts(choice, NAMES)
    except (AuditError, StatementError) as failure:
        return Sheet("Charts", joined(_filters(choice), tag("p", _why_none(failure), class_="alarm")))
    figures = await asyncio.to_thread(_figures, drawn, choice)  # readers' requests go on meanwhile
    return Sheet(
        "Charts",
        joined(
            _filters(choice), tag("p", choice.words(), class_="small"), tag("div", figures, class_="drawings")
        ),
    )


async def download(visit: Visit) -> Download:
    name, choice = visit.place["name"].removesuffix(".csv"), _choice(visit)
    if name not in NAMES:
        raise InvalidFieldError(f"There is no chart of this name. There are: {', '.join(NAMES)}.")
    visit.note(filter=_query(choice), chart=name)
    try:
        (chart,) = await visit.house.charts(choice, [name])
    except (AuditError, StatementError) as failure:
        raise UnavailableError(_why_none(failure)) from failure
    return Download(f"{name}-{choice.since}-{choice.until}.csv", "text/csv; charset=utf-8", csv(chart))


def _why_none(failure: AuditError | StatementError) -> str:
    if isinstance(failure, RollupError):
        return str(failure)
    return LATER if isinstance(failure, StatementError) else UNREAD


def _choice(visit: Visit) -> ChartChoice:
    """The last thirty days, and today, unless the address says otherwise."""
    given = {name: value.strip() for name, value in visit.query.items() if value.strip()}
    if any("\0" in value for value in given.values()):
        raise InvalidFieldError("A filter has a character that no record contains.")
    until = _day(given, "to", visit.house.engine.clock().date() + timedelta(days=1))
    since = _day(given, "from", until - timedelta(days=DAYS))
    if not timedelta() < until - since <= timedelta(days=366 * YEARS_MAX):
        raise InvalidFieldError(f"The period must begin before it ends, and have {YEARS_MAX} years at most.")
    return ChartChoice(since, until, given.get("book"), given.get("client"), given.get("outcome"))


def _day(given: Mapping[str, str], name: str, otherwise: date) -> date:
    try:
        day = date.fromisoformat(given[name]) if name in given else otherwise
    except ValueError:
        raise InvalidFieldError(f"The field {name} must be a date such as 2026-11-01.") from None
    if day.year not in YEARS:
        raise InvalidFieldError(f"The field {name} must be between the years {YEARS[0]} and {YEARS[-1]}.")
    return day


def _query(choice: ChartChoice, **changes: str) -> str:
    given = {
        "from": str(choice.since), "to": str(choice.until), "book": choice.book_id, "client": choice.client_id, "outcome": choice.outcome,
    } | changes  # fmt: skip
    return urlencode({name: value for name, value in given.items() if value})


def _filters(choice: ChartChoice) -> Markup:
    """An ordinary form: its address is a link to share."""
    fields = [
        _field("from", "From", choice.since, "date"), _field("to", "To (not included)", choice.until, "date"),
        _field("book", "Book", choice.book_id), _field("client", "Client", choice.client_id),
        tag("div", tag("label", "Outcome", for_="outcome"), _outcomes(choice)),
    ]  # fmt: skip
    actions = tag(
        "p", tag("button", "Show", type="submit", class_="primary"), " ", _periods(choice), class_="actions"
    )
    return tag(
        "form",
        tag("div", fields, class_="fields"),
        actions,
        method="get",
        action="/console/charts",
        class_="panel",
    )


def _field(name: str, label: str, value: object, kind: str = "text") -> Markup:
    shown = "" if value is None else str(value)
    return tag(
        "div", tag("label", label, for_=name), tag("input", id=name, name=name, type=kind, value=shown)
    )


def _outcomes(choice: ChartChoice) -> Markup:
    options = [
        tag("option", name or "all", value=name, selected=name == (choice.outcome or ""))
        for name in ("", *OUTCOMES)
    ]
    return tag("select", options, id="outcome", name="outcome")


def _periods(choice: ChartChoice) -> list[Markup]:
    """Those that end where this one does; and all filters away."""
    links = [
        tag(
            "a",
            words,
            " ",
            href=f"/console/charts?{_query(choice, **{'from': str(choice.until - timedelta(days=days))})}",
        )
        for words, days in PERIODS
    ]
    return [*links, tag("a", "no filters", href="/console/charts")]


def _figures(drawn: Sequence[Chart], choice: ChartChoice) -> Markup:
    return joined([_figure(chart, choice) for chart in drawn if chart.name != "cost" or not chart.is_empty])


def _figure(chart: Chart, choice: ChartChoice) -> Markup:
    def href(chosen: Mapping[str, str]) -> str:
        return f"/console/charts?{_query(choice, **chosen)}"

    picture = Markup(svg(chart, href, has_style=False))
    file = tag(
        "a",
        "CSV",
        href=f"/console/charts/{chart.name}.csv?{_query(choice)}",
        aria_label=f"{chart.title} as CSV",
    )
    words = chart.description.removeprefix(choice.words()).removeprefix(". ")
    return tag(
        "section", tag("h2", chart.title), tag("p", words, class_="small"),
        tag("div", picture, class_="table", tabindex="0", role="region", aria_label=f"Picture: {chart.title}"), _table(chart),
        tag("p", chart.note, " " if chart.note else None, file, class_="small"), id=chart.name, aria_label=chart.title,
    )  # fmt: skip


def _table(chart: Chart) -> Markup | None:
    if chart.is_empty:
        return None
    rows = [
        ["" if cell is None else cell if isinstance(cell, str) else f"{cell:,}" for cell in line]
        for line in chart.rows[:ROWS_MAX]
    ]
    more = f" (the first {ROWS_MAX} of {len(chart.rows)} rows)" if len(chart.rows) > ROWS_MAX else ""
    return tag(
        "details", tag("summary", "The numbers", more), layout.table(chart.heading, rows, chart.title)
    )  # fmt: skip
