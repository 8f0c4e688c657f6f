"""The Markdown reader against real Docusaurus builds: every address, and every anchor that the source decides."""

import json
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from ingest.read import address, markdown, read
from tests.labelled import BOOKS, PHYSICAL_AI

TRUTH = Path(__file__).parents[2] / "data" / "docusaurus"

Found = Counter[tuple[str, int, str]]

# What only a build knows. A page stands here with the anchors that the reader cannot give.
NOT_IN_THE_SOURCE: dict[tuple[str, int, str], str] = {
    ("headings/jsx.mdx", 2, "always"): "a tag inside of a JavaScript expression",
    ("headings/with-part.mdx", 2, "in-a-part"): "a heading of an imported part",
    ("headings/with-part.mdx", 2, "shared"): "a heading of an imported part",
}

# Docusaurus' metadata shows the source of the first heading; a reader of the page sees what we give.
SOURCE_AS_TITLE: dict[str, str] = {
    "titles/07-empty-title.md": "a title that is empty, over a heading that is not",
    "titles/10-code-in-h1.md": "two spaces, of which a browser shows one",
    "titles/11-emphasis-in-h1.md": "the signs of emphasis and links",
    "titles/13-h1-with-comment-id.md": "the id behind the heading",
    "titles/32-html-entity.md": "entities and backslashes",
}


def truth(name: str) -> Any:
    return json.loads((TRUTH / name).read_text())


def measured(rows: list[dict[str, Any]], root: Path) -> tuple[Found, Found]:
    """Headings with their anchors: those of the build that we do not find, and those that we find and it has not.

    A first-level heading has no anchor; Docusaurus shows one that is the page's title where the source has none.
    """
    expected, found = Found(), Found()
    for row in rows:
        source = row["source"]
        page = markdown._page((root / source).read_bytes(), PurePosixPath(source))
        headings = [(item["level"], item["anchor"] or "") for item in row["headings"]]
        ours = [(item.level, item.anchor) for item in page.headings]
        expected.update((source, *heading) for heading in headings if heading != (1, ""))
        found.update((source, *heading) for heading in ours if heading != (1, ""))
        if source not in {name for name, _, _ in NOT_IN_THE_SOURCE}:
            assert [item for item in ours if item != (1, "")] == [
                item for item in headings if item != (1, "")
            ]
    print(f"{(expected & found).total()} of {expected.total()} headings below the title")
    return expected - found, found - expected


# --- Addresses


def test_every_page_has_the_address_of_the_build() -> None:
    rows = truth("rules.json")
    wrong = {
        row["source"]: (url, row["permalink"])
        for row in rows
        if (url := document(row["source"]).url) != row["permalink"]
    }
    assert wrong == {}, f"{len(rows) - len(wrong)} of {len(rows)} addresses"


def document(source: str) -> Any:
    return read((TRUTH / "rules" / source).read_bytes(), PurePosixPath(source))


def test_every_name_is_a_page_or_not() -> None:
    built = {row["source"] for row in truth("rules.json")}
    files = [path.relative_to(TRUTH / "rules") for path in (TRUTH / "rules").rglob("*") if path.is_file()]
    pages = {path.as_posix() for path in files if address.is_page(PurePosixPath(path.as_posix()))}
    assert pages == built | {"draft.md"}


def test_draft_has_no_sections() -> None:
    assert document("draft.md").sections == ()


def test_titles_are_those_of_the_build() -> None:
    rows = truth("rules.json")
    wrong = {row["source"] for row in rows if document(row["source"]).title != row["title"]}
    assert wrong == SOURCE_AS_TITLE.keys(), f"{len(rows) - len(wrong)} of {len(rows)} titles"


# --- Anchors


def test_every_anchor_is_that_of_the_build() -> None:
    missing, invented = measured(truth("rules.json"), TRUTH / "rules")
    assert (set(missing), set(invented)) == (set(NOT_IN_THE_SOURCE), set()), (
        f"{missing.total()} missing, {invented.total()} too many"
    )


def test_first_level_headings_have_no_anchor_and_a_page_has_one_of_them() -> None:
    for row in truth("rules.json"):
        firsts = [item for item in row["headings"] if item["level"] == 1 and item["anchor"] is None]
        page = markdown._page((TRUTH / "rules" / row["source"]).read_bytes(), PurePosixPath(row["source"]))
        ours = [item.text for item in page.headings if (item.level, item.anchor) == (1, "")]
        title = page.builder.title
        seen = {*ours, title, ":tada:".join(title.split("🎉"))}
        assert all(item["text"].replace("🎉", ":tada:") in seen for item in firsts), row["source"]


def test_anchors_of_other_formats() -> None:
    missing, invented = measured(truth("formats.json")["default"], TRUTH / "formats")
    assert (missing, invented) == (Found(), Found())


@pytest.mark.skipif(
    PHYSICAL_AI not in BOOKS, reason="The real book is in ../shared; our own pages are all above."
)
def test_a_real_book() -> None:
    """A book that another team built."""
    rows = truth("physical-ai.json")["pages"]
    missing, invented = measured(rows, PHYSICAL_AI)
    assert (missing, invented) == (Found(), Found())
    for row in rows:
        page = read((PHYSICAL_AI / row["source"]).read_bytes(), PurePosixPath(row["source"]))
        assert (page.url, page.title) == (row["permalink"], row["title"])


@pytest.mark.parametrize("book", BOOKS, ids=lambda book: book.parent.name)
def test_nothing_of_the_markup_of_a_real_book_is_text(book: Path) -> None:
    for path in book.rglob("*.md"):
        page = read(path.read_bytes(), PurePosixPath(path.relative_to(book).as_posix()))
        texts = [piece.text for section in page.sections for piece in section.pieces if piece.kind != "code"]
        assert page.sections
        assert not [text for text in texts if text.startswith((":::", "import "))]
        assert not [text for text in texts if "](" in text]
