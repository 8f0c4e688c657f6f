"""The engine's command line with a stopwatch in it, for bench/account.py: nothing of it is in the product.

Run as `python -m bench.taps FILE serve …`. A signal (SIGUSR1) begins the account anew, and FILE has it when the process ends.
It is right for one request at a time: whatever happens while a part runs is counted as that part.
"""

import asyncio
import functools
import importlib
import json
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from pydantic import BaseModel

IDLE = "idle"
HTTP_IN, ADMISSION, OPEN, EMBED, SEARCH = "HTTP in", "key, limits, body", "open the record", "embed", "search"
SCORE, GENERATE, VERIFY, CLOSE, HTTP_OUT = (
    "score and gate",
    "generate",
    "verify and cite",
    "close the record",
    "HTTP out",
)
PARTS = (HTTP_IN, ADMISSION, OPEN, EMBED, SEARCH, SCORE, GENERATE, VERIFY, CLOSE, HTTP_OUT)
AFTER = "log and metrics"  # once the client has its answer
JSON_TEXTS, ROUND_TRIPS, LOG_BYTES = "JSON texts", "round trips", "log bytes"


def _now() -> tuple[int, int]:
    return time.perf_counter_ns(), time.process_time_ns()


class Stopwatch:
    """Which part runs now, and what each has taken: by the clock, and on the cores of this process."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self, *_: object) -> None:
        self.requests = 0
        self.counts: Counter[str] = Counter()
        self.spent_ns: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self._part, self._since = IDLE, _now()

    def switch(self, part: str) -> None:
        now, spent = _now(), self.spent_ns[self._part]
        spent[0] += now[0] - self._since[0]
        spent[1] += now[1] - self._since[1]
        self._part, self._since = part, now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        before = self._part
        self.switch(name)
        try:
            yield
        finally:
            self.switch(before)

    def begin_request(self) -> None:
        if self._part == IDLE:
            self.switch(HTTP_IN)

    def end_request(self) -> None:
        self.switch(IDLE)
        self.requests += 1

    def write(self, file: Path) -> None:
        account = {"requests": self.requests, "spent_ns": self.spent_ns, "counts": self.counts}
        file.write_text(json.dumps(account))


watch = Stopwatch()


def _timed(owner: Any, name: str, part: str) -> None:
    """Puts a coroutine function, or a plain one, under the stopwatch."""
    function = getattr(owner, name)
    if asyncio.iscoroutinefunction(function):

        @functools.wraps(function)
        async def timed(*given: Any, **named: Any) -> Any:
            with watch.part(part):
                return await function(*given, **named)
    else:

        @functools.wraps(function)
        def timed(*given: Any, **named: Any) -> Any:
            with watch.part(part):
                return function(*given, **named)

    setattr(owner, name, timed)


def _timed_steps(owner: Any, name: str, part: str) -> None:
    """The same for an asynchronous generator: what is done with an item counts for whoever takes it."""
    function = getattr(owner, name)

    @functools.wraps(function)
    async def timed(*given: Any, **named: Any) -> AsyncIterator[Any]:
        steps = function(*given, **named)
        try:
            while True:
                with watch.part(part):
                    try:
                        item = await anext(steps)
                    except StopAsyncIteration:
                        return
                yield item
        finally:
            await steps.aclose()

    setattr(owner, name, timed)


def _counted(owner: Any, name: str, what: str, amount: Callable[..., int] = lambda *_, **__: 1) -> None:
    function = getattr(owner, name)

    @functools.wraps(function)
    def counted(*given: Any, **named: Any) -> Any:
        watch.counts[what] += amount(*given, **named)
        return function(*given, **named)

    setattr(owner, name, counted)


def count() -> None:
    """Counts that no machine changes. Before the engine is imported: it keeps what it takes of these libraries."""
    _counted(json.JSONEncoder, "encode", JSON_TEXTS)
    _counted(BaseModel, "model_dump_json", JSON_TEXTS)
    _counted(os, "write", LOG_BYTES, lambda descriptor, data: len(data) * (descriptor == sys.stderr.fileno()))
    _counted(psycopg.AsyncConnection, "wait", ROUND_TRIPS)


TIMED = {
    "engine.answer:Engine._admit": ADMISSION,
    "engine.http.stream:QuestionExchange.read": ADMISSION,
    "engine.answer:Engine._open": OPEN,
    "engine.providers.cohere:CohereEmbedder.embed_query": EMBED,
    "engine.providers.minilm:MiniLm.embed_query": EMBED,
    "ingest.watched_index:WatchedIndex.search": SEARCH,
    "engine.answer:Engine._live_generation": SCORE,
    "engine.answer:Engine._retrieve": SCORE,
    "engine.answer:Engine._outcome": VERIFY,
    "engine.answer:Engine._close": CLOSE,
    "engine.http.middleware:RequestLog._report": AFTER,
}
TIMED_STEPS = ("engine.providers.claude:Claude.write", "engine.providers.extractive:Extractive.write")


def tap() -> None:
    for place, part in TIMED.items():
        _timed(*_owned(place), part)
    for place in TIMED_STEPS:
        _timed_steps(*_owned(place), GENERATE)
    _bound()


def _owned(place: str) -> tuple[Any, str]:
    """A class and the name of its function, imported only now, when the counters are in the libraries."""
    module, _, names = place.partition(":")
    owner, name = names.split(".")
    return getattr(importlib.import_module(module), owner), name


def _bound() -> None:
    """Where a request begins and ends, and where its answer begins to go out."""
    protocol, _ = _owned("engine.connections.protocol:PatientProtocol.data_received")
    outermost, _ = _owned("engine.http.middleware:RequestLog.__call__")
    engine, _ = _owned("engine.answer:Engine.answer")
    received, called, answered = protocol.data_received, outermost.__call__, engine.answer

    def begin(self: Any, data: bytes) -> None:
        watch.begin_request()
        received(self, data)

    async def answer(self: Any, asked: Any) -> Any:
        try:
            return await answered(self, asked)
        finally:
            watch.switch(HTTP_OUT)

    async def call(self: Any, scope: Any, *channels: Any) -> None:
        await called(self, scope, *channels)
        if scope["type"] == "http":
            watch.end_request()

    protocol.data_received, outermost.__call__, engine.answer = begin, call, answer


if __name__ == "__main__":
    account = Path(sys.argv.pop(1))
    count()
    tap()
    signal.signal(signal.SIGUSR1, watch.begin_anew)
    try:
        importlib.import_module("engine.cli.main").main()
    finally:
        watch.write(account)
