"""Write-ahead spool while the database is unavailable: one append-only file for each process, fsynced before each reply.

A line is the digest of its text and the text. Beside the file lies its head: how many of its bytes are acknowledged. A last
line behind them that does not match its digest was never acknowledged, because the machine died while it was written, and
is skipped. Any other such line, and one whose content is no entry, is damaged and goes to the dead letters, for a person
to look at. A file that is shorter than its head says has lost entries, which is reported. The file lock tells whether its
process lives; another process drains the file of a dead one.

The head is written after the flush of the lines and is not flushed itself: it may be behind after a power cut, never ahead.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Self

from audit.errors import ArchivedMonthError, MissingMonthError, PermanentWriteError, TransientWriteError
from audit.ledger.database_writer import DatabaseWriter
from audit.ledger.entry import Entry, check, compacted
from audit.proof.keys import RowSigner
from audit.vault import sync_folder

READ_MAX = 256  # entries drained in one batch
BATCH_BYTES_MAX = 1 << 23
BLOCK_BYTES = 1 << 20
PROBE_BYTES = 1 << 16  # more than most records
LINE_BYTES_MAX = 1 << 22  # twenty times the longest record; a longer line is damaged, and read in pieces
ASIDE_FILE = "set-aside.log"  # dead letters: lines that the database never takes; `audit status` counts them
_LOSS = b"%s was cut: "
_IDENTITY = "identity"
_SUFFIX = ".spool"
_HEAD_SUFFIX = ".head"
_DIGEST_LENGTH = 16

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Spool:
    """The file of one living process."""

    folder: Path
    identity: uuid.UUID  # of the folder, which outlives its processes
    path: Path
    descriptor: int
    head: int
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
        head = os.open(_head_of(path), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(head, fcntl.LOCK_EX)
        _write_head(head, 0)
        sync_folder(folder)
        return cls(folder, _identity_of(folder), path, descriptor, head, bytes_max)

    async def append(self, entries: Sequence[Entry], before_commit: Callable[[], None] | None = None) -> None:
        """Append and fsync. A failed write is rolled back."""
        if before_commit:
            before_commit()
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

    async def probe(self) -> None:
        """`TransientWriteError` unless the next record has room, on the disk too."""
        try:
            await asyncio.get_running_loop().run_in_executor(self.hand, self._probe)
        except OSError as failure:
            raise TransientWriteError(type(failure).__name__) from None

    def read(self) -> "SpoolBatch":
        return _read(self.descriptor, self.drained_bytes, self.durable_bytes)

    def mark_drained(self, read: "SpoolBatch") -> None:
        """Note that the database has this batch; when it has all, the file is truncated."""
        self.drained_bytes = read.end
        if self.is_empty:
            _write_head(self.head, 0)
            os.fsync(self.head)  # else after a power cut the empty file would look like a lost one
            os.ftruncate(self.descriptor, 0)
            self.durable_bytes = self.drained_bytes = 0

    def close(self) -> None:
        """Release the lock, and delete the file if it is empty."""
        self.hand.shutdown()
        if not self.durable_bytes:
            remove(self.path)
        os.close(self.descriptor)
        os.close(self.head)

    def _probe(self) -> None:
        if self.durable_bytes + PROBE_BYTES > self.bytes_max:
            raise OSError("The spool is full")
        path = self.path.with_suffix(".probe")
        try:
            with path.open("wb") as file:
                file.write(os.urandom(PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            path.unlink(missing_ok=True)

    def _append(self, lines: bytes) -> None:
        if self.durable_bytes + len(lines) > self.bytes_max:
            raise OSError("The spool is full")
        if len(lines) > LINE_BYTES_MAX and max(map(len, lines.split(b"\n"))) >= LINE_BYTES_MAX:
            raise OSError("A record is too long for the spool")
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
        with contextlib.suppress(
            OSError
        ):  # it has its place on the disk since the start, and is only a witness
            _write_head(self.head, self.durable_bytes)


@dataclass(frozen=True, slots=True)
class SpoolBatch:
    entries: list[Entry]
    damaged: list[bytes]
    end: int
    bytes_missing: int = 0  # of acknowledged entries: the file is shorter than it was


def abandoned_files(folder: Path) -> Iterator[Path]:
    """The files of dead processes; each is locked for us until the next one is requested."""
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            if _try_lock(file.fileno()) and path.exists():  # else another process drained it meanwhile
                yield path


def lost_files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Files of dead processes that are gone though they had acknowledged bytes, and how many."""
    for head in sorted(folder.glob(f"*{_HEAD_SUFFIX}")):
        path = head.with_suffix(_SUFFIX)
        with contextlib.suppress(FileNotFoundError), head.open("rb") as file:
            if _try_lock(file.fileno()) and not path.exists() and (size_bytes := _acknowledged_bytes(path)):
                yield path, size_bytes


def remove(path: Path) -> None:
    """Deletes a file whose entries the database has. Its head goes first, or the file would look like a lost one."""
    head = _head_of(path)
    with contextlib.suppress(FileNotFoundError), head.open("rb+") as file:
        _write_head(file.fileno(), 0)
        os.fsync(file.fileno())
    head.unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def has_lost_entries(folder: Path, owner: int) -> bool:
    """Whether the dead letters say that entries of this process vanished."""
    with contextlib.suppress(FileNotFoundError), (folder / ASIDE_FILE).open("rb") as file:
        return any(line.startswith(_LOSS % f"{owner:016x}{_SUFFIX}".encode()) for line in file)
    return False


def is_alive(folder: Path, owner: int) -> bool:
    """Whether the process of this owner runs on this machine, whatever happened to its connections."""
    try:
        with (folder / f"{owner:016x}{_SUFFIX}").open("rb") as file:
            return not _try_lock(file.fileno())
    except FileNotFoundError:
        return False


def batches(path: Path) -> Iterator[SpoolBatch]:
    acknowledged_bytes = _acknowledged_bytes(path)
    with path.open("rb") as file:
        end, position = max(os.fstat(file.fileno()).st_size, acknowledged_bytes), 0
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


async def deliver(piece: SpoolBatch, to: DatabaseWriter, path: Path, key: RowSigner) -> None:
    """Write a batch to the database. Entries that it will never take become dead letters; `TransientWriteError` asks for a retry."""
    entries, folder = await asyncio.to_thread(_signed_if_old, piece, key), path.parent
    try:
        await to.write(entries)
    except (PermanentWriteError, MissingMonthError):
        for entry in entries:
            await _deliver_alone(entry, to, folder)
    if piece.damaged:
        log.error("%s lines of %s are damaged: see %s", len(piece.damaged), path.name, ASIDE_FILE)
        set_aside(folder, piece.damaged)


def _signed_if_old(piece: SpoolBatch, key: RowSigner) -> list[Entry]:
    return [entry.signed_if_old(key) for entry in compacted(piece.entries)]


def set_loss_aside(path: Path, bytes_missing: int) -> None:
    """Report acknowledged entries that vanished."""
    log.error("%s acknowledged bytes of %s are missing: somebody cut or deleted it", bytes_missing, path.name)
    set_aside(
        path.parent, [_LOSS % path.name.encode() + b"%d acknowledged bytes are missing" % bytes_missing]
    )


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
    except (PermanentWriteError, MissingMonthError):  # also a check that is not about the month
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
        is_torn = position == end and not line.endswith(b"\n")
        if entry := _entry_of(line):
            entries.append(entry)
        elif not is_torn:
            damaged.append(line)
        if len(entries) + len(damaged) == READ_MAX or position - start > BATCH_BYTES_MAX:
            return SpoolBatch(entries, damaged, position)
    return SpoolBatch(entries, damaged, end, bytes_missing=end - position)


def _entry_of(line: bytes) -> Entry | None:
    """None for a line that is torn or damaged, or whose content is no entry."""
    digest, _, text = line[:-1].partition(b" ")
    if not line.endswith(b"\n") or digest != _digest(text):
        return None
    try:
        entry = Entry.of_line(text.decode())
        check(entry)
    except ValueError:
        return None
    return entry


def _lines(descriptor: int, start: int, end: int) -> Iterator[bytes]:
    """Reads by position: a file object would share its offset with the thread that appends. A line that is too long comes
    in pieces."""
    rest = bytearray()
    while start < end and (block := os.pread(descriptor, min(BLOCK_BYTES, end - start), start)):
        start += len(block)
        *whole, last = block.split(b"\n")
        for line in whole:
            yield bytes(rest + line + b"\n")
            rest.clear()
        rest += last
        if len(rest) >= LINE_BYTES_MAX:
            yield bytes(rest)
            rest.clear()
    if rest:
        yield bytes(rest)


def _head_of(path: Path) -> Path:
    return path.with_suffix(_HEAD_SUFFIX)


def _write_head(descriptor: int, acknowledged_bytes: int) -> None:
    """Always of one length, because it is overwritten in place."""
    os.pwrite(descriptor, b"%020d\n" % acknowledged_bytes, 0)


def _acknowledged_bytes(path: Path) -> int:
    """0 without a readable head: an older version wrote none, and a power cut may have emptied it."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int(_head_of(path).read_bytes())
    return 0


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
