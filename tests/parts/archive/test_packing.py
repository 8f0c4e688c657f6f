"""A month that several processes pack is the same to the byte, or it is no archive."""

from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import psycopg
import pytest

from audit.archive import packing
from audit.archive.export import export
from audit.archive.packing import HERE, MonthRecords, Packers, Range
from audit.checking.row_reader import shared_snapshot
from audit.errors import ExportError
from audit.progress import Progress
from audit.worker_pool import WorkerPool
from engine.storage.database import ARCHIVER, Database, as_role, reading
from tests.logs.archiving import archiver_of, steps
from tests.logs.sealed_log import JANUARY, SealedLog, longer_log, quiet
from tests.parts.archive.test_archive_format import KEYS_MADE

ROWS = 60


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "SMALL", 50)
    monkeypatch.setattr(packing, "BATCH_ROWS", 3)


@pytest.fixture
async def log(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with longer_log(database, tmp_path, ROWS) as made:
        yield made


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[WorkerPool]:
    """Those that packed."""
    made: list[WorkerPool] = []

    def kept(*given: object) -> WorkerPool:
        made.append(WorkerPool(*given))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(packing, "WorkerPool", kept)
    return made


def packers(log: SealedLog) -> Packers:
    return Packers(as_role(log.url, ARCHIVER), 2)


def digests(log: SealedLog, folder: Path, given: Packers, progress: Progress = quiet) -> Mapping[str, str]:
    with psycopg.connect(log.url) as connection:
        connection.execute(KEYS_MADE)
    folder.mkdir()
    with reading(log.url, ARCHIVER) as connection:
        return export(connection, JANUARY, folder, log.keys, "1.2.3", progress, packers=given).digests


def test_several_processes_write_the_bytes_that_one_writes(
    log: SealedLog, tmp_path: Path, pools: list[WorkerPool]
) -> None:
    together = digests(log, tmp_path / "together", packers(log))
    assert all(peer.worker for peer in pools[0].peers)
    assert digests(log, tmp_path / "alone", HERE) == together
    assert len(pools) == 1


def _skipped(ranges: list[Range]) -> None:
    del ranges[7]


def _swapped(ranges: list[Range]) -> None:
    ranges[7], ranges[8] = ranges[8], ranges[7]


def _repeated(ranges: list[Range]) -> None:
    ranges[8] = ranges[7]


# Seen red, all three, without the comparison of the root that the packed leaves have with the checkpoint's.
@pytest.mark.parametrize("bug", [_skipped, _swapped, _repeated])
def test_ranges_that_are_lost_or_out_of_order_are_no_archive(
    log: SealedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: object
) -> None:
    whole = MonthRecords.ranges

    def ranges(records: MonthRecords) -> Iterator[Range]:
        found = list(whole(records))
        bug(found)  # type: ignore[operator]
        return iter(found)

    monkeypatch.setattr(MonthRecords, "ranges", ranges)
    with pytest.raises(ExportError, match="root of its last checkpoint"):
        digests(log, tmp_path / "out", packers(log))


# Seen red with a death that counted as the end of the ranges.
async def test_a_process_that_dies_leaves_the_month_where_it_is(
    log: SealedLog, pools: list[WorkerPool]
) -> None:
    def kill(what: str, done: int, _: int) -> None:
        if (what, done) == ("2025-01", packing.BATCH_ROWS):
            for peer in pools[0].peers:
                if peer.worker:
                    peer.worker._process.kill()

    outcomes = await archiver_of(log, packers=packers(log), progress=kill).archive(None)
    january = next(outcome for outcome in outcomes if outcome.month == "2025-01")
    assert (january.state, january.is_well) == ("frozen", False)
    assert "A worker process ended" in january.words
    assert steps(log, JANUARY) == ["frozen"]
    await archiver_of(log, packers=packers(log)).archive(None)
    assert steps(log, JANUARY) == ["frozen", "uploaded", "verified", "detached", "dropped"]


# Seen red with processes that read in snapshots of their own.
def test_the_processes_read_in_the_snapshot_of_the_export(
    log: SealedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attacked(connection: psycopg.Connection) -> str:
        snapshot = shared_snapshot(connection)
        log.attack(
            "UPDATE audit_logs SET answer_text = 'later' WHERE log_id = %(id)s", id=log.log_id(JANUARY, 110)
        )
        return snapshot

    before = digests(log, tmp_path / "before", packers(log))
    monkeypatch.setattr(packing, "shared_snapshot", attacked)
    assert digests(log, tmp_path / "meanwhile", packers(log)) == before
    with pytest.raises(ExportError, match="differs from what was sealed"):
        digests(log, tmp_path / "after", packers(log))
