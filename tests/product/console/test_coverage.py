"""The page that an auditor opens first: what is wrong, which months there are, and what the last verification found."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import psycopg
import pytest

from audit.coverage.recent import RecentCoverage
from engine.house import House
from engine.storage.database import Database
from tests.conftest import Records
from tests.product.console.signed_in import form_token_in, key_of, signed_in

VERIFICATION = "/console/verification"


@pytest.fixture
async def auditor(house: House, database: Database) -> AsyncIterator[httpx.AsyncClient]:
    async with signed_in(house, await key_of(database)) as client:
        yield client


async def start(client: httpx.AsyncClient) -> httpx.Response:
    token = form_token_in((await client.get("/console")).text)
    return await client.post(VERIFICATION, data={"form_token": token})


async def wait_for_verdict(client: httpx.AsyncClient) -> str:
    """As a browser does that loads the page again when it is told to."""
    while True:
        page = (await client.get(VERIFICATION)).text
        if 'http-equiv="refresh"' not in page:
            return page
        await asyncio.sleep(0.1)


async def test_months_and_alarms_are_there_with_a_table_behind_the_picture(
    auditor: httpx.AsyncClient,
) -> None:
    page = (await auditor.get("/console")).text
    assert "<svg" in page
    assert 'role="img"' in page
    assert "<caption>Records of each month" in page
    assert page.count("<h1>") == 1


# Seen red with the run's record left out.
async def test_verify_now_runs_in_the_background_and_its_verdict_is_a_record(
    auditor: httpx.AsyncClient, records: Records
) -> None:
    said = await start(auditor)
    assert (said.status_code, said.headers["Location"]) == (303, VERIFICATION)
    page = await wait_for_verdict(auditor)
    row = records.where("endpoint = 'affidavit audit verify' ORDER BY timestamp DESC LIMIT 1")[0]
    assert row["details"]["verdict"] in page
    assert {"checked", "findings", "seconds"} <= row["details"].keys()
    assert row["client_id"] == "an auditor"
    assert row["details"]["verdict"] in (await auditor.get("/console")).text


async def test_two_verifications_do_not_run_beside_each_other(
    auditor: httpx.AsyncClient, records: Records
) -> None:
    def count() -> int:
        return len(records.where("endpoint = 'affidavit audit verify'"))

    before = count()
    await asyncio.gather(*(start(auditor) for _ in range(3)))
    await wait_for_verdict(auditor)
    assert count() == before + 1


async def test_a_run_whose_process_died_does_not_stop_the_next_one(
    auditor: httpx.AsyncClient, database: Database
) -> None:
    with psycopg.connect(database.url) as connection:
        connection.execute(
            "INSERT INTO verification_runs (run_id, asked_by, seen_at) VALUES (gen_random_uuid(), 'the dead', now() - interval '1 minute')"
        )
    assert "the dead" not in (await auditor.get("/console")).text
    await start(auditor)
    assert "an auditor" in await wait_for_verdict(auditor)


async def test_a_verification_is_not_started_by_looking(
    auditor: httpx.AsyncClient, database: Database
) -> None:
    with psycopg.connect(database.url) as connection:
        count = "SELECT count(*) FROM verification_runs"
        before = connection.execute(count).fetchone()
        await auditor.get(VERIFICATION)
        assert connection.execute(count).fetchone() == before


async def test_a_log_that_takes_long_to_count_is_no_failed_page(house: House, database: Database) -> None:
    never = asyncio.Event()

    async def read() -> object:
        return await never.wait()

    slow = RecentCoverage(read, lambda: 0.0, patience_s=0.01)  # type: ignore[arg-type]
    async with signed_in(house, await key_of(database), coverage=slow) as client:
        page = await client.get("/console")
    await slow.close()
    assert page.status_code == 200
    assert 'http-equiv="refresh"' in page.text
