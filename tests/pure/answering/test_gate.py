"""The gate before the model."""

import math
from dataclasses import replace
from typing import Any

import pytest

from engine.models import Retrieved
from engine.retrieval.gate import NEAREST_SHOWN, refuse_weak_evidence
from engine.retrieval.retrieve import stand_together
from tests.build import evidence

THRESHOLD = 0.60
JUST_BELOW = math.nextafter(THRESHOLD, 0)


def found(*scores: float, **about: Any) -> Retrieved:
    passages = [
        evidence("A robot moves.", score=score, chunk_id=f"chunk-{n}") for n, score in enumerate(scores)
    ]
    return Retrieved(tuple(passages), max(scores, default=0.0), len(scores), "moves?", **about)


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
    assert refusal.nearest == weak.evidence[:NEAREST_SHOWN]


@pytest.mark.parametrize("threshold", [THRESHOLD, 1.0, 0.0])
def test_no_evidence_refuses(threshold: float) -> None:
    """With a threshold of 0 as well: there is nothing that a model could be shown."""
    refusal = refuse_weak_evidence(found(), threshold)
    assert refusal is not None
    assert (refusal.reason, refusal.nearest) == ("not_covered", ())


def test_the_best_of_all_counts_even_if_a_reranker_left_it_out() -> None:
    assert refuse_weak_evidence(replace(found(0.1, 0.2), best_score=0.7), THRESHOLD) is None


def test_a_refusal_says_which_part_was_searched() -> None:
    refusal = refuse_weak_evidence(found(0.1, searched="module 3"), THRESHOLD)
    assert refusal is not None
    assert "module 3" in refusal.message


def test_a_selection_that_is_not_in_the_book_is_refused_as_such() -> None:
    refusal = refuse_weak_evidence(found(is_selection_found=False), 0.0)
    assert refusal is not None
    assert (refusal.reason, refusal.nearest) == ("selection_not_in_book", ())


def test_a_search_whose_keywords_stand_in_one_sentence_passes() -> None:
    assert refuse_weak_evidence(found(JUST_BELOW, is_keyword_match=True), THRESHOLD) is None
    assert refuse_weak_evidence(found(is_keyword_match=True), THRESHOLD) is not None


@pytest.mark.parametrize(
    ("search", "stands"),
    [("gear backlash", True), ("backlash walking", True), ("gear oil", False), ("what is backlash", False)],
)
def test_keywords_stand_together_in_a_sentence_under_its_headings(search: str, stands: bool) -> None:
    held = evidence("The backlash of a gear is small.", "Oil is dear.", chapter="Walking")
    assert stand_together(search, [held]) is stands


def test_a_question_that_names_nothing_is_told_so() -> None:
    refusal = refuse_weak_evidence(found(0.5, is_underspecified=True), THRESHOLD)
    assert refusal is not None
    assert (refusal.reason, refusal.nearest) == ("underspecified", ())
    work = found(0.9, is_underspecified=True)  # "What is work?" in a book that has the word for a heading
    assert refuse_weak_evidence(work, THRESHOLD) is None
