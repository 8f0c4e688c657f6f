"""Files that are made to do harm: each gets a clear error or is read, in bounded time and memory, and the run goes on."""

import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, NameObject

from ingest.read import UnreadableError
from ingest.read.document import Document
from ingest.read.sandbox import MIB, Sandbox
from tests.conftest import CAMPAIGN_ROUNDS
from tests.pure.reading.pdf_files import column, deep_pages, looped_pages, made, with_bomb

SECONDS = 20.0
SENTENCE_BYTES = MIB if CAMPAIGN_ROUNDS else MIB // 4
GOOD = b"# Walking\n\n## Gait\n\nRobots walk."


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(seconds=SECONDS) as opened:
        yield opened


@pytest.fixture(autouse=True)
def next_file(sandbox: Sandbox) -> Iterator[None]:
    """After each of them, a good file is read."""
    yield
    (section,) = read(sandbox, GOOD, "good.md").sections
    assert [piece.text for piece in section.pieces] == ["Robots walk."]


def read(sandbox: Sandbox, content: bytes, name: str) -> Document:
    """What says nothing is no document of the book; here it is one without sections."""
    found = sandbox.documents(content, PurePosixPath(name))
    return found[0] if found else Document(name, "", "", "", ())


def unreadable(sandbox: Sandbox, content: bytes, name: str) -> str:
    with pytest.raises(UnreadableError) as failed:
        read(sandbox, content, name)
    assert str(failed.value).isprintable()
    return str(failed.value)


def outcome(sandbox: Sandbox, content: bytes, name: str) -> Document | str:
    """The document, or why there is none: either is right for a file that is merely absurd."""
    try:
        return read(sandbox, content, name)
    except UnreadableError as wrong:
        assert str(wrong).isprintable()  # noqa: PT017  both ends are right
        return str(wrong)


def said(document: Document) -> list[str]:
    return [piece.text for section in document.sections for piece in section.pieces]


def peak_bytes(sandbox: Sandbox) -> int:
    """The most memory that the worker ever held."""
    assert sandbox._worker
    status = Path(f"/proc/{sandbox._worker._process.pid}/status")
    if not status.exists():
        pytest.skip("only Linux tells")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
    assert found
    return int(found[1]) * 1024


# --- Size


@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.html", "a.pdf"])
def test_a_file_that_is_too_large(sandbox: Sandbox, name: str) -> None:
    assert unreadable(sandbox, bytes(65 * MIB), name) == "is larger than 64 MiB"


@pytest.fixture
def hasty() -> Iterator[Sandbox]:
    """What takes a minute in earnest."""
    with Sandbox(seconds=4) as opened:
        yield opened
        assert said(read(opened, GOOD, "good.md")) == ["Robots walk."]


LIMITS = r"needs more than 1024 MiB of memory|takes longer than 4 s|holds more than 64 MiB"


@pytest.mark.parametrize("name", ["a.txt", "a.html", "a.md"])
@pytest.mark.campaign
def test_a_file_as_large_as_may_be(hasty: Sandbox, name: str) -> None:
    """Of small paragraphs: it is read, or it is told what it needs too much of."""
    content = b"It walks.\n\n" * (64 * MIB // 11)
    found = outcome(hasty, content, name)
    assert re.match(LIMITS, found) if isinstance(found, str) else len(said(found)) == 64 * MIB // 11


@pytest.mark.parametrize("name", ["a.md", "a.txt"])
@pytest.mark.campaign
def test_a_million_headings(hasty: Sandbox, name: str) -> None:
    heading = b"## A\n\nB\n\n" if name == "a.md" else b"A\n---\nB\n\n"
    found = outcome(hasty, heading * 1_000_000, name)
    assert re.match(LIMITS, found) if isinstance(found, str) else len(found.sections) == 1_000_000


@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.html"])
@pytest.mark.parametrize("word", ["walk ", "w", "Walk. ", "w. ", "é", "(", '"', "...", "\u200b", "A.b"])
@pytest.mark.campaign
def test_a_very_long_sentence(sandbox: Sandbox, name: str, word: str) -> None:
    content = word.encode() * (SENTENCE_BYTES // len(word.encode()))
    found = outcome(sandbox, content, name)
    if isinstance(found, str):
        assert found == "takes longer than 20 s to read"
    else:
        shown = re.compile(r"[^\s\u200b]")
        assert len(shown.findall("".join(said(found)))) >= len(shown.findall(content.decode())) * 0.99


@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.html"])
@pytest.mark.parametrize(
    "sign", ["> ", "[", "(", "*", "`", "<", "- ", "#", "|", "![", "{", "&#", "_", "~~~\n", "1. "]
)
def test_a_hundred_thousand_signs(sandbox: Sandbox, name: str, sign: str) -> None:
    found = outcome(sandbox, sign.encode() * 100_000, name)
    limits = r"takes longer than|needs more than|is nested too deeply|cannot be read|.* nested (too deeply|more than \d+ deep)"
    assert not isinstance(found, str) or re.match(limits, found)


# --- Formats


def test_html_nested_deeply() -> None:
    """A parser has to look through all open elements: 100,000 take it ten seconds and more."""
    content = b"<div>" * 100_000 + b"It walks."
    with Sandbox(seconds=2) as opened:
        assert unreadable(opened, content, "a.html") == "takes longer than 2 s to read"
        assert said(read(opened, GOOD, "good.md")) == ["Robots walk."]


@pytest.mark.parametrize(
    "tag", ["b", "span", "table><tr><td", "ul><li", "header", "a href=#", "svg", "template", "sup"]
)
def test_html_nested(sandbox: Sandbox, tag: str) -> None:
    read(sandbox, f"<{tag}>".encode() * 3_000 + b"It walks.", "a.html")


def test_html_with_a_heading_that_all_share(sandbox: Sandbox) -> None:
    """Were it repeated for each of its sentences, 30 GiB would come back."""
    content = b"<h2>" + b"x" * MIB + b"</h2>" + b"<p>It walks.</p>" * 30_000
    assert len(said(read(sandbox, content, "a.html"))) == 30_000


@pytest.mark.parametrize("name", ["a.md", "a.mdx", "a.txt", "a.html"])
@pytest.mark.parametrize(
    "content",
    ["Es fällt — oft.".encode("utf-16")[2:], "Es fällt.".encode("latin-1"), b"\x7fELF\x02\x01\x01\x00\xff", zlib.compress(GOOD)],
    ids=["UTF-16", "Latin-1", "program", "compressed"],
)  # fmt: skip
def test_what_is_no_utf_8(sandbox: Sandbox, name: str, content: bytes) -> None:
    assert "UTF-" in unreadable(sandbox, content, name)


def test_a_program_disguised_as_markdown(sandbox: Sandbox) -> None:
    unreadable(sandbox, Path("/bin/sh").read_bytes(), "a.md")


def test_a_format_that_is_not_known(sandbox: Sandbox) -> None:
    assert "format" in unreadable(sandbox, GOOD, "a.exe")


@pytest.mark.parametrize(
    "front",
    [
        "x: !!python/object/apply:os.system ['touch {file}']", "!!python/object/new:os.system ['touch {file}']",
        "title: !!python/name:os.system", "- !!python/module:os",
    ],
)  # fmt: skip
def test_front_matter_that_is_code(sandbox: Sandbox, tmp_path: Path, front: str) -> None:
    file = tmp_path / "done"
    unreadable(sandbox, f"---\n{front.replace('{file}', str(file))}\n---\n\nIt walks.".encode(), "a.md")
    assert not file.exists()


def test_front_matter_that_unfolds(sandbox: Sandbox) -> None:
    """Nine names of nine names … are a billion, as soon as they are written down."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    for last in ("", "title: *a9", "tags: *a9", "id: *a9", "slug: *a9", "module: *a9"):
        content = "\n".join(["---", *lines, *([last] if last else []), "---", "", "It walks."])
        found = outcome(sandbox, content.encode(), "a.md")
        assert len(found) < 600 if isinstance(found, str) else "It walks." in said(found)


def test_front_matter_that_is_nested_deeply(sandbox: Sandbox) -> None:
    unreadable(sandbox, b"---\ntitle: " + b"[" * 100_000 + b"\n---\n\nIt walks.", "a.md")


def test_front_matter_with_signs_that_no_database_holds(sandbox: Sandbox) -> None:
    for sign in (b"\\0", b"\\ud800"):
        found = outcome(sandbox, b'---\ntitle: "a' + sign + b'b"\n---\n\nIt walks.', "a.md")
        if not isinstance(found, str):
            assert found.title.encode()
            assert "\0" not in found.title


# --- PDF


@pytest.mark.parametrize("image", [True, False])
def test_a_pdf_that_is_a_bomb(sandbox: Sandbox, image: bool) -> None:
    content = with_bomb(image=image)
    if image:
        assert said(read(sandbox, content, "a.pdf")) == ["Robots fall."]
    else:
        assert "damaged" in unreadable(sandbox, content, "a.pdf")
    assert peak_bytes(sandbox) < 1400 * MIB


def test_a_pdf_of_many_pages_that_are_one_bomb() -> None:
    """Each of them just within the limits of its parser."""
    drawn = b"BT /F1 12 Tf (It walks.) Tj ET\n" * 100_000
    with Sandbox(seconds=3) as opened:
        assert unreadable(opened, _all_pages_the_same(drawn, 200), "a.pdf") == "takes longer than 3 s to read"
        assert said(read(opened, GOOD, "good.md")) == ["Robots walk."]


def _all_pages_the_same(drawn: bytes, count: int) -> bytes:
    def share(writer: PdfWriter) -> None:
        stream = DecodedStreamObject()
        stream.set_data(drawn)
        reference = writer._add_object(stream.flate_encode())
        for page in writer.pages:
            page[NameObject("/Contents")] = reference

    return made(*([column("x")] * count), finish=share)


def test_a_pdf_with_a_password(sandbox: Sandbox) -> None:
    content = made(column("Robots fall."), finish=lambda writer: writer.encrypt(user_password="secret"))
    assert unreadable(sandbox, content, "a.pdf") == "is encrypted: save it without a password"


@pytest.mark.parametrize("finish", [looped_pages, deep_pages])
def test_a_pdf_without_end(sandbox: Sandbox, finish: Callable[[PdfWriter], None]) -> None:
    assert "damaged" in unreadable(sandbox, made(column("Robots fall."), finish=finish), "a.pdf")


@pytest.mark.parametrize(
    "content",
    [
        b"", b"%PDF-1.7", b"%PDF-1.7\n" + b"[" * 1_000_000, b"%PDF-1.7\n" + b"<<" * 1_000_000 + b"\nstartxref\n9\n%%EOF",
        b"%PDF-1.7\nstartxref\n" + b"9" * 100_000 + b"\n%%EOF", GOOD, b"\0" * MIB, b"%PDF-1.7\n" + b"\0" * MIB,
        b"%PDF-1.7\n" + b"1 0 obj\n" * 500_000 + b"trailer\n<</Root 1 0 R>>\nstartxref\n9\n%%EOF",
    ],
    ids=["empty", "header", "arrays", "dictionaries", "number", "Markdown", "zeros", "zeros behind", "objects"],
)  # fmt: skip
def test_a_pdf_that_is_none(sandbox: Sandbox, content: bytes) -> None:
    assert re.match(r"is a damaged PDF|is not a PDF|takes longer", unreadable(sandbox, content, "a.pdf"))


# --- Its limits


def test_the_worker_is_confined(sandbox: Sandbox) -> None:
    read(sandbox, GOOD, "good.md")
    assert sandbox._worker
    limits = Path(f"/proc/{sandbox._worker._process.pid}/limits")
    if not limits.exists():
        pytest.skip("only Linux tells")
    text = limits.read_text()
    most = re.search(r"Max address space\s+(\d+)", text)
    assert most
    assert 1024 * MIB < int(most[1]) < 4096 * MIB
    for name in ("file size", "core file size", "processes"):
        assert re.search(rf"Max {name}\s+0 ", text), name
