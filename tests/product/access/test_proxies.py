"""`X-Forwarded-For` names the client only if it comes from a proxy that the settings name."""

import asyncio
import logging
from collections import Counter
from typing import Any
from uuid import uuid4

import httpx
import pytest

from engine.admission.flood import ROWS_MAX
from engine.admission.proxies import TrustedProxies
from engine.house import House
from engine.http import request_context
from tests.conftest import Records, Running
from tests.in_process import application

QUESTION = {"query": "What does an IMU measure?"}
PEER = "127.0.0.1"  # of every client in these tests
FLOODING = "127.0.0.61"  # but of the flood, which is counted by address and would reach other tests
FLOOD = 300
AT_ONCE = 50


async def told(client: httpx.AsyncClient, request_id: str, *forwarded: str) -> Any:
    headers = [("X-Request-ID", request_id), *(("X-Forwarded-For", value) for value in forwarded)]
    response = await client.post("/v1/query", json=QUESTION, headers=headers)
    assert response.status_code == 401
    return response.json()


# Seen red with uvicorn's own `proxy_headers`, which believes every client on this machine: 300 rows.
async def test_a_flood_with_made_up_addresses_is_counted_as_of_its_real_one(
    server: Running, records: Records
) -> None:
    ids = [str(uuid4()) for _ in range(FLOOD)]
    room = asyncio.Semaphore(AT_ONCE)

    async def ask(number: int) -> str:
        async with room:
            return str((await told(client, ids[number], f"203.0.{number // 250}.{number % 250}"))["query_id"])

    own = httpx.AsyncHTTPTransport(local_address=FLOODING)
    async with httpx.AsyncClient(base_url=server.url, timeout=30, transport=own) as client:
        named = await asyncio.gather(*map(ask, range(FLOOD)))
    rows = records.where("request_id = ANY(%s)", ids)
    minutes = 2  # the flood may reach from one minute into the next
    assert len(rows) <= minutes * ROWS_MAX
    assert {row["client_address"] for row in rows} <= {FLOODING}
    assert len(set(named)) <= minutes * (ROWS_MAX + 1)


@pytest.mark.parametrize("header", ["Forwarded", "X-Real-IP", "X-Forwarded-Proto", "X-Client-IP"])
async def test_no_other_header_names_a_client(house: House, records: Records, header: str) -> None:
    request_id = str(uuid4())
    proxies = TrustedProxies.named([PEER])
    async with application(house, proxies=proxies) as (_, client):
        await client.post(
            "/v1/query", json=QUESTION, headers={"X-Request-ID": request_id, header: "203.0.113.9"}
        )
    (row,) = records.where("request_id = %s", request_id)
    assert row["client_address"] == PEER


@pytest.mark.parametrize(
    ("trusted", "forwarded", "client"),
    [
        ([], ["203.0.113.9"], PEER),
        (["10.0.0.0/8"], ["203.0.113.9"], PEER),
        ([PEER], ["203.0.113.9"], "203.0.113.9"),
        (["127.0.0.0/8"], ["198.51.100.1, 203.0.113.9"], "203.0.113.9"),
        ([PEER], ["198.51.100.1", "203.0.113.9"], "203.0.113.9"),
        ([PEER, "10.0.0.0/8"], ["198.51.100.1, 203.0.113.9, 10.1.2.3"], "203.0.113.9"),
        ([PEER], [], PEER),
    ],
)
async def test_the_address_on_record_is_the_one_that_a_trusted_proxy_saw(
    house: House, records: Records, trusted: list[str], forwarded: list[str], client: str
) -> None:
    request_id = str(uuid4())
    async with application(house, proxies=TrustedProxies.named(trusted)) as (_, site):
        await told(site, request_id, *forwarded)
    (row,) = records.where("request_id = %s", request_id)
    assert row["client_address"] == client


async def test_behind_a_trusted_proxy_each_client_is_counted_by_itself(
    house: House, records: Records
) -> None:
    one, other = "2001:db8:1::1", "2001:db8:2::1"
    async with application(house, proxies=TrustedProxies.named([PEER])) as (_, client):
        await asyncio.gather(*(told(client, str(uuid4()), one) for _ in range(ROWS_MAX + 5)))
        await told(client, str(uuid4()), other)
    rows = Counter(row["client_address"] for row in records.where("client_address IN (%s, %s)", one, other))
    assert rows == {one: ROWS_MAX, other: 1}


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ("203.0.113.9:4711", "203.0.113.9"),
        (" 203.0.113.9 ", "203.0.113.9"),
        ("[2001:db8::7]:443", "2001:db8::7"),
        ("2001:DB8:0::7", "2001:db8::7"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("fe80::1%eth0", "fe80::1"),
        ("203.0.113.9, ::ffff:10.0.0.7", "203.0.113.9"),
        ("10.0.0.9, 10.0.0.8", "10.0.0.9"),
        ("198.51.100.1, unknown", "10.0.0.7"),
        ("198.51.100.1, ", "10.0.0.7"),
        ("198.51.100.1,, 10.0.0.8", "10.0.0.8"),
        ("for=198.51.100.1", "10.0.0.7"),
        ("' OR 1=1", "10.0.0.7"),
        ("203.0.113.9\x00", "10.0.0.7"),
        ("1" * 10_000, "10.0.0.7"),
        ("," * 10_000, "10.0.0.7"),
        ("", "10.0.0.7"),
    ],
    ids=lambda value: value[:30],
)
def test_only_an_address_is_believed_in_its_canonical_spelling(forwarded: str, client: str) -> None:
    assert TrustedProxies.named(["10.0.0.0/8"]).client_behind("10.0.0.7", [forwarded]) == client


@pytest.mark.parametrize("peer", ["::ffff:10.0.0.7", "10.0.0.7"])
def test_a_proxy_is_trusted_in_every_spelling_of_its_address(peer: str) -> None:
    assert TrustedProxies.named(["10.0.0.7"]).client_behind(peer, ["203.0.113.9"]) == "203.0.113.9"


def test_a_client_without_an_address_stays_as_it_is() -> None:
    proxies = TrustedProxies.named(["10.0.0.0/8"])
    assert proxies.client_behind(None, ["203.0.113.9"]) is None
    assert proxies.client_behind("a socket", ["203.0.113.9"]) == "a socket"


@pytest.mark.parametrize("name", ["proxy", "10.0.0.0/99", "10.0.0.1/8", "", "10.0.0.0/8/8"])
def test_what_is_no_network_is_no_proxy(name: str) -> None:
    with pytest.raises(ValueError, match=r"network|host bits"):
        TrustedProxies.named([name])


async def test_a_header_that_is_ignored_is_reported_once_without_its_words(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    request_context.warn_of_ignored_address.cache_clear()
    with caplog.at_level(logging.WARNING, logger="engine"):
        async with application(house) as (_, client):
            for number in range(3):
                await told(client, str(uuid4()), f"203.0.113.{number}")
    (line,) = [record.getMessage() for record in caplog.records if "X-Forwarded-For" in record.getMessage()]
    assert "server.trusted_proxies" in line
    assert "203.0.113" not in line
