"""What the README and the manual show works: their SQL runs, the first question is answered."""

import asyncio
import re

import httpx
import pytest

from engine.storage.database import Database
from tests.manual.documented import README, SQL

QUERIES = re.findall(r'affidavit audit query "(.+?)"', README)


@pytest.mark.parametrize("statement", [text for _, text in SQL], ids=[title for title, _ in SQL])
async def test_sql_for_auditors_runs(database: Database, statement: str) -> None:
    names, _ = await database.read("affidavit_auditor", statement)
    assert names


@pytest.mark.parametrize("statement", QUERIES)
async def test_the_first_look_at_a_record_works(
    client: httpx.Client, database: Database, statement: str
) -> None:
    await asyncio.to_thread(client.post, "/v1/query", json={"query": "What does an IMU measure?"})
    _, rows = await database.read("affidavit_auditor", statement)
    assert rows


def test_the_first_question_is_answered(client: httpx.Client) -> None:
    (body,) = re.findall(r"-d '(\{.+?\})'", README)
    assert client.post("/v1/query", content=body).json()["outcome"] == "answered"


def test_the_readme_is_short() -> None:
    assert len(README.encode()) <= 8_000
