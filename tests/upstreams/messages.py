"""The Anthropic Messages API, streamed, as far as one answer goes."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.upstreams import http

Block = dict[str, Any]


@dataclass
class Upstream:
    """Answers each request with what `write` makes of it; keeps the requests."""

    url: str = ""
    write: Callable[[dict[str, Any]], list[Block]] = lambda _: []
    stop_reason: str = "end_turn"
    status: int = 200
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def receive(self, request: Request) -> Response:
        asked = await request.json()
        self.requests.append(asked)
        self.headers.append(dict(request.headers))
        if self.status != 200:
            error = {
                "type": "error",
                "error": {"type": "overloaded_error", "message": "canary of the vendor"},
            }
            return JSONResponse(error, self.status, {"Retry-After": "59"})
        return StreamingResponse(
            self._events(asked), media_type="text/event-stream", headers={"request-id": "req_1"}
        )

    async def _events(self, asked: dict[str, Any]) -> AsyncIterator[str]:
        usage = {"input_tokens": 900, "output_tokens": 1}
        message = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": asked["model"], "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": usage,
        }  # fmt: skip
        yield _event("message_start", message=message)
        for index, block in enumerate(self.write(asked)):
            yield _event("content_block_start", index=index, content_block={"type": "text", "text": ""})
            for citation in block.get("citations", ()):
                yield _event(
                    "content_block_delta",
                    index=index,
                    delta={"type": "citations_delta", "citation": citation},
                )
            yield _event(
                "content_block_delta", index=index, delta={"type": "text_delta", "text": block["text"]}
            )
            yield _event("content_block_stop", index=index)
        yield _event(
            "message_delta",
            delta={"stop_reason": self.stop_reason, "stop_sequence": None},
            usage={"output_tokens": 40},
        )
        yield _event("message_stop")


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
    async with http(Route("/v1/messages", upstream.receive, methods=["POST"])) as upstream.url:
        yield upstream


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | fields)}\n\n"
