"""A verification that was stopped goes on where it was, judges no row twice, and believes nothing that the leaves contradict."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from threading import Barrier

import pytest

from audit.checking import evidence, inspection, judgement, range_judge
from audit.checking.evidence import StoredEvidence
from audit.checking.inspection import inspect
from audit.checking.judgement import Judged, StoredRow
from audit.proof.keys import PublicKey, RowKeys
from audit.proof.verdict import Report, Verdict
from audit.vault import FolderVault
from engine.errors import ConfigurationError
from engine.storage.database import AUDITOR, Database, reading
from engine.wiring import now, verification
from tests.logs.sealed_log import EVER, FEBRUARY, JANUARY, SealedLog, longer_log

JUDGED = "of them were judged earlier"


class StoppedError(Exception):
    """The run is killed."""


@pytest.fixture
async def log(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SealedLog]:
    monkeypatch.setattr(evidence, "BATCH_LEAVES", 4)
    monkeypatch.setattr(inspection, "KEPT_EVERY", 1)
    async with longer_log(database, tmp_path, 20) as made:
        yield made


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The records that were judged."""
    found: list[str] = []
    real = judgement.judge

    def judge(stored: StoredRow, keys: Sequence[PublicKey], signers: RowKeys) -> Judged:
        found.append(stored.log_id)
        return real(stored, keys, signers)

    monkeypatch.setattr(range_judge, "judge", judge)
    return found


def run(log: SealedLog, file: Path, stop_at: int | None = None) -> Report:
    """As the command does it; killed after so many leaves of January."""
    with reading(log.url, AUDITOR) as connection:
        found = StoredEvidence(connection, log.vault, EVER, now())
        found.begin()
        resumption = verification._resumption(file, log.keys, found)

        def progress(month: str, done: int, _: int) -> None:
            if month == "2025-01" and done == stop_at:
                raise StoppedError

        return inspect(found, log.keys, progress, resumption=resumption)


def stopped(log: SealedLog, file: Path, at: int) -> None:
    with pytest.raises(StoppedError):
        run(log, file, at)


def earlier(report: Report) -> int:
    return sum(number for words, number in report.counted.items() if words.startswith(JUDGED))


def test_it_goes_on_and_says_what_was_judged_earlier(
    log: SealedLog, tmp_path: Path, judged: list[str]
) -> None:
    whole = log.inspect()
    judged.clear()
    stopped(log, tmp_path / "run", 16)
    first = len(set(judged))
    assert 16 <= first < whole.checked
    judged.clear()
    report = run(log, tmp_path / "run")
    assert (report.verdict, report.checked, earlier(report)) == (Verdict.VALID, whole.checked, 16)
    assert len(judged) == whole.checked - 16


def test_leaves_that_changed_are_judged_anew(log: SealedLog, tmp_path: Path, judged: list[str]) -> None:
    stopped(log, tmp_path / "run", 16)
    other = log.log_id(FEBRUARY, 1)
    log.attack(
        "UPDATE audit_leaves SET log_id = gen_random_uuid() WHERE month = '2025-01-01' AND leaf_index = 5"
    )
    judged.clear()
    report = run(log, tmp_path / "run")
    assert report.verdict in {Verdict.TAMPERED, Verdict.MISSING}
    assert earlier(report) == 0
    assert other in judged


def test_an_altered_record_is_found_again(log: SealedLog, tmp_path: Path) -> None:
    log.attack("UPDATE audit_logs SET answer_text = 'x' WHERE log_id = %(id)s", id=log.log_id(JANUARY, 101))
    stopped(log, tmp_path / "run", 24)
    report = run(log, tmp_path / "run")
    assert (report.verdict, [finding.log_id for finding in report.findings]) == (
        Verdict.TAMPERED,
        [log.log_id(JANUARY, 101)],
    )


def test_what_lies_beyond_the_judged_is_judged(log: SealedLog, tmp_path: Path) -> None:
    stopped(log, tmp_path / "run", 8)
    log.attack("UPDATE audit_logs SET answer_text = 'x' WHERE log_id = %(id)s", id=log.log_id(JANUARY, 115))
    assert run(log, tmp_path / "run").verdict is Verdict.TAMPERED


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_is_refused(log: SealedLog, tmp_path: Path, mode: int) -> None:
    stopped(log, tmp_path / "run", 8)
    (tmp_path / "run").chmod(mode)
    with pytest.raises(ConfigurationError, match="they could say what was verified"):
        run(log, tmp_path / "run")


def test_a_file_that_says_more_than_was_judged_is_not_believed(log: SealedLog, tmp_path: Path) -> None:
    """Whoever writes it with a fitting digest of its own still needs the very leaves; and the verdict says how much it said."""
    stopped(log, tmp_path / "run", 8)
    kept = (tmp_path / "run").read_bytes()
    for content in (kept.replace(b'"checked":8', b'"checked":9'), kept[: len(kept) // 2]):
        (tmp_path / "run").write_bytes(content)
        report = run(log, tmp_path / "run")
        assert (report.verdict, earlier(report)) == (Verdict.VALID, 0)


class TogetherVault(FolderVault):
    """Answers only when two ask at the same time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.together = Barrier(2)

    def get(self, key: str, version: str | None = None) -> bytes:
        if key.startswith("anchors/2025-01/") and key.endswith(".leaves"):
            self.together.wait(timeout=20)
        return super().get(key, version)


async def test_anchors_are_read_together(log: SealedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other would wait for a second for ever."""
    log.write(JANUARY, 120)
    assert await log.seal() == {}
    log.write(JANUARY, 121)
    assert await log.seal() == {}
    monkeypatch.setattr(evidence, "BATCH_LEAVES", 500)
    vault = TogetherVault(log.folder / "vault")
    assert len([key for key in vault.keys("anchors/2025-01/") if key.endswith(".leaves")]) % 2 == 0
    assert log.inspect(vault=vault).verdict is Verdict.VALID
