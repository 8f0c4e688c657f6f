"""The process that owns Qdrant Edge shards. Started by edge.py; ends by itself when its last client is gone."""

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import qdrant_edge as edge

from engine.providers.edge import frame, read_frame

ALONE_S = 2.0  # how long to wait for the next client: a restarting engine finds its worker warm
DENSE, SPARSE = "dense", "bm25"

Reply = dict[str, Any]


async def main(folder: Path, name: str, socket: Path) -> None:
    """Serve until nobody is left. A second worker of the same name sees the lock and leaves."""
    with os.fdopen(os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600), "r+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        lock.truncate()
        lock.write(str(os.getpid()).encode())
        lock.flush()
        socket.unlink(missing_ok=True)
        shards = Shards(folder)
        doorman = Doorman(shards)
        server = await asyncio.start_unix_server(doorman.receive, str(socket), backlog=128)
        async with server:
            await doorman.wait_until_alone()
            socket.unlink(missing_ok=True)
        shards.close()


class Doorman:
    """Counts the clients and answers them one request at a time."""

    def __init__(self, shards: "Shards") -> None:
        self._shards = shards
        self._clients = 0
        self._changed = asyncio.Event()

    async def receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count(1)
        try:
            writer.write(frame({"hello": os.getpid()}))
            while True:
                header, body = await read_frame(reader)
                reply = self._shards.answer(header, body)
                writer.write(frame(reply | {"number": header["number"]}))
                await writer.drain()
        except (OSError, EOFError):
            pass  # the client has gone; that is how a conversation ends
        finally:
            self._count(-1)
            writer.close()

    async def wait_until_alone(self) -> None:
        while True:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), ALONE_S if not self._clients else None)
            if not self._clients and not self._changed.is_set():
                return

    def _count(self, difference: int) -> None:
        self._clients += difference
        self._changed.set()


class Shards:
    """The generations that this process has open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, edge.EdgeShard] = {}

    def answer(self, header: dict[str, Any], body: bytes) -> Reply:
        actions = {
            "create": self.create,
            "upsert": self.upsert,
            "seal": self.seal,
            "close": self.release,
            "count": self.count,
            "search": self.search,
        }
        try:
            return actions[header["do"]](header, body)
        except Exception as fault:  # noqa: BLE001  the client must hear of it, whatever it is
            traceback.print_exc()
            return {"error": f"{type(fault).__name__}: {fault}"}

    def create(self, header: dict[str, Any], _: bytes) -> Reply:
        path = self._folder / header["generation"]
        path.mkdir(parents=True)
        max_sim = edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim)
        config = edge.EdgeConfig(
            vectors={
                DENSE: edge.EdgeVectorParams(
                    size=header["dimension"], distance=edge.Distance.Cosine, multivector_config=max_sim
                )
            },
            sparse_vectors={SPARSE: edge.EdgeSparseVectorParams()},
            optimizers=edge.EdgeOptimizersConfig(
                indexing_threshold=0
            ),  # scores are exact: a graph would not be used
        )
        self._open[header["generation"]] = edge.EdgeShard.create(str(path), config)
        return {}

    def upsert(self, header: dict[str, Any], body: bytes) -> Reply:
        """The body holds all windows, then all term ids, then all weights, four bytes each."""
        points = header["points"]
        terms = sum(point["terms"] for point in points)
        split = len(body) // 4 - 2 * terms
        windows = np.frombuffer(body, "<f4", split).reshape(sum(point["windows"] for point in points), -1)
        ids = np.frombuffer(body, "<u4", terms, 4 * split)
        weights = np.frombuffer(body, "<f4", terms, 4 * (split + terms))
        made, row, term = [], 0, 0
        for point in points:
            next_row, next_term = row + point["windows"], term + point["terms"]
            sparse = edge.SparseVector(ids[term:next_term].tolist(), weights[term:next_term].tolist())
            made.append(_point(point, windows[row:next_row], sparse))
            row, term = next_row, next_term
        self._shard(header["generation"]).update(edge.UpdateOperation.upsert_points(made))
        return {}

    def seal(self, header: dict[str, Any], _: bytes) -> Reply:
        """Optimise, bring to disk, and give the folder free for the serving worker."""
        shard = self._shard(header["generation"])
        shard.optimize()
        shard.flush()
        points = shard.count(edge.CountRequest(exact=True))
        shard.close()
        del self._open[header["generation"]]
        _sync(self._folder / header["generation"])
        return {"points": points}

    def release(self, header: dict[str, Any], _: bytes) -> Reply:
        shard = self._open.pop(header["generation"], None)
        if shard is not None:
            shard.close()
        return {}

    def count(self, header: dict[str, Any], _: bytes) -> Reply:
        return {"points": self._shard(header["generation"]).count(edge.CountRequest(exact=True))}

    def search(self, header: dict[str, Any], body: bytes) -> Reply:
        """Both top lists, then the missing score of each hit: the union with both scores exact."""
        shard = self._shard(header["generation"])
        limit, where = header["limit"], _filter(header["filters"])
        dense = edge.Query.Nearest(np.frombuffer(body, "<f4").tolist(), using=DENSE)
        if not header["terms"]:
            return {
                "hits": [(*_found(hit), 0.0) for hit in _query(shard, [_request(dense, limit, where)])[0]]
            }
        sparse = edge.Query.Nearest(edge.SparseVector(header["terms"], header["weights"]), using=SPARSE)
        by_dense, by_sparse = _query(shard, [_request(dense, limit, where), _request(sparse, limit, where)])
        only_dense = {hit.id for hit in by_dense} - {hit.id for hit in by_sparse}
        only_sparse = {hit.id for hit in by_sparse} - {hit.id for hit in by_dense}
        more_sparse, more_dense = _query(
            shard, [_request(sparse, limit, _ids(only_dense)), _request(dense, limit, _ids(only_sparse))]
        )
        cosines = dict(_found(hit) for hit in (*by_dense, *more_dense))
        weights = dict(_found(hit) for hit in (*by_sparse, *more_sparse))
        return {
            "hits": [(chunk_id, cosine, weights.get(chunk_id, 0.0)) for chunk_id, cosine in cosines.items()]
        }

    def close(self) -> None:
        for shard in self._open.values():
            shard.flush()
            shard.close()

    def _shard(self, generation: str) -> edge.EdgeShard:
        if generation not in self._open:
            self._open[generation] = edge.EdgeShard.load(str(self._folder / generation))
        return self._open[generation]


def _query(shard: edge.EdgeShard, requests: Sequence[edge.QueryRequest]) -> list[list[edge.ScoredPoint]]:
    return shard.query_batch(edge.QueryBatchRequest(list(requests)))


def _request(query: edge.Query, limit: int, where: edge.Filter | None) -> edge.QueryRequest:
    params = edge.SearchParams(exact=True)
    return edge.QueryRequest(limit=limit, query=query, filter=where, params=params, with_payload=["chunk_id"])


def _point(
    point: dict[str, Any], windows: np.ndarray[Any, np.dtype[np.float32]], sparse: edge.SparseVector
) -> edge.Point:
    vectors: dict[str, Any] = {DENSE: windows.tolist()}
    if point["terms"]:
        vectors[SPARSE] = sparse
    return edge.Point(point["id"], vectors, point["payload"])


def _found(hit: edge.ScoredPoint) -> tuple[str, float]:
    assert hit.payload is not None
    return str(hit.payload["chunk_id"]), float(hit.score)


def _ids(ids: set[Any]) -> edge.Filter:
    return edge.Filter(must=[edge.HasIdCondition(ids)])


def _filter(filters: dict[str, Any]) -> edge.Filter | None:
    conditions: list[edge.FieldCondition] = []
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
        os._exit(0)  # whoever started us does not wait for us, and is not our parent any more
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
