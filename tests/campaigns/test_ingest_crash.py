"""An ingest killed at any point is finished by the next run, with the same generation as one that was never killed.

Seen red with the publish moved before the index is built.
"""

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from engine.wiring import SAMPLE_BOOK
from tests.conftest import CAMPAIGN_ROUNDS, ROOT

ROUNDS = CAMPAIGN_ROUNDS or 2
LONGEST_S = 4.0  # a whole ingest takes about that long

CONTENT = """
SELECT md5(string_agg(c.chunk_id, ',' ORDER BY c.position)),
       (SELECT md5(string_agg(term || idf, ',' ORDER BY term)) FROM generation_terms t
        WHERE t.generation_id = b.live_generation)
FROM books b JOIN generation_chunks c ON c.generation_id = b.live_generation WHERE b.book_id = 'crash' GROUP BY b.book_id
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="affidavit-crash-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "engine.cli", "ingest", str(SAMPLE_BOOK), "--book", "crash", "--json",
         "--data-dir", str(folder)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip


def finish(folder: Path) -> dict[str, Any]:
    with start(folder) as process:
        assert process.stdout is not None
        result: dict[str, Any] = json.loads(process.stdout.read())
    return result


def content(folder: Path) -> tuple[object, ...] | None:
    """What readers see; the database is up while nobody who was killed could stop it."""
    with psycopg.connect(host=str(folder / "postgres"), user="postgres", dbname="affidavit") as connection:
        return connection.execute(CONTENT).fetchone()


@contextmanager
def database_up(folder: Path) -> Iterator[None]:
    """Else it would be stopped with the last ingest, and nobody could look into it."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        yield
        holder.stdin.close()


# Keeps the database of a folder up until its input ends.
HOLD = """
import asyncio, sys
from pathlib import Path
from engine import settings, wiring

async def main():
    async with wiring.open_database(settings.load(data_dir=Path(sys.argv[1])), lambda _: None):
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


def undisturbed() -> tuple[object, ...] | None:
    with tempfile.TemporaryDirectory(prefix="affidavit-whole-", ignore_cleanup_errors=True) as name:
        with database_up(Path(name)):
            assert finish(Path(name))["exit_code"] == 0
            return content(Path(name))


def is_answered(folder: Path) -> bool:
    """What is published can be searched too."""
    command = [sys.executable, "-m", "engine.cli", "ask", "What is gimbal lock?", "--book", "crash", "--json"]
    said = subprocess.run(
        [*command, "--data-dir", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return said.returncode == 0 and json.loads(said.stdout)["outcome"] == "answered"


def kill_at(folder: Path, seconds: float) -> None:
    with start(folder) as process:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()


def test_the_next_run_ends_with_the_same_generation(folder: Path) -> None:
    whole, chance = undisturbed(), random.Random(7)
    assert whole is not None
    for _ in range(ROUNDS):
        kill_at(folder, chance.uniform(0.2, LONGEST_S))
        with database_up(folder):
            assert content(folder) in {None, whole}
            assert content(folder) is None or is_answered(folder)
    with database_up(folder):
        assert finish(folder)["exit_code"] == 0
        assert content(folder) == whole
        assert is_answered(folder)
    generations = list((folder / "index").glob("*.exact"))
    assert 1 <= len(generations) <= 2
