"""What is older than it may be kept loses what is personal, by itself; and nobody sets that limit too low without a word."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from audit import auditor
from audit.erasure.erase import BATCH_ROWS, ErasureReport
from audit.proof.verdict import Verdict
from engine import settings as settings_file
from engine.errors import ConfigurationError
from engine.settings import RETENTION_DAYS_MIN
from engine.storage.database import Database
from engine.wiring import now
from tests.command_line import affidavit
from tests.logs.archiving import archiver_of
from tests.logs.recorded import make_months, write
from tests.logs.sealed_log import FEBRUARY, SealedLog, sealed_log, whole_trail

LIMIT = datetime(2025, 2, 10, 12, 5, tzinfo=UTC)  # January's 5 records and February's first 5 are older


@pytest.fixture
async def log(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path) as made:
        with psycopg.connect(made.url) as connection:
            make_months(connection, [now().date()])
        yield made


async def end_retention(log: SealedLog, until: datetime) -> ErasureReport:
    async with log.erasing() as (eraser, event):
        done = await eraser.end_retention(until, "older than a day", event, lambda *_: None)
        await eraser.vacuum()
    return done


def ask(log: SealedLog, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(log.url) as connection:
        return connection.execute(query.encode()).fetchall()


# Seen red with a limit that is compared with the time of sealing.
async def test_what_is_older_loses_what_is_personal_and_stays_proven(log: SealedLog) -> None:
    proof = await log.prove(log.rows[FEBRUARY, 2])
    done = await end_retention(log, LIMIT)
    assert (done.records, done.archived, done.left) == (10, 0, [])
    assert ask(log, "SELECT count(*) FROM audit_logs WHERE erased_at IS NULL AND endpoint = '/v1/query'") == [
        (7,)
    ]
    assert ask(
        log, "SELECT count(*) FROM audit_logs WHERE timestamp < '2025-02-10 12:05Z' AND salt IS NOT NULL"
    ) == [(0,)]
    assert ask(log, "SELECT DISTINCT basis FROM audit_erasures") == [("older than a day",)]
    assert await log.seal() == {}
    assert log.inspect().verdict is Verdict.VALID
    assert auditor.check(proof, log.keys).verdict is Verdict.VALID
    assert auditor.check(await log.prove(log.rows[FEBRUARY, 2]), log.keys).verdict is Verdict.ERASED


async def test_a_second_run_finds_nothing_to_do(log: SealedLog) -> None:
    await end_retention(log, LIMIT)
    assert (await end_retention(log, LIMIT)).is_empty
    assert ask(log, "SELECT count(*) FROM audit_logs WHERE endpoint LIKE 'affidavit audit %'") == [(1,)]


async def test_many_records_go_batch_by_batch_each_with_its_event(log: SealedLog) -> None:
    with psycopg.connect(log.url) as connection:
        trails = [whole_trail(FEBRUARY, -10_000 + place) for place in range(BATCH_ROWS + 10)]
        write(connection, *trails, key=log.key)
    assert await log.seal() == {}
    done = await end_retention(log, LIMIT)
    assert done.records == BATCH_ROWS + 20
    assert len(ask(log, "SELECT event FROM audit_erasures GROUP BY event")) >= 2
    assert await log.seal() == {}
    assert log.inspect().verdict is Verdict.VALID


async def test_archived_months_lose_their_keys_when_all_of_the_month_is_over_the_limit(
    log: SealedLog,
) -> None:
    assert all(outcome.is_well for outcome in await archiver_of(log).archive(FEBRUARY.replace(month=3)))
    done = await end_retention(log, LIMIT)
    assert (done.records, done.archived) == (0, 5)
    assert ask(log, "SELECT DISTINCT month FROM audit_row_keys") == [(FEBRUARY,)]
    done = await end_retention(log, LIMIT + timedelta(days=28))
    assert (done.archived, ask(log, "SELECT count(*) FROM audit_row_keys")) == (12, [(0,)])
    assert [finding for finding in log.inspect().findings if finding.verdict is not Verdict.ARCHIVED] == []


# --- the guard


# Seen red with a guard that takes a blank for a reason.
@pytest.mark.parametrize("days", [1, RETENTION_DAYS_MIN - 1])
@pytest.mark.parametrize("reason", ["", "  "])
def test_less_than_six_months_is_refused(days: int, reason: str) -> None:
    environment = {
        "AFFIDAVIT_ARCHIVE__RETENTION_DAYS": str(days), "AFFIDAVIT_ARCHIVE__RETENTION_ACKNOWLEDGED": reason
    }  # fmt: skip
    with pytest.raises(ConfigurationError, match=f"retention_days = {days} is less than the 183 days"):
        settings_file.load(environment)


def test_six_months_need_no_reason_and_less_needs_one() -> None:
    assert settings_file.load({"AFFIDAVIT_ARCHIVE__RETENTION_DAYS": "183"}).archive.retention_days == 183
    less = {
        "AFFIDAVIT_ARCHIVE__RETENTION_DAYS": "30",
        "AFFIDAVIT_ARCHIVE__RETENTION_ACKNOWLEDGED": "a test site",
    }
    settings = settings_file.load(less)
    assert settings.archive.retention_days == 30
    assert settings.fingerprint() != settings_file.load({}).fingerprint()  # which every record names


def test_the_command_says_what_it_did_and_records_why_less_is_right(log: SealedLog) -> None:
    said = affidavit(
        "audit", "retention", "--json", data_dir=log.folder, DATABASE_URL=log.url,
        AFFIDAVIT_ARCHIVE__RETENTION_DAYS="30", AFFIDAVIT_ARCHIVE__RETENTION_ACKNOWLEDGED="a test site",
    )  # fmt: skip
    told = json.loads(said.stdout)
    assert (said.returncode, told["records"], told["left"]) == (0, 17, [])
    ((about, reason, settings),) = ask(
        log,
        "SELECT details, reason, settings_sha256 FROM audit_logs WHERE endpoint = 'affidavit audit retention'",
    )
    assert about == {"retention_days": 30, "retention_acknowledged": "a test site"}
    assert reason == f"erasure {told['erasure_id']}: 17 records"
    assert len(settings) == 64
    checked = affidavit("audit", "verify", "--json", data_dir=log.folder, DATABASE_URL=log.url)
    assert json.loads(checked.stdout)["verdict"] == "VALID"


async def test_what_is_not_sealed_is_kept_and_said(log: SealedLog) -> None:
    log.write(FEBRUARY, -5)
    done = await end_retention(log, LIMIT)
    assert (done.records, done.left) == (10, ["1 records are not sealed yet: the next run erases them"])
