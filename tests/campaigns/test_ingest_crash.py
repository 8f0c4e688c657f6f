"""An ingest killed at any point is finished by the next run, with the same generation as one that was never killed.

Seen red with the publish moved before the index is built.
"""

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from engine.wiring import SAMPLE_BOOK
from ingest.continuing import CONTINUED_MIN
from tests.conftest import CAMPAIGN_ROUNDS, ROOT
from tests.upstreams import embed

ROUNDS = CAMPAIGN_ROUNDS or 2
LONGEST_S = 4.0  # a whole ingest takes about that long

CONTENT = """
SELECT md5(string_agg(c.chunk_id, ',' ORDER BY c.position)),
       (SELECT md5(string_agg(term || idf, ',' ORDER BY term)) FROM generation_terms t
        WHERE t.generation_id = b.live_generation)
FROM books b JOIN generation_chunks c ON c.generation_id = b.live_generation WHERE b.book_id = 'crash' GROUP BY b.book_id
"""


CHANGED = """
SELECT (g.lexicon->>'changed')::int FROM books b JOIN generations g ON g.generation_id = b.live_generation WHERE b.book_id = 'crash'
"""
SECTIONS = 100  # of a file
CHANGED_WORDS = "is moved and held by"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="affidavit-crash-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def start(folder: Path, book: Path = SAMPLE_BOOK) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "engine.cli", "ingest", str(book), "--book", "crash", "--json",
         "--data-dir", str(folder)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip


def finish(folder: Path, book: Path = SAMPLE_BOOK) -> dict[str, Any]:
    with start(folder, book) as process:
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


def kill_at(folder: Path, seconds: float, book: Path = SAMPLE_BOOK) -> None:
    with start(folder, book) as process:
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


@dataclass
class Large:
    """A book whose next edition continues the one before, and what embeds it."""

    folder: Path
    upstream: embed.Upstream
    is_embedding: threading.Event = field(default_factory=threading.Event)
    is_killed: threading.Event = field(default_factory=threading.Event)

    def change(self) -> None:
        file = self.folder / "007.md"
        file.write_text(file.read_text().replace("is held by", CHANGED_WORDS) + section(999_983))

    async def wait(self, texts: list[str]) -> None:
        """What has changed is not embedded before the process is killed."""
        if any(CHANGED_WORDS in text for text in texts):
            self.is_embedding.set()
            await asyncio.to_thread(self.is_killed.wait)


@pytest.fixture
async def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Large]:
    book = tmp_path / "book"
    book.mkdir()
    for number in range(CONTINUED_MIN // SECTIONS + 1):
        first = number * SECTIONS
        (book / f"{number:03}.md").write_text("".join(map(section, range(first, first + SECTIONS))))
    async with embed.serving() as upstream:
        given = {
            "COHERE_API_KEY": "none",
            "COHERE_BASE_URL": upstream.url,
            "AFFIDAVIT_COHERE__DIMENSION": "256",
        }
        for name, value in (given | {"AFFIDAVIT_PROVIDERS__EMBEDDER": "cohere"}).items():
            monkeypatch.setenv(name, value)
        yield Large(book, upstream)


def section(number: int) -> str:
    return f"## Part {number}\n\nThe part {number} of the arm is held by the joint {number * 7919 % 100_003} of the robot.\n\n"


# Seen red with an edition that is published before its index, and with an index that is changed in its place.
async def test_so_does_one_that_continues_an_edition(large: Large) -> None:
    with tempfile.TemporaryDirectory(prefix="affidavit-crash-", ignore_cleanup_errors=True) as name:
        await asyncio.to_thread(_kill_continuations, large, Path(name))


def _kill_continuations(large: Large, folders: Path) -> None:
    whole, killed, chance = folders / "whole", folders / "killed", random.Random(11)
    for folder in (whole, killed):
        assert finish(folder, large.folder)["exit_code"] == 0
    with database_up(killed):
        before = content(killed)
    large.change()
    began = time.monotonic()
    assert finish(whole, large.folder)["exit_code"] == 0
    lasts_s = time.monotonic() - began
    with database_up(whole):
        after = content(whole)
    assert None is not before != after is not None
    kill_while_embedding(killed, large)
    for number in range(ROUNDS):
        with database_up(killed):
            assert content(killed) in {before, after}
            assert is_indexed(killed)
        if number < ROUNDS - 1:
            kill_at(killed, chance.uniform(0.5, 1.0) * lasts_s, large.folder)
    with database_up(killed):
        assert finish(killed, large.folder)["exit_code"] == 0
        assert content(killed) == after
        assert has_continued(killed) and is_indexed(killed)


def kill_while_embedding(folder: Path, large: Large) -> None:
    """In the middle: the new edition is begun, and its index is a copy of the one before."""
    large.upstream.wait = large.wait
    with start(folder, large.folder) as process:
        assert large.is_embedding.wait(60.0)
        process.kill()
    large.is_killed.set()


def is_indexed(folder: Path) -> bool:
    """The index holds what was published, to the bit."""
    command = [sys.executable, "-m", "engine.cli", "index", "check", "--book", "crash"]
    return subprocess.run([*command, "--data-dir", str(folder)], cwd=ROOT, check=False).returncode == 0


def has_continued(folder: Path) -> bool:
    """As told by the numbers of its live edition: some passages came after its average length was made."""
    with psycopg.connect(host=str(folder / "postgres"), user="postgres", dbname="affidavit") as connection:
        ((changed,),) = connection.execute(CHANGED).fetchall()
    return bool(changed)
