"""Paths and file locks of the data folder. The locks let several processes share one folder."""

import fcntl
import os
import tempfile
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Self

from engine.errors import ConfigurationError

SOCKET_PATH_BYTES_MAX = 100  # the kernel allows 107 for the path of a Unix socket; the rest is reserve


def socket_folder(folder: Path, longest_name: str, owner: int) -> Path:
    """The folder for Unix sockets: the data folder itself, or a private temporary one if its path is too long."""
    if _is_short(folder / longest_name):
        return folder
    name = f"affidavit-{owner}-{sha256(os.fsencode(folder)).hexdigest()[:16]}"
    places = (Path(tempfile.gettempdir()), Path("/tmp"))  # noqa: S108  the name is checked to be ours
    private = next(
        (place / name for place in places if _is_short(place / name / longest_name)), places[0] / name
    )
    if not private.exists():
        private.mkdir(mode=0o700)
        os.chown(private, owner, -1)
    if private.is_symlink() or private.stat().st_uid != owner:
        raise ConfigurationError(
            f"{private} belongs to another user. Remove it, or choose a data folder with a shorter path (--data-dir)."
        )
    return private


def _is_short(path: Path) -> bool:
    return len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX


def package_folder(name: str) -> Path:
    """The folder of an installed package of which we need the files only. The package is not imported."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            f"The package {name} is not installed. Install the packages listed in requirements.lock."
        )
    return Path(spec.submodule_search_locations[0])


def usable(folder: Path) -> Path:
    """The data folder, made if there is none; `ConfigurationError` if this process cannot write into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as failure:
        reason = os.strerror(failure.errno or 0)
        raise ConfigurationError(
            f"The data folder {folder} cannot be used ({reason}). Name one that you may write into: --data-dir, or"
            " AFFIDAVIT_DATA_DIR."
        ) from None
    return folder


class UsageLock:
    """A shared file lock that every user of a data folder holds. The kernel releases it when the process dies."""

    def __init__(self, folder: Path, name: str = "in-use.lock") -> None:
        self._file: IO[bytes] = (folder / name).open("ab")
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def try_exclusive(self) -> bool:
        """Makes the lock exclusive. False if another process uses the folder; if True, no other can start to until `release`."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def share(self) -> None:
        """Shared again, after `try_exclusive`."""
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def release(self) -> None:
        self._file.close()


class ExclusiveLock:
    """An exclusive file lock: one process at a time, the others wait."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab")

    def __enter__(self) -> Self:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
