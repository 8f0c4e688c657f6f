"""Responses with an answer: one JSON body, or server-sent events with each sentence as it is released.

While the engine works, the connection is watched: if the client disconnects, the request is cancelled. A slow reader
delays nothing but its own stream: events go through a queue that holds one answer at most, and the engine never waits.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from engine.admission.sessions import Turn
from engine.answer import Asked, Engine
from engine.errors import RequestError
from engine.http import problems, v1
from engine.http.request_context import HttpExchange
from engine.models import Answer, Client, Question, Quoted, Sources

MEDIA_TYPE = "text/event-stream"
READ_S = 30.0  # timeout for sending one event of a few kilobytes; after it the client counts as disconnected

_HEADERS = {
    "Content-Type": f"{MEDIA_TYPE}; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",  # a proxy that compresses would hold every event back until the end
    "X-Accel-Buffering": "no",
}
_START: Message = {"type": "http.response.start", "status": 200, "headers": Headers(_HEADERS).raw}
_WEIGHT = re.compile(r"q=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)")

# JSON may contain these unescaped, and many clients treat them as line ends.
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


class Events(Protocol):
    """A contract's encoding of the stream: lines for the client, or an empty text where it has no such event."""

    def shown(self, event: Sources | Quoted) -> str: ...

    def done(self, answer: Answer) -> str: ...

    def failed(self, problem: problems.Problem) -> str: ...


class NamedEvents:
    """The events of /v1."""

    def shown(self, event: Sources | Quoted) -> str:
        if isinstance(event, Sources):
            return _event("sources", {"sources": [v1.source(item) for item in event.evidence]})
        return _event("sentence", v1.sentence(event))

    def done(self, answer: Answer) -> str:
        return _event("done", v1.response(answer).model_dump(mode="json"))

    def failed(self, problem: problems.Problem) -> str:
        return _event("error", problem.model_dump(mode="json"))


@dataclass(frozen=True, slots=True)
class Format:
    """A contract's encodings of an answer: as a body, and as events."""

    body: Callable[[Answer], BaseModel] = v1.response
    events: Callable[[], Events] = NamedEvents
    is_always_stream: bool = False  # whatever the client accepts


V1 = Format()


class EventStream(Response):
    """For the OpenAPI document."""

    media_type = MEDIA_TYPE


class QuestionExchange(HttpExchange):
    """The exchange of one question: its body, the turn of its session, and its stream if the client accepts events."""

    def __init__(
        self, request: Request, read: Callable[[], Awaitable[Question]], form: Format, turn: Turn | None
    ) -> None:
        super().__init__(request, read)
        self._turn = turn
        self.form = form
        self.has_read = asyncio.Event()
        accepted = ",".join(request.headers.getlist("Accept"))
        self.outbox = Outbox(form.events()) if form.is_always_stream or prefers_events(accepted) else None
        self.is_stream = self.outbox is not None

    async def read(self) -> Question:
        """Reads the body. Only then is the connection watched: both receive from the same ASGI channel."""
        try:
            question = await super().read()
        except ClientDisconnect:
            raise asyncio.CancelledError from None  # the same as a disconnect a moment later
        self.has_read.set()
        return question

    async def recall(self, client: Client, question: Question) -> Question:
        return await self._turn.recall(client, question) if self._turn else question

    def show(self, event: Sources | Quoted) -> None:
        if self.outbox:
            self.outbox.put(self.outbox.events.shown(event))

    async def stored(self, answer: Answer, within_s: float) -> Answer:
        """The answer, its turn stored in its session if there is one."""
        return await self._turn.kept(answer, within_s) if self._turn else answer


class Answering(Response):
    """A response that is computed while the connection is watched."""

    def __init__(self, engine: Engine, asked: Asked, exchange: QuestionExchange) -> None:
        self._engine = engine
        self._asked = asked
        self._exchange = exchange
        self._outbox = exchange.outbox
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A failure before the first event is a problem with a status of its own; afterwards it is an event."""
        async with asyncio.TaskGroup() as group:
            answering = group.create_task(self._answer())
            watching = group.create_task(self._watch(receive, answering))
            if self._outbox:
                group.create_task(self._outbox.deliver(send))
            await asyncio.wait([answering])
            watching.cancel()
            ended = None if answering.cancelled() else answering.result()
            if self._outbox:
                self._finish(ended, self._outbox)
        if ended is None or (self._outbox and self._outbox.is_used):
            return
        if isinstance(ended, RequestError):
            raise ended
        body = self._exchange.form.body(ended).model_dump_json()
        await Response(body, media_type="application/json", headers=_proof(ended))(scope, receive, send)

    async def _answer(self) -> Answer | RequestError:
        """Returns a failure instead of raising it: a task group would wrap it."""
        try:
            answer = await self._engine.answer(self._asked)
        except RequestError as failure:
            return failure
        return await self._exchange.stored(answer, self._engine.rules.total_s - answer.took_ms / 1000)

    async def _watch(self, receive: Receive, answering: asyncio.Task[Any]) -> None:
        """Cancels once, as asyncio does: a cancel scope of anyio would also cancel the cleanup of the drivers."""
        await self._exchange.has_read.wait()
        while (await receive())["type"] != "http.disconnect":
            """A client that has sent its whole body sends nothing else that matters."""
        answering.cancel()

    def _finish(self, ended: Answer | RequestError | None, outbox: "Outbox") -> None:
        if isinstance(ended, Answer):
            outbox.put(outbox.events.done(ended))
        elif ended and outbox.is_used:
            outbox.put(outbox.events.failed(problems.problem(ended, self._asked.request_id)))
        outbox.close()


class Outbox:
    """Queue of encoded events between the engine and a client that may read slowly."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()  # unbounded, but it holds one answer at most
        self.is_used = False

    def put(self, lines: str) -> None:
        if lines:
            self.is_used = True
            self._queue.put_nowait(lines.encode())

    def close(self) -> None:
        """No more events follow."""
        self._queue.put_nowait(b"")

    async def deliver(self, send: Send) -> None:
        """Sends the events until the outbox is closed. After a timeout the rest is dropped; the record is complete anyway."""
        event = await self._queue.get()
        if not event:
            return
        try:
            await _send_within(_START, send)
            while event:
                await _send_within({"type": "http.response.body", "body": event, "more_body": True}, send)
                event = await self._queue.get()
            await _send_within({"type": "http.response.body", "body": b"", "more_body": False}, send)
        except TimeoutError:
            """The server closes the connection of an incomplete response."""


def data_line(data: dict[str, Any]) -> str:
    """The data of an event in one line."""
    return f"data: {json.dumps(data, ensure_ascii=False).translate(_LINE_ENDS)}\n"


def _event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\n{data_line(data)}\n"


def _proof(answer: Answer) -> dict[str, str]:
    """The receipt as headers: the bodies of some contracts have no field for it."""
    receipt = v1.receipt(answer).model_dump_json()
    return {"X-Query-ID": str(answer.trail.query_id), "X-Receipt": receipt}


def prefers_events(accepted: str) -> bool:
    """Content negotiation: events only if `Accept` names them with a higher weight than JSON; `*/*` means JSON."""
    weights = {}
    for item in accepted.lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        given = [parameter for parameter in parameters if parameter.startswith("q=")]
        weight = _WEIGHT.fullmatch(given[0]) if given else None
        weights[name] = float(weight[1]) if weight else float(not given)  # an unreadable weight counts as 0
    return weights.get(MEDIA_TYPE, 0.0) > weights.get("application/json", 0.0)


async def _send_within(message: Message, send: Send) -> None:
    async with asyncio.timeout(READ_S):
        await send(message)
