"""The PDF reader: what is printed, under the page's own label, and not how its lines were broken."""

import contextlib
import re
from collections.abc import Callable
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfWriter
from pypdf.constants import PageLabelStyle
from pypdf.generic import (
    Fit,
    NameObject,
    NumberObject,
)

from ingest.read import UnreadableError, pdf
from ingest.read.document import Document, Piece
from tests.build import steady
from tests.conftest import CAMPAIGN_ROUNDS
from tests.pure.reading.pdf_files import (
    LEADING,
    TOP,
    Ink,
    column,
    deep_pages,
    looped_pages,
    made,
    with_bomb,
)

PATH = PurePosixPath("books/walking.pdf")


def page_of(*pages: list[Ink], finish: Callable[[PdfWriter], object] = lambda _: None) -> Document:
    return pdf.read(made(*pages, finish=finish), PATH)


def pieces(document: Document) -> list[Piece]:
    return [piece for section in document.sections for piece in section.pieces]


def texts(document: Document) -> list[str]:
    return [piece.text for piece in pieces(document)]


def unreadable(content: bytes) -> str:
    with pytest.raises(UnreadableError) as failed:
        pdf.read(content, PATH)
    return str(failed.value)


# --- Paragraphs


def test_lines_become_paragraphs() -> None:
    read = page_of(column("Robots walk on", "two legs. They", "fall.", "", "Then they rise."))
    assert texts(read) == ["Robots walk on two legs.", "They fall.", "Then they rise."]
    blocks = [piece.block for piece in pieces(read)]
    assert blocks[0] == blocks[1] != blocks[2]


def test_an_indent_begins_a_paragraph() -> None:
    read = page_of(column("\tRobots walk on two", "legs, often well,", "\tThey fall too."))
    assert [piece.block for piece in pieces(read)] == [1, 2]


def test_other_letters_begin_a_paragraph() -> None:
    read = page_of([*column("Walking", size=20), *column("Robots walk.", top=TOP - 20)])
    assert texts(read) == ["Walking", "Robots walk."]


def test_a_short_last_line_ends_its_paragraph() -> None:
    read = page_of(
        column(
            "Robots walk on two legs, as people do, and", "they fall.", "Then they rise up again slowly, as"
        )
    )
    assert [piece.block for piece in pieces(read)] == [1, 2]


def test_list_items() -> None:
    read = page_of(
        column(
            "Robots need:",
            "• legs, which",
            "are long;",
            "• a head.",
            "1. First it falls.",
            "2. Then it rises.",
        )
    )
    assert texts(read) == [
        "Robots need:",
        "legs, which are long;",
        "a head.",
        "First it falls.",
        "Then it rises.",
    ]
    assert [piece.kind for piece in pieces(read)] == ["prose", "list", "list", "list", "list"]


def test_a_number_at_the_start_of_a_line_is_no_list_item() -> None:
    read = page_of(
        column("Robots walk as told in chapter", "12. They also fall, in chapter", "- or part - two.")
    )
    assert "".join(texts(read)).startswith("Robots walk as told in chapter 12.")
    assert {piece.kind for piece in pieces(read)} == {"prose"}


def test_a_sentence_over_a_page_break_stays_together() -> None:
    read = page_of(column("It stands. Robots walk on"), column("two legs. They fall."))
    assert texts(read) == ["It stands.", "Robots walk on two legs.", "They fall."]
    assert [(piece.page, piece.anchor) for piece in pieces(read)] == [
        ("1", "page=1"), ("1", "page=1"), ("2", "page=2"),
    ]  # fmt: skip


def test_a_sentence_over_two_columns_stays_together() -> None:
    right = [Ink("two legs.", TOP, x=320), Ink("They fall.", TOP - LEADING, x=320)]
    assert texts(page_of([*column("Robots walk", "on"), *right])) == [
        "Robots walk on two legs.",
        "They fall.",
    ]


# --- Words


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["the pro-", "duction of robots"], "the production of robots"),
        (["the pro\u00ad", "duction of robots"], "the production of robots"),
        (["a state-of-", "the-art robot"], "a state-of-the-art robot"),
        (["a state-", "of-the-art robot"], "a state-of-the-art robot"),
        (["the Navier-", "Stokes equations"], "the Navier-Stokes equations"),
        (["from 1990-", "2000 it fell"], "from 1990-2000 it fell"),
        (["pre-", "and postprocessing"], "pre- and postprocessing"),
        (["self-balancing and self-", "balancing"], "self-balancing and self-balancing"),
        (["a ro\u00adbot", "walks"], "a robot walks"),
        (["it walks -", "and falls"], "it walks - and falls"),
        (["it walks \u2014", "and falls"], "it walks \u2014 and falls"),
        (["production-ready or production-", "ready"], "production-ready or production-ready"),
        (["a mass-produced pro-", "duction-line"], "a mass-produced pro-duction-line"),
        (["word-", ""], "word-"),
    ],
)
def test_hyphens(lines: list[str], text: str) -> None:
    assert " ".join(texts(page_of(column(*lines)))) == text


def test_a_broken_word_known_from_elsewhere_is_mended_inside_a_compound() -> None:
    read = page_of(column("A production line. A pro-", "duction-ready robot."))
    assert texts(read) == ["A production line.", "A production-ready robot."]


def test_a_word_broken_over_a_page_break() -> None:
    assert texts(page_of(column("It is in pro-"), column("duction now."))) == ["It is in production now."]


def test_ligatures_are_expanded() -> None:
    assert texts(page_of(column("The \x01nal \x02ow is e\x03cient."))) == ["The final flow is efficient."]


# --- Pages and headings


def with_labels(writer: PdfWriter) -> None:
    writer.set_page_label(page_index_from=0, page_index_to=1, style=PageLabelStyle.LOWERCASE_ROMAN)
    writer.set_page_label(page_index_from=2, page_index_to=3, style=PageLabelStyle.DECIMAL)


def test_page_labels() -> None:
    read = page_of(*(column(f"Page {name} is here.") for name in "abcd"), finish=with_labels)
    assert [(piece.page, piece.anchor) for piece in pieces(read)] == [
        ("i", "page=1"), ("ii", "page=2"), ("1", "page=3"), ("2", "page=4"),
    ]  # fmt: skip


def test_without_an_outline_there_is_one_section() -> None:
    read = page_of(column("Robots fall."))
    assert (read.title, read.url, read.filename) == ("walking", "/books/walking.pdf", "books/walking.pdf")
    assert [section.heading for section in read.sections] == ["walking"]


def test_the_title_is_that_of_the_metadata() -> None:
    read = page_of(
        column("Robots fall."), finish=lambda writer: writer.add_metadata(infos={"/Title": "On\x00 Walking"})
    )
    assert (read.title, read.sections[0].heading) == ("On Walking", "On Walking")


def outlined(writer: PdfWriter) -> None:
    first = writer.add_outline_item(title="1 Standing", page_number=0)
    writer.add_outline_item(title="Feet", page_number=0, parent=first)
    writer.add_outline_item(title="Walking and running over rough ground", page_number=1)


def test_headings_of_the_outline() -> None:
    read = page_of(
        column("Before all.", "", "1. Standing", "", "It stands.", "", "1.1 Feet", "", "It has feet."),
        column("It ends.", "", "2 Walking and running", "over rough ground", "", "It walks."),
        finish=outlined,
    )
    assert [(section.heading, [piece.text for piece in section.pieces]) for section in read.sections] == [
        ("walking", ["Before all."]),
        ("1 Standing", ["It stands.", "It has feet.", "It ends."]),
        ("Walking and running over rough ground", ["It walks."]),
    ]
    assert [piece.heading for piece in pieces(read)] == [
        "walking",
        "1 Standing",
        "Feet",
        "Feet",
        outline_end(),
    ]


def outline_end() -> str:
    return "Walking and running over rough ground"


def test_a_heading_that_its_page_does_not_have_begins_with_the_page() -> None:
    read = page_of(
        column("Before all."),
        column("It walks."),
        finish=lambda writer: writer.add_outline_item(title="Motion", page_number=1),
    )
    assert [section.heading for section in read.sections] == ["walking", "Motion"]


def test_a_heading_that_its_page_does_not_have_begins_where_it_leads_to() -> None:
    read = page_of(
        column("It stands.", "", "It walks."),
        finish=lambda writer: writer.add_outline_item(
            title="Motion", page_number=0, fit=Fit.xyz(top=TOP - LEADING)
        ),
    )
    assert [(section.heading, section.pieces[0].text) for section in read.sections] == [
        ("walking", "It stands."), ("Motion", "It walks."),
    ]  # fmt: skip


# --- Running heads


def book(count: int, head: Callable[[int], str], foot: Callable[[int], str]) -> list[list[Ink]]:
    words = ["legs", "arms", "eyes", "feet", "hands", "ears", "knees", "toes", "heads", "hips"]
    return [
        [
            Ink(head(number), 760),
            *column(f"Robots have {words[number % 10]} and", f"they use their {words[number % 10]}."),
            Ink(foot(number), 30),
        ]
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("head", "foot"),
    [
        (lambda _: "The Book of Robots", lambda number: str(number + 1)),
        (lambda number: f"{number + 1} The Book of Robots", lambda _: "© 2020 The Press"),
        (lambda number: f"Chapter {number // 5} Walking {number + 1}", lambda number: f"Page {number + 1} of 20"),
        (lambda number: ["Left Title", "Right Title"][number % 2], lambda number: f"- {number + 1} -"),
        (lambda _: "Robots", lambda number: ["i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x"][number % 10]),
    ],
)  # fmt: skip
def test_running_heads_are_not_text(head: Callable[[int], str], foot: Callable[[int], str]) -> None:
    read = page_of(*book(20, head, foot))
    assert len(texts(read)) == 20
    assert all(re.fullmatch(r"Robots have \w+ and they use their \w+\.", text) for text in texts(read))


def test_a_heading_beside_the_page_number_is_a_running_head() -> None:
    read = page_of(
        column("1 Standing", "", "It stands and"),
        [Ink("Chapter 1: Standing 2", 760), *column("does not fall.", "", "2 Walking", "", "It walks.")],
        finish=lambda writer: [
            writer.add_outline_item(title="1 Standing", page_number=0),
            writer.add_outline_item(title="2 Walking", page_number=1),
        ],
    )
    assert texts(read) == ["It stands and does not fall.", "It walks."]


def test_a_page_number_is_not_text_in_a_short_file() -> None:
    assert texts(page_of([*column("It walks and"), Ink("1", 30)], [*column("falls."), Ink("2", 30)])) == [
        "It walks and falls."
    ]


def test_a_line_that_repeats_in_the_middle_of_pages_is_text() -> None:
    pages = [column("Zero", f"{word} one", "Robots walk.", f"{word} two", "Last") for word in "abcdefgh"]
    assert sum("Robots walk." in text for text in texts(page_of(*pages))) == 8


def test_pages_that_are_alike_keep_their_words() -> None:
    read = page_of(*(column(f"Robot {number} walks.") for number in range(1, 7)))
    assert texts(read) == [f"Robot {number} walks." for number in range(1, 7)]


# --- What cannot be read


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-256"])
def test_an_empty_password_opens(algorithm: str) -> None:
    content = made(
        column("Robots fall."),
        finish=lambda writer: writer.encrypt(user_password="", owner_password="owner", algorithm=algorithm),
    )
    assert texts(pdf.read(content, PATH)) == ["Robots fall."]


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-256"])
def test_a_password_is_an_error(algorithm: str) -> None:
    content = made(
        column("Robots fall."),
        finish=lambda writer: writer.encrypt(user_password="secret", algorithm=algorithm),
    )
    assert unreadable(content) == "is encrypted: save it without a password"


def test_no_pages() -> None:
    assert unreadable(made()) == "is a PDF without pages"


def test_no_text() -> None:
    assert "OCR" in unreadable(made([], []))


def test_not_a_pdf() -> None:
    assert unreadable(b"Robots fall.") == "is not a PDF"


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_truncated(share: float) -> None:
    content = made(*(column(f"Robot {word} walks.") for word in "abcdefgh"))
    assert unreadable(content[: int(len(content) * share)]).startswith("is a damaged PDF")


def test_a_wrong_cross_reference_table_is_rebuilt() -> None:
    content = made(column("Robots fall."))
    wrong = re.sub(rb"startxref\n\d+", b"startxref\n7", content)
    assert wrong != content
    assert texts(pdf.read(wrong, PATH)) == ["Robots fall."]


def test_pages_that_are_missing_are_an_error() -> None:
    def lie(writer: PdfWriter) -> None:
        writer._root_object["/Pages"].get_object()[NameObject("/Count")] = NumberObject(3)  # type: ignore[index]

    assert unreadable(made(column("Robots fall."), finish=lie)) == (
        "is a damaged PDF: only 1 of its 3 pages were found"
    )


def test_an_image_is_never_unpacked() -> None:
    assert texts(pdf.read(with_bomb(image=True), PATH)) == ["Robots fall."]


def test_a_page_that_is_a_bomb() -> None:
    assert "imit" in unreadable(with_bomb(image=False))


@pytest.mark.parametrize("finish", [looped_pages, deep_pages])
def test_a_page_tree_without_end(finish: Callable[[PdfWriter], None]) -> None:
    assert unreadable(made(column("Robots fall."), finish=finish)).startswith("is a damaged PDF")


def test_an_outline_that_bites_its_tail() -> None:
    def loop(writer: PdfWriter) -> None:
        writer.add_outline_item(title="Falling", page_number=0)
        entry = writer._root_object["/Outlines"]["/First"]  # type: ignore[index]
        entry[NameObject("/Next")] = entry[NameObject("/First")] = entry.indirect_reference

    assert texts(page_of(column("Robots fall."), finish=loop)) == ["Robots fall."]


@pytest.mark.campaign
def test_thousands_of_pages() -> None:
    count = 10_000 if CAMPAIGN_ROUNDS else 2_000
    pages = [column(f"Robot {number} walks over the hill.", "It does not fall.") for number in range(count)]
    assert len(texts(page_of(*pages))) == 2 * count


@steady
@given(st.data())
def test_no_damage_escapes(data: st.DataObject) -> None:
    content = bytearray(SOUND)
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UnreadableError):
        read = pdf.read(bytes(content), PATH)
        assert all(text == text.strip() and text.encode() and "\0" not in text for text in texts(read))


SOUND = made(column("Robots fall.", "They rise."), column("They walk."), finish=outlined)
