"""Latency and throughput of the engine itself: the upstreams are stubs that answer at once, and everything else is real.

Run as `python -m bench.engine [--seconds 10]`. The engine is `affidavit serve` with Cohere and Claude through their SDKs; its
PostgreSQL and its index are the embedded ones, with the sample book. The upstreams, the client and a bare FastAPI route that
returns the same JSON are processes of their own, all on this machine.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from bisect import bisect
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import httpx
import numpy as np
import psycopg
import uvicorn
from fastapi import FastAPI

from bench import upstreams
from bench.client import Job, Seen
from bench.results import Figure, record, show
from engine import settings as settings_file
from engine import wiring
from engine.settings import Settings
from engine.storage.database import Database

HOUSE = Path(__file__).resolve().parent.parent
PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

CROWDS = {8: "", 32: "≥ 120"}  # concurrent requests, and the goal per second
OWN_MS = 5.0  # the engine's own share of a request, besides its commits
COMMITS_OF_A_REQUEST = 2
COMMITS = 500
WARM_UP_S = 3.0
READY_S = 60.0
LOOK_S = 0.05
QUESTIONS_MIN = 20  # fewer would say little about the book
UNLIMITED = "1000000/minute"

Numbers = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Engine:
    """The running engine, the processes around it, the requests, and a sample answer."""

    data: Path
    pid: int
    port: int
    upstreams_pid: int
    upstreams_port: int
    headers: dict[str, str]
    questions: list[str]
    answer: str


async def main(seconds: float) -> None:
    async with serving() as (engine, database):
        figures = list(shown(measured(engine, database, seconds)))
    async with serving(options=("--workers", "2")) as (engine, _):
        figures += shown(_by_workers(engine, seconds))
    record("engine", [asdict(figure) for figure in figures])


@contextlib.asynccontextmanager
async def serving(
    module: Sequence[str] = ("engine.cli",), *, has_vendors: bool = True, options: Sequence[str] = ()
) -> AsyncIterator[tuple[Engine, Database]]:
    """The engine with the sample book, with Claude and Cohere or as the embedded default."""
    with (
        tempfile.TemporaryDirectory(prefix="affidavit-bench-", ignore_cleanup_errors=True) as folder,
        _running("bench.upstreams", "{port}") as (upstreams_pid, upstreams_port),
    ):
        vendors = _providers(f"http://127.0.0.1:{upstreams_port}") if has_vendors else {}
        environment = os.environ | vendors
        settings = settings_file.load(environment, data_dir=Path(folder))
        async with wiring.open_database(settings, lambda _: None) as database:
            headers = {"Authorization": f"Bearer {await _prepare(settings, database)}"}
            serve = (*module, "serve", "--port", "{port}", "--data-dir", folder, *options)
            with _running(*serve, environment=environment) as (pid, port):
                asked = _asked(port, headers)
                yield (
                    Engine(Path(folder), pid, port, upstreams_pid, upstreams_port, headers, *asked),
                    database,
                )
        _wait_for_index_worker(Path(folder))


def measured(engine: Engine, database: Database, seconds: float) -> Iterator[Figure]:
    run(job(engine, 1, WARM_UP_S))
    commit_ms, upstreams_ms = _commit_ms(database), _upstreams_ms(engine.upstreams_port, seconds)
    yield Figure("a bare commit on this disk, p50 ms", round(commit_ms, 2), "")
    yield Figure(
        "the upstreams called directly, an embedding and a message, p50 ms", round(upstreams_ms, 2), ""
    )
    alone, busy = busy_cores(engine, job(engine, 1, seconds))
    added_ms = np.array(alone.latencies_ms) - upstreams_ms
    yield from _added(added_ms, OWN_MS + COMMITS_OF_A_REQUEST * commit_ms)
    yield from _cores(busy, "one at a time")
    first_ms = _first_sentences_ms(engine, seconds)
    for percent in (50, 99):
        what = f"from a complete cited block to the first proven sentence, p{percent} ms"
        yield Figure(what, at_percent(percent, first_ms), "≤ 20")
    crowds = {}
    for at_once, goal in CROWDS.items():
        crowds[at_once], busy = busy_cores(engine, job(engine, at_once, seconds))
        yield from _crowd(crowds[at_once], at_once, goal)
        yield from _cores(busy, f"{at_once} at a time")
        if busy:
            each_ms = 1000 * busy["engine"] / _rate(crowds[at_once])
            yield Figure(
                f"the engine's time on a core for a request, {at_once} at a time, ms", round(each_ms, 2), ""
            )
    yield from _beside(engine, seconds, added_ms, crowds)
    yield Figure("requests that failed", sum(seen.failed for seen in (alone, *crowds.values())), "0")


def _added(added_ms: Numbers, goal_ms: float) -> Iterator[Figure]:
    what = "the engine adds, one request at a time"
    commits = f"{OWN_MS:.0f} and {COMMITS_OF_A_REQUEST} commits"
    yield Figure(f"{what}, p50 ms", at_percent(50, added_ms), f"≤ {goal_ms:.1f} ({commits})")
    yield Figure(f"{what}, p99 ms", at_percent(99, added_ms), f"≤ {3 * goal_ms:.1f} (3 times that)")


def _crowd(seen: Seen, at_once: int, goal: str) -> Iterator[Figure]:
    yield Figure(f"requests per second, {at_once} at a time", _rate(seen), goal)
    for percent in (50, 99):
        yield Figure(
            f"a request, {at_once} at a time, p{percent} ms", at_percent(percent, seen.latencies_ms), ""
        )


def _by_workers(engine: Engine, seconds: float) -> Iterator[Figure]:
    """Two processes that serve: what both cores give, although the database, the client and the stubs are on them too."""
    run(job(engine, 32, WARM_UP_S))
    seen = run(job(engine, 32, seconds))
    yield Figure("two workers: requests per second, 32 at a time", _rate(seen), "≥ 300")
    yield Figure("two workers: requests that failed", seen.failed, "0")


def _cores(busy: Mapping[str, float], when: str) -> Iterator[Figure]:
    for name, cores in busy.items():
        yield Figure(f"cores used by the {name}, {when}", round(cores, 2), "")


def _beside(
    engine: Engine, seconds: float, added_ms: Numbers, crowds: Mapping[int, Seen]
) -> Iterator[Figure]:
    """The baseline: a bare route that returns the same JSON, under the same client."""
    file = engine.data / "answer.json"
    file.write_text(engine.answer)
    with _running("bench.engine", "--bare", str(file), "{port}") as (_, port):
        alone = run(job(engine, 1, seconds, port=port))
        assert not alone.failed
        bare_ms = at_percent(50, alone.latencies_ms)
        yield Figure("a bare FastAPI route with the same JSON, p50 ms", bare_ms, "")
        yield Figure(
            "the engine adds / the bare route takes", round(at_percent(50, added_ms) / bare_ms, 1), ""
        )
        for at_once, crowd in crowds.items():
            rate = _rate(run(job(engine, at_once, seconds, port=port)))
            yield Figure(f"bare route, requests per second, {at_once} at a time", rate, "")
            what = f"bare route / engine, requests per second, {at_once} at a time"
            yield Figure(what, round(rate / _rate(crowd), 1), "")


def shown(figures: Iterable[Figure]) -> Iterator[Figure]:
    for figure in figures:
        show(figure)
        yield figure


def _providers(address: str) -> dict[str, str]:
    return {
        "AFFIDAVIT_PROVIDERS__EMBEDDER": "cohere",
        "AFFIDAVIT_PROVIDERS__GENERATOR": "claude",
        "COHERE_API_KEY": "none",
        "COHERE_BASE_URL": address,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_BASE_URL": address,
    }


async def _prepare(settings: Settings, database: Database) -> str:
    """Publishes the sample book and creates a key for it."""
    await wiring.make_months_ahead(database, wiring.now().date())
    async with wiring.open_ingest(settings, database, lambda *_: None) as ingest:
        await ingest.run([wiring.SAMPLE_BOOK], settings.books.default, wiring.SAMPLE_TITLE)
    async with wiring.open_keys(database) as keys:
        return await keys.create("bench", ["ask"], UNLIMITED)


def _asked(port: int, headers: dict[str, str]) -> tuple[list[str], str]:
    """Questions about the book's headings that are answered, so that each runs the whole pipeline; and one answer."""
    pages = "\n".join(page.read_text() for page in sorted(wiring.SAMPLE_BOOK.glob("*.md")))
    questions, answer = [], ""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=READY_S) as client:
        _wait_until_ready(client)
        for heading in re.findall(r"^## (.+)$", pages, re.MULTILINE):
            question = f"What is said about {heading}?"
            response = client.post("/v1/query", json={"query": question}).raise_for_status()
            if response.json()["outcome"] == "answered":
                questions.append(question)
                answer = response.text
    assert len(questions) >= QUESTIONS_MIN, "The engine answers too few of the questions to measure it."
    return questions, answer


def job(
    engine: Engine, at_once: int, seconds: float, *, port: int = 0, accept: str = "application/json"
) -> Job:
    headers = engine.headers | {"Accept": accept}
    bodies = [json.dumps({"query": question}) for question in engine.questions]
    requests = [_request("/v1/query", body, headers) for body in bodies]
    return Job(port or engine.port, requests, at_once, seconds)


def _request(path: str, body: str, headers: Mapping[str, str] | None = None) -> str:
    lines = [f"{name}: {value}\r\n" for name, value in (headers or {}).items()]
    return (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n{''.join(lines)}"
        f"Content-Length: {len(body.encode())}\r\n\r\n{body}"
    )


def run(job: Job) -> Seen:
    """Runs the client in a process of its own and returns its results."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.client"], input=json.dumps(asdict(job)), stdout=subprocess.PIPE,
        text=True, check=True, cwd=HOUSE,
    )  # fmt: skip
    return Seen(**json.loads(done.stdout))


def busy_cores(engine: Engine, job: Job) -> tuple[Seen, dict[str, float]]:
    """Runs the client and measures how many cores each part uses, if the system reports it."""
    before = _cpu_s(engine)
    seen = run(job)
    used = {name: after_s - before[name] for name, after_s in _cpu_s(engine).items()}
    return seen, {name: used_s / seen.seconds for name, used_s in (used | {"client": seen.cpu_s}).items()}


def _cpu_s(engine: Engine) -> dict[str, float]:
    """CPU time of each part so far. PostgreSQL has a process for each connection, so they are listed anew each time."""
    if not PROC.exists():
        return {}
    stats = [_stat(path) for path in PROC.glob("[0-9]*/stat")]
    server = int((engine.data / "postgres" / "postmaster.pid").read_text().split()[0])
    own = {engine.pid: "engine", engine.upstreams_pid: "upstreams"}
    if worker := _index_worker(engine.data):
        own[worker] = "index worker"
    used = dict.fromkeys((*own.values(), "database"), 0.0)
    for pid, parent, cpu_s in stats:
        if name := own.get(pid, "database" if server in (pid, parent) else None):
            used[name] += cpu_s
    return used


def _stat(path: Path) -> tuple[int, int, float]:
    """A process, its parent, and its CPU time."""
    try:
        fields = path.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return 0, 0, 0.0
    return int(path.parent.name), int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _commit_ms(database: Database) -> float:
    """One durable commit of one row."""
    latencies_ms = []
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = on")
        connection.execute("CREATE TABLE bench (row integer)")
        for row in range(COMMITS):
            started = time.monotonic()
            connection.execute("INSERT INTO bench VALUES (%s)", (row,))
            latencies_ms.append((time.monotonic() - started) * 1000)
        connection.execute("DROP TABLE bench")
    return float(np.median(latencies_ms))


def _upstreams_ms(port: int, seconds: float) -> float:
    """Replays the last embedding and the last message of the engine."""
    asked = _from_upstreams(port, upstreams.ASKED)
    jobs = [Job(port, [_request(path, body)], 1, seconds / 2) for path, body in asked.items()]
    return sum(float(np.median(run(job).latencies_ms)) for job in jobs)


def _first_sentences_ms(engine: Engine, seconds: float) -> list[float]:
    """The time from the upstream's complete first block to the first sentence at the client."""
    _from_upstreams(engine.upstreams_port, upstreams.TIMES)
    seen = run(job(engine, 1, seconds, accept="text/event-stream"))
    written = _from_upstreams(engine.upstreams_port, upstreams.TIMES)
    return [(came - written[bisect(written, came) - 1]) * 1000 for came in seen.first_sentences]


def _from_upstreams(port: int, path: str) -> Any:
    return httpx.get(f"http://127.0.0.1:{port}{path}").json()


@contextlib.contextmanager
def _running(*command: str, environment: Mapping[str, str] = os.environ) -> Iterator[tuple[int, int]]:
    """Starts a module of ours as a server process; yields its pid and its port."""
    port = _free_port()
    words = [word.format(port=port) for word in command]
    with tempfile.TemporaryFile() as log:  # it has a line for each request
        process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=HOUSE, env=environment, stdout=log, stderr=log
        )
        try:
            _wait_for(process, port, log)
            yield process.pid, port
        finally:
            process.terminate()
            process.wait(READY_S)


def _wait_for(process: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    until = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(LOOK_S)
    log.seek(0)
    raise AssertionError(f"No server responds on port {port}. It printed: {log.read().decode()}")


def _wait_until_ready(client: httpx.Client) -> None:
    """A server with workers takes connections before the first of them is ready."""
    until = time.monotonic() + READY_S
    while client.get("/readyz").status_code != httpx.codes.OK and time.monotonic() < until:
        time.sleep(LOOK_S)


def _wait_for_index_worker(data: Path) -> None:
    """Waits for the index worker, which outlives its last client and must not write into a deleted folder."""
    while _index_worker(data):
        time.sleep(LOOK_S)


def _index_worker(data: Path) -> int | None:
    """Finds the worker by its command line, so as not to depend on the format of its lock file."""
    for path in PROC.glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if "engine.providers.edge_worker" in words and str(data / "index") in words:
                return int(path.parent.name)
    return None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def at_percent(percent: int, values: Numbers | Sequence[float]) -> float:
    return round(float(np.percentile(values, percent)), 2)


def _rate(seen: Seen) -> float:
    return round(len(seen.latencies_ms) / seen.seconds, 1)


def bare(file: Path, port: int) -> None:
    """The simplest route that reads a question and returns the same JSON."""
    app = FastAPI()
    answer = json.loads(file.read_text())

    @app.post("/v1/query")
    async def query(body: dict[str, Any]) -> dict[str, Any]:
        assert body["query"]
        return answer  # type: ignore[no-any-return]  # an object

    uvicorn.run(app, port=port, log_level="warning")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each measurement lasts")
    parser.add_argument("--bare", nargs=2, metavar=("FILE", "PORT"), help="for internal use by the benchmark")
    arguments = parser.parse_args()
    if arguments.bare:
        bare(Path(arguments.bare[0]), int(arguments.bare[1]))
    else:
        asyncio.run(main(arguments.seconds))
