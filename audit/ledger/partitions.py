"""Monthly partitions of `audit_logs`, made ahead so that no request ever waits for one."""

from datetime import UTC, date, datetime, timedelta

from psycopg_pool import AsyncConnectionPool

MONTHS_AHEAD = 3  # a quarter: time enough to notice that no process makes them any more
MONTHS_AHEAD_MIN = 2  # fewer is an alarm

_COUNT_AHEAD = """
SELECT count(*) FROM pg_inherits
WHERE inhparent = 'audit_logs'::regclass AND inhrelid::regclass::text > %s
"""


async def make_months_ahead(pool: AsyncConnectionPool, today: date) -> list[str]:
    """Make this month and the next ones where they are missing; returns the names of those made. Idempotent."""
    made = []
    async with pool.connection() as connection:
        for month in months_from(today, MONTHS_AHEAD + 1):
            cursor = await connection.execute("SELECT audit_make_month(%s)", (month,))
            if await cursor.fetchone() == (True,):
                made.append(partition_name(month))
    return made


async def count_months_ahead(pool: AsyncConnectionPool, today: date) -> int:
    async with pool.connection() as connection:
        cursor = await connection.execute(_COUNT_AHEAD, (partition_name(today),))
        row = await cursor.fetchone()
    return int(row[0]) if row else 0


def partition_name(month: date) -> str:
    return f"audit_logs_{month:%Y_%m}"


def month_start(month: date) -> datetime:
    return datetime(month.year, month.month, 1, tzinfo=UTC)


def next_month(month: date) -> date:
    return (month.replace(day=1) + timedelta(days=32)).replace(day=1)


def months_from(start: date, count: int) -> list[date]:
    """The first days of `count` months, beginning with the month of `start`."""
    first = start.year * 12 + start.month - 1
    return [date(number // 12, number % 12 + 1, 1) for number in range(first, first + count)]
