"""Horizontal bars, ranges and the time line: a row for each label. Pure."""

from collections.abc import Iterator

from audit.charts.drawing.axes import Axis, Scale, scale_of
from audit.charts.drawing.columns import Drawn
from audit.charts.drawing.sheet import (
    COLOURS,
    LETTER_WIDTH,
    RIGHT,
    TOP,
    WIDTH,
    Href,
    cut,
    legend,
    linked,
    plain,
    rectangle,
    text,
    tick_words,
)
from audit.charts.figures.chart import Bars, ChartMark, Ranges, TimeLine, TimeSpan

ROW = 26
NAMES = 190  # pixels for the labels
START = NAMES + 10
END = WIDTH - RIGHT - 60
MARKERS = ("circle", "square", "triangle")


def draw_bars(bars: Bars, href: Href | None) -> Drawn:
    top = TOP + 14.0
    across = scale_of(Axis(bars.across, low=0), [*bars.values, 0], START, END)
    parts = []
    for at, (label, value) in enumerate(zip(bars.labels, bars.values, strict=True)):
        y = top + at * ROW
        words = f"{label}: {value:,.6g}"
        bar = rectangle(START, y, max(1.0, across.at(value) - START), ROW - 8, 0, words)
        chosen = bars.filters[at] if bars.filters else {}
        parts.append(text(NAMES, y + 13, cut(label, NAMES - 10), "end"))
        parts.append(linked(bar, chosen, href, words))
        parts.append(text(across.at(value) + 6, y + 13, f"{value:,.6g}"))
    return parts, top + max(1, len(bars.labels)) * ROW + 12


def draw_ranges(ranges: Ranges, href: Href | None) -> Drawn:
    parts, top = legend(ranges.series, TOP + 12, href)
    values = [value for series in ranges.series for value in series.values if value]
    marked = [ranges.mark.at] if ranges.mark else []
    across = scale_of(Axis(ranges.across, log=True), [*values, *marked], START, WIDTH - RIGHT - 10)
    top += 8
    bottom = top + len(ranges.labels) * ROW
    parts += _across_axis(across, top, bottom, ranges.mark)
    for at, label in enumerate(ranges.labels):
        y = top + (at + 0.5) * ROW
        parts.append(text(NAMES, y + 4, label, "end"))
        parts += _range(ranges, at, y, across)
    return parts, bottom + 46


def _across_axis(across: Scale, top: float, bottom: float, mark: ChartMark | None) -> Iterator[str]:
    for tick in across.ticks():
        x = across.at(tick)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'
        yield text(x, bottom + 16, tick_words(tick, across.axis), "middle")
    yield text(WIDTH - RIGHT, bottom + 36, across.axis.label, "end")
    if mark:
        x = across.at(mark.at)
        yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 6:.1f}" y2="{bottom:.1f}"/>'
        yield text(x, top - 10, mark.label, "middle")


def _range(ranges: Ranges, at: int, y: float, across: Scale) -> Iterator[str]:
    values = [series.values[at] or 0 for series in ranges.series]
    if not values:
        return
    yield f'<line class="axis" x1="{across.at(min(values)):.1f}" x2="{across.at(max(values)):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
    for place, (series, value) in enumerate(zip(ranges.series, values, strict=True)):
        yield _marker(MARKERS[place % len(MARKERS)], across.at(value), y, series.colour % COLOURS, f"{series.name}: {value:,.0f} ms")  # fmt: skip


def _marker(shape: str, x: float, y: float, colour: int, words: str) -> str:
    """Shapes, because colours alone do not differ for everybody."""
    named = f"<title>{plain(words)}</title>"
    if shape == "circle":
        return f'<circle class="part f{colour}" cx="{x:.1f}" cy="{y:.1f}" r="6">{named}</circle>'
    if shape == "square":
        return f'<rect class="part f{colour}" x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10">{named}</rect>'
    return f'<path class="part f{colour}" d="M{x:.1f} {y - 7:.1f}l7 12h-14z">{named}</path>'


def draw_time_line(line: TimeLine, _: Href | None) -> Drawn:
    top = TOP + 14.0
    end = WIDTH - RIGHT - 10
    bottom = top + max(1, len(line.rows)) * ROW
    parts = []
    for words, place in line.ticks:
        x = START + place * (end - START)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>')
        parts.append(text(x, bottom + 16, words, "middle"))
    for at, (name, spans) in enumerate(line.rows):
        y = top + at * ROW
        parts.append(text(NAMES, y + 13, cut(name, NAMES - 10), "end"))
        for place, span in enumerate(spans):
            parts += _span(span, place, y, end)
    return parts, bottom + 30


def _span(span: TimeSpan, place: int, y: float, end: float) -> Iterator[str]:
    """Neighbours differ in colour; a name stands in its span if it has room."""
    x = START + span.begin * (end - START)
    width = max(3.0, (span.end - span.begin) * (end - START))
    yield f'<g class="span">{rectangle(x, y, width, ROW - 8, (0, 1, 4, 3)[place % 4], span.label)}</g>'
    if width > LETTER_WIDTH * min(len(span.label), 6) + 8:
        yield text(x + 5, y + 13, cut(span.label, width - 10), style="inside")
