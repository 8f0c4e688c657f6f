"""Bootstrap confidence intervals: a figure is a statistic with its 95 % interval over seeded resamples. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.retrieval.calibrate import auroc

RESAMPLES = 1000
SEED = 17

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Figure:
    """A statistic with its 95 % interval and its number of questions; without questions it has no value."""

    value: float | None
    low: float | None
    high: float | None
    questions: int


def mean_figure(values: Sequence[float]) -> Figure:
    return _figure([np.asarray(values, np.float64)], lambda sample: float(sample[0].mean()))


def auroc_figure(higher: Sequence[float], lower: Sequence[float]) -> Figure:
    groups = [np.asarray(higher, np.float64), np.asarray(lower, np.float64)]
    return _figure(groups, lambda sample: auroc(sample[0], sample[1]))


def paired_figure(pairs: Sequence[tuple[float, float]], measure: Callable[[Floats], float]) -> Figure:
    """A statistic of pairs, which are resampled together; `measure` takes a row for each pair."""
    return _figure([np.asarray(pairs, np.float64).reshape(-1, 2)], lambda sample: measure(sample[0]))


def _figure(groups: Sequence[Floats], measure: Callable[[Sequence[Floats]], float]) -> Figure:
    """Resamples each group separately, because the size of a group is the choice of the set's author."""
    count = sum(map(len, groups))
    if not all(map(len, groups)):
        return Figure(None, None, None, count)
    random = np.random.default_rng(SEED)
    resampled = [
        measure([group[random.integers(0, len(group), len(group))] for group in groups])
        for _ in range(RESAMPLES)
    ]
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Figure(measure(groups), float(low), float(high), count)
