"""Compares what a package says that its period holds with what is in it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

from audit.errors import PackageError
from audit.package.files import PackageFiles
from audit.package.heads import HeadOfMonth
from audit.package.ladder import COVERAGE
from audit.package.manifest import COVERAGE as COVERAGE_FILE
from audit.package.manifest import MANIFEST, PackageManifest, records_name, size_in
from audit.package.records import JudgedLine
from audit.proof.canonical import read_line
from audit.proof.verdict import Finding, Report, Verdict

GAPS_MAX = 1_000  # more than a person reads

_FIELDS = {"months", "unsealed", "is_whole", "verify"}
_MONTH_FIELDS = {"month", "tier", "size", "records", "unsealed", "anchored", "breaks"}
_WHOLE = {Verdict.VALID, Verdict.ERASED, Verdict.ARCHIVED, Verdict.UNSEALED}


@dataclass(slots=True)
class Counted:
    """What was found in a month's records."""

    records: int = 0
    withheld: int = 0
    erased: int = 0
    next_index: int = 0  # after the last record
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def add(self, line: JudgedLine) -> str:
        """Says what is wrong with its place among the others."""
        self.records += 1
        self.withheld += line.is_withheld
        self.erased += line.is_erased
        if line.leaf_index is None:
            return ""
        if line.leaf_index < self.next_index:
            return "The record is here twice, or not in the order of the leaves"
        if line.leaf_index > self.next_index and len(self.gaps) < GAPS_MAX:
            self.gaps.append((self.next_index, line.leaf_index - 1))
        self.next_index = line.leaf_index + 1
        return ""


def check_coverage(
    files: PackageFiles,
    heads: Mapping[date, HeadOfMonth],
    counted: Mapping[date, Counted],
    passages: int,
    report: Report,
) -> None:
    manifest = files.manifest
    _check_counts(manifest, counted, passages, report)
    try:
        said = read_line(files.read(COVERAGE_FILE), "The file", PackageError)
        _check_statement(said, manifest, heads, counted, report)
    except (ValueError, TypeError, KeyError, AttributeError) as wrong:
        words = str(wrong) if isinstance(wrong, PackageError) else "The file is not a statement of coverage"
        report.add(Finding(Verdict.TAMPERED, COVERAGE, words, file=COVERAGE_FILE))
    if manifest.is_whole:
        for month in counted:
            if _is_within(month, manifest) and (head := heads[month].checkpoint):
                _check_gaps(month, head.size, counted[month], report)


def _check_counts(
    manifest: PackageManifest, counted: Mapping[date, Counted], passages: int, report: Report
) -> None:
    found = {
        "records": sum(each.records for each in counted.values()), "withheld": sum(each.withheld for each in counted.values()),
        "erased": sum(each.erased for each in counted.values()), "passages": passages,
        "anchors": sum(name.startswith("anchors/") for name in manifest.files),
    }  # fmt: skip
    for name, number in found.items():
        if manifest.counts[name] != number:
            words = f"The manifest counts {manifest.counts[name]} {name}, and there are {number}"
            report.add(Finding(Verdict.TAMPERED, COVERAGE, words, file=MANIFEST))


def _check_statement(
    said: Mapping[str, Any],
    manifest: PackageManifest,
    heads: Mapping[date, HeadOfMonth],
    counted: Mapping[date, Counted],
    report: Report,
) -> None:
    if said.keys() != _FIELDS or any(each.keys() != _MONTH_FIELDS for each in said["months"]):
        raise PackageError("The file does not have exactly the members of a statement of coverage")
    if said["is_whole"] is not manifest.is_whole:
        raise PackageError("The file and the manifest disagree on how the records were chosen")
    if [each["month"] for each in said["months"]] != [f"{month:%Y-%m}" for month in heads]:
        raise PackageError("The file does not have the months of the package")
    for each, head in zip(said["months"], heads.values(), strict=True):
        anchors = [size_in(name) for name in manifest.files if name.startswith(f"anchors/{each['month']}/")]
        size = head.checkpoint.size if head.checkpoint else each["size"]
        found = (size, counted[head.month].records, max(anchors, default=0))
        if (each["size"], each["records"], each["anchored"]) != found:
            words = (
                f"The file says {each['records']} records in a tree of {each['size']} leaves, {each['anchored']} of them anchored;"
                f" there are {found[1]}, {found[0]} and {found[2]}"
            )
            report.add(Finding(Verdict.TAMPERED, COVERAGE, words, head.month, file=COVERAGE_FILE))
    if said["unsealed"]:
        report.count("records of the period were not sealed when the package was made", said["unsealed"])
    if Verdict(said["verify"]["verdict"]) not in _WHOLE:
        first = next((each["words"] for each in said["verify"]["findings"]), "there was nothing to verify")
        words = f"The log itself was not whole when the package was made: {first}"
        report.add(Finding(Verdict(said["verify"]["verdict"]), COVERAGE, words, file=COVERAGE_FILE))


def _check_gaps(month: date, size: int, counted: Counted, report: Report) -> None:
    """The period alone chose the records and holds the whole month: so every leaf has its record here."""
    gaps = counted.gaps + ([(counted.next_index, size - 1)] if counted.next_index < size else [])
    for first, last in gaps:
        words = f"The record of leaf {first}" if first == last else f"The records of leaves {first} to {last}"
        message = f"{words} should be in the package"
        report.add(Finding(Verdict.MISSING, COVERAGE, message, month, first, file=records_name(month)))


def _is_within(month: date, manifest: PackageManifest) -> bool:
    begin = datetime(month.year, month.month, 1, tzinfo=UTC)
    try:
        end = (begin + timedelta(days=31)).replace(day=1)
    except OverflowError:  # the last month of all
        return False
    return manifest.since <= begin and end <= manifest.until
