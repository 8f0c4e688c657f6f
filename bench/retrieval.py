"""Retrieval benchmark: our hybrid search, two minimal implementations and other frameworks, all in one run.

Run as `python -m bench.retrieval [--passages 1000 5000] [--kept FOLDER]`. Every system gets the same passages, vectors and
questions, one thread for numpy and a process of its own. Peers live in .venv-peers (`make bench-peers`); what is not
installed, or too slow for a size, is shown as such. Ours is `Retriever.retrieve` with the vector at hand: words, both exact
scores of the union, calibration, blend, order; with the embedded index, and with a Qdrant server of the npm package that
the tests use. A million passages take 6 GB of disk, and about half an hour: FOLDER keeps them for the next run.
"""

import argparse
import asyncio
import contextlib
import gc
import hashlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import numpy as np

from bench import peers
from bench.results import RESULTS, Figure, record, show
from engine.evaluation import charts
from engine.models import Calibration, Filters, Generation, Passage, Point, Question, Vector
from engine.ports import Embedder, Index, Library
from engine.providers.embedded import EmbeddedIndex
from engine.providers.qdrant import QdrantIndex
from engine.retrieval import lexical
from engine.retrieval.calibrate import Weights
from engine.retrieval.retrieve import Retriever
from tests.upstreams import qdrant_server

HOUSE = Path(__file__).resolve().parent.parent
PEERS_PYTHON = HOUSE / ".venv-peers" / "bin" / "python"
SAMPLE_BOOK = HOUSE / "config" / "sample-book"
GROWTH = RESULTS.with_name("retrieval-growth.svg")

SIZES = (1_000, 5_000, 10_000, 100_000, 1_000_000)
DIMENSION, DIMENSION_LARGE = 384, 1024
WIDE = 100_000  # passages at the large dimension
MODULES = {  # what must be importable for each system
    "ours": "engine",
    "qdrant": "engine",
    "bm25s": "bm25s",
    "rank_bm25": "rank_bm25",
    "llama_index": "llama_index",
    "langchain": "langchain_classic",
    "haystack": "haystack",
}
OURS = ("ours", "qdrant")
TITLES = {
    "ours": "ours, embedded",
    "qdrant": "ours, Qdrant server",
    "bm25s": "numpy + bm25s",
    "rank_bm25": "numpy + rank_bm25",
    "llama_index": "llama-index",
}

LEFT_OUT_S = 60.0  # a peer that is expected to take longer at a size is left out there
STOPPED_S = 3600.0  # ours, at the largest size, is built in some minutes
LEAVES_S = 60.0
LOOK_S = 0.5  # between two looks at a system's memory
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
QUIET = {"HAYSTACK_TELEMETRY_ENABLED": "False", "LANGCHAIN_TRACING_V2": "false", "DO_NOT_TRACK": "1"}

HEARTBEAT_PASSAGES, HEARTBEAT_S, CONCURRENT = 5_000, 0.005, 1_000
CROWDED = (HEARTBEAT_PASSAGES, WIDE)  # searched in this process, and in the worker
IDLE_S = 1.0
BURN = "while True: pass"
QUESTIONS, QUESTION_WORDS = 200, 9
VOCABULARY, CENTRES, SUBSPACE = 30_000, 2_000, 64
TOPIC_WORDS, TOPIC_SHARE = 40, 0.25
BATCH = 1_000
PREPARED = "nearest.json"  # the last file of a prepared folder
PART = 50_000  # passages that are made at once
BUILDER_LEAVES_S = 3.0  # the building worker lives for 2 s more; searching does not need it

Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True)
class Row:
    """A system at a size."""

    system: str
    passages: int
    dimension: int
    p50_ms: float | None = None
    p99_ms: float | None = None
    times_ours: float | None = None
    questions: int = 0
    build_s: float | None = None
    peak_mb: float | None = None  # of all its processes together, while it builds
    searching_mb: float | None = None
    found_at_5: float | None = None  # the passage that the question was taken from
    recall_at_50: float | None = None  # of the dense list, against the exact one
    idle_heartbeat_ms: float | None = None  # the delay of a heartbeat on this machine when idle
    heartbeat_ms: float | None = None
    loaded_heartbeat_ms: float | None = None  # with other processes on every core
    loaded_failed: int | None = None
    searches_per_s: float | None = None
    failed: int | None = None
    note: str = ""

    @property
    def title(self) -> str:
        return TITLES.get(self.system, self.system)


async def main(sizes: Sequence[int], kept: Path | None) -> None:
    rows: list[Row] = []
    for passages in sizes:
        rows.extend(await side_by_side(passages, DIMENSION, list(MODULES), rows, kept))
    if WIDE in sizes:
        rows.extend(await side_by_side(WIDE, DIMENSION_LARGE, [*OURS, "bm25s"], [], kept))
    figures = list(goals(rows))
    print()
    for figure in figures:
        show(figure)
    record("retrieval", [asdict(row) for row in rows] + [asdict(figure) for figure in figures])
    GROWTH.write_text(growth([row for row in rows if row.dimension == DIMENSION]))
    print(f"\nGrowth over the number of passages: {GROWTH.name}")


async def side_by_side(
    passages: int, dimension: int, systems: Sequence[str], earlier: Sequence[Row], kept: Path | None
) -> list[Row]:
    """Every system on the same prepared folder, one after the other."""
    print(f"\n{passages:,} passages x {dimension}\n{_HEAD}", flush=True)
    rows: list[Row] = []
    with _prepared(passages, dimension, kept) as folder:
        for system in systems:
            row = Row(system, passages, dimension)
            smaller = [other for other in earlier if other.system == system]
            row.note = _why_not(smaller[-1], passages) if smaller and system not in OURS else ""
            if not row.note:
                await measure(row, folder)
                shutil.rmtree(folder / "index", ignore_errors=True)
            if row.p50_ms and rows and rows[0].p50_ms:
                row.times_ours = row.p50_ms / rows[0].p50_ms
            rows.append(row)
            print(_line(row), flush=True)
    return rows


@contextlib.contextmanager
def _prepared(passages: int, dimension: int, kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        folder = kept / f"{passages}x{dimension}"
        if not (folder / PREPARED).exists():
            folder.mkdir(parents=True, exist_ok=True)
            prepare(folder, passages, dimension)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="affidavit-bench-", ignore_cleanup_errors=True) as name:
        prepare(Path(name), passages, dimension)
        yield Path(name)


def _why_not(smaller: Row, passages: int) -> str:
    """Extrapolates from a smaller size: all systems compare with every passage, so their time grows linearly."""
    if smaller.p50_ms is None or smaller.build_s is None:
        return smaller.note
    times = passages / smaller.passages
    per_question_s = smaller.p50_ms * times / 1000
    questions_s = max(
        min(QUESTIONS * per_question_s, peers.QUERIES_S), (peers.QUERIES_MIN + peers.WARM_UP) * per_question_s
    )
    expected_s = smaller.build_s * times + questions_s
    return f"left out: would take about {expected_s:.0f} s" if expected_s > LEFT_OUT_S else ""


async def measure(row: Row, folder: Path) -> None:
    """Runs one system in a process of its own and returns what it reports."""
    python = _python(row.system)
    if python is None:
        row.note = "not installed: make bench-peers"
        return
    module = ("bench.retrieval", "--ours") if row.system in OURS else ("bench.peers",)
    faults = folder / f"{row.system}.err"
    process = await asyncio.create_subprocess_exec(
        python, "-m", *module, row.system, str(folder), cwd=HOUSE, env=os.environ | ONE_THREAD | QUIET,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=faults.open("wb"),
    )  # fmt: skip
    assert process.stdout is not None and process.stdin is not None
    try:
        async with asyncio.timeout(STOPPED_S):
            await _listen(row, process.stdout, folder)
            process.stdin.close()
            await process.wait()
    except TimeoutError:
        row.note = f"stopped after {STOPPED_S:.0f} s"
        process.kill()
    except EOFError:
        row.note = f"failed: {(faults.read_text().strip().splitlines() or ['no message'])[-1]}"
    await process.wait()
    async with asyncio.timeout(LEAVES_S):
        while _memory_mb(folder):  # noqa: ASYNC110  the index worker leaves by itself, and is no child of ours
            await asyncio.sleep(LOOK_S)


async def _listen(row: Row, output: asyncio.StreamReader, folder: Path) -> None:
    building = asyncio.create_task(_heard(output))
    while not building.done():
        row.peak_mb = max(row.peak_mb or 0.0, _memory_mb(folder))
        await asyncio.wait([building], timeout=LOOK_S)
    row.build_s = building.result()["build_s"]
    figures = await _heard(output)
    latencies_ms = figures.pop("latencies_ms")
    row.questions = len(latencies_ms)
    row.p50_ms, row.p99_ms = (float(np.percentile(latencies_ms, share)) for share in (50, 99))
    row.searching_mb = _memory_mb(folder)
    row.peak_mb = max(row.peak_mb or 0.0, row.searching_mb)
    if row.system in OURS:
        figures |= await _heard(output)
    for name, value in figures.items():
        setattr(row, name, value)


async def _heard(output: asyncio.StreamReader) -> dict[str, Any]:
    """The next line of our protocol; frameworks print other lines."""
    while line := await output.readline():
        if line.startswith(b"{"):
            figures: dict[str, Any] = json.loads(line)
            return figures
    raise EOFError


def _memory_mb(folder: Path) -> float:
    """The resident memory of all processes that were started for this folder, the index worker included."""
    listed = subprocess.run(
        ["ps", "-axww", "-o", "rss=", "-o", "command="], capture_output=True, text=True, check=True
    )
    lines = [line.split(maxsplit=1) for line in listed.stdout.splitlines() if str(folder) in line]
    return sum(int(kilobytes) for kilobytes, _ in lines) / 1024


def _python(system: str) -> str | None:
    """The Python environment that has the system installed, if there is one."""
    module = MODULES[system]
    if importlib.util.find_spec(module):
        return sys.executable
    look = f"import importlib.util, sys; sys.exit(not importlib.util.find_spec({module!r}))"
    if PEERS_PYTHON.exists() and subprocess.run([PEERS_PYTHON, "-c", look], check=False).returncode == 0:
        return str(PEERS_PYTHON)
    return None


def goals(rows: Sequence[Row]) -> list[Figure]:
    """The measured figures, with their targets."""
    by_place = {(row.system, row.passages, row.dimension): row for row in rows}
    figures = []
    ours = by_place.get(("ours", HEARTBEAT_PASSAGES, DIMENSION))
    if ours:
        at = f"at {ours.passages:,} passages"
        peer = {name: by_place[name, HEARTBEAT_PASSAGES, DIMENSION] for name in MODULES}
        of_bare = ours.p50_ms / bare if ours.p50_ms and (bare := peer["bm25s"].p50_ms) else None
        figures = [
            Figure(f"ours, p50 ms {at}", _rounded(ours.p50_ms), "≤ 3"),
            Figure(f"ours, times numpy + bm25s {at}", _rounded(of_bare), "≤ 5"),
            *(
                Figure(f"{name}, times ours {at}", _rounded(peer[name].times_ours), "≥ 15")
                for name in ("llama_index", "langchain")
            ),
            *_crowded(ours),
        ]
    wide = by_place.get(("ours", WIDE, DIMENSION_LARGE))
    if wide:
        at = f"at {wide.passages:,} x {wide.dimension}"
        figures.append(Figure(f"ours, p50 ms {at}", _rounded(wide.p50_ms), "≤ 5"))
        figures.append(Figure(f"ours, recall@50 {at}", _rounded(wide.recall_at_50), "≥ .98"))
        figures.append(Figure(f"ours, MB at the peak {at}", _rounded(wide.peak_mb), "≤ 1500"))
        figures += _crowded(wide)
    large = by_place.get(("ours", SIZES[-1], DIMENSION))
    if large:
        at = f"at {large.passages:,} x {large.dimension}"
        figures.append(Figure(f"ours, p50 ms {at}", _rounded(large.p50_ms), "≤ 20"))
        figures.append(Figure(f"ours, recall@50 {at}", _rounded(large.recall_at_50), "≥ .95"))
    return figures


def _crowded(row: Row) -> list[Figure]:
    during = f"during {CONCURRENT:,} concurrent searches at {row.passages:,} x {row.dimension}"
    return [
        Figure(f"delay of a heartbeat {during}, ms", _rounded(row.heartbeat_ms), "≤ 20"),
        Figure(f"failed {during}", _rounded(row.failed), "0"),
        Figure(f"delay with load beside them {during}, ms", _rounded(row.loaded_heartbeat_ms), ""),
        Figure(f"failed with load beside them {during}", _rounded(row.loaded_failed), "0"),
        Figure("the delay on an idle loop, ms", _rounded(row.idle_heartbeat_ms), ""),
        Figure(f"searches per second {during}", _rounded(row.searches_per_s), ""),
    ]


def growth(rows: Sequence[Row]) -> str:
    series = []
    for system in MODULES:
        points = [(float(row.passages), row.p50_ms) for row in rows if row.system == system and row.p50_ms]
        series.append(charts.Series(TITLES.get(system, system).removeprefix("numpy + "), points, marked=True))
    said = "; ".join(f"{item.name} {item.points[-1][1]:.2g} ms" for item in series if item.points)
    return charts.line_chart(
        "Hybrid search as the book grows",
        f"Median milliseconds per question over the number of passages, both axes logarithmic. Last point of each: {said}.",
        series,
        charts.Axis("passages", log=True),
        charts.Axis("median ms per question", log=True),
    )


_HEAD = f"  {'':<20}{'p50 ms':>10}{'p99 ms':>10}{'x ours':>9}{'build s':>10}{'peak MB':>10}{'searching MB':>14}{'found@5':>9}"


def _line(row: Row) -> str:
    if row.p50_ms is None:
        return f"  {row.title:<20}  {row.note}"
    numbers = ((row.p50_ms, 10, 2), (row.p99_ms, 10, 2), (row.times_ours, 9, 2), (row.build_s, 10, 1))
    sizes = ((row.peak_mb, 10, 0), (row.searching_mb, 14, 0), (row.found_at_5, 9, 2))
    cells = [
        f"{'-' if value is None else f'{value:,.{digits}f}':>{width}}"
        for value, width, digits in (*numbers, *sizes)
    ]
    fewer = f"in {row.questions} questions" if row.questions < QUESTIONS else ""
    return f"  {row.title:<20}{''.join(cells)}   {fewer}{row.note}".rstrip()


def _rounded(value: float | None) -> float | str:
    return "not measured" if value is None else round(value, 3)


# Ours, in a process of its own.


async def ours(folder: Path, system: str) -> None:
    given = _Given(folder)
    with _index(system, folder) as index:
        started = time.perf_counter()
        generation = await _filled(index, given)
        peers.say(build_s=time.perf_counter() - started)
        await asyncio.sleep(BUILDER_LEAVES_S)
        gc.freeze()  # as an engine does with an edition
        embedder, library = cast("Embedder", given), cast("Library", given)
        weights = Weights(*peers.WEIGHTS)
        retriever = Retriever(embedder, index, library, None, weights, peers.CANDIDATES, within_s=2.0)
        questions = [Question(text, "bench", 5) for text in given.asked]
        for question in questions[: peers.WARM_UP]:
            await retriever.retrieve(question, generation)
        latencies_ms: list[float] = []
        found = []
        for question in peers.clocked(questions, latencies_ms):
            retrieved = await retriever.retrieve(question, generation)
            found.append([item.candidate.chunk_id for item in retrieved.evidence])
        hits = [target in names for target, names in zip(given.targets, found, strict=False)]
        peers.say(latencies_ms=latencies_ms, found_at_5=float(np.mean(hits)))
        figures: dict[str, Any] = {"recall_at_50": await _recall(index, generation, given)}
        if generation.lexicon.passages in CROWDED and system == "ours":
            figures |= await _crowd(retriever, generation, questions)
        peers.say(**figures)
        await asyncio.to_thread(sys.stdin.read)
        await index.close()


@contextlib.contextmanager
def _index(system: str, folder: Path) -> Iterator[Index]:
    if system == "ours":
        yield EmbeddedIndex(folder / "index")
        return
    qdrant_server._package()
    tempfile.tempdir = str(folder)  # so that the server's memory is found by its folder
    with qdrant_server.single() as server:
        yield QdrantIndex(server.url, timeout_s=60.0)


class _Given:
    """What was prepared, read as it is needed: an ingest has no second copy of its book in memory either.

    Stands in for an embedder that has every question's vector already, and for a library with what searching needs.
    """

    languages: frozenset[str] = frozenset()

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        asking = json.loads((folder / "questions.json").read_text())
        self.targets = [question["target"] for question in asking]
        texts = [question["text"] for question in asking]
        self.asked: dict[str, Vector] = dict(zip(texts, np.load(folder / "questions.npy"), strict=True))
        self.nearest = json.loads((folder / PREPARED).read_text())
        vectors = np.load(folder / "vectors.npy", mmap_mode="r")
        self._offset, self.dimension = vectors.offset, vectors.shape[1]

    def rows(self) -> Iterator[dict[str, str]]:
        with (self._folder / "passages.jsonl").open() as file:
            yield from map(json.loads, file)

    def vectors(self, start: int, count: int) -> Vector:
        """Read, not mapped: what is mapped would count as our memory."""
        offset = self._offset + 4 * start * self.dimension
        file = self._folder / "vectors.npy"
        rows: Vector = np.fromfile(file, np.float32, count * self.dimension, offset=offset).reshape(count, -1)
        return rows

    def words(self) -> "_Words":
        file = self._folder / "words.txt"
        with file.open("w") as writing:
            count = sum(
                1 for row in self.rows() if writing.write(" ".join(lexical.words(row["text"])) + "\n")
            )
        return _Words(file, count)

    async def embed_query(self, text: str) -> Vector:
        return self.asked[text]

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    async def passages(self, chunk_ids: Sequence[str]) -> dict[str, Passage]:
        return {name: _passage(name) for name in chunk_ids}


@dataclass(frozen=True, slots=True)
class _Words:
    """The words of each passage, in a file: of a million passages they would take 8 GB of memory."""

    file: Path
    count: int

    def __iter__(self) -> Iterator[list[str]]:
        with self.file.open() as reading:
            yield from (line.split() for line in reading)


async def _filled(index: Index, given: _Given) -> Generation:
    """Fills the index as an ingest does."""
    words = given.words()
    lexicon = lexical.lexicon(words)
    generation = Generation(uuid4(), "bench", "known", given.dimension, _CALIBRATION, lexicon)
    await index.create(generation.generation_id, generation.dimension)
    passages = zip(given.rows(), words, strict=True)
    for start in range(0, words.count, BATCH):
        some = list(itertools.islice(passages, BATCH))
        vectors = given.vectors(start, len(some))
        points = [
            Point(
                row["id"], vectors[n : n + 1], lexical.passage_weights(held, lexicon), {"position": start + n}
            )
            for n, (row, held) in enumerate(some)
        ]
        await index.upsert(generation.generation_id, points)
    await index.seal(generation.generation_id)
    await index.count(generation.generation_id)  # the serving worker has it open
    return generation


async def _recall(index: Index, generation: Generation, given: _Given) -> float:
    """Dense search alone: a query without words matches no passage by BM25."""
    found = []
    for vector, best in zip(given.asked.values(), given.nearest, strict=True):
        hits = await index.search(generation.generation_id, vector, {}, peers.CANDIDATES, Filters())
        found.append(len(set(best) & {hit.chunk_id for hit in hits}) / len(best))
    return float(np.mean(found))


async def _crowd(
    retriever: Retriever, generation: Generation, questions: Sequence[Question]
) -> dict[str, float]:
    """Starts all searches concurrently, each in its own turn of the loop as requests are, and measures the heartbeat's delay:
    on a free machine, and with a process on every core that never waits."""
    idle = await _slip_ms(asyncio.sleep(IDLE_S))
    results: list[Any] = []
    started = time.perf_counter()
    heartbeat_ms = await _slip_ms(_all_at_once(retriever, generation, questions, results))
    searches_per_s = CONCURRENT / (time.perf_counter() - started)
    beside: list[Any] = []
    burning = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", BURN) for _ in range(os.cpu_count() or 1)
    ]
    loaded_heartbeat_ms = await _slip_ms(_all_at_once(retriever, generation, questions, beside))
    for process in burning:
        process.kill()
        await process.wait()
    return {
        "idle_heartbeat_ms": idle,
        "heartbeat_ms": heartbeat_ms,
        "searches_per_s": searches_per_s,
        "failed": sum(isinstance(result, BaseException) for result in results),
        "loaded_heartbeat_ms": loaded_heartbeat_ms,
        "loaded_failed": sum(isinstance(result, BaseException) for result in beside),
    }


async def _all_at_once(
    retriever: Retriever, generation: Generation, questions: Sequence[Question], results: list[Any]
) -> None:
    searches = []
    for number in range(CONCURRENT):
        question = questions[number % len(questions)]
        searches.append(asyncio.create_task(retriever.retrieve(question, generation)))
        await asyncio.sleep(0)
    results.extend(await asyncio.gather(*searches, return_exceptions=True))


async def _slip_ms(work: Coroutine[Any, Any, None]) -> float:
    """The longest delay of a heartbeat while this ran."""
    slips_ms: list[float] = []
    heart = asyncio.create_task(_beat(slips_ms))
    await work
    heart.cancel()
    return max(slips_ms)


async def _beat(slips_ms: list[float]) -> None:
    while True:
        due = time.perf_counter() + HEARTBEAT_S
        await asyncio.sleep(HEARTBEAT_S)
        slips_ms.append((time.perf_counter() - due) * 1000)


_CALIBRATION = Calibration(
    "bench", "shipped", "known", DIMENSION, lexical.NORMALISATION,
    similarity=((0.0, 0.0), (0.36, 0.6), (0.75, 1.0)), lexical=((0.0, 0.0), (1 / 6, 1.0)),
)  # fmt: skip


def _passage(chunk_id: str) -> Passage:
    return Passage(
        chunk_id, "bench", "bench", "bench.md", "Bench", "Bench", 0, "", (), "1", "1", 0, 0, "/", chunk_id
    )


# The data.


def prepare(folder: Path, passages: int, dimension: int) -> None:
    """Passages whose words and vectors follow the same topics, questions that were taken from some of them, and the truth.

    In parts, because a million of them fit no memory twice.
    """
    chance = np.random.default_rng(passages)
    make = _Maker(chance, dimension)
    chosen = np.sort(chance.choice(passages, QUESTIONS, replace=False))
    vectors = np.lib.format.open_memmap(folder / "vectors.npy", "w+", np.float32, (passages, dimension))
    questions: list[dict[str, str]] = []
    taken: list[Vector] = []
    ids: list[str] = []
    with (folder / "passages.jsonl").open("w") as file:
        for start in range(0, passages, PART):
            texts, part = make.passages(min(PART, passages - start))
            vectors[start : start + len(part)] = part
            names = [
                hashlib.sha256(f"{start + n} {text}".encode()).hexdigest() for n, text in enumerate(texts)
            ]
            ids.extend(names)
            file.writelines(
                f"{json.dumps({'id': name, 'text': text})}\n" for name, text in zip(names, texts, strict=True)
            )
            for n in (int(number) - start for number in chosen if start <= number < start + len(part)):
                questions.append({"text": _question(chance, texts[n]), "target": names[n]})
                taken.append(part[n])
    asked = make.near(np.array(taken))
    (folder / "questions.json").write_text(json.dumps(questions))
    np.save(folder / "questions.npy", asked)
    nearest = [[ids[place] for place in places] for places in _nearest(vectors, asked).tolist()]
    (folder / PREPARED).write_text(json.dumps(nearest))


def _nearest(vectors: Vector, asked: Vector) -> Numbers:
    """Ground truth: the places of the best passages of each question, by an exact matrix product."""
    scores = np.full((len(asked), 0), 0, np.float32)
    places = np.full((len(asked), 0), 0, np.int64)
    for start in range(0, len(vectors), PART):
        part = asked @ vectors[start : start + PART].T
        numbers = np.broadcast_to(np.arange(start, start + part.shape[1]), part.shape)
        scores, places = np.hstack([scores, part]), np.hstack([places, numbers])
        best = np.argsort(-scores, axis=1)[:, : peers.CANDIDATES]
        scores, places = np.take_along_axis(scores, best, 1), np.take_along_axis(places, best, 1)
    return places


class _Maker:
    """Makes texts of 80 to 150 words, most as common as Zipf says and some of the topic; and vectors that are clustered as a
    text embedder's are: by topic, within a subspace, with a little noise everywhere."""

    def __init__(self, chance: np.random.Generator, dimension: int) -> None:
        self._chance = chance
        self._vocabulary = _vocabulary(chance)
        self._of_topic = chance.integers(200, VOCABULARY, size=(CENTRES, TOPIC_WORDS))
        self._likely = np.cumsum(1 / (np.arange(VOCABULARY) + 2.7))
        self._basis = np.linalg.qr(chance.normal(size=(dimension, SUBSPACE)))[0].T.astype(np.float32)
        self._centres = _unit(chance.normal(size=(CENTRES, SUBSPACE)))

    def passages(self, count: int) -> tuple[list[str], Vector]:
        topics = self._chance.integers(CENTRES, size=count)
        return list(self._texts(topics)), self._vectors(topics)

    def near(self, vectors: Vector) -> Vector:
        """The vectors of questions about these passages."""
        return _unit(vectors + 0.6 * _unit(self._chance.normal(size=(len(vectors), SUBSPACE)) @ self._basis))

    def _texts(self, topics: Numbers) -> Iterator[str]:
        lengths = self._chance.integers(80, 151, size=len(topics))
        total = int(lengths.sum())
        common = np.searchsorted(self._likely, self._chance.random(total) * self._likely[-1])
        special = self._of_topic[np.repeat(topics, lengths), self._chance.integers(TOPIC_WORDS, size=total)]
        chosen = np.where(self._chance.random(total) < TOPIC_SHARE, special, common).tolist()
        words = map(self._vocabulary.__getitem__, chosen)
        return (" ".join(itertools.islice(words, length)) for length in lengths.tolist())

    def _vectors(self, topics: Numbers) -> Vector:
        places = self._centres[topics] + 0.6 * _unit(self._chance.normal(size=(len(topics), SUBSPACE)))
        noise = self._chance.standard_normal((len(topics), self._basis.shape[1]), dtype=np.float32)
        return _unit(places @ self._basis + 0.2 * noise / np.sqrt(self._basis.shape[1]))


def _vocabulary(chance: np.random.Generator) -> list[str]:
    """The sample book's words, the common ones first; then rare ones that are made of two of them, as names and terms are."""
    text = " ".join(page.read_text() for page in sorted(SAMPLE_BOOK.glob("*.md")))
    words = [word for word, _ in Counter(re.findall(r"[a-z]{2,}", text.lower())).most_common()]
    made = dict.fromkeys(words)
    pairs = chance.integers(len(words), size=(2 * VOCABULARY, 2)).tolist()
    made |= dict.fromkeys(words[first] + words[second] for first, second in pairs)
    return list(made)[:VOCABULARY]


def _question(chance: np.random.Generator, passage: str) -> str:
    return " ".join(chance.choice(passage.split(), QUESTION_WORDS, replace=False))


def _unit(rows: Any) -> Vector:
    vectors: Vector = (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)
    return vectors


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, nargs="+", default=list(SIZES), help="only these sizes")
    parser.add_argument(
        "--kept", type=Path, help="a folder in which prepared passages are kept for the next run"
    )
    parser.add_argument(
        "--ours", nargs=2, metavar=("SYSTEM", "FOLDER"), help="for internal use by the benchmark"
    )
    arguments = parser.parse_args()
    if arguments.ours:
        asyncio.run(ours(Path(arguments.ours[1]), arguments.ours[0]))
    else:
        asyncio.run(main(arguments.passages, arguments.kept))
