"""Restore drill benchmark: `affidavit drill restore` of a dump and of a base backup, with rows that came after the backup.

Run as `python -m bench.drill [--rows 100000]`.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg

from bench.results import Figure, record, show
from bench.verify import BEGIN, ROOT, batches, insert
from engine import settings as settings_file
from engine import wiring
from engine.providers.postgres import PROGRAMS
from engine.settings import Settings
from engine.signing import signing_key_of
from engine.storage.database import Database

ROWS, LATER = 100_000, 1_000
_REPLICATION = "local replication all peer map=house\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory(prefix="affidavit-bench-", ignore_cleanup_errors=True) as folder:
        drills = asyncio.run(_drills(Path(folder), rows))
    figures = [figure for drill in drills for figure in _figures(drill)]
    for figure in figures:
        show(figure)
    record("drill", [asdict(figure) for figure in figures])


async def _drills(folder: Path, rows: int) -> list[dict[str, Any]]:
    settings = settings_file.load({}, data_dir=folder)
    async with wiring.open_database(settings, lambda _: None) as database:
        await _write(settings, database, rows)
        backups = list(_backups(folder, database))
        await _write(settings, database, LATER)
        return [await asyncio.to_thread(_drill, folder, *given) for given in backups]


async def _write(settings: Settings, database: Database, rows: int) -> None:
    with psycopg.connect(database.url) as connection:
        connection.execute("SELECT audit_make_month(%s)", (BEGIN.date(),))
        for batch in batches(rows, signing_key_of(settings, list)):
            insert(connection, batch)
        connection.execute("ANALYZE audit_logs, audit_leaves")
    async with wiring.open_sealer(settings, database) as sealer:
        await sealer.seal_once()


def _backups(folder: Path, database: Database) -> Iterator[tuple[str, Path]]:
    dump, base = folder / "dump", folder / "base"
    subprocess.run([PROGRAMS / "pg_dump", "--format=custom", f"--file={dump}", database.url], check=True)
    yield "--dump", dump
    with (folder / "postgres" / "pg_hba.conf").open("a") as rules:
        rules.write(_REPLICATION)
    with psycopg.connect(database.url) as connection:
        connection.execute("SELECT pg_reload_conf()")
    subprocess.run(
        [PROGRAMS / "pg_basebackup", f"--pgdata={base}", "--checkpoint=fast", f"--dbname={database.url}"],
        check=True, capture_output=True,
    )  # fmt: skip
    yield "--base-backup", base


def _drill(folder: Path, option: str, backup: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "engine.cli", "drill", "restore", option, backup, "--data-dir", folder, "--json"],
        cwd=ROOT, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _figures(drill: dict[str, Any]) -> Iterator[Figure]:
    what = f"drill of a {drill['backup']}, {drill['rows']} rows, {drill['bytes'] / 1024**2:.0f} MiB"
    yield Figure(f"{what}: verdict", drill["verdict"], "VALID")
    yield Figure("… rows newer than the backup, as the vault says", drill["newer_rows"], f"{LATER}")
    yield Figure("… seconds to restore it", drill["restore_s"], "")
    yield Figure("… seconds to verify it", drill["verify_s"], "")


if __name__ == "__main__":
    main()
