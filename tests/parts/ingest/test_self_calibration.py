"""A book calibrates itself when it is published, and says so where it cannot tell itself from anything else."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from engine import wiring
from engine.answer import Asked
from engine.cli import doctor
from engine.errors import ConfigurationError, IndexUnavailableError
from engine.models import Client, Filters, Generation, Hit, Question, Vector
from engine.ports import Embedder, Index, NullExchange
from engine.settings import CONFIG, Settings
from engine.storage.database import Database
from ingest import self_calibration
from ingest.pipeline import Ingest, IngestResult
from tests.build import passage
from tests.command_line import affidavit
from tests.conftest import ROOT
from tests.databases import data_of_its_own

SHIPPED = CONFIG / "calibration" / "probes.txt"
FEW = 60  # probes of the tests that publish again and again
OPERATOR = Client("tests", None, frozenset({"ask"}))

CUPS = {
    "cups.md": "# Cups\n\nA cup holds tea. A saucer holds the cup, so that no tea falls on the table.\n",
    "pots.md": "# Pots\n\nA pot holds more tea than a cup. Its lid keeps the tea hot for an hour.\n",
}


@pytest.fixture(scope="module")
def shelf_settings(database: Database) -> Iterator[Settings]:
    """A database of its own in the running server, and an index of its own."""
    with data_of_its_own(database, probes()[::5][:FEW]) as made:
        yield made


@pytest.fixture(scope="module")
async def shelf(shelf_settings: Settings) -> AsyncIterator[Database]:
    async with wiring.open_database(shelf_settings, lambda _: None) as opened:
        opened.migrate()
        await wiring.make_months_ahead(opened, wiring.now().date())
        yield opened


@pytest.fixture
def book() -> str:
    return f"book-{uuid4().hex[:8]}"


def probes() -> tuple[str, ...]:
    return self_calibration.read_probes(SHIPPED.read_text("utf-8"))


def with_calibration(settings: Settings, **changed: object) -> Settings:
    return settings.model_copy(update={"calibration": settings.calibration.model_copy(update=changed)})


def written(folder: Path, files: dict[str, str]) -> Path:
    made = folder / "book"
    made.mkdir(exist_ok=True)
    for name, text in files.items():
        (made / name).write_text(text)
    return made


@asynccontextmanager
async def ingesting(settings: Settings, shelf: Database) -> AsyncIterator[Ingest]:
    async with wiring.open_ingest(settings, shelf, lambda *_: None) as opened:
        yield opened


async def publish(settings: Settings, shelf: Database, path: Path, book: str) -> IngestResult:
    async with ingesting(settings, shelf) as ingest:
        result = await ingest.run([path], book, "Title")
    assert (result.errors, result.exit_code) == ([], 0)
    return result


async def live(shelf: Database, book: str) -> Generation:
    async with wiring.open_registry(shelf) as registry:
        return await registry.live(book)


# --- What is asked


def test_the_shipped_probes_are_many_different_questions() -> None:
    asked = probes()
    assert 290 <= len(asked) == len({question.casefold() for question in asked})
    assert all(question == question.strip() and not question.startswith("#") for question in asked)


def test_lines_about_the_probes_are_not_asked() -> None:
    assert self_calibration.read_probes("# about\n\n  What is it? \r\n#x\nWhy?") == ("What is it?", "Why?")


def test_each_heading_is_asked_about_once() -> None:
    book = [
        passage("One.", heading="Balance"),
        passage("Two.", heading=""),
        passage("Three.", heading="Balance"),
    ]
    assert self_calibration.headings(book) == ["What is said about Balance?"]
    assert self_calibration.headings([passage("One.", heading="")]) == []


# Seen red with the first hundred taken.
def test_headings_and_echoes_come_from_all_over_the_book() -> None:
    book = [
        passage(f"Sentence {number} has as many words as are needed.", heading=f"Heading {number}")
        for number in range(1000)
    ]
    asked = self_calibration.headings(book)
    assert len(asked) == self_calibration.HEADINGS_MAX
    assert (asked[0], asked[-1]) == ("What is said about Heading 0?", "What is said about Heading 999?")
    echoes = self_calibration.echoes(book)
    assert len(set(echoes)) == len(echoes) == self_calibration.ECHOES
    assert "Sentence 999" in echoes[-1]


def test_fragments_are_echoes_only_where_there_is_nothing_else() -> None:
    whole = "A robot that falls must get up again."
    assert self_calibration.echoes([passage("Yes.", whole, "word " * 41)]) == [whole]
    assert self_calibration.echoes([passage("Yes.", "No.")]) == ["Yes.", "No."]


def test_keywords_are_five_words_of_a_sentence_in_its_order_without_stop_words() -> None:
    sentence = "The ankle of a walking robot turns (slowly), because its motor is at the knee."
    words = ["ankle", "walking", "robot", "turns", "slowly", "motor", "knee"]
    (asked,) = self_calibration.keywords([passage(sentence)])
    places = [words.index(word) for word in asked.split()]
    assert len(places) == self_calibration.KEYWORDS
    assert places == sorted(places)
    assert self_calibration.keywords([passage(sentence)]) == [asked]


# Seen red with the first five words, and with the first hundred sentences.
def test_keywords_come_from_all_over_the_sentences_and_the_book() -> None:
    words = [f"word{letter}" for letter in "abcdefghij"]
    book = [passage(" ".join([*words, f"number{number}"]) + ".") for number in range(1000)]
    asked = self_calibration.keywords(book)
    assert len(asked) == self_calibration.SENTENCES
    assert {word for question in asked for word in question.split()} >= set(words)
    assert any("number9" in question for question in asked[-20:])


# Seen red with a sentence of one word asked as it is.
def test_a_sentence_without_spaces_has_no_keywords() -> None:
    assert self_calibration.keywords([passage("一个杯子里装着茶水和一点牛奶。")]) == []


# --- Every generation


async def asked(settings: Settings, shelf: Database, book: str, text: str) -> dict[str, Any]:
    """The record of a question."""

    async def read() -> Question:
        return Question(text, book, 5, filters=Filters())

    async with wiring.open_house(settings, shelf) as house:
        answer = await house.engine.answer(Asked("test", "test", NullExchange(read), operator=OPERATOR))
    with psycopg.connect(shelf.url, row_factory=dict_row) as connection:
        (row,) = connection.execute(
            "SELECT * FROM audit_logs WHERE query_id = %s", (answer.trail.query_id,)
        ).fetchall()
    return row


# Seen red with the calibration left out of `publish`: the shipped curve stayed in force.
async def test_a_generation_calibrates_itself_and_every_report_names_it(
    shelf_settings: Settings, shelf: Database, book: str, tmp_path: Path
) -> None:
    result = await publish(shelf_settings, shelf, written(tmp_path, CUPS), book)
    calibration = (await live(shelf, book)).calibration
    assert (calibration.kind, result.warnings) == ("self", [])
    assert calibration.calibration_id.startswith("self-")
    async with wiring.open_registry(shelf) as registry:
        (row,) = [row for row in await registry.books() if row.book_id == book]
    assert (row.calibration_kind, row.calibration) == ("self", calibration.calibration_id)
    _state, words = await doctor._calibration(shelf_settings, shelf)
    assert f"{book}, self ({calibration.calibration_id})" in words
    record = await asked(shelf_settings, shelf, book, "What holds tea?")
    assert (record["calibration_kind"], record["calibration_id"]) == ("self", calibration.calibration_id)
    assert (record["outcome"], record["best_score"] >= record["threshold"]) == ("answered", True)


@dataclass
class Counting:
    """The embedder, and which questions it was given."""

    real: Embedder
    questions: list[str]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def embed_questions(self, texts: Sequence[str]) -> list[Vector]:
        self.questions += texts
        return await self.real.embed_questions(texts)


def counting(ingest: Ingest) -> tuple[Ingest, Counting]:
    assert ingest.self_calibration is not None
    embedder: Any = Counting(ingest.embedder, [])
    return replace(
        ingest, embedder=embedder, self_calibration=replace(ingest.self_calibration, embedder=embedder)
    ), embedder


# Seen red with the vectors of questions not kept, and with the keywords not asked.
async def test_no_probe_is_embedded_twice(
    shelf_settings: Settings, shelf: Database, book: str, tmp_path: Path
) -> None:
    await publish(shelf_settings, shelf, written(tmp_path, CUPS), book)
    folder = written(
        tmp_path, {"new.md": "# Kettles\n\nA kettle boils the water for the tea in two minutes.\n"}
    )
    async with ingesting(shelf_settings, shelf) as opened:
        ingest, embedder = counting(opened)
        assert (await ingest.run([folder], book, "Title")).generation
    assert set(embedder.questions) == {
        "What is said about Kettles?",
        "A kettle boils the water for the tea in two minutes.",
        "boils water tea two minutes",
    }


# Seen red with `refused` left out of the fingerprint, and with the probes left out of it.
@pytest.mark.campaign
async def test_other_probes_make_a_new_generation_of_the_same_text(
    shelf_settings: Settings, shelf: Database, book: str, tmp_path: Path
) -> None:
    folder = written(tmp_path, CUPS)
    other = tmp_path / "other.txt"
    other.write_text("\n".join(probes()[-FEW:]))
    changes: list[dict[str, object]] = [
        {}, {"probes_refused": 0.6}, {"probes_refused": 0.6, "probes_file": str(other)}, {"probes_file": ""},
    ]  # fmt: skip
    for changed in changes:
        settings = with_calibration(shelf_settings, **changed)
        assert (await publish(settings, shelf, folder, book)).generation
        assert (await publish(settings, shelf, folder, book)).generation is None
    assert (await live(shelf, book)).calibration.kind == "shipped"


async def test_another_gate_makes_a_new_generation(
    shelf_settings: Settings, shelf: Database, book: str, tmp_path: Path
) -> None:
    folder = written(tmp_path, CUPS)
    await publish(shelf_settings, shelf, folder, book)
    before = (await live(shelf, book)).calibration
    higher = shelf_settings.retrieval.model_copy(update={"threshold": 0.7})
    settings = shelf_settings.model_copy(update={"retrieval": higher})
    assert (await publish(settings, shelf, folder, book)).generation
    assert (await live(shelf, book)).calibration.similarity[1][1] > before.similarity[1][1]


# --- Probes that cannot be asked


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe?", "cannot be read"),
        (b"", "has 0 questions; 50 are needed"),
        (b"What?\n" * 49, "50 are needed"),
        (b"What?\n" * 400, "has 1 questions; 50 are needed"),
    ],
    ids=["missing", "no text", "empty", "few", "one, many times"],
)
async def test_probes_that_cannot_be_asked_are_named_with_what_to_do(
    shelf_settings: Settings, shelf: Database, tmp_path: Path, content: bytes | None, says: str
) -> None:
    file = tmp_path / "probes.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError) as wrong:
        async with ingesting(with_calibration(shelf_settings, probes_file=str(file)), shelf):
            pass
    assert f"calibration.probes_file: {file} " in str(wrong.value)
    assert says in str(wrong.value)
    assert 'set it to ""' in str(wrong.value)


# --- Small books, and books that do not separate


# Seen red with `echoes` of whole sentences only.
@pytest.mark.parametrize(
    "text",
    [
        "Tea",
        "A cup holds tea.\n",
        "# Cups\n\nA cup holds tea. A saucer holds the cup.\n",
        "| a |\n|---|\n| 1 |\n",
    ],
    ids=["one word", "one sentence", "one page", "one table"],
)
async def test_a_very_small_book_is_published_without_a_doubt(
    shelf_settings: Settings, shelf: Database, book: str, tmp_path: Path, text: str
) -> None:
    result = await publish(shelf_settings, shelf, written(tmp_path, {"page.md": text}), book)
    assert (result.chunks_created, result.warnings) == (1, [])
    calibration = (await live(shelf, book)).calibration
    assert calibration.kind == "self"
    assert calibration.similarity[0] == (0.0, 0.0)
    assert calibration.similarity[-1][1] == 1.0


def quiz(few: Path) -> dict[str, str]:
    """A book of the probes themselves, under headings that say nothing."""
    chance = random.Random(3)
    questions = few.read_text().splitlines()
    return {
        f"page-{number}.md": f"# {chance.randbytes(4).hex()}\n\n{question}\n"
        for number, question in enumerate(questions)
    }


# Seen red with no warnings in the result, without the line in `books`, and with doctor's line always ok.
@pytest.mark.campaign
async def test_a_book_that_does_not_separate_is_warned_of_everywhere(
    shelf_settings: Settings, shelf: Database, book: str, tmp_path: Path
) -> None:
    folder = written(tmp_path, quiz(Path(shelf_settings.calibration.probes_file)))
    environment = {
        "DATABASE_URL": shelf.url, "AFFIDAVIT_CALIBRATION__PROBES_FILE": shelf_settings.calibration.probes_file,
    }  # fmt: skip

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return affidavit(*arguments, data_dir=shelf_settings.data_dir, **environment)

    said = run("ingest", folder, "--book", book)
    assert said.returncode == 0, said.stderr
    (warning,) = [line for line in said.stderr.splitlines() if line.startswith("WARNING: ")]
    assert "so the gate separates them badly" in warning
    doubt = warning.removeprefix("WARNING: ")
    assert f"WARNING: {book}: {doubt}" in run("books").stderr
    (row,) = [row for row in json.loads(run("books", "--json").stdout) if row["book_id"] == book]
    assert row["warnings"] == [doubt]
    examined = run("doctor", "--json")
    (finding,) = [line for line in json.loads(examined.stdout) if line["part"] == "calibration"]
    assert (examined.returncode, finding["state"]) == (1, "failed")
    assert f"{book}: {doubt}" in finding["words"]
    (folder / "more.md").write_text("# Cups\n\nA cup holds tea.\n")
    result = await publish(shelf_settings, shelf, folder, book)
    assert len(result.warnings) == 1


async def test_an_unchanged_book_is_still_warned_of(
    shelf_settings: Settings, shelf: Database, book: str, tmp_path: Path
) -> None:
    folder = written(tmp_path, quiz(Path(shelf_settings.calibration.probes_file)))
    first = await publish(shelf_settings, shelf, folder, book)
    again = await publish(shelf_settings, shelf, folder, book)
    assert again.generation is None
    assert again.warnings == first.warnings != []


# --- Failures on the way


@dataclass
class Failing:
    """An index that fails some searches."""

    real: Index
    fails: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def search(
        self, generation: UUID, dense: Vector, terms: dict[int, float], limit: int, filters: Filters
    ) -> list[Hit]:
        if self.fails:
            self.fails -= 1
            raise IndexUnavailableError
        return await self.real.search(generation, dense, terms, limit, filters)


def failing(ingest: Ingest, fails: int) -> Ingest:
    assert ingest.self_calibration is not None
    index: Any = Failing(ingest.index, fails)
    return replace(ingest, self_calibration=replace(ingest.self_calibration, index=index))


# Seen red with `publish` before the self-calibration.
@pytest.mark.campaign
async def test_a_self_calibration_that_fails_leaves_readers_on_the_old_book(
    shelf_settings: Settings, shelf: Database, book: str, tmp_path: Path
) -> None:
    await publish(shelf_settings, shelf, written(tmp_path, CUPS), book)
    before = await live(shelf, book)
    folder = written(tmp_path, {"new.md": "# Kettles\n\nA kettle boils water.\n"})
    async with ingesting(shelf_settings, shelf) as opened:
        with pytest.raises(IndexUnavailableError):
            await failing(opened, 10**6).run([folder], book, "Title")
    assert await live(shelf, book) == before
    assert (await publish(shelf_settings, shelf, folder, book)).generation
    assert (await live(shelf, book)).lexicon.passages == 3


# A search is timed for readers; on a busy machine one of 500 is late. Seen red without another try.
async def test_a_search_that_fails_once_does_not_fail_the_book(
    shelf_settings: Settings, shelf: Database, book: str, tmp_path: Path
) -> None:
    folder = written(tmp_path, CUPS)
    async with ingesting(shelf_settings, shelf) as opened:
        assert (await failing(opened, 1).run([folder], book, "Title")).generation


# Kills itself when the book is indexed and the self-calibration begins.
KILLED = """
import asyncio, os, signal, sys
from engine.cli import main as cli
from ingest.self_calibration import SelfCalibration

async def measure(self, generation, passages):
    await self._scores(self.probes[:5], generation)
    os.kill(os.getpid(), signal.SIGKILL)

SelfCalibration.measure = measure
cli.main()
"""


# Seen red with `publish` before the self-calibration.
@pytest.mark.campaign
async def test_an_ingest_killed_at_its_self_calibration_is_finished_by_the_next(
    shelf_settings: Settings, shelf: Database, book: str, tmp_path: Path
) -> None:
    await publish(shelf_settings, shelf, written(tmp_path, CUPS), book)
    before = await live(shelf, book)
    folder = written(tmp_path, {"new.md": "# Kettles\n\nA kettle boils water.\n"})
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, "ingest", folder, "--book", book, "--data-dir", shelf_settings.data_dir,
        cwd=ROOT, env=os.environ | {"DATABASE_URL": shelf.url},
    )  # fmt: skip
    assert await killed.wait() == -signal.SIGKILL
    assert await live(shelf, book) == before
    assert (await publish(shelf_settings, shelf, folder, book)).generation
    after = await live(shelf, book)
    assert (after.lexicon.passages, after.calibration.kind) == (3, "self")
    with psycopg.connect(shelf.url) as connection:
        unfinished = "SELECT count(*) FROM generations WHERE book_id = %s AND published_at IS NULL"
        assert connection.execute(unfinished, (book,)).fetchone() == (0,)
