"""Evidence package benchmark: seconds and memory to make one, and to verify it by the command and by its own program.

Run as `python -m bench.package [--rows 100000]`. Making reads each record, proves it and verifies the log of the period for the
statement of coverage; the check that `affidavit audit package` does at its end is measured by itself.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg

from audit.package.program import program
from audit.proof import passage_id
from audit.proof.keys import public_file
from bench.results import Figure, record, show
from bench.verify import BEGIN, PASSAGE, ROOT, batches, insert
from engine import settings as settings_file
from engine import wiring
from engine.signing import signing_key_of

ROWS = 100_000
GOAL_PER_S, GOAL_MB = 10_000, 500
MAKE = """
import asyncio, sys
from pathlib import Path
from uuid import UUID
from audit.packing.choice import Choice
from engine import settings, wiring
from engine.cli import output
folder, file, since, until = sys.argv[1:]
loaded = settings.load({}, data_dir=Path(folder))
async def main():
    async with wiring.open_existing_database(loaded) as database:
        choice = Choice(output.moment(since), output.moment(until))
        with wiring.open_making(loaded, database, choice, UUID(int=1), lambda *_: None) as making:
            making.make(Path(file))
asyncio.run(main())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory(prefix="affidavit-package-", ignore_cleanup_errors=True) as folder:
        found = asyncio.run(_measured(Path(folder), rows))
    made, checked, alone = found["made"], found["checked"], found["alone"]
    figures = [
        Figure(f"package, {rows} records, {found['mb']} MB: seconds to make", made["seconds"], ""),
        Figure("package: peak memory to make, MB", made["memory_mb"], f"≤ {GOAL_MB}"),
        Figure("package: verify by `affidavit audit check`, records/s by the clock", round(rows / checked["seconds"]), ""),
        Figure("the same, for each second of processor time", round(rows / checked["core_s"]), f"≥ {GOAL_PER_S}"),
        Figure("package: peak memory to verify, MB", checked["memory_mb"], f"≤ {GOAL_MB}"),
        Figure("package: verify by its auditor.pyz, records for each second of processor time", round(rows / alone["core_s"]), f"≥ {GOAL_PER_S}"),
    ]  # fmt: skip
    for figure in figures:
        show(figure)
    record("package", [asdict(figure) for figure in figures])


async def _measured(folder: Path, rows: int) -> dict[str, Any]:
    settings = settings_file.load({}, data_dir=folder)
    file, alone = folder / "evidence.zip", folder / "auditor.pyz"
    alone.write_bytes(program())
    async with wiring.open_database(settings, lambda _: None) as database:
        with psycopg.connect(database.url) as connection:
            connection.execute("SELECT audit_make_month(%s)", (BEGIN.date(),))
            key = signing_key_of(settings, list)
            citations = [_cited(connection, number) for number in range(1, 4)]
            for batch in batches(rows, key, citations=citations):
                insert(connection, batch)
            connection.execute("ANALYZE audit_logs, audit_leaves")
        async with wiring.open_sealer(settings, database) as sealer:
            await sealer.seal_once()
        period = (str(BEGIN.date()), "2026-04-01")
        made = await asyncio.to_thread(_run, "-c", MAKE, str(folder), str(file), *period)
    given = (str(file), "--public-key", str(public_file(folder / "signing.key")), "--json")
    checked = _run("-m", "engine.cli", "audit", "check", *given)
    by_itself = _run(str(alone), *given)
    for each in (checked, by_itself):
        verdict = json.loads(each["said"])
        assert (verdict["verdict"], verdict["checked"]) == ("VALID", rows), each["said"][:500]
    return {"made": made, "checked": checked, "alone": by_itself, "mb": round(file.stat().st_size / 1e6, 1)}


def _cited(connection: psycopg.Connection, number: int) -> dict[str, Any]:
    """A citation of a passage that is in the database."""
    covered = {
        "book_id": "physical-ai", "filename": "contact.md", "url": "/docs/contact", "chapter": "Contact", "section": "Compliance",
        "chunk_index": number, "text": PASSAGE, "start_sentence": 0, "module": None, "difficulty": None, "tags": [],
        "sentences": [[0, len(PASSAGE), "Compliance", "compliance", "156"]],
    }  # fmt: skip
    passage = covered | passage_id.derived(covered)
    names, marks = ", ".join(passage), ", ".join(f"%({name})s" for name in passage)
    connection.execute("SET session_replication_role = replica")
    values = passage | {"sentences": json.dumps(passage["sentences"])}
    connection.execute(f"INSERT INTO chunks ({names}) VALUES ({marks})".encode(), values)  # noqa: S608  our own names
    connection.execute("SET session_replication_role = origin")
    return {
        "n": number, "chunk_id": passage["chunk_id"], "section": "Compliance", "chapter": "Contact", "page": "156", "filename": "contact.md",
        "url": "/docs/contact#compliance", "excerpt": PASSAGE[10:190], "start": 10, "end": 190, "score": 0.8123,
    }  # fmt: skip


def _run(*words: str) -> dict[str, Any]:
    """Its time by the clock and of the processor, with its child processes; its memory, without them."""
    before, began = os.times(), time.monotonic()
    child = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE)
    assert child.stdout
    said = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, said[:500]
    after = os.times()
    core_s = after.children_user - before.children_user + after.children_system - before.children_system
    return {
        "said": said.decode(), "seconds": round(time.monotonic() - began, 2), "core_s": core_s, "memory_mb": usage.ru_maxrss // 1024,
    }  # fmt: skip


if __name__ == "__main__":
    main()
