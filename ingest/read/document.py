"""What every reader gives: a page of the book as sections of sentences that know where they stand."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["prose", "list", "table", "code"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A sentence, a row of a table, or a block of code; `block` is the same for all of one paragraph or table."""

    text: str
    block: int
    kind: Kind
    heading: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Section:
    """A top-level section of a page. Passages never cross its border."""

    heading: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """One page of the book."""

    filename: str
    title: str
    page: str
    url: str
    sha256: str
    sections: tuple[Section, ...]
    module: int | None = None
    difficulty: str | None = None
    tags: tuple[str, ...] = ()
