"""Stub servers of Cohere Embed and Claude Messages for bench/engine.py, as cheap as possible, to measure the engine only.

Run as `python -m bench.upstreams PORT`. Responses are cached by request. A text's vector is
the sum of its words' vectors, so that a question lies near the passages that share its words; an answer quotes the two
best passages.
"""

import asyncio
import base64
import functools
import json
import re
import sys
import time
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

EMBED, MESSAGES = "/v2/embed", "/v1/messages"
ASKED, TIMES = (
    "/asked",
    "/times",
)  # for the bench: the last request, and when each first cited block was complete
DIGITS = 7  # of a vector's numbers, as the vendor sends them
WORDS_EACH = 8  # in one delta of the text

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_WORD = re.compile(r"\w{4,}")


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Conversation, "127.0.0.1", port)
    await server.serve_forever()


class Conversation(asyncio.Protocol):
    """One connection with keep-alive, without pipelining."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._held = bytearray()

    def data_received(self, data: bytes) -> None:
        self._held += data
        if request := self._whole():
            self._transport.write(reply(*request))

    def _whole(self) -> tuple[str, bytes] | None:
        """The path and the body of the next request."""
        head = self._held.find(b"\r\n\r\n")
        length = _LENGTH.search(self._held, 0, max(head, 0))
        end = head + 4 + (int(length[1]) if length else 0)
        if head < 0 or len(self._held) < end:
            return None
        path, body = self._held.split(maxsplit=2)[1].decode(), bytes(self._held[head + 4 : end])
        self._held.clear()
        return path, body


_asked: dict[str, str] = {}
_times: list[float] = []


def reply(path: str, body: bytes) -> bytes:
    if path == ASKED:
        return _json(_asked)
    if path == TIMES:
        times = _json(_times)
        _times.clear()
        return times
    _asked[path] = body.decode()
    prepared = _prepared(path, body)
    if path == MESSAGES:
        _times.append(time.monotonic())
    return prepared


@functools.cache
def _prepared(path: str, body: bytes) -> bytes:
    return {EMBED: _embeddings, MESSAGES: _message}[path](json.loads(body))


def _embeddings(asked: dict[str, Any]) -> bytes:
    vectors = [
        [round(float(number), DIGITS) for number in _vector(text, asked["output_dimension"])]
        for text in asked["texts"]
    ]
    made: dict[str, Any] = {}
    if "float" in asked["embedding_types"]:
        made["float"] = vectors
    if "base64" in asked["embedding_types"]:
        made["base64"] = [base64.b64encode(np.array(each, "<f4").tobytes()).decode() for each in vectors]
    billed = {"billed_units": {"input_tokens": 10 * len(vectors)}}
    return _json({"id": "1", "response_type": "embeddings_by_type", "embeddings": made,
                  "texts": asked["texts"], "meta": billed})  # fmt: skip


def _vector(text: str, dimension: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    words = _WORD.findall(text.lower()) or ["nothing"]
    total = np.sum([_word_vector(word, dimension) for word in words], axis=0)
    vector: np.ndarray[Any, np.dtype[np.float64]] = total / np.linalg.norm(total)
    return vector


@functools.cache
def _word_vector(word: str, dimension: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.random.default_rng(zlib.crc32(word.encode())).normal(size=dimension)


def _message(asked: dict[str, Any]) -> bytes:
    """The whole event stream in one write, so that the stub adds no delay."""
    events = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in _events(asked))
    chunk = events.encode()
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nrequest-id: req_1\r\n"
        b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
    ) % (len(chunk), chunk)


def _events(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": asked["model"], "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 900, "output_tokens": 1},
    }  # fmt: skip
    yield {"type": "message_start", "message": message}
    results = [item for item in asked["messages"][0]["content"] if item["type"] == "search_result"]
    for index, result in enumerate(results[:2]):
        yield from _block(index, f"{result['content'][0]['text'].strip()} ", _citation(index, result))
    yield from _block(2, "\nConfidence: 0.90", None)
    stopped = {"stop_reason": "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": stopped, "usage": {"output_tokens": 60}}
    yield {"type": "message_stop"}


def _block(index: int, text: str, citation: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    yield {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}
    deltas: list[dict[str, Any]] = [{"type": "citations_delta", "citation": citation}] if citation else []
    deltas += [{"type": "text_delta", "text": piece} for piece in _pieces(text)]
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _pieces(text: str) -> list[str]:
    words = re.findall(r"\s*\S+\s*", text)
    return ["".join(words[start : start + WORDS_EACH]) for start in range(0, len(words), WORDS_EACH)]


def _citation(index: int, result: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "search_result_location", "search_result_index": index, "start_block_index": 0, "end_block_index": 1,
        "source": result["source"], "title": result["title"], "cited_text": result["content"][0]["text"],
    }  # fmt: skip


def _json(value: Any) -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
