"""Chunking with overlap: sections to passages with stable, content-based ids. Pure.

A passage has about 512 tokens and repeats the last fifth of the one before. It never cuts a sentence and never crosses a
top-level section, so that a quotation is always whole.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from audit.proof import passage_id
from engine.models import Passage, Sentence, SentenceKind
from ingest.kinds import kinds as kinds_of
from ingest.read.document import Document, Piece, Section


@dataclass(frozen=True, slots=True)
class Size:
    """How long a passage is, in tokens."""

    tokens: int
    overlap: float
    tokens_min: int


def passages(
    document: Document, book_id: str, size: Size, count_tokens: Callable[[str], int]
) -> list[Passage]:
    """All passages of a document, in its order."""
    made: list[Passage] = []
    for section in document.sections:
        costs = [count_tokens(piece.text) for piece in section.pieces]
        kinds = kinds_of(section.pieces, document.title)
        for start, end in cuts(costs, size):
            made.append(_passage(document, section, kinds, range(start, end), book_id, len(made)))
    return made


def sentences(passages: Sequence[Passage]) -> Iterator[str]:
    """The pieces that the passages of a document were made of, each once though neighbours share some."""
    opening, end = None, 0
    for passage in passages:
        first = (passage.section, passage.sentence_text(0))
        # The last passage of a section may repeat it from its first sentence on.
        if passage.start_sentence == 0 and first != opening:
            opening, end = first, 0
        for number in range(max(end - passage.start_sentence, 0), len(passage.sentences)):
            yield passage.sentence_text(number)
        end = passage.start_sentence + len(passage.sentences)


def cuts(costs: Sequence[int], size: Size) -> Iterator[tuple[int, int]]:
    """Ranges of sentences, as (first, after the last). `before[n]` is the number of tokens in the first n sentences."""
    before = [0, *accumulate(costs)]
    start, last = 0, len(costs)
    while start < last:
        end = _end_from(start, before, size)
        if end == last:
            yield min(start, max(0, bisect_right(before, before[last] - size.tokens_min) - 1)), last
            return
        yield start, end
        repeated = bisect_left(before, before[end] - round(size.tokens * size.overlap))
        start = next(
            first
            for first in range(max(repeated, start + 1), end + 1)
            if _end_from(first, before, size) > end
        )


def _end_from(start: int, before: Sequence[int], size: Size) -> int:
    """Takes as many sentences as fit, more if that is too short, and at least one: a sentence is never cut."""
    fits = bisect_right(before, before[start] + size.tokens) - 1
    enough = bisect_left(before, before[start] + size.tokens_min)
    return min(max(fits, enough, start + 1), len(before) - 1)


def _passage(
    document: Document,
    section: Section,
    kinds: Sequence[SentenceKind],
    places: range,
    book_id: str,
    index: int,
) -> Passage:
    """Builds a passage. Sentences are numbered within the section, so that an edit in another does not change it.

    The id is a hash of all that is stored of the passage: a new heading, page, tag or kind makes a new passage.
    """
    pieces = section.pieces[places.start : places.stop]
    text, sentences = _joined(pieces, kinds[places.start : places.stop])
    covered: dict[str, Any] = {
        "book_id": book_id,
        "filename": document.filename,
        "url": document.url,
        "chapter": document.title,
        "section": section.heading,
        "chunk_index": index,
        "text": text,
        "sentences": sentences,
        "start_sentence": places.start,
        "module": document.module,
        "difficulty": document.difficulty,
        "tags": document.tags,
    }
    return Passage(**covered, **passage_id.derived(covered))


def _joined(pieces: Sequence[Piece], kinds: Sequence[SentenceKind]) -> tuple[str, tuple[Sentence, ...]]:
    """Joins sentences of a paragraph with a space, rows with a line break, and paragraphs with an empty line."""
    text = ""
    sentences = []
    for number, (piece, kind) in enumerate(zip(pieces, kinds, strict=True)):
        if number:
            same = pieces[number - 1].block == piece.block
            text += " " if same and piece.kind != "table" else "\n" if same else "\n\n"
        sentences.append(
            Sentence(len(text), len(text) + len(piece.text), piece.heading, piece.anchor, piece.page, kind)
        )
        text += piece.text
    return text, tuple(sentences)
