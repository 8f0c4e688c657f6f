"""An answer on its way to the client: in one piece, or sentence by sentence as server-sent events.

While the engine works, the connection is watched: a client that leaves takes the request along. A client that reads
slowly holds up only itself: the engine never waits for it, and what waits for it is one answer at most.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from engine.answer import Asked, Engine, Sources
from engine.errors import RequestError
from engine.http import problems, v1
from engine.models import Answer, Question, Quoted

MEDIA_TYPE = "text/event-stream"
READ_S = 30.0  # for one event of a few kilobytes: who has not taken it by then has gone

_HEADERS = {
    "Content-Type": f"{MEDIA_TYPE}; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",  # a proxy that compresses would hold every event back until the end
    "X-Accel-Buffering": "no",
}
_START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()],
}
_WEIGHT = re.compile(r"q=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)")

# JSON may hold these as they are, and to many a client they end a line.
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


class Events(Protocol):
    """What a contract says while the answer comes, as lines for the client; nothing if it has no words for it."""

    def heard(self, event: Sources | Quoted) -> str: ...

    def done(self, answer: Answer) -> str: ...

    def failed(self, problem: problems.Problem) -> str: ...


class NamedEvents:
    """The events of /v1."""

    def heard(self, event: Sources | Quoted) -> str:
        if isinstance(event, Sources):
            return _event("sources", {"sources": [v1.source(item) for item in event.evidence]})
        return _event("sentence", v1.sentence(event))

    def done(self, answer: Answer) -> str:
        return _event("done", v1.response(answer).model_dump(mode="json"))

    def failed(self, problem: problems.Problem) -> str:
        return _event("error", problem.model_dump(mode="json"))


@dataclass(frozen=True, slots=True)
class Form:
    """How a contract puts an answer: as a body, and as events if it knows any."""

    body: Callable[[Answer], BaseModel] = v1.response
    events: Callable[[], Events] | None = NamedEvents


V1 = Form()


async def as_it_is(answer: Answer, _: float) -> Answer:
    """An answer of no session."""
    return answer


class Answering(Response):
    """A response that is worked out while the connection is watched."""

    def __init__(
        self,
        engine: Engine,
        asked: Asked,
        request: Request,
        form: Form = V1,
        keep: Callable[[Answer, float], Awaitable[Answer]] = as_it_is,
    ) -> None:
        self._engine = engine
        self._request = request
        self._form = form
        self._keep = keep
        self._has_read = asyncio.Event()
        self._asked = replace(asked, read=_telling(asked.read, self._has_read))
        wishes = ",".join(request.headers.getlist("Accept"))
        self._outbox = Outbox(form.events()) if form.events and are_events_preferred(wishes) else None
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A failure before the first event is a problem with a status of its own; afterwards it is an event."""
        async with asyncio.TaskGroup() as group:
            answering = group.create_task(self._ended())
            watching = group.create_task(self._watch(receive, answering))
            if self._outbox:
                group.create_task(self._outbox.deliver(send))
            await asyncio.wait([answering])
            watching.cancel()
            ended = None if answering.cancelled() else answering.result()
            if self._outbox:
                self._say_last(ended, self._outbox)
        if ended is None or (self._outbox and self._outbox.is_used):
            return
        if isinstance(ended, RequestError):
            raise ended
        body = self._form.body(ended).model_dump_json()
        await Response(body, media_type="application/json", headers=_proof(ended))(scope, receive, send)

    async def _ended(self) -> Answer | RequestError:
        """A task group would wrap what is raised in it."""
        try:
            answer = await self._engine.answer(self._asked, self._outbox.hear if self._outbox else None)
        except RequestError as failure:
            return failure
        return await self._keep(answer, self._engine.rules.total_s - answer.took_ms / 1000)

    async def _watch(self, receive: Receive, answering: asyncio.Task[Any]) -> None:
        """Cancels once, as asyncio does: a scope of anyio would also cancel what the drivers do to clean up."""
        await self._has_read.wait()
        while (await receive())["type"] != "http.disconnect":
            """Nothing else is expected of a client that has said all."""
        answering.cancel()

    def _say_last(self, ended: Answer | RequestError | None, outbox: "Outbox") -> None:
        if isinstance(ended, Answer):
            outbox.put(outbox.events.done(ended))
        elif ended and outbox.is_used:
            outbox.put(outbox.events.failed(problems.problem(ended, self._request)))
        outbox.close()


class Outbox:
    """Events that wait for their reader."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()  # one answer is all it ever holds
        self.is_used = False

    def hear(self, event: Sources | Quoted) -> None:
        self.put(self.events.heard(event))

    def put(self, lines: str) -> None:
        if lines:
            self.is_used = True
            self._waiting.put_nowait(lines.encode())

    def close(self) -> None:
        """Nothing more can come."""
        self._waiting.put_nowait(b"")

    async def deliver(self, send: Send) -> None:
        """Gives up on a reader who does not read: what is left is thrown away, and the record is there."""
        event = await self._waiting.get()
        if not event:
            return
        try:
            await _sent(_START, send)
            while event:
                await _sent({"type": "http.response.body", "body": event, "more_body": True}, send)
                event = await self._waiting.get()
            await _sent({"type": "http.response.body", "body": b"", "more_body": False}, send)
        except TimeoutError:
            """The server closes the connection of a response that was not completed."""


def data_line(data: dict[str, Any]) -> str:
    """An event's data in one line."""
    return f"data: {json.dumps(data, ensure_ascii=False).translate(_LINE_ENDS)}\n"


def _event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\n{data_line(data)}\n"


def _proof(answer: Answer) -> dict[str, str]:
    """Every answer leaves with its receipt, also where a contract's body has no place for it."""
    receipt = v1.receipt(answer.receipt).model_dump_json()
    return {"X-Query-ID": str(answer.trail.query_id), "X-Receipt": receipt}


def are_events_preferred(wishes: str) -> bool:
    """Only who names events, and does not want JSON as much, gets them; who takes anything gets JSON."""
    weights = {}
    for wish in wishes.lower().split(","):
        name, *parameters = (part.strip() for part in wish.split(";"))
        given = [parameter for parameter in parameters if parameter.startswith("q=")]
        weight = _WEIGHT.fullmatch(given[0]) if given else None
        weights[name] = float(weight[1]) if weight else float(not given)  # one that cannot be read is none
    return weights.get(MEDIA_TYPE, 0.0) > weights.get("application/json", 0.0)


async def _sent(message: Message, send: Send) -> None:
    async with asyncio.timeout(READ_S):
        await send(message)


def _telling(
    read: Callable[[], Awaitable[Question]], has_read: asyncio.Event
) -> Callable[[], Awaitable[Question]]:
    """The watch begins when the body is read: until then both would wait for the same messages."""

    async def reading() -> Question:
        try:
            question = await read()
        except ClientDisconnect:
            raise asyncio.CancelledError from None  # it left while it spoke: the same as a moment later
        has_read.set()
        return question

    return reading
