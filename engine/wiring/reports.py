"""The factory of reports: the log over all tiers in the auditor's role, for the months of a period."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING

from audit.checking.evidence import Period
from audit.ledger.partitions import month_start
from audit.progress import Progress
from engine.settings import Settings
from engine.storage.database import Database
from engine.wiring.audit_log import open_tiers

if TYPE_CHECKING:  # Arrow takes longer to load than most commands take
    from audit.reports.measuring import Measuring


@contextmanager
def open_measuring(
    settings: Settings, database: Database, months: tuple[date, date], version: str, progress: Progress
) -> Iterator["Measuring"]:
    """Whole months, so that a report reads nothing of the others."""
    from audit.reports.measuring import Measuring

    period = Period(*map(month_start, months))
    with open_tiers(settings, database, period, is_open=False) as tiers:
        yield Measuring(tiers, version, progress)
