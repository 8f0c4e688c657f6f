"""The gate after the model. Each test was seen red on the bug that its comment names."""

from dataclasses import replace

import pytest

from engine.models import Citation, Claim, Draft, Evidence, Refusal
from engine.verify import NOTHING_TOLD, is_proven, sentences_text, verdict
from tests.build import citation, claim, draft, evidence

FOUND = [
    evidence("Robots fall.", "They stand up again.", "Then they walk.", chunk_id="one"),
    evidence("A gyroscope drifts.", "An encoder does not.", chunk_id="two"),
]
TRUE = citation(FOUND, 0, 0, 2)


def verified(of: Draft, found: list[Evidence]) -> tuple[Claim, ...] | Refusal:
    """As engine/answer.py does it: each sentence by itself, then the draft as a whole."""
    proven = tuple(item for item in of.claims if is_proven(item, found, NOTHING_TOLD))
    return verdict(of, proven, found) or proven


def refusal(of: Draft, found: list[Evidence] = FOUND) -> Refusal:
    outcome = verified(of, found)
    assert isinstance(outcome, Refusal), outcome
    return outcome


def is_refused(cited: Citation) -> bool:
    return refusal(draft(claim(cited))).reason == "citation_failed"


@pytest.mark.parametrize(
    "cited", [citation(FOUND, p, s, e) for p, s, e in ((0, 0, 1), (0, 0, 3), (0, 2, 3), (1, 1, 2))]
)
def test_true_citation_is_released_unchanged(cited: Citation) -> None:
    # Seen red on: `citation.end <` for `citation.end <=`, and on one sentence too many joined.
    assert verified(draft(claim(cited)), FOUND) == (claim(cited),)


@pytest.mark.parametrize("passage", [2, 3, 10**9])
def test_passage_beyond_the_evidence(passage: int) -> None:
    # Seen red on: no upper bound for `citation.passage`.
    assert is_refused(replace(TRUE, passage=passage))


@pytest.mark.parametrize("passage", [-1, -2])
def test_negative_passage_does_not_count_from_the_end(passage: int) -> None:
    # Seen red on: no lower bound for `citation.passage`.
    assert is_refused(replace(citation(FOUND, len(FOUND) + passage, 0, 1), passage=passage))


@pytest.mark.parametrize("end", [4, 10**9])
def test_end_beyond_the_passage(end: int) -> None:
    # Seen red on: no upper bound for `citation.end`.
    assert is_refused(replace(citation(FOUND, 0, 0, 3), end=end))


def test_start_beyond_the_passage() -> None:
    # Seen red on: no check that the start is before the end.
    assert is_refused(Citation(0, 3, 3, "")) and is_refused(Citation(0, 4, 3, ""))


@pytest.mark.parametrize("end", [0, 3])
def test_negative_start_does_not_count_from_the_end(end: int) -> None:
    # Seen red on: no lower bound for `citation.start`.
    counted = [FOUND[0].passage.sentence_text(number) for number in range(-1, end)]
    assert is_refused(Citation(0, -1, end, "".join(counted)))


@pytest.mark.parametrize(("start", "end"), [(0, 0), (1, 1), (2, 1), (1, 0), (-2, -1)])
def test_empty_range_proves_nothing(start: int, end: int) -> None:
    # Seen red on: `start <= end` for `start < end`.
    assert is_refused(Citation(0, start, end, ""))


@pytest.mark.parametrize(
    "cited_text",
    ["", "Robots fall", "Robots fall.", "robots fall.They stand up again.",
     "Robots fall. They stand up again.", "Robots fall.They stand up again. ",
     "Robots never fall.They stand up again."],
)  # fmt: skip
def test_cited_text_must_be_equal(cited_text: str) -> None:
    # Seen red on: `in` for `==`, and on comparing without case and spaces.
    assert is_refused(replace(TRUE, cited_text=cited_text))


def test_text_of_another_passage_does_not_count() -> None:
    # Seen red on: looking for the cited text in any passage.
    assert is_refused(replace(citation(FOUND, 1, 0, 1), passage=0))


def test_text_looks_alike_but_is_not_equal() -> None:
    # Seen red on: comparing after Unicode normalisation.
    found = [evidence("The cafe\u0301 robot falls.")]
    cited = Citation(0, 0, 1, "The caf\u00e9 robot falls.")
    assert refusal(draft(claim(cited)), found).reason == "citation_failed"


def test_claim_without_citation_is_dropped() -> None:
    # Seen red on: `all()` of no citations counted as proof.
    bare = Claim("Trust me.", ())
    assert verified(draft(claim(TRUE), bare), FOUND) == (claim(TRUE),)


def test_claim_with_one_false_citation_is_dropped() -> None:
    # Seen red on: `any` for `all`.
    half_true = claim(TRUE, replace(TRUE, cited_text="Robots fly."), text="Robots fly.")
    assert verified(draft(half_true, claim(TRUE)), FOUND) == (claim(TRUE),)


def test_proven_claims_keep_their_order() -> None:
    # Seen red on: a set in place of the tuple.
    claims = [claim(TRUE, text=f"Claim {chr(97 + n)}.") for n in range(20)]
    assert verified(draft(*claims), FOUND) == tuple(claims)


def test_incomplete_draft_is_refused_though_its_claims_are_proven() -> None:
    # Seen red on: no check of `draft.is_complete`.
    assert refusal(draft(claim(TRUE), complete=False)).reason == "citation_failed"


def test_nothing_left_is_refused() -> None:
    # Seen red on: an empty tuple returned as an answer.
    assert refusal(draft(Claim("Trust me.", ()))).reason == "citation_failed"


def test_nothing_is_proven_by_no_evidence() -> None:
    # Seen red on: no upper bound for `citation.passage`.
    assert refusal(draft(claim(TRUE)), []).reason == "citation_failed"


def test_empty_draft_abstains_and_shows_the_nearest() -> None:
    # Seen red on: no check of `draft.claims`, and on a refusal without `nearest`.
    abstained = refusal(draft())
    assert (abstained.reason, abstained.nearest) == ("insufficient_evidence", tuple(FOUND))


def test_draft_of_a_model_that_declined_is_refused_though_its_claims_are_proven() -> None:
    # Seen red on: no check of `draft.stop_reason`.
    declined = refusal(draft(claim(TRUE), stop_reason="refusal"))
    assert (declined.reason, declined.nearest) == ("model_refused", tuple(FOUND))


def test_refusal_shows_no_word_of_the_draft() -> None:
    # Seen red on: the unproven claim put into the refusal's message.
    assert "Trust me" not in repr(refusal(draft(Claim("Trust me.", ()))))


def test_sentences_are_joined_as_generators_see_them() -> None:
    # Seen red on: what stands between the sentences taken for a part of them.
    found = evidence("One.", "Two.", "Three.", joint="\n\n")
    assert sentences_text(found.passage, 0, 2) == "One.Two."
