"""Retrieval benchmark: our hybrid search, two minimal implementations and other frameworks, all in one run.

Run as `python -m bench.retrieval [--passages 1000 5000]`. Every system gets the same passages, vectors and questions, one
thread for numpy and a process of its own. Peers live in .venv-peers (`make bench-peers`); what is not
installed, or too slow for a size, is shown as such. Ours is `Retriever.retrieve` with the vector at hand: words, the hop
to the index worker, both exact scores of the union, calibration, blend, order.
"""

import argparse
import asyncio
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import numpy as np

from bench import peers
from bench.results import RESULTS, Figure, record, show
from engine.evaluation import charts
from engine.models import Calibration, Filters, Generation, Passage, Point, Question, Vector
from engine.ports import Embedder, Index, Library
from engine.providers.edge import EdgeIndex
from engine.retrieval import lexical
from engine.retrieval.calibrate import Weights
from engine.retrieval.retrieve import Retriever

HOUSE = Path(__file__).resolve().parent.parent
PEERS_PYTHON = HOUSE / ".venv-peers" / "bin" / "python"
SAMPLE_BOOK = HOUSE / "config" / "sample-book"
GROWTH = RESULTS.with_name("growth.svg")

SIZES = (1_000, 5_000, 10_000, 100_000)
DIMENSION, DIMENSION_LARGE = 384, 1024
MODULES = {  # what must be importable for each system
    "ours": "engine",
    "bm25s": "bm25s",
    "rank_bm25": "rank_bm25",
    "llama_index": "llama_index",
    "langchain": "langchain_classic",
    "haystack": "haystack",
}
TITLES = {"bm25s": "numpy + bm25s", "rank_bm25": "numpy + rank_bm25", "llama_index": "llama-index"}

LEFT_OUT_S = 60.0  # a peer that is expected to take longer at a size is left out there
STOPPED_S = 900.0  # ours, at the largest size, is built in a few minutes
LEAVES_S = 60.0
LOOK_S = 0.5  # between two looks at a system's memory
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
QUIET = {"HAYSTACK_TELEMETRY_ENABLED": "False", "LANGCHAIN_TRACING_V2": "false", "DO_NOT_TRACK": "1"}

HEARTBEAT_PASSAGES, HEARTBEAT_S, CONCURRENT = 5_000, 0.005, 1_000
IDLE_S = 1.0
QUESTIONS, QUESTION_WORDS = 200, 9
VOCABULARY, CENTRES, SUBSPACE = 30_000, 2_000, 64
TOPIC_WORDS, TOPIC_SHARE = 40, 0.25
BATCH = 1_000
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
    searches_per_s: float | None = None
    failed: int | None = None
    note: str = ""

    @property
    def title(self) -> str:
        return TITLES.get(self.system, self.system)


async def main(sizes: Sequence[int]) -> None:
    rows: list[Row] = []
    for passages in sizes:
        rows.extend(await side_by_side(passages, DIMENSION, list(MODULES), rows))
    if SIZES[-1] in sizes:
        rows.extend(await side_by_side(SIZES[-1], DIMENSION_LARGE, ["ours", "bm25s"], []))
    figures = list(goals(rows))
    print()
    for figure in figures:
        show(figure)
    record("retrieval", [asdict(row) for row in rows] + [asdict(figure) for figure in figures])
    GROWTH.write_text(growth([row for row in rows if row.dimension == DIMENSION]))
    print(f"\nGrowth over the number of passages: {GROWTH.name}")


async def side_by_side(
    passages: int, dimension: int, systems: Sequence[str], earlier: Sequence[Row]
) -> list[Row]:
    """Every system on the same prepared folder, one after the other."""
    print(f"\n{passages:,} passages x {dimension}\n{_HEAD}", flush=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="affidavit-bench-", ignore_cleanup_errors=True) as name:
        prepare(Path(name), passages, dimension)
        for system in systems:
            row = Row(system, passages, dimension)
            smaller = [other for other in earlier if other.system == system]
            row.note = _why_not(smaller[-1], passages) if smaller and system != "ours" else ""
            if not row.note:
                await measure(row, Path(name))
            if row.p50_ms and rows and rows[0].p50_ms:
                row.times_ours = row.p50_ms / rows[0].p50_ms
            rows.append(row)
            print(_line(row), flush=True)
    return rows


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
    module = ("bench.retrieval", "--ours") if row.system == "ours" else ("bench.peers", row.system)
    faults = folder / f"{row.system}.err"
    process = await asyncio.create_subprocess_exec(
        python, "-m", *module, str(folder), cwd=HOUSE, env=os.environ | ONE_THREAD | QUIET,
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
    if row.system == "ours":
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
        figures = [
            Figure(f"ours, p50 ms {at}", _rounded(ours.p50_ms), "≤ 3"),
            *(
                Figure(
                    f"{name}, times ours {at}",
                    _rounded(by_place[name, HEARTBEAT_PASSAGES, DIMENSION].times_ours),
                    "≥ 15",
                )
                for name in ("llama_index", "langchain")
            ),
            Figure(
                f"longest delay of a heartbeat during {CONCURRENT:,} concurrent searches {at}, ms",
                _rounded(ours.heartbeat_ms),
                "≤ 20",
            ),
            Figure("the same on an idle loop, ms", _rounded(ours.idle_heartbeat_ms), ""),
            Figure(f"concurrent searches per second {at}", _rounded(ours.searches_per_s), ""),
            Figure(f"of {CONCURRENT:,} concurrent searches, failed {at}", _rounded(ours.failed), "0"),
        ]
    large = by_place.get(("ours", SIZES[-1], DIMENSION_LARGE))
    if large:
        at = f"at {large.passages:,} x {large.dimension}"
        figures.append(Figure(f"ours, p50 ms {at}", _rounded(large.p50_ms), "≤ 5"))
        figures.append(Figure(f"ours, recall@50 {at}", _rounded(large.recall_at_50), "≥ .98"))
    return figures


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


async def ours(folder: Path) -> None:
    given = peers.read(folder)
    index = EdgeIndex(folder / "index")
    started = time.perf_counter()
    generation = await _filled(index, given)
    peers.say(build_s=time.perf_counter() - started)
    await asyncio.sleep(BUILDER_LEAVES_S)
    exact = _exact(given)
    given = replace(given, vectors=given.vectors[:0].copy())  # the worker has them now
    embedder, library = cast("Embedder", _Known(given)), cast("Library", _Shelf(given))
    weights = Weights(*peers.WEIGHTS)
    retriever = Retriever(embedder, index, library, None, weights, peers.CANDIDATES, within_s=2.0)
    questions = [Question(text, "bench", 5) for text in given.questions]
    for question in questions[: peers.WARM_UP]:
        await retriever.retrieve(question, generation)
    latencies_ms: list[float] = []
    found = []
    for question in peers.clocked(questions, latencies_ms):
        retrieved = await retriever.retrieve(question, generation)
        found.append([item.candidate.chunk_id for item in retrieved.evidence])
    peers.say(latencies_ms=latencies_ms, found_at_5=peers.found_at_5(found, given))
    figures: dict[str, Any] = {"recall_at_50": await _recall(index, generation, given, exact)}
    if len(given.ids) == HEARTBEAT_PASSAGES:
        figures |= await _crowd(retriever, generation, questions)
    peers.say(**figures)
    await asyncio.to_thread(sys.stdin.read)
    await index.close()


async def _filled(index: Index, given: peers.Prepared) -> Generation:
    """Fills the index as an ingest does."""
    words = [lexical.words(text) for text in given.texts]
    lexicon = lexical.lexicon(words)
    generation = Generation(uuid4(), "bench", "known", given.vectors.shape[1], _CALIBRATION, lexicon)
    await index.create(generation.generation_id, generation.dimension)
    for start in range(0, len(words), BATCH):
        points = [
            Point(given.ids[n], given.vectors[n : n + 1], lexical.passage_weights(words[n], lexicon), {})
            for n in range(start, min(start + BATCH, len(words)))
        ]
        await index.upsert(generation.generation_id, points)
    await index.seal(generation.generation_id)
    await index.count(generation.generation_id)  # the serving worker has it open
    return generation


def _exact(given: peers.Prepared) -> list[set[str]]:
    """Ground truth: the best passages of each question, by an exact matrix product."""
    best = []
    for text in given.questions:
        cosines = given.vectors @ given.asked[text]
        best.append({given.ids[n] for n in np.argsort(-cosines)[: peers.CANDIDATES]})
    return best


async def _recall(
    index: Index, generation: Generation, given: peers.Prepared, exact: Sequence[set[str]]
) -> float:
    """Dense search alone: a query without words matches no passage by BM25."""
    found = []
    for text, best in zip(given.questions, exact, strict=True):
        hits = await index.search(
            generation.generation_id, given.asked[text], {}, peers.CANDIDATES, Filters()
        )
        found.append(len(best & {hit.chunk_id for hit in hits}) / len(best))
    return float(np.mean(found))


async def _crowd(
    retriever: Retriever, generation: Generation, questions: Sequence[Question]
) -> dict[str, float]:
    """Starts all searches concurrently, each in its own turn of the loop as requests are, and measures the heartbeat's delay."""
    idle = await _slip_ms(asyncio.sleep(IDLE_S))
    results: list[Any] = []
    started = time.perf_counter()
    heartbeat_ms = await _slip_ms(_all_at_once(retriever, generation, questions, results))
    return {
        "idle_heartbeat_ms": idle,
        "heartbeat_ms": heartbeat_ms,
        "searches_per_s": CONCURRENT / (time.perf_counter() - started),
        "failed": sum(isinstance(result, BaseException) for result in results),
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


class _Known:
    """A stub of an embedder that has every question's vector already."""

    def __init__(self, given: peers.Prepared) -> None:
        self._asked = given.asked

    async def embed_query(self, text: str) -> Vector:
        return self._asked[text]


class _Shelf:
    """A stub of a library with what searching needs."""

    def __init__(self, given: peers.Prepared) -> None:
        self._texts = dict(zip(given.ids, given.texts, strict=True))

    async def passages(self, chunk_ids: Sequence[str]) -> dict[str, Passage]:
        return {name: _passage(name, self._texts[name]) for name in chunk_ids}


def _passage(chunk_id: str, text: str) -> Passage:
    return Passage(
        chunk_id, "bench", "bench", "bench.md", "Bench", "Bench", 0, text, (), "1", "1", 0, 0, "/", chunk_id
    )


# The data.


def prepare(folder: Path, passages: int, dimension: int) -> None:
    """Passages whose words and vectors follow the same topics, and questions that were taken from some of them."""
    chance = np.random.default_rng(passages)
    topics = chance.integers(CENTRES, size=passages)
    texts = list(_texts(chance, topics))
    vectors, basis = _vectors(chance, topics, dimension)
    chosen = chance.choice(passages, QUESTIONS, replace=False)
    asked = _unit(vectors[chosen] + 0.6 * _unit(chance.normal(size=(QUESTIONS, SUBSPACE)) @ basis))
    rows = [
        {"id": hashlib.sha256(f"{n} {text}".encode()).hexdigest(), "text": text}
        for n, text in enumerate(texts)
    ]
    questions = [{"text": _question(chance, texts[n]), "target": rows[n]["id"]} for n in chosen]
    (folder / "passages.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "questions.json").write_text(json.dumps(questions))
    np.save(folder / "vectors.npy", vectors)
    np.save(folder / "questions.npy", asked)


def _texts(chance: np.random.Generator, topics: Numbers) -> Iterator[str]:
    """80 to 150 words each: most as common as Zipf says, some of the topic."""
    vocabulary = np.array(_vocabulary(chance))
    of_topic = chance.integers(200, VOCABULARY, size=(CENTRES, TOPIC_WORDS))
    likely = np.cumsum(1 / (np.arange(VOCABULARY) + 2.7))
    for topic, length in zip(topics, chance.integers(80, 151, size=len(topics)), strict=True):
        common = np.searchsorted(likely, chance.random(length) * likely[-1])
        special = chance.choice(of_topic[topic], length)
        yield " ".join(vocabulary[np.where(chance.random(length) < TOPIC_SHARE, special, common)])


def _vocabulary(chance: np.random.Generator) -> list[str]:
    """The sample book's words, the common ones first; then rare ones that are made of two of them, as names and terms are."""
    text = " ".join(page.read_text() for page in sorted(SAMPLE_BOOK.glob("*.md")))
    words = [word for word, _ in Counter(re.findall(r"[a-z]{2,}", text.lower())).most_common()]
    made = dict.fromkeys(words)
    while len(made) < VOCABULARY:
        made["".join(chance.choice(words, 2))] = None
    return list(made)


def _vectors(chance: np.random.Generator, topics: Numbers, dimension: int) -> tuple[Vector, Vector]:
    """Clustered as a text embedder's are: by topic, within a subspace, with a little noise everywhere."""
    basis = np.linalg.qr(chance.normal(size=(dimension, SUBSPACE)))[0].T.astype(np.float32)
    centres = _unit(chance.normal(size=(CENTRES, SUBSPACE)))
    places = centres[topics] + 0.6 * _unit(chance.normal(size=(len(topics), SUBSPACE)))
    noise = chance.standard_normal((len(topics), dimension), dtype=np.float32)
    return _unit(places @ basis + 0.2 * noise / np.sqrt(dimension)), basis


def _question(chance: np.random.Generator, passage: str) -> str:
    return " ".join(chance.choice(passage.split(), QUESTION_WORDS, replace=False))


def _unit(rows: Any) -> Vector:
    vectors: Vector = (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)
    return vectors


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, nargs="+", default=list(SIZES), help="only these sizes")
    parser.add_argument("--ours", type=Path, help="a prepared folder; for internal use by the benchmark")
    arguments = parser.parse_args()
    asyncio.run(ours(arguments.ours) if arguments.ours else main(arguments.passages))
