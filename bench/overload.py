"""Ten times the load that one process can take: what is answered, how soon the others are refused, and who is served.

Run as `python -m bench.overload [--seconds 20] [--times 10]`. The engine is `affidavit serve` with everything embedded and the sample book. The
best throughput is that of 32 connections that ask one question after the other, right before and right after. Then
requests arrive at random moments (bench/open_loop.py), ten times as many as that, from five clients: one asks ten times as
often as three others, and one asks little. All of it runs on this machine; the generator's share of its cores is a figure.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from bench import client as closed_loop
from bench import open_loop
from bench.engine import HOUSE, run
from bench.load import QUESTIONS, UNLIMITED, WARM_UP_S
from bench.load import _prepare as prepare
from bench.load import _request as request
from bench.load import _serving as serving
from bench.results import Figure, record, show
from engine import settings as settings_file
from engine import wiring
from engine.storage.database import Database

AT_ONCE = 32
GREEDY, OTHERS, MODEST = "greedy", ("one", "two", "three"), "modest"
GREED = 10
MODEST_SHARE = 0.1  # of the best: less than its fair share, so all of its questions should be answered
LOOK_S = 0.05
REFUSED_MAX_MS, ANSWERED_MAX_MS = 50, 5000


@dataclass(frozen=True, slots=True)
class Offered:
    """What the clients saw of the overload."""

    latencies_ms: dict[str, dict[str, list[float]]]
    retry_after_s: list[int]
    late_ms: list[float]
    unanswered: int
    seconds: float
    cpu_s: float

    def of(self, status: str, *clients: str) -> list[float]:
        names = clients or self.latencies_ms
        return [each for name in names for each in self.latencies_ms[name].get(status, [])]

    @property
    def statuses(self) -> Counter[str]:
        return Counter(
            {status: len(self.of(status)) for client in self.latencies_ms.values() for status in client}
        )


async def main(seconds: float, times: float, workers: int) -> None:
    os.environ["AFFIDAVIT_SERVER__TRUSTED_PROXIES"] = (
        "127.0.0.0/8"  # each client stands for a site's server with many readers
    )
    with tempfile.TemporaryDirectory(prefix="affidavit-overload-", ignore_cleanup_errors=True) as folder:
        settings = settings_file.load(data_dir=Path(folder))
        async with wiring.open_database(settings, lambda _: None) as database:
            keys = await _keys(database)
            async with serving(folder, workers) as (pid, port):
                before = _rows(database)
                best, offered, beats_ms, busy_s, asked = await _measured(port, pid, keys, seconds, times)
            rows = _rows(database) - before
    figures = list(_figures(best, offered, beats_ms, busy_s, rows.total() - asked))
    for figure in figures:
        show(figure)
    if times == 10 and workers == 1:
        record("overload", [asdict(figure) for figure in figures])


async def _keys(database: Database) -> dict[str, str]:
    await prepare(database)
    async with wiring.open_keys(database) as keys:
        return {name: await keys.create(name, ["ask"], UNLIMITED) for name in (GREEDY, *OTHERS, MODEST)}


async def _measured(
    port: int, pid: int, keys: dict[str, str], seconds: float, times: float
) -> tuple[float, Offered, list[float], float, int]:
    """The best rate, the overload, a heartbeat through it, the engine's CPU time, and how many requests there were in all."""
    warm = await _closed(port, keys[MODEST], WARM_UP_S)
    before = await _closed(port, keys[MODEST], seconds / 2)
    assumed = len(before.latencies_ms) / before.seconds
    began_s = _cpu_s(pid)
    beating = asyncio.create_task(_heartbeat(port))
    offered = await _offered(port, _clients(keys, assumed, times), seconds)
    beating.cancel()
    beats_ms = await beating
    busy_s = (_cpu_s(pid) - began_s) / offered.seconds
    after = await _closed(port, keys[MODEST], seconds / 2)
    answered = len(before.latencies_ms) + len(after.latencies_ms)
    best = answered / (before.seconds + after.seconds)
    asked = answered + len(warm.latencies_ms) + offered.statuses.total()
    return best, offered, beats_ms, busy_s, asked


async def _closed(port: int, key: str, seconds: float) -> closed_loop.Seen:
    job = closed_loop.Job(port, _requests(key), AT_ONCE, seconds)
    return await asyncio.to_thread(run, job)


def _requests(key: str) -> list[str]:
    return [request("valid", key, question).decode() for question in QUESTIONS]


def _clients(keys: dict[str, str], best: float, times: float) -> list[open_loop.Client]:
    each = (times - MODEST_SHARE) * best / (GREED + len(OTHERS))
    rates = {GREEDY: GREED * each, **dict.fromkeys(OTHERS, each), MODEST: MODEST_SHARE * best}
    return [
        open_loop.Client(name, f"127.0.0.{10 + number}", _requests(keys[name]), rate)
        for number, (name, rate) in enumerate(rates.items())
    ]


async def _offered(port: int, clients: list[open_loop.Client], seconds: float) -> Offered:
    job = json.dumps(asdict(open_loop.Job(port, clients, seconds))).encode()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.open_loop", stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=HOUSE
    )
    said, _ = await process.communicate(job)
    return Offered(**json.loads(said))


async def _heartbeat(port: int) -> list[float]:
    """How long `/healthz` takes beside the load, until it is cancelled."""
    beats_ms: list[float] = []
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(asyncio.CancelledError, OSError), contextlib.closing(writer):
        while True:
            began = time.monotonic()
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
            beats_ms.append((time.monotonic() - began) * 1000)
            await asyncio.sleep(LOOK_S)
    return beats_ms


def _figures(
    best: float, offered: Offered, beats_ms: list[float], busy_s: float, rows_more: int
) -> Iterator[Figure]:
    answered, refused = offered.of("200"), offered.of("503")
    asked = offered.statuses.total()
    yield Figure("answers a second at best, 32 connections", round(best, 1), "")
    yield Figure("questions offered / best", round(asked / offered.seconds / best, 1), "10")
    yield Figure("answers a second / best", round(len(answered) / offered.seconds / best, 3), "≥ 0.9")
    yield Figure("answered", len(answered), "")
    yield Figure("refused with 503", len(refused), "")
    yield Figure("other ends, and no end", asked - len(answered) - len(refused) + offered.unanswered, "0")
    yield Figure("refused without Retry-After", len(refused) - len(offered.retry_after_s), "0")
    for percent in (50, 99):
        yield Figure(f"a refusal, p{percent} ms", _at(percent, refused), f"≤ {REFUSED_MAX_MS}")
    yield Figure("refusals within 50 ms", round(float(np.mean(np.array(refused) <= REFUSED_MAX_MS)), 4), "1")
    yield Figure("an answer, p50 ms", _at(50, answered), "")
    yield Figure("the latest answer, ms", _at(100, answered), f"≤ {ANSWERED_MAX_MS}")
    yield Figure("rows minus requests", rows_more, "0")
    yield from _fairness(offered)
    yield Figure("a /healthz beside it, p50 ms", _at(50, beats_ms), "")
    yield Figure("a /healthz beside it, p99 ms", _at(99, beats_ms), "")
    yield Figure("cores used by the engine's process", round(busy_s, 2), "")
    yield Figure("cores used by the generator", round(offered.cpu_s / offered.seconds, 2), "")
    yield Figure("the generator asked late by, p99 ms", _at(99, offered.late_ms), "")


def _fairness(offered: Offered) -> Iterator[Figure]:
    """Each that asks for more than its share gets the same; one that asks for less gets all."""
    answered = {name: len(offered.of("200", name)) for name in (*OTHERS, GREEDY)}
    for name, count in answered.items():
        yield Figure(f"answers to the client {name}, who offered {_asked(offered, name)}", count, "")
    yield Figure(
        "fewest answers of a client / most",
        round(min(answered.values()) / max(answered.values()), 2),
        "≥ 0.8",
    )
    share = len(offered.of("200", MODEST)) / _asked(offered, MODEST)
    yield Figure("answered of the client who asks little", round(share, 3), "≥ 0.99")


def _asked(offered: Offered, name: str) -> int:
    return sum(map(len, offered.latencies_ms[name].values()))


def _rows(database: Database) -> Counter[int]:
    with psycopg.connect(database.url) as connection:
        found: list[Any] = connection.execute(
            "SELECT coalesce(http_status, 0), sum(repeat_count) FROM audit_logs"
            " WHERE endpoint IN ('/v1/query', 'several') GROUP BY 1"
        ).fetchall()
    return Counter({status: int(count) for status, count in found})


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _at(percent: int, values: list[float]) -> float:
    return round(float(np.percentile(values, percent)), 1) if values else 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of the overload")
    parser.add_argument(
        "--times", type=float, default=10.0, help="how many times the best throughput is offered"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes that serve")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.seconds, arguments.times, arguments.workers))
