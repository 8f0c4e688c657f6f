"""Throughput of one, two and three engines that share PostgreSQL, Qdrant, Redis and a bucket, and which process takes which share.

Run as `python -m bench.engines [--seconds 20]`. The same number of connections is spread over more and more engines. CPU time
for each request, without what the part uses at rest, says what it costs; requests a second need a machine that does nothing else.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import numpy as np
import psycopg

from bench.client import Job, Seen
from bench.engine import HOUSE, PROC, TICKS_PER_S, _request, _stat
from bench.results import RESULTS, Figure, record, show
from engine.evaluation import charts
from tests.campaigns.load import QUESTIONS
from tests.campaigns.machines.house import Engine, House, house

WARM_UP_S = 5.0
PLOT = RESULTS.with_name("engines.svg")
_ROW_BYTES = """
SELECT sum(pg_total_relation_size(inhrelid))::float / (SELECT count(*) FROM audit_logs)
FROM pg_inherits WHERE inhparent IN ('audit_logs'::regclass, 'audit_leaves'::regclass)
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement: so many engines."""

    engines: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    failed: int
    cpu_ms: dict[str, float]  # of one request, by part
    cores: dict[str, float]
    wal_bytes: float  # of one request


def main(seconds: float, connections: int) -> None:
    with house(can_be_cut=False) as made:
        _clients(made, made.engines, WARM_UP_S, connections)
        rest = _at_rest(made, seconds / 2)
        rows = [
            _measured(made, made.engines[:count], seconds, rest, connections)
            for count in range(1, len(made.engines) + 1)
        ]
        at_rest = (Figure(f"at rest: {part}, cores", round(cores, 3), "") for part, cores in rest.items())
        figures = [*at_rest, *(figure for row in rows for figure in _figures(row)), *_sizes(made)]
    for figure in figures:
        show(figure)
    record("engines", [asdict(row) for row in rows] + [asdict(figure) for figure in figures])
    PLOT.write_text(plot(rows))
    print(f"\nThroughput over the number of engines: {PLOT.name}")


def _at_rest(made: House, seconds: float) -> dict[str, float]:
    """The cores that each part uses while nobody asks: for seals, leases, heartbeats and replication."""
    before = _cpu_s(made)
    time.sleep(seconds)
    return {
        name: (after_s - before[name]) / seconds
        for name, after_s in _cpu_s(made).items()
        if name != "machine"
    }


def _measured(
    made: House, engines: list[Engine], seconds: float, rest: dict[str, float], connections: int
) -> Row:
    cpu_before, wal_before = _cpu_s(made), _wal_bytes(made)
    seen = _clients(made, engines, seconds, connections)
    used = {name: after_s - cpu_before[name] for name, after_s in _cpu_s(made).items()}
    wal_bytes = _wal_bytes(made) - wal_before
    latencies_ms = [each for one in seen for each in one.latencies_ms]
    used["clients"] = sum(one.cpu_s for one in seen)
    took_s, requests = max(one.seconds for one in seen), len(latencies_ms)
    used["others on this machine"] = used.pop("machine") - sum(used.values())
    return Row(
        engines=len(engines),
        requests_per_s=round(requests / took_s, 1),
        p50_ms=round(float(np.percentile(latencies_ms, 50)), 1),
        p99_ms=round(float(np.percentile(latencies_ms, 99)), 1),
        failed=sum(one.failed for one in seen),
        cpu_ms={
            name: round(1000 * (cpu_s - rest.get(name, 0.0) * took_s) / requests, 2)
            for name, cpu_s in used.items()
        },
        cores={name: round(cpu_s / took_s, 2) for name, cpu_s in used.items()},
        wal_bytes=round(wal_bytes / requests),
    )


def _clients(made: House, engines: list[Engine], seconds: float, connections: int) -> list[Seen]:
    """A client process for each engine, all at once."""
    headers = {"Authorization": f"Bearer {made.key}"}
    requests = [_request("/v1/query", json.dumps({"query": question}), headers) for question in QUESTIONS]
    jobs = [Job(engine.port, requests, max(1, connections // len(engines)), seconds) for engine in engines]
    with ThreadPoolExecutor(len(jobs)) as at_once:
        return list(at_once.map(_client, jobs))


def _client(job: Job) -> Seen:
    done = subprocess.run(
        [sys.executable, "-m", "bench.client"], input=json.dumps(asdict(job)), stdout=subprocess.PIPE,
        text=True, check=True, cwd=HOUSE,
    )  # fmt: skip
    return Seen(**json.loads(done.stdout))


def _cpu_s(made: House) -> dict[str, float]:
    """CPU time of each part so far, and of the whole machine."""
    postmaster = int((made.postgres._home / "postmaster.pid").read_text().split()[0])
    parts = {engine.process.pid: "engines" for engine in made.engines if engine.process}
    parts |= {
        node.process.pid: "Redis" for node in (*made.redis.nodes, *made.redis.sentinels) if node.process
    }
    if made.qdrant.process:
        parts[made.qdrant.process.pid] = "Qdrant"
    parts[os.getpid()] = "bucket"  # moto runs in this process
    used = dict.fromkeys(("engines", "PostgreSQL", "Qdrant", "Redis", "bucket"), 0.0)
    for pid, parent, cpu_s in map(_stat, PROC.glob("[0-9]*/stat")):
        if name := parts.get(pid, "PostgreSQL" if postmaster in (pid, parent) else None):
            used[name] += cpu_s
    user, nice, system, _idle, _wait, *interrupts = map(
        int, (PROC / "stat").read_text().splitlines()[0].split()[1:8]
    )
    return used | {"machine": (user + nice + system + sum(interrupts)) / TICKS_PER_S}


def _wal_bytes(made: House) -> float:
    with psycopg.connect(made.postgres.url) as connection:
        (position,) = connection.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone() or (0,)
    return float(position)


def _figures(row: Row) -> Iterator[Figure]:
    name = f"{row.engines} engine{'s' * (row.engines > 1)}"
    yield Figure(f"{name}: requests a second", row.requests_per_s, "")
    yield Figure(f"{name}: p50 ms", row.p50_ms, "")
    yield Figure(f"{name}: p99 ms", row.p99_ms, "")
    yield Figure(f"{name}: requests without an answer", row.failed, "0")
    yield Figure(f"{name}: write-ahead log of a request, bytes", row.wal_bytes, "")
    for part, cpu_ms in row.cpu_ms.items():
        yield Figure(f"{name}: {part}, ms of CPU for a request", cpu_ms, "")
        yield Figure(f"{name}: {part}, cores", row.cores[part], "")


def _sizes(made: House) -> Iterator[Figure]:
    with psycopg.connect(made.postgres.url) as connection:
        (row_bytes,) = connection.execute(_ROW_BYTES).fetchone() or (0,)
    yield Figure("bytes of a row in PostgreSQL, with its indexes and its leaf", round(row_bytes), "")
    for name, process in (("an engine", made.engines[0].process), ("Qdrant", made.qdrant.process)):
        if process:
            status = (PROC / str(process.pid) / "status").read_text()
            resident = int(status.split("VmRSS:")[1].split()[0]) // 1024
            yield Figure(f"memory of {name}, MB", resident, "")


def plot(rows: list[Row]) -> str:
    measured = [(float(row.engines), row.requests_per_s) for row in rows]
    said = "; ".join(
        f"{row.engines}: {row.requests_per_s:.0f} a second, p99 {row.p99_ms:.0f} ms" for row in rows
    )
    return charts.line_chart(
        "Throughput over the number of engines",
        f"Requests a second of one, two and three engines on one machine of two cores that did other work too. {said}.",
        [charts.Series("requests a second", measured, marked=True)],
        charts.Axis("engines"),
        charts.Axis("requests a second", low=0),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each measurement lasts")
    parser.add_argument("--connections", type=int, default=12, help="in all, however many engines there are")
    arguments = parser.parse_args()
    main(arguments.seconds, arguments.connections)
