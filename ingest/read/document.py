"""What every reader gives: a page of the book as sections of sentences that know where they stand."""

from dataclasses import dataclass
from typing import Literal

from engine.errors import AffidavitError

Kind = Literal["prose", "list", "table", "code"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A sentence, a row of a table, or a block of code.

    `block` is the same for all of one paragraph, list item, table or block of code; `heading` is the nearest one above,
    `anchor` leads to it on the page ("" if nothing does), and `page` is the label a reader would look for.
    """

    text: str
    block: int
    kind: Kind
    heading: str
    anchor: str
    page: str


@dataclass(frozen=True, slots=True)
class Section:
    """A top-level section of a document. Passages never cross its border."""

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
    """This file cannot be read, and why, in words for whoever wrote it."""
