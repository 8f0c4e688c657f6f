"""Reads the lines of holds and of waiting erasures, and the log's records of them, in one snapshot."""

import psycopg
from psycopg.rows import dict_row

from audit.holding.doubts import ChangeRecord, HoldTables

HOLDS = """
SELECT hold_id, change, at, actor, approved_by, basis, subject, query_id, client_id, since, until, event, key_id, signature
FROM public.audit_holds ORDER BY at, hold_id
"""
REQUESTS = """
SELECT request_id, change, at, basis, subject, query_id, event, key_id, signature FROM public.audit_erasure_requests ORDER BY at
"""
SUBJECTS = "SELECT id, names, salt FROM public.audit_hold_subjects"
_RECORDS = """
SELECT log_id::text, timestamp, leaf_hash, signature, reason FROM public.audit_logs
WHERE endpoint LIKE 'affidavit audit hold %' AND outcome = 'recorded' AND reason IS NOT NULL
"""
# An archived record has its leaf still; one that was committed and not closed yet is open.
_EVENTS = """
SELECT event FROM (SELECT event FROM public.audit_holds UNION SELECT event FROM public.audit_erasure_requests) line
WHERE EXISTS (SELECT FROM public.audit_leaves s WHERE s.log_id = event)
   OR EXISTS (SELECT FROM public.audit_logs l WHERE l.log_id = event)
   OR EXISTS (SELECT FROM public.audit_open o WHERE o.log_id = event)
"""


def read_hold_tables(connection: psycopg.Connection) -> HoldTables:
    """On an autocommit connection, in the auditor's role."""
    with connection.transaction(), connection.cursor(row_factory=dict_row) as lines:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return HoldTables(
            holds=lines.execute(HOLDS).fetchall(),
            requests=lines.execute(REQUESTS).fetchall(),
            subjects={one: (names, salt) for one, names, salt in connection.execute(SUBJECTS)},
            events=frozenset(event for (event,) in connection.execute(_EVENTS)),
            records=[ChangeRecord(*row) for row in connection.execute(_RECORDS)],
        )
