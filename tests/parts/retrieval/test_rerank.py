"""Cohere's reranker: the vendor's own SDK against a server that can answer badly in every way."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.errors import RerankFailedError
from engine.providers import cohere
from engine.providers.cohere import CohereReranker
from tests.conftest import free_port
from tests.upstreams import rerank
from tests.upstreams.rerank import BODIES, ORDERS, STATUSES, Upstream

KEY = "canary-of-the-key"
QUESTION = "what does an imu measure"
TEXTS = ("a leg is a spring", "an imu does measure acceleration", "what is torque")
LONG_S = 20  # far beyond what is waited for; a test that gets there is red


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with rerank.serving() as started:
        yield started


@pytest.fixture
async def reranker(upstream: Upstream) -> AsyncIterator[CohereReranker]:
    made = CohereReranker(api_key=KEY, base_url=upstream.url, model="rerank-v3.5")
    yield made
    await made.close()


# Seen red with the scores left as the vendor sorted them.
async def test_the_scores_come_in_the_order_of_the_texts(reranker: CohereReranker) -> None:
    scores = await reranker.rerank(QUESTION, TEXTS)
    assert scores == [rerank.score(QUESTION, text) for text in TEXTS]
    assert scores != sorted(scores, reverse=True)
    assert await reranker.rerank(QUESTION, TEXTS[::-1]) == scores[::-1]


async def test_all_texts_are_asked_for_word_for_word_at_the_given_address(
    reranker: CohereReranker, upstream: Upstream
) -> None:
    await reranker.rerank(QUESTION, TEXTS)
    assert upstream.requests == [
        {"model": "rerank-v3.5", "query": QUESTION, "documents": list(TEXTS), "top_n": len(TEXTS)}
    ]
    assert upstream.headers[0]["authorization"] == f"Bearer {KEY}"
    assert reranker.name == "rerank-v3.5"


async def test_nobody_is_asked_about_no_texts(reranker: CohereReranker, upstream: Upstream) -> None:
    assert await reranker.rerank(QUESTION, []) == []
    assert upstream.requests == []


async def test_equal_texts_have_a_score_each(reranker: CohereReranker) -> None:
    assert await reranker.rerank(QUESTION, ["an imu"] * 3) == [0.4] * 3


FAULTS: dict[str | int, str] = {
    **{status: f"status {status}" for status in STATUSES},
    **dict.fromkeys([*ORDERS, *BODIES], "a malformed order"),
    "malformed": "a reply that is not JSON",
    "reset": "ReadError",
}


# Seen red with the SDK's retries, with the vendor's body in the words, and, each for its own faults: without the check
# of the indexes, without the check of the scores, with only what the SDK documents caught.
@pytest.mark.parametrize(("fault", "words"), FAULTS.items(), ids=map(str, FAULTS))
async def test_a_bad_answer_is_no_order_and_is_named_without_the_vendors_words(
    reranker: CohereReranker, upstream: Upstream, fault: str | int, words: str
) -> None:
    upstream.fault = fault
    with pytest.raises(RerankFailedError) as failure:
        async with asyncio.timeout(LONG_S):
            await reranker.rerank(QUESTION, TEXTS)
    assert str(failure.value) == words
    assert len(upstream.requests) == 1
    upstream.fault = None
    assert len(await reranker.rerank(QUESTION, TEXTS)) == len(TEXTS)


async def test_a_server_that_is_not_there_is_named() -> None:
    reranker = CohereReranker(api_key=KEY, base_url=f"http://127.0.0.1:{free_port()}", model="rerank-v3.5")
    with pytest.raises(RerankFailedError, match=r"\AConnectError\Z"):
        await reranker.rerank(QUESTION, TEXTS)
    await reranker.close()


# Seen red with the call shielded: the caller is free, and the connection stays open behind its back.
@pytest.mark.parametrize("fault", ["hang", "trickle"])
async def test_cancelling_reaches_the_socket(
    reranker: CohereReranker, upstream: Upstream, fault: str
) -> None:
    upstream.fault = fault
    asking = asyncio.create_task(reranker.rerank(QUESTION, TEXTS))
    async with asyncio.timeout(LONG_S):
        await upstream.asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await upstream.abandoned.wait()
    upstream.fault = None
    assert len(await reranker.rerank(QUESTION, TEXTS)) == len(TEXTS)


@pytest.mark.parametrize("fault", ["hang", "trickle"])
async def test_the_budget_of_the_caller_ends_it(
    reranker: CohereReranker, upstream: Upstream, fault: str
) -> None:
    upstream.fault = fault
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await reranker.rerank(QUESTION, TEXTS)
    async with asyncio.timeout(LONG_S):
        await upstream.abandoned.wait()


# Seen red with the HTTP client's time limit left out.
async def test_a_silent_server_is_left_even_if_nobody_cancels(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cohere, "RERANK_SILENCE_S", 0.2)
    upstream.fault = "hang"
    reranker = CohereReranker(api_key=KEY, base_url=upstream.url, model="rerank-v3.5")
    with pytest.raises(RerankFailedError, match=r"\AReadTimeout\Z"):
        async with asyncio.timeout(LONG_S):
            await reranker.rerank(QUESTION, TEXTS)
    await reranker.close()
