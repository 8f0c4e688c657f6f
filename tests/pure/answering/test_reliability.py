"""Reliability: what a confidence says, and what share is right."""

import pytest

from engine.evaluation.reliability import ReliabilityBin, bins, calibration_error


def test_answers_are_counted_with_those_of_like_confidence() -> None:
    found = bins([0.75, 0.75, 0.3, 1.0], [True, False, True, True])
    assert found == [
        ReliabilityBin(0.3, 1.0, 1),
        ReliabilityBin(0.75, 0.5, 2),
        ReliabilityBin(1.0, 1.0, 1),
    ]


# Seen red with the bins weighted alike.
def test_the_error_is_the_distance_of_an_answer_and_not_of_a_bin() -> None:
    sure = [0.9] * 9
    error = calibration_error([*sure, 0.5], [*[True] * 9, False])
    assert error.value == pytest.approx((9 * 0.1 + 0.5) / 10)


def test_a_confidence_that_is_what_it_says_has_no_error() -> None:
    assert calibration_error([0.5] * 4, [True, False] * 2).value == 0


def test_without_answers_there_is_no_error() -> None:
    assert calibration_error([], []).value is None
    assert bins([], []) == []
