"""Requests to see what is masked, and their approvals: rows of the log, and nothing else. They last as long as the policy says."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

# Who asks and who approves is noted by what writes the row. The first approval counts.
REQUESTS = """
SELECT q.log_id, coalesce((q.details ->> 'read_at')::timestamptz, q.timestamp), q.details -> 'asks' ->> 'who',
       q.details -> 'asks' ->> 'basis', a.who, a.at
FROM public.audit_logs q LEFT JOIN LATERAL (
    SELECT a.timestamp AS at, a.details -> 'approves' ->> 'who' AS who FROM public.audit_logs a
    WHERE a.timestamp >= q.timestamp AND a.details -> 'approves' ->> 'request' = q.log_id::text
      AND a.outcome IN ('recorded', 'served') ORDER BY a.timestamp LIMIT 1) a ON true
WHERE q.timestamp > %s AND q.details -> 'asks' ->> 'who' IS NOT NULL AND q.outcome IN ('recorded', 'served')
ORDER BY q.timestamp
"""


@dataclass(frozen=True, slots=True)
class UnmaskRequest:
    request_id: UUID
    asked_at: datetime
    who: str
    basis: str
    approved_by: str | None = None
    approved_at: datetime | None = None

    def refusal_of(self, second: str) -> str:
        """Why this person cannot approve it; empty if they can."""
        if second == self.who:
            return "Whoever asks cannot approve it: it takes a second person."
        return "It is approved already." if self.approved_by else ""
