"""Reports made in memory, without a log."""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

from audit.reports.as_of import AsOf, SealedHead
from audit.reports.document import ControlReport, MeasuredControl, cells
from audit.reports.judgement import judge
from audit.reports.pack import Control, pack_of

AS_OF = AsOf(
    datetime(2026, 10, 1, tzinfo=UTC),
    datetime(2026, 11, 1, tzinfo=UTC),
    datetime(2026, 11, 2, 8, 30, tzinfo=UTC),
    (SealedHead(date(2026, 10, 1), 4212, "qGzX" * 10 + "qGw="),),
)
EVENT = "0190c2a4-7b1e-7c3d-9f00-5b8f2d1e6a47"
ORIGIN = "affidavit/5f0c2b7e"


def report(pack: str, rows: Mapping[str, list[tuple[Any, ...]]], records: int = 4212) -> ControlReport:
    """`rows` of a control, by its id, are (what, counted, violations); all others counted one thing."""
    made = pack_of(pack)
    measured = tuple(
        _measured(each, rows.get(each.id, [("2026-10", 1, 0)]), records) for each in made.controls
    )
    return ControlReport(made, ORIGIN, AS_OF, records, measured, (), "0.1.0", EVENT)


def _measured(control: Control, rows: list[tuple[Any, ...]], records: int) -> MeasuredControl:
    columns = ("what", "counted", "violations")
    judged = judge(control, columns, rows, records)
    if not control.query:
        return MeasuredControl(control, judged)
    return MeasuredControl(control, judged, AS_OF.query(control.query), columns, cells(rows))
