"""S3 as the vault: each write is one version under a lock, whatever goes wrong on the way, and what was first counts.

Against moto behind a proxy that fails, and in campaigns against SeaweedFS behind it. What moto cannot prove runs on
SeaweedFS alone, or on the real bucket that AFFIDAVIT_TEST_S3 names (it leaves objects locked for a day):
`AFFIDAVIT_TEST_S3=https://ENDPOINT/BUCKET AWS_…=… pytest tests/parts/archive/test_s3.py`.
"""

import hashlib
import os
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.exceptions import ClientError
from botocore.retries.standard import ExponentialBackoff

from audit.errors import VaultConflictError, VaultDamagedError, VaultError
from audit.vault import Stored
from engine import settings as settings_file
from engine import wiring
from engine.cli import doctor
from engine.errors import ConfigurationError
from engine.providers import s3 as provider
from engine.providers.s3 import S3Vault
from engine.settings import Settings
from engine.storage.database import Database
from tests.conftest import ROOT, campaign_only
from tests.logs.sealed_log import FEBRUARY, JANUARY, sealed_log
from tests.upstreams import s3
from tests.upstreams.s3 import Fault, Upstream

PART = 5 * 1024 * 1024  # the smallest that S3 takes
LARGE = 2 * PART + 1
SECRETS = ("secret-of-s3", "127.0.0.1", "bucket-", s3.CANARY)

Make = Callable[..., S3Vault]
Prepare = Callable[[str], tuple[Path, str]]

FRESH = provider._client


@pytest.fixture(scope="module", params=["moto", campaign_only("SeaweedFS")])
def bucket(request: pytest.FixtureRequest) -> Iterator[Upstream]:
    with s3.serving(request.param) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def client(bucket: Upstream) -> Any:
    """One for all tests, as a client takes longer to make than most of them. Patience is short: three times this."""
    with pytest.MonkeyPatch.context() as patch:
        point_to(bucket, patch)
        patch.setattr(provider, "READ_S", 0.7)
        return provider._client()


@pytest.fixture
def upstream(bucket: Upstream, client: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    point_to(bucket, monkeypatch)
    monkeypatch.setattr(provider, "_client", lambda: client)
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda *_: 0.01)
    monkeypatch.setattr(provider, "PART_BYTES", PART)
    bucket.requests.clear()
    yield bucket
    bucket.heal()
    bucket.judge = lambda *_: None
    bucket.wait_until_idle()


@pytest.fixture
def prefix() -> str:
    return f"test/{uuid4().hex}/"


@pytest.fixture
def make(upstream: Upstream, prefix: str) -> Make:
    return lambda **given: vault_in(upstream, **({"prefix": prefix} | given))


@pytest.fixture
def vault(make: Make) -> S3Vault:
    return make()


@pytest.fixture
def large(tmp_path: Path) -> Path:
    return file_of(tmp_path / "large", os.urandom(LARGE))


def point_to(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "_client", FRESH)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in upstream.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)


def vault_in(upstream: Upstream, **given: Any) -> S3Vault:
    plain: dict[str, Any] = {
        "prefix": "",
        "lock_mode": "COMPLIANCE",
        "lock_days": 10,
        "clock": lambda: datetime.now(UTC),
    }
    return S3Vault(upstream.bucket, **(plain | given))


def file_of(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def versions(upstream: Upstream, name: str) -> list[str]:
    """The oldest first."""
    found = upstream.direct().list_object_versions(Bucket=upstream.bucket, Prefix=name).get("Versions", [])
    return [version["VersionId"] for version in reversed(found) if version["Key"] == name]


def uploads(upstream: Upstream, prefix: str) -> list[Any]:
    found: list[Any] = upstream.direct().list_multipart_uploads(Bucket=upstream.bucket).get("Uploads", [])
    return [each for each in found if each["Key"].startswith(prefix)]


# ── what is written ──


# Seen red without put_object_retention after a multipart upload: moto forgets the lock there.
@pytest.mark.parametrize("size", [0, 1, PART, PART + 1, LARGE])
def test_an_object_is_one_version_under_a_lock_of_the_settings(
    vault: S3Vault, upstream: Upstream, prefix: str, tmp_path: Path, size: int
) -> None:
    content = os.urandom(size)
    stored = vault.put_file("a/b", file_of(tmp_path / "file", content))
    assert stored == Stored("a/b", stored.version, hashlib.sha256(content).hexdigest(), size)
    assert versions(upstream, f"{prefix}a/b") == [stored.version]
    asked = {"Bucket": upstream.bucket, "Key": f"{prefix}a/b", "VersionId": stored.version}
    held = upstream.direct().head_object(**asked, ChecksumMode="ENABLED")
    assert held["ObjectLockMode"] == "COMPLIANCE"
    left = held["ObjectLockRetainUntilDate"] - datetime.now(UTC)
    assert timedelta(days=9, hours=23) < left <= timedelta(days=10)
    with pytest.raises(ClientError, match="AccessDenied"):
        upstream.direct().delete_object(**asked)
    assert vault.get("a/b", stored.version) == vault.get("a/b") == content
    if size <= PART:
        assert held["ChecksumSHA256"] == b64encode(hashlib.sha256(content).digest()).decode()


def test_every_part_carries_its_checksum_and_the_upload_ends_only_where_nothing_is(
    upstream: Upstream, prefix: str, monkeypatch: pytest.MonkeyPatch, large: Path
) -> None:
    point_to(upstream, monkeypatch)
    vault = vault_in(upstream, prefix=prefix)
    sent: list[tuple[str, dict[str, Any]]] = []
    vault._client.meta.events.register(
        "provide-client-params.s3.*", lambda params, model, **_: sent.append((model.name, params))
    )
    vault.put_file("large", large)
    of = dict(sent)
    assert of["CreateMultipartUpload"]["ChecksumAlgorithm"] == "SHA256"
    assert of["CreateMultipartUpload"]["ObjectLockMode"] == "COMPLIANCE"
    content = large.read_bytes()
    checksums = [
        b64encode(hashlib.sha256(content[at : at + PART]).digest()).decode() for at in (0, PART, 2 * PART)
    ]
    assert [params["ChecksumSHA256"] for name, params in sent if name == "UploadPart"] == checksums
    completion = of["CompleteMultipartUpload"]
    assert completion["IfNoneMatch"] == "*"
    assert [part["ChecksumSHA256"] for part in completion["MultipartUpload"]["Parts"]] == checksums


def put_unlocked(upstream: Upstream, name: str, content: bytes) -> None:
    """As after a crash between an upload and its lock, where a store does not lock uploads from the first moment."""
    upstream.direct().put_object(Bucket=upstream.bucket, Key=name, Body=content)


# Seen red without a look at the lock after it was set.
@pytest.mark.parametrize("size", [1, LARGE])
def test_a_bucket_that_does_not_lock_is_found_out(
    vault: S3Vault, upstream: Upstream, prefix: str, tmp_path: Path, size: int
) -> None:
    upstream.fail("lie", on=r"PUT .*\?retention|PUT .*&retention", times=9)
    vault.put("other", b"x")
    put_unlocked(upstream, f"{prefix}key", bytes(size))
    with pytest.raises(VaultError, match="did not apply it"):
        vault.put_file("key", file_of(tmp_path / "file", bytes(size)))


# Seen red with the lock set only after a write of one's own.
def test_a_lock_that_a_crash_left_out_is_set_when_the_bytes_come_again(
    vault: S3Vault, upstream: Upstream, prefix: str, large: Path
) -> None:
    put_unlocked(upstream, f"{prefix}large", large.read_bytes())
    upstream.fail("500", on="PUT .*retention", times=9)
    with pytest.raises(VaultError):
        vault.put_file("large", large)
    upstream.heal()
    stored = vault.put_file("large", large)
    held = upstream.direct().head_object(
        Bucket=upstream.bucket, Key=f"{prefix}large", VersionId=stored.version
    )
    assert held["ObjectLockMode"] == "COMPLIANCE"
    assert versions(upstream, f"{prefix}large") == [stored.version]


def test_a_lock_is_never_made_weaker_and_a_short_one_is_made_longer(
    make: Make, upstream: Upstream, prefix: str
) -> None:
    version = make(lock_days=30).put("a", b"a")
    assert make(lock_days=3, lock_mode="GOVERNANCE").put("a", b"a") == version
    held = upstream.direct().head_object(Bucket=upstream.bucket, Key=f"{prefix}a", VersionId=version)
    assert held["ObjectLockMode"] == "COMPLIANCE"
    assert held["ObjectLockRetainUntilDate"] > datetime.now(UTC) + timedelta(days=29)
    assert make(lock_days=60).put("a", b"a") == version
    held = upstream.direct().head_object(Bucket=upstream.bucket, Key=f"{prefix}a", VersionId=version)
    assert held["ObjectLockRetainUntilDate"] > datetime.now(UTC) + timedelta(days=59)


# ── what goes wrong on the way ──

STEPS = {
    "whole": (1, "^PUT [^?]*$"),
    "begin of parts": (LARGE, r"POST .*\?uploads"),
    "a part": (LARGE, "PUT .*partNumber=2"),
    "end of parts": (LARGE, r"POST .*\?uploadId"),
    "the lock": (1, "PUT .*retention"),
    "the look before": (1, r"GET .*\?versions"),
    "the look after": (1, "HEAD"),
}


@pytest.fixture
def prepare(upstream: Upstream, prefix: str, tmp_path: Path) -> Prepare:
    """A file to put, and the request of this step. Only an object that is there already has its lock set by itself."""

    def prepared(step: str) -> tuple[Path, str]:
        size, pattern = STEPS[step]
        path = file_of(tmp_path / "file", os.urandom(size))
        if step == "the lock":
            put_unlocked(upstream, f"{prefix}key", path.read_bytes())
        return path, pattern

    return prepared


# Seen red with a put without If-None-Match ("cut after" and "late": two versions).
@pytest.mark.parametrize(
    "fault",
    [
        "500",
        "503",
        campaign_only("hang"),
        campaign_only("hang after"),
        campaign_only("late"),
        "cut",
        "cut after",
    ],
)
@pytest.mark.parametrize("step", STEPS)
def test_a_failure_in_the_middle_is_mended_and_nothing_is_written_twice(
    vault: S3Vault, upstream: Upstream, prefix: str, prepare: Prepare, step: str, fault: Fault
) -> None:
    path, pattern = prepare(step)
    upstream.fail(fault, on=pattern)
    stored = vault.put_file("key", path)
    upstream.wait_until_idle()
    assert versions(upstream, f"{prefix}key") == [stored.version]
    assert vault.get("key", stored.version) == path.read_bytes()
    assert not upstream._faults


# Seen red without the look at the key after a failed write.
@pytest.mark.parametrize("fault", ["cut after", campaign_only("hang after")])
@pytest.mark.parametrize("step", ["whole", "end of parts"])
def test_a_write_whose_every_answer_is_lost_is_found_written(
    vault: S3Vault, upstream: Upstream, prefix: str, tmp_path: Path, step: str, fault: Fault
) -> None:
    size, pattern = STEPS[step]
    upstream.fail(fault, on=pattern, times=provider.ATTEMPTS_MAX)
    stored = vault.put_file("key", file_of(tmp_path / "file", bytes(size)))
    assert versions(upstream, f"{prefix}key") == [stored.version]


@pytest.mark.parametrize("fault", ["500", "503", "403", campaign_only("hang"), "cut"])
@pytest.mark.parametrize("step", STEPS)
def test_a_bucket_that_is_away_is_an_error_that_gives_nothing_away_and_later_all_is_well(
    vault: S3Vault, upstream: Upstream, prefix: str, prepare: Prepare, step: str, fault: Fault
) -> None:
    path, pattern = prepare(step)
    upstream.fail(fault, on=pattern, times=99)
    with pytest.raises(VaultError) as caught:
        vault.put_file("key", path)
    assert not isinstance(caught.value, VaultConflictError)
    assert not any(secret in str(caught.value) for secret in SECRETS), caught.value
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    upstream.heal()
    stored = vault.put_file("key", path)
    upstream.wait_until_idle()
    assert versions(upstream, f"{prefix}key") == [stored.version]
    assert vault.get("key", stored.version) == path.read_bytes()


# Seen red without abort_multipart_upload.
def test_parts_of_a_failed_upload_are_not_left_behind(
    vault: S3Vault, upstream: Upstream, prefix: str, large: Path
) -> None:
    upstream.fail("500", on="PUT .*partNumber=2", times=provider.ATTEMPTS_MAX)
    with pytest.raises(VaultError):
        vault.put_file("key", large)
    assert uploads(upstream, prefix) == []


# Seen red without the digest of the parts together.
def test_a_file_that_changes_while_it_is_read_is_not_stored(
    vault: S3Vault, upstream: Upstream, prefix: str, large: Path
) -> None:
    another = bytes([large.read_bytes()[-1] ^ 1])

    def change(_: str, path: str) -> None:
        if "partNumber=1" in path:  # more than once, if a young server asks for a retry
            with large.open("r+b") as file:
                file.seek(LARGE - 1)
                file.write(another)

    upstream.judge = change
    with pytest.raises(VaultError, match="changed"):
        vault.put_file("key", large)
    assert versions(upstream, f"{prefix}key") == []


def test_a_large_file_takes_little_memory(upstream: Upstream, prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(6 * 16 * 1024 * 1024)
    program = f"""
import re
from datetime import UTC, datetime
from pathlib import Path
from engine.providers.s3 import S3Vault
vault = S3Vault({upstream.bucket!r}, {prefix!r}, lock_mode="COMPLIANCE", lock_days=1, clock=lambda: datetime.now(UTC))
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
vault.put("small", b"x")
before = peak()
vault.put_file("large", Path({str(path)!r}))
print(peak() - before)
"""
    said = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert int(said.stdout) < 70_000, said.stdout  # kB, of 98,304


# ── what others do to a key ──


def lay_over(upstream: Upstream, name: str, how: str) -> None:
    client = upstream.direct()
    if "version" in how:
        client.put_object(Bucket=upstream.bucket, Key=name, Body=b"forged")
    if "marker" in how:
        client.delete_object(Bucket=upstream.bucket, Key=name)


LAID = ["a version", "a marker", "a version and a marker"]


# Seen red with reads of the newest version, and with keys() from list_objects_v2.
@pytest.mark.parametrize("how", LAID)
def test_what_was_written_first_stands(vault: S3Vault, upstream: Upstream, prefix: str, how: str) -> None:
    version = vault.put("a/b", b"one")
    lay_over(upstream, f"{prefix}a/b", how)
    assert vault.get("a/b") == vault.get("a/b", version) == b"one"
    with vault.open("a/b") as stream:
        assert stream.read() == b"one"
    assert vault.keys() == ["a/b"]
    assert vault.put("a/b", b"one") == version


# Seen red without the look before the write: under a delete marker If-None-Match lets it through.
@pytest.mark.parametrize("how", ["nothing", *LAID])
def test_other_bytes_are_a_conflict_and_the_key_holds_what_it_held(
    vault: S3Vault, upstream: Upstream, prefix: str, tmp_path: Path, how: str
) -> None:
    vault.put("a", b"one")
    lay_over(upstream, f"{prefix}a", how)
    before = versions(upstream, f"{prefix}a")
    for other in (b"two", b"", b"forged", b"on"):
        with pytest.raises(VaultConflictError):
            vault.put("a", other)
    with pytest.raises(VaultConflictError):
        vault.put_file("a", file_of(tmp_path / "file", bytes(LARGE)))
    assert versions(upstream, f"{prefix}a") == before
    assert vault.get("a") == b"one"


# Seen red with a put that is not conditional, and an upload in parts that ends without condition.
@pytest.mark.parametrize(("size", "moment"), [(1, "^PUT [^?]*$"), (LARGE, r"POST .*\?uploadId")])
@pytest.mark.parametrize("is_same", [True, False])
def test_who_is_faster_wins(
    vault: S3Vault, upstream: Upstream, prefix: str, tmp_path: Path, size: int, moment: str, is_same: bool
) -> None:
    content = os.urandom(size)
    theirs = content if is_same else b"theirs"

    def write_first(method: str, path: str) -> None:
        if (method == "PUT" and "?" not in path) or (method == "POST" and "?uploadId" in path):
            upstream.judge = lambda *_: None
            upstream.direct().put_object(Bucket=upstream.bucket, Key=f"{prefix}key", Body=theirs)

    upstream.judge = write_first
    path = file_of(tmp_path / "file", content)
    if is_same:
        assert [vault.put_file("key", path).version] == versions(upstream, f"{prefix}key")
    else:
        with pytest.raises(VaultConflictError):
            vault.put_file("key", path)
    assert vault.get("key") == theirs
    assert len(versions(upstream, f"{prefix}key")) == 1
    assert uploads(upstream, prefix) == []


def test_of_concurrent_writers_one_wins(make: Make, upstream: Upstream, prefix: str, tmp_path: Path) -> None:
    files = [file_of(tmp_path / str(number), bytes([number]) * LARGE) for number in range(3)]
    files += [file_of(tmp_path / f"{number} small", bytes([number])) for number in range(3)]
    ready = threading.Barrier(len(files))

    def write(path: Path) -> bool:
        vault = make()
        ready.wait(10)
        try:
            vault.put_file("key", path)
        except VaultConflictError:
            return False
        return True

    with ThreadPoolExecutor(len(files)) as pool:
        written = list(pool.map(write, files))
    held = make().get("key")
    assert written == [path.read_bytes() == held for path in files]
    assert len(versions(upstream, f"{prefix}key")) == 1


# ── what is read ──


def test_each_version_is_read_by_its_name(vault: S3Vault, upstream: Upstream, prefix: str) -> None:
    first = vault.put("a", b"one")
    lay_over(upstream, f"{prefix}a", "a version")
    second = versions(upstream, f"{prefix}a")[1]
    assert vault.get("a", first) == b"one"
    assert vault.get("a", second) == b"forged"


UNKNOWN = ["nonsense", "0c8f6f0e-5d1c-4b58-9f6b-6a1d2f3e4c5d"]


@pytest.mark.parametrize("version", [None, *UNKNOWN])
def test_what_is_not_there_is_not_found(vault: S3Vault, version: str | None) -> None:
    vault.put("a/longer", b"x")
    with pytest.raises(FileNotFoundError) as caught:
        vault.get("a", version)
    assert "a" in str(caught.value)
    with pytest.raises(FileNotFoundError):
        vault.open("a", version)


@pytest.mark.parametrize("version", UNKNOWN)
def test_the_version_of_another_bucket_stands_for_what_was_written_first(
    vault: S3Vault, upstream: Upstream, prefix: str, version: str
) -> None:
    vault.put("a", b"one")
    lay_over(upstream, f"{prefix}a", "a version and a marker")
    assert vault.get("a", version) == b"one"
    assert vault.open("a", version).read() == b"one"
    upstream.fail("400", on=f"HEAD .*{version}")  # as Amazon says it of a version that it cannot have given
    assert vault.open("a", version).read() == b"one"


# Seen red with one try.
@pytest.mark.parametrize(
    "fault", ["500", "503", "hang", "hang after", "cut", "cut after", "cut body", "wrong bytes"]
)
def test_a_failed_read_is_read_again(vault: S3Vault, upstream: Upstream, fault: Fault) -> None:
    content = os.urandom(100_000)
    version = vault.put("a", content)
    upstream.fail(fault, on=r"GET .*versionId")
    assert vault.get("a", version) == content
    assert not upstream._faults


# Seen red with response_checksum_validation="when_required".
def test_wrong_bytes_are_never_given_out(vault: S3Vault, upstream: Upstream) -> None:
    version = vault.put("a", b"x" * 1000)
    upstream.fail("wrong bytes", on="GET .*versionId", times=99)
    with pytest.raises(VaultDamagedError):
        vault.get("a", version)


@pytest.mark.parametrize(
    "fault", ["500", "503", "403", campaign_only("hang"), "cut", "cut body", "wrong bytes"]
)
def test_a_read_that_fails_for_good_is_an_error_without_names(
    vault: S3Vault, upstream: Upstream, fault: Fault
) -> None:
    version = vault.put("a", b"x" * 1000)
    upstream.fail(fault, on="GET", times=99)
    reads: list[Callable[[], object]] = [lambda: vault.get("a", version)]
    if fault not in {"cut body", "wrong bytes"}:
        reads += [lambda: vault.get("a"), vault.keys]
    for read in reads:
        with pytest.raises(VaultError) as caught:
            read()
        assert not any(secret in str(caught.value) for secret in SECRETS)


# Seen red with one look: a bit that flips on the way back would be called a second history.
@pytest.mark.parametrize("size", [1000, LARGE])
def test_a_wrong_byte_on_the_way_is_no_conflict(
    vault: S3Vault, upstream: Upstream, tmp_path: Path, size: int
) -> None:
    path = file_of(tmp_path / "file", os.urandom(size))
    stored = vault.put_file("a", path)
    upstream.fail("wrong bytes", on="GET .*versionId")
    assert vault.put_file("a", path) == stored


def test_a_stream_is_a_file_and_fetches_what_is_read(vault: S3Vault, upstream: Upstream, large: Path) -> None:
    content = large.read_bytes()
    stored = vault.put_file("a", large)
    upstream.requests.clear()
    with vault.open("a", stored.version) as stream:
        assert upstream.requests == [("HEAD", upstream.requests[0][1])]
        assert stream.seekable() and stream.readable() and not stream.writable()
        assert stream.seek(-10, os.SEEK_END) == LARGE - 10
        assert stream.read() == content[-10:]
        assert stream.read(5) == b""
        stream.seek(PART)
        assert stream.read(100) == content[PART : PART + 100]
        assert stream.tell() == PART + 100
        stream.seek(-100, os.SEEK_CUR)
        assert stream.read(3) == content[PART : PART + 3]
        assert sum(method == "GET" for method, _ in upstream.requests) <= 3
        stream.seek(0)
        assert stream.read() == content
        with pytest.raises(ValueError, match=r".+"):
            stream.seek(-1)
    upstream.requests.clear()
    with vault.open("a", stored.version) as stream:
        assert stream.read() == content
    assert len(upstream.requests) <= 3


def test_a_stream_outlives_failures(vault: S3Vault, upstream: Upstream, large: Path) -> None:
    stored = vault.put_file("a", large)
    faults: list[Fault] = ["500", "cut", "cut body", "hang", "503"]
    for fault in faults:
        upstream.fail(fault, on="GET .*versionId")
    with vault.open("a", stored.version) as stream:
        assert b"".join(iter(lambda: stream.read(3_000_000), b"")) == large.read_bytes()
    assert not upstream._faults


# Seen red without the length looked at: a short answer would be the end of the file.
def test_a_short_answer_is_not_taken_for_all(vault: S3Vault, upstream: Upstream, large: Path) -> None:
    stored = vault.put_file("a", large)
    upstream.fail("short", on="GET .*versionId", times=99)
    with vault.open("a", stored.version) as stream, pytest.raises(VaultDamagedError):
        stream.read()
    with vault.open("a", stored.version) as stream, pytest.raises(VaultDamagedError):
        stream.read(1000)


def test_an_empty_stream_is_empty(vault: S3Vault) -> None:
    vault.put("a", b"")
    with vault.open("a") as stream:
        assert stream.read() == b""


def test_parquet_is_read_in_ranges(vault: S3Vault, upstream: Upstream, tmp_path: Path) -> None:
    table = pa.table({"number": list(range(100_000)), "noise": [os.urandom(100) for _ in range(100_000)]})
    pq.write_table(table, tmp_path / "rows", row_group_size=10_000)
    stored = vault.put_file("rows", tmp_path / "rows")
    upstream.requests.clear()
    with vault.open("rows", stored.version) as stream:
        assert pq.ParquetFile(stream).read_row_group(9, ["number"])["number"][0].as_py() == 90_000
    assert len(upstream.requests) <= 5


def test_keys_are_those_of_the_prefix_in_order(make: Make, upstream: Upstream, prefix: str) -> None:
    vault = make()
    for key in ("anchors/2", "anchors/10", "anchors-old/1", "months/2026-01", "top"):
        vault.put(key, key.encode())
    make(prefix=f"{prefix}top/").put("hidden", b"x")
    for odd in ("", "spaces here", ".hidden"):
        upstream.direct().put_object(Bucket=upstream.bucket, Key=prefix + odd, Body=b"")
    assert vault.keys() == ["anchors-old/1", "anchors/10", "anchors/2", "months/2026-01", "top", "top/hidden"]
    assert vault.keys("anchors/") == ["anchors/10", "anchors/2"]
    assert make(prefix=f"{prefix}top/").keys() == ["hidden"]
    assert make(prefix="elsewhere/").keys() == []


# Seen red with one page read, and with the first page's oldest version taken.
def test_more_than_one_page_is_listed(
    upstream: Upstream, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_to(upstream, monkeypatch)
    vault = vault_in(upstream, prefix=prefix)
    vault._client.meta.events.register(
        "provide-client-params.s3.ListObjectVersions", lambda params, **_: params.update(MaxKeys=2)
    )
    for number in range(5):
        vault.put(f"many/{number}", b"first")
    for _ in range(5):
        lay_over(upstream, f"{prefix}many/2", "a version and a marker")
    assert vault.keys("many/") == [f"many/{number}" for number in range(5)]
    assert vault.get("many/2") == b"first"


@pytest.mark.parametrize(
    "key", ["..", "../a", "a/../../b", "/a", "", ".hidden", "a//b", "a\0b", "ä"], ids=repr
)
def test_path_trick_is_no_key(vault: S3Vault, upstream: Upstream, key: str, tmp_path: Path) -> None:
    for use in (
        lambda: vault.put(key, b"x"), lambda: vault.put_file(key, file_of(tmp_path / "file", b"x")),
        lambda: vault.get(key), lambda: vault.get(key, "v"), lambda: vault.open(key),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="Not a key"):
            use()
    assert upstream.requests == []


# ── the settings and the doctor ──


def test_a_vault_that_cannot_be_opened_says_what_to_set(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, data_dir: Path
) -> None:
    point_to(upstream, monkeypatch)
    settings = settings_file.load({"AFFIDAVIT_PROVIDERS__VAULT": "s3"}, data_dir=data_dir)
    with pytest.raises(ConfigurationError, match=r"archive\.bucket"):
        wiring.vault_of(settings)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "not an address")
    with pytest.raises(ConfigurationError, match="AWS_ENDPOINT_URL_S3"):
        wiring.vault_of(of_bucket(upstream, data_dir))
    point_to(upstream, monkeypatch)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(data_dir / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(data_dir / "none"))
    with pytest.raises(VaultError, match="AWS_SECRET_ACCESS_KEY"):
        wiring.vault_of(of_bucket(upstream, data_dir)).put("a", b"a")


@pytest.mark.parametrize("prefix", ["affidavit", "/a/", "a//", "a b/"])
def test_a_prefix_ends_with_a_slash(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match=r"archive\.prefix"):
        settings_file.load({"AFFIDAVIT_ARCHIVE__PREFIX": prefix})


def of_bucket(upstream: Upstream, data_dir: Path) -> Settings:
    return settings_file.load(
        {"AFFIDAVIT_PROVIDERS__VAULT": "s3", "AFFIDAVIT_ARCHIVE__BUCKET": upstream.bucket}, data_dir=data_dir
    )


async def diagnosed(upstream: Upstream, database: Database) -> dict[str, tuple[str, str]]:
    """As the whole command would, of the bucket alone."""
    settings = of_bucket(upstream, database.settings.data_dir)
    found = await doctor.examine(settings, Database(database.url, settings))
    return {
        each.part: (each.state, each.words)
        for each in found
        if each.part.startswith("bucket ") or each.part == "vault"
    }


async def test_the_doctor_proves_the_bucket(upstream: Upstream, database: Database) -> None:
    assert await diagnosed(upstream, database) == {
        "vault": ("ok", f"s3, bucket {upstream.bucket}, write-once"),
        "bucket versions": ("ok", "on"),
        "bucket lock": ("ok", "on, each object COMPLIANCE, 3650 days; default of the bucket: none"),
        "bucket deletion": ("ok", "a locked test object cannot be deleted"),
    }


async def test_the_doctor_names_the_buckets_default(
    upstream: Upstream, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 7}}
    with s3.serving(upstream.kind or "moto") as other:
        point_to(other, monkeypatch)
        other.direct().put_object_lock_configuration(
            Bucket=other.bucket, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
        )
        words = (await diagnosed(other, database))["bucket lock"][1]
    assert words.endswith("default of the bucket: GOVERNANCE, 7 days")


async def test_the_doctor_finds_a_bucket_that_forgets(
    upstream: Upstream, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3.serving(upstream.kind or "moto", has_lock=False, has_versions=False) as plain:
        point_to(plain, monkeypatch)
        found = await diagnosed(plain, database)
        assert found["bucket versions"] == ("missing", "off: switch versioning on")
        assert found["bucket lock"][0] == "missing"
        assert {found["vault"][0], found["bucket deletion"][0]} == {"failed"}
        assert not any(secret in str(found) for secret in (*SECRETS[:2], s3.CANARY))


# Seen red with a probe that takes any error for a refusal.
async def test_the_doctor_finds_a_lock_that_does_not_hold(upstream: Upstream, database: Database) -> None:
    upstream.fail("lie", on="DELETE", times=9)
    assert (await diagnosed(upstream, database))["bucket deletion"][0] == "failed"
    upstream.heal()
    upstream.fail("500", on="DELETE", times=99)
    assert (await diagnosed(upstream, database))["bucket deletion"][0] == "failed"


async def test_the_doctor_finds_a_bucket_that_lets_a_key_be_written_twice(
    upstream: Upstream, database: Database
) -> None:
    upstream.fail("lie", on=r"PUT .*doctor/probe$", times=9)
    assert (await diagnosed(upstream, database))["vault"][0] == "failed"


def test_the_doctors_objects_go_when_their_lock_is_over(
    upstream: Upstream, make: Make, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(provider, "PROBE_LOCK", timedelta(seconds=1))
        for _ in range(3):
            assert make()._check_overwrite()[0] == "ok"
    wait_until_unlocked(upstream, f"{prefix}doctor/probe")
    assert make()._check_deletion()[0] == "ok"
    assert len(versions(upstream, f"{prefix}doctor/probe")) == 1


def wait_until_unlocked(upstream: Upstream, name: str) -> None:
    """A lock in the past cannot be set, so that time has to pass."""
    held = upstream.direct().head_object(Bucket=upstream.bucket, Key=name)
    left = held["ObjectLockRetainUntilDate"] - datetime.now(UTC)
    time.sleep(max(0, left.total_seconds()) + 0.1)


# ── anchors ──


async def test_a_log_is_sealed_into_the_bucket_and_verified_from_it(
    upstream: Upstream, make: Make, prefix: str, database: Database, tmp_path: Path
) -> None:
    vault = make()
    async with sealed_log(database, tmp_path) as log:
        of_another_vault = ("audit_anchors", "audit_head_anchors", "audit_heads", "audit_head_entries")
        log.attack(*(f"DELETE FROM {table}" for table in of_another_vault))
        upstream.fail("cut after", on="^PUT [^?]*$")
        assert await log.seal(vault=vault) == {}
        anchored = vault.keys("anchors/")
        assert len(anchored) == 4
        assert log.inspect(vault=vault).findings == []
        for key in anchored:
            lay_over(upstream, prefix + key, "a version and a marker")
        assert log.inspect(vault=vault).findings == []
        log.attack("DELETE FROM audit_leaves WHERE month = %(month)s", month=JANUARY)
        assert log.inspect(vault=vault).findings
        assert FEBRUARY.strftime("%Y-%m") in str(anchored)


# ── what only a real bucket proves ──


@pytest.fixture(scope="module")
def served() -> Iterator[Upstream]:
    with s3.real() as upstream:
        yield upstream


@pytest.fixture
def real_bucket(served: Upstream, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    for name, value in served.environment.items():
        monkeypatch.setenv(name, value)
    return served


@pytest.fixture
def real_vault(real_bucket: Upstream, prefix: str, monkeypatch: pytest.MonkeyPatch) -> S3Vault:
    monkeypatch.setattr(provider, "PART_BYTES", PART)
    return vault_in(real_bucket, prefix=prefix, lock_days=1)


def test_a_real_bucket_writes_once_and_locks_whole_and_in_parts(
    real_vault: S3Vault, real_bucket: Upstream, prefix: str, tmp_path: Path
) -> None:
    for size in (0, 1, LARGE):
        path = file_of(tmp_path / str(size), os.urandom(size))
        stored = real_vault.put_file(f"key/{size}", path)
        assert real_vault.put_file(f"key/{size}", path) == stored
        with pytest.raises(VaultConflictError):
            real_vault.put(f"key/{size}", b"other")
        lay_over(real_bucket, f"{prefix}key/{size}", "a version and a marker")
        assert real_vault.get(f"key/{size}") == path.read_bytes()
        with pytest.raises(VaultConflictError):
            real_vault.put(f"key/{size}", b"other")
        with pytest.raises(ClientError, match="AccessDenied"):
            real_bucket.direct().delete_object(
                Bucket=real_bucket.bucket, Key=f"{prefix}key/{size}", VersionId=stored.version
            )
    assert real_vault.keys() == [f"key/{size}" for size in sorted(map(str, (0, 1, LARGE)))]
    assert real_vault.get("key/1", "nonsense") == (tmp_path / "1").read_bytes()


def test_a_real_bucket_is_passed_by_the_doctor(real_vault: S3Vault) -> None:
    assert real_vault._check_versions() == ("ok", "on")
    assert real_vault._check_lock()[0] == "ok"
    assert real_vault._check_overwrite()[0] == "ok"
    assert real_vault._check_deletion()[0] == "ok"


def test_a_real_bucket_refuses_a_bad_checksum(real_vault: S3Vault) -> None:
    """moto accepts it."""
    with pytest.raises(ClientError, match=r"BadDigest|InvalidRequest|XAmzContentChecksumMismatch"):
        real_vault._put_whole(real_vault._name("bad"), _stream(b"bytes"), hashlib.sha256(b"other").digest())
    assert real_vault.keys("bad") == []


def test_a_real_bucket_refuses_to_shorten_a_lock(
    real_vault: S3Vault, real_bucket: Upstream, prefix: str
) -> None:
    """moto shortens it."""
    version = real_vault.put("a", b"a")
    with pytest.raises(ClientError, match="AccessDenied"):
        real_bucket.direct().put_object_retention(
            Bucket=real_bucket.bucket, Key=f"{prefix}a", VersionId=version,
            Retention={"Mode": "COMPLIANCE", "RetainUntilDate": datetime.now(UTC) + timedelta(minutes=1)},
        )  # fmt: skip


def test_a_real_bucket_refuses_bad_credentials(
    real_bucket: Upstream, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """moto lets everybody in."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(VaultError):
        vault_in(real_bucket, prefix=prefix).put("a", b"a")


def test_a_real_bucket_locks_what_comes_in_parts_from_its_first_moment(
    real_vault: S3Vault, monkeypatch: pytest.MonkeyPatch, large: Path, real_bucket: Upstream, prefix: str
) -> None:
    """moto forgets it, so that there only the retention that is set afterwards holds."""
    monkeypatch.setattr(S3Vault, "_lock", lambda *_: None)
    version = real_vault.put_file("large", large).version
    held = real_bucket.direct().head_object(
        Bucket=real_bucket.bucket, Key=f"{prefix}large", VersionId=version
    )
    assert held["ObjectLockMode"] == "COMPLIANCE"


def _stream(content: bytes) -> Any:
    from io import BytesIO

    return BytesIO(content)
