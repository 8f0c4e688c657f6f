"""The rungs on which a record stands, and the verdict on each. Pure.

A package is judged record by record, from the words on the screen up to what others have witnessed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from audit.proof.verdict import Report, Verdict


class Rung(StrEnum):
    """From the bottom to the top."""

    WORDS = "words"
    ROW = "row"
    LEAF = "leaf"
    MONTH = "month"
    CHECKPOINT = "checkpoint"
    VAULT = "vault"
    WITNESS = "witness"
    TIME_STAMP = "time stamp"


PACKAGE, COVERAGE = "package", "coverage"  # the places of what concerns no single record


class RungVerdict(NamedTuple):
    verdict: Verdict
    words: str = ""


Ladder = Mapping[Rung, RungVerdict]
FINE = RungVerdict(Verdict.VALID)


@dataclass(slots=True)
class PackageReport(Report):
    """A report with the number of records by rung and verdict."""

    ladder: dict[Rung, Counter[Verdict]] = field(default_factory=lambda: {rung: Counter() for rung in Rung})
    cannot_tell: dict[Rung, str] = field(default_factory=dict)  # why a rung cannot be judged

    def climb(self, verdicts: Iterable[tuple[Rung, Verdict]], records: int = 1) -> None:
        for rung, verdict in verdicts:
            self.ladder[rung][verdict] += records

    def as_json(self) -> dict[str, Any]:
        ladder = {rung: dict(found) for rung, found in self.ladder.items()}
        # Named in full: `super()` does not work in a class with slots.
        return Report.as_json(self) | {"ladder": ladder, "cannot_tell": self.cannot_tell}

    def __str__(self) -> str:
        first, *rest = Report.__str__(self).splitlines()
        return "\n".join([first, *map(self._line, Rung), *rest])

    def _line(self, rung: Rung) -> str:
        found = ", ".join(f"{number} {verdict}" for verdict, number in self.ladder[rung].items())
        why = self.cannot_tell.get(rung)
        return f"  {rung:<12}{found or '-'}" + (f" ({why})" if why else "")
