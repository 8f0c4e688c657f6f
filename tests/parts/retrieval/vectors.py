"""Points with windows and terms, and the exact scores that every index must find for them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engine.models import Hit, Point, Vector

DIMENSION = 48
LIMIT = 10
Scores = dict[str, tuple[float, float]]


def unit(rows: np.ndarray[Any, np.dtype[np.float64]]) -> Vector:
    vectors: Vector = (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)
    return vectors


def random_point(number: int, rng: np.random.Generator, dimension: int = DIMENSION) -> Point:
    """Every seventh has no terms, as a passage that is all code may have none."""
    terms = rng.choice(np.arange(1, 60), size=6 if number % 7 else 0, replace=False)
    return Point(
        chunk_id=f"{number:064x}"[::-1],
        windows=unit(rng.normal(size=(int(rng.integers(1, 5)), dimension))),
        terms={int(term): float(rng.uniform(0.1, 2.5)) for term in terms},
        payload=payload(number),
    )


def payload(number: int) -> dict[str, Any]:
    return {
        "chapter": f"Chapter {number % 3}",
        "section": f"Section {number % 5}",
        "module": 1 + number % 4,
        "difficulty": ("beginner", "intermediate", "advanced")[number % 3],
        "tags": [tag for tag, every in (("ros", 2), ("imu", 3), ("zmp", 5)) if number % every == 0],
    }


RNG = np.random.default_rng(20)
POINTS = [random_point(number, RNG) for number in range(300)]
QUERIES = [(unit(RNG.normal(size=DIMENSION)), {3: 1.2, 17: 0.4, 41: 2.0, 999: 1.0}) for _ in range(8)]


def exact(points: Sequence[Point], dense: Vector, terms: dict[int, float], limit: int = LIMIT) -> Scores:
    """What the index must answer: the best of each score, all with both, by hand."""
    cosines = {point.chunk_id: float(np.max(point.windows @ dense)) for point in points}
    weights = {
        point.chunk_id: sum(weight * point.terms.get(term, 0.0) for term, weight in terms.items())
        for point in points
    }
    best = sorted(cosines, key=lambda name: -cosines[name])[:limit]
    best += [name for name in sorted(weights, key=lambda name: -weights[name])[:limit] if weights[name]]
    return {name: (cosines[name], weights[name]) for name in best}


def assert_exact(hits: Sequence[Hit], expected: Scores) -> None:
    assert len(hits) == len(expected)
    found = {hit.chunk_id: (hit.cosine, hit.bm25) for hit in hits}
    assert found.keys() == expected.keys()
    for name, scores in expected.items():
        assert found[name] == pytest.approx(scores, rel=1e-5, abs=1e-6)
