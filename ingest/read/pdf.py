"""PDF to sections of sentences: (1) open, (2) lines of each page, (3) running heads out, (4) headings, (5) paragraphs.

A PDF says where characters stand, not what they are: headings are those of its outline, and paragraphs are told from
distances, indents and sizes. Pure.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from io import BytesIO
from itertools import pairwise
from pathlib import PurePosixPath
from statistics import median
from typing import Any, NamedTuple

from pypdf import PageObject, PasswordType, PdfReader, apply_configuration
from pypdf.generic import Destination

from ingest.read.document import Document, UnreadableError
from ingest.read.text import LIST_MARKER, Line, Place, Writing, address, begins_item, is_complete

EDGE_LINES = 2  # a running head or foot has no more lines
NEAR_PAGES = 6  # left and right pages differ, and so do chapters: a head repeats on half of the pages near it …
REPEATED = 3  # … and at the same height
SAME_HEIGHT = 3.0  # points
WIDE_GAP = 1.35  # times the usual distance of lines: a new paragraph
INDENT = 0.8  # times the size of the letters: a new paragraph
OTHER_SIZE = 1.12  # times the size of the letters: a heading, a footnote
SHORT = 0.6  # of the usual length of a line: the last of its paragraph, if its sentence is complete
HEADING_LINES = 3  # over which a long heading is broken

_LIGATURES = str.maketrans(
    {"ff": "ff", "fi": "fi", "fl": "fl", "ffi": "ffi", "ffl": "ffl", "ſt": "st", "st": "st", "\t": " ", "\u00a0": " "}
)
_NO_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")  # neither JSON nor a database can hold them
_NUMBER = re.compile(r"\d+|\b[ivxlc]+\b", re.IGNORECASE)
_NOT_WORD = re.compile(r"[\W_]+")
_LEADING_NUMBER = re.compile(r"^(?:chapter|part|appendix|section)?\s*[\dA-Z]{0,3}(?:\.\d+)*[.:)]?\s+", re.IGNORECASE)
_BROKEN = re.compile(r"([^\W\d_](?:[\w'’-]*[^\W_])?)([-\u2010\u00ad])$")  # noqa: RUF001
_GOES_ON = re.compile(r"[^\W\d_][\w'’-]*")  # noqa: RUF001
_WORD = re.compile(r"[^\W\d_][\w'’]*(?:-[\w'’]+)*")  # noqa: RUF001
_SUSPENDED = {"and", "or", "to", "und", "oder"}  # "pre- and postprocessing"


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of a page with where it stands, in points from the lower left."""

    text: str
    page: int
    x: float
    y: float
    size: float


class _Heading(NamedTuple):
    """An entry of the outline, and the row before which it stands."""

    text: str
    depth: int
    page: int
    top: float | None
    row: int = 0
    rows: int = 0


def read(content: bytes, path: PurePosixPath) -> Document:
    with apply_configuration(jbig2dec_binary=None):  # no file starts a program
        reader = _sound(lambda: _opened(content))  # (1)
        pages = _sound(lambda: _pages(reader))
        places = [Place(f"page={number}", label) for number, label in enumerate(_labels(reader, len(pages)), 1)]
        rows = [_sound(lambda: _rows(page, number)) for number, page in enumerate(pages)]  # (2)
        outline = _outline(reader)
        title = _title(reader) or path.stem
    if not any(rows):
        raise UnreadableError("has no text: its pages are pictures. Recognise the text (OCR) first")
    kept = _without_running_heads(rows, [place.page for place in places])  # (3)
    writing = Writing(title)
    _write(writing, kept, _found(outline, kept), places)  # (4), (5)
    return Document(
        filename=path.as_posix(),
        title=title,
        url=address(path),
        sha256=sha256(content).hexdigest(),
        sections=writing.finished(),
    )


# (1) Open


def _sound[T](step: Callable[[], T]) -> T:
    """Damaged files make pypdf raise whatever Python can raise."""
    try:
        return step()
    except (UnreadableError, MemoryError):
        raise
    except RecursionError as wrong:
        raise UnreadableError("is a damaged PDF: it is nested too deeply") from wrong
    except Exception as wrong:
        raise UnreadableError(f"is a damaged PDF: {wrong or type(wrong).__name__}") from wrong
