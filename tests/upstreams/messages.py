"""The Anthropic Messages API, streamed, as far as one answer goes. What can go wrong with it stands in faults.py."""

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tests.upstreams import http

Block = dict[str, Any]
Fault = Callable[["Upstream", Request, dict[str, Any]], Awaitable[Response]]

CANARY = "canary of the vendor"
REQUEST_ID = "req_1"


@dataclass
class Upstream:
    """Answers each request with what `write` makes of it, or with the fault it is told; keeps the requests."""

    url: str = ""
    write: Callable[[dict[str, Any]], list[Block]] = lambda _: []
    stop_reason: str = "end_turn"
    status: int = 200
    fault: Fault | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    in_flight: int = 0  # a client that leaves ends its own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.in_flight += 1
        try:
            response = await self.receive(Request(scope, receive))
            await response(scope, receive, send)
        finally:
            self.in_flight -= 1

    async def receive(self, request: Request) -> Response:
        asked = await request.json()
        self.requests.append(asked)
        self.headers.append(dict(request.headers))
        if self.fault:
            return await self.fault(self, request, asked)
        if self.status != 200:
            return error(self.status, "overloaded_error")
        return streamed(self.events(asked))

    async def events(self, asked: dict[str, Any]) -> AsyncIterator[str]:
        for each in whole(asked, self.write(asked), stop_reason=self.stop_reason):
            yield each


def whole(asked: dict[str, Any], blocks: list[Block], **delta: Any) -> list[str]:
    """A message from its start to its stop."""
    sent = [piece for index, block in enumerate(blocks) for piece in block_events(index, block)]
    return [start(asked), *sent, stop(**delta), event("message_stop")]


def start(asked: dict[str, Any]) -> str:
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": asked["model"], "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 900, "output_tokens": 1},
    }  # fmt: skip
    return event("message_start", message=message)


def block_events(index: int, block: Block) -> list[str]:
    """A block of text: its citations, its words, its end. One of thoughts: these, and their signature."""
    if "thinking" in block:
        first = {"type": "thinking", "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": block["thinking"]},
                  {"type": "signature_delta", "signature": "c2lnbmVk"}]  # fmt: skip
    else:
        first = {"type": "text", "text": ""}
        deltas = [{"type": "citations_delta", "citation": item} for item in block.get("citations", ())]
        deltas.append({"type": "text_delta", "text": block["text"]})
    return [
        event("content_block_start", index=index, content_block=first),
        *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
        event("content_block_stop", index=index),
    ]


def stop(**delta: Any) -> str:
    told = {"stop_reason": "end_turn", "stop_sequence": None} | delta
    return event("message_delta", delta=told, usage={"output_tokens": 40})


def event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | fields)}\n\n"


def streamed(events: AsyncIterator[str]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream", headers={"request-id": REQUEST_ID})


def error(status: int, kind: str) -> Response:
    told = {"type": "error", "error": {"type": kind, "message": CANARY}, "request_id": REQUEST_ID}
    return JSONResponse(told, status, {"Retry-After": "59", "request-id": REQUEST_ID})


def citing(asked: dict[str, Any], result: int, start: int, end: int) -> dict[str, Any]:
    """A true citation of the blocks that were sent."""
    shown = asked["messages"][0]["content"][result]
    return {
        "type": "search_result_location", "search_result_index": result, "start_block_index": start,
        "end_block_index": end, "source": shown["source"], "title": shown["title"],
        "cited_text": "".join(block["text"] for block in shown["content"][start:end]),
    }  # fmt: skip


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    async with http(Route("/v1/messages", upstream)) as upstream.url:
        yield upstream
