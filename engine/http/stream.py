"""An answer on its way to the client: in one piece, or sentence by sentence as server-sent events.

While the engine works, the connection is watched: a client that leaves takes the request along. A client that reads
slowly holds up only itself: the engine never waits for it, and what waits for it is one answer at most.
"""

import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.answer import Asked, Engine, Sources
from engine.errors import RequestError
from engine.http import contracts, problems
from engine.models import Answer, Question, Quoted

MEDIA_TYPE = "text/event-stream"
READ_S = 30.0  # for one event of a few kilobytes: who has not taken it by then has gone

_HEADERS = {
    "Content-Type": f"{MEDIA_TYPE}; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",  # a proxy that compresses would hold every event back until the end
    "X-Accel-Buffering": "no",
}


class Answering(Response):
    """A response that is worked out while the connection is watched."""

    def __init__(self, engine: Engine, asked: Asked, request: Request) -> None:
        self._engine = engine
        self._request = request
        self._has_read = anyio.Event()
        self._asked = replace(asked, read=_telling(asked.read, self._has_read))
        self._outbox = Outbox() if MEDIA_TYPE in request.headers.get("Accept", "") else None
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A failure before the first event is a problem with a status of its own; afterwards it is an event."""
        ended: Answer | RequestError | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch, receive, group.cancel_scope)
            if self._outbox:
                group.start_soon(self._outbox.deliver, send)
            ended = await self._ended()
            if self._outbox and (self._outbox.is_used or isinstance(ended, Answer)):
                self._outbox.put(*self._last_event(ended))
                await self._outbox.emptied()
            group.cancel_scope.cancel()
        if ended is None or (self._outbox and self._outbox.is_used):
            return
        if isinstance(ended, RequestError):
            raise ended
        body = contracts.response(ended).model_dump_json()
        await Response(body, media_type="application/json")(scope, receive, send)

    async def _ended(self) -> Answer | RequestError:
        """A task group would wrap what is raised in it."""
        try:
            return await self._engine.answer(self._asked, self._hear if self._outbox else None)
        except RequestError as failure:
            return failure

    async def _watch(self, receive: Receive, here: anyio.CancelScope) -> None:
        await self._has_read.wait()
        while (await receive())["type"] != "http.disconnect":
            """Nothing else is expected of a client that has said all."""
        here.cancel()

    def _hear(self, event: Sources | Quoted) -> None:
        assert self._outbox
        if isinstance(event, Sources):
            self._outbox.put("sources", {"sources": [contracts.source(item) for item in event.evidence]})
        else:
            self._outbox.put("sentence", contracts.sentence(event))

    def _last_event(self, ended: Answer | RequestError) -> tuple[str, dict[str, Any]]:
        if isinstance(ended, RequestError):
            return "error", problems.problem(ended, self._request).model_dump(mode="json")
        return "done", contracts.response(ended).model_dump(mode="json")


class Outbox:
    """Events that wait for their reader."""

    def __init__(self) -> None:
        self._put, self._taken = anyio.create_memory_object_stream[bytes](
            math.inf
        )  # one answer is all it ever holds
        self._is_empty = anyio.Event()
        self.is_used = False

    def put(self, name: str, data: dict[str, Any]) -> None:
        self.is_used = True
        self._put.send_nowait(f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode())

    async def emptied(self) -> None:
        """Once all that was put has been taken by the connection, and nothing more can come."""
        self._put.close()
        await self._is_empty.wait()

    async def deliver(self, send: Send) -> None:
        """Gives up on a reader who does not read: what is left is thrown away, and the record is there."""
        with self._taken, anyio.move_on_after(READ_S) as patience:
            first = await self._taken.receive()
            headers = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for event in self._taken:
                patience.deadline = anyio.current_time() + READ_S
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        self._is_empty.set()


def _telling(
    read: Callable[[], Awaitable[Question]], has_read: anyio.Event
) -> Callable[[], Awaitable[Question]]:
    """The watch begins when the body is read: until then both would wait for the same messages."""

    async def reading() -> Question:
        question = await read()
        has_read.set()
        return question

    return reading
