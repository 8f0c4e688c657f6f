"""Reads an archive back and recomputes all of it. It is believed for signatures and digests, and for nothing that it says.

Each file is fetched once, its digest taken on the way, and check_lines from that copy. What cannot be read is a finding and
never an error; a Parquet file with another digest than its manifest names is not even opened.
"""

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow as pa

from audit.archive.rows import (
    EvidenceLines,
    LineResult,
    RowGroup,
    RowGroupPlace,
    RowKeys,
    check_lines,
    parse_line,
    read_row_group,
)
from audit.archive.worker_process import in_order
from audit.errors import ArchiveError, NoteError, VaultDamagedError, VaultError, WorkerEndedError
from audit.progress import Progress
from audit.proof.archive_format import (
    CHECKPOINT,
    EVIDENCE,
    KEYS,
    LEAVES,
    MANIFEST_BYTES_MAX,
    NAMES,
    PARQUET,
    ROW_BYTES_MAX,
    Manifest,
    StoredFile,
    open_box,
    open_manifest,
    place_of,
)
from audit.proof.checkpoint import Checkpoint, open_note
from audit.proof.keys import PublicKey
from audit.proof.merkle import HASH_BYTES, Frontier
from audit.proof.record import Row
from audit.proof.verdict import Finding, Report, Verdict

LINES = 250  # in one piece of work
LINES_BYTES = 2**23  # of large records fewer
PIECE_BYTES = 2**20
EXPANSION_MAX = 100  # a line has 48 random bytes at least, so no honest evidence shrinks to a hundredth
SMALL_BYTES_MAX = 2**20  # a note or a list of keys


_LOG_ID = re.compile(rb'"log_id":"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"')


class ArchiveSource(Protocol):
    """Where archives lie, and what was anchored of their months."""

    def open(self, key: str, version: str | None = None) -> BinaryIO: ...

    def keys(self, prefix: str = "") -> list[str]: ...


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """An archive's files as somebody downloaded them into one folder."""

    folder: Path

    def open(self, key: str, version: str | None = None) -> BinaryIO:  # noqa: ARG002  it has no versions
        return (self.folder / Path(key).name).open("rb")

    def keys(self, prefix: str = "") -> list[str]:  # noqa: ARG002  it has no anchors
        return []


def verify_archive(
    vault: ArchiveSource,
    manifest_key: str,
    manifest_version: str | None,
    public_keys: Sequence[PublicKey],
    row_keys: RowKeys | None,
    progress: Progress,
) -> Report:
    """The verdict on one month's archive, and each place where something is wrong; with row_keys every box is opened too."""
    report = Report()
    if not public_keys:
        report.add(Finding(Verdict.CANNOT_TELL, "key", "There is no public key to check with"))
        return report
    manifest = _manifest(vault, manifest_key, manifest_version, report)
    if manifest is None:
        return report
    with tempfile.TemporaryDirectory(prefix="affidavit-archive-") as folder:
        archive = _Archive(vault, manifest, Path(folder), public_keys, report, progress)
        archive.fetch()
        archive.check_signatures()
        archive.check_rows(row_keys)
        archive.check_copy()
    return report


def read_rows(
    vault: ArchiveSource, manifest: Manifest, row_keys: RowKeys, progress: Progress
) -> Iterator[list[tuple[Row, Mapping[str, str]]]]:
    """The records as they stood in the log, from the evidence, each with its commitments; without what is personal where its key is gone.

    `ArchiveError` if the evidence is not what the manifest names: verify it first.
    """
    with tempfile.TemporaryDirectory(prefix="affidavit-archive-") as folder:
        path = Path(folder) / EVIDENCE
        if wrong := _fetched(vault, EVIDENCE, manifest.files[EVIDENCE], path):
            raise ArchiveError(wrong)
        done = 0
        for lines in _batched(_lines(path), LINES):
            keys = row_keys(_log_ids(lines))
            yield [_row_again(line, keys) for line in lines]
            done += len(lines)
            progress(f"{manifest.month:%Y-%m}", done, manifest.rows)


def _row_again(line: bytes, keys: Mapping[str, bytes]) -> tuple[Row, Mapping[str, str]]:
    found, leaf = parse_line(line)
    row = found.row | {"spooled": found.spooled, "leaf_hash": f"\\x{leaf.hex()}"}
    if found.erased_at:
        row["erased_at"] = found.erased_at
    key = keys.get(found.log_id)
    if found.box and key:
        row |= open_box(found.box, key, found.log_id)
    return row, found.commitments


def _manifest(vault: ArchiveSource, key: str, version: str | None, report: Report) -> Manifest | None:
    try:
        with vault.open(key, version) as stream:
            content = _read(stream, MANIFEST_BYTES_MAX)
        manifest = open_manifest(content)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        report.add(Finding(Verdict.MISSING, "file", f"There is no {key}"))
    except (ArchiveError, VaultDamagedError) as wrong:
        report.add(Finding(Verdict.TAMPERED, "file", f"The manifest {key}: {wrong}"))
    except ValueError as wrong:
        report.add(Finding(Verdict.MISSING, "file", str(wrong)))
    except (VaultError, OSError) as away:
        report.add(Finding(Verdict.CANNOT_TELL, "file", f"The manifest {key}: {away}"))
    else:
        month, digest = place_of(key)
        is_of_month = month in {None, f"{manifest.month:%Y-%m}"}
        if not is_of_month or digest not in {None, sha256(content).hexdigest()}:
            message = (
                f"The manifest {key} is not the one of this key: another month, another version, or changed"
            )
            report.add(Finding(Verdict.TAMPERED, "file", message, manifest.month))
        return manifest
    return None


@dataclass(slots=True)
class _Archive:
    """One archive while it is check_lines."""

    vault: ArchiveSource
    manifest: Manifest
    folder: Path
    public_keys: Sequence[PublicKey]
    report: Report
    progress: Progress
    is_signed: bool = (
        False  # if not, a file may be made to break its reader: another process takes that upon itself
    )
    whole: set[str] = field(default_factory=set)  # files whose bytes are those that the manifest names
    proven: bytearray = field(default_factory=bytearray)  # by leaf: it is in the evidence as it was sealed
    digests: bytearray = field(default_factory=bytearray)  # of the evidence's lines, by leaf
    leaves: bytearray = field(default_factory=bytearray)  # that the evidence gives

    def fetch(self) -> None:
        for place, name in enumerate(NAMES):
            if self._is_fetched(name):
                self.whole.add(name)
            self.progress("files", place + 1, len(NAMES))

    def _is_fetched(self, name: str) -> bool:
        file = self.manifest.files[name]
        verdict = Verdict.TAMPERED
        try:
            wrong = _fetched(self.vault, name, file, self.folder / name)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            verdict, wrong = Verdict.MISSING, f"There is no {file.key}"
        except VaultDamagedError as damaged:
            wrong = f"{name} is not what was signed: {damaged}"
        except (VaultError, OSError) as away:
            verdict, wrong = Verdict.CANNOT_TELL, f"{name} cannot be read: {away}"
        if wrong:
            self._add_finding(verdict, "file", wrong)
        return not wrong

    def check_signatures(self) -> None:
        """Of the manifest and of the checkpoint, which must say the same; and that no later one was anchored."""
        self.is_signed = self.manifest.is_signed_by(self.public_keys)
        if not self.is_signed:
            message = f"The manifest is not signed by a given key; it names {self.manifest.key_id}"
            self._add_finding(Verdict.TAMPERED, "file", message)
        if KEYS in self.whole:
            self._check_keys()
        checkpoint = self._checkpoint()
        said = (self.manifest.origin, self.manifest.month, self.manifest.rows, self.manifest.root)
        if checkpoint and said != (checkpoint.origin, checkpoint.month, checkpoint.size, checkpoint.root):
            message = f"The checkpoint is one of {checkpoint.month:%Y-%m} and size {checkpoint.size}, and not the manifest's"
            self._add_finding(Verdict.TAMPERED, "checkpoint", message)

    def check_rows(self, row_keys: RowKeys | None) -> None:
        """The evidence against the leaves, the leaves against the signed root."""
        rows = self.manifest.rows
        sealed = self._sealed_leaves()
        if sealed is None:
            return
        self.proven, self.digests, self.leaves = (
            bytearray(rows),
            bytearray(rows * HASH_BYTES),
            bytearray(rows * HASH_BYTES),
        )
        self._read_evidence(row_keys)
        is_signed = _root(sealed) == self.manifest.root
        if not is_signed and _root(self.leaves) == self.manifest.root:
            self._report_leaves(sealed, self.leaves)
            sealed = self.leaves
        elif not is_signed:
            self._add_finding(Verdict.TAMPERED, "leaf", "The leaves do not have the root that was signed")
        self._report_rows(sealed)

    def check_copy(self) -> None:
        """Every row of the Parquet file against its line of the evidence."""
        if PARQUET not in self.whole or not self.proven:
            return
        seen = bytearray(self.manifest.rows)
        try:
            self._read_copy(seen)
        except (ArchiveError, WorkerEndedError) as wrong:
            self._add_finding(Verdict.TAMPERED, "file", f"{PARQUET}: {wrong}")
        for first, end in _runs(seen, 0):
            message = f"{PARQUET} lacks the rows of the leaves {first} to {end - 1}"
            self._add_finding(Verdict.MISSING, "row", message, first)

    def _check_keys(self) -> None:
        try:
            listed = [PublicKey.of(line) for line in self._small(KEYS).decode().splitlines()]
        except ValueError as wrong:
            self._add_finding(Verdict.TAMPERED, "file", f"{KEYS}: {wrong}")
            return
        if self.manifest.key_id not in {key.key_id for key in listed}:
            self._add_finding(
                Verdict.TAMPERED, "file", f"{KEYS} does not list the key that the manifest names"
            )

    def _checkpoint(self) -> Checkpoint | None:
        path = self.folder / CHECKPOINT
        if not path.exists():
            return None
        note = self._small(CHECKPOINT)
        self._compare_with_anchors(note)
        try:
            return open_note(note.decode(errors="replace"), self.public_keys)
        except NoteError as wrong:
            self._add_finding(Verdict.TAMPERED, "checkpoint", str(wrong))
            return None

    def _compare_with_anchors(self, note: bytes) -> None:
        """A month was anchored to its end before it was archived."""
        try:
            keys = self.vault.keys(f"anchors/{self.manifest.month:%Y-%m}/")
            newest = max((key for key in keys if key.endswith(".note")), default=None)
            if newest is None:
                return
            with self.vault.open(newest) as stream:
                anchored = _read(stream, SMALL_BYTES_MAX)
        except VaultDamagedError as damaged:
            message = f"The month's last anchor is not as it was written: {damaged}"
            self._add_finding(Verdict.TAMPERED, "anchor", message)
            return
        except (VaultError, OSError) as away:
            self._add_finding(Verdict.CANNOT_TELL, "anchor", f"The month's anchors cannot be read: {away}")
            return
        if anchored != note:
            message = (
                f"The checkpoint is not the month's last: {newest} was anchored. This may be an older archive"
            )
            self._add_finding(Verdict.TAMPERED, "checkpoint", message)

    def _sealed_leaves(self) -> bytearray | None:
        """As many as the manifest says: its number is believed only if the leaves are there."""
        path = self.folder / LEAVES
        if not path.exists():
            return None
        size = path.stat().st_size
        if size != self.manifest.rows * HASH_BYTES:
            message = f"{LEAVES} has {size} bytes, and not {HASH_BYTES} for each of {self.manifest.rows} rows"
            self._add_finding(Verdict.TAMPERED, "file", message)
        if size < self.manifest.rows * HASH_BYTES:
            return None
        return bytearray(path.read_bytes()[: self.manifest.rows * HASH_BYTES])

    def _read_evidence(self, row_keys: RowKeys | None) -> None:
        path = self.folder / EVIDENCE
        seen, expected = bytearray(self.manifest.rows), 0
        lines = _lines(path) if path.exists() else iter(())
        try:
            for results in in_order(check_lines, self._work(lines, row_keys), alone=not self.is_signed):
                for found in results:
                    expected = self._place(found, expected, seen)
                self.progress(EVIDENCE, expected, self.manifest.rows)
        except (WorkerEndedError, MemoryError) as wrong:
            self._add_finding(
                Verdict.CANNOT_TELL, "file", f"{EVIDENCE} cannot be read ({type(wrong).__name__})"
            )
        for first, end in _runs(seen, 0):
            message = f"The records of leaves {first} to {end - 1} are missing"
            message = message if end - first > 1 else "The record is missing"
            self._add_finding(Verdict.MISSING, "row", message, first)

    def _work(self, lines: Iterator[bytes], row_keys: RowKeys | None) -> Iterator[EvidenceLines]:
        """What can be read, up to where it cannot be read any more."""
        count, wrong = 0, ""
        try:
            for some in _batched(lines, LINES):
                yield EvidenceLines(self.manifest.month, some, row_keys(_log_ids(some)) if row_keys else None)
                count += len(some)
                if count > self.manifest.rows:
                    wrong = f"it has more lines than the {self.manifest.rows} that were signed for"
                    break
        except ArchiveError as unreadable:
            wrong = str(unreadable)
        if wrong:
            self._add_finding(
                Verdict.TAMPERED, "file", f"{EVIDENCE}, after {count} lines: {wrong}", count - 1
            )

    def _place(self, found: LineResult, expected: int, seen: bytearray) -> int:
        """Note what a line gives; at which leaf the next one is expected."""
        index = expected if found.leaf_index is None else found.leaf_index
        if index >= self.manifest.rows or seen[index]:
            message = found.problem or "There is no such leaf, or its record stands here a second time"
            self._add_finding(Verdict.TAMPERED, "row", message, index, found.log_id)
            return expected
        seen[index] = 1
        if index < expected:
            self._add_finding(Verdict.TAMPERED, "row", "The record is not at its place", index, found.log_id)
        if found.problem:
            verdict = Verdict.TAMPERED if found.is_known else Verdict.CANNOT_TELL
            self._add_finding(verdict, "row", found.problem, index, found.log_id)
        if found.leaf:
            at = slice(index * HASH_BYTES, (index + 1) * HASH_BYTES)
            self.leaves[at], self.digests[at] = found.leaf, found.digest
            self.proven[index] = not found.problem
            self._count(found)
        return max(expected, index + 1)

    def _count(self, found: LineResult) -> None:
        if found.is_open:
            self.report.count("records' personal columns were opened and compared")
        elif found.is_erased:
            self.report.count("records have no key, so what is personal in them stays closed")

    def _report_rows(self, sealed: bytearray) -> None:
        for index in range(self.manifest.rows):
            at = slice(index * HASH_BYTES, (index + 1) * HASH_BYTES)
            if not any(self.digests[at]):
                continue  # said already
            if self.leaves[at] != sealed[at]:
                self.proven[index] = 0
                self._add_finding(Verdict.TAMPERED, "row", "The record is not what was sealed", index)
            self.report.checked += self.proven[index]

    def _report_leaves(self, stored: bytearray, true: bytearray) -> None:
        for index in range(self.manifest.rows):
            at = slice(index * HASH_BYTES, (index + 1) * HASH_BYTES)
            if stored[at] != true[at]:
                self._add_finding(
                    Verdict.TAMPERED, "leaf", f"{LEAVES} does not hold the leaf that was sealed", index
                )

    def _read_copy(self, seen: bytearray) -> None:
        done, last = 0, -(2**63)
        for group in self._groups():
            if not group.is_sorted or group.begin < last:
                raise ArchiveError("its rows are not in the order of their times")
            last = group.end
            self._compare(group, seen)
            done += len(group.indexes)
            self.progress(PARQUET, done, self.manifest.rows)

    def _groups(self) -> Iterator[RowGroup]:
        place = RowGroupPlace(self.folder / PARQUET, 0, self.manifest.columns, self.manifest.rows)
        for first in in_order(read_row_group, [place], alone=not self.is_signed):
            yield first
            others = (place._replace(number=number) for number in range(1, first.of))
            yield from in_order(read_row_group, others, alone=not self.is_signed)

    def _compare(self, group: RowGroup, seen: bytearray) -> None:
        for index, digest, leaf in zip(group.indexes, group.digests, group.leaves, strict=True):
            if not 0 <= index < len(seen) or seen[index]:
                message = f"{PARQUET} has a row of no leaf, or a second one of it"
                self._add_finding(Verdict.TAMPERED, "row", message, index)
                continue
            seen[index] = 1
            at = slice(index * HASH_BYTES, (index + 1) * HASH_BYTES)
            is_same = self.digests[at] == digest and self.leaves[at] == leaf
            if self.proven[index] and not is_same:
                self._add_finding(Verdict.TAMPERED, "row", f"{PARQUET}: the row is not the evidence's", index)

    def _small(self, name: str) -> bytes:
        with (self.folder / name).open("rb") as file:
            return _read(file, SMALL_BYTES_MAX)

    def _add_finding(
        self, verdict: Verdict, what: str, message: str, index: int | None = None, log_id: str | None = None
    ) -> None:
        self.report.add(Finding(verdict, what, message, self.manifest.month, index, log_id))


def _fetched(vault: ArchiveSource, name: str, file: StoredFile, path: Path) -> str:
    """A copy of the file, as long as it may be; what is wrong with it, if anything."""
    digest, size = sha256(), 0
    with vault.open(file.key, file.version or None) as source, path.open("xb") as copy:
        while size <= file.size and (piece := source.read(PIECE_BYTES)):
            digest.update(piece)
            copy.write(piece)
            size += len(piece)
    if size != file.size:
        return f"{name} has {'more' if size > file.size else size} bytes, and not the {file.size} that were signed for"
    if digest.hexdigest() != file.sha256:
        return f"{name} is not what was signed: its digest is another one"
    return ""


def _lines(path: Path) -> Iterator[bytes]:
    """Of the evidence. Never more in memory than a record may have, and no more in all than an honest file can hold."""
    left = max(ROW_BYTES_MAX, EXPANSION_MAX * path.stat().st_size)
    rest = b""
    try:
        with pa.input_stream(str(path), compression="zstd") as stream:
            while piece := stream.read(PIECE_BYTES):
                left -= len(piece)
                *whole, rest = (rest + piece).split(b"\n")
                yield from whole
                if left < 0 or len(rest) > ROW_BYTES_MAX:
                    raise ArchiveError("it holds more than records can be")
    except OSError:
        raise ArchiveError("it cannot be decompressed") from None
    if rest:
        raise ArchiveError("it ends in the middle of a line")


def _batched(lines: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    """Also those before the place where nothing can be read any more."""
    some: list[bytes] = []
    size_bytes = 0
    try:
        for line in lines:
            some.append(line)
            size_bytes += len(line)
            if len(some) == size or size_bytes > LINES_BYTES:
                yield some
                some, size_bytes = [], 0
    except ArchiveError:
        yield some
        raise
    if some:
        yield some


def _log_ids(lines: Sequence[bytes]) -> list[str]:
    return [log_id.decode() for line in lines for log_id in _LOG_ID.findall(line)]


def _root(leaves: bytearray) -> bytes:
    tree = Frontier()
    for at in range(0, len(leaves), HASH_BYTES):
        tree.append(bytes(leaves[at : at + HASH_BYTES]))
    return tree.root()


def _runs(flags: bytearray, value: int) -> Iterator[tuple[int, int]]:
    """Where the value stands: begin and end of each run."""
    begin = flags.find(value)
    while begin >= 0:
        end = flags.find(1 - value, begin)
        end = len(flags) if end < 0 else end
        yield begin, end
        begin = flags.find(value, end)


def _read(stream: BinaryIO, size_max: int) -> bytes:
    """All of a small file; one byte more than the most, if it is larger."""
    pieces = b""
    while len(pieces) <= size_max and (piece := stream.read(size_max + 1 - len(pieces))):
        pieces += piece
    return pieces
