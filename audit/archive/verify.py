"""Verifier of one archived month: fetches its files and recomputes all of them. Trusts only signatures and digests.

Each file is fetched once, hashed on the way, and checked from that copy. An unreadable file is a finding and never an
exception; a Parquet file whose digest differs from the manifest is not opened at all.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path

from audit.anchored import MonthAnchors, month_anchors
from audit.archive import reader
from audit.archive.reader import ArchiveSource
from audit.archive.rows import LineResult, RowGroup, RowKeys, Signing, check_lines, read_row_group
from audit.archive.worker_process import in_order
from audit.errors import ArchiveError, NoteError, VaultDamagedError, VaultError, WorkerEndedError
from audit.progress import Progress
from audit.proof import archive_format
from audit.proof.archive_format import CHECKPOINT, EVIDENCE, KEYS, LEAVES, PARQUET, Manifest
from audit.proof.checkpoint import BreakLine, Checkpoint, open_break, open_note
from audit.proof.keys import KeyRing, PublicKey
from audit.proof.merkle import HASH_BYTES, Frontier
from audit.proof.verdict import Finding, Report, Verdict
from audit.vault_owner import WHAT_TO_DO, is_signed_by

SMALL_BYTES_MAX = 2**20  # a note or a list of keys


def verify_archive(
    vault: ArchiveSource,
    manifest_key: str,
    manifest_version: str | None,
    public_keys: Sequence[PublicKey],
    row_keys: RowKeys | None,
    progress: Progress,
) -> Report:
    """The verdict on one month's archive, with a finding for each defect. With row_keys every box is opened too."""
    report = Report()
    if not public_keys:
        report.add(Finding(Verdict.CANNOT_TELL, "key", "There is no public key to check with"))
        return report
    manifest = _manifest(vault, manifest_key, manifest_version, public_keys, report)
    if manifest is None:
        return report
    with tempfile.TemporaryDirectory(prefix="affidavit-archive-") as folder:
        archive = _Archive(vault, manifest, Path(folder), public_keys, report, progress)
        archive.fetch()
        archive.check_signatures()
        archive.check_rows(row_keys)
        archive.check_copy()
    return report


def verify_stored(
    vault: ArchiveSource,
    manifest_key: str,
    manifest_version: str | None,
    public_keys: Sequence[PublicKey],
    progress: Progress,
) -> Report:
    """Whether the vault holds the very bytes that were judged as they were written: by the digest of each whole file.

    For a manifest that says so (`is_judged`) and that we have just written. The leaves must have the signed root again, and the
    month's last anchor must be this archive's. No record is parsed: equal bytes have an equal verdict.
    """
    report = Report()
    manifest = _manifest(vault, manifest_key, manifest_version, public_keys, report)
    if manifest is None:
        return report
    with tempfile.TemporaryDirectory(prefix="affidavit-archive-") as folder:
        archive = _Archive(vault, manifest, Path(folder), public_keys, report, progress)
        archive.fetch(read_only=frozenset({EVIDENCE, PARQUET}))
        archive.check_signatures()
        archive.check_root()
    return report


def _manifest(
    vault: ArchiveSource, key: str, version: str | None, public_keys: Sequence[PublicKey], report: Report
) -> Manifest | None:
    try:
        with vault.open(key, version) as stream:
            content = stream.read(archive_format.MANIFEST_BYTES_MAX + 1)  # one byte more is refused
        manifest = archive_format.open_manifest(content)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        report.add(_describe_missing(vault, key, public_keys))
    except (ArchiveError, VaultDamagedError) as wrong:
        report.add(Finding(Verdict.TAMPERED, "file", f"The manifest {key}: {wrong}"))
    except ValueError as wrong:
        report.add(Finding(Verdict.MISSING, "file", str(wrong)))
    except (VaultError, OSError) as unreadable:
        report.add(Finding(Verdict.CANNOT_TELL, "file", f"The manifest {key} cannot be read: {unreadable}"))
    else:
        month, digest = archive_format.place_of(key)
        is_of_month = month in {None, f"{manifest.month:%Y-%m}"}
        if not is_of_month or digest not in {None, sha256(content).hexdigest()}:
            message = f"The manifest {key} does not match its key: it is of another month or version, or was changed"
            report.add(Finding(Verdict.TAMPERED, "file", message, manifest.month))
        return manifest
    return None


def _describe_missing(vault: ArchiveSource, key: str, public_keys: Sequence[PublicKey]) -> Finding:
    """A log is anchored before a month of it is archived: a vault without a single anchor of it is another one."""
    try:
        is_ours = is_signed_by(_Notes(vault), public_keys)
    except (VaultError, OSError) as unreadable:
        return Finding(
            Verdict.CANNOT_TELL, "file", f"{key} is missing, and the vault cannot be read: {unreadable}"
        )
    if is_ours:
        return Finding(Verdict.MISSING, "file", f"{key} is missing")
    message = f"The vault has neither {key} nor an anchor that one of the given keys signed: it is another one, or it was emptied."
    return Finding(Verdict.WRONG_VAULT, "vault", f"{message} {WHAT_TO_DO}")


@dataclass(frozen=True, slots=True)
class _Notes:
    """The anchors in an archive's source. A note that is too long is none of ours."""

    source: ArchiveSource

    def get(self, key: str, version: str | None = None) -> bytes:
        with self.source.open(key, version) as stream:
            return stream.read(SMALL_BYTES_MAX + 1)

    def keys(self, prefix: str = "") -> list[str]:
        return self.source.keys(prefix)


@dataclass(slots=True)
class _Archive:
    vault: ArchiveSource
    manifest: Manifest
    folder: Path
    public_keys: Sequence[PublicKey]
    report: Report
    progress: Progress
    is_signed: bool = False  # unsigned files may be hostile: they are parsed in the worker process only
    whole: set[str] = field(default_factory=set)  # files that match their digest in the manifest
    proven: bytearray = field(default_factory=bytearray)  # by leaf: 1 if the evidence has it as it was sealed
    digests: bytearray = field(default_factory=bytearray)  # of the evidence's lines, by leaf
    leaves: bytearray = field(default_factory=bytearray)  # recomputed from the evidence
    signed_from: int | None = None  # as the checkpoint says

    def fetch(self, read_only: AbstractSet[str] = frozenset()) -> None:
        """Fetch the files; those that are only read are compared with their digests, and not kept."""
        files = self.manifest.files
        for place, name in enumerate(files):
            if self._fetch(name, None if name in read_only else self.folder / name):
                self.whole.add(name)
            self.progress("files", place + 1, len(files))

    def _fetch(self, name: str, path: Path | None) -> bool:
        """Fetch one file. Returns whether it is the one that the manifest names."""
        file = self.manifest.files[name]
        verdict = Verdict.TAMPERED
        try:
            wrong = reader.fetch_file(self.vault, name, file, path)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            verdict, wrong = Verdict.MISSING, f"{file.key} is missing"
        except VaultDamagedError as damaged:
            wrong = f"{name} differs from what was signed: {damaged}"
        except (VaultError, OSError) as unreadable:
            verdict, wrong = Verdict.CANNOT_TELL, f"{name} cannot be read: {unreadable}"
        if wrong:
            self._add_finding(verdict, "file", wrong)
        return not wrong

    def check_signatures(self) -> None:
        """Check the signatures of manifest and checkpoint, that both agree, and that no later checkpoint was anchored."""
        self.is_signed = self.manifest.is_signed_by(self.public_keys)
        if not self.is_signed:
            message = f"The manifest is not signed by a given key; it names the key {self.manifest.key_id}"
            self._add_finding(Verdict.TAMPERED, "file", message)
        if KEYS in self.whole:
            self._check_keys()
        checkpoint = self._checkpoint()
        self.signed_from = checkpoint.signed_from if checkpoint else None
        stated = (self.manifest.origin, self.manifest.month, self.manifest.rows, self.manifest.root)
        if checkpoint and stated != (checkpoint.origin, checkpoint.month, checkpoint.size, checkpoint.root):
            message = f"The checkpoint of {checkpoint.month:%Y-%m} and size {checkpoint.size} does not match the manifest"
            self._add_finding(Verdict.TAMPERED, "checkpoint", message)

    def check_root(self) -> None:
        """Check the leaves alone against the signed root."""
        sealed = self._sealed_leaves()
        if sealed is None or _root(sealed) != self.manifest.root:
            self._add_finding(Verdict.TAMPERED, "leaf", "The leaves do not have the signed root")
        elif EVIDENCE in self.whole:
            self.report.checked = self.manifest.rows

    def check_rows(self, row_keys: RowKeys | None) -> None:
        """Check the evidence against the leaves, and the leaves against the signed root."""
        rows = self.manifest.rows
        sealed = self._sealed_leaves()
        if sealed is None:
            return
        self.proven = bytearray(rows)
        self.digests, self.leaves = bytearray(rows * HASH_BYTES), bytearray(rows * HASH_BYTES)
        self._read_evidence(row_keys)
        is_signed = _root(sealed) == self.manifest.root
        if not is_signed and _root(self.leaves) == self.manifest.root:
            self._report_leaves(sealed, self.leaves)
            sealed = self.leaves
        elif not is_signed:
            self._add_finding(Verdict.TAMPERED, "leaf", "The leaves do not have the signed root")
        self._report_rows(sealed)

    def check_copy(self) -> None:
        """Check every row of the Parquet file against its line of the evidence."""
        if PARQUET not in self.whole or not self.proven:
            return
        seen = bytearray(self.manifest.rows)
        try:
            self._read_copy(seen)
        except (ArchiveError, WorkerEndedError) as wrong:
            self._add_finding(Verdict.TAMPERED, "file", f"{PARQUET}: {wrong}")
        for first, end in _runs(seen, 0):
            message = f"{PARQUET} does not have the rows of the leaves {first} to {end - 1}"
            self._add_finding(Verdict.MISSING, "row", message, first)

    def _check_keys(self) -> None:
        lines = self._read_file(KEYS).decode(errors="replace").splitlines()
        try:
            listed = [PublicKey.of(line) for line in lines]
        except ValueError as wrong:
            self._add_finding(Verdict.TAMPERED, "file", f"{KEYS}: {wrong}")
            return
        self.public_keys = KeyRing.of(self.public_keys).with_delegations(lines)
        if self.manifest.key_id not in {key.key_id for key in listed}:
            message = f"{KEYS} does not list the key that the manifest names"
            self._add_finding(Verdict.TAMPERED, "file", message)

    def _checkpoint(self) -> Checkpoint | None:
        path = self.folder / CHECKPOINT
        if not path.exists():
            return None
        note, checkpoint = self._read_file(CHECKPOINT), None
        try:
            checkpoint = open_note(note.decode(errors="replace"), self.public_keys)
        except NoteError as wrong:
            self._add_finding(Verdict.TAMPERED, "checkpoint", str(wrong))
        self._check_anchors(note, checkpoint)
        return checkpoint

    def _check_anchors(self, note: bytes, checkpoint: Checkpoint | None) -> None:
        """The newest anchor must be this checkpoint: a month is anchored completely before it is archived."""
        notes = _Notes(self.vault)
        try:
            anchors = month_anchors(notes, self.manifest.month)
            chain = anchors.chain()
            newest = chain.key(chain.sizes[-1]) if chain.sizes else ""
            anchored = notes.get(newest) if newest else note
        except VaultDamagedError as damaged:
            message = f"The month's last anchor is damaged: {damaged}"
            self._add_finding(Verdict.TAMPERED, "anchor", message)
            return
        except (VaultError, OSError) as unreadable:
            message = f"The month's anchors cannot be read: {unreadable}"
            self._add_finding(Verdict.CANNOT_TELL, "anchor", message)
            return
        if anchored != note:
            message = (
                f"The checkpoint is not the month's last: {newest} was anchored. This may be an older archive"
            )
            self._add_finding(Verdict.TAMPERED, "checkpoint", message)
        self._repeat_breaks(anchors, checkpoint.breaks if checkpoint else ())

    def _repeat_breaks(self, anchors: MonthAnchors, named: Sequence[BreakLine]) -> None:
        """Every verdict repeats what the month's history has lost: by its checkpoint, and by the vault if it is there."""
        stated: list[BreakLine] = []
        for number, note in sorted(anchors.breaks.items()):
            text = note.decode(errors="replace")
            try:
                stated.append(open_break(text, self.public_keys).line(text))
            except NoteError as wrong:
                message = f"The break {number} of the month's history in the vault: {wrong}"
                self._add_finding(Verdict.TAMPERED, "break", message)
        if anchors.sizes and list(named) != stated[: len(named)]:
            message = "The checkpoint names breaks of the month's history that the vault does not hold"
            self._add_finding(Verdict.TAMPERED, "break", message)
        for line in dict.fromkeys((*named, *stated)):
            message = f"A failover or a restore lost the leaves {line.kept} to {line.lost - 1}; others took their places"
            self._add_finding(Verdict.LOST_BY_FAILOVER, "break", message, line.kept)

    def _sealed_leaves(self) -> bytearray | None:
        """The stored leaves. The manifest's count sizes later buffers, so it is trusted only if the file is that long."""
        path = self.folder / LEAVES
        if not path.exists():
            return None
        size, rows = path.stat().st_size, self.manifest.rows
        signed = rows * HASH_BYTES
        if size != signed:
            message = f"{LEAVES} has {size} bytes instead of {HASH_BYTES} for each of {rows} rows"
            self._add_finding(Verdict.TAMPERED, "file", message)
        return bytearray(path.read_bytes()[:signed]) if size >= signed else None

    def _read_evidence(self, row_keys: RowKeys | None) -> None:
        path = self.folder / EVIDENCE
        seen, expected = bytearray(self.manifest.rows), 0
        lines = reader.read_lines(path) if path.exists() else iter(())
        check = partial(check_lines, self.manifest.month, Signing(self.public_keys, self.signed_from))
        try:
            for results in in_order(check, self._line_batches(lines, row_keys), alone=not self.is_signed):
                for found in results:
                    expected = self._store_result(found, expected, seen)
                self.progress(EVIDENCE, expected, self.manifest.rows)
        except (WorkerEndedError, MemoryError) as wrong:
            message = f"{EVIDENCE} cannot be read ({type(wrong).__name__})"
            self._add_finding(Verdict.CANNOT_TELL, "file", message)
        for first, end in _runs(seen, 0):
            many = f"The records of leaves {first} to {end - 1} are missing"
            message = many if end - first > 1 else "The record is missing"
            self._add_finding(Verdict.MISSING, "row", message, first)

    def _line_batches(
        self, lines: Iterator[bytes], row_keys: RowKeys | None
    ) -> Iterator[tuple[list[bytes], Mapping[str, bytes] | None]]:
        """Batches of lines with their keys, up to the first unreadable line."""
        count, wrong = 0, ""
        try:
            for some in reader.batch_lines(lines):
                yield some, row_keys(reader.log_ids_in(some)) if row_keys else None
                count += len(some)
                if count > self.manifest.rows:
                    wrong = f"it has more lines than the {self.manifest.rows} that were signed"
                    break
        except ArchiveError as unreadable:
            wrong = str(unreadable)
        if wrong:
            message = f"{EVIDENCE}, after {count} lines: {wrong}"
            self._add_finding(Verdict.TAMPERED, "file", message, count - 1)

    def _store_result(self, found: LineResult, expected: int, seen: bytearray) -> int:
        """Store the result of a line. Returns the leaf index that is expected next."""
        index = expected if found.leaf_index is None else found.leaf_index
        if index >= self.manifest.rows or seen[index]:
            message = found.problem or "There is no such leaf, or its record occurs twice"
            self._add_finding(Verdict.TAMPERED, "row", message, index, found.log_id)
            return expected
        seen[index] = 1
        if index < expected:
            self._add_finding(Verdict.TAMPERED, "row", "The record is out of order", index, found.log_id)
        if found.problem:
            verdict = Verdict.TAMPERED if found.is_known else Verdict.CANNOT_TELL
            self._add_finding(verdict, "row", found.problem, index, found.log_id)
        if found.leaf:
            at = _place_of(index)
            self.leaves[at], self.digests[at] = found.leaf, found.digest
            self.proven[index] = not found.problem
        if found.is_open:
            self.report.count("records' personal columns were opened and compared")
        elif found.is_erased:
            self.report.count("records have no key, so their personal columns were not opened")
        return max(expected, index + 1)

    def _report_rows(self, sealed: bytearray) -> None:
        for index in range(self.manifest.rows):
            at = _place_of(index)
            if not any(self.digests[at]):
                continue  # reported already
            if self.leaves[at] != sealed[at]:
                self.proven[index] = 0
                self._add_finding(Verdict.TAMPERED, "row", "The record is not what was sealed", index)
            self.report.checked += self.proven[index]

    def _report_leaves(self, stored: bytearray, true: bytearray) -> None:
        for index in range(self.manifest.rows):
            if stored[_place_of(index)] != true[_place_of(index)]:
                message = f"{LEAVES} does not hold the leaf that was sealed"
                self._add_finding(Verdict.TAMPERED, "leaf", message, index)

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
        read = partial(read_row_group, self.folder / PARQUET, self.manifest.columns, self.manifest.rows)
        for first in in_order(read, [0], alone=not self.is_signed):
            yield first
            yield from in_order(read, range(1, first.group_count), alone=not self.is_signed)

    def _compare(self, group: RowGroup, seen: bytearray) -> None:
        for index, digest, leaf in zip(group.indexes, group.digests, group.leaves, strict=True):
            if not 0 <= index < len(seen) or seen[index]:
                message = f"{PARQUET} has a row without a leaf, or two rows of one leaf"
                self._add_finding(Verdict.TAMPERED, "row", message, index)
                continue
            seen[index] = 1
            at = _place_of(index)
            is_same = self.digests[at] == digest and self.leaves[at] == leaf
            if self.proven[index] and not is_same:
                message = f"{PARQUET}: the row differs from the evidence"
                self._add_finding(Verdict.TAMPERED, "row", message, index)

    def _read_file(self, name: str) -> bytes:
        with (self.folder / name).open("rb") as file:
            return file.read(SMALL_BYTES_MAX + 1)

    def _add_finding(
        self, verdict: Verdict, what: str, message: str, index: int | None = None, log_id: str | None = None
    ) -> None:
        self.report.add(Finding(verdict, what, message, self.manifest.month, index, log_id))


def _place_of(index: int) -> slice:
    """The bytes of this leaf's hash."""
    return slice(index * HASH_BYTES, (index + 1) * HASH_BYTES)


def _root(leaves: bytearray) -> bytes:
    tree = Frontier()
    for at in range(0, len(leaves), HASH_BYTES):
        tree.append(bytes(leaves[at : at + HASH_BYTES]))
    return tree.root()


def _runs(flags: bytearray, value: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each run of this value."""
    begin = flags.find(value)
    while begin >= 0:
        end = flags.find(1 - value, begin)
        end = len(flags) if end < 0 else end
        yield begin, end
        begin = flags.find(value, end)
