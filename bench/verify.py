"""Verifier benchmark: throughput and memory of `affidavit audit verify` on records of the usual size.

Run as `python -m bench.verify [--rows 40000]`. The verifier's processes and PostgreSQL share all cores, and with them any
other load: so the processor time of the verifier is shown too. The baseline only parses and hashes the same records on one core,
with the reference, which every verifier must do. On one core means all of it there, PostgreSQL too. Rounds of both alternate.
"""

import argparse
import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg

from audit.proof.keys import Signer
from audit.proof.record import Trail, hashed, leaf_hash, row_of
from audit.proof.row_signature import signed
from bench.results import Figure, record, show
from engine import settings as settings_file
from engine import wiring
from engine.signing import signing_key_of
from engine.storage.database import Database

ROWS, BATCH, ROUNDS = 40_000, 1_000, 3
GOAL_PER_S, GOAL_MB, GOAL, GOAL_CORES = 10_000, 300, 1.5, 1.8
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
ROOT = Path(__file__).resolve().parent.parent
PASSAGE = (
    "Passive compliance is obtained by a mechanism that yields without control, such as a spring or a soft cover,"
    " while active compliance is obtained by measuring forces and moving accordingly. "
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory(prefix="affidavit-verify-", ignore_cleanup_errors=True) as folder:
        found = asyncio.run(_measured(Path(folder), rows))
    size = f"{rows} records of {found['bytes']} bytes"
    figures = [
        Figure(f"verify, {size}: records/s by the clock, on two cores", found["per_s"], f"≥ {GOAL_PER_S}"),
        Figure("verify: records for each second of processor time", found["per_core_s"], ""),
        Figure("the same records only parsed and hashed, on one core", found["bare_per_core_s"], ""),
        Figure("verify by the clock / only parsed and hashed", found["ratio"], f"≥ {GOAL}"),
        Figure("verify: on two cores / on one", found["cores_ratio"], f"≥ {GOAL_CORES}"),
        Figure("verify: peak memory, MB", found["memory_mb"], f"≤ {GOAL_MB}"),
    ]
    for figure in figures:
        show(figure)
    record("verify", [asdict(figure) for figure in figures])


async def _measured(folder: Path, rows: int) -> dict[str, Any]:
    settings = settings_file.load({}, data_dir=folder)
    async with wiring.open_database(settings, lambda _: None) as database:
        with psycopg.connect(database.url) as connection:
            connection.execute("SELECT audit_make_month(%s)", (BEGIN.date(),))
            key = signing_key_of(settings, list)
            sizes = [insert(connection, batch) for batch in batches(rows, key)]
            connection.execute("ANALYZE audit_logs, audit_leaves")
            ((data,),) = connection.execute("SHOW data_directory").fetchall()
        async with wiring.open_sealer(settings, database) as sealer:
            await sealer.seal_once()
        postmaster = int((Path(data) / "postmaster.pid").read_text().split()[0])
        rounds = [await asyncio.to_thread(_round, database, folder, rows, postmaster) for _ in range(ROUNDS)]
    found = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    return found | {"bytes": round(sum(sizes) / rows)}


def _round(database: Database, folder: Path, rows: int, postmaster: int) -> dict[str, float]:
    """The three side by side, so that other load on this machine affects them alike."""
    bare, both = _bare(database), _verify(folder, rows)
    with _on_one_core(postmaster):
        alone = _verify(folder, rows)
    return both | {
        "bare_per_core_s": bare,
        "ratio": round(both["per_s"] / bare, 2),
        "cores_ratio": round(both["per_s"] / alone["per_s"], 2),
    }


@contextmanager
def _on_one_core(*others: int) -> Iterator[None]:
    """This process and these, and all that they start meanwhile."""
    cores = os.sched_getaffinity(0)
    try:
        for process in (0, *others):
            os.sched_setaffinity(process, {min(cores)})
        yield
    finally:
        for process in (0, *others):
            os.sched_setaffinity(process, cores)


def batches(rows: int, key: Signer, **given: Any) -> Iterator[list[str]]:
    for begin in range(0, rows, BATCH):
        trails = [replace(_trail(place), **given) for place in range(begin, min(begin + BATCH, rows))]
        yield [
            signed(hashed(row_of(each), secrets.token_bytes(32)), each.log_id, key).text for each in trails
        ]


def insert(connection: psycopg.Connection, batch: list[str]) -> int:
    rows = f"[{','.join(batch)}]".replace('"leaf_hash"', '"spooled":false,"leaf_hash"')
    statement = "INSERT INTO audit_logs SELECT * FROM json_populate_recordset(NULL::audit_logs, %s::json)"
    connection.execute(statement, (rows,))
    return len(rows)


def _bare(database: Database) -> float:
    with psycopg.connect(database.url) as connection:
        found = connection.execute("SELECT row_to_json(l)::text FROM audit_logs l LIMIT 5000").fetchall()
    began = time.process_time()
    for (text,) in found:
        leaf_hash(json.loads(text))
    return round(len(found) / (time.process_time() - began))


def _verify(folder: Path, rows: int) -> dict[str, float]:
    """Times the command as an auditor runs it, minus its time on an empty log."""
    empty = _command(folder, "--to", "2001-01-01")
    whole = _command(folder, expected=rows)
    return {
        "per_s": round(rows / (whole["seconds"] - empty["seconds"])),
        "per_core_s": round(rows / (whole["core_s"] - empty["core_s"])),
        "memory_mb": whole["memory_mb"],
    }


def _command(folder: Path, *words: str, expected: int = 0) -> dict[str, float]:
    command = [
        sys.executable,
        "-m",
        "engine.cli",
        "audit",
        "verify",
        "--json",
        "--data-dir",
        str(folder),
        *words,
    ]
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    seconds = time.perf_counter() - began
    assert json.loads(said)["checked"] == expected, said[:500]
    core_s = usage.ru_utime + usage.ru_stime
    return {"seconds": seconds, "core_s": core_s, "memory_mb": round(usage.ru_maxrss / 1024)}


def _trail(place: int) -> Trail:
    candidates = [
        {
            "chunk_id": secrets.token_hex(32), "cosine": 0.71234567 + n / 97, "similarity": 0.812345, "bm25": 12.34567,
            "attainment": 0.1454, "lexical": 0.8123, "score": 0.81234 - n / 71, "rerank": None,
        }
        for n in range(5)
    ]  # fmt: skip
    citations = [
        {
            "n": n, "chunk_id": secrets.token_hex(32), "section": "Compliance", "chapter": "Contact", "page": "156",
            "filename": "contact.md", "url": "/docs/contact#compliance", "excerpt": PASSAGE, "start": 10, "end": 190,
            "score": 0.8123,
        }
        for n in range(1, 4)
    ]  # fmt: skip
    return Trail(
        log_id=uuid4(), query_id=uuid4(), answer_id=uuid4(), timestamp=BEGIN + timedelta(seconds=place),
        endpoint="/v1/query", user_query_text="What is passive compliance?", source_mode="full-book",
        retrieval_query="What is passive compliance?", chunks_retrieved_count=80, chunks_returned=candidates,
        retrieval_latency_ms=12, llm_prompt=PASSAGE * 16, llm_response=PASSAGE * 3, answer_text=PASSAGE * 3,
        confidence_score=0.87, citations=citations, success=True, request_id=str(uuid4()), client_id="docs-site",
        key_id="1a2b3c4d5e", client_address="192.0.2.7", book_id="physical-ai", http_status=200, outcome="answered",
        filters={"chapter": None, "section": None, "module": None, "difficulty": None, "tags": []}, top_k=5,
        confidence_level="high", retrieval_confidence=0.83, generation_confidence=0.93, index_generation=uuid4(),
        embedder="minilm", calibration_id="5d41402abc4b2a76", threshold=0.6, model_requested="claude-haiku-5-5",
        model_used="claude-haiku-5-5", stop_reason="end_turn", tokens_input=1000, tokens_output=200,
        generation_latency_ms=900, total_latency_ms=950, limit_decision="admitted", prompt_sha256="0" * 64,
        settings_sha256="1" * 64, code_version="0.1.0", calibration_kind="self", best_score=0.83,
    )  # fmt: skip


if __name__ == "__main__":
    main()
