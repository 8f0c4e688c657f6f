"""Which verdicts on a record count, whoever wrote the others."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from audit.review.rubric import Judgement, Kind, Marks, marks_of, standing_of

RIGHT = Marks("yes", "yes", "no", "no")
WRONG = Marks("no", "partly", "yes", "no", "It invents a number.")


def verdict(at: int, reviewer: str, marks: Marks | None = RIGHT, kind: Kind = "review") -> Judgement:
    return Judgement(
        UUID(int=at), datetime(2026, 11, 1, tzinfo=UTC) + timedelta(minutes=at), reviewer, kind, marks
    )


def test_two_who_agree_make_it_final() -> None:
    assert standing_of([verdict(1, "ada")]).state == "open"
    standing = standing_of(
        [verdict(1, "ada"), verdict(2, "lin", Marks("yes", "yes", "no", "no", "Well said."))]
    )
    assert (standing.state, standing.final) == ("final", RIGHT)


def test_two_who_differ_wait_for_a_third() -> None:
    both = [verdict(1, "ada"), verdict(2, "lin", WRONG)]
    assert (standing_of(both).state, standing_of(both).final) == ("disputed", None)
    decided = standing_of([*both, verdict(3, "kay", WRONG, "adjudication")])
    assert (decided.state, decided.final) == ("final", WRONG)


# Seen red with a comparison of the bare names.
@pytest.mark.parametrize("again", ["ada", "ADA", " Ada ", "ad\u200ba"])
def test_a_person_judges_once_in_every_spelling(again: str) -> None:
    standing = standing_of([verdict(1, "ada"), verdict(2, again, WRONG)])
    assert (standing.state, len(standing.reviews), standing.reviews[0].marks) == ("open", 1, RIGHT)
    assert standing.has_judged(again)


def test_nobody_adjudicates_a_verdict_of_their_own() -> None:
    both = [verdict(1, "ada"), verdict(2, "lin", WRONG)]
    assert standing_of([*both, verdict(3, "Lin", WRONG, "adjudication")]).state == "disputed"


def test_only_a_dispute_is_adjudicated_and_only_once() -> None:
    agreed = [verdict(1, "ada"), verdict(2, "lin")]
    assert standing_of([*agreed, verdict(3, "kay", WRONG, "adjudication")]).final == RIGHT
    early = [verdict(0, "kay", WRONG, "adjudication"), verdict(1, "ada"), verdict(2, "lin", WRONG)]
    assert standing_of(early).state == "disputed"
    twice = [verdict(1, "ada"), verdict(2, "lin", WRONG), verdict(3, "kay", RIGHT, "adjudication")]
    assert standing_of([*twice, verdict(4, "joe", WRONG, "adjudication")]).final == RIGHT


def test_a_third_review_changes_nothing() -> None:
    agreed = [verdict(1, "ada"), verdict(2, "lin")]
    assert standing_of([*agreed, verdict(3, "kay", WRONG)]) == standing_of(agreed)


def test_an_erased_verdict_was_given_and_says_nothing() -> None:
    standing = standing_of([verdict(1, "ada", None), verdict(2, "lin", WRONG)])
    assert (standing.state, standing.final, standing.has_judged("ada")) == ("final", None, True)


@pytest.mark.parametrize(
    "wrong",
    [Marks("Yes", "yes", "no", "no"), Marks("yes", "", "no", "no"), Marks("yes", "yes", "partly", "no"),
     Marks("yes", "yes", "no", "no", "x" * 501)],
)  # fmt: skip
def test_marks_outside_of_the_rubric_are_refused(wrong: Marks) -> None:
    with pytest.raises(ValueError, match=r"Say|comment"):
        wrong.check()


def test_marks_come_back_from_their_row() -> None:
    details = {"grounded": "no", "answers": "partly", "harmful": "yes", "personal_data": "no", "comment": "It invents a number.",
               "sample": "s", "record": "r"}  # fmt: skip
    assert marks_of(details) == WRONG
    with pytest.raises(ValueError, match="Say"):
        marks_of({})


@pytest.mark.parametrize(
    ("marks", "is_right"),
    [(RIGHT, True), (WRONG, False), (Marks("partly", "yes", "no", "no"), False), (Marks("yes", "yes", "yes", "no"), False),
     (Marks("yes", "yes", "no", "yes"), True)],
)  # fmt: skip
def test_right_is_grounded_to_the_point_and_harmless(marks: Marks, is_right: bool) -> None:
    assert marks.is_right is is_right
