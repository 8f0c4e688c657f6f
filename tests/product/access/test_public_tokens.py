"""Pages of a listed site ask with a public token: about its book, from its origin, in its minutes; and they can only ask."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest

from engine import wiring
from engine.admission.keys import ApiKeys
from engine.admission.public_tokens import TokenKeyring
from engine.admission.sessions import Sessions
from engine.house import House
from engine.storage.database import Database
from engine.wiring import now
from tests.conftest import Records
from tests.in_process import application

SITE, OTHER = "https://book.example.org", "https://other.example.org"
BOTH = frozenset({SITE, OTHER})
QUESTION = {"query": "What does an IMU measure?"}
BOOK = "physical-ai"


@dataclass
class Site:
    """An engine with two listed sites, the key of one of them, and a clock that a test moves."""

    client: httpx.AsyncClient
    key: str
    later: timedelta = timedelta()

    def clock(self) -> datetime:
        return now() + self.later

    async def token(self, origin: str = SITE, **about: Any) -> str:
        made = await self.client.post(
            "/v1/public-tokens", json={"origin": origin, **about}, headers=_with(self.key)
        )
        assert made.status_code == 200, made.text
        return str(made.json()["token"])

    async def ask(
        self, token: str, origin: str | None = SITE, path: str = "/v1/query", **headers: str
    ) -> httpx.Response:
        sent = _with(token) | ({"Origin": origin} if origin else {}) | headers
        return await self.client.post(path, json=QUESTION, headers=sent)


@asynccontextmanager
async def a_site(house: House, key: str, origins: frozenset[str] = BOTH) -> AsyncIterator[Site]:
    site = Site(httpx.AsyncClient(), key)
    keyring = TokenKeyring(ApiKeys(house.pool), house.public_tokens, origins, site.clock)
    engine = replace(house.engine, keyring=keyring)
    sessions = Sessions(house.pool, 30, uuid4)
    async with application(house, engine=engine, allowed_origins=origins, sessions=sessions) as (_, client):
        site.client = client
        yield site


@pytest.fixture
async def key(database: Database) -> str:
    """Of a site of its own: all visitors here have one address, and so one limit for each site."""
    async with wiring.open_keys(database) as keys:
        return await keys.create(f"site-{uuid4()}", ["ask"], None)


def _with(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


# Seen red with the details overwritten by those of the search.
async def test_a_page_asks_with_a_token_and_its_row_names_the_key_and_the_site(
    house: House, key: str, records: Records
) -> None:
    async with a_site(house, key) as site:
        told = await site.ask(await site.token())
        assert told.status_code == 200, told.text
        assert told.headers["access-control-allow-origin"] == SITE
        assert told.headers["vary"] == "Origin"
        exposed = told.headers["access-control-expose-headers"]
        for name in ("X-Request-ID", "RateLimit-Remaining", "Retry-After", "X-Query-ID", "X-Receipt"):
            assert name in exposed
        assert "access-control-allow-credentials" not in told.headers
    (row,) = records.of(told.json()["query_id"])
    assert row["key_id"] == key.split("_")[1]
    assert row["client_id"].startswith("site-")
    assert (row["book_id"], row["end_user"]) == (BOOK, "anon:127.0.0.1")
    assert row["details"]["public_token"] == SITE
    (made,) = records.where(
        "endpoint = '/v1/public-tokens' AND request_id IS NOT NULL ORDER BY timestamp DESC LIMIT 1"
    )
    assert (made["outcome"], made["details"]) == ("served", {"public_token": SITE, "ttl_s": 300})


# Seen red without the comparison of the origin.
async def test_a_token_of_one_site_is_of_no_use_on_another_or_without_a_page(house: House, key: str) -> None:
    async with a_site(house, key) as site:
        token = await site.token()
        for origin in (OTHER, None, "null", f"{SITE}, {SITE}", f"{SITE}.evil.example", SITE.upper()):
            told = await site.ask(token, origin)
            assert told.status_code == 403, origin
            assert told.headers.get("access-control-allow-origin") == (OTHER if origin == OTHER else None)


# Seen red without the look at the clock.
async def test_a_token_expires_and_says_so_in_plain_words(house: House, key: str, records: Records) -> None:
    async with a_site(house, key) as site:
        token = await site.token(ttl_s=60)
        site.later = timedelta(seconds=59)
        assert (await site.ask(token)).status_code == 200
        site.later = timedelta(seconds=61)
        told = await site.ask(token)
    assert told.status_code == 401
    problem = told.json()
    assert problem["type"] == "urn:affidavit:problem:ExpiredToken"
    assert "Reload the page" in problem["detail"]
    assert told.headers["access-control-allow-origin"] == SITE, "or the page could not show it"
    (row,) = records.of(problem["query_id"])
    assert (row["http_status"], row["outcome"]) == (401, "failed")


async def test_a_token_is_for_its_book_alone(house: House, key: str) -> None:
    async with a_site(house, key) as site:
        token, _ = house.public_tokens.make(key.split("_")[1], SITE, "another-book", site.clock(), 60)
        assert (await site.ask(token, path=f"/v1/books/{BOOK}/query")).status_code == 403
        unnamed = await site.ask(token)
        assert (unnamed.status_code, unnamed.json()["title"]) == (404, "Book not found"), (
            "its book, not the default"
        )
        headed = await site.ask(token, **{"X-Book-ID": BOOK})
        assert headed.status_code == 403


# Seen red with tokens let into `serve`.
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"/v1/chunks/{'0' * 64}"),
        ("GET", "/v1/receipts/5f0c3a52-7f0e-4c2e-9d55-0b8a4c1f6a10"),
        ("GET", "/v1/sessions/5f0c3a52-7f0e-4c2e-9d55-0b8a4c1f6a10"),
        ("DELETE", "/v1/sessions/5f0c3a52-7f0e-4c2e-9d55-0b8a4c1f6a10"),
        ("POST", "/v1/erasures"),
        ("POST", "/v1/public-tokens"),
    ],
)
async def test_a_token_can_only_ask(house: House, key: str, method: str, path: str) -> None:
    async with a_site(house, key) as site:
        headers = _with(await site.token()) | {"Origin": SITE}
        told = await site.client.request(method, path, headers=headers)
    assert told.status_code == 403


# Seen red with `X-End-User` believed.
async def test_who_asks_with_a_token_is_who_is_connected(house: House, key: str, records: Records) -> None:
    async with a_site(house, key) as site:
        told = await site.ask(
            await site.token(), **{"X-End-User": "user:6f1c1f0e-9f0a-4d0b-8a53-8a8d1d3b6a52"}
        )
    (row,) = records.of(told.json()["query_id"])
    assert row["end_user"] == "anon:127.0.0.1"


# Seen red with the reader of the body believed: the session was that reader's, and no token was given.
async def test_a_page_cannot_ask_in_the_session_of_a_named_reader(
    house: House, key: str, records: Records
) -> None:
    named = {"user_id": "6f1c1f0e-9f0a-4d0b-8a53-8a8d1d3b6a52"}
    async with a_site(house, key) as site:
        sent = _with(await site.token()) | {"Origin": SITE}
        told = (await site.client.post("/v1/query", json=QUESTION | named, headers=sent)).json()
        assert told["session_token"], "the session is its bearer's"
        again = QUESTION | named | {"session_id": told["session_id"]}
        assert (await site.client.post("/v1/query", json=again, headers=sent)).status_code == 404
        sent["X-Session-Token"] = told["session_token"]
        assert (await site.client.post("/v1/query", json=again, headers=sent)).status_code == 200
    (row,) = records.of(told["query_id"])
    assert row["end_user"] == "anon:127.0.0.1"


async def test_with_its_key_a_token_ends(house: House, database: Database, key: str) -> None:
    async with wiring.open_keys(database) as keys:
        own = await keys.create("a-site", ["ask"], None)
        async with a_site(house, own) as site:
            token = await site.token()
            await keys.revoke(client_id="a-site")
            assert (await site.ask(token)).status_code == 401


async def test_a_token_has_the_limit_of_its_key(house: House, database: Database) -> None:
    async with wiring.open_keys(database) as keys:
        own = await keys.create("a-small-site", ["ask"], "3/hour")
    async with a_site(house, own) as site:
        token = await site.token()
        statuses = [(await site.ask(token)).status_code for _ in range(3)]
        assert statuses == [200, 200, 429], "making the token was the first"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"origin": "https://unlisted.example"}, 403),
        ({"origin": f"{SITE}/"}, 403),
        ({"origin": "*"}, 403),
        ({}, 422),
        ({"origin": SITE, "ttl_s": 901}, 422),
        ({"origin": SITE, "ttl_s": 0}, 422),
        ({"origin": SITE, "book_id": "../x"}, 422),
        ({"origin": SITE, "scopes": ["erase"]}, 422),
    ],
    ids=str,
)
async def test_a_token_that_could_not_be_used_or_lasts_long_is_not_made(
    house: House, key: str, body: dict[str, Any], status: int
) -> None:
    async with a_site(house, key) as site:
        told = await site.client.post("/v1/public-tokens", json=body, headers=_with(key))
    assert told.status_code == status, told.text


# Seen red: a token was made with which nothing can be asked.
@pytest.mark.parametrize("books", [[], [BOOK, "physical-al"]])
async def test_a_token_for_a_book_that_is_not_published_is_not_made(
    house: House, database: Database, books: list[str]
) -> None:
    async with wiring.open_keys(database) as keys:
        secret = await keys.create("of-some-books", ["ask"], None, books)
    body = {"origin": SITE, "book_id": "physical-al"}
    async with a_site(house, secret) as site:
        told = await site.client.post("/v1/public-tokens", json=body, headers=_with(secret))
    problem = told.json()
    assert (told.status_code, problem["title"], problem["field"]) == (404, "Book not found", "book_id")
    assert problem["detail"].startswith("book_id: there is no book physical-al. Did you mean physical-ai? ")


async def test_a_key_makes_tokens_for_its_own_books_only(house: House, database: Database) -> None:
    async with wiring.open_keys(database) as keys:
        own = await keys.create("of-one-book", ["ask"], None, ["another-book"])
        auditors = await keys.create("auditors", ["audit"], None)
    async with a_site(house, own) as site:
        for secret in (own, auditors, "aff_none", ""):
            told = await site.client.post("/v1/public-tokens", json={"origin": SITE}, headers=_with(secret))
            assert told.status_code in (401, 403)


# --- CORS


PREFLIGHT = {
    "Origin": SITE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization",
}


async def test_a_preflight_of_a_listed_site_is_answered_without_a_key_and_without_a_row(
    house: House, key: str, records: Records
) -> None:
    async with a_site(house, key) as site:
        for path in ("/v1/query", "/api/ask", "/no-such-address"):
            told = await site.client.options(path, headers=PREFLIGHT)
            assert (told.status_code, told.content) == (204, b"")
            assert told.headers["access-control-allow-origin"] == SITE
            assert told.headers["access-control-max-age"] == "600"
            assert {"POST", "GET", "DELETE"} <= set(told.headers["access-control-allow-methods"].split(", "))
            assert {"Authorization", "Content-Type"} <= set(
                told.headers["access-control-allow-headers"].split(", ")
            )
            assert not records.where("request_id = %s", told.headers["x-request-id"])


# Seen red without `Prefer`: a page could not say that its session may begin anew, and had a 404 instead.
async def test_a_page_may_send_every_header_with_which_one_asks(house: House, key: str) -> None:
    async with a_site(house, key) as site:
        told = await site.client.options("/v1/query", headers=PREFLIGHT)
        described = (await site.client.get("/openapi.json")).json()["paths"]["/v1/query"]["post"][
            "parameters"
        ]
    asked = {one["name"].lower() for one in described if one["in"] == "header"}
    allowed = set(told.headers["access-control-allow-headers"].lower().split(", "))
    assert asked - {"x-end-user"} <= allowed, "whom a page names does not count"


# Seen red with every origin allowed once one is listed.
@pytest.mark.parametrize(
    "origin", ["https://unlisted.example", "null", f"{SITE}.evil.example", f"{SITE}/", "*", ""]
)
async def test_a_site_that_is_not_listed_gets_no_header(house: House, key: str, origin: str) -> None:
    async with a_site(house, key) as site:
        before = await site.client.options("/v1/query", headers=PREFLIGHT | {"Origin": origin})
        asked = await site.ask(key, origin)
    assert before.status_code == 405
    for told in (before, asked):
        assert not [name for name in told.headers if name.startswith("access-control-")]
        assert told.headers["vary"] == "Origin", "or a cache could give one site what another was told"


# Seen red with `Vary` added to every response.
async def test_without_the_setting_there_is_no_header_at_all(house: House, key: str) -> None:
    async with a_site(house, key, frozenset()) as site:
        told = await site.ask(key)
        before = await site.client.options("/v1/query", headers=PREFLIGHT)
    assert before.status_code == 405
    for each in (told, before):
        assert not [name for name in each.headers if name.startswith("access-control-") or name == "vary"]


async def test_a_failure_can_be_read_by_the_page_too(house: House, key: str) -> None:
    async with a_site(house, key) as site:
        for told in (
            await site.ask("aff_wrong"),
            await site.ask("afp_x.y"),
            await site.ask(key, path="/nowhere"),
        ):
            assert told.status_code in (401, 404)
            assert told.headers["access-control-allow-origin"] == SITE


# --- The book of an address that names none


# Seen red with the default book for every such address.
async def test_a_sites_server_names_the_book_for_addresses_that_have_none(house: House, key: str) -> None:
    async with a_site(house, key) as site:
        for path, body in (
            ("/v1/query", QUESTION),
            ("/api/query", QUESTION),
            ("/api/ask", {"question": "Why an IMU?"}),
        ):
            named = [
                await site.client.post(path, json=body, headers=_with(key) | {"X-Book-ID": book})
                for book in (BOOK, "another-book", "../v1", f"{BOOK},{BOOK}")
            ]
            assert [told.status_code for told in named] == [200, 404, 404, 404], path
        named_twice = {"X-Book-ID": "another-book"}
        told = await site.client.post(
            f"/v1/books/{BOOK}/query", json=QUESTION, headers=_with(key) | named_twice
        )
        assert told.status_code == 200, "an address that names a book means it"
