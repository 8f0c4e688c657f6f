"""What a raw score means. Pure.

A cosine of .45 is a fine match for one embedder and noise for another, so raw scores pass through a curve that belongs
to the generation, and the gate at 0.60 means the same everywhere.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Calibration:
    """Two rising, piecewise linear curves, each a list of (raw, meaning) points."""

    calibration_id: str
    kind: str
    embedder: str
    similarity: tuple[tuple[float, float], ...]
    lexical: tuple[tuple[float, float], ...]

    def similarity_of(self, cosine: float) -> float:
        return interpolate(self.similarity, cosine)

    def lexical_of(self, attainment: float) -> float:
        return interpolate(self.lexical, attainment)


def from_json(stored: dict[str, Any]) -> Calibration:
    return Calibration(
        calibration_id=stored["calibration_id"],
        kind=stored["kind"],
        embedder=stored["embedder"],
        similarity=tuple((float(raw), float(meaning)) for raw, meaning in stored["similarity"]),
        lexical=tuple((float(raw), float(meaning)) for raw, meaning in stored["lexical"]),
    )


def interpolate(curve: tuple[tuple[float, float], ...], raw: float) -> float:
    """The meaning of a raw score: on the line between its neighbours, flat beyond the ends."""
    raws = [point[0] for point in curve]
    after = bisect_right(raws, raw)
    if after == 0:
        return curve[0][1]
    if after == len(curve):
        return curve[-1][1]
    (low, low_meaning), (high, high_meaning) = curve[after - 1], curve[after]
    return low_meaning + (high_meaning - low_meaning) * (raw - low) / (high - low)
