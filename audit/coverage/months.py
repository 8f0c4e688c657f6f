"""What is known of each month: where it is, and how much of it is sealed, anchored, witnessed, archived, missing, erased, held."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from audit.checking.month_tiers import AUDITOR, Read, StoredMonth
from audit.checking.status import Status

# The months' heads below the newest head of the log of heads that a quorum of witnesses has cosigned.
_WITNESSED = """
SELECT month, max(tree_size) FROM audit_head_entries
WHERE entry_index < (SELECT max(tree_size) FROM audit_head_anchors WHERE has_quorum) GROUP BY month
"""
# A hold may name a reader or a client as well: then it covers some records of these months, and which is not for everybody to see.
_HOLDS = """
SELECT since, until FROM audit_holds h
WHERE change = 'added' AND NOT EXISTS (SELECT FROM audit_holds r WHERE r.hold_id = h.hold_id AND r.change = 'released')
"""

Hold = tuple[datetime | None, datetime | None]


@dataclass(frozen=True, slots=True)
class MonthCoverage:
    """The numbers are of records. `missing`: sealed, and neither in the log nor in a verified archive."""

    month: date
    tier: str  # hot, warm, restored, detached, archived, missing
    records: int
    sealed: int
    anchored: int
    witnessed: int
    archived: int
    missing: int
    erased: int
    holds: int  # in force that may cover records of this month


async def read_coverage(read: Read, status: Status, hot_from: datetime) -> list[MonthCoverage]:
    """The months of the log, the oldest first."""
    witnessed: dict[date, int] = dict((await read(AUDITOR, _WITNESSED))[1])
    holds: list[Hold] = [(since, until) for since, until in (await read(AUDITOR, _HOLDS))[1]]
    return of_months(status, witnessed, holds, hot_from)


def of_months(
    status: Status, witnessed: Mapping[date, int], holds: Sequence[Hold], hot_from: datetime
) -> list[MonthCoverage]:
    anchored = {head["month"]: head["anchored_size"] or 0 for head in status.evidence}
    rowless = {month: count for month, count, _ in status.rowless}
    return [
        _of_month(stored, anchored, rowless, witnessed.get(stored.month, 0), holds, hot_from)
        for stored in sorted(status.months, key=lambda one: one.month)
    ]


def _of_month(
    stored: StoredMonth,
    anchored: Mapping[str, int],
    rowless: Mapping[str, int],
    witnessed: int,
    holds: Sequence[Hold],
    hot_from: datetime,
) -> MonthCoverage:
    name, tier = f"{stored.month:%Y-%m}", stored.tier(hot_from)
    archived = stored.archived or 0 if stored.is_verified else 0
    kept = stored.rows if stored.is_attached else archived
    lost = rowless.get(name, 0) if stored.is_attached else max(stored.leaves - archived, 0)
    return MonthCoverage(
        stored.month, tier, kept, stored.leaves, anchored.get(name, 0), witnessed, archived, lost, stored.erased,
        sum(_may_cover(hold, stored.month) for hold in holds),
    )  # fmt: skip


def _may_cover(hold: Hold, month: date) -> bool:
    since, until = hold
    is_begun = since is None or f"{since:%Y-%m}" <= f"{month:%Y-%m}"
    return is_begun and (
        until is None or f"{until:%Y-%m-%d %H:%M:%S.%f}" > f"{month:%Y-%m-%d} 00:00:00.000000"
    )
