"""The library's tables: a generation is seen whole or not at all, and a passage stays as long as it may be cited."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from engine.errors import DatabaseUnavailableError, UnknownBookError
from engine.models import Generation, Passage
from engine.retrieval import calibrate, lexical
from engine.retrieval.library import LiveContent
from engine.storage.database import Database
from engine.wiring import open_registry
from ingest import split
from ingest.places import placed
from ingest.read import read
from ingest.read.document import Document
from ingest.registry import Registry
from tests.databases import migrated_database

PAGE = b"""---
title: "Gehen \xf0\x9f\x9a\xb6"
module: 7
difficulty: advanced
tags: [zmp, "\xc3\xa4\\"b", "{c,d}"]
---
# Walking

A biped falls all the time. It catches itself with every step.

## The zero moment point {#zmp}

The point lies inside the foot. Else the foot tips over its edge.

| Name | Meaning |
|---|---|
| ZMP | where the ground pushes |
"""


@pytest.fixture(scope="module")
def shelf(database: Database) -> Iterator[Database]:
    """A library of its own in the running server."""
    with migrated_database(database) as made:
        yield made


@pytest.fixture(scope="module")
async def registry(shelf: Database) -> AsyncIterator[Registry]:
    async with open_registry(shelf) as opened:
        yield opened


@pytest.fixture
def book() -> str:
    return f"book-{uuid4().hex[:8]}"


def page(book: str, content: bytes = PAGE) -> tuple[Document, list[Passage]]:
    document = read(content, PurePosixPath("part/01-walking.md"))
    return document, split.passages(document, book, split.Size(12, 0.2, 6), lambda text: len(text.split()))


def generation(book: str, passages: Sequence[Passage]) -> Generation:
    return Generation(
        generation_id=uuid4(),
        book_id=book,
        embedder="tests",
        dimension=3,
        calibration=calibrate.shipped("tests", 384, ((0.0, 0.0), (1 / 3, 0.6), (1.0, 1.0))),
        lexicon=lexical.lexicon([lexical.words(passage.text) for passage in passages]),
    )


async def begun(registry: Registry, book: str, content: bytes = PAGE, title: str = "Walking") -> Generation:
    document, passages = page(book, content)
    made = generation(book, passages)
    await registry.begin(
        made, title, placed([(document, len(passages))], {}), passages, content_hash=document.sha256
    )
    return made


async def published(
    registry: Registry, book: str, content: bytes = PAGE, title: str = "Walking"
) -> Generation:
    made = await begun(registry, book, content, title)
    await registry.publish(made, title, "0" * 64)
    return made


async def test_an_unknown_book_is_unknown(registry: Registry, book: str) -> None:
    with pytest.raises(UnknownBookError):
        await registry.live(book)


# Seen red with `live_generation` set by `begin`.
async def test_a_book_that_was_never_published_is_unknown(registry: Registry, book: str) -> None:
    await begun(registry, book)
    with pytest.raises(UnknownBookError):
        await registry.live(book)
    assert await registry.live_content(book) == LiveContent()
    (line,) = (line for line in await registry.books() if line.book_id == book)
    assert (line.generation, line.published_at, line.passages) == (None, None, 0)


async def test_a_generation_is_read_as_it_was_written(registry: Registry, shelf: Database, book: str) -> None:
    made = await published(registry, book)
    assert await registry.live(book) == made
    async with open_registry(shelf) as another:
        assert await another.live(book) == made


async def test_passages_are_read_as_they_were_written(registry: Registry, book: str) -> None:
    _, passages = page(book)
    await published(registry, book)
    assert len(passages) > 2
    found = await registry.passages([passage.chunk_id for passage in passages])
    assert found == {passage.chunk_id: passage for passage in passages}


async def test_unknown_passages_are_left_out(registry: Registry, book: str) -> None:
    _, passages = page(book)
    await published(registry, book)
    known = passages[0].chunk_id
    assert set(await registry.passages([known, "f" * 64, "", "'; --", "\N{ROBOT FACE}"])) == {known}
    assert await registry.passages([]) == {}


async def test_a_book_is_listed_with_what_readers_see(registry: Registry, book: str) -> None:
    made = await published(registry, book)
    await begun(registry, book, PAGE + b"\nOne more sentence.\n")
    (line,) = (line for line in await registry.books() if line.book_id == book)
    assert (line.title, line.generation, line.embedder) == ("Walking", made.generation_id, "tests")
    assert (line.documents, line.passages) == (1, len(page(book)[1]))
    assert (line.calibration, line.calibration_kind) == (made.calibration.calibration_id, "shipped")
    assert line.published_at is not None


async def test_a_begun_generation_changes_nothing_that_readers_see(registry: Registry, book: str) -> None:
    made = await published(registry, book)
    await begun(registry, book, PAGE + b"\nOne more sentence.\n", title="Running")
    assert await registry.live(book) == made
    (line,) = (line for line in await registry.books() if line.book_id == book)
    assert line.title == "Walking"


# Seen red with the old generation withdrawn in a transaction of its own before the new one was set.
async def test_readers_see_the_old_or_the_new_generation_and_nothing_between(
    registry: Registry, shelf: Database, book: str
) -> None:
    old = await published(registry, book)
    new = await begun(registry, book, PAGE + b"\nOne more sentence.\n")
    seen: list[UUID] = []
    is_reading = asyncio.Event()
    async with open_registry(shelf) as reader:

        async def read_on() -> None:
            while not seen or seen[-1] != new.generation_id:
                seen.append((await reader.live(book)).generation_id)
                is_reading.set()

        reading = asyncio.ensure_future(read_on())
        await is_reading.wait()
        await registry.publish(new, "Walking", "0" * 64)
        assert (await reader.live(book)).generation_id == new.generation_id
        async with asyncio.timeout(5):
            await reading
    assert set(seen) == {old.generation_id, new.generation_id}
    assert seen.count(new.generation_id) == 1


async def test_a_passage_outlives_its_generation(registry: Registry, book: str) -> None:
    """A record may cite it for years, and `GET /v1/chunks/{id}` must still show it."""
    _, passages = page(book)
    await published(registry, book)
    await published(registry, book, b"# Another\n\nNothing of the old page is left here.\n")
    found = await registry.passages([passage.chunk_id for passage in passages])
    assert len(found) == len(passages)
    live = await registry.live_chunk_ids(book)
    assert live.isdisjoint(found)


async def test_the_same_page_in_two_books_is_two_sets_of_passages(registry: Registry, book: str) -> None:
    other = f"{book}-2"
    first, second = await published(registry, book), await published(registry, other)
    assert first.generation_id != second.generation_id
    assert (await registry.live_chunk_ids(book)).isdisjoint(await registry.live_chunk_ids(other))


@contextmanager
def shut(shelf: Database) -> Iterator[None]:
    """The database is gone for everybody, until the end of the block."""
    name = sql.Identifier(str(conninfo_to_dict(shelf.url)["dbname"]))
    with psycopg.connect(make_conninfo(shelf.url, dbname="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false").format(name))
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
            (conninfo_to_dict(shelf.url)["dbname"],),
        )
        try:
            yield
        finally:
            connection.execute(sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS true").format(name))


@pytest.mark.campaign
async def test_a_database_that_is_gone_is_said_to_be_gone_and_may_come_back(
    shelf: Database, book: str
) -> None:
    async with open_registry(shelf) as reader:
        made = await published(reader, book)
        with shut(shelf):
            for _ in range(3):
                with pytest.raises(DatabaseUnavailableError):
                    await reader.live(book)
                with pytest.raises(DatabaseUnavailableError):
                    await reader.passages(["f" * 64])
        async with asyncio.timeout(10):
            while True:
                try:
                    assert await reader.live(book) == made
                    break
                except DatabaseUnavailableError:
                    continue
