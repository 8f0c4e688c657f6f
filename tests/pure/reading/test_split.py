"""Passages: nothing lost, nothing cut, the right size, and the same for ever."""

from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingest import split
from ingest.read.document import Document, Kind
from ingest.split import Size, cuts
from tests.build import document, hostile_sentence, piece, steady

BOOK = Size(tokens=512, overlap=0.2, tokens_min=256)
SMALL = Size(tokens=20, overlap=0.2, tokens_min=10)
OVERLAP = round(BOOK.tokens * BOOK.overlap)

# Sentences as they are, and now and then a block of code or a row of a table that is longer than a passage.
sentence_costs = st.lists(st.integers(0, 90), min_size=1, max_size=60)
any_costs = st.lists(st.one_of(st.integers(0, 90), st.integers(0, 900)), min_size=1, max_size=60)
any_size = st.builds(Size, st.integers(1, 60), st.floats(0, 0.99), st.integers(0, 60))

LONG_BLOCK_AFTER_AN_OVERLAP = [200, 200, 100, 500]
LONG_BLOCK_AFTER_A_SHORT_SENTENCE = [20, 600, 600]


@steady
@given(any_costs, any_size)
@example([0] * 50, Size(1, 0.0, 0))
@example([0] * 50, Size(1, 0.99, 60))
@example([900], BOOK)
@example([], BOOK)
def test_nothing_is_lost_and_it_ends_for_any_costs(costs: list[int], size: Size) -> None:
    made = list(cuts(costs, size))
    assert len(made) <= len(costs)
    assert all(start < end for start, end in made)
    assert [start for start, _ in made[:1]] == [0] * bool(costs)
    assert [end for _, end in made[-1:]] == [len(costs)] * bool(costs)
    assert all(after <= before for (_, before), (after, _) in pairwise(made))


@steady
@given(any_costs)
@example(LONG_BLOCK_AFTER_AN_OVERLAP)
def test_every_passage_brings_something_new(costs: list[int]) -> None:
    ends = [end for _, end in cuts(costs, BOOK)]
    assert ends == sorted(set(ends))


@steady
@given(any_costs)
def test_no_passage_is_longer_unless_one_sentence_makes_it_so(costs: list[int]) -> None:
    """A passage that would be too short takes one sentence more, however long."""
    for start, end in cuts(costs, BOOK):
        held = costs[start:end]
        assert sum(held) <= BOOK.tokens or sum(held) - max(held) < BOOK.tokens_min


@steady
@given(any_costs)
@example(LONG_BLOCK_AFTER_AN_OVERLAP)
@example(LONG_BLOCK_AFTER_A_SHORT_SENTENCE)
def test_no_passage_is_shorter_unless_its_section_is(costs: list[int]) -> None:
    for start, end in cuts(costs, BOOK):
        assert sum(costs[start:end]) >= min(BOOK.tokens_min, sum(costs))


@steady
@given(any_costs)
def test_a_fifth_is_repeated_at_most(costs: list[int]) -> None:
    """The last passage of a section may reach further back, to be long enough."""
    made = list(cuts(costs, BOOK))
    for (_, before), (after, end) in pairwise(made):
        reached_back = end == len(costs) and sum(costs[after + 1 : end]) < BOOK.tokens_min
        assert sum(costs[after:before]) <= OVERLAP or reached_back


@steady
@given(sentence_costs)
def test_what_fits_into_a_fifth_is_repeated(costs: list[int]) -> None:
    for (_, before), (after, _) in pairwise(cuts(costs, BOOK)):
        assert after < before
        assert sum(costs[after:before]) + costs[after - 1] > OVERLAP


@pytest.mark.parametrize("extra", [0, 1])
def test_a_section_of_exactly_one_passage(extra: int) -> None:
    assert len(list(cuts([256, 256 + extra], BOOK))) == 1 + extra


@st.composite
def documents(draw: st.DrawFn) -> Document:
    kinds: st.SearchStrategy[Kind] = st.sampled_from(get_args(Kind))
    sections = []
    for number in range(draw(st.integers(1, 3))):
        pieces = [
            piece(text, draw(st.integers(0, 2)), draw(kinds), heading=f"H{number}", anchor=f"h{number}")
            for text in draw(st.lists(hostile_sentence, min_size=1, max_size=15))
        ]
        sections.append((f"Section {number}", pieces))
    return document(*sections)


def words(text: str) -> int:
    return len(text.split())


@steady
@given(documents())
def test_every_sentence_is_its_piece_and_no_passage_crosses_a_section(page: Document) -> None:
    made = iter(split.passages(page, "book", SMALL, words))
    for section in page.sections:
        seen: set[int] = set()
        while len(seen) < len(section.pieces):
            passage = next(made)
            numbers = range(passage.start_sentence, passage.end_sentence + 1)
            seen.update(numbers)
            assert passage.section == section.heading
            for number, sentence in zip(numbers, passage.sentences, strict=True):
                item = section.pieces[number]
                assert passage.text[sentence.start : sentence.end] == item.text
                assert (sentence.heading, sentence.anchor, sentence.page) == (
                    item.heading,
                    item.anchor,
                    item.page,
                )
    assert next(made, None) is None


@steady
@given(documents())
def test_passages_without_their_overlap_are_the_text(page: Document) -> None:
    """Nothing of a page is lost, doubled or put elsewhere."""
    made = iter(split.passages(page, "book", SMALL, words))
    for section in page.sections:
        seen: list[str] = []
        while len(seen) < len(section.pieces):
            passage = next(made)
            new = range(len(seen) - passage.start_sentence, len(passage.sentences))
            seen.extend(passage.sentence_text(place) for place in new)
        assert seen == [item.text for item in section.pieces]
    assert next(made, None) is None


@steady
@given(documents())
def test_only_white_space_stands_between_sentences(page: Document) -> None:
    for passage in split.passages(page, "book", SMALL, words):
        assert passage.sentences[0].start == 0
        assert passage.sentences[-1].end == len(passage.text)
        for before, after in pairwise(passage.sentences):
            assert passage.text[before.end : after.start] in {" ", "\n", "\n\n"}


@steady
@given(documents())
def test_ids_are_unique_and_the_same_in_every_run(page: Document) -> None:
    made = split.passages(page, "book", SMALL, words)
    assert made == split.passages(page, "book", SMALL, words)
    assert len({passage.chunk_id for passage in made}) == len(made)
    assert [passage.chunk_index for passage in made] == list(range(len(made)))


def test_repeated_text_has_ids_of_its_own() -> None:
    page = document(("Same", ["Robots fall."]), ("Same", ["Robots fall."]))
    first, second = split.passages(page, "book", BOOK, words)
    assert first.text == second.text and first.chunk_id != second.chunk_id


@pytest.mark.parametrize(
    "other",
    [{"filename": "b.md"}, {"url": "/docs/other"}, {"title": "Running"}],
    ids=lambda other: next(iter(other)),
)
def test_another_place_is_another_passage(other: dict[str, str]) -> None:
    (one,) = split.passages(document(("S", ["Robots fall."])), "book", BOOK, words)
    (two,) = split.passages(document(("S", ["Robots fall."]), **other), "book", BOOK, words)
    assert one.chunk_id != two.chunk_id


def test_ids_do_not_move_with_a_release() -> None:
    """Citations that are out in the world name this id."""
    (passage,) = split.passages(document(("Balance", ["Robots fall.", "They rise."])), "book", BOOK, words)
    assert passage.chunk_id == "3115621e5362a12bc456961ddf4e16a4f844edc4fed089e3c4ecc5bcde6738fb"


def test_rows_stand_below_one_another_and_sentences_behind_one_another() -> None:
    prose, rows = (
        [piece("One.", 1), piece("Two.", 1)],
        [piece("a | b", 2, "table"), piece("1 | 2", 2, "table")],
    )
    (passage,) = split.passages(document(("S", [*prose, *rows])), "book", BOOK, words)
    assert passage.text == "One. Two.\n\na | b\n1 | 2"


def test_passage_says_on_which_pages_it_begins_and_ends() -> None:
    page = document(("S", [piece("One.", page="12"), piece("Two.", page="13"), piece("Three.", page="13")]))
    (passage,) = split.passages(page, "book", BOOK, words)
    assert (passage.start_page, passage.end_page) == ("12", "13")


def test_page_without_text_has_no_passages() -> None:
    assert split.passages(document(), "book", BOOK, words) == []
    assert split.passages(document(("Empty", [])), "book", BOOK, words) == []
