"""Load shedding where a connection is read: while the queue has no room for a client, its questions are refused at once.

Under ten times the load that a process can take, a refusal that went through the framework would cost the answers their
time: it takes a millisecond and a half, and this takes a thirtieth of it. So this reads only the plainest of heads, as
clients and proxies send them, and only of keys with which a question was let in within the last second. Anything else is
passed on, and refused or answered by the engine like any other request.
"""

import asyncio
import functools
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from uuid import UUID

from engine.admission.overload.turnstile import Ticket
from engine.admission.shared_rows import SharedRow
from engine.errors import AuditUnavailableError, OverloadedError, RequestError
from engine.house import House
from engine.http import cors, problems
from engine.http.middleware import REQUEST_ID, SECURITY
from engine.http.problems import ErrorTypes
from engine.http.request_context import secret_of
from engine.http.widgets import CONTRACTS
from engine.models import Client

ID = "<the request's id>"
BOOK = "{book_id}"
# What such a head may have, each header once. `Expect`, a coding, an upgrade and all else that matters are for the protocol.
ONCE = frozenset({b"host", b"authorization", b"content-length", b"x-request-id", b"origin", b"connection"})
NOT_HERE = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer", b"http2-settings"})
NEEDED = (b"host", b"authorization", b"content-length")

# Possessive quantifiers: a hostile head costs one pass.
_PLAIN = re.compile(
    rb"POST (/[a-z0-9/_-]*+) HTTP/1\.1\r\n((?:[!#$%&'*+.^_`|~\w-]++:[ \t]*+[\x20-\x7e]*+\r\n)++)\r\n"
)
_HEADER = re.compile(rb"([^:]++):[ \t]*+([^\r]*+)\r\n")
_SAME = "".join(
    f"{name}: {value}\r\n" for name, value in {"Content-Type": problems.MEDIA_TYPE, **SECURITY}.items()
)
_LENGTH = re.compile(rb"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a question, and where it ends."""

    path: str
    headers: Mapping[bytes, bytes]
    ends_at: int

    @property
    def body_bytes(self) -> int:
        return int(self.headers[b"content-length"])

    def text(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("ascii")


@dataclass(frozen=True, slots=True)
class Refused:
    """A question that is refused, and counted in a row soon."""

    head: Head
    failure: RequestError
    row: SharedRow
    counted: asyncio.Future[None]


class Shedder:
    """Looks at what arrives on the connections of one process. A reload replaces the house in the state."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    @property
    def is_needed(self) -> bool:
        return self._house.engine.turnstile.is_crowded

    def look(self, data: bytes) -> Refused | Ticket | None:
        """A question is refused or gets a ticket. None: whatever it is, it goes its usual way."""
        head = head_of(data)
        if head is None or head.body_bytes > self._house.body_bytes_max:
            return None
        client = self._client_of(head)
        if client is None:
            return None
        try:
            return self._house.engine.turnstile.enter(client.client_id)
        except OverloadedError as failure:
            return Refused(head, failure, *self._house.engine.count_refused(client))

    def response(self, refused: Refused, default_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The problem document, once the row counts the request; if it could not be counted, that is what the client is told."""
        head, failure = refused.head, _told(refused)
        given = head.text(b"x-request-id")
        request_id = given if REQUEST_ID.fullmatch(given) else f"{random.getrandbits(128):032x}"
        is_counted = isinstance(failure, OverloadedError)
        texts = _around_id(head.path, failure.query_id, failure.retry_after_s, is_counted=is_counted)
        body = request_id.join(texts).encode()
        self._state["metrics"].figures.count_refused(_endpoint(head.path) or "", type(failure))
        more = [f"{name.decode()}: {value.decode()}\r\n" for name, value in default_headers]
        pages = [f"{name}: {value}\r\n" for name, value in self._for_pages(head).items()]
        begin = (
            f"HTTP/1.1 {failure.status} {HTTPStatus(failure.status).phrase}\r\nRetry-After: {failure.retry_after_s}\r\n"
            f"Content-Length: {len(body)}\r\nX-Request-ID: {request_id}\r\n{_SAME}{''.join(pages)}{''.join(more)}\r\n"
        )
        return begin.encode("ascii") + body

    @property
    def _house(self) -> House:
        house: House = self._state["house"]
        return house

    def _client_of(self, head: Head) -> Client | None:
        secret = secret_of(head.text(b"authorization"))
        return self._house.engine.recent_keys.holder(secret, head.text(b"origin")) if secret else None

    def _for_pages(self, head: Head) -> dict[str, str]:
        origins = self._house.allowed_origins
        return {"Vary": "Origin", **cors.allowing(head.text(b"origin"), origins)} if origins else {}


def head_of(data: bytes) -> Head | None:
    """The head of a question that begins here, if it is complete, plain and unambiguous."""
    found = _PLAIN.match(data)
    if found is None or _endpoint(path := found[1].decode()) is None:
        return None
    headers: dict[bytes, bytes] = {}
    for written, value in _HEADER.findall(found[2]):
        name = written.lower()
        if name in NOT_HERE or (name in ONCE and name in headers):
            return None
        headers[name] = value.rstrip()
    if not all(name in headers for name in NEEDED) or not _LENGTH.fullmatch(headers[b"content-length"]):
        return None
    if headers.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    return Head(path, headers, found.end())


def _told(refused: Refused) -> RequestError:
    failure = AuditUnavailableError() if refused.counted.exception() else refused.failure
    if refused.row.is_open:
        failure.query_id = refused.row.trail.query_id
    return failure


@functools.lru_cache(256)
def _around_id(path: str, query_id: UUID | None, retry_after_s: int | None, *, is_counted: bool) -> list[str]:
    """The problem document, the same for all questions of a row but for the request's id: what is before it, and after."""
    failure = OverloadedError(retry_after_s=retry_after_s) if is_counted else AuditUnavailableError()
    failure.query_id = query_id
    return problems.problem(failure, ID, _error_types(path)).model_dump_json().split(ID)


_ASKED: dict[str, ErrorTypes | None] = {
    "/v1/query": None,
    f"/v1/books/{BOOK}/query": None,
    **{path: contract.error_types for contract in CONTRACTS for path in contract.paths},
}
_WITH_BOOK = [(re.compile(path.replace(BOOK, r"[^/]+")), path) for path in _ASKED if BOOK in path]


@functools.lru_cache(1024)
def _endpoint(path: str) -> str | None:
    """The route of a question; None if the address takes none."""
    if path in _ASKED:
        return path
    return next((route for pattern, route in _WITH_BOOK if pattern.fullmatch(path)), None)


def _error_types(path: str) -> ErrorTypes | None:
    return _ASKED[_endpoint(path) or path]
