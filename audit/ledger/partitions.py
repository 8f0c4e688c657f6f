"""Monthly partitions of `audit_logs`, made ahead so that no request ever waits for one.

None is made by a clock that is behind the log: the months between would be missing for ever.
"""

from datetime import UTC, date, datetime, timedelta

import psycopg
from psycopg_pool import AsyncConnectionPool

from audit.errors import ClockBehindError

MONTHS_AHEAD = 3  # a quarter: time enough to notice that no process makes them any more
MONTHS_AHEAD_MIN = 2  # fewer is an alarm

BEHIND_MAX = timedelta(days=1)  # of the clock, behind the newest checkpoint; less than that harms no month

_NEWEST = "SELECT created_at FROM audit_checkpoints ORDER BY month DESC, tree_size DESC LIMIT 1"
_COUNT_AHEAD = """
SELECT count(*) FROM pg_inherits
WHERE inhparent = 'audit_logs'::regclass AND inhrelid::regclass::text > %s
"""


async def make_months_ahead(
    pool: AsyncConnectionPool, today: date, behind_max: timedelta = BEHIND_MAX
) -> list[str]:
    """Make this month and the next ones where they are missing; returns the names of those made. Idempotent."""
    made = []
    async with pool.connection() as connection:
        check_clock(today, await newest_checkpoint_at(connection), behind_max)
        for month in months_from(today, MONTHS_AHEAD + 1):
            cursor = await connection.execute("SELECT audit_make_month(%s)", (month,))
            if await cursor.fetchone() == (True,):
                made.append(partition_name(month))
    return made


async def newest_checkpoint_at(connection: psycopg.AsyncConnection) -> datetime | None:
    row = await (await connection.execute(_NEWEST)).fetchone()
    return row[0] if row else None


def check_clock(today: date, newest: datetime | None, behind_max: timedelta) -> None:
    if newest and today < newest.astimezone(UTC).date() - behind_max:
        raise ClockBehindError(
            f"The clock says {today}, but the log was sealed on {newest:%Y-%m-%d} already. Set the clock right and start"
            " again. If it is right, and was ahead when those records were written, set audit.clock_behind_days_max to"
            " the difference."
        )


async def make_months(pool: AsyncConnectionPool, since: date, today: date) -> list[str]:
    """Closes the gaps that a wrong clock left: every month since then that is missing."""
    count = (today.year - since.year) * 12 + today.month - since.month + 1
    async with pool.connection() as connection:
        return [
            partition_name(month)
            for month in months_from(since, count)
            if await (await connection.execute("SELECT audit_make_month(%s)", (month,))).fetchone() == (True,)
        ]


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
