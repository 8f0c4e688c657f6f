"""The id of a passage follows from all that is stored of it, and old ids are known."""

from dataclasses import fields
from typing import Any

import pytest

from audit.proof.passage_id import COVERED, DERIVED, derived, is_as_ingested
from engine.models import Passage

SENTENCES = [
    [0, 14, "Balance", "balance", "walking", "statement"],
    [15, 35, "Steps", "steps", "running", "item"],
]
CONTENT: dict[str, Any] = {
    "book_id": "robots", "filename": "07-walking.md", "url": "/docs/walking", "chapter": "Walking", "section": "Balance",
    "chunk_index": 3, "text": "A robot moves. „Roboter“ and 机器人.", "sentences": SENTENCES, "start_sentence": 4, "module": 7,
    "difficulty": None, "tags": ["zmp"],
}  # fmt: skip
# What ingests of before stored of this content: without kinds, and then with the kind of every sentence in the id.
BEFORE_KINDS = "1c64173d39a7b4f162567d8757b493163aa92ce96bcad7161bd8416b04d92aa4"
WITH_ALL_KINDS = "fe206f0530ddd0fe5471f4417b5b668c9f5b178efbf3aa342290b2f9029d014a"


def ingested(**changes: Any) -> dict[str, Any]:
    content = CONTENT | changes
    return content | derived(content)


def test_all_that_is_stored_of_a_passage_is_checked() -> None:
    assert {field.name for field in fields(Passage)} == {*COVERED, *DERIVED}
    assert is_as_ingested(ingested())


# Seen red with only the id compared: the page that a reader is sent to is a column of its own.
@pytest.mark.parametrize("name", [*COVERED, *DERIVED])
def test_a_passage_with_one_column_changed_is_not_as_ingested(name: str) -> None:
    stored = ingested()
    value = stored[name]
    changed: object = f"{value}x"
    if isinstance(value, int):
        changed = value + 1
    if name == "sentences":
        changed = [SENTENCES[0], [*SENTENCES[1][:2], "Balance", *SENTENCES[1][3:]]]
    assert not is_as_ingested(stored | {name: changed})


@pytest.mark.parametrize(
    "sentences", [[], None, {}, "text", ["text"], [[0, 1]], [[0, 1, "", "", "", []]], [5]]
)
def test_what_is_no_passage_is_not_as_ingested(sentences: object) -> None:
    assert not is_as_ingested(ingested() | {"sentences": sentences})


# Seen red with today's form alone.
@pytest.mark.parametrize(
    ("chunk_id", "sentences"),
    [(BEFORE_KINDS, [sentence[:5] for sentence in SENTENCES]), (WITH_ALL_KINDS, SENTENCES)],
)
def test_an_old_id_is_known_and_covers_the_same(chunk_id: str, sentences: list[list[Any]]) -> None:
    stored = ingested() | {"chunk_id": chunk_id, "sentences": sentences}
    assert is_as_ingested(stored)
    assert not is_as_ingested(stored | {"text": f"{CONTENT['text']} It never fails."})
    assert not is_as_ingested(
        stored | {"sentences": [[*sentences[0][:2], "Steps", *sentences[0][3:]], sentences[1]]}
    )
