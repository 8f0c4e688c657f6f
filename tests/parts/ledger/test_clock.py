"""A clock that is set back by 400 days: nothing gets a wrong time, no month is left out, and it is said what to do."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from audit.errors import ClockBehindError, LedgerUnavailableError
from audit.ledger import partitions
from engine import wiring
from engine.cli import doctor
from engine.storage.database import Database
from engine.wiring import now
from tests.conftest import Records
from tests.databases import scratch_log
from tests.logs.writers import ledger_on, trail

BACK = timedelta(days=400)


@pytest.fixture
async def log(database: Database) -> AsyncIterator[Database]:
    async with scratch_log(database) as made:
        yield made


def sealed_on(log: Database, moment: datetime) -> None:
    with psycopg.connect(log.url) as connection:
        names = connection.execute(
            "SELECT column_name, data_type FROM information_schema.columns"
            " WHERE table_name = 'audit_checkpoints' AND is_nullable = 'NO' AND column_default IS NULL"
        ).fetchall()
        values = {
            "date": f"date '{moment:%Y-%m}-01'",
            "bytea": "decode(repeat('00', 32), 'hex')",
            "text": "'x'",
        }
        values |= {"timestamp with time zone": f"timestamptz '{moment.isoformat()}'"}
        row = ", ".join(values.get(kind, "1") for _, kind in names)
        connection.execute(
            f"INSERT INTO audit_checkpoints ({', '.join(name for name, _ in names)}) VALUES ({row})".encode()
        )


def months_of(log: Database) -> list[str]:
    with psycopg.connect(log.url) as connection:
        found = connection.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'audit_logs'::regclass"
        )
        return sorted(name for (name,) in found.fetchall())


# Seen red without a look at the newest checkpoint, as before: the months of 400 days ago were made, and those between were missing.
async def test_a_clock_that_is_far_behind_makes_no_month_and_starts_nothing(log: Database) -> None:
    sealed_on(log, now())
    before, wrong = months_of(log), now() - BACK
    with pytest.raises(ClockBehindError, match="Set the clock right and start again"):
        await wiring.make_months_ahead(log, wrong.date())
    async with log.pool("affidavit_engine") as pool:
        ledger = ledger_on(pool)
        ledger._clock = lambda: wrong
        with pytest.raises(ClockBehindError):
            await ledger.start()
        await ledger.stop()
    assert months_of(log) == before


# Seen red without the days that a clock may be behind.
async def test_a_day_behind_is_no_wrong_clock(log: Database) -> None:
    sealed_on(log, now())
    await wiring.make_months_ahead(log, (now() - timedelta(days=1)).date())


# Seen red the same way.
async def test_doctor_says_what_to_do(log: Database) -> None:
    assert (await doctor._clock(log.settings, log))[0] == "ok"
    sealed_on(log, now() + BACK)
    finding = await doctor._result("clock", doctor._clock(log.settings, log))
    assert finding.state == "failed"
    assert "Set the clock right" in finding.words


# Seen red with a clock that is always right, as before: the row was written with its wrong time, in a month of its own.
async def test_a_clock_that_is_set_back_while_we_serve_stops_the_records_until_it_is_right(
    log: Database, tmp_path: Path
) -> None:
    clock = [now()]
    before, asked = months_of(log), trail()
    async with log.pool("affidavit_engine", 3) as pool:
        made = ledger_on(pool, tmp_path)
        made._clock = lambda: clock[0]
        await made.start()
        try:
            clock[0] -= BACK
            for step in (made.open, lambda one: made.close(one, clock[0])):
                with pytest.raises(LedgerUnavailableError):
                    await step(trail(timestamp=clock[0]))
            assert await made.taker() is None
            clock[0] += BACK
            await made.close(asked, clock[0])
        finally:
            await made.stop()
    assert months_of(log) == before
    assert len(Records(log.url).of(asked.query_id)) == 1


# Seen red with this month alone made.
async def test_the_gaps_of_an_older_wrong_clock_can_be_closed(log: Database) -> None:
    since = datetime(2025, 11, 1, tzinfo=UTC).date()
    today = datetime(2026, 6, 20, tzinfo=UTC).date()  # beyond the months that are made ahead
    await wiring.make_months_ahead(log, since)
    await wiring.make_months(log, since, today)
    names = [partitions.partition_name(month) for month in partitions.months_from(since, 8)]
    assert set(names) <= set(months_of(log))
