"""The factory of reports: the log over all tiers in the auditor's role, for the months of a period."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from typing import TYPE_CHECKING
from uuid import UUID

from audit.checking.evidence import Period
from audit.errors import UnansweredError
from audit.ledger.partitions import month_start
from audit.progress import Progress
from audit.reports.as_of import AsOf
from audit.reports.document import ControlReport, MeasureReport
from audit.reports.pack import Pack
from engine.settings import Settings
from engine.storage.database import Database
from engine.wiring.audit_log import open_tiers

if TYPE_CHECKING:  # Arrow takes longer to load than most commands take
    from audit.reports.measuring import Measuring

MARGIN_S = 1.0  # of a request's time: what a page needs beside the measuring


@contextmanager
def open_measuring(
    settings: Settings, database: Database, months: tuple[date, date], version: str, progress: Progress
) -> Iterator["Measuring"]:
    """Whole months, so that a report reads nothing of the others."""
    from audit.reports.measuring import Measuring

    period = Period(*map(month_start, months))
    with open_tiers(settings, database, period, is_open=False) as tiers:
        yield Measuring(tiers, version, progress)


def reports_of(settings: Settings, database: Database) -> MeasureReport:
    """For the console's pages: one at a time, and within the seconds of a request."""
    alone = ThreadPoolExecutor(1, "reports")
    within_s = settings.budget.total_s - MARGIN_S

    async def measure(pack: Pack, period: AsOf, event: UUID) -> ControlReport:
        opened, is_over = list["Measuring"](), threading.Event()

        def measured() -> ControlReport:
            with open_measuring(settings, database, period.months, version("affidavit"), _quiet) as measuring:
                opened.append(measuring)
                if is_over.is_set():
                    raise InterruptedError
                return measuring.measure(pack, period, event)

        try:
            async with asyncio.timeout(within_s):
                return await asyncio.get_running_loop().run_in_executor(alone, measured)
        except TimeoutError as late:
            raise UnansweredError("This period has more records than a page can measure.") from late
        finally:
            is_over.set()
            for measuring in opened:
                measuring.log.interrupt()  # nothing runs any more, unless it was too slow

    return measure


def _quiet(_: str, __: int, ___: int) -> None: ...
