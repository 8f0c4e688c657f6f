"""Ledger benchmark: requests opened and closed by the ledger, compared with bare inserts of the same rows.

Run as `python -m bench.ledger`. The database is the embedded one; bare inserts use group commit too, once with a plain
prepared INSERT, and once with the ledger's own statement and nothing around it.
"""

import argparse
import asyncio
import secrets
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from random import random
from uuid import uuid4

import psycopg
from psycopg.types.json import Jsonb

from audit.ledger.database_writer import DatabaseWriter
from audit.ledger.entry import Entry
from audit.ledger.group_commit import GroupCommit
from audit.ledger.ledger import Ledger
from audit.proof.record import COLUMNS, Trail, hashed, row_of
from bench.results import Figure, record, show
from engine import settings as settings_file
from engine import wiring
from engine.wiring import now

WRITERS = 32
REQUESTS = 2000
ROUNDS = 5
SINGLES = 200
JSON_COLUMNS = {"chunks_returned", "citations", "details", "filters", "instruction_like"}
BATCH_MAX = 256

Row = list[object]


async def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="affidavit-bench-", ignore_cleanup_errors=True) as folder:
        settings = settings_file.load({}, data_dir=Path(folder))
        async with wiring.open_database(settings, lambda _: None) as database:
            async with database.pool("affidavit_engine", 4, has_autocommit=True) as pool:
                ledger = wiring.ledger_of(settings, pool)
                await ledger.start()
                try:
                    assert isinstance(pool.conninfo, str)
                    figures = [
                        *await _throughput(ledger, pool.conninfo, rounds),
                        *await _added(ledger, pool.conninfo),
                    ]
                finally:
                    await ledger.stop()
    for figure in figures:
        show(figure)
    record("ledger", [asdict(figure) for figure in figures])


async def _throughput(ledger: Ledger, conninfo: str, rounds: int) -> list[Figure]:
    ours: list[float] = []
    bare: list[float] = []
    strict: list[float] = []
    for _ in range(rounds):
        ours.append(await _per_second(map(_trail, range(REQUESTS)), lambda trail: _recorded(ledger, trail)))
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
            bare.append(await _bare(connection, [_row(_trail(0)) for _ in range(REQUESTS)]))
        strict.append(await _own_statement(conninfo))
    return [
        Figure(
            f"requests/s of {WRITERS} writers, each opened and closed", round(statistics.median(ours)), ""
        ),
        Figure("… of bare group-committed inserts of the same rows", _ratio(ours, bare), "≥ 0.70"),
        Figure(
            "… of the ledger's own batch statement, rows prepared, nothing opened", _ratio(ours, strict), ""
        ),
    ]


async def _added(ledger: Ledger, conninfo: str) -> list[Figure]:
    """One at a time: the latency that the record adds to a request, compared with a bare commit of the row."""
    ours: list[float] = []
    bare: list[float] = []
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        for _ in range(SINGLES):
            trail, row = _trail(0), _row(_trail(0))
            started = time.perf_counter()
            await _recorded(ledger, trail)
            between = time.perf_counter()
            await connection.execute(_INSERT, row)
            ours.append(between - started)
            bare.append(time.perf_counter() - between)
    added = statistics.median(ours) / statistics.median(bare)
    return [
        Figure("median time added to a request, ms", round(statistics.median(ours) * 1000, 2), ""),
        Figure("… in bare single commits of the row", round(added, 2), "≤ 2.5"),
    ]


async def _recorded(ledger: Ledger, trail: Trail) -> None:
    begun = Trail(
        log_id=trail.log_id, query_id=trail.query_id, timestamp=trail.timestamp, endpoint=trail.endpoint,
        user_query_text=trail.user_query_text, request_id=trail.request_id, client_id=trail.client_id,
        filters=trail.filters, book_id=trail.book_id, top_k=trail.top_k,
    )  # fmt: skip
    await ledger.open(begun)
    await ledger.close(trail, now())


async def _per_second(trails: Iterable[Trail], write: Callable[[Trail], Awaitable[None]]) -> float:
    waiting = iter(list(trails))

    async def writer() -> None:
        for trail in waiting:
            await write(trail)

    started = time.perf_counter()
    await asyncio.gather(*(writer() for _ in range(WRITERS)))
    return REQUESTS / (time.perf_counter() - started)


async def _bare(connection: psycopg.AsyncConnection, rows: Sequence[Row]) -> float:
    """A minimal group commit: a queue, and one transaction for everything in it."""
    queue: asyncio.Queue[tuple[Row, asyncio.Future[None]]] = asyncio.Queue()
    waiting = iter(rows)

    async def flush() -> None:
        while True:
            batch = [await queue.get()]
            while not queue.empty() and len(batch) < BATCH_MAX:
                batch.append(queue.get_nowait())
            async with connection.pipeline():
                await connection.execute("BEGIN")
                await connection.execute("SET LOCAL synchronous_commit = on")
                for row, _ in batch:
                    await connection.execute(_INSERT, row, prepare=True)
                await connection.execute("COMMIT")
            for _, done in batch:
                done.set_result(None)

    async def writer() -> None:
        for row in waiting:
            done = asyncio.get_running_loop().create_future()
            queue.put_nowait((row, done))
            await done

    flushing = asyncio.create_task(flush())
    started = time.perf_counter()
    await asyncio.gather(*(writer() for _ in range(WRITERS)))
    took_s = time.perf_counter() - started
    await _ended(flushing)
    return len(rows) / took_s


async def _own_statement(conninfo: str) -> float:
    statements, commits = DatabaseWriter(conninfo), GroupCommit()
    flushing = asyncio.create_task(commits.run(statements.write))
    made = [_trail(0) for _ in range(REQUESTS)]
    waiting = iter([Entry.closed(one.log_id, hashed(row_of(one), secrets.token_bytes(32))) for one in made])

    async def writer() -> None:
        for entry in waiting:
            await commits.put(entry).wait()

    started = time.perf_counter()
    await asyncio.gather(*(writer() for _ in range(WRITERS)))
    took_s = time.perf_counter() - started
    await _ended(flushing)
    await statements.close()
    return REQUESTS / took_s


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _ratio(ours: Sequence[float], bare: Sequence[float]) -> float:
    """Ratios of neighbouring runs, so that other load on this machine affects both alike."""
    return round(statistics.median(one / other for one, other in zip(ours, bare, strict=True)), 2)


def _row(trail: Trail) -> Row:
    trail.salt, trail.leaf_hash = secrets.token_bytes(32), secrets.token_bytes(32)
    values = ((name, getattr(trail, name)) for name in COLUMNS)
    return [Jsonb(value) if name in JSON_COLUMNS and value is not None else value for name, value in values]


_NAMES, _PLACES = ", ".join(COLUMNS), ", ".join(["%s"] * len(COLUMNS))
_INSERT = f"INSERT INTO audit_logs ({_NAMES}) VALUES ({_PLACES})".encode()  # noqa: S608  our own names


def _trail(_: int) -> Trail:
    """A record of about 8 KB: a question that a language model answered from five passages."""
    name = uuid4()
    candidates = [
        {"chunk_id": secrets.token_hex(32), "cosine": random(), "similarity": random(), "bm25": 20 * random(),
         "lexical": random(), "score": random(), "rerank": None} for _ in range(5)
    ]  # fmt: skip
    citations = [
        {"n": n, "chunk_id": secrets.token_hex(32), "section": "Balance", "chapter": "Walking", "page": "walking",
         "filename": "07-walking.md", "url": "/docs/walking#balance", "excerpt": "as the robot moves " * 12,
         "start": 120, "end": 360, "score": random()} for n in (1, 2)
    ]  # fmt: skip
    return Trail(
        log_id=name, query_id=name, timestamp=now(), endpoint="/v1/query", outcome="answered", success=True,
        user_query_text="What does passive compliance mean for a walking robot?", source_mode="full-book",
        retrieval_query="What does passive compliance mean for a walking robot?", chunks_retrieved_count=87,
        chunks_returned=candidates, retrieval_latency_ms=12, llm_prompt="The passage says what it says. " * 160,
        llm_response="A joint that gives way. " * 20, answer_text="A joint that gives way. " * 24,
        confidence_score=0.83, citations=citations, request_id=str(name), client_id="docs-site", key_id="0a1b2c3d4e",
        client_address="127.0.0.1", book_id="physical-ai", http_status=200, top_k=5, confidence_level="medium",
        filters={"chapter": None, "section": None, "module": None, "difficulty": None, "tags": []},
        retrieval_confidence=0.8, generation_confidence=0.9, index_generation=name, embedder="minilm",
        calibration_id="c", threshold=0.6, model_requested="claude", model_used="claude", tokens_input=2100,
        tokens_output=120, generation_latency_ms=900, total_latency_ms=930, limit_decision="admitted",
        prompt_sha256=secrets.token_hex(32), settings_sha256=secrets.token_hex(32), code_version="0.1.0",
        calibration_kind="self", best_score=0.8,
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="repetitions; the median counts")
    asyncio.run(main(parser.parse_args().rounds))
