"""Archive benchmark: throughput and memory, compared with a bare COPY of the same records into zstd.

Run as `python -m bench.archive [--rows 150000]`. "Archived" is all that `affidavit audit archive` does with the rows:
export, upload into the folder vault with fsync, and reading all of it back with every box opened and
every leaf recomputed. The bare COPY writes PostgreSQL's own JSON, and hashes, encrypts and checks nothing.
"""

import argparse
import asyncio
import json
import random
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa

from audit.archive.archiver import put
from audit.archive.export import export
from audit.archive.packing import Packers
from audit.archive.verify import verify_stored
from audit.proof.archive_format import MANIFEST, sign_manifest
from audit.proof.keys import SigningKey, public_file, read_public_keys
from audit.proof.record import Trail, hashed, row_of
from audit.proof.row_signature import signed
from audit.proof.verdict import Verdict
from audit.vault import FolderVault
from bench.results import Figure, record, show
from engine import cores, wiring
from engine import settings as settings_file
from engine.signing import signing_key_of

ROWS, BATCH, ROUNDS = 150_000, 1_000, 3
ALONE_S = 10.0
GOAL, GOAL_WHOLE, GOAL_MB, GOAL_STALL_MS = 0.5, 0.35, 400, 50
BEGIN = datetime(2025, 2, 1, tzinfo=UTC)
ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "config" / "sample-book"
KEYS = """
INSERT INTO audit_row_keys (log_id, query_id, month, key)
SELECT log_id, query_id, %s, sha256('affidavit row key 1'::bytea || '\\x00'::bytea || salt || uuid_send(log_id))
FROM audit_logs
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--one", nargs=3, metavar=("URL", "FOLDER", "KEY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(_archived(*arguments.one)))
        return
    with tempfile.TemporaryDirectory(prefix="affidavit-archive-", ignore_cleanup_errors=True) as folder:
        found = asyncio.run(_measured(Path(folder), arguments.rows))
    size = f"{arguments.rows} records of {found['bytes']} bytes"
    figures = [
        Figure(f"archive, {size}: export, records/s", found["export_per_s"], ""),
        Figure("export, upload and second read with every check, records/s", found["whole_per_s"], ""),
        Figure("bare COPY (SELECT row_to_json …) into zstd, records/s", found["bare_per_s"], ""),
        Figure("export / bare COPY", found["export_ratio"], f"≥ {GOAL}"),
        Figure("export, upload and second read / bare COPY", found["whole_ratio"], f"≥ {GOAL_WHOLE}"),
        Figure("archive: peak memory of both processes, MB", found["memory_mb"], f"≤ {GOAL_MB}"),
        Figure("longest insert into the current month, machine idle, ms", found["alone_ms"], ""),
        Figure(
            "longest insert into the current month while another is archived, ms",
            found["beside_ms"],
            f"≤ {GOAL_STALL_MS}",
        ),
    ]
    for figure in figures:
        show(figure)
    record("archive", [asdict(figure) for figure in figures])


async def _measured(folder: Path, rows: int) -> dict[str, Any]:
    settings = settings_file.load({}, data_dir=folder)
    async with wiring.open_database(settings, lambda _: None) as database:
        with psycopg.connect(database.url) as connection:
            for month in (BEGIN, wiring.now()):
                connection.execute("SELECT audit_make_month(%s)", (month.date(),))
            signer = signing_key_of(settings, list)
            size = sum(_insert(connection, batch) for batch in _batches(rows, signer)) / rows
        async with wiring.open_sealer(settings, database) as sealer:
            await sealer.seal_once()
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute(KEYS, (BEGIN.date(),))
            connection.execute("VACUUM ANALYZE audit_logs, audit_leaves, audit_row_keys")
        key = settings.data_dir / settings.audit.signing_key_file
        rounds = [await asyncio.to_thread(_round, database.url, folder, key, rows) for _ in range(ROUNDS)]
        stalls = await asyncio.to_thread(_stalls, database.url, folder)
    return (
        {"bytes": round(size)}
        | stalls
        | {name: round(statistics.median(each[name] for each in rounds), 2) for name in rounds[0]}
    )


def _round(url: str, folder: Path, key: Path, rows: int) -> dict[str, float]:
    """Alternates the two, so that other load on this machine affects both alike."""
    bare_s = _bare_s(url, folder / "bare.zst")
    ours = _in_a_process_of_its_own(url, folder, key)
    bare_s = (bare_s + _bare_s(url, folder / "bare.zst")) / 2
    return {
        "bare_per_s": rows / bare_s, "export_per_s": rows / ours["export_s"], "whole_per_s": rows / ours["whole_s"],
        "export_ratio": bare_s / ours["export_s"], "whole_ratio": bare_s / ours["whole_s"],
        "memory_mb": ours["memory_mb"],
    }  # fmt: skip


def _stalls(url: str, folder: Path) -> dict[str, float]:
    """Measured while the command runs, from the freezing of the month to its detaching."""
    command = [sys.executable, "-m", "engine.cli", "audit", "archive", "--data-dir", str(folder)]
    archiving = partial(subprocess.run, command, cwd=ROOT, check=True, capture_output=True)
    found = {
        "alone_ms": _longest_insert_ms(url, partial(time.sleep, ALONE_S)),
        "beside_ms": _longest_insert_ms(url, archiving),
    }
    with psycopg.connect(url) as connection:
        steps = [step for (step,) in connection.execute("SELECT state FROM audit_archives ORDER BY step")]
    assert steps == ["frozen", "uploaded", "verified", "detached"], steps
    return found


def _longest_insert_ms(url: str, work: Callable[[], object]) -> float:
    longest_s = 0.0
    with psycopg.connect(url, autocommit=True) as connection, ThreadPoolExecutor(1) as other:
        working = other.submit(work)
        while not working.done():
            trail = Trail(log_id=uuid4(), query_id=uuid4(), timestamp=wiring.now(), endpoint="bench")
            text = hashed(row_of(trail), secrets.token_bytes(32)).text
            began = time.perf_counter()
            _insert(connection, [text])
            longest_s = max(longest_s, time.perf_counter() - began)
        working.result()
    return round(longest_s * 1000, 1)


def _bare_s(url: str, path: Path) -> float:
    began = time.perf_counter()
    with (
        psycopg.connect(url) as connection, path.open("wb") as file, pa.CompressedOutputStream(file, "zstd") as packed,
        connection.cursor().copy("COPY (SELECT row_to_json(l) FROM audit_logs l) TO STDOUT") as rows,
    ):  # fmt: skip
        for row in rows:
            packed.write(row)
    return time.perf_counter() - began


def _in_a_process_of_its_own(url: str, folder: Path, key: Path) -> dict[str, float]:
    """Runs one archive in a process of its own. Its memory is the PSS of both processes, which counts shared pages once."""
    command = [sys.executable, "-m", "bench.archive", "--one", url, str(folder), str(key)]
    most = 0
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        while process.poll() is None:
            most = max(most, sum(map(_memory_bytes, _with_children(process.pid))))
            time.sleep(0.05)
        assert process.stdout is not None
        found: dict[str, float] = json.loads(process.stdout.read())
    return found | {"memory_mb": round(most / 2**20)}


def _with_children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task")
    try:
        children = {child for task in listed.iterdir() for child in (task / "children").read_text().split()}
    except OSError:
        children = set()
    return [pid, *map(int, children)]


def _memory_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0  # it has just ended
    found = re.search(r"^Pss: +([0-9]+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _archived(url: str, folder: str, key_file: str) -> dict[str, float]:
    from engine.cli import main  # noqa: F401, PLC0415  as much memory as the command has

    key, keys = SigningKey.load(Path(key_file)), read_public_keys(public_file(Path(key_file)))
    with tempfile.TemporaryDirectory(dir=folder) as place, psycopg.connect(url) as connection:
        vault, out = FolderVault(Path(place) / "vault"), Path(place) / "out"
        out.mkdir()
        began = time.perf_counter()
        packers = Packers(url, cores.usable())
        exported = export(connection, BEGIN.date(), out, keys, "bench", _quiet, packers=packers)
        export_s = time.perf_counter() - began
        month = BEGIN.date()
        files = {
            name: put(vault, month, name, path, exported.digests[name])
            for name, path in exported.files.items()
        }
        content = sign_manifest(exported, files, key)
        (out / MANIFEST).write_bytes(content)
        stored = put(vault, month, MANIFEST, out / MANIFEST, sha256(content).hexdigest())
        report = verify_stored(vault, stored.key, stored.version, keys, _quiet)
        whole_s = time.perf_counter() - began
    assert (report.verdict, report.checked) == (Verdict.VALID, exported.rows), report
    return {"export_s": export_s, "whole_s": whole_s}


def _quiet(_: str, __: int, ___: int) -> None: ...


def _batches(rows: int, key: SigningKey) -> Iterator[list[str]]:
    chance = random.Random(8)
    sentences = [
        sentence for file in sorted(BOOK.glob("*.md"))
        for sentence in re.split(r"(?<=[.!?])\s+", file.read_text()) if len(sentence) > 40
    ]  # fmt: skip
    for begin in range(0, rows, BATCH):
        trails = [_trail(place, chance, sentences) for place in range(begin, min(begin + BATCH, rows))]
        yield [
            signed(hashed(row_of(each), secrets.token_bytes(32)), each.log_id, key).text for each in trails
        ]


def _insert(connection: psycopg.Connection, batch: list[str]) -> int:
    rows = f"[{','.join(batch)}]".replace('"leaf_hash"', '"spooled":false,"leaf_hash"')
    statement = "INSERT INTO audit_logs SELECT * FROM json_populate_recordset(NULL::audit_logs, %s::json)"
    connection.execute(statement, (rows,))
    return len(rows.encode())


def _trail(place: int, chance: random.Random, sentences: list[str]) -> Trail:
    candidates = [
        {
            "chunk_id": secrets.token_hex(32), "cosine": chance.random(), "similarity": chance.random(),
            "bm25": 20 * chance.random(), "attainment": chance.random(), "lexical": chance.random(),
            "score": chance.random(), "rerank": None,
        }
        for _ in range(5)
    ]  # fmt: skip
    citations = [
        {
            "n": n, "chunk_id": secrets.token_hex(32), "section": "Compliance", "chapter": "Contact", "page": "156",
            "filename": "contact.md", "url": "/docs/contact#compliance", "excerpt": chance.choice(sentences), "start": 10,
            "end": 190, "score": chance.random(),
        }
        for n in range(1, 4)
    ]  # fmt: skip
    question, answer = chance.choice(sentences), " ".join(chance.choices(sentences, k=4))
    return Trail(
        log_id=uuid4(), query_id=uuid4(), answer_id=uuid4(), timestamp=BEGIN + timedelta(seconds=15 * place),
        endpoint="/v1/query", user_query_text=question, source_mode="full-book", retrieval_query=question,
        chunks_retrieved_count=80, chunks_returned=candidates, retrieval_latency_ms=12,
        llm_prompt=" ".join(chance.choices(sentences, k=16)), llm_response=answer, answer_text=answer,
        confidence_score=chance.random(), citations=citations, success=True, request_id=str(uuid4()),
        client_id="docs-site", key_id="1a2b3c4d5e", client_address="192.0.2.7", book_id="physical-ai", http_status=200,
        outcome="answered", top_k=5, confidence_level="high", retrieval_confidence=chance.random(),
        generation_confidence=chance.random(), index_generation=uuid4(), embedder="minilm",
        calibration_id="5d41402abc4b2a76", threshold=0.6, model_requested="claude-haiku-5-5",
        model_used="claude-haiku-5-5", stop_reason="end_turn", tokens_input=1000, tokens_output=200,
        generation_latency_ms=900, total_latency_ms=950, limit_decision="admitted", prompt_sha256="0" * 64,
        settings_sha256="1" * 64, code_version="0.1.0", calibration_kind="self", best_score=0.83,
    )  # fmt: skip


if __name__ == "__main__":
    main()
