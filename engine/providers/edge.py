"""Qdrant Edge, the embedded vector store, seen from the engine.

The store holds the interpreter's lock while it searches, and only one process may own a folder. So it lives in worker
processes (edge_worker.py) that are reached by a Unix socket: one that serves, shared by every process that uses the
data folder, and a private one for each generation being built, so that building never holds up a search.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import struct
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import numpy as np

from engine.data_folder import socket_folder
from engine.errors import IndexUnavailableError
from engine.models import Filters, Hit, Point, Vector
from engine.providers.points import check, point_id

START_S = 10.0  # a cold start of the worker takes about 0.5 s
AGAIN_S = 2.0  # a worker without a word by then may have died on the way; one too many leaves by itself
PAUSE_S = 0.02  # between two tries to reach a worker that is starting
SEARCH_S = 1.5  # below the retrieval budget, so that a hung worker is noticed within it and replaced
OPEN_S = 60.0  # 100,000 passages of 1024 dimensions take 1.6 s on a busy machine: more than a search may
SEARCHES_MAX = 64  # on their way at once, two batches of the worker: more would look like a hang
UPSERT_S = 60.0  # for one batch of passages: a slow disk is no hang
SEAL_S = 900.0  # 100,000 passages of 1024 dimensions take 6 to 9 s
FRAME_BYTES_MAX = 256 * 1024 * 1024  # 1,000 passages of 15 windows of 1024 dimensions are 61 MB

_FRAME = struct.Struct("!II")

Reply = tuple[dict[str, Any], bytes]


class EdgeIndex:
    """The index of one data folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._serving = Worker(folder, "serve")
        self._building: dict[UUID, Worker] = {}
        self._slots = asyncio.Semaphore(SEARCHES_MAX)

    async def create(self, generation: UUID, dimension: int) -> None:
        await self._stop_building(generation)
        await asyncio.to_thread(shutil.rmtree, self._folder / str(generation), ignore_errors=True)
        worker = self._building[generation] = Worker(self._folder, f"build-{generation}")
        await worker.call(
            {"do": "create", "generation": str(generation), "dimension": dimension}, timeout_s=START_S
        )

    async def upsert(self, generation: UUID, points: Sequence[Point]) -> None:
        for point in points:
            check(point)
        described = [
            {
                "id": point_id(point.chunk_id),
                "windows": len(point.windows),
                "terms": len(point.terms),
                "payload": point.payload | {"chunk_id": point.chunk_id},
            }
            for point in points
        ]
        numbers = (
            np.concatenate([point.windows for point in points]).astype("<f4"),
            np.fromiter((term for point in points for term in point.terms), "<u4"),
            np.fromiter((weight for point in points for weight in point.terms.values()), "<f4"),
        )
        call = {"do": "upsert", "generation": str(generation), "points": described}
        body = b"".join(part.tobytes() for part in numbers)
        await self._building[generation].call(call, body, timeout_s=UPSERT_S)

    async def seal(self, generation: UUID) -> int:
        """Counted by the worker that will serve it: no search has to wait until it is open."""
        try:
            await self._building[generation].call(
                {"do": "seal", "generation": str(generation)}, timeout_s=SEAL_S
            )
        finally:
            await self._stop_building(generation)
        return await self.count(generation)

    async def announce(self, book_id: str, generation: UUID) -> None:
        """Nothing to do: the registry's switch is what readers see, and Edge has no tools that look for a name."""

    async def drop(self, generation: UUID) -> None:
        """Closed by the workers that build and serve it, then deleted."""
        await self._stop_building(generation)
        await self._serving.call({"do": "close", "generation": str(generation)}, timeout_s=START_S)
        await asyncio.to_thread(shutil.rmtree, self._folder / str(generation), ignore_errors=True)

    async def count(self, generation: UUID) -> int:
        reply, _ = await self._serving.call({"do": "count", "generation": str(generation)}, timeout_s=OPEN_S)
        return int(reply["points"])

    async def search(
        self,
        generation: UUID,
        dense: Vector,
        terms: dict[int, float],
        limit: int,
        filters: Filters,
        among: Sequence[str] = (),
    ) -> list[Hit]:
        call = {
            "do": "search",
            "generation": str(generation),
            "terms": list(terms),
            "weights": list(terms.values()),
            "limit": limit,
            "filters": {name: value for name, value in asdict(filters).items() if value},
            "among": [point_id(chunk_id) for chunk_id in among],
        }
        async with self._slot():
            reply, body = await self._serving.call(call, dense.astype("<f4").tobytes(), timeout_s=SEARCH_S)
        cosines, weights = np.frombuffer(body, "<f4").reshape(2, -1).tolist()
        return list(map(Hit, reply["hits"], cosines, weights))

    async def close(self) -> None:
        await self._serving.close()
        for generation in list(self._building):
            await self._stop_building(generation)

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """A crowd is no fault of the worker: who waits too long for a turn is told so, and nothing is killed."""
        try:
            async with asyncio.timeout(SEARCH_S):
                await self._slots.acquire()
        except TimeoutError as crowded:
            raise IndexUnavailableError from crowded
        try:
            yield
        finally:
            self._slots.release()

    async def _stop_building(self, generation: UUID) -> None:
        worker = self._building.pop(generation, None)
        if worker is not None:
            await worker.end()


class Worker:
    """The way to a worker process. A dead worker is replaced by the next call, a hung one is killed first.

    One that is opening a generation is late and not hung: who asked is told that there is no answer, and it goes on.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._lock = folder / f"{name}.lock"
        self._socket = socket_folder(folder, f"build-{UUID(int=0)}.sock", os.geteuid()) / f"{name}.sock"
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    async def call(self, header: dict[str, Any], body: bytes = b"", *, timeout_s: float) -> Reply:
        """One request and its reply; `IndexUnavailableError` if there is none in time."""
        connection = None
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connected()
                reply = await connection.ask(header, body)
        except TimeoutError as late:
            if not is_excused(self._lock):
                await self._give_up(connection)
                kill_owner(self._lock)
            raise IndexUnavailableError from late
        except (OSError, EOFError) as gone:
            await self._give_up(connection)
            raise IndexUnavailableError from gone
        if "error" in reply[0]:
            raise IndexUnavailableError from RuntimeError(reply[0]["error"])
        return reply

    async def close(self) -> None:
        """Let go of the worker; it ends by itself when nobody holds it."""
        await self._give_up(self._connection)

    async def end(self) -> None:
        """At once and for good; only then may its folder be thrown away."""
        await self.close()
        kill_owner(self._lock)
        await asyncio.to_thread(wait_until_free, self._lock)
        self._socket.unlink(missing_ok=True)
        self._lock.unlink(missing_ok=True)

    async def _connected(self) -> "Connection":
        async with self._connecting:
            if self._connection is None or self._connection.is_closed:
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> "Connection":
        """Reach the worker, starting it where there is none. Whoever starts one too many ends up with the same."""
        started_at = -AGAIN_S
        while True:
            try:
                return await Connection.open(self._socket)
            except (OSError, EOFError):  # none, or one that is just dying
                if time.monotonic() - started_at > AGAIN_S:
                    started_at = time.monotonic()
                    await self._start()
            await asyncio.sleep(PAUSE_S)

    async def _start(self) -> None:
        """The worker leaves our family at once: it serves others too, and may outlive us."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "engine.providers.edge_worker", str(self._folder), self._name, str(self._socket),
            start_new_session=True, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await process.wait()

    async def _give_up(self, connection: "Connection | None") -> None:
        if connection is not None:
            await connection.close()
        if connection is self._connection:
            self._connection = None


class Connection:
    """Many requests at once over one socket, each reply to its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def open(cls, socket: Path) -> Self:
        """Connected only when the worker has said a word: a dying process still accepts."""
        reader, writer = await asyncio.open_unix_connection(str(socket))
        try:
            await read_frame(reader)
        except BaseException:
            await _close(writer)
            raise
        return cls(reader, writer)

    @property
    def is_closed(self) -> bool:
        return self._reading.done()

    async def ask(self, header: dict[str, Any], body: bytes) -> Reply:
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(frame(header | {"number": number}, body))
            await self._writer.drain()
            reply: Reply = await future
        finally:
            del self._waiting[number]
            if future.done() and not future.cancelled():
                future.exception()  # read even if sending failed first
        return reply

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])
        await _close(self._writer)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                reply = await read_frame(reader)
                future = self._waiting.get(reply[0]["number"])
                if future is not None and not future.done():
                    future.set_result(reply)
                await asyncio.sleep(0)  # a batch of replies is there at once: the loop has others to serve
        except (OSError, EOFError):
            pass  # the worker has gone; all who wait for it are told below
        finally:
            self._writer.close()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(EOFError("The index worker has gone"))


async def _close(writer: asyncio.StreamWriter) -> None:
    """At once: a worker that does not read would let us wait for our last bytes for ever."""
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def signature(silent_s: float = 0.0) -> bytes:
    """What a worker writes into its lock: its pid, and until when it may be silent. Always of one length."""
    return b"%10d %15.3f" % (os.getpid(), time.monotonic() + silent_s)


def is_excused(lock: Path) -> bool:
    """The worker has said that it opens a generation and hears nobody meanwhile: killed, it would never get it open."""
    with contextlib.suppress(FileNotFoundError, ValueError, IndexError):
        return time.monotonic() < float(lock.read_bytes().split()[1])
    return False


def kill_owner(lock: Path) -> None:
    """End the process that holds this lock, if any: it does not answer."""
    with contextlib.suppress(FileNotFoundError, ValueError, IndexError), lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.read().split()[0]), signal.SIGKILL)


def wait_until_free(lock: Path) -> None:
    """The kernel frees it when its owner is gone."""
    with contextlib.suppress(FileNotFoundError), lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def frame(header: dict[str, Any], body: bytes = b"") -> bytes:
    head = json.dumps(header, separators=(",", ":")).encode()
    return _FRAME.pack(len(head), len(body)) + head + body


async def read_frame(reader: asyncio.StreamReader) -> Reply:
    head_bytes, body_bytes = _FRAME.unpack(await reader.readexactly(_FRAME.size))
    if head_bytes + body_bytes > FRAME_BYTES_MAX:
        raise EOFError("A frame beyond the limit")
    header: dict[str, Any] = json.loads(await reader.readexactly(head_bytes))
    return header, await reader.readexactly(body_bytes)
