"""S3, or what speaks its interface, as the vault: each object is written once, as a version under a lock.

A lock protects a version, not a key: whoever may write can still lay another version or a delete marker over it. So the
oldest version of a key is the one that counts, and is found under whatever was laid over it.

A write can be ambiguous: the bucket has it, and the answer was lost. Whatever came of a write, a second look at the key
tells; and `If-None-Match: *` lets no repetition become a second version.
"""

import os
from base64 import b64encode
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from hashlib import sha256
from io import SEEK_CUR, SEEK_END, SEEK_SET, BufferedReader, BytesIO, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO

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
from audit.vault import Stored, digest_of, is_key
from engine.errors import ConfigurationError

PART_BYTES = 16 * 1024 * 1024  # held one at a time; the 10,000 that an object may have are 160 GB
AHEAD_BYTES = 1024 * 1024  # what a stream fetches at once: few requests, and not much beyond a footer
CONNECT_S = 3.0
READ_S = 10.0  # between two signs of life; thrice that leaves a sealer within its minute
TRIES = 3
LOCK_SLACK = timedelta(days=1)  # what was put again within it need not be locked longer
PROBE_LOCK = timedelta(minutes=1)  # a clock that is wrong by more should be found, too

PROBE = "doctor/probe"
CODE_LENGTH_MAX = 64

_ABSENT = ("NoSuchKey", "NoSuchVersion", "404", "405", "MethodNotAllowed", "ObjectLockConfigurationNotFoundError")  # fmt: skip
_BROKEN_OFF = (FlexibleChecksumError, HTTPClientError, IncompleteReadError, ResponseStreamingError)
_RULE = {"Mode": "", "Days": " days", "Years": " years"}


class S3Vault:
    """One bucket, or a part of it by prefix. Where it is and what opens it stand in AWS_…, as for every tool of S3."""

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
        name, version = self._found(key, version)
        return self._read(name, version)

    def open(self, key: str, version: str | None = None) -> BinaryIO:
        name, version = self._found(key, version)
        with _in_our_words(key):
            size = self._client.head_object(Bucket=self._bucket, Key=name, VersionId=version)["ContentLength"]
        ranges = _Ranges(lambda begin, end: self._read(name, version, begin, end), size)
        return BufferedReader(ranges, AHEAD_BYTES)

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
        """Whatever the failure is: if the key now holds these bytes, they are written."""
        try:
            with _in_our_words(key):
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
                "The bucket keeps no versions, so nothing in it is safe: see `affidavit doctor`."
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
            with suppress(BotoCoreError, ClientError):  # it is completed after all, or the bucket is away
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
            raise VaultError("The file was changed while it was read.")
        return parts

    def _held(self, key: str, digest: str) -> str | None:
        """The version that holds these bytes; None if the key was never written."""
        name = self._name(key)
        version = self._first(name)
        if version is None:
            return None
        for _ in range(2):  # a difference that is seen once may be the network's
            with self.open(key, version) as stream:
                if digest_of(stream) == digest:
                    return version
        raise VaultConflictError(f"{key} is written already and holds something else")

    def _first(self, name: str) -> str | None:
        first = None
        for each, version in self._versions(name):  # of each name the newest comes first
            if each != name:
                break
            first = version
        return first

    def _versions(self, prefix: str) -> Iterator[tuple[str, str]]:
        with _in_our_words(prefix):
            for page in self._client.get_paginator("list_object_versions").paginate(
                Bucket=self._bucket, Prefix=prefix
            ):
                for version in page.get("Versions", ()):
                    yield version["Key"], version["VersionId"]

    def _found(self, key: str, version: str | None) -> tuple[str, str]:
        name = self._name(key)
        found = version or self._first(name)
        if found is None:
            raise FileNotFoundError(f"The vault holds no {key}")
        return name, found

    def _read(self, name: str, version: str, begin: int = 0, end: int | None = None) -> bytes:
        """A whole object is compared with its checksum on the way; a range is as the bucket sent it."""
        asked = {"Bucket": self._bucket, "Key": name, "VersionId": version}
        if end is not None:
            asked["Range"] = f"bytes={begin}-{end - 1}"
        absent = (*_ABSENT, "InvalidArgument")  # what is no version's id at all
        with _in_our_words(name.removeprefix(self._prefix), absent):
            for tries_left in reversed(range(TRIES)):
                body = self._client.get_object(**asked)["Body"]
                try:
                    return bytes(body.read())
                except _BROKEN_OFF:
                    if not tries_left:
                        raise
        raise AssertionError

    def _lock(self, name: str, version: str) -> None:
        """Not every bucket locks what came in parts, and what is found written may have lost its lock to a crash."""
        until = self._clock() + self._lock_for
        if self._is_locked(name, version, until):
            return
        with _in_our_words(name.removeprefix(self._prefix)):
            self._client.put_object_retention(
                Bucket=self._bucket, Key=name, VersionId=version,
                Retention={"Mode": self._lock_mode, "RetainUntilDate": until},
            )  # fmt: skip
        if not self._is_locked(name, version, until):
            raise VaultError("The bucket does not lock what it is told to lock: see `affidavit doctor`.")

    def _is_locked(self, name: str, version: str, until: datetime) -> bool:
        """As the object itself says: to ask for the retention alone is another call, which fewer buckets know."""
        with _in_our_words(name.removeprefix(self._prefix)):
            held = self._client.head_object(Bucket=self._bucket, Key=name, VersionId=version)
        is_strong = held.get("ObjectLockMode") in {"COMPLIANCE", self._lock_mode}
        return is_strong and bool(held["ObjectLockRetainUntilDate"] >= until - LOCK_SLACK)

    def _locked_for(self, time: timedelta) -> dict[str, Any]:
        return {"ObjectLockMode": self._lock_mode, "ObjectLockRetainUntilDate": self._clock() + time}

    def _name(self, key: str) -> str:
        if not is_key(key):
            raise ValueError(f"Not a key of this vault: {key!r}")
        return self._prefix + key

    def is_versioned(self) -> bool:
        with _in_our_words("the bucket"):
            found = self._client.get_bucket_versioning(Bucket=self._bucket)
        return bool(found.get("Status") == "Enabled")

    def default_lock(self) -> str | None:
        """What the bucket does with objects that name no lock: "" is nothing. None: it knows no locks at all."""
        try:
            with _in_our_words("the bucket"):
                found = self._client.get_object_lock_configuration(Bucket=self._bucket)
        except FileNotFoundError:
            return None
        rule = found["ObjectLockConfiguration"].get("Rule", {}).get("DefaultRetention", {})
        return ", ".join(f"{rule[word]}{unit}" for word, unit in _RULE.items() if rule.get(word))

    def refuses_overwrite(self) -> bool:
        """A second object of the same key, with the condition that there be none."""
        with _in_our_words("a test object"):
            self._put_probe()
        return _is_refused("PreconditionFailed", lambda: self._put_probe(IfNoneMatch="*"))

    def refuses_deletion(self) -> bool:
        """Of a version under the shortest lock that proves it. Those of earlier looks are removed on the way."""
        name = self._prefix + PROBE
        with _in_our_words("a test object"):
            version = self._put_probe()
        earlier = [each for found, each in self._versions(name) if found == name and each != version]
        for each in earlier:
            self._refuses_deletion_of(name, each)
        return self._is_locked(name, version, self._clock()) and self._refuses_deletion_of(name, version)

    def _put_probe(self, **condition: str) -> str:
        made = self._client.put_object(
            Bucket=self._bucket, Key=self._prefix + PROBE, Body=b"probe", ChecksumAlgorithm="SHA256",
            **self._locked_for(PROBE_LOCK), **condition,
        )  # fmt: skip
        return str(made.get("VersionId", "null"))

    def _refuses_deletion_of(self, name: str, version: str) -> bool:
        return _is_refused(
            "AccessDenied",
            lambda: self._client.delete_object(Bucket=self._bucket, Key=name, VersionId=version),
        )


class _Ranges(RawIOBase):
    """A file whose bytes are fetched when they are read."""

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
            raise ValueError(f"No place in a file: {at}")
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
            raise VaultDamagedError(f"{len(content)} bytes came instead of {end - begin}")
        self._at = end
        return content


def _client() -> Any:
    """Other endpoints than Amazon's have rarely a host name for each bucket."""
    is_elsewhere = any(os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"))
    config = Config(
        connect_timeout=CONNECT_S, read_timeout=READ_S, retries={"mode": "standard", "total_max_attempts": TRIES},
        request_checksum_calculation="when_required", response_checksum_validation="when_supported",
        s3={"addressing_style": "path" if is_elsewhere else "auto"},
    )  # fmt: skip
    try:
        return Session().client("s3", config=config)
    except (BotoCoreError, ValueError):
        raise ConfigurationError(
            "The vault s3 cannot be opened with what AWS_… says: look at AWS_ENDPOINT_URL_S3, AWS_REGION and AWS_PROFILE."
        ) from None


@contextmanager
def _in_our_words(what: str, absent: Container[str] = _ABSENT) -> Iterator[None]:
    """A vendor's words may name hosts, accounts and keys."""
    try:
        yield
    except ClientError as refused:
        if _code(refused) in absent:
            raise FileNotFoundError(f"The vault does not hold {what} in this version") from None
        raise VaultError(f"The bucket refused {what}: {_code(refused)}") from None
    except FlexibleChecksumError:
        raise VaultDamagedError(f"{what} in the vault is not what was written") from None
    except NoCredentialsError:
        raise VaultError(
            "Nothing opens the bucket: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        ) from None
    except BotoCoreError as failure:
        raise VaultError(f"The bucket does not answer for {what}: {type(failure).__name__}") from None


def _is_refused(code: str, act: Callable[[], object]) -> bool:
    """For this reason; to be refused for another one is an error."""
    with _in_our_words("a test object"):
        try:
            act()
        except ClientError as refused:
            if _code(refused) == code:
                return True
            raise
    return False


def _code(refused: ClientError) -> str:
    """A word of the interface, or what a stranger sent instead."""
    code = str(refused.response.get("Error", {}).get("Code", ""))
    return code if code.isalnum() and code.isascii() and len(code) <= CODE_LENGTH_MAX else "an unknown error"


def _base64(digest: bytes) -> str:
    return b64encode(digest).decode()
