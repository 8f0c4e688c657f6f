"""A book goes in as a whole: what did not change stays, what is bad is named, and readers notice one switch."""

import asyncio
import gc
import os
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import psycopg
import pytest

from engine import wiring
from engine.answer import Asked
from engine.errors import EmbedderFailedError, IndexUnavailableError, UnknownBookError
from engine.house import House
from engine.models import Answer, Client, Filters, Passage, Point, Question, Released, Windows
from engine.ports import Index, NullExchange
from engine.providers import embedded
from engine.providers.minilm import MiniLm
from engine.settings import Settings
from engine.storage.database import Database
from ingest import pipeline, split
from ingest.pipeline import Ingest, IngestResult
from ingest.read.document import Document, Piece
from ingest.read.sandbox import Sandbox
from ingest.registry import EMBEDDED, Registry
from tests.databases import data_of_its_own

OPERATOR = Client("tests", None, frozenset({"ask"}))
SENSORS, BALANCE = "03-sensors-and-state-estimation.md", "07-balance-and-walking.md"
QUESTION = "What does an inertial measurement unit measure?"
BEGUN_S = 60.0  # the first passages of a book are embedded before its index begins


@pytest.fixture(scope="module")
def shelf_settings(database: Database) -> Iterator[Settings]:
    """A database of its own in the running server, and an index of its own."""
    with data_of_its_own(database) as made:
        yield made


@pytest.fixture(scope="module")
async def shelf(shelf_settings: Settings) -> AsyncIterator[Database]:
    async with wiring.open_database(shelf_settings, lambda _: None) as opened:
        opened.migrate()
        await wiring.make_months_ahead(opened, wiring.now().date())
        yield opened


@pytest.fixture(scope="module")
async def readers(shelf_settings: Settings, shelf: Database) -> AsyncIterator[House]:
    """An engine that serves while books go in."""
    async with wiring.open_house(shelf_settings, shelf) as opened:
        yield opened


@pytest.fixture(scope="module")
async def ingest(shelf_settings: Settings, shelf: Database) -> AsyncIterator[Ingest]:
    async with wiring.open_ingest(shelf_settings, shelf, lambda *_: None) as opened:
        yield opened


@pytest.fixture
def book() -> str:
    return f"book-{uuid4().hex[:8]}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two chapters of the sample book."""
    made = tmp_path / "book"
    made.mkdir()
    for name in (SENSORS, BALANCE):
        shutil.copy(wiring.SAMPLE_BOOK / name, made)
    return made


@pytest.fixture
def large(folder: Path) -> Path:
    """With 60 pages more that nobody has embedded before: it takes a second, and there is time to look."""
    for number in range(60):
        words = " ".join(uuid4().hex[:6] for _ in range(60))
        (folder / f"new-{number}.md").write_text(f"# Page {number}\n\nThis page is about {words}.\n")
    return folder


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two pages of a few sentences."""
    made = tmp_path / "small"
    made.mkdir()
    for name in ("imu", "foot"):
        (made / f"{name}.md").write_text(
            f"# About the {name}\n\nThe {name} is part of a robot. It is small.\n"
        )
    return made


def replaced(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


async def ask(house: House, book: str, text: str = QUESTION, filters: Filters | None = None) -> Answer:
    async def read() -> Question:
        return Question(text, book, house.top_k, filters=filters or Filters())

    return await house.engine.answer(Asked("test", "test", NullExchange(read), operator=OPERATOR))


async def edition_seen(house: House, book: str) -> None:
    """Readers may be answered from the last edition for a second more."""
    published = await house.library.live(book)
    async with asyncio.timeout(5):
        while (await house.engine.library.live(book)).generation_id != published.generation_id:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def cited(answer: Answer) -> set[str]:
    return (
        {item.filename for item in answer.outcome.excerpts} if isinstance(answer.outcome, Released) else set()
    )


async def live(house: House, book: str) -> str:
    return str((await house.library.live(book)).generation_id)


def assert_published(result: IngestResult, created: int | None = None) -> None:
    assert (result.errors, result.exit_code) == ([], 0)
    assert result.generation is not None
    assert created is None or result.chunks_created == created


# Seen red with the positions counted from 0 in every batch.
async def test_every_passage_is_indexed_with_its_place_in_the_book(
    ingest: Ingest, readers: House, folder: Path, book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "BATCH", 4)
    assert_published(await ingest.run([folder], book, "Title"))
    generation = await readers.library.live(book)
    search = await readers.engine.retriever.prepare(QUESTION, generation)
    hits = await readers.index.search(generation.generation_id, search.dense, search.terms, 100, Filters())
    in_order = [
        hit.chunk_id for hit in sorted(hits, key=lambda hit: -1 if hit.position is None else hit.position)
    ]
    passages = await readers.library.passages(in_order)
    places = [(passages[name].filename, passages[name].chunk_index) for name in in_order]
    assert len(places) > 2 * pipeline.BATCH
    assert places == sorted(places)
    assert len({hit.position for hit in hits}) == len(hits)


# Seen red with a random number in `_content_hash`.
async def test_an_unchanged_book_publishes_nothing_and_embeds_nothing(
    settings: Settings, database: Database, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def embed_passages(_: MiniLm, texts: Sequence[str]) -> list[Windows]:
        raise AssertionError(texts)

    monkeypatch.setattr(MiniLm, "embed_passages", embed_passages)
    before = await live(house, settings.books.default)
    async with wiring.open_ingest(settings, database, lambda *_: None) as pipeline:
        result = await pipeline.run([wiring.SAMPLE_BOOK], settings.books.default, wiring.SAMPLE_TITLE)
    assert (result.generation, result.chunks_created, result.chunks_removed) == (None, 0, 0)
    assert (result.files_processed, result.exit_code) == (10, 0)
    assert result.chunks_reused > 50
    assert await live(house, settings.books.default) == before


async def test_an_edited_file_touches_its_passages_only(
    ingest: Ingest, folder: Path, book: str, readers: House
) -> None:
    first = await ingest.run([folder], book, "Two chapters")
    assert_published(first)
    before = await ingest.registry.live_chunk_ids(book)
    word = "gyroscope"
    replaced(folder / SENSORS, word, "zyroscope")
    second = await ingest.run([folder], book, "Two chapters")
    assert_published(second)
    after = await ingest.registry.live_chunk_ids(book)
    new, gone = after - before, before - after
    assert 1 <= len(new) <= 3  # neighbours of a section share sentences
    assert second.chunks_created == second.chunks_removed == len(new) == len(gone)
    assert second.chunks_reused == first.chunks_created - len(gone)
    texts = await ingest.registry.passages(sorted(new))
    assert all("zyroscope" in passage.text for passage in texts.values())
    assert await live(readers, book) == second.generation


async def test_a_removed_file_is_no_longer_cited(
    ingest: Ingest, folder: Path, book: str, readers: House
) -> None:
    await ingest.run([folder], book, "Two chapters")
    assert cited(await ask(readers, book)) == {SENSORS}
    (folder / SENSORS).unlink()
    result = await ingest.run([folder], book, "One chapter")
    assert_published(result, created=0)
    assert result.chunks_removed > 0
    await edition_seen(readers, book)
    assert SENSORS not in cited(await ask(readers, book))
    (line,) = (line for line in await ingest.registry.books() if line.book_id == book)
    assert (line.documents, line.passages) == (1, result.chunks_reused)


async def test_a_book_as_it_once_was_can_be_published_again(
    ingest: Ingest, small: Path, book: str, readers: House
) -> None:
    first = await ingest.run([small], book, "Small")
    (small / "foot.md").rename(small / "foot.away")
    second = await ingest.run([small], book, "Small")
    (small / "foot.away").rename(small / "foot.md")
    third = await ingest.run([small], book, "Small")
    assert len({first.generation, second.generation, third.generation, None}) == 4
    assert (third.chunks_created, third.chunks_reused) == (1, 1)
    assert await readers.index.count(UUID(third.generation)) == 2


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("bad.md", b"# Fine until here\n\n\xff\xfe", "UTF-8"),
        ("bad.mdx", "# Umlaut \u00e4".encode("latin-1"), "UTF-8"),
        ("bad.md", b"---\ntitle: [\n---\n# Text\n", "front matter"),
        ("bad.md", b"---\n- a\n- b\n---\n# Text\n", "front matter"),
        ("bad.md", b"---\njust words\n---\n# Text\n", "front matter"),
    ],
)
async def test_a_bad_file_is_named_and_the_rest_goes_in(
    ingest: Ingest, small: Path, book: str, readers: House, name: str, content: bytes, reason: str
) -> None:
    (small / "deep").mkdir()
    (small / "deep" / name).write_bytes(content)
    result = await ingest.run([small], book, "Small")
    (error,) = result.errors
    assert error["file"] == f"deep/{name}"
    assert reason in error["error"]
    assert (result.exit_code, result.files_processed, result.chunks_created) == (1, 2, 2)
    assert await live(readers, book) == result.generation


@pytest.mark.parametrize(
    "front", ["tags: 5", "tags: sensors", "tags:\n  a: b", "module: three", "title: 2024-01-01"]
)
async def test_odd_front_matter_keeps_nobody_out(ingest: Ingest, small: Path, book: str, front: str) -> None:
    """An author's slip on one page: the page goes in or is named, and the others go in."""
    (small / "odd.md").write_text(f"---\n{front}\n---\n# Odd\n\nThis page has a slip in its front matter.\n")
    result = await ingest.run([small], book, "Small")
    assert result.files_processed + len(result.errors) == 3
    assert {error["file"] for error in result.errors} <= {"odd.md"}
    if front == "tags: sensors":
        passages = await ingest.registry.passages(sorted(await ingest.registry.live_chunk_ids(book)))
        assert {passage.tags for passage in passages.values()} <= {(), ("sensors",)}


async def test_a_file_that_leads_nowhere_is_named(ingest: Ingest, small: Path, book: str) -> None:
    (small / "gone.md").symlink_to(small / "never.was")
    result = await ingest.run([small], book, "Small")
    assert ([error["file"] for error in result.errors], result.chunks_created) == (["gone.md"], 2)


async def test_a_named_file_of_another_format_is_an_error_in_words(
    ingest: Ingest, small: Path, book: str
) -> None:
    (small / "notes.docx").write_text("These are notes.")
    result = await ingest.run([small / "imu.md", small / "notes.docx"], book, "Small")
    assert ([error["file"] for error in result.errors], result.exit_code) == (["notes.docx"], 1)
    assert result.chunks_created == 1


async def test_two_pages_of_the_same_name_are_an_error_in_words(
    ingest: Ingest, tmp_path: Path, book: str, readers: House
) -> None:
    """Two folders given, both with an `intro.md`: their passages could not be told apart."""
    for part in ("one", "two"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "intro.md").write_text(f"# Part {part}\n\nThis is the intro of part {part}.\n")
    result = await ingest.run([tmp_path / "one", tmp_path / "two"], book, "Two parts")
    assert ([error["file"] for error in result.errors], result.exit_code) == (["intro.md"], 1)
    assert await live(readers, book) == result.generation


# Before: "no text was found" of no file at all, beside a bad file's own error.
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("empty folder", "is empty. A book is made of .htm, .html, .md, .mdx, .pdf, .txt"),
        ("only images", "has no file of a book, but 2 .png, 1 .jpg"),
        ("no such folder", "does not exist: check the path"),
        ("only bad files", "is not UTF-8"),
        ("only headings", "no text was found"),
    ],
)
async def test_nothing_to_read_is_an_error_and_publishes_nothing(
    ingest: Ingest, tmp_path: Path, book: str, readers: House, what: str, said: str
) -> None:
    given = tmp_path / "given"
    if what != "no such folder":
        given.mkdir()
    if what == "only images":
        for name in ("a.png", "b.PNG", "c.jpg"):
            (given / name).touch()
    if what == "only bad files":
        (given / "bad.md").write_bytes(b"\xff")
    if what == "only headings":
        (given / "bare.md").write_text("# A title\n\n## A section\n")
    result = await ingest.run([given], book, "Nothing")
    assert (result.generation, result.exit_code) == (None, 1)
    (error,) = result.errors
    assert said in error["error"]
    assert error["file"]
    with pytest.raises(UnknownBookError):
        await readers.library.live(book)
    assert book not in {line.book_id for line in await readers.library.books()}


async def test_an_emptied_folder_does_not_empty_the_book(
    ingest: Ingest, small: Path, book: str, readers: House
) -> None:
    """A wrong path must not take a book from its readers."""
    first = await ingest.run([small], book, "Small")
    for file in small.iterdir():
        file.unlink()
    result = await ingest.run([small], book, "Small")
    assert (result.generation, result.exit_code, result.chunks_removed) == (None, 1, 0)
    assert await live(readers, book) == first.generation


async def test_only_books_files_are_read(ingest: Ingest, small: Path, book: str) -> None:
    for name in (".hidden.md", "_draft.md", "notes.txt", "picture.png", "UPPER.MD"):
        (small / name).write_text("# Title\n\nA sentence stands here.\n")
    assert (await ingest.run([small], book, "Small")).files_processed == 3


# Seen red: the pages of every dependency, and the site's own once more.
async def test_what_a_sites_tools_made_beside_its_package_json_is_not_the_book(
    ingest: Ingest, small: Path, book: str
) -> None:
    for folder in ("site", "site/node_modules/react", "site/build/imu", "build"):
        (small / folder).mkdir(parents=True)
        (small / folder / "page.md").write_text("# Title\n\nA sentence stands here.\n")
    (small / "site" / "package.json").write_text("{}")
    assert (await ingest.run([small], book, "Small")).files_processed == 4


# Seen red with `publish` called before the passages were embedded.
async def test_while_a_book_goes_in_readers_see_the_old_one(
    ingest: Ingest, small: Path, large: Path, book: str, readers: House, in_edge: None
) -> None:
    first = await ingest.run([small], book, "Small")
    before = set(index_folder(readers).iterdir())
    running = asyncio.ensure_future(ingest.run([large], book, "Large"))
    await begun(readers, before)
    assert await live(readers, book) == first.generation
    answer = await ask(readers, book)
    assert str(answer.trail.index_generation) == first.generation
    assert SENSORS not in cited(answer)
    assert not running.done()
    second = await running
    assert await live(readers, book) == second.generation != first.generation
    await edition_seen(readers, book)
    answer = await ask(readers, book)
    assert str(answer.trail.index_generation) == second.generation
    assert cited(answer) == {SENSORS}


# Seen red with an ingest that goes on without its index.
@pytest.mark.campaign
async def test_a_book_whose_index_was_lost_on_the_way_is_not_published(
    ingest: Ingest, small: Path, large: Path, book: str, readers: House, in_edge: None
) -> None:
    first = await ingest.run([small], book, "Small")
    before = set(index_folder(readers).iterdir())
    running = asyncio.ensure_future(ingest.run([large], book, "Large"))
    lost = await begun(readers, before)
    for pid in builders(readers):
        os.kill(pid, signal.SIGKILL)
    for path in lost:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(IndexUnavailableError):
        await running
    assert await live(readers, book) == first.generation
    assert_published(await ingest.run([large], book, "Large"))
    await edition_seen(readers, book)
    assert cited(await ask(readers, book)) == {SENSORS}


@pytest.mark.campaign
async def test_a_book_whose_builder_was_killed_is_published_whole_or_not_at_all(
    ingest: Ingest, small: Path, large: Path, book: str, readers: House, in_edge: None
) -> None:
    first = await ingest.run([small], book, "Small")
    before = set(index_folder(readers).iterdir())
    running = asyncio.ensure_future(ingest.run([large], book, "Large"))
    await begun(readers, before)
    for pid in builders(readers):
        os.kill(pid, signal.SIGKILL)
    try:
        result = await running
    except (IndexUnavailableError, RuntimeError):
        assert await live(readers, book) == first.generation
        return
    assert await live(readers, book) == result.generation
    assert await readers.index.count(UUID(result.generation)) == result.chunks_created
    await edition_seen(readers, book)
    assert cited(await ask(readers, book)) == {SENSORS}


@pytest.fixture
def in_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is built from now on is built in Edge, as a large book is."""
    monkeypatch.setattr(embedded, "EXACT_NUMBERS_MAX", 0)


def index_folder(house: House) -> Path:
    folder = house.index._folder  # type: ignore[attr-defined]  # an EmbeddedIndex
    assert isinstance(folder, Path)
    return folder


def builders(house: House) -> list[int]:
    """The processes that build in this index's folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(index_folder(house)) in words and any(word.startswith("build-") for word in words):
            found.append(int(process.name))
    return found


async def begun(house: House, before: set[Path]) -> set[Path]:
    """What a generation that is begun and not published has put into the index's folder."""
    async with asyncio.timeout(BEGUN_S):
        while not any(path.is_dir() for path in set(index_folder(house).iterdir()) - before):  # noqa: ASYNC110
            await asyncio.sleep(0.002)  # another process makes it
    return set(index_folder(house).iterdir()) - before


async def test_two_ingests_of_a_book_at_once_leave_one_whole_book(
    ingest: Ingest, shelf_settings: Settings, shelf: Database, small: Path, book: str, readers: House
) -> None:
    async with wiring.open_ingest(shelf_settings, shelf, lambda *_: None) as another:
        results = await asyncio.gather(*(one.run([small], book, "Small") for one in (ingest, another)))
    seen = await live(readers, book)
    assert seen in {result.generation for result in results}
    assert await readers.index.count(UUID(seen)) == 2
    assert len(await readers.library.live_chunk_ids(book)) == 2


class Slow(Registry):
    """Takes its time between knowing which generations are stale and returning them."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry._pool)
        self.knows, self.may_say = asyncio.Event(), asyncio.Event()

    async def stale_generations(self, book_id: str) -> list[UUID]:
        known = await super().stale_generations(book_id)
        self.knows.set()
        await self.may_say.wait()
        return known


async def test_an_ingest_does_not_sweep_away_another_book(
    ingest: Ingest, shelf_settings: Settings, shelf: Database, small: Path, book: str, readers: House
) -> None:
    """A generation that was begun while ours tidied up is nobody's leftover."""
    slow = Slow(ingest.registry)
    ours = asyncio.ensure_future(replace(ingest, registry=slow).run([small], book, "Ours"))
    await slow.knows.wait()
    async with wiring.open_ingest(shelf_settings, shelf, lambda *_: None) as another:
        theirs = await another.run([small], f"{book}-2", "Theirs")
    slow.may_say.set()
    assert_published(await ours)
    assert_published(theirs)
    assert await readers.index.count(UUID(theirs.generation)) == 2


@pytest.mark.parametrize(
    ("edit", "seen"),
    [
        (lambda text: text.replace("difficulty: beginner", "difficulty: advanced"), "advanced"),
        (lambda text: text.replace("### The old heading", "### The new heading"), "the-new-heading"),
        (lambda text: text.replace("tags: [imu]", "tags: [gyro]"), "gyro"),
    ],
    ids=["difficulty", "heading", "tags"],
)
async def test_an_edit_beside_the_text_is_an_edit(
    ingest: Ingest, tmp_path: Path, book: str, edit: Callable[[str], str], seen: str
) -> None:
    """Filters and links are made of it: a reader would filter by the old level and be led to a dead anchor."""
    page = tmp_path / "page.md"
    page.write_text(
        "---\ndifficulty: beginner\ntags: [imu]\n---\n# The IMU\n\n## Sensors\n\nA sensor measures.\n\n"
        "### The old heading\n\nAn inertial measurement unit measures rotation and acceleration.\n"
    )
    first = await ingest.run([page], book, "IMU")
    page.write_text(edit(page.read_text()))
    second = await ingest.run([page], book, "IMU")
    assert second.generation not in {None, first.generation}
    (passage,) = (await ingest.registry.passages(sorted(await ingest.registry.live_chunk_ids(book)))).values()
    shown = {passage.difficulty, *passage.tags, *(sentence.anchor for sentence in passage.sentences)}
    assert seen in shown


class Quick(MiniLm):
    """Without its model."""

    async def embed_passages(self, texts: Sequence[str]) -> list[Windows]:
        return [np.full((1, self.dimension), len(text) / 1000, np.float32) for text in texts]


class Counting:
    """The index, which counts the passages and sentences in memory whenever it is given points."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.in_memory: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    async def upsert(self, generation: UUID, points: Sequence[Point]) -> None:
        self.in_memory.append(sum(isinstance(item, Passage | Piece) for item in gc.get_objects()))
        await self._index.upsert(generation, points)


# Seen red with the pages kept until the end.
async def test_a_large_book_is_never_in_memory_as_a_whole(
    ingest: Ingest, tmp_path: Path, book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "BATCH", 32)
    for number in range(40):
        sections = [f"## Part {part}\n\nThis is part {part} of page {number}.\n" for part in range(40)]
        (tmp_path / f"{number:02}.md").write_text(f"# Page {number}\n\n" + "\n".join(sections))
    counting = Counting(ingest.index)
    without_model = replace(ingest, index=counting, embedder=Quick(), self_calibration=None)
    gc.freeze()  # a million objects of other tests, which would be looked through at each batch
    try:
        assert_published(await without_model.run([tmp_path], book, "Large"), created=1600)
    finally:
        gc.unfreeze()
    assert len(counting.in_memory) == 50
    assert max(counting.in_memory) < 400  # two blocks of the spill file, and two batches


# Seen red with a plain gather, which leaves the others running.
async def test_a_batch_that_cannot_be_embedded_ends_the_others(ingest: Ingest) -> None:
    begun, ended = asyncio.Event(), []

    async def embed(texts: Sequence[str]) -> list[Windows]:
        if "fails" in texts[0]:
            await begun.wait()
            raise EmbedderFailedError("no more")
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(len(texts))
        raise AssertionError

    texts = [f"{uuid4()}" for _ in range(EMBEDDED)] + ["fails" * 20]
    with pytest.raises(EmbedderFailedError):
        await ingest.registry.embeddings(texts, ingest.embedder, embed)
    assert ended == [EMBEDDED]


# Seen red with the batches made in the order of the texts.
async def test_texts_are_embedded_in_batches_by_length_and_come_back_in_order(ingest: Ingest) -> None:
    batches: list[list[int]] = []

    async def embed(texts: Sequence[str]) -> list[Windows]:
        batches.append(sorted(map(len, texts)))
        return [np.full((1, ingest.embedder.dimension), len(text), np.float32) for text in texts]

    texts = [f"{uuid4()}{'x' * (number * 37 % 200)}" for number in range(2 * EMBEDDED)]
    made = await ingest.registry.embeddings(texts, ingest.embedder, embed)
    assert [round(float(windows[0, 0])) for windows in made] == list(map(len, texts))
    short, long = sorted(batches)
    assert short[-1] <= long[0]


class Reads:
    """Which files the readers were given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        real = Sandbox.documents

        def documents(sandbox: Sandbox, content: bytes, path: PurePosixPath, *rest: Any) -> list[Document]:
            self.names.append(path.as_posix())
            return real(sandbox, content, path, *rest)

        monkeypatch.setattr(Sandbox, "documents", documents)

    def taken(self) -> list[str]:
        taken, self.names = self.names, []
        return taken


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


async def content(registry: Registry, book: str) -> tuple[list[Passage], str, object]:
    """All that readers see of a book's edition but its id."""
    made = await registry.live(book)
    passages = await registry.contents(made.generation_id, 0, 1000)
    async with registry._pool.connection() as connection:
        cursor = await connection.execute(
            "SELECT filename, title, url, sha256, folded FROM documents WHERE generation_id = %s ORDER BY filename",
            (made.generation_id,),
        )
        documents = await cursor.fetchall()
    live = await registry.live_index(book)
    assert live and live.digest
    return passages, live.digest, (documents, made.lexicon, made.calibration, made.language)


# Seen red with the folded text of kept documents left out.
async def test_an_edition_with_unchanged_files_equals_one_that_was_read_anew(
    ingest: Ingest, folder: Path, small: Path, book: str, reads: Reads
) -> None:
    for name in ("imu.md", "foot.md"):
        shutil.copy(small / name, folder / f"05-{name}")
    assert_published(await ingest.run([folder], book, "Book"))
    assert len(reads.taken()) == 4
    replaced(folder / SENSORS, "gyroscope", "zyroscope")
    (folder / "05-imu.md").rename(folder / "06-imu.md")
    second = await ingest.run([folder], book, "Book")
    assert_published(second)
    assert reads.taken() == [SENSORS, "06-imu.md"]
    assert second.files_processed == 4
    as_kept = await content(ingest.registry, book)
    anew = replace(ingest, size=replace(ingest.size, tokens_min=ingest.size.tokens_min - 1))
    await anew.run([folder], book, "Book")
    await ingest.run([folder], book, "Book")
    assert len(reads.taken()) == 8
    assert await content(ingest.registry, book) == as_kept


ALTERED = (
    "UPDATE chunks SET text = replace(text, 'robot', 'toaster') WHERE filename = 'imu.md' AND book_id = %s"
)
MISSING = """
DELETE FROM generation_chunks g USING books b
WHERE g.generation_id = b.live_generation AND g.position = 1 AND b.book_id = %s
"""


# Seen red with passages taken unchecked, and with an edition that has lost some taken for whole.
@pytest.mark.parametrize("damage", [ALTERED, MISSING], ids=["altered", "missing"])
async def test_of_a_damaged_edition_the_files_are_read_again(
    ingest: Ingest, shelf: Database, small: Path, book: str, reads: Reads, damage: str
) -> None:
    await ingest.run([small], book, "Small")
    whole = await content(ingest.registry, book)
    with psycopg.connect(shelf.url) as superuser:
        assert superuser.execute(damage.encode(), (book,)).rowcount == 1
    reads.taken()
    (small / "new.md").write_text("# New\n\nThis page is new.\n")
    result = await ingest.run([small], book, "Small")
    assert sorted(set(reads.taken())) == ["foot.md", "imu.md", "new.md"]
    assert result.chunks_restored == (damage == ALTERED)
    (small / "new.md").unlink()
    await ingest.run([small], book, "Small")
    assert await content(ingest.registry, book) == whole


# Seen red with the version left out of how a file is read.
async def test_after_an_update_of_the_readers_every_file_is_read_again(
    ingest: Ingest, small: Path, book: str, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ingest.run([small], book, "Small")
    await ingest.run([small], book, "Small")
    assert len(reads.taken()) == 2
    monkeypatch.setattr(pipeline, "reading_version", lambda: "another")
    for files in (2, 0):
        assert (await ingest.run([small], book, "Small")).generation is None
        assert len(reads.taken()) == files


# Seen red with the passages of the first embedder kept for the second.
async def test_a_book_that_has_become_one_for_another_embedder_is_read_again(
    ingest: Ingest, small: Path, book: str, reads: Reads
) -> None:
    class Another(Quick):
        name = "another"

    await ingest.run([small], book, "Small")
    reads.taken()
    (small / "new.md").write_text("# New\n\nThis page is new.\n")
    other = replace(ingest, embedder=Another(), self_calibration=None)
    assert_published(await other.run([small], book, "Small"))
    assert set(reads.taken()) == {"foot.md", "imu.md", "new.md"}
    assert_published(
        await ingest.run([small], book, "Small")
    )  # readers refuse to start with a book of an unknown embedder


async def test_an_interrupted_ingest_does_not_split_the_rest_of_the_book(
    ingest: Ingest, small: Path, book: str, readers: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, interrupted, ended, begun_with = asyncio.Event(), threading.Event(), threading.Event(), []
    loop, real, real_split = asyncio.get_running_loop(), split.passages, Ingest._split

    def passages(document: Document, *given: Any) -> list[Passage]:
        begun_with.append(document.filename)
        loop.call_soon_threadsafe(begun.set)
        assert interrupted.wait(BEGUN_S)
        return real(document, *given)

    def split_all(*given: Any) -> Any:
        try:
            return real_split(*given)
        finally:
            ended.set()

    monkeypatch.setattr(split, "passages", passages)
    monkeypatch.setattr(Ingest, "_split", split_all)
    running = asyncio.ensure_future(ingest.run([small], book, "Small"))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    interrupted.set()
    assert await asyncio.to_thread(ended.wait, BEGUN_S)
    assert begun_with == ["foot.md"]
    with pytest.raises(UnknownBookError):
        await readers.library.live(book)
