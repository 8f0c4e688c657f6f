"""The index in the data folder: a small generation is one file that each process searches in its memory, a large one is in Qdrant Edge.

A generation is small up to EXACT_NUMBERS_MAX. Its file is read once, checked against its own digest, and copied: a file
that is mapped and then cut off would end the process. A generation of before is in Edge at any size, until it is rebuilt.
"""

import asyncio
import json
import os
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

from threadpoolctl import threadpool_limits

from audit import worker
from audit.vault import sync_folder
from engine.errors import IndexDamagedError, IndexUnavailableError
from engine.models import Filters, Hit, Point, Vector
from engine.ports import Index
from engine.providers.edge import EdgeIndex, packed, readable, unpacked
from engine.retrieval.exact_search import ExactSearch, StoredPoint
from engine.settings import Settings

EXACT_NUMBERS_MAX = (
    8_000_000  # of all vectors, 20,000 windows of 384: searched in 3 ms here and in Edge, below faster here
)
HELD_NUMBERS_MAX = (
    8 * EXACT_NUMBERS_MAX
)  # of all generations in memory, 256 MB: what was not searched for longest goes
DIGEST_BYTES = 32
SEARCHING_S = 0.002  # of a turn of the event loop: some searches of a small book, one of a large one
BATCH = 100  # points at once: more would delay requests of the same process

Search = Callable[[], list[Hit]]


def index(settings: Settings) -> Index:
    threadpool_limits(1, "blas")  # several threads of a matrix product would only wait for each other
    return EmbeddedIndex(settings.data_dir / "index")


class Collected:
    """A generation that is being built, as long as it is small."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.points: dict[str, StoredPoint] = {}
        self._numbers = 0

    def add(self, points: Sequence[Point]) -> None:
        """A point that is sent twice is stored once, as it was sent last."""
        for point in points:
            earlier = self.points.get(point.chunk_id)
            self._numbers += point.windows.size - (earlier.windows.size if earlier else 0)
            self.points[point.chunk_id] = StoredPoint.of(point)

    @property
    def is_small(self) -> bool:
        return self._numbers <= EXACT_NUMBERS_MAX


class Held(NamedTuple):
    """A generation in memory, and which file it was read from."""

    file: tuple[int, int, int]
    search: ExactSearch


class PacedSearches:
    """Searches in this process: in each turn of the event loop as many as take a small part of it, whatever their number.
    Other requests go on between them."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[asyncio.Future[list[Hit]], Search]] = deque()

    async def run(self, search: Search) -> list[Hit]:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[Hit]] = loop.create_future()
        self._waiting.append((found, search))
        if len(self._waiting) == 1:
            loop.call_soon(self._run_some)
        return await found

    def _run_some(self) -> None:
        until = time.perf_counter() + SEARCHING_S
        while self._waiting:
            _run_one(*self._waiting.popleft())
            if time.perf_counter() >= until:
                break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._run_some)


def _run_one(found: asyncio.Future[list[Hit]], search: Search) -> None:
    if found.done():  # whoever asked has gone
        return
    try:
        found.set_result(search())
    except Exception as failure:  # noqa: BLE001  for the one who asked
        found.set_exception(failure)


class EmbeddedIndex:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._edge = EdgeIndex(folder)
        self._drafts: dict[UUID, Collected] = {}
        self._held: OrderedDict[UUID, Held] = OrderedDict()  # the one that was searched last is at its end
        self._reading = asyncio.Lock()
        self._paced = PacedSearches()

    async def create(self, generation: UUID, dimension: int) -> None:
        await self._edge.discard(generation)
        self._drafts[generation] = Collected(dimension)

    async def extend(self, generation: UUID, dimension: int, of: UUID, without: Sequence[str]) -> None:
        if await self._searchable(of) is None:
            await asyncio.to_thread(_remove, self._path(generation))
            return await self._edge.extend(generation, dimension, of, without)
        with readable():
            stored, _dimension = await asyncio.to_thread(_read, self._path(of))
        await self.create(generation, dimension)
        gone = set(without)
        for batch in _batches([point for point in stored if point.chunk_id not in gone]):
            await self.upsert(generation, batch)
        return None

    async def upsert(self, generation: UUID, points: Sequence[Point]) -> None:
        """Up to its limit a generation is collected in memory; then Edge gets what there is, and all that follows."""
        for point in points:
            point.check()
        draft = self._drafts.get(generation)
        if draft is None:
            return await self._edge.upsert(generation, points)
        draft.add(points)
        if not draft.is_small:
            del self._drafts[generation]
            await self._edge.create(generation, draft.dimension)
            for batch in _batches(list(draft.points.values())):
                await self._edge.upsert(generation, batch)
        return None

    async def seal(self, generation: UUID) -> int:
        """Of two forms of a generation the file counts. So it is renamed before the other form goes, and is removed last."""
        draft = self._drafts.pop(generation, None)
        with readable():
            if draft is None:
                await self._edge.seal(generation)
                self._path(generation).unlink(missing_ok=True)
            else:
                await asyncio.to_thread(_write, self._path(generation), draft)
                await self._edge.drop(generation)
        return await self.count(generation)

    async def points(self, generation: UUID) -> AsyncIterator[list[Point]]:
        """From the file, not from memory: this is how a damage is found."""
        if await self._searchable(generation) is None:
            async for batch in self._edge.points(generation):
                yield batch
            return
        with readable():
            stored, _dimension = await asyncio.to_thread(_read, self._path(generation))
        for batch in _batches(stored):
            yield batch

    async def describe(self) -> str:
        return f"{await self._edge.describe()} (books of up to {EXACT_NUMBERS_MAX} numbers are searched without it)"

    async def announce(self, book_id: str, generation: UUID) -> None:
        await self._edge.announce(book_id, generation)

    async def drop(self, generation: UUID) -> None:
        self._drafts.pop(generation, None)
        await asyncio.to_thread(_remove, self._path(generation))
        await self._edge.drop(generation)

    async def count(self, generation: UUID) -> int:
        held = await self._searchable(generation)
        return await self._edge.count(generation) if held is None else len(held)

    async def search(
        self, generation: UUID, dense: Vector, terms: dict[int, float], limit: int, filters: Filters,
        among: Sequence[str] = (),
    ) -> list[Hit]:  # fmt: skip
        held = await self._searchable(generation)
        if held is None:
            return await self._edge.search(generation, dense, terms, limit, filters, among)
        try:
            return await self._paced.run(partial(held.search, dense, terms, limit, filters, among))
        except ValueError as wrong:
            raise IndexUnavailableError(str(wrong)) from wrong

    async def close(self) -> None:
        await self._edge.close()

    async def _searchable(self, generation: UUID) -> ExactSearch | None:
        """The small generation as it is in its file; None if it is in Edge."""
        path = self._path(generation)
        with readable():
            file = _file(path)
            if file is None:
                self._held.pop(generation, None)
                if not self._edge.holds(generation):
                    raise IndexDamagedError("there is none")
                return None
            held = self._held.get(generation)
            if held is None or held.file != file:
                held = await self._take(generation, path)
        self._held.move_to_end(generation)
        return held.search

    async def _take(self, generation: UUID, path: Path) -> Held:
        """Reads the file in a thread, once for all that wait for it."""
        async with self._reading:
            file, held = _file(path), self._held.get(generation)
            if file is None:
                raise IndexDamagedError("its file has gone")
            if held is None or held.file != file:
                held = self._held[generation] = Held(file, await asyncio.to_thread(_opened, path))
                self._held.move_to_end(generation)
            while (
                len(self._held) > 1
                and sum(each.search.numbers for each in self._held.values()) > HELD_NUMBERS_MAX
            ):
                self._held.popitem(last=False)
            return held

    def _path(self, generation: UUID) -> Path:
        return self._folder / f"{generation}.exact"


def _write(path: Path, draft: Collected) -> None:
    """Under another name first, so that a reader, and the next one after a crash, finds the old file or the new one."""
    points = list(draft.points.values())
    described = [
        {
            "chunk_id": point.chunk_id, "windows": len(point.windows), "terms": len(point.term_ids),
            "payload": point.payload,
        }
        for point in points
    ]  # fmt: skip
    header = json.dumps({"dimension": draft.dimension, "points": described}).encode()
    numbers = packed(
        [point.windows for point in points],
        chain.from_iterable(point.term_ids for point in points),
        chain.from_iterable(point.weights for point in points),
    )
    content = b"".join(worker.frame(header, numbers))
    _remove_unfinished(path)
    unfinished = path.with_name(f"{path.name}.{uuid4().hex}")
    with unfinished.open("xb") as file:
        file.write(content + sha256(content).digest())
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
    sync_folder(path.parent)


def _read(path: Path) -> tuple[list[StoredPoint], int]:
    """What was stored, and its dimension; `IndexDamagedError` if it is not as it was written."""
    held = path.read_bytes()
    content, digest = memoryview(held)[:-DIGEST_BYTES], held[-DIGEST_BYTES:]
    if sha256(content).digest() != digest:
        raise IndexDamagedError("its file is not as it was written")
    header, body = worker.receive(BytesIO(content), len(content))
    described = json.loads(header)
    points = [
        StoredPoint(point["chunk_id"], *parts, point["payload"])
        for point, parts in zip(described["points"], unpacked(described["points"], body), strict=True)
    ]
    return points, described["dimension"]


def _opened(path: Path) -> ExactSearch:
    return ExactSearch(*_read(path))


def _file(path: Path) -> tuple[int, int, int] | None:
    """What tells a file from the one that replaces it, or from itself before it was changed; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _remove_unfinished(path)


def _remove_unfinished(path: Path) -> None:
    """What a killed process has left."""
    for left in path.parent.glob(f"{path.name}.*"):
        left.unlink(missing_ok=True)


def _batches(stored: Sequence[StoredPoint]) -> Iterator[list[Point]]:
    for start in range(0, len(stored), BATCH):
        yield [each.point() for each in stored[start : start + BATCH]]
