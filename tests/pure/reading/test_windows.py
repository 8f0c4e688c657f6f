"""The windows of a passage: every sentence in one of them, under its heading."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.windows import WORDS_MIN, windows
from tests.build import passage, steady

LONG = "word " * WORDS_MIN


# Seen red with the last, short sentence left out.
@steady
@given(st.lists(st.integers(1, 30), min_size=1, max_size=20))
def test_every_sentence_is_in_exactly_one_window(lengths: list[int]) -> None:
    sentences = [" ".join(f"w{place}-{word}" for word in range(count)) for place, count in enumerate(lengths)]
    made = windows(passage(*sentences))
    assert " ".join(window.removeprefix("Balance: ") for window in made) == " ".join(sentences)


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        (["Short.", f"{LONG}ends."], [f"Balance: Short. {LONG}ends."]),
        ([f"{LONG}ends.", f"{LONG}too."], [f"Balance: {LONG}ends.", f"Balance: {LONG}too."]),
        ([f"{LONG}ends.", "A tail."], [f"Balance: {LONG}ends. A tail."]),
    ],
)
def test_a_window_is_a_sentence_and_what_is_too_short_goes_with_it(
    sentences: list[str], expected: list[str]
) -> None:
    assert windows(passage(*sentences)) == expected


def test_a_window_is_one_line() -> None:
    assert windows(passage("ros2 run demo\n    talker\n")) == ["Balance: ros2 run demo talker"]


def test_sentences_without_a_heading_are_under_the_title() -> None:
    assert windows(passage("Robots fall.", heading="")) == ["Walking: Robots fall."]
