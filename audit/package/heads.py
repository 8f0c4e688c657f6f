"""Checks the heads of a package's months: signed, linked, and consistent with those that are anchored in the vault. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from audit.errors import NoteError, PackageError
from audit.package.files import PackageFiles
from audit.package.ladder import FINE, Rung, RungVerdict
from audit.package.manifest import (
    ANCHORS_MAX,
    PackageManifest,
    anchor_name,
    checkpoint_name,
    consistency_name,
    month_in,
    place_of,
    size_in,
)
from audit.package.records import ComparedMonth
from audit.proof.bundle import HASH
from audit.proof.canonical import read_line
from audit.proof.checkpoint import Checkpoint, Link, open_note, read_note
from audit.proof.keys import PublicKey
from audit.proof.merkle import is_consistent
from audit.proof.verdict import Finding, Report, Verdict

_NOT_ANCHORED = RungVerdict(Verdict.CANNOT_TELL, "no anchored head of the package contains the record")


@dataclass(slots=True)
class HeadOfMonth:
    """A month's checkpoint, and how its rungs stand."""

    month: date
    note: str = ""
    checkpoint: Checkpoint | None = None
    proofs: Mapping[int, Sequence[bytes]] = field(default_factory=dict)  # of consistency, by the smaller size
    anchors: dict[int, bytes] = field(default_factory=dict)  # genuine ones, by their size
    red: dict[Rung, Verdict] = field(default_factory=dict)

    @property
    def compared(self) -> ComparedMonth:
        return ComparedMonth(self.month, self.note, self.checkpoint)

    def vault(self, leaf_index: int) -> RungVerdict:
        if Rung.VAULT in self.red:
            return RungVerdict(self.red[Rung.VAULT])
        return FINE if leaf_index < max(self.anchors, default=0) else _NOT_ANCHORED


def check_heads(files: PackageFiles, keys: Sequence[PublicKey], report: Report) -> dict[date, HeadOfMonth]:
    heads = {month: _Head(files, keys, report, month).checked() for month in files.manifest.months}
    _check_links(heads, report)
    return heads


@dataclass(slots=True)
class _Head:
    files: PackageFiles
    keys: Sequence[PublicKey]
    report: Report
    month: date
    head: HeadOfMonth = field(init=False)

    def __post_init__(self) -> None:
        self.head = HeadOfMonth(self.month)

    def checked(self) -> HeadOfMonth:
        self._check_checkpoint()
        self.head.proofs = self._proofs()
        for size in self._anchored_sizes(self.files.manifest):
            self._check_anchor(size, self.files.read(anchor_name(self.month, size)))
        return self.head

    def _check_checkpoint(self) -> None:
        name, head = checkpoint_name(self.month), self.head
        head.note = self.files.read(name).decode(errors="replace")
        try:
            head.checkpoint = read_note(head.note)
            open_note(head.note, self.keys)
        except NoteError as wrong:
            self._add(Rung.CHECKPOINT, str(wrong), name)
            return
        if head.checkpoint.month != self.month:
            self._add(Rung.CHECKPOINT, f"The checkpoint is of {head.checkpoint.month:%Y-%m}", name)
        if head.checkpoint.origin != self.files.manifest.origin:
            self._add(Rung.CHECKPOINT, f"The checkpoint is of another log, {head.checkpoint.origin}", name)

    def _proofs(self) -> dict[int, list[bytes]]:
        name = consistency_name(self.month)
        try:
            body = read_line(self.files.read(name), "The file", PackageError)
            size = self.head.checkpoint.size if self.head.checkpoint else body["size"]
            if body.keys() != {"month", "size", "proofs"} or (body["month"], body["size"]) != (
                f"{self.month:%Y-%m}",
                size,
            ):
                raise PackageError("The file is not of this month and this checkpoint")
            return {int(old): _hashes(proof) for old, proof in body["proofs"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as wrong:
            words = (
                str(wrong) if isinstance(wrong, PackageError) else "The file is not one of consistency proofs"
            )
            self._add(Rung.VAULT, words, name)
            return {}

    def _anchored_sizes(self, manifest: PackageManifest) -> list[int]:
        names = {name for name in (*manifest.files, *self.files.entries) if name.startswith("anchors/")}
        known = (name for name in names if place_of(name) is not None)
        sizes = sorted({size_in(name) for name in known if month_in(name) == self.month})
        if len(sizes) > ANCHORS_MAX:
            self._add(
                Rung.VAULT,
                f"There are more than {ANCHORS_MAX} anchored heads",
                anchor_name(self.month, sizes[0]),
            )
        return sizes[-ANCHORS_MAX:]

    def _check_anchor(self, size: int, content: bytes) -> None:
        name, head = anchor_name(self.month, size), self.head.checkpoint
        try:
            anchored = open_note(content.decode(), self.keys)
        except ValueError as wrong:
            self._add(Rung.VAULT, f"The anchored head is not genuine: {wrong}", name)
            return
        if (anchored.origin, anchored.month, anchored.size) != (self.files.manifest.origin, self.month, size):
            self._add(Rung.VAULT, "The anchored head is of another log, month or size", name)
        elif head is None:
            return
        elif size > head.size:
            message = f"The vault has a head of {size} leaves, and the checkpoint only {head.size}: the log was set back"
            self._add(Rung.VAULT, message, name, Verdict.MISSING)
        elif not _is_beginning_of(anchored.link, head, self.head.proofs):
            message = "The checkpoint's tree does not begin with the anchored one: the log was rewritten, or there are two"
            self._add(Rung.VAULT, message, name)
        else:
            self.head.anchors[size] = content

    def _add(self, rung: Rung, words: str, name: str, verdict: Verdict = Verdict.TAMPERED) -> None:
        self.head.red.setdefault(rung, verdict)
        self.report.add(Finding(verdict, rung, words, self.month, file=name))


def _check_links(heads: Mapping[date, HeadOfMonth], report: Report) -> None:
    for later, link in _links(heads):
        earlier = heads[link.month]
        if earlier.checkpoint is None:
            continue
        if link.size > earlier.checkpoint.size:
            verdict = Verdict.MISSING
            words = f"{later:%Y-%m} was signed on top of {link.size} leaves, and this checkpoint has only {earlier.checkpoint.size}"
        elif not _is_beginning_of(link, earlier.checkpoint, earlier.proofs):
            verdict = Verdict.TAMPERED
            words = f"{later:%Y-%m} was signed on top of another tree than this checkpoint's"
        else:
            continue
        earlier.red.setdefault(Rung.MONTH, verdict)
        report.add(Finding(verdict, Rung.MONTH, words, link.month, file=checkpoint_name(link.month)))


def _links(heads: Mapping[date, HeadOfMonth]) -> Iterator[tuple[date, Link]]:
    for month, head in heads.items():
        if head.checkpoint and head.checkpoint.previous and head.checkpoint.previous.month in heads:
            yield month, head.checkpoint.previous


def _is_beginning_of(old: Link, head: Checkpoint, proofs: Mapping[int, Sequence[bytes]]) -> bool:
    if old.size == head.size:
        return old.root == head.root
    return is_consistent(old.size, head.size, old.root, head.root, proofs.get(old.size, ()))


def _hashes(proof: Any) -> list[bytes]:
    if not all(HASH.fullmatch(part) for part in proof):
        raise ValueError(proof)
    return [bytes.fromhex(part) for part in proof]
