"""Where sentences end: the same for ever, because citations name them by number."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingest.sentences import spans
from tests.build import HOSTILE, steady

_PARTS = (
    *HOSTILE, "Robots walk", "walk", "Fig.", "e.g.", "i.e.,", "Dr.", "A.", "No.", "etc.", "3.14",
    "...", "…", "?", "!", ".", " ", "https://a.b/c.", "ros2.yaml",
)  # fmt: skip
texts = st.one_of(
    st.lists(st.sampled_from(_PARTS), max_size=25).map("".join),
    st.lists(st.sampled_from(_PARTS), max_size=25).map(" ".join),
    st.text(max_size=60),
)


def split(text: str) -> list[str]:
    return [text[start:end] for start, end in spans(text)]


@pytest.mark.parametrize(
    "sentences",
    [
        ["Robots fall.", "They stand up again."],
        ["Is it safe?", "Yes!", "It is."],
        ["Really?!", "Yes."],
        ["A last one without its stop"],
        # Abbreviations
        ["It has sensors, e.g. cameras, i.e. eyes.", "It sees."],
        ["Use e.g. Kalman filters.", "They help."],
        ["Robots vs. humans: a draw.", "Nobody fell."],
        ["It weighs approx. half.", "Good."],
        ["Prof. Dr. Smith built it.", "It walked."],
        ["As in Smith et al. 2020 it fell.", "It rose."],
        # References by number
        ["See Fig. 3 for the loop.", "It closes."],
        ["See Figs. 3 and 4 and Eq. 5.", "They differ."],
        ["See Secs. 2 and 3 and Refs. 7 and 8.", "They differ."],
        ["The angle is in Sec. 2.1.", "It is small."],
        ["Compare No. 5 with No. 6.", "Both fell."],
        # Decimals, versions, money
        ["It runs at 3.14 m/s.", "That is fast."],
        ["It needs 1,000.5 watts.", "It gets warm."],
        ["ROS 2.0 is out.", "Use it."],
        ["It costs $3.50.", "That is cheap."],
        # Addresses and files
        ["See https://example.org/a.b?c=d.", "Then go on."],
        ["Edit ros2.yaml.", "Then run it."],
        ["Write to a.b@example.org.", "Then wait."],
        # Ellipses
        ["It slowed down... and fell.", "It rose."],
        ["It slowed down … and fell.", "It rose."],
        # Quotes and brackets
        ['It said "Stop."', "Then it stopped."],
        ["It said “Stop!”", "Then it stopped."],
        ["“Stop.”", "“Go.”"],
        ["It fell. (It was pushed.)", "It rose."],
        # Initials
        ["J. R. Smith built it.", "It walked."],
        ["K. Čapek named robots.", "He was a writer."],
        # A small letter never begins a sentence
        ["It is a robot. ros2_control runs it.", "It walks."],
    ],
    ids=" / ".join,
)
def test_sentences(sentences: list[str]) -> None:
    expected = [part for sentence in sentences for part in _bracketed(sentence)]
    assert split(" ".join(sentences)) == expected


def _bracketed(sentence: str) -> list[str]:
    """A sentence in brackets is one of its own."""
    before, bracket, after = sentence.partition(" (")
    return [before, bracket.strip() + after] if bracket else [sentence]


@pytest.mark.parametrize("text", ["", " ", "\n\t "])
def test_no_text_has_no_sentences(text: str) -> None:
    assert split(text) == []


@steady
@given(texts)
@example("... ... ...")
@example('." ." ."')
@example(".) (. ) .")
def test_spans_are_ordered_and_cover_every_character(text: str) -> None:
    found = list(spans(text))
    assert all(0 <= start < end <= len(text) for start, end in found)
    assert all(before <= after for (_, before), (after, _) in pairwise(found))
    covered = {position for start, end in found for position in range(start, end)}
    assert all(position in covered for position, character in enumerate(text) if not character.isspace())


@steady
@given(texts)
def test_no_sentence_is_blank_or_ends_in_space(text: str) -> None:
    assert all(sentence.strip() and sentence == sentence.rstrip() for sentence in split(text))


@pytest.mark.parametrize("text", [" Robots fall. They rise.", "\nRobots fall.", "It fell. \x1fThen it rose."])
def test_no_sentence_begins_with_space(text: str) -> None:
    assert split(text) == [sentence.strip() for sentence in split(text)]


@steady
@given(texts)
def test_the_same_text_has_the_same_sentences(text: str) -> None:
    assert list(spans(text)) == list(spans(text))


def test_text_before_does_not_change_how_a_sentence_is_cut() -> None:
    """Nothing is learnt from what was seen: a tokenizer that adapts would move old citations."""
    text = "The Qfx. Unit failed. It fell."
    once = split(text)
    for _ in range(50):
        split("The qfx. unit and the Qfx. Unit are one. Qfx. is short.")
    assert split(text) == once
