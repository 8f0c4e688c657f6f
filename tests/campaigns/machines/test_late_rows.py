"""A month is frozen and archived while the disk of a lost engine still holds rows of it: they are kept aside, and named."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import psycopg
import pytest

from audit.ledger.entry import Entry
from audit.ledger.spool import ASIDE_FILE, Spool, line_of
from audit.proof.record import SALT_BYTES, hashed, row_of
from audit.proof.row_signature import signed
from audit.proof.verdict import Verdict
from engine.storage.database import Database
from engine.wiring import now
from tests.command_line import affidavit
from tests.logs.archiving import archiver_of, rows_of
from tests.logs.recorded import make_months
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog, sealed_log, whole_trail


@pytest.fixture
async def log(anyio_backend: str, database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path) as made:
        with psycopg.connect(made.url) as connection:
            make_months(connection, [now().date()])
        yield made


def ended(log: SealedLog, month: date, number: int) -> Entry:
    trail = whole_trail(month, number)
    row = signed(hashed(row_of(trail), b"\x07" * SALT_BYTES), trail.log_id, log.key)
    return replace(Entry.closed(trail.log_id, row), is_spooled=True)


async def test_rows_of_a_month_that_is_archived_meanwhile_are_kept_aside_and_named(
    log: SealedLog, tmp_path: Path
) -> None:
    folder = tmp_path / "disk" / "spool"
    spool = Spool.open(folder, 7, 1 << 20)
    late, timely = ended(log, JANUARY, 98), ended(log, FEBRUARY, 99)
    await spool.append([late, timely])
    spool.close()
    await archiver_of(log).archive(FEBRUARY)
    drained = affidavit("audit", "drain", folder, data_dir=log.folder, DATABASE_URL=log.url)
    assert drained.returncode == 1
    assert "2 entries of 1 files were drained" in drained.stdout
    assert f"{ASIDE_FILE}: 1 entries, refused for good" in drained.stdout
    assert (folder / ASIDE_FILE).read_bytes() == line_of(late)
    assert timely.log_id in {row["log_id"] for row in rows_of(log, FEBRUARY)}
    assert await log.seal() == {}
    assert log.inspect().verdict is Verdict.ARCHIVED
