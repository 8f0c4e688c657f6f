"""How a question is searched: spelling corrected, clause by clause, and what it leans on."""

import pytest

from engine.retrieval import lexical
from engine.retrieval.wording import (
    asking_clauses,
    asks_to_explain,
    follows_up,
    keywords,
    names_nothing,
    read,
)

BOOK = lexical.lexicon(
    [lexical.words("The weight of a gripper and the backlash of gears"), lexical.words("Quality")]
)
COMMON = frozenset(["weight", "grip", "gear", "quality", "what", "which"])


def corrected(question: str) -> dict[str, str]:
    return read(question, BOOK, COMMON.__contains__).corrected


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("wieght", "weight"), ("qaulity", "quality"), ("backlsh", "backlash"), ("wweight", "weight")],
)
def test_a_word_that_neither_the_book_nor_the_language_knows_is_corrected(wrong: str, right: str) -> None:
    assert corrected(f"what is the {wrong} of gears?") == {wrong: right}
    assert read(f"the {wrong} of gears!", BOOK, COMMON.__contains__).text == f"the {right} of gears!"


# Seen red without `_is_english`, and the inflected ones without their form in it.
@pytest.mark.parametrize(
    ("word", "known", "near"),
    [
        ("trial", "trial", "trail"),
        ("missing", "miss", "misusing"),
        ("planes", "plane", "planets"),
        ("tapping", "tap", "trapping"),
    ],
)
def test_a_word_of_the_language_is_left_alone(word: str, known: str, near: str) -> None:
    """Although the book knows another one that is one slip away."""
    book = lexical.lexicon([lexical.words(f"the {near} of gears"), lexical.words("Quality")])
    asked = f"what about the {word} of gears?"
    assert read(asked, book, {near}.__contains__).corrected == {word: near}
    assert read(asked, book, {near, known}.__contains__).corrected == {}


def test_the_only_word_of_a_question_is_not_replaced() -> None:
    """Another word would be another question."""
    assert corrected("What is wieght?") == {}


@pytest.mark.parametrize("word", ["wright", "waight", "Wieght"])
def test_a_replaced_letter_and_a_name_are_left_alone(word: str) -> None:
    """A perceptron is no perception, and Robotiq is no robot."""
    assert corrected(f"what about the {word} of gears?") == {}


def test_a_word_of_a_thousand_letters_is_left_alone() -> None:
    assert corrected(f"what about the {'weight' * 170} of gears?") == {}


@pytest.mark.parametrize("name", ["ros2_wieght", "wieght.yaml", "/wieght", "wght", "重量"])
def test_a_name_and_a_short_word_are_left_alone(name: str) -> None:
    assert corrected(f"what is {name}?") == {}


def test_a_short_question_is_searched_as_it_is() -> None:
    assert asking_clauses("What does a gripper weigh?") == ()


# Seen red with the courtesies kept.
def test_a_long_polite_question_is_searched_by_the_clause_that_asks() -> None:
    letter = (
        "Hello, I hope this is the right place to ask. My parents bought me a new computer for university."
        " Could you kindly tell me whether I can run the simulator on it? Thank you very much!"
    )
    assert asking_clauses(letter) == ("I can run the simulator on it?",)


@pytest.mark.parametrize(
    "question",
    ["Why?", "What does that mean?", "What's that?", "why isn't it?", "explain this", "Tell me more"],
)
def test_a_question_that_names_nothing_is_noticed(question: str) -> None:
    assert names_nothing(question)
    assert follows_up(question)


@pytest.mark.parametrize(
    "question", ["Explain this", "What's this?", "Please summarise the passage", "in simple words?", "why?"]
)
def test_a_question_about_a_selected_text_as_a_whole_is_noticed(question: str) -> None:
    assert asks_to_explain(question)
    assert not asks_to_explain(f"{question} And what is a gear?")


@pytest.mark.parametrize("question", ["What about unbinding?", "And how fast is it?", "how do those grip?"])
def test_a_question_that_leans_on_the_one_before_is_noticed(question: str) -> None:
    assert follows_up(question)
    assert not names_nothing(question)


@pytest.mark.parametrize(
    "question",
    [
        "How does a robot walk?",
        "What does `while` do?",
        "What is IT?",
        "How does 'for' work?",
        "什么?",
        "机器人怎么走?",
        "42?",
        "?",
    ],
)
def test_a_question_that_stands_alone_is_no_follow_up(question: str) -> None:
    assert not names_nothing(question)


@pytest.mark.parametrize("search", ["jetson price", "colcon clean rebuild", "inverse kinematics"])
def test_a_search_by_keywords_is_noticed(search: str) -> None:
    assert keywords(search) == frozenset(lexical.words(search))


@pytest.mark.parametrize("question", ["What is backlash?", "the price", "price", "how do gears work", ""])
def test_a_question_and_a_single_word_are_no_search_by_keywords(question: str) -> None:
    assert keywords(question) == frozenset()
