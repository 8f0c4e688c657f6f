"""Which tables and views hold personal columns. What is not named here counts as all of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from audit.proof.record import PERSONAL

# Of a view, the columns that are made of a personal column of another name; and those that only have such a name.
_MADE_OF: dict[str, dict[str, str | None]] = {
    "audit_logs": {},
    "audit_access": dict.fromkeys(
        ("read_at", "who", "role", "asked_for", "personal_columns", "records", "basis", "second_person"), "details"
    ),
    "audit_changes": {},
    "audit_citations": dict.fromkeys(
        ("chunk_id", "n", "excerpt", "excerpt_start", "excerpt_end", "score", "chapter", "section", "filename", "page", "url"),
        "citations",
    ),
    "audit_feedback": dict.fromkeys(("query_id", "helpful", "complaint"), "details"),
    "audit_low_confidence": {"citations": None},  # their number
    "audit_questions": {},
    "audit_refusals": {},
    "audit_requests_by_day": {},
    "audit_reviews": dict.fromkeys(("grounded", "answers", "harmful", "personal_data", "comment"), "details"),
    "audit_slow_requests": {},
}  # fmt: skip
# Evidence, counts and books: no reader's words, name or address.
IMPERSONAL = frozenset(
    {
        "audit_anchors", "audit_archives", "audit_breaks", "audit_checkpoints", "audit_delegations", "audit_erasure_requests",
        "audit_erasures", "audit_head_anchors", "audit_head_entries", "audit_heads", "audit_holds", "audit_keys", "audit_leaves",
        "audit_months", "audit_origin", "audit_reads_waiting", "audit_rollup_counts", "audit_rollup_sums", "audit_rollups", "audit_row_keys", "audit_set_aside", "books", "calibrations",
        "chunks", "documents", "generation_chunks", "generations", "schema_migrations", "verification_runs",
    }
)  # fmt: skip
LOG_VIEWS = frozenset(_MADE_OF)


@dataclass(frozen=True, slots=True)
class Relation:
    """The log or one of its views, with the type of each column."""

    name: str
    columns: Mapping[str, str]

    def personal(self) -> dict[str, str]:
        """Which personal column each column shows, of those that show one."""
        made_of = _MADE_OF[self.name]
        sources = {name: made_of.get(name, name if name in PERSONAL else None) for name in self.columns}
        return {name: source for name, source in sources.items() if source}
