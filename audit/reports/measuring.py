"""Makes a report: reads the heads, asks each control's query over all tiers, and judges what it counted."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from typing import Protocol
from uuid import UUID

from audit.progress import Progress
from audit.proof.checkpoint import read_note
from audit.proof.note import to_base64
from audit.query.tiers import QueryResult
from audit.reports.as_of import AsOf, SealedHead
from audit.reports.document import ControlReport, MeasuredControl, cells
from audit.reports.judgement import judge
from audit.reports.pack import Control, Pack

_ORIGIN = "SELECT origin FROM audit_origin"
_SIZES = """
SELECT month, max(tree_size) AS tree_size FROM audit_checkpoints
WHERE created_at <= TIMESTAMPTZ '$taken_at' AND month >= DATE '$months_since' AND month < DATE '$months_until' GROUP BY month
"""
_NOTE = "SELECT note FROM audit_checkpoints WHERE month = DATE '{}' AND tree_size = {}"
_RECORDS = "SELECT count(*) AS records FROM records WHERE timestamp >= TIMESTAMPTZ '$period_since'"


class Asking(Protocol):
    """Port: the log over all tiers, in the auditor's role."""

    def query(self, statement: str) -> QueryResult: ...

    def interrupt(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Measuring:
    log: Asking
    version: str
    progress: Progress

    def measure(self, pack: Pack, period: AsOf, event: UUID | str) -> ControlReport:
        as_of = replace(period, heads=self._heads(period))
        origin = self.log.query(_ORIGIN).rows
        counted = self.log.query(as_of.query(_RECORDS))
        ((records,),) = counted.rows
        differences = {str(each) for each in counted.differences}
        measured = tuple(self._measured(pack, as_of, int(records)))
        return ControlReport(
            pack, str(origin[0][0]) if origin else "", as_of, int(records), measured, tuple(sorted(differences)),
            self.version, str(event),
        )  # fmt: skip

    def _measured(self, pack: Pack, as_of: AsOf, records: int) -> list[MeasuredControl]:
        found = []
        for number, control in enumerate(pack.controls, 1):
            found.append(_one(self.log.query, control, as_of, records))
            self.progress(f"controls of {pack.id}", number, len(pack.controls))
        return found

    def _heads(self, period: AsOf) -> tuple[SealedHead, ...]:
        """Sizes first: there is a note for every few seconds, and only the newest of each month are read."""
        sizes: list[tuple[date, int]] = sorted(self.log.query(period.fill(_SIZES)).rows)
        return tuple(SealedHead(month, size, self._root(month, size)) for month, size in sizes)

    def _root(self, month: date, size: int) -> str:
        ((note,),) = self.log.query(_NOTE.format(month, size)).rows
        return to_base64(read_note(note).root)


def _one(ask: Callable[[str], QueryResult], control: Control, as_of: AsOf, records: int) -> MeasuredControl:
    if not control.query:
        return MeasuredControl(control, judge(control, (), (), records))
    query = as_of.query(control.query)
    found = ask(query)
    rows = cells(found.rows)
    return MeasuredControl(
        control, judge(control, found.names, rows, records), query, tuple(found.names), rows
    )
