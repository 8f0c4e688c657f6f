"""Verification report: one verdict, and a finding for each place where something is wrong. Pure."""

from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from typing import Any

FINDINGS_MAX = 1_000  # more than a person reads; the others are counted


class Verdict(StrEnum):
    """Verdicts, worst first: the verdict of a report is that of its worst finding."""

    TAMPERED = "TAMPERED"
    MISSING = "MISSING"
    WRONG_VAULT = "WRONG_VAULT"  # the vault has no anchor of this log: another one, or emptied
    LOST_BY_FAILOVER = "LOST_BY_FAILOVER"  # an operator signed that a failover or a restore lost leaves
    CANNOT_TELL = "CANNOT_TELL"
    UNSEALED = "UNSEALED"
    ARCHIVED = "ARCHIVED"
    ERASED = "ERASED"
    VALID = "VALID"


_WORST_FIRST = tuple(Verdict)
PROVEN = frozenset({Verdict.VALID, Verdict.ERASED})
WHOLE = PROVEN | {Verdict.LOST_BY_FAILOVER}  # what there is, is proven


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, and where, as far as the place is known."""

    verdict: Verdict
    what: str  # row, leaf, checkpoint, anchor, link, break, hold, month, log, vault, head, time stamp, citation, key or file
    words: str
    month: date | None = None
    leaf_index: int | None = None
    log_id: str | None = None
    file: str | None = None  # of a package, and the line in it
    line: int | None = None

    def as_json(self) -> dict[str, Any]:
        month = f"{self.month:%Y-%m}" if self.month else None
        found = {
            "verdict": self.verdict, "what": self.what, "month": month, "leaf_index": self.leaf_index,
            "log_id": self.log_id, "words": self.words,
        }  # fmt: skip
        return found | ({"file": self.file, "line": self.line} if self.file else {})

    def __str__(self) -> str:
        where = [
            f"{self.month:%Y-%m}" if self.month else "",
            f"leaf {self.leaf_index}" if self.leaf_index is not None else "",
            f"record {self.log_id}" if self.log_id else "",
            f"{self.file}{f', line {self.line}' if self.line else ''}" if self.file else "",
        ]
        text = f"{self.verdict}: {self.words} ({', '.join(filter(None, where)) or self.what})"
        # A file may contain terminal escape sequences.
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


@dataclass(slots=True)
class Report:
    """Never VALID unless something was checked."""

    checked: int = 0
    findings: list[Finding] = field(default_factory=list)
    findings_left_off: int = 0
    counted: dict[str, int] = field(default_factory=dict)  # worth knowing, but no fault
    _worst: Verdict = Verdict.VALID

    def add(self, finding: Finding) -> None:
        self._worst = min(self._worst, finding.verdict, key=_WORST_FIRST.index)
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.findings_left_off += 1

    def count(self, what: str, number: int = 1) -> None:
        self.counted[what] = self.counted.get(what, 0) + number

    @property
    def verdict(self) -> Verdict:
        is_empty = self._worst is Verdict.VALID and not self.checked
        return Verdict.CANNOT_TELL if is_empty else self._worst

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict, "checked": self.checked,
            "findings": [finding.as_json() for finding in self.findings],
            "findings_left_off": self.findings_left_off, "counted": self.counted,
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{self.verdict} ({self.checked} checked)"]
        lines += [f"  {number} {what}" for what, number in self.counted.items()]
        lines += [f"  {finding}" for finding in self.findings]
        if self.findings_left_off:
            lines.append(f"  and {self.findings_left_off} more")
        if not self.checked and not self.findings:
            lines.append("  There was nothing to check, so there is no verdict.")
        return "\n".join(lines)
