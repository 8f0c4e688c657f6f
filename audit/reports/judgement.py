"""The judgement of a control: a pure function of what its query counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from audit.reports.pack import Control, Status

EMPTY = "No sealed record of this period was found, so nothing was measured."
NOTHING = "There was nothing to count, so nothing was measured."


@dataclass(frozen=True, slots=True)
class ControlVerdict:
    """The status, and in words why or how much."""

    status: Status
    words: str
    counted: int = 0
    violations: int = 0


def judge(
    control: Control, columns: Sequence[str], rows: Sequence[Sequence[Any]], sealed: int
) -> ControlVerdict:
    """`sealed` is how many records of the period the heads seal. Without any, nothing is met.

    Violations come first: a period whose rows were all deleted, or never sealed, has none that are sealed.
    """
    if not control.query:
        return ControlVerdict(control.unmeasured, control.because)
    counted, violations = (_total(columns, rows, name) for name in ("counted", "violations"))
    if violations:
        return ControlVerdict("not met", _figure(control, counted, violations, rows), counted, violations)
    if not sealed:
        return ControlVerdict("not measured", EMPTY)
    if not counted:
        return (
            ControlVerdict("not applicable", control.absent)
            if control.absent
            else ControlVerdict("not measured", NOTHING)
        )
    return ControlVerdict("met", _figure(control, counted, violations, rows), counted)


def _figure(control: Control, counted: int, violations: int, rows: Sequence[Any]) -> str:
    return control.figure.format(counted=f"{counted:,}", violations=f"{violations:,}", rows=f"{len(rows):,}")


def _total(columns: Sequence[str], rows: Sequence[Sequence[Any]], name: str) -> int:
    place = list(columns).index(name)
    return sum(int(row[place] or 0) for row in rows)
