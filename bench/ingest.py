"""Ingest benchmark: one core and two, the time of each phase, the memory of a million passages, one changed file of many.

Run as `python -m bench.ingest [--passages 100000] [--million 1000000]`. Each measurement is a process of its own, whose memory is that of
all its processes but the database and the index. The embedder of the large books is a stub that looks vectors up by a hash of the text: embedding a million passages takes hours.
The labelled set of ../shared is used if it exists.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import Any, Self
from zlib import crc32

import numpy as np

from bench.results import SETS, Figure, record, show
from engine import settings as settings_file
from engine import wiring
from engine.models import Curve, Passage, Vector, Windows
from engine.ports import Embedder
from engine.providers import minilm
from engine.providers.edge import EdgeIndex
from engine.providers.minilm import MiniLm
from engine.providers.qdrant import QdrantIndex
from engine.retrieval import lexical
from engine.storage.database import Database
from ingest import continuing, files, indexing, pipeline, split
from ingest.pipeline import Ingest
from ingest.read import text as plain_text
from ingest.read.document import Document, Kept
from ingest.registry import Registry
from ingest.self_calibration import SelfCalibration
from ingest.windows import windows
from tests.upstreams import qdrant_server

HOUSE = Path(__file__).resolve().parent.parent
CHUNKEVAL = SETS / "chunkeval"
TOP = 5
ROUNDS = 2  # of one core and two, in turn
FILE_PASSAGES = 100
SAMPLED_S = 0.1  # between two looks at the memory
APART = ("postgres", "engine.providers.edge_worker")  # processes whose memory is not the ingest's

Measured = dict[str, Any]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--passages", type=int, default=100_000, help="of the book of which one file is changed"
    )
    parser.add_argument(
        "--million", type=int, default=1_000_000, help="passages of the book whose memory is measured"
    )
    parser.add_argument("--copies", type=int, default=4, help="of the sample book, ingested for the speed")
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)  # in a process of its own
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(await MEASURES[arguments.measure](arguments)))
        return
    figures = [*cores(arguments), *changed(arguments), *million(arguments)]
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


def cores(arguments: argparse.Namespace) -> list[Figure]:
    """The sample book with a real model, on one core and on two, in turn."""
    available = sorted(os.sched_getaffinity(0))[:2]
    runs: dict[int, list[Measured]] = {}
    for _ in range(ROUNDS):
        for count in (1, len(available)):
            runs.setdefault(count, []).append(_measured("speed", arguments, available[:count]))
    best = {count: min(done, key=lambda run: float(run["seconds"])) for count, done in runs.items()}
    one, all_cores = best[1], best[len(available)]
    words = f"{arguments.copies}0,000 words"
    return [
        *(
            Figure(f"passages/s with MiniLM, {count} cores", round(run["passages"] / run["seconds"], 1), "")
            for count, run in best.items()
        ),
        Figure(
            f"ingest of {words}: {len(available)} cores / one core",
            round(one["seconds"] / all_cores["seconds"], 2),
            "≥ 1.8",
        ),
        Figure(
            f"whole ingest of {words} / the embedder alone, {len(available)} cores",
            round(all_cores["seconds"] / all_cores["alone_s"], 3),
            "≤ 1.10",
        ),
        Figure(f"seconds to ingest {words} unchanged again", all_cores["again_s"], "≤ 2"),
    ]


def changed(arguments: argparse.Namespace) -> list[Figure]:
    """A large book whose vectors are known, and then one file of it changed."""
    run = _measured("changed", arguments)
    return [
        Figure(f"seconds to ingest {run['passages']:,} short passages, embedded: {name}", seconds, "")
        for name, seconds in run["first"].items()
    ] + [
        Figure(f"seconds to ingest them with one changed file: {name}", seconds, "")
        for name, seconds in run["changed"].items()
    ]


def million(arguments: argparse.Namespace) -> list[Figure]:
    """A book that does not fit into memory, to a real Qdrant server."""
    if not arguments.million:
        return []
    with qdrant_server.single() as server:
        run = _measured("million", arguments, qdrant=f"{server.url} {server.grpc_port}")
    return [
        Figure(
            f"peak memory of an ingest of {run['passages']:,} short passages to Qdrant, MB",
            run["peak_mb"],
            "≤ 600",
        ),
        *(Figure(f"its seconds: {name}", seconds, "") for name, seconds in run["seconds"].items()),
    ]


def _measured(
    name: str, arguments: argparse.Namespace, cores: Sequence[int] | None = None, qdrant: str = ""
) -> Measured:
    """One measurement in a process of its own, on these cores, with its peak memory."""
    command = [sys.executable, "-m", "bench.ingest", "--measure", name]
    for option in ("passages", "million", "copies"):
        command += [f"--{option}", str(getattr(arguments, option))]
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or usual)  # a child inherits it
    process = subprocess.Popen(
        command, cwd=HOUSE, stdout=subprocess.PIPE, text=True, env=os.environ | {"BENCH_QDRANT": qdrant}
    )
    os.sched_setaffinity(0, usual)
    assert process.stdout
    peak = Peak(process.pid)
    peak.start()
    said = process.stdout.read()
    if process.wait():
        raise RuntimeError(f"The measurement {name} failed")
    peak.join()
    measured: Measured = json.loads(said.splitlines()[-1])
    return measured | {"peak_mb": peak.megabytes}


class Peak(threading.Thread):
    """The most memory (RSS) that a process and its descendants had at one time, without the database and the index."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self.megabytes = 0

    def run(self) -> None:
        while Path(f"/proc/{self._pid}/stat").exists() and _state(self._pid) != "Z":
            self.megabytes = max(self.megabytes, round(sum(map(_rss_kb, _family(self._pid))) / 1024))
            time.sleep(SAMPLED_S)


def _family(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        if any(name in Path(f"/proc/{pid}/cmdline").read_text() for name in APART):
            return
        yield pid
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from _family(int(child))


def _rss_kb(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    return 0


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


# In a process of its own


async def speed(arguments: argparse.Namespace) -> Measured:
    """Copies of 10,000 words through the whole pipeline, then their passages through the embedder alone, then again."""
    minilm.NICENESS = -20  # the embedder need not give way: no reader waits
    with tempfile.TemporaryDirectory() as folder:
        for copy, word in enumerate(("robot", "machine", "device", "walker")[: arguments.copies]):
            for page in wiring.SAMPLE_BOOK.glob("*.md"):
                (Path(folder) / f"{copy}-{page.name}").write_text(page.read_text().replace("robot", word))
        async with _ingest() as ingest:
            texts: list[str] = []

            async def take(document: Document | Kept) -> None:
                assert isinstance(document, Document)
                texts.extend(map(_embedded, _split(ingest, document)))

            await files.read_all([Path(folder)], ingest.progress, take)
            started = time.monotonic()
            await ingest.embedder.embed_passages(list(dict.fromkeys(texts)))
            alone_s = time.monotonic() - started
            whole = await ingest.run([Path(folder)], "speed", "Speed")
            again = await ingest.run([Path(folder)], "speed", "Speed")
    assert again.generation is None
    return {
        "passages": whole.chunks_created,
        "seconds": whole.seconds,
        "alone_s": alone_s,
        "again_s": again.seconds,
    }


async def one_changed(arguments: argparse.Namespace) -> Measured:
    with tempfile.TemporaryDirectory() as folder, Stopwatch() as watch:
        pages = write_book(Path(folder), arguments.passages)
        async with _ingest() as real:
            ingest = replace(real, embedder=Known(real.embedder))
            first = await ingest.run([Path(folder)], "large", "Large")
            first_s = watch.taken() | {"in all": first.seconds}
            page = pages[len(pages) // 2]
            page.write_text(page.read_text().replace(" a", " e", 5))
            again = await ingest.run([Path(folder)], "large", "Large")
    assert again.generation
    assert again.chunks_reused > first.chunks_created - FILE_PASSAGES
    return {
        "passages": first.chunks_created,
        "first": first_s,
        "changed": watch.taken() | {"in all": again.seconds},
    }


async def large(arguments: argparse.Namespace) -> Measured:
    with tempfile.TemporaryDirectory() as folder, Stopwatch() as watch:
        write_book(Path(folder), arguments.million)
        async with _ingest(qdrant=os.environ["BENCH_QDRANT"]) as real:
            ingest = replace(real, embedder=Known(real.embedder))
            done = await ingest.run([Path(folder)], "million", "Million")
    return {"passages": done.chunks_created, "seconds": watch.taken() | {"in all": done.seconds}}


MEASURES = {"speed": speed, "changed": one_changed, "million": large}

PHASES: dict[str, list[tuple[type | Any, str]]] = {
    "read and language": [(Ingest, "_read")],
    "split": [(Ingest, "_split"), (Ingest, "_changes")],
    "compare": [(Ingest, "_compare")],
    "what did not change": [(continuing, "continued")],
    "count words": [(lexical, "lexicon")],
    "write passages": [(Registry, "begin")],
    "points, vectors and index": [(pipeline, "build"), (pipeline, "extend")],
    "calibrate": [(SelfCalibration, "measure")],
    "retire": [(Ingest, "_retire")],
    "  of it: vectors from the cache": [(Registry, "embeddings")],
    "  of it: to the index": [(EdgeIndex, "upsert"), (QdrantIndex, "upsert")],
    "  of it: taken over": [(EdgeIndex, "extend"), (QdrantIndex, "extend")],
    "  of it: sealed": [(EdgeIndex, "seal"), (QdrantIndex, "seal")],
    "  of it: read back": [(indexing, "content_of")],
}


class Stopwatch:
    """Seconds of each phase, by wrapping its function."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def __enter__(self) -> Self:
        for phase, places in PHASES.items():
            for owner, name in places:
                setattr(owner, name, self._timed(phase, getattr(owner, name)))
        return self

    def __exit__(self, *_: object) -> None: ...

    def taken(self) -> dict[str, float]:
        taken, self._seconds = self._seconds, {}
        return {phase: round(taken.get(phase, 0.0), 1) for phase in PHASES}

    def _timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        async def timed_async(*given: Any, **named: Any) -> Any:
            with self._running(phase):
                return await function(*given, **named)

        def timed(*given: Any, **named: Any) -> Any:
            with self._running(phase):
                return function(*given, **named)

        return timed_async if asyncio.iscoroutinefunction(function) else timed

    @contextlib.contextmanager
    def _running(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self._seconds[phase] = self._seconds.get(phase, 0.0) + time.monotonic() - started


def write_book(folder: Path, passages: int) -> list[Path]:
    """Files of a hundred sections of forty words. As in real books, a third of the vocabulary occurs once."""
    words, chance, pages = _vocabulary(), random.Random(1), []
    for number in range(-(-passages // FILE_PASSAGES)):
        parts = [f"# Chapter {number}"]
        for section in range(min(FILE_PASSAGES, passages - number * FILE_PASSAGES)):
            chosen = [*chance.choices(words, k=39), f"x{number}y{section % 20}"]
            sentences = [" ".join(chosen[start : start + 20]).capitalize() for start in (0, 20)]
            parts.append(f"## Section {section} of {number}\n\n{'. '.join(sentences)}.")
        pages.append(folder / f"{number:05}.md")
        pages[-1].write_text("\n\n".join(parts))
    return pages


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
        vector: Vector = self._vectors[crc32(text.encode()) % 1000][0]
        return vector

    async def embed_passages(self, texts: Sequence[str]) -> list[Windows]:
        return [self._vectors[crc32(text.encode()) % 1000] for text in texts]

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
async def _ingest(qdrant: str = "") -> AsyncIterator[Ingest]:
    """With everything embedded, or with a Qdrant server."""
    with tempfile.TemporaryDirectory(prefix="affidavit-bench-", ignore_cleanup_errors=True) as folder:
        settings = settings_file.load(data_dir=Path(folder))
        async with (
            wiring.open_database(settings, lambda _: None) as database,
            _opened(settings, database, qdrant) as ingest,
        ):
            yield ingest


@asynccontextmanager
async def _opened(settings: Any, database: Database, qdrant: str) -> AsyncIterator[Ingest]:
    async with wiring.open_ingest(settings, database, lambda *_: None) as ingest:
        if not qdrant:
            yield ingest
            return
        url, _ = qdrant.split()
        index = QdrantIndex(url, timeout_s=30)
        assert ingest.self_calibration
        yield replace(ingest, index=index, self_calibration=replace(ingest.self_calibration, index=index))
        await index.close()


def _split(ingest: Ingest, document: Document) -> list[Passage]:
    return split.passages(document, "bench", ingest.size, ingest.embedder.count_tokens)


def _embedded(passage: Passage) -> str:
    """The text that the pipeline embeds."""
    return "\n".join(windows(passage))


def _vocabulary() -> list[str]:
    chance = random.Random(0)
    return ["".join(chance.choices("abcdefghiklmnoprstuvw", k=chance.randint(2, 9))) for _ in range(20_000)]


if __name__ == "__main__":
    asyncio.run(main())
