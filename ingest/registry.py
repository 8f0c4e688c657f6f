"""Which books, documents, passages and generations exist. What readers see of a book changes in one statement."""

import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np
import psycopg
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from engine.errors import DatabaseUnavailableError, UnknownBookError
from engine.models import Calibration, Generation, Lexicon, Passage, Sentence, Term, Windows
from engine.retrieval import calibrate, selection
from ingest.read.document import Document

GENERATIONS_KEPT = (
    2  # the one in force, and the one before: a request that began before the switch still reads it
)

_LIVE = """
SELECT g.generation_id, g.book_id, g.embedder, g.dimension, g.calibration, g.lexicon, c.calibration
FROM books b JOIN generations g ON g.generation_id = b.live_generation
LEFT JOIN LATERAL (SELECT calibration FROM calibrations WHERE book_id = b.book_id ORDER BY created_at DESC LIMIT 1) c ON true
WHERE b.book_id = %s
"""

# The documents that hold a selection: position() knows no wildcards, so a selection is only what it says.
_HOLDING = """
SELECT filename FROM documents WHERE generation_id = %s AND filename > %s
AND NOT EXISTS (SELECT FROM unnest(%s::text[]) AS needle WHERE position(needle IN folded) = 0)
ORDER BY filename LIMIT %s
"""
DOCUMENTS_HOLDING = 10  # at a time: a selection such as "the robot" stands in every one

_PASSAGE_COLUMNS = (
    "chunk_id, book_id, parent_document_id, filename, chapter, section, chunk_index, text, sentences, start_page,"
    " end_page, start_sentence, end_sentence, url, content_hash, module, difficulty, tags"
)
_PASSAGE_NAMES = _PASSAGE_COLUMNS.replace(" ", "").split(",")

_BOOKS = """
SELECT b.book_id, b.title, g.generation_id, g.embedder, g.dimension, g.published_at,
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

# All of this book but the last ones that were published. An unfinished one is dead: only one ingest of a book runs.
_OUTLIVED = """
SELECT generation_id FROM generations WHERE book_id = %s AND generation_id NOT IN (
    SELECT generation_id FROM generations WHERE book_id = %s AND published_at IS NOT NULL
    ORDER BY published_at DESC LIMIT %s)
"""


@dataclass(frozen=True, slots=True)
class Book:
    """A line of `affidavit books`."""

    book_id: str
    title: str
    generation: UUID | None
    embedder: str | None
    dimension: int | None
    published_at: datetime | None
    passages: int
    documents: int
    calibration: str | None
    calibration_kind: str | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LiveContent:
    """What readers of a book see now."""

    content_hash: str = ""
    title: str = ""
    chunk_ids: frozenset[str] = frozenset()


class Registry:
    """The library's tables."""

    def __init__(self, pool: AsyncConnectionPool) -> None:
        self._pool = pool
        self._known: dict[str, Generation] = {}

    async def live(self, book_id: str) -> Generation:
        """The generation in force. Its vocabulary is read once: a generation never changes."""
        try:
            async with self._pool.connection() as connection:
                row = await (await connection.execute(_LIVE, (book_id,))).fetchone()
                if row is None:
                    raise UnknownBookError
                known = self._known.get(book_id)
                if known is None or known.generation_id != row[0]:
                    known = self._known[book_id] = await _generation(connection, row)
                calibration, _ = _in_force(row[4], row[6], row[2], row[3])
                return replace(known, calibration=calibration)
        except (psycopg.Error, PoolTimeout) as failure:
            raise DatabaseUnavailableError from failure

    async def passages(self, chunk_ids: Sequence[str]) -> dict[str, Passage]:
        try:
            async with self._pool.connection() as connection:
                cursor = await connection.execute(
                    f"SELECT {_PASSAGE_COLUMNS} FROM chunks WHERE chunk_id = ANY(%s)",  # noqa: S608  our own names
                    (list(chunk_ids),),
                )
                return {row[0]: _passage(row) for row in await cursor.fetchall()}
        except (psycopg.Error, PoolTimeout) as failure:
            raise DatabaseUnavailableError from failure

    async def contents(self, generation: UUID, start: int, count: int) -> list[Passage]:
        """The passages of a generation in order, from this position on."""
        columns = ", ".join(f"c.{name}" for name in _PASSAGE_NAMES)
        try:
            async with self._pool.connection() as connection:
                cursor = await connection.execute(
                    f"SELECT {columns} FROM generation_chunks g JOIN chunks c USING (chunk_id)"  # noqa: S608  our own names
                    " WHERE g.generation_id = %s AND g.position >= %s AND g.position < %s ORDER BY g.position",
                    (generation, start, start + count),
                )
                return [_passage(row) for row in await cursor.fetchall()]
        except (psycopg.Error, PoolTimeout) as failure:
            raise DatabaseUnavailableError from failure

    async def documents_containing(
        self, generation: UUID, needles: Sequence[str], after: str = ""
    ) -> list[list[Passage]]:
        try:
            async with self._pool.connection() as connection:
                cursor = await connection.execute(
                    _HOLDING, (generation, after, list(needles), DOCUMENTS_HOLDING)
                )
                names = [row[0] for row in await cursor.fetchall()]
                columns = ", ".join(f"c.{name}" for name in _PASSAGE_NAMES)
                cursor = await connection.execute(
                    f"SELECT {columns} FROM chunks c JOIN generation_chunks g USING (chunk_id)"  # noqa: S608  our own names
                    " WHERE g.generation_id = %s AND c.filename = ANY(%s) ORDER BY g.position",
                    (generation, names),
                )
                passages = [_passage(row) for row in await cursor.fetchall()]
        except (psycopg.Error, PoolTimeout) as failure:
            raise DatabaseUnavailableError from failure
        return [[passage for passage in passages if passage.filename == name] for name in names]

    async def books(self) -> list[Book]:
        async with self._pool.connection() as connection:
            return [_book(row) for row in await (await connection.execute(_BOOKS)).fetchall()]

    async def warnings(self, book_id: str) -> tuple[str, ...]:
        """What an author should know about the scores that are in force."""
        return next((book.warnings for book in await self.books() if book.book_id == book_id), ())

    async def certify(self, book_id: str, certificate: calibrate.Certificate) -> None:
        """From now on the book's scores mean what the certificate says. Needs the owner's rights."""
        stored = asdict(certificate)
        calibration = stored.pop("calibration")
        async with self._pool.connection() as connection:
            await connection.execute(
                "INSERT INTO calibrations (calibration_id, book_id, calibration, certificate) VALUES (%s, %s, %s, %s)"
                " ON CONFLICT (book_id, calibration_id) DO UPDATE"
                " SET certificate = EXCLUDED.certificate, created_at = clock_timestamp()",
                (calibration["calibration_id"], book_id, Jsonb(calibration), Jsonb(stored)),
            )

    async def live_content(self, book_id: str) -> LiveContent:
        async with self._pool.connection() as connection:
            row = await (await connection.execute(_LIVE_CONTENT, (book_id,))).fetchone()
        return LiveContent(row[0], row[1], frozenset(row[2])) if row else LiveContent()

    @asynccontextmanager
    async def exclusive(self, book_id: str) -> AsyncIterator[None]:
        """One ingest of a book at a time: the next one waits. The lock ends with its connection, however we end."""
        async with self._pool.connection() as connection:
            await connection.set_autocommit(True)
            await connection.execute(
                "SELECT pg_advisory_lock(hashtextextended('ingest ' || %s, 0))", (book_id,)
            )
            try:
                yield
            finally:
                await connection.execute("SELECT pg_advisory_unlock_all()")
                await connection.set_autocommit(False)

    async def begin(
        self, generation: Generation, title: str, documents: Sequence[Document], passages: Sequence[Passage], *,
        content_hash: str,
    ) -> None:  # fmt: skip
        """Write everything of a generation but its vectors. Nobody sees it yet."""
        folded = _folded(passages)
        async with self._pool.connection() as connection:
            await connection.execute(
                "INSERT INTO books (book_id, title) VALUES (%s, %s) ON CONFLICT DO NOTHING",
                (generation.book_id, title),
            )
            await _insert_generation(connection, generation, content_hash)
            await _copy(
                connection, "documents (generation_id, filename, title, url, sha256, folded)",
                [
                    (generation.generation_id, item.filename, item.title, item.url, item.sha256, folded[item.filename])
                    for item in documents
                ],
            )  # fmt: skip
            await _insert_passages(connection, passages)
            await _copy(
                connection, "generation_chunks (generation_id, chunk_id, position)",
                [(generation.generation_id, item.chunk_id, place) for place, item in enumerate(passages)],
            )  # fmt: skip
            await _copy(
                connection, "generation_terms (generation_id, term, term_id, idf)",
                [(generation.generation_id, word, *term) for word, term in generation.lexicon.terms.items()],
            )  # fmt: skip

    async def publish(self, generation: Generation, title: str) -> None:
        """The one atomic switch."""
        async with self._pool.connection() as connection:
            await connection.execute(
                "UPDATE generations SET state = 'ready', published_at = clock_timestamp(), calibration = %s"
                " WHERE generation_id = %s",
                (Jsonb(asdict(generation.calibration)), generation.generation_id),
            )
            await connection.execute(
                "UPDATE books SET live_generation = %s, title = %s WHERE book_id = %s",
                (generation.generation_id, title, generation.book_id),
            )

    async def outlived(self, book_id: str) -> list[UUID]:
        """The generations that nobody reads any more, and those that were never finished."""
        async with self._pool.connection() as connection:
            cursor = await connection.execute(_OUTLIVED, (book_id, book_id, GENERATIONS_KEPT))
            return [row[0] for row in await cursor.fetchall()]

    async def forget(self, generation: UUID) -> None:
        """Only after the index has dropped it: else nobody would know that it is there."""
        async with self._pool.connection() as connection:
            await connection.execute("DELETE FROM generations WHERE generation_id = %s", (generation,))

    async def embeddings(self, hashes: Sequence[str], embedder: str, dimension: int) -> dict[str, Windows]:
        """The vectors that are known already."""
        async with self._pool.connection() as connection:
            cursor = await connection.execute(
                "SELECT text_hash, windows FROM embeddings"
                " WHERE text_hash = ANY(%s) AND embedder = %s AND dimension = %s",
                (list(hashes), embedder, dimension),
                binary=True,
            )
            return {
                row[0]: np.frombuffer(row[1], "<f4").reshape(-1, dimension) for row in await cursor.fetchall()
            }

    async def keep_embeddings(self, made: Mapping[str, Windows], embedder: str, dimension: int) -> None:
        rows = [
            (name, embedder, dimension, windows.astype("<f4").tobytes()) for name, windows in made.items()
        ]
        async with self._pool.connection() as connection, connection.cursor() as cursor:
            await cursor.executemany(
                "INSERT INTO embeddings (text_hash, embedder, dimension, windows) VALUES (%s, %s, %s, %b)"
                " ON CONFLICT DO NOTHING",
                rows,
            )


def _in_force(
    own: dict[str, Any], certified: dict[str, Any] | None, embedder: str, dimension: int
) -> tuple[Calibration, tuple[str, ...]]:
    """The certificate if it fits the generation, else what the generation found by itself; and what to warn of."""
    calibration = calibrate.from_json(own)
    mismatch = certified and calibrate.mismatch(calibrate.from_json(certified), embedder, dimension)
    if certified and not mismatch:
        return calibrate.from_json(certified), ()
    warnings = [
        f"The certificate {certified['calibration_id']} is not used: it was {mismatch}. Run affidavit calibrate again."
    ] if certified else []  # fmt: skip
    return calibration, (*warnings, *calibrate.separation_warnings(calibration))


def _book(row: Sequence[Any]) -> Book:
    book_id, title, generation, embedder, dimension, published_at, passages, documents, own, certified = row
    calibration, warnings = _in_force(own, certified, embedder, dimension) if own else (None, ())
    return Book(
        book_id, title, generation, embedder, dimension, published_at, passages, documents,
        calibration.calibration_id if calibration else None, calibration.kind if calibration else None, warnings,
    )  # fmt: skip


def _folded(passages: Sequence[Passage]) -> dict[str, str]:
    """Each document as selections are looked for in it."""
    by_document: dict[str, list[Passage]] = defaultdict(list)
    for passage in passages:
        by_document[passage.filename].append(passage)
    folded = {name: selection.folded_document(held) for name, held in by_document.items()}
    return defaultdict(str, folded)


async def _generation(connection: psycopg.AsyncConnection, row: tuple[object, ...]) -> Generation:
    generation_id, book_id, embedder, dimension, calibration, lexicon, _ = row
    cursor = await connection.execute(
        "SELECT term, term_id, idf FROM generation_terms WHERE generation_id = %s", (generation_id,)
    )
    terms = {term: Term(term_id, idf) for term, term_id, idf in await cursor.fetchall()}
    assert isinstance(generation_id, UUID) and isinstance(lexicon, dict) and isinstance(calibration, dict)
    return Generation(
        generation_id, str(book_id), str(embedder), int(str(dimension)), calibrate.from_json(calibration),
        Lexicon(terms, lexicon["passages"], lexicon["average_length"]),
    )  # fmt: skip


def _passage(row: tuple[object, ...]) -> Passage:
    fields = dict(zip(_PASSAGE_NAMES, row, strict=True))
    sentences = fields["sentences"]
    assert isinstance(sentences, list)
    fields["sentences"] = tuple(
        Sentence(start, end, *map(sys.intern, where)) for start, end, *where in sentences
    )  # many stand under one heading, and passages are kept in memory
    fields["tags"] = tuple(fields["tags"] or ())  # type: ignore[arg-type]  # a text array
    return Passage(**fields)  # type: ignore[arg-type]  # the columns are the fields


async def _insert_generation(
    connection: psycopg.AsyncConnection, generation: Generation, content_hash: str
) -> None:
    lexicon = {"passages": generation.lexicon.passages, "average_length": generation.lexicon.average_length}
    await connection.execute(
        "INSERT INTO generations (generation_id, book_id, embedder, dimension, calibration, lexicon, content_hash)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s)",
        (
            generation.generation_id, generation.book_id, generation.embedder, generation.dimension,
            Jsonb(asdict(generation.calibration)), Jsonb(lexicon), content_hash,
        ),
    )  # fmt: skip


async def _insert_passages(connection: psycopg.AsyncConnection, passages: Sequence[Passage]) -> None:
    """A passage that is there already is the same passage: its id is the hash of what it says and where."""
    await connection.execute("CREATE TEMPORARY TABLE new_chunks (LIKE chunks) ON COMMIT DROP")
    rows = [
        [
            Jsonb(item.sentences) if name == "sentences" else _listed(getattr(item, name))
            for name in _PASSAGE_NAMES
        ]
        for item in passages
    ]
    await _copy(connection, f"new_chunks ({_PASSAGE_COLUMNS})", rows)
    await connection.execute(
        f"INSERT INTO chunks ({_PASSAGE_COLUMNS}) SELECT {_PASSAGE_COLUMNS} FROM new_chunks ON CONFLICT DO NOTHING"  # noqa: S608
    )


async def _copy(connection: psycopg.AsyncConnection, into: str, rows: Sequence[Sequence[object]]) -> None:
    async with connection.cursor() as cursor, cursor.copy(f"COPY {into} FROM STDIN".encode()) as copy:
        for row in rows:
            await copy.write_row(row)


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
