"""Cohere behind the embedder's seam: the vendor's own SDK against a server that speaks its interface."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable

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
    monkeypatch.setattr(cohere, "BACKOFF_S", 0.01)


async def test_a_question_is_a_query_and_a_passage_a_document(
    embedder: CohereEmbedder, upstream: Upstream
) -> None:
    await embedder.embed_query("What?")
    await embedder.embed_passages(["That."])
    assert [request["input_type"] for request in upstream.requests] == ["search_query", "search_document"]
    for request in upstream.requests:
        assert request["truncate"] == "NONE"
        assert request["output_dimension"] == 16
    assert embedder.name == "embed-v4.0-16"


async def test_vectors_come_as_bytes_once_the_first_reply_has_shown_that_they_are_the_same(
    embedder: CohereEmbedder, upstream: Upstream
) -> None:
    made = [await embedder.embed_query("What?") for _ in range(2)]
    assert [request["embedding_types"] for request in upstream.requests] == [["float", "base64"], ["base64"]]
    assert made[0] == pytest.approx(made[1], abs=1e-6)


def _big_endian(numbers: list[float]) -> str:
    return base64.b64encode(np.array(numbers, ">f4").tobytes()).decode()


def _doubles(numbers: list[float]) -> str:
    return base64.b64encode(np.array(numbers, "<f8").tobytes()).decode()


# Seen red with the first reply's bytes believed.
@pytest.mark.parametrize(
    "as_bytes", [None, _big_endian, _doubles, lambda _: "", lambda _: "no base64", lambda _: "AAA="]
)
async def test_a_vendor_whose_bytes_are_not_its_numbers_is_asked_for_numbers(
    embedder: CohereEmbedder, upstream: Upstream, as_bytes: Callable[[list[float]], str] | None
) -> None:
    upstream.as_bytes = as_bytes
    expected = np.array(embed.vector("What?", 16))
    for _ in range(2):
        made = await embedder.embed_query("What?")
        assert made == pytest.approx(expected / np.linalg.norm(expected), abs=1e-6)
    assert upstream.requests[-1]["embedding_types"] == ["float"]


async def test_bytes_that_turn_unusable_later_are_an_error(
    embedder: CohereEmbedder, upstream: Upstream
) -> None:
    await embedder.embed_query("What?")
    for as_bytes in (None, _doubles, lambda _: "no base64"):
        upstream.as_bytes = as_bytes
        with pytest.raises(EmbedderFailedError):
            await embedder.embed_query("What?")


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


# Seen red with the passages' input type, and with unit vectors made of a whole batch's length.
async def test_many_questions_are_embedded_as_one_by_one(
    embedder: CohereEmbedder, upstream: Upstream
) -> None:
    texts = [f"question {number}?" for number in range(300)]
    together = await embedder.embed_questions(texts)
    assert sorted(len(request["texts"]) for request in upstream.requests) == [12, 96, 96, 96]
    assert {request["input_type"] for request in upstream.requests} == {"search_query"}
    assert embedder.tokens_billed == 3000
    for text, made in zip(texts[::30], together[::30], strict=True):
        assert made.shape == (16,)
        assert made.dtype == np.float32
        assert np.linalg.norm(made) == pytest.approx(1.0, abs=1e-6)
        assert made.tobytes() == (await embedder.embed_query(text)).tobytes()
    assert await embedder.embed_questions([]) == []


# Seen red with the batches taken as they were finished.
async def test_the_order_is_kept_when_the_last_batch_is_finished_first(
    embedder: CohereEmbedder, upstream: Upstream
) -> None:
    texts = [f"question {number}?" for number in range(300)]
    answered = [asyncio.Event() for _ in range(5)]
    answered[4].set()

    async def last_first(batch: list[str]) -> None:
        number = texts.index(batch[0]) // 96
        await answered[number + 1].wait()
        answered[number].set()

    upstream.wait = last_first
    try:
        async with asyncio.timeout(20):
            made = await embedder.embed_questions(texts)
    finally:
        for event in answered:  # or else the server would wait for ever
            event.set()
    expected = np.array([embed.vector(text, 16) for text in texts])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.array(made) == pytest.approx(expected, abs=1e-6)


# Seen red with the questions sent without a second try.
@pytest.mark.usefixtures("impatient")
async def test_questions_at_ingest_are_tried_again(embedder: CohereEmbedder, upstream: Upstream) -> None:
    upstream.failures = [429]
    assert len(await embedder.embed_questions(["What?"])) == 1
    assert [request["input_type"] for request in upstream.requests] == ["search_query"] * 2


# Seen red with the HTTP client's own time limit of five seconds, which a large batch outlasts.
async def test_a_slow_batch_has_its_minute(embedder: CohereEmbedder) -> None:
    assert embedder._http.timeout.read == cohere.INGEST_TIMEOUT_S


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
        EmbedderFailedError, match="Cohere failed 6 times, most recently with status 503"
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
