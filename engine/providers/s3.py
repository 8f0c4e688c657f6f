"""An adapter for S3 and compatible stores as the vault: write-once objects, each a version under Object Lock.

A lock protects a version, not a key: a client that may write can still add a newer version or a delete marker. So the
oldest version of a key is the valid one, and it is found below any newer ones.

A write can be ambiguous: the bucket stored it, but the response was lost. So after a failure the key is read back, and
`If-None-Match: *` makes a retry idempotent, because it cannot create a second version.
"""

import os
from base64 import b64encode
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from io import SEEK_CUR, SEEK_END, SEEK_SET, BufferedReader, BytesIO, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    ResponseStreamingError,
)

from audit.errors import VaultConflictError, VaultDamagedError, VaultError
from audit.vault import Stored, VaultState, digest_of, is_digest, is_key
from engine.errors import ConfigurationError
from engine.settings import Settings

PART_BYTES = 16 * 1024 * 1024  # one part in memory at a time; an object has at most 10,000, which are 160 GB
AHEAD_BYTES = 1024 * 1024  # read-ahead of a stream: few requests, and little more than a footer
CONNECT_S = 3.0
READ_S = 10.0  # between two packets; three attempts stay within a sealer's minute
ATTEMPTS_MAX = 3
LOCK_SLACK = timedelta(days=1)  # a retention that ends less than this too early is not renewed
PROBE_LOCK = timedelta(minutes=1)  # short, but long enough to detect a wrong clock

PROBE = "doctor/probe"
CODE_LENGTH_MAX = 64

_ABSENT = ("NoSuchKey", "NoSuchVersion", "404", "405", "MethodNotAllowed", "ObjectLockConfigurationNotFoundError")  # fmt: skip
_BROKEN_OFF = (FlexibleChecksumError, HTTPClientError, IncompleteReadError, ResponseStreamingError)
Read = TypeVar("Read")
_RULE = {"Mode": "", "Days": " days", "Years": " years"}


def vault(settings: Settings) -> "S3Vault":
    archive = settings.archive
    if not archive.bucket:
        raise ConfigurationError("The S3 vault needs a bucket: set archive.bucket.")
    return S3Vault(
        archive.bucket, archive.prefix, lock_mode=archive.object_lock_mode, lock_days=archive.object_lock_days,
        clock=lambda: datetime.now(UTC),
    )  # fmt: skip


class S3Vault:
    """One bucket, or a prefix of it. Endpoint and credentials come from AWS_…, as for every S3 tool."""

    def __init__(
        self, bucket: str, prefix: str, *, lock_mode: str, lock_days: int, clock: Callable[[], datetime]
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._lock_mode = lock_mode
        self._lock_for = timedelta(days=lock_days)
        self._clock = clock
        self._client = _client()

    def put(self, key: str, content: bytes) -> str:
        return self._put(key, BytesIO(content)).version

    def put_file(self, key: str, path: Path) -> Stored:
        with path.open("rb") as file:
            return self._put(key, file)

    def get(self, key: str, version: str | None = None) -> bytes:
        content = self._find(key, version, self._read)
        if version is not None and is_digest(version) and sha256(content).hexdigest() != version:
            raise VaultDamagedError(f"{key} in the vault differs from what was written")
        return content

    def open(self, key: str, version: str | None = None) -> BinaryIO:
        return self._find(key, version, self._stream)

    def keys(self, prefix: str = "") -> list[str]:
        names = {name.removeprefix(self._prefix) for name, _ in self._versions(self._prefix + prefix)}
        return sorted(name for name in names if is_key(name))

    def _put(self, key: str, source: BinaryIO) -> Stored:
        name, digest, size = self._name(key), digest_of(source), source.tell()
        source.seek(0)
        version = self._held(key, digest) or self._write(key, source, bytes.fromhex(digest), size)
        self._lock(name, version)
        return Stored(key, version, digest, size)

    def _write(self, key: str, source: BinaryIO, digest: bytes, size: int) -> str:
        """Writes idempotently: after a failure, the write counts as done if the key now has these bytes."""
        try:
            with _map_errors(key):
                if size <= PART_BYTES:
                    made = self._put_whole(self._name(key), source, digest)
                else:
                    made = self._put_in_parts(self._name(key), source, digest)
        except VaultError:
            version = self._held(key, digest.hex())
            if version is None:
                raise
            return version
        if "VersionId" not in made:
            raise VaultError(
                "The bucket does not keep versions, so its objects can be overwritten. Enable versioning, then run `affidavit doctor`."
            )
        return str(made["VersionId"])

    def _put_whole(self, name: str, source: BinaryIO, digest: bytes) -> Any:
        return self._client.put_object(
            Bucket=self._bucket, Key=name, Body=source, IfNoneMatch="*",
            ChecksumAlgorithm="SHA256", ChecksumSHA256=_base64(digest), **self._locked_for(self._lock_for),
        )  # fmt: skip

    def _put_in_parts(self, name: str, source: BinaryIO, digest: bytes) -> Any:
        upload = {"Bucket": self._bucket, "Key": name}
        made = self._client.create_multipart_upload(
            **upload, ChecksumAlgorithm="SHA256", **self._locked_for(self._lock_for)
        )
        upload["UploadId"] = made["UploadId"]
        try:
            parts = self._put_parts(upload, source, digest)
            return self._client.complete_multipart_upload(
                **upload, IfNoneMatch="*", MultipartUpload={"Parts": parts}
            )
        except BaseException:
            # Refused if the upload was completed after all, or if the bucket is unavailable.
            with suppress(BotoCoreError, ClientError):
                self._client.abort_multipart_upload(**upload)
            raise

    def _put_parts(self, upload: dict[str, str], source: BinaryIO, digest: bytes) -> list[dict[str, Any]]:
        whole = sha256()
        parts: list[dict[str, Any]] = []
        while part := source.read(PART_BYTES):
            whole.update(part)
            number, checksum = len(parts) + 1, _base64(sha256(part).digest())
            made = self._client.upload_part(
                **upload, PartNumber=number, Body=BytesIO(part), ChecksumSHA256=checksum
            )
            parts.append({"PartNumber": number, "ETag": made["ETag"], "ChecksumSHA256": checksum})
        if whole.digest() != digest:
            raise VaultError("The file was changed while it was uploaded. Run the command again.")
        return parts

    def _held(self, key: str, digest: str) -> str | None:
        """The version with these bytes; None if the key was never written."""
        name = self._name(key)
        version = self._first(name)
        if version is None:
            return None
        for _ in range(2):  # a single difference may be a network error
            with self.open(key, version) as stream:
                if digest_of(stream) == digest:
                    return version
        raise VaultConflictError(f"{key} already exists with other content")

    def _first(self, name: str) -> str | None:
        first = None
        for each, version in self._versions(name):  # for each name, the newest version comes first
            if each != name:
                break
            first = version
        return first

    def _versions(self, prefix: str) -> Iterator[tuple[str, str]]:
        with _map_errors(prefix):
            for page in self._client.get_paginator("list_object_versions").paginate(
                Bucket=self._bucket, Prefix=prefix
            ):
                for version in page.get("Versions", ()):
                    yield version["Key"], version["VersionId"]

    def _find(self, key: str, version: str | None, read: Callable[[str, str], Read]) -> Read:
        """Read this version. A folder's is a digest and another bucket's unknown here: what was copied is the first version."""
        name = self._name(key)
        if version is not None and not is_digest(version):
            with suppress(FileNotFoundError):
                return read(name, version)
        first = self._first(name)
        if first is None:
            raise FileNotFoundError(f"The vault has no object {key}")
        return read(name, first)

    def _stream(self, name: str, version: str) -> BinaryIO:
        absent = (*_ABSENT, "400")  # for a malformed version id; the answer to HEAD does not say more
        with _map_errors(name.removeprefix(self._prefix), absent):
            size = self._client.head_object(Bucket=self._bucket, Key=name, VersionId=version)["ContentLength"]
        ranges = _Ranges(lambda begin, end: self._read(name, version, begin, end), size)
        return BufferedReader(ranges, AHEAD_BYTES)

    def _read(self, name: str, version: str, begin: int = 0, end: int | None = None) -> bytes:
        """Reads with retries. A whole object is verified by its checksum; a range is not."""
        request = {"Bucket": self._bucket, "Key": name, "VersionId": version}
        if end is not None:
            request["Range"] = f"bytes={begin}-{end - 1}"
        absent = (*_ABSENT, "InvalidArgument")  # for a malformed version id
        with _map_errors(name.removeprefix(self._prefix), absent):
            for tries_left in reversed(range(ATTEMPTS_MAX)):
                body = self._client.get_object(**request)["Body"]
                try:
                    return bytes(body.read())
                except _BROKEN_OFF:
                    if not tries_left:
                        raise
        raise AssertionError

    def _lock(self, name: str, version: str) -> None:
        """Some stores do not lock multipart uploads, and an object found after a crash may lack its lock."""
        until = self._clock() + self._lock_for
        if self._is_locked(name, version, until):
            return
        with _map_errors(name.removeprefix(self._prefix)):
            self._client.put_object_retention(
                Bucket=self._bucket, Key=name, VersionId=version,
                Retention={"Mode": self._lock_mode, "RetainUntilDate": until},
            )  # fmt: skip
        if not self._is_locked(name, version, until):
            raise VaultError(
                "The bucket accepted a retention but did not apply it. Enable Object Lock, then run `affidavit doctor`."
            )

    def _is_locked(self, name: str, version: str, until: datetime) -> bool:
        """Reads the lock from the object's head, because some stores lack the separate call for the retention."""
        with _map_errors(name.removeprefix(self._prefix)):
            held = self._client.head_object(Bucket=self._bucket, Key=name, VersionId=version)
        is_strong = held.get("ObjectLockMode") in {"COMPLIANCE", self._lock_mode}
        return is_strong and bool(held["ObjectLockRetainUntilDate"] >= until - LOCK_SLACK)

    def _locked_for(self, time: timedelta) -> dict[str, Any]:
        return {"ObjectLockMode": self._lock_mode, "ObjectLockRetainUntilDate": self._clock() + time}

    def _name(self, key: str) -> str:
        if not is_key(key):
            raise ValueError(f"Not a key of a vault: {key!r}")
        return self._prefix + key

    def checks(self) -> dict[str, Callable[[], VaultState]]:
        return {
            "vault": self._check_overwrite,
            "bucket versions": self._check_versions,
            "bucket lock": self._check_lock,
            "bucket deletion": self._check_deletion,
        }

    def _check_overwrite(self) -> VaultState:
        """Tests a conditional write: a second object of the same key with `If-None-Match: *`."""
        with _map_errors("a test object"):
            self._put_probe()
        if _attempt("PreconditionFailed", lambda: self._put_probe(IfNoneMatch="*")):
            return "ok", f"s3, bucket {self._bucket}, write-once"
        twice = (
            "the bucket lets a key be written twice: it does not support If-None-Match; use another bucket"
        )
        return "failed", twice

    def _check_versions(self) -> VaultState:
        with _map_errors("the bucket"):
            found = self._client.get_bucket_versioning(Bucket=self._bucket)
        is_on = found.get("Status") == "Enabled"
        return ("ok", "on") if is_on else ("missing", "off: switch versioning on")

    def _check_lock(self) -> VaultState:
        """A default of the bucket is not needed: each object is locked when it is written."""
        try:
            with _map_errors("the bucket"):
                found = self._client.get_object_lock_configuration(Bucket=self._bucket)
        except FileNotFoundError:
            return "missing", "off: switch Object Lock on, or objects can be deleted"
        rule = found["ObjectLockConfiguration"].get("Rule", {}).get("DefaultRetention", {})
        default = ", ".join(f"{rule[word]}{unit}" for word, unit in _RULE.items() if rule.get(word)) or "none"
        ours = f"each object {self._lock_mode}, {self._lock_for.days} days"
        return "ok", f"on, {ours}; default of the bucket: {default}"

    def _check_deletion(self) -> VaultState:
        """Tests the deletion of a version under a short lock, and removes the expired versions of earlier tests."""
        name = self._prefix + PROBE
        with _map_errors("a test object"):
            version = self._put_probe()
        earlier = [each for found, each in self._versions(name) if found == name and each != version]
        for each in earlier:
            self._try_deletion(name, each)
        if self._is_locked(name, version, self._clock()) and self._try_deletion(name, version):
            return "ok", "a locked test object cannot be deleted"
        return "failed", "a locked test object could be deleted: use another bucket"

    def _put_probe(self, **condition: str) -> str:
        made = self._client.put_object(
            Bucket=self._bucket, Key=self._prefix + PROBE, Body=b"probe", ChecksumAlgorithm="SHA256",
            **self._locked_for(PROBE_LOCK), **condition,
        )  # fmt: skip
        return str(made.get("VersionId", "null"))

    def _try_deletion(self, name: str, version: str) -> bool:
        return _attempt(
            "AccessDenied",
            lambda: self._client.delete_object(Bucket=self._bucket, Key=name, VersionId=version),
        )


class _Ranges(RawIOBase):
    """A raw file over range requests: bytes are fetched when they are read."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        at = {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._size}[whence] + offset
        if at < 0:
            raise ValueError(f"Negative file position: {at}")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        content = self._next(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def readall(self) -> bytes:
        return self._next(self._size)

    def _next(self, count: int) -> bytes:
        begin, end = self._at, min(self._at + count, self._size)
        if begin >= end:
            return b""
        content = self._read(begin, end)
        if len(content) != end - begin:
            raise VaultDamagedError(f"The bucket sent {len(content)} bytes instead of {end - begin}")
        self._at = end
        return content


def _client() -> Any:
    """Uses path-style addresses for other endpoints than Amazon's, which rarely have a host name per bucket."""
    is_elsewhere = any(os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"))
    config = Config(
        connect_timeout=CONNECT_S, read_timeout=READ_S, retries={"mode": "standard", "total_max_attempts": ATTEMPTS_MAX},
        request_checksum_calculation="when_required", response_checksum_validation="when_supported",
        s3={"addressing_style": "path" if is_elsewhere else "auto"},
    )  # fmt: skip
    try:
        return Session().client("s3", config=config)
    except (BotoCoreError, ValueError):
        raise ConfigurationError(
            "The S3 vault cannot be opened with the settings in AWS_…. Check AWS_ENDPOINT_URL_S3, AWS_REGION and AWS_PROFILE."
        ) from None


@contextmanager
def _map_errors(what: str, absent: Container[str] = _ABSENT) -> Iterator[None]:
    """Maps the vendor's exceptions to ours, without their messages, which may name hosts, accounts and keys."""
    try:
        yield
    except ClientError as refused:
        if _code(refused) in absent:
            raise FileNotFoundError(f"The vault does not have {what} in this version") from None
        raise VaultError(f"The bucket refused {what}: {_code(refused)}") from None
    except FlexibleChecksumError:
        raise VaultDamagedError(f"{what} in the vault differs from what was written") from None
    except NoCredentialsError:
        raise VaultError(
            "The bucket needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        ) from None
    except BotoCoreError as failure:
        raise VaultError(
            f"The bucket did not respond for {what}: {type(failure).__name__}. Check the network, then try again."
        ) from None


def _attempt(code: str, act: Callable[[], object]) -> bool:
    """Acts, and returns whether that was refused with this code; a refusal with another code is an error."""
    with _map_errors("a test object"):
        try:
            act()
        except ClientError as refused:
            if _code(refused) == code:
                return True
            raise
    return False


def _code(refused: ClientError) -> str:
    """The error code of the interface; anything else that a server sent is not repeated."""
    code = str(refused.response.get("Error", {}).get("Code", ""))
    return code if code.isalnum() and code.isascii() and len(code) <= CODE_LENGTH_MAX else "an unknown error"


def _base64(digest: bytes) -> str:
    return b64encode(digest).decode()
