"""The reader of what the Docusaurus plugin writes."""

import json
from pathlib import PurePosixPath
from typing import Any

import pytest

from ingest.read import export, is_read
from ingest.read.document import CONTENT_FILE, Document, is_export

PATH = PurePosixPath(CONTENT_FILE)


def page(**about: Any) -> dict[str, Any]:
    return {
        "permalink": "/docs/walking", "source": "docs/07-walking.md", "title": "Walking", "version": "current",
        "locale": "en", "position": 3, "frontMatter": {},
        "sections": [part(1, None, "Walking", ("prose", "Robots fall. They get up."))],
    } | about  # fmt: skip


def part(level: int, anchor: str | None, heading: str, *blocks: tuple[str, str]) -> dict[str, Any]:
    made = [{"kind": kind, "text": text} for kind, text in blocks]
    return {"level": level, "anchor": anchor, "path": ["Walking", heading], "blocks": made}


def written(*pages: dict[str, Any], **about: Any) -> bytes:
    site = {"title": "Robots", "url": "https://example.org", "baseUrl": "/", "trailingSlash": None}
    return json.dumps({"version": 1, "site": site, "pages": list(pages)} | about).encode()


def read(*pages: dict[str, Any]) -> list[Document]:
    return export.read(written(*pages), PATH)


def test_page() -> None:
    front = {"module": 2, "difficulty": "beginner", "tags": ["gait", {"label": "Balance"}, 3]}
    (document,) = read(page(frontMatter=front))
    assert (document.filename, document.title, document.url) == (
        "docs/07-walking.md",
        "Walking",
        "/docs/walking",
    )
    assert (document.module, document.difficulty, document.tags) == (2, "beginner", ("gait", "Balance"))
    pieces = document.sections[0].pieces
    assert [(piece.text, piece.block, piece.page) for piece in pieces] == [
        ("Robots fall.", 1, "walking"),
        ("They get up.", 1, "walking"),
    ]


def test_sections_are_cut_at_the_second_level() -> None:
    parts = [
        part(1, None, "Walking", ("prose", "A.")),
        part(2, "one", "One"),
        part(3, "deep", "Deep", ("prose", "B.")),
        part(2, "two", "Two", ("list", "C.")),
        part(2, None, "Empty"),
    ]
    (document,) = read(page(sections=parts))
    found = [
        (section.heading, [(item.text, item.heading, item.anchor) for item in section.pieces])
        for section in document.sections
    ]
    assert found == [
        ("Walking", [("A.", "Walking", "")]),
        ("One", [("B.", "Deep", "deep")]),
        ("Two", [("C.", "Two", "two")]),
    ]


def test_blocks() -> None:
    blocks = [
        ("table", "Layer | Rate\nMotor. Fast. | 10 kHz\n"),
        ("code", "\n  if a:\n\n    b\n"),
        ("prose", " "),
        ("list", "One. Two."),
    ]
    (document,) = read(page(sections=[part(2, "a", "A", *blocks)]))
    assert [(item.kind, item.block, item.text) for item in document.sections[0].pieces] == [
        ("table", 1, "Layer | Rate"),
        ("table", 1, "Motor. Fast. | 10 kHz"),
        ("code", 2, "  if a:\n\n    b"),
        ("list", 4, "One."),
        ("list", 4, "Two."),
    ]


@pytest.mark.parametrize(
    ("about", "label"),
    [({}, "walking"), ({"permalink": "/docs/robots/"}, "robots"), ({"permalink": "/"}, "walking-far"),
     ({"permalink": "/docs/"}, "walking-far"), ({"frontMatter": {"page": 42}}, "42")],
)  # fmt: skip
def test_label_of_the_page(about: dict[str, Any], label: str) -> None:
    (document,) = read(page(title="Walking far", **about))
    assert {piece.page for section in document.sections for piece in section.pieces} == {label}


def test_pages_keep_their_order_and_their_fingerprints() -> None:
    one, two = page(), page(source="docs/08.md", permalink="/docs/08")
    documents = read(one, two)
    assert [document.url for document in documents] == ["/docs/walking", "/docs/08"]
    assert documents == read(one, two)
    assert documents[0].sha256 != documents[1].sha256
    assert read() == []


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b'{"version": 1}', b"[" * 100_000,
     written(version=2), written(page(permalink="docs")), written(page(title=None)), written(page(), page()),
     written(page(sections=[part(7, None, "A")])), written(page(sections=[part(2, None, "A", ("video", "a"))])),
     written(page(title="a\0b")), written(page(title="a\ud800b")), written(page(frontMatter={"page": "a\0"})),
     written(page(frontMatter={"tags": ["\ud800"]})), written(page(frontMatter={"module": 2**40}))],
)  # fmt: skip
def test_what_is_not_such_a_file_is_named(content: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        export.read(content, PATH)


def test_error_says_where() -> None:
    with pytest.raises(
        ValueError, match=r"affidavit-content\.json is not what the plugin writes \(pages\.0\.permalink: "
    ):
        export.read(written(page(permalink=5)), PATH)


def test_error_in_the_front_matter_names_its_page() -> None:
    with pytest.raises(ValueError, match=r"docs/08\.md: .*beyond"):
        export.read(written(page(), page(source="docs/08.md", frontMatter={"module": 2**40})), PATH)


def test_names_of_a_later_plugin_are_let_pass() -> None:
    assert export.read(written(page(words=7), generator="2.0"), PATH)[0].title == "Walking"


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("affidavit-content.json", True), ("affidavit-content-1.0.json", True), ("affidavit-content-.json", False),
     ("affidavit-contents.json", False), ("package.json", False)],
)  # fmt: skip
def test_the_exports_of_all_versions_are_known_by_their_names(name: str, is_one: bool) -> None:
    # Seen red: an older version's export was no file that can be read.
    assert is_export(PurePosixPath("build") / name) == is_one
    assert is_read(PurePosixPath("build") / name) == is_one
