"""Every request on every endpoint leaves exactly one row, whatever became of it; a health check leaves none."""

import asyncio
import contextlib
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from fastapi import Request
from starlette.routing import Route

from audit.errors import LedgerUnavailableError
from engine import wiring
from engine.answer import Asked, Engine
from engine.errors import RequestError, UnknownPassageError
from engine.house import House
from engine.http.app import create_app
from engine.models import Client, Trail
from engine.storage.database import Database
from tests.conftest import Records, Running
from tests.in_process import application

NOTHING_OF_A_BOOK = {
    "/", "/healthz", "/readyz", "/health", "/api/health", "/metrics", "/openapi.json", "/v1/signing-keys",
}  # fmt: skip
IN_PATHS = {
    "{book_id}": "physical-ai",
    "{chunk_id}": "0" * 64,
    "{name}": "no-file-of-the-console",
    "{query_id}": str(uuid4()),
    "{record}": str(uuid4()),
    "{sample}": str(uuid4()),
    "{session_id}": str(uuid4()),
    "{view_id}": str(uuid4()),
}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY")
OPERATOR = Client("tests", None, frozenset({"ask"}))


def paths() -> list[str]:
    routes = create_app(nullcontext).routes  # type: ignore[arg-type]  # nobody moves in
    return sorted({route.path for route in routes if isinstance(route, Route)})


def filled_in(path: str) -> str:
    for name, value in IN_PATHS.items():
        path = path.replace(name, value)
    assert "{" not in path, "say in IN_PATHS what may stand there"
    return path


def send(client: httpx.Client, method: str, path: str, **fields: Any) -> tuple[httpx.Response, str]:
    request_id = str(uuid4())
    headers = fields.pop("headers", {}) | {"X-Request-ID": request_id}
    return client.request(method, path, headers=headers, **fields), request_id


def row_of(records: Records, request_id: str) -> dict[str, Any]:
    (row,) = records.where("request_id = %s", request_id)
    return row


# Seen red with `passage` asking the keyring and the library itself, and with an `on_http_exception` that records nothing.
@pytest.mark.parametrize("path", paths())
@pytest.mark.parametrize("method", METHODS)
def test_g2_one_row_for_every_method_of_every_address(
    client: httpx.Client, records: Records, method: str, path: str
) -> None:
    response, request_id = send(client, method, filled_in(path))
    if path in NOTHING_OF_A_BOOK and response.status_code == 200:
        assert records.where("request_id = %s", request_id) == []
        return
    row = row_of(records, request_id)
    of_the_framework = (
        path == "/openapi.json"
    )  # it does not say which route it was that does not take a method
    assert row["endpoint"] == ("unknown" if of_the_framework else path)
    assert row["http_status"] == response.status_code
    assert row["outcome"] == ("served" if response.is_success else "failed")
    assert response.status_code < 500


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1/query/", "/healthz/", "/V1/QUERY", "/v1/chunks/a/b", "/%00", "/%ff", "/*"]
)
def test_g2_what_is_not_found_leaves_a_row_without_its_words(
    client: httpx.Client, records: Records, path: str
) -> None:
    response, request_id = send(client, "GET", path)
    row = row_of(records, request_id)
    assert response.status_code == 404
    assert (row["endpoint"], row["http_status"], row["error_type"]) == ("unknown", 404, "validation")
    assert (row["outcome"], row["client_id"]) == ("failed", "tests")
    assert response.json()["query_id"] == str(row["query_id"])
    assert path.strip("/*") not in str(row) or path == "/*"


def test_who_finds_nothing_needs_no_key_but_a_wrong_one_is_refused(server: Running, records: Records) -> None:
    with httpx.Client(base_url=server.url) as client:
        nobody, nobodys_id = send(client, "GET", "/nothing")
        wrong, wrong_id = send(client, "GET", "/nothing", headers={"Authorization": "Bearer nonsense"})
    assert (nobody.status_code, wrong.status_code) == (404, 401)
    assert row_of(records, nobodys_id)["client_id"] is None
    assert row_of(records, wrong_id)["http_status"] == 401


def test_a_wrong_method_is_told_the_right_ones(client: httpx.Client, records: Records) -> None:
    response, request_id = send(client, "DELETE", "/v1/query")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert row_of(records, request_id)["endpoint"] == "/v1/query"


def test_a_passage_served_is_on_record(client: httpx.Client, records: Records) -> None:
    cited = client.post("/v1/query", json={"query": "What does an IMU measure?"}).json()["citations"][0]
    response, request_id = send(client, "GET", f"/v1/chunks/{cited['chunk_id']}")
    row = row_of(records, request_id)
    assert response.json()["chunk_id"] == cited["chunk_id"]
    assert (row["outcome"], row["success"], row["http_status"]) == ("served", True, 200)
    assert row["chunks_returned"] == [{"chunk_id": cited["chunk_id"]}]
    assert (row["book_id"], row["client_id"]) == ("physical-ai", "tests")
    assert row["limit_decision"].startswith("admitted")


def test_a_passage_that_is_none_leaves_no_word_of_the_client(client: httpx.Client, records: Records) -> None:
    response, request_id = send(client, "GET", "/v1/chunks/what-a-reader-wrote")
    assert response.status_code == 404
    assert "what-a-reader-wrote" not in str(row_of(records, request_id))


async def test_passages_need_a_key_that_may_read_and_count_against_its_limit(
    server: Running, database: Database, records: Records
) -> None:
    async with wiring.open_keys(database) as keys:
        eraser, hasty = (
            await keys.create("eraser", ["erase"], None),
            await keys.create("hasty", ["audit"], "1/minute"),
        )
    with httpx.Client(base_url=server.url) as client:
        for secret, statuses in ((eraser, [403, 403]), (hasty, [404, 429])):
            for status in statuses:
                told, request_id = send(client, "GET", f"/v1/chunks/{'0' * 64}",
                                        headers={"Authorization": f"Bearer {secret}"})  # fmt: skip
                assert told.status_code == status
                assert row_of(records, request_id)["http_status"] == status
        missing, request_id = send(client, "GET", f"/v1/chunks/{'0' * 64}")
    assert missing.status_code == row_of(records, request_id)["http_status"] == 401


async def fault(request: Request) -> None:
    raise ZeroDivisionError("words of a driver")


async def numbered(number: int) -> None: ...


async def test_g2_what_fails_outside_of_the_engine_leaves_a_row(house: House, records: Records) -> None:
    async with application(house) as (app, client):
        app.get("/fault")(fault)
        app.get("/number/{number}")(numbered)
        for path, status, endpoint in (("/fault", 500, "/fault"), ("/number/seven", 422, "/number/{number}")):
            request_id = str(uuid4())
            response = await client.get(path, headers={"X-Request-ID": request_id})
            row = row_of(records, request_id)
            assert response.headers["content-type"] == "application/problem+json"
            assert response.status_code == row["http_status"] == status
            assert row["endpoint"] == endpoint
            assert "words of a driver" not in str(row) + response.text
            assert "seven" not in str(row) + response.text


async def test_a_page_that_is_switched_off_leaves_a_row(house: House, records: Records) -> None:
    async with application(house, page_enabled=False) as (_, client):
        request_id = str(uuid4())
        assert (await client.get("/", headers={"X-Request-ID": request_id})).status_code == 404
    assert row_of(records, request_id)["endpoint"] == "/"


class Unwritable:
    """A ledger that has no room left."""

    def __init__(self, ledger: Any, *, opens: bool) -> None:
        self._ledger, self._opens = ledger, opens

    async def open(self, trail: Trail) -> None:
        if not self._opens:
            raise LedgerUnavailableError
        await self._ledger.open(trail)

    def has_record(self, log_id: UUID) -> bool:
        return bool(self._ledger.has_record(log_id))

    async def close(self, trail: Trail, issued_at: Any) -> Any:
        raise LedgerUnavailableError


# Seen red with `recorded` returning what was made when its row could not be written.
@pytest.mark.parametrize("opens", [True, False])
async def test_g1_nothing_is_served_without_a_record(house: House, key: str, opens: bool) -> None:
    engine = replace(house.engine, ledger=Unwritable(house.engine.ledger, opens=opens))  # type: ignore[arg-type]
    chunk_id = next(iter(await passages_of(house)))
    async with application(house, engine=engine) as (_, client):
        client.headers["Authorization"] = f"Bearer {key}"
        for path in (f"/v1/chunks/{chunk_id}", "/nothing"):
            response = await client.get(path)
            assert (response.status_code, response.json()["error_type"]) == (503, "audit")
            has_record = opens and path != "/nothing"
            assert (response.json()["query_id"] is not None) == has_record  # Seen red: an id that led nowhere
            assert "text" not in response.json()


async def passages_of(house: House) -> list[str]:
    generation = await house.engine.library.live("physical-ai")
    return [passage.chunk_id for passage in await house.library.contents(generation.generation_id, 0, 2)]


def lookup(request_id: str) -> Asked:
    return Asked("/v1/chunks/{chunk_id}", request_id, operator=OPERATOR)


# A record is open while it is served, so that a process killed in between leaves a row too.
async def test_g2_a_request_that_is_cancelled_while_it_is_served_leaves_a_row(
    house: House, database: Database, records: Records
) -> None:
    begun, request_id = asyncio.Event(), str(uuid4())

    async def hang(_: Client, trail: Trail) -> None:
        begun.set()
        await asyncio.Event().wait()

    serving = asyncio.create_task(house.engine.serve(lookup(request_id), hang))
    await begun.wait()
    with psycopg.connect(database.url) as connection:
        assert connection.execute(
            "SELECT 1 FROM audit_open WHERE trail ->> 'request_id' = %s", (request_id,)
        ).fetchone()
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    assert row_of(records, request_id)["outcome"] == "client_gone"


async def served(engine: Engine, request_id: str, failure: Exception | None) -> UUID | None:
    async def serve(_: Client, trail: Trail) -> UUID:
        if failure:
            raise failure
        return trail.query_id

    return await engine.serve(lookup(request_id), serve)


@pytest.mark.parametrize(
    ("failure", "status"), [(None, 200), (UnknownPassageError(), 404), (KeyError("secret words"), 500)]
)
async def test_g2_however_serving_ends_there_is_one_row(
    house: House, records: Records, failure: Exception | None, status: int
) -> None:
    request_id = str(uuid4())
    try:
        query_id = await served(house.engine, request_id, failure)
    except RequestError as told:
        query_id = told.query_id
    row = row_of(records, request_id)
    assert (row["http_status"], row["query_id"]) == (status, query_id)
    assert "secret words" not in str(row)


async def test_g3_a_request_that_takes_too_long_to_serve_is_cut_off(house: House, records: Records) -> None:
    engine = replace(house.engine, rules=replace(house.engine.rules, total_s=0.7))
    request_id = str(uuid4())

    async def hang(_: Client, trail: Trail) -> None:
        await asyncio.Event().wait()

    with pytest.raises(RequestError) as caught:
        await engine.serve(lookup(request_id), hang)
    assert caught.value.status == row_of(records, request_id)["http_status"] == 504


def test_g2_a_question_that_failed_in_the_engine_has_no_second_row(
    client: httpx.Client, records: Records
) -> None:
    response, request_id = send(client, "POST", "/v1/query", content=b"{}")
    assert response.status_code == 422
    assert row_of(records, request_id)["http_status"] == 422
