"""From where a verification that was stopped goes on: what it has judged, bound to the very leaves. Pure.

Rows are what takes long, so only they are not judged again. Leaves, heads and anchors are always read anew, and each month's leaves
must be those under which its rows were judged, or nothing of it counts. Nothing is kept from the first finding on. The file of it
is the auditor's own: whoever can write it could also write the verdict.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from hashlib import sha256
from typing import Any

from audit.checking.numbering import Numbering
from audit.errors import LeavesChangedError
from audit.proof.canonical import canonical_json
from audit.proof.keys import PublicKey
from audit.proof.verdict import Report

FORMAT = "affidavit verification 1"
ERASED = "records were erased, and are proven"


@dataclass(slots=True)
class JudgedMonth:
    """The first leaves of a month, whose rows were judged and found right."""

    leaves: int
    digest: str  # of the leaves and their records' ids, in order


@dataclass(slots=True)
class Resumption:
    """`keep` gets the text of each new position. `about` is what the verification is of: another one begins anew."""

    about: str
    begun_at: str
    keep: Callable[[bytes], None]
    months: dict[str, JudgedMonth] = field(default_factory=dict)
    checked: int = 0
    erased: int = 0
    numbered: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, content: bytes, about: str, now: datetime, keep: Callable[[bytes], None]) -> "Resumption":
        """From where the content says. What is damaged, or of another verification, says nothing."""
        body = _body(content)
        if body is None or body["about"] != about:
            return cls(about, f"{now:%Y-%m-%d %H:%M:%S} UTC", keep)
        months = {month: JudgedMonth(*said) for month, said in body["months"].items()}
        return cls(about, body["begun_at"], keep, months, body["checked"], body["erased"], body["numbering"])

    def forget(self) -> None:
        self.months, self.checked, self.erased, self.numbered = {}, 0, 0, None

    def restore(self, numbering: Numbering, report: Report) -> None:
        """Begin with what was found earlier, and say so."""
        if self.numbered is None:
            return
        numbering.restore(self.numbered)
        report.checked = self.checked
        if self.erased:
            report.count(ERASED, self.erased)
        said = f"of them were judged earlier, by the run that began at {self.begun_at}, and not again"
        report.count(said, self.checked)

    def known(self, month: date) -> int:
        """So many of its first leaves need no judging."""
        found = self.months.get(f"{month:%Y-%m}")
        return found.leaves if found else 0

    def is_past(self, month: date) -> bool:
        """Whether the numbers of this month's records were begun to be counted earlier."""
        return f"{month:%Y-%m}" <= max(self.months, default="")

    def check(self, month: date, leaves: int, digest: str) -> None:
        if self.months[f"{month:%Y-%m}"] != JudgedMonth(leaves, digest):
            raise LeavesChangedError

    def add(self, month: date, leaves: int, digest: str, numbering: Numbering, report: Report) -> None:
        """All rows up to here were judged. If one was wrong, it will be judged again, and all after it."""
        if report.findings_left_off or any(finding.what == "row" for finding in report.findings):
            return
        self.months[f"{month:%Y-%m}"] = JudgedMonth(leaves, digest)
        body = {
            "format": FORMAT, "about": self.about, "begun_at": self.begun_at, "checked": report.checked,
            "erased": report.counted.get(ERASED, 0), "numbering": numbering.state(),
            "months": {name: [said.leaves, said.digest] for name, said in self.months.items()},
        }  # fmt: skip
        text = canonical_json(body)
        self.keep(text + b"\n" + sha256(text).hexdigest().encode() + b"\n")


def about(
    keys: Sequence[PublicKey], origins: Sequence[str], since: datetime, until: datetime, code_version: str
) -> str:
    """A digest of what is verified, under which keys, and by which program."""
    said = [
        FORMAT,
        *sorted(key.line for key in keys),
        *sorted(origins),
        since.isoformat(),
        until.isoformat(),
        code_version,
    ]
    return sha256("\n".join(said).encode()).hexdigest()


def _body(content: bytes) -> dict[str, Any] | None:
    text, _, digest = content.rstrip(b"\n").rpartition(b"\n")
    if sha256(text).hexdigest().encode() != digest:
        return None
    body = json.loads(text)
    return body if isinstance(body, dict) and body.get("format") == FORMAT else None
