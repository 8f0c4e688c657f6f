"""A chart as data: its words, its picture and the table behind it. Pure.

A value may carry a filter, such as {"outcome": "refused"}: whoever draws the chart on a page makes a link of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Filter = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ChartMark:
    """A line across the picture, with its name."""

    label: str
    at: float


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """A value for each label of the picture; None: there is none. `colour` is its number in the palette."""

    name: str
    values: Sequence[float | None]
    colour: int
    filter: Filter = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Columns:
    """Stacked columns, from left to right. `mark` stands between two of them, counted from the left."""

    labels: Sequence[str]
    series: Sequence[ChartSeries]
    across: str
    up: str
    filters: Sequence[Filter] = ()  # of the labels
    mark: ChartMark | None = None


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over labels, on a logarithmic axis of milliseconds."""

    labels: Sequence[str]
    series: Sequence[ChartSeries]
    up: str
    mark: ChartMark | None = None


@dataclass(frozen=True, slots=True)
class Ranges:
    """For each label a range of milliseconds on a logarithmic axis, with a dot for each series."""

    labels: Sequence[str]
    series: Sequence[ChartSeries]
    across: str
    mark: ChartMark | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars, the longest first."""

    labels: Sequence[str]
    values: Sequence[float]
    across: str
    filters: Sequence[Filter] = ()


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Of a time line, from 0 to 1 of the period."""

    label: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class TimeLine:
    """Rows of spans; `ticks` are the days along them, from 0 to 1 of the period."""

    rows: Sequence[tuple[str, Sequence[TimeSpan]]]
    ticks: Sequence[tuple[str, float]]


Picture = Columns | LineChart | Ranges | Bars | TimeLine
Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Chart:
    """`description` is read aloud by screen readers; `note` says how the numbers were got."""

    name: str
    title: str
    description: str
    picture: Picture
    heading: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    @property
    def is_empty(self) -> bool:
        return not self.rows
