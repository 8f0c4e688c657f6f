"""Cohere Embed. Questions and passages are embedded as what they are: mixing the two is the classic silent fault.

A query is quick or fails. An ingest is patient: it tries again, with growing pauses, and sends a few batches at once.
"""

import asyncio
import random
from collections.abc import Sequence

import cohere
import httpx
import numpy as np
from cohere.core.api_error import ApiError

from engine.errors import EmbedderFailedError, EmbedderUnavailableError
from engine.models import Curve, Vector, Windows

TEXTS_MAX = 96  # the vendor's limit for one call
AT_ONCE = 4  # calls in flight: more only meets the vendor's rate limit sooner
TRIES = 6
PAUSE_S = 1.0  # doubled each time: half a minute in all, which outlasts a short outage
INGEST_TIMEOUT_S = 60.0

# The vendor publishes no distribution of its cosines. Questions and their passages lie about where MiniLM's do; the
# calibration of a book says it better.
CURVE: Curve = ((0.0, 0.0), (0.29, 0.6), (0.75, 1.0))

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
        self._http = httpx.AsyncClient()
        self._client = cohere.AsyncClientV2(
            api_key, base_url=base_url, max_retries=0, httpx_client=self._http
        )

    async def embed_query(self, text: str) -> Vector:
        try:
            async with asyncio.timeout(self._query_timeout_s):
                return (await self._embed([text], "search_query"))[0]
        except (TimeoutError, httpx.HTTPError, ApiError) as failure:
            raise EmbedderUnavailableError from failure

    async def embed_passages(self, texts: Sequence[str]) -> list[Windows]:
        parts = [texts[start : start + TEXTS_MAX] for start in range(0, len(texts), TEXTS_MAX)]
        made = await asyncio.gather(*map(self._embed_patiently, parts))
        return [vector[None, :] for vectors in made for vector in vectors]

    def count_tokens(self, text: str) -> int:
        """The vendor counts on its own servers only; English has about four tokens to three words."""
        return round(len(text.split()) * 4 / 3)

    def cost(self) -> str:
        return f"; Cohere bills {self.tokens_billed} tokens" if self.tokens_billed else ""

    async def close(self) -> None:
        await self._http.aclose()

    async def _embed_patiently(self, texts: Sequence[str]) -> list[Vector]:
        for tried in range(1, TRIES + 1):
            try:
                async with self._at_once, asyncio.timeout(INGEST_TIMEOUT_S):
                    return await self._embed(texts, "search_document")
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


def _words(failure: Exception) -> str:
    """The kind of failure, without the vendor's words: those may repeat the text."""
    return f"status {failure.status_code}" if isinstance(failure, ApiError) else type(failure).__name__
