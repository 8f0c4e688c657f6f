"""What the page reads beside the answers: books, example questions, and a passage in its context. Keys and rows as for asking."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from engine import wiring
from engine.house import House
from engine.storage.database import Database
from tests.conftest import Records
from tests.in_process import application

BOOK = "physical-ai"
CODE = "How do I write a publisher node? Show code"

Headers = dict[str, str]


@pytest.fixture
async def site(house: House) -> AsyncIterator[httpx.AsyncClient]:
    async with application(house) as (_, client):
        yield client


@pytest.fixture
def headers(key: str) -> Headers:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
async def foreign(database: Database) -> Headers:
    """A key that is for another book."""
    async with wiring.open_keys(database) as keys:
        return {"Authorization": f"Bearer {await keys.create('a shelf', ['ask'], None, ['second-book'])}"}


async def cited(site: httpx.AsyncClient, headers: Headers, question: str) -> list[dict[str, Any]]:
    said = await site.post("/v1/query", json={"query": question}, headers=headers)
    return list(said.json()["citations"])


async def test_a_passage_stands_between_its_neighbours_and_the_quote_is_where_the_citation_says(
    site: httpx.AsyncClient, headers: Headers, records: Records
) -> None:
    for citation in await cited(site, headers, CODE):
        found = await site.get(f"/passages/{BOOK}/{citation['chunk_id']}", headers=headers)
        body = found.json()
        assert body["passage"]["text"][citation["start"] : citation["end"]] == citation["excerpt"]
        assert body["before"]["text"]
        assert body["after"]["text"]
        assert body["before"]["text"] not in body["passage"]["text"]
    (row,) = records.where("request_id = %s", found.headers["X-Request-ID"])
    assert (row["endpoint"], row["book_id"]) == ("/passages/{book_id}/{chunk_id}", BOOK)


async def test_the_code_of_a_passage_is_told_from_its_prose(
    site: httpx.AsyncClient, headers: Headers
) -> None:
    (citation,) = [one for one in await cited(site, headers, CODE) if "import rclpy" in one["excerpt"]]
    part = (await site.get(f"/passages/{BOOK}/{citation['chunk_id']}", headers=headers)).json()["passage"]
    blocks = [part["text"][span["start"] : span["end"]] for span in part["code"]]
    assert any(block.startswith("import rclpy\nfrom rclpy.node import Node") for block in blocks)
    assert not any("Never block" in block for block in blocks)


async def test_whoever_may_not_ask_the_book_may_not_read_it(
    site: httpx.AsyncClient, headers: Headers, foreign: Headers
) -> None:
    (citation, *_) = await cited(site, headers, CODE)
    passage = f"/passages/{BOOK}/{citation['chunk_id']}"
    assert (await site.get(passage)).status_code == 401
    assert (await site.get(passage, headers=foreign)).status_code == 404
    examples = f"/page/books/{BOOK}/examples"
    assert (await site.get(examples)).status_code == 401
    assert (await site.get(examples, headers=foreign)).status_code == 404
    assert (await site.get("/page/books")).status_code == 401
    assert (await site.get("/page/books", headers=foreign)).json() == {"books": []}


@pytest.mark.parametrize(
    "path", [f"/passages/{BOOK}/{'0' * 64}", f"/passages/{BOOK}/nope", "/page/books/nope/examples"]
)
async def test_what_is_not_there_is_not_found(site: httpx.AsyncClient, headers: Headers, path: str) -> None:
    found = await site.get(path, headers=headers)
    assert (found.status_code, found.headers["Content-Type"]) == (404, "application/problem+json")


async def test_a_passage_is_not_found_in_another_book(site: httpx.AsyncClient, headers: Headers) -> None:
    (citation, *_) = await cited(site, headers, CODE)
    found = await site.get(f"/passages/another-book/{citation['chunk_id']}", headers=headers)
    assert found.status_code == 404


async def test_the_default_book_is_named_first(site: httpx.AsyncClient, headers: Headers) -> None:
    books = (await site.get("/page/books", headers=headers)).json()["books"]
    assert books[0] == {"book_id": BOOK, "title": wiring.SAMPLE_TITLE}


async def test_every_example_question_is_answered_by_its_book(
    site: httpx.AsyncClient, headers: Headers
) -> None:
    questions = (await site.get(f"/page/books/{BOOK}/examples", headers=headers)).json()["questions"]
    assert questions == ["What Is Physical AI?", "What is sensor fusion?", "What is the capture point?"]
    for question in questions:
        assert await cited(site, headers, question), question
