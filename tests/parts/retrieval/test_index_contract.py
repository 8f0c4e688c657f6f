"""What every index must do, asked of each provider: exact scores of the union of both tops, or a clean failure.

Qdrant is asked in many ways: the SDK's own engine in memory, over HTTP and over gRPC, a real server over both, and a real
cluster of three. Everything here stays far below 2,000 points: the SDK's engine is exact, and slow.
"""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest

from engine.errors import IndexUnavailableError
from engine.models import Filters, Hit, Point, Vector
from engine.ports import Index
from engine.providers import qdrant
from engine.providers.edge import EdgeIndex
from engine.providers.embedded import EmbeddedIndex
from engine.providers.minilm import MiniLm
from engine.providers.qdrant import QdrantIndex
from engine.retrieval import lexical
from ingest.indexing import IndexContent
from tests.conftest import CAMPAIGN_ROUNDS, campaign_only
from tests.labelled import SAMPLE_BOOK, published, sample_questions
from tests.parts.retrieval.vectors import (
    DIMENSION,
    LIMIT,
    POINTS,
    QUERIES,
    assert_exact,
    exact,
    payload,
    random_point,
    unit,
)
from tests.upstreams import qdrant as upstream_http
from tests.upstreams import qdrant_grpc as upstream_grpc
from tests.upstreams import qdrant_server

pytestmark = [
    pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant"),
    pytest.mark.filterwarnings("ignore:Local mode performs exact"),
]

TIMEOUT_S = 10.0  # the machine may be busy; how late is too late is not the question here
REAL_PASSAGES = 600
QUESTIONS = 200
SHORT = 200  # letters: a paragraph of the sample book that is no passage here
TOP = 5


@contextlib.asynccontextmanager
async def in_a_folder(make: Callable[[Path], Index]) -> AsyncIterator[Index]:
    with tempfile.TemporaryDirectory(prefix="affidavit-edge-", ignore_cleanup_errors=True) as folder:
        index = make(Path(folder))
        try:
            yield index
        finally:
            await index.close()


@contextlib.asynccontextmanager
async def qdrant_at(
    url: str, *, prefer_grpc: bool = False, shards: int = 1, replicas: int = 1
) -> AsyncIterator[Index]:
    index = QdrantIndex(url, prefer_grpc=prefer_grpc, timeout_s=TIMEOUT_S, shards=shards, replicas=replicas)
    try:
        yield index
    finally:
        await index.close()


@contextlib.asynccontextmanager
async def qdrant_over_http() -> AsyncIterator[Index]:
    async with upstream_http.serving() as upstream, qdrant_at(upstream.url) as index:
        yield index


@contextlib.asynccontextmanager
async def qdrant_over_grpc() -> AsyncIterator[Index]:
    with pytest.MonkeyPatch.context() as patch:
        async with upstream_grpc.serving() as upstream:
            patch.setattr(qdrant, "GRPC_PORT", upstream.port)
            async with qdrant_at("http://127.0.0.1", prefer_grpc=True) as index:
                yield index


@contextlib.asynccontextmanager
async def real_server(*, prefer_grpc: bool) -> AsyncIterator[Index]:
    with pytest.MonkeyPatch.context() as patch, qdrant_server.single() as server:
        patch.setattr(qdrant, "GRPC_PORT", server.grpc_port)
        async with qdrant_at(server.url, prefer_grpc=prefer_grpc) as index:
            yield index


@contextlib.asynccontextmanager
async def real_cluster() -> AsyncIterator[Index]:
    with qdrant_server.cluster() as servers:
        async with qdrant_at(servers[-1].url, shards=3, replicas=2) as index:
            yield index


PROVIDERS: dict[str, Callable[[], AbstractAsyncContextManager[Index]]] = {
    "embedded": partial(in_a_folder, EmbeddedIndex),
    "edge": partial(in_a_folder, EdgeIndex),
    "qdrant-memory": partial(qdrant_at, ":memory:"),
    "qdrant-http": qdrant_over_http,
    "qdrant-grpc": qdrant_over_grpc,
    # Seen red with the timeout in the address of an upsert: the server answered each with 400.
    "qdrant-server-rest": partial(real_server, prefer_grpc=False),
    "qdrant-server-grpc": partial(real_server, prefer_grpc=True),
    "qdrant-cluster": real_cluster,
}
REAL = {"qdrant-server-rest", "qdrant-server-grpc", "qdrant-cluster"}
IN_MEMORY = ("qdrant-memory", "qdrant-http", "qdrant-grpc")
CLUSTERS = [name for name in PROVIDERS if name not in {"embedded", "edge", "qdrant-memory"}]


# The real servers take longer than all others together: CI has them in its campaign.
@pytest.fixture(
    scope="module",
    params=[campaign_only(name) if name in REAL else name for name in PROVIDERS],
)
async def index(anyio_backend: str, request: pytest.FixtureRequest) -> AsyncIterator[Index]:
    async with PROVIDERS[request.param]() as opened:
        yield opened


@contextlib.asynccontextmanager
async def filled(index: Index, points: Sequence[Point]) -> AsyncIterator[UUID]:
    """A generation with these points, sealed; forgotten at the end, for a real server keeps what is left."""
    made = uuid4()
    try:
        await index.create(made, points[0].windows.shape[1])
        for start in range(0, len(points), 64):
            await index.upsert(made, points[start : start + 64])
        assert await index.seal(made) == len(points)
        yield made
    finally:
        await index.drop(made)


@pytest.fixture(scope="module")
async def generation(index: Index) -> AsyncIterator[UUID]:
    async with filled(index, POINTS) as made:
        yield made


# Seen red with the second query of the worker and the second batch of QdrantIndex.search left out: half of the hits had no cosine or no BM25 score.
@pytest.mark.parametrize("query", range(len(QUERIES)))
async def test_the_union_of_both_tops_has_both_exact_scores(
    index: Index, generation: UUID, query: int
) -> None:
    dense, terms = QUERIES[query]
    hits = await index.search(generation, dense, terms, LIMIT, Filters())
    assert_exact(hits, exact(POINTS, dense, terms))


@pytest.mark.parametrize("limit", [1, 50, 1000])
async def test_any_limit_is_exact(index: Index, generation: UUID, limit: int) -> None:
    dense, terms = QUERIES[1]
    hits = await index.search(generation, dense, terms, limit, Filters())
    assert_exact(hits, exact(POINTS, dense, terms, limit))


# Seen red with the position left out of the payload that is asked for.
async def test_a_hit_has_the_position_that_was_stored_with_it(index: Index) -> None:
    placed = [
        replace(point, payload=point.payload | {"position": place}) for place, point in enumerate(POINTS[:30])
    ]
    dense, terms = QUERIES[0]
    async with filled(index, [*placed, *POINTS[30:40]]) as made:
        for words in (terms, {}):
            hits = await index.search(made, dense, words, 100, Filters())
            expected = {point.chunk_id: point.payload.get("position") for point in (*placed, *POINTS[30:40])}
            assert {hit.chunk_id: hit.position for hit in hits} == expected


# Seen red with the filter given to the dense query only.
@pytest.mark.parametrize(
    ("filters", "holds"),
    [
        (Filters(chapter="Chapter 1"), lambda payload: payload["chapter"] == "Chapter 1"),
        (Filters(section="Section 4"), lambda payload: payload["section"] == "Section 4"),
        (Filters(module=3), lambda payload: payload["module"] == 3),
        (Filters(difficulty="advanced"), lambda payload: payload["difficulty"] == "advanced"),
        (Filters(tags=("imu",)), lambda payload: "imu" in payload["tags"]),
        (Filters(tags=("imu", "zmp")), lambda payload: {"imu", "zmp"} <= set(payload["tags"])),
        (
            Filters(chapter="Chapter 0", module=2, tags=("ros",)),
            lambda payload: (
                (payload["chapter"], payload["module"]) == ("Chapter 0", 2) and "ros" in payload["tags"]
            ),
        ),
        (Filters(chapter="chapter 1"), lambda _: False),
        (Filters(section="Section"), lambda _: False),
    ],
)
async def test_a_filter_restricts_both_scores(
    index: Index, generation: UUID, filters: Filters, holds: Callable[[dict[str, Any]], bool]
) -> None:
    dense, terms = QUERIES[2]
    inside = [point for point in POINTS if holds(point.payload)]
    hits = await index.search(generation, dense, terms, LIMIT, filters)
    assert_exact(hits, exact(inside, dense, terms))


# Seen red with `among` left out of the filter.
async def test_among_restricts_both_scores_together_with_the_filters(index: Index, generation: UUID) -> None:
    dense, terms = QUERIES[4]
    named = POINTS[40:100]
    among = [point.chunk_id for point in named]
    hits = await index.search(generation, dense, terms, LIMIT, Filters(), among)
    assert_exact(hits, exact(named, dense, terms))
    inside = [point for point in named if point.payload["module"] == 2]
    hits = await index.search(generation, dense, terms, LIMIT, Filters(module=2), among)
    assert_exact(hits, exact(inside, dense, terms))


async def test_among_passages_of_no_book_is_nothing(index: Index, generation: UUID) -> None:
    dense, terms = QUERIES[4]
    assert await index.search(generation, dense, terms, LIMIT, Filters(), ["f" * 64]) == []


@pytest.mark.parametrize("terms", [{}, {999: 3.0}])
async def test_a_question_without_known_words_is_searched_by_meaning_alone(
    index: Index, generation: UUID, terms: dict[int, float]
) -> None:
    dense, _ = QUERIES[3]
    hits = await index.search(generation, dense, terms, LIMIT, Filters())
    assert_exact(hits, exact(POINTS, dense, {}))


async def test_a_point_without_terms_is_found_by_its_meaning(index: Index, generation: UUID) -> None:
    bare = POINTS[7]
    assert bare.terms == {}
    hits = await index.search(generation, bare.windows[0], QUERIES[0][1], LIMIT, Filters())
    (found,) = (hit for hit in hits if hit.chunk_id == bare.chunk_id)
    assert found.cosine == pytest.approx(1.0, abs=1e-6)
    assert found.bm25 == 0.0


# Seen red with only the first window stored.
async def test_the_best_window_of_a_passage_counts(index: Index, generation: UUID) -> None:
    long = next(point for point in POINTS if len(point.windows) == 4)
    for window in long.windows:
        hits = await index.search(generation, window, {}, 1, Filters())
        assert [hit.chunk_id for hit in hits] == [long.chunk_id]
        assert hits[0].cosine == pytest.approx(1.0, abs=1e-6)


async def test_the_count_is_that_of_all_points(index: Index, generation: UUID) -> None:
    assert await index.count(generation) == len(POINTS)


# Seen red with `drop` left out of `create`: the server refused the second.
async def test_a_second_create_throws_away_the_first(index: Index) -> None:
    made = uuid4()
    await index.create(made, DIMENSION)
    await index.upsert(made, POINTS[:10])
    async with dropped_after(index, made):
        await index.create(made, DIMENSION)
        await index.upsert(made, POINTS[8:13])
        assert await index.seal(made) == 5
        dense, terms = QUERIES[0]
        hits = await index.search(made, dense, terms, LIMIT, Filters())
        assert_exact(hits, exact(POINTS[8:13], dense, terms))


# Seen red with a random point id.
async def test_a_point_sent_twice_is_there_once_and_as_sent_last(index: Index) -> None:
    made = uuid4()
    dense, terms = QUERIES[0]
    first, second = POINTS[1], replace(POINTS[2], chunk_id=POINTS[1].chunk_id)
    async with dropped_after(index, made):
        await index.create(made, DIMENSION)
        await index.upsert(made, [first, POINTS[3]])
        await index.upsert(made, [second])
        assert await index.seal(made) == 2
        hits = await index.search(made, dense, terms, LIMIT, Filters())
        assert_exact(hits, exact([second, POINTS[3]], dense, terms))


# Seen red with an empty list instead of the failure.
async def test_a_generation_that_is_not_there_is_a_failure_and_not_an_empty_list(
    index: Index, generation: UUID
) -> None:
    for _ in range(2):
        with pytest.raises(IndexUnavailableError):
            await index.search(uuid4(), *QUERIES[0], LIMIT, Filters())
        with pytest.raises(IndexUnavailableError):
            await index.search(uuid4(), QUERIES[0][0], {}, LIMIT, Filters())
        with pytest.raises(IndexUnavailableError):
            await index.count(uuid4())
    dense, terms = QUERIES[0]
    hits = await index.search(generation, dense, terms, LIMIT, Filters())
    assert_exact(hits, exact(POINTS, dense, terms))


async def test_a_question_of_another_dimension_is_a_failure(index: Index, generation: UUID) -> None:
    with pytest.raises(IndexUnavailableError):
        await index.search(generation, np.ones(DIMENSION + 1, np.float32), {}, LIMIT, Filters())


async def test_what_is_dropped_is_gone_and_dropping_it_again_is_no_error(index: Index) -> None:
    async with filled(index, POINTS[:5]) as made:
        await index.drop(made)
        with pytest.raises(IndexUnavailableError):
            await index.search(made, *QUERIES[0], LIMIT, Filters())
        await index.drop(made)
    await index.drop(uuid4())


async def test_a_generation_may_be_announced_again_and_again(index: Index, generation: UUID) -> None:
    for _ in range(2):
        await index.announce("contract-book", generation)
    assert await index.count(generation) == len(POINTS)


GOOD = POINTS[1]


def with_row(row: object) -> Point:
    windows = np.vstack([GOOD.windows[:1], np.full((1, DIMENSION), row, dtype=np.float32)])
    return replace(GOOD, windows=windows)


BAD = [
    with_row(np.nan),
    with_row(np.inf),
    with_row(0.0),
    replace(GOOD, windows=np.zeros((1, DIMENSION), dtype=np.float32)),
    replace(GOOD, windows=np.zeros((0, DIMENSION), dtype=np.float32)),
    replace(GOOD, terms={1: 1.0, 2: float("nan")}),
    replace(GOOD, terms={1: float("inf")}),
]


# Seen red with `check` left out.
async def test_what_has_no_score_is_refused_before_anything_is_sent(index: Index) -> None:
    made = uuid4()
    async with dropped_after(index, made):
        await index.create(made, DIMENSION)
        await index.upsert(made, [POINTS[0]])
        for bad in BAD:
            with pytest.raises(ValueError, match=bad.chunk_id):
                await index.upsert(made, [POINTS[2], bad])
        assert await index.seal(made) == 1


# Seen red with a page left out.
async def test_all_that_is_stored_comes_back_to_the_bit(
    index: Index, generation: UUID, request: pytest.FixtureRequest
) -> None:
    stored = [point async for batch in index.points(generation) for point in batch]
    sent = {point.chunk_id: point for point in POINTS}
    assert len(stored) == len(sent)
    if any(name in request.node.name for name in IN_MEMORY):  # the SDK's engine normalises unit vectors again
        for point in stored:
            assert np.allclose(point.windows, sent[point.chunk_id].windows, atol=1e-7)
        stored = [replace(point, windows=sent[point.chunk_id].windows) for point in stored]
    held, wanted = IndexContent(), IndexContent()
    held.add(stored)
    wanted.add(POINTS)
    assert held.digest == wanted.digest


async def test_of_a_generation_that_is_not_there_nothing_can_be_read(index: Index) -> None:
    with pytest.raises(IndexUnavailableError):
        [batch async for batch in index.points(uuid4())]


# Seen red with the collection, and with the folder, of the searched generation built in place.
async def test_what_is_built_again_is_searched_only_when_it_is_whole(index: Index) -> None:
    dense, terms = QUERIES[0]
    async with filled(index, POINTS[:20]) as made:
        await index.announce("contract-rebuilt", made)
        for _ in range(3):
            await index.create(made, DIMENSION)
            await index.upsert(made, POINTS[20:25])
            await index.create(made, DIMENSION)  # that one was killed
            await index.upsert(made, POINTS[:10])
            hits = await index.search(made, dense, terms, LIMIT, Filters())
            assert_exact(hits, exact(POINTS[:20], dense, terms))
            await index.upsert(made, POINTS[10:20])
            assert await index.seal(made) == 20
            hits = await index.search(made, dense, terms, LIMIT, Filters())
            assert_exact(hits, exact(POINTS[:20], dense, terms))


# Seen red with the points that go left in, and with the folder of the other generation renamed instead of copied.
async def test_a_generation_that_is_made_of_another_leaves_that_one_as_it_is(index: Index) -> None:
    dense, terms = QUERIES[0]
    made = uuid4()
    async with filled(index, POINTS[:60]) as before, dropped_after(index, made):
        for _ in range(2):  # the first one is killed
            await index.extend(made, DIMENSION, before, [point.chunk_id for point in POINTS[:20]])
            await index.upsert(made, POINTS[60:70])
        assert await index.seal(made) == 50
        hits = await index.search(made, dense, terms, LIMIT, Filters())
        assert_exact(hits, exact(POINTS[20:70], dense, terms))
        hits = await index.search(before, dense, terms, LIMIT, Filters())
        assert_exact(hits, exact(POINTS[:60], dense, terms))
        assert await index.count(before) == 60
    with pytest.raises(IndexUnavailableError):
        await index.extend(made, DIMENSION, uuid4(), [])


async def test_the_store_says_its_name_and_version(index: Index) -> None:
    assert (await index.describe()).startswith("Qdrant ")


@contextlib.asynccontextmanager
async def dropped_after(index: Index, generation: UUID) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await index.drop(generation)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as the index sees it."""

    dense: Vector
    terms: dict[int, float]
    filters: Filters


FILTERS = [
    Filters(),
    Filters(module=2),
    Filters(),
    Filters(difficulty="advanced"),
    Filters(),
    Filters(tags=("ros", "imu")),
    Filters(),
    Filters(chapter="Chapter 2", section="Section 3"),
]


def random_book() -> tuple[list[Point], list[Asked]]:
    rng = np.random.default_rng(4)
    points = [random_point(number, rng) for number in range(300)]
    asked = []
    for number in range(QUESTIONS):
        terms = rng.choice(np.arange(1, 70), size=number % 6, replace=False)
        weights = {int(term): float(rng.uniform(0.1, 6.0)) for term in terms}
        asked.append(Asked(unit(rng.normal(size=DIMENSION)), weights, FILTERS[number % len(FILTERS)]))
    return points, asked


@pytest.fixture(scope="module")
async def real_book(anyio_backend: str) -> tuple[list[Point], list[Asked]]:
    texts, questions = real_texts()
    words = [lexical.words(text) for text in texts]
    lexicon = lexical.lexicon(words)
    embedder = MiniLm()
    windows = await embedder.embed_passages(texts)
    weights = [lexical.passage_weights(each, lexicon) for each in words]
    names = [sha256(text.encode()).hexdigest() for text in texts]
    points = [Point(names[at], windows[at], weights[at], payload(at)) for at in range(len(texts))]
    asked = []
    for number, question in enumerate(questions):
        terms = lexical.query_weights(lexical.words(question), lexicon)
        dense = await embedder.embed_query(question)
        asked.append(Asked(dense, terms, FILTERS[number % len(FILTERS)]))
    return points, asked


def real_texts() -> tuple[list[str], list[str]]:
    """Passages and questions: of the sample book, and in a campaign of SQuAD 2.0, where it is beside the checkout."""
    near_misses = "eval/squad2_near_miss"
    if CAMPAIGN_ROUNDS and (passages := published(f"{near_misses}/corpus.jsonl")[:REAL_PASSAGES]):
        questions = published(f"{near_misses}/queries.jsonl")[:QUESTIONS]
        return [passage["text"] for passage in passages], [question["text"] for question in questions]
    chapters = "\n\n".join(page.read_text() for page in sorted(SAMPLE_BOOK.glob("*.md")))
    paragraphs = dict.fromkeys(part for part in chapters.split("\n\n") if len(part) > SHORT)
    return list(paragraphs), [question["question"] for question in sample_questions()]


def ranked(hits: Sequence[Hit]) -> list[tuple[str, float]]:
    """The product's order, with the plainest of maps."""
    scored = [(hit.chunk_id, 0.85 * max(0.0, hit.cosine) + 0.15 * hit.bm25 / 10) for hit in hits]
    return sorted(scored, key=lambda item: (-round(item[1], 5), item[0]))


async def tops(
    index: Index, points: Sequence[Point], asked: Sequence[Asked]
) -> list[list[tuple[str, float]]]:
    async with filled(index, points) as made:
        return [
            ranked(await index.search(made, one.dense, one.terms, 50, one.filters))[:TOP] for one in asked
        ]


async def assert_same_as_edge(provider: str, points: Sequence[Point], asked: Sequence[Asked]) -> None:
    async with in_a_folder(EdgeIndex) as index:
        tops_of_edge = await tops(index, points, asked)
    async with PROVIDERS[provider]() as index:
        tops_of_cluster = await tops(index, points, asked)
    assert asked
    for by_edge, by_cluster in zip(tops_of_edge, tops_of_cluster, strict=True):
        assert by_edge
        assert [chunk_id for chunk_id, _ in by_edge] == [chunk_id for chunk_id, _ in by_cluster]
        assert [score for _, score in by_edge] == pytest.approx([score for _, score in by_cluster], abs=1e-5)


# Seen red with the IDF modifier on the cluster's sparse vectors.
@pytest.mark.parametrize("provider", CLUSTERS)
@pytest.mark.campaign
async def test_edge_and_the_cluster_answer_random_questions_alike(provider: str) -> None:
    await assert_same_as_edge(provider, *random_book())


@pytest.mark.campaign
@pytest.mark.parametrize("provider", [name for name in CLUSTERS if name != "qdrant-grpc"])
async def test_edge_and_the_cluster_answer_real_questions_alike(
    provider: str, real_book: tuple[list[Point], list[Asked]]
) -> None:
    await assert_same_as_edge(provider, *real_book)
