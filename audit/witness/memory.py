"""What a witness must never forget: each log's last cosigned head, on disk before it is signed.

<folder>/<hex of the origin's SHA-256>/head          the log's note, as it was submitted
<folder>/<hex of the origin's SHA-256>/fork-…        two signed heads of one size: the proof that the log forked
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Lock

_FORKS_MAX = 100  # of one log: whoever holds its key could fill the disk


class WitnessMemory:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One request at a time, also of two witnesses with one folder: to compare and to store must be one step."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._lock, (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def last(self, origin: str) -> str | None:
        """The note of the last head that was cosigned."""
        try:
            return (self._of(origin) / "head").read_text("utf-8")
        except FileNotFoundError:
            return None

    def keep(self, origin: str, note: str) -> None:
        _write(self._of(origin) / "head", note)

    def keep_fork(self, origin: str, known: str, other: str) -> None:
        """Both heads bear the log's signature and have one size, and no log has both."""
        name = f"fork-{sha256(other.encode()).hexdigest()[:16]}"
        if not (self._of(origin) / name).exists() and len(self.forks(origin)) < _FORKS_MAX:
            _write(self._of(origin) / name, f"{known}\n{other}")

    def forks(self, origin: str) -> list[Path]:
        return sorted(self._of(origin).glob("fork-*"))

    def _of(self, origin: str) -> Path:
        return self._folder / sha256(origin.encode()).hexdigest()


def _write(path: Path, text: str) -> None:
    """All of it or nothing, also in a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    for folder in (path.parent, path.parent.parent):
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
