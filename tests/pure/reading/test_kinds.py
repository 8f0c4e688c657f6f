"""What each piece of a page is: what states something, and what never answers a question."""

# ruff: noqa: RUF001 - a question in Chinese

import pytest

from engine.models import NEVER_AN_ANSWER
from ingest.kinds import kinds
from ingest.read.document import Kind
from tests.build import piece


def kind(text: str, form: Kind = "prose", heading: str = "Balance", title: str = "Walking") -> str:
    return kinds([piece(text, 0, form, heading=heading)], title)[0]


# Each seen red without its rule.
@pytest.mark.parametrize(
    ("text", "form", "heading", "expected"),
    [
        ("What keeps a biped from falling?", "prose", "Balance", "question"),
        ("它为什么不倒？", "prose", "Balance", "question"),
        ("Explain the difference between a node and a topic.", "prose", "Balance", "exercise"),
        ("List three sensors of a humanoid.", "prose", "Balance", "exercise"),
        ("Add a second publisher to the node.", "list", "Exercises", "exercise"),
        ("By the end of this chapter you will be able to walk.", "prose", "Introduction", "objective"),
        ("Understand the capture point", "list", "Learning Objectives", "objective"),
        ("After completing this lesson, you will be able to walk.", "prose", "Introduction", "objective"),
        ("Next: Walking on stairs", "prose", "Balance", "navigation"),
        ("Week 4: Services", "list", "Table of Contents", "navigation"),
        ("Kajita, S., et al. (2003). Biped walking pattern generation.", "prose", "Balance", "reference"),
        ("The URDF specification", "list", "Further Reading", "reference"),
        ("Fig. 4.1: Nodes and topics of a robot.", "prose", "Balance", "caption"),
        ("Pinch points", "prose", "Balance", "label"),
    ],
)
def test_what_only_helps_a_reader_through_the_book_is_never_an_answer(
    text: str, form: Kind, heading: str, expected: str
) -> None:
    found = kind(text, form, heading)
    assert found == expected
    assert found in NEVER_AN_ANSWER


@pytest.mark.parametrize(
    ("text", "form", "heading", "expected"),
    [
        ("Fig. 4.1 shows a robot that follows a person.", "prose", "Balance", "statement"),
        ("Next, lift the foot and shift the weight.", "prose", "Balance", "statement"),
        ("Localisation and mapping", "list", "Navigation", "item"),
        ("The resources of a small computer are scarce.", "prose", "Resources", "statement"),
        ("Cause: the wrong folder", "prose", "Mistake 3", "statement"),
        ("A step has three phases:", "prose", "Walking", "lead_in"),
        ("Shift the weight.", "list", "Walking", "item"),
        ("ros2 run demo talker", "code", "Exercises", "code"),
        ("The objective function sums the errors of all tasks.", "prose", "Objective function", "statement"),
        ("A link joins two joints.", "list", "Links and Joints", "item"),
        ("Related work shows that robots fall.", "prose", "History", "statement"),
        ("Previous versions of ROS used a central master.", "prose", "History", "statement"),
        ("Go to the Settings page to set the key.", "prose", "Setup", "statement"),
        ("Read more than one sensor to be safe.", "prose", "Sensing", "statement"),
        ("Derive the class from Node, then override its callback.", "prose", "Nodes", "statement"),
        ("Problem 1: The battery dies because it is cold.", "prose", "Problems", "statement"),
        ("By the end of the 1990s, robots could walk.", "prose", "History", "statement"),
        ("In this section, we will use the value 9.81 for g.", "prose", "Walking", "statement"),
        ("A robot that explains itself is trusted.", "prose", "Trust", "statement"),
    ],
)
def test_what_states_something_is_kept(text: str, form: Kind, heading: str, expected: str) -> None:
    assert kind(text, form, heading) == expected


def test_the_first_of_several_rows_is_the_header() -> None:
    rows = [piece("Sensor | Range", 1, "table"), piece("Lidar | 100 m", 1, "table")]
    assert kinds([*rows, piece("A single row", 2, "table")], "Sensing") == ["header", "row", "statement"]


def test_all_lists_of_a_page_of_references_are_references() -> None:
    assert kind("A history of the zero moment point", "list", "Humanoids", title="References") == "reference"
    assert kind("`timeout` sets how long a call may take.", "list", "Settings", title="Reference") == "item"
