"""What a raw score means. Pure.

A cosine of .45 is a fine match for one embedder and noise for another, so raw scores pass through curves that belong to
the generation, and the gate at 0.60 means the same everywhere.
"""

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from engine.models import Calibration, Curve

# Even the right passage attains only about .14 of the BM25 that is possible for a question; a sixth counts as full.
ATTAINMENT_CURVE: Curve = ((0.0, 0.0), (1 / 6, 1.0))


def shipped(embedder: str, similarity: Curve) -> Calibration:
    """The embedder's own curve, measured on other books than this one."""
    return Calibration(f"{embedder}-shipped", "shipped", embedder, similarity, ATTAINMENT_CURVE)


def from_json(stored: Mapping[str, Any]) -> Calibration:
    curves = {
        name: tuple((float(raw), float(meaning)) for raw, meaning in stored[name])
        for name in ("similarity", "lexical")
    }
    return Calibration(stored["calibration_id"], stored["kind"], stored["embedder"], **curves)


def interpolate(curve: Curve, raw: float) -> float:
    """The meaning of a raw score: on the line between its neighbours, flat beyond the ends."""
    after = bisect_right(curve, raw, key=lambda point: point[0])
    if after == 0:
        return curve[0][1]
    if after == len(curve):
        return curve[-1][1]
    (low, low_meaning), (high, high_meaning) = curve[after - 1], curve[after]
    return low_meaning + (high_meaning - low_meaning) * (raw - low) / (high - low)
