"""BM25, taken apart, is still the BM25 of rank_bm25."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from engine.models import Lexicon
from engine.retrieval import lexical
from tests.build import steady

VOCABULARY = "robot", "walk", "fall", "sensor", "the", "gait", "torque", "foot"

corpora = st.lists(
    st.lists(st.sampled_from(VOCABULARY), max_size=12), min_size=1, max_size=12
).filter(any)  # fmt: skip
queries = st.lists(st.sampled_from((*VOCABULARY, "unheard", "of")), max_size=8)

COMMON_WORD = [["the", "robot"], ["the", "foot"], ["the", "gait"], ["sensor"], ["torque"]]  # "the" in 3 of 5
ALL_COMMON = [["the", "robot"], ["the", "robot"], ["the"]]  # the average idf, and so the floor, is negative


def close(expected: Any) -> Any:
    """To a millionth, or absolutely where idf values cancel out to nothing."""
    return pytest.approx(expected, rel=1e-6, abs=1e-9)


def attainment(score: float, query: list[str], of: Lexicon) -> float:
    return lexical.attainment(score, lexical.possible(query, of))


def scores(corpus: list[list[str]], query: list[str]) -> list[float]:
    """What a vector store computes: the dot product of the two sparse vectors."""
    of = lexical.lexicon(corpus)
    asked = lexical.query_weights(query, of)
    held = [lexical.passage_weights(passage, of) for passage in corpus]
    return [sum(weight * weights.get(term, 0.0) for term, weight in asked.items()) for weights in held]


@steady
@given(corpora)
@example(COMMON_WORD)
@example(ALL_COMMON)
def test_idf_is_that_of_rank_bm25(corpus: list[list[str]]) -> None:
    idf = {word: term.idf for word, term in lexical.lexicon(corpus).terms.items()}
    assert idf == close(BM25Okapi(corpus).idf)


@steady
@given(corpora, queries)
@example(COMMON_WORD, ["the", "robot"])
@example(ALL_COMMON, ["the"])
@example(COMMON_WORD, ["robot", "robot", "foot"])
@example(COMMON_WORD, ["unheard", "of"])
def test_dot_product_is_the_score_of_rank_bm25(corpus: list[list[str]], query: list[str]) -> None:
    assert scores(corpus, query) == close(list(BM25Okapi(corpus).get_scores(query)))


def test_word_in_more_than_half_of_the_passages_gets_the_floor() -> None:
    terms = lexical.lexicon(COMMON_WORD).terms
    assert terms["the"].idf > 0
    assert terms["the"].idf < terms["robot"].idf


def test_repeated_word_counts_again() -> None:
    once, twice = scores(COMMON_WORD, ["robot"]), scores(COMMON_WORD, ["robot", "robot"])
    assert twice == pytest.approx([2 * score for score in once])


def test_unknown_words_are_in_no_vector() -> None:
    of = lexical.lexicon(COMMON_WORD)
    assert lexical.query_weights(["unheard"], of) == {}
    assert lexical.passage_weights(["unheard"], of) == {}


def test_empty_book_and_empty_passage_are_no_error() -> None:
    assert lexical.lexicon([]) == Lexicon({}, 0, 0.0)
    assert lexical.lexicon([[]]) == Lexicon({}, 1, 0.0)
    assert attainment(1.0, ["robot"], lexical.lexicon([])) == 0.0
    assert attainment(0.0, [], lexical.lexicon(COMMON_WORD)) == 0.0


def test_term_ids_follow_the_alphabet_whatever_the_order_of_the_passages() -> None:
    forward, backward = lexical.lexicon(COMMON_WORD), lexical.lexicon(COMMON_WORD[::-1])
    ids = {word: term.term_id for word, term in forward.terms.items()}
    assert list(ids) == sorted(ids) and list(ids.values()) == list(range(1, len(ids) + 1))
    assert ids == {word: term.term_id for word, term in backward.terms.items()}


@steady
@given(corpora, queries, st.floats(allow_nan=False))
def test_attainment_is_a_share(corpus: list[list[str]], query: list[str], score: float) -> None:
    assert 0.0 <= attainment(score, query, lexical.lexicon(corpus)) <= 1.0


@steady
@given(corpora, queries)
def test_unknown_word_lowers_attainment(corpus: list[list[str]], query: list[str]) -> None:
    of, best = lexical.lexicon(corpus), max(scores(corpus, query))
    assume(best > 1e-9)
    assert attainment(best, [*query, "unheard"], of) < attainment(best, query, of)


@steady
@given(corpora, queries, st.floats(0, 1))
def test_attainment_does_not_depend_on_what_else_was_found(
    corpus: list[list[str]], query: list[str], share: float
) -> None:
    """In proportion to the passage's own score: a relative one would lift the best of bad passages to 1."""
    of, best = lexical.lexicon(corpus), max(scores(corpus, query))
    assume(best > 0)
    whole = attainment(best, query, of)
    assert whole < 1.0
    assert attainment(share * best, query, of) == pytest.approx(share * whole)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n\t", []),
        ("— … ?! ___ 🤖", []),
        ("Robot ROBOT robot", ["robot"] * 3),
        ("robots walking", ["robot", "walk"]),
        ("ros2_control", ["ros2_control", "ros2", "control"]),
        ("sim-to-real", ["sim-to-real", "sim", "real"]),
        ("C++", ["c++", "c"]),
        ("3.14", ["3.14", "3", "14"]),
        ("1000 Hz", ["1000", "hz"]),
        ("robot's", ["robot's", "robot", "s"]),
        ("end.Next", ["end.next", "end", "next"]),
        ("What is the end of it?", ["end"]),
        ("Größe ΔΘ мир", ["größe", "δθ", "мир"]),
        ("机器人 停", ["机器人", "停"]),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert lexical.words(text) == expected


@steady
@given(st.text())
def test_words_of_any_text_are_words(text: str) -> None:
    assert all(word and not word.isspace() for word in lexical.words(text))


@steady
@given(st.text(st.characters(codec="ascii")))
def test_case_does_not_matter(text: str) -> None:
    assert lexical.words(text) == lexical.words(text.upper())


def test_question_and_passage_are_counted_alike() -> None:
    passage = lexical.words("A humanoid robot balances; ROS 2 (`ros2_control`) runs at 1,000 Hz.")
    for asked in ("Balancing robots", "ROS2_Control?", "1,000 Hz"):
        assert set(lexical.words(asked)) <= set(passage)


# Seen red with the words of gone passages counted on, and with words of no passage kept.
@steady
@given(corpora, corpora, st.data())
def test_a_continued_lexicon_counts_as_one_of_all_passages(
    corpus: list[list[str]], come: list[list[str]], data: st.DataObject
) -> None:
    gone = data.draw(st.lists(st.sampled_from(range(len(corpus))), unique=True))
    before = lexical.lexicon(corpus)
    made = lexical.continued(before, [corpus[number] for number in gone], come)
    left = [passage for number, passage in enumerate(corpus) if number not in gone]
    anew = lexical.lexicon([*left, *come])
    assert (made.passages, made.words) == (anew.passages, anew.words)
    assert {word: term[1:] for word, term in made.terms.items()} == {
        word: term[1:] for word, term in anew.terms.items()
    }
    ids = {word: term.term_id for word, term in made.terms.items()}
    assert len(set(ids.values())) == len(ids)
    assert all(ids[word] == term.term_id for word, term in before.terms.items() if word in ids)
    assert made.average_length == before.average_length
    assert made.changed == len(gone) + len(come)
    for passage in left:
        assert lexical.passage_weights(passage, before) == lexical.passage_weights(passage, made)


def test_passages_that_an_edition_never_had_cannot_go() -> None:
    with pytest.raises(ValueError, match="never had"):
        lexical.continued(lexical.lexicon(COMMON_WORD), [["gear"]], [])


@steady
@given(corpora, st.floats(0.5, 2.0))
def test_no_weight_is_off_by_more_than_the_average_is(corpus: list[list[str]], factor: float) -> None:
    true = lexical.lexicon(corpus)
    kept = replace(true, average_length=true.average_length * factor)
    drift = lexical.drift(kept)
    assert drift == close(abs(factor - 1))
    for passage in corpus:
        weights = lexical.passage_weights(passage, kept)
        for term, weight in lexical.passage_weights(passage, true).items():
            assert abs(weights[term] / weight - 1) <= drift + 1e-12
