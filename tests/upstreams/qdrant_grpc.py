"""Qdrant's gRPC, as far as the provider uses it, in front of the vendor's own engine in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc  # type: ignore[import-untyped]
from qdrant_client import QdrantClient, models
from qdrant_client import grpc as wire
from qdrant_client.conversions.conversion import GrpcToRest, RestToGrpc

from tests.upstreams.qdrant import CANARY

Answer = Callable[[Any, Any], Awaitable[Any]]


@dataclass
class Upstream:
    """Answers truly, unless it is told to fail; keeps the names of what it was asked."""

    port: int = 0
    key: str = ""
    hangs: bool = False
    refusal: grpc.StatusCode | None = None
    asked: list[str] = field(default_factory=list)
    engine: QdrantClient = field(default_factory=lambda: QdrantClient(":memory:"))

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        health = wire.HealthCheckReply(title="qdrant", version="0.0.0")
        return [
            self._service("qdrant.Qdrant", {"HealthCheck": (wire.HealthCheckRequest, lambda _: health)}),
            self._service(
                "qdrant.Collections",
                {
                    "Create": (wire.CreateCollection, self.create),
                    "Delete": (wire.DeleteCollection, self.delete),
                    "Get": (wire.GetCollectionInfoRequest, self.info),
                    "ListAliases": (wire.ListAliasesRequest, self.aliases),
                    "UpdateAliases": (wire.ChangeAliases, self.update_aliases),
                },
            ),
            self._service(
                "qdrant.Points",
                {
                    "CreateFieldIndex": (wire.CreateFieldIndexCollection, self.index_field),
                    "Upsert": (wire.UpsertPoints, self.upsert),
                    "Count": (wire.CountPoints, self.count),
                    "Scroll": (wire.ScrollPoints, self.scroll),
                    "QueryBatch": (wire.QueryBatchPoints, self.query),
                },
            ),
        ]

    def create(self, asked: Any) -> Any:
        vectors = GrpcToRest.convert_vectors_config(asked.vectors_config)
        sparse = GrpcToRest.convert_sparse_vector_config(asked.sparse_vectors_config)
        done = self.engine.create_collection(asked.collection_name, vectors, sparse)
        return wire.CollectionOperationResponse(result=done)

    def delete(self, asked: Any) -> Any:
        return wire.CollectionOperationResponse(result=self.engine.delete_collection(asked.collection_name))

    def info(self, asked: Any) -> Any:
        info = self.engine.get_collection(asked.collection_name)
        return wire.GetCollectionInfoResponse(result=RestToGrpc.convert_collection_info(info))

    def aliases(self, _: Any) -> Any:
        known = self.engine.get_aliases().aliases
        return wire.ListAliasesResponse(aliases=[RestToGrpc.convert_alias_description(one) for one in known])

    def update_aliases(self, asked: Any) -> Any:
        operations = [GrpcToRest.convert_alias_operations(one) for one in asked.actions]
        return wire.CollectionOperationResponse(result=self.engine.update_collection_aliases(operations))

    def index_field(self, asked: Any) -> Any:
        self.engine.get_collection(asked.collection_name)
        return wire.PointsOperationResponse(result=_DONE)

    def upsert(self, asked: Any) -> Any:
        self.engine.upsert(
            asked.collection_name, [GrpcToRest.convert_point_struct(one) for one in asked.points]
        )
        return wire.PointsOperationResponse(result=_DONE)

    def count(self, asked: Any) -> Any:
        found = self.engine.count(asked.collection_name, exact=asked.exact)
        return wire.CountResponse(result=RestToGrpc.convert_count_result(found))

    def scroll(self, asked: Any) -> Any:
        offset = GrpcToRest.convert_point_id(asked.offset) if asked.HasField("offset") else None
        records, following = self.engine.scroll(
            asked.collection_name, limit=asked.limit, offset=offset, with_payload=True, with_vectors=True
        )
        return wire.ScrollResponse(
            result=[RestToGrpc.convert_record(record) for record in records],
            next_page_offset=None if following is None else RestToGrpc.convert_extended_point_id(following),
        )

    def query(self, asked: Any) -> Any:
        requests = [GrpcToRest.convert_query_points(one) for one in asked.query_points]
        replies = self.engine.query_batch_points(asked.collection_name, requests)
        return wire.QueryBatchResponse(
            result=[
                wire.BatchResult(result=[RestToGrpc.convert_scored_point(hit) for hit in reply.points])
                for reply in replies
            ]
        )

    def _service(self, name: str, methods: dict[str, tuple[Any, Callable[[Any], Any]]]) -> Any:
        return grpc.method_handlers_generic_handler(
            name,
            {
                method: grpc.unary_unary_rpc_method_handler(
                    self._answering(method, action),
                    message.FromString,
                    lambda reply: reply.SerializeToString(),
                )
                for method, (message, action) in methods.items()
            },
        )

    def _answering(self, method: str, action: Callable[[Any], Any]) -> Answer:
        async def answer(asked: Any, context: Any) -> Any:
            self.asked.append(method)
            if self.key and dict(context.invocation_metadata()).get("api-key") != self.key:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, CANARY)
            if self.hangs:
                await asyncio.Event().wait()  # until the client has gone
            if self.refusal:
                await context.abort(self.refusal, CANARY)
            try:
                return action(asked)
            except ValueError:
                await context.abort(grpc.StatusCode.NOT_FOUND, CANARY)

        return answer


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(upstream.handlers())
    upstream.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield upstream
    finally:
        await server.stop(None)
        upstream.engine.close()


_DONE = RestToGrpc.convert_update_result(
    models.UpdateResult(operation_id=0, status=models.UpdateStatus.COMPLETED)
)
