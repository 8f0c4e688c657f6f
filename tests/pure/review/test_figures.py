"""Agreement and intervals against figures that were made by hand or are published."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.review.intervals import StratumCount, weighted, wilson
from audit.review.kappa import agreement


def pairs(table: list[list[int]]) -> list[tuple[str, str]]:
    """What both said, from a table with the first reviewer's verdicts as rows."""
    return [
        (str(a), str(b)) for a, row in enumerate(table) for b, count in enumerate(row) for _ in range(count)
    ]


# By hand: observed 35/50, by chance 0.5 * 0.6 + 0.5 * 0.4 = 0.5, so (0.7 - 0.5) / 0.5.
def test_kappa_of_a_table_made_by_hand() -> None:
    found = agreement(pairs([[20, 5], [10, 15]]))
    assert (found.records, found.observed) == (50, 0.7)
    assert found.kappa == pytest.approx(0.4)


# The example of Fleiss, Cohen and Everitt (1969): kappa 0.429 on 200 cases, standard error 0.0537.
def test_kappa_and_its_interval_as_they_were_published() -> None:
    found = agreement(pairs([[106, 10, 4], [22, 28, 10], [2, 12, 6]]))
    assert found.kappa == pytest.approx(0.429, abs=0.0005)
    assert found.low == pytest.approx(0.4286 - 1.96 * 0.0537, abs=0.0005)
    assert found.high == pytest.approx(0.4286 + 1.96 * 0.0537, abs=0.0005)


def test_kappa_of_degenerate_tables() -> None:
    assert agreement([]) == agreement(pairs([])) and agreement([]).kappa is None
    all_agree = agreement(pairs([[10, 0], [0, 10]]))
    assert (all_agree.observed, all_agree.kappa, all_agree.low, all_agree.high) == (1, 1, None, None)
    one_category = agreement([("yes", "yes")] * 9)
    assert (one_category.observed, one_category.kappa, one_category.low) == (1, None, None)
    never = agreement(pairs([[0, 10], [10, 0]]))
    assert (never.observed, never.kappa) == (0, -1)
    one_sided = agreement([("yes", "yes")] * 5 + [("yes", "no")] * 5)
    assert (one_sided.kappa, one_sided.low) == (0, None)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), max_size=40))
def test_kappa_is_within_its_interval_and_symmetric(found: list[tuple[str, str]]) -> None:
    there, back = agreement(found), agreement([(b, a) for a, b in found])
    assert there.kappa == pytest.approx(back.kappa) if there.kappa is not None else back.kappa is None
    if there.kappa is not None and there.low is not None and there.high is not None:
        assert -1 <= there.low <= there.kappa <= there.high <= 1


# Published values of the score interval at 95 %.
@pytest.mark.parametrize(
    ("counted", "judged", "low", "high"),
    [
        (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (1, 1, 0.2065, 1.0),
        (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (1, 29, 0.0061, 0.1718),
    ],
)  # fmt: skip
def test_wilson_as_published(counted: int, judged: int, low: float, high: float) -> None:
    found = wilson(counted, judged)
    assert found
    assert found.low == pytest.approx(low, abs=5e-5)
    assert found.high == pytest.approx(high, abs=5e-5)


def test_nothing_judged_is_not_measured() -> None:
    assert wilson(0, 0) is None
    assert weighted([]) is None
    assert weighted([StratumCount(100, 0, 0)]) is None


def test_one_stratum_has_its_own_interval() -> None:
    found, alone = weighted([StratumCount(1000, 20, 3)]), wilson(3, 20)
    assert found and alone
    assert found.low == pytest.approx(alone.low)
    assert found.high == pytest.approx(alone.high)


# By hand: 0.9 * 1/10 + 0.1 * 5/10 = 0.14, and not the 6/20 that an unweighted share gives.
def test_each_stratum_counts_by_its_share_of_the_population() -> None:
    found = weighted([StratumCount(900, 10, 1), StratumCount(100, 10, 5), StratumCount(50, 0, 0)])
    assert found
    assert found.records == 20
    assert found.share == pytest.approx(0.14)
    assert found.low < 0.14 < found.high


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=6)
)
def test_a_weighted_interval_holds_its_share(given_parts: list[tuple[int, int, int]]) -> None:
    found = weighted(
        [StratumCount(size, judged, min(judged, counted)) for size, judged, counted in given_parts]
    )
    if found:
        assert 0 <= found.low <= found.share + 1e-12 and found.share - 1e-12 <= found.high <= 1


def test_the_weighted_interval_covers_as_often_as_it_says() -> None:
    """Two strata of 8 and 4 records with error rates of 0.1 and 0.4: over all outcomes the interval holds the truth in 95 %."""
    truth, covered = 0.75 * 0.1 + 0.25 * 0.4, 0.0
    for few, many in product(range(9), range(5)):
        found = weighted([StratumCount(750, 8, few), StratumCount(250, 4, many)])
        assert found
        if found.low <= truth <= found.high:
            covered += _binomial(few, 8, 0.1) * _binomial(many, 4, 0.4)
    assert covered > 0.93


def _binomial(counted: int, judged: int, rate: float) -> float:
    from math import comb

    return comb(judged, counted) * rate**counted * (1 - rate) ** (judged - counted)
