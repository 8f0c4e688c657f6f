"""The repository that an ingest writes to: books, documents, passages, generations and cached embeddings.

What readers see of a book changes in one statement (`publish`). The reading side is engine/retrieval/library.py.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, fields
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
from ingest.places import Placed
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


# In the order of the book; none of an edition from before documents had places.
_DOCUMENTS = """
SELECT filename, title, url, sha256, place, passages FROM documents
WHERE generation_id = %s AND place IS NOT NULL ORDER BY place, passages
"""

_KEEP_DOCUMENTS = """
INSERT INTO documents (generation_id, filename, title, url, sha256, folded, place, passages)
SELECT %s, filename, d.title, d.url, d.sha256, d.folded, kept.place, d.passages
FROM documents d JOIN unnest(%s::text[], %s::bigint[]) AS kept (filename, place) USING (filename) WHERE d.generation_id = %s
"""

# Runs of passages, each from a position of the other generation on and shifted as a whole.
_KEEP_PASSAGES = """
INSERT INTO generation_chunks (generation_id, chunk_id, position)
SELECT %s, c.chunk_id, c.position + run.shift
FROM unnest(%s::integer[], %s::integer[], %s::integer[]) AS run (first, last, shift)
JOIN generation_chunks c ON c.generation_id = %s AND c.position BETWEEN run.first AND run.last
"""

# The database judges as audit/proof/passage_id.py does, so that passages that did not change need not leave it. An id of
# before it may take for a wrong one, but never a wrong one for right: what it does not vouch for is read and judged there.
_VOUCHED = """
SELECT count(*), count(*) FILTER (WHERE
    c.chunk_index IS DISTINCT FROM g.position - kept.first
    OR c.parent_document_id <> encode(sha256(convert_to(jsonb_build_array(c.book_id, c.filename)::text, 'UTF8')), 'hex')
    OR c.content_hash <> encode(sha256(convert_to(
        jsonb_build_array(c.chapter, c.section, c.chunk_index, c.text)::text, 'UTF8')), 'hex')
    OR c.chunk_id IS DISTINCT FROM encode(sha256(convert_to(jsonb_build_array(
        c.book_id, c.filename, c.url, c.content_hash, c.start_sentence,
        (SELECT jsonb_agg(CASE WHEN jsonb_array_length(s) = 6 AND s ->> 5 = 'statement'
                               THEN s - 5 ELSE s END ORDER BY number)
         FROM jsonb_array_elements(c.sentences) WITH ORDINALITY AS each (s, number)),
        jsonb_build_array(c.module, c.difficulty, to_jsonb(c.tags)))::text, 'UTF8')), 'hex')
    OR c.start_page IS DISTINCT FROM c.sentences -> 0 ->> 4
    OR c.end_page IS DISTINCT FROM c.sentences -> -1 ->> 4
    OR c.end_sentence <> c.start_sentence + jsonb_array_length(c.sentences) - 1)
FROM unnest(%s::text[], %s::integer[]) AS kept (filename, first)
JOIN chunks c USING (filename) JOIN generation_chunks g USING (chunk_id) WHERE g.generation_id = %s
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
        """The documents of a generation, and where their passages are in it."""
        async with self._pool.connection() as connection:
            cursor = await connection.execute(_DOCUMENTS, (generation,))
            kept: list[Kept] = []
            first = 0
            for filename, title, url, digest, place, passages in await cursor.fetchall():
                kept.append(
                    Kept(Document(filename, title, url, digest, ()), range(first, first + passages), place)
                )
                first += passages
            return kept

    async def are_vouched(self, generation: UUID, kept: Sequence[Kept]) -> bool:
        """Whether the database vouches for all passages of these documents, in their positions."""
        names, firsts = [item.filename for item in kept], [item.positions.start for item in kept]
        async with self._pool.connection() as connection:
            try:
                cursor = await connection.execute(_VOUCHED, (names, firsts, generation))
            except psycopg.DataError:  # not even of a passage's form
                return False
            return await cursor.fetchone() == (sum(len(item.positions) for item in kept), 0)

    async def passage_ids(self, generation: UUID, step: int = 1) -> list[str]:
        """Of all its passages in order, or of every so many one."""
        async with self._pool.connection() as connection:
            cursor = await connection.execute(
                "SELECT chunk_id FROM generation_chunks WHERE generation_id = %s AND position %% %s = 0 ORDER BY position",
                (generation, step),
            )
            return [row[0] for row in await cursor.fetchall()]

    async def spread(self, generation: UUID, step: int) -> list[Passage]:
        """Every so many passages one, in order."""
        names = await self.passage_ids(generation, step)
        found = await self.passages(names)
        return [found[name] for name in names]

    async def places(self, generation: UUID) -> dict[str, int | None]:
        """Of its documents, by their names; None in an edition from before there were places."""
        async with self._pool.connection() as connection:
            cursor = await connection.execute(
                "SELECT filename, place FROM documents WHERE generation_id = %s", (generation,)
            )
            return dict(await cursor.fetchall())

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
        self, generation: Generation, title: str, documents: Sequence[Placed], passages: Iterable[Passage], *,
        content_hash: str, reading: str | None = None, of: UUID | None = None,
    ) -> None:  # fmt: skip
        """Writes all of a generation but its vectors. It is not visible to readers before `publish`.

        Kept documents are taken from the generation `of`; the passages are those of all others.
        """
        lexicon = {
            field.name: getattr(generation.lexicon, field.name)
            for field in fields(generation.lexicon)
            if field.name != "terms"
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
            await _keep(connection, generation.generation_id, of, documents)
            await connection.execute("CREATE TEMPORARY TABLE new_chunks (LIKE chunks) ON COMMIT DROP")
            new = {item.document.filename: item for item in documents if item.kept is None}
            firsts = {name: item.positions.start for name, item in new.items()}
            for some in _whole_documents(passages):
                folded = await asyncio.to_thread(_folded, some)
                found = [(new.pop(name), text) for name, text in folded.items()]
                await _copy_documents(connection, generation.generation_id, found)
                await _copy_passages(connection, some)
                await _copy_positions(connection, generation.generation_id, some, firsts)
            without_text = [(item, "") for item in new.values()]
            await _copy_documents(connection, generation.generation_id, without_text)
            await _copy(
                connection, "generation_terms (generation_id, term, term_id, idf, passages)",
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


async def _keep(
    connection: psycopg.AsyncConnection, generation: UUID, of: UUID | None, documents: Sequence[Placed]
) -> None:
    """The documents and passages that another generation has."""
    kept = [(item, item.kept) for item in documents if item.kept is not None]
    names, places = [item.document.filename for item, _ in kept], [item.place for item, _ in kept]
    await connection.execute(_KEEP_DOCUMENTS, (generation, names, places, of))
    runs = _runs([(held, item.positions.start - held.start) for item, held in kept])
    firsts, lasts, shifts = ([run[part] for run in runs] for part in range(3))
    await connection.execute(_KEEP_PASSAGES, (generation, firsts, lasts, shifts, of))


def _runs(kept: Sequence[tuple[range, int]]) -> list[tuple[int, int, int]]:
    """First, last and shift of what is moved as one."""
    runs: list[tuple[int, int, int]] = []
    for held, shift in kept:
        if not held:
            continue
        if runs and runs[-1][1:] == (held.start - 1, shift):
            runs[-1] = (runs[-1][0], held.stop - 1, shift)
        else:
            runs.append((held.start, held.stop - 1, shift))
    return runs


async def _copy_documents(
    connection: psycopg.AsyncConnection, generation: UUID, found: Iterable[tuple[Placed, str]]
) -> None:
    rows = ((item.document, item.place, len(item.positions), folded) for item, folded in found)
    await _copy(
        connection, "documents (generation_id, filename, title, url, sha256, place, passages, folded)",
        ((generation, made.filename, made.title, made.url, made.sha256, *rest) for made, *rest in rows),
    )  # fmt: skip


async def _copy_passages(connection: psycopg.AsyncConnection, passages: Sequence[Passage]) -> None:
    """Idempotent: a passage with the same id is the same passage, because the id is a hash of all its content, and what was
    changed since is restored before."""
    await _copy(connection, f"new_chunks ({PASSAGE_COLUMNS})", map(_columns, passages))
    await connection.execute(
        f"INSERT INTO chunks ({PASSAGE_COLUMNS}) SELECT {PASSAGE_COLUMNS} FROM new_chunks ON CONFLICT DO NOTHING"  # noqa: S608
    )
    await connection.execute("TRUNCATE new_chunks")


async def _copy_positions(
    connection: psycopg.AsyncConnection, generation: UUID, passages: Sequence[Passage], firsts: dict[str, int]
) -> None:
    await _copy(
        connection, "generation_chunks (generation_id, chunk_id, position)",
        ((generation, item.chunk_id, firsts[item.filename] + item.chunk_index) for item in passages),
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
