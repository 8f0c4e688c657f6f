"""The HTTP surface of a running server: the right status for every bad input, never a stack trace, one row each."""

import json
import re
import socket
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import pytest

from tests.conftest import Records, Running

IMU = {"query": "What does an IMU measure?"}
NOT_FOR_CLIENTS = re.compile(r"Traceback|File \"|psycopg|/engine/|sqlstate|qdrant", re.IGNORECASE)


def check_problem(response: httpx.Response, status: int, error_type: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert {"type", "title", "status", "detail", "error_type", "retryable", "request_id", "query_id"} <= set(
        body
    )
    assert (body["status"], body["error_type"]) == (status, error_type)
    assert body["request_id"] == response.headers["x-request-id"]
    assert not NOT_FOR_CLIENTS.search(response.text)
    return body


def test_an_answer_has_every_field_of_the_contract(client: httpx.Client, records: Records) -> None:
    response = client.post("/v1/query", json=IMU)
    body = response.json()
    assert response.status_code == 200
    assert set(body) == {
        "query_id", "answer_id", "book_id", "outcome", "reason", "answer", "citations", "confidence_score",
        "confidence_level", "retrieval_confidence", "generation_confidence", "source_mode", "model_used",
        "tokens_used", "timings", "session_id", "session_token", "session_message", "filter_message", "nearest", "receipt",
        "sources", "confidence",
    }  # fmt: skip
    assert body["outcome"] == "answered"
    citation = body["citations"][0]
    assert (
        f'[Source: {citation["section"]} (Page {citation["page"]}) - "{citation["excerpt"]}"]'
        in body["answer"]
    )
    (row,) = records.of(body["query_id"])
    assert row["endpoint"] == "/v1/query"
    assert row["request_id"] == response.headers["x-request-id"]
    assert row["client_id"] == "tests"
    assert row["client_address"] == "127.0.0.1"
    assert row["limit_decision"] == "admitted 100000/minute"
    assert body["receipt"]["leaf_hash"] == row["leaf_hash"].hex()


def test_a_citation_is_a_slice_of_the_passage_that_the_server_gives(client: httpx.Client) -> None:
    citation = client.post("/v1/query", json=IMU).json()["citations"][0]
    passage = client.get(f"/v1/chunks/{citation['chunk_id']}").json()
    assert passage["text"][citation["start"] : citation["end"]] == citation["excerpt"]


def test_a_refusal_is_a_good_response_with_the_nearest_sections(client: httpx.Client) -> None:
    body = client.post("/v1/query", json={"query": "Who wrote Pride and Prejudice?"}).json()
    assert (body["outcome"], body["reason"], body["answer_id"]) == ("refused", "not_covered", None)
    assert body["citations"] == []
    assert body["nearest"]


def test_a_named_book_and_filters(client: httpx.Client) -> None:
    asked = {"query": IMU["query"], "filters": {"module": 3}, "top_k": 2}
    body = client.post("/v1/books/physical-ai/query", json=asked).json()
    assert body["outcome"] == "answered"
    assert body["citations"][0]["filename"].startswith("03-")


BAD_BODIES: dict[str, tuple[bytes, int]] = {
    "empty body": (b"", 400),
    "not JSON": (b"{query: hello}", 400),
    "not an object": (b'["What is an IMU?"]', 400),
    "not UTF-8": (b'{"query": "\xff\xfe"}', 400),
    "NUL": (json.dumps({"query": "What\x00?"}).encode(), 400),
    "half a character": (b'{"query": "\\ud83d"}', 400),
    "a key twice": (b'{"query": "a", "query": "b"}', 400),
    "very deep": (b'{"query": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", 400),
    "no question": (b"{}", 422),
    "empty question": (b'{"query": ""}', 422),
    "only spaces": (b'{"query": "   \\n\\t "}', 422),
    "too long": (json.dumps({"query": "a" * 1001}).encode(), 422),
    "not a string": (b'{"query": 7}', 422),
    "null": (b'{"query": null}', 422),
    "top_k too large": (b'{"query": "a", "top_k": 11}', 422),
    "top_k is nothing": (b'{"query": "a", "top_k": 0}', 422),
    "unknown field": (b'{"query": "a", "questoin": "b"}', 422),
    "unknown difficulty": (b'{"query": "a", "filters": {"difficulty": "hard"}}', 422),
    "no such module": (b'{"query": "a", "filters": {"module": 11}}', 422),
    "session is no UUID": (b'{"query": "a", "session_id": "mine"}', 422),
    "a large number": (b'{"query": "a", "top_k": ' + b"9" * 5000 + b"}", 400),
    "too large": (json.dumps({"query": "a" * 70_000}).encode(), 413),
}


@pytest.mark.parametrize(("body", "status"), BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_bad_input(client: httpx.Client, records: Records, body: bytes, status: int) -> None:
    problem = check_problem(client.post("/v1/query", content=body), status, "validation")
    (row,) = records.of(problem["query_id"])
    assert (row["http_status"], row["outcome"], row["user_query_text"]) == (status, "failed", "")


def test_a_thousand_characters_fit_and_the_space_around_them_does_not_count(client: httpx.Client) -> None:
    question = "robot " * 166 + "arms"
    assert len(question) == 1000
    assert client.post("/v1/query", json={"query": f"  {question}\n"}).status_code == 200


def test_unknown_book(client: httpx.Client, records: Records) -> None:
    problem = check_problem(client.post("/v1/books/no-such-book/query", json=IMU), 404, "validation")
    assert records.of(problem["query_id"])[0]["book_id"] == "no-such-book"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer nonsense",
        "Basic dXNlcjpwYXNz",
        "Bearer aff_0000000000_" + "0" * 72,
        "Bearer \N{KEY}".encode().decode("latin-1"),
    ],
)
def test_no_key_or_a_wrong_one(server: Running, records: Records, header: str | None) -> None:
    headers = {} if header is None else {b"Authorization": header.encode("latin-1")}
    response = httpx.post(f"{server.url}/v1/query", json=IMU, headers=headers)
    problem = check_problem(response, 401, "auth")
    assert response.headers["www-authenticate"] == "Bearer"
    (row,) = records.of(problem["query_id"])
    assert (row["http_status"], row["client_id"], row["user_query_text"]) == (401, None, "")


def test_a_revoked_key_and_one_with_a_typing_error_look_the_same(server: Running, key: str) -> None:
    typo = key[:-1] + ("0" if key[-1] != "0" else "1")
    problems = [
        check_problem(
            httpx.post(f"{server.url}/v1/query", json=IMU, headers={"Authorization": f"Bearer {wrong}"}),
            401,
            "auth",
        )
        for wrong in (typo, "aff_0000000000_" + "0" * 72)
    ]
    for problem in problems:
        del problem["request_id"], problem["query_id"]
    assert problems[0] == problems[1]


def test_a_body_that_lies_about_its_length_is_cut_off(server: Running, key: str) -> None:
    """More than 64 KiB in chunks without a Content-Length: the answer comes before the body ends."""
    address = urlsplit(server.url)
    head = f"POST /v1/query HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection((address.hostname, address.port or 80), timeout=10) as connection:
        connection.sendall(head.encode())
        for _ in range(5):
            connection.sendall(b"4000\r\n" + b"a" * 0x4000 + b"\r\n")
        assert connection.recv(64).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/query", 405), ("GET", "/nothing", 404), ("DELETE", "/healthz", 405)],
)
def test_no_such_address_or_method(client: httpx.Client, method: str, path: str, status: int) -> None:
    check_problem(client.request(method, path), status, "validation")


def test_unknown_passage(client: httpx.Client) -> None:
    check_problem(client.get("/v1/chunks/" + "0" * 64), 404, "validation")
    check_problem(client.get("/v1/chunks/%00"), 404, "validation")


def test_a_passage_needs_a_key(server: Running) -> None:
    check_problem(httpx.get(f"{server.url}/v1/chunks/" + "0" * 64), 401, "auth")


@pytest.mark.parametrize(
    "given",
    ["abc-1", "a" * 128, "Root:1.2_3", "6f1c1f0e-9f0a-4d0b-8a53-8a8d1d3b6a52"],
    ids=lambda given: given[:12],
)
def test_a_harmless_request_id_is_kept(client: httpx.Client, given: str) -> None:
    assert client.get("/healthz", headers={"X-Request-ID": given}).headers["x-request-id"] == given


# Seen red with a longest length of 129, with `\w` of all languages, and with the first of several headers believed.
@pytest.mark.parametrize(
    "given",
    [["a b\tc"], ["a" * 129], ["a" * 10_000], [""], ["é"], ["a;b"], ["a,b"], ["<b>"], ['a"b'], ["jane@example.org"], ["one", "two"]],
    ids=lambda given: "+".join(given)[:12],
)  # fmt: skip
def test_another_request_id_is_replaced_by_our_own(
    client: httpx.Client, server: Running, records: Records, given: list[str]
) -> None:
    headers = [(b"X-Request-ID", value.encode("latin-1")) for value in given]
    strange = httpx.post(f"{server.url}/v1/query", json=IMU, headers=headers)
    known = client.get("/v1/chunks/none", headers=headers)
    assert (strange.status_code, known.status_code) == (401, 404)
    for response in (strange, known):
        replaced = response.headers["x-request-id"]
        assert UUID(replaced).version == 4
        assert response.json()["request_id"] == replaced
    (row,) = records.of(known.json()["query_id"])
    assert row["request_id"] == known.headers["x-request-id"]


def test_the_end_user_is_recorded(client: httpx.Client, records: Records) -> None:
    body = client.post("/v1/query", json=IMU, headers={"X-End-User": "anon:203.0.113.7"}).json()
    assert records.of(body["query_id"])[0]["end_user"] == "anon:203.0.113.7"


def test_health(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"status": "alive"}
    assert client.get("/readyz").json() == {
        "database": "ready",
        "book": "ready",
        "embedder": "ready",
        "records": "ready",
    }


def test_the_page_runs_only_its_own_script_and_holds_no_key(client: httpx.Client) -> None:
    response = client.get("/")
    policy = response.headers["content-security-policy"]
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert len(re.findall("sha256-", policy)) == 2
    assert not re.search(r"aff_[0-9a-f]{10}_|(?:src|href)=\"https?:", response.text)


def test_every_response_carries_the_security_headers(client: httpx.Client) -> None:
    for response in (client.get("/"), client.get("/nothing"), client.post("/v1/query", json=IMU)):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        assert "server" not in response.headers


def test_the_openapi_document_names_every_problem(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    operation = document["paths"]["/v1/query"]["post"]
    assert set(operation["responses"]) == {
        "200",
        "400",
        "401",
        "403",
        "404",
        "408",
        "413",
        "422",
        "429",
        "500",
        "502",
        "503",
        "504",
    }
    assert "application/problem+json" in operation["responses"]["504"]["content"]
    assert operation["requestBody"]["content"]["application/json"]["schema"]["properties"]["query"]


async def test_a_key_over_its_limit_waits(server: Running, database: Any, records: Records) -> None:
    from engine import wiring

    async with wiring.open_keys(database) as keys:
        secret = await keys.create("hasty", ["ask"], "2/minute")
    headers = {"Authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers) as hasty:
        statuses = [(await hasty.post("/v1/query", json=IMU)).status_code for _ in range(2)]
        refused = await hasty.post("/v1/query", json=IMU)
    assert statuses == [200, 200]
    problem = check_problem(refused, 429, "rate_limit")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert records.of(problem["query_id"])[0]["http_status"] == 429


async def test_a_key_without_the_scope_may_not_ask(server: Running, database: Any, records: Records) -> None:
    """Seen red with the scope not looked at."""
    from engine import wiring

    async with wiring.open_keys(database) as keys:
        secret = await keys.create("auditor", ["audit"], None)
    async with httpx.AsyncClient(
        base_url=server.url, headers={"Authorization": f"Bearer {secret}"}
    ) as auditor:
        problem = check_problem(await auditor.post("/v1/query", json=IMU), 403, "auth")
    (row,) = records.of(problem["query_id"])
    assert (row["http_status"], row["client_id"], row["user_query_text"]) == (403, "auditor", "")
