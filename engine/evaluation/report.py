"""HTML templates for reports: one self-contained file, for light and dark screens and for paper. Pure.

Every text is escaped here, on its way into the page; only the return values of these functions are markup.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NewType

from engine.evaluation import charts

CURVE_STEPS = 100  # the gate is set to a hundredth

Markup = NewType("Markup", str)

_STYLE = """
:root{color-scheme:light dark;--ink:#1c1f24;--soft:#5a616c;--faint:#d5d8de;--paper:#fff;--shade:#f4f5f7}
@media (prefers-color-scheme:dark){:root{--ink:#e6e8ec;--soft:#a3abb8;--faint:#3a3f48;--paper:#16181d;--shade:#1e2127}}
@media print{:root{color-scheme:light;--ink:#000;--soft:#444;--faint:#ccc;--paper:#fff;--shade:#fff}}
body{max-width:60rem;margin:2rem auto;padding:0 1rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);
background:var(--paper)}
h1{font-size:1.6rem;line-height:1.25}h2{font-size:1.2rem;margin-top:2.5rem;break-after:avoid}
p{max-width:46rem}.note{color:var(--soft);font-size:.9rem}
table{border-collapse:collapse;width:100%;font-size:.9rem}caption{text-align:left;color:var(--soft);padding:.4rem 0}
th,td{padding:.35rem .6rem;border-bottom:1px solid var(--faint);text-align:left;vertical-align:top;
unicode-bidi:isolate;overflow-wrap:break-word}
th{background:var(--shade)}.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
tr,figure{break-inside:avoid}thead{display:table-header-group}figure{margin:1.5rem 0}.wide{overflow-x:auto}
"""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The shares of answerable and of other questions that pass a gate at this threshold."""

    threshold: float
    kept: float
    let_through: float


_RIGHT = ' class="number"'


def page(title: str, *parts: Markup) -> str:
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"/>'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def heading(words: str) -> Markup:
    return Markup(f"<h2>{escape(words)}</h2>")


def paragraph(words: str) -> Markup:
    return Markup(f"<p>{escape(words)}</p>")


def note(words: str) -> Markup:
    """A paragraph in smaller print: how a number was computed."""
    return Markup(f'<p class="note">{escape(words)}</p>')


def figure(svg: str) -> Markup:
    """A picture drawn by charts.py."""
    return Markup(f"<figure>{svg}</figure>")


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> Markup:
    """A table. Numbers are aligned to the right; everything else is text."""
    numbers = [bool(rows) and isinstance(value, int | float) for value in (rows[0] if rows else columns)]
    head = "".join(
        f'<th scope="col"{_RIGHT if is_number else ""}>{escape(name)}</th>'
        for name, is_number in zip(columns, numbers, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    said = f"<caption>{escape(caption)}</caption>" if caption else ""
    return Markup(
        f'<div class="wide"><table>{said}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"<td{_RIGHT}>{value:.3f}</td>"
    return f"<td{_RIGHT}>{value:,}</td>" if isinstance(value, int) else f"<td>{escape(str(value))}</td>"


# --- The gate, as every report about scores shows it


def gate(
    curves: Mapping[str, Sequence[CurvePoint]], scores: Mapping[str, Sequence[float]], threshold: float
) -> tuple[Markup, ...]:
    """A curve for each kind of question that the gate should refuse, and the scores of all kinds."""
    return (
        heading("The gate"),
        figure(risk_coverage(curves, threshold)),
        note(
            "Each point of a line is a place for the gate. The best place is at the upper left: all answerable"
            " questions kept, none of the others let through."
        ),
        figure(score_histogram(scores, threshold)),
    )


def curve(answerable: Sequence[float], others: Sequence[float]) -> list[CurvePoint]:
    """The share kept and the share let through, for every threshold."""
    if not answerable or not others:
        return []
    kept, through = sorted(answerable), sorted(others)
    gates = [step / CURVE_STEPS for step in range(CURVE_STEPS + 1)]
    return [CurvePoint(place, _share_from(kept, place), _share_from(through, place)) for place in gates]


def risk_coverage(curves: Mapping[str, Sequence[CurvePoint]], threshold: float) -> str:
    series = [
        charts.Series(_words(kind), [(point.let_through, point.kept) for point in reversed(points)])
        for kind, points in curves.items()
    ]
    at_gate = [min(points, key=lambda point: abs(point.threshold - threshold)) for points in curves.values()]
    return charts.line_chart(
        "Answerable questions kept, others let through",
        "; ".join(
            f"{item.name}: the gate keeps {point.kept:.1%} and lets {point.let_through:.1%} through"
            for item, point in zip(series, at_gate, strict=True)
        ),
        series,
        charts.Axis("others let through", 0, 1, share=True),
        charts.Axis("answerable kept", 0, 1, share=True),
        [charts.Mark(f"gate {threshold:.2f}", point.let_through, point.kept) for point in at_gate],
    )


def score_histogram(scores: Mapping[str, Sequence[float]], threshold: float) -> str:
    return charts.histogram(
        "Best score of each question",
        "; ".join(
            f"{_words(kind)}: {_share_from(sorted(values), threshold):.1%} reach the gate"
            for kind, values in scores.items()
        ),
        {_words(kind): values for kind, values in scores.items()},
        charts.Axis("best score", 0, 1),
        [charts.Mark(f"gate {threshold:.2f}", threshold)],
    )


def _share_from(ordered: Sequence[float], place: float) -> float:
    return 1 - bisect_left(ordered, place) / len(ordered)


def _words(kind: str) -> str:
    return kind.replace("_", " ")
