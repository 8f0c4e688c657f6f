"""A vault that moves: every object is verified on its way, and a log in front of the wrong vault is told so."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from audit.anchored import break_key, leaves_key, note_key
from audit.archive.verify import verify_archive
from audit.errors import VaultConflictError, VaultDamagedError
from audit.proof.verdict import Verdict
from audit.vault import FolderVault, Vault
from audit.vault_copy import VaultCopied, copy_vault
from engine import settings as settings_file
from engine import wiring
from engine.providers.s3 import S3Vault
from engine.storage.database import Database
from engine.wiring import now
from tests.command_line import affidavit
from tests.conftest import ROOT, campaign_only
from tests.logs.archiving import archiver_of
from tests.logs.recorded import make_months
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog, places, quiet, sealed_log
from tests.parts.sealing.test_breaks import declare, fail_over, write_and_seal
from tests.upstreams import s3
from tests.upstreams.s3 import Upstream


@pytest.fixture(scope="module")
async def whole(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SealedLog]:
    """January is archived and dropped; February has a break, so that the vault has everything that a vault can have."""
    async with sealed_log(database, tmp_path_factory.mktemp("log")) as log:
        with psycopg.connect(log.url) as connection:
            make_months(connection, [now().date()])
        fail_over(log, 8)
        await declare(log)
        assert await write_and_seal(log) == {}
        outcomes = await archiver_of(log).archive(FEBRUARY)
        assert all(outcome.is_well for outcome in outcomes), outcomes
        assert (
            await log.seal() == {}
        )  # of the archiver's own records too: unsealed, they would be overdue some seconds later
        yield log


@pytest.fixture
def log(whole: SealedLog) -> Iterator[SealedLog]:
    """A test may damage its vault."""
    shutil.copytree(whole.folder / "vault", whole.folder / "as it was")
    yield whole
    shutil.rmtree(whole.folder / "vault")
    (whole.folder / "as it was").rename(whole.folder / "vault")


@pytest.fixture
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    with s3.serving(getattr(request, "param", "moto")) as upstream:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        for name, value in upstream.environment.items():
            monkeypatch.setenv(name, value)
        yield upstream


def copied(log: SealedLog, target: Vault, source: Vault | None = None) -> VaultCopied:
    return copy_vault(source or log.vault, target, log.keys, log.folder, quiet)


def spoil(path: Path) -> None:
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-3] + b"xyz")


def archived_file(log: SealedLog) -> str:
    return next(name for name in log.vault.keys("archive/") if name.endswith(".jsonl.zst"))


def test_a_log_is_verified_from_the_folder_that_it_was_copied_to(log: SealedLog, tmp_path: Path) -> None:
    before, target = log.inspect(), FolderVault(tmp_path)
    assert before.verdict is Verdict.LOST_BY_FAILOVER
    for _ in range(2):  # idempotent
        assert copied(log, target).objects == len(log.vault.keys())
    assert target.keys() == log.vault.keys()
    assert log.inspect(vault=target).as_json() == before.as_json()


# Seen red with a folder's versions asked of the bucket: January's archive was MISSING, and its files were not found.
def test_a_folder_moves_into_a_bucket_and_back(log: SealedLog, bucket: Upstream, tmp_path: Path) -> None:
    before = log.inspect()
    settings = settings_file.load(bucket.environment | {"DATABASE_URL": log.url}, data_dir=log.folder)
    target = wiring.vault_at(settings, f"s3://{bucket.bucket}/moved/here")
    assert isinstance(target, S3Vault)
    assert copied(log, target).objects == len(log.vault.keys())
    assert log.inspect(vault=target).as_json() == before.as_json()
    manifest = next(name for name in target.keys("archive/") if name.endswith("manifest.json"))
    report = verify_archive(target, manifest, None, log.keys, None, quiet)
    assert report.verdict in {Verdict.VALID, Verdict.LOST_BY_FAILOVER}, str(report)
    held = bucket.direct().head_object(Bucket=bucket.bucket, Key=f"moved/here/{manifest}")
    assert held["ObjectLockRetainUntilDate"] > datetime.now(UTC)
    home = FolderVault(tmp_path)
    copied(log, home, target)
    assert log.inspect(vault=home).as_json() == before.as_json()


def vault_at(bucket: Upstream, log: SealedLog, place: str) -> Vault:
    settings = settings_file.load(bucket.environment | {"DATABASE_URL": log.url}, data_dir=log.folder)
    return wiring.vault_at(settings, place)


def versions(bucket: Upstream, name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for page in bucket.direct().get_paginator("list_object_versions").paginate(Bucket=name):
        for version in page.get("Versions", []):
            found.setdefault(version["Key"], []).append(version["VersionId"])
    return found


@pytest.fixture
async def in_bucket(
    database: Database, bucket: Upstream, tmp_path: Path
) -> AsyncIterator[tuple[SealedLog, Vault, str]]:
    """January was archived into the bucket, so that the log names versions of this very bucket; and another bucket."""
    async with sealed_log(database, tmp_path / "log") as log:
        with psycopg.connect(log.url) as connection:
            make_months(connection, [now().date()])
        home = vault_at(bucket, log, f"s3://{bucket.bucket}/affidavit")
        copied(log, home)
        outcomes = await archiver_of(log, vault=home).archive(FEBRUARY)
        assert [outcome.state for outcome in outcomes] == ["dropped"], outcomes
        other = f"other-{uuid4().hex}"
        bucket.direct().create_bucket(Bucket=other, ObjectLockEnabledForBucket=True)
        yield log, home, other


BUCKETS = pytest.mark.parametrize("bucket", ["moto", campaign_only("SeaweedFS")], indirect=True)


# Seen red with versions that only the bucket of the archiver knows: January's archive was MISSING.
@BUCKETS
async def test_a_log_with_an_archived_month_moves_into_another_bucket(
    in_bucket: tuple[SealedLog, Vault, str], bucket: Upstream
) -> None:
    log, home, other = in_bucket
    before = log.inspect(vault=home)
    assert before.verdict is Verdict.ARCHIVED, str(before)
    target = vault_at(bucket, log, f"s3://{other}/moved")
    for _ in range(2):
        assert copied(log, target, home).objects == len(home.keys())
    assert target.keys() == home.keys()
    assert log.inspect(vault=target).as_json() == before.as_json()
    manifest = next(name for name in target.keys("archive/") if name.endswith("manifest.json"))
    assert verify_archive(target, manifest, None, log.keys, None, quiet).verdict is Verdict.VALID
    for name, held in versions(bucket, other).items():
        assert len(held) == 1
        lock = bucket.direct().head_object(Bucket=other, Key=name, VersionId=held[0])
        assert lock["ObjectLockRetainUntilDate"] > datetime.now(UTC)
    restored = await archiver_of(log, vault=target).restore(JANUARY)
    assert restored.is_well and restored.rows == 5, restored


# Seen red with a copy that writes again what is there already: it never came further.
@pytest.mark.campaign
@pytest.mark.parametrize("bucket", ["moto", "SeaweedFS"], indirect=True)
async def test_a_copy_that_is_killed_goes_on_where_it_was(
    in_bucket: tuple[SealedLog, Vault, str], bucket: Upstream, tmp_path: Path
) -> None:
    log, home, other = in_bucket
    before, held = log.inspect(vault=home).as_json(), []
    for _ in range(3):
        copy_until_killed(log, bucket, other, at=3)
        held.append(len(versions(bucket, other)))
    target = vault_at(bucket, log, f"s3://{other}")
    copied(log, target, home)
    print(f"killed {len(held)} times, with {held} of {len(home.keys())} objects copied")
    assert held == sorted(held) and held[-1] > held[0]
    assert {len(each) for each in versions(bucket, other).values()} == {1}
    assert log.inspect(vault=target).as_json() == before


def copy_until_killed(log: SealedLog, bucket: Upstream, other: str, at: int) -> None:
    """The command is killed at its write with this number: before it is answered, and perhaps after it was done."""
    numbers = itertools.count(1)

    def judge(method: str, path: str) -> None:
        if method == "PUT" and path.startswith(f"/{other}/") and next(numbers) == at:
            process.kill()

    bucket.judge = judge
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.cli", "vault", "copy", "--to", f"s3://{other}", "--data-dir", str(log.folder)],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=os.environ | bucket.environment | {"DATABASE_URL": log.url, "AFFIDAVIT_ARCHIVE__PREFIX": "affidavit/"},
    )  # fmt: skip
    assert process.wait(60) == -signal.SIGKILL
    bucket.judge = lambda *_: None
    bucket.wait_until_idle()


# Seen red with objects that were only compared with their copy: the damage moved along without a word.
@pytest.mark.parametrize("kind", ["note", "lost branch", "leaves", "break", "archive"])
def test_a_damaged_object_stops_the_copy(log: SealedLog, tmp_path: Path, kind: str) -> None:
    names = {
        "note": note_key(FEBRUARY, 4), "lost branch": note_key(FEBRUARY, 12), "leaves": leaves_key(FEBRUARY, 4, 8),
        "break": break_key(FEBRUARY, 1), "archive": archived_file(log),
    }  # fmt: skip
    spoil(log.folder / "vault" / names[kind])
    with pytest.raises(VaultDamagedError, match="The copy was stopped"):
        copied(log, FolderVault(tmp_path))
    assert not FolderVault(tmp_path).keys(names[kind])
    if kind != "archive":  # anchors are verified before anything is written
        assert FolderVault(tmp_path).keys() == []


def test_leaves_that_are_gone_stop_the_copy(log: SealedLog, tmp_path: Path) -> None:
    (log.folder / "vault" / leaves_key(FEBRUARY, 4, 8)).unlink()
    with pytest.raises(VaultDamagedError, match=r"000000000008\.note is not what the leaves"):
        copied(log, FolderVault(tmp_path))


async def test_a_vault_of_another_log_is_not_written_to(
    log: SealedLog, database: Database, tmp_path: Path
) -> None:
    async with sealed_log(database, tmp_path) as other:
        held = other.vault.keys()
        with pytest.raises(VaultConflictError, match="another log"):
            copied(log, other.vault)
        assert other.vault.keys() == held


def test_the_command_copies_and_says_what_to_do(log: SealedLog, tmp_path: Path) -> None:
    said = affidavit("vault", "copy", "--to", tmp_path, data_dir=log.folder, DATABASE_URL=log.url)
    assert (said.returncode, "each read back" in said.stdout) == (0, True), said.stderr
    assert "run it once more" in said.stderr
    spoil(log.folder / "vault" / note_key(FEBRUARY, 4))
    said = affidavit("vault", "copy", "--to", tmp_path, data_dir=log.folder, DATABASE_URL=log.url)
    assert (said.returncode, "is damaged" in said.stderr) == (1, True)
    (tmp_path / "empty").mkdir()
    shutil.copy(log.folder / "signing.key.pub", tmp_path / "empty")
    nothing = affidavit("vault", "copy", "--to", tmp_path / "to", data_dir=tmp_path / "empty")
    assert (nothing.returncode, "is empty" in nothing.stderr) == (1, True), nothing.stderr


# Seen red on the code before: MISSING for every anchor, and TAMPERED for the other log's.
@pytest.mark.parametrize("named", ["an empty one", "another log's"])
async def test_the_wrong_vault_is_called_so(
    log: SealedLog, database: Database, tmp_path: Path, named: str
) -> None:
    async with sealed_log(database, tmp_path) as other:
        vault = other.vault if named == "another log's" else FolderVault(tmp_path / str(uuid4()))
        report = log.inspect(vault=vault)
    assert places(report) == {("WRONG_VAULT", "vault", None, None)}, str(report)
    assert report.verdict is Verdict.WRONG_VAULT
    assert "verify again" in report.findings[0].words


# Seen red with nothing checked once the vault was found to be another one.
def test_who_empties_the_vault_hides_no_change_behind_it(log: SealedLog, tmp_path: Path) -> None:
    log_id = log.log_id(FEBRUARY, 2)
    log.attack("UPDATE audit_logs SET answer_text = 'Something else.' WHERE log_id = %(id)s", id=log_id)
    try:
        report = log.inspect(vault=FolderVault(tmp_path))
        assert {("WRONG_VAULT", "vault", None, None), ("TAMPERED", "row", "2025-02", 2)} <= places(report)
        assert report.verdict is Verdict.TAMPERED
    finally:
        log.attack("UPDATE audit_logs SET answer_text = 'It measures …' WHERE log_id = %(id)s", id=log_id)


def test_the_command_says_wrong_vault(log: SealedLog, tmp_path: Path) -> None:
    """As after a typo in the data folder: the keys are at hand, the vault is not."""
    key = log.folder / "signing.key.pub"
    said = affidavit("audit", "verify", "--public-key", key, data_dir=tmp_path, DATABASE_URL=log.url)
    assert (said.returncode, said.stdout.split()[0]) == (1, "WRONG_VAULT"), said.stdout + said.stderr
    assert "MISSING" not in said.stdout
