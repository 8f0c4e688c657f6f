"""A key that is restricted to books learns nothing of a question about another one, though the question is its client's."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest

from engine import wiring
from engine.admission.sessions import Sessions
from engine.errors import UnknownRecordError, UnknownSessionError
from engine.house import House
from engine.storage.database import Database
from tests.conftest import Records
from tests.in_process import application

BOOK = "physical-ai"
IMU = {"query": "What does an IMU measure?"}
SAME = ("type", "title", "detail", "error_type", "retryable", "status")

Headers = dict[str, str]


@pytest.fixture
async def site(house: House) -> AsyncIterator[httpx.AsyncClient]:
    async with application(house, sessions=Sessions(house.pool, 30, uuid4)) as (_, client):
        yield client


async def key_for(database: Database, *books: str, scopes: tuple[str, ...] = ("ask",)) -> Headers:
    """A key of one client, restricted to these books."""
    async with wiring.open_keys(database) as keys:
        return {"Authorization": f"Bearer {await keys.create('a shelf', list(scopes), None, list(books))}"}


async def asked(site: httpx.AsyncClient, headers: Headers, **fields: Any) -> dict[str, Any]:
    response = await site.post("/v1/query", json=IMU | fields, headers=headers)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def seal(database: Database) -> None:
    async with wiring.open_sealer(database.settings, database) as sealer:
        await sealer.seal_once()


def told(response: httpx.Response) -> dict[str, Any]:
    return {name: response.json()[name] for name in SAME}


def assert_refused(response: httpx.Response, records: Records, status: int, kind: str) -> None:
    """With a row that says so and nothing of the question."""
    assert (response.status_code, response.json()["type"]) == (status, f"urn:affidavit:problem:{kind}")
    (row,) = records.of(response.json()["query_id"])
    assert (row["http_status"], row["client_id"], row["outcome"]) == (status, "a shelf", "failed")
    assert (row["book_id"], row["user_query_text"]) == (None, "")


# Seen red with only the client compared: the bundle held question and answer.
@pytest.mark.parametrize("scope", ["ask", "audit"])
async def test_the_proof_of_a_record_is_for_keys_of_its_book(
    site: httpx.AsyncClient, database: Database, records: Records, scope: str
) -> None:
    query_id = (await asked(site, await key_for(database)))["query_id"]
    await seal(database)
    foreign = await key_for(database, "second-book", scopes=(scope,))
    refused = await site.get(f"/v1/receipts/{query_id}", headers=foreign)
    assert_refused(refused, records, UnknownRecordError.status, "UnknownRecord")
    assert told(refused) == told(await site.get(f"/v1/receipts/{uuid4()}", headers=foreign))
    own = await key_for(database, "second-book", BOOK, scopes=(scope,))
    given = await site.get(f"/v1/receipts/{query_id}", headers=own)
    assert given.json()["row"]["user_query_text"] == IMU["query"]


# Seen red with only the client compared: 409, so there is such a record.
async def test_a_record_that_waits_for_its_seal_does_not_exist_for_keys_of_other_books(
    site: httpx.AsyncClient, database: Database, records: Records
) -> None:
    query_id = (await asked(site, await key_for(database)))["query_id"]
    refused = await site.get(f"/v1/receipts/{query_id}", headers=await key_for(database, "second-book"))
    assert_refused(refused, records, UnknownRecordError.status, "UnknownRecord")


# Seen red with the row of a served proof naming no book.
async def test_the_record_of_a_proof_belongs_to_the_book_too(
    site: httpx.AsyncClient, database: Database, records: Records
) -> None:
    whole = await key_for(database)
    query_id = (await asked(site, whole))["query_id"]
    await seal(database)
    await site.get(f"/v1/receipts/{query_id}", headers=whole)
    (row,) = records.where("details ->> 'query_id' = %s", query_id)
    assert (row["outcome"], row["book_id"]) == ("served", BOOK)


async def test_a_record_without_a_book_is_provable_for_every_key_of_its_client(
    site: httpx.AsyncClient, database: Database
) -> None:
    bound = await key_for(database, "second-book")
    failed = await site.post("/v1/query", json={}, headers=bound)
    assert failed.status_code == 422
    await seal(database)
    given = await site.get(f"/v1/receipts/{failed.json()['query_id']}", headers=bound)
    assert given.status_code == 200


# Seen red with `_may_read` letting every auditor read what has no book.
async def test_a_record_without_a_book_is_for_its_client_and_for_auditors_of_all_books(
    site: httpx.AsyncClient, database: Database
) -> None:
    failed = await site.post("/v1/query", json={}, headers=await key_for(database))
    await seal(database)
    path = f"/v1/receipts/{failed.json()['query_id']}"
    async with wiring.open_keys(database) as keys:
        bound, all_books = [
            {"Authorization": f"Bearer {await keys.create('an auditor', ['audit'], None, books)}"}
            for books in ([BOOK], [])
        ]
    statuses = [(await site.get(path, headers=headers)).status_code for headers in (bound, all_books)]
    assert statuses == [404, 200]


# Seen red with the books left out of `_OWNED`: it was read, and deleted.
async def test_a_session_about_another_book_does_not_exist(
    site: httpx.AsyncClient, database: Database, records: Records
) -> None:
    begun = await asked(site, await key_for(database))
    path, opening = f"/v1/sessions/{begun['session_id']}", {"X-Session-Token": begun["session_token"]}
    foreign = await key_for(database, "second-book") | opening
    nobodys = await site.get(f"/v1/sessions/{uuid4()}", headers=foreign)
    for method in ("GET", "DELETE"):
        refused = await site.request(method, path, headers=foreign)
        assert_refused(refused, records, UnknownSessionError.status, "UnknownSession")
        assert told(refused) == told(nobodys)
    own = await key_for(database, "second-book", BOOK) | opening
    assert len((await site.get(path, headers=own)).json()["messages"]) == 2
    assert (await site.delete(path, headers=own)).status_code == 200


# Seen red with the books left out of `_OWNED`.
async def test_a_session_about_several_books_is_for_keys_of_all_of_them(
    site: httpx.AsyncClient, database: Database, records: Records
) -> None:
    whole, half = await key_for(database), await key_for(database, BOOK)
    begun = await asked(site, whole)
    opening = {"X-Session-Token": begun["session_token"]}
    with psycopg.connect(database.url) as connection:
        connection.execute(
            "INSERT INTO chat_messages (session_id, query_id, book_id, role, content)"
            " VALUES (%s, %s, 'second-book', 'user', 'What did the other book say?')",
            (begun["session_id"], uuid4()),
        )
    path = f"/v1/sessions/{begun['session_id']}"
    assert_refused(await site.get(path, headers=half | opening), records, 404, "UnknownSession")
    follow_up = IMU | {"session_id": begun["session_id"]}
    refused = await site.post("/v1/query", json=follow_up, headers=half | opening)
    assert (refused.status_code, refused.json()["type"]) == (404, "urn:affidavit:problem:UnknownSession")
    assert len(records.of(refused.json()["query_id"])) == 1
    for headers in (whole, await key_for(database, BOOK, "second-book")):
        assert len((await site.get(path, headers=headers | opening)).json()["messages"]) == 3


# Seen red without the check: the key of another book erased the record.
@pytest.mark.parametrize("books", [["second-book"], [BOOK]])
@pytest.mark.parametrize("by", ["query_id", "user_id"])
async def test_an_erasure_reaches_all_books_so_no_key_of_some_books_may_ask_for_one(
    site: httpx.AsyncClient, database: Database, records: Records, by: str, books: list[str]
) -> None:
    reader = f"user:{uuid4()}"
    query_id = (await asked(site, await key_for(database) | {"X-End-User": reader}))["query_id"]
    await seal(database)
    body = {"basis": "ticket 4711"} | ({"query_id": query_id} if by == "query_id" else {"user_id": reader})
    bound = await key_for(database, *books, scopes=("erase",))
    assert_refused(await site.post("/v1/erasures", json=body, headers=bound), records, 403, "Forbidden")
    (row,) = records.of(UUID(query_id))
    assert (row["erased_at"], row["user_query_text"]) == (None, IMU["query"])
