"""A passage that was changed in the database is not answered from, is named, and comes back with the next ingest of its book."""

import json
import logging
import shutil
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from engine import wiring
from engine.answer import Asked
from engine.cli import book_commands, doctor
from engine.cli.output import FOUND_SOMETHING
from engine.errors import ConfigurationError, PassageDamagedError
from engine.house import House
from engine.models import Answer, Client, Question, Released
from engine.ports import NullExchange
from engine.storage.database import Database
from ingest.indexing import NotRebuildableError
from ingest.pipeline import IngestResult
from tests.databases import data_of_its_own

BOOK = "robots"
OPERATOR = Client("tests", None, frozenset({"ask"}))
QUESTION = "What does an inertial measurement unit measure?"
FORGED = "An inertial measurement unit measures the mood of its owner."
SELECTED = "An inertial measurement unit"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chapter of the sample book."""
    made = tmp_path_factory.mktemp("robots")
    shutil.copy(wiring.SAMPLE_BOOK / "03-sensors-and-state-estimation.md", made)
    return made


@pytest.fixture(scope="module")
async def shelf(anyio_backend: str, database: Database, pages: Path) -> AsyncIterator[Database]:
    with data_of_its_own(database, AFFIDAVIT_BOOKS__DEFAULT=BOOK) as settings:
        async with wiring.open_database(settings, lambda _: None) as opened:
            opened.migrate()
            await wiring.make_months_ahead(opened, wiring.now().date())
            assert (await ingested(opened, pages)).exit_code == 0
            yield opened


async def ingested(shelf: Database, pages: Path, **about: Any) -> IngestResult:
    async with wiring.open_ingest(shelf.settings, shelf, lambda *_: None) as ingest:
        return await ingest.run([pages], BOOK, "Robots", **about)


@pytest.fixture
async def cited(shelf: Database, pages: Path) -> AsyncIterator[str]:
    """The passage that the answer is quoted from; true again at the end."""
    async with wiring.open_house(shelf.settings, shelf) as house:
        answer = await ask(house)
    assert isinstance(answer.outcome, Released)
    yield answer.outcome.excerpts[0].chunk_id
    await ingested(shelf, pages)


@pytest.fixture
def forged(shelf: Database, cited: str) -> str:
    """As a superuser does it: another text under the same id."""
    change(shelf, cited, "text", f"{FORGED} {stored(shelf, cited)['text'][len(FORGED) + 1 :]}")
    return cited


def change(shelf: Database, chunk_id: str, column: str, value: object) -> None:
    with psycopg.connect(shelf.url) as superuser:
        superuser.execute(f"UPDATE chunks SET {column} = %s WHERE chunk_id = %s".encode(), (value, chunk_id))


def stored(shelf: Database, chunk_id: str) -> dict[str, Any]:
    with psycopg.connect(shelf.url, row_factory=dict_row) as connection:
        found = connection.execute("SELECT * FROM chunks WHERE chunk_id = %s", (chunk_id,)).fetchone()
    assert found is not None
    return found


def record(shelf: Database, failure: PassageDamagedError) -> dict[str, Any]:
    with psycopg.connect(shelf.url, row_factory=dict_row) as connection:
        asked = "SELECT * FROM audit_logs WHERE query_id = %s"
        (row,) = connection.execute(asked, (failure.query_id,)).fetchall()
    return row


async def ask(house: House, **about: Any) -> Answer:
    async def read() -> Question:
        return Question(QUESTION, BOOK, house.top_k, **about)

    return await house.engine.answer(Asked("test", "test", NullExchange(read), operator=OPERATOR))


# Seen red without the check: the forged sentence was quoted, with a receipt.
@pytest.mark.parametrize("about", [{}, {"selected_text": SELECTED}], ids=["question", "selection"])
async def test_a_forged_passage_is_not_answered_from(
    shelf: Database, forged: str, about: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with wiring.open_house(shelf.settings, shelf) as house:
        with pytest.raises(PassageDamagedError) as caught, caplog.at_level(logging.ERROR):
            await ask(house, **about)
    row = record(shelf, caught.value)
    assert (row["outcome"], row["http_status"], row["answer_text"]) == ("failed", 503, None)
    assert forged in row["error_message"]
    assert forged in caplog.text
    assert forged not in caught.value.detail


# Seen red without the check.
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("section", "Moods"), ("chapter", "Moods"), ("url", "/elsewhere"), ("filename", "99-moods.md"), ("book_id", "robots-2"),
        ("start_page", "moods"), ("sentences", Jsonb([])), ("sentences", Jsonb({"a": 1})), ("tags", ["moods"]), ("module", 99),
    ],
)  # fmt: skip
async def test_whatever_is_shown_of_a_passage_counts(
    shelf: Database, cited: str, column: str, value: object
) -> None:
    with psycopg.connect(shelf.url) as superuser:
        superuser.execute(
            "INSERT INTO books (book_id, title) VALUES ('robots-2', 'T') ON CONFLICT DO NOTHING"
        )
    change(shelf, cited, column, value)
    async with wiring.open_house(shelf.settings, shelf) as house:
        with pytest.raises(PassageDamagedError):
            await house.engine.library.passages([cited])


async def test_questions_that_do_not_need_the_passage_are_answered(shelf: Database, forged: str) -> None:
    async with wiring.open_house(shelf.settings, shelf) as house:
        live = await house.engine.library.live(BOOK)
        others = {passage["chunk_id"] for passage in contents(shelf, live.generation_id)} - {forged}
        found = await house.engine.library.passages(sorted(others))
    assert len(others) > 3
    assert found.keys() == others


def contents(shelf: Database, generation: object) -> list[dict[str, Any]]:
    with psycopg.connect(shelf.url, row_factory=dict_row) as connection:
        return connection.execute(
            "SELECT chunk_id FROM generation_chunks WHERE generation_id = %s", (generation,)
        ).fetchall()


# Seen red without `chunks_restored`: "67 unchanged", and the forged text stayed.
async def test_an_ingest_of_the_true_book_repairs_the_passage(
    shelf: Database, pages: Path, cited: str, forged: str
) -> None:
    said = await ingested(shelf, pages, dry_run=True)
    assert (said.chunks_restored, said.generation, said.exit_code) == (1, None, 0)
    assert any(forged in warning and "will write them again" in warning for warning in said.warnings)
    assert stored(shelf, forged)["text"].startswith(FORGED)

    done = await ingested(shelf, pages)
    assert (done.chunks_restored, done.chunks_created, done.generation) == (1, 0, None)
    assert not stored(shelf, forged)["text"].startswith(FORGED)
    async with wiring.open_house(shelf.settings, shelf) as house:
        answer = await ask(house)
    assert isinstance(answer.outcome, Released)
    assert (await ingested(shelf, pages)).chunks_restored == 0


async def test_a_new_edition_does_not_take_a_forged_passage_over(
    shelf: Database, pages: Path, forged: str
) -> None:
    async with wiring.open_ingest(shelf.settings, shelf, lambda *_: None) as ingest:
        done = await ingest.run([pages], BOOK, "Robots, second edition")
    assert (done.chunks_restored, done.chunks_created) == (1, 0)
    assert done.generation
    async with wiring.open_house(shelf.settings, shelf) as house:
        assert isinstance((await ask(house)).outcome, Released)


async def test_an_engine_that_runs_sees_the_repair_at_once(shelf: Database, pages: Path, forged: str) -> None:
    async with wiring.open_house(shelf.settings, shelf) as house:
        with pytest.raises(PassageDamagedError):
            await ask(house)
        await ingested(shelf, pages)
        assert isinstance((await ask(house)).outcome, Released)


# Seen red without the new check of doctor: every line was ok.
async def test_doctor_and_index_check_name_the_passage_its_book_and_what_to_do(
    shelf: Database, forged: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {line.part: line for line in await doctor.examine(shelf.settings, shelf)}
    assert found["passages"].state == "failed"
    assert f"{BOOK}: 1 passages are not as they were ingested ({forged})" in found["passages"].words
    assert "ingest the book again" in found["passages"].words
    capsys.readouterr()
    assert await book_commands.index_check(shelf.settings, Namespace(book=None, json=True)) == FOUND_SOMETHING
    (row,) = json.loads(capsys.readouterr().out)
    assert row["damage"] == found["passages"].words.removeprefix(f"{BOOK}: ")


# Seen red without the words: a traceback of psycopg.
async def test_a_login_that_may_not_write_passages_is_told_which_one_may(
    shelf: Database, pages: Path, forged: str
) -> None:
    engine = Database(make_conninfo(shelf.url, user="affidavit_engine"), shelf.settings)
    with pytest.raises(ConfigurationError, match="with the login that migrates"):
        await ingested(engine, pages)
    assert stored(shelf, forged)["text"].startswith(FORGED)


async def test_a_true_book_has_no_altered_passages(shelf: Database, cited: str) -> None:
    async with wiring.open_repair(shelf.settings, shelf) as repair:
        (live,) = await repair.registry.live_indexes()
        assert await repair.altered(live) == ""


# Seen red without the check: searches were filtered by the forged module from then on.
async def test_no_index_is_rebuilt_from_a_changed_passage(shelf: Database, cited: str) -> None:
    change(shelf, cited, "module", 99)
    async with wiring.open_repair(shelf.settings, shelf) as repair:
        (live,) = await repair.registry.live_indexes()
        with pytest.raises(NotRebuildableError, match=cited):
            await repair.rebuild(live)
        assert await repair.examine(live) == ""
