"""A data folder with the sample book: made once for all processes and runs with the same code, then copied.

Its embeddings are ten seconds of a core. What it is made of is in its name, so that a stale one is never taken.
"""

import asyncio
import shutil
import subprocess
import sys
from datetime import date
from hashlib import sha256
from pathlib import Path

from engine import settings as settings_file
from engine import wiring
from engine.providers import postgres
from engine.settings import Settings
from engine.storage.data_folder import ExclusiveLock

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".pytest_cache" / "d" / "sample-book"
MADE_OF = ("engine", "ingest", "audit", "sql", "config", "tests/prepared.py", "requirements-dev.lock")


def with_sample_book(folder: Path) -> None:
    """Fills this empty data folder: a database that is migrated, with the months ahead, and the sample book published."""
    CACHE.mkdir(parents=True, exist_ok=True)
    kept = CACHE / _digest(wiring.now().date())
    with ExclusiveLock(CACHE / "lock"):
        if kept.exists():
            _copy(kept, folder)
            _let_the_server_pass(folder)
        else:
            asyncio.run(_publish(settings_file.load({}, data_dir=folder)))
            _keep(folder, kept)


def _digest(today: date) -> str:
    """Of everything that makes it; and of the day, because of the months ahead."""
    known = sha256(f"{sys.version} {today}".encode())
    for place in MADE_OF:
        for file in sorted([ROOT / place, *(ROOT / place).rglob("*")]):
            if file.is_file() and "__pycache__" not in file.parts:
                known.update(f"{file.relative_to(ROOT)} {sha256(file.read_bytes()).hexdigest()}\n".encode())
    return known.hexdigest()[:16]


async def _publish(settings: Settings) -> None:
    async with wiring.open_database(settings, lambda _: None) as opened:
        await wiring.make_months_ahead(opened, wiring.now().date())
        async with wiring.open_ingest(settings, opened, lambda *_: None) as ingest:
            result = await ingest.run([wiring.SAMPLE_BOOK], settings.books.default, wiring.SAMPLE_TITLE)
    assert result.exit_code == 0


def _keep(made: Path, kept: Path) -> None:
    """Atomically, and in place of the older ones."""
    for older in kept.parent.iterdir():
        if older.is_dir():
            shutil.rmtree(older)
    draft = kept.with_suffix(".draft")
    draft.mkdir()
    _copy(made, draft)
    draft.rename(kept)


def _copy(source: Path, target: Path) -> None:
    """With the owners of the files, because the server's are those of its system user; the index's are mostly zeros."""
    sparse = ["--sparse=always"] if sys.platform == "linux" else []
    subprocess.run(["cp", "-a", *sparse, f"{source}/.", str(target)], check=True)


def _let_the_server_pass(folder: Path) -> None:
    if account := postgres._account():
        postgres.allow_traversal(account.pw_name, folder / "postgres")
