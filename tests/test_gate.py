"""The gate before the model."""

import math

import pytest

from engine.gate import NEAREST_SHOWN, refuse_weak_evidence
from engine.models import Evidence
from tests.build import evidence

THRESHOLD = 0.60
JUST_BELOW = math.nextafter(THRESHOLD, 0)


def found(*scores: float) -> list[Evidence]:
    return [evidence("A robot moves.", score=score, chunk_id=f"chunk-{n}") for n, score in enumerate(scores)]


def test_at_the_threshold_passes() -> None:
    assert refuse_weak_evidence(found(THRESHOLD), THRESHOLD) is None


def test_one_good_passage_is_enough_wherever_it_stands() -> None:
    assert refuse_weak_evidence(found(0.1, 0.9, 0.2), THRESHOLD) is None


def test_just_below_refuses_with_the_nearest_sections() -> None:
    weak = found(JUST_BELOW, 0.5, 0.4, 0.3, 0.2)
    refusal = refuse_weak_evidence(weak, THRESHOLD)
    assert refusal is not None
    assert refusal.reason == "not_covered"
    assert refusal.message == "This question is not covered in the book."
    assert refusal.nearest == tuple(weak[:NEAREST_SHOWN])


@pytest.mark.parametrize("threshold", [THRESHOLD, 1.0, 0.0])
def test_no_evidence_refuses(threshold: float) -> None:
    """With a threshold of 0 as well: there is nothing that a model could be shown."""
    refusal = refuse_weak_evidence([], threshold)
    assert refusal is not None
    assert (refusal.reason, refusal.nearest) == ("not_covered", ())
