"""Reader for plain text, and the builder that all readers share. Pure.

Plain text has no markup, so headings and list items are recognised by their form.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate, pairwise
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import quote

from ingest import sentences
from ingest.read.document import Document, Kind, Piece, Section, UnreadableError

TOP_LEVEL = 2  # "3" and "3.2" begin a top-level section, "3.2.1" is a heading inside it
HEADING_LENGTH = 120  # a longer line is a sentence that begins with a number

LIST_MARKER = re.compile(r"(?:[•◦▪‣∙●○]|[-*+–](?=\s)|\(?(?:\d{1,3}|[a-z])[.)](?=\s))\s*(?=\S)")  # noqa: RUF001
_ALWAYS_MARKER = re.compile(r"[•◦▪‣∙●○]")
_COMPLETE = re.compile(r"[.!?:;…][\"'”’)\]]*$")  # noqa: RUF001
_UNDERLINE = re.compile(r"={3,}|-{3,}|~{3,}|\*{3,}|_{3,}")
_NUMBERED = re.compile(r"(\d{1,3}(?:\.\d{1,3})*)\.?\s+(\S.*)")

_NOT_IN_ADDRESS = re.compile(r"[\x00-\x20\"#%<>?\\^`{|}\x7f]")

_WIDE = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


class Place(NamedTuple):
    """The anchor and the page label of a piece."""

    anchor: str
    page: str


class Line(NamedTuple):
    text: str
    place: Place


@dataclass(slots=True)
class SectionBuilder:
    """Builder for the sections of a document. Text before the first heading belongs to the title."""

    title: str
    heading: str = ""
    block: int = 0
    sections: list[tuple[str, list[Piece]]] = field(default_factory=list)

    def enter(self, heading: str, *, top: bool) -> None:
        self.heading = heading
        if top:
            self.sections.append((heading, []))

    def add(self, text: str, kind: Kind, place: Place) -> None:
        if not self.sections:
            self.sections.append((self.title, []))
        if text.strip():
            heading = self.heading or self.title
            self.sections[-1][1].append(Piece(text, self.block, kind, heading, place.anchor, place.page))

    def add_prose(self, parts: Sequence[Line], kind: Kind) -> None:
        """Adds one paragraph as sentences. A sentence has the place of the line that it starts in."""
        text = "".join(part.text for part in parts)
        starts = list(accumulate((len(part.text) for part in parts[:-1]), initial=0))
        self.block += 1
        for start, end in sentences.spans(text):
            self.add(text[start:end].strip(), kind, parts[bisect_right(starts, start) - 1].place)

    def document(self, content: bytes, filename: str, url: str, **front: Any) -> Document:
        sections = tuple(Section(heading, tuple(pieces)) for heading, pieces in self.sections if pieces)
        return Document(filename, self.title, url, sha256(content).hexdigest(), sections, **front)


class _Block(NamedTuple):
    """Consecutive lines without a blank one; an underline makes the single line above it a heading."""

    lines: list[Line]
    underline: str


def read(content: bytes, path: PurePosixPath) -> Document:
    blocks = list(_blocks(_lines(_decoded(content), path.stem)))
    title = blocks[0].lines[0].text if blocks and blocks[0].underline.startswith("=") else path.stem
    builder = SectionBuilder(title)
    around = [0, *(_depth(block) for block in blocks), 0]
    for block, before, depth, after in zip(blocks, around, around[1:], around[2:], strict=False):
        if block.underline or depth not in {0, before, after}:
            builder.enter(block.lines[0].text, top=depth <= TOP_LEVEL)  # an underlined heading has no depth
        else:
            _write(builder, block.lines)
    return builder.document(content, path.as_posix(), site_path(path.with_suffix("")))


def site_path(path: PurePosixPath) -> str:
    """The percent-encoded address on the site: a space, `#` or `?` in a file's name would end it."""
    return "/" + _NOT_IN_ADDRESS.sub(lambda found: quote(found[0]), path.as_posix())


def begins_item(line: str, before: str) -> bool:
    """Whether a line begins a list item. After an incomplete sentence a number or a dash does not."""
    if not LIST_MARKER.match(line):
        return False
    return not before or bool(_ALWAYS_MARKER.match(line) or _COMPLETE.search(before))


def is_complete(line: str) -> bool:
    """Whether a line ends with the punctuation of a sentence."""
    return bool(_COMPLETE.search(line))


def _decoded(content: bytes) -> str:
    if content.startswith(_WIDE):
        raise UnreadableError("is UTF-16 or UTF-32: save it as UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        raise UnreadableError(f"is not UTF-8 (invalid byte at {wrong.start}): save it as UTF-8") from wrong
    if "\0" in text:
        raise UnreadableError("contains NUL bytes: it is not text, or it is UTF-16; save it as UTF-8")
    return text


def _lines(text: str, stem: str) -> Iterator[Line]:
    """The lines with their page, which form feeds separate if there are any."""
    pages = text.split("\f")
    for number, page in enumerate(pages, start=1):
        place = Place("", str(number) if len(pages) > 1 else stem)
        for line in page.splitlines():
            yield Line(" ".join(line.split()), place)


def _blocks(lines: Iterator[Line]) -> Iterator[_Block]:
    current: list[Line] = []
    for line in lines:
        underline = line.text if _UNDERLINE.fullmatch(line.text) else ""
        if line.text and not underline:
            current.append(line)
            continue
        if current:
            is_heading = len(current) == 1 and underline[:1] in {"=", "-"}
            yield _Block(current, underline if is_heading else "")
        current = []
    if current:
        yield _Block(current, "")


def _depth(block: _Block) -> int:
    """The depth of a numbered heading, 0 if it is none. Neighbouring blocks of one depth are a list and no headings."""
    found = _NUMBERED.fullmatch(block.lines[0].text)
    if block.underline or len(block.lines) > 1 or not found or len(found[0]) > HEADING_LENGTH:
        return 0
    is_sentence = found[2][0].islower() or is_complete(found[2])
    return 0 if is_sentence else found[1].count(".") + 1


def _write(builder: SectionBuilder, lines: list[Line]) -> None:
    starts = [
        number
        for number, line in enumerate(lines)
        if begins_item(line.text, lines[number - 1].text if number else "")
    ]
    for start, end in pairwise(sorted({0, *starts, len(lines)})):
        is_item = start in starts
        item = [Line(f"{line.text} ", line.place) for line in lines[start:end]]
        if is_item:
            item[0] = Line(LIST_MARKER.sub("", item[0].text, count=1), item[0].place)
        builder.add_prose(item, "list" if is_item else "prose")
