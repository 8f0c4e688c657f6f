"""One request's time, accounted: ten parts that add up to what the client measures; and counts that no machine changes.

Run as `python -m bench.account [--seconds 5]`. The engine is `affidavit serve` with taps (bench/taps.py), asked one question
at a time: the embedded default, and with Claude and Cohere, whose stubs answer at once.
"""

import argparse
import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from bench import taps
from bench.client import Seen
from bench.engine import WARM_UP_S, Engine, job, run, serving, shown
from bench.results import Figure, record
from engine.storage.database import Database

SHAPES = {"embedded": False, "Claude": True}
TOLD_S = 1.5
NS_PER_MS = 1e6

_COUNTED = """
SELECT xact_commit, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')
FROM pg_stat_database WHERE datname = current_database()
"""


@dataclass(frozen=True, slots=True)
class Account:
    """What the taps have seen of these requests, and what the client and the database have."""

    shape: str
    taps: dict[str, Any]
    seen: Seen
    commits: float
    wal_bytes: float

    @property
    def requests(self) -> int:
        return len(self.seen.latencies_ms)

    def spent_ms(self, part: str, place: int) -> float:
        return float(self.taps["spent_ns"].get(part, (0, 0))[place]) / NS_PER_MS / self.requests


async def main(seconds: float) -> None:
    figures: list[Figure] = []
    for shape, has_vendors in SHAPES.items():
        async for account in _accounts(shape, seconds, has_vendors=has_vendors):
            figures += shown(_figures(account))
    record("account", [asdict(figure) for figure in figures])


async def _accounts(shape: str, seconds: float, *, has_vendors: bool) -> AsyncIterator[Account]:
    with tempfile.TemporaryDirectory(prefix="affidavit-account-") as folder:
        file = Path(folder) / "account.json"
        async with serving(("bench.taps", str(file)), has_vendors=has_vendors) as (engine, database):
            run(job(engine, 1, WARM_UP_S))
            seen, commits, wal_bytes = _asked_one_by_one(engine, database, seconds)
        yield Account(shape, json.loads(file.read_text()), seen, commits, wal_bytes)


def _asked_one_by_one(engine: Engine, database: Database, seconds: float) -> tuple[Seen, float, float]:
    before = _of_the_database(database)
    os.kill(engine.pid, signal.SIGUSR1)
    seen = run(job(engine, 1, seconds))
    after = _of_the_database(database)
    return seen, after[0] - before[0], after[1] - before[1]


def _of_the_database(database: Database) -> tuple[float, float]:
    """Commits and bytes of its log so far. A backend tells what it has counted within a second."""
    time.sleep(TOLD_S)
    with psycopg.connect(database.url, autocommit=True) as connection:
        ((commits, wal_bytes),) = connection.execute(_COUNTED).fetchall()
    return float(commits), float(wal_bytes)


def _figures(account: Account) -> Iterator[Figure]:
    shape, measured_ms = account.shape, float(np.mean(account.seen.latencies_ms))
    for part in taps.PARTS:
        yield Figure(f"{shape}: {part}, ms", round(account.spent_ms(part, 0), 2), "")
    in_parts_ms = sum(account.spent_ms(part, 0) for part in taps.PARTS)
    yield Figure(f"{shape}: the ten parts together, ms", round(in_parts_ms, 2), "")
    yield Figure(f"{shape}: the client measures, mean ms", round(measured_ms, 2), "")
    yield Figure(f"{shape}: not in any part, share", round(1 - in_parts_ms / measured_ms, 3), "≤ .1")
    for part in (*taps.PARTS, taps.AFTER):
        yield Figure(f"{shape}: {part}, on a core, ms", round(account.spent_ms(part, 1), 2), "")
    on_a_core_ms = sum(account.spent_ms(part, 1) for part in account.taps["spent_ns"])
    yield Figure(f"{shape}: the engine on a core, all in all, ms", round(on_a_core_ms, 2), "")
    for what, count in sorted(account.taps["counts"].items()):
        yield Figure(f"{shape}: {what} of a request", round(count / account.requests, 1), "")
    yield Figure(f"{shape}: commits of a request", round(account.commits / account.requests, 1), "")
    yield Figure(f"{shape}: WAL of a request, bytes", round(account.wal_bytes / account.requests), "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each shape is asked")
    asyncio.run(main(parser.parse_args().seconds))
