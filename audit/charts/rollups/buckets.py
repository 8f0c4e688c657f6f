"""Histograms with fixed buckets, so that those of days can be added, and percentiles from them. Pure.

Times: bucket 0 is below a millisecond; the others grow by 12 %, 20 to a decade. A percentile is given as the geometric middle of
its bucket, so it is at most 6 % off (`ERROR`). Scores: the distance from the threshold in steps of 0.02.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping

PER_DECADE = 20
DECADES = 9  # to a billion milliseconds, eleven days; what is longer counts in the last bucket
ERROR = 10 ** (0.5 / PER_DECADE) - 1
MARGIN_STEP = 0.02  # within one step of the threshold, an answer or a refusal was a near miss
MARGIN_MAX = 50  # steps

_BOUNDS = [10 ** (number / PER_DECADE) for number in range(PER_DECADE * DECADES)]


def time_bucket(milliseconds: float) -> int:
    return bisect_right(_BOUNDS, milliseconds)


def time_of(bucket: int) -> float:
    """The geometric middle of the bucket, in milliseconds."""
    return 10 ** ((bucket - 0.5) / PER_DECADE) if bucket else 0.0


def margin_bucket(score: float, threshold: float) -> int:
    """0 is the first step that passes. Rounded before, because 0.62 - 0.60 is a little more than 0.02 in floating point."""
    steps = math.floor(round((score - threshold) / MARGIN_STEP, 6))
    return max(-MARGIN_MAX, min(MARGIN_MAX - 1, steps))


def percentile(histogram: Mapping[int, int], share: float) -> float | None:
    """The nearest-rank percentile; None of nothing."""
    rank = max(1, math.ceil(share * sum(histogram.values()) - 1e-9))
    for bucket in sorted(histogram):
        rank -= histogram[bucket]
        if rank <= 0:
            return time_of(bucket)
    return None
