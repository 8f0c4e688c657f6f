"""The repository that an ingest writes to: books, documents, passages, generations and cached embeddings.

What readers see of a book changes in one statement (`publish`). The reading side is engine/retrieval/library.py.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import groupby
from typing import Any
from uuid import UUID

import numpy as np
import psycopg
from psycopg.types.json import Jsonb

from engine.errors import ConfigurationError
from engine.models import Generation, Passage, Windows
from engine.ports import Embedder
from engine.retrieval import calibrate, selection
from engine.retrieval.library import PASSAGE_COLUMNS, PASSAGE_NAMES, StoredLibrary, as_stored, damaged_among
from ingest.read.document import Document, Kept

EMBEDDED = 96  # texts that are embedded and cached at once: what an embedding vendor takes in one call
COPIED = 2000  # passages that are written at once
CHECKED = 500  # stored passages that are read at once, to be checked: some megabytes
LOCK_PAUSE_S = 0.2  # between two looks whether the other ingest of the book is over
GENERATIONS_KEPT = 2  # the live one, and the one before: requests that began before the switch still read it

# All generations of a book but the last ones published. An unfinished one is abandoned: only one ingest of a book runs.
_STALE = """
SELECT generation_id FROM generations WHERE book_id = %s AND generation_id NOT IN (
    SELECT generation_id FROM generations WHERE book_id = %s AND published_at IS NOT NULL
    ORDER BY published_at DESC LIMIT %s)
"""


# A passage that occurs twice in a book is one point.
_LIVE_INDEXES = """
SELECT b.book_id, g.generation_id, g.index_digest, extract(epoch FROM clock_timestamp() - g.index_checked_at)::float,
       (SELECT count(DISTINCT chunk_id) FROM generation_chunks c WHERE c.generation_id = g.generation_id)
FROM books b JOIN generations g ON g.generation_id = b.live_generation
WHERE %s::text IS NULL OR b.book_id = %s ORDER BY b.book_id
"""


# The passages of a document are neighbours.
_DOCUMENTS = """
SELECT d.filename, d.title, d.url, d.sha256, coalesce(held.first, 0), coalesce(held.last + 1, 0)
FROM documents d LEFT JOIN (
    SELECT c.filename, min(g.position) AS first, max(g.position) AS last
    FROM generation_chunks g JOIN chunks c USING (chunk_id) WHERE g.generation_id = %s GROUP BY c.filename
) AS held USING (filename)
WHERE d.generation_id = %s ORDER BY held.first
"""

_KEEP_DOCUMENTS = """
INSERT INTO documents (generation_id, filename, title, url, sha256, folded)
SELECT %s, filename, title, url, sha256, folded FROM documents WHERE generation_id = %s AND filename = ANY(%s)
"""

_VALUES = ", ".join(["%s"] * len(PASSAGE_NAMES))
_RESTORE = f"UPDATE chunks SET ({PASSAGE_COLUMNS}) = ({_VALUES}) WHERE chunk_id = %s"  # noqa: S608  our own names
_OF_GENERATION = "SELECT DISTINCT chunk_id FROM generation_chunks WHERE generation_id = %s ORDER BY chunk_id"


@dataclass(frozen=True, slots=True)
class LiveIndex:
    """What the index of a published book must hold."""

    book_id: str
    generation_id: UUID
    digest: str | None
    checked_s_ago: float | None
    passages: int


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

    def lock_book(self, book_id: str) -> AbstractAsyncContextManager[None]:
        """One ingest of a book at a time."""
        return self._locked(f"ingest {book_id}")

    def lock_index(self, generation: UUID) -> AbstractAsyncContextManager[None]:
        """One repair of an index at a time, whichever process or machine it is in."""
        return self._locked(f"index {generation}")

    @asynccontextmanager
    async def _locked(self, name: str) -> AsyncIterator[None]:
        """The next one waits. A killed process gives its claim up with its connection."""
        async with self._pool.connection() as connection:
            usual = connection.autocommit
            await connection.set_autocommit(True)
            while not await _claim(connection, name):  # noqa: ASYNC110  another process has it
                await asyncio.sleep(LOCK_PAUSE_S)
            try:
                yield
            finally:
                await connection.execute("RESET application_name")
                await connection.set_autocommit(usual)

    async def live_indexes(self, book_id: str | None = None) -> list[LiveIndex]:
        """Of the published books, or of one."""
        async with self._pool.connection() as connection:
            cursor = await connection.execute(_LIVE_INDEXES, (book_id, book_id))
            return [LiveIndex(*row) for row in await cursor.fetchall()]

    async def live_index(self, book_id: str) -> LiveIndex | None:
        return next(iter(await self.live_indexes(book_id)), None)

    async def note_index(self, generation: UUID, digest: str) -> None:
        """What the index holds was read as a whole just now."""
        async with self._pool.connection() as connection:
            await connection.execute(
                "UPDATE generations SET index_digest = %s, index_checked_at = clock_timestamp() WHERE generation_id = %s",
                (digest, generation),
            )

    async def damaged_passages(self, generation: UUID) -> list[str]:
        """The ids of the generation's passages that are not as they were ingested."""
        async with self._pool.connection() as connection:
            rows = await (await connection.execute(_OF_GENERATION, (generation,))).fetchall()
        return await self.damaged_of([row[0] for row in rows])

    async def damaged_of(self, chunk_ids: Sequence[str]) -> list[str]:
        """Those of them that are stored, but not as they were ingested."""
        found: list[str] = []
        async with self._pool.connection() as connection:
            for start in range(0, len(chunk_ids), CHECKED):
                cursor = await connection.execute(
                    f"SELECT {PASSAGE_COLUMNS} FROM chunks WHERE chunk_id = ANY(%s)",  # noqa: S608  our own names
                    (list(chunk_ids[start : start + CHECKED]),),
                )
                found += damaged_among(map(as_stored, await cursor.fetchall()))
        return found

    async def kept_documents(self, generation: UUID) -> list[Kept]:
        """The documents of a generation, and the places of their passages in it."""
        async with self._pool.connection() as connection:
            cursor = await connection.execute(_DOCUMENTS, (generation, generation))
            return [
                Kept(Document(filename, title, url, digest, ()), range(first, end))
                for filename, title, url, digest, first, end in await cursor.fetchall()
            ]

    async def note_reading(self, generation: UUID, reading: str) -> None:
        """Its files were read in this way just now, and had the same passages."""
        async with self._pool.connection() as connection:
            await connection.execute(
                "UPDATE generations SET reading = %s WHERE generation_id = %s", (reading, generation)
            )

    async def count_among(self, generation: UUID, chunk_ids: Sequence[str]) -> int:
        """How many of these passages the generation has."""
        async with self._pool.connection() as connection:
            cursor = await connection.execute(
                "SELECT count(*) FROM generation_chunks WHERE generation_id = %s AND chunk_id = ANY(%s)",
                (generation, list(chunk_ids)),
            )
            (found,) = await cursor.fetchone() or (0,)
            return int(found)

    async def restore(self, passages: Sequence[Passage]) -> None:
        """Writes these again, under the ids that they have. Needs the rights of the database's owner."""
        try:
            async with self._pool.connection() as connection, connection.cursor() as cursor:
                await cursor.execute("SET LOCAL ROLE affidavit_owner")
                await cursor.executemany(_RESTORE, [[*_columns(item), item.chunk_id] for item in passages])
        except psycopg.errors.InsufficientPrivilege as failure:
            raise ConfigurationError(
                f"{len(passages)} passages in the database are not as they were ingested, and this login may not write them"
                " again: run the ingest with the login that migrates the database."
            ) from failure

    async def begin(
        self, generation: Generation, title: str, documents: Iterable[Document], passages: Iterable[Passage], *,
        content_hash: str, reading: str | None = None, kept: frozenset[str] = frozenset(), of: UUID | None = None,
    ) -> None:  # fmt: skip
        """Writes all of a generation but its vectors. It is not visible to readers before `publish`.

        The documents with the names in `kept` are those `of` another generation, with all their passages.
        """
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
                " language, reading) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
                (
                    generation.generation_id, generation.book_id, generation.embedder, generation.dimension,
                    Jsonb(asdict(generation.calibration)), Jsonb(lexicon), content_hash,
                    generation.language, reading,
                ),
            )  # fmt: skip
            await connection.execute(_KEEP_DOCUMENTS, (generation.generation_id, of, list(kept)))
            await connection.execute("CREATE TEMPORARY TABLE new_chunks (LIKE chunks) ON COMMIT DROP")
            waiting = {document.filename: document for document in documents if document.filename not in kept}
            start = 0
            for some in _whole_documents(passages):
                new = [passage for passage in some if passage.filename not in kept]
                folded = await asyncio.to_thread(_folded, new)
                found = [(waiting.pop(name), text) for name, text in folded.items()]
                await _copy_documents(connection, generation.generation_id, found)
                await _copy_passages(connection, new)
                await _copy_places(connection, generation.generation_id, some, start)
                start += len(some)
            without_text = [(document, "") for document in waiting.values()]
            await _copy_documents(connection, generation.generation_id, without_text)
            await _copy(
                connection, "generation_terms (generation_id, term, term_id, idf)",
                ((generation.generation_id, word, *term) for word, term in generation.lexicon.terms.items()),
            )  # fmt: skip

    async def publish(self, generation: Generation, title: str, index_digest: str) -> None:
        """Makes the generation live, in one transaction: the only change that readers see."""
        async with self._pool.connection() as connection:
            await connection.execute(
                "UPDATE generations SET state = 'ready', published_at = clock_timestamp(), calibration = %s,"
                " index_digest = %s, index_checked_at = clock_timestamp() WHERE generation_id = %s",
                (Jsonb(asdict(generation.calibration)), index_digest, generation.generation_id),
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
        names = [_text_hash(f"{kind}{text}") for text in texts]
        known = await self._cached_embeddings(names, embedder.name, embedder.dimension)
        new = {name: text for name, text in zip(names, texts, strict=True) if name not in known}
        by_length = sorted(new.items(), key=lambda item: len(item[1]))
        batches = [dict(by_length[start : start + EMBEDDED]) for start in range(0, len(by_length), EMBEDDED)]
        for made in await _all_of([self._embedded(batch, embedder, embed) for batch in batches]):
            known |= made
        return [known[name] for name in names]

    async def _embedded(self, texts: dict[str, str], embedder: Embedder, embed: Embed) -> dict[str, Windows]:
        made = dict(zip(texts, await embed(list(texts.values())), strict=True))
        await self._cache_embeddings(made, embedder)
        return made

    async def stored_windows(
        self, texts: Sequence[str], embedder: str, dimension: int
    ) -> list[Windows | None]:
        """Only what is cached already; None for each text that is not."""
        names = [_text_hash(text) for text in texts]
        known = await self._cached_embeddings(names, embedder, dimension)
        return [known.get(name) for name in names]

    async def _cached_embeddings(
        self, hashes: list[str], embedder: str, dimension: int
    ) -> dict[str, Windows]:
        async with self._pool.connection() as connection:
            cursor = await connection.execute(
                "SELECT text_hash, windows FROM embeddings"
                " WHERE text_hash = ANY(%s) AND embedder = %s AND dimension = %s",
                (hashes, embedder, dimension),
                binary=True,
            )
            rows = await cursor.fetchall()
        return {name: np.frombuffer(found, "<f4").reshape(-1, dimension) for name, found in rows}

    async def _cache_embeddings(self, made: dict[str, Windows], embedder: Embedder) -> None:
        async with self._pool.connection() as connection:
            await connection.execute(
                "INSERT INTO embeddings (text_hash, embedder, dimension, windows)"
                " SELECT text_hash, %s, %s, windows FROM unnest(%s::text[], %b::bytea[]) AS made (text_hash, windows)"
                " ON CONFLICT DO NOTHING",
                (
                    embedder.name, embedder.dimension,
                    list(made), [found.astype("<f4").tobytes() for found in made.values()],
                ),
            )  # fmt: skip


async def _all_of(work: Sequence[Coroutine[Any, Any, dict[str, Windows]]]) -> list[dict[str, Windows]]:
    """All at once. If one fails, the others are cancelled and have ended before it is raised."""
    tasks = list(map(asyncio.ensure_future, work))
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _claim(connection: psycopg.AsyncConnection, name: str) -> bool:
    """A session's name has 63 characters, as many as a book's id: so a hash of it."""
    kind, _, of = name.partition(" ")
    claimed = f"affidavit {kind} {sha256(of.encode()).hexdigest()[:32]}"
    cursor = await connection.execute("SELECT audit_claim(%s)", (claimed,))
    return await cursor.fetchone() == (True,)


def _text_hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _whole_documents(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    """Some thousand passages at a time, and none without the others of its document."""
    some: list[Passage] = []
    for _, held in groupby(passages, key=lambda passage: passage.filename):
        some.extend(held)
        if len(some) >= COPIED:
            yield some
            some = []
    if some:
        yield some


def _folded(passages: Sequence[Passage]) -> dict[str, str]:
    by_document = groupby(passages, key=lambda passage: passage.filename)
    return {name: selection.folded_document(list(held)) for name, held in by_document}


async def _copy_documents(
    connection: psycopg.AsyncConnection, generation: UUID, found: Iterable[tuple[Document, str]]
) -> None:
    await _copy(
        connection, "documents (generation_id, filename, title, url, sha256, folded)",
        ((generation, item.filename, item.title, item.url, item.sha256, folded) for item, folded in found),
    )  # fmt: skip


async def _copy_passages(connection: psycopg.AsyncConnection, passages: Sequence[Passage]) -> None:
    """Idempotent: a passage with the same id is the same passage, because the id is a hash of all its content, and what was
    changed since is restored before."""
    await _copy(connection, f"new_chunks ({PASSAGE_COLUMNS})", map(_columns, passages))
    await connection.execute(
        f"INSERT INTO chunks ({PASSAGE_COLUMNS}) SELECT {PASSAGE_COLUMNS} FROM new_chunks ON CONFLICT DO NOTHING"  # noqa: S608
    )
    await connection.execute("TRUNCATE new_chunks")


async def _copy_places(
    connection: psycopg.AsyncConnection, generation: UUID, passages: Sequence[Passage], start: int
) -> None:
    await _copy(
        connection, "generation_chunks (generation_id, chunk_id, position)",
        ((generation, item.chunk_id, place) for place, item in enumerate(passages, start)),
    )  # fmt: skip


def _columns(passage: Passage) -> list[object]:
    return [
        Jsonb(passage.sentences) if name == "sentences" else _listed(getattr(passage, name))
        for name in PASSAGE_NAMES
    ]


async def _copy(connection: psycopg.AsyncConnection, into: str, rows: Iterable[Sequence[object]]) -> None:
    async with connection.cursor() as cursor, cursor.copy(f"COPY {into} FROM STDIN".encode()) as copy:
        for row in rows:
            await copy.write_row(row)


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
