"""The repository that an ingest writes to: books, documents, passages, generations and cached embeddings.

What readers see of a book changes in one statement (`publish`). The reading side is engine/retrieval/library.py.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from uuid import UUID

import numpy as np
import psycopg
from psycopg.types.json import Jsonb

from engine.models import Generation, Passage, Windows
from engine.retrieval import calibrate, selection
from engine.retrieval.library import PASSAGE_COLUMNS, PASSAGE_NAMES, StoredLibrary
from ingest.read.document import Document

GENERATIONS_KEPT = (
    2  # the one in force, and the one before: a request that began before the switch still reads it
)

# All of this book but the last ones that were published. An unfinished one is dead: only one ingest of a book runs.
_OUTLIVED = """
SELECT generation_id FROM generations WHERE book_id = %s AND generation_id NOT IN (
    SELECT generation_id FROM generations WHERE book_id = %s AND published_at IS NOT NULL
    ORDER BY published_at DESC LIMIT %s)
"""


class Registry(StoredLibrary):
    """The library with its writing side, for an ingest."""

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


def _folded(passages: Sequence[Passage]) -> dict[str, str]:
    """Each document as selections are looked for in it."""
    by_document: dict[str, list[Passage]] = defaultdict(list)
    for passage in passages:
        by_document[passage.filename].append(passage)
    folded = {name: selection.folded_document(held) for name, held in by_document.items()}
    return defaultdict(str, folded)


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
            for name in PASSAGE_NAMES
        ]
        for item in passages
    ]
    await _copy(connection, f"new_chunks ({PASSAGE_COLUMNS})", rows)
    await connection.execute(
        f"INSERT INTO chunks ({PASSAGE_COLUMNS}) SELECT {PASSAGE_COLUMNS} FROM new_chunks ON CONFLICT DO NOTHING"  # noqa: S608
    )


async def _copy(connection: psycopg.AsyncConnection, into: str, rows: Sequence[Sequence[object]]) -> None:
    async with connection.cursor() as cursor, cursor.copy(f"COPY {into} FROM STDIN".encode()) as copy:
        for row in rows:
            await copy.write_row(row)


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
