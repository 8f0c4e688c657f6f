"""Stacked columns and lines over the same labels. Pure."""

from collections.abc import Iterator

from audit.charts.drawing.axes import Axis, Scale, scale_of
from audit.charts.drawing.sheet import (
    COLOURS,
    LEFT,
    LETTER_WIDTH,
    RIGHT,
    TOP,
    WIDTH,
    Href,
    across_labels,
    legend,
    linked,
    rectangle,
    text,
    up_axis,
)
from audit.charts.figures.chart import ChartMark, Columns, Filter, LineChart

PLOT = 220  # pixels high
FOOT = 46
ACROSS = WIDTH - LEFT - RIGHT
FULL = 0.86  # of the place of a column
DASHES = ("none", "7 4", "2 3", "10 3 2 3")  # lines differ in more than colour

Drawn = tuple[list[str], float]  # and the height


def draw_columns(columns: Columns, href: Href | None) -> Drawn:
    parts, top = legend(columns.series, TOP + 12, href)
    sums = [sum(series.values[at] or 0 for series in columns.series) for at in range(len(columns.labels))]
    bottom = top + 20 + PLOT
    is_whole = all(float(each).is_integer() for each in sums)
    up = scale_of(Axis(columns.up, low=0, whole=is_whole), [*sums, 0], bottom, top + 20)
    width = ACROSS / max(1, len(columns.labels))
    parts += up_axis(up, columns.up)
    for at in range(len(columns.labels)):
        parts += _column(columns, at, LEFT + at * width, width, up, href)
    parts.append(f'<path class="axis" d="M{LEFT} {bottom:.1f}H{WIDTH - RIGHT}"/>')
    parts += across_labels(columns.labels, LEFT, width, bottom + 18)
    parts.append(text(WIDTH - RIGHT, bottom + 38, columns.across, "end"))
    if columns.mark:
        parts += _gate(columns.mark, LEFT + columns.mark.at * width, up)
    return parts, bottom + FOOT


def _column(
    columns: Columns, at: int, left: float, width: float, up: Scale, href: Href | None
) -> Iterator[str]:
    below = 0.0
    for series in columns.series:
        value = series.values[at] or 0
        if value <= 0:
            continue
        high, low = up.at(below + value), up.at(below)
        below += value
        words = f"{columns.labels[at]}, {series.name}: {value:,.6g}"
        x, full = left + width * (1 - FULL) / 2, width * FULL
        part = rectangle(x, high, full, max(0.5, low - high), series.colour, words)
        chosen: Filter = {**series.filter, **_filter(columns, at)}
        yield linked(part, chosen, href, words, is_stop=False)


def _filter(columns: Columns, at: int) -> Filter:
    return columns.filters[at] if columns.filters else {}


def _gate(mark: ChartMark, x: float, up: Scale) -> Iterator[str]:
    """Its name is above the columns, where none can cover it, and beside the name of the axis."""
    yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{up.start:.1f}" y2="{up.end - 16:.1f}"/>'
    is_left = x < WIDTH / 2
    beside = max(x + 6, LEFT + LETTER_WIDTH * (len(up.axis.label) + 2)) if is_left else x - 6
    yield text(beside, up.end - 10, mark.label, "start" if is_left else "end")


def draw_lines(lines: LineChart, href: Href | None) -> Drawn:
    """A day without a value breaks the line; a single one is a dot."""
    parts, top = legend(lines.series, TOP + 12, href)
    values = [value for series in lines.series for value in series.values if value]
    bottom = top + 20 + PLOT
    up = scale_of(
        Axis(lines.up, log=True), values + ([lines.mark.at] if lines.mark else []), bottom, top + 20
    )
    width = ACROSS / max(1, len(lines.labels))
    parts += up_axis(up, lines.up)
    parts += across_labels(lines.labels, LEFT, width, bottom + 18)
    if lines.mark:
        y = up.at(lines.mark.at)
        parts.append(f'<line class="mark" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(text(WIDTH - RIGHT, y - 5, lines.mark.label, "end"))
    for number, series in enumerate(lines.series):
        places = [
            (LEFT + (at + 0.5) * width, up.at(value)) if value is not None else None
            for at, value in enumerate(series.values)
        ]
        parts += _line(places, series.colour % COLOURS, DASHES[number % len(DASHES)])
    return parts, bottom + FOOT - 14


def _line(places: list[tuple[float, float] | None], colour: int, dash: str) -> Iterator[str]:
    run: list[tuple[float, float]] = []
    for place in [*places, None]:
        if place:
            run.append(place)
            continue
        if len(run) == 1:
            yield f'<circle class="f{colour}" cx="{run[0][0]:.1f}" cy="{run[0][1]:.1f}" r="3"/>'
        elif run:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in run)
            yield f'<path class="line l{colour}" stroke-dasharray="{dash}" d="M{path}"/>'
        run = []
