"""The verifier of a whole log: every record against its leaf, every leaf against the signed trees and the vault. Pure.

`inspect` is a fold over what `audit/evidence.py` reads, batch by batch, so it needs the same memory for any log. Where
the vault knows a leaf, its word stands against the database's: it is written once, and outside of the database.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from hashlib import sha256
from typing import Any, Literal, NamedTuple, Protocol
from uuid import UUID

from audit.errors import ArchiveError, NoteError
from audit.progress import Progress
from audit.proof.archive_format import open_manifest
from audit.proof.bundle import COLUMN, are_commitments
from audit.proof.checkpoint import Checkpoint, Link, erasure_text, open_note
from audit.proof.keys import PublicKey
from audit.proof.merkle import Frontier
from audit.proof.record import PERSONAL, SCHEMA_VERSION, Row, leaf_hash
from audit.proof.verdict import Finding, Report, Verdict

MonthState = Literal["there", "archived", "gone"]


class Leaf(NamedTuple):
    """A row of audit_leaves."""

    leaf_index: int
    log_id: str
    leaf_hash: bytes


class Erasure(NamedTuple):
    """A line of audit_erasures, and what there is of the record of the log that says so."""

    erasure_id: UUID
    log_id: UUID
    event: UUID
    erased_at: datetime
    commitments: Any
    key_id: str
    signature: str
    event_state: Literal["sealed", "waiting", "late", "missing"]

    def is_signed(self, keys: Sequence[PublicKey]) -> bool:
        """By one of these keys: who only owns the database has none."""
        text = erasure_text(self.erasure_id, self.log_id, self.event, self.erased_at)
        try:
            signature = base64.b64decode(self.signature, validate=True)
        except ValueError:
            return False
        return any(key.key_id == self.key_id and key.verify(signature, text) for key in keys)


@dataclass(slots=True)
class Batch:
    """What the database and the vault hold of the leaves from `begin` to before `end`."""

    begin: int
    end: int
    leaves: Sequence[Leaf]
    checkpoints: Mapping[int, str]  # by the tree's size
    anchors: Mapping[int, bytes]  # the vault's notes, by the tree's size
    anchored: Mapping[int, bytes]  # the vault's leaf hashes, by index
    rows: Mapping[str, Sequence[str]]  # as JSON, by log_id
    aside: frozenset[str] = frozenset()  # records that are there and were not asked for
    erasures: Mapping[str, Sequence["Erasure"]] = field(default_factory=dict)  # of erased records, by log_id
    keyless: frozenset[str] = frozenset()  # archived records whose personal columns no key opens any more
    anchors_lost: Sequence[int] = ()  # that the database remembers and the vault does not hold
    anchors_damaged: Sequence[int] = ()  # whose leaves the vault holds in part, or in two ways


class LogEvidence(Protocol):
    """What there is to be inspected, all of it as it stood at one moment."""

    def months(self) -> list[date]: ...

    def state(self, month: date) -> MonthState: ...

    def is_asked_for(self, month: date) -> bool: ...

    def checkpoints_from_last(self, month: date) -> Iterator[tuple[int, str]]: ...

    def anchors_from_last(self, month: date) -> Iterator[tuple[int, bytes]]: ...

    def checkpoint(self, month: date, size: int) -> str | None: ...

    def batches(self, month: date, end: int) -> Iterator[Batch]: ...

    def leaves_beyond(self, month: date, end: int) -> tuple[int, int, str] | None: ...

    def unsealed(self) -> Iterator[tuple[str, datetime, bool]]: ...

    def manifest(self, month: date) -> tuple[bytes | None, str]:
        """What the vault holds of an archived month's manifest, and the digest that was recorded."""
        ...


def inspect(evidence: LogEvidence, keys: Sequence[PublicKey], progress: Progress) -> Report:
    """Recompute everything, and say what does not fit, and where."""
    report = Report()
    if not keys:
        report.add(Finding(Verdict.CANNOT_TELL, "key", "There is no public key to check with"))
        return report
    origins: set[str] = set()
    for month in evidence.months():
        inspected = _Month(month, evidence, keys, report, origins)
        end = inspected.find_end()
        for batch in evidence.batches(month, end):
            inspected.add(batch)
            progress(f"{month:%Y-%m}", batch.end, end)
        inspected.finish(end)
    _count_unsealed(evidence, report)
    return report


def _count_unsealed(evidence: LogEvidence, report: Report) -> None:
    for log_id, timestamp, is_late in evidence.unsealed():
        if is_late:
            words = (
                "The record is not sealed, and should be since long. If it came late, through the spool, it is in a"
                " moment; if not, the sealer does not run, or somebody put the record there"
            )
            month = timestamp.date().replace(day=1)
            report.add(Finding(Verdict.UNSEALED, "row", words, month, log_id=log_id))
        else:
            report.count("records wait for the sealer")


@dataclass(slots=True)
class _Month:
    """One month's tree as it grows again."""

    month: date
    evidence: LogEvidence
    keys: Sequence[PublicKey]
    report: Report
    origins: set[str]  # of all checkpoints of the log; there must be one
    tree: Frontier | None = field(default_factory=Frontier)  # None: a leaf is lost, so nothing grows on
    agreed: int = 0  # the size up to which the tree has the roots that were signed
    is_astray: bool = False
    leaves_lost: list[int] = field(default_factory=list)  # first and last of a run
    rows_lost: list[Leaf] = field(default_factory=list)
    keys_lost: list[int] = field(default_factory=list)  # first of them, and how many
    linked: Link | None = None

    def find_end(self) -> int:
        """The largest tree that was signed: what a database says of its size beyond that is nobody's word."""
        stored, anchored = (
            self.evidence.checkpoints_from_last(self.month),
            self.evidence.anchors_from_last(self.month),
        )
        unsigned: list[Finding] = []
        end = max(
            self._last_signed("checkpoint", stored, unsigned),
            self._last_signed(
                "anchor", ((size, note.decode(errors="replace")) for size, note in anchored), unsigned
            ),
        )
        for finding in unsigned:
            if finding.leaf_index is not None and finding.leaf_index >= end:  # the others are met on the way
                self.report.add(finding)
        return end

    def _last_signed(self, what: str, notes: Iterable[tuple[int, str]], unsigned: list[Finding]) -> int:
        for size, note in notes:
            found = self._opened(size, note, what)
            if isinstance(found, Checkpoint):
                return found.size
            unsigned.append(found)
        return 0

    def add(self, batch: Batch) -> None:
        for size in batch.anchors_lost:
            words = f"The vault does not hold the anchor of size {size} any more"
            self._find(Verdict.MISSING, "anchor", words, size - 1)
        for size in batch.anchors_damaged:
            words = f"The leaves anchored with size {size} are not as they were written"
            self._find(Verdict.TAMPERED, "anchor", words, size - 1)
        leaves = {leaf.leaf_index: leaf for leaf in batch.leaves}
        self._check_columns(batch)
        for index in range(batch.begin, batch.end):
            self._add_leaf(index, leaves.get(index), batch)
            if index + 1 in batch.checkpoints or index + 1 in batch.anchors:
                self._check_head(index + 1, batch)

    def finish(self, end: int) -> None:
        self._tell_lost_leaves()
        self._tell_lost_rows()
        self._tell_lost_keys()
        if beyond := self.evidence.leaves_beyond(self.month, end):
            count, index, log_id = beyond
            words = f"No signed checkpoint holds this leaf ({count} of them)"
            self._find(Verdict.TAMPERED, "leaf", words, index, log_id)
        state = self.evidence.state(self.month)
        if state == "there" or not end or not self.evidence.is_asked_for(self.month):
            return
        if state == "archived":
            self._check_archive(end)
        else:
            words = f"The month's partition is gone, and with it the records of leaves 0 to {end - 1}"
            self._find(Verdict.MISSING, "month", words, 0)

    def _check_archive(self, end: int) -> None:
        """That there is one, and that it is of this very tree. Its files: `affidavit audit verify --archive`."""
        content, digest = self.evidence.manifest(self.month)
        if content is None:
            words = f"The vault does not hold the archive of the records of leaves 0 to {end - 1}"
            self._find(Verdict.MISSING, "file", words)
        elif words := self._wrong_with(content, digest, end):
            self._find(Verdict.TAMPERED, "file", f"The archive's manifest in the vault {words}")
        else:
            words = "The records are in the archive; their leaves and its manifest were checked"
            self._find(Verdict.ARCHIVED, "month", words)

    def _wrong_with(self, content: bytes, digest: str, end: int) -> str:
        try:
            manifest = open_manifest(content)
        except ArchiveError as wrong:
            return f"is none: {wrong}"
        if sha256(content).hexdigest() != digest or not manifest.is_signed_by(self.keys):
            return "is not the one that was written"
        is_whole = self.tree is not None and self.tree.size == end
        root = self.tree.root() if is_whole and self.tree is not None else manifest.root
        if (manifest.month, manifest.rows, manifest.root) != (self.month, end, root):
            return f"is of another tree: {manifest.rows} records of {manifest.month:%Y-%m}"
        return ""

    def _add_leaf(self, index: int, leaf: Leaf | None, batch: Batch) -> None:
        anchored = batch.anchored.get(index)
        sealed = anchored or (leaf.leaf_hash if leaf else None)
        if sealed is None:
            self.tree = None
        elif self.tree is not None:
            self.tree.append(sealed)
        if leaf is None:
            self.leaves_lost[1:] = [index] if self.leaves_lost else [index, index]
            return
        self._tell_lost_leaves()
        is_changed = anchored is not None and anchored != leaf.leaf_hash
        if is_changed:
            words = "The database's leaf is not the one that was anchored in the vault"
            self._find(Verdict.TAMPERED, "leaf", words, index, leaf.log_id)
        if leaf.log_id in batch.keyless:
            self._check_forgotten(leaf, batch.erasures.get(leaf.log_id, ()))
        if rows := batch.rows.get(leaf.log_id):
            self._tell_lost_rows()
            self._check_rows(leaf, sealed or leaf.leaf_hash, rows, batch)
        elif leaf.log_id not in batch.aside and self._has_rows:
            self.rows_lost[1:] = [leaf] if self.rows_lost else [leaf, leaf]

    @property
    def _has_rows(self) -> bool:
        return self.evidence.is_asked_for(self.month) and self.evidence.state(self.month) == "there"

    def _check_columns(self, batch: Batch) -> None:
        first = next(iter(batch.rows.values()), ["{}"])[0]
        if strange := [name for name in json.loads(first) if not COLUMN.fullmatch(name)]:
            self._find(
                Verdict.TAMPERED, "month", f"The log has a column that is none of ours, {strange[0]!r}"
            )

    def _check_rows(self, leaf: Leaf, sealed: bytes, rows: Sequence[str], batch: Batch) -> None:
        self.report.checked += 1
        if len(rows) > 1:
            words = f"There are {len(rows)} records of one id"
            self._find(Verdict.TAMPERED, "row", words, leaf.leaf_index, leaf.log_id)
        for row in rows:
            verdict, words = _judge(json.loads(row), sealed, batch.erasures.get(leaf.log_id, ()), self.keys)
            if verdict is Verdict.ERASED:
                self.report.count("records were erased, and are proven")
            elif verdict is not Verdict.VALID:
                self._find(verdict, "row", words, leaf.leaf_index, leaf.log_id)

    def _check_forgotten(self, leaf: Leaf, erasures: Sequence[Erasure]) -> None:
        """Who has no key was erased, and somebody said so; or a part of the archive is lost."""
        if not erasures:
            first, count = self.keys_lost or (leaf.leaf_index, 0)
            self.keys_lost = [first, count + 1]
            return
        verdict, words = _judge_erasure(erasures, self.keys)
        if verdict is Verdict.ERASED:
            self.report.count("archived records were erased, and whoever did it is on record")
        else:
            self._find(verdict, "row", words, leaf.leaf_index, leaf.log_id)

    def _check_head(self, size: int, batch: Batch) -> None:
        """Signature, place and root of what was signed at this size."""
        stored, anchor = batch.checkpoints.get(size), batch.anchors.get(size)
        if anchor is not None and stored is None:
            words = f"The checkpoint of size {size} is anchored in the vault and not in the database"
            self._find(Verdict.MISSING, "checkpoint", words, size - 1)
        elif anchor is not None and stored is not None and stored.encode() != anchor:
            words = f"The checkpoint of size {size} is not the one that was anchored in the vault"
            self._find(Verdict.TAMPERED, "checkpoint", words, size - 1)
        if anchor is not None:
            self._check_note(size, anchor.decode(errors="replace"), "anchor")
        if stored is not None and stored.encode() != anchor:
            self._check_note(size, stored, "checkpoint")

    def _check_note(self, size: int, note: str, what: str) -> None:
        found = self._opened(size, note, what)
        if isinstance(found, Finding):
            self.report.add(found)
            return
        self.origins.add(found.origin)
        if len(self.origins) > 1:
            words = f"The {what} of size {size} is of another log, {found.origin}"
            self._find(Verdict.TAMPERED, what, words, size - 1)
        self._check_root(found, what)

    def _opened(self, size: int, note: str, what: str) -> Checkpoint | Finding:
        try:
            checkpoint = open_note(note, self.keys)
        except NoteError as wrong:
            words = f"The {what} of size {size}: {wrong}"
        else:
            if (checkpoint.month, checkpoint.size) == (self.month, size):
                return checkpoint
            words = f"The {what} of size {size} is one of {checkpoint.month:%Y-%m} and size {checkpoint.size}"
        return Finding(Verdict.TAMPERED, what, words, self.month, size - 1)

    def _check_root(self, checkpoint: Checkpoint, what: str) -> None:
        size = checkpoint.size
        if self.tree is not None and self.tree.root() == checkpoint.root:
            self.agreed, self.is_astray = size, False
        elif self.tree is not None and not self.is_astray:
            self.is_astray = True
            words = (
                f"The tree does not have the root that the {what} of size {size} was signed for:"
                f" something among the leaves {self.agreed} to {size - 1} was changed"
            )
            self._find(Verdict.TAMPERED, what, words, self.agreed)
        if checkpoint.previous and checkpoint.previous != self.linked:
            self.linked = checkpoint.previous
            self._check_link(checkpoint.previous)

    def _check_link(self, link: Link) -> None:
        """The earlier month's own inspection compares its checkpoints with its tree; here, that it has this one."""
        note = self.evidence.checkpoint(link.month, link.size)
        place = f"the checkpoint of {link.month:%Y-%m} and size {link.size}"
        try:
            earlier = open_note(note, self.keys) if note is not None else None
        except NoteError:
            return  # said where that month is inspected
        if earlier is None:
            words = f"{self.month:%Y-%m} was signed on top of {place}, which is not there"
            self.report.add(Finding(Verdict.MISSING, "link", words, link.month, link.size - 1))
        elif earlier.link != link:
            words = f"{self.month:%Y-%m} was signed on top of another root than that of {place}"
            self.report.add(Finding(Verdict.TAMPERED, "link", words, link.month, link.size - 1))

    def _tell_lost_leaves(self) -> None:
        if self.leaves_lost:
            first, last = self.leaves_lost
            words = "The leaf is missing" if first == last else f"The leaves {first} to {last} are missing"
            self._find(Verdict.MISSING, "leaf", words, first)
            self.leaves_lost.clear()

    def _tell_lost_keys(self) -> None:
        if self.keys_lost:
            first, count = self.keys_lost
            words = f"{count} archived records have lost their key and were never erased"
            self._find(Verdict.MISSING, "month", words, first)

    def _tell_lost_rows(self) -> None:
        if self.rows_lost:
            first, last = self.rows_lost
            words = "The record is missing"
            if first != last:
                words = f"The records of leaves {first.leaf_index} to {last.leaf_index} are missing"
            self._find(Verdict.MISSING, "row", words, first.leaf_index, first.log_id)
            self.rows_lost.clear()

    def _find(
        self, verdict: Verdict, what: str, words: str, index: int | None = None, log_id: str | None = None
    ) -> None:
        self.report.add(Finding(verdict, what, words, self.month, index, log_id))


def _judge(
    row: Row, sealed: bytes, erasures: Sequence[Erasure], keys: Sequence[PublicKey]
) -> tuple[Verdict, str]:
    """Whether the record is the one that was sealed."""
    if row["schema_version"] != SCHEMA_VERSION:
        words = f"The record is of schema version {row['schema_version']}, whose hash is not known here"
        return Verdict.CANNOT_TELL, words
    if row["leaf_hash"] != f"\\x{sealed.hex()}":
        return Verdict.TAMPERED, "The record's own hash is not the one that was sealed"
    if row["erased_at"] is not None:
        return _judge_erased(row, sealed, erasures, keys)
    try:
        is_same = leaf_hash(row) == sealed
    except (ValueError, TypeError):
        return Verdict.TAMPERED, "The record has no hash: its salt is gone or not a salt"
    return (Verdict.VALID, "") if is_same else (Verdict.TAMPERED, "The record is not what was sealed")


# An erasure by how far the record of it is: the first that there is counts.
_RECORDED: Mapping[str, tuple[Verdict, str]] = {
    "sealed": (Verdict.ERASED, ""),
    "waiting": (Verdict.ERASED, ""),
    "late": (Verdict.UNSEALED, "The record was erased, and the record of its erasure is not sealed"),
    "missing": (Verdict.TAMPERED, "The record was emptied, and the log has no record of its erasure"),
}


def _judge_erased(
    row: Row, sealed: bytes, erasures: Sequence[Erasure], keys: Sequence[PublicKey]
) -> tuple[Verdict, str]:
    """Whoever empties a record must have said so: under the signing key, and in a record of its own that is sealed too."""
    if row["salt"] is not None or any(row.get(name) for name in PERSONAL):
        return Verdict.TAMPERED, "The record says that it was erased, and was not"
    if not erasures:
        return Verdict.CANNOT_TELL, "The record was erased, and what stands for it in its hash is not there"
    fitting = [
        one
        for one in erasures
        if are_commitments(one.commitments) and leaf_hash(row, one.commitments) == sealed
    ]
    if not fitting:
        return Verdict.TAMPERED, "The erased record is not what was sealed"
    return _judge_erasure(fitting, keys)


def _judge_erasure(erasures: Sequence[Erasure], keys: Sequence[PublicKey]) -> tuple[Verdict, str]:
    signed = [one for one in erasures if one.is_signed(keys)]
    if not signed:
        return Verdict.TAMPERED, "The record was emptied, and none of the given keys signed its erasure"
    return _RECORDED[min((one.event_state for one in signed), key=list(_RECORDED).index)]
