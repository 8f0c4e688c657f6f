"""Client of the embedded vector store, Qdrant Edge, which runs in worker processes behind a Unix socket (edge_worker.py).

The store holds the interpreter's lock while it searches, and only one process may own a folder. So one worker serves all
processes that use the data folder, and each generation is built by a worker of its own: a build never delays a search.
"""

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from itertools import chain, count
from pathlib import Path
from typing import Any, Self
from uuid import UUID, uuid4

import numpy as np

from audit import worker
from engine.errors import IndexDamagedError, IndexUnavailableError
from engine.models import Filters, Hit, Point, Vector, is_point_of, point_id
from engine.storage.data_folder import socket_folder

START_S = 10.0  # a cold start of the worker takes about 0.5 s
RESTART_S = 2.0  # a worker that is silent for so long may have died; if it lives, a second one ends by itself
RETRY_S = 0.02  # between two attempts to connect to a worker that is starting
SEARCH_S = 1.5  # below the retrieval budget, so that a hung worker is noticed within it and replaced
OPEN_S = 60.0  # 100,000 passages of 1024 dimensions take 1.6 s on a busy machine, longer than a search may
FULL_BYTES = 1 << 26  # a new generation takes half of it before it holds a passage
SEARCHES_MAX = 64  # at once, two batches of the worker: with more, waiting would look like a hang
UPSERT_S = 900.0  # a batch of passages may fill a part of the book, which is then optimised as all of it is at its end
SEAL_S = 900.0  # 100,000 passages of 1024 dimensions take 6 to 9 s
MESSAGE_BYTES_MAX = 256 * 1024 * 1024  # 1,000 passages of 15 windows of 1024 dimensions are 61 MB

# What the machine refuses for reasons of its own: the files may be whole, and rebuilding them would meet the same.
REFUSED = frozenset((
    errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS,
    errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.ESTALE,
))  # fmt: skip

Reply = tuple[dict[str, Any], bytes]


class EdgeIndex:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._serving = WorkerClient(folder, "serve")
        self._building: dict[UUID, WorkerClient] = {}
        self._slots = asyncio.Semaphore(SEARCHES_MAX)

    async def create(self, generation: UUID, dimension: int) -> None:
        """Builds in a folder beside the one that is searched."""
        await self.discard(generation)
        builder = self._building[generation] = WorkerClient(self._folder, f"build-{generation}")
        await builder.call("create", _beside(generation), timeout_s=START_S, dimension=dimension)

    async def extend(self, generation: UUID, dimension: int, of: UUID, without: Sequence[str]) -> None:  # noqa: ARG002
        """In a copy of the other one's folder, which nobody writes to once it is sealed."""
        await self.discard(generation)
        with readable():
            await asyncio.to_thread(_copy, self._folder / str(of), self._folder / _beside(generation))
        builder = self._building[generation] = WorkerClient(self._folder, f"build-{generation}")
        await builder.call(
            "delete",
            _beside(generation),
            timeout_s=OPEN_S,
            points=[point_id(chunk_id) for chunk_id in without],
        )

    async def discard(self, generation: UUID) -> None:
        """Throws away what is built and not sealed."""
        await self._stop_building(generation)
        await asyncio.to_thread(_remove, self._folder, _beside(generation))

    async def upsert(self, generation: UUID, points: Sequence[Point]) -> None:
        for point in points:
            point.check()
        described = [
            {
                "id": point_id(point.chunk_id), "windows": len(point.windows), "terms": len(point.terms),
                "payload": point.payload | {"chunk_id": point.chunk_id},
            }
            for point in points
        ]  # fmt: skip
        body = packed(
            [point.windows for point in points],
            chain.from_iterable(point.terms for point in points),
            chain.from_iterable(point.terms.values() for point in points),
        )
        await self._building[generation].call(
            "upsert", _beside(generation), body, timeout_s=UPSERT_S, points=described
        )

    async def seal(self, generation: UUID) -> int:
        """The serving worker takes the folder over between two searches, and has it open before the next one."""
        try:
            await self._building[generation].call("seal", _beside(generation), timeout_s=SEAL_S)
        finally:
            await self._stop_building(generation)
        await self._serving.call(
            "adopt", generation, timeout_s=OPEN_S, new=_beside(generation), old=_before(generation)
        )
        await asyncio.to_thread(_remove, self._folder, _before(generation))
        return await self.count(generation)

    async def points(self, generation: UUID) -> AsyncIterator[list[Point]]:
        """Pipelining: the worker reads the next points while these are looked at."""

        def asked(offset: str | None) -> asyncio.Future[Reply]:
            return asyncio.ensure_future(
                self._serving.call("points", generation, timeout_s=OPEN_S, offset=offset)
            )

        going: asyncio.Future[Reply] | None = asked(None)
        try:
            while going:
                reply, body = await going
                going = asked(reply["next"]) if reply["next"] is not None else None
                yield list(_points(reply["points"], body))
        finally:
            if going:
                going.cancel()
                await asyncio.wait([going])

    def holds(self, generation: UUID) -> bool:
        """Whether there is anything to search. While the worker replaces a generation, it has the name of the old one."""
        return any((self._folder / name).exists() for name in (str(generation), _before(generation)))

    async def describe(self) -> str:
        return f"Qdrant Edge {version('qdrant-edge-py')}"

    async def announce(self, book_id: str, generation: UUID) -> None:
        """Does nothing: readers follow the registry, and Edge has no tools that look for a collection by name."""

    async def drop(self, generation: UUID) -> None:
        """Deletes the folder after the workers that build and serve the generation have closed it."""
        await self._stop_building(generation)
        if (self._folder / str(generation)).exists():
            await self._serving.call("close", generation, timeout_s=START_S)
        for name in (str(generation), _beside(generation), _before(generation)):
            await asyncio.to_thread(_remove, self._folder, name)

    async def count(self, generation: UUID) -> int:
        """A worker that ends while it opens the generation is given a second chance: somebody may have killed it."""
        for _ in range(2):
            try:
                reply, _body = await self._serving.call("count", generation, timeout_s=OPEN_S)
            except IndexWorkerEndedError as ended:
                failure = ended
            else:
                return int(reply["points"])
        raise IndexDamagedError(failure.reason) from failure

    async def search(
        self, generation: UUID, dense: Vector, terms: dict[int, float], limit: int, filters: Filters,
        among: Sequence[str] = (),
    ) -> list[Hit]:  # fmt: skip
        wanted = {name: value for name, value in asdict(filters).items() if value}
        async with self._slots:  # waits for as long as its request may take: a queue is no hang
            reply, body = await self._serving.call(
                "search", generation, dense.astype("<f4").tobytes(), timeout_s=SEARCH_S,
                terms=list(terms), weights=list(terms.values()), limit=limit, filters=wanted,
                among=[point_id(chunk_id) for chunk_id in among],
            )  # fmt: skip
        cosines, weights = np.frombuffer(body, "<f4").reshape(2, -1).tolist()
        return list(map(Hit, reply["hits"], cosines, weights, reply["positions"]))

    async def close(self) -> None:
        await self._serving.close()
        for generation in list(self._building):
            await self._stop_building(generation)

    async def _stop_building(self, generation: UUID) -> None:
        builder = self._building.pop(generation, None)
        if builder is not None:
            await builder.end()


class IndexWorkerEndedError(IndexUnavailableError):
    """It has died, was killed, or is ending."""


class WorkerClient:
    """Calls one worker process. The next call replaces a dead worker, and kills a hung one first.

    A worker that is opening a generation does not answer for longer than a search may take, but does not hang: the call
    fails and the worker lives.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._lease = Lease(folder / f"{name}.lock")
        self._socket = socket_folder(folder, f"build-{UUID(int=0)}.sock", os.geteuid()) / f"{name}.sock"
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    async def call(
        self, do: str, generation: UUID | str, body: bytes = b"", *, timeout_s: float, **fields: Any
    ) -> Reply:
        """One request and its reply; `IndexUnavailableError` if there is none in time."""
        connection = None
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connected()
                reply = await connection.request(fields | {"do": do, "generation": str(generation)}, body)
        except TimeoutError as late:
            if not self._lease.is_excused():
                await self._drop(connection)
                self._lease.kill_owner()
            raise IndexUnavailableError(f"the index worker sent no reply within {timeout_s:g} s") from late
        except (ConnectionError, EOFError) as gone:
            await self._drop(connection)
            raise IndexWorkerEndedError(
                f"the index worker has ended ({gone}){_shortage(self._folder)}"
            ) from gone
        except (
            OSError
        ) as refused:  # too many open files, no memory for a process …: nothing is known of the index
            raise IndexUnavailableError(f"the index worker cannot be reached ({refused})") from refused
        if "error" in reply[0]:
            kind = IndexDamagedError if reply[0].get("is_damaged") else IndexUnavailableError
            raise kind(reply[0]["error"]) from RuntimeError(reply[0]["error"])
        return reply

    async def close(self) -> None:
        """Disconnects; the worker ends by itself after its last client."""
        await self._drop(self._connection)

    async def end(self) -> None:
        """Kills the worker and waits for its end; only then may its folder be deleted."""
        await self.close()
        self._lease.kill_owner()
        await asyncio.to_thread(self._lease.wait_until_free)
        self._socket.unlink(missing_ok=True)
        self._lease.path.unlink(missing_ok=True)

    async def _connected(self) -> "Connection":
        async with self._connecting:
            if self._connection is None or self._connection.is_closed:
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> "Connection":
        """Retries until the worker answers, and starts one if there is none. Of two, one ends by itself."""
        started_at = -RESTART_S
        while True:
            try:
                return await Connection.open(self._socket)
            except (
                ConnectionError,
                FileNotFoundError,
                BlockingIOError,
                EOFError,
            ):  # no worker, or it is ending
                if time.monotonic() - started_at > RESTART_S:
                    started_at = time.monotonic()
                    await self._start()
            await asyncio.sleep(RETRY_S)

    async def _start(self) -> None:
        """Starts a daemon, not a child: it also serves other processes, and may outlive this one."""
        process = await asyncio.create_subprocess_exec(
            *worker.command("engine.providers.edge_worker", str(self._folder), self._name, str(self._socket)),
            start_new_session=True, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            env=worker.environment(),
        )  # fmt: skip
        await process.wait()

    async def _drop(self, connection: "Connection | None") -> None:
        if connection is not None:
            await connection.close()
        if connection is self._connection:
            self._connection = None


def _shortage(folder: Path) -> str:
    """The store writes through memory, so on a full disk its process ends without a word."""
    free_bytes = shutil.disk_usage(folder).free
    return f"; its disk is full: free some space for {folder}" if free_bytes < FULL_BYTES else ""


class Connection:
    """Multiplexes requests over one socket; a number links each reply to its request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def open(cls, socket: Path) -> Self:
        """Waits for the worker's greeting: a process that is ending still accepts connections."""
        reader, writer = await asyncio.open_unix_connection(str(socket))
        try:
            await read_message(reader)
        except BaseException:
            await _abort(writer)
            raise
        return cls(reader, writer)

    @property
    def is_closed(self) -> bool:
        return self._reading.done()

    async def request(self, header: dict[str, Any], body: bytes) -> Reply:
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.writelines(message(header | {"number": number}, body))
            await self._writer.drain()
            reply: Reply = await future
        finally:
            del self._waiting[number]
            if future.done() and not future.cancelled():
                future.exception()  # retrieved even if sending failed first, or asyncio would log it
        return reply

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])
        await _abort(self._writer)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                reply = await read_message(reader)
                future = self._waiting.get(reply[0]["number"])
                if future is not None and not future.done():
                    future.set_result(reply)
                await asyncio.sleep(0)  # replies come in batches, and the loop has other requests to serve
        except (OSError, EOFError):
            pass  # the worker has ended; the requests that wait for it fail below
        finally:
            self._writer.close()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(EOFError("The index worker has ended"))


def _beside(generation: UUID) -> str:
    """The folder in which a generation is built."""
    return f"{generation}.new"


def _before(generation: UUID) -> str:
    """The folder that the built one has replaced."""
    return f"{generation}.old"


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """A failure of the disk is damage, unless the machine refused it."""
    try:
        yield
    except OSError as failure:
        kind = IndexUnavailableError if failure.errno in REFUSED else IndexDamagedError
        raise kind(f"{type(failure).__name__}: {failure}") from failure


def _copy(folder: Path, to: Path) -> None:
    """On the disk: the store syncs only what it has written itself."""

    def synced(source: str, target: str) -> None:
        shutil.copyfile(source, target)
        with Path(target).open("rb") as file:
            os.fsync(file.fileno())

    shutil.copytree(folder, to, copy_function=synced)


def _remove(folder: Path, name: str) -> None:
    """Under another name first: a removal goes on when its task was cancelled, and must not meet the next build.

    What a killed process has left under such a name goes too.
    """
    with contextlib.suppress(FileNotFoundError):
        (folder / name).rename(folder / f"{name}.{uuid4().hex}")
    for removed in folder.glob(f"{name}.{'[0-9a-f]' * 32}"):
        shutil.rmtree(removed, ignore_errors=True)


def _points(described: Sequence[dict[str, Any]], body: bytes) -> Iterator[Point]:
    """As the worker sends them. Of a point that is not where its passage belongs, the name says so: it equals none that was sent."""
    parts = unpacked(described, body)
    for point, (windows, ids, weights) in zip(described, parts, strict=True):
        chunk_id = str(point["payload"].pop("chunk_id", ""))
        yield Point(
            chunk_id if is_point_of(point["id"], chunk_id) else f"{chunk_id} at {point['id']}",
            windows, dict(zip(ids.tolist(), weights.tolist(), strict=True)), point["payload"],
        )  # fmt: skip


def packed(windows: Sequence[Any], ids: Iterable[int], weights: Iterable[float]) -> bytes:
    """The numbers of points for a message: all windows, then all term ids, then all weights, four bytes each."""
    numbers = (
        np.concatenate(windows).astype("<f4") if windows else np.zeros(0, "<f4"),
        np.fromiter(ids, "<u4"),
        np.fromiter(weights, "<f4"),
    )
    return b"".join(part.tobytes() for part in numbers)


def unpacked(described: Sequence[dict[str, Any]], body: bytes) -> Iterator[tuple[Any, Any, Any]]:
    """Windows, term ids and weights of each point."""
    terms = sum(point["terms"] for point in described)
    rows = sum(point["windows"] for point in described)
    split = len(body) // 4 - 2 * terms
    windows = np.frombuffer(body, "<f4", split).reshape(rows, -1 if rows else 0)
    ids = np.frombuffer(body, "<u4", terms, 4 * split)
    weights = np.frombuffer(body, "<f4", terms, 4 * (split + terms))
    row = term = 0
    for point in described:
        next_row, next_term = row + point["windows"], term + point["terms"]
        yield windows[row:next_row], ids[term:next_term], weights[term:next_term]
        row, term = next_row, next_term


async def _abort(writer: asyncio.StreamWriter) -> None:
    """Closes without flushing, which would block for ever if the worker does not read."""
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


class Lease:
    """A worker's lock file: the lock is held while it runs; the text is its pid and the time by which it must respond.

    A worker blocks its event loop while it opens a generation, so it extends the lease first: killed for a missed deadline,
    it could never open a large one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def text(silent_s: float = 0.0) -> bytes:
        """Always of one length, because it is overwritten in place."""
        return b"%10d %15.3f" % (os.getpid(), time.monotonic() + silent_s)

    def is_excused(self) -> bool:
        with contextlib.suppress(FileNotFoundError, ValueError, IndexError):
            return time.monotonic() < float(self.path.read_bytes().split()[1])
        return False

    def kill_owner(self) -> None:
        """Kills the process that holds the lock, if there is one: it does not answer."""
        with contextlib.suppress(FileNotFoundError, ValueError, IndexError), self.path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(file.read().split()[0]), signal.SIGKILL)

    def wait_until_free(self) -> None:
        """The kernel frees the lock when its owner ends."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)


def message(header: dict[str, Any], body: bytes = b"") -> tuple[bytes, bytes]:
    return worker.frame(json.dumps(header, separators=(",", ":")).encode(), body)


async def read_message(reader: asyncio.StreamReader) -> Reply:
    header, body = await worker.read(reader, MESSAGE_BYTES_MAX)
    return json.loads(header), body
