"""Reads the rows of a range of leaves, with what belongs to them. Sessions of several processes read in one snapshot."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import psycopg

from audit.checking.judgement import Erasure, StoredRow
from audit.checking.row_range import RowRange, StoredRows
from audit.session import Session

SEALED_WITHIN = timedelta(seconds=60)  # a sealer needs ten; an older record without a leaf is reported

# Defaults set for a role or a database must not change how we read, and no row policy may hide rows silently.
# A plan for any list of ids expects ten, and for more it reads the whole month: each range of a large month then took seconds.
SESSION = """
SET search_path = pg_catalog;
SET row_security = off;
SET bytea_output = hex;
SET extra_float_digits = 1;
SET timezone = 'UTC';
SET jit = off;
SET plan_cache_mode = force_custom_plan;
SET statement_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY
"""
_OUTSIDE_PERIOD = """
SELECT log_id::text FROM public.audit_logs
WHERE log_id = ANY(%s::uuid[]) AND timestamp >= %s AND timestamp < %s AND NOT (timestamp >= %s AND timestamp < %s)
"""
# The record of the erasure may itself be in an archived month: then its leaf proves that it exists.
_ERASURES = """
SELECT log_id::text, erasure_id, log_id, event, erased_at, commitments, key_id, signature, CASE
    WHEN EXISTS (SELECT FROM public.audit_leaves s WHERE s.log_id = e.event) THEN 'sealed'
    WHEN NOT EXISTS (SELECT FROM public.audit_logs l WHERE l.log_id = e.event AND l.timestamp = e.erased_at)
    THEN 'missing' WHEN erased_at < %s THEN 'late' ELSE 'waiting' END
FROM public.audit_erasures e WHERE log_id = ANY(%s::uuid[])
"""


class RowQueries(NamedTuple):
    """What a log of this version has to read."""

    rows: bytes  # the statement
    has_erasures: bool
    now: datetime


class Source(NamedTuple):
    """What a session needs to read as the first one does."""

    address: str
    snapshot: str
    queries: RowQueries


def shared_snapshot(connection: psycopg.Connection) -> str:
    """The name of the snapshot of this session's transaction, for as long as that is open."""
    ((snapshot,),) = connection.execute("SELECT pg_export_snapshot()").fetchall()
    return str(snapshot)


def joined_session(address: str, snapshot: str) -> psycopg.Connection:
    """Another session that reads in this snapshot."""
    connection = Session.connect(address, autocommit=True)
    connection.execute(SESSION.encode(), prepare=False)
    connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
    return connection


def read_rows(connection: psycopg.Connection, queries: RowQueries, wanted: RowRange) -> StoredRows:
    log_ids = [log_id for _, log_id, _ in wanted.leaves]
    found = connection.execute(queries.rows, (log_ids, *wanted.period), binary=True).fetchall()
    rows = defaultdict(list)
    for log_id, *row in found:
        rows[log_id].append(row)
    outside = frozenset[str]()
    if wanted.period != wanted.month:
        ids = connection.execute(_OUTSIDE_PERIOD, (log_ids, *wanted.month, *wanted.period))
        outside = frozenset(log_id for (log_id,) in ids)
    erasures = read_erasures(connection, queries, log_ids)
    stored = [
        (index, StoredRow(log_id, sealed, text, signature, erasures.get(log_id, ())))
        for index, log_id, sealed in wanted.leaves
        for text, signature in rows.get(log_id, ())
    ]
    return StoredRows(stored, outside)


def read_erasures(
    connection: psycopg.Connection, queries: RowQueries, log_ids: Sequence[str]
) -> Mapping[str, list[Erasure]]:
    found: dict[str, list[Erasure]] = defaultdict(list)
    if queries.has_erasures:
        for log_id, *line in connection.execute(_ERASURES, (queries.now - SEALED_WITHIN, log_ids)):
            found[log_id].append(Erasure(*line))
    return found
