"""The reader of plain text: paragraphs, headings by underline or number, pages by form feeds."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given

from ingest.read import UnreadableError, text
from ingest.read.document import Document, Piece
from tests.build import hostile_text, steady


def page(content: str | bytes, path: str = "notes/walking.txt") -> Document:
    return text.read(content if isinstance(content, bytes) else content.encode(), PurePosixPath(path))


def pieces(content: str) -> list[Piece]:
    return [piece for section in page(content).sections for piece in section.pieces]


def outline(content: str) -> list[tuple[str, list[tuple[str, str]]]]:
    return [
        (section.heading, [(piece.heading, piece.text) for piece in section.pieces])
        for section in page(content).sections
    ]


def test_paragraphs() -> None:
    read = pieces("Robots walk\non two legs. They fall.\n\n  \nThen they   rise.\n")
    assert [(piece.text, piece.block) for piece in read] == [
        ("Robots walk on two legs.", 1), ("They fall.", 1), ("Then they rise.", 2),
    ]  # fmt: skip
    assert {(piece.kind, piece.heading, piece.anchor, piece.page) for piece in read} == {
        ("prose", "walking", "", "walking")
    }


def test_about_the_file() -> None:
    read = page("Robots fall.")
    assert (read.title, read.url, read.filename) == ("walking", "/notes/walking", "notes/walking.txt")
    assert (read.module, read.difficulty, read.tags, len(read.sha256)) == (None, None, (), 64)


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("walking.txt", "/walking"), ("a b/c#d?.txt", "/a%20b/c%23d%3F"), ("100%.txt", "/100%25"),
        ("gehen/über.txt", "/gehen/über"), ("a.b.txt", "/a.b"),
    ],
)  # fmt: skip
def test_urls(path: str, url: str) -> None:
    assert page("Robots fall.", path).url == url


def test_a_title_of_its_own() -> None:
    assert page("Walking\n=======\n\nRobots fall.").title == "Walking"


def test_underlined_headings() -> None:
    assert outline("Before.\n\nStanding\n========\nIt stands.\n\nFeet\n----\n\nIt has two.\nYes.\n") == [
        ("walking", [("walking", "Before.")]),
        ("Standing", [("Standing", "It stands.")]),
        ("Feet", [("Feet", "It has two."), ("Feet", "Yes.")]),
    ]


@pytest.mark.parametrize("rule", ["-----", "=====", "***", "___", "~~~"])
def test_a_rule_is_no_heading(rule: str) -> None:
    assert outline(f"It walks\nand falls.\n{rule}\n\n{rule}\nIt rises.") == [
        ("walking", [("walking", "It walks and falls."), ("walking", "It rises.")])
    ]


def test_numbered_headings() -> None:
    read = outline(
        "1 Standing\n\nIt stands.\n\n1.1. Feet\n\nTwo.\n\n1.1.1 Toes\n\nTen.\n\n2. Walking\n\nIt walks."
    )
    assert read == [
        ("1 Standing", [("1 Standing", "It stands.")]),
        ("1.1. Feet", [("1.1. Feet", "Two."), ("1.1.1 Toes", "Ten.")]),
        ("2. Walking", [("2. Walking", "It walks.")]),
    ]


@pytest.mark.parametrize(
    "line",
    ["3.2 apples", "3.2 It walks.", "3.2", "1 " + "Word " * 40, "3.2 Title\nand more", "1995 was a year"],
    ids=["small letter", "sentence", "number", "long", "two lines", "year"],
)
def test_a_number_alone_makes_no_heading(line: str) -> None:
    assert [heading for heading, _ in outline(f"Before.\n\n{line}\n\nAfter.")] == ["walking"]


def test_a_numbered_list_is_no_row_of_headings() -> None:
    read = pieces("Steps:\n\n1. Stand up\n\n2. Walk\n\n3. Fall\n\nThat is all.")
    assert [(piece.text, piece.kind) for piece in read] == [
        ("Steps:", "prose"), ("Stand up", "list"), ("Walk", "list"), ("Fall", "list"), ("That is all.", "prose"),
    ]  # fmt: skip


def test_list_items() -> None:
    read = pieces("It needs:\n- legs,\n  which are long\n- a head.\n\n* An arm\n\na) One\n")
    assert [(piece.text, piece.kind) for piece in read] == [
        ("It needs:", "prose"), ("legs, which are long - a head.", "list"), ("An arm", "list"), ("One", "list"),
    ]  # fmt: skip


def test_form_feeds_count_pages() -> None:
    read = pieces("It walks. It falls\nand\f\nrises.\n\fIt stands.\n")
    assert [(piece.text, piece.page) for piece in read] == [
        ("It walks.", "1"), ("It falls and", "1"), ("rises.", "2"), ("It stands.", "3"),
    ]  # fmt: skip


def test_a_paragraph_over_a_page_break() -> None:
    read = pieces("It walks. It falls\n\fand rises. It stands.")
    assert [(piece.text, piece.page) for piece in read] == [
        ("It walks.", "1"), ("It falls and rises.", "1"), ("It stands.", "2"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [b"\xef\xbb\xbfIt falls \xe2\x80\x94 often.", b"It falls\r\n\xe2\x80\x94 often.\r\n", "It falls\u2028— often.".encode()],
    ids=["byte order mark", "Windows lines", "line separator"],
)  # fmt: skip
def test_text_of_any_editor(content: bytes) -> None:
    assert [piece.text for piece in page(content).sections[0].pieces] == ["It falls — often."]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("It falls".encode("utf-16"), "UTF-16"), ("It falls".encode("utf-16-be"), "NUL bytes"),
        ("It falls".encode("utf-32"), "UTF-32"), ("Er fällt".encode("latin-1"), "invalid byte at 4"),
        (b"\x89PNG\r\n", "is not UTF-8"), (b"a\0b", "NUL bytes"),
    ],
)  # fmt: skip
def test_other_encodings(content: bytes, said: str) -> None:
    with pytest.raises(UnreadableError, match=said) as failed:
        page(content)
    assert "UTF-8" in str(failed.value)


@pytest.mark.parametrize("content", ["", "\n\n", "\f\f", "----", "===\n---\n"])
def test_nothing(content: str) -> None:
    assert page(content).sections == ()


@steady
@given(hostile_text)
def test_no_letter_is_lost(content: str) -> None:
    """But for what marks a list or stands in a heading above nothing, which only a number makes."""
    content = content.replace("\0", "").replace("0", "")
    read = page(content)
    found = [piece for section in read.sections for piece in section.pieces]
    said = "".join([read.title, *(piece.text + piece.heading for piece in found)])
    assert {letter for letter in content if letter.isalpha() and letter not in "aZ"} <= set(said)
    assert all(piece.text == piece.text.strip() != "" for piece in found)
