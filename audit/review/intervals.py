"""How sure a share of a sample is: Wilson's interval, and that of a weighted sum of shares. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

Z = 1.959963984540054  # 95 %, two-sided


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share with its 95 % interval, from so many judged records."""

    share: float
    low: float
    high: float
    records: int


@dataclass(frozen=True, slots=True)
class StratumCount:
    """A stratum: how many records it has in the population, how many were judged, and how many of these count."""

    population: int
    judged: int
    counted: int


def wilson(counted: int, judged: int) -> Estimate | None:
    """Wilson's score interval: good for few records, and for shares near 0 and 1. None without a record."""
    if not judged:
        return None
    share, square = counted / judged, Z * Z
    middle = share + square / (2 * judged)
    half = Z * sqrt(share * (1 - share) / judged + square / (4 * judged * judged))
    scale = 1 + square / judged
    low = 0.0 if counted == 0 else (middle - half) / scale
    high = 1.0 if counted == judged else (middle + half) / scale
    return Estimate(share, low, high, judged)


def weighted(parts: Sequence[StratumCount]) -> Estimate | None:
    """The share in the population: each stratum's share by its weight there. Strata of which nothing is judged are left out.

    The interval is MOVER's (method of variance estimates recovery; Zou and Donner, 2008) over the strata's Wilson intervals: unlike
    a standard error it also holds for a stratum with one record or without an error. It ignores that the population is finite.
    """
    known = [part for part in parts if part.judged]
    total = sum(part.population for part in known)
    if not total:
        return None
    share = below = above = 0.0
    for part in known:
        estimate = wilson(part.counted, part.judged)
        assert estimate
        weight = part.population / total
        share += weight * estimate.share
        below += (weight * (estimate.share - estimate.low)) ** 2
        above += (weight * (estimate.high - estimate.share)) ** 2
    judged = sum(part.judged for part in known)
    return Estimate(share, max(0.0, share - sqrt(below)), min(1.0, share + sqrt(above)), judged)
