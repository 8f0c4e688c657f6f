"""Calibration curves say the same for ever, and never invert an order."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import calibrate
from engine.calibrate import Calibration, interpolate
from engine.settings import CONFIG
from tests.build import steady

CURVE = ((0.2, 0.0), (0.5, 0.6), (0.9, 1.0))
SHIPPED = sorted((CONFIG / "calibration").glob("*.json"))

unit = st.floats(0, 1, allow_subnormal=False)


@st.composite
def curves(draw: st.DrawFn) -> tuple[tuple[float, float], ...]:
    raws = sorted(draw(st.sets(unit, min_size=1, max_size=6)))
    meanings = sorted(draw(st.lists(unit, min_size=len(raws), max_size=len(raws))))
    return tuple(zip(raws, meanings, strict=True))


@pytest.mark.parametrize(
    ("raw", "meaning"),
    [(-math.inf, 0.0), (-1.0, 0.0), (0.2, 0.0), (0.9, 1.0), (0.91, 1.0), (math.inf, 1.0)],
)
def test_flat_beyond_the_ends(raw: float, meaning: float) -> None:
    assert interpolate(CURVE, raw) == meaning


def test_on_the_line_between_two_points() -> None:
    assert interpolate(CURVE, 0.35) == pytest.approx(0.3)
    assert interpolate(CURVE, 0.7) == pytest.approx(0.8)


@steady
@given(curves())
def test_exact_at_the_points(curve: tuple[tuple[float, float], ...]) -> None:
    assert [interpolate(curve, raw) for raw, _ in curve] == [meaning for _, meaning in curve]


@steady
@given(curves(), unit, unit)
def test_rising_curve_never_inverts_an_order(
    curve: tuple[tuple[float, float], ...], one: float, other: float
) -> None:
    lower, higher = sorted((one, other))
    rounding = 1e-12  # scores are ordered by five digits
    assert interpolate(curve, lower) <= interpolate(curve, higher) + rounding
    assert curve[0][1] - rounding <= interpolate(curve, one) <= curve[-1][1] + rounding


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_shipped_calibration(file: Path) -> None:
    calibration = calibrate.from_json(json.loads(file.read_text("utf-8")))
    assert (calibration.kind, calibration.embedder) == ("shipped", file.stem)
    assert calibration.calibration_id
    for curve in (calibration.similarity, calibration.lexical):
        raws, meanings = zip(*curve, strict=True)
        assert list(raws) == sorted(set(raws))
        assert list(meanings) == sorted(meanings)
        assert (curve[0], meanings[-1]) == ((0.0, 0.0), 1.0)


def test_a_calibration_is_shipped() -> None:
    assert SHIPPED


def test_each_score_goes_through_its_own_curve() -> None:
    calibration = Calibration("id", "shipped", "none", ((0.0, 0.1),), ((0.0, 0.2),))
    assert (calibration.similarity_of(0.5), calibration.lexical_of(0.5)) == (0.1, 0.2)
