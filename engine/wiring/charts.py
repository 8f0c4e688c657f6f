"""Factories of rollups and of charts."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

import psycopg
from psycopg import IsolationLevel

from audit.charts.figures.catalogue import DrawCharts, chart_of
from audit.charts.figures.chart import Chart
from audit.charts.figures.chart_log import ChartLog
from audit.charts.figures.choice import ChartChoice
from audit.charts.rollups.checking import RollupCheck
from audit.charts.rollups.keeping import RollupKeeper
from audit.errors import RollupsBusyError
from engine.settings import Settings
from engine.storage.database import AUDITOR, Database, reading
from engine.wiring.audit_log import sealed_rows_of
from engine.wiring.providers import now, vault_of
from engine.wiring.signing import known_keys

SEALER = "affidavit_sealer"
FIRST_LOOK_S = 20.0  # readers come first
LOOK_S = 300.0  # whether a rollup is due
STOP_S = 1.0
PAUSE_S = 0.05  # after some thousand rows
DRAWN_AT_ONCE = 2  # pages: more would keep readers waiting

# On one processor: the others are the readers'.
_LIMITS = "SELECT set_config('statement_timeout', %s, false), set_config('max_parallel_workers_per_gather', '0', false)"

log = logging.getLogger(__name__)


@contextmanager
def open_rollup_keeper(settings: Settings, database: Database) -> Iterator[RollupKeeper]:
    with reading(database.url, SEALER) as connection:
        connection.autocommit = True
        yield RollupKeeper(connection, sealed_rows_of(connection, vault_of(settings)), now)


@contextmanager
def open_rollup_check(settings: Settings, database: Database) -> Iterator[RollupCheck]:
    keys = known_keys(database)
    with reading(database.url, AUDITOR) as connection:
        connection.autocommit = True
        yield RollupCheck(connection, sealed_rows_of(connection, vault_of(settings)), keys)


@contextmanager
def open_chart_log(
    settings: Settings, database: Database, choice: ChartChoice, within_s: float | None = None
) -> Iterator[ChartLog]:
    """`within_s` limits each statement. All that is read of the database is of one moment."""
    with reading(database.url, AUDITOR) as connection:
        connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
        limit_ms = f"{(within_s or settings.audit.query_s) * 1000:.0f}"
        connection.execute(_LIMITS, (limit_ms,))
        yield ChartLog(connection, sealed_rows_of(connection, vault_of(settings)), choice)


def charts_of(settings: Settings, database: Database) -> DrawCharts:
    """Charts for the console's pages: beside the readers' connections and threads, and only some at once."""
    threads = ThreadPoolExecutor(DRAWN_AT_ONCE, "charts")

    def made(choice: ChartChoice, names: Sequence[str], page: _WaitingPage) -> list[Chart]:
        with open_chart_log(settings, database, choice, settings.budget.total_s) as log:
            page.connection = log.connection
            prices = settings.prices
            return [
                chart_of(name, log, prices.by_model, prices.currency) for name in names if page.still_waits()
            ]

    async def draw(choice: ChartChoice, names: Sequence[str]) -> list[Chart]:
        page, loop = _WaitingPage(), asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(threads, made, choice, names, page)
        except asyncio.CancelledError:
            loop.run_in_executor(None, page.give_up)
            raise

    return draw


@dataclass(slots=True)
class _WaitingPage:
    """A thread cannot be cancelled, but its statement can, and it asks before each chart."""

    connection: psycopg.Connection | None = None
    is_given_up: bool = False

    def still_waits(self) -> bool:
        if self.is_given_up:
            raise InterruptedError
        return True

    def give_up(self) -> None:
        self.is_given_up = True
        if self.connection:
            with suppress(psycopg.Error):  # it has ended meanwhile
                self.connection.cancel()


@asynccontextmanager
async def keeping_rollups(settings: Settings, database: Database) -> AsyncIterator[None]:
    """In the background until the end of the block: makes the rollups of a day once it is over.

    A daemon: an orderly stop does not wait for a database that does not answer.
    """
    is_over = threading.Event()
    thread = threading.Thread(target=_keep, args=(settings, database, is_over), name="rollups", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        await asyncio.to_thread(thread.join, STOP_S)


def _keep(settings: Settings, database: Database, is_over: threading.Event) -> None:
    """A failure is said once: charts then read the rows themselves, and the next round tries again."""
    trouble, wait_s = "", FIRST_LOOK_S
    while not is_over.wait(wait_s):
        said, wait_s = trouble, LOOK_S
        try:
            _make_if_due(settings, database, is_over)
            trouble = ""
        except InterruptedError:
            return
        except Exception as failure:  # noqa: BLE001  every failure is retried; a driver's message could repeat a row
            trouble = type(failure).__name__
        if trouble and trouble != said:
            log.warning("No rollup was made (%s). It is tried again; no chart needs it.", trouble)


def _make_if_due(settings: Settings, database: Database, is_over: threading.Event) -> None:
    """A thread cannot be cancelled: at the end of the process it gives up at its next pause, which are there for readers."""

    def go_on(*_: object) -> None:
        if is_over.wait(PAUSE_S):
            raise InterruptedError

    with open_rollup_keeper(settings, database) as keeper:
        if keeper.is_due():
            with suppress(RollupsBusyError):
                keeper.make(go_on)
