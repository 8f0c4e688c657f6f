"""The work folder of a package: finished pieces of its large files, so that a killed run goes on where it was.

    FILE.parts/state.json                     what the package is of: heads, choice, event
    FILE.parts/2026-11-000000005000.json      a finished piece of a month: what it holds, and the digests of its files
    FILE.parts/2026-11-000000005000.records   … deflated, to be joined as they are

A piece counts once its `.json` is there, which is written last and at once.
"""

import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

from audit.errors import UnmadeError

RECORDS, SPREADSHEET, ERASURES = "records", "csv", "erasures"
FILES = (RECORDS, SPREADSHEET, ERASURES)
ROWS = 5_000  # of a piece: some seconds of work
LEVEL = 3  # half of a record are hashes, which no level packs
ENDED = b"\x03\x00"  # the last, empty block of deflated data
_READ_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class PackedFile:
    sha256: str  # of its content
    size: int
    packed: int


@dataclass(frozen=True, slots=True)
class PackedPiece:
    """The records of a month from one leaf to before another."""

    month: str
    begin: int
    end: int
    records: int
    withheld: int
    erased: int
    cited: list[str]  # passages
    files: dict[str, PackedFile]

    @property
    def name(self) -> str:
        return f"{self.month}-{self.begin:012d}"


@dataclass(slots=True)
class PieceInWork:
    """Collects the lines of a piece."""

    folder: Path
    month: date
    begin: int
    records: int = 0
    withheld: int = 0
    erased: int = 0
    cited: set[str] = field(default_factory=set)
    _packers: dict[str, "_Packer"] = field(default_factory=dict)

    def write(self, name: str, line: bytes) -> None:
        if name not in self._packers:
            self._packers[name] = _Packer(self._path(name))
        self._packers[name].write(line)

    def finish(self, end: int) -> PackedPiece:
        for name in FILES:
            self.write(name, b"")
        files = {name: packer.finish() for name, packer in self._packers.items()}
        counts = (self.records, self.withheld, self.erased)
        piece = PackedPiece(f"{self.month:%Y-%m}", self.begin, end, *counts, sorted(self.cited), files)
        put(self._path("json"), json.dumps(asdict(piece)).encode())
        return piece

    def _path(self, name: str) -> Path:
        return self.folder / f"{self.month:%Y-%m}-{self.begin:012d}.{name}"


class _Packer:
    """Deflates into blocks that end at a byte, so that pieces can be joined."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb", opener=_private)  # noqa: SIM115  closed in `finish`
        self._packing = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._digest, self._size = sha256(), 0

    def write(self, content: bytes) -> None:
        self._digest.update(content)
        self._size += len(content)
        self._file.write(self._packing.compress(content))

    def finish(self) -> PackedFile:
        self._file.write(self._packing.flush(zlib.Z_FULL_FLUSH))
        packed = self._file.tell()
        self._file.close()
        return PackedFile(self._digest.hexdigest(), self._size, packed)


@contextmanager
def work_folder(path: Path) -> Iterator[Path]:
    """The folder, for one process at a time. `UnmadeError` if another one has it."""
    path.mkdir(mode=0o700, parents=False, exist_ok=True)
    with (path / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UnmadeError(f"Another process is making this package, in {path}.") from None
        yield path


def finished_pieces(folder: Path, month: date) -> list[PackedPiece]:
    """Those that follow each other from the month's beginning."""
    found = list[PackedPiece]()
    for path in sorted(folder.glob(f"{month:%Y-%m}-*.json")):
        piece = _read(path)
        if piece is None or piece.begin != (found[-1].end if found else 0):
            break
        found.append(piece)
    return found


def clear(folder: Path) -> None:
    """All but the lock: the records of another package must not get into this one."""
    for path in folder.iterdir():
        if path.name != "lock":
            path.unlink()


def remove(folder: Path) -> None:
    shutil.rmtree(folder)


def packed_pieces(folder: Path, piece: PackedPiece, name: str) -> Iterator[tuple[bytes, bytes]]:
    """A file of a piece in pairs of packed bytes and their content; `UnmadeError` if it is not as it was written."""
    inflate, digest, path = zlib.decompressobj(-zlib.MAX_WBITS), sha256(), folder / f"{piece.name}.{name}"
    try:
        with path.open("rb") as file:
            while packed := file.read(_READ_BYTES):
                content = inflate.decompress(packed)
                digest.update(content)
                yield packed, content
    except (OSError, zlib.error) as wrong:
        raise UnmadeError(_damaged(path, str(wrong))) from None
    if digest.hexdigest() != piece.files[name].sha256:
        raise UnmadeError(_damaged(path, "its digest differs"))


def put(path: Path, content: bytes) -> None:
    """All of it or nothing."""
    draft = path.with_name(f"{path.name}.draft")
    with open(draft, "wb", opener=_private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def state_of(folder: Path) -> Mapping[str, Any] | None:
    try:
        state: Mapping[str, Any] = json.loads((folder / "state.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return state


def _read(path: Path) -> PackedPiece | None:
    try:
        body = json.loads(path.read_bytes())
        return PackedPiece(
            **body | {"files": {name: PackedFile(**file) for name, file in body["files"].items()}}
        )
    except (ValueError, TypeError, KeyError):
        return None


def _damaged(path: Path, words: str) -> str:
    return f"{path} is damaged ({words}). Remove the folder {path.parent} and make the package again."


def _private(path: str, flags: int) -> int:
    """Records are personal data."""
    return os.open(path, flags, 0o600)
