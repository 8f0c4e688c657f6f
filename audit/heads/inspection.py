"""Verifier of the log of heads: entries against the anchored heads of months, roots, signatures, the vault, the witnesses. Pure.

As for the months' trees, the vault is believed where it has an entry. What witnesses have seen is believed before both.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from typing import NamedTuple, Protocol

from audit.errors import NoteError
from audit.heads.head import LogHead, entry_leaf, open_head
from audit.heads.policy import WitnessPolicy
from audit.proof.checkpoint import Checkpoint, open_note
from audit.proof.keys import PublicKey
from audit.proof.merkle import EMPTY_ROOT, Frontier
from audit.proof.verdict import Finding, Report, Verdict

UNWATCHED = "witnesses are configured: if database, vault and key were all set back to an older copy, nobody would notice"


class StoredEntry(NamedTuple):
    """A row of audit_head_entries, and the checkpoint of its month and size that the database has."""

    month: date
    size: int
    entry: str
    leaf_hash: bytes
    checkpoint: str | None


@dataclass(frozen=True, slots=True)
class HeadBatch:
    """All that the database and the vault hold for the entries from `begin` to before `end`, and for the heads up to `end`."""

    begin: int
    end: int
    entries: Mapping[int, StoredEntry]
    vaulted: Mapping[int, str]
    heads: Mapping[int, str]  # by size
    vaulted_heads: Mapping[int, bytes]
    published: frozenset[int]  # sizes of the heads that the database says are in the vault


class HeadsEvidence(Protocol):
    """Port: read access to the log of heads, in one snapshot."""

    @property
    def has_vault(self) -> bool:
        """If not, the vault is another log's: then the log of heads is compared with itself alone."""
        ...

    def batches(self) -> Iterator[HeadBatch]: ...

    def anchored(self, month: date, size: int, branch: int) -> bytes | None:
        """The head of a month as the vault has it."""
        ...

    def unlogged(self) -> Iterable[tuple[date, int]]:
        """Months with an anchored head that should be an entry and is none, with its size."""
        ...

    def newest_published(self) -> str | None: ...


class Seen(NamedTuple):
    """What a witness says that it has seen: the note that it cosigned last, if any; or why it does not say it."""

    name: str
    note: str | None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Watch:
    """The witnesses of the settings, and what they have seen. It was asked before the log was read, which may grow meanwhile."""

    policy: WitnessPolicy | None = None
    is_required: bool = False
    seen: Sequence[Seen] = ()

    def ahead_of(self, size: int, keys: Sequence[PublicKey]) -> list[str]:
        """Which witnesses have seen more heads than there are, in words. `size` is read after they were asked."""
        found = []
        for seen in self.seen:
            with suppress(NoteError):
                head, _ = open_head(seen.note or "", keys)
                if head.size > size:
                    found.append(
                        f"the witness {seen.name} has cosigned {head.size} heads, and there are {size}"
                    )
        return found


def inspect_heads(
    evidence: HeadsEvidence, keys: Sequence[PublicKey], origins: set[str], watch: Watch | None, report: Report
) -> None:
    """`origins` are the names of the log: one, unless something is wrong that is reported elsewhere."""
    checked = _LogOfHeads(evidence, keys, origins, watch or Watch(), report)
    for batch in evidence.batches():
        checked.add(batch)
    checked.finish()
    if watch:
        checked.check_witnesses()


@dataclass(slots=True)
class _LogOfHeads:
    evidence: HeadsEvidence
    keys: Sequence[PublicKey]
    origins: set[str]
    watch: Watch
    report: Report
    tree: Frontier | None = field(default_factory=Frontier)  # None once an entry is lost
    size: int = 0
    stored: int = 0  # of it in the database
    signed: int = 0  # the largest signed head in the database
    published: int = 0  # and in the vault
    lost: list[int] = field(default_factory=list)  # first and last entry that the database lacks
    roots: dict[int, bytes] = field(default_factory=dict)  # at the sizes that witnesses have seen
    is_astray: bool = False
    _seen: dict[str, LogHead] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.roots[0] = EMPTY_ROOT
        for seen in self.watch.seen:
            head = self._seen_by(seen)
            if head:
                self._seen[seen.name] = head

    def add(self, batch: HeadBatch) -> None:
        for index in range(batch.begin, batch.end):
            self._add_entry(index, batch)
            size = index + 1
            if self.tree and any(head.size == size for head in self._seen.values()):
                self.roots[size] = self.tree.root()
            self._check_heads(size, batch)

    def finish(self) -> None:
        if self.lost == [self.stored, self.stored] and self.published <= self.stored:
            # Its transaction has not been committed, or was not before a crash.
            self.report.count("entry of the log of heads is in the vault and not yet in the database")
        elif self.lost:
            first, last = self.lost
            message = (
                f"The vault has the entries {first} to {last} of the log of heads, and the database lacks them: it is an older"
                " copy, or they were removed; the sealer takes them over from the vault"
            )
            self._report(Verdict.MISSING, message, first)
        if self.signed < self.stored:
            message = f"No signed head of the log of heads covers its entries from {self.signed} on"
            self._report(Verdict.TAMPERED, message, self.signed)
        for month, size in self.evidence.unlogged():
            message = f"The anchored head of size {size} is not in the log of heads: an older version of the program anchored it"
            self.report.add(Finding(Verdict.UNSEALED, "head", message, month, size - 1))

    def check_witnesses(self) -> None:
        policy = self.watch.policy
        if policy is None or not policy.witnesses:
            self.report.count(UNWATCHED, 0)
            return
        for name, head in self._seen.items():
            self._check_seen(name, head)
        for seen in self.watch.seen:
            if seen.trouble:
                self._weigh(
                    f"The witness {seen.name} does not say what it has seen of this log: {seen.trouble}"
                )
        self._check_quorum(policy)

    def _add_entry(self, index: int, batch: HeadBatch) -> None:
        stored, vaulted = batch.entries.get(index), batch.vaulted.get(index)
        entry = vaulted if vaulted is not None else stored.entry if stored else None
        self.size = index + 1
        if entry is None:
            self.tree = None
            return self._report(Verdict.MISSING, "The entry is missing", index)
        if self.tree is not None:
            self.tree.append(entry_leaf(entry.encode()))
        if stored is None:
            self.lost[1:] = [index] if self.lost else [index, index]
        else:
            self.stored = index + 1
            self._check_stored(index, stored, vaulted)
        self._check_entry(index, entry, stored)
        return None

    def _check_stored(self, index: int, stored: StoredEntry, vaulted: str | None) -> None:
        if vaulted is None:
            self._report(Verdict.MISSING, "The entry is not in the vault", index)
        elif vaulted != stored.entry:
            self._report(Verdict.TAMPERED, "The database's entry is not the one in the vault", index)
        elif entry_leaf(stored.entry.encode()) != stored.leaf_hash:
            self._report(Verdict.TAMPERED, "The stored leaf is not the hash of the entry", index)

    def _check_entry(self, index: int, entry: str, stored: StoredEntry | None) -> None:
        """It is the signed head of a month of this log, and the one that was anchored."""
        try:
            head = open_note(entry, self.keys)
        except NoteError as wrong:
            return self._report(
                Verdict.TAMPERED, f"The entry is not the signed head of a month: {wrong}", index
            )
        if head.origin not in self.origins:
            return self._report(Verdict.TAMPERED, f"The entry is of another log, {head.origin}", index)
        if stored and (head.month, head.size) != (stored.month, stored.size):
            return self._report(Verdict.TAMPERED, "The entry is not of the month and size beside it", index)
        if not self.evidence.has_vault or (stored and stored.checkpoint == entry):
            return None  # the checkpoint is compared with the vault where its month is
        return self._compare_anchor(index, entry, head)

    def _compare_anchor(self, index: int, entry: str, head: Checkpoint) -> None:
        anchored = self.evidence.anchored(head.month, head.size, len(head.breaks))
        place = f"The head of size {head.size} of {head.month:%Y-%m}"
        if anchored is None:
            self._report(Verdict.MISSING, f"{place} is in the log of heads, but not among the anchors", index)
        elif anchored != entry.encode():
            self._report(
                Verdict.TAMPERED, f"{place} in the log of heads is not the one that was anchored", index
            )

    def _check_heads(self, size: int, batch: HeadBatch) -> None:
        stored, vaulted = batch.heads.get(size), batch.vaulted_heads.get(size)
        if stored is not None:
            self.signed = size
            self._check_note(size, stored, "in the database")
        if vaulted is not None:
            self.published = size
            text = vaulted.decode(errors="replace")
            if self._check_note(size, text, "in the vault"):
                self._check_cosignatures(size, text)
        elif size in batch.published:
            self._report(
                Verdict.MISSING, f"The head of {size} entries is not in the vault any more", size - 1
            )

    def _check_note(self, size: int, note: str, where: str) -> bool:
        try:
            head, _ = open_head(note, self.keys)
        except NoteError as wrong:
            self._report(Verdict.TAMPERED, f"The head of {size} entries {where}: {wrong}", size - 1)
            return False
        if (head.size, head.origin in self.origins) != (size, True):
            message = f"The head of {size} entries {where} is one of {head.origin} and size {head.size}"
            self._report(Verdict.TAMPERED, message, size - 1)
        elif self.tree is not None and self.tree.root() != head.root and not self.is_astray:
            self.is_astray = True
            message = f"The log of heads does not have the signed root of its head of size {size} {where}"
            self._report(Verdict.TAMPERED, message, size - 1)
        return True

    def _check_cosignatures(self, size: int, note: str) -> None:
        if self.watch.policy is None:
            return
        try:
            self.watch.policy.cosigners(open_head(note, self.keys)[1])
        except NoteError as wrong:
            self._report(Verdict.TAMPERED, f"The head of {size} entries in the vault: {wrong}", size - 1)

    def _seen_by(self, seen: Seen) -> LogHead | None:
        """Only what the log's own key signed counts against it."""
        if seen.note is None:
            return None
        try:
            head, _ = open_head(seen.note, self.keys)
        except NoteError as wrong:
            self._report(Verdict.CANNOT_TELL, f"What the witness {seen.name} says that it saw: {wrong}")
            return None
        return head if head.origin in self.origins else None

    def _check_seen(self, name: str, head: LogHead) -> None:
        if head.size > self.size:
            message = (
                f"The witness {name} has cosigned a head of this log with {head.size} entries, and there are {self.size}:"
                " database and vault were set back to an older copy (rollback)"
            )
            self._report(Verdict.MISSING, message, self.size)
        elif self.roots.get(head.size, head.root) != head.root:
            message = (
                f"The witness {name} has cosigned another head of {head.size} entries: two histories of this log were signed"
                " (fork), or it was set back and went on (rollback)"
            )
            self._report(Verdict.TAMPERED, message, head.size - 1)
        else:
            self.report.count("witnesses have seen this log, and nothing else of it")

    def _check_quorum(self, policy: WitnessPolicy) -> None:
        note = self.evidence.newest_published()
        if not policy.asks_for_cosignatures or not self.size:
            return
        try:
            cosigners = policy.cosigners(open_head(note, self.keys)[1]) if note else []
        except NoteError:
            return  # reported where its size is
        if not policy.is_met_by(cosigners):
            self._weigh(
                f"The newest published head of the log of heads lacks the quorum of the policy: {len(cosigners)} of its"
                f" {len(policy.witnesses)} witnesses cosigned it"
            )
        elif note and open_head(note, self.keys)[0].size < self.size and self.watch.is_required:
            message = "The newest heads of the log of heads wait for the quorum that is required"
            self._report(Verdict.UNSEALED, message, self.size - 1)

    def _weigh(self, message: str) -> None:
        """A finding if the settings require a quorum."""
        if self.watch.is_required:
            self._report(Verdict.CANNOT_TELL, message)
        else:
            self.report.count(f"warning: {message}")

    def _report(self, verdict: Verdict, message: str, index: int | None = None) -> None:
        self.report.add(Finding(verdict, "head", message, None, index))
