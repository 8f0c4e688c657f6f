"""Which books, documents, passages and generations exist. What readers see of a book changes in one statement."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from engine import calibrate
from engine.errors import DatabaseUnavailableError, UnknownBookError
from engine.models import Generation, Lexicon, Passage, Sentence, Term
from ingest.read.document import Document

_LIVE = """
SELECT g.generation_id, g.book_id, g.embedder, g.dimension, g.calibration, g.lexicon
FROM books b JOIN generations g ON g.generation_id = b.live_generation WHERE b.book_id = %s
"""

_PASSAGE_COLUMNS = (
    "chunk_id, book_id, parent_document_id, filename, chapter, section, chunk_index, text, sentences, start_page,"
    " end_page, start_sentence, end_sentence, url, content_hash, module, difficulty, tags"
)

_BOOKS = """
SELECT b.book_id, b.title, g.generation_id, g.embedder, g.calibration ->> 'calibration_id', g.published_at,
       (SELECT count(*) FROM generation_chunks c WHERE c.generation_id = g.generation_id),
       (SELECT count(*) FROM documents d WHERE d.generation_id = g.generation_id)
FROM books b LEFT JOIN generations g ON g.generation_id = b.live_generation ORDER BY b.book_id
"""


@dataclass(frozen=True, slots=True)
class Book:
    """A line of `affidavit books`."""

    book_id: str
    title: str
    generation: UUID | None
    embedder: str | None
    calibration: str | None
    published_at: datetime | None
    passages: int
    documents: int


class Registry:
    """The library's tables."""

    def __init__(self, pool: AsyncConnectionPool) -> None:
        self._pool = pool
        self._known: dict[UUID, Generation] = {}

    async def live(self, book_id: str) -> Generation:
        """The generation in force. Its vocabulary is read once: a generation never changes."""
        try:
            async with self._pool.connection() as connection:
                row = await (await connection.execute(_LIVE, (book_id,))).fetchone()
                if row is None:
                    raise UnknownBookError
                if row[0] not in self._known:
                    self._known[row[0]] = await _generation(connection, row)
                return self._known[row[0]]
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

    async def books(self) -> list[Book]:
        async with self._pool.connection() as connection:
            return [Book(*row) for row in await (await connection.execute(_BOOKS)).fetchall()]

    async def live_content(self, book_id: str) -> tuple[str, set[str]]:
        """The content hash and the passages of the generation in force; empty if there is none."""
        async with self._pool.connection() as connection:
            cursor = await connection.execute(
                "SELECT g.content_hash, array(SELECT chunk_id FROM generation_chunks c"
                "       WHERE c.generation_id = g.generation_id)"
                " FROM books b JOIN generations g ON g.generation_id = b.live_generation WHERE b.book_id = %s",
                (book_id,),
            )
            row = await cursor.fetchone()
        return (row[0], set(row[1])) if row else ("", set())

    async def begin(
        self, generation: Generation, title: str, documents: Sequence[Document], passages: Sequence[Passage], *,
        content_hash: str,
    ) -> None:  # fmt: skip
        """Write everything of a generation but its vectors. Nobody sees it yet."""
        async with self._pool.connection() as connection:
            await connection.execute(
                "INSERT INTO books (book_id, title) VALUES (%s, %s) ON CONFLICT (book_id) DO UPDATE SET title = %s",
                (generation.book_id, title, title),
            )
            await _insert_generation(connection, generation, content_hash)
            await _insert_documents(connection, generation.generation_id, documents)
            await _insert_passages(connection, generation.generation_id, passages)
            await _insert_terms(connection, generation.generation_id, generation.lexicon.terms)

    async def publish(self, generation: Generation) -> None:
        """The one atomic switch."""
        async with self._pool.connection() as connection:
            await connection.execute(
                "UPDATE generations SET state = 'ready', published_at = now() WHERE generation_id = %s",
                (generation.generation_id,),
            )
            await connection.execute(
                "UPDATE books SET live_generation = %s WHERE book_id = %s",
                (generation.generation_id, generation.book_id),
            )


async def _generation(connection: psycopg.AsyncConnection, row: tuple[object, ...]) -> Generation:
    generation_id, book_id, embedder, dimension, calibration, lexicon = row
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
    fields = dict(zip(_PASSAGE_COLUMNS.replace(" ", "").split(","), row, strict=True))
    sentences = fields["sentences"]
    assert isinstance(sentences, list)
    fields["sentences"] = tuple(Sentence(*sentence) for sentence in sentences)
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


async def _insert_documents(
    connection: psycopg.AsyncConnection, generation_id: UUID, documents: Sequence[Document]
) -> None:
    async with connection.cursor() as cursor:
        await cursor.executemany(
            "INSERT INTO documents (generation_id, filename, title, url, sha256) VALUES (%s, %s, %s, %s, %s)",
            [(generation_id, item.filename, item.title, item.url, item.sha256) for item in documents],
        )


async def _insert_passages(
    connection: psycopg.AsyncConnection, generation_id: UUID, passages: Sequence[Passage]
) -> None:
    """A passage that is there already is the same passage: its id is the hash of what it says and where."""
    names = _PASSAGE_COLUMNS.replace(" ", "").split(",")
    rows = [
        [Jsonb(item.sentences) if name == "sentences" else _listed(getattr(item, name)) for name in names]
        for item in passages
    ]
    async with connection.cursor() as cursor:
        await cursor.executemany(
            f"INSERT INTO chunks ({_PASSAGE_COLUMNS}) VALUES ({', '.join(['%s'] * len(names))})"  # noqa: S608
            " ON CONFLICT DO NOTHING",
            rows,
        )
        await cursor.executemany(
            "INSERT INTO generation_chunks (generation_id, chunk_id, position) VALUES (%s, %s, %s)",
            [(generation_id, item.chunk_id, position) for position, item in enumerate(passages)],
        )


async def _insert_terms(
    connection: psycopg.AsyncConnection, generation_id: UUID, terms: Mapping[str, Term]
) -> None:
    copy = "COPY generation_terms (generation_id, term, term_id, idf) FROM STDIN"
    async with connection.cursor() as cursor, cursor.copy(copy) as rows:
        for word, term in terms.items():
            await rows.write_row((generation_id, word, term.term_id, term.idf))


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
