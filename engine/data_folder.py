"""Places in the data folder, and the lock that says whether anybody still uses it."""

import fcntl
import os
import tempfile
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Self

from engine.errors import ConfigurationError

SOCKET_PATH_BYTES_MAX = 100  # the kernel allows 107 for a Unix socket; file names need the rest


def socket_folder(folder: Path, longest_name: str, owner: int) -> Path:
    """Where the Unix sockets of this folder live: in it, or in a private temporary folder if its path is too long."""
    if len(os.fsencode(folder / longest_name)) <= SOCKET_PATH_BYTES_MAX:
        return folder
    name = sha256(os.fsencode(folder)).hexdigest()[:16]
    private = Path(tempfile.gettempdir()) / f"affidavit-{owner}-{name}"
    if not private.exists():
        private.mkdir(mode=0o700)
        os.chown(private, owner, -1)
    if private.is_symlink() or private.stat().st_uid != owner:
        raise ConfigurationError(
            f"{private} belongs to somebody else. Use a data folder with a shorter path."
        )
    return private


def package_folder(name: str) -> Path:
    """Where an installed package lies whose files we need and whose code we do not: it is not imported."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(f"The package {name} is not installed. Install from requirements.lock.")
    return Path(spec.submodule_search_locations[0])


class UsageLock:
    """Held by every process that uses a data folder. The kernel lets go of it when the process dies, however it dies."""

    def __init__(self, folder: Path) -> None:
        self._file: IO[bytes] = (folder / "in-use.lock").open("ab")
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def try_exclusive(self) -> bool:
        """Whether nobody else uses the folder. If so nobody can begin to, until `release`."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        self._file.close()


class ExclusiveLock:
    """One process at a time."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab")

    def __enter__(self) -> Self:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
