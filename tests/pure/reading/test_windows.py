"""The windows of a passage: every sentence in one of them, under its heading."""

# ruff: noqa: RUF001 - sentences in other scripts

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.words.languages import count_words
from ingest.windows import WORDS_MAX, WORDS_MIN, windows
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


# Seen red with the words counted by their spaces: a page of Chinese was one window.
@pytest.mark.parametrize(
    "sentence", ["陶土是岩石风化而成的。", "मिट्टी चट्टानों के घिसने से बनती है।", "مٹی چٹانوں کے گھسنے سے بنتی ہے۔"]
)
def test_windows_have_the_length_of_a_sentence_in_any_script(sentence: str) -> None:
    made = windows(passage(*[sentence] * 24))
    assert 8 <= len(made) <= 12


@pytest.mark.parametrize("text", ["陶土" * 3000, f"ROS {'陶土' * 3000} 2", "word " * 2000, "x" * 9000])
def test_a_sentence_without_an_end_is_cut_and_nothing_is_lost(text: str) -> None:
    made = [window.removeprefix("Balance: ") for window in windows(passage(text.strip()))]
    assert "".join("".join(made).split()) == "".join(text.split())
    assert max(map(count_words, made)) <= WORDS_MAX
