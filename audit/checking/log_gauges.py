"""Gauges of the log for metrics: open, unsealed and spooled records, and months ahead.

Cheap for a log of any length, because they are polled every few seconds. `status.py` reads the full report.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from psycopg_pool import AsyncConnectionPool

from audit.checking.status import spool_files
from audit.ledger import partitions

# Rows committed since the last checkpoint, with a margin for rows that arrived late, from a spool.
_UNSEALED = """
SELECT count(*), coalesce(extract(epoch FROM now() - min(timestamp)), 0)::float FROM audit_logs l
WHERE timestamp >= coalesce(
        (SELECT created_at FROM audit_checkpoints ORDER BY month DESC, tree_size DESC LIMIT 1), '-infinity')
        - interval '10 minutes'
  AND NOT EXISTS (SELECT FROM audit_leaves WHERE log_id = l.log_id)
"""
_OPEN = "SELECT count(*) FROM audit_open"

Read = Callable[[str], Awaitable[tuple[list[str], list[tuple[Any, ...]]]]]  # runs SQL as the auditor


@dataclass(frozen=True, slots=True)
class LogGauges:
    """Counts of one moment."""

    open_records: int
    unsealed_rows: int
    unsealed_age_s: float
    months_ahead: int
    spool_entries: int
    spool_bytes: int


async def read_log_gauges(
    pool: AsyncConnectionPool, read: Read, spool: Path | None, today: date
) -> LogGauges:
    files = await asyncio.to_thread(spool_files, spool) if spool else []
    async with pool.connection() as connection:
        (open_records,) = await (await connection.execute(_OPEN)).fetchone() or (0,)
    ((rows, age_s),) = (await read(_UNSEALED))[1]
    return LogGauges(
        open_records=open_records,
        unsealed_rows=rows,
        unsealed_age_s=age_s,
        months_ahead=await partitions.count_months_ahead(pool, today),
        spool_entries=sum(file.entries for file in files),
        spool_bytes=sum(file.size_bytes for file in files if file.entries),
    )
