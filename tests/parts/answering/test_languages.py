"""Books in other languages: found at ingest, answered by their words, refused by a gate that is calibrated in their language."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import psycopg
import pytest

from engine import wiring
from engine.answer import ASK, Asked
from engine.cli import book_commands
from engine.house import House
from engine.models import Answer, Client, Question, Refusal, Released
from engine.ports import NullExchange
from engine.retrieval import raw_scores, words_only
from engine.settings import Settings
from engine.storage.database import Database
from tests.conftest import ROOT, Records, campaign_only
from tests.databases import migrated_database

BOOKS = ROOT / "tests" / "data" / "languages"
EMBEDDERS = {
    "de": raw_scores.MULTILINGUAL,
    "hi": words_only.NAME,
    "ur": words_only.NAME,
    "zh": raw_scores.MULTILINGUAL,
}
KEPT_MIN = 10  # of twelve questions that the book answers
RIGHT_MIN = 9
LET_THROUGH_MAX = 1  # of eight about other things


@asynccontextmanager
async def serving(settings: Settings, database: Database, language: str) -> AsyncIterator[tuple[House, str]]:
    """An engine with the book of a language."""
    book = f"pottery-{language}-{uuid4().hex[:6]}"
    async with wiring.open_ingest(settings, database, lambda *_: None) as ingest:
        result = await ingest.run([BOOKS / language], book, "Pottery")
    assert (result.files_processed, result.exit_code, result.warnings) == (6, 0, [])
    assert f"read in {language} by {EMBEDDERS[language]}" in book_commands._ingested(result, dry_run=False)
    async with wiring.open_house(settings, database) as house:
        yield house, book


async def asked(house: House, book: str, text: str) -> Answer:
    async def read() -> Question:
        return Question(text, book, 5)

    operator = Client("operator", None, ASK)
    return await house.engine.answer(Asked("tests", str(uuid4()), NullExchange(read), operator=operator))


def questions(language: str) -> list[tuple[str, str | None]]:
    lines = (BOOKS / language / "questions.jsonl").read_text().splitlines()
    return [(row["question"], row["must_quote"]) for row in map(json.loads, lines)]


@pytest.mark.parametrize("language", [name if name == "de" else campaign_only(name) for name in EMBEDDERS])
async def test_a_book_is_answered_in_its_language(
    settings: Settings, database: Database, language: str
) -> None:
    async with serving(settings, database, language) as (house, book):
        generation = await house.library.live(book)
        assert (generation.language, generation.embedder) == (language, EMBEDDERS[language])
        assert generation.calibration.kind == "self"
        found = [
            (text, quote, (await asked(house, book, text)).outcome) for text, quote in questions(language)
        ]
    answered = {text: outcome for text, _, outcome in found if isinstance(outcome, Released)}
    assert sum(text in answered for text, quote, _ in found if quote) >= KEPT_MIN
    assert sum(text in answered for text, quote, _ in found if not quote) <= LET_THROUGH_MAX
    right = [text for text, quote, _ in found if quote and text in answered and quote in answered[text].text]
    assert len(right) >= RIGHT_MIN
    assert "high" not in {outcome.confidence_level for outcome in answered.values()}


async def test_a_question_in_a_language_that_the_embedder_cannot_compare_is_refused_in_that_language(
    house: House, settings: Settings, records: Records
) -> None:
    answer = await asked(
        house, settings.books.default, "Was ist der Unterschied zwischen einem Gyroskop und einem Kompass?"
    )
    assert isinstance(answer.outcome, Refusal)
    assert answer.outcome.reason == "language_not_supported"
    assert answer.outcome.message.startswith("Dieses Buch kann nicht in dieser Sprache befragt werden.")
    (row,) = records.of(answer.trail.query_id)
    assert (row["reason"], row["answer_text"]) == ("language_not_supported", answer.outcome.message)
    assert row["index_generation"]


async def test_a_book_without_an_embedder_for_its_language_is_asked_in_its_language_only(
    settings: Settings, database: Database
) -> None:
    async with serving(settings, database, "ur") as (house, book):
        answer = await asked(house, book, "Why is the clay left outside in the winter?")
        short = await asked(house, book, "1240?")
    assert isinstance(answer.outcome, Refusal)
    assert answer.outcome.reason == "language_not_supported"
    assert isinstance(short.outcome, Released)


async def test_an_edition_from_before_languages_were_found_is_asked_in_any(
    settings: Settings, database: Database
) -> None:
    async with serving(settings, database, "ur") as (_, book):
        with psycopg.connect(database.url) as connection:
            connection.execute("UPDATE generations SET language = NULL WHERE book_id = %s", (book,))
    async with wiring.open_house(settings, database) as house:
        generation = await house.library.live(book)
        answer = await asked(house, book, "Why is the clay left outside in the winter?")
    assert (generation.language, generation.is_language_known) == ("en", False)
    assert isinstance(answer.outcome, Refusal)
    assert answer.outcome.reason == "not_covered"


async def test_a_language_that_is_said_is_not_looked_for(settings: Settings, database: Database) -> None:
    with migrated_database(database) as own:  # its doctor would name a book that is not calibrated
        async with wiring.open_ingest(settings, own, lambda *_: None) as ingest:
            result = await ingest.run([BOOKS / "de"], "said", "Pottery", language="sv")
            assert (await ingest.run([BOOKS / "de"], "said", "Pottery", language="sv")).generation is None
            live = await ingest.registry.live("said")
    assert live.language == "sv"
    assert live.calibration.kind == "shipped"  # there are no probe questions in Swedish
    assert "not calibrated" in result.warnings[0]
