"""A read-only repository over PostgreSQL: books, their live editions and their passages, as queries need them.

The writing side is ingest/registry.py. What readers see of a book changes there, in one statement.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import psycopg
from psycopg_pool import AsyncConnectionPool

from engine.errors import UnknownBookError
from engine.models import Calibration, Generation, Lexicon, Passage, Sentence, SentenceKind, Term
from engine.retrieval import calibrate
from engine.retrieval.languages import ENGLISH
from engine.storage.database import borrowed

_LIVE = """
SELECT g.generation_id, g.book_id, g.embedder, g.dimension, g.calibration, g.lexicon, g.language, c.calibration
FROM books b JOIN generations g ON g.generation_id = b.live_generation
LEFT JOIN LATERAL (SELECT calibration FROM calibrations WHERE book_id = b.book_id ORDER BY created_at DESC LIMIT 1) c ON true
WHERE b.book_id = %s
"""

# The documents that contain a selection. position() has no wildcards, so a selection matches only itself.
_CONTAINING = """
SELECT filename FROM documents WHERE generation_id = %s AND filename > %s
AND NOT EXISTS (SELECT FROM unnest(%s::text[]) AS needle WHERE position(needle IN folded) = 0)
ORDER BY filename LIMIT %s
"""
DOCUMENTS_PER_PAGE = 10  # a selection such as "the robot" occurs in every document

PASSAGE_NAMES = [field.name for field in fields(Passage)]  # the columns of `chunks` have the same names
PASSAGE_COLUMNS = ", ".join(PASSAGE_NAMES)
_QUALIFIED_COLUMNS = ", ".join(f"c.{name}" for name in PASSAGE_NAMES)

_BOOKS = """
SELECT b.book_id, b.title, g.generation_id, g.embedder, g.dimension, g.language, g.published_at,
       (SELECT count(*) FROM generation_chunks c WHERE c.generation_id = g.generation_id),
       (SELECT count(*) FROM documents d WHERE d.generation_id = g.generation_id), g.calibration, c.calibration
FROM books b LEFT JOIN generations g ON g.generation_id = b.live_generation
LEFT JOIN LATERAL (SELECT calibration FROM calibrations WHERE book_id = b.book_id ORDER BY created_at DESC LIMIT 1) c ON true
ORDER BY b.book_id
"""

_LIVE_CONTENT = """
SELECT g.content_hash, b.title, array(SELECT chunk_id FROM generation_chunks c WHERE c.generation_id = g.generation_id)
FROM books b JOIN generations g ON g.generation_id = b.live_generation WHERE b.book_id = %s
"""


@dataclass(frozen=True, slots=True)
class Book:
    """A line of `affidavit books`."""

    book_id: str
    title: str
    generation: UUID | None
    embedder: str | None
    dimension: int | None
    language: str | None
    published_at: datetime | None
    passages: int
    documents: int
    calibration: str | None
    calibration_kind: str | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LiveContent:
    """The content of a book's live edition; empty if the book was never published."""

    content_hash: str = ""
    title: str = ""
    chunk_ids: frozenset[str] = frozenset()


class StoredLibrary:
    """The library as it is stored. Each query reads the database; outage/cached_library.py caches it."""

    def __init__(self, pool: AsyncConnectionPool) -> None:
        self._pool = pool
        self._known: dict[str, Generation] = {}

    async def live(self, book_id: str) -> Generation:
        """The live edition. Its vocabulary is read once and kept, because a generation is immutable."""
        async with borrowed(self._pool) as connection:
            row = await (await connection.execute(_LIVE, (book_id,))).fetchone()
            if row is None:
                raise UnknownBookError
            known = self._known.get(book_id)
            if known is None or known.generation_id != row[0]:
                known = self._known[book_id] = await _generation(connection, row)
            calibration, _ = _effective_calibration(row[4], row[7], row[2], row[3])
            return replace(known, calibration=calibration)

    async def passages(self, chunk_ids: Sequence[str]) -> dict[str, Passage]:
        async with borrowed(self._pool) as connection:
            cursor = await connection.execute(
                f"SELECT {PASSAGE_COLUMNS} FROM chunks WHERE chunk_id = ANY(%s)",  # noqa: S608  our own names
                (list(chunk_ids),),
            )
            return {row[0]: _passage(row) for row in await cursor.fetchall()}

    async def contents(self, generation: UUID, start: int, count: int) -> list[Passage]:
        """The passages of a generation in order, from this position on."""
        async with borrowed(self._pool) as connection:
            cursor = await connection.execute(
                f"SELECT {_QUALIFIED_COLUMNS} FROM generation_chunks g JOIN chunks c USING (chunk_id)"  # noqa: S608  our own names
                " WHERE g.generation_id = %s AND g.position >= %s AND g.position < %s ORDER BY g.position",
                (generation, start, start + count),
            )
            return [_passage(row) for row in await cursor.fetchall()]

    async def documents_containing(
        self, generation: UUID, needles: Sequence[str], after: str = ""
    ) -> list[list[Passage]]:
        async with borrowed(self._pool) as connection:
            cursor = await connection.execute(
                _CONTAINING, (generation, after, list(needles), DOCUMENTS_PER_PAGE)
            )
            names = [row[0] for row in await cursor.fetchall()]
            cursor = await connection.execute(
                f"SELECT {_QUALIFIED_COLUMNS} FROM chunks c JOIN generation_chunks g USING (chunk_id)"  # noqa: S608  our own names
                " WHERE g.generation_id = %s AND c.filename = ANY(%s) ORDER BY g.position",
                (generation, names),
            )
            passages = [_passage(row) for row in await cursor.fetchall()]
        return [[passage for passage in passages if passage.filename == name] for name in names]

    async def books(self) -> list[Book]:
        async with self._pool.connection() as connection:
            return [_book(row) for row in await (await connection.execute(_BOOKS)).fetchall()]

    async def warnings(self, book_id: str) -> tuple[str, ...]:
        """Doubts about the calibration in use, for the book's author."""
        return next((book.warnings for book in await self.books() if book.book_id == book_id), ())

    async def live_content(self, book_id: str) -> LiveContent:
        async with self._pool.connection() as connection:
            row = await (await connection.execute(_LIVE_CONTENT, (book_id,))).fetchone()
        return LiveContent(row[0], row[1], frozenset(row[2])) if row else LiveContent()


def _effective_calibration(
    own: dict[str, Any], certified: dict[str, Any] | None, embedder: str, dimension: int
) -> tuple[Calibration, tuple[str, ...]]:
    """The certificate if it fits the generation, otherwise the self-calibration; and the warnings about it."""
    calibration = calibrate.from_json(own)
    mismatch = certified and calibrate.mismatch(calibrate.from_json(certified), embedder, dimension)
    if certified and not mismatch:
        return calibrate.from_json(certified), ()
    warnings = [
        f"The certificate {certified['calibration_id']} is not used: it was {mismatch}. Run affidavit calibrate again."
    ] if certified else []  # fmt: skip
    return calibration, (*warnings, *calibrate.separation_warnings(calibration))


def _book(row: Sequence[Any]) -> Book:
    book_id, title, generation, embedder, dimension, language, published_at, passages, documents = row[:9]
    own, certified = row[9:]
    calibration, warnings = _effective_calibration(own, certified, embedder, dimension) if own else (None, ())
    return Book(
        book_id, title, generation, embedder, dimension, language, published_at, passages, documents,
        calibration.calibration_id if calibration else None, calibration.kind if calibration else None,
        (*warnings, *_language_warnings(language, calibration)),
    )  # fmt: skip


def _language_warnings(language: str | None, calibration: Calibration | None) -> tuple[str, ...]:
    if language in {ENGLISH, None} or calibration is None or calibration.kind != "shipped":
        return ()
    doubt = (
        f"The gate of this book is not calibrated, because there are no probe questions in its language ({language}): add"
        f" config/calibration/probes.{language}.txt, or calibrate with labelled questions: affidavit calibrate --help."
    )
    return (doubt,)


async def _generation(connection: psycopg.AsyncConnection, row: Sequence[Any]) -> Generation:
    generation_id, book_id, embedder, dimension, calibration, lexicon, language, _ = row
    cursor = await connection.execute(
        "SELECT term, term_id, idf FROM generation_terms WHERE generation_id = %s", (generation_id,)
    )
    terms = {term: Term(term_id, idf) for term, term_id, idf in await cursor.fetchall()}
    statistics = Lexicon(terms, lexicon["passages"], lexicon["average_length"])
    curves = calibrate.from_json(calibration)
    return Generation(
        generation_id,
        book_id,
        embedder,
        dimension,
        curves,
        statistics,
        language or ENGLISH,
        language is not None,
    )


def _passage(row: Sequence[Any]) -> Passage:
    """Headings, anchors and pages are interned: many sentences share them, and passages are cached in memory."""
    found: dict[str, Any] = dict(zip(PASSAGE_NAMES, row, strict=True))
    found["sentences"] = tuple(_sentence(*item) for item in found["sentences"])
    found["tags"] = tuple(found["tags"] or ())
    return Passage(**found)


def _sentence(
    start: int, end: int, heading: str, anchor: str, page: str, kind: str = "statement"
) -> Sentence:
    """A sentence of an edition from before kinds were stored is a statement."""
    heading, anchor, page = map(sys.intern, (heading, anchor, page))
    return Sentence(start, end, heading, anchor, page, cast("SentenceKind", sys.intern(kind)))
