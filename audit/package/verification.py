"""Verifies a whole evidence package: trusts the auditor's public keys and nothing in the package. Pure.

(1) the ZIP and its manifest            files.py
(2) the heads of the months             heads.py
(3) passages and erasures               here
(4) every record, on every rung         records.py, in several processes if they are wanted
(5) what the period should hold         coverage.py
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import date
from typing import Any, BinaryIO
from uuid import UUID

from audit.errors import PackageError
from audit.package import spreadsheet
from audit.package.coverage import Counted, check_coverage
from audit.package.elsewhere import NOBODY, Elsewhere, Trusted, check_elsewhere
from audit.package.files import PackageFiles
from audit.package.heads import HeadOfMonth, check_heads
from audit.package.ladder import PACKAGE, PackageReport, Rung, RungVerdict
from audit.package.manifest import ERASURES, KEYS, PASSAGES, SPREADSHEET, read_time, records_name
from audit.package.records import Judge, JudgedLine, JudgedLines, Lines, Signers, Surroundings
from audit.proof import passage_id
from audit.proof.canonical import read_line
from audit.proof.checkpoint import erasure_text
from audit.proof.keys import KeyRing, PublicKey
from audit.proof.note import of_base64
from audit.proof.verdict import Finding, Verdict

LINES = 250  # judged at a time
LINES_BYTES = 2**23  # fewer if they are large

_PASSAGE_FIELDS = {*passage_id.COVERED, *passage_id.DERIVED}
_ERASURE_FIELDS = {"erasure_id", "log_id", "event", "erased_at", "key_id", "signature"}

# Judges batches of lines, in their order.
Judging = Callable[[Iterator[Lines]], Iterator[JudgedLines]]
Workers = Callable[[Surroundings], AbstractContextManager[Judging]]


def in_this_process(about: Surroundings) -> AbstractContextManager[Judging]:
    judge = Judge(about)
    return nullcontext(lambda batches: map(judge.judge, batches))


def check_package(
    source: BinaryIO,
    keys: Sequence[PublicKey],
    trusted: Trusted = NOBODY,
    *,
    workers: Workers = in_this_process,
    signers: Signers = KeyRing.of,
) -> PackageReport:
    """The verdict on a package. Never VALID without a record."""
    report = PackageReport()
    if not keys:
        message = "There is no public key to verify with. Give one with --public-key."
        report.add(Finding(Verdict.CANNOT_TELL, PACKAGE, message))
        return report
    try:
        files = PackageFiles.open(source, keys, report)  # (1)
    except PackageError as wrong:
        report.add(Finding(Verdict.TAMPERED, PACKAGE, str(wrong)))
        return report
    keys = KeyRing.of(keys).with_delegations(files.read(KEYS).decode(errors="replace").splitlines())
    heads = check_heads(files, keys, report)  # (2)
    elsewhere = check_elsewhere(files, heads.values(), keys, trusted, report)  # (3)
    about = _read_surroundings(files, keys, signers, report)  # (4)
    records = _Records(files, report, _Spreadsheet(files, report), elsewhere)
    with workers(about) as judging:
        for head in heads.values():
            records.check(head, judging)  # (5)
    records.finish()
    check_coverage(files, heads, records.counted, len(about.passages), report)  # (6)
    files.finish()
    return report


def _read_surroundings(
    files: PackageFiles, keys: Sequence[PublicKey], signers: Signers, report: PackageReport
) -> Surroundings:
    passages, changed = _read_passages(files, report)
    erased = _read_erasures(files, keys, report)
    return Surroundings(files.manifest, keys, erased, passages, changed, signers)


def _read_passages(files: PackageFiles, report: PackageReport) -> tuple[dict[str, bytes], frozenset[str]]:
    found: dict[str, bytes] = {}
    changed, last = set(), ""
    for number, line in enumerate(files.lines(PASSAGES), 1):
        try:
            passage = read_line(line, "The passage", PackageError)
            chunk_id = str(passage["chunk_id"])
            words = (
                ""
                if passage.keys() == _PASSAGE_FIELDS
                else "The passage does not have exactly the columns of one"
            )
            if not words and not passage_id.is_as_ingested(passage):
                words = "The passage is not as it was ingested: its id does not follow from it"
            if not words and chunk_id <= last:
                words = "The passage is here twice, or not in order"
        except (PackageError, KeyError) as wrong:
            chunk_id, words = "", f"This is not a passage: {wrong}"
        if words:
            changed.add(chunk_id)
            report.add(Finding(Verdict.TAMPERED, Rung.WORDS, words, file=PASSAGES, line=number))
        found[chunk_id], last = line, chunk_id
    if found and files.manifest.is_redacted:
        report.add(Finding(Verdict.TAMPERED, Rung.WORDS, "A redacted package has no passages", file=PASSAGES))
    return found, frozenset(changed)


def _read_erasures(files: PackageFiles, keys: Sequence[PublicKey], report: PackageReport) -> frozenset[str]:
    erased = set()
    for number, line in enumerate(files.lines(ERASURES), 1):
        try:
            erased.add(_erased_by(read_line(line, "The line", PackageError), keys))
        except (ValueError, TypeError, AttributeError) as wrong:
            words = (
                str(wrong)
                if isinstance(wrong, PackageError)
                else "The line is not the signed one of an erasure"
            )
            report.add(Finding(Verdict.TAMPERED, Rung.ROW, words, file=ERASURES, line=number))
    return frozenset(erased)


def _erased_by(line: dict[str, Any], keys: Sequence[PublicKey]) -> str:
    """The record that a signed line says was erased."""
    if line.keys() != _ERASURE_FIELDS:
        raise PackageError("The line does not have exactly the members of an erasure")
    erasure_id, log_id, event = (UUID(line[name]) for name in ("erasure_id", "log_id", "event"))
    erased_at = read_time(line["erased_at"])
    message = erasure_text(erasure_id, log_id, event, erased_at)
    signature = of_base64(line["signature"])
    signers = KeyRing.of(keys).named(line["key_id"], erased_at)
    if not any(key.verify(signature, message) for key in signers):
        raise PackageError("None of the given keys signed this erasure")
    return str(line["log_id"])


@dataclass(slots=True)
class _Records:
    """Folds over the records of all months; what it holds does not grow with them."""

    files: PackageFiles
    report: PackageReport
    spreadsheet: "_Spreadsheet"
    elsewhere: Elsewhere
    counted: dict[date, Counted] = field(default_factory=dict)

    def check(self, head: HeadOfMonth, judging: Judging) -> None:
        counted = self.counted[head.month] = Counted()
        batches = list[Lines]()  # those that are being judged

        def given() -> Iterator[Lines]:
            for batch in _batches(self.files, head):
                batches.append(batch)
                yield batch

        for judged in judging(given()):
            batch = batches.pop(0)
            for finding in judged.findings:
                self.report.add(finding)
            agreed = self.spreadsheet.compare(batch, judged)
            for place, line in enumerate(judged.lines):
                words = (
                    None if place < agreed else Verdict.TAMPERED if place == agreed else Verdict.CANNOT_TELL
                )
                self._add(head, line, batch.first + place, counted, words)

    def _add(
        self, head: HeadOfMonth, line: JudgedLine, number: int, counted: Counted, spelled: Verdict | None
    ) -> None:
        self.report.checked += 1
        words = counted.add(line)
        red = dict(line.red) | head.red
        if spelled:
            red.setdefault(Rung.WORDS, spelled)
        if words:
            red.setdefault(Rung.LEAF, Verdict.TAMPERED)
            place = (head.month, line.leaf_index, None, records_name(head.month), number)
            self.report.add(Finding(Verdict.TAMPERED, Rung.LEAF, words, *place))
        if line.leaf_index is not None:
            above = {
                Rung.VAULT: head.vault(line.leaf_index),
                **self.elsewhere.rungs(head.month, line.leaf_index),
            }
            self._climb_above(above, red)
        self.report.climb((rung, red.get(rung, Verdict.VALID)) for rung in Rung)

    def _climb_above(self, above: Mapping[Rung, RungVerdict], red: dict[Rung, Verdict]) -> None:
        for rung, found in above.items():
            if found.verdict is not Verdict.VALID:
                red.setdefault(rung, found.verdict)
            if found.verdict is Verdict.CANNOT_TELL:
                self.report.cannot_tell.setdefault(rung, found.words)

    def finish(self) -> None:
        self.spreadsheet.finish()
        erased = sum(counted.erased for counted in self.counted.values())
        if erased:
            message = f"{erased} records are proven; their personal data was erased"
            self.report.add(Finding(Verdict.ERASED, Rung.WORDS, message, file=ERASURES))


def _batches(files: PackageFiles, head: HeadOfMonth) -> Iterator[Lines]:
    some: list[bytes] = []
    first, size = 1, 0
    for line in files.lines(records_name(head.month)):
        some.append(line)
        size += len(line)
        if len(some) == LINES or size > LINES_BYTES:
            yield Lines(head.compared, first, some)
            first, some, size = first + len(some), [], 0
    if some:
        yield Lines(head.compared, first, some)


class _Spreadsheet:
    """Compares the spreadsheet with what the bundles give, side by side."""

    def __init__(self, files: PackageFiles, report: PackageReport) -> None:
        self._pieces = files.pieces(SPREADSHEET)
        self._report = report
        self._waiting = b""
        self._is_astray = self._take(len(spreadsheet.heading())) != spreadsheet.heading()
        if self._is_astray:
            self._add("The spreadsheet does not begin with the names of its columns", 1)

    def compare(self, batch: Lines, judged: JudgedLines) -> int:
        """How many agree. If one differs, those after it cannot be compared: its length is not known. -1: it differed before."""
        if self._is_astray:
            return -1
        taken = self._take(sum(line.spelled for line in judged.lines))
        if judged.digest == spreadsheet.digest(taken):
            return len(batch.lines)
        self._is_astray = True
        place = spreadsheet.first_difference(taken, batch.lines)
        message = (
            f"The spreadsheet differs from line {batch.first + place} of {records_name(batch.month.month)} on"
        )
        self._add(message, None)
        return place

    def finish(self) -> None:
        if not self._is_astray and self._take(1):
            self._add("The spreadsheet has more lines than there are records", None)
        for _ in self._pieces:
            pass

    def _take(self, size: int) -> bytes:
        parts, have = [self._waiting], len(self._waiting)
        while have < size and (piece := next(self._pieces, b"")):
            parts.append(piece)
            have += len(piece)
        whole = b"".join(parts)
        self._waiting = whole[size:]
        return whole[:size]

    def _add(self, words: str, line: int | None) -> None:
        self._report.add(Finding(Verdict.TAMPERED, Rung.WORDS, words, file=SPREADSHEET, line=line))
