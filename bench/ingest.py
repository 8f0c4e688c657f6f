"""Ingest benchmark: time compared with the embedder alone, peak memory, and the gain from windows.

Run as `python -m bench.ingest [--passages 100000]`. The labelled set of ../shared is used if it exists.
"""

import argparse
import asyncio
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from bench.results import SETS, Figure, record, show
from engine import settings as settings_file
from engine import wiring
from engine.models import Curve, Passage, Vector, Windows
from engine.ports import Embedder
from engine.providers.minilm import MiniLm
from ingest import files, split
from ingest.pipeline import Ingest
from ingest.read import text as plain_text
from ingest.read.document import Document, Piece, Section
from ingest.windows import windows

HOUSE = Path(__file__).resolve().parent.parent
CHUNKEVAL = SETS / "chunkeval"
TOP = 5


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--passages", type=int, default=100_000, help="how many to publish with known vectors"
    )
    parser.add_argument("--words", type=int, default=1_000_000, help="how many to ingest for the memory")
    parser.add_argument("--copies", type=int, default=4, help="of the sample book, ingested for the speed")
    arguments = parser.parse_args()
    figures: list[Figure] = []
    async with _ingest() as ingest:
        figures.extend(await speed(ingest, arguments.copies))
        figures.extend(await memory(ingest, arguments.words))
        figures.extend(await publishing(ingest, arguments.passages))
    if CHUNKEVAL.exists():
        figures.extend(chunking())
    else:
        print(
            "The labelled set of ../shared is missing: windows and truncation are not compared.",
            file=sys.stderr,
        )
    for figure in figures:
        show(figure)
    record("ingest", [asdict(figure) for figure in figures])


async def speed(ingest: Ingest, copies: int) -> list[Figure]:
    """Copies of 10,000 words through the whole pipeline, then their passages through the embedder alone, then again."""
    with tempfile.TemporaryDirectory() as folder:
        for copy, word in enumerate(("robot", "machine", "device", "walker")[:copies]):
            for page in wiring.SAMPLE_BOOK.glob("*.md"):
                (Path(folder) / f"{copy}-{page.name}").write_text(page.read_text().replace("robot", word))
        documents, _ = await files.read_all([Path(folder)], ingest.progress)
        texts = [_embedded(passage) for document in documents for passage in _split(ingest, document)]
        started = time.monotonic()
        await ingest.embedder.embed_passages(list(dict.fromkeys(texts)))
        alone_s = time.monotonic() - started
        whole = await ingest.run([Path(folder)], "speed", "Speed")
        again = await ingest.run([Path(folder)], "speed", "Speed")
    assert again.generation is None
    return [
        Figure(
            f"whole ingest of {copies}0,000 words / the embedder alone",
            round(whole.seconds / alone_s, 3),
            "≤ 1.10",
        ),
        Figure(f"seconds to ingest {copies}0,000 unchanged words again", again.seconds, "≤ 2"),
    ]


async def memory(ingest: Ingest, count: int) -> list[Figure]:
    """Peak memory of a large ingest. The vectors are synthetic, because `speed` counts the memory of the model."""
    words = _vocabulary()
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        for chapter in range(count // 10_000):
            paragraphs = [f"{' '.join(chance.choices(words, k=40)).capitalize()}." for _ in range(250)]
            sections = [
                f"## Section {n}\n\n" + "\n\n".join(paragraphs[n * 25 : n * 25 + 25]) for n in range(10)
            ]
            (Path(folder) / f"{chapter:03}.md").write_text(f"# Chapter {chapter}\n\n" + "\n\n".join(sections))
        result = await replace(ingest, embedder=Known(ingest.embedder)).run(
            [Path(folder)], "million", "Million"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        Figure(f"passages of {count:,} words", result.chunks_created, ""),
        Figure("peak memory of ingest with the model loaded, MB", round(peak), "≤ 600"),
    ]


async def publishing(ingest: Ingest, count: int) -> list[Figure]:
    """Time to publish passages whose vectors are known already."""
    known = replace(ingest, embedder=Known(ingest.embedder))
    documents = [_made_up(number) for number in range(count // 100)]
    passages = [passage for document in documents for passage in _split(known, document, "large")]
    reading = known._reading(documents, "en")
    await known._publish("large", "Large", documents, passages, "first", reading)
    started = time.monotonic()
    await known._publish("large", "Large", documents, passages, "second", reading)
    return [
        Figure(
            f"seconds to publish {len(passages):,} passages with known vectors",
            round(time.monotonic() - started, 1),
            "≤ 60",
        )
    ]


def chunking() -> list[Figure]:
    """Recall@5 of the labelled spans: by the best window of each passage, and by its beginning alone."""
    embedder = MiniLm()
    passages = list(_labelled_passages(embedder))
    by_window = [embedder._embed_windows(_embedded(passage)) for passage, _, _ in passages]
    by_beginning = [embedder._embed(passage.text)[None, :] for passage, _, _ in passages]
    questions = [json.loads(line) for line in (CHUNKEVAL / "queries.jsonl").read_text().splitlines()]
    figures = []
    for name, vectors in (("best window", by_window), ("plain truncation", by_beginning)):
        found = [
            _recall(embedder._embed(question["text"]), question, vectors, passages) for question in questions
        ]
        figures.append(
            Figure(
                f"chunkeval: share of labelled spans within the top {TOP}, {name}",
                round(float(np.mean(found)), 3),
                "",
            )
        )
    return figures


def _labelled_passages(embedder: Embedder) -> Iterator[tuple[Passage, int, int]]:
    """Each passage with its offsets in the text, found by searching its sentences in order."""
    for line in (CHUNKEVAL / "corpus.jsonl").read_text().splitlines():
        row = json.loads(line)
        document = plain_text.read(row["text"].encode(), PurePosixPath(f"{row['_id']}.txt"))
        place = 0
        for passage in split.passages(
            document, "chunkeval", split.Size(512, 0.2, 256), embedder.count_tokens
        ):
            first, last = passage.sentence_text(0), passage.sentence_text(len(passage.sentences) - 1)
            start = row["text"].find(first.split("\n")[0][:40], max(0, place - 4000))
            end = row["text"].find(last[-40:], max(start, 0)) + 40
            if start >= 0:
                place = start
                yield replace(passage, filename=row["_id"]), start, max(end, start + len(passage.text))


def _recall(
    asked: Vector,
    question: dict[str, Any],
    vectors: Sequence[Windows],
    passages: Sequence[tuple[Passage, int, int]],
) -> float:
    scores = [float(np.max(rows @ asked)) for rows in vectors]
    top = [passages[place] for place in np.argsort(scores)[::-1][:TOP]]
    spans = question["spans"]
    held = [
        any(
            p.filename == span["doc"] and start <= span["start"] and span["end"] <= end
            for p, start, end in top
        )
        for span in spans
    ]
    return sum(held) / len(held)


class Known:
    """A stub of an embedder that answers at once."""

    name = "known"
    dimension = 384
    curve: Curve = ((0.0, 0.0), (1.0, 1.0))
    languages: frozenset[str] = frozenset()

    def __init__(self, real: Embedder) -> None:
        self._real = real
        vectors = np.random.default_rng(0).normal(size=(1000, 1, self.dimension)).astype(np.float32)
        self._vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)

    async def embed_query(self, text: str) -> Vector:
        vector: Vector = self._vectors[len(text) % 1000][0]
        return vector

    async def embed_passages(self, texts: Sequence[str]) -> list[Windows]:
        return [self._vectors[hash(text) % 1000] for text in texts]

    async def embed_questions(self, texts: Sequence[str]) -> list[Vector]:
        return [await self.embed_query(text) for text in texts]

    def count_tokens(self, text: str) -> int:
        return self._real.count_tokens(text)

    def unread(self, text: str) -> float:
        return self._real.unread(text)

    def cost(self) -> str:
        return ""

    async def close(self) -> None: ...


@asynccontextmanager
async def _ingest() -> AsyncIterator[Ingest]:
    with tempfile.TemporaryDirectory(prefix="affidavit-bench-", ignore_cleanup_errors=True) as folder:
        settings = settings_file.load(data_dir=Path(folder))
        async with (
            wiring.open_database(settings, lambda _: None) as database,
            wiring.open_ingest(settings, database, lambda *_: None) as ingest,
        ):
            yield ingest


def _split(ingest: Ingest, document: Document, book_id: str = "bench") -> list[Passage]:
    return split.passages(document, book_id, ingest.size, ingest.embedder.count_tokens)


def _embedded(passage: Passage) -> str:
    """The text that the pipeline embeds."""
    return "\n".join(windows(passage))


def _vocabulary() -> list[str]:
    chance = random.Random(0)
    return ["".join(chance.choices("abcdefghiklmnoprstuvw", k=chance.randint(2, 9))) for _ in range(20_000)]


def _made_up(number: int) -> Document:
    chance = random.Random(number)
    words = _WORDS
    sections = []
    for section in range(100):
        texts = [f"{' '.join(chance.choices(words, k=40))}." for _ in range(2)]
        pieces = tuple(
            Piece(text, block, "prose", f"S{section}", f"s{section}", "p") for block, text in enumerate(texts)
        )
        sections.append(Section(f"S{section}", pieces))
    return Document(f"{number}.md", f"D{number}", f"/d{number}", "0" * 64, tuple(sections))


_WORDS = _vocabulary()


if __name__ == "__main__":
    asyncio.run(main())
