"""Scales and their ticks, linear and logarithmic. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

TICKS = 5  # as many as can be read at a glance
THOUSAND = 1000  # below it, three digits are read at once


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis. Without limits it covers the data; a share is shown in per cent, and whole numbers have no ticks between them."""

    label: str
    low: float | None = None
    high: float | None = None
    log: bool = False
    share: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear or logarithmic scale: maps values of an axis to coordinates."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        low, high, here = self._own(self.low), self._own(self.high), self._own(value)
        return self.start + (self.end - self.start) * min(1.0, max(0.0, (here - low) / (high - low)))

    def ticks(self) -> list[float]:
        if self.axis.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high) + 1e-9)
            return [10.0**power for power in range(first, last + 1)]
        step = _step(self.high - self.low, self.axis)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def _own(self, value: float) -> float:
        return math.log10(max(value, self.low)) if self.axis.log else value


def scale_of(axis: Axis, values: Sequence[float], start: float, end: float) -> Scale:
    return Scale(axis, *_limits(axis, values), start, end)


def tick_text(value: float, axis: Axis) -> str:
    if axis.share:
        return f"{value * 100:.3g} %"
    return f"{value:,.0f}" if abs(value) >= THOUSAND else f"{value:.3g}"


def _limits(axis: Axis, values: Sequence[float]) -> tuple[float, float]:
    """The limits of the axis, or of the data widened to whole ticks; never an empty range."""
    usable = [value for value in values if math.isfinite(value) and (value > 0 or not axis.log)] or [1.0]
    low = min(usable) if axis.low is None else axis.low
    high = max(usable) if axis.high is None else axis.high
    if axis.log:
        low = 10 ** math.floor(math.log10(low)) if axis.low is None else low
        high = 10 ** math.ceil(math.log10(high)) if axis.high is None else high
        return low, high if high > low else low * 10
    if high <= low:
        high = low + 1
    step = _step(high - low, axis)
    low = math.floor(low / step) * step if axis.low is None else low
    return low, math.ceil(high / step - 1e-9) * step if axis.high is None else high


def _step(width: float, axis: Axis) -> float:
    """1, 2 or 5 times a power of ten."""
    if axis.whole and width <= TICKS:
        return 1.0
    rough = width / TICKS
    power = 10 ** math.floor(math.log10(rough))
    return float(power * next(times for times in (1, 2, 5, 10) if times * power >= rough * (1 - 1e-9)))
