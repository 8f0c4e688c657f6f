"""Which heads are read where the connection is: the plain ones of questions. Whatever two readers could read in two ways is not."""

import pytest

from engine.connections.shedding import head_of

PLAIN = b"POST /v1/query HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer aff_1\r\nContent-Length: 2\r\nUser-Agent: a\r\n\r\n{}"

OTHERS = {
    "no question": PLAIN.replace(b"POST", b"GET"),
    "another address": PLAIN.replace(b"/v1/query", b"/v1/feedback"),
    "a query string": PLAIN.replace(b"/v1/query", b"/v1/query?a=1"),
    "a whole address": PLAIN.replace(b"/v1/query", b"http://x/v1/query"),
    "HTTP/1.0": PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "no end yet": PLAIN.partition(b"\r\n\r\n")[0],
    "no key": PLAIN.replace(b"Authorization: Bearer aff_1\r\n", b""),
    "no length": PLAIN.replace(b"Content-Length: 2\r\n", b""),
    "two lengths": PLAIN.replace(b"Content-Length: 2", b"Content-Length: 2\r\nContent-Length: 2"),
    "two keys": PLAIN.replace(b"Host: x", b"Host: x\r\nauthorization: Bearer aff_2"),
    "a length that is none": PLAIN.replace(b"Length: 2", b"Length: +2"),
    "a negative length": PLAIN.replace(b"Length: 2", b"Length: -2"),
    "a length of a list": PLAIN.replace(b"Length: 2", b"Length: 2, 2"),
    "a coding": PLAIN.replace(b"User-Agent: a", b"Transfer-Encoding: chunked"),
    "an expectation": PLAIN.replace(b"User-Agent: a", b"Expect: 100-continue"),
    "an upgrade": PLAIN.replace(b"User-Agent: a", b"Upgrade: h2c"),
    "an end of the connection": PLAIN.replace(b"User-Agent: a", b"Connection: close"),
    "a space before the colon": PLAIN.replace(b"Content-Length:", b"Content-Length :"),
    "a line that continues": PLAIN.replace(b"User-Agent: a", b"User-Agent: a\r\n Content-Length: 9"),
    "a line end alone": PLAIN.replace(b"User-Agent: a", b"User-Agent: a\nContent-Length: 9"),
    "a NUL": PLAIN.replace(b"User-Agent: a", b"User-Agent: \0"),
    "what is not ASCII": PLAIN.replace(b"User-Agent: a", "User-Agent: ä".encode()),
    "a header without a colon": PLAIN.replace(b"User-Agent: a", b"User-Agent"),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    "nothing": b"",
}


def test_a_plain_head_is_read() -> None:
    head = head_of(PLAIN + b"POST")
    assert head
    assert (head.path, head.body_bytes, PLAIN[head.ends_at :]) == ("/v1/query", 2, b"{}")
    assert head.text(b"authorization") == "Bearer aff_1" and not head.text(b"origin")


@pytest.mark.parametrize("path", ["/api/ask", "/v1/books/robotics/query", "/chat/book/robotics/query"])
def test_so_is_that_of_a_widget_or_of_a_book(path: str) -> None:
    head = head_of(PLAIN.replace(b"/v1/query", path.encode()))
    assert head and head.path == path


# Seen red for each with its condition taken out.
@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
def test_any_other_goes_its_usual_way(data: bytes) -> None:
    assert head_of(data) is None
