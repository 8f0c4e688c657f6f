"""A large book that changes a little is continued: its edition equals one that was made anew but for what it took over."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4
from zlib import crc32

import numpy as np
import psycopg
import pytest

from engine import wiring
from engine.models import Generation, Passage, Point, Vector, Windows
from engine.providers import embedded
from engine.providers.embedded import EmbeddedIndex
from engine.providers.minilm import MiniLm
from engine.retrieval import lexical
from engine.storage.database import Database
from ingest import continuing
from ingest.indexing import IndexContent, IndexRepair, content_of, stored_points
from ingest.pipeline import Ingest, IngestResult
from ingest.registry import Registry
from tests.databases import data_of_its_own
from tests.parts.retrieval.vectors import unit

TOPICS = ("imu", "foot", "gait", "hand", "knee", "lidar", "motor", "nerve")
WORDS = (
    "walks",
    "falls",
    "turns",
    "stands",
    "measures",
    "balances",
    "carries",
    "learns",
    "waits",
    "sees",
    "hears",
    "slips",
)


class Known(MiniLm):
    """Without its model: some unit vector for each text."""

    async def embed_passages(self, texts: Sequence[str]) -> list[Windows]:
        return [vector[None, :] for vector in await self.embed_questions(texts)]

    async def embed_questions(self, texts: Sequence[str]) -> list[Vector]:
        return [
            unit(np.random.default_rng(crc32(text.encode())).normal(size=self.dimension)) for text in texts
        ]


@pytest.fixture(scope="module")
async def shelf(anyio_backend: str, database: Database) -> AsyncIterator[Database]:
    """A database and an index of their own."""
    with data_of_its_own(database) as settings:
        async with wiring.open_database(settings, lambda _: None) as opened:
            opened.migrate()
            await wiring.make_months_ahead(opened, wiring.now().date())
            yield opened


@pytest.fixture
async def ingest(shelf: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ingest]:
    """That takes any book for a large one."""
    monkeypatch.setattr(continuing, "CONTINUED_MIN", 1)
    monkeypatch.setattr(continuing, "CHANGED_MAX", 0.9)
    async with wiring.open_ingest(shelf.settings, shelf, lambda *_: None) as opened:
        yield replace(opened, embedder=Known())


@pytest.fixture(params=["a file", "edge"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the index is in."""
    if request.param == "edge":
        monkeypatch.setattr(embedded, "EXACT_NUMBERS_MAX", 0)


@pytest.fixture
def book() -> str:
    return f"book-{uuid4().hex[:8]}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "book"
    made.mkdir()
    for number, topic in enumerate(TOPICS):
        (made / f"{number}-{topic}.md").write_text(page(topic, number))
    return made


def page(topic: str, number: int) -> str:
    sections = [
        f"## The {topic} {verb} {number}\n\nThe {topic} of a robot {verb} near the {WORDS[(place + number) % 12]} {topic}{place}."
        for place, verb in enumerate(WORDS)
    ]
    return "\n\n".join([f"# About “the {topic}” \\ {number}", *sections])


def replaced(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


async def published(ingest: Ingest, folder: Path, book: str, title: str = "Book") -> IngestResult:
    result = await ingest.run([folder], book, title)
    assert (result.errors, result.exit_code) == ([], 0)
    assert result.generation
    return result


async def anew(ingest: Ingest, folder: Path, book: str) -> Generation:
    """Another edition of the same text, made of nothing but that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(continuing, "CONTINUED_MIN", 1_000_000)
        await published(ingest, folder, book, f"Anew {uuid4()}")
    return await ingest.registry.live(book)


def is_continued(generation: Generation) -> bool:
    return generation.lexicon.changed > 0


async def points_of(ingest: Ingest, generation: Generation) -> dict[str, Point]:
    return {
        point.chunk_id: point
        async for batch in ingest.index.points(generation.generation_id)
        for point in batch
    }


def weights_by_word(point: Point, generation: Generation) -> dict[str, float]:
    words = {term.term_id: word for word, term in generation.lexicon.terms.items()}
    return {words[term]: weight for term, weight in point.terms.items()}


def changed(folder: Path) -> None:
    """One more, one less, one renamed, and one edited that also grows."""
    replaced(folder / "3-hand.md", "stands", "kneels")
    replaced(
        folder / "3-hand.md",
        "## The hand falls 3",
        "## The hand rolls 3\n\nA hand rolls.\n\n## The hand falls 3",
    )
    (folder / "5-lidar.md").unlink()
    (folder / "6-motor.md").rename(folder / "6-drive.md")
    (folder / "2-gab.md").write_text(page("gab", 9))


# Seen red with the true average for the weights of new passages, with the ids of words in the order of the alphabet, with
# positions instead of places, and with what is gone left in the index.
async def test_a_continued_edition_is_what_the_database_says_to_the_bit(
    ingest: Ingest, folder: Path, book: str, form: None
) -> None:
    first = await published(ingest, folder, book)
    assert not is_continued(await ingest.registry.live(book))
    changed(folder)
    second = await published(ingest, folder, book)
    made = await ingest.registry.live(book)
    live = await ingest.registry.live_index(book)
    assert is_continued(made) and live
    assert second.files_processed == len(TOPICS)
    assert second.chunks_created + second.chunks_reused == made.lexicon.passages
    assert second.chunks_removed == first.chunks_created - second.chunks_reused
    from_database = await content_of(stored_points(ingest.registry, made, [range(made.lexicon.passages)]))
    assert (
        live.digest
        == from_database.digest
        == (await content_of(ingest.index.points(made.generation_id))).digest
    )
    assert len(from_database) == live.passages == made.lexicon.passages
    await ingest.index.drop(made.generation_id)
    repair = IndexRepair(ingest.registry, ingest.index)
    assert await repair.mend(live)
    assert (await content_of(ingest.index.points(made.generation_id))).digest == live.digest


# Seen red with the words of what is gone counted on, and with the calibration of the edition before.
async def test_a_continued_edition_equals_one_made_anew_but_for_its_average(
    ingest: Ingest, folder: Path, book: str
) -> None:
    await published(ingest, folder, book)
    for topic in ("gait", "knee", "imu"):
        file = next(path for path in folder.iterdir() if topic in path.name)
        replaced(file, "stands", "kneels low" if topic == "knee" else "kneels")
        await published(ingest, folder, book)
    ours = await ingest.registry.live(book)
    assert is_continued(ours)
    assert ours.lexicon.words / ours.lexicon.passages != ours.lexicon.average_length
    our_points, our_content = await points_of(ingest, ours), await content(ingest.registry, ours)
    theirs = await anew(ingest, folder, book)
    their_points = await points_of(ingest, theirs)
    assert not is_continued(theirs)
    assert our_content == await content(ingest.registry, theirs)
    assert counted(ours) == counted(theirs)
    assert theirs.lexicon.average_length == ours.lexicon.words / ours.lexicon.passages
    assert our_points.keys() == their_points.keys()
    drift = lexical.drift(ours.lexicon)
    assert 0 < drift <= continuing.DRIFT_MAX
    for name, point in our_points.items():
        our_weights, their_weights = weights_by_word(point, ours), weights_by_word(their_points[name], theirs)
        assert our_weights.keys() == their_weights.keys()
        assert all(
            weight == pytest.approx(their_weights[word], rel=drift) for word, weight in our_weights.items()
        )
        assert (point.windows == their_points[name].windows).all()
    assert in_order(our_points) == in_order(their_points)


def in_order(points: dict[str, Point]) -> list[str]:
    return sorted(points, key=lambda name: points[name].payload["position"])


def counted(generation: Generation) -> Any:
    of = generation.lexicon
    words = {word: (term.idf, term.passages) for word, term in of.terms.items()}
    return of.passages, of.words, words, generation.language, generation.embedder


async def content(registry: Registry, generation: Generation) -> tuple[list[Passage], Any]:
    passages = await registry.contents(generation.generation_id, 0, 10_000)
    async with registry._pool.connection() as connection:
        cursor = await connection.execute(
            "SELECT filename, title, url, sha256, folded, passages FROM documents WHERE generation_id = %s ORDER BY place",
            (generation.generation_id,),
        )
        return passages, await cursor.fetchall()


# Seen red with the calibration of the edition before.
async def test_a_continued_edition_is_calibrated_by_its_own_answers(
    ingest: Ingest, folder: Path, book: str
) -> None:
    await published(ingest, folder, book)
    replaced(folder / "3-hand.md", "stands", "kneels")  # as many words, so the average is the same
    await published(ingest, folder, book)
    ours = await ingest.registry.live(book)
    assert is_continued(ours) and lexical.drift(ours.lexicon) == 0
    theirs = await anew(ingest, folder, book)
    assert ours.calibration == theirs.calibration
    our_points, their_points = await points_of(ingest, ours), await points_of(ingest, theirs)
    for name, point in our_points.items():
        assert weights_by_word(point, ours) == weights_by_word(their_points[name], theirs)


def longer(folder: Path) -> None:
    replaced(folder / "0-imu.md", "near", "near " + " ".join(f"word{number}" for number in range(6)))


def most(folder: Path) -> None:
    for name in ("0-imu", "1-foot", "2-gait"):
        replaced(folder / f"{name}.md", "stands", "kneels")


def more(folder: Path) -> None:
    for number in range(3):
        (folder / f"8-more-{number}.md").write_text(page("pump", number))


# Seen red with each rule left out.
@pytest.mark.parametrize("change", [longer, most, more])
async def test_a_book_that_has_changed_too_much_is_made_anew(
    ingest: Ingest, folder: Path, book: str, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuing, "CHANGED_MAX", 0.3)
    await published(ingest, folder, book)
    if change is most:  # of both changes together, since it was made anew
        replaced(folder / "4-knee.md", "stands", "kneels")
        await published(ingest, folder, book)
        assert is_continued(await ingest.registry.live(book))
    change(folder)
    await published(ingest, folder, book)
    made = await ingest.registry.live(book)
    assert not is_continued(made)
    assert lexical.drift(made.lexicon) == 0


# Seen red without the comparison of the live hash with one made in today's way.
@pytest.mark.parametrize("other", ["language", "size", "probes"])
async def test_a_book_that_is_to_be_read_in_another_way_is_made_anew(
    ingest: Ingest, folder: Path, book: str, other: str
) -> None:
    await published(ingest, folder, book)
    replaced(folder / "4-knee.md", "stands", "kneels")
    if other == "size":
        ingest = replace(ingest, size=replace(ingest.size, tokens_min=ingest.size.tokens_min - 1))
    if other == "probes":
        ingest = replace(ingest, self_calibration=None)
    result = await ingest.run([folder], book, "Book", language="de" if other == "language" else None)
    assert result.generation
    assert not is_continued(await ingest.registry.live(book))


async def test_a_small_book_depends_on_nothing_but_itself(
    ingest: Ingest, folder: Path, book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    await published(ingest, folder, book)
    replaced(folder / "4-knee.md", "stands", "kneels")
    await published(ingest, folder, book)
    assert not is_continued(await ingest.registry.live(book))


# Seen red without the digest of the edition before.
@pytest.mark.parametrize("damage", ["a weight", "a point", "all"])
async def test_a_damaged_index_is_not_handed_on(
    ingest: Ingest, folder: Path, book: str, damage: str, form: None
) -> None:
    await published(ingest, folder, book)
    before = await ingest.registry.live(book)
    points = sorted((await points_of(ingest, before)).values(), key=lambda point: point.payload["position"])
    await ingest.index.drop(before.generation_id)
    if damage != "all":
        term = next(iter(points[0].terms))
        altered = replace(points[0], terms=points[0].terms | {term: points[0].terms[term] + 0.25})
        await ingest.index.create(before.generation_id, before.dimension)
        await ingest.index.upsert(
            before.generation_id, [altered, *points[1:]] if damage == "a weight" else points[1:]
        )
        await ingest.index.seal(before.generation_id)
    replaced(folder / "4-knee.md", "stands", "kneels")
    await published(ingest, folder, book)
    made = await ingest.registry.live(book)
    assert not is_continued(made)
    found = content_with(list((await points_of(ingest, made)).values()))
    wanted = await content_of(stored_points(ingest.registry, made, [range(made.lexicon.passages)]))
    assert found.digest == wanted.digest
    async with ingest.registry._pool.connection() as connection:
        cursor = await connection.execute("SELECT count(*) FROM generations WHERE book_id = %s", (book,))
        assert await cursor.fetchone() == (2,)


ALTERED = {
    "text": "UPDATE chunks SET text = replace(text, 'robot', 'toaster')",
    "chapter": "UPDATE chunks SET chapter = 'Another'",
    "module": "UPDATE chunks SET module = 7",
    "tags": "UPDATE chunks SET tags = '{imu}'",
    "difficulty": "UPDATE chunks SET difficulty = 'easy'",
    "a sentence's end": "UPDATE chunks SET sentences = jsonb_set(sentences, '{0,1}', '7')",
    "a sentence's kind": "UPDATE chunks SET sentences = jsonb_set(sentences, '{0,5}', '\"link\"')",
    "no sentences": "UPDATE chunks SET sentences = '7'",
    "end_sentence": "UPDATE chunks SET end_sentence = 99",
    "start_page": "UPDATE chunks SET start_page = '7'",
    "end_page": "UPDATE chunks SET end_page = '7'",
    "content_hash": "UPDATE chunks SET content_hash = 'x'",
    "parent": "UPDATE chunks SET parent_document_id = 'x'",
    "filename": "UPDATE chunks SET filename = '0-imv.md'",
    "url": "UPDATE chunks SET url = '/another'",
    "start_sentence": "UPDATE chunks SET start_sentence = start_sentence + 1",
    "chunk_index": "UPDATE chunks SET chunk_index = 77",
}


# Seen red with each column's part of the statement left out.
async def test_no_damage_of_a_passage_is_vouched_for(
    ingest: Ingest, shelf: Database, folder: Path, book: str
) -> None:
    await published(ingest, folder, book)
    generation = await ingest.registry.live(book)
    kept = await ingest.registry.kept_documents(generation.generation_id)
    first = (await ingest.registry.contents(generation.generation_id, 0, 1))[0]
    for name, damage in ALTERED.items():
        assert await ingest.registry.are_vouched(generation.generation_id, kept), name
        with psycopg.connect(shelf.url) as superuser:
            where = " WHERE chunk_id = %s"
            assert superuser.execute((damage + where).encode(), (first.chunk_id,)).rowcount == 1
        assert not await ingest.registry.are_vouched(generation.generation_id, kept), name
        await ingest.registry.restore([first])


# Seen red with kept documents in the order of their names.
async def test_the_documents_of_a_book_need_not_be_in_the_order_of_their_names(
    ingest: Ingest, folder: Path, book: str
) -> None:
    files = sorted(folder.iterdir(), reverse=True)
    for word in ("kneels", "bends"):
        replaced(folder / "4-knee.md", "stands" if word == "kneels" else "kneels", word)
        result = await ingest.run(files, book, "Book")
        assert (result.errors, result.exit_code) == ([], 0)
    made = await ingest.registry.live(book)
    assert is_continued(made)
    kept = await ingest.registry.kept_documents(made.generation_id)
    assert [item.filename for item in kept] == [file.name for file in files]
    assert await ingest.registry.are_vouched(made.generation_id, kept)


# Seen red without the comparison of a passage's number with its position.
async def test_passages_in_each_others_positions_are_not_vouched_for(
    ingest: Ingest, shelf: Database, folder: Path, book: str
) -> None:
    await published(ingest, folder, book)
    generation = await ingest.registry.live(book)
    kept = await ingest.registry.kept_documents(generation.generation_id)
    first, second, *_ = await ingest.registry.passage_ids(generation.generation_id)
    with psycopg.connect(shelf.url) as superuser:
        for name, position in ((first, -1), (second, 0), (first, 1)):
            superuser.execute(
                "UPDATE generation_chunks SET position = %s WHERE generation_id = %s AND chunk_id = %s",
                (position, generation.generation_id, name),
            )
    assert not await ingest.registry.are_vouched(generation.generation_id, kept)


# Seen red without the count of what came: the rest was what it had been.
async def test_what_came_and_is_not_stored_is_noticed(ingest: Ingest, folder: Path, book: str) -> None:
    await published(ingest, folder, book)
    points = list((await points_of(ingest, await ingest.registry.live(book))).values())
    before, come, none = content_with(points[2:]), content_with(points[:2]), IndexContent()
    assert content_with(points).continues(before.digest, none, come)
    assert not content_with(points[1:]).continues(before.digest, none, come)


def content_with(points: Sequence[Point]) -> IndexContent:
    found = IndexContent()
    found.add(points)
    return found


# Seen red with `are_vouched` that always says yes.
async def test_a_damaged_passage_is_not_handed_on(
    ingest: Ingest, shelf: Database, folder: Path, book: str
) -> None:
    await published(ingest, folder, book)
    with psycopg.connect(shelf.url) as superuser:
        where = " WHERE chunk_index = 7 AND filename = '0-imu.md' AND book_id = %s"
        assert superuser.execute((ALTERED["module"] + where).encode(), (book,)).rowcount == 1
    replaced(folder / "4-knee.md", "stands", "kneels")
    result = await published(ingest, folder, book)
    assert result.chunks_restored == 1
    made = await ingest.registry.live(book)
    assert not is_continued(made)
    assert await ingest.registry.damaged_passages(made.generation_id) == []


async def test_a_passage_that_is_missing_is_not_vouched_for(
    ingest: Ingest, shelf: Database, folder: Path, book: str
) -> None:
    await published(ingest, folder, book)
    generation = await ingest.registry.live(book)
    kept = await ingest.registry.kept_documents(generation.generation_id)
    with psycopg.connect(shelf.url) as superuser:
        superuser.execute(
            "DELETE FROM generation_chunks WHERE generation_id = %s AND position = 1",
            (generation.generation_id,),
        )
    assert not await ingest.registry.are_vouched(generation.generation_id, kept)


# What the database writes as JSON is what Python writes.
async def test_odd_letters_are_vouched_for(ingest: Ingest, tmp_path: Path, book: str) -> None:
    odd = 'A “quote”, a "quote", a \\ and a / with é, \U0001f6b6, \x7f and \u2028 in one sentence of this odd page.'
    (tmp_path / "odd.md").write_text(
        f'---\ntags: ["zmp \\"b", "{{c,d}}"]\nmodule: 7\ndifficulty: advanced\n---\n# {odd}\n\n{odd}\n\n- [A link](x.md)\n\n| a | b |\n|---|---|\n| 1 | 2 |\n'
    )
    await published(ingest, tmp_path, book)
    generation = await ingest.registry.live(book)
    kept = await ingest.registry.kept_documents(generation.generation_id)
    assert await ingest.registry.are_vouched(generation.generation_id, kept)


# Seen red with the live edition's index built in place.
async def test_an_ingest_that_fails_on_the_way_leaves_the_old_edition_and_the_next_one_ends_it(
    ingest: Ingest, folder: Path, book: str, form: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await published(ingest, folder, book)
    before = await ingest.registry.live(book)
    digest = (await content_of(ingest.index.points(before.generation_id))).digest
    changed(folder)
    for place in ("extend", "upsert", "seal"):
        with monkeypatch.context() as patch:
            real = getattr(EmbeddedIndex, place)

            async def failing(*given: Any, real: Any = real) -> Any:
                await real(*given)
                raise RuntimeError("killed")

            patch.setattr(EmbeddedIndex, place, failing)
            with pytest.raises(RuntimeError, match="killed"):
                await ingest.run([folder], book, "Book")
        assert await ingest.registry.live(book) == before
        assert (await content_of(ingest.index.points(before.generation_id))).digest == digest
    await published(ingest, folder, book)
    made = await ingest.registry.live(book)
    assert is_continued(made)
    assert len(await ingest.registry.stale_generations(book)) == 0


async def test_nothing_is_published_of_a_book_that_did_not_change_or_in_a_rehearsal(
    ingest: Ingest, folder: Path, book: str
) -> None:
    await published(ingest, folder, book)
    again = await ingest.run([folder], book, "Book")
    assert (again.generation, again.chunks_created, again.files_processed) == (None, 0, len(TOPICS))
    replaced(folder / "4-knee.md", "stands", "kneels")
    tried = await ingest.run([folder], book, "Book", dry_run=True)
    assert (tried.generation, tried.chunks_created > 0) == (None, True)
    assert not is_continued(await ingest.registry.live(book))
    await published(ingest, folder, book, "Another title")
    made = await ingest.registry.live(book)
    assert is_continued(made)
    assert (await ingest.registry.live_content(book)).title == "Another title"
