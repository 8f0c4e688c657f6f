"""Charts of sealed records over any period: the filters are in the address, and each chart is a table and a CSV too."""

from collections.abc import Mapping
from datetime import date, timedelta

from audit.charts.figures.by_day import OUTCOMES
from audit.charts.figures.catalogue import NAMES
from audit.charts.figures.choice import ChartChoice
from audit.errors import AuditError, RollupError
from audit.markup import Markup, joined, tag
from engine.errors import InvalidFieldError, StatementError, UnavailableError
from engine.http.console import layout
from engine.http.console.visit import Download, Sheet, Visit

ADDRESS = "/console/charts"
DAYS = 30
PERIODS = (("7 days", 7), ("30 days", 30), ("90 days", 90), ("a year", 365))
YEARS_MAX = 20
YEARS = range(1970, 3000)  # of a period: there are days before and after each
LATER = "The database cannot be read now, or not within the seconds that a page has. Try a shorter period, or again later."
DRAWING = "The charts are being drawn. This page loads again by itself."
REFRESH_S = 2
UNREAD = "An archived month of this period cannot be read now. Choose other months, or ask the operator: `affidavit audit status`."


async def show(visit: Visit) -> Sheet:
    choice = _choice(visit)
    visit.note(filter=choice.query())
    try:
        drawn = await visit.house.charts.sections(choice, ADDRESS)
    except (AuditError, StatementError) as failure:
        return Sheet(
            "Charts",
            joined(_filters(choice), tag("p", layout.said_by_us(_why_none(failure)), class_="alarm")),
        )
    if drawn is None:
        return Sheet(
            "Charts", joined(_filters(choice), tag("p", DRAWING, class_="calm")), refresh_s=REFRESH_S
        )
    return Sheet(
        "Charts",
        joined(
            _filters(choice), tag("p", choice.words(), class_="small"), tag("div", drawn, class_="drawings")
        ),
    )


async def download(visit: Visit) -> Download:
    name, choice = visit.place["name"].removesuffix(".csv"), _choice(visit)
    if name not in NAMES:
        raise InvalidFieldError(f"There is no chart of this name. There are: {', '.join(NAMES)}.")
    visit.note(filter=choice.query(), chart=name)
    try:
        content = await visit.house.charts.csv(choice, name)
    except (AuditError, StatementError) as failure:
        raise UnavailableError(_why_none(failure)) from failure
    return Download(f"{name}-{choice.since}-{choice.until}.csv", "text/csv; charset=utf-8", content)


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
        action=ADDRESS,
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
            href=f"{ADDRESS}?{choice.query({'from': str(choice.until - timedelta(days=days))})}",
        )
        for words, days in PERIODS
    ]
    return [*links, tag("a", "no filters", href=ADDRESS)]
