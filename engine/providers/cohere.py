"""Cohere Embed and Rerank.

Questions and passages are embedded as what they are: mixing the two is the classic silent fault. A query is quick or
fails. An ingest is patient: it tries again, with growing pauses, and sends a few batches at once. A rerank is tried
once: without it the blend's order stands.
"""

import asyncio
import math
import random
from collections.abc import Sequence
from http import HTTPStatus

import cohere
import httpx
import numpy as np
from cohere.core.api_error import ApiError
from cohere.v2 import V2RerankResponse

from engine.errors import EmbedderFailedError, EmbedderUnavailableError, RerankFailedError
from engine.models import Curve, Vector, Windows

TEXTS_MAX = 96  # the vendor's limit for one call
AT_ONCE = 4  # calls in flight: more only meets the vendor's rate limit sooner
TRIES = 6
PAUSE_S = 1.0  # doubled each time: half a minute in all, which outlasts a short outage
INGEST_TIMEOUT_S = 60.0
RERANK_SILENCE_S = 10.0  # a backstop only: the caller cancels when its budget is used up, which is far sooner

# The vendor publishes no distribution of its cosines. Questions and their passages lie about where MiniLM's do; the
# calibration of a book says it better.
CURVE: Curve = ((0.0, 0.0), (0.36, 0.54), (0.45, 0.6), (1.0, 1.0))

_WORTH_ANOTHER_TRY = frozenset({408, 429, 500, 502, 503, 504})


class CohereEmbedder:
    """One model at one dimension; another of either is another space."""

    curve = CURVE

    def __init__(
        self, *, api_key: str, base_url: str | None, model: str, dimension: int, query_timeout_s: float
    ) -> None:
        self.name = f"{model}-{dimension}"
        self.dimension = dimension
        self.tokens_billed = 0
        self._model = model
        self._query_timeout_s = query_timeout_s
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._http, self._client = _connect(api_key, base_url, INGEST_TIMEOUT_S)

    async def embed_query(self, text: str) -> Vector:
        try:
            async with asyncio.timeout(self._query_timeout_s):
                return (await self._embed([text], "search_query"))[0]
        except (TimeoutError, httpx.HTTPError, ApiError) as failure:
            raise EmbedderUnavailableError from failure

    async def embed_passages(self, texts: Sequence[str]) -> list[Windows]:
        return [vector[None, :] for vector in await self._embed_all(texts, "search_document")]

    async def embed_questions(self, texts: Sequence[str]) -> list[Vector]:
        return await self._embed_all(texts, "search_query")

    def count_tokens(self, text: str) -> int:
        """The vendor counts on its own servers only; English has about four tokens to three words."""
        return round(len(text.split()) * 4 / 3)

    def cost(self) -> str:
        return f"; Cohere bills {self.tokens_billed} tokens" if self.tokens_billed else ""

    async def close(self) -> None:
        await self._http.aclose()

    async def _embed_all(self, texts: Sequence[str], input_type: str) -> list[Vector]:
        parts = [texts[start : start + TEXTS_MAX] for start in range(0, len(texts), TEXTS_MAX)]
        made = await asyncio.gather(*(self._embed_patiently(part, input_type) for part in parts))
        return [vector for vectors in made for vector in vectors]

    async def _embed_patiently(self, texts: Sequence[str], input_type: str) -> list[Vector]:
        for tried in range(1, TRIES + 1):
            try:
                async with self._at_once, asyncio.timeout(INGEST_TIMEOUT_S):
                    return await self._embed(texts, input_type)
            except (TimeoutError, httpx.HTTPError, ApiError) as failure:
                status = failure.status_code if isinstance(failure, ApiError) else None
                if tried == TRIES or (status is not None and status not in _WORTH_ANOTHER_TRY):
                    raise EmbedderFailedError(
                        f"Cohere failed {tried} times, at last with {_words(failure)}."
                    ) from failure
            await asyncio.sleep(PAUSE_S * 2 ** (tried - 1) * random.uniform(0.5, 1.0))  # noqa: S311  not a secret
        raise AssertionError

    async def _embed(self, texts: Sequence[str], input_type: str) -> list[Vector]:
        """`truncate="NONE"`: an over-long passage is an error, not a silent cut."""
        response = await self._client.embed(
            model=self._model, input_type=input_type, texts=list(texts), output_dimension=self.dimension,
            embedding_types=["float"], truncate="NONE",
        )  # fmt: skip
        vectors = np.array(response.embeddings.float_ or [], dtype=np.float32)
        norms = np.linalg.norm(vectors, axis=-1, keepdims=True) if vectors.size else vectors
        if (
            vectors.shape != (len(texts), self.dimension)
            or not np.all(np.isfinite(norms))
            or not np.all(norms > 0)
        ):
            raise EmbedderFailedError("Cohere answered with vectors that are not what was asked for.")
        units = response.meta.billed_units if response.meta else None
        self.tokens_billed += int(units.input_tokens or 0) if units else 0
        return list(vectors / norms)


class CohereReranker:
    """One model, asked once for all texts. It has no time limit of its own: whoever asks knows what is left."""

    def __init__(self, *, api_key: str, base_url: str | None, model: str) -> None:
        self.name = model
        self._http, self._client = _connect(api_key, base_url, RERANK_SILENCE_S)

    async def rerank(self, question: str, texts: Sequence[str]) -> list[float]:
        if not texts:
            return []
        try:
            response = await self._client.rerank(
                model=self.name, query=question, documents=list(texts), top_n=len(texts)
            )
            return _scores(response, len(texts))
        except (httpx.HTTPError, ApiError) as failure:
            raise RerankFailedError(_words(failure)) from failure
        except Exception as failure:
            # The SDK takes a reply unchecked, so that nonsense breaks anywhere in it, in any way.
            raise RerankFailedError("an order that does not fit") from failure

    async def close(self) -> None:
        await self._http.aclose()


def _connect(
    api_key: str, base_url: str | None, timeout_s: float
) -> tuple[httpx.AsyncClient, cohere.AsyncClientV2]:
    """The SDK on an HTTP client of ours, which is the one to close. Its own retries would outlast every budget."""
    http = httpx.AsyncClient(timeout=timeout_s)
    return http, cohere.AsyncClientV2(api_key, base_url=base_url, max_retries=0, httpx_client=http)


def _scores(response: V2RerankResponse, count: int) -> list[float]:
    """The reply is sorted by score; what is returned, by text: each exactly once, with a number."""
    if sorted(result.index for result in response.results) != list(range(count)):
        raise ValueError("Not every text has one score.")
    scores = {result.index: result.relevance_score for result in response.results}
    if not all(map(math.isfinite, scores.values())):
        raise ValueError("A score is not a number.")
    return [float(scores[number]) for number in range(count)]


def _words(failure: Exception) -> str:
    """The kind of failure, without the vendor's words: those may repeat the text."""
    if not isinstance(failure, ApiError):
        return type(failure).__name__
    if failure.status_code == HTTPStatus.OK:
        return "a reply that is not JSON"
    return f"status {failure.status_code}"
