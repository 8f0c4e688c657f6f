"""Readers of one book through two engines: what the embedded index answers is the truth for one with a Qdrant server.

An answer is wrong if its five passages, one of their scores or its text is another than Edge's.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from engine import settings as settings_file
from engine import wiring
from engine.answer import Asked
from engine.errors import AuditUnavailableError, OutOfTimeError, RequestError
from engine.house import House
from engine.models import Answer, Client, Filters, Question, Refusal
from engine.ports import NullExchange
from engine.settings import Settings
from engine.storage.database import Database
from ingest.indexing import IndexRepair
from ingest.registry import LiveIndex
from tests.databases import data_of_its_own
from tests.labelled import SAMPLE_BOOK, published, sample_questions

OPERATOR = Client("tests", None, frozenset({"ask"}))
BOOK, NEAR_MISSES = "book", "eval/squad2_near_miss"
QUESTIONS, PASSAGES, TOP = 200, 250, 5
SENTENCE = 60  # letters: what is shorter is no sentence to search for
READERS = 4
PROMISE_S = 5.0 + 0.1
SAME = 1e-5  # cosines of two builds of the same engine differ in the seventh digit


@dataclass(frozen=True, slots=True)
class Said:
    """What a reader was told and what is on record of it."""

    text: str
    top: tuple[str, ...]
    scores: tuple[float, ...]

    def equals(self, other: "Said") -> bool:
        is_same = (self.text, self.top) == (other.text, other.top)
        return is_same and self.scores == pytest.approx(other.scores, abs=SAME)


def said(answer: Answer) -> Said:
    outcome = answer.outcome
    text = outcome.reason.name if isinstance(outcome, Refusal) else outcome.text
    returned: Any = answer.trail.chunks_returned or []
    return Said(text, tuple(item["chunk_id"] for item in returned), tuple(item["score"] for item in returned))


@dataclass(slots=True)
class Load:
    """What readers were told, and after how long."""

    truth: dict[str, Said]
    took: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    told: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def ask(self, house: House, text: str) -> None:
        began = time.monotonic()
        try:
            if not said(await ask(house, text)).equals(self.truth[text]):
                self.wrong.append(text)
        except RequestError as failure:
            self.refused[type(failure).__name__] += 1
        async with self.told:
            self.took.append(time.monotonic() - began)
            self.told.notify_all()

    async def answers(self, count: int) -> None:
        """So many more."""
        wanted = len(self.took) + count
        async with self.told:
            await self.told.wait_for(lambda: len(self.took) >= wanted)

    @property
    def refused_by_index(self) -> set[str]:
        """Without what a busy machine refuses."""
        return self.refused.keys() - {OutOfTimeError.__name__, AuditUnavailableError.__name__}

    @property
    def p99_s(self) -> float:
        return sorted(self.took)[len(self.took) * 99 // 100]

    def report(self, fault: str) -> None:
        print(
            f"\n{fault}: {len(self.took)} questions, {len(self.wrong)} wrong,"
            f" refused {self.refused.total() / len(self.took):.2%} {dict(self.refused)},"
            f" p50 {median(self.took):.3f} s, p99 {self.p99_s:.3f} s, worst {max(self.took):.3f} s"
        )


async def ask(house: House, text: str) -> Answer:
    async def read() -> Question:
        return Question(text, BOOK, TOP, filters=Filters())

    return await house.engine.answer(Asked("test", "test", NullExchange(read), operator=OPERATOR))


@asynccontextmanager
async def loaded(house: House, truth: dict[str, Said], fault: str) -> AsyncIterator[Load]:
    """Readers who ask one question after the other until the end of the block; then no answer may have been wrong or late."""
    load, over, questions = Load(truth), asyncio.Event(), itertools.cycle(truth)

    async def read() -> None:
        while not over.is_set():
            await load.ask(house, next(questions))

    async with asyncio.TaskGroup() as group:
        for _ in range(READERS):
            group.create_task(read())
        try:
            await load.answers(READERS)
            yield load
        finally:
            over.set()
    load.report(fault)
    assert load.wrong == []
    assert max(load.took) < PROMISE_S


def material(folder: Path) -> list[str]:
    """A book's pages, and questions: of SQuAD 2.0, where it is beside the checkout, or of the sample book and its sentences."""
    if passages := published(f"{NEAR_MISSES}/corpus.jsonl")[:PASSAGES]:
        for title, group in itertools.groupby(passages, key=lambda passage: passage["title"]):
            text = "\n\n".join(str(passage["text"]) for passage in group)
            (folder / f"{title}.md".replace("/", "_")).write_text(f"# {title}\n\n{text}\n")
        questions = [row["text"] for row in published(f"{NEAR_MISSES}/queries.jsonl")]
    else:
        pages = [page.read_text() for page in sorted(SAMPLE_BOOK.glob("*.md"))]
        for number, page in enumerate(pages):
            (folder / f"{number}.md").write_text(page)
        paragraphs = [part for part in "\n\n".join(pages).split("\n\n") if part[0].isalpha()]
        sentences = [sentence for part in paragraphs for sentence in part.split(". ")]
        questions = [row["question"] for row in sample_questions()]
        questions += [sentence for sentence in sentences if len(sentence) > SENTENCE and "\n" not in sentence]
    return list(dict.fromkeys(questions))[:QUESTIONS]


@asynccontextmanager
async def published_in_edge(database: Database, pages: Path) -> AsyncIterator[Database]:
    """A database and a data folder of their own in the running server, with one book."""
    with data_of_its_own(database, AFFIDAVIT_BOOKS__DEFAULT=BOOK) as settings:
        async with wiring.open_database(settings, lambda _: None) as opened:
            opened.migrate()
            await wiring.make_months_ahead(opened, wiring.now().date())
            async with wiring.open_ingest(settings, opened, lambda *_: None) as ingest:
                assert (await ingest.run([pages], BOOK, "Book")).exit_code == 0
            yield opened


async def truth_of(database: Database, questions: list[str]) -> dict[str, Said]:
    """What the embedded index answers."""
    async with wiring.open_house(database.settings, database) as house:
        return {text: said(await ask(house, text)) for text in questions}


def with_qdrant(database: Database, url: str, **more: str) -> Settings:
    """The same data, with this server for the index."""
    chosen = {"DATABASE_URL": database.url, "QDRANT_URL": url, "AFFIDAVIT_PROVIDERS__INDEX": "qdrant"}
    return settings_file.load(
        chosen | {"AFFIDAVIT_BOOKS__DEFAULT": BOOK} | more, data_dir=database.settings.data_dir
    )


@contextmanager
def rebuilds() -> Iterator[list[str]]:
    """The books whose index is rebuilt from now on."""
    rebuilt: list[str] = []
    rebuild = IndexRepair._rebuild

    async def counting(self: IndexRepair, live: LiveIndex) -> None:
        rebuilt.append(live.book_id)
        await rebuild(self, live)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IndexRepair, "_rebuild", counting)
        yield rebuilt
