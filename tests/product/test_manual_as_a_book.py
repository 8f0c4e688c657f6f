"""`affidavit up` publishes the manual as a second book, once it answers from the first."""

from pathlib import Path

import httpx
import pytest

from engine import wiring
from engine.cli import manual
from engine.retrieval.library import Book
from engine.settings import Settings
from engine.storage.database import Database
from tests.conftest import HUNG_S, Running, killed_after, running

PAGE = """# Keys

## Revoked keys

Revoked keys are refused within one second, in every process. An auditor sees who revoked them.
"""
QUESTION = "How soon are revoked keys refused?"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manual of one page, read in no time."""
    folder = tmp_path_factory.mktemp("manual")
    (folder / "keys.md").write_text(PAGE)
    return folder


@pytest.fixture
def shelf(settings: Settings, pages: Path) -> Settings:
    return settings.model_copy(update={"books": settings.books.model_copy(update={"manual": str(pages)})})


def test_the_page_offers_the_manual_with_questions_of_its_own(
    data_dir: Path, database: Database, pages: Path
) -> None:
    with running(data_dir, manual=str(pages)) as started:
        assert "The manual can be asked too: 1 pages, 1 passages." in _said_of_the_manual(started)
        with httpx.Client(
            base_url=started.url, headers={"Authorization": f"Bearer {started.key}"}, timeout=30
        ) as client:
            offered = client.get("/page/books").json()["books"]
            assert offered[0]["book_id"] == "physical-ai", "the default book comes first"
            assert {"book_id": "manual", "title": manual.TITLE} in offered
            examples = client.get("/page/books/manual/examples").json()["questions"]
            answer = client.post("/v1/books/manual/query", json={"query": QUESTION}).json()
    assert examples == ["What are revoked keys?"]
    assert answer["outcome"] == "answered"
    assert "within one second" in answer["answer"]


async def test_a_manual_that_did_not_change_is_not_published_again(
    database: Database, shelf: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    await manual.publish(shelf)
    first = await _book(database, manual.MANUAL)
    capsys.readouterr()
    await manual.publish(shelf)
    assert await _book(database, manual.MANUAL) == first
    assert capsys.readouterr().err == ""


# Seen red without the comparison of the title: the owner's pages were replaced.
async def test_a_book_of_the_owners_with_that_name_is_left_alone(
    database: Database, shelf: Settings, pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manual, "MANUAL", "washing-machine")
    async with wiring.open_ingest(shelf, database, lambda *_: None) as ingest:
        await ingest.run([pages], "washing-machine", "The Washing Machine")
    before = await _book(database, "washing-machine")
    await manual.publish(shelf)
    assert await _book(database, "washing-machine") == before


async def _book(database: Database, book_id: str) -> Book:
    async with wiring.open_registry(database) as registry:
        (found,) = [book for book in await registry.books() if book.book_id == book_id]
    return found


def _said_of_the_manual(started: Running) -> str:
    assert started.process.stdout is not None
    with killed_after(HUNG_S, started.process):
        return next((line for line in started.process.stdout if "manual" in line), "It ended before.")
