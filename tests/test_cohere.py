"""Cohere behind the embedder's seam: the vendor's own SDK against a server that speaks its interface."""

import time
from collections.abc import AsyncIterator

import numpy as np
import pytest

from engine.errors import EmbedderFailedError, EmbedderUnavailableError
from engine.providers import cohere
from engine.providers.cohere import CohereEmbedder
from tests.upstreams import embed
from tests.upstreams.embed import Upstream


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with embed.serving() as started:
        yield started


@pytest.fixture
async def embedder(upstream: Upstream) -> AsyncIterator[CohereEmbedder]:
    made = CohereEmbedder(
        api_key="test", base_url=upstream.url, model="embed-v4.0", dimension=16, query_timeout_s=2.0
    )
    yield made
    await made.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohere, "PAUSE_S", 0.01)


async def test_a_question_is_a_query_and_a_passage_a_document(
    embedder: CohereEmbedder, upstream: Upstream
) -> None:
    await embedder.embed_query("What?")
    await embedder.embed_passages(["That."])
    assert [request["input_type"] for request in upstream.requests] == ["search_query", "search_document"]
    for request in upstream.requests:
        assert request["truncate"] == "NONE"
        assert request["output_dimension"] == 16
        assert request["embedding_types"] == ["float"]
    assert embedder.name == "embed-v4.0-16"


async def test_passages_go_in_batches_and_come_back_in_order(
    embedder: CohereEmbedder, upstream: Upstream
) -> None:
    texts = [f"passage {number}" for number in range(250)]
    made = await embedder.embed_passages(texts)
    assert sorted(len(request["texts"]) for request in upstream.requests) == [58, 96, 96]
    for text, windows in zip(texts, made, strict=True):
        expected = np.array(embed.vector(text, 16))
        assert windows.shape == (1, 16)
        assert windows[0] == pytest.approx(expected / np.linalg.norm(expected), abs=1e-6)
    assert embedder.tokens_billed == 2500


@pytest.mark.usefixtures("impatient")
async def test_an_ingest_tries_again_without_obeying_a_minute_of_retry_after(
    embedder: CohereEmbedder, upstream: Upstream
) -> None:
    upstream.failures = [429, 503, 500]
    started = time.monotonic()
    assert len(await embedder.embed_passages(["That."])) == 1
    assert len(upstream.requests) == 4
    assert time.monotonic() - started < 10


@pytest.mark.usefixtures("impatient")
async def test_an_ingest_gives_up_at_last_and_repeats_no_text(
    embedder: CohereEmbedder, upstream: Upstream
) -> None:
    upstream.failures = [503] * 99
    with pytest.raises(
        EmbedderFailedError, match="Cohere failed 6 times, at last with status 503"
    ) as failure:
        await embedder.embed_passages(["That."])
    assert "canary" not in str(failure.value)


async def test_an_error_of_ours_is_not_tried_again(embedder: CohereEmbedder, upstream: Upstream) -> None:
    upstream.failures = [400]
    with pytest.raises(EmbedderFailedError, match="failed 1 times"):
        await embedder.embed_passages(["too long"])
    assert len(upstream.requests) == 1


async def test_a_query_is_tried_once(embedder: CohereEmbedder, upstream: Upstream) -> None:
    upstream.failures = [429]
    with pytest.raises(EmbedderUnavailableError):
        await embedder.embed_query("What?")
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("spoil", [0.0])
async def test_a_vector_that_has_no_direction_is_refused(
    embedder: CohereEmbedder, upstream: Upstream, spoil: float
) -> None:
    upstream.spoil = spoil
    with pytest.raises(EmbedderFailedError):
        await embedder.embed_passages(["one", "two"])
