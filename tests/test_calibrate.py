"""Calibration curves say the same for ever, and never invert an order."""

import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import calibrate
from engine.calibrate import interpolate
from engine.models import Curve
from engine.providers.minilm import MiniLm
from tests.build import steady

CURVE: Curve = ((0.2, 0.0), (0.5, 0.6), (0.9, 1.0))

unit = st.floats(0, 1, allow_subnormal=False)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
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
def test_exact_at_the_points(curve: Curve) -> None:
    assert [interpolate(curve, raw) for raw, _ in curve] == [meaning for _, meaning in curve]


@steady
@given(curves(), unit, unit)
def test_rising_curve_never_inverts_an_order(curve: Curve, one: float, other: float) -> None:
    lower, higher = sorted((one, other))
    rounding = 1e-12  # scores are ordered by five digits
    assert interpolate(curve, lower) <= interpolate(curve, higher) + rounding
    assert curve[0][1] - rounding <= interpolate(curve, one) <= curve[-1][1] + rounding


def test_shipped_curves_rise_from_nothing_to_certainty() -> None:
    calibration = calibrate.shipped(MiniLm.name, MiniLm.dimension, MiniLm.curve)
    assert (calibration.kind, calibration.embedder) == ("shipped", MiniLm.name)
    assert calibration.calibration_id.startswith("shipped-")
    for curve in (calibration.similarity, calibration.lexical):
        raws, meanings = zip(*curve, strict=True)
        assert list(raws) == sorted(set(raws))
        assert list(meanings) == sorted(meanings)
        assert (curve[0], meanings[-1]) == ((0.0, 0.0), 1.0)


def test_calibration_is_the_same_when_read_back() -> None:
    """It is stored with the generation as JSON, in which there are neither tuples nor, always, floats."""
    calibration = calibrate.shipped("embedder", 384, CURVE)
    assert calibrate.from_json(json.loads(json.dumps(asdict(calibration)))) == calibration
    whole = {
        "calibration_id": "c", "kind": "self", "embedder": "e", "dimension": 384, "normalisation": "n",
        "similarity": [[0, 1]], "lexical": [],
    }  # fmt: skip
    assert [type(number) for number in calibrate.from_json(whole).similarity[0]] == [float, float]
