"""Write-ahead spool while the database is unavailable: one append-only file for each process, fsynced before each reply.

A line is the digest of its text and the text. A last line that does not match its digest was never acknowledged, because the
machine died while it was written, and is skipped. Any other such line is damaged and goes to the dead letters, for a person
to look at. The file lock tells whether its process lives; another process drains the file of a dead one.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Self

from audit.errors import ArchivedMonthError, MissingMonthError, PermanentWriteError, TransientWriteError
from audit.ledger.database_writer import DatabaseWriter
from audit.ledger.entry import Entry, compacted
from audit.proof.keys import Signer
from audit.vault import sync_folder

READ_MAX = 256  # entries drained in one batch
BLOCK_BYTES = 1 << 20
ASIDE_FILE = "set-aside.log"  # dead letters: lines that the database never takes; `audit status` counts them
_IDENTITY = "identity"
_SUFFIX = ".spool"
_DIGEST_LENGTH = 16

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Spool:
    """The file of one living process."""

    folder: Path
    identity: uuid.UUID  # of the folder, which outlives its processes
    path: Path
    descriptor: int
    bytes_max: int
    durable_bytes: int = 0
    drained_bytes: int = 0
    in_flight: int = 0
    # Its own thread, never busy with other work.
    hand: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "spool"))

    @classmethod
    def open(cls, folder: Path, owner: int, bytes_max: int) -> Self:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"{owner:016x}{_SUFFIX}"
        draft = path.with_suffix(".draft")  # locked before another process can take it for an abandoned one
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        draft.rename(path)
        sync_folder(folder)
        return cls(folder, _identity_of(folder), path, descriptor, bytes_max)

    async def append(self, entries: Sequence[Entry]) -> None:
        """Append and fsync. A failed write is rolled back."""
        lines = b"".join(map(line_of, entries))
        self.in_flight += 1
        try:
            await asyncio.get_running_loop().run_in_executor(self.hand, self._append, lines)
        except OSError as failure:
            raise TransientWriteError(type(failure).__name__) from None
        finally:
            self.in_flight -= 1

    @property
    def is_empty(self) -> bool:
        """Whether the database has all its entries."""
        return not self.in_flight and self.drained_bytes == self.durable_bytes

    def read(self) -> "SpoolBatch":
        return _read(self.descriptor, self.drained_bytes, self.durable_bytes)

    def mark_drained(self, read: "SpoolBatch") -> None:
        """Note that the database has this batch; when it has all, the file is truncated."""
        self.drained_bytes = read.end
        if self.is_empty:
            os.ftruncate(self.descriptor, 0)
            self.durable_bytes = self.drained_bytes = 0

    def close(self) -> None:
        """Release the lock, and delete the file if it is empty."""
        self.hand.shutdown()
        if not self.durable_bytes:
            self.path.unlink(missing_ok=True)
        os.close(self.descriptor)

    def _append(self, lines: bytes) -> None:
        if self.durable_bytes + len(lines) > self.bytes_max:
            raise OSError("The spool is full")
        try:
            written = 0
            while written < len(lines):
                written += os.pwrite(self.descriptor, lines[written:], self.durable_bytes + written)
            os.fsync(self.descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.descriptor, self.durable_bytes)
            raise
        self.durable_bytes += len(lines)


@dataclass(frozen=True, slots=True)
class SpoolBatch:
    entries: list[Entry]
    damaged: list[bytes]
    end: int


def abandoned_files(folder: Path) -> Iterator[Path]:
    """The files of dead processes; each is locked for us until the next one is requested."""
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            if _try_lock(file.fileno()) and path.exists():  # else another process drained it meanwhile
                yield path


def is_alive(folder: Path, owner: int) -> bool:
    """Whether the process of this owner runs on this machine, whatever happened to its connections."""
    try:
        with (folder / f"{owner:016x}{_SUFFIX}").open("rb") as file:
            return not _try_lock(file.fileno())
    except FileNotFoundError:
        return False


def batches(path: Path) -> Iterator[SpoolBatch]:
    with path.open("rb") as file:
        end, position = os.fstat(file.fileno()).st_size, 0
        while position < end:
            piece = _read(file.fileno(), position, end)
            yield piece
            position = piece.end


def set_aside(folder: Path, lines: Sequence[bytes]) -> None:
    """Keep dead letters for a person: `audit status` counts them until they are removed."""
    with (folder / ASIDE_FILE).open("ab") as file:
        os.fchmod(file.fileno(), 0o600)
        file.writelines(line.rstrip(b"\n") + b"\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)


async def deliver(piece: SpoolBatch, to: DatabaseWriter, folder: Path, key: Signer) -> None:
    """Write a batch to the database. Entries that it will never take become dead letters; `TransientWriteError` asks for a retry."""
    entries = [entry.signed_if_old(key) for entry in compacted(piece.entries)]
    try:
        await to.write(entries)
    except (PermanentWriteError, MissingMonthError):
        for entry in entries:
            await _deliver_alone(entry, to, folder)
    if piece.damaged:
        set_aside(folder, piece.damaged)


async def _deliver_alone(entry: Entry, to: DatabaseWriter, folder: Path) -> None:
    try:
        try:
            await to.write([entry])
        except MissingMonthError:
            await to.make_month(entry.timestamp())
            await to.write([entry])
    except ArchivedMonthError:
        if not await to.discard_if_stored(entry):
            set_aside(folder, [line_of(entry)])
            log.error("Record %s came after its month was archived: see %s", entry.log_id, ASIDE_FILE)  # noqa: TRY400  a traceback could repeat the row
    except PermanentWriteError:
        set_aside(folder, [line_of(entry)])


def line_of(entry: Entry) -> bytes:
    text = entry.line().encode()
    return _digest(text) + b" " + text + b"\n"


def _digest(text: bytes) -> bytes:
    return sha256(text).hexdigest()[:_DIGEST_LENGTH].encode()


def _read(descriptor: int, start: int, end: int) -> SpoolBatch:
    entries: list[Entry] = []
    damaged: list[bytes] = []
    position = start
    for line in _lines(descriptor, start, end):
        position += len(line)
        digest, _, text = line[:-1].partition(b" ")
        if line.endswith(b"\n") and digest == _digest(text):
            entries.append(Entry.of_line(text.decode()))
        elif position < end or line.endswith(b"\n"):
            damaged.append(line)
        if len(entries) == READ_MAX:
            return SpoolBatch(entries, damaged, position)
    if position < end:  # acknowledged entries are missing, which must be reported
        damaged.append(b"The file was cut: %d bytes are missing" % (end - position))
    return SpoolBatch(entries, damaged, end)


def _lines(descriptor: int, start: int, end: int) -> Iterator[bytes]:
    """Reads by position: a file object would share its offset with the thread that appends."""
    rest = b""
    while start < end and (block := os.pread(descriptor, min(BLOCK_BYTES, end - start), start)):
        start += len(block)
        *whole, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _identity_of(folder: Path) -> uuid.UUID:
    """Made once for each folder, by the first process."""
    path = folder / _IDENTITY
    draft = folder / f".{uuid.uuid4().hex}"
    if not path.exists():
        draft.write_text(str(uuid.uuid4()))
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    return uuid.UUID(path.read_text())
