"""Builds the search index of each month that is over. It is the month's own: it leaves with its table.

There are no statistics of its words and nothing waits in a pending list, so that an erased word is in no other place. A key of
the index itself outlives its last record: so an erasure builds the index anew (`audit/erasure/erase.py`).
"""

from datetime import date

import psycopg
from psycopg import sql

from audit.ledger.partitions import partition_name

_MISSING = """
SELECT m.month, to_regclass(to_char(m.month, '"audit_search_"YYYY_MM')) IS NOT NULL
FROM audit_months m JOIN pg_inherits ON inhrelid = m.relation AND inhparent = 'audit_logs'::regclass AND NOT inhdetachpending
WHERE m.month < date_trunc('month', %s::date) AND NOT EXISTS (
    SELECT FROM pg_index WHERE indexrelid = to_regclass(to_char(m.month, '"audit_search_"YYYY_MM')) AND indisvalid)
ORDER BY m.month
"""
_INDEX = sql.SQL("""
CREATE INDEX CONCURRENTLY {index} ON {table} USING gin
    (audit_search_words(user_query_text, answer_text, citations, provider_request_id, writer)) WITH (fastupdate = off)
""")


async def build_missing(connection: psycopg.AsyncConnection, today: date) -> list[date]:
    """In the owner's role, on autocommit. An unfinished one of a run that was killed is built anew. Returns the months."""
    months = await (await connection.execute(_MISSING, (today,))).fetchall()
    for month, is_unfinished in months:
        index = sql.Identifier(f"audit_search_{month:%Y_%m}")
        if is_unfinished:
            await connection.execute(sql.SQL("DROP INDEX CONCURRENTLY {}").format(index))
        await connection.execute(_INDEX.format(index=index, table=sql.Identifier(partition_name(month))))
        await connection.execute(sql.SQL("ALTER INDEX {} ALTER COLUMN 1 SET STATISTICS 0").format(index))
    return [month for month, _ in months]
