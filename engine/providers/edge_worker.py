"""Worker process that owns Qdrant Edge shards: a server on a Unix socket that answers searches in batches.

edge.py starts it, and it ends by itself after its last client: it serves several processes, so none of them can own it.
"""

import asyncio
import fcntl
import heapq
import json
import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import qdrant_edge as edge

from engine import cores
from engine.errors import IndexDamagedError, IndexUnavailableError
from engine.providers.edge import (
    OPEN_S,
    REFUSED,
    SEARCH_S,
    Lease,
    Reply,
    message,
    packed,
    read_message,
    unpacked,
)

IDLE_S = 2.0  # to wait for the next client: an engine that restarts finds its worker warm
BATCH_MAX = 32  # searches at once: no search waits for hundreds of others, and no client gets hundreds of replies at once
EXACT_POINTS_MAX = 10_000  # 1.2 ms at 1024 dimensions; up to here nothing is approximated, as on a cluster
# Fourfold finds all of the best 50 of texts, sixteenfold .99 of them even in pure noise (bench/oversampling.py). Of several
# parts the largest is about half of the book, and eightfold in each finds as many.
OVERSAMPLING, OVERSAMPLING_EACH = 16.0, 8.0
EXACT = edge.SearchParams(exact=True)
SEARCH_THREADS_MAX = 2  # one part is about half of a book, so a third thread would wait for it
READ_BYTES = 1 << 20
READ_S = 20.0  # of the time that opening may take: the rest of a huge book is read when it is searched
SCROLLED = 100  # points at once: more would delay searches by more than 10 ms
PLAIN, WINDOWS, SPARSE = "plain", "windows", "bm25"
_OS_ERROR = re.compile(
    r"os error (\d+)|Os \{ code: (\d+)"
)  # as Rust writes it, for users and for programmers
# Without an index of each, a filter reads every passage: 280 ms at 100,000.
FILTERED = dict.fromkeys(("chapter", "section", "difficulty", "tags"), edge.PayloadSchemaType.Keyword)
FILTERED["module"] = edge.PayloadSchemaType.Integer

MAX_SIM = edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim)
KINDS = {PLAIN: None, WINDOWS: MAX_SIM}  # of dense vectors
# A book is built in parts of at least 32,000 vectors of 1,024, each optimised and synced when it is full: all at once would take
# three times its size. A part is as large as all before it, because a search rescores candidates in each: few parts are faster.
PART_NUMBERS = 1 << 25
PART_KB_MAX = PART_NUMBERS * 4 // 1024 * 3 // 2  # no two full ones are merged

Hits = list[edge.ScoredPoint]
Wanted = list[edge.QueryRequest]  # by each kind of dense vectors, then by terms
Payload = list[str] | None


async def main(folder: Path, name: str, socket: Path) -> None:
    """Serves until the last client has left. A second worker of the same name finds the lock taken and ends."""
    with os.fdopen(os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600), "r+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        os.pwrite(lock.fileno(), Lease.text(), 0)
        socket.unlink(missing_ok=True)
        shards = Shards(folder, lock.fileno())
        dispatcher = Dispatcher(shards)
        server = await asyncio.start_unix_server(dispatcher.receive, str(socket), backlog=128)
        async with server, asyncio.TaskGroup() as tasks:
            answering = tasks.create_task(dispatcher.answer())
            await dispatcher.idle.wait()
            answering.cancel()
            socket.unlink(missing_ok=True)
        shards.close()


@dataclass(frozen=True, slots=True)
class Call:
    """A client's request, and the connection for the reply."""

    header: dict[str, Any]
    body: bytes
    writer: asyncio.StreamWriter

    def reply(self, reply: Reply) -> None:
        header, body = reply
        self.writer.writelines(message(header | {"number": self.header["number"]}, body))


class Dispatcher:
    """Queue between the clients and the shards: passes on all waiting calls at once, and counts the clients."""

    def __init__(self, shards: "Shards") -> None:
        self._shards = shards
        self._waiting: asyncio.Queue[Call] = asyncio.Queue()
        self._clients = 0
        self._timer: asyncio.TimerHandle | None = None
        self.idle = asyncio.Event()
        self._count(0)

    async def receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count(1)
        try:
            writer.writelines(message({"hello": os.getpid()}))
            while True:
                self._waiting.put_nowait(Call(*await read_message(reader), writer))
                await writer.drain()
        except (OSError, EOFError):
            pass  # the client has disconnected
        finally:
            self._count(-1)
            writer.close()

    async def answer(self) -> None:
        """Batches waiting searches of one generation into one pass over its vectors; a single search is not delayed."""
        while True:
            calls = [await self._waiting.get()]
            while len(calls) < BATCH_MAX and not self._waiting.empty():
                calls.append(self._waiting.get_nowait())
            searches: dict[str, list[Call]] = {}
            for call in calls:
                if call.header["do"] == "search":
                    searches.setdefault(call.header["generation"], []).append(call)
                else:
                    call.reply(self._shards.answer(call.header, call.body))
            for batch in searches.values():
                self._shards.answer_searches(batch)
            await asyncio.sleep(0)  # the replies go out, and new calls come in

    def _count(self, difference: int) -> None:
        """Stops the idle timer when a client comes, and restarts it when the last one has left."""
        self._clients += difference
        if self._timer:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if self._clients else loop.call_later(IDLE_S, self.idle.set)


@dataclass(slots=True)
class Shard:
    """An open shard. Of each kind of vectors the store keeps room in every passage, so it has only the kinds in use."""

    store: edge.EdgeShard
    kinds: list[str]
    optimised: int = 0  # numbers that this process has added
    unoptimised: int = 0

    @classmethod
    def load(cls, folder: Path) -> "Shard":
        store = edge.EdgeShard.load(str(folder))
        _warm(folder, time.monotonic() + READ_S)
        config = json.loads((folder / "edge_config.json").read_bytes())
        return cls(store, [kind for kind in KINDS if kind in config.get("vectors", {})])

    def upsert(self, described: Sequence[dict[str, Any]], body: bytes) -> None:
        points = []
        for point, (windows, ids, weights) in zip(described, unpacked(described, body), strict=True):
            kind = WINDOWS if len(windows) > 1 else PLAIN
            self._hold(kind, windows.shape[1])
            points.append(_point(point, kind, windows, edge.SparseVector(ids.tolist(), weights.tolist())))
            self.unoptimised += windows.size
        self.store.update(edge.UpdateOperation.upsert_points(points))
        if self.unoptimised > max(PART_NUMBERS, self.optimised):
            self.save()

    def save(self) -> None:
        """Optimised and durable; then the store also lets its log of updates go, which is as large as they are."""
        self.store.optimize()
        self.store.flush()
        self.optimised += self.unoptimised
        self.unoptimised = 0

    def _hold(self, kind: str, dimension: int) -> None:
        if kind not in self.kinds:
            made = edge.UpdateOperation.create_dense_vector(
                kind, dimension, edge.Distance.Cosine, KINDS[kind]
            )
            self.store.update(made)
            self.kinds.append(kind)


class Shards:
    """The generations that this process has open, as a cache of open shards by generation."""

    def __init__(self, folder: Path, lock: int) -> None:
        self._folder = folder
        self._lock = lock
        self._open: dict[str, Shard] = {}

    def answer(self, header: dict[str, Any], body: bytes) -> Reply:
        actions = {
            "create": self.create, "upsert": self.upsert, "seal": self.seal, "close": self.release, "count": self.count,
            "adopt": self.adopt, "delete": self.delete,
        }  # fmt: skip
        try:
            if header["do"] == "points":
                return self.points(header)
            return actions[header["do"]](header, body), b""
        except BaseException as fault:  # noqa: BLE001  every fault is reported to the client
            return _fault(fault)

    def answer_searches(self, calls: Sequence[Call]) -> None:
        """Answers a batch. If it fails, each search is retried alone, so that only the bad one fails."""
        try:
            replies = self.search(calls)
        except BaseException as fault:  # noqa: BLE001  every fault is reported to the client
            if len(calls) > 1:
                for call in calls:
                    self.answer_searches([call])
                return
            replies = [_fault(fault)]
        for call, reply in zip(calls, replies, strict=True):
            call.reply(reply)

    def create(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        path = self._folder / header["generation"]
        path.mkdir(parents=True)
        store = edge.EdgeShard.create(str(path), _config())
        self._open[header["generation"]] = Shard(store, [])
        for field, kind in FILTERED.items():
            store.update(edge.UpdateOperation.create_field_index(field, kind))
        return {}

    def upsert(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        self._shard(header["generation"]).upsert(header["points"], body)
        return {}

    def delete(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        self._shard(header["generation"]).store.update(edge.UpdateOperation.delete_points(header["points"]))
        return {}

    def seal(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        """Optimises the shard, syncs it to disk, and releases the folder for the serving worker."""
        self._shard(header["generation"]).save()
        self.release(header, b"")
        _sync(self._folder / header["generation"])
        return {}

    def release(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        shard = self._open.pop(header["generation"], None)
        if shard is not None:
            shard.store.close()
        return {}

    def adopt(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        """Replaces a generation by the one that was built beside it. No search comes between, because this blocks them."""
        self.release(header, b"")
        used, old = self._folder / header["generation"], self._folder / header["old"]
        shutil.rmtree(old, ignore_errors=True)
        if used.exists():
            used.rename(old)
        (self._folder / header["new"]).rename(used)
        _sync(used)
        return {}

    def count(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        """An open shard answers without its files, until this worker ends: so they are looked for."""
        if not (self._folder / header["generation"]).exists():
            self.release(header, b"")
        return {"points": self._shard(header["generation"]).store.count(edge.CountRequest(exact=True))}

    def points(self, header: dict[str, Any]) -> Reply:
        wanted = edge.ScrollRequest(
            offset=header["offset"], limit=SCROLLED, with_payload=True, with_vector=True
        )
        store = self._shard(header["generation"]).store
        try:
            records, offset = store.scroll(wanted)
        except BaseException as fault:
            raise _unreadable(fault) from fault
        vectors: list[Any] = [record.vector for record in records]  # by their names
        windows = [_windows(each) for each in vectors]
        sparse = [each.get(SPARSE) for each in vectors]
        described = [
            {
                "id": str(record.id), "payload": record.payload, "windows": len(rows),
                "terms": len(terms.indices) if terms else 0,
            }
            for record, rows, terms in zip(records, windows, sparse, strict=True)
        ]  # fmt: skip
        body = packed(
            windows,
            chain.from_iterable(terms.indices for terms in sparse if terms),
            chain.from_iterable(terms.values for terms in sparse if terms),
        )
        return {"points": described, "next": str(offset) if offset else None}, body

    def search(self, calls: Sequence[Call]) -> list[Reply]:
        """Searches in two rounds: the top hits by either score, then the other score of each hit, so that both are exact."""
        shard = self._shard(calls[0].header["generation"])
        params = _params(shard.store)
        searches = [HybridSearch(call.header, call.body, shard.kinds) for call in calls]
        _query(shard.store, searches, [search.tops(params) for search in searches])
        _query(shard.store, searches, [search.missing() for search in searches])
        return [search.reply() for search in searches]

    def close(self) -> None:
        """Closes without saving: a served generation is read-only, and an unsealed one is discarded."""
        for shard in self._open.values():
            shard.store.close()

    def _shard(self, generation: str) -> Shard:
        """Opens a shard lazily. That blocks the event loop for longer than a search may take, so it extends the lease."""
        if generation not in self._open:
            os.pwrite(self._lock, Lease.text(OPEN_S), 0)
            folder = self._folder / generation
            try:
                folder.stat()  # the store takes a folder that it may not see for a missing one
                self._open[generation] = Shard.load(folder)
            except BaseException as fault:  # the store panics at some files, and a panic is no Exception
                raise _unreadable(fault) from fault
            finally:
                os.pwrite(self._lock, Lease.text(SEARCH_S), 0)
        return self._open[generation]


class HybridSearch:
    """One search and what its two rounds have found so far."""

    def __init__(self, header: dict[str, Any], body: bytes, kinds: Sequence[str]) -> None:
        self._limit = header["limit"]
        self._where = _filter(header["filters"], header["among"])
        vector = np.frombuffer(body, "<f4").tolist()
        self._dense = [edge.Query.Nearest(vector, using=kind) for kind in kinds]
        self._sparse = edge.Query.Nearest(edge.SparseVector(header["terms"], header["weights"]), using=SPARSE)
        self._names: dict[Any, tuple[str, int | None]] = {}  # and positions
        self._cosines: dict[Any, float] = {}
        self._weights: dict[Any, float] = {}

    def tops(self, params: edge.SearchParams) -> Wanted:
        return self._wanted(self._where, self._where, params, ["chunk_id", "position"])

    def missing(self) -> Wanted:
        no_cosine, no_weight = (
            edge.Filter(must=[edge.HasIdCondition(self._names.keys() - known.keys())])
            for known in (self._cosines, self._weights)
        )
        return self._wanted(no_cosine, no_weight, EXACT, None)

    def keep(self, *found: Hits) -> None:
        """A passage has either a plain vector or windows, so the best of the two lists hold the best of all."""
        *each_kind, by_sparse = found
        by_dense = heapq.nlargest(self._limit, chain.from_iterable(each_kind), key=lambda hit: hit.score)
        for hits, scores in ((by_dense, self._cosines), (by_sparse, self._weights)):
            for hit in hits:
                point, payload = hit.id, hit.payload
                scores[point] = hit.score
                if payload:
                    self._names[point] = payload["chunk_id"], payload.get("position")

    def reply(self) -> Reply:
        """All cosines, then all BM25 scores, which are 0 for a passage without any of the words."""
        cosines = [self._cosines[point] for point in self._names]
        weights = [self._weights.get(point, 0.0) for point in self._names]
        names, positions = zip(*self._names.values(), strict=True) if self._names else ((), ())
        return {"hits": names, "positions": positions}, np.array([cosines, weights], "<f4").tobytes()

    def _wanted(
        self,
        by_dense: edge.Filter | None,
        by_sparse: edge.Filter | None,
        params: edge.SearchParams,
        payload: Payload,
    ) -> Wanted:
        queries = [*((query, by_dense) for query in self._dense), (self._sparse, by_sparse)]
        return [
            edge.QueryRequest(self._limit, query=query, filter=where, params=params, with_payload=payload)
            for query, where in queries
        ]


def _params(store: edge.EdgeShard) -> edge.SearchParams:
    """By the size of the book. One segment is not yet optimised, and has few passages or none."""
    info = store.info()
    if info.points_count <= EXACT_POINTS_MAX:
        return EXACT
    oversampling = OVERSAMPLING if info.segments_count <= 2 else OVERSAMPLING_EACH  # noqa: PLR2004
    return edge.SearchParams(
        quantization=edge.QuantizationSearchParams(rescore=True, oversampling=oversampling)
    )


def _query(shard: edge.EdgeShard, searches: Sequence[HybridSearch], wanted: Sequence[Wanted]) -> None:
    """Runs the queries ordered by kind of vector: only neighbours of one kind share a pass over the vectors."""
    requests = [request for kind in zip(*wanted, strict=True) for request in kind]
    found = shard.query_batch(edge.QueryBatchRequest(requests))
    for number, search in enumerate(searches):
        search.keep(*found[number :: len(searches)])


def _config() -> edge.EdgeConfig:
    """Quantisation with rescoring: scans two bits of each number, and scores the best of them by full vectors.

    One pass over 100,000 x 1024, and recall@50 of clustered vectors and of pure noise: exact 11.4 ms; int8 twofold
    4.7 ms, 1.00, 1.00; binary of two bits eightfold 1.0 ms, 1.00, .40; this 1.4 ms, 1.00, .99. As multivectors each
    takes 2 to 9 ms more, so a passage of one window is a plain vector. No graph (m=0): it takes minutes to build.
    """
    return edge.EdgeConfig(
        sparse_vectors={SPARSE: edge.EdgeSparseVectorParams()},
        quantization_config=edge.TurboQuantQuantizationConfig(
            bits=edge.TurboQuantBitSize.Bits2, memory=edge.Memory.Pinned
        ),
        hnsw_config=edge.HnswIndexConfig(m=0, ef_construct=4, full_scan_threshold=10),
        optimizers=edge.EdgeOptimizersConfig(max_segment_size=PART_KB_MAX),
        max_search_threads=min(cores.usable(), SEARCH_THREADS_MAX),
    )


def _warm(folder: Path, until: float) -> None:
    """Reads what searches read at random places: vectors, words, payloads. The store drops its pages when it closes, so the
    first hundreds of searches would each wait for the disk, about ten times as long as they take."""
    buffer = bytearray(READ_BYTES)
    for path in folder.glob("segments/*/*_storage*/**/*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while time.monotonic() < until and file.readinto(buffer):
                    pass


def _fault(fault: BaseException) -> Reply:
    """The reply about a fault. The index is damaged if it cannot be opened or read, or if the store panics."""
    if not isinstance(fault, IndexUnavailableError):
        if not isinstance(fault, OSError):  # such as a full disk: the reply says it
            traceback.print_exception(fault)
        if isinstance(fault, Exception):
            return {"error": _words(fault), "is_damaged": False}, b""
        fault = _unreadable(fault)
    return {"error": fault.reason, "is_damaged": isinstance(fault, IndexDamagedError)}, b""


def _unreadable(fault: BaseException) -> IndexUnavailableError:
    """What it means that the store cannot open or read its files: damage, unless the machine refused it."""
    said = _OS_ERROR.search(str(fault))
    number = fault.errno if isinstance(fault, OSError) else said and int(said[1] or said[2])
    return IndexUnavailableError(_words(fault)) if number in REFUSED else IndexDamagedError(_words(fault))


def _words(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}"


def _windows(vectors: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    rows = vectors.get(WINDOWS) or ([vectors[PLAIN]] if PLAIN in vectors else [])
    return np.array(rows, "<f4")


def _point(
    point: dict[str, Any],
    kind: str,
    windows: np.ndarray[Any, np.dtype[np.float32]],
    sparse: edge.SparseVector,
) -> edge.Point:
    rows = windows.tolist()
    vectors: dict[str, Any] = {kind: rows if kind == WINDOWS else rows[0]}
    if point["terms"]:
        vectors[SPARSE] = sparse
    return edge.Point(point["id"], vectors, point["payload"])


def _filter(filters: dict[str, Any], among: Sequence[str]) -> edge.Filter | None:
    conditions: list[edge.FieldCondition | edge.HasIdCondition] = []
    if among:
        conditions.append(edge.HasIdCondition(set(among)))
    for field, value in filters.items():
        values = value if isinstance(value, list) else [value]
        conditions.extend(edge.FieldCondition(field, match=edge.MatchValue(item)) for item in values)
    return edge.Filter(must=list(conditions)) if conditions else None


def _sync(folder: Path) -> None:
    """The shard syncs its files; the names of new files are durable only when their folders are synced too."""
    for path in (folder.parent, folder, *(path for path in folder.rglob("*") if path.is_dir())):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # a daemon: the process that started this one is no longer its parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        asyncio.run(main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
    except OSError as failure:
        sys.exit(f"affidavit: the index worker cannot work in {sys.argv[1]}: {failure}")
