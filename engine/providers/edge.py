"""Qdrant Edge, the embedded vector store, seen from the engine.

The store holds the interpreter's lock while it searches, and only one process may own a folder. So it lives in worker
processes (edge_worker.py) that are reached by a Unix socket: one that serves, shared by every process that uses the
data folder, and a private one for each generation being built, so that building never holds up a search.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import struct
import sys
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np

from engine.errors import IndexUnavailableError
from engine.models import Filters, Hit, Point, Vector
from engine.providers.folders import socket_folder

START_S = 10.0  # a cold start of the worker takes about 0.3 s
SEARCH_S = 1.5  # below the retrieval budget, so that a hung worker is noticed within it and replaced
UPSERT_S = 60.0
SEAL_S = 900.0  # building the graph of 100,000 passages takes about 90 s
FRAME_BYTES_MAX = 256 * 1024 * 1024

_FRAME = struct.Struct("!II")


class EdgeIndex:
    """The index of one data folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._serving = Worker(folder, "serve")
        self._building: dict[UUID, Worker] = {}

    async def create(self, generation: UUID, dimension: int) -> None:
        await asyncio.to_thread(shutil.rmtree, self._folder / str(generation), ignore_errors=True)
        worker = self._building[generation] = Worker(self._folder, f"build-{generation}")
        await worker.call(
            {"do": "create", "generation": str(generation), "dimension": dimension}, timeout_s=START_S
        )

    async def upsert(self, generation: UUID, points: Sequence[Point]) -> None:
        for point in points:
            _check(point)
        described = [
            {
                "id": point_id(point.chunk_id),
                "windows": len(point.windows),
                "terms": list(point.terms),
                "weights": list(point.terms.values()),
                "payload": point.payload | {"chunk_id": point.chunk_id},
            }
            for point in points
        ]
        body = np.concatenate([point.windows for point in points]).astype("<f4").tobytes()
        call = {"do": "upsert", "generation": str(generation), "points": described}
        await self._building[generation].call(call, body, timeout_s=UPSERT_S)

    async def seal(self, generation: UUID) -> int:
        worker = self._building.pop(generation)
        try:
            reply = await worker.call({"do": "seal", "generation": str(generation)}, timeout_s=SEAL_S)
        finally:
            await worker.close()
        return int(reply["points"])

    async def count(self, generation: UUID) -> int:
        reply = await self._serving.call({"do": "count", "generation": str(generation)}, timeout_s=START_S)
        return int(reply["points"])

    async def search(
        self, generation: UUID, dense: Vector, terms: dict[int, float], limit: int, filters: Filters
    ) -> list[Hit]:
        call = {
            "do": "search",
            "generation": str(generation),
            "terms": list(terms),
            "weights": list(terms.values()),
            "limit": limit,
            "filters": {name: value for name, value in asdict(filters).items() if value},
        }
        reply = await self._serving.call(call, dense.astype("<f4").tobytes(), timeout_s=SEARCH_S)
        return [Hit(chunk_id, cosine, bm25) for chunk_id, cosine, bm25 in reply["hits"]]

    async def close(self) -> None:
        for worker in [self._serving, *self._building.values()]:
            await worker.close()


class Worker:
    """A connection to a worker process. A dead worker is started again by the next call, a hung one is killed first."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._socket = socket_folder(folder, f"build-{UUID(int=0)}.sock", os.geteuid()) / f"{name}.sock"
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._connecting = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._pid = 0

    async def call(self, header: dict[str, Any], body: bytes = b"", *, timeout_s: float) -> dict[str, Any]:
        """One request and its reply; `IndexUnavailableError` if there is none in time."""
        number = next(self._numbers)
        try:
            async with asyncio.timeout(timeout_s):
                writer = await self._connected()
                future = self._waiting[number] = asyncio.get_running_loop().create_future()
                writer.write(frame(header | {"number": number}, body))
                await writer.drain()
                reply: dict[str, Any] = await future
        except TimeoutError as late:
            self._kill()
            raise IndexUnavailableError from late
        except (OSError, EOFError) as gone:
            raise IndexUnavailableError from gone
        finally:
            self._waiting.pop(number, None)
        if "error" in reply:
            raise IndexUnavailableError from RuntimeError(reply["error"])
        return reply

    async def close(self) -> None:
        """Let go of the worker; it ends by itself when nobody holds it."""
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading
        await self._disconnect()
        if self._process is not None:
            await self._process.wait()

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is None:
                reader, self._writer = await self._connect()
                hello, _ = await read_frame(reader)
                self._pid = hello["pid"]
                self._reading = asyncio.create_task(self._read(reader))
            return self._writer

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Reach the worker, starting it where there is none. Two that start one at once end up with the same."""
        pause_s = 0.01
        while True:
            try:
                return await asyncio.open_unix_connection(str(self._socket))
            except (FileNotFoundError, ConnectionRefusedError):
                if self._process is None or self._process.returncode is not None:
                    await self._start()
            await asyncio.sleep(pause_s)
            pause_s = min(0.1, pause_s * 1.5)

    async def _start(self) -> None:
        """In a session of its own: Ctrl-C at the terminal must not stop the index under the requests in flight."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "engine.providers.edge_worker", str(self._folder), self._name, str(self._socket),
            start_new_session=True, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                reply, _ = await read_frame(reader)
                future = self._waiting.get(reply["number"])
                if future is not None and not future.done():
                    future.set_result(reply)
        except (OSError, EOFError) as gone:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(EOFError(f"The index worker died: {gone}"))
            await self._disconnect()

    async def _disconnect(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _kill(self) -> None:
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)


def frame(header: dict[str, Any], body: bytes = b"") -> bytes:
    head = json.dumps(header, separators=(",", ":")).encode()
    return _FRAME.pack(len(head), len(body)) + head + body


async def read_frame(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    head_bytes, body_bytes = _FRAME.unpack(await reader.readexactly(_FRAME.size))
    if head_bytes + body_bytes > FRAME_BYTES_MAX:
        raise EOFError("A frame beyond the limit")
    header = json.loads(await reader.readexactly(head_bytes))
    return header, await reader.readexactly(body_bytes)


def point_id(chunk_id: str) -> str:
    """A point id must be a UUID: the first half of the passage's hash."""
    return str(uuid.UUID(hex=chunk_id[:32]))


def _check(point: Point) -> None:
    """The store takes a NaN, a zero vector or an empty one without a word, and then answers nonsense."""
    norms = np.linalg.norm(point.windows, axis=1) if point.windows.size else np.zeros(1)
    if not np.all(np.isfinite(norms)) or np.any(norms == 0):
        raise ValueError(f"Passage {point.chunk_id} has no usable vector")
    if any(not np.isfinite(weight) for weight in point.terms.values()):
        raise ValueError(f"Passage {point.chunk_id} has an unusable weight")
