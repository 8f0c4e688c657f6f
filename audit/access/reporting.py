"""Reports of reads by a login that can write no record: they wait in the database until an engine records them.

The server notes the login itself, and whoever reports can neither change nor take back what waits: sql/0034_access.sql.
"""

from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

_REPORT = "SELECT public.audit_report_read(%s, %s)"
_END = "SELECT public.audit_end_read(%s, %s, %s)"


async def report_read(connection: psycopg.AsyncConnection, command: str, details: dict[str, Any]) -> UUID:
    """Durable when it returns."""
    cursor = await connection.execute(_REPORT, (command, Jsonb(details)))
    ((read_id,),) = await cursor.fetchall()
    assert isinstance(read_id, UUID)
    return read_id


async def end_read(
    connection: psycopg.AsyncConnection, read_id: UUID, records: int | None, more: dict[str, Any]
) -> None:
    """`more` is what was not said at the beginning."""
    await connection.execute(_END, (read_id, records, Jsonb(more)))
