"""Units: what has to be quoted together, so that each states something."""

import pytest

from engine.models import SentenceKind
from engine.reading.units import COMPARED_CHARACTERS, LISTED_MAX, Unit, row_text, units
from tests.build import evidence


def places(
    *sentences: str, kinds: tuple[SentenceKind, ...], with_code: bool = False
) -> list[tuple[int, ...]]:
    return [unit.places for unit in units([evidence(*sentences, kinds=kinds)], with_code=with_code)]


@pytest.mark.parametrize(
    ("sentences", "kinds", "expected"),
    [
        (["A robot walks on legs.", "It falls when it leans."], ("statement", "statement"), [(0,), (0, 1)]),
        (["A step:", "Shift it.", "Lift it."], ("lead_in", "item", "item"), [(0, 1, 2), (0, 1), (0, 2)]),
        (["Shift it.", "Lift it."], ("item", "item"), [(0,), (0, 1), (1,)]),
        (["a | b", "1 | 2", "3 | 4"], ("header", "row", "row"), [(0, 1), (0, 2)]),
        (["These sensors:", "a | b", "1 | 2"], ("lead_in", "header", "row"), [(0, 1, 2), (1, 2)]),
        (["Robots."], ("statement",), []),
        (["Why do robots fall so often?"], ("question",), []),
    ],
)
def test_what_belongs_together_is_quoted_together(
    sentences: list[str], kinds: tuple[SentenceKind, ...], expected: list[tuple[int, ...]]
) -> None:
    assert places(*sentences, kinds=kinds) == expected


def test_code_is_a_unit_with_its_lead_in_only_for_who_asks_for_code() -> None:
    told: tuple[SentenceKind, ...] = ("lead_in", "code")
    assert places("Run this:", "a = 1\nb = 2", kinds=told) == []
    assert places("Run this:", "a = 1\nb = 2", kinds=told, with_code=True) == [(0, 1), (0, 1)]


def test_a_long_list_is_cut() -> None:
    items: list[SentenceKind] = ["item"] * 20
    assert (
        len(places("Parts:", *[f"Part {n}." for n in range(20)], kinds=("lead_in", *items))[0])
        == 1 + LISTED_MAX
    )


def test_a_label_is_a_heading_of_what_follows() -> None:
    (unit,) = units(
        [evidence("A tuning recipe", "Set the gains to zero.", kinds=("label",))], with_code=False
    )
    assert str(unit) == "Balance: A tuning recipe: Set the gains to zero."


# Seen red with units compared by their place.
def test_a_unit_of_two_overlapping_passages_is_one() -> None:
    first, second = (
        evidence("Robots fall when they lean."),
        evidence("Robots fall when they lean.", "And so on."),
    )
    found: list[Unit] = units([first, second], with_code=False)
    assert [(unit.passage, unit.stated) for unit in found] == [(0, "Robots fall when they lean.")]


# Seen red with the main sentence compared whole: patterns took seconds on a row of 10,000 characters.
def test_no_more_than_the_beginning_of_a_long_row_is_compared() -> None:
    told = evidence("Part | Made by", f"Arm | {'a Greek or ' * 1000}", kinds=("header", "row"))
    (unit,) = units([told], with_code=False)
    assert len(unit.stated) == len(unit.text) == COMPARED_CHARACTERS


# Seen red with units told apart by what is compared of them.
def test_two_long_sentences_that_begin_alike_are_two_units() -> None:
    beginning = "A robot walks " * COMPARED_CHARACTERS
    assert places(f"{beginning} slowly.", f"{beginning} fast.", kinds=()) == [(0,), (1,)]


@pytest.mark.parametrize(
    ("header", "row", "expected"),
    [
        ("Sensor | Range", "Lidar | 100 m", "Sensor: Lidar; Range: 100 m"),
        (" | Left", "Leg | 6", "Leg; Left: 6"),
        ("Sensor | Range", "Lidar |  ", "Sensor: Lidar"),
        ("One | two | three", "a | b", "a | b"),
        ("| Lidar | Radar", "Range | 100 m |", "Range; Lidar: 100 m"),
    ],
)
def test_a_row_is_a_sentence_of_its_cells(header: str, row: str, expected: str) -> None:
    assert row_text(header, row) == expected
