"""Clients in the manner of the family's widgets: how each reads an answer, and what its reader then sees."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

PIECE_BYTES = 7  # a stream arrives in pieces that end anywhere

Json = dict[str, Any]


@dataclass(slots=True)
class Seen:
    """What a widget shows of one answer."""

    status: int
    text: str = ""
    sources: Sequence[Any] = ()
    error: str = ""
    error_type: str = ""
    is_finished: bool = False
    last: Json | None = None


@dataclass(frozen=True, slots=True)
class Widget:
    """A contract as its widgets know it: what they send, and the names that they read."""

    path: str
    asks: str = "question"
    sources: str = "sources"
    chunk: str = "content"
    streams_always: bool = False
    has_sessions: bool = False
    endpoint: str = ""  # as the record has it

    def body(self, question: str, **more: Any) -> Json:
        return {self.asks: question, **more}

    async def fetch_json(self, http: httpx.AsyncClient, body: Json, **headers: str) -> Seen:
        """`fetch`, `response.ok`, `response.json()`; it sends no `Accept` of its own."""
        response = await http.post(self.path, json=body, headers={"Accept": "*/*", **headers})
        if not response.is_success:
            return _failed(response)
        whole = response.json()
        return Seen(200, whole["answer"], whole[self.sources], is_finished=True, last=whole)

    async def fetch_stream(self, http: httpx.AsyncClient, body: Json, **headers: str) -> Seen:
        """Asks for events, and reads them in each of the family's ways, which must all see the same."""
        accept = "*/*" if self.streams_always else "text/event-stream"
        response = await http.post(self.path, json=body, headers={"Accept": accept, **headers})
        if not response.is_success:
            return _failed(response)
        readings = [list(read(response.content)) for read in READERS]
        assert all(reading == readings[0] for reading in readings)
        return self._shown(readings[0])

    def _shown(self, events: list[Json]) -> Seen:
        seen = Seen(200)
        for event in events:
            assert not seen.is_finished and not seen.error, "nothing follows the end"
            seen.text += event.get(self.chunk, "")
            seen.sources = event.get(self.sources) or seen.sources
            seen.error = event.get("error") or ""
            seen.is_finished = not seen.error and (event.get("done") is True or event.get("type") == "done")
            seen.last = event
        return seen


def on_message(stream: bytes) -> Iterator[Json]:
    """An `EventSource` with `onmessage`: it hears no event that has a name."""
    for event in _decoded(stream).split("\n\n"):
        lines = [line.partition(":") for line in event.split("\n") if line]
        if lines and not any(name == "event" for name, _, _ in lines):
            yield json.loads("\n".join(value.removeprefix(" ") for name, _, value in lines if name == "data"))


def split_at_empty_lines(stream: bytes) -> Iterator[Json]:
    """A reader of the body that cuts it at `\\n\\n` and takes what begins with `data: `."""
    rest = ""
    for piece in _pieces(stream):
        rest += piece
        *events, rest = rest.split("\n\n")
        yield from (json.loads(event[6:]) for event in events if event.startswith("data: "))
    assert not rest


def line_by_line(stream: bytes) -> Iterator[Json]:
    """A reader of the body that looks for lines with `data: `."""
    rest = ""
    for piece in _pieces(stream):
        rest += piece
        *lines, rest = rest.split("\n")
        yield from (json.loads(line[6:]) for line in lines if line.startswith("data: "))


READERS: Sequence[Callable[[bytes], Iterator[Json]]] = (on_message, split_at_empty_lines, line_by_line)

WIDGETS = (
    Widget("/api/query", "query"),
    Widget("/api/chat", "message"),
    Widget("/api/chat/", "query"),
    Widget("/api/v1/query", "query", chunk="chunk", has_sessions=True),
    Widget("/chat/query", "query", has_sessions=True),
    Widget("/chat/book/physical-ai/query", "query", has_sessions=True, endpoint="/chat/book/{book_id}/query"),
    Widget("/query"),
    Widget("/api/ask", sources="citations"),
    Widget("/ask", sources="citations"),
    Widget("/api/ask/stream", sources="citations", streams_always=True),
)


def _failed(response: httpx.Response) -> Seen:
    problem = response.json()
    assert isinstance(problem["detail"], str)
    wait = response.headers.get("Retry-After")
    assert problem["retry_after"] == (int(wait) if wait else None)
    assert problem["field"] is None or problem["field"] in problem["detail"]
    error_type = problem["error_type"]
    return Seen(response.status_code, error=problem["detail"], error_type=error_type, last=problem)


def _pieces(stream: bytes) -> Iterator[str]:
    """As a `TextDecoder` gives them, which holds half characters back; the stream is cut where they are whole."""
    text = _decoded(stream)
    yield from (text[start : start + PIECE_BYTES] for start in range(0, len(text), PIECE_BYTES))


def _decoded(stream: bytes) -> str:
    return stream.decode()
