"""Cohere's Rerank: a text scores the share of the question's words that it has. And a menu of ways to answer badly."""

import asyncio
import contextlib
import json
import math
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.upstreams import http

Result = dict[str, Any]

STATUSES = (400, 401, 429, 500, 503)

# What becomes of a true list of results, best first.
ORDERS: dict[str, Callable[[list[Result]], Any]] = {
    "index twice": lambda results: [*results[:-1], results[-1] | {"index": results[0]["index"]}],
    "index out of range": lambda results: [*results[:-1], results[-1] | {"index": len(results)}],
    "index below zero": lambda results: [*results[:-1], results[-1] | {"index": -1}],
    "index in words": lambda results: [*results[:-1], results[-1] | {"index": "last"}],
    "missing index": lambda results: [*results[:-1], {"relevance_score": 0.5}],
    "missing score": lambda results: [*results[:-1], {"index": results[-1]["index"]}],
    "one too few": lambda results: results[:-1],
    "one too many": lambda results: [*results, results[0]],
    "none": lambda _: [],
    "NaN score": lambda results: [*results[:-1], results[-1] | {"relevance_score": math.nan}],
    "NaN score as text": lambda results: [*results[:-1], results[-1] | {"relevance_score": "NaN"}],
    "endless score": lambda results: [*results[:-1], results[-1] | {"relevance_score": math.inf}],
    "score beyond all numbers": lambda results: [*results[:-1], results[-1] | {"relevance_score": 10**400}],
    "no list": lambda results: results[0],
    "nothing": lambda _: None,
}

# What is sent in place of a reply.
BODIES = {
    "a list": b"[]",
    "null": b"null",
    "not UTF-8": b'{"id": "\xff"}',
    "too deep": b"[" * 100_000,
}
MALFORMED = b'{"id": "canary of the vendor", "results": [{"index": 0, '


@dataclass
class Upstream:
    """Answers truly, or with the fault it is told."""

    url: str = ""
    fault: str | int | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    abandoned: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self, request: Request) -> Response:
        asked = await request.json()
        self.requests.append(asked)
        self.headers.append(dict(request.headers))
        self.asked.set()
        if isinstance(self.fault, int):
            return JSONResponse({"message": "canary of the vendor"}, self.fault, {"Retry-After": "59"})
        if self.fault == "trickle":
            return StreamingResponse(self._trickle(), media_type="application/json")
        if self.fault == "hang":
            await self._wait_for_the_end(request)
        if self.fault == "reset":
            _reset(request)
        return Response(self._body(asked), media_type="application/json")

    def _body(self, asked: dict[str, Any]) -> bytes:
        if self.fault == "malformed":
            return MALFORMED
        if self.fault in BODIES:
            return BODIES[str(self.fault)]
        spoilt = ORDERS.get(str(self.fault), list)(_results(asked))
        reply = {"id": "1", "results": spoilt, "meta": {"billed_units": {"search_units": 1}}}
        return json.dumps(reply).encode()

    async def _trickle(self) -> AsyncIterator[bytes]:
        """White space may stand before JSON, so no reader can tell that nothing will come."""
        try:
            while True:
                yield b" "
                await asyncio.sleep(0.01)
        finally:
            self.abandoned.set()

    async def _wait_for_the_end(self, request: Request) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self.abandoned.set()


def score(question: str, text: str) -> float:
    words = set(question.lower().split())
    return len(words & set(text.lower().split())) / len(words)


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    async with http(Route("/v2/rerank", upstream.receive, methods=["POST"])) as upstream.url:
        yield upstream


def _results(asked: dict[str, Any]) -> list[Result]:
    scores = [score(asked["query"], text) for text in asked["documents"]]
    order = sorted(range(len(scores)), key=lambda number: -scores[number])
    return [{"index": number, "relevance_score": scores[number]} for number in order[: asked["top_n"]]]


def _reset(request: Request) -> None:
    """ASGI has no word for it: the connection is taken from under the server, unsent bytes and all."""
    receive: Any = request.receive
    transport = receive.__self__.transport
    linger = struct.pack("ii", 1, 0)
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    transport.abort()
