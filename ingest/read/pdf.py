"""Reader for PDF in five steps: (1) open, (2) lines, (3) remove running heads, (4) headings, (5) paragraphs. Pure.

A PDF has the positions of characters and no structure, so headings are taken from its outline, and paragraphs are
recognised by distances, indents and sizes.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import pairwise
from math import hypot
from pathlib import PurePosixPath
from statistics import median
from typing import Any, NamedTuple, TypeVar
from unicodedata import normalize

from pypdf import PageObject, PasswordType, PdfReader, apply_configuration
from pypdf.generic import Destination

from ingest.read.document import CountPages, Document, UnreadableError, uncounted
from ingest.read.text import LIST_MARKER, Line, Place, SectionBuilder, begins_item, is_complete, site_path

Result = TypeVar("Result")

EDGE_LINES = 2  # a running head or foot has no more lines
NEAR_PAGES = 6  # left and right pages differ, and so do chapters: a running head repeats on half of them …
REPEATED = 3  # … at the same height
SAME_HEIGHT = 3.0  # points
WIDE_GAP = 1.35  # times the usual distance of lines: a new paragraph
INDENT = 0.8  # times the size of the letters: a new paragraph
OTHER_SIZE = 1.12  # times the size of the letters: a heading, a footnote
SHORT = 0.6  # of the usual length of a line: the last line of a paragraph, if its sentence is complete
HEADING_LINES = 3  # a long heading is broken over so many
HEADING_SLACK = 40  # letters that a number and a word such as "Chapter" may add
SOFT_HYPHEN = "\u00ad"

_LIGATURES = {code: normalize("NFKC", chr(code)) for code in range(0xFB00, 0xFB07)}  # "fi" is two letters
_NO_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")  # neither JSON nor the database can store them
_DASHES = "- \u2013\u2014"
_NUMBER = re.compile(r"\d{1,9}")
_ROMAN = re.compile(r"[ivxlcdm]+", re.IGNORECASE)
_NOT_WORD = re.compile(r"[\W_]+")
_OWN_NUMBER = re.compile(
    r"(?:(?i:chapter|part|appendix|section)\s+\w{1,5}[.:)]?|\d+(?:\.\d+)*[.:)]?|[A-Z](?:\.\d+)*[.:)]|[IVXLC]+[.:)])\s+"
)
_BROKEN = re.compile(r"([\w'\u2019-]*[^\W\d_])([-\u2010\u00ad])$")
_NO_SPACE = re.compile(r"\w[-\u2010\u2013]$")  # "1990-" and "2000"
_WORD = re.compile(r"[^\W\d_][\w'\u2019]*(?:-[\w'\u2019]+)*")
SUSPENDED = {"and", "or", "to", "und", "oder"}  # "pre- and postprocessing"


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of a page and its position, in points from the lower left."""

    text: str
    page: int
    x: float
    y: float
    size: float


class _Heading(NamedTuple):
    """An entry of the outline with its rows on the page, or the row that it precedes if it has none."""

    text: str
    depth: int
    page: int
    top: float | None
    row: int = 0
    rows: int = 0


def read(content: bytes, path: PurePosixPath, count: CountPages = uncounted) -> Document:
    with apply_configuration(jbig2dec_binary=None):  # no file starts a program
        reader = _or_unreadable(lambda: _opened(content))  # (1)
        pages = _or_unreadable(lambda: _pages(reader))
        places = [
            Place(f"page={number}", label) for number, label in enumerate(_labels(reader, len(pages)), 1)
        ]
        rows = _or_unreadable(lambda: list(_rows_of(pages, count)))  # (2)
        outline = list(_entries(reader, _or_none(lambda: reader.outline) or [], 0))
        title = _title(reader) or path.stem
    if not any(rows):
        raise UnreadableError("has no text because its pages are images: run text recognition (OCR) first")
    kept = _without_running_heads(rows, [place.page for place in places], outline)  # (3)
    builder = SectionBuilder(title)
    _write(builder, kept, _placed(outline, kept), places)  # (4), (5)
    return builder.document(content, path.as_posix(), site_path(path))


def _rows_of(pages: Sequence[PageObject], count: CountPages) -> Iterator[list[_Row]]:
    for number, page in enumerate(pages):
        yield _rows(page, number)
        count(number + 1, len(pages))


# (1) Open


def _or_unreadable(step: Callable[[], Result]) -> Result:
    """Converts exceptions: pypdf may raise any exception at all on a damaged file."""
    try:
        return step()
    except (UnreadableError, MemoryError):
        raise
    except RecursionError as wrong:
        raise UnreadableError("is a damaged PDF: it is nested too deeply") from wrong
    except Exception as wrong:
        raise UnreadableError(f"is a damaged PDF: {str(wrong) or type(wrong).__name__}") from wrong


def _opened(content: bytes) -> PdfReader:
    if b"%PDF-" not in content[:1024]:
        raise UnreadableError("is not a PDF")
    reader = PdfReader(BytesIO(content))
    if reader.is_encrypted and reader.decrypt("") == PasswordType.NOT_DECRYPTED:
        raise UnreadableError("is encrypted: save it without a password")
    return reader


def _pages(reader: PdfReader) -> list[PageObject]:
    pages = list(reader.pages)
    declared = reader.root_object["/Pages"].get("/Count", 0)  # type: ignore[attr-defined]  # looked at by reader.pages
    if not pages:
        raise UnreadableError("is a PDF without pages")
    if isinstance(declared, int) and len(pages) < declared:
        raise UnreadableError(f"is a damaged PDF: only {len(pages)} of its {declared} pages were found")
    return pages


def _labels(reader: PdfReader, count: int) -> list[str]:
    """The label printed on each page, or its number."""
    numbers = [str(number) for number in range(1, count + 1)]
    labels = _or_none(lambda: reader.page_labels) or numbers
    return [_clean(label) or number for label, number in zip(labels, numbers, strict=False)]


def _title(reader: PdfReader) -> str:
    title = _or_none(lambda: reader.metadata and reader.metadata.title)
    return _clean(title) if isinstance(title, str) else ""


def _entries(reader: PdfReader, items: Sequence[Any], depth: int) -> Iterator[_Heading]:
    for item in items:
        if isinstance(item, list):
            yield from _entries(reader, item, depth + 1)
        elif isinstance(item, Destination):
            page = _or_none(lambda entry=item: reader.get_destination_page_number(entry))  # type: ignore[misc]
            text = _clean(str(item.title or ""))
            if text and page is not None:
                top = item.top
                yield _Heading(text, depth, page, float(top) if isinstance(top, float | int) else None)


def _or_none(step: Callable[[], Result]) -> Result | None:
    """Tolerates damaged labels, titles and outlines, because the text may still be intact."""
    try:
        return step()
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  as in _or_unreadable
        return None


def _clean(text: str) -> str:
    return " ".join(_NO_TEXT.sub("", text.translate(_LIGATURES)).split())


# (2) Lines of a page


def _rows(page: PageObject, number: int) -> list[_Row]:
    collector = _RowCollector(number)
    page.extract_text(visitor_text=collector.add_run)
    collector.end_row()
    return collector.rows


@dataclass(slots=True)
class _RowCollector:
    """Visitor that joins runs of text into rows. The longest run decides the size of a row's letters."""

    page: int
    rows: list[_Row] = field(default_factory=list)
    runs: list[tuple[str, float, float, float]] = field(default_factory=list)

    def add_run(
        self, text: str, current: Sequence[float], matrix: Sequence[float], _font: Any, size: float
    ) -> None:
        across = matrix[2] * current[0] + matrix[3] * current[2]
        up = matrix[2] * current[1] + matrix[3] * current[3]
        x = matrix[4] * current[0] + matrix[5] * current[2] + current[4]
        y = matrix[4] * current[1] + matrix[5] * current[3] + current[5]
        for number, part in enumerate(text.split("\n")):
            if number:
                self.end_row()
            self.runs.append((part, x, y, abs(size) * hypot(across, up)))

    def end_row(self) -> None:
        written = [run for run in self.runs if run[0].strip()]
        if text := _clean("".join(run[0] for run in self.runs)):
            _, x, y, _ = written[0]
            size = max(written, key=lambda run: len(run[0]))[3]
            self.rows.append(_Row(text, self.page, x, y, size))
        self.runs = []


# (3) Running heads and feet, page numbers


class _Edge(NamedTuple):
    """A row at the top or bottom of a page, and the numbers in it."""

    row: _Row
    numbers: tuple[int, ...]


def _without_running_heads(
    pages: Sequence[list[_Row]], labels: Sequence[str], outline: Sequence[_Heading]
) -> list[list[_Row]]:
    alike: dict[str, list[_Edge]] = defaultdict(list)
    for rows in pages:
        for row in _edges(rows):
            key = "#" if _ROMAN.fullmatch(row.text) else _NUMBER.sub("#", row.text)
            alike[key].append(_Edge(row, tuple(map(int, _NUMBER.findall(row.text)))))
    begins: dict[str, int] = {}
    for heading in reversed(outline):
        begins |= dict.fromkeys(_normal_forms(heading.text), heading.page)
    running = {
        edge.row
        for edges in alike.values()
        for number, edge in enumerate(edges)
        if _is_repeated(edges, number) or _has_label(edge.row, labels[edge.row.page], begins)
    }
    return [[row for row in rows if row not in running] or _with_words(rows) for rows in pages]


def _has_label(row: _Row, label: str, begins: Mapping[str, int]) -> bool:
    """Whether a row is only the label of the page, or the label beside a heading of an earlier page."""
    text = row.text.strip(_DASHES)
    without = text.removeprefix(label) if text.startswith(label) else text.removesuffix(label)
    is_heading = any(begins.get(form, row.page) < row.page for form in _normal_forms(without))
    return without != text and (not without or is_heading)


def _edges(rows: Sequence[_Row]) -> list[_Row]:
    by_height = sorted(rows, key=lambda row: -row.y)
    return list(dict.fromkeys([*by_height[:EDGE_LINES], *by_height[-EDGE_LINES:]]))


def _is_repeated(edges: Sequence[_Edge], at: int) -> bool:
    """Whether enough of the pages near it have a similar row."""
    found = {edges[at].row.page}
    for step in (-1, 1):
        other = at + step
        while 0 <= other < len(edges) and abs(edges[other].row.page - edges[at].row.page) <= NEAR_PAGES:
            if _is_similar(edges[at], edges[other]):
                found.add(edges[other].row.page)
            if len(found) == REPEATED:
                return True
            other += step
    return False


def _is_similar(one: _Edge, other: _Edge) -> bool:
    """Whether two rows have the same height, and numbers that are equal or increase with the pages."""
    pages = other.row.page - one.row.page
    steps = (b - a for a, b in zip(one.numbers, other.numbers, strict=False))
    return abs(one.row.y - other.row.y) <= SAME_HEIGHT and all(step in {0, pages} for step in steps)


def _with_words(rows: Sequence[_Row]) -> list[_Row]:
    """Keeps the rows with words of a page that seems to have nothing but running heads: its pages may only look alike."""
    return [row for row in rows if any(len(word) > 1 for word in _WORD.findall(row.text))]


# (4) Headings


def _placed(outline: Sequence[_Heading], pages: Sequence[Sequence[_Row]]) -> list[_Heading]:
    """Places each entry of the outline at its text, if its page has it, else at its target position."""
    found: list[_Heading] = []
    after: dict[int, int] = defaultdict(int)
    for heading in outline:
        rows = pages[heading.page]
        placed = _placed_by_text(heading, rows, after[heading.page]) or _placed_by_position(
            heading, rows, after[heading.page]
        )
        after[heading.page] = placed.row + placed.rows
        found.append(placed)
    return sorted(found, key=lambda heading: (heading.page, heading.row))


def _placed_by_text(heading: _Heading, rows: Sequence[_Row], first: int) -> _Heading | None:
    wanted = _normal_forms(heading.text)
    longest = max(map(len, wanted))
    for start in range(first, len(rows)):
        text = ""
        for count, row in enumerate(rows[start : start + HEADING_LINES], start=1):
            text = f"{text} {row.text}".lstrip()
            if wanted & _normal_forms(text):
                return heading._replace(row=start, rows=count)
            if len(text) > 2 * longest + HEADING_SLACK:
                break
    return None


def _placed_by_position(heading: _Heading, rows: Sequence[_Row], first: int) -> _Heading:
    below = (
        number
        for number in range(first, len(rows))
        if heading.top is None or heading.top <= 0 or rows[number].y <= heading.top
    )
    return heading._replace(row=next(below, len(rows)))


def _normal_forms(text: str) -> set[str]:
    """Letters only, with and without the number, because the outline and the page differ in these."""
    forms = (_NOT_WORD.sub("", form.casefold()) for form in (text, _OWN_NUMBER.sub("", text, count=1)))
    return {form for form in forms if form}


# (5) Paragraphs


def _write(
    builder: SectionBuilder,
    pages: Sequence[Sequence[_Row]],
    headings: Sequence[_Heading],
    places: Sequence[Place],
) -> None:
    paragraphs = _Paragraphs(builder, places, [row for rows in pages for row in rows])
    before: list[_Row] = []
    by_page: dict[int, list[_Heading]] = defaultdict(list)
    for heading in headings:
        by_page[heading.page].append(heading)
    for number, rows in enumerate(pages):
        start = 0
        for heading in by_page[number]:
            paragraphs.write([*before, *rows[start : heading.row]])
            builder.enter(heading.text, top=heading.depth == 0)
            before, start = [], max(start, heading.row + heading.rows)
        before.extend(rows[start:])
    paragraphs.write(before)


class _Paragraphs:
    """Joins rows into paragraphs, by the usual distances and lengths in this file."""

    def __init__(self, builder: SectionBuilder, places: Sequence[Place], rows: Sequence[_Row]) -> None:
        self.builder = builder
        self.places = places
        self.distances = _usual_distances(rows)
        lengths = defaultdict(list)
        for row in rows:
            lengths[round(row.size)].append(len(row.text))
        self.lengths = {size: median(found) for size, found in lengths.items()}
        self.words = {word.casefold() for row in rows for word in _WORD.findall(row.text)}

    def write(self, rows: Sequence[_Row]) -> None:
        starts = [0, *(number for number in range(1, len(rows)) if self._begins(rows, number)), len(rows)]
        for start, end in pairwise(starts):
            if start < end:
                self._write_one(rows[start:end], rows[start - 1].text if start else "")

    def _write_one(self, rows: Sequence[_Row], before: str) -> None:
        is_item = begins_item(rows[0].text, before)
        texts = [row.text for row in rows]
        if is_item:
            texts[0] = LIST_MARKER.sub("", texts[0], count=1)
        mended = [self._with_joint(text, after) for text, after in pairwise([*texts, ""])]
        parts = [Line(text, self.places[row.page]) for text, row in zip(mended, rows, strict=True)]
        self.builder.add_prose(parts, "list" if is_item else "prose")

    def _begins(self, rows: Sequence[_Row], number: int) -> bool:
        """Whether this row begins a paragraph."""
        before, row = rows[number - 1], rows[number]
        if max(before.size, row.size) > OTHER_SIZE * min(before.size, row.size):
            return True
        if begins_item(row.text, before.text):
            return True
        if row.page != before.page or row.y > before.y + before.size:  # the next page, the next column
            return is_complete(before.text)
        usual = self.distances.get(round(row.size), row.size * 2)
        is_indented = row.x - before.x > INDENT * row.size and not LIST_MARKER.match(before.text)
        is_short = len(before.text) < SHORT * self.lengths[round(before.size)] and is_complete(before.text)
        return before.y - row.y > WIDE_GAP * usual or is_indented or is_short

    def _with_joint(self, text: str, after: str) -> str:
        """A row with its joint to the next row: a space, or nothing where a word was hyphenated."""
        found = _BROKEN.search(text)
        following = _WORD.match(after)
        text = text.replace(SOFT_HYPHEN, "") if not found else text
        if not found or not following:
            return text if _NO_SPACE.search(text) and after[:1].isalnum() else f"{text} "
        if following[0] in SUSPENDED:
            return f"{text} "
        whole = text[: found.start(2)].replace(SOFT_HYPHEN, "")
        if found[2] == SOFT_HYPHEN or self._is_one_word(found[1], following[0]):
            return whole
        return f"{whole}-"

    def _is_one_word(self, start: str, end: str) -> bool:
        """Whether the hyphen only breaks the line: the other words of the file decide."""
        first, last = end.partition("-")[0], start.rpartition("-")[2]
        if not end[0].islower():
            return False
        if f"{last}{first}".casefold() in self.words:
            return True
        return "-" not in start and "-" not in end and f"{last}-{first}".casefold() not in self.words


def _usual_distances(rows: Sequence[_Row]) -> dict[int, float]:
    """The usual distance from one row to the next, for each size of letters."""
    found: dict[int, Counter[float]] = defaultdict(Counter)
    for before, row in pairwise(rows):
        distance = round(2 * (before.y - row.y)) / 2
        if before.page == row.page and round(before.size) == round(row.size) and distance > row.size / 2:
            found[round(row.size)][distance] += 1
    return {
        size: min(distance for distance, times in counted.items() if times == max(counted.values()))
        for size, counted in found.items()
    }
