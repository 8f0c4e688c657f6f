"""Plots as SVG, for reports that open without a network. Pure.

A plot carries its own style, so that it also works as a file by itself, and follows the reader's light or dark scheme.
Series differ in dash as well as in colour, because paper is often printed in grey.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from audit.charts.drawing.axes import Axis as Axis  # noqa: PLC0414  part of what a caller names
from audit.charts.drawing.axes import Scale, scale_of, tick_text

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 28, 72, 52  # room for labels around the plot
LEGEND_Y, LEGEND_LINE, TITLE_Y = 44, 16, 22
LETTER_WIDTH = 6.6  # of the legend's font, roughly: the legend is placed by it
SERIES_MAX = 6  # colours that can be told apart

_STYLE = """
.chart{--ink:#1c1f24;--faint:#d5d8de;--c0:#1f5fbf;--c1:#c2410c;--c2:#15803d;--c3:#7e22ce;--c4:#a16207;--c5:#be185d;
--paper:#fff;max-width:100%;height:auto;font:12px system-ui,sans-serif}
@media (prefers-color-scheme:dark){.chart{--ink:#e6e8ec;--faint:#3a3f48;--c0:#7fb0ff;--c1:#ff9a66;--c2:#6fd08c;--c3:#c99bff;
--c4:#e5c04b;--c5:#ff8fc0;--paper:#16181d}}
@media print{.chart{--ink:#000;--faint:#ccc;--c0:#1f5fbf;--c1:#c2410c;--c2:#15803d;--c3:#7e22ce;--c4:#a16207;--c5:#be185d;
--paper:#fff}}
.chart text{fill:var(--ink)}.chart .title{font-size:15px;font-weight:600}.chart .grid{stroke:var(--faint)}
.chart .axis,.chart .mark{stroke:var(--ink);fill:none}.chart .mark{stroke-dasharray:5 4}
.chart .halo{paint-order:stroke;stroke:var(--paper);stroke-width:4px;stroke-linejoin:round}
"""
_WIDE, _HIGH = (LEFT, WIDTH - RIGHT), (HEIGHT - BOTTOM, TOP)  # where an axis starts and ends
_DASHES = ("none", "7 4", "2 3", "10 3 2 3", "1 4", "14 4")


@dataclass(frozen=True, slots=True)
class Series:
    """A line, its points from left to right."""

    name: str
    points: Sequence[tuple[float, float]]
    marked: bool = False  # with a dot at each point


@dataclass(frozen=True, slots=True)
class Mark:
    """A marker: a point, or without `y` a vertical line."""

    label: str
    x: float
    y: float | None = None


def line_chart(
    title: str, description: str, series: Sequence[Series], x: Axis, y: Axis, marks: Sequence[Mark] = ()
) -> str:
    """Lines over two axes. `description` is read aloud by screen readers."""
    points = [point for item in series for point in item.points]
    across = scale_of(x, [point[0] for point in points], *_WIDE)
    up = scale_of(y, [point[1] for point in points], *_HIGH)
    lines = [_line(number, item, across, up) for number, item in enumerate(series)]
    return _picture(
        title, description, [*_axes(across, up), *lines, *_marks(marks, across, up)],
        [item.name for item in series], has_data=bool(points),
    )  # fmt: skip


def histogram(
    title: str, description: str, groups: Mapping[str, Sequence[float]], x: Axis, marks: Sequence[Mark] = (), bars: int = 40
) -> str:  # fmt: skip
    """The distribution of each group, in shares of the group, because groups differ in size."""
    values = [value for group in groups.values() for value in group]
    across = scale_of(x, values, *_WIDE)
    counted = [_shares(group, across, bars) for group in groups.values()]
    y = Axis("share of the questions", low=0, share=True)
    up = scale_of(y, [share for shares in counted for share in shares], *_HIGH)
    drawn = [_bars(number, shares, across, up) for number, shares in enumerate(counted)]
    return _picture(
        title, description, [*_axes(across, up), *drawn, *_marks(marks, across, up)],
        [f"{name} ({len(group)})" for name, group in groups.items()], has_data=bool(values),
    )  # fmt: skip


def _picture(
    title: str, description: str, parts: Sequence[str], legend: Sequence[str], *, has_data: bool
) -> str:
    nothing = "" if has_data else _text(WIDTH / 2, HEIGHT / 2, "no data", "middle")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" aria-label="{escape(title)}"'
        f' viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc><style>{_STYLE}</style>"
        f'<text class="title" x="{LEFT}" y="{TITLE_Y}">{escape(title)}</text>'
        f"{''.join(_legend(legend))}{''.join(parts)}{nothing}</svg>"
    )


def _legend(names: Sequence[str]) -> Iterator[str]:
    """Draws the legend, wrapped to as many lines as it needs; there is room for two."""
    x, y = float(LEFT), LEGEND_Y
    for number, name in enumerate(names):
        width = 30 + LETTER_WIDTH * len(name)
        if x + width > WIDTH:
            x, y = float(LEFT), y + LEGEND_LINE
        yield f'<line x1="{x:.1f}" x2="{x + 24:.1f}" y1="{y - 4}" y2="{y - 4}" {_stroke(number)}/>'
        yield _text(x + 30, y, name, "start")
        x += width + 20


def _axes(across: Scale, up: Scale) -> Iterator[str]:
    left, right, bottom, top = across.start, across.end, up.start, up.end
    for tick in across.ticks():
        x = across.at(tick)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{top}"/>'
        yield _text(x, bottom + 18, tick_text(tick, across.axis), "middle")
    for tick in up.ticks():
        y = up.at(tick)
        yield f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(left - 8, y + 4, tick_text(tick, up.axis), "end")
    yield f'<path class="axis" d="M{left} {top}V{bottom}H{right}"/>'
    yield _text((left + right) / 2, bottom + 40, across.axis.label, "middle")
    middle = (top + bottom) / 2
    turned = f' transform="rotate(-90 14 {middle})"'
    yield f'<text x="14" y="{middle}" text-anchor="middle"{turned}>{escape(up.axis.label)}</text>'


def _line(number: int, item: Series, across: Scale, up: Scale) -> str:
    places = [(f"{across.at(x):.1f}", f"{up.at(y):.1f}") for x, y in item.points if math.isfinite(x + y)]
    if not places:
        return ""
    dots = [f'<circle cx="{x}" cy="{y}" r="4" fill="{_colour(number)}"/>' for x, y in places if item.marked]
    path = "L".join(f"{x} {y}" for x, y in places)
    return f'<path fill="none" {_stroke(number)} d="M{path}"/>{"".join(dots)}'


def _bars(number: int, shares: Sequence[float], across: Scale, up: Scale) -> str:
    """Draws one outline for all bars, so that overlapping groups stay visible."""
    width = (across.end - across.start) / len(shares)
    steps = "".join(f"V{up.at(share):.1f}h{width:.2f}" for share in shares)
    outline = f"M{across.start} {up.start}{steps}V{up.start}"
    return f'<path fill="{_colour(number)}" fill-opacity=".25" {_stroke(number, 1.5)} d="{outline}"/>'


def _marks(marks: Sequence[Mark], across: Scale, up: Scale) -> Iterator[str]:
    """Draws the markers, each label on the side that has room."""
    for mark in marks:
        x = across.at(mark.x)
        is_left = x < (across.start + across.end) / 2
        side, anchor = (8, "start") if is_left else (-8, "end")
        if mark.y is None:
            yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{up.start}" y2="{up.end}"/>'
            yield _text(x + side, up.end + 14, mark.label, anchor)
        else:
            y = up.at(mark.y)
            yield f'<circle class="axis" cx="{x:.1f}" cy="{y:.1f}" r="5" stroke-width="2"/>'
            yield _text(x + side, y + 18, mark.label, anchor)


def _shares(values: Sequence[float], across: Scale, bars: int) -> list[float]:
    """The share of each bar. Values beyond the axis count in its first or last bar."""
    counts = [0] * bars
    for value in values:
        part = (across.at(value) - across.start) / (across.end - across.start)
        counts[min(bars - 1, int(part * bars))] += 1
    return [count / max(1, len(values)) for count in counts]


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text class="halo" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _stroke(number: int, width: float = 2.0) -> str:
    dashes = _DASHES[number % SERIES_MAX]
    return f'stroke="{_colour(number)}" stroke-width="{width}" stroke-dasharray="{dashes}"'


def _colour(number: int) -> str:
    return f"var(--c{number % SERIES_MAX})"
