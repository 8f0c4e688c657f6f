"""Verifier of a whole log: checks every record against its leaf, every leaf against the signed trees and the vault. Pure.

`inspect` folds over the batches that `evidence.py` reads, so its memory does not grow with the log. Where the vault has a
leaf, the vault is believed and not the database: it is write-once, and outside of the database.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from hashlib import sha256
from typing import Any, Literal, NamedTuple, Protocol

from audit.checking.judgement import Erasure, Judged, judge_erasure
from audit.checking.lost_history import LostRange, StoredBreak, check_break
from audit.checking.numbering import Numbering
from audit.checking.resumption import ERASED, Resumption
from audit.checking.row_range import NO_ROWS, RowRange, StoredRows
from audit.errors import ArchiveError, LeavesChangedError, NoteError
from audit.heads.inspection import HeadsEvidence, Watch, inspect_heads
from audit.holding.doubts import HoldTables, hold_doubts
from audit.progress import Progress
from audit.proof.archive_format import open_manifest
from audit.proof.bundle import COLUMN
from audit.proof.checkpoint import Checkpoint, Link, open_note
from audit.proof.keys import KeyRing, PublicKey
from audit.proof.merkle import Frontier
from audit.proof.record import SIGNED_FROM, Row
from audit.proof.row_signature import is_open_signed, is_row_signed, must_be_signed
from audit.proof.verdict import PROVEN, Finding, Report, Verdict

MonthState = Literal["attached", "archived", "missing"]
NOT_SIGNED = "The engine did not sign this record"
KEPT_EVERY = 20  # batches, some seconds: a run that goes on repeats no more
CLOCKS_DIFFER = timedelta(minutes=1)


class Leaf(NamedTuple):
    """A row of audit_leaves."""

    leaf_index: int
    log_id: str
    leaf_hash: bytes


class UnsealedRecord(NamedTuple):
    """A row of audit_logs without a leaf. It is late if the sealer has had time enough."""

    log_id: str
    timestamp: datetime
    is_late: bool
    leaf_hash: bytes
    schema_version: int
    signature: bytes | None
    writer: str | None
    sequence: int | None
    heartbeat: Any


class SetAside(NamedTuple):
    """A line of audit_set_aside: a row that left the log, because the engine had not signed it. An open request has no leaf."""

    log_id: str
    timestamp: datetime
    leaf_hash: bytes | None
    signature: bytes | None


@dataclass(slots=True)
class Batch:
    """All that the database and the vault hold for the leaves from `begin` to before `end`."""

    begin: int
    end: int
    leaves: Sequence[Leaf]
    checkpoints: Mapping[int, str]  # by the tree's size
    anchors: Mapping[int, bytes]  # the vault's notes, by the tree's size
    anchored: Mapping[int, bytes]  # the vault's leaf hashes, by index
    columns: Sequence[str] = ()  # of the log, if its rows are read
    wanted: RowRange | None = None  # rows that a judge has to read,
    stored: StoredRows = NO_ROWS  # or those that were read already
    judged: Mapping[int, Sequence[Judged]] = field(default_factory=dict)  # the rows of a leaf, by its index
    outside_period: frozenset[str] = frozenset()  # records of the month outside of the period
    erasures: Mapping[str, Sequence[Erasure]] = field(default_factory=dict)  # of erased records, by log_id
    keyless: frozenset[str] = frozenset()  # archived records without a key for their personal columns
    anchors_lost: Sequence[int] = ()  # recorded in the database, not in the vault
    anchors_damaged: Sequence[int] = ()  # their leaves in the vault are incomplete, or contradict each other


class LogEvidence(Protocol):
    """Port: read access to a log, in one snapshot."""

    def months(self) -> list[date]: ...

    def state(self, month: date) -> MonthState: ...

    def is_in_period(self, month: date) -> bool: ...

    def checkpoints_from_last(self, month: date) -> Iterator[tuple[int, str]]: ...

    def anchors_from_last(self, month: date) -> Iterator[tuple[int, bytes]]: ...

    def checkpoint(self, month: date, size: int) -> str | None: ...

    def batches(self, month: date, end: int, keys: Sequence[PublicKey], known: int = 0) -> Iterator[Batch]:
        """Each with its rows judged under these keys, if it goes beyond the known leaves."""
        ...

    def leaves_beyond(self, month: date, end: int) -> tuple[int, int, str] | None: ...

    def unsealed(self) -> Iterator[UnsealedRecord]: ...

    def open_requests(self) -> Iterator[tuple[Row, bytes | None]]:
        """What is known of the requests in progress, and its signature."""
        ...

    def set_aside(self) -> Iterator[SetAside]: ...

    def hold_tables(self) -> HoldTables: ...

    def delegations(self) -> list[str]:
        """Lines of delegated keys, of the database and of the vault. Only those by a given key count."""
        ...

    def origins(self) -> set[str]:
        """The names of the log, as the database has them: one."""
        ...

    def since(self, month: date) -> datetime:
        """The begin of the month, or of the period if that is in it."""
        ...

    def breaks(self, month: date) -> list[StoredBreak]: ...

    def count_anchors(self) -> int:
        """How many anchors the database says that the vault was given."""
        ...

    def vault_notes(self) -> Iterator[bytes]:
        """The anchored heads of all months as the vault has them."""
        ...

    def heads(self) -> HeadsEvidence | None:
        """The log of heads; None in a log of an older version."""
        ...

    def leave_vault(self) -> None:
        """From now on as if nothing had been anchored."""
        ...

    def timeline(self) -> int | None:
        """PostgreSQL's: 1 more with each promotion of a standby and each recovery to a moment; None if it does not say."""
        ...

    def manifest(self, month: date) -> tuple[bytes | None, str]:
        """An archived month's manifest in the vault, if there is one, and the digest that was recorded."""
        ...


def inspect(
    evidence: LogEvidence,
    keys: Sequence[PublicKey],
    progress: Progress,
    watch: Watch | None = None,
    resumption: Resumption | None = None,
) -> Report:
    """Recompute everything, and report each place that does not match. Without a `watch` no witness is looked at."""
    if resumption is None:
        return _inspect(evidence, keys, progress, watch, None)
    try:
        return _inspect(evidence, keys, progress, watch, resumption)
    except LeavesChangedError:
        resumption.forget()
        report = _inspect(evidence, keys, progress, watch, resumption)
        report.count("earlier run does not count, because the leaves are others now")
        return report


def _inspect(
    evidence: LogEvidence,
    keys: Sequence[PublicKey],
    progress: Progress,
    watch: Watch | None,
    resumption: Resumption | None,
) -> Report:
    report = Report()
    if not keys:
        report.add(Finding(Verdict.CANNOT_TELL, "key", "There is no public key to check with"))
        return report
    keys = KeyRing.of(keys).with_delegations(evidence.delegations())
    has_vault = _check_vault(evidence, keys, report)
    heads, numbering, is_begun = _Heads(), Numbering(datetime.min.replace(tzinfo=UTC)), False
    if resumption:
        resumption.restore(numbering, report)
    for month in evidence.months():
        has_rows = evidence.is_in_period(month) and evidence.state(month) == "attached"
        is_past = resumption is not None and resumption.is_past(month)
        if not is_past and (not has_rows or not is_begun):
            numbering.cut(evidence.since(month))
        is_begun = has_rows
        known = resumption.known(month) if resumption else 0
        inspected = _Month(month, evidence, keys, report, heads, numbering, has_vault, resumption, known)
        end = inspected.find_end()
        for number, batch in enumerate(evidence.batches(month, end, keys, known), 1):
            inspected.add(batch)
            if has_rows and batch.end > known and (number % KEPT_EVERY == 0 or batch.end == end):
                inspected.keep(batch.end)
            progress(f"{month:%Y-%m}", batch.end, end)
        inspected.finish(end)
    if resumption and resumption.months.keys() - {f"{month:%Y-%m}" for month in evidence.months()}:
        raise LeavesChangedError
    heads.finish(report, evidence.origins())
    if log_of_heads := evidence.heads():
        inspect_heads(log_of_heads, keys, heads.origins | evidence.origins(), watch, report)
    _count_unsealed(evidence, keys, heads, numbering, report)
    for trail, signature in evidence.open_requests():
        if is_open_signed(signature, trail, keys):
            numbering.add(trail | {"heartbeat": None}, datetime.fromisoformat(trail["timestamp"]))
    numbering.finish(report)
    _check_set_aside(evidence, keys, report)
    for doubt in hold_doubts(evidence.hold_tables(), keys):
        report.add(Finding(Verdict.TAMPERED, "hold", doubt[0].upper() + doubt[1:]))
    return report


def _check_vault(evidence: LogEvidence, keys: Sequence[PublicKey], report: Report) -> bool:
    """Whether the vault is this log's. If not, the log is compared with itself alone: a wrong name must not look like tampering."""
    ours = {head.origin for month in evidence.months() for head in _signed_heads(evidence, month, keys)}
    count = evidence.count_anchors()
    if not ours or not count or any(_origin_of(note, keys) in ours for note in evidence.vault_notes()):
        return True
    message = (
        f"The database says that {count} heads were anchored, and this vault holds no anchor of the log: it is another one, or"
        " it was emptied. Name the vault that the log was anchored in (providers.vault, archive.bucket, archive.prefix or the"
        " data folder) and verify again: until then the log was compared with itself alone"
    )
    report.add(Finding(Verdict.WRONG_VAULT, "vault", message))
    evidence.leave_vault()
    return False


def _signed_heads(evidence: LogEvidence, month: date, keys: Sequence[PublicKey]) -> list[Checkpoint]:
    """The month's newest head in the database, if one of the keys signed it."""
    for _, note in evidence.checkpoints_from_last(month):
        try:
            return [open_note(note, keys)]
        except NoteError:
            continue
    return []


def _origin_of(note: bytes, keys: Sequence[PublicKey]) -> str | None:
    try:
        return open_note(note.decode(errors="replace"), keys).origin
    except NoteError:
        return None


@dataclass(slots=True)
class _Heads:
    """What the checkpoints of all months say of the whole log."""

    origins: set[str] = field(default_factory=set)  # exactly one is right
    signed_since: datetime | None = (
        None  # when the first one was made that says from where on rows are signed
    )
    unsigned: dict[date, Checkpoint] = field(
        default_factory=dict
    )  # the newest of each month that does not say it

    def add(self, head: Checkpoint) -> None:
        self.origins.add(head.origin)
        if head.signed_from is None:
            self.unsigned[head.month] = head
        else:
            self.signed_since = min(self.signed_since or head.issued_at, head.issued_at)

    def finish(self, report: Report, stored: set[str]) -> None:
        """Once one says that rows are signed, every later one must. The clocks of two machines may differ a little."""
        if len(self.origins) == 1 and stored != self.origins:
            message = f"audit_origin says {', '.join(sorted(stored)) or 'nothing'}, but the log's checkpoints are of {min(self.origins)}"
            report.add(Finding(Verdict.TAMPERED, "log", message))
        for month, head in self.unsigned.items():
            if self.signed_since and head.issued_at > self.signed_since + CLOCKS_DIFFER:
                message = (
                    f"The checkpoint of size {head.size} does not say that records are signed, although an earlier one"
                    " of the log does: an older version of the program made it, or somebody who has the signing key"
                )
                report.add(Finding(Verdict.TAMPERED, "checkpoint", message, month, head.size - 1))


def _count_unsealed(
    evidence: LogEvidence, keys: Sequence[PublicKey], heads: _Heads, numbering: Numbering, report: Report
) -> None:
    for record in evidence.unsealed():
        log_id, timestamp, is_late, leaf, version, signature, *_ = record
        may_lack_it = signature is None and version < SIGNED_FROM and heads.signed_since is None
        if not may_lack_it and not is_row_signed(signature, log_id, leaf, timestamp, keys):
            month = timestamp.date().replace(day=1)
            report.add(
                Finding(Verdict.TAMPERED, "row", f"{NOT_SIGNED}, so it is not sealed", month, log_id=log_id)
            )
            continue
        numbering.add(record._asdict(), timestamp)
        if is_late:
            message = (
                "The record should have been sealed by now. If it arrived late, through the spool, it is sealed in a"
                " few seconds; if not, the sealer is not running, or the record was inserted by somebody else"
            )
            month = timestamp.date().replace(day=1)
            report.add(Finding(Verdict.UNSEALED, "row", message, month, log_id=log_id))
        else:
            report.count("records wait for the sealer")


def _check_set_aside(evidence: LogEvidence, keys: Sequence[PublicKey], report: Report) -> None:
    for log_id, timestamp, leaf, signature in evidence.set_aside():
        report.count("rows that the engine did not sign were set aside")
        if leaf is not None and is_row_signed(signature, log_id, leaf, timestamp, keys):
            message = "The record was set aside as one that the engine did not sign, but it did"
            month = timestamp.date().replace(day=1)
            report.add(Finding(Verdict.TAMPERED, "row", message, month, log_id=log_id))


def _told_by(timeline: int | None) -> str:
    """What PostgreSQL's timeline tells of a loss. It can rule a failover out; it proves none."""
    if timeline is None:
        return "A failover or a restore leaves this, and so does whoever rolls the database back."
    if timeline == 1:
        return (
            "No failover did this: its PostgreSQL was never promoted (timeline 1). A dump or a disk was restored, or somebody"
            " removed them."
        )
    return (
        f"A failover or a restore leaves this (PostgreSQL is on timeline {timeline}), and so does whoever rolls the database"
        " back."
    )


@dataclass(slots=True)
class _Month:
    """One month's Merkle tree, rebuilt leaf by leaf."""

    month: date
    evidence: LogEvidence
    keys: Sequence[PublicKey]
    report: Report
    heads: _Heads
    numbering: Numbering
    has_vault: bool
    resumption: Resumption | None = None
    known: int = 0  # the rows of so many leaves were judged by an earlier run
    signed_from: int | None = None  # as its last checkpoint says
    # None once a leaf is lost: no later root can be computed
    tree: Frontier | None = field(default_factory=Frontier)
    agreed: int = 0  # the largest size at which the tree had the signed root
    is_astray: bool = False
    leaves_lost: list[int] = field(default_factory=list)  # first and last of a run
    heads_lost: list[int] = field(default_factory=list)  # sizes of anchored heads that the database lacks
    rows_lost: list[Leaf] = field(default_factory=list)
    keys_lost: list[int] = field(default_factory=list)  # first of them, and how many
    linked: Link | None = None
    breaks: list[StoredBreak] = field(default_factory=list)
    lost: list[LostRange] = field(default_factory=list)  # by breaks that were found to be true
    head_at: datetime | None = None  # when the newest head so far was signed

    _found_before: int = 0
    _digest: Any = field(default_factory=sha256)  # of the leaves and their records' ids

    def __post_init__(self) -> None:
        self.breaks = self.evidence.breaks(self.month)
        self._found_before = len(self.report.findings)

    def find_end(self) -> int:
        """The largest signed tree. Leaves beyond it are not covered by any signature."""
        stored = self.evidence.checkpoints_from_last(self.month)
        anchored = self.evidence.anchors_from_last(self.month)
        notes = ((size, note.decode(errors="replace")) for size, note in anchored)
        unsigned: list[Finding] = []
        heads = (
            self._last_signed("checkpoint", stored, unsigned),
            self._last_signed("anchor", notes, unsigned),
        )
        end = max(head.size if head else 0 for head in heads)
        told = [head.signed_from for head in heads if head and head.signed_from is not None]
        self.signed_from = min(told, default=None)
        for finding in unsigned:
            if (
                finding.leaf_index is not None and finding.leaf_index >= end
            ):  # others are found again by batch
                self.report.add(finding)
        return end

    def _last_signed(
        self, what: str, notes: Iterable[tuple[int, str]], unsigned: list[Finding]
    ) -> Checkpoint | None:
        for size, note in notes:
            found = self._opened(size, note, what)
            if isinstance(found, Checkpoint):
                return found
            unsigned.append(found)
        return None

    def add(self, batch: Batch) -> None:
        for size in batch.anchors_lost:
            message = f"The vault no longer holds the anchor of size {size}"
            self._add_finding(Verdict.MISSING, "anchor", message, size - 1)
        for size in batch.anchors_damaged:
            message = f"The leaves anchored with size {size} are not as they were written"
            self._add_finding(Verdict.TAMPERED, "anchor", message, size - 1)
        leaves = {leaf.leaf_index: leaf for leaf in batch.leaves}
        self._check_columns(batch)
        for index in range(batch.begin, batch.end):
            self._check_breaks(index)
            self._add_leaf(index, leaves.get(index), batch)
            if index + 1 in batch.checkpoints or index + 1 in batch.anchors:
                self._check_head(index + 1, batch)

    def keep(self, end: int) -> None:
        if self.resumption and not self.leaves_lost and not self.rows_lost:
            self.resumption.add(self.month, end, self._digest.hexdigest(), self.numbering, self.report)

    def finish(self, end: int) -> None:
        if end < self.known:
            raise LeavesChangedError
        self._report_lost_rows()
        self._check_breaks(end)
        if self._is_older_copy(end):
            self._report_older_copy(end)
        else:
            self._report_lost_leaves()
            self._report_lost_heads()
        self._report_breaks()
        if self.keys_lost:
            first, count = self.keys_lost
            message = f"{count} archived records have lost their key and were never erased"
            self._add_finding(Verdict.MISSING, "month", message, first)
        if beyond := self.evidence.leaves_beyond(self.month, end):
            count, index, log_id = beyond
            message = f"No signed checkpoint contains the last {count} leaves, from this one on"
            self._add_finding(Verdict.TAMPERED, "leaf", message, index, log_id)
        state = self.evidence.state(self.month)
        if state == "attached" or not end or not self.evidence.is_in_period(self.month):
            return
        if state == "archived" and not self.has_vault:
            self.report.count("archived months were not looked for in the wrong vault")
            return
        if state == "archived":
            self._check_archive(end)
        else:
            message = f"The month's partition is gone, and with it the records of leaves 0 to {end - 1}"
            self._add_finding(Verdict.MISSING, "month", message, 0)

    def _check_archive(self, end: int) -> None:
        """Check that its manifest exists and is of this tree. `affidavit audit verify --archive` checks its files."""
        content, digest = self.evidence.manifest(self.month)
        if content is None:
            message = f"The vault does not hold the archive of the records of leaves 0 to {end - 1}"
            self._add_finding(Verdict.MISSING, "file", message)
        elif message := self._wrong_with(content, digest, end):
            self._add_finding(Verdict.TAMPERED, "file", f"The archive's manifest in the vault {message}")
        else:
            message = "The records are in the archive; their leaves and its manifest were checked"
            self._add_finding(Verdict.ARCHIVED, "month", message)

    def _wrong_with(self, content: bytes, digest: str, end: int) -> str:
        try:
            manifest = open_manifest(content)
        except ArchiveError as wrong:
            return f"is not a manifest: {wrong}"
        if sha256(content).hexdigest() != digest or not manifest.is_signed_by(self.keys):
            return "is not the one that was written"
        root = self.tree.root() if self.tree and self.tree.size == end else manifest.root
        if (manifest.month, manifest.rows, manifest.root) != (self.month, end, root):
            return f"belongs to another tree: {manifest.rows} records of {manifest.month:%Y-%m}"
        return ""

    def _add_leaf(self, index: int, leaf: Leaf | None, batch: Batch) -> None:
        anchored = batch.anchored.get(index)
        sealed = anchored or (leaf.leaf_hash if leaf else None)
        if sealed is None:
            self.tree = None
        elif self.tree is not None:
            self.tree.append(sealed)
        for lost in self.lost:
            lost.gone.discard(sealed or b"")
        if leaf is None:
            self.leaves_lost[1:] = [index] if self.leaves_lost else [index, index]
            return
        self._report_lost_leaves()
        self._digest.update((sealed or b"") + leaf.log_id.encode())
        if index + 1 == self.known and self.resumption:
            self.resumption.check(self.month, self.known, self._digest.hexdigest())
        if anchored is not None and anchored != leaf.leaf_hash:
            message = "The database's leaf is not the one that was anchored in the vault"
            self._add_finding(Verdict.TAMPERED, "leaf", message, index, leaf.log_id)
        if leaf.log_id in batch.keyless:
            self._check_forgotten(leaf, batch.erasures.get(leaf.log_id, ()))
        if index < self.known:
            return
        if rows := batch.judged.get(index):
            self._report_lost_rows()
            self._check_rows(leaf, rows)
        elif leaf.log_id not in batch.outside_period and self._has_rows:
            self.rows_lost[1:] = [leaf] if self.rows_lost else [leaf, leaf]

    @property
    def _has_rows(self) -> bool:
        return self.evidence.is_in_period(self.month) and self.evidence.state(self.month) == "attached"

    def _check_columns(self, batch: Batch) -> None:
        if strange := [name for name in batch.columns if not COLUMN.fullmatch(name)]:
            self._add_finding(Verdict.TAMPERED, "month", f"The log has an unknown column, {strange[0]!r}")

    def _check_rows(self, leaf: Leaf, rows: Sequence[Judged]) -> None:
        self.report.checked += 1
        if len(rows) > 1:
            message = f"There are {len(rows)} records with the same id"
            self._add_finding(Verdict.TAMPERED, "row", message, leaf.leaf_index, leaf.log_id)
        for row in rows:
            verdict, message = row.verdict, row.message
            if verdict in PROVEN and not self._is_vouched_for(leaf, row):
                verdict, message = Verdict.TAMPERED, NOT_SIGNED
            if verdict in PROVEN:
                self.numbering.add(row.numbered, datetime.fromisoformat(row.timestamp))
            if verdict is Verdict.ERASED:
                self.report.count(ERASED)
            elif verdict is not Verdict.VALID:
                self._add_finding(verdict, "row", message, leaf.leaf_index, leaf.log_id)

    def _is_vouched_for(self, leaf: Leaf, row: Judged) -> bool:
        if row.is_signed is None:
            return not must_be_signed(row.schema_version, leaf.leaf_index, self.signed_from)
        return row.is_signed

    def _check_forgotten(self, leaf: Leaf, erasures: Sequence[Erasure]) -> None:
        """A record without a key must have a signed erasure line; if not, a part of the archive is lost."""
        if not erasures:
            first, count = self.keys_lost or (leaf.leaf_index, 0)
            self.keys_lost = [first, count + 1]
            return
        verdict, message = judge_erasure(erasures, self.keys)
        if verdict is Verdict.ERASED:
            self.report.count("archived records were erased, with a signed line for each")
        else:
            self._add_finding(verdict, "row", message, leaf.leaf_index, leaf.log_id)

    def _check_head(self, size: int, batch: Batch) -> None:
        """Check signature, place and root of the checkpoint and the anchor of this size."""
        stored, anchor = batch.checkpoints.get(size), batch.anchors.get(size)
        if anchor is not None and stored is None:
            self.heads_lost.append(size)
        elif anchor is not None and stored is not None and stored.encode() != anchor:
            message = f"The checkpoint of size {size} is not the one that was anchored in the vault"
            self._add_finding(Verdict.TAMPERED, "checkpoint", message, size - 1)
        if anchor is not None:
            self._check_note(size, anchor.decode(errors="replace"), "anchor")
        if stored is not None and stored.encode() != anchor:
            self._check_note(size, stored, "checkpoint")

    def _check_note(self, size: int, note: str, what: str) -> None:
        found = self._opened(size, note, what)
        if isinstance(found, Finding):
            self.report.add(found)
            return
        self.heads.add(found)
        self.head_at = found.issued_at
        if found.signed_from != self.signed_from and not self._is_before_signing(found):
            message = f"The {what} of size {size} does not say from where on records are signed as the last one does"
            self._add_finding(Verdict.TAMPERED, what, message, size - 1)
        if len(self.heads.origins) > 1:
            message = f"The {what} of size {size} belongs to another log, {found.origin}"
            self._add_finding(Verdict.TAMPERED, what, message, size - 1)
        self._check_named(found, what)
        self._check_root(found, what)

    def _is_before_signing(self, head: Checkpoint) -> bool:
        return head.signed_from is None and self.signed_from is not None and head.size <= self.signed_from

    def _check_named(self, checkpoint: Checkpoint, what: str) -> None:
        """A head names each break before it: else it is of another history, the lost one or a second one."""
        kept = [lost.broken.kept.size for lost in self.lost]
        count = max((at for at, size in enumerate(kept, 1) if size < checkpoint.size), default=0)
        if checkpoint.breaks != tuple(lost.line for lost in self.lost[:count]):
            message = f"The {what} of size {checkpoint.size} does not name the breaks of the month's history before it"
            self._add_finding(Verdict.TAMPERED, what, message, checkpoint.size - 1)

    def _check_breaks(self, size: int) -> None:
        """Check the breaks that begin at this size of the tree."""
        for stored in self.breaks:
            if stored.since == size:
                tree = self.tree if self.has_vault else None
                lost, wrong = check_break(stored, self.month, tree, self.keys)
                if lost:
                    self.lost.append(lost)
                    self.heads.origins.add(lost.broken.origin)
                    kept_at = self.head_at or datetime.combine(self.month, time(), UTC)
                    self.numbering.explain(kept_at, lost.broken.issued_at)
                if wrong:
                    self.report.add(wrong)
        self.breaks = [stored for stored in self.breaks if stored.since != size]

    def _report_breaks(self) -> None:
        """Every verdict repeats them, for as long as there is a log."""
        for lost in self.lost if self.has_vault else ():
            self._add_finding(Verdict.LOST_BY_FAILOVER, "break", str(lost), lost.broken.kept.size)
        for stored in self.breaks:
            message = f"The break {stored.number} of the month's history begins at leaf {stored.since}, beyond the month's tree"
            self._add_finding(Verdict.MISSING, "break", message)

    def _opened(self, size: int, note: str, what: str) -> Checkpoint | Finding:
        try:
            checkpoint = open_note(note, self.keys)
        except NoteError as wrong:
            message = f"The {what} of size {size}: {wrong}"
        else:
            if (checkpoint.month, checkpoint.size) == (self.month, size):
                return checkpoint
            message = (
                f"The {what} of size {size} is one of {checkpoint.month:%Y-%m} and size {checkpoint.size}"
            )
        return Finding(Verdict.TAMPERED, what, message, self.month, size - 1)

    def _check_root(self, checkpoint: Checkpoint, what: str) -> None:
        size = checkpoint.size
        if self.tree is not None and self.tree.root() == checkpoint.root:
            self.agreed, self.is_astray = size, False
        elif self.tree is not None and not self.is_astray:
            self.is_astray = True
            message = (
                f"The tree does not have the signed root of the {what} of size {size}:"
                f" at least one of the leaves {self.agreed} to {size - 1} was changed"
            )
            self._add_finding(Verdict.TAMPERED, what, message, self.agreed)
        if checkpoint.previous and checkpoint.previous != self.linked:
            self.linked = checkpoint.previous
            self._check_link(checkpoint.previous)

    def _check_link(self, link: Link) -> None:
        """Check that the earlier month has this checkpoint. Its own inspection compares it with its tree."""
        note = self.evidence.checkpoint(link.month, link.size)
        place = f"the checkpoint of {link.month:%Y-%m} and size {link.size}"
        try:
            earlier = open_note(note, self.keys) if note is not None else None
        except NoteError:
            return  # reported by the inspection of that month
        if earlier is None:
            message = f"{self.month:%Y-%m} was signed on top of {place}, which is missing"
            self.report.add(Finding(Verdict.MISSING, "link", message, link.month, link.size - 1))
        elif earlier.link != link:
            message = f"{self.month:%Y-%m} was signed on top of a root that differs from {place}"
            self.report.add(Finding(Verdict.TAMPERED, "link", message, link.month, link.size - 1))

    def _report_lost_leaves(self) -> None:
        if self.leaves_lost:
            first, last = self.leaves_lost
            message = "The leaf is missing" if first == last else f"The leaves {first} to {last} are missing"
            self._add_finding(Verdict.MISSING, "leaf", message, first)
            self.leaves_lost.clear()

    def _report_lost_heads(self) -> None:
        for size in self.heads_lost:
            message = f"The checkpoint of size {size} is anchored in the vault, but it is not in the database"
            self._add_finding(Verdict.MISSING, "checkpoint", message, size - 1)

    def _is_older_copy(self, end: int) -> bool:
        """The database ends at a head of its own, has nothing beyond, and differs from the vault in nothing before."""
        if self.leaves_lost[1:] != [end - 1] or len(self.report.findings) > self._found_before:
            return False
        kept = next((size for size, _ in self.evidence.checkpoints_from_last(self.month)), 0)
        return kept == self.leaves_lost[0] and all(size > kept for size in self.heads_lost)

    def _report_older_copy(self, end: int) -> None:
        """MISSING, and no milder word: whoever controls the database can bring about all that a failover leaves behind."""
        first, timeline = self.leaves_lost[0], self.evidence.timeline()
        message = (
            f"The database is an older copy of what the vault holds: it lacks the last {end - first} leaves, {first} to"
            f" {end - 1} (anchored heads: {len(self.heads_lost)}), and differs in nothing else. {_told_by(timeline)} If"
            f" nothing newer can be found, state the loss: `affidavit audit break --month {self.month:%Y-%m} --basis TEXT`"
        )
        self._add_finding(Verdict.MISSING, "leaf", message, first)

    def _report_lost_rows(self) -> None:
        if self.rows_lost:
            first, last = self.rows_lost
            many = f"The records of leaves {first.leaf_index} to {last.leaf_index} are missing"
            message = "The record is missing" if first == last else many
            self._add_finding(Verdict.MISSING, "row", message, first.leaf_index, first.log_id)
            self.rows_lost.clear()

    def _add_finding(
        self, verdict: Verdict, what: str, message: str, index: int | None = None, log_id: str | None = None
    ) -> None:
        self.report.add(Finding(verdict, what, message, self.month, index, log_id))
