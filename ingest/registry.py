"""The repository that an ingest writes to: books, documents, passages, generations and cached embeddings.

What readers see of a book changes in one statement (`publish`). The reading side is engine/retrieval/library.py.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from hashlib import sha256
from itertools import groupby
from uuid import UUID

import numpy as np
import psycopg
from psycopg.types.json import Jsonb

from engine.models import Generation, Passage, Windows
from engine.ports import Embedder
from engine.retrieval import calibrate, selection
from engine.retrieval.library import PASSAGE_COLUMNS, PASSAGE_NAMES, StoredLibrary
from ingest.read.document import Document

LOCK_PAUSE_S = 0.2  # between two looks whether the other ingest of the book is over
GENERATIONS_KEPT = 2  # the live one, and the one before: requests that began before the switch still read it

# All generations of a book but the last ones published. An unfinished one is abandoned: only one ingest of a book runs.
_STALE = """
SELECT generation_id FROM generations WHERE book_id = %s AND generation_id NOT IN (
    SELECT generation_id FROM generations WHERE book_id = %s AND published_at IS NOT NULL
    ORDER BY published_at DESC LIMIT %s)
"""


Embed = Callable[[Sequence[str]], Awaitable[list[Windows]]]


class Registry(StoredLibrary):
    """The library with its writes, for an ingest."""

    async def certify(self, book_id: str, certificate: calibrate.Certificate) -> None:
        """Replaces the calibration of the book from now on. Needs the rights of the database's owner."""
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
    async def lock_book(self, book_id: str) -> AsyncIterator[None]:
        """One ingest of a book at a time; the next one waits. A killed process gives its claim up with its connection."""
        async with self._pool.connection() as connection:
            await connection.set_autocommit(True)
            while not await _claim(connection, book_id):  # noqa: ASYNC110  another process has it
                await asyncio.sleep(LOCK_PAUSE_S)
            try:
                yield
            finally:
                await connection.execute("RESET application_name")
                await connection.set_autocommit(False)

    async def begin(
        self, generation: Generation, title: str, documents: Sequence[Document], passages: Sequence[Passage], *,
        content_hash: str,
    ) -> None:  # fmt: skip
        """Writes all of a generation but its vectors. It is not visible to readers before `publish`."""
        by_document = groupby(passages, key=lambda passage: passage.filename)
        folded = {name: selection.folded_document(list(held)) for name, held in by_document}
        lexicon = {
            "passages": generation.lexicon.passages,
            "average_length": generation.lexicon.average_length,
        }
        async with self._pool.connection() as connection:
            await connection.execute(
                "INSERT INTO books (book_id, title) VALUES (%s, %s) ON CONFLICT DO NOTHING",
                (generation.book_id, title),
            )
            await connection.execute(
                "INSERT INTO generations (generation_id, book_id, embedder, dimension, calibration, lexicon, content_hash,"
                " language) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
                (
                    generation.generation_id, generation.book_id, generation.embedder, generation.dimension,
                    Jsonb(asdict(generation.calibration)), Jsonb(lexicon), content_hash,
                    generation.language,
                ),
            )  # fmt: skip
            await _copy(
                connection, "documents (generation_id, filename, title, url, sha256, folded)",
                [
                    (generation.generation_id, item.filename, item.title, item.url, item.sha256, folded.get(item.filename, ""))
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
        """Makes the generation live, in one transaction: the only change that readers see."""
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

    async def stale_generations(self, book_id: str) -> list[UUID]:
        """The generations that are no longer read, and those that were never finished."""
        async with self._pool.connection() as connection:
            cursor = await connection.execute(_STALE, (book_id, book_id, GENERATIONS_KEPT))
            return [row[0] for row in await cursor.fetchall()]

    async def delete_generation(self, generation: UUID) -> None:
        """Deletes a generation. Call it after the index has dropped it: this row is the only trace of what the index holds."""
        async with self._pool.connection() as connection:
            await connection.execute("DELETE FROM generations WHERE generation_id = %s", (generation,))

    async def embeddings(
        self, texts: Sequence[str], embedder: Embedder, embed: Embed, kind: str = ""
    ) -> list[Windows]:
        """Through the cache. New vectors are cached before they are used: a killed run does not pay for them twice."""
        names = [sha256(f"{kind}{text}".encode()).hexdigest() for text in texts]
        known = await self._cached_embeddings(names, embedder)
        new = {name: text for name, text in zip(names, texts, strict=True) if name not in known}
        if new:
            made = dict(zip(new, await embed(list(new.values())), strict=True))
            await self._cache_embeddings(made, embedder)
            known |= made
        return [known[name] for name in names]

    async def _cached_embeddings(self, hashes: list[str], embedder: Embedder) -> dict[str, Windows]:
        async with self._pool.connection() as connection:
            cursor = await connection.execute(
                "SELECT text_hash, windows FROM embeddings"
                " WHERE text_hash = ANY(%s) AND embedder = %s AND dimension = %s",
                (hashes, embedder.name, embedder.dimension),
                binary=True,
            )
            rows = await cursor.fetchall()
        return {name: np.frombuffer(found, "<f4").reshape(-1, embedder.dimension) for name, found in rows}

    async def _cache_embeddings(self, made: dict[str, Windows], embedder: Embedder) -> None:
        async with self._pool.connection() as connection, connection.cursor() as cursor:
            await cursor.executemany(
                "INSERT INTO embeddings (text_hash, embedder, dimension, windows) VALUES (%s, %s, %s, %b)"
                " ON CONFLICT DO NOTHING",
                [(name, embedder.name, embedder.dimension, found.astype("<f4").tobytes()) for name, found in made.items()],
            )  # fmt: skip


async def _claim(connection: psycopg.AsyncConnection, book_id: str) -> bool:
    """A session's name has 63 characters, as many as a book's id: so a hash of it."""
    name = f"affidavit ingest {sha256(book_id.encode()).hexdigest()[:32]}"
    cursor = await connection.execute("SELECT audit_claim(%s)", (name,))
    return await cursor.fetchone() == (True,)


async def _insert_passages(connection: psycopg.AsyncConnection, passages: Sequence[Passage]) -> None:
    """Idempotent: a passage with the same id is the same passage, because the id is a hash of all its content."""
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
