"""A search for personal data in what readers wrote: which records, and what kind. Never the words themselves."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from audit.checking.evidence import StoredEvidence
from audit.erasure import personal
from audit.progress import Progress

READ_ROWS = 1_000
HITS_MAX = 1_000  # as many as somebody may look at; the others are counted

_COUNT = """
SELECT count(*) FROM public.audit_logs WHERE timestamp >= %s AND timestamp < %s AND user_query_text <> ''
"""
_WRITTEN = """
SELECT timestamp, query_id::text, user_query_text, selected_text, filters::text FROM public.audit_logs
WHERE timestamp >= %s AND timestamp < %s AND user_query_text <> '' ORDER BY timestamp
"""
_COLUMNS = ("user_query_text", "selected_text", "filters")


@dataclass(frozen=True, slots=True)
class RecordDetection:
    """A record that likely names somebody, and where."""

    timestamp: datetime
    query_id: str
    column: str
    kinds: tuple[str, ...]


@dataclass(slots=True)
class PersonalDataReport:
    """What was looked at, and what was found."""

    checked: int = 0
    records: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    hits: list[RecordDetection] = field(default_factory=list)
    hits_left_off: int = 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"archived_searched": False}


def search(evidence: StoredEvidence, progress: Progress) -> PersonalDataReport:
    """All questions, selections and filters of the time that is asked for, as far as they stand in PostgreSQL."""
    searched = PersonalDataReport()
    (count,) = evidence.connection.execute(
        _COUNT, (evidence.period.since, evidence.period.until)
    ).fetchone() or (0,)
    for rows in _written(evidence):
        for timestamp, query_id, *texts in rows:
            _look(searched, timestamp, query_id, texts)
        progress("records", searched.checked, count)
    return searched


def _written(evidence: StoredEvidence) -> Iterator[list[tuple[Any, ...]]]:
    with evidence.connection.cursor("written") as cursor:
        cursor.execute(_WRITTEN, (evidence.period.since, evidence.period.until))
        while rows := cursor.fetchmany(READ_ROWS):
            yield rows


def _look(searched: PersonalDataReport, timestamp: datetime, query_id: str, texts: list[str | None]) -> None:
    found = {
        column: [one.kind for one in personal.find(text or "")]
        for column, text in zip(_COLUMNS, texts, strict=True)
    }
    searched.checked += 1
    searched.records += any(found.values())
    for column, kinds in found.items():
        for kind in kinds:
            searched.by_kind[kind] = searched.by_kind.get(kind, 0) + 1
        if kinds and len(searched.hits) < HITS_MAX:
            searched.hits.append(RecordDetection(timestamp, query_id, column, tuple(sorted(set(kinds)))))
        elif kinds:
            searched.hits_left_off += 1
