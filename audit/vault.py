"""Write-once bytes: what anchors and archives are kept in, out of the database's reach. And the folder that does it.

A key is written once. A second write of the same bytes is a success, of other bytes an error, and nothing is deleted.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Protocol
from uuid import uuid4

from audit.errors import VaultConflictError, VaultDamagedError

PIECE_BYTES = 1024 * 1024

_KEY = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Stored:
    """What the vault holds of one key, and the version by which exactly these bytes are read back."""

    key: str
    version: str
    sha256: str
    size: int


class Vault(Protocol):
    """A key that is not there, or not in that version, is a FileNotFoundError; any other trouble is a VaultError.

    Without a version the bytes that were written first are read, whatever anybody did to the key since.
    """

    def put(self, key: str, content: bytes) -> str:
        """Store durably and return the version."""
        ...

    def put_file(self, key: str, path: Path) -> Stored:
        """The same for a file of any size, a piece at a time."""
        ...

    def get(self, key: str, version: str | None = None) -> bytes: ...

    def open(self, key: str, version: str | None = None) -> BinaryIO:
        """To read from any place on. Nobody has checked these bytes: compare their digest, or their signature."""
        ...

    def keys(self, prefix: str = "") -> list[str]:
        """In the order of their letters."""
        ...


class FolderVault:
    """The embedded stand for an object store with a lock. A file has one version only: the digest of its bytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, key: str, content: bytes) -> str:
        return self._put(key, BytesIO(content)).version

    def put_file(self, key: str, path: Path) -> Stored:
        with path.open("rb") as file:
            return self._put(key, file)

    def get(self, key: str, version: str | None = None) -> bytes:
        content = self._path(key).read_bytes()
        if version is not None and sha256(content).hexdigest() != version:
            raise VaultDamagedError(f"{key} in the vault is not what was written")
        return content

    def open(self, key: str, version: str | None = None) -> BinaryIO:  # noqa: ARG002  the reader compares
        return self._path(key).open("rb")

    def keys(self, prefix: str = "") -> list[str]:
        files = (path for path in self._folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        return sorted(
            key for path in files if (key := path.relative_to(self._folder).as_posix()).startswith(prefix)
        )

    def _put(self, key: str, source: BinaryIO) -> Stored:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(
            f".{path.name}.{uuid4().hex}"
        )  # never written twice: after a crash it is the file itself
        try:
            digest, size = _write_durably(draft, source)
            os.link(draft, path)  # fails where the key exists: the file system's own If-None-Match
        except FileExistsError:
            if self._digest(key) != digest:
                raise VaultConflictError(f"{key} is written already and holds something else") from None
        finally:
            draft.unlink(missing_ok=True)
        _sync_folders(path.parent, self._folder)
        return Stored(key, digest, digest, size)

    def _digest(self, key: str) -> str:
        with self.open(key) as file:
            return digest_of(file)

    def _path(self, key: str) -> Path:
        path = (self._folder / key).resolve() if is_key(key) else self._folder
        if not path.is_relative_to(self._folder.resolve()) or path == self._folder:
            raise ValueError(f"Not a key of this vault: {key!r}")
        return path


def is_key(name: str) -> bool:
    return _KEY.fullmatch(name) is not None


def pieces(source: BinaryIO) -> Iterator[bytes]:
    while piece := source.read(PIECE_BYTES):
        yield piece


def digest_of(source: BinaryIO) -> str:
    digest = sha256()
    for piece in pieces(source):
        digest.update(piece)
    return digest.hexdigest()


def _write_durably(path: Path, source: BinaryIO) -> tuple[str, int]:
    """The digest and the size of what stands in the file now."""
    digest = sha256()
    with path.open("xb") as file:
        for piece in pieces(source):
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    path.chmod(0o400)
    return digest.hexdigest(), size


def _sync_folders(folder: Path, top: Path) -> None:
    """A new folder is an entry of the one above it, and that must outlive a power cut too."""
    for each in (folder, *folder.parents):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if each == top.resolve().parent:
            return
