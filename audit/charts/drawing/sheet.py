"""What every picture has: the frame with title and description, texts, legend, axes, links. Pure.

Nothing is styled inline, because the console's content security policy forbids it: classes name what chart.css colours. A file
of its own carries the style sheet inside.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from audit.charts.drawing.axes import Axis, Scale, tick_text
from audit.charts.figures.chart import ChartSeries, Filter
from audit.markup import shown

WIDTH = 720
LEFT, RIGHT, TOP = 64, 20, 36
LEGEND_LINE = 18
LETTER_WIDTH = 6.6  # of the font, roughly: texts are placed by it
COLOURS = 8
LABELS_MAX = 9  # along an axis of days
STYLE_FILE = Path(__file__).with_name("chart.css")
STYLE = STYLE_FILE.read_text("utf-8")

_UNITS = (("d", 8.64e7), ("h", 3.6e6), ("min", 6e4), ("s", 1e3), ("ms", 1.0))

Href = Callable[[Filter], str]  # the address of the page with this filter more


def picture(
    title: str, description: str, height: float, parts: Iterable[str], *, has_style: bool, is_linked: bool
) -> str:
    """With links inside it is a group: in an image nobody would find them. A page has the title as a heading of its own."""
    role = f'role="group" aria-label="{plain(title)}"' if is_linked else 'role="img"'
    style = f"<style>{STYLE}</style>" if has_style else ""
    paper = f'<rect class="paper" width="{WIDTH}" height="{height:.0f}"/>' if has_style else ""
    begin = 0 if has_style else TOP - 6
    heading = f'<text class="title" x="12" y="22">{plain(title)}</text>' if has_style else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" {role} viewBox="0 {begin} {WIDTH} {height - begin:.0f}"'
        f' width="{WIDTH}" height="{height - begin:.0f}"><title>{plain(title)}</title><desc>{plain(description)}</desc>{style}{paper}'
        f"{heading}{''.join(parts)}</svg>"
    )


def plain(words: str) -> str:
    """Escaped, and without what no XML may contain."""
    return escape(shown(words))


def text(x: float, y: float, words: str, anchor: str = "start", style: str = "halo") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{plain(words)}</text>'


def cut(words: str, width: float) -> str:
    """As much of it as has room."""
    letters = max(3, int(width / LETTER_WIDTH))
    return words if len(words) <= letters else f"{words[: letters - 1]}…"


def rectangle(x: float, y: float, width: float, height: float, colour: int, words: str) -> str:
    """With a tooltip."""
    return (
        f'<rect class="part f{colour % COLOURS}" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}">'
        f"<title>{plain(words)}</title></rect>"
    )


def linked(drawn: str, chosen: Filter, href: Href | None, words: str, *, is_stop: bool = True) -> str:
    """A link where the picture stands on a page and there is a filter to set. What has hundreds of parts is no stop of the Tab key."""
    if href is None or not chosen:
        return drawn
    stop = "" if is_stop else ' tabindex="-1"'
    return f'<a href="{escape(href(chosen))}" aria-label="{plain(words)}"{stop}>{drawn}</a>'


def legend(series: Sequence[ChartSeries], top: float, href: Href | None) -> tuple[list[str], float]:
    """Wrapped to as many lines as it needs; and where it ends."""
    parts, x, y = [], float(LEFT), top
    for item in series:
        short = cut(item.name, 260)
        width = 34 + LETTER_WIDTH * len(short)
        if x + width > WIDTH - RIGHT and x > LEFT:
            x, y = float(LEFT), y + LEGEND_LINE
        key = f'<rect class="f{item.colour % COLOURS}" x="{x:.1f}" y="{y - 9:.1f}" width="12" height="12" rx="2"/>'
        parts.append(linked(key + text(x + 18, y + 1, short), item.filter, href, f"only {item.name}"))
        x += width
    return parts, y + LEGEND_LINE if series else top


def up_axis(up: Scale, label: str) -> Iterator[str]:
    """Label above the axis: nobody turns the head."""
    for tick in up.ticks():
        y = up.at(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield text(LEFT - 8, y + 4, tick_words(tick, up.axis), "end")
    yield text(LEFT, up.end - 10, label)


def tick_words(tick: float, axis: Axis) -> str:
    """A logarithmic axis is one of times."""
    if not axis.log:
        return tick_text(tick, axis)
    unit, milliseconds = next((item for item in _UNITS if tick >= item[1]), _UNITS[-1])
    return f"{tick / milliseconds:.3g} {unit}"


def across_labels(labels: Sequence[str], left: float, width: float, y: float) -> Iterator[str]:
    """Each in the middle of its place, and only as many as have room."""
    every = max(1, -(-len(labels) // LABELS_MAX))
    for at in range(0, len(labels), every):
        yield text(left + (at + 0.5) * width, y, labels[at], "middle")


def nothing(height: float) -> str:
    return text(WIDTH / 2, height / 2 + 10, "Nothing in this period", "middle")
