"""Searching and reading at the console: what is found, shown, kept and recorded, and what nobody else may see."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest

from audit import auditor as offline
from audit.access.policy import Policy
from audit.erasure.target import ErasureTarget
from audit.proof.keys import PublicKey
from audit.proof.record import Trail
from engine import wiring
from engine.house import House
from engine.storage.database import Database
from engine.wiring.signing import head_key
from tests.conftest import Records
from tests.in_process import application
from tests.logs.recorded import write
from tests.product.console.signed_in import form_token_in, key_of, signed_in

IMU = "Why do humanoid robots need an IMU?"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&</textarea>"


@pytest.fixture
async def auditor(house: House, database: Database) -> AsyncIterator[httpx.AsyncClient]:
    async with signed_in(house, await key_of(database)) as client:
        yield client


@pytest.fixture
async def query_id(house: House, key: str) -> str:
    async with application(house) as (_, client):
        told = await client.post("/v1/query", json={"query": IMU}, headers={"Authorization": f"Bearer {key}"})
    assert told.json()["outcome"] == "answered"
    return str(told.json()["query_id"])


async def test_a_record_has_its_quotations_marked_in_their_passage(
    auditor: httpx.AsyncClient, query_id: str, records: Records
) -> None:
    page = await auditor.get(f"/console/records/{query_id}", headers={"X-Request-ID": (name := str(uuid4()))})
    assert page.status_code == 200
    (row,) = records.where("query_id = %s", query_id)
    for cited in row["citations"]:
        assert re.search(r"<blockquote>[^<]*(<mark>[^<]*</mark>[^<]*)*</blockquote>", page.text)
        assert cited["chunk_id"] in page.text
    assert IMU in page.text
    (reading,) = records.where("request_id = %s", name)
    access = reading["details"]["access"]
    assert (access["who"], access["role"], access["filter"]) == (
        "an auditor",
        "auditor",
        f"query_id {query_id}",
    )
    assert {"user_query_text", "answer_text", "citations"} <= set(access["columns"])
    assert reading["endpoint"] == "/console/records/{query_id}"


# Seen red with the columns of the record alone.
async def test_other_turns_and_feedback_are_named_and_masked_too(
    house: House, auditor: httpx.AsyncClient, database: Database, records: Records
) -> None:
    said: dict[str, Any] = {"timestamp": wiring.now(), "outcome": "answered", "session_id": uuid4()}
    erased = Trail(log_id=uuid4(), query_id=uuid4(), endpoint="/v1/query", **said)
    turn = Trail(
        log_id=uuid4(), query_id=uuid4(), endpoint="/v1/query", user_query_text="another turn", **said
    )
    thought = Trail(
        log_id=uuid4(), query_id=uuid4(), timestamp=wiring.now(), endpoint="/v1/feedback", outcome="served",
        details={"query_id": str(erased.query_id), "helpful": False, "reason": "beside_the_point"},
    )  # fmt: skip
    with psycopg.connect(database.url) as inside:
        write(inside, erased, turn, thought, key=head_key(database))
    address = f"/console/records/{erased.query_id}"
    page = await auditor.get(address, headers={"X-Request-ID": (name := str(uuid4()))})
    assert "another turn" in page.text and "beside_the_point" in page.text
    (reading,) = records.where("request_id = %s", name)
    assert reading["details"]["access"]["columns"] == ["answer_text", "details", "user_query_text"]
    masking = replace(house, access_policy=Policy(frozenset({"auditor"}), second_person=True))
    async with signed_in(masking, await key_of(database)) as client:
        page = await client.get(address)
    assert page.status_code == 200 and "another turn" not in page.text and "beside_the_point" not in page.text


async def test_a_pasted_id_or_receipt_leads_to_the_record(
    auditor: httpx.AsyncClient, query_id: str, records: Records
) -> None:
    (row,) = records.where("query_id = %s", query_id)
    for text in (query_id, str(row["log_id"]), str(row["answer_id"])):
        told = await auditor.get("/console/search", params={"text": text})
        assert (told.status_code, told.headers["Location"]) == (303, f"/console/records/{query_id}")
    token = form_token_in((await auditor.get("/console/search")).text)
    receipt = json.dumps(
        {"receipt": {"log_id": str(row["log_id"]), "leaf_hash": bytes(row["leaf_hash"]).hex()}}
    )
    told = await auditor.post("/console/search", data={"form_token": token, "pasted": receipt})
    assert told.headers["Location"] == f"/console/search?text={row['log_id']}"
    told = await auditor.post("/console/search", data={"form_token": token, "pasted": "no id"})
    assert told.status_code == 422


async def test_a_filter_is_an_address_and_a_reading_of_a_list_is_on_record(
    auditor: httpx.AsyncClient, query_id: str, records: Records
) -> None:
    asked = {"text": "humanoid IMU", "outcome": "answered", "from": "2020-01-01"}
    page = await auditor.get(
        "/console/search", params=asked, headers={"X-Request-ID": (name := str(uuid4()))}
    )
    assert f"/console/records/{query_id}" in page.text
    (reading,) = records.where("request_id = %s", name)
    assert reading["details"]["access"]["filter"] == "text “humanoid IMU”, outcome answered, from 2020-01-01"
    assert reading["details"]["access"]["records"] >= 1
    assert (await auditor.get("/console/search", params={"from": "yesterday"})).status_code == 422
    assert (await auditor.get("/console/search", params={"after": "x"})).status_code == 422


async def save(client: httpx.AsyncClient, **fields: str) -> httpx.Response:
    token = form_token_in((await client.get("/console/search")).text)
    return await client.post("/console/saved", data={"form_token": token, "filter": "text=IMU"} | fields)


# Seen red with nobody asked: the frozen result listed what matched the words.
async def test_words_that_are_masked_are_not_found_by_freezing_either(
    house: House, database: Database, query_id: str, records: Records
) -> None:
    masking = replace(house, access_policy=Policy(frozenset({"auditor"}), second_person=True))
    async with signed_in(masking, await key_of(database)) as client:
        assert (await save(client, name=(name := str(uuid4())), kind="frozen")).status_code == 403
        assert name not in (await client.get("/console/saved")).text
        assert (await save(client, name=name, kind="frozen", filter="outcome=answered")).status_code == 303
        assert (await save(client, name=name, kind="view")).status_code == 303


# Seen red without the note of it.
async def test_freezing_is_a_read(auditor: httpx.AsyncClient, records: Records) -> None:
    name = str(uuid4())
    assert (await save(auditor, name=name, kind="frozen")).status_code == 303
    (row, *_) = records.where("endpoint = '/console/saved' AND details ? 'access' ORDER BY timestamp DESC")
    access = row["details"]["access"]
    assert (access["filter"], access["columns"]) == ("text “IMU”", ["answer_text", "user_query_text"])


async def test_nobody_sees_or_deletes_a_private_view_of_another(house: House, database: Database) -> None:
    name = f"mine {uuid4()}"
    async with signed_in(house, await key_of(database, client="owner")) as owner:
        assert (await save(owner, name=name, kind="view")).status_code == 303
        page = (await owner.get("/console/saved")).text
        address = re.search(rf'href="(/console/saved/[^"]+)">{name}', page)
        assert address
    async with signed_in(house, await key_of(database, "audit", "lead", client="another")) as another:
        assert name not in (await another.get("/console/saved")).text
        for guessed in (address[1], f"/console/saved/{uuid4()}", "/console/saved/x"):
            assert (await another.get(guessed)).status_code == 404
            token = form_token_in((await another.get("/console/search")).text)
            assert (await another.post(guessed, data={"form_token": token})).status_code == 404
    async with signed_in(house, await key_of(database, client="owner")) as owner:
        assert (await owner.get(address[1])).headers["Location"] == "/console/search?text=IMU"
        token = form_token_in((await owner.get("/console/search")).text)
        assert (await owner.post(address[1], data={"form_token": token})).status_code == 303
        assert (await owner.get(address[1])).status_code == 404


async def test_only_a_lead_shares_a_view_and_only_its_owner_deletes_it(
    house: House, database: Database
) -> None:
    name = f"ours {uuid4()}"
    async with signed_in(house, await key_of(database, client="plain")) as plain:
        assert (await save(plain, name=name, kind="view", shared="yes")).status_code == 403
    async with signed_in(house, await key_of(database, "audit", "lead", client="boss")) as lead:
        assert (await save(lead, name=name, kind="view", shared="yes")).status_code == 303
    async with signed_in(house, await key_of(database, client="plain")) as plain:
        page = (await plain.get("/console/saved")).text
        address = re.search(rf'href="(/console/saved/[^"]+)">{name}', page)
        assert address
        token = form_token_in((await plain.get("/console/search")).text)
        assert (await plain.post(address[1], data={"form_token": token})).status_code == 404


async def test_what_anybody_wrote_is_text(house: House, database: Database) -> None:
    trail = Trail(
        log_id=uuid4(), query_id=uuid4(), timestamp=wiring.now(), endpoint="/v1/query", outcome="answered", book_id=HOSTILE,
        client_id=HOSTILE, user_query_text=HOSTILE, answer_text=HOSTILE, reason=HOSTILE, session_id=uuid4(), selected_text=HOSTILE,
        chunks_returned=[{"chunk_id": HOSTILE, "score": 0.5}], model_used=HOSTILE, total_latency_ms=9,
        citations=[{"n": 1, "chunk_id": HOSTILE, "excerpt": HOSTILE, "start": 0, "end": 5, "chapter": HOSTILE, "section": HOSTILE, "page": HOSTILE}],
    )  # fmt: skip
    with psycopg.connect(database.url) as inside:
        write(inside, trail, key=head_key(database))
    async with signed_in(house, await key_of(database, "audit", "lead")) as client:
        assert (await save(client, name=HOSTILE, kind="view", filter=f"text={HOSTILE}")).status_code == 303
        pages = [
            f"/console/records/{trail.query_id}",
            "/console/saved",
            "/console/search?client=" + httpx.QueryParams({"x": HOSTILE})["x"],
        ]
        for address in pages:
            page = await client.get(address)
            assert page.status_code == 200
            assert "<script>alert" not in page.text
            assert "<img" not in page.text
            assert "&lt;script&gt;" in page.text
            assert "'unsafe" not in page.headers["Content-Security-Policy"]


async def test_a_frozen_result_is_the_same_after_new_rows_and_says_what_was_erased(
    house: House, database: Database, query_id: str, key: str
) -> None:
    async with wiring.open_sealer(database.settings, database) as sealer:
        await sealer.seal_once()
    async with signed_in(house, await key_of(database)) as client:
        told = await save(client, name="frozen", kind="frozen")
        assert told.status_code == 303
        before = await client.get(told.headers["Location"])
        found = set(re.findall(r"/console/records/([0-9a-f-]{36})", before.text))
        assert query_id in found
        async with application(house) as (_, asking):
            newer = await asking.post(
                "/v1/query", json={"query": IMU}, headers={"Authorization": f"Bearer {key}"}
            )
        async with wiring.open_sealer(database.settings, database) as sealer:
            await sealer.seal_once()
        after = await client.get(told.headers["Location"])
        assert set(re.findall(r"/console/records/([0-9a-f-]{36})", after.text)) == found
        assert newer.json()["query_id"] in (await client.get("/console/search?text=IMU")).text
        assert "were erased since" not in after.text
        async with wiring.open_eraser(database.settings, database) as (eraser, events):
            target = ErasureTarget((), UUID(query_id))
            await eraser.erase(target, "a wish", partial(events.event, "audit erase"))
        erased = await client.get(told.headers["Location"])
        assert set(re.findall(r"/console/records/([0-9a-f-]{36})", erased.text)) == found
        assert "1 of them were erased since" in erased.text
        page = await client.get(f"/console/records/{query_id}")
        assert "Its personal columns were erased" in page.text
        assert IMU not in page.text


async def test_a_proof_is_downloaded_as_the_offline_verifier_takes_it(
    auditor: httpx.AsyncClient, house: House, database: Database, query_id: str, records: Records
) -> None:
    async with wiring.open_sealer(database.settings, database) as sealer:
        await sealer.seal_once()
    told = await auditor.get(
        f"/console/records/{query_id}/proof", headers={"X-Request-ID": (name := str(uuid4()))}
    )
    keys = [PublicKey.of(line) for line in await house.public_keys()]
    assert offline.check(told.content, keys).verdict == "VALID"
    (reading,) = records.where("request_id = %s", name)
    assert reading["details"]["access"]["records"] == 1
    page = (await auditor.get(f"/console/records/{query_id}")).text
    assert page.count('class="verdict good"') >= 5


async def test_what_is_masked_for_a_role_is_shown_once_a_second_person_approved(
    house: House, database: Database, query_id: str, records: Records
) -> None:
    masking = replace(house, access_policy=Policy(frozenset({"auditor"}), second_person=True))
    who = f"masked {uuid4()}"
    async with signed_in(masking, await key_of(database, client=who)) as client:
        for address in (f"/console/records/{query_id}", "/console/search?outcome=answered"):
            page = await client.get(address)
            assert page.status_code == 200
            assert IMU not in page.text
            assert "masked for you" in page.text
        assert (await client.get("/console/search?text=IMU")).status_code == 403
        assert (await client.get(f"/console/records/{query_id}/proof")).status_code == 403
        assert (await client.get("/console/search", params={"text": query_id})).status_code == 303
        token = form_token_in((await client.get("/console/search")).text)
        await client.post("/console/access/requests", data={"form_token": token, "basis": "ticket 4711"})
        assert IMU not in (await client.get(f"/console/records/{query_id}")).text
        (asked,) = records.where("client_id = %s AND details ? 'asks'", who)
        async with signed_in(masking, await key_of(database, "audit", "lead", client="second")) as lead:
            token = form_token_in((await lead.get("/console/search")).text)
            told = await lead.post(
                "/console/access/requests", data={"form_token": token, "request": str(asked["log_id"])}
            )
            assert told.status_code == 303
        page = await client.get(
            f"/console/records/{query_id}", headers={"X-Request-ID": (name := str(uuid4()))}
        )
    assert IMU in page.text
    (reading,) = records.where("request_id = %s", name)
    access = reading["details"]["access"]
    assert (access["basis"], access["second"]) == ("ticket 4711", "second")
