"""Qdrant's REST interface, as far as the provider uses them, in front of the vendor's own engine in memory.

What it does not have of a server: an optimiser, shards and replicas, payload indexes. Their settings are in `requests`.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from qdrant_client import QdrantClient, models
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.upstreams import http

Fault = Literal[
    "hang", "trickle", "malformed", "null", "no replies", "no scores", "no points", "429", "500", "503"
]

CANARY = "canary of the vendor"
NO_DURATION = 'invalid type: string "60", expected struct Duration'  # what a server of 1.16.3 says to a write with a timeout
DRIP_S = 0.05  # far below any limit between two bytes

_SPOILT = {
    "malformed": f'{{"result": [{{"points": {CANARY}',
    "null": '{"time": 0.0, "status": "ok", "result": null}',
    "no replies": '{"time": 0.0, "status": "ok", "result": []}',
    "no points": '{"time": 0.0, "status": "ok", "result": [{"points": []}, {"points": []}]}',
    "no scores": '{"time": 0.0, "status": "ok", "result": [{"points": [{"id": 1, "version": 0}]}]}',
}


@dataclass
class Upstream:
    """Answers truly, unless it is told to fail; keeps the requests as (method, path, query, body)."""

    url: str = ""
    key: str = ""
    fault: Fault | None = None
    true_before: int = 0  # so many requests are still answered before the fault shows
    statuses: list[str] = field(default_factory=list)  # of the optimiser one after the other, then green
    requests: list[tuple[str, str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    codings: set[str] = field(default_factory=set)  # that clients have accepted
    engine: QdrantClient = field(default_factory=lambda: QdrantClient(":memory:"))

    def route(self, method: str, path: str, action: Callable[[str, bytes], Any]) -> Route:
        async def receive(request: Request) -> Response:
            body = await request.body()
            said = await request.json() if body else {}
            self.requests.append((method, request.url.path, dict(request.query_params), said))
            self.codings.add(request.headers.get("accept-encoding", ""))
            if self.key and request.headers.get("api-key") != self.key:
                return _error(401)
            if method == "PUT" and "points" in request.url.path and "timeout" in request.query_params:
                return _error(400, NO_DURATION)
            if self.fault and not self.true_before:
                return await _faulty(self.fault, request)
            self.true_before = max(0, self.true_before - 1)
            try:
                result = action(request.path_params.get("name", ""), body)
            except ValueError as wrong:
                return _error(404 if "not found" in str(wrong) else 400)
            said = {"time": 0.0, "status": "ok", "result": result}
            return JSONResponse(said if path != "/" else {"title": "qdrant", "version": "0.0.0"})

        return Route(path, receive, methods=[method])

    def routes(self) -> list[Route]:
        return [
            self.route("PUT", "/collections/{name}", self.create),
            self.route("GET", "/collections/{name}", self.info),
            self.route("DELETE", "/collections/{name}", lambda name, _: self.engine.delete_collection(name)),
            self.route("PUT", "/collections/{name}/index", self.index_field),
            self.route("PUT", "/collections/{name}/points", self.upsert),
            self.route("POST", "/collections/{name}/points/count", self.count),
            self.route("POST", "/collections/{name}/points/scroll", self.scroll),
            self.route("GET", "/", lambda _, __: None),
            self.route("POST", "/collections/{name}/points/query/batch", self.query),
            self.route("GET", "/aliases", lambda _, __: _json(self.engine.get_aliases())),
            self.route("POST", "/collections/aliases", self.update_aliases),
        ]

    def create(self, name: str, body: bytes) -> bool:
        asked = models.CreateCollection.model_validate_json(body)
        return self.engine.create_collection(
            name, vectors_config=asked.vectors, sparse_vectors_config=asked.sparse_vectors
        )

    def info(self, name: str, _: bytes) -> Any:
        status = {"status": self.statuses.pop(0)} if self.statuses else {}
        return _json(self.engine.get_collection(name)) | status

    def index_field(self, name: str, body: bytes) -> Any:
        models.CreateFieldIndex.model_validate_json(body)
        self.engine.get_collection(name)
        return {"operation_id": 0, "status": "completed"}

    def upsert(self, name: str, body: bytes) -> Any:
        return _json(self.engine.upsert(name, models.PointsList.model_validate_json(body).points))

    def count(self, name: str, body: bytes) -> Any:
        return _json(self.engine.count(name, exact=bool(models.CountRequest.model_validate_json(body).exact)))

    def scroll(self, name: str, body: bytes) -> Any:
        asked = models.ScrollRequest.model_validate_json(body)
        records, offset = self.engine.scroll(
            name, limit=asked.limit or 10, offset=asked.offset, with_payload=True, with_vectors=True
        )
        return {"points": [_json(record) for record in records], "next_page_offset": offset}

    def query(self, name: str, body: bytes) -> Any:
        asked = models.QueryRequestBatch.model_validate_json(body)
        return [_json(reply) for reply in self.engine.query_batch_points(name, asked.searches)]

    def update_aliases(self, _: str, body: bytes) -> bool:
        asked = models.ChangeAliasesOperation.model_validate_json(body)
        return self.engine.update_collection_aliases(asked.actions)


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    async with http(*upstream.routes()) as upstream.url:
        yield upstream
    upstream.engine.close()


@contextlib.asynccontextmanager
async def resetting() -> AsyncIterator[str]:
    """An address whose server drops every connection as soon as it hears a word."""

    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    server = await asyncio.start_server(drop, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _faulty(fault: Fault, request: Request) -> Response:
    if fault == "hang":
        while (await request.receive())["type"] != "http.disconnect":
            pass
    if fault == "trickle":
        return StreamingResponse(_drip(), media_type="application/json")
    if fault.isdigit():
        return _error(int(fault))
    return Response(_SPOILT.get(fault), media_type="application/json")


async def _drip() -> AsyncIterator[bytes]:
    while True:
        yield b" "
        await asyncio.sleep(DRIP_S)


def _error(status: int, words: str = CANARY) -> Response:
    said = {"time": 0.0, "status": {"error": words}, "result": None}
    return JSONResponse(said, status, {"Retry-After": "59"})


def _json(model: Any) -> Any:
    return model.model_dump(mode="json")
