"""Re-verification of quotations: cuts every excerpt again from the stored passage and compares it with the record.

An excerpt is `passage[start:end]`; its section, page and address are those of the sentence in which it begins. Both are in
the sealed record, so a passage that was changed later is found, even after years.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from audit.checking.evidence import StoredEvidence
from audit.progress import Progress
from audit.proof import passage_id
from audit.proof.quotation import differences
from audit.proof.verdict import Finding, Report, Verdict

_READ_ROWS = 500  # some megabytes, with the cited passages

_CITING = """
SELECT log_id::text, timestamp, citations, index_generation::text, erased_at IS NOT NULL AS erased
FROM public.audit_logs
WHERE timestamp >= %s AND timestamp < %s AND (%s::uuid IS NULL OR query_id = %s)
  AND (citations IS NOT NULL AND jsonb_typeof(citations) = 'array' AND citations <> '[]' OR erased_at IS NOT NULL)
"""
_COUNT = "SELECT count(*) FROM public.audit_logs WHERE query_id = %s"
_NAMES = (*passage_id.COVERED, *passage_id.DERIVED)
_PASSAGES = f"SELECT {', '.join(_NAMES)} FROM public.chunks WHERE chunk_id = ANY(%s)"  # noqa: S608  our own names
_GENERATIONS = "SELECT generation_id::text FROM public.generations"


def check_quotations(evidence: StoredEvidence, query_id: UUID | None, progress: Progress) -> Report:
    """The verdict on all quotations of the period, or of one query."""
    report = Report()
    connection = evidence.connection
    known = {generation for (generation,) in connection.execute(_GENERATIONS)}
    if query_id and connection.execute(_COUNT, (query_id,)).fetchone() == (0,):
        report.add(Finding(Verdict.MISSING, "row", f"There is no record of query {query_id}"))
    done = 0
    for rows in _citing(evidence, query_id):
        passages = _passages(evidence, sorted({name for row in rows for name in _cited(row["citations"])}))
        for row in rows:
            _compare(row, passages, known, report)
        done += len(rows)
        progress("records", done, done + (len(rows) == _READ_ROWS))
    return report


def _citing(evidence: StoredEvidence, query_id: UUID | None) -> Iterator[list[dict[str, Any]]]:
    names = ("log_id", "timestamp", "citations", "index_generation", "erased")
    with evidence.connection.cursor("citing") as cursor:
        cursor.execute(_CITING, (evidence.period.since, evidence.period.until, query_id, query_id))
        while rows := cursor.fetchmany(_READ_ROWS):
            yield [dict(zip(names, row, strict=True)) for row in rows]


def _cited(citations: Any) -> Iterator[str]:
    """The ids of the cited passages. Tolerates citations that were tampered with."""
    for cited in citations or ():
        if isinstance(cited, dict) and isinstance(cited.get("chunk_id"), str):
            yield cited["chunk_id"]


def _passages(evidence: StoredEvidence, chunk_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    found = evidence.connection.execute(_PASSAGES, (chunk_ids,))
    passages = (dict(zip(_NAMES, row, strict=True)) for row in found)
    return {passage["chunk_id"]: passage for passage in passages}


def _compare(
    row: Mapping[str, Any], passages: Mapping[str, dict[str, Any]], known: set[str], report: Report
) -> None:
    if row["erased"]:
        report.count("records were erased, together with their quotations")
        return
    if row["index_generation"] not in known:  # old generations are dropped; their passages stay
        report.count("records were answered from an index generation that has been dropped")
    month = row["timestamp"].date().replace(day=1)
    for place, cited in enumerate(row["citations"], 1):
        report.checked += 1
        try:
            different = list(_differences(cited, passages.get(cited["chunk_id"])))
        except (KeyError, TypeError, ValueError):
            different = [(Verdict.TAMPERED, "it is not a well-formed citation")]
        for verdict, message in different:
            found = Finding(verdict, "citation", f"Quotation {place}: {message}", month, log_id=row["log_id"])
            report.add(found)


def _differences(cited: Mapping[str, Any], passage: dict[str, Any] | None) -> Iterator[tuple[Verdict, str]]:
    yield from differences(cited, passage)
    if passage is not None and not passage_id.is_as_ingested(passage):  # changed before the answer, too
        yield Verdict.TAMPERED, f"the passage {cited['chunk_id']} is not as it was ingested"
