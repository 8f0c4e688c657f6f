"""A chart as SVG and as CSV. Pure."""

from audit.charts.drawing.bars import draw_bars, draw_ranges, draw_time_line
from audit.charts.drawing.columns import Drawn, draw_columns, draw_lines
from audit.charts.drawing.sheet import Href, nothing, picture
from audit.charts.figures.chart import Bars, Cell, Chart, Columns, LineChart, Ranges
from audit.package.spreadsheet import cell

EMPTY_HEIGHT = 150.0


def svg(chart: Chart, href: Href | None = None, *, has_style: bool = True) -> str:
    """`has_style` for a file of its own. On a page chart.css is linked, and `href` makes bars links."""
    parts, height = ([nothing(EMPTY_HEIGHT)], EMPTY_HEIGHT) if chart.is_empty else _drawn(chart, href)
    return picture(
        chart.title, chart.description, height, parts, has_style=has_style, is_linked=href is not None
    )


def csv(chart: Chart) -> str:
    """As a spreadsheet takes it: what would be a formula begins with an apostrophe."""
    lines = [chart.heading, *chart.rows]
    return "\ufeff" + "".join(",".join(_cell(value) for value in line) + "\r\n" for line in lines)


def _drawn(chart: Chart, href: Href | None) -> Drawn:
    match chart.picture:
        case Columns() as columns:
            return draw_columns(columns, href)
        case LineChart() as lines:
            return draw_lines(lines, href)
        case Ranges() as ranges:
            return draw_ranges(ranges, href)
        case Bars() as bars:
            return draw_bars(bars, href)
        case line:
            return draw_time_line(line, href)


def _cell(value: Cell) -> str:
    return "" if value is None else cell(value)
