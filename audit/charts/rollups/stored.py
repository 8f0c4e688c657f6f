"""The tables of rollups: reads them, writes one, and says which leaves are in none."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import date, datetime

import psycopg
from psycopg import errors

from audit.charts.rollups.rollup import Count, CountKey, Counts, Rollup, digest_of

_MONTHS = """
WITH RECURSIVE months AS (
    SELECT min(month) AS month FROM public.audit_checkpoints
    UNION ALL
    SELECT (SELECT min(c.month) FROM public.audit_checkpoints c WHERE c.month > m.month) FROM months m WHERE m.month IS NOT NULL
)
SELECT month, (SELECT max(tree_size) FROM public.audit_checkpoints c WHERE c.month = m.month)
FROM months m WHERE month IS NOT NULL ORDER BY month
"""
_ROLLUPS = """
SELECT month, first_leaf, tree_size, root, version, erased, digest FROM public.audit_rollups ORDER BY month, first_leaf
"""
_COUNTS = """
SELECT day, measure, book_id, client_id, outcome, value, bucket, count, total, first_at, last_at
FROM public.audit_rollup_counts WHERE month = %s AND first_leaf = %s
"""
_HEAD = """
SELECT c.tree_size, c.note FROM public.audit_checkpoints c JOIN public.audit_anchors a USING (month, tree_size)
WHERE month = %s AND tree_size > %s ORDER BY tree_size DESC LIMIT 1
"""
_ERASED = """
SELECT count(DISTINCT log_id) FROM public.audit_erasures e JOIN public.audit_leaves s USING (month, log_id)
WHERE month = %s AND leaf_index >= %s AND leaf_index < %s
"""
_INSERT = "INSERT INTO public.audit_rollups VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
_COPY = "COPY public.audit_rollup_counts FROM STDIN"
_ADD_UP = """
INSERT INTO public.audit_rollup_sums
SELECT month, first_leaf, day, measure, outcome, value, bucket, sum(count), sum(total), min(first_at), max(last_at)
FROM public.audit_rollup_counts WHERE month = %s AND first_leaf = %s GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 4, 3
"""
_DELETE = "DELETE FROM public.audit_rollups WHERE month = %s AND first_leaf = %s AND tree_size = %s"
_LOCK = (
    "LOCK TABLE public.audit_rollups IN SHARE ROW EXCLUSIVE MODE NOWAIT"  # nobody who only reads holds it up
)
_NEWEST = "SELECT max(made_at) FROM public.audit_rollups"
# What is anchored, what is counted, and what was erased: with the sealed sizes all that a chart depends on.
_STATE = """
SELECT (SELECT string_agg((month, tree_size)::text, ' ' ORDER BY month) FROM (
            SELECT month, max(tree_size) AS tree_size FROM public.audit_anchors GROUP BY month) AS anchored),
       (SELECT string_agg((month, first_leaf, digest, made_at)::text, ' ' ORDER BY month, first_leaf) FROM public.audit_rollups),
       (SELECT count(*) FROM public.audit_erasures)
"""


def sealed_sizes(connection: psycopg.Connection) -> dict[date, int]:
    """How many leaves of each month are sealed."""
    return dict(connection.execute(_MONTHS).fetchall())


def rollups(connection: psycopg.Connection) -> list[Rollup]:
    return [Rollup(*row) for row in connection.execute(_ROLLUPS, binary=True)]


def counts_in(connection: psycopg.Connection, rollup: Rollup) -> Counts:
    found = connection.execute(_COUNTS, (rollup.month, rollup.first_leaf), binary=True)
    return {CountKey(*row[:7]): Count(*row[7:]) for row in found}


def state(connection: psycopg.Connection) -> tuple[object, ...]:
    """Equal as long as every chart of the same period and filter is the same."""
    return *sealed_sizes(connection).items(), *connection.execute(_STATE).fetchall()


def made_last_at(connection: psycopg.Connection) -> datetime | None:
    found = connection.execute(_NEWEST).fetchone()
    return found[0] if found else None


def anchored_head(connection: psycopg.Connection, month: date, above: int) -> tuple[int, str] | None:
    """The newest head of the month that is in the vault too, and its note, if it is larger."""
    return connection.execute(_HEAD, (month, above)).fetchone()


def erased_in(connection: psycopg.Connection, month: date, begin: int, end: int) -> int:
    found = connection.execute(_ERASED, (month, begin, end)).fetchone()
    return int(found[0]) if found else 0


def erasures(connection: psycopg.Connection) -> int:
    """Of all records ever."""
    found = connection.execute("SELECT count(*) FROM public.audit_erasures").fetchone()
    return int(found[0]) if found else 0


def anchored_size(connection: psycopg.Connection, month: date) -> int:
    """How many leaves of the month are below a head that is in the vault."""
    found = connection.execute(
        "SELECT max(tree_size) FROM public.audit_anchors WHERE month = %s", (month,)
    ).fetchone()
    return int(found[0] or 0) if found else 0


def uncovered(size: int, covered: list[Rollup]) -> Iterator[tuple[int, int]]:
    """The ranges of a month's leaves that no rollup has."""
    at = 0
    for rollup in covered:
        if at < rollup.first_leaf:
            yield at, rollup.first_leaf
        at = max(at, rollup.tree_size)
    if at < size:
        yield at, size


def uncovered_count(connection: psycopg.Connection) -> int:
    ends: dict[date, int] = {rollup.month: rollup.tree_size for rollup in rollups(connection)}
    return sum(size - ends.get(month, 0) for month, size in sealed_sizes(connection).items())


@contextmanager
def alone(connection: psycopg.Connection) -> Iterator[None]:
    """A transaction that no other maker of rollups works beside. `LockNotAvailable` if there is one."""
    with connection.transaction():
        connection.execute(_LOCK)
        yield


def put(
    connection: psycopg.Connection, rollup: Rollup, counts: Mapping[CountKey, Count], at: datetime
) -> bool:
    """Write it in place of one of the same leaves. False if another process wrote it first: the primary key decides.

    What a chart reads together lies together on disk.
    """
    made = replace(rollup, digest=digest_of(rollup, counts))
    place = (made.month, made.first_leaf)
    with suppress(errors.UniqueViolation), connection.transaction():
        connection.execute(_DELETE, (*place, made.tree_size))
        connection.execute(
            _INSERT, (*place, made.tree_size, made.root, made.version, made.erased, made.digest, at)
        )
        with connection.cursor().copy(_COPY) as copy:
            for key, count in sorted(counts.items(), key=lambda item: (item[0].measure, item[0].day)):
                copy.write_row((*place, *key, count.count, count.total, count.first_at, count.last_at))
        connection.execute(_ADD_UP, place)
        return True
    return False
