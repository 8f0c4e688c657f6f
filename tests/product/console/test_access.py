"""Who read what, in the console: its page, what is masked, and a second person's approval."""

import re
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from audit.access.policy import Policy
from audit.proof.record import Trail
from engine import wiring
from engine.house import House
from engine.storage.database import Database
from engine.wiring import access
from engine.wiring.signing import head_key
from tests.conftest import Records
from tests.in_process import application
from tests.logs.recorded import write
from tests.product.console.signed_in import form_token_in, key_of, signed_in

ACCESS, REQUESTS = "/console/access", "/console/access/requests"
SCRIPT = "<script>alert(1)</script>"
MASKED = Policy(frozenset({"auditor"}))
TWO = Policy(frozenset({"auditor", "lead"}), second_person=True, approval=timedelta(hours=1))


@pytest.fixture
def masked(house: House) -> House:
    return replace(house, access_policy=MASKED)


@pytest.fixture
def two(house: House) -> House:
    return replace(house, access_policy=TWO)


def access_of(records: Records, name: str) -> Any:
    (row,) = records.where("request_id = %s", name)
    return (row["details"] or {}).get("access")


async def asked(client: httpx.AsyncClient, path: str) -> tuple[httpx.Response, str]:
    return await client.get(path, headers={"X-Request-ID": (name := str(uuid4()))}), name


async def test_the_page_shows_who_read_what_and_is_itself_a_read(
    house: House, database: Database, records: Records
) -> None:
    key = await key_of(database, client=f"reader {SCRIPT}")
    async with signed_in(house, key) as client:
        _, name = await asked(client, ACCESS)
        page, _ = await asked(client, ACCESS)
    assert page.status_code == 200
    assert SCRIPT not in page.text and "reader &lt;script&gt;" in page.text
    assert "reads of the last 7 days" in page.text
    access = access_of(records, name)
    assert (access["who"], access["role"], access["columns"]) == (f"reader {SCRIPT}", "auditor", ["details"])
    assert isinstance(access["records"], int)


# Seen red with columns that had to be there: the page failed for everybody.
async def test_a_read_that_says_nothing_of_itself_is_shown_too(house: House, database: Database) -> None:
    trail = Trail(
        log_id=uuid4(), query_id=uuid4(), timestamp=wiring.now(), endpoint="/console/nothing-said", outcome="served",
        details={"access": {}},
    )  # fmt: skip
    with psycopg.connect(database.url) as inside:
        write(inside, trail, key=head_key(database))
    async with signed_in(house, await key_of(database)) as client:
        page = await client.get(ACCESS)
    assert page.status_code == 200 and "/console/nothing-said" in page.text


@pytest.mark.parametrize("days", ["0", "-1", "367", "x", "1; DROP", "٣"])
async def test_a_wrong_period_is_refused(house: House, database: Database, days: str) -> None:
    async with signed_in(house, await key_of(database)) as client:
        assert (await client.get(ACCESS, params={"days": days})).status_code == 422


# Seen red with the check after the details of the access: the row of a refused page said that it was shown.
async def test_what_is_masked_asks_for_a_reason_and_comes_with_it(
    masked: House, database: Database, records: Records
) -> None:
    async with signed_in(masked, await key_of(database)) as client:
        refused, name = await asked(client, f"{ACCESS}?days=3")
        assert refused.status_code == 403
        assert 'name="basis"' in refused.text and 'name="days" value="3"' in refused.text
        assert access_of(records, name) is None
        shown, name = await asked(client, f"{ACCESS}?days=3&basis=case+12")
        assert (shown.status_code, access_of(records, name)["basis"]) == (200, "case 12")
    async with signed_in(masked, await key_of(database, "audit", "review")) as client:
        assert (await client.get(ACCESS)).status_code == 200


# Seen red with `Role.LEAD` not required, and with an approval by whoever asked.
async def test_a_second_person_approves(two: House, database: Database, records: Records) -> None:
    one = await key_of(database, "audit", client="one")
    lead = await key_of(database, "audit", "lead", client="a lead")
    async with signed_in(two, one) as asker, signed_in(two, lead) as approver:
        assert (await asker.get(ACCESS, params={"basis": "case 12"})).status_code == 403
        token = form_token_in((await asker.get(REQUESTS)).text)
        assert (await asker.post(REQUESTS, data={"form_token": token, "basis": SCRIPT})).status_code == 303
        page = (await approver.get(REQUESTS)).text
        assert SCRIPT not in page
        request = re.findall(r'name="request" value="([0-9a-f-]{36})"', page)[-1]
        assert request not in re.findall(r'name="request" value="([^"]+)"', (await asker.get(REQUESTS)).text)
        approval = {"basis": "case 12", "approval": request}
        assert (await asker.get(ACCESS, params=approval)).status_code == 403
        forged = {"form_token": token, "request": request}
        assert (await asker.post(REQUESTS, data=forged)).status_code == 403
        token = form_token_in(page)
        assert (
            await approver.post(REQUESTS, data={"form_token": token, "request": request})
        ).status_code == 303
        shown = await asker.get(ACCESS, params=approval, headers={"X-Request-ID": (name := str(uuid4()))})
        assert (shown.status_code, access_of(records, name)["second"]) == (200, "a lead")
        assert (await approver.get(ACCESS, params=approval)).status_code == 403, "it is another person's"
        assert (await approver.post(REQUESTS, data={"form_token": token, "basis": "mine"})).status_code == 303
        own = [each for each in await two.unmask_requests() if each.who == "a lead"][-1].request_id
        told = await approver.post(REQUESTS, data={"form_token": token, "request": str(own)})
        assert (told.status_code, "takes a second person" in told.text) == (422, True)


async def test_an_auditor_who_reads_another_clients_proof_is_on_record(
    house: House, database: Database, records: Records, key: str
) -> None:
    auditor = await key_of(database)
    async with application(house, key=key) as (_, client):
        answer = await client.post("/v1/query", json={"query": "What does an IMU measure?"})
        path = f"/v1/receipts/{answer.json()['query_id']}"
        own = await client.get(path, headers={"X-Request-ID": (own_name := str(uuid4()))})
        heads = {"X-Request-ID": (name := str(uuid4())), "Authorization": f"Bearer {auditor}"}
        others = await client.get(path, headers=heads)
    assert own.status_code == others.status_code
    assert access_of(records, own_name) is None
    found = access_of(records, name)
    assert (found["who"], found["role"], found["records"]) == ("an auditor", "auditor", 1)


# Seen red as a failure of our own.
async def test_requests_that_cannot_be_read_now_are_a_busy_page(house: House, database: Database) -> None:
    gone = Database("host=/nowhere dbname=affidavit", database.settings)
    asking = partial(access.requests_now, gone)
    async with signed_in(house, await key_of(database), unmask_requests=asking) as client:
        assert (await client.get("/console/access/requests")).status_code == 503
