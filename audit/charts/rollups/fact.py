"""What is counted of one sealed record: no personal column, and of its citations only the chapter of the best one. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple


class SealedFact(NamedTuple):
    """The columns of a record under their names, and when its leaf was sealed and anchored."""

    sealed_at: datetime
    anchored_at: datetime | None
    timestamp: datetime
    is_question: bool
    book_id: str | None
    client_id: str | None
    outcome: str
    reason: str | None
    best_score: float | None
    threshold: float | None
    retrieval_latency_ms: int | None
    generation_latency_ms: int | None
    total_latency_ms: int | None
    tokens_input: int | None
    tokens_output: int | None
    model_requested: str | None
    model_used: str | None
    prompt_sha256: str | None
    settings_sha256: str | None
    code_version: str | None
    calibration_id: str | None
    embedder: str | None
    index_generation: str | None
    repeat_count: int
    chapter: str | None


_STORED = SealedFact._fields[4:-1]  # columns of the record


def archived_fact(row: Mapping[str, Any], sealed_at: datetime, anchored_at: datetime | None) -> SealedFact:
    """Of a record as it is archived. Its citations are encrypted there, so its chapter is unknown."""
    columns: list[Any] = [row.get(name) for name in _STORED]
    at = datetime.fromisoformat(row["timestamp"])
    return SealedFact._make([sealed_at, anchored_at, at, row.get("source_mode") is not None, *columns, None])
