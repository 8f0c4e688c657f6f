"""Mixed-load soak test of one engine: every response has its row, memory stays flat, valid requests stay fast.

Run as `python -m bench.load [--seconds 60]`. 64 connections: half ask valid questions, the others send invalid bodies, omit
the key, or disconnect early. "Alone" means: only the connections with valid questions, as many as in the crowd.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import psycopg

from bench.engine import _free_port as free_port
from bench.results import Figure, record, show
from engine import settings as settings_file
from engine import wiring
from engine.storage.database import Database

CROWD = {"valid": 32, "invalid": 16, "unauthenticated": 8, "leaving": 8}
WARM_UP_S = 3.0
LEAVE_S = 0.03  # clients disconnect within it: about as long as an answer takes
BACK_S = 0.2  # pause before a client reconnects
SAMPLE_S = 1.0
RATIO_MAX = 3.0
GROWTH_MAX = 1.05  # of the last third of the time over the second
UNLIMITED = "1000000/minute"
QUESTIONS = (
    "What does an IMU measure?", "What is passive compliance?", "What is gimbal lock?",
    "Who wrote Pride and Prejudice?", "Why do humanoid robots need an IMU?",
)  # fmt: skip
INVALID = (
    b"{}",
    b'{"query": ""}',
    b"no JSON",
    b'{"query": "a", "top_k": 11}',
    b'{"query": "a", "query": "b"}',
)


@dataclass(slots=True)
class Seen:
    """What the clients saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    left: int = 0
    latencies_ms: list[float] = field(default_factory=list)  # of valid requests
    memory_kb: list[int] = field(default_factory=list)


async def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="affidavit-load-", ignore_cleanup_errors=True) as folder:
        settings = settings_file.load(data_dir=Path(folder))
        async with wiring.open_database(settings, lambda _: None) as database:
            key = await _prepare(database)
            async with _serving(folder) as (pid, port):
                await _crowd(port, key, {"valid": CROWD["valid"]}, WARM_UP_S, pid)
                before = _rows(database)
                alone = await _crowd(port, key, {"valid": CROWD["valid"]}, seconds / 4, pid)
                mixed = await _crowd(port, key, CROWD, seconds, pid)
            figures = list(_figures(alone, mixed, _rows(database) - before))
    for figure in figures:
        show(figure)
    record("load", [asdict(figure) for figure in figures])


def _figures(alone: Seen, mixed: Seen, rows: Counter[int]) -> Iterator[Figure]:
    seen = alone.statuses + mixed.statuses
    for status in sorted(seen):
        yield Figure(f"requests answered with {status}", seen[status], "")
    yield Figure("requests whose client disconnected", mixed.left, "")
    short = sum(max(0, seen[status] - rows[status]) for status in seen)
    yield Figure("responses without a row of that status", short, "0")
    yield Figure("rows minus requests", rows.total() - seen.total() - mixed.left, "0")
    for what, crowd in (("alone", alone), ("in the crowd", mixed)):
        yield Figure(f"valid requests {what}", len(crowd.latencies_ms), "")
        yield Figure(f"valid requests {what}, p50 ms", round(float(np.median(crowd.latencies_ms)), 1), "")
        yield Figure(f"valid requests {what}, p99 ms", _p99(crowd), "")
    yield Figure("p99 in the crowd / alone", round(_p99(mixed) / _p99(alone), 2), f"≤ {RATIO_MAX:.0f}")
    third = len(mixed.memory_kb) // 3
    growth = np.median(mixed.memory_kb[2 * third :]) / np.median(mixed.memory_kb[third : 2 * third])
    yield Figure("memory in the last third / in the second", round(float(growth), 3), f"≤ {GROWTH_MAX}")


async def _prepare(database: Database) -> str:
    settings = database.settings
    await wiring.make_months_ahead(database, wiring.now().date())
    async with wiring.open_ingest(settings, database, lambda *_: None) as ingest:
        await ingest.run([wiring.SAMPLE_BOOK], settings.books.default, wiring.SAMPLE_TITLE)
    async with wiring.open_keys(database) as keys:
        return await keys.create("load", ["ask"], UNLIMITED)


@contextlib.asynccontextmanager
async def _serving(folder: str, workers: int = 1) -> AsyncIterator[tuple[int, int]]:
    """Stopped gracefully at the end, so that the counters in memory are written."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "engine.cli", "serve", "--port", str(port), "--data-dir", folder,
        "--workers", str(workers),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdout
        assert (await process.stdout.readline()).startswith(b"Affidavit is ready")
        yield process.pid, port
    finally:
        process.terminate()
        await process.wait()


async def _crowd(port: int, key: str, kinds: dict[str, int], seconds: float, pid: int) -> Seen:
    seen, until = Seen(), time.monotonic() + seconds
    clients = [_client(kind, port, key, until, seen) for kind, count in kinds.items() for _ in range(count)]
    await asyncio.gather(_watch(pid, until, seen), *clients)
    return seen


async def _client(kind: str, port: int, key: str, until: float, seen: Seen) -> None:
    """One connection, reopened after each disconnect."""
    turns = itertools.cycle(random.sample(QUESTIONS, len(QUESTIONS)))
    while time.monotonic() < until:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while time.monotonic() < until:
                writer.write(_request(kind, key, next(turns)))
                if kind == "leaving":
                    seen.left += 1
                    await asyncio.sleep(random.uniform(0, LEAVE_S))
                    writer.close()
                    await asyncio.sleep(BACK_S)
                    break
                started = time.monotonic()
                seen.statuses[await _status(reader)] += 1
                if kind == "valid":
                    seen.latencies_ms.append((time.monotonic() - started) * 1000)
        writer.close()


def _request(kind: str, key: str, question: str) -> bytes:
    body = random.choice(INVALID) if kind == "invalid" else json.dumps({"query": question}).encode()
    secret = "" if kind == "unauthenticated" else f"Authorization: Bearer {key}\r\n"
    head = f"POST /v1/query HTTP/1.1\r\nHost: load\r\n{secret}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _status(reader: asyncio.StreamReader) -> int:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
    return int(head.split()[1])


async def _watch(pid: int, until: float, seen: Seen) -> None:
    page_kb = os.sysconf("SC_PAGE_SIZE") // 1024
    while time.monotonic() < until:
        seen.memory_kb.append(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page_kb)
        await asyncio.sleep(SAMPLE_S)


def _rows(database: Database) -> Counter[int]:
    with psycopg.connect(database.url) as connection:
        found = connection.execute(
            "SELECT coalesce(http_status, 0), sum(repeat_count) FROM audit_logs WHERE endpoint IN ('/v1/query', 'several') GROUP BY 1"
        ).fetchall()
    return Counter({status: int(count) for status, count in found})


def _p99(seen: Seen) -> float:
    return round(float(np.percentile(seen.latencies_ms, 99)), 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the load")
    asyncio.run(main(parser.parse_args().seconds))
