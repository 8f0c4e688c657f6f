"""The processes judge rows as one does, in one snapshot, and the death of one costs only time."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from audit.checking import evidence, range_judge
from audit.checking.evidence import StoredEvidence
from audit.checking.inspection import Batch, inspect
from audit.checking.range_judge import RangeJudges
from audit.proof.verdict import Report, Verdict
from engine.storage.database import AUDITOR, Database, as_role, reading
from engine.wiring import now
from tests.logs.sealed_log import EVER, JANUARY, SealedLog, longer_log, quiet

ROWS = 60
_PLANNED = (
    "SELECT custom_plans, generic_plans FROM pg_prepared_statements WHERE statement LIKE '%row_to_json%'"
)


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (evidence, range_judge):
        monkeypatch.setattr(module, "SMALL", 50)
    monkeypatch.setattr(evidence, "BATCH_LEAVES", 7)


@pytest.fixture
async def log(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with longer_log(database, tmp_path, ROWS) as made:
        yield made


def batches(log: SealedLog, judges: RangeJudges | None) -> tuple[list[Batch], Report]:
    with reading(log.url, AUDITOR) as connection:
        evidence = StoredEvidence(connection, log.vault, EVER, now(), judges)
        evidence.begin()
        found = list(evidence.batches(JANUARY, 60, log.keys))
        return found, inspect(evidence, log.keys, quiet)


def test_the_processes_judge_as_one_does_and_in_order(log: SealedLog) -> None:
    log.attack(
        "UPDATE audit_logs SET answer_text = 'It says something else.' WHERE log_id = %(id)s",
        id=log.log_id(JANUARY, 117),
    )
    with RangeJudges(as_role(log.url, AUDITOR), 2) as judges:
        found, report = batches(log, judges)
        assert all(peer.worker for peer in judges.pool.peers)
        assert judges._here is None
    alone, report_alone = batches(log, None)
    assert [(each.begin, each.judged, each.outside_period) for each in found] == [
        (each.begin, each.judged, each.outside_period) for each in alone
    ]
    assert report == report_alone
    assert (report.verdict, len(report.findings)) == (Verdict.TAMPERED, 1)


def test_a_short_log_starts_no_process(log: SealedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "SMALL", 1_000)
    with RangeJudges(as_role(log.url, AUDITOR), 2) as judges:
        _, report = batches(log, judges)
        assert not any(peer.worker for peer in judges.pool.peers)
    assert report.verdict is Verdict.VALID


# Seen red with a process for each core, even for the only one.
def test_on_one_core_no_process_is_started(log: SealedLog) -> None:
    with RangeJudges(as_role(log.url, AUDITOR), 1) as judges:
        _, report = batches(log, judges)
        assert not any(peer.worker for peer in judges.pool.peers)
        assert judges._here is None
    assert report.verdict is Verdict.VALID


# Seen red without the setting of the session: PostgreSQL took the plan for any list, and read the whole month for each range.
def test_each_range_is_planned_for_its_own_ids(log: SealedLog) -> None:
    with reading(log.url, AUDITOR) as connection:
        evidence = StoredEvidence(connection, log.vault, EVER, now())
        evidence.begin()
        for _ in range(3):
            list(evidence.batches(JANUARY, 60, log.keys))
        planned = connection.execute(_PLANNED).fetchall()
    assert planned
    assert all(custom > 0 and generic == 0 for custom, generic in planned)


# Seen red with a dead process that was asked once more: its pipes were closed, and the verification failed.
def test_processes_that_die_cost_only_time(log: SealedLog) -> None:
    with RangeJudges(as_role(log.url, AUDITOR), 2) as judges:
        before, _ = batches(log, judges)
        for peer in judges.pool.peers:
            assert peer.worker
            peer.worker._process.kill()
        after, report = batches(log, judges)
        assert judges._here
    assert [each.judged for each in after] == [each.judged for each in before]
    assert report.verdict is Verdict.VALID


def test_the_processes_read_in_the_snapshot_of_the_first(log: SealedLog) -> None:
    """With snapshots of their own, a row that is altered meanwhile would be found, or not, by chance."""
    with RangeJudges(as_role(log.url, AUDITOR), 2) as judges, reading(log.url, AUDITOR) as connection:
        evidence = StoredEvidence(connection, log.vault, EVER, now(), judges)
        evidence.begin()
        log.attack(
            "UPDATE audit_logs SET answer_text = 'later' WHERE log_id = %(id)s", id=log.log_id(JANUARY, 150)
        )
        assert inspect(evidence, log.keys, quiet).verdict is Verdict.VALID
    assert log.inspect().verdict is Verdict.TAMPERED
