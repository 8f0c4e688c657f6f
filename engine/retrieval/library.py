"""A read-only repository over PostgreSQL: books, their live editions and their passages, as queries need them.

The writing side is ingest/registry.py. What readers see of a book changes there, in one statement.
"""

import asyncio
import logging
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import psycopg
from psycopg_pool import AsyncConnectionPool

from audit.proof.passage_id import is_as_ingested
from engine.errors import PassageDamagedError, UnknownBookError
from engine.models import (
    Calibration,
    Generation,
    Lexicon,
    Passage,
    Sentence,
    SentenceKind,
    Term,
    chapter_id_of,
)
from engine.retrieval import calibrate
from engine.storage.database import borrowed
from engine.words.languages import ENGLISH

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
NAMED_MAX = 5  # damaged passages by their ids: a changed table has all of them
DOCUMENTS_PER_PAGE = 10  # a selection such as "the robot" occurs in every document

PASSAGE_NAMES = [field.name for field in fields(Passage)]  # the columns of `chunks` have the same names
PASSAGE_COLUMNS = ", ".join(PASSAGE_NAMES)
_QUALIFIED_COLUMNS = ", ".join(f"c.{name}" for name in PASSAGE_NAMES)

log = logging.getLogger(__name__)

_BOOKS = """
SELECT b.book_id, b.title, g.generation_id, g.embedder, g.dimension, g.language, g.published_at,
       (SELECT count(*) FROM generation_chunks c WHERE c.generation_id = g.generation_id),
       (SELECT count(*) FROM documents d WHERE d.generation_id = g.generation_id), g.calibration, c.calibration
FROM books b LEFT JOIN generations g ON g.generation_id = b.live_generation
LEFT JOIN LATERAL (SELECT calibration FROM calibrations WHERE book_id = b.book_id ORDER BY created_at DESC LIMIT 1) c ON true
ORDER BY b.book_id
"""

# The chapters of a generation, each a file, with the headings that its passages begin under, in the book's order.
_CHAPTERS = """
SELECT filename, chapter, min(url), array_agg(section ORDER BY first) FILTER (WHERE section <> '')
FROM (
    SELECT c.filename, c.chapter, c.section, min(c.url) AS url, min(g.position) AS first
    FROM generation_chunks g JOIN chunks c USING (chunk_id) WHERE g.generation_id = %s
    GROUP BY c.filename, c.chapter, c.section
) AS sections
GROUP BY filename, chapter ORDER BY min(first)
"""

_LIVE_CONTENT = """
SELECT g.content_hash, b.title, g.generation_id, g.embedder, g.reading,
       (g.lexicon ->> 'passages')::integer, (SELECT count(*) FROM generation_chunks c WHERE c.generation_id = g.generation_id)
FROM books b JOIN generations g ON g.generation_id = b.live_generation WHERE b.book_id = %s
"""

_LIVE_CHUNK_IDS = """
SELECT chunk_id FROM books b JOIN generation_chunks c ON c.generation_id = b.live_generation WHERE b.book_id = %s
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
class Chapter:
    """A file of a book's edition. `chapter_id` is the one of its citations."""

    chapter_id: str
    title: str
    url: str
    sections: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LiveContent:
    """The content of a book's live edition; empty if the book was never published."""

    content_hash: str = ""
    title: str = ""
    generation_id: UUID | None = None
    embedder: str = ""
    reading: str | None = None  # what turned its files into passages
    passages_written: int = 0
    passages: int = 0

    def is_of(self, content_hash: str, title: str) -> bool:
        return (self.content_hash, self.title) == (content_hash, title)


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
            return {passage.chunk_id: passage for passage in _passages(await cursor.fetchall())}

    async def contents(self, generation: UUID, start: int, count: int) -> list[Passage]:
        """The passages of a generation in order, from this position on."""
        async with borrowed(self._pool) as connection:
            cursor = await connection.execute(
                f"SELECT {_QUALIFIED_COLUMNS} FROM generation_chunks g JOIN chunks c USING (chunk_id)"  # noqa: S608  our own names
                " WHERE g.generation_id = %s AND g.position >= %s AND g.position < %s ORDER BY g.position",
                (generation, start, start + count),
            )
            return _passages(await cursor.fetchall())

    async def chapters(self, generation: UUID) -> list[Chapter]:
        async with borrowed(self._pool) as connection:
            cursor = await connection.execute(_CHAPTERS, (generation,))
            return [
                Chapter(chapter_id_of(filename), title or filename, url, tuple(sections or ()))
                for filename, title, url, sections in await cursor.fetchall()
            ]

    async def around(self, generation: UUID, chunk_id: str) -> list[Passage]:
        """The passage with its neighbours, in order; empty if this generation does not have it."""
        async with borrowed(self._pool) as connection:
            cursor = await connection.execute(
                f"SELECT {_QUALIFIED_COLUMNS} FROM generation_chunks g JOIN chunks c USING (chunk_id) JOIN"  # noqa: S608  our own names
                " (SELECT min(position) AS place FROM generation_chunks WHERE generation_id = %s AND chunk_id = %s) AS cited"
                " ON g.position BETWEEN cited.place - 1 AND cited.place + 1 WHERE g.generation_id = %s ORDER BY g.position",
                (generation, chunk_id, generation),
            )
            return _passages(await cursor.fetchall())

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
            rows = await cursor.fetchall()
        passages = await asyncio.to_thread(_passages, rows)  # of whole documents: it may take 0.1 s
        return [[passage for passage in passages if passage.filename == name] for name in names]

    async def books(self) -> list[Book]:
        async with borrowed(self._pool) as connection:
            return [_book(row) for row in await (await connection.execute(_BOOKS)).fetchall()]

    async def warnings(self, book_id: str) -> tuple[str, ...]:
        """Doubts about the calibration in use, for the book's author."""
        return next((book.warnings for book in await self.books() if book.book_id == book_id), ())

    async def live_content(self, book_id: str) -> LiveContent:
        async with self._pool.connection() as connection:
            row = await (await connection.execute(_LIVE_CONTENT, (book_id,))).fetchone()
        return LiveContent(*row) if row else LiveContent()

    async def live_chunk_ids(self, book_id: str) -> frozenset[str]:
        async with self._pool.connection() as connection:
            cursor = await connection.execute(_LIVE_CHUNK_IDS, (book_id,))
            return frozenset(row[0] for row in await cursor.fetchall())


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
        "SELECT term, term_id, idf, passages FROM generation_terms WHERE generation_id = %s", (generation_id,)
    )
    terms = {term: Term(*numbers) for term, *numbers in await cursor.fetchall()}
    statistics = Lexicon(terms, **lexicon)
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


def _passages(rows: Sequence[Sequence[Any]]) -> list[Passage]:
    """`PassageDamagedError` if one is not as it was ingested: its id says so, and it is never answered from."""
    stored = [as_stored(row) for row in rows]
    damaged = damaged_among(stored)
    if damaged:
        log.error(
            "Passages are not as they were ingested, so they are not answered from: %s", shortened(damaged)
        )
        raise PassageDamagedError(upstream=f"not as ingested: {shortened(damaged)}")
    return [_passage(each) for each in stored]


def as_stored(row: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(PASSAGE_NAMES, row, strict=True))


def damaged_among(stored: Iterable[dict[str, Any]]) -> list[str]:
    """The ids of those that are not as they were ingested."""
    return [each["chunk_id"] for each in stored if not is_as_ingested(each)]


def shortened(chunk_ids: Sequence[str]) -> str:
    """The first ids in words, and how many there are more."""
    named = ", ".join(chunk_ids[:NAMED_MAX])
    return f"{named} and {len(chunk_ids) - NAMED_MAX} more" if len(chunk_ids) > NAMED_MAX else named


def _passage(stored: dict[str, Any]) -> Passage:
    """Headings, anchors and pages are interned: many sentences share them, and passages are cached in memory."""
    sentences = tuple(_sentence(*item) for item in stored["sentences"])
    return Passage(**stored | {"sentences": sentences, "tags": tuple(stored["tags"])})


def _sentence(
    start: int, end: int, heading: str, anchor: str, page: str, kind: str = "statement"
) -> Sentence:
    """A sentence of an edition from before kinds were stored is a statement."""
    heading, anchor, page = map(sys.intern, (heading, anchor, page))
    return Sentence(start, end, heading, anchor, page, cast("SentenceKind", sys.intern(kind)))
