"""Oversampling benchmark: how many of the best 50 a book in Qdrant Edge finds, by how many candidates are scored exactly.

Run as `python -m bench.oversampling`. Real texts: the sentences of the evaluation sets in MiniLM's vectors, asked by their
questions. Clustered: the vectors of bench/retrieval.py. Noise: independent directions, which no embedder makes and any
quantisation finds hardest. Each is one part of a book, as the index worker makes it, and processor time is that of its dense
search alone. Oversampling is chosen by the worst of the texts with room to spare, and by noise for what may come.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import qdrant_edge

from bench.results import SETS, record
from bench.retrieval import DIMENSION, DIMENSION_LARGE, _Maker, _nearest, _unit
from engine.models import Vector
from engine.providers import edge_worker
from engine.providers.minilm import MiniLm

OVERSAMPLINGS = (1.0, 2.0, 4.0, 8.0, 16.0)
ASKED, WANTED = 200, 50
TEXTS = ("xquad_en", "squad2_near_miss", "chunkeval")  # questions are those of the first
BATCH = 1_000
PART = 80_000  # passages of 384 dimensions: as many as the first part of a large book has


@dataclass(frozen=True, slots=True)
class Row:
    vectors: str
    passages: int
    dimension: int
    oversampling: float
    recall_at_50: float
    worst_question: float
    processor_ms: float  # median


async def main(part: int) -> None:
    rows: list[Row] = []
    for name, vectors, asked in [await texts(part), *made(part)]:
        with tempfile.TemporaryDirectory(prefix="affidavit-bench-") as folder:
            rows.extend(measured(name, vectors, asked, Path(folder)))
    record("oversampling", [asdict(row) for row in rows])


def measured(name: str, vectors: Vector, asked: Vector, folder: Path) -> Iterator[Row]:
    shard = _filled(vectors, folder / "book")
    nearest = [set(best) for best in _nearest(vectors, asked).tolist()]
    for oversampling in OVERSAMPLINGS:
        params = qdrant_edge.SearchParams(
            quantization=qdrant_edge.QuantizationSearchParams(rescore=True, oversampling=oversampling)
        )
        recalls, times_ms = [], []
        for vector, best in zip(asked, nearest, strict=True):
            query = qdrant_edge.Query.Nearest(vector.tolist(), using=edge_worker.PLAIN)
            started = time.process_time()
            hits = shard.store.query(qdrant_edge.QueryRequest(WANTED, query=query, params=params))
            times_ms.append((time.process_time() - started) * 1000)
            recalls.append(len({hit.id for hit in hits} & best) / len(best))
        row = Row(
            name, len(vectors), vectors.shape[1], oversampling, float(np.mean(recalls)), min(recalls),
            float(np.median(times_ms)),
        )  # fmt: skip
        print(row, flush=True)
        yield row
    shard.store.close()


def _filled(vectors: Vector, folder: Path) -> edge_worker.Shard:
    folder.mkdir()
    shard = edge_worker.Shard(qdrant_edge.EdgeShard.create(str(folder), edge_worker._config()), [])
    shard._hold(edge_worker.PLAIN, vectors.shape[1])
    for start in range(0, len(vectors), BATCH):
        some = enumerate(vectors[start : start + BATCH].tolist(), start)
        points = [qdrant_edge.Point(number, {edge_worker.PLAIN: row}, {}) for number, row in some]
        shard.store.update(qdrant_edge.UpdateOperation.upsert_points(points))
    shard.save()
    return shard


async def texts(part: int) -> tuple[str, Vector, Vector]:
    sentences = list(dict.fromkeys(_sentences()))[:part]
    questions = [row["text"] for row in _rows(TEXTS[0], "queries")][:ASKED]
    embedder = MiniLm()
    vectors = np.stack([windows[0] for windows in await embedder.embed_passages(sentences)])
    return "sentences, MiniLM", vectors, np.stack(await embedder.embed_questions(questions))


def made(part: int) -> Iterator[tuple[str, Vector, Vector]]:
    for dimension in (DIMENSION, DIMENSION_LARGE):
        chance = np.random.default_rng(dimension)
        passages = part * DIMENSION // dimension
        make = _Maker(chance, dimension)
        vectors = make.passages(passages)[1]
        yield "clustered", vectors, make.near(vectors[:ASKED])
        noise, asked = (_unit(chance.normal(size=(count, dimension))) for count in (passages, ASKED))
        yield "noise", noise, asked


def _sentences() -> Iterator[str]:
    for name in filter(lambda name: (SETS / name).exists(), TEXTS):
        for row in _rows(name, "corpus"):
            yield from (part for part in row["text"].replace("\n", ". ").split(". ") if part.strip())


def _rows(name: str, kind: str) -> Sequence[dict[str, Any]]:
    lines = (SETS / name / f"{kind}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=PART, help="of 384 dimensions in each part")
    asyncio.run(main(parser.parse_args().passages))
