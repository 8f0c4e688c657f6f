"""Factories of rollups and of charts."""

import asyncio
import logging
import pickle
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

from psycopg import IsolationLevel

from audit import worker
from audit.charts.figures.chart_log import ChartLog, LiveCounts
from audit.charts.figures.choice import ChartChoice
from audit.charts.rollups.checking import RollupCheck
from audit.charts.rollups.keeping import RollupKeeper
from audit.errors import RollupsBusyError, WorkerEndedError
from audit.markup import Markup
from engine.errors import StatementError
from engine.settings import Settings
from engine.storage.database import AUDITOR, Database, reading
from engine.wiring.audit_log import sealed_rows_of
from engine.wiring.providers import FROM_ENVIRONMENT, now, vault_of
from engine.wiring.signing import known_keys

SEALER = "affidavit_sealer"
FIRST_LOOK_S = 20.0  # readers come first
LOOK_S = 300.0  # whether a rollup is due
STOP_S = 1.0
PAUSE_S = 0.05  # after some thousand rows
DRAWING = "engine.wiring.drawing"
MARGIN_S = 2.0  # of a request's time: what a page needs beside its charts
DRAW_S = 30.0  # for the statements of a chart: a page that was given up is drawn to its end for so long
TOO_LATE = "The chart was not ready in time."
NOT_DRAWN = "The process that draws charts has ended."

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
    settings: Settings,
    database: Database,
    choice: ChartChoice,
    within_s: float | None = None,
    live: LiveCounts | None = None,
) -> Iterator[ChartLog]:
    """`within_s` limits each statement. All that is read of the database is of one moment.

    `live` keeps what was counted for an earlier one.
    """
    with reading(database.url, AUDITOR) as connection:
        connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
        limit_ms = f"{(within_s or settings.audit.query_s) * 1000:.0f}"
        connection.execute(_LIMITS, (limit_ms,))
        yield ChartLog(
            connection, sealed_rows_of(connection, vault_of(settings)), choice, live or LiveCounts()
        )


class ChartDrawer:
    """Charts for the console's pages, drawn by a process of its own (`drawing`), which is started for the first page.

    One page after another: drawing keeps a processor busy, and the others are the readers'. What takes longer than a page can wait
    is drawn to its end, for whoever loads the page again. A page that gave up before its turn is not drawn.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._within_s = database.settings.budget.total_s - MARGIN_S
        self._turns = ThreadPoolExecutor(1, "charts")
        self._process: worker.Worker | None = None

    async def sections(self, choice: ChartChoice, address: str) -> Markup | None:
        """None: they are being drawn, and were not ready within the time of a page."""
        try:
            return Markup(await self._drawn(WantedDrawing(self._database, choice, address)))
        except TimeoutError:
            return None

    async def csv(self, choice: ChartChoice, name: str) -> str:
        try:
            return await self._drawn(WantedDrawing(self._database, choice, name=name))
        except TimeoutError:
            raise StatementError(TOO_LATE) from None

    async def close(self) -> None:
        """At once: nobody waits for a picture at the end."""
        self._turns.shutdown(wait=False, cancel_futures=True)
        if self._process:
            await asyncio.to_thread(self._process.end)

    async def _drawn(self, wanted: "WantedDrawing") -> str:
        async with asyncio.timeout(self._within_s):  # it cancels what has not begun
            return await asyncio.get_running_loop().run_in_executor(self._turns, self._ask, wanted)

    def _ask(self, wanted: "WantedDrawing") -> str:
        if self._process is None:
            self._process = worker.Worker(worker.command(DRAWING), env=worker.environment(*FROM_ENVIRONMENT))
        try:
            failed, drawn = self._process.request(b"", pickle.dumps(wanted), deadline_s=2 * DRAW_S)
        except WorkerEndedError:
            self._process = None
            raise StatementError(NOT_DRAWN) from None
        if failed:
            raise pickle.loads(drawn)  # noqa: S301  from a process of ours
        return drawn.decode()


@dataclass(frozen=True, slots=True)
class WantedDrawing:
    """What a page asks of the process that draws: all charts, or the one of this name as CSV."""

    database: Database
    choice: ChartChoice
    address: str = ""
    name: str | None = None


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
