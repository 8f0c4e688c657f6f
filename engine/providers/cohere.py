"""An adapter for Cohere Embed and Rerank: two addresses that take and give JSON, over plain HTTP.

The vendor's SDK sends the same two requests, but it models each number of a vector: three times the CPU of the whole call.

Questions and passages are embedded with their own input types; mixing the two is a classic silent fault. A query fails
fast. An ingest retries with exponential backoff and jitter, and sends a few batches concurrently. A rerank is not retried:
without it the blended order is kept.
"""

import asyncio
import math
import random
from collections.abc import Sequence
from http import HTTPStatus
from operator import itemgetter
from typing import Any

import httpx
import numpy as np
from pydantic_core import from_json

from engine.errors import ConfigurationError, EmbedderFailedError, EmbedderUnavailableError, RerankFailedError
from engine.models import Curve, Vector, Windows
from engine.ports import Embedder, Reranker
from engine.settings import Settings

ADDRESS = "https://api.cohere.com"
EMBED, RERANK = "/v2/embed", "/v2/rerank"
TEXTS_MAX = 96  # the vendor's limit for one call
AT_ONCE = 4  # concurrent calls: more would only hit the vendor's rate limit sooner
ATTEMPTS_MAX = 6
BACKOFF_S = 1.0  # doubled after each attempt: half a minute in all, which outlasts a short outage
INGEST_TIMEOUT_S = 60.0
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
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._http = _connect(api_key, base_url, INGEST_TIMEOUT_S)

    async def embed_query(self, text: str) -> Vector:
        try:
            async with asyncio.timeout(self._query_timeout_s):
                return (await self._embed([text], "search_query"))[0]
        except (TimeoutError, httpx.HTTPError, _RefusedError) as failure:
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
            except (TimeoutError, httpx.HTTPError, _RefusedError) as failure:
                status = failure.status if isinstance(failure, _RefusedError) else None
                if tried == ATTEMPTS_MAX or (status is not None and status not in _RETRYABLE):
                    raise EmbedderFailedError(
                        f"Cohere failed {tried} times, most recently with {_describe(failure)}. Check its status and your key, then ingest again."
                    ) from failure
            await asyncio.sleep(BACKOFF_S * 2 ** (tried - 1) * random.uniform(0.5, 1.0))  # noqa: S311  not a secret
        raise AssertionError

    async def _embed(self, texts: Sequence[str], input_type: str) -> list[Vector]:
        """`truncate="NONE"` turns an over-long passage into an error instead of cutting it silently."""
        try:
            reply = await _asked(
                self._http, EMBED, model=self._model, input_type=input_type, texts=list(texts),
                output_dimension=self.dimension, embedding_types=["float"], truncate="NONE",
            )  # fmt: skip
            vectors = np.array(reply["embeddings"]["float"], dtype=np.float32)
            tokens_billed = int(
                ((reply.get("meta") or {}).get("billed_units") or {}).get("input_tokens") or 0
            )
            if vectors.shape != (len(texts), self.dimension):
                raise ValueError("Another number of vectors, or of their values")  # noqa: TRY301
            norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
            if not (np.all(np.isfinite(norms)) and np.all(norms > 0)):
                raise ValueError("A vector without a direction")  # noqa: TRY301
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            raise EmbedderFailedError(
                "Cohere returned unusable vectors: their number, their dimension or their values are wrong. Please try again."
            ) from None
        self.tokens_billed += tokens_billed
        return list(vectors / norms)


class CohereReranker:
    """One model, one call for all texts. It has no timeout of its own, because the caller knows the remaining time."""

    def __init__(self, *, api_key: str, base_url: str | None, model: str) -> None:
        self.name = model
        self._http = _connect(api_key, base_url, RERANK_SILENCE_S)

    async def rerank(self, question: str, texts: Sequence[str]) -> list[float]:
        if not texts:
            return []
        try:
            reply = await _asked(
                self._http, RERANK, model=self.name, query=question, documents=list(texts), top_n=len(texts)
            )
            return _scores(reply, len(texts))
        except (httpx.HTTPError, _RefusedError) as failure:
            raise RerankFailedError(_describe(failure)) from failure
        except Exception as failure:  # a reply may be anything
            raise RerankFailedError("a malformed order") from failure

    async def close(self) -> None:
        await self._http.aclose()


class _RefusedError(Exception):
    """A reply that is no success, or not JSON. The vendor's words may repeat the text, so only the status is kept."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}" if status != HTTPStatus.OK else "a reply that is not JSON")
        self.status = status


def _connect(api_key: str, base_url: str | None, timeout_s: float) -> httpx.AsyncClient:
    """Without retries and redirects."""
    return httpx.AsyncClient(
        base_url=base_url or ADDRESS, timeout=timeout_s, headers={"Authorization": f"Bearer {api_key}"}
    )


async def _asked(http: httpx.AsyncClient, path: str, **body: Any) -> Any:
    response = await http.post(path, json=body)
    if not response.is_success:
        raise _RefusedError(response.status_code)
    try:
        return from_json(response.content)  # a vector's thousand numbers in a sixth of json's time
    except ValueError:
        raise _RefusedError(response.status_code) from None


def _scores(reply: Any, count: int) -> list[float]:
    """The scores in the order of the texts. The reply is sorted by score and must contain each text exactly once."""
    scores = {result["index"]: result["relevance_score"] for result in reply["results"]}
    if len(reply["results"]) != count or sorted(scores) != list(range(count)):
        raise ValueError("A text has no score, or several")
    if not all(map(math.isfinite, scores.values())):
        raise ValueError("A score is not a finite number")
    return [float(scores[number]) for number in range(count)]


def _describe(failure: Exception) -> str:
    """The kind of failure, without the vendor's message, which may repeat the text."""
    return str(failure) if isinstance(failure, _RefusedError) else type(failure).__name__
