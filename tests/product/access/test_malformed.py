"""A request that is not valid HTTP: refused, its connection closed, nothing after it served, and a row in the flood's bounds."""

import json
import socket
from email.parser import BytesParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from engine.admission.flood import ROWS_MAX
from engine.storage.database import Database
from tests.conftest import Records, Running
from tests.product.http.test_server import Served, served

SOON_S = 30.0
SECOND = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
ASKING = b"POST /v1/query HTTP/1.1\r\nHost: x\r\n"

HEADS = {
    "no request line": b"NONSENSE\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "a space before the colon": b"GET /healthz HTTP/1.1\r\nHost : x\r\n\r\n",
    "a header without a colon": b"GET /healthz HTTP/1.1\r\nHost: x\r\nnonsense\r\n\r\n",
    "a NUL in a header": b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: \x00\r\n\r\n",
    "a first line that continues": b"GET /healthz HTTP/1.1\r\n Host: x\r\n\r\n",
    "an address that is not ASCII": b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    "a head beyond all measure": b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 30_000,
    "no number as a length": ASKING + b"Content-Length: many\r\n\r\n",
    "a negative length": ASKING + b"Content-Length: -1\r\n\r\n",
    "two lengths": ASKING + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
}
CODINGS = {
    "an unknown coding": ASKING + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    "two codings": ASKING + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
}

BOTH = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
AMBIGUOUS = {
    "a length and a coding": ASKING + BOTH,
    "in the other order": ASKING + b"Transfer-Encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
    "of a HEAD": b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n" + BOTH,
    "a coding in HTTP/1.0": b"POST /v1/query HTTP/1.0\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n",
    "after a good one": SECOND + ASKING + BOTH,
}


def connected(server: Running | Served, address: str) -> socket.socket:
    """From an address of the test's own, because the flood counts by address."""
    at = urlsplit(server.url)
    return socket.create_connection((str(at.hostname), at.port or 80), SOON_S, source_address=(address, 0))


def heard(server: Running, said: bytes, address: str) -> bytes:
    """All that the server sends until it closes the connection."""
    with connected(server, address) as connection:
        connection.sendall(said)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def split(response: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = response.partition(b"\r\n\r\n")
    status, _, headers = head.partition(b"\r\n")
    named = {name.lower(): value for name, value in BytesParser().parsebytes(headers).items()}
    return int(status.split()[1]), named, body


def check_refused(
    response: bytes,
    records: Records,
    status: int = 400,
    kind: str = "NotHttp",
    error_type: str = "validation",
) -> dict[str, Any]:
    """One refusal with one row; returns the row."""
    seen, headers, body = split(response)
    assert (seen, headers["connection"]) == (status, "close")
    assert headers["content-type"] == "application/problem+json"
    assert b"HTTP/1.1 200" not in body
    (row,) = records.where("request_id = %s", headers["x-request-id"])
    assert (row["http_status"], row["outcome"], row["error_type"]) == (status, "failed", error_type)
    if body:
        problem = json.loads(body)
        assert (problem["type"], problem["query_id"]) == (
            f"urn:affidavit:problem:{kind}",
            str(row["query_id"]),
        )
    return row


# Seen red with uvicorn's own response: 400 without a row.
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_malformed_head_is_refused_and_has_a_row(server: Running, records: Records, head: bytes) -> None:
    row = check_refused(heard(server, head + SECOND, "127.0.0.71"), records)
    assert (row["endpoint"], row["client_address"], row["client_id"]) == ("unknown", "127.0.0.71", None)


# Seen red as before: 400 for each, which tells a client that its request was wrong (RFC 9112, 6.1).
@pytest.mark.parametrize("head", CODINGS.values(), ids=CODINGS)
def test_a_transfer_coding_that_is_not_supported_is_said_to_be_so(
    server: Running, records: Records, head: bytes
) -> None:
    check_refused(heard(server, head + SECOND, "127.0.0.71"), records, 501, "UnknownCoding")


# Seen red as before: a connection was closed after ten seconds without a word.
@pytest.mark.campaign
def test_a_head_that_does_not_end_is_refused_with_a_row(server: Running, records: Records) -> None:
    row = check_refused(heard(server, ASKING, "127.0.0.76"), records, 408, "TooSlow", "timeout")
    assert row["client_address"] == "127.0.0.76"


# Seen red without a time limit of its own, as before: 504 and "Try a simpler question".
def test_a_body_that_does_not_arrive_is_refused_with_a_row(
    server: Running, records: Records, key: str
) -> None:
    head = ASKING + b"Authorization: Bearer " + key.encode() + b"\r\nContent-Length: 100\r\n\r\n{"
    row = check_refused(heard(server, head, "127.0.0.178"), records, 408, "TooSlow", "timeout")
    assert (row["endpoint"], row["client_id"]) == ("/v1/query", "tests")


# Seen red with h11's own connection: the length was ignored, and the rest served as a second request.
@pytest.mark.parametrize("request_", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_nothing_is_served_after_a_request_whose_end_is_ambiguous(
    server: Running, records: Records, request_: bytes
) -> None:
    response = heard(server, request_ + SECOND, "127.0.0.72")
    good, _, refused = response.rpartition(b"HTTP/1.1 400")
    assert good.count(b"HTTP/1.1") == request_.count(SECOND)
    check_refused(b"HTTP/1.1 400" + refused, records)


# Seen red with uvicorn's own response, and with a body that is not marked: 504 after five seconds.
def test_a_malformed_body_has_the_row_that_its_client_saw(
    server: Running, key: str, records: Records
) -> None:
    authorized = b"Authorization: Bearer " + key.encode() + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    row = check_refused(
        heard(server, ASKING + authorized + b"2\r\n{}nonsense\r\n" + SECOND, "127.0.0.73"), records
    )
    assert (row["endpoint"], row["client_id"]) == ("/v1/query", "tests")


# Seen red with uvicorn's own response: a second one cannot be sent, so it raised, and the log got an error.
def test_a_malformed_body_after_its_response_closes_the_connection(
    data_dir: Path, database: Database, records: Records
) -> None:
    with served(data_dir, 1) as server, connected(server, "127.0.0.74") as connection:
        connection.sendall(ASKING + b"Transfer-Encoding: chunked\r\n\r\n")
        response = b""
        while not response.endswith(b"}"):
            response += connection.recv(65_536)
        connection.sendall(b"nonsense\r\n" + SECOND)
        assert connection.recv(65_536) == b""
        assert not any('"level": "error"' in line for line in server.said)
    status, headers, _ = split(response)
    (row,) = records.where("request_id = %s", headers["x-request-id"])
    assert (status, row["http_status"]) == (401, 401)


# Seen red with uvicorn's own response (no row at all), and for the second with a flood's bounds that end at status 500.
@pytest.mark.parametrize(
    ("head", "status", "address"),
    [(b"NONSENSE\r\n\r\n", 400, "127.0.0.75"), (CODINGS["an unknown coding"], 501, "127.0.0.77")],
)
def test_a_flood_of_malformed_heads_leaves_sixty_rows_and_one_that_counts_the_rest(
    server: Running, database: Database, records: Records, head: bytes, status: int, address: str
) -> None:
    beyond = 5
    for _ in range(ROWS_MAX + beyond):
        assert split(heard(server, head, address))[0] == status
    rows = records.where("client_address = %s", address)
    with psycopg.connect(database.url) as connection:
        counted = "SELECT trail ->> 'repeat_count' FROM audit_open WHERE trail ->> 'client_address' = %s"
        shared = [int(count) for (count,) in connection.execute(counted, (address,))]
    assert (len(rows), shared) == (ROWS_MAX, [beyond])
