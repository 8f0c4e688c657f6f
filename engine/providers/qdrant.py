"""An adapter for Qdrant, a server or a cluster: one collection per generation, so that no search sees half a book.

A generation has an alias and two names for collections: it is built in the one that is not in use, and then the alias moves.
Generations of before have a collection of the alias' name.

A generation of up to EXACT_WINDOWS_MAX windows is searched exactly, as in Edge: the server builds no graph for a segment
below its `indexing_threshold` and compares with every vector. Above it the server searches its HNSW graph with EF; the
scores of the hits are exact even so.
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import grpc  # type: ignore[import-untyped]
import httpx
import numpy as np
from qdrant_client import AsyncQdrantClient
from qdrant_client import models as qdrant
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from engine.errors import ConfigurationError, IndexDamagedError, IndexUnavailableError
from engine.models import Filters, Hit, Point, Vector, is_point_of, point_id
from engine.ports import Index
from engine.settings import Settings

CHANGE_S = 60  # timeout to create, drop or alias a collection, on which a cluster must agree
UPSERT_S = (
    60  # for one request; the client's own limit, because Qdrant 1.16 refuses a write whose address has one
)
SEAL_S = 900.0  # for each begun 100,000 passages, whose graph takes about 90 s
SEALED = 100_000
POLL_S = 0.25  # polling interval while a collection is optimised: the server sends no notification
REQUEST_NUMBERS_MAX = 400_000  # about 8 MB of JSON; a server refuses more than 32 MB
EXACT_WINDOWS_MAX = 20_000  # comparing with all of them takes about 3 ms at 1,024 numbers each
EF = 256  # five times the usual number of candidates
CONNECTIONS_MAX = 64  # concurrent searches, as many as in Edge; more would only queue in the server
IDLE_S = 2.0  # the server closes idle connections after 5 s, and no search may use one that it is closing
GRPC_PORT = 6334  # Qdrant's gRPC port; the URL has the HTTP port
GRPC = {
    "grpc.enable_retries": 0,
    "grpc.max_reconnect_backoff_ms": 1000,  # by default, a recovered server goes unnoticed for two minutes
}
DENSE, SPARSE = "dense", "bm25"
UNKNOWN_COLLECTION = (404, "NOT_FOUND")
REASON_CHARACTERS_MAX = 300
TESTED_VERSIONS = ("1.16.3",)  # by the contract of tests/parts/retrieval, alone and as a cluster
SCROLLED = 50  # points of one reply, when all are read: more would stall the requests of the same process

_FIELDS = dict.fromkeys(("chapter", "section", "difficulty", "tags"), qdrant.PayloadSchemaType.KEYWORD)
_FIELDS["module"] = qdrant.PayloadSchemaType.INTEGER
_EXACT = qdrant.SearchParams(exact=True)
_GRAPH = qdrant.SearchParams(hnsw_ef=EF)


class Found(NamedTuple):
    """What is stored of a hit."""

    chunk_id: str
    position: int | None


def index(settings: Settings) -> Index:
    chosen = settings.qdrant
    if not chosen.url.startswith(("http://", "https://")):
        raise ConfigurationError(
            "The Qdrant index needs an address: set QDRANT_URL to http://… or https://…."
        )
    return QdrantIndex(
        chosen.url, api_key=chosen.api_key.get_secret_value(), prefer_grpc=chosen.prefer_grpc,
        shards=chosen.shards, replicas=chosen.replicas, timeout_s=chosen.timeout_s,
    )  # fmt: skip


class QdrantIndex:
    """The index at one URL. Requests are not retried, because a reader waits for them."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str = "",
        prefer_grpc: bool = False,
        shards: int = 1,
        replicas: int = 1,
        timeout_s: float,
    ) -> None:
        # A server that compresses sends a reply in two parts, and the kernel holds the second back for 40 ms.
        headers = {"accept-encoding": "identity"}
        if api_key:  # passed as `api_key`, it causes a warning in a private network
            headers["api-key"] = api_key
        self._client = AsyncQdrantClient(
            url,
            headers=headers,
            prefer_grpc=prefer_grpc,
            grpc_port=GRPC_PORT,
            grpc_options=dict(GRPC),
            timeout=UPSERT_S,
            check_compatibility=False,  # otherwise it calls the server at once
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX, keepalive_expiry=IDLE_S),
        )
        self._shards = shards
        self._replicas = replicas
        self._timeout_s = timeout_s
        self._building: dict[UUID, str] = {}

    async def create(self, generation: UUID, dimension: int) -> None:
        building = self._building[generation] = await self._unused(generation)
        max_sim = qdrant.MultiVectorConfig(comparator=qdrant.MultiVectorComparator.MAX_SIM)
        dense = qdrant.VectorParams(
            size=dimension, distance=qdrant.Distance.COSINE, multivector_config=max_sim
        )
        exact_kilobytes = EXACT_WINDOWS_MAX * dimension * 4 // 1024
        async with _available(CHANGE_S):
            await self._client.delete_collection(building, timeout=CHANGE_S)
            await self._client.create_collection(
                building,
                vectors_config={DENSE: dense},
                # Without the IDF modifier: ours is in the question's weights, and a cluster's would differ by shard.
                sparse_vectors_config={SPARSE: qdrant.SparseVectorParams()},
                shard_number=self._shards,
                replication_factor=self._replicas,
                optimizers_config=qdrant.OptimizersConfigDiff(indexing_threshold=exact_kilobytes),
                # Without a timeout a cluster waits ten seconds for the replicas of a dead peer, and goes on. With one it
                # waits for as long, and the client gives up at the same moment.
            )
            for field, kind in _FIELDS.items():
                await self._client.create_payload_index(building, field, kind, wait=True)

    async def extend(self, generation: UUID, dimension: int, of: UUID, without: Sequence[str]) -> None:
        """Through this client: a snapshot would have to be recovered on each node of a cluster, with a path that it can read."""
        await self.create(generation, dimension)
        gone = set(without)
        async for points in self.points(of):
            await self.upsert(generation, [point for point in points if point.chunk_id not in gone])

    async def upsert(self, generation: UUID, points: Sequence[Point]) -> None:
        for point in points:
            point.check()
        for batch in _batches(points):
            async with _available(UPSERT_S):
                structs = [_struct(point) for point in batch]
                await self._client.upsert(self._building[generation], structs, wait=True)

    async def seal(self, generation: UUID) -> int:
        """Waits until the collection is optimised, moves the aliases to it, and counts its points exactly."""
        building = self._building[generation]
        async with _available(CHANGE_S):
            points = (await self._client.count(building, exact=False, timeout=CHANGE_S)).count
        async with _available(SEAL_S * (points // SEALED + 1)):
            while not await self._is_optimised(building):  # noqa: ASYNC110  there is no event to await
                await asyncio.sleep(POLL_S)
            await self._switch(generation, building)
            del self._building[generation]
            return await self._count(generation, CHANGE_S)

    async def points(self, generation: UUID) -> AsyncIterator[list[Point]]:
        offset, is_last = None, False
        while not is_last:
            async with _available(UPSERT_S):
                records, offset = await self._client.scroll(
                    _collection(generation),
                    limit=SCROLLED,
                    offset=offset,
                    with_payload=True,
                    with_vectors=True,
                )
            yield [_point(record) for record in records]
            is_last = offset is None

    async def describe(self) -> str:
        async with _available(self._timeout_s):
            version = (await self._client.info()).version
        return f"Qdrant {version} (tested with {', '.join(TESTED_VERSIONS)})"

    async def announce(self, book_id: str, generation: UUID) -> None:
        """Moves the alias in one atomic call, so that it always points to a collection."""
        async with _available(CHANGE_S):
            known = await self._aliases()
            target = known.get(_collection(generation), _collection(generation))
            await self._move([f"affidavit-{book_id}"], known, target)

    async def drop(self, generation: UUID) -> None:
        """Idempotent: the server accepts the deletion of an unknown collection, and deletes its aliases with it."""
        async with _available(CHANGE_S):
            for name in (*_places(generation), _collection(generation)):
                await self._client.delete_collection(name, timeout=CHANGE_S)

    async def count(self, generation: UUID) -> int:
        async with _available(self._timeout_s):
            return await self._count(generation, math.ceil(self._timeout_s))

    async def search(
        self,
        generation: UUID,
        dense: Vector,
        terms: dict[int, float],
        limit: int,
        filters: Filters,
        among: Sequence[str] = (),
    ) -> list[Hit]:
        """Fetches both top lists, then the missing score of each hit: exact, whatever the distribution over shards.

        A hit without a cosine was lost on the way, which is a failure. One without a word of the question scores 0.
        """
        wanted = partial(qdrant.QueryRequest, limit=limit, with_payload=["chunk_id", "position"])
        meaning = partial(wanted, query=[dense.tolist()], using=DENSE)
        words = partial(wanted, query=_sparse(terms), using=SPARSE)
        where = _where(filters, among)
        async with _available(self._timeout_s):
            if not terms:
                (cosines,) = await self._scores(generation, meaning(filter=where, params=_GRAPH))
                return [Hit(name.chunk_id, cosine, 0.0, name.position) for name, cosine in cosines.items()]
            cosines, weights = await self._scores(
                generation, meaning(filter=where, params=_GRAPH), words(filter=where, params=_GRAPH)
            )
            more_cosines, more_weights = await self._scores(
                generation,
                meaning(filter=_only(weights.keys() - cosines.keys()), params=_EXACT),
                words(filter=_only(cosines.keys() - weights.keys()), params=_EXACT),
            )
            cosines, weights = cosines | more_cosines, weights | more_weights
            return [
                Hit(name.chunk_id, cosines[name], weights.get(name, 0.0), name.position)
                for name in cosines | weights
            ]

    async def close(self) -> None:
        await self._client.close()

    async def _scores(self, generation: UUID, *requests: qdrant.QueryRequest) -> list[dict[Found, float]]:
        replies = await self._client.query_batch_points(
            _collection(generation), requests, timeout=math.ceil(self._timeout_s)
        )
        return [dict(map(_found, reply.points)) for reply in replies]

    async def _unused(self, generation: UUID) -> str:
        """The name for a collection of this generation that no reader uses."""
        async with _available(CHANGE_S):
            used = (await self._aliases()).get(_collection(generation))
        return next(name for name in _places(generation) if name != used)

    async def _switch(self, generation: UUID, building: str) -> None:
        """Moves every alias of the generation in one call. Only for a collection of before is there a moment without one."""
        alias, known = _collection(generation), await self._aliases()
        used = known.get(alias, alias)
        names = {alias, *(name for name, collection in known.items() if collection == used)}
        if used == alias:  # no alias may have the name of a collection
            await self._client.delete_collection(used, timeout=CHANGE_S)
            known = await self._aliases()
        await self._move(sorted(names), known, building)
        if used != alias:
            await self._client.delete_collection(used, timeout=CHANGE_S)

    async def _aliases(self) -> dict[str, str]:
        return {item.alias_name: item.collection_name for item in (await self._client.get_aliases()).aliases}

    async def _move(self, names: Sequence[str], known: Collection[str], collection: str) -> None:
        operations: list[qdrant.AliasOperations] = []
        for name in names:
            if name in known:
                delete = qdrant.DeleteAlias(alias_name=name)
                operations.append(qdrant.DeleteAliasOperation(delete_alias=delete))
            create = qdrant.CreateAlias(collection_name=collection, alias_name=name)
            operations.append(qdrant.CreateAliasOperation(create_alias=create))
        await self._client.update_collection_aliases(operations, timeout=CHANGE_S)

    async def _is_optimised(self, collection: str) -> bool:
        status = (await self._client.get_collection(collection)).status
        if status == qdrant.CollectionStatus.RED:
            raise RuntimeError("The collection cannot be optimised")
        return status == qdrant.CollectionStatus.GREEN

    async def _count(self, generation: UUID, timeout_s: int) -> int:
        return (await self._client.count(_collection(generation), exact=True, timeout=timeout_s)).count


@asynccontextmanager
async def _available(limit_s: float) -> AsyncIterator[None]:
    """Maps every failure and timeout of the block to `IndexUnavailableError`, with the server's reason."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except Exception as failure:
        raise _unavailable(failure, limit_s) from failure


def _unavailable(failure: Exception, limit_s: float) -> IndexUnavailableError:
    if isinstance(failure, TimeoutError):
        return IndexUnavailableError(f"no reply within {limit_s:g} s")
    if isinstance(failure, ResponseHandlingException):
        source = failure.source
        return IndexUnavailableError(f"{type(source).__name__}: {source}"[:REASON_CHARACTERS_MAX])
    status, words = _refusal(failure)
    if status is None:
        return IndexUnavailableError(f"a reply that cannot be read ({type(failure).__name__})")
    kind = IndexDamagedError if status in UNKNOWN_COLLECTION else IndexUnavailableError
    return kind(f"refused ({status}): {words}"[:REASON_CHARACTERS_MAX], upstream=f"refused ({status})")


def _refusal(failure: Exception) -> tuple[int | str | None, str]:
    """The status and the words of a server that refused."""
    if isinstance(failure, UnexpectedResponse):
        return failure.status_code, _words(failure.content)
    if isinstance(failure, ResourceExhaustedResponse):
        return 429, failure.message
    if isinstance(failure, grpc.aio.AioRpcError):
        return failure.code().name, failure.details() or ""
    return None, ""


def _words(body: bytes) -> str:
    try:
        return str(json.loads(body)["status"]["error"])
    except (ValueError, LookupError, TypeError):
        return body.decode(errors="replace")


def _collection(generation: UUID) -> str:
    return f"affidavit-{generation}"


def _places(generation: UUID) -> tuple[str, str]:
    return f"{_collection(generation)}-a", f"{_collection(generation)}-b"


def _batches(points: Sequence[Point]) -> Iterator[list[Point]]:
    batch: list[Point] = []
    numbers = 0
    for point in points:
        more = point.windows.size + 2 * len(point.terms)
        if batch and numbers + more > REQUEST_NUMBERS_MAX:
            yield batch
            batch, numbers = [], 0
        batch.append(point)
        numbers += more
    if batch:
        yield batch


def _struct(point: Point) -> qdrant.PointStruct:
    vectors: dict[str, qdrant.Vector] = {DENSE: point.windows.tolist()}
    if point.terms:
        vectors[SPARSE] = _sparse(point.terms)
    payload = point.payload | {"chunk_id": point.chunk_id}
    return qdrant.PointStruct(id=point_id(point.chunk_id), vector=vectors, payload=payload)


def _point(record: qdrant.Record) -> Point:
    """Of a point that is not where its passage belongs, the name says so: it equals none that was sent."""
    payload = dict(record.payload or {})
    vectors: Any = record.vector or {}
    chunk_id = str(payload.pop("chunk_id", ""))
    sparse = vectors.get(SPARSE)
    return Point(
        chunk_id if is_point_of(record.id, chunk_id) else f"{chunk_id} at {record.id}",
        np.array(vectors.get(DENSE, []), np.float32),
        dict(zip(sparse.indices, sparse.values, strict=True)) if sparse else {},
        payload,
    )


def _sparse(terms: dict[int, float]) -> qdrant.SparseVector:
    return qdrant.SparseVector(indices=list(terms), values=list(terms.values()))


def _where(filters: Filters, among: Sequence[str]) -> qdrant.Filter | None:
    conditions: list[qdrant.Condition] = []
    for field, value in asdict(filters).items():
        values = value if isinstance(value, tuple) else [value] if value else []
        conditions.extend(
            qdrant.FieldCondition(key=field, match=qdrant.MatchValue(value=item)) for item in values
        )
    if among:
        conditions.append(_has_id(among))
    return qdrant.Filter(must=conditions) if conditions else None


def _only(names: Collection[Found]) -> qdrant.Filter:
    return qdrant.Filter(must=[_has_id([name.chunk_id for name in names])])


def _has_id(chunk_ids: Collection[str]) -> qdrant.HasIdCondition:
    return qdrant.HasIdCondition(has_id=[point_id(chunk_id) for chunk_id in chunk_ids])


def _found(hit: qdrant.ScoredPoint) -> tuple[Found, float]:
    assert hit.payload is not None
    return Found(str(hit.payload["chunk_id"]), hit.payload.get("position")), hit.score
