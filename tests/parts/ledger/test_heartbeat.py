"""Each process numbers its records, and its heartbeats say which must be there: one that was dropped leaves a gap."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from audit.checking.numbering import Numbering
from audit.errors import LedgerUnavailableError, TransientWriteError
from audit.ledger.group_commit import GroupCommit
from audit.ledger.heartbeat import Heartbeat
from audit.ledger.ledger import Ledger, SpoolSettings
from audit.ledger.numbers import RecordNumbers
from audit.ledger.spool import Spool
from audit.proof.record import Trail
from audit.proof.verdict import Report, Verdict
from engine.storage.database import Database
from engine.wiring import now
from tests.logs.recorded import make_months
from tests.logs.sealed_log import SealedLog, sealed_log
from tests.logs.writers import MEBIBYTE, trail

AT = datetime(2026, 11, 18, 14, tzinfo=UTC)
SKIPS = """
CREATE FUNCTION skip_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RETURN CASE WHEN NEW.user_query_text LIKE 'secret%' THEN NULL ELSE NEW END;
END
$$;
CREATE TRIGGER skip_row BEFORE INSERT ON audit_logs FOR EACH ROW EXECUTE FUNCTION skip_row()
"""


@pytest.fixture
async def log(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path) as made:
        with psycopg.connect(made.url) as connection:
            make_months(connection, [now().date()])
        yield made


@asynccontextmanager
async def writing(log: SealedLog, folder: Path | None = None, within_s: float = 2.0) -> AsyncIterator[Ledger]:
    async with log.database.pool("affidavit_engine", 4, has_autocommit=True) as pool:
        ledger = Ledger(
            pool, log.key, now, public_keys=lambda: log.keys, within_s=within_s,
            spooling=SpoolSettings(folder, MEBIBYTE) if folder else None,
        )  # fmt: skip
        await ledger.start()
        try:
            yield ledger
        finally:
            await ledger.stop()


def heartbeat(ledger: Ledger) -> Heartbeat:
    return Heartbeat(ledger, now, uuid4)


async def record(ledger: Ledger, text: str = "What is it?") -> Trail:
    asked = trail(user_query_text=text)
    await ledger.open(asked)
    await ledger.close(asked, now())
    return asked


def gaps(log: SealedLog) -> list[tuple[Verdict, str]]:
    return [(finding.verdict, finding.words) for finding in log.inspect().findings]


def drop_secrets(log: SealedLog) -> None:
    """As a superuser: audit_write goes on to say that all is well."""
    with psycopg.connect(log.url) as connection:
        connection.execute(
            "CREATE OR REPLACE FUNCTION audit_holds(rows json) RETURNS boolean LANGUAGE sql AS 'SELECT true'"
        )
        connection.execute(SKIPS)


# Seen red with a `_beat` that takes every number for recorded.
@pytest.mark.parametrize("is_sealed", [True, False])
async def test_a_record_that_the_database_was_made_to_drop_is_named(log: SealedLog, is_sealed: bool) -> None:
    async with writing(log) as ledger:
        await heartbeat(ledger).beat()
        kept = await record(ledger)
        drop_secrets(log)
        dropped = [await record(ledger, "secret"), await record(ledger, "secret, too")]
        await record(ledger)
        await heartbeat(ledger).beat()
    if is_sealed:
        assert await log.seal() == {}
    ((verdict, words),) = gaps(log)
    assert verdict is Verdict.MISSING
    assert [each.sequence for each in (kept, *dropped)] == [2, 3, 4]
    assert f"records 3 to 4 of the process {kept.writer} are neither in the log nor in progress" in words


async def test_nothing_is_missing_of_a_process_that_ran_and_stopped(log: SealedLog) -> None:
    async with writing(log) as ledger, heartbeat(ledger).beating():
        for _ in range(5):
            await record(ledger)
    assert await log.seal() == {}
    assert gaps(log) == []
    with psycopg.connect(log.url) as connection:
        told = connection.execute(
            "SELECT heartbeat FROM audit_logs WHERE endpoint = 'heartbeat' AND timestamp > '2026-01-01' ORDER BY sequence"
        ).fetchall()
    assert told[-1] == ({"through": 6, "unrecorded": []},)


# Seen red with a heartbeat that tells no number as unrecorded.
async def test_a_number_whose_record_could_not_be_opened_is_explained(log: SealedLog) -> None:
    """Its client got a 503 and no answer."""
    async with writing(log) as ledger:
        await heartbeat(ledger).beat()
        for _ in range(2):
            with pytest.raises(LedgerUnavailableError):
                await ledger.open(trail(best_score=float("nan")))
        await record(ledger)
        await heartbeat(ledger).beat()
    assert await log.seal() == {}
    assert gaps(log) == []


async def test_what_is_in_progress_is_not_missing(log: SealedLog) -> None:
    async with writing(log) as ledger:
        await heartbeat(ledger).beat()
        await ledger.open(trail())
        await heartbeat(ledger).beat()
        assert gaps(log) == []
    async with writing(log):  # as the process that starts after a kill
        pass
    assert await log.seal() == {}
    assert gaps(log) == []


# Seen red with a heartbeat that does not wait behind the records in the spool.
async def test_what_waits_in_a_spool_is_not_missing(
    log: SealedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat waits behind it, also when the process is gone."""
    async with writing(log, tmp_path / "spool", within_s=1.0) as ledger:
        await heartbeat(ledger).beat()

        async def undrained(_: Spool) -> None:
            raise TransientWriteError

        monkeypatch.setattr(ledger, "_drain_piece", undrained)
        with monkeypatch.context() as away:
            away.setattr(ledger, "_commits", GroupCommit())  # which nobody empties
            await record(ledger)
        ledger._is_database_down = False  # another has reached it again, and the spool is not drained yet
        await heartbeat(ledger).beat()
        assert ledger.is_spooling
        assert gaps(log) == []
    async with writing(log, tmp_path / "spool"):
        pass
    assert await log.seal() == {}
    assert gaps(log) == []


def row(number: int, at: datetime, **heartbeat: Any) -> tuple[dict[str, Any], datetime]:
    told = {"unrecorded": []} | heartbeat if heartbeat else None
    return {"writer": "w", "sequence": number, "heartbeat": told}, at


def judged(*rows: tuple[dict[str, Any], datetime], since: datetime = AT) -> Report:
    numbering = Numbering(since)
    for each, at in rows:
        numbering.add(each, at)
    report = Report(checked=1)
    numbering.finish(report)
    return report


def minute(count: float) -> datetime:
    return AT + timedelta(minutes=count)


def test_the_gap_is_between_two_heartbeats() -> None:
    report = judged(
        row(1, minute(2), through=0), row(2, minute(2)), row(3, minute(3), through=2), row(5, minute(4), through=4)
    )  # fmt: skip
    (finding,) = report.findings
    assert finding.verdict is Verdict.MISSING
    assert (
        "2026-11-18 14:03:00 UTC and 2026-11-18 14:04:00 UTC, record 4 of the process w is" in finding.words
    )


@pytest.mark.parametrize(
    "rows",
    [
        [row(1, minute(2), through=0), row(3, minute(2.5))],  # killed before the next heartbeat
        [row(1, minute(2), through=0), row(3, minute(3), through=1)],  # the second was being opened
        [row(1, minute(2), through=0), row(3, minute(3), through=2), row(2, minute(2.9))],  # sealed later
        [row(1, minute(2), through=0), row(4, minute(3), through=3, unrecorded=[[2, 3]])],
        [row(9, minute(0.5), through=8), row(12, minute(3), through=11), row(11, minute(2))],  # begun before
    ],
)
def test_no_gap_where_none_can_be_known(rows: list[tuple[dict[str, Any], datetime]]) -> None:
    assert judged(*rows).findings == []


def test_a_process_that_writes_records_and_no_heartbeats_is_named() -> None:
    (finding,) = judged(row(1, minute(2), through=0), row(3, minute(30))).findings
    assert finding.verdict is Verdict.UNSEALED
    assert "no heartbeat since 2026-11-18 14:02:00 UTC" in finding.words


def test_after_months_that_were_not_read_the_count_begins_anew() -> None:
    numbering = Numbering(AT)
    for each, at in (row(1, minute(2), through=0), row(2, minute(3))):
        numbering.add(each, at)
    numbering.cut(minute(100))
    for each, at in (row(90, minute(102), through=89), row(92, minute(103), through=91)):
        numbering.add(each, at)
    report = Report(checked=1)
    numbering.finish(report)
    (finding,) = report.findings
    assert "record 91 of the process w" in finding.words


def test_a_heartbeat_tells_each_failed_number_once_and_none_that_is_being_opened() -> None:
    numbers = RecordNumbers(UUID(int=1), last=9, opening={8}, failed={2, 3, 5, 9})
    told = numbers.heartbeat()
    assert told == {"through": 7, "unrecorded": [[2, 3], [5, 5]]}
    numbers.forget(told)
    assert numbers.failed == {9}


def test_a_heartbeat_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audit.ledger.numbers.RANGES_MAX", 2)
    numbers = RecordNumbers(UUID(int=1), last=9, failed={1, 3, 5, 7})
    assert numbers.heartbeat() == {"through": 4, "unrecorded": [[1, 1], [3, 3]]}
