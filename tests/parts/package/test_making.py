"""An evidence package of a real log: made in pieces, and checked whole by the auditor."""

import csv
import io
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from audit.erasure.target import ErasureTarget
from audit.errors import UnmadeError
from audit.package.ladder import Rung
from audit.packing import pieces
from audit.proof.verdict import Verdict
from engine.storage.database import Database
from tests.logs.archiving import archiver_of, attached
from tests.logs.packing import ODD_USER, UNTIL, checked, content, make, quoting_log, read_json, records
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog

MANIFEST = "manifest.json"


@pytest.fixture(scope="module")
async def log(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SealedLog]:
    """Nobody changes it."""
    async with quoting_log(database, tmp_path_factory.mktemp("packed")) as made:
        yield made


@pytest.fixture
async def own(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    """A log to be changed."""
    async with quoting_log(database, tmp_path / "log") as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "evidence.zip"


def test_a_package_of_a_whole_log_is_valid(log: SealedLog, file: Path) -> None:
    made = make(log, file)
    report = checked(log, file)
    assert (report.verdict, report.checked, report.findings) == (Verdict.VALID, 14, [])
    assert (made.records, made.passages, made.months) == (14, 3, 2)
    assert [each["leaf_index"] for each in records(file)] == [*range(5), *range(9)]
    assert read_json(file, "coverage.json")["is_whole"] is True
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    assert file.stat().st_mode & 0o077 == 0


def test_two_packages_of_one_log_have_the_same_bytes_but_for_time_and_event(
    log: SealedLog, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.zip", tmp_path / "second.zip"
    make(log, first)
    make(log, second, event=UUID(int=7))
    one, other = content(first), content(second)
    manifests = [json.loads(each.pop(MANIFEST)) for each in (one, other)]
    assert one == other
    for each in manifests:
        del each["made_at"], each["event"], each["signature"]
    assert manifests[0] == manifests[1]


def test_a_client_a_user_and_a_query_choose(log: SealedLog, tmp_path: Path) -> None:
    query = str(log.rows[FEBRUARY, 7]["query_id"])
    choices: dict[str, Any] = {"client": "shop", "user": ODD_USER, "query": UUID(query)}
    found = {}
    for name, value in choices.items():
        make(log, tmp_path / name, **{name: value})
        assert checked(log, tmp_path / name).verdict is Verdict.VALID
        assert read_json(tmp_path / name, "coverage.json")["is_whole"] is False
        found[name] = [each["leaf_index"] for each in records(tmp_path / name)]
    assert found == {"client": [4, 5, 6], "user": [6], "query": [7]}


def test_a_user_with_an_odd_name_stays_one_cell_that_calculates_nothing(log: SealedLog, file: Path) -> None:
    make(log, file, user=ODD_USER)
    head, row = csv.reader(io.StringIO(content(file)["records.csv"].decode("utf-8-sig"), newline=""))
    assert dict(zip(head, row, strict=True))["end_user"] == ODD_USER


def test_a_period_without_records_is_not_valid(log: SealedLog, file: Path) -> None:
    make(log, file, since=datetime(2024, 5, 1, tzinfo=UTC), until=datetime(2024, 6, 1, tzinfo=UTC))
    report = checked(log, file)
    assert (report.verdict, report.checked) == (Verdict.CANNOT_TELL, 0)


def test_a_part_of_a_month_has_the_records_of_that_time(log: SealedLog, file: Path) -> None:
    make(
        log,
        file,
        since=datetime(2025, 2, 10, 12, 2, tzinfo=UTC),
        until=datetime(2025, 2, 10, 12, 5, tzinfo=UTC),
    )
    assert checked(log, file).verdict is Verdict.VALID
    assert [each["leaf_index"] for each in records(file)] == [2, 3, 4]


# Seen red with personal columns left in the spreadsheet.
def test_a_redacted_package_holds_no_personal_value(log: SealedLog, file: Path) -> None:
    made = make(log, file, is_redacted=True, user=ODD_USER, case="../../case")
    assert (checked(log, file).verdict, made.records, made.withheld) == (Verdict.VALID, 1, 1)
    files = content(file)
    for canary in ("Ünal", "Was misst", "IMU", "It measures"):
        assert not [name for name, each in files.items() if canary.encode() in each and name != "auditor.pyz"]
    assert files["passages.jsonl"] == b""
    assert list(file.parent.iterdir()) == [file]


async def test_what_is_not_sealed_yet_is_said_and_not_packed(own: SealedLog, file: Path) -> None:
    own.write(FEBRUARY, 30, citations=None)
    make(own, file)
    report = checked(own, file)
    assert (report.checked, report.verdict) == (14, Verdict.VALID)
    assert read_json(file, "coverage.json")["unsealed"] == 1
    assert any("were not sealed" in words for words in report.counted)


async def test_an_erased_record_is_proven_without_its_text(own: SealedLog, file: Path) -> None:
    query = UUID(str(own.rows[FEBRUARY, 7]["query_id"]))
    await own.erase(ErasureTarget(query_id=query))
    made = make(own, file)
    report = checked(own, file)
    assert (report.verdict, made.erased, made.withheld) == (Verdict.ERASED, 1, 1)
    assert report.ladder[Rung.WORDS][Verdict.ERASED] == 1
    assert "imu? 🤖 7".encode() not in b"".join(content(file).values()).lower()


async def test_a_package_of_a_tampered_log_says_so(own: SealedLog, file: Path) -> None:
    own.attack("UPDATE audit_logs SET answer_text = 'No.' WHERE client_id = 'shop' AND end_user <> 'x'")
    make(own, file)
    report = checked(own, file)
    assert report.verdict is Verdict.TAMPERED
    assert {"row", "leaf", "coverage"} <= {finding.what for finding in report.findings}


async def test_a_record_that_is_gone_is_missing(own: SealedLog, file: Path) -> None:
    own.attack(f"DELETE FROM audit_logs WHERE log_id = '{own.log_id(FEBRUARY, 6)}'")
    make(own, file)
    found = [(each.what, each.verdict, each.leaf_index) for each in checked(own, file).findings]
    assert ("coverage", Verdict.MISSING, 6) in found


async def test_without_its_leaves_nothing_is_packed(own: SealedLog, file: Path) -> None:
    own.attack("DELETE FROM audit_leaves WHERE leaf_index = 6")
    with pytest.raises(UnmadeError, match="leaves of 2025-02 are missing"):
        make(own, file)
    assert not file.exists()


async def test_an_archived_month_gives_the_same_records(own: SealedLog, tmp_path: Path) -> None:
    before, after, redacted = tmp_path / "before.zip", tmp_path / "after.zip", tmp_path / "redacted.zip"
    make(own, before)
    await archiver_of(own).archive(datetime(2025, 2, 1, tzinfo=UTC).date())
    assert f"audit_logs_{JANUARY:%Y_%m}" not in attached(own)
    make(own, after)
    make(own, redacted, is_redacted=True)
    name = f"records/{JANUARY:%Y-%m}.jsonl"
    assert content(after)[name] == content(before)[name]
    assert read_json(after, "coverage.json")["months"][0]["tier"] == "archive"
    assert {checked(own, each).verdict for each in (after, redacted)} == {Verdict.VALID}


def test_a_file_that_is_there_is_not_overwritten(log: SealedLog, file: Path) -> None:
    file.write_bytes(b"mine")
    with pytest.raises(UnmadeError, match="exists already"):
        make(log, file)
    assert file.read_bytes() == b"mine"


def stop_after(calls: int) -> object:
    left = [calls]

    def progress(_: str, __: int, ___: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise InterruptedError

    return progress


# Seen red with the pieces of the folder taken whatever they were of.
def test_the_parts_of_another_package_are_not_taken(
    log: SealedLog, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "ROWS", 2)
    with pytest.raises(InterruptedError):
        make(log, file, stop_after(2))
    with pytest.raises(UnmadeError, match="of another package"):
        make(log, file, client="shop")
    assert make(log, file).records == 14


# Seen red without the user in the state: redacted packages of two users look alike.
def test_the_parts_of_another_user_are_not_taken_by_a_redacted_package(
    log: SealedLog, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "ROWS", 2)
    with pytest.raises(InterruptedError):
        make(log, file, stop_after(2), is_redacted=True, user="user:1")
    with pytest.raises(UnmadeError, match="of another package"):
        make(log, file, is_redacted=True, user=ODD_USER)


# Seen red without the digest of a piece.
def test_a_damaged_piece_is_found(log: SealedLog, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "ROWS", 2)
    with pytest.raises(InterruptedError):
        make(log, file, stop_after(2))
    (piece, *_) = sorted(file.with_name("evidence.zip.parts").glob("*.records"))
    piece.write_bytes(piece.read_bytes()[:-40])
    with pytest.raises(UnmadeError, match="is damaged"):
        make(log, file)


# Seen red without the count of erasures in the state: the piece that was finished before still had the text.
async def test_after_an_erasure_a_stopped_package_begins_anew(
    own: SealedLog, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "ROWS", 2)
    with pytest.raises(InterruptedError):
        make(own, file, stop_after(2))
    await own.erase(ErasureTarget(query_id=UUID(str(own.rows[JANUARY, 0]["query_id"]))))
    assert make(own, file).erased == 1
    assert checked(own, file).verdict is Verdict.ERASED


def test_one_process_at_a_time_makes_a_package(log: SealedLog, file: Path) -> None:
    with pieces.work_folder(file.with_name("evidence.zip.parts")):
        with pytest.raises(UnmadeError, match="Another process"):
            make(log, file)


def test_a_choice_says_what_is_wrong_with_it() -> None:
    from audit.packing.choice import Choice

    for given in (
        {"until": datetime(2024, 1, 1, tzinfo=UTC)},
        {"case": "a\nb"},
        {"client": " x"},
        {"user": "user:"},
    ):
        with pytest.raises(ValueError, match=r"\.$"):
            Choice(**({"since": datetime(2025, 1, 1, tzinfo=UTC), "until": UNTIL} | given))


# Seen red with every anchor of the vault packed: those that came after the stopped run looked like a log that was set back.
async def test_a_log_that_has_grown_since_the_run_was_stopped_is_not_one_that_was_set_back(
    own: SealedLog, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "ROWS", 2)
    with pytest.raises(InterruptedError):
        make(own, file, stop_after(2))
    own.write(FEBRUARY, 40, 41, citations=None)
    assert await own.seal() == {}
    assert make(own, file).records == 14
    assert checked(own, file).verdict is Verdict.VALID


# Seen red with only the anchors packed that the database has.
async def test_a_database_older_than_its_vault_is_found(own: SealedLog, file: Path) -> None:
    own.attack(
        f"DELETE FROM audit_leaves WHERE month = '{FEBRUARY}' AND leaf_index >= 4",
        f"DELETE FROM audit_checkpoints WHERE month = '{FEBRUARY}' AND tree_size > 4",
        f"DELETE FROM audit_anchors WHERE month = '{FEBRUARY}' AND tree_size > 4",
    )
    make(own, file)
    found = {(each.what, each.verdict) for each in checked(own, file).findings}
    assert {("vault", Verdict.MISSING), ("coverage", Verdict.MISSING)} <= found
