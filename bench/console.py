"""Console benchmark: every chart over a year of records, from rollups and without; and readers beside eight auditors.

Run as `python -m bench.console [--rows 1000000] [--seconds 8]`. The records are made by PostgreSQL itself, with all columns that are
counted and short texts: twelve clients, each of one of five books. Their leaves have hashes that prove nothing, under heads with a real signature. The rollups are made of them by
the code of `affidavit audit rollup`. A chart reads as many counts for ten times the records of the same days, books and clients.
"""

# ruff: noqa: S608  statements of our own

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import LiteralString

import httpx
import psycopg

from audit.charts.drawing.drawn import svg
from audit.charts.figures.catalogue import NAMES, chart_of
from audit.charts.figures.choice import ChartChoice
from audit.ledger.partitions import months_from
from audit.proof.checkpoint import Checkpoint, sign_note
from audit.proof.keys import SigningKey
from bench.load import _crowd, _prepare, _serving
from bench.results import Figure, record, show
from engine import settings as settings_file
from engine import wiring
from engine.signing import signing_key_of
from engine.storage.database import Database

ROWS, SECONDS = 1_000_000, 8.0
YEAR = ChartChoice(date(2025, 10, 1), date(2026, 10, 1))
MONTHS = months_from(YEAR.since, 12)
AUDITORS, READERS, ROUNDS, RUNS = 8, 4, 3, 5
GOAL_S, GOAL_RATIO = 2.0, 1.10

_ROWS: LiteralString = """
INSERT INTO audit_logs (log_id, query_id, user_query_text, source_mode, answer_text, citations, "timestamp", client_id, book_id,
    endpoint, outcome, reason, best_score, threshold, retrieval_latency_ms, generation_latency_ms, total_latency_ms, tokens_input,
    tokens_output, model_used, prompt_sha256, settings_sha256, code_version, calibration_id, embedder, index_generation, schema_version, leaf_hash)
SELECT gen_random_uuid(), gen_random_uuid(), 'What does an IMU measure?', 'full-book', 'It measures acceleration and rotation.',
    jsonb_build_array(jsonb_build_object('n', 1, 'chapter', 'Chapter ' || n %% 40, 'score', r, 'excerpt', 'It measures')),
    %(month)s::date::timestamp AT TIME ZONE 'UTC' + (n + 0.5) / %(count)s * interval '28 days',
    'client-' || n %% 12, 'book-' || n %% 12 %% 5, '/v1/query', CASE WHEN r < 0.2 THEN 'refused' WHEN r > 0.98 THEN 'failed' ELSE 'answered' END,
    CASE WHEN r < 0.1 THEN 'not_covered' WHEN r < 0.2 THEN 'citation_failed' END, 0.4 + r * 0.6, 0.6, (10 + 60 * random())::int,
    (200 * exp(2 * random()))::int, (260 * exp(2 * random()))::int, (2000 * random())::int, (300 * random())::int, 'model-' || n %% 2,
    'prompt', 'settings', '0.1.0', 'calibration', 'minilm', '0198c0de-0000-7000-8000-000000000001', 4, sha256(n::text::bytea)
FROM (SELECT n, random() AS r FROM generate_series(0, %(count)s - 1) AS n) AS made
"""
_LEAVES = """
INSERT INTO audit_leaves
SELECT %(month)s, row_number() OVER (ORDER BY timestamp) - 1, log_id, leaf_hash, timestamp + interval '4 seconds'
FROM audit_logs WHERE timestamp >= %(month)s::date::timestamp AT TIME ZONE 'UTC'
  AND timestamp < (%(month)s::date + interval '1 month') AT TIME ZONE 'UTC'
"""
# The same numbers without rollups, as an auditor would ask for them.
_PERIOD: LiteralString = "timestamp >= '2025-10-01' AND timestamp < '2026-10-01'"
_DIRECT: dict[str, LiteralString] = {
    "outcomes": f"SELECT timestamp::date, outcome, sum(repeat_count) FROM audit_logs WHERE {_PERIOD} GROUP BY 1, 2",
    "refusals": f"SELECT timestamp::date, reason, count(*) FROM audit_logs WHERE outcome = 'refused' AND {_PERIOD} GROUP BY 1, 2",
    "gate": f"SELECT floor((best_score - threshold) / 0.02), outcome, count(*) FROM audit_logs WHERE {_PERIOD} GROUP BY 1, 2",
    "latency": "SELECT percentile_disc(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY total_latency_ms), percentile_disc(ARRAY[0.5, 0.95, 0.99])"
    f" WITHIN GROUP (ORDER BY retrieval_latency_ms) FROM audit_logs WHERE {_PERIOD}",
    "tokens": f"SELECT timestamp::date, model_used, sum(tokens_input), sum(tokens_output) FROM audit_logs WHERE {_PERIOD} GROUP BY 1, 2",
    "chapters": f"SELECT book_id, citations -> 0 ->> 'chapter', count(*) FROM audit_logs WHERE {_PERIOD} GROUP BY 1, 2",
    "clients": f"SELECT client_id, count(*) FROM audit_logs WHERE {_PERIOD} GROUP BY 1",
    "changes": "SELECT * FROM audit_changes WHERE first_seen >= '2025-10-01'",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    arguments = parser.parse_args()
    os.environ["AFFIDAVIT_AUDIT__SEAL_IN_SERVE"] = "false"  # what is made here was never sealed
    with tempfile.TemporaryDirectory(prefix="affidavit-console-", ignore_cleanup_errors=True) as folder:
        figures = asyncio.run(_measured(folder, arguments.rows, arguments.seconds))
    record("console", [asdict(figure) for figure in figures])


async def _measured(folder: str, rows: int, seconds: float) -> list[Figure]:
    settings = settings_file.load(data_dir=Path(folder))
    figures: list[Figure] = []
    async with wiring.open_database(settings, lambda _: None) as database:
        reader_key = await _prepare(database)
        for figure in (*_rolled_up(database, rows), *_charts(database)):
            show(figure)
            figures.append(figure)
        async with _serving(folder) as (pid, port):
            for figure in await _beside(database, pid, port, reader_key, seconds):
                show(figure)
                figures.append(figure)
    return figures


def _rolled_up(database: Database, rows: int) -> Iterator[Figure]:
    key = signing_key_of(database.settings, list)
    with psycopg.connect(database.url) as connection:
        connection.execute("SET session_replication_role = replica")
        for month in MONTHS:
            _make(connection, month, rows // 12, key)
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE audit_logs, audit_leaves")
    with wiring.open_rollup_keeper(database.settings, database) as keeper:
        made_s = _timed(lambda: keeper.make(lambda *_: None))
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("ANALYZE audit_rollup_counts")
        ((counts,),) = connection.execute("SELECT count(*) FROM audit_rollup_counts").fetchall()
    yield Figure("records in twelve months", rows // 12 * 12, "")
    yield Figure("counts that their rollups have", counts, "")
    yield Figure("rollups: records counted per second", round(rows / made_s), "")


def _make(connection: psycopg.Connection, month: date, count: int, key: SigningKey) -> None:
    connection.execute("SELECT audit_make_month(%s)", (month,))
    connection.execute(_ROWS, {"month": month, "count": count})
    connection.execute(_LEAVES, {"month": month})
    at = datetime(2026, 10, 1, tzinfo=UTC)
    note = sign_note(Checkpoint("bench", month, count, bytes(32), at), key)
    connection.execute("INSERT INTO audit_checkpoints VALUES (%s, %s, %s, %s)", (month, count, note, at))
    connection.execute("INSERT INTO audit_anchors VALUES (%s, %s, 'none', 'none', %s)", (month, count, at))


def _charts(database: Database) -> Iterator[Figure]:
    for name in NAMES:
        drawn_s = _median_s(partial(_draw, database, [name]))
        yield Figure(f"chart {name}, of a year, from rollups, s", round(drawn_s, 3), f"≤ {GOAL_S:g}")
        if name in _DIRECT:
            with psycopg.connect(database.url, autocommit=True) as connection:
                direct_s = _timed(lambda: connection.execute(_DIRECT[name]).fetchall())  # noqa: B023
            yield Figure(f"the numbers of {name} from the records themselves, s", round(direct_s, 3), "")
    yield Figure("all charts of a page, s", round(_median_s(lambda: _draw(database, NAMES)), 3), "")


def _draw(database: Database, names: Sequence[str]) -> None:
    with wiring.open_chart_log(database.settings, database, YEAR) as log:
        for name in names:
            svg(chart_of(name, log, {}, "USD"))


async def _beside(database: Database, pid: int, port: int, key: str, seconds: float) -> list[Figure]:
    """Alternates, so that other load on this machine affects both alike."""
    async with wiring.open_keys(database) as keys:
        audit_key = await keys.create("bench", ["audit"], "1000000/second")
    alone, beside, pages = list[float](), list[float](), list[float]()
    await _crowd(port, key, {"valid": READERS}, 3, pid)
    for _ in range(ROUNDS):
        alone += (await _crowd(port, key, {"valid": READERS}, seconds, pid)).latencies_ms
        looking = [asyncio.create_task(_look(port, audit_key, pages)) for _ in range(AUDITORS)]
        beside += (await _crowd(port, key, {"valid": READERS}, seconds, pid)).latencies_ms
        for task in looking:
            task.cancel()
    alone_ms, beside_ms = _p99(alone), _p99(beside)
    return [
        Figure(
            f"page of all charts with {AUDITORS} auditors at once, p50 s",
            round(statistics.median(pages), 2),
            "",
        ),
        Figure(
            f"page of all charts with {AUDITORS} auditors at once, p99 s",
            round(_p99(pages), 2),
            f"≤ {GOAL_S:g}",
        ),
        Figure("readers' p99 alone, ms", round(alone_ms, 1), ""),
        Figure(f"readers' p99 beside {AUDITORS} auditors, ms", round(beside_ms, 1), ""),
        Figure("readers' p99 beside / alone", round(beside_ms / alone_ms, 2), f"≤ {GOAL_RATIO}"),
    ]


async def _look(port: int, key: str, pages: list[float]) -> None:
    """An auditor who reads for a second between two pages."""
    base = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=base, headers={"Origin": base}, timeout=60) as client:
        await client.post("/console/sign-in", data={"key": key})
        while True:
            began = time.perf_counter()
            page = await client.get(f"/console/charts?from={YEAR.since}&to={YEAR.until}")
            assert page.status_code == 200, page.text
            pages.append(time.perf_counter() - began)
            await asyncio.sleep(1)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _median_s(work: Callable[[], object]) -> float:
    return statistics.median(_timed(work) for _ in range(RUNS))


def _p99(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


if __name__ == "__main__":
    main()
