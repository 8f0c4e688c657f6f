"""The shares that are right: from 0 to 1, and more with better signs."""

import pytest

from engine.grounding.certainty import PASSAGE_RIGHT, Signs, answer_probability, passage_probability


@pytest.mark.parametrize("sign", Signs._fields)
def test_a_better_sign_lowers_no_probability(sign: str) -> None:
    weak = Signs(0.6, 0.3, 0.2)
    assert 0 < answer_probability(weak) <= answer_probability(weak._replace(**{sign: 1.0})) < 1


def test_a_better_passage_is_right_as_often_at_least() -> None:
    shares = [passage_probability(score / 100) for score in range(101)]
    assert shares == sorted(shares)
    assert shares[0] == PASSAGE_RIGHT[0][1] >= 0
    assert shares[-1] == PASSAGE_RIGHT[-1][1] <= 1
