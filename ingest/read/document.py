"""The common result of all readers: a page of the book as sections of sentences with their anchor, heading and page."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from engine.errors import AffidavitError

CountPages = Callable[[int, int], None]  # how many pages of a file are read, of how many
CONTENT_FILE = "affidavit-content.json"  # the export of a Docusaurus site …
_EXPORTS = re.compile(
    r"affidavit-content(?:-.+)?\.json"
)  # … and those of older versions of its docs: affidavit-content-1.0.json

Kind = Literal["prose", "list", "table", "code"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A sentence, a row of a table, or a block of code.

    All pieces of one paragraph, list item, table or block of code share a `block`. `heading` is the nearest one above,
    `anchor` leads to it on the page ("" if there is none), and `page` is the label that a reader looks for.
    """

    text: str
    block: int
    kind: Kind
    heading: str
    anchor: str
    page: str


@dataclass(frozen=True, slots=True)
class Section:
    """A top-level section of a document. No passage crosses its boundary."""

    heading: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """One file of the book. `url` is the page's address without an anchor."""

    filename: str
    title: str
    url: str
    sha256: str
    sections: tuple[Section, ...]
    module: int | None = None
    difficulty: str | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """A document whose file is as it was. Its passages are at these positions of the live edition."""

    document: Document  # without its sections
    positions: range
    place: int  # in the order of the book

    @property
    def filename(self) -> str:
        return self.document.filename


class UnreadableError(AffidavitError):
    """A file cannot be read. The message tells its author why, and is shown after the file's name."""


def is_export(path: PurePath) -> bool:
    return _EXPORTS.fullmatch(path.name) is not None


def uncounted(_: int, __: int) -> None:
    """Nobody hears how many pages were read."""
