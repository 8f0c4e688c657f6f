"""The report on a sample as text and as HTML. Pure; every text is escaped here, on its way into the page."""

from collections.abc import Sequence

from audit.markup import Markup, joined, tag
from audit.review.intervals import Estimate
from audit.review.kappa import Agreement
from audit.review.report import ReviewReport, Worth
from audit.review.sample import Stratum

CONFIDENCE = "Confidence was not among the strata of this sample, so it does not say what a level was worth."
METHODS = (
    "An error is an answer or a refusal that people did not find grounded, to the point and harmless. Intervals are at 95 %: Wilson's in"
    " a stratum; for weighted shares MOVER over these, each stratum with its weight in the population. Kappa is Cohen's, with the"
    " interval of Fleiss, Cohen and Everitt; it is undefined if everybody always said the same, and"
    " has no interval if two agree on everything or one of them always said the same."
)
_NAME_WIDTH, _NAME_LETTERS, _LINE, _PLOT, _RIGHT = 260, 38, 26, 420, 24


def text(report: ReviewReport) -> str:
    """The report for a terminal."""
    lines = [
        f"Sample {report.sample_id}",
        *(f"  {line}" for line in _summary(report)),
        "",
        *(worth_line(each) for each in report.worth),
        *([] if report.worth else [CONFIDENCE]),
        "",
        *(f"{name}  {estimate_words(estimate)}" for name, estimate in _shares(report)),
        "",
        *(
            f"{_spaced(item)}  {agreement_words(found)}, {found.records} records"
            for item, found in report.agreement.items()
        ),
        "",
        *(
            f"{stratum_words(each.stratum)}  {each.errors} errors of {each.judged} judged: {estimate_words(each.rate)}"
            f" (population {each.population})"
            for each in report.by_stratum
        ),
    ]
    return "\n".join(lines)


def html(report: ReviewReport) -> Markup:
    """The report as a part of a page."""
    rates = [
        (stratum_words(each.stratum), each.population, each.drawn, each.judged, each.errors, estimate_words(each.rate))
        for each in report.by_stratum
    ]  # fmt: skip
    agreed = [
        (_spaced(item), found.records, _percent(found.observed), kappa_words(found))
        for item, found in report.agreement.items()
    ]
    return joined(
        [tag("p", line) for line in _summary(report)],
        tag("h2", "What a level of confidence was worth"),
        [tag("p", worth_line(each)) for each in report.worth] or _note(CONFIDENCE),
        tag("h2", "Errors by stratum"),
        tag("figure", _plot(report)),
        _table(("Stratum", "Population", "Drawn", "Judged", "Errors", "Rate and interval"), rates),
        tag("h2", "In the whole population"),
        _table(("Share", "Estimate"), [(name, estimate_words(each)) for name, each in _shares(report)]),
        tag("h2", "How far reviewers agree"),
        _table(("Item", "Records", "Same verdict", "Cohen's kappa"), agreed),
        _note(METHODS),
    )


def worth_line(worth: Worth) -> str:
    if worth.right is None:
        return (
            f"“{worth.level}”: nothing judged yet ({worth.population:,} such answers, {worth.drawn} drawn)."
        )
    return (
        f"“{worth.level}” was right in {estimate_words(worth.right)}, by people, from {worth.right.records} of"
        f" {worth.population:,} such answers."
    )


def estimate_words(estimate: Estimate | None) -> str:
    if estimate is None:
        return "not measured"
    return f"{_percent(estimate.share)} ({_percent(estimate.low)} to {_percent(estimate.high)})"


def agreement_words(found: Agreement) -> str:
    return f"same verdict {_percent(found.observed)}, kappa {kappa_words(found)}"


def kappa_words(found: Agreement) -> str:
    if found.kappa is None:
        return "undefined"
    if found.low is None:
        return f"{found.kappa:.2f} (no interval)"
    return f"{found.kappa:.2f} ({found.low:.2f} to {found.high:.2f})"


def stratum_words(stratum: Stratum) -> str:
    """A value that a record does not have is a dash: an answer has no reason, a refusal no confidence."""
    return " · ".join("-" if value is None else value for value in stratum)


def moment_words(time: str | None) -> str | None:
    """A time at midnight is a day."""
    return time.removesuffix("T00:00:00.000000Z") if time else None


def _summary(report: ReviewReport) -> list[str]:
    since = moment_words(report.since) or "the beginning"
    until = moment_words(report.until) or "the head"
    left = [
        f"{count} {words}"
        for count, words in (
            (report.open, "wait for reviewers"),
            (report.disputed, "wait for an adjudication"),
            (report.erased, "are erased and cannot be judged"),
        )
        if count
    ]
    drawn = f"{report.population:,} answered or refused, {report.drawn} drawn by {', '.join(report.strata)}"
    lines = [f"Questions from {since} to {until}: {drawn}, {'; '.join([f'{report.judged} judged', *left])}."]
    if report.judged and report.unjudged_population:
        lines.append(
            f"Strata with {report.unjudged_population:,} questions have no judgement yet; the shares are of the others."
        )
    return lines


def _shares(report: ReviewReport) -> tuple[tuple[str, Estimate | None], ...]:
    return (
        ("errors", report.errors),
        ("harmful", report.harmful),
        ("personal data", report.personal_data),
    )


def _plot(report: ReviewReport) -> Markup:
    """A line for each interval, a dot for each rate; the table below says the same."""
    rows = [(stratum_words(each.stratum), each.rate) for each in report.by_stratum]
    rows.append(("all, weighted", report.errors))
    height, width = _LINE * (len(rows) + 1) + 10, _NAME_WIDTH + _PLOT + _RIGHT
    return tag(
        "svg",
        [_mark(quarter / 4, height) for quarter in range(5)],
        [_row(name, estimate, _LINE * at + _LINE // 2) for at, (name, estimate) in enumerate(rows)],
        viewBox=f"0 0 {width} {height}", role="img", class_="intervals", font_size=13, fill="currentColor",
        aria_label="Error rates with their intervals, by stratum; the table below has the figures",
    )  # fmt: skip


def _row(name: str, estimate: Estimate | None, y: int) -> Markup:
    short = name if len(name) <= _NAME_LETTERS else f"{name[: _NAME_LETTERS - 1]}…"
    label = tag("text", short, x=_NAME_WIDTH - 12, y=y + 4, text_anchor="end")
    if estimate is None:
        return joined(label, tag("text", "not measured", x=_NAME_WIDTH, y=y + 4, opacity=0.6))
    low, share, high = (_x(each) for each in (estimate.low, estimate.share, estimate.high))
    line = tag("line", x1=low, x2=high, y1=y, y2=y, stroke="currentColor", stroke_width=2)
    return joined(label, line, tag("circle", cx=share, cy=y, r=4.5))


def _mark(share: float, height: int) -> Markup:
    x = _x(share)
    line = tag("line", x1=x, x2=x, y1=0, y2=height - 24, stroke="currentColor", opacity=0.2)
    return joined(line, tag("text", f"{share:.0%}", x=x, y=height - 8, text_anchor="middle", opacity=0.7))


def _x(share: float) -> float:
    return round(_NAME_WIDTH + share * _PLOT, 1)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str | int]]) -> Markup:
    numbers = [isinstance(value, int) for value in rows[0]]
    head = [
        tag("th", name, scope="col", class_="number" if is_number else None)
        for name, is_number in zip(columns, numbers, strict=True)
    ]
    body = [tag("tr", [_cell(value) for value in row]) for row in rows]
    return tag(
        "div",
        tag("table", tag("thead", tag("tr", head)), tag("tbody", body)),
        class_="table wide",
        tabindex=0,
    )


def _cell(value: str | int) -> Markup:
    return (
        tag("td", f"{value:,}", class_="number")
        if isinstance(value, int)
        else tag("td", value, class_="whole")
    )


def _note(words: str) -> Markup:
    return tag("p", words, class_="note small")


def _percent(share: float | None) -> str:
    return "not measured" if share is None else f"{100 * share:.1f} %"


def _spaced(item: str) -> str:
    return item.replace("_", " ")
