"""Reports: what the log shows of each control of a pack over a period, to see here and to take along as a file."""

import asyncio
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from urllib.parse import urlencode

from audit.errors import UnansweredError
from audit.markup import Markup, joined, table, tag
from audit.reports.as_of import AsOf
from audit.reports.document import ControlReport, MeasuredControl
from audit.reports.forms import FORMS
from audit.reports.pack import PACKS, pack_of
from audit.reports.page import CAUTION, explained, period_of, status_of, words_of
from engine.errors import InvalidFieldError, UnavailableError
from engine.http.console.visit import Download, Sheet, Visit

PATH = "/console/reports"
DAYS = 30
_FILES = {"html": "html", "oscal": "oscal.json", "json": "json"}  # forms, and how their files end
_TYPES = {"html": "text/html; charset=utf-8", "oscal": "application/json", "json": "application/json"}


async def show(visit: Visit) -> Sheet:
    """Without a pack in the address it only asks for one: to measure takes seconds."""
    since, until = _days(visit)
    name = visit.query.get("pack", "")
    form = _form(name, since, until)
    if not name:
        return Sheet("Reports", joined(form, tag("p", CAUTION, class_="small")))
    try:
        report = await _measured(visit, name, since, until)
    except UnansweredError as failure:
        return Sheet("Reports", joined(form, _by_command(name, since, until, failure)))
    return Sheet("Reports", joined(form, await asyncio.to_thread(_shown, report, since, until)))


async def download(visit: Visit) -> Download:
    """Measured anew, and on record with the digest of its data."""
    name, _, ending = visit.place["name"].partition(".")
    form = next((form for form, known in _FILES.items() if known == ending), None)
    if form is None:
        raise InvalidFieldError(
            f"There is no such form of a report. There are: {', '.join(_FILES.values())}."
        )
    since, until = _days(visit)
    try:
        report = await _measured(visit, name, since, until)
    except UnansweredError as failure:
        raise UnavailableError(str(failure)) from failure
    content, digest = await asyncio.to_thread(_written, report, form)  # readers' requests go on meanwhile
    visit.note(form=form, sha256=digest)
    return Download(f"report-{name}-{since}-{until}.{ending}", _TYPES[form], content)


def _written(report: ControlReport, form: str) -> tuple[bytes, str]:
    """The file, and the digest of its data."""
    return FORMS[form](report), sha256(report.to_bytes()).hexdigest()


async def _measured(visit: Visit, name: str, since: date, until: date) -> ControlReport:
    if name not in PACKS:
        raise InvalidFieldError(f"There is no pack of this name. There are: {', '.join(PACKS)}.")
    try:
        period = AsOf.settled(_midnight(since), _midnight(until), visit.house.engine.clock())
    except ValueError as wrong:
        raise InvalidFieldError(str(wrong)) from None
    visit.note(pack=name, since=str(since), until=str(until))
    return await visit.house.reports(pack_of(name), period, visit.trail.log_id)


def _days(visit: Visit) -> tuple[date, date]:
    """The last thirty days, and today, unless the address says otherwise."""
    tomorrow = visit.house.engine.clock().date() + timedelta(days=1)
    try:
        until = date.fromisoformat(visit.query.get("to") or str(tomorrow))
        since = date.fromisoformat(visit.query.get("from") or str(until - timedelta(days=DAYS)))
    except (ValueError, OverflowError):
        raise InvalidFieldError("Write the days of the period as 2026-11-20.") from None
    return since, until


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _form(chosen: str, since: date, until: date) -> Markup:
    options = [
        tag("option", pack_of(name).title, value=name, selected=name == chosen or None) for name in PACKS
    ]
    fields = (
        tag("label", "Pack", tag("select", options, name="pack")),
        tag("label", "From", tag("input", type="date", name="from", value=str(since))),
        tag("label", "Before", tag("input", type="date", name="to", value=str(until))),
        tag("div", tag("button", "Measure", type="submit", class_="primary"), class_="actions"),
    )
    return tag("form", fields, method="get", action=PATH, class_="fields")


def _shown(report: ControlReport, since: date, until: date) -> Markup:
    rows = [
        (tag("a", each.control.title, href=f"#{each.control.id}"), status_of(each.judged.status), words_of(each.judged.words))
        for each in report.controls
    ]  # fmt: skip
    counts = ", ".join(f"{number} {status}" for status, number in report.counts.items() if number)
    caption = f"{report.pack.title}, {period_of(report)}: {counts}, over {report.records:,} sealed records"
    return joined(
        tag("p", CAUTION, class_="small"),
        tag("div", table(("Control", "Status", "What the log shows"), rows, caption), class_="controls"),
        tag("h2", "Take it along"),
        _files(report.pack.id, since, until),
        tag("h2", "Each control"),
        [_control(each) for each in report.controls],
    )


def _files(name: str, since: date, until: date) -> Markup:
    period = urlencode({"from": since, "to": until})
    links = [
        tag("a", words, href=f"{PATH}/{name}.{_FILES[form]}?{period}", class_="button")
        for form, words in {
            "html": "A page to print",
            "oscal": "OSCAL",
            "json": "JSON with all rows",
        }.items()
    ]
    how = joined("Each can be repeated: ", tag("code", "affidavit audit report --repeat FILE"), ".")
    return joined(tag("p", links, class_="actions no-print"), tag("p", how, class_="small"))


def _control(measured: MeasuredControl) -> Markup:
    summary = tag("summary", measured.control.title, " ", status_of(measured.judged.status))
    query = (
        joined(
            tag("p", "query ", measured.query_sha256, tag("br"), "result ", measured.result_sha256, class_="mono"),
            tag("pre", measured.query),
        )
        if measured.query
        else None
    )  # fmt: skip
    return tag(
        "details",
        summary,
        tag("p", words_of(measured.judged.words)),
        explained(measured),
        query,
        class_="control",
        id=measured.control.id,
    )


def _by_command(name: str, since: date, until: date, failure: UnansweredError) -> Markup:
    command = f"affidavit audit report --pack {name} --from {since} --to {until} -o {name}.html"
    said = tag(
        "p", str(failure), " Choose a shorter one, or use the command, which may take longer:", class_="calm"
    )
    return joined(said, tag("pre", command))
