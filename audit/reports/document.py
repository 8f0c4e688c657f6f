"""A report as a value, and as one line of canonical JSON. Pure."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from typing import Any
from uuid import UUID

from audit.package.manifest import time_text
from audit.proof.canonical import canonical_json, canonical_text
from audit.reports.as_of import AsOf
from audit.reports.judgement import ControlVerdict
from audit.reports.pack import Control, Pack, provisions

FORM = "affidavit-report-1"

Cell = str | int | None


@dataclass(frozen=True, slots=True)
class MeasuredControl:
    """A control with its judgement, and what anybody needs to measure it again."""

    control: Control
    judged: ControlVerdict
    query: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()

    @property
    def query_sha256(self) -> str:
        return sha256(self.query.encode()).hexdigest() if self.query else ""

    @property
    def result_sha256(self) -> str:
        """Over columns and rows as canonical JSON, the rows in the order of their texts."""
        if not self.query:
            return ""
        return sha256(canonical_json([list(self.columns), *(list(row) for row in self.rows)])).hexdigest()

    def as_json(self) -> dict[str, Any]:
        control, judged = self.control, self.judged
        return {
            "id": control.id, "title": control.title, "shows": control.shows, "met_means": control.met,
            "status": judged.status, "words": judged.words, "counted": judged.counted, "violations": judged.violations,
            "provisions": list(control.provisions), "query": self.query, "query_sha256": self.query_sha256,
            "columns": list(self.columns), "rows": [list(row) for row in self.rows], "result_sha256": self.result_sha256,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ControlReport:
    pack: Pack
    origin: str
    as_of: AsOf
    records: int  # sealed ones of the period
    controls: tuple[MeasuredControl, ...]
    differences: tuple[str, ...]  # from the shipped definitions, none of which changes an answer
    version: str
    event: str  # the record of the log that says that this report was made

    def as_json(self) -> dict[str, Any]:
        known = provisions()
        named = sorted({name for each in self.controls for name in each.control.provisions})
        return {
            "form": FORM, "pack": self.pack.id, "title": self.pack.title, "shows": self.pack.shows, "origin": self.origin,
            "since": time_text(self.as_of.since), "until": time_text(self.as_of.until), "taken_at": time_text(self.as_of.taken_at),
            "heads": [head.as_json() for head in self.as_of.heads], "records": self.records,
            "controls": [each.as_json() for each in self.controls], "differences": list(self.differences),
            "provisions": [{"id": name, "article": known[name].article, "asks": known[name].asks} for name in named],
            "version": self.version, "event": self.event,
        }  # fmt: skip

    def to_bytes(self) -> bytes:
        return canonical_json(self.as_json()) + b"\n"

    @property
    def counts(self) -> Mapping[str, int]:
        found = {"met": 0, "not met": 0, "not measured": 0, "not applicable": 0}
        for each in self.controls:
            found[each.judged.status] += 1
        return found


MeasureReport = Callable[[Pack, AsOf, UUID], Awaitable[ControlReport]]


def cells(rows: list[tuple[Any, ...]]) -> tuple[tuple[Cell, ...], ...]:
    """The same whichever database answered: whole numbers and texts, in the order of their texts."""
    plain = [tuple(_cell(value) for value in row) for row in rows]
    return tuple(sorted(plain, key=lambda row: canonical_text(list(row))))


def _cell(value: Any) -> Cell:
    if isinstance(value, float | Decimal) and value == int(value):
        return int(value)
    return value if value is None or isinstance(value, int) else str(value)
