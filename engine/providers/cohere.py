"""An adapter for Cohere Embed and Rerank.

Questions and passages are embedded with their own input types; mixing the two is a classic silent fault. A query fails
fast. An ingest retries with exponential backoff and jitter, and sends a few batches concurrently. A rerank is not retried:
without it the blended order is kept.
"""

import asyncio
import base64
import math
import random
from collections.abc import Sequence
from http import HTTPStatus
from operator import itemgetter

import cohere
import httpx
import numpy as np
from cohere.core.api_error import ApiError
from cohere.types import EmbedByTypeResponseEmbeddings
from cohere.v2 import V2RerankResponse

from engine.errors import ConfigurationError, EmbedderFailedError, EmbedderUnavailableError, RerankFailedError
from engine.models import Curve, Vector, Windows
from engine.ports import Embedder, Reranker
from engine.settings import Settings

TEXTS_MAX = 96  # the vendor's limit for one call
AT_ONCE = 4  # concurrent calls: more would only hit the vendor's rate limit sooner
ATTEMPTS_MAX = 6
BACKOFF_S = 1.0  # doubled after each attempt: half a minute in all, which outlasts a short outage
INGEST_TIMEOUT_S = 60.0
NUMBERS, BYTES, BOTH_FORMS = ["float"], ["base64"], ["float", "base64"]  # of the vectors in a reply
SAME_WITHIN = 1e-5  # numbers as text are rounded
RERANK_SILENCE_S = 10.0  # a backstop: the caller cancels far earlier, when its budget is used up

# The vendor publishes no distribution of its cosines. They resemble MiniLM's; a book's own calibration replaces this.
CURVE: Curve = ((0.0, 0.0), (0.36, 0.54), (0.45, 0.6), (1.0, 1.0))

_RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})


def embedder(settings: Settings) -> Embedder:
    cohere = settings.cohere
    return CohereEmbedder(
        api_key=_key(settings, "embedder"),
        base_url=cohere.base_url or None,
        model=cohere.embed_model,
        dimension=cohere.dimension,
        query_timeout_s=settings.budget.retrieval_s,
    )


def reranker(settings: Settings) -> Reranker:
    cohere = settings.cohere
    return CohereReranker(
        api_key=_key(settings, "reranker"), base_url=cohere.base_url or None, model=cohere.rerank_model
    )


def _key(settings: Settings, part: str) -> str:
    key = settings.cohere.api_key.get_secret_value()
    if not key:
        raise ConfigurationError(f"The Cohere {part} needs a key: set COHERE_API_KEY.")
    return key


class CohereEmbedder:
    """One model at one dimension. Vectors of another model or dimension are not comparable."""

    curve = CURVE
    languages: frozenset[str] = frozenset()  # the vendor names over a hundred

    def __init__(
        self, *, api_key: str, base_url: str | None, model: str, dimension: int, query_timeout_s: float
    ) -> None:
        self.name = f"{model}-{dimension}"
        self.dimension = dimension
        self.tokens_billed = 0
        self._model = model
        self._query_timeout_s = query_timeout_s
        self._forms = BOTH_FORMS
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
        """An estimate, because only the vendor's servers can count: English has about four tokens for three words."""
        return round(len(text.split()) * 4 / 3)

    def unread(self, text: str) -> float:  # noqa: ARG002
        return 0.0

    def cost(self) -> str:
        return f"; Cohere bills {self.tokens_billed} tokens" if self.tokens_billed else ""

    async def close(self) -> None:
        await self._http.aclose()

    async def _embed_all(self, texts: Sequence[str], input_type: str) -> list[Vector]:
        """In calls of texts of similar lengths, so that no long text holds up a call of short ones."""
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        parts = [order[start : start + TEXTS_MAX] for start in range(0, len(order), TEXTS_MAX)]
        calls = (self._embed_with_retries([texts[number] for number in part], input_type) for part in parts)
        made = [vector for vectors in await asyncio.gather(*calls) for vector in vectors]
        return [vector for _, vector in sorted(zip(order, made, strict=True), key=itemgetter(0))]

    async def _embed_with_retries(self, texts: Sequence[str], input_type: str) -> list[Vector]:
        for tried in range(1, ATTEMPTS_MAX + 1):
            try:
                async with self._at_once, asyncio.timeout(INGEST_TIMEOUT_S):
                    return await self._embed(texts, input_type)
            except (TimeoutError, httpx.HTTPError, ApiError) as failure:
                status = failure.status_code if isinstance(failure, ApiError) else None
                if tried == ATTEMPTS_MAX or (status is not None and status not in _RETRYABLE):
                    raise EmbedderFailedError(
                        f"Cohere failed {tried} times, most recently with {_describe(failure)}. Check its status and your key, then ingest again."
                    ) from failure
            await asyncio.sleep(BACKOFF_S * 2 ** (tried - 1) * random.uniform(0.5, 1.0))  # noqa: S311  not a secret
        raise AssertionError

    async def _embed(self, texts: Sequence[str], input_type: str) -> list[Vector]:
        """`truncate="NONE"` turns an over-long passage into an error instead of cutting it silently."""
        response = await self._client.embed(
            model=self._model, input_type=input_type, texts=list(texts), output_dimension=self.dimension,
            embedding_types=self._forms, truncate="NONE",
        )  # fmt: skip
        vectors = self._vectors(response.embeddings)
        is_shaped = vectors.shape == (len(texts), self.dimension)
        norms = np.linalg.norm(vectors, axis=-1, keepdims=True) if is_shaped else np.zeros(1)
        if not np.all(np.isfinite(norms)) or not np.all(norms > 0):
            raise EmbedderFailedError(
                "Cohere returned unusable vectors: their number, their dimension or their values are wrong. Please try again."
            )
        units = response.meta.billed_units if response.meta else None
        self.tokens_billed += int(units.input_tokens or 0) if units else 0
        return list(vectors / norms)

    def _vectors(self, sent: EmbedByTypeResponseEmbeddings) -> Vector:
        """Numbers as text take the SDK twice the time of all else in a call, so they are asked for as bytes. The first
        reply has both forms: bytes that are not these numbers are not asked for again."""
        if self._forms == BYTES:
            return _of_bytes(sent.base64)
        vectors = np.array(sent.float_ or [], dtype=np.float32)
        if self._forms == BOTH_FORMS and vectors.size:
            made = _of_bytes(sent.base64)
            is_same = made.shape == vectors.shape and np.allclose(made, vectors, atol=SAME_WITHIN)
            self._forms = BYTES if is_same else NUMBERS
        return vectors


def _of_bytes(texts: Sequence[str] | None) -> Vector:
    """Each text is the bytes of a vector; empty if they are not."""
    try:
        return np.array([np.frombuffer(base64.b64decode(text, validate=True), "<f4") for text in texts or []])
    except ValueError:
        return np.zeros(0, np.float32)


class CohereReranker:
    """One model, one call for all texts. It has no timeout of its own, because the caller knows the remaining time."""

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
            raise RerankFailedError(_describe(failure)) from failure
        except Exception as failure:
            # The SDK does not validate replies, so a malformed one raises anywhere.
            raise RerankFailedError("a malformed order") from failure

    async def close(self) -> None:
        await self._http.aclose()


def _connect(
    api_key: str, base_url: str | None, timeout_s: float
) -> tuple[httpx.AsyncClient, cohere.AsyncClientV2]:
    """The SDK with an HTTP client of ours, which we close, and without the SDK's retries, which outlast any time budget."""
    http = httpx.AsyncClient(timeout=timeout_s)
    return http, cohere.AsyncClientV2(api_key, base_url=base_url, max_retries=0, httpx_client=http)


def _scores(response: V2RerankResponse, count: int) -> list[float]:
    """The scores in the order of the texts. The reply is sorted by score and must contain each text exactly once."""
    if sorted(result.index for result in response.results) != list(range(count)):
        raise ValueError("A text has no score, or several")
    scores = {result.index: result.relevance_score for result in response.results}
    if not all(map(math.isfinite, scores.values())):
        raise ValueError("A score is not a finite number")
    return [float(scores[number]) for number in range(count)]


def _describe(failure: Exception) -> str:
    """The kind of failure, without the vendor's message, which may repeat the text."""
    if not isinstance(failure, ApiError):
        return type(failure).__name__
    if failure.status_code == HTTPStatus.OK:
        return "a reply that is not JSON"
    return f"status {failure.status_code}"
