"""Hostile clients beside legitimate ones: what a flood without keys, idle connections and slow clients take away.

Run as `python -m bench.hostile [--seconds 60]`. Eight legitimate clients ask one question after the other, half of them on a new
connection each time: undisturbed, and beside each attack. Attackers run in a process of their own and come from another
address, except where they share it. "Alone" is measured right before and after each attack, on the same server.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from bench.engine import _free_port as free_port
from bench.load import QUESTIONS, WARM_UP_S
from bench.load import _prepare as prepare
from bench.load import _request as request
from bench.load import _status as status
from bench.results import Figure, record, show
from engine import settings as settings_file
from engine import wiring

CLIENTS = 8
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.66"
IDLE, FLOODING, SLOW, READERS = 3000, 200, 300, 64
AGAIN_S = 5.0  # before an attacker opens a connection again
DROP_S = 1.0  # between two bytes of a slow client
GIVE_UP_S = 30.0
SHARE_MIN, P99_MAX_MS, LOG_MAX_BYTES = 0.7, 5100, 1_000_000
LATE_MS = 5100

Attacker = Callable[[int, str, str], Coroutine[None, None, None]]


@dataclass(frozen=True, slots=True)
class Attack:
    """What is done, from where, to a server with so many descriptors and workers."""

    name: str
    kind: str
    address: str = ELSEWHERE
    descriptors: int = 1024
    workers: int = 1


ATTACKS = (
    Attack("a flood without keys", "flood"),
    Attack("3,000 idle connections, 1,024 descriptors", "idle"),
    Attack("3,000 idle connections, 1,024 descriptors, the same address", "idle", address=HERE),
    Attack("3,000 idle connections, 64 descriptors", "idle", descriptors=64),
    Attack("3,000 idle connections, 64 descriptors, the same address", "idle", HERE, descriptors=64),
    Attack("slow heads, bodies and readers", "slow"),
    Attack("3,000 idle connections, 2 workers", "idle", workers=2),
)


@dataclass(slots=True)
class Seen:
    """What the legitimate clients saw."""

    latencies_ms: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    cut_off: int = 0

    def plus(self, other: "Seen") -> "Seen":
        return Seen(
            self.latencies_ms + other.latencies_ms,
            self.statuses + other.statuses,
            self.cut_off + other.cut_off,
        )


async def main(seconds: float, chosen: str) -> None:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="affidavit-hostile-", ignore_cleanup_errors=True) as folder:
        settings = settings_file.load(data_dir=Path(folder))
        async with wiring.open_database(settings, lambda _: None) as database:
            key = await prepare(database)
            for attack in ATTACKS:
                if chosen in attack.name:
                    figures += [figure async for figure in _figures(attack, folder, key, seconds)]
    if not chosen:
        record("hostile", [asdict(figure) for figure in figures])


async def _figures(attack: Attack, folder: str, key: str, seconds: float) -> AsyncIterator[Figure]:
    with tempfile.TemporaryFile() as log:
        async with _serving(folder, attack, log.fileno()) as port:
            await _ask_all(port, key, WARM_UP_S)
            alone = await _ask_all(port, key, seconds / 8)
            async with _attacked(attack, port, key):
                before = os.fstat(log.fileno()).st_size
                disturbed = await _ask_all(port, key, seconds)
            alone = alone.plus(await _ask_all(port, key, seconds / 8))
        grown = _grown(log, before)
    for figure in _compared(attack.name, alone, disturbed, seconds, grown):
        show(figure)
        yield figure


def _compared(name: str, alone: Seen, disturbed: Seen, seconds: float, grown: int) -> Iterator[Figure]:
    rate, rate_alone = disturbed.statuses[200] / seconds, alone.statuses[200] / (seconds / 4)
    late = sum(latency > LATE_MS for latency in disturbed.latencies_ms)
    yield Figure(f"{name}: answers a second, alone", round(rate_alone, 1), "")
    yield Figure(f"{name}: answers / alone", round(rate / rate_alone, 2), f"≥ {SHARE_MIN}")
    yield Figure(f"{name}: p99 ms, alone", _p99(alone), "")
    yield Figure(f"{name}: p99 ms", _p99(disturbed), f"≤ {P99_MAX_MS}")
    yield Figure(f"{name}: late replies", late, "")
    yield Figure(f"{name}: other statuses", sum(disturbed.statuses.values()) - disturbed.statuses[200], "")
    yield Figure(f"{name}: cut off", disturbed.cut_off, "")
    yield Figure(f"{name}: bytes of log but for legitimate requests", grown, f"≤ {LOG_MAX_BYTES}")


def _grown(log: IO[bytes], before: int) -> int:
    """Without the lines of the legitimate requests, one for each, of which a faster server writes more."""
    log.seek(before)
    return sum(len(line) for line in log if b'"status": 200' not in line)


def _p99(seen: Seen) -> float:
    return round(float(np.percentile(seen.latencies_ms, 99)), 1)


@contextlib.asynccontextmanager
async def _serving(folder: str, attack: Attack, log: int) -> AsyncIterator[int]:
    port = free_port()
    limits = (attack.descriptors, attack.descriptors)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "engine.cli", "serve", "--port", str(port), "--data-dir", folder,
        "--workers", str(attack.workers), stdout=asyncio.subprocess.PIPE, stderr=log,
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, limits),
    )  # fmt: skip
    try:
        assert process.stdout
        assert (await process.stdout.readline()).startswith(b"Affidavit is ready")
        yield port
    finally:
        process.terminate()
        await process.wait()


# The legitimate clients


async def _ask_all(port: int, key: str, seconds: float) -> Seen:
    seen, until = Seen(), time.monotonic() + seconds
    await asyncio.gather(
        *(_client(port, key, until, seen, keeps_alive=number % 2 == 0) for number in range(CLIENTS))
    )
    return seen


async def _client(port: int, key: str, until: float, seen: Seen, *, keeps_alive: bool) -> None:
    """Asks one question after the other; a question that was cut off on an old connection is asked again on a new one."""
    turns = itertools.cycle(random.sample(QUESTIONS, len(QUESTIONS)))
    writer: asyncio.StreamWriter | None = None
    while (started := time.monotonic()) < until:
        try:
            async with asyncio.timeout(GIVE_UP_S):
                if writer is None:
                    reader, writer = await asyncio.open_connection(HERE, port)
                writer.write(request("valid", key, next(turns)))
                seen.statuses[await status(reader)] += 1
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            seen.cut_off += 1
        seen.latencies_ms.append((time.monotonic() - started) * 1000)
        if writer and (not keeps_alive or writer.is_closing() or reader.at_eof()):
            writer.close()
            writer = None
    if writer:
        writer.close()


# The attackers, in a process of their own


@contextlib.asynccontextmanager
async def _attacked(attack: Attack, port: int, key: str) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.hostile",
        "--attack",
        json.dumps([attack.kind, port, attack.address, key]),
    )
    await asyncio.sleep(WARM_UP_S)
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def attack_for_ever(kind: str, port: int, address: str, key: str) -> None:
    kinds: dict[str, list[tuple[Attacker, int]]] = {
        "flood": [(_flood, FLOODING)],
        "idle": [(_idle, IDLE)],
        "slow": [(_slow_head, SLOW), (_slow_body, SLOW), (_slow_reader, READERS)],
    }
    attacks = [partial(attacker, port, address, key) for attacker, count in kinds[kind] for _ in range(count)]
    await asyncio.gather(*map(_again, attacks))


async def _again(attack: Callable[[], Coroutine[None, None, None]]) -> None:
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await attack()
        await asyncio.sleep(random.uniform(0.5, 1.5) * AGAIN_S)


async def _flood(port: int, address: str, _: str) -> None:
    reader, writer = await asyncio.open_connection(HERE, port, local_addr=(address, 0))
    with contextlib.closing(writer):
        while True:
            writer.write(request("unauthenticated", "", QUESTIONS[0]))
            await status(reader)


async def _idle(port: int, address: str, _: str) -> None:
    reader, writer = await asyncio.open_connection(HERE, port, local_addr=(address, 0))
    with contextlib.closing(writer):
        await reader.read()


async def _slow_head(port: int, address: str, _: str) -> None:
    await _drip(port, address, b"POST /v1/query HTTP/1.1\r\nHost: x\r\nX-A: ")


async def _slow_body(port: int, address: str, _: str) -> None:
    await _drip(port, address, b"POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")


async def _drip(port: int, address: str, begin: bytes) -> None:
    reader, writer = await asyncio.open_connection(HERE, port, local_addr=(address, 0))
    with contextlib.closing(writer):
        writer.write(begin)
        while not reader.at_eof():
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(DROP_S)


async def _slow_reader(port: int, address: str, key: str) -> None:
    """Asks for a stream and reads it byte by byte."""
    reader, writer = await asyncio.open_connection(HERE, port, local_addr=(address, 0), limit=1)
    head = (
        f"POST /v1/query HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nAccept: text/event-stream\r\n"
    )
    body = json.dumps({"query": QUESTIONS[0]})
    with contextlib.closing(writer):
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        while not reader.at_eof():
            await reader.read(1)
            await asyncio.sleep(DROP_S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each attack")
    parser.add_argument(
        "--only", default="", help="the attacks whose names contain this; their figures are not kept"
    )
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attack:
        asyncio.run(attack_for_ever(*json.loads(arguments.attack)))
    else:
        asyncio.run(main(arguments.seconds, arguments.only))
