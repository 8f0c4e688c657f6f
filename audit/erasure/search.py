"""PII scan of the log: finds likely personal data in questions, selections, filters and details.

Reports the record, the column and the kind, and never the text, so that the report itself holds no personal data.
"""

from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from audit.checking.evidence import StoredEvidence
from audit.erasure import personal
from audit.progress import Progress

READ_ROWS = 1_000
HITS_MAX = 1_000  # more than a person reads; the others are only counted

_COUNT = """
SELECT count(*) FROM public.audit_logs
WHERE timestamp >= %s AND timestamp < %s AND (user_query_text <> '' OR details IS NOT NULL)
"""
_TEXTS = """
SELECT timestamp, query_id::text, user_query_text, selected_text, filters::text, details::text FROM public.audit_logs
WHERE timestamp >= %s AND timestamp < %s AND (user_query_text <> '' OR details IS NOT NULL) ORDER BY timestamp
"""
COLUMNS = ("user_query_text", "selected_text", "filters", "details")


@dataclass(frozen=True, slots=True)
class RecordDetection:
    timestamp: datetime
    query_id: str
    column: str
    kinds: tuple[str, ...]


@dataclass(slots=True)
class PersonalDataReport:
    checked: int = 0
    records: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    hits: list[RecordDetection] = field(default_factory=list)
    hits_left_off: int = 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"archived_searched": False}


def search(evidence: StoredEvidence, progress: Progress) -> PersonalDataReport:
    """Scan all records of the period that are in PostgreSQL; archived months are not scanned."""
    report = PersonalDataReport()
    period = (evidence.period.since, evidence.period.until)
    (count,) = evidence.connection.execute(_COUNT, period).fetchone() or (0,)
    with evidence.connection.cursor("texts") as cursor:
        cursor.execute(_TEXTS, period)
        while rows := cursor.fetchmany(READ_ROWS):
            for timestamp, query_id, *texts in rows:
                _scan_record(report, timestamp, query_id, texts)
            progress("records", report.checked, count)
    return report


def _scan_record(
    report: PersonalDataReport, timestamp: datetime, query_id: str, texts: list[str | None]
) -> None:
    found = [[one.kind for one in personal.find(text or "")] for text in texts]
    report.checked += 1
    report.records += any(found)
    for column, kinds in zip(COLUMNS, found, strict=True):
        for kind in kinds:
            report.by_kind[kind] = report.by_kind.get(kind, 0) + 1
        if kinds and len(report.hits) < HITS_MAX:
            report.hits.append(RecordDetection(timestamp, query_id, column, tuple(sorted(set(kinds)))))
        elif kinds:
            report.hits_left_off += 1
