"""The common result of all readers: a page of the book as sections of sentences with their anchor, heading and page."""

from dataclasses import dataclass
from typing import Literal

from engine.errors import AffidavitError

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


class UnreadableError(AffidavitError):
    """A file cannot be read. The message tells its author why, and is shown after the file's name."""
