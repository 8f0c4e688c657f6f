"""Exact matching of a reader's selection on a rendered page with the text of the book. Pure.

Both are compared in a folded (normalised) form: differences that a browser, a theme or a keyboard causes are removed, the
words stay. The folded selection must occur in the book as one run. Nothing is matched fuzzily, because "not in the book" is
a promise. One ambiguity remains: folded, "now here" and "nowhere" are the same.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice, takewhile
from typing import NamedTuple

from engine.models import Passage, Sentence

FOLDING = "folding-1"  # the version of the folding: stored documents are folded, so a changed folding needs a new name
PLACES = 10  # of one selection: "the robot" occurs in many places, and the reader meant one of them
HEADING_SENTENCES = 20  # read under a heading that was selected alone: about one passage
# A shorter selection must be whole words: white space is folded away, so "tor" occurs in "motor" and in "not or". From
# twelve letters on, a match by chance is unlikely, and a selection may begin and end inside a word.
SHORT = 12

Located = tuple[Passage, ...]  # one place: the passages that contain it, each with the touched sentences

# Lines that a theme adds to the page: the button on a code block, the titles of admonitions.
_THEME_LINES = frozenset(
    ("copy", "copied", "note", "tip", "info", "warning", "danger", "caution", "important", "success")
)
_LIST_NUMBER = re.compile(r"\s*+(\d{1,3}[.)])(?=\s)")
_NOTE_MARK = re.compile(
    r"(?:(?<=[^\W\d_])|(?<!\d[.,])(?<=[.,:;!?)\]\"'\u201d\u2019\u00bb]))(\d{1,2}|\[\d{1,2}\])(?=[\s\[]|[.,;:!?)](?!\d)|\Z)"
)
_NOTES = "footnotes"

_SIGNS = frozenset("+<=>±×÷≠≤≥≈%€£¥")  # noqa: RUF001  # "C++" is not "C", nor "a < b" the same as "a > b"
_DASHES = frozenset("-\u2010\u2011\u2012\u2013\u2014\u2015\u2212")
# A variation selector, which belongs to the character before it.
_DRAWING = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
# The point in "1.5" and the sign of "-5" are kept: without them it is another number.
_NOT_OF_A_NUMBER = re.compile(r"(?<!\d)[.,]|[.,](?!\d)|(?<=\w)-|-(?!\d)")
_UNSPACED = re.compile(  # written without spaces: a word may begin at every character
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


def locate(selection: str, passages: Sequence[Passage]) -> list[Located]:
    """The places of the selection in a document, given all its passages in order; whole sentences and headings come first.

    Every touched sentence occurs once, in the first passage that contains it; a heading selected alone touches the sentences
    under it. The text of a passage stays whole, so that offsets into it stay valid.
    """
    document = _Document.of(passages)
    whole = (_Part(folded(selection)),)
    spans = document.spans(whole) or document.spans(_parts(selection, has_notes=document.has_notes()))
    wholes = set(document.folded.spans)
    places = dict.fromkeys(
        document.touched(span) for span in sorted(spans, key=lambda span: span not in wholes)
    )
    return [document.restricted(units) for units in islice(places, PLACES)]


def needles(selection: str) -> list[str]:
    """Necessary substrings: a folded document that contains the selection contains all of them. Empty: no document does."""
    written = [part.text for part in _parts(selection, has_notes=True) if part.is_written]
    return list(dict.fromkeys(written or filter(None, [folded(selection)])))


def folded_document(passages: Sequence[Passage]) -> str:
    """A document with its headings as one folded string, which an ingest stores to search selections in."""
    return _Document.of(passages).folded.text


def folded(text: str) -> str:
    """The text without white space, typography, mark-up and case: letters, and numbers kept separate and unchanged."""
    return _fold([text]).text


# --- Folding


class _Folded(NamedTuple):
    """Several texts folded into one string: `spans` has the place of each text, `words` the starts of words."""

    text: str
    spans: list[tuple[int, int]]
    words: set[int]


class _Kept(dict[int, str | None]):
    """A lazily filled translation table."""

    def __missing__(self, code: int) -> str | None:
        self[code] = _kept(chr(code))
        return self[code]


_KEPT = _Kept()


def _kept(character: str) -> str | None:
    if character in _DASHES:
        return "-"
    if character in _SIGNS or character in ".,":
        return character
    category = unicodedata.category(character)
    if category == "Cf" or _DRAWING.match(character):
        return None
    return character if category[0] in "LN" or category in {"Mn", "Mc"} else " "


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return _NOT_OF_A_NUMBER.sub(" ", plain.translate(_KEPT)).split()


def _fold(texts: Iterable[str]) -> _Folded:
    """Joins words without spaces, except between digits: "3 5" is not 35."""
    pieces: list[str] = []
    spans, begun = [], set()
    end, before = 0, ""
    for text in texts:
        start = None
        for word in _words(text):
            if before.isdecimal() and word[0].isdecimal():
                pieces.append(" ")
                end += 1
            start = end if start is None else start
            begun.add(end)
            pieces.append(word)
            end, before = end + len(word), word[-1]
        spans.append((end if start is None else start, end))
    return _Folded("".join(pieces), spans, begun)


# --- The selection


class _Part(NamedTuple):
    """A run of the selection; `is_written` is False for text that the page may have added."""

    text: str
    is_written: bool = True


def _parts(selection: str, *, has_notes: bool) -> tuple[_Part, ...]:
    """Splits the selection at text that a page may have added: theme lines, list numbers, footnote marks."""
    parts: list[_Part] = []
    for part in (part for line in selection.splitlines() for part in _line_parts(line, has_notes=has_notes)):
        if part.is_written and parts and parts[-1].is_written:
            before = parts[-1].text
            is_apart = before[-1:].isdecimal() and part.text[:1].isdecimal()
            parts[-1] = _Part(f"{before} {part.text}" if is_apart else before + part.text)
        elif part.text:
            parts.append(part)
    return tuple(parts)


def _line_parts(line: str, *, has_notes: bool) -> Iterator[_Part]:
    if folded(line) in _THEME_LINES:
        yield _Part(folded(line), is_written=False)
        return
    start = 0
    if number := _LIST_NUMBER.match(line):
        yield _Part(folded(number[1]), is_written=False)
        start = number.end()
    for mark in _NOTE_MARK.finditer(line, start) if has_notes else ():
        yield _Part(folded(line[start : mark.start()]))
        yield _Part(folded(mark[1]), is_written=False)
        start = mark.end()
    yield _Part(folded(line[start:]))


# --- The document


class _Unit(NamedTuple):
    """A folded text: a sentence of a passage, or a heading before it; `level` 0 is the title, 3 a sentence."""

    level: int
    passage: int
    sentence: int


_TITLE, _SECTION, _HEADING, _SENTENCE = range(4)


@dataclass(frozen=True, slots=True)
class _Document:
    passages: Sequence[Passage]
    units: list[_Unit]
    folded: _Folded
    starts: list[int]
    ends: list[int]

    @classmethod
    def of(cls, passages: Sequence[Passage]) -> "_Document":
        found = list(_units(passages))
        folds = _fold(text for _, text in found)
        starts, ends = [start for start, _ in folds.spans], [end for _, end in folds.spans]
        return cls(passages, [unit for unit, _ in found], folds, starts, ends)

    def spans(self, parts: Sequence[_Part]) -> list[tuple[int, int]]:
        """Every run of the document that matches these parts."""
        first = next((number for number, part in enumerate(parts) if part.is_written and part.text), None)
        if first is None:
            return []
        begins = _positions(self.folded.text, parts[first].text)
        spans = ((start, self._end(start, parts[first:])) for start in begins)
        return [(start, end) for start, end in spans if end and self._is_long_or_whole(start, end)]

    def _end(self, start: int, parts: Sequence[_Part]) -> int:
        """The end of the parts, which must follow each other directly; 0 if they do not."""
        ends = {start}
        for part in parts:
            behind = {end for before in ends if (end := self._behind(before, part.text))}
            ends = behind if part.is_written else behind | ends
        return max((end for end in ends if not self._cuts_number(end)), default=0)

    def _behind(self, before: int, part: str) -> int:
        text = self.folded.text
        start = before + text.startswith(" ", before)
        return start + len(part) if text.startswith(part, start) and not self._cuts_number(start) else 0

    def _is_long_or_whole(self, start: int, end: int) -> bool:
        return end - start >= SHORT or (self._is_border(start) and self._is_border(end))

    def _is_border(self, at: int) -> bool:
        around = self.folded.text[max(at - 1, 0) : at + 1]
        within_word = len(around) > 1 and around.isalnum() and not _UNSPACED.search(around)
        return at in self.folded.words or not within_word

    def _cuts_number(self, at: int) -> bool:
        """True for a position inside a number: a selection may end inside a word, but 15 is not 5."""
        around = self.folded.text[max(at - 1, 0) : at + 1]
        is_number = all(character.isdecimal() or character in ".,-" for character in around)
        return at not in self.folded.words and len(around) > 1 and is_number

    def has_notes(self) -> bool:
        return any(folded(passage.section) == _NOTES for passage in self.passages)

    def touched(self, span: tuple[int, int]) -> tuple[_Unit, ...]:
        start, end = span
        first, last = bisect_right(self.ends, start), bisect_left(self.starts, end)
        sentences = tuple(
            unit
            for unit, (begin, finish) in zip(
                self.units[first:last], self.folded.spans[first:last], strict=True
            )
            if unit.level == _SENTENCE and begin < finish
        )
        return sentences or self._under(last - 1)

    def _under(self, heading: int) -> tuple[_Unit, ...]:
        """The sentences under the heading, up to the next heading of its level."""
        level = self.units[heading].level
        below = takewhile(lambda unit: unit.level > level, islice(self.units, heading + 1, None))
        return tuple(islice((unit for unit in below if unit.level == _SENTENCE), HEADING_SENTENCES))

    def restricted(self, units: Sequence[_Unit]) -> Located:
        return tuple(
            replace(
                self.passages[number],
                sentences=tuple(self.passages[number].sentences[unit.sentence] for unit in held),
            )
            for number, held in groupby(units, key=lambda unit: unit.passage)
        )


def _positions(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _units(passages: Sequence[Passage]) -> Iterator[tuple[_Unit, str]]:
    """The text of the page in reading order: each heading when it changes, each sentence once."""
    opening, known = None, 0
    heading: Sentence | None = None
    shown = ""  # the last heading, while it has no sentence yet
    for number, passage in enumerate(passages):
        if not (opening and _continues(passage, opening)):
            opening, known, heading = passage, 0, None
            if number == 0 and passage.chapter != passage.section:
                yield _Unit(_TITLE, number, 0), passage.chapter
            yield _Unit(_SECTION, number, 0), passage.section
            shown = passage.section
        for index in range(max(known - passage.start_sentence, 0), len(passage.sentences)):
            sentence = passage.sentences[index]
            if sentence.heading != shown and _is_headed_anew(sentence, heading):
                yield _Unit(_HEADING, number, index), sentence.heading
            yield _Unit(_SENTENCE, number, index), passage.sentence_text(index)
            heading, shown = sentence, ""
        known = passage.start_sentence + len(passage.sentences)


def _continues(passage: Passage, opening: Passage) -> bool:
    """True if the passage continues the section of `opening`. A section's last passage may repeat its first sentence."""
    same = (passage.section, _first(passage)) == (opening.section, _first(opening))
    return passage.start_sentence > 0 or same


def _first(passage: Passage) -> tuple[str, str, str]:
    sentence = passage.sentences[0]
    return passage.sentence_text(0), sentence.anchor, sentence.page


def _is_headed_anew(sentence: Sentence, before: Sentence | None) -> bool:
    """True at a new heading. A heading of the same name is a new one if its anchor differs, except in a PDF, where an
    anchor only names the page."""
    if before is None or sentence.heading != before.heading:
        return True
    return sentence.anchor != before.anchor and sentence.page == before.page
