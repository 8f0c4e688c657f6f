"""What a control is judged to be, by what its query counted."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from audit.coverage.verifications import reason_of
from audit.reports.as_of import SETTLED, AsOf
from audit.reports.judgement import EMPTY, judge
from audit.reports.pack import Control

CONTROL = Control(
    "c", "t", "s", "m", ("p",), "SELECT", "{counted} things in {rows} rows; wrong: {violations}."
)
COLUMNS = ("what", "counted", "violations")
counts = some.integers(0, 10**12)


def status(*rows: tuple[str, int, int], sealed: int = 9, absent: str = "") -> str:
    control = Control("c", "t", "s", "m", ("p",), "SELECT", "", absent)
    return judge(control, COLUMNS, rows, sealed).status


def test_each_status_has_its_rule() -> None:
    assert status(("a", 3, 0), ("b", 1, 0)) == "met"
    assert status(("a", 3, 0), ("b", 1, 1)) == "not met"
    assert status() == status(("a", 0, 0)) == "not measured"
    assert status(absent="Nothing of it.") == status(("a", 0, 0), absent="Nothing of it.") == "not applicable"


@given(some.lists(some.tuples(some.text(), counts, counts)), some.booleans())
def test_without_a_sealed_record_nothing_is_met(rows: list[tuple[str, int, int]], has_absent: bool) -> None:
    """Seen red with a control that may be absent judged by its rows alone.

    Seen red with the sealed records asked for first: who deleted all rows of a month had it "not measured".
    """
    control = Control("c", "t", "s", "m", ("p",), "SELECT", "", "Nothing of it." if has_absent else "")
    judged = judge(control, COLUMNS, rows, 0)
    if any(violations for _, _, violations in rows):
        assert judged.status == "not met"
    else:
        assert (judged.status, judged.words) == ("not measured", EMPTY)


@given(some.lists(some.tuples(some.text(), counts, counts)), counts)
def test_what_is_violated_once_is_never_met(rows: list[tuple[str, int, int]], sealed: int) -> None:
    is_violated = any(violations for _, _, violations in rows)
    assert not (is_violated and judge(CONTROL, COLUMNS, rows, sealed).status in {"met", "not applicable"})


def test_a_control_without_a_query_says_why() -> None:
    control = Control("c", "t", "s", "m", ("p",), because="No query sees it.", unmeasured="not applicable")
    assert judge(control, (), (), 9).status == "not applicable"
    assert judge(control, (), (), 0).words == "No query sees it."


def test_a_verification_of_a_part_says_so_in_the_reason_that_stays() -> None:
    """Seen red with the verdict alone: a run over one hour read like one over the whole log."""
    day = "2026-11-20T00:00:00+00:00"
    assert reason_of({"verdict": "VALID", "since": None, "until": None}) == "verdict VALID"
    assert reason_of({"verdict": "VALID", "since": day, "until": None}) == "verdict VALID of a part"
    assert reason_of({"verdict": "VALID", "since": None, "until": day}) == "verdict VALID of a part"


def test_a_figure_is_in_words_a_person_reads() -> None:
    judged = judge(CONTROL, COLUMNS, [("a", 1200, 0), ("b", 34, 2)], 9)
    assert judged.words == "1,234 things in 2 rows; wrong: 2."


def test_a_period_ends_before_what_may_still_be_sealed() -> None:
    taken = datetime(2026, 11, 20, 12, tzinfo=UTC)
    period = AsOf.settled(taken - timedelta(days=1), taken + timedelta(days=1), taken)
    assert period.until == taken - SETTLED
    with pytest.raises(ValueError, match="not begun"):
        AsOf.settled(taken, taken + timedelta(days=1), taken)
    with pytest.raises(ValueError, match="later"):
        AsOf.settled(taken, taken, taken)


@pytest.mark.parametrize(
    ("since", "until", "months"),
    [
        (
            "2026-10-01",
            "2026-11-01",
            ("2026-09-01", "2026-11-01"),
        ),  # a request may begin before the heartbeat
        ("2026-10-02", "2026-11-01T00:00:01", ("2026-10-01", "2026-12-01")),
        ("2026-12-31", "2027-01-01", ("2026-12-01", "2027-01-01")),
    ],
)
def test_the_months_that_are_read_hold_the_period(since: str, until: str, months: tuple[str, str]) -> None:
    begin, end = (datetime.fromisoformat(each).replace(tzinfo=UTC) for each in (since, until))
    assert tuple(map(str, AsOf(begin, end, end).months)) == months
