"""Example questions: made of a book's headings, only where the book itself says what the thing is."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from engine.http.page.examples import examples
from engine.models import Passage, Sentence


def passage(heading: str, text: str) -> Passage:
    sentence = Sentence(0, len(text), heading, "", "1")
    return Passage(
        "c", "b", "d", "f.md", "Chapter", heading, 0, text, (sentence,), "1", "1", 0, 0, "/f", "h"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("heading", "text", "question"),
    [
        ("Why Build a Humanoid?", "Stairs.", "Why Build a Humanoid?"),
        ("\u06a9\u06cc\u0627\u061f", "x", "\u06a9\u06cc\u0627\u061f"),
        ("Sensor Fusion", "Sensor fusion is the combination of several.", "What is sensor fusion?"),
        ("The Kalman Filter", "A Kalman filter is one. Use the Kalman filter.", "What is a Kalman filter?"),
        ("PID Controllers", "PID controllers are everywhere.", "What are PID controllers?"),
        ("Grasping", "A hand closes.", None),
        ("Motors and Gears", "Motors and gears are parts.", None),
        ("C++ (1998)", "C++ (1998) is a language.", None),
        ("", "It is a robot.", None),
    ],
)
def test_a_heading_becomes_a_question(heading: str, text: str, question: str | None) -> None:
    assert examples([passage(heading, text)]) == ([question] if question else [])


def test_they_are_from_all_over_the_book() -> None:
    book = [passage(f"Part {word}", f"Part {word} is one.") for word in ("a", "b", "c", "d", "e", "f", "g")]
    assert examples(book) == ["What is part a?", "What is part d?", "What is part g?"]


# Seen red with the English "… is" alone: a book in another language had no examples but headings that are questions.
@pytest.mark.parametrize(
    ("heading", "text", "question"),
    [
        ("Was ist ein ZMP?", "Ein Punkt.", "Was ist ein ZMP?"),
        ("Stützpolygon", "Das Stützpolygon ist die kleinste Fläche.", "Stützpolygon"),
        ("हवा का दबाव", "यहाँ हवा का दबाव कम है।", "हवा का दबाव"),
        ("卡尔曼滤波", "卡尔曼滤波是一种方法。", "卡尔曼滤波"),
        ("Zusammenfassung", "Ein Roboter geht.", None),
        ("2. Teil", "Der 2. Teil folgt.", None),
        ("Wie ein Roboter auf Treppen geht", "Wie ein Roboter auf Treppen geht, ist schwer.", None),
        ("", "Ein Roboter.", None),
    ],
)
def test_in_other_languages_a_heading_is_asked_as_it_is(
    heading: str, text: str, question: str | None
) -> None:
    assert examples([passage(heading, text)], "de") == ([question] if question else [])


# Seen red with a pattern for each heading over all of the text: ten seconds, in which the engine answered nobody.
def test_no_pattern_reads_the_whole_book_for_each_heading(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(pattern: str, text: str, flags: int) -> list[Any]:
        read.append(len(text))
        return re.findall(pattern, text, flags)

    monkeypatch.setattr(
        "engine.http.page.examples.re",
        SimpleNamespace(findall=counted, escape=re.escape, IGNORECASE=re.IGNORECASE),
    )
    words = "Nothing is said of it here. " * 40
    book = [passage(f"Part {number} of it", f"{words}Part {number} of it is one.") for number in range(50)]
    assert len(examples(book)) == 3
    assert sum(read) < sum(len(one.text) for one in book)


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("An IMU is one. Bathe IMU is none.", "What is an IMU?"),
        ("Bathe IMU is none.", "What is IMU?"),
        ("An IMU isn't one.", None),
        ("\u0130\u0130\u0130\u0130\u0130\u0130 The IMU is one.", "What is the IMU?"),
    ],
)
def test_a_name_and_its_article_are_whole_words(text: str, question: str | None) -> None:
    assert examples([passage("IMU", text)]) == ([question] if question else [])
