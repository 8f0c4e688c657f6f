"""Thumbs for an answer or a refusal: a row each, from nobody but who asked, and the last one in `audit_feedback`."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from engine import wiring
from engine.errors import UnknownRecordError
from engine.house import House
from engine.storage.database import Database
from tests.conftest import Records
from tests.in_process import application
from tests.product.access.test_public_tokens import SITE, a_site

ANSWERED = "What does an IMU measure?"
REFUSED = "Who won the football world cup in 1998?"
SAME = ("type", "title", "detail", "error_type", "retryable", "status")

Headers = dict[str, str]


@pytest.fixture
async def site(house: House) -> AsyncIterator[httpx.AsyncClient]:
    async with application(house) as (_, client):
        yield client


@pytest.fixture
async def key(database: Database) -> Headers:
    return await key_of(database, f"reader-{uuid4()}")


async def key_of(database: Database, client_id: str, limit: str | None = None, *books: str) -> Headers:
    async with wiring.open_keys(database) as keys:
        return {"Authorization": f"Bearer {await keys.create(client_id, ['ask'], limit, list(books))}"}


async def asked(site: httpx.AsyncClient, headers: Headers, text: str = ANSWERED) -> str:
    response = await site.post("/v1/query", json={"query": text}, headers=headers)
    assert response.status_code == 200, response.text
    return str(response.json()["query_id"])


async def judged(site: httpx.AsyncClient, headers: Headers, query_id: str, **said: Any) -> httpx.Response:
    return await site.post("/v1/feedback", json={"query_id": query_id} | said, headers=headers)


def shown(database: Database, query_id: str) -> list[tuple[Any, ...]]:
    """What `audit_feedback` shows an auditor of this question."""
    with psycopg.connect(database.url) as connection:
        connection.execute("SET ROLE affidavit_auditor")
        return connection.execute(
            "SELECT helpful, complaint, outcome, reason, confidence_level IS NULL, user_query_text"
            " FROM audit_feedback WHERE query_id = %s",
            (query_id,),
        ).fetchall()


def rows_about(records: Records, query_id: str) -> list[dict[str, Any]]:
    return records.where(
        "endpoint = '/v1/feedback' AND details ->> 'query_id' = %s ORDER BY timestamp", query_id
    )


async def test_feedback_is_a_row_of_its_own_and_the_last_one_counts(
    site: httpx.AsyncClient, key: Headers, database: Database, records: Records
) -> None:
    query_id = await asked(site, key)
    for said in ({"helpful": True}, {"helpful": False}, {"helpful": False, "reason": "outdated"}):
        told = await judged(site, key, query_id, **said)
        assert (told.status_code, told.json()) == (200, {"query_id": query_id, "recorded": True})
    rows = rows_about(records, query_id)
    assert [row["details"] for row in rows] == [
        {"query_id": query_id, "helpful": True, "reason": None},
        {"query_id": query_id, "helpful": False, "reason": None},
        {"query_id": query_id, "helpful": False, "reason": "outdated"},
    ]
    assert {(row["outcome"], row["book_id"], row["user_query_text"]) for row in rows} == {
        ("served", "physical-ai", "")
    }
    assert shown(database, query_id) == [(False, "outdated", "answered", None, False, ANSWERED)]


async def test_a_refusal_is_judged_too(site: httpx.AsyncClient, key: Headers, database: Database) -> None:
    query_id = await asked(site, key, REFUSED)
    assert (await judged(site, key, query_id, helpful=False, reason="wrong")).status_code == 200
    assert shown(database, query_id) == [(False, "wrong", "refused", "not_covered", True, REFUSED)]


# Seen red with the client not compared, and with the books of the key not asked.
async def test_nobody_else_can_judge_it_and_what_is_unknown_is_told_in_the_same_words(
    site: httpx.AsyncClient, key: Headers, database: Database, records: Records
) -> None:
    query_id = await asked(site, key)
    (row,) = records.of(query_id)
    unknown = await judged(site, key, str(uuid4()), helpful=False)
    feedback_id = (await judged(site, key, query_id, helpful=True)).headers["X-Request-ID"]
    (given,) = records.where("request_id = %s", feedback_id)
    refused = [
        await judged(site, await key_of(database, "somebody else"), query_id, helpful=False),
        await judged(site, await key_of(database, row["client_id"], None, "other"), query_id, helpful=False),
        await judged(site, key, str(given["query_id"]), helpful=False),  # feedback is no answer
    ]
    for told in (unknown, *refused):
        assert told.status_code == UnknownRecordError.status
        assert [told.json()[name] for name in SAME] == [unknown.json()[name] for name in SAME]
        (failed,) = records.of(told.json()["query_id"])
        assert (failed["outcome"], failed["book_id"]) == ("failed", None)
    assert [each[0] for each in shown(database, query_id)] == [True]


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"helpful": "yes"}, "helpful"),
        ({"helpful": 1}, "helpful"),
        ({}, "helpful"),
        ({"helpful": False, "reason": "boring"}, "reason"),
        ({"helpful": False, "comment": "My name is Jane."}, "comment"),
        ({"helpful": True, "query_id": "no-id"}, "query_id"),
    ],
)
async def test_what_is_malformed_names_its_field_and_records_nothing_of_it(
    site: httpx.AsyncClient, key: Headers, records: Records, said: dict[str, Any], field: str
) -> None:
    told = await judged(site, key, **({"query_id": str(uuid4())} | said))
    assert (told.status_code, told.json()["field"]) == (422, field)
    (row,) = records.of(told.json()["query_id"])
    assert (row["outcome"], row["details"]) == ("failed", None)
    assert "Jane" not in str(row)


async def test_feedback_counts_against_the_limit_of_the_key(
    site: httpx.AsyncClient, database: Database
) -> None:
    own = await key_of(database, f"reader-{uuid4()}", "2/hour")
    query_id = await asked(site, own)
    statuses = [(await judged(site, own, query_id, helpful=True)).status_code for _ in range(2)]
    assert statuses == [200, 429]


# Seen red with the reader not compared: one visitor of the site judged for another.
async def test_a_page_with_a_public_token_judges_what_its_own_reader_asked(
    house: House, database: Database, key: Headers, records: Records
) -> None:
    async with a_site(house, key["Authorization"].removeprefix("Bearer ")) as listed:
        sent = {"Authorization": f"Bearer {await listed.token()}", "Origin": SITE}
        query_id = await asked(listed.client, sent)
        of_the_server = await asked(listed.client, key)
        assert (await judged(listed.client, sent, of_the_server, helpful=False)).status_code == 404
        assert (await judged(listed.client, sent, query_id, helpful=True)).status_code == 200
        elsewhere = await judged(
            listed.client, sent | {"Origin": "https://x.example"}, query_id, helpful=True
        )
        assert elsewhere.status_code == 403
    (row,) = rows_about(records, query_id)
    assert row["details"] == {"public_token": SITE, "query_id": query_id, "helpful": True, "reason": None}
    assert row["end_user"] == "anon:127.0.0.1"


async def test_erased_feedback_is_not_shown(
    site: httpx.AsyncClient, key: Headers, database: Database, records: Records
) -> None:
    reader = {"X-End-User": f"user:{uuid4()}"}
    query_id = await asked(site, key | reader)
    assert (await judged(site, key | reader, query_id, helpful=False)).status_code == 200
    async with wiring.open_sealer(database.settings, database) as sealer:
        await sealer.seal_once()
    async with wiring.open_keys(database) as keys:
        eraser = {"Authorization": f"Bearer {await keys.create('a desk', ['erase'], None)}"}
    told = await site.post(
        "/v1/erasures", json={"user_id": reader["X-End-User"], "basis": "Ticket 1"}, headers=eraser
    )
    assert (told.status_code, told.json()["records"]) == (200, 2)
    assert shown(database, query_id) == []
    assert rows_about(records, query_id) == []
