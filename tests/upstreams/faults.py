"""What a language model's server can do wrong, by name. Each takes the place of a true answer."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from tests.conftest import free_port
from tests.upstreams.messages import (
    CANARY,
    Block,
    Fault,
    Upstream,
    block_events,
    citing,
    error,
    event,
    start,
    stop,
    streamed,
    whole,
)

Asked = dict[str, Any]

FLOOD_BYTES = 4_000_000
RAW_TEXT = "\N{SNOWMAN} " * 1000


def true_blocks(asked: Asked) -> list[Block]:
    """One proven sentence: the first of the first passage, word for word."""
    cited = citing(asked, 0, 0, 1)
    return [{"text": cited["cited_text"], "citations": [cited]}, {"text": "\nConfidence: 0.9"}]


def _lying(**wrong: Any) -> Fault:
    """A sentence that would be believed, but for this in its citation."""

    def blocks(asked: Asked) -> list[Block]:
        return [{"text": "Robots love you.", "citations": [citing(asked, 0, 0, 1) | wrong]}]

    return _writing(blocks)


def _writing(blocks: Callable[[Asked], list[Block]], **delta: Any) -> Fault:
    async def answer(_: Upstream, __: Request, asked: Asked) -> Response:
        return streamed(_each(whole(asked, blocks(asked), **delta)))

    return answer


def _status(status: int, kind: str) -> Fault:
    async def answer(*_: Any) -> Response:
        return error(status, kind)

    return answer


def _sending(*events: str) -> Fault:
    """A good beginning with one proven sentence, and then this."""

    async def answer(_: Upstream, __: Request, asked: Asked) -> Response:
        return streamed(_each([*_begun(asked), *events]))

    return answer


def _late(seconds: float) -> Fault:
    """A true answer whose end is so late."""

    async def events(asked: Asked) -> AsyncIterator[str]:
        sent = whole(asked, true_blocks(asked))
        for each in sent[:-2]:
            yield each
        await asyncio.sleep(seconds)
        for each in sent[-2:]:
            yield each

    async def answer(_: Upstream, __: Request, asked: Asked) -> Response:
        return streamed(events(asked))

    return answer


def _responding(response: Callable[[], Response]) -> Fault:
    async def answer(*_: Any) -> Response:
        return response()

    return answer


async def _hang(_: Upstream, request: Request, __: Asked) -> Response:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    return Response()


async def _hang_after_headers(*_: Any) -> Response:
    async def nothing() -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield ""

    return streamed(nothing())


async def _hang_after_a_sentence(_: Upstream, __: Request, asked: Asked) -> Response:
    async def events() -> AsyncIterator[str]:
        for each in _begun(asked):
            yield each
        await asyncio.Event().wait()

    return streamed(events())


async def _trickle(_: Upstream, __: Request, asked: Asked) -> Response:
    async def bytes_of_it() -> AsyncIterator[str]:
        for character in "".join(whole(asked, true_blocks(asked))):
            yield character
            await asyncio.sleep(1)

    return streamed(bytes_of_it())


async def _pings(_: Upstream, __: Request, asked: Asked) -> Response:
    async def events() -> AsyncIterator[str]:
        yield start(asked)
        while True:
            yield event("ping")
            await asyncio.sleep(0.05)  # thirty-two such streams share a core with their reader here

    return streamed(events())


async def _flood(_: Upstream, __: Request, asked: Asked) -> Response:
    """Text without end, as fast as it is taken."""

    async def events() -> AsyncIterator[str]:
        yield start(asked)
        yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        while True:
            yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": RAW_TEXT})
            await asyncio.sleep(0)  # or nobody in this process would ever hear that the reader has left

    return streamed(events())


async def _early_close(_: Upstream, request: Request, asked: Asked) -> Response:
    """The connection is closed in good order, but in the middle of the body."""

    async def events() -> AsyncIterator[str]:
        for each in _begun(asked):
            yield each
        await asyncio.sleep(0.05)  # so that the beginning is read before the end
        _transport(request).close()

    return streamed(events())


async def _reset(_: Upstream, request: Request, asked: Asked) -> Response:
    async def events() -> AsyncIterator[str]:
        for each in _begun(asked):
            yield each
        await asyncio.sleep(0.05)  # a reset throws away what was not read
        transport = _transport(request)
        linger = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.abort()

    return streamed(events())


def _transport(request: Request) -> Any:
    """ASGI has no word for it: the connection is taken from under the server."""
    receive: Any = request.receive
    return receive.__self__.transport


def _begun(asked: Asked) -> list[str]:
    return [start(asked), *block_events(0, true_blocks(asked)[0])]


async def _each(events: list[str]) -> AsyncIterator[str]:
    for each in events:
        yield each


def _delta(**delta: Any) -> str:
    return event("content_block_delta", index=1, delta=delta)


def _told(kind: str) -> str:
    return event("error", error={"type": kind, "message": CANARY})


_SECOND = event("content_block_start", index=1, content_block={"type": "text", "text": ""})
_PROBLEM = {"type": "error", "error": {"type": "api_error", "message": CANARY}}
_NO_ANSWER: list[Block] = []

FAULTS: dict[str, Fault] = {
    "hang before headers": _hang,
    "hang after headers": _hang_after_headers,
    "hang after a sentence": _hang_after_a_sentence,
    "trickle": _trickle,
    "pings": _pings,
    "2.4 s": _late(2.4),
    "2.6 s": _late(2.6),
    "400": _status(400, "invalid_request_error"),
    "401": _status(401, "authentication_error"),
    "429": _status(429, "rate_limit_error"),
    "500": _status(500, "api_error"),
    "529": _status(529, "overloaded_error"),
    "500 of its own words": _status(500, CANARY),
    "overloaded in the stream": _sending(_told("overloaded_error")),
    "rejected in the stream": _sending(_told("invalid_request_error")),
    "malformed JSON": _sending(f'event: content_block_delta\ndata: {{"type": "{CANARY}", \n\n'),
    "event without its fields": _sending(event("content_block_delta", index=1)),
    "event of another shape": _sending(event("message_delta", delta=[CANARY], usage=7)),
    "text that is none": _sending(_SECOND, _delta(type="text_delta", text=None), stop()),
    "counts that are none": _sending(
        event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 10**30}),
        event("message_stop"),
    ),
    "HTML": _responding(partial(HTMLResponse, f"<h1>{CANARY}</h1>")),
    "JSON": _responding(partial(JSONResponse, _PROBLEM)),
    "empty body": _responding(partial(Response, media_type="text/event-stream")),
    "early end": _sending(),
    "early close": _early_close,
    "reset": _reset,
    "text without end": _flood,
    "one enormous event": _sending(_SECOND, _delta(type="text_delta", text="x" * FLOOD_BYTES), stop()),
    "one enormous block": _sending(
        event("content_block_start", index=1, content_block={"type": "text", "text": "x" * FLOOD_BYTES}),
        event("content_block_stop", index=1),
        stop(),
        event("message_stop"),
    ),
    "wrong text": _lying(cited_text="Robots love you."),
    "wrong index": _lying(start_block_index=1, end_block_index=2),
    "index out of range": _lying(start_block_index=900, end_block_index=901),
    "passage not sent": _lying(search_result_index=99),
    "index below zero": _lying(search_result_index=-1),
    "index in words": _lying(search_result_index="first"),
    "NUL in the text": _writing(lambda _: [{"text": "Robots\x00 love you."}]),
    "half a character": _writing(lambda _: [{"text": "Robots \ud83d love you."}]),
    "max_tokens": _writing(true_blocks, stop_reason="max_tokens"),
    "pause_turn": _writing(true_blocks, stop_reason="pause_turn"),
    "unknown stop": _writing(true_blocks, stop_reason="a_new_one"),
    "refusal": _writing(
        lambda _: _NO_ANSWER,
        stop_reason="refusal",
        stop_details={"type": "refusal", "category": "bio", "explanation": CANARY},
    ),
    "empty answer": _writing(lambda _: _NO_ANSWER),
    "thinking first": _writing(lambda asked: [{"thinking": CANARY}, *true_blocks(asked)]),
    "several blocks": _writing(lambda asked: [*true_blocks(asked)[:1], {"text": " "}, *true_blocks(asked)]),
    "none": _writing(true_blocks),
}


def refusing() -> str:
    """An address where nobody listens."""
    return f"http://127.0.0.1:{free_port()}"


@contextlib.asynccontextmanager
async def deaf() -> AsyncIterator[str]:
    """An address that never answers a connection: the queue of those who wait there is full."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def parsed(sent: str) -> dict[str, Any]:
    """The data of one server-sent event."""
    data: dict[str, Any] = json.loads(sent.partition("data: ")[2])
    return data
