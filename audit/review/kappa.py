"""Cohen's kappa: how far two reviewers agree beyond what chance gives. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from audit.review.intervals import Z

_NOTHING = 1e-12  # what rounding leaves of 0


@dataclass(frozen=True, slots=True)
class Agreement:
    """On one item. `kappa` is None where chance alone explains everything: nobody has judged, or all said the same.

    There is no interval where the large-sample variance is 0, as when two agree on all: few records would look like certainty.
    """

    records: int
    observed: float | None
    kappa: float | None
    low: float | None = None
    high: float | None = None


def agreement(pairs: Sequence[tuple[str, str]]) -> Agreement:
    """From the pairs of what the first and the second reviewer said of each record."""
    count = len(pairs)
    if not count:
        return Agreement(0, None, None)
    values = sorted({value for pair in pairs for value in pair})
    joint = {(a, b): sum(pair == (a, b) for pair in pairs) / count for a in values for b in values}
    first = {a: sum(joint[a, b] for b in values) for a in values}
    second = {b: sum(joint[a, b] for a in values) for b in values}
    observed = sum(joint[a, a] for a in values)
    by_chance = sum(first[a] * second[a] for a in values)
    if len(values) == 1:
        return Agreement(count, observed, None)
    kappa = (observed - by_chance) / (1 - by_chance)
    variance = _variance(joint, first, second, kappa, by_chance)
    if variance < _NOTHING:
        return Agreement(count, observed, kappa)
    half = Z * sqrt(variance / count)
    return Agreement(count, observed, kappa, max(-1.0, kappa - half), min(1.0, kappa + half))


def _variance(
    joint: dict[tuple[str, str], float],
    first: dict[str, float],
    second: dict[str, float],
    kappa: float,
    by_chance: float,
) -> float:
    """The large-sample variance for one pair (Fleiss, Cohen and Everitt, 1969)."""
    on = sum(joint[a, a] * (1 - (first[a] + second[a]) * (1 - kappa)) ** 2 for a in first)
    off = sum(share * (second[a] + first[b]) ** 2 for (a, b), share in joint.items() if a != b)
    rest = (kappa - by_chance * (1 - kappa)) ** 2
    return max(0.0, on + (1 - kappa) ** 2 * off - rest) / (1 - by_chance) ** 2
