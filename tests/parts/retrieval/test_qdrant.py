"""Qdrant behind the index's seam: what is asked of the server, and that no trouble with it ever looks like an answer."""

import contextlib
import time
import warnings
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import grpc  # type: ignore[import-untyped]
import pytest
from qdrant_client.models import Distance, VectorParams

from engine.errors import IndexUnavailableError
from engine.models import Filters
from engine.providers import qdrant
from engine.providers.qdrant import QdrantIndex
from tests.conftest import free_port
from tests.parts.retrieval.vectors import DIMENSION, LIMIT, POINTS, QUERIES, assert_exact, exact
from tests.upstreams import qdrant as upstream_http
from tests.upstreams import qdrant_grpc as upstream_grpc
from tests.upstreams.qdrant import CANARY, Fault, Upstream

pytestmark = pytest.mark.filterwarnings("ignore:Local mode performs exact")

IMPATIENT_S = 0.3
TOLD_S = 1.5  # well below the two seconds of retrieval
DENSE, TERMS = QUERIES[0]


@pytest.fixture
async def upstream(anyio_backend: str) -> AsyncIterator[Upstream]:
    async with upstream_http.serving() as started:
        yield started


@contextlib.asynccontextmanager
async def at(url: str, timeout_s: float = 10.0, **options: Any) -> AsyncIterator[QdrantIndex]:
    index = QdrantIndex(url, timeout_s=timeout_s, **options)
    try:
        yield index
    finally:
        await index.close()


async def begin(index: QdrantIndex) -> UUID:
    made = uuid4()
    await index.create(made, DIMENSION)
    await index.upsert(made, POINTS)
    return made


async def fill(index: QdrantIndex) -> UUID:
    made = await begin(index)
    assert await index.seal(made) == len(POINTS)
    return made


async def search(index: QdrantIndex, generation: UUID) -> None:
    hits = await index.search(generation, DENSE, TERMS, LIMIT, Filters())
    assert_exact(hits, exact(POINTS, DENSE, TERMS))


async def assert_unavailable(index: QdrantIndex, generation: UUID) -> None:
    """Soon, as the failure that a client may see, and without the server's words or place."""
    started = time.monotonic()
    with pytest.raises(IndexUnavailableError) as raised:
        await index.search(generation, DENSE, TERMS, LIMIT, Filters())
    assert time.monotonic() - started < TOLD_S
    assert (raised.value.status, raised.value.error_type) == (503, "network")
    assert raised.value.__cause__ is not None
    assert CANARY not in str(raised.value)
    assert "127.0.0.1" not in str(raised.value)


# Seen red with the time limit left to the SDK: each byte of a trickle starts it anew.
@pytest.mark.parametrize(
    "fault", ["hang", "trickle", "malformed", "null", "no replies", "no scores", "429", "500", "503"]
)
async def test_no_trouble_with_the_server_looks_like_an_answer(upstream: Upstream, fault: Fault) -> None:
    async with at(upstream.url) as patient:
        made = await fill(patient)
    async with at(upstream.url, IMPATIENT_S) as index:
        upstream.fault = fault
        asked = len(upstream.requests)
        await assert_unavailable(index, made)
        with pytest.raises(IndexUnavailableError):
            await index.search(made, DENSE, {}, LIMIT, Filters())
        assert (
            len(upstream.requests) <= asked + 2
        )  # nothing is tried twice; on a busy machine one may not arrive in time
        with pytest.raises(IndexUnavailableError):
            await index.count(made)
    async with at(upstream.url) as index:
        upstream.fault = None
        await search(index, made)


# Seen red with the timeout in the address of an upsert: 400, as from a real server of 1.16.3.
async def test_no_write_has_a_timeout_in_its_address(upstream: Upstream) -> None:
    async with at(upstream.url) as index:
        await fill(index)
    writes = [query for method, path, query, _ in upstream.requests if "points" in path and method == "PUT"]
    assert writes == [{"wait": "true"}]


# Seen red with `raise IndexUnavailableError from failure`: the operator of an ingest was told to try again shortly.
@pytest.mark.parametrize("prefer_grpc", [False, True], ids=["rest", "grpc"])
async def test_the_server_s_reason_is_kept_for_the_operator_and_hidden_from_a_reader(
    upstream: Upstream, upstream_of_grpc: upstream_grpc.Upstream, prefer_grpc: bool
) -> None:
    upstream.fault, upstream_of_grpc.refusal = "503", grpc.StatusCode.INTERNAL
    async with at(upstream.url if not prefer_grpc else "http://127.0.0.1", prefer_grpc=prefer_grpc) as index:
        with pytest.raises(IndexUnavailableError) as raised:
            await index.count(uuid4())
    assert raised.value.reason == f"refused ({'INTERNAL' if prefer_grpc else 503}): {CANARY}"
    assert CANARY not in f"{raised.value} {raised.value.upstream}"


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with at(f"http://127.0.0.1:{free_port()}") as index:
        await assert_unavailable(index, uuid4())
        for change in (index.create(uuid4(), 3), index.drop(uuid4()), index.announce("book", uuid4())):
            with pytest.raises(IndexUnavailableError):
                await change


async def test_a_server_that_hangs_up_is_unavailable() -> None:
    async with upstream_http.resetting() as url, at(url) as index:
        await assert_unavailable(index, uuid4())


async def test_a_wrong_key_is_unavailable_and_the_right_one_is_sent_without_a_warning(
    upstream: Upstream,
) -> None:
    upstream.key = "secret of the cluster"
    async with at(upstream.url, api_key="another") as index:
        await assert_unavailable(index, uuid4())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with at(upstream.url, api_key=upstream.key) as index:
            await index.drop(uuid4())


# Seen red with the client's own header, which accepts zstd: searches took 52 ms instead of 5 in every other run.
async def test_no_reply_is_compressed(upstream: Upstream) -> None:
    async with at(upstream.url) as index:
        await fill(index)
    assert upstream.codings == {"identity"}


# Seen red with 0 as the cosine of a passage that has none.
@pytest.mark.parametrize("fault", ["no points", "hang", "503"])
async def test_half_a_union_is_a_failure(upstream: Upstream, fault: Fault) -> None:
    """Trouble with the second batch only: what the first has found must not go out with half of its scores."""
    async with at(upstream.url) as patient:
        made = await fill(patient)
    async with at(upstream.url, IMPATIENT_S) as index:
        upstream.fault, upstream.true_before = fault, 1
        await assert_unavailable(index, made)
        assert upstream.true_before == 0


async def test_construction_asks_nothing(upstream: Upstream) -> None:
    async with at(upstream.url, api_key="key"):
        assert upstream.requests == []


async def test_a_generation_is_a_collection_of_exact_scores_with_its_filters_indexed(
    upstream: Upstream,
) -> None:
    async with at(upstream.url, shards=3, replicas=2) as index:
        made = await fill(index)
    path = f"/collections/affidavit-{made}-a"
    bodies = {where: body for method, where, _, body in upstream.requests if method == "PUT"}
    asked = bodies[path]
    assert (asked["shard_number"], asked["replication_factor"]) == (3, 2)
    assert asked["sparse_vectors"] == {"bm25": {}}
    assert asked["vectors"]["dense"]["multivector_config"] == {"comparator": "max_sim"}
    kilobytes = asked["optimizers_config"]["indexing_threshold"]
    assert kilobytes * 1024 == qdrant.EXACT_WINDOWS_MAX * DIMENSION * 4
    indexed = [body for _, where, _, body in upstream.requests if where == f"{path}/index"]
    assert {body["field_name"]: body["field_schema"] for body in indexed} == {
        "chapter": "keyword", "section": "keyword", "module": "integer", "difficulty": "keyword", "tags": "keyword",
    }  # fmt: skip
    (sent,) = (query for _, where, query, _ in upstream.requests if where == f"{path}/points")
    assert sent["wait"] == "true"


async def test_a_search_tells_the_server_its_time_and_asks_for_no_payload_but_id_and_position(
    upstream: Upstream,
) -> None:
    async with at(upstream.url, 1.4) as index:
        made = await fill(index)
        await search(index, made)
    batches = [
        (query, body) for _, path, query, body in upstream.requests if path.endswith("/points/query/batch")
    ]
    assert [query for query, _ in batches] == [{"timeout": "2"}] * 2
    for _, body in batches:
        assert all(
            one["with_payload"] == ["chunk_id", "position"] and not one.get("with_vector")
            for one in body["searches"]
        )


async def test_points_go_in_requests_that_a_server_takes(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qdrant, "REQUEST_NUMBERS_MAX", 20 * DIMENSION)
    async with at(upstream.url) as index:
        made = await fill(index)
        await search(index, made)
    sent = [body["points"] for _, path, _, body in upstream.requests if path.endswith("/points")]
    assert len(sent) > 10
    assert sum(map(len, sent)) == len(POINTS)
    for points in sent:
        windows = sum(len(point["vector"]["dense"]) for point in points)
        assert windows <= 20


@pytest.fixture
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qdrant, "POLL_S", 0.001)


# Seen red with the look at the status left out.
@pytest.mark.usefixtures("attentive")
async def test_a_generation_is_sealed_when_the_server_has_optimised_it(upstream: Upstream) -> None:
    upstream.statuses = ["yellow", "grey", "yellow", "green"]
    async with at(upstream.url) as index:
        await fill(index)
    assert upstream.statuses == []


@pytest.mark.usefixtures("attentive")
async def test_what_cannot_be_optimised_or_never_ends_is_not_sealed(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at(upstream.url) as index:
        made = await begin(index)
        upstream.statuses = ["yellow", "red"]
        with pytest.raises(IndexUnavailableError):
            await index.seal(made)
        monkeypatch.setattr(qdrant, "SEAL_S", IMPATIENT_S)
        upstream.statuses = ["yellow"] * 100_000
        with pytest.raises(IndexUnavailableError):
            await index.seal(made)


# Seen red with two calls, one that deletes and one that creates.
async def test_the_book_s_name_moves_to_the_new_generation_in_one_call(upstream: Upstream) -> None:
    async with at(upstream.url) as index:
        first, second = await fill(index), await fill(index)
        await index.announce("other", first)
        await index.announce("book", first)
        await index.announce("book", second)
    calls = [body["actions"] for _, path, _, body in upstream.requests if path == "/collections/aliases"]
    assert [[next(iter(action)) for action in actions] for actions in calls] == [
        ["create_alias"], ["create_alias"], ["create_alias"], ["create_alias"], ["delete_alias", "create_alias"],
    ]  # fmt: skip
    assert aliases_of(upstream) == {
        f"affidavit-{first}": f"affidavit-{first}-a", f"affidavit-{second}": f"affidavit-{second}-a",
        "affidavit-other": f"affidavit-{first}-a", "affidavit-book": f"affidavit-{second}-a",
    }  # fmt: skip


# Seen red with only the generation's own alias moved: the book's name was lost with the old collection.
async def test_a_generation_that_is_built_again_takes_every_name_along_in_one_call(
    upstream: Upstream,
) -> None:
    async with at(upstream.url) as index:
        made = await fill(index)
        await index.announce("book", made)
        await index.create(made, DIMENSION)
        await index.upsert(made, POINTS)
        asked = len(upstream.requests)
        await index.seal(made)
        await search(index, made)
    calls = [body for _, path, _, body in upstream.requests[asked:] if path == "/collections/aliases"]
    assert [len(body["actions"]) for body in calls] == [4]
    assert aliases_of(upstream) == dict.fromkeys(
        (f"affidavit-{made}", "affidavit-book"), f"affidavit-{made}-b"
    )
    held = [item.name for item in upstream.engine.get_collections().collections]
    assert held == [f"affidavit-{made}-b"]


# Seen red with the alias made while a collection of its name is there: the server refuses it.
async def test_a_collection_of_before_there_were_aliases_is_replaced(upstream: Upstream) -> None:
    made = uuid4()
    async with at(upstream.url) as index:
        upstream.engine.create_collection(
            f"affidavit-{made}",
            vectors_config={"dense": VectorParams(size=3, distance=Distance.COSINE)},
        )
        await index.announce("book", made)
        assert aliases_of(upstream) == {"affidavit-book": f"affidavit-{made}"}
        await index.create(made, DIMENSION)
        await index.upsert(made, POINTS)
        await index.seal(made)
        await search(index, made)
    assert aliases_of(upstream) == dict.fromkeys(
        (f"affidavit-{made}", "affidavit-book"), f"affidavit-{made}-a"
    )


def aliases_of(upstream: Upstream) -> dict[str, str]:
    return {item.alias_name: item.collection_name for item in upstream.engine.get_aliases().aliases}


@pytest.fixture
async def upstream_of_grpc(
    anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[upstream_grpc.Upstream]:
    async with upstream_grpc.serving() as started:
        monkeypatch.setattr(qdrant, "GRPC_PORT", started.port)
        yield started


@pytest.mark.parametrize("status", ["UNAVAILABLE", "INTERNAL", "RESOURCE_EXHAUSTED", None])
async def test_no_trouble_over_grpc_looks_like_an_answer(
    upstream_of_grpc: upstream_grpc.Upstream, status: str | None
) -> None:
    async with at("http://127.0.0.1", prefer_grpc=True) as patient:
        made = await fill(patient)
    async with at("http://127.0.0.1", IMPATIENT_S, prefer_grpc=True) as index:
        upstream_of_grpc.hangs = status is None
        upstream_of_grpc.refusal = grpc.StatusCode[status] if status else None
        asked = len(upstream_of_grpc.asked)
        await assert_unavailable(index, made)
        assert len(upstream_of_grpc.asked) == asked + 1  # nothing is tried twice
    upstream_of_grpc.hangs, upstream_of_grpc.refusal = False, None
    async with at("http://127.0.0.1", prefer_grpc=True) as index:
        await search(index, made)


async def test_over_grpc_the_key_is_sent_too(upstream_of_grpc: upstream_grpc.Upstream) -> None:
    upstream_of_grpc.key = "secret of the cluster"
    async with at("http://127.0.0.1", prefer_grpc=True, api_key="another") as index:
        await assert_unavailable(index, uuid4())
    async with at("http://127.0.0.1", prefer_grpc=True, api_key=upstream_of_grpc.key) as index:
        await index.drop(uuid4())


async def test_without_a_server_grpc_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qdrant, "GRPC_PORT", free_port())
    async with at("http://127.0.0.1", prefer_grpc=True) as index:
        await assert_unavailable(index, uuid4())
