"""A report as one static page: without a script, without another origin, for screens and for paper. Pure."""

import base64
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from audit.markup import Markup, joined, tag
from audit.package.manifest import time_text
from audit.reports.document import Cell, ControlReport, MeasuredControl
from audit.reports.pack import Status, provisions

ROWS_MAX = 100  # of a result; the JSON has all of them
_DIGEST_CHARACTERS = 16  # beside a figure; the whole one stands below its query

# Each status has a shape of its own: colour alone does not tell it.
_SHAPES: dict[Status, Markup] = {
    "met": joined(
        tag("circle", cx=8, cy=8, r=7, fill="currentColor"),
        tag("path", d="M4.5 8.5l2.5 2.5 4.5-5.5", fill="none", stroke="Canvas", stroke_width="1.75"),
    ),
    "not met": joined(
        tag("path", d="M8 .5l7.5 14H.5z", fill="currentColor"),
        tag("path", d="M8 5.5v4.5M8 11.5v1.5", stroke="Canvas", stroke_width="1.75"),
    ),
    "not measured": tag(
        "circle", cx=8, cy=8, r="6.25", fill="none", stroke="currentColor", stroke_width="1.5", stroke_dasharray="3 2"
    ),
    "not applicable": tag("path", d="M2 8h12", stroke="currentColor", stroke_width="2"),
}  # fmt: skip
CAUTION = (
    "This is evidence for an assessment, and no assessment. A status says what the log shows of one control, by the rule that"
    " stands beside it. Whether a provision applies to you, and whether you meet it, is not for a report to say."
)


def to_bytes(report: ControlReport) -> bytes:
    style = f"{_style()}{_margins(report)}"
    digest = base64.b64encode(sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = (
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", "Affidavit. ", report.pack.title, ", ", period_of(report)),
        tag("style", Markup(style)),
    )
    body = (
        tag("header", tag("h1", report.pack.title), tag("p", report.pack.shows)),
        tag("p", CAUTION, class_="lead"),
        _facts(report),
        tag("h2", "Controls"),
        overview(report),
        tag("h2", "Each control"),
        [_control(each) for each in report.controls],
        _mapping(report),
        _heads(report),
        _queries(report),
        tag("footer", report.pack.title, ", ", period_of(report), ". ", report.origin),
    )
    return f"<!DOCTYPE html>\n{tag('html', tag('head', *head), tag('body', *body), lang='en')}\n".encode()


def overview(report: ControlReport) -> Markup:
    """Each control with its status and figure."""
    rows = [
        tag(
            "tr",
            tag("th", tag("a", each.control.title, href=f"#{each.control.id}"), scope="row"),
            tag("td", status_of(each.judged.status)),
            tag("td", words_of(each.judged.words)),
        )
        for each in report.controls
    ]
    return _table(("Control", "Status", "What the log shows"), rows, class_="overview")


def status_of(status: Status) -> Markup:
    shape = tag("svg", _SHAPES[status], viewBox="0 0 16 16", aria_hidden="true")
    return tag("span", shape, status, class_=f"status {status.replace(' ', '-')}")


def words_of(text: str) -> Markup:
    """Commands stand between backticks in a pack."""
    return joined(tag("code", part) if place % 2 else part for place, part in enumerate(text.split("`")))


def period_of(report: ControlReport) -> str:
    since, until = time_text(report.as_of.since), time_text(report.as_of.until)
    return f"{_moment(since)} to before {_moment(until)}"


def _facts(report: ControlReport) -> Markup:
    counts = [f"{number} {status}" for status, number in report.counts.items() if number]
    facts = {
        "Period": period_of(report),
        "Log": report.origin or "It has no origin yet.",
        "Sealed records": f"{report.records:,}",
        "Controls": ", ".join(counts),
        "Made": f"{_moment(time_text(report.as_of.taken_at))}, by version {report.version}",
        "On record as": report.event,
        "Not as shipped": "; ".join(report.differences) or "Every definition that the queries go through is.",
    }
    saved = base64.b64encode(report.to_bytes()).decode()
    # `tag` would leave out this address: it is data of our own, and only base64.
    link = f'<a download="report-{report.pack.id}.json" href="data:application/json;base64,{saved}">Save this report as JSON</a>'
    terms = [joined(tag("dt", name), tag("dd", value)) for name, value in facts.items()]
    return joined(tag("dl", terms, class_="facts"), tag("p", Markup(link), class_="lead save"))


def explained(measured: MeasuredControl) -> Markup:
    """What a control shows, what met means, what it is evidence for, and the rows behind its figure."""
    control, known = measured.control, provisions()
    articles = "; ".join(known[name].article for name in control.provisions)
    return joined(
        tag("p", words_of(control.shows)),
        tag("p", tag("b", "Met means: "), words_of(control.met)),
        tag("p", tag("b", "Evidence for: "), articles, class_="evidence"),
        _result(measured) if measured.query else None,
    )


def _control(measured: MeasuredControl) -> Markup:
    control, judged = measured.control, measured.judged
    return tag(
        "section",
        tag("div", tag("h3", control.title), status_of(judged.status), class_="top"),
        tag("p", words_of(judged.words), class_="figure"),
        explained(measured),
        _proof(measured) if measured.query else None,
        class_="control",
        id=control.id,
    )


def _result(measured: MeasuredControl) -> Markup:
    rows = measured.rows
    if not rows:
        return tag("p", "The query gave no row.", class_="muted")
    names = [tag("th", name.replace("_", " "), scope="col", class_=_side(cell))
             for name, cell in zip(measured.columns, rows[0], strict=True)]  # fmt: skip
    body = [
        tag("tr", [tag("td", _shown(cell), class_=_side(cell)) for cell in row]) for row in rows[:ROWS_MAX]
    ]
    inner = tag("table", tag("thead", tag("tr", names)), tag("tbody", body))
    label = f"Result of {measured.control.title}"
    table = tag("div", inner, class_="wide", tabindex="0", role="region", aria_label=label)
    more = f"And {len(rows) - ROWS_MAX:,} more rows, which the JSON has." if len(rows) > ROWS_MAX else ""
    return joined(table, tag("p", more, class_="muted") if more else None)


def _proof(measured: MeasuredControl) -> Markup:
    short = f"{measured.query_sha256[:_DIGEST_CHARACTERS]}…"
    query = tag("a", f"Query {short}", href=f"#query-{measured.control.id}")
    result = f", result {measured.result_sha256[:_DIGEST_CHARACTERS]}…, at the heads below"
    return tag("p", query, result, class_="muted")


def _mapping(report: ControlReport) -> Markup:
    known = provisions()
    named = sorted({name for each in report.controls for name in each.control.provisions})
    rows = [
        tag(
            "tr",
            tag("th", known[name].article, scope="row"),
            tag("td", known[name].asks),
            tag("td", ", ".join(each.control.title for each in report.controls if name in each.control.provisions)),
        )
        for name in named
    ]  # fmt: skip
    headings = ("Provision", "What it asks for, in our words", "Controls that are evidence for it")
    return joined(tag("h2", "Provisions"), _table(headings, rows))


def _heads(report: ControlReport) -> Markup:
    if not report.as_of.heads:
        return joined(
            tag("h2", "Heads"), tag("p", "No month of this period has a signed head: nothing is sealed.")
        )
    words = joined(
        "Every figure above is of the records that these heads seal. ", tag("code", "affidavit audit verify"),
        " recomputes their roots.",
    )  # fmt: skip
    rows = [
        tag("tr", tag("th", f"{head.month:%Y-%m}", scope="row"), tag("td", f"{head.tree_size:,}", class_="number"),
            tag("td", head.root, class_="mono"))
        for head in report.as_of.heads
    ]  # fmt: skip
    return joined(tag("h2", "Heads"), tag("p", words), _table(("Month", "Tree size", "Root"), rows))


def _queries(report: ControlReport) -> Markup:
    how = joined(
        "Each of them runs as it is by ", tag("code", "affidavit audit query"), ", in the auditor's role and over all tiers. ",
        tag("code", "affidavit audit report --repeat FILE"), " measures this whole report anew and names each difference.",
    )  # fmt: skip
    parts = [
        joined(
            tag("h3", each.control.title, id=f"query-{each.control.id}"),
            tag("pre", each.query),
            tag(
                "p",
                "query ",
                each.query_sha256,
                tag("br"),
                "result ",
                each.result_sha256,
                class_="muted mono",
            ),
        )
        for each in report.controls
        if each.query
    ]
    return joined(tag("h2", "Queries", id="queries"), tag("p", how, class_="lead"), parts)


def _table(headings: Sequence[str], rows: Sequence[Markup], class_: str | None = None) -> Markup:
    head = tag("tr", [tag("th", each, scope="col") for each in headings])
    return tag("table", tag("thead", head), tag("tbody", rows), class_=class_)


def _shown(value: Cell) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else value


def _side(value: Cell) -> str | None:
    return "number" if isinstance(value, int) else None


def _moment(text: str) -> str:
    """As short as it is exact: a day if it is midnight."""
    day, time = text[:10], text[11:].removesuffix("Z").removesuffix(".000000")
    return day if time == "00:00:00" else f"{day} {time} UTC"


def _margins(report: ControlReport) -> str:
    """What each printed page says above and below."""
    above, below = _css(f"{report.pack.title}. {period_of(report)}"), _css(report.origin)
    return (
        f'@page {{ size: A4; margin: 22mm 18mm 20mm; @top-left {{ content: "{above}"; font: 8pt sans-serif; }}'
        f' @bottom-left {{ content: "{below}"; font: 8pt sans-serif; }}'
        ' @bottom-right { content: counter(page) " / " counter(pages); font: 8pt sans-serif; } }\n'
    )


def _css(text: str) -> str:
    """A text inside of a string of CSS: only letters, digits and signs that cannot end it."""
    return "".join(sign for sign in text if sign.isascii() and (sign.isalnum() or sign in " .,:/_+-"))


@cache
def _style() -> str:
    return Path(__file__).with_name("page.css").read_text("utf-8")
