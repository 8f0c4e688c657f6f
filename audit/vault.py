"""Write-once object store for anchors and archives, out of the database's reach: the interface, and a local folder.

Writes are idempotent: a second write of the same bytes under a key succeeds, of other bytes fails, and nothing is deleted.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Literal, Protocol
from uuid import uuid4

from audit.errors import VaultConflictError, VaultDamagedError

PIECE_BYTES = 1024 * 1024
SYNC_BYTES = 16 * PIECE_BYTES  # a whole large file at once delays commits on the same disk

_DIGEST = re.compile("[0-9a-f]{64}")
_KEY = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored object, with the version under which exactly these bytes are read back."""

    key: str
    version: str
    sha256: str
    size: int


# Of a health check, with what was found and what to do.
VaultState = tuple[Literal["ok", "missing", "failed"], str]


class Vault(Protocol):
    """A missing key is a FileNotFoundError; any other failure is a VaultError.

    Without a version the bytes that were written first are read, whatever happened to the key since. So they are with a version
    that this vault does not have: the object was copied from another one, and its reader compares digests.
    """

    def put(self, key: str, content: bytes) -> str:
        """Store durably and return the version."""
        ...

    def put_file(self, key: str, path: Path) -> Stored:
        """The same for a file of any size, a piece at a time."""
        ...

    def get(self, key: str, version: str | None = None) -> bytes: ...

    def open(self, key: str, version: str | None = None) -> BinaryIO:
        """A seekable stream. Its bytes are not verified: compare their digest or their signature."""
        ...

    def keys(self, prefix: str = "") -> list[str]:
        """The keys with this prefix, in alphabetical order."""
        ...

    def checks(self) -> dict[str, Callable[[], VaultState]]:
        """Health checks for `affidavit doctor`, by the name of the part that each reports."""
        ...


class FolderVault:
    """The embedded replacement for S3 with Object Lock. A file has one version only: the digest of its bytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, key: str, content: bytes) -> str:
        return self._put(key, BytesIO(content)).version

    def put_file(self, key: str, path: Path) -> Stored:
        with path.open("rb") as file:
            return self._put(key, file)

    def get(self, key: str, version: str | None = None) -> bytes:
        content = self._path(key).read_bytes()
        if version is not None and is_digest(version) and sha256(content).hexdigest() != version:
            raise VaultDamagedError(
                f"{key} in the vault is damaged: its bytes are not those that were written"
            )
        return content

    def open(self, key: str, version: str | None = None) -> BinaryIO:  # noqa: ARG002  the reader compares
        return self._path(key).open("rb")

    def keys(self, prefix: str = "") -> list[str]:
        files = (path for path in self._folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        keys = (path.relative_to(self._folder).as_posix() for path in files)
        return sorted(key for key in keys if key.startswith(prefix))

    def checks(self) -> dict[str, Callable[[], VaultState]]:
        return {"vault": self._check_write}

    def _check_write(self) -> VaultState:
        self.put("doctor/probe", b"written once")
        if self.get("doctor/probe") != b"written once":
            return "failed", "the vault returns other bytes than were written: check the disk"
        return "ok", "folder, write-once"

    def _put(self, key: str, source: BinaryIO) -> Stored:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own: after a crash it may be a hard link of the file.
        draft = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            digest, size = _write_durably(draft, source)
            os.link(draft, path)  # fails if the key exists: the file system's If-None-Match
        except FileExistsError:
            with path.open("rb") as stored:
                if digest_of(stored) != digest:
                    raise VaultConflictError(
                        f"{key} exists already in the vault with other content"
                    ) from None
        finally:
            draft.unlink(missing_ok=True)
        _sync_folders(path.parent, self._folder)
        return Stored(key, digest, digest, size)

    def _path(self, key: str) -> Path:
        path = (self._folder / key).resolve() if is_key(key) else self._folder
        if not path.is_relative_to(self._folder.resolve()) or path == self._folder:
            raise ValueError(
                f"Not a key of a vault: {key!r}. A key consists of names, separated by /, of letters, digits, _, - and ."
            )
        return path


def is_key(name: str) -> bool:
    return _KEY.fullmatch(name) is not None


def is_digest(version: str) -> bool:
    """Whether a folder gave this version. A bucket names versions otherwise, and an object can have been copied from one."""
    return _DIGEST.fullmatch(version) is not None


def digest_of(source: BinaryIO) -> str:
    digest = sha256()
    while piece := source.read(PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()


def _write_durably(path: Path, source: BinaryIO) -> tuple[str, int]:
    """Write and fsync; returns the digest and the size."""
    digest = sha256()
    with path.open("xb") as file:
        while piece := source.read(PIECE_BYTES):
            digest.update(piece)
            file.write(piece)
            if file.tell() % SYNC_BYTES < len(piece):
                _sync(file)
        _sync(file)
        size = file.tell()
    path.chmod(0o400)
    return digest.hexdigest(), size


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folders(folder: Path, top: Path) -> None:
    """fsync the folders too: a new folder is an entry of its parent, which must survive a power cut."""
    for each in (folder, *folder.parents):
        sync_folder(each)
        if each == top.resolve().parent:
            return


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
