"""Write-once bytes in a folder: the embedded stand for an object store with a lock.

A key is written once. A second write of the same bytes is a success, of other bytes an error, and nothing is deleted.
"""

import os
import re
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

_KEY = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)*", re.ASCII)


class VaultConflictError(Exception):
    """The key holds other bytes already, and what is written stays."""


class FolderVault:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, key: str, content: bytes) -> str:
        """Store durably and return the digest by which the content can be read back."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(
            f".{path.name}.{uuid4().hex}"
        )  # never written twice: after a crash it is the file itself
        _write_durably(draft, content)
        try:
            os.link(draft, path)  # fails where the key exists: the file system's own If-None-Match
        except FileExistsError:
            if path.read_bytes() != content:
                raise VaultConflictError(f"{key} is written already and holds something else") from None
        finally:
            draft.unlink()
        _sync_folder(path.parent)
        return sha256(content).hexdigest()

    def get(self, key: str) -> bytes:
        return self._path(key).read_bytes()

    def keys(self, prefix: str = "") -> list[str]:
        files = (path for path in self._folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        return sorted(
            key for path in files if (key := path.relative_to(self._folder).as_posix()).startswith(prefix)
        )

    def _path(self, key: str) -> Path:
        path = (self._folder / key).resolve() if _KEY.fullmatch(key) else self._folder
        if not path.is_relative_to(self._folder.resolve()) or path == self._folder:
            raise ValueError(f"Not a key of this vault: {key!r}")
        return path


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(0o400)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
