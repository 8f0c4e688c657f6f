"""The process that draws charts for the console: readers come first, and pages that nobody waits for any more are not drawn."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator

import pytest

from audit.charts.figures.choice import ChartChoice
from engine.errors import StatementError
from engine.storage.database import Database
from engine.wiring import now
from engine.wiring.charts import ChartDrawer, WantedDrawing

ADDRESS = "/console/charts"


@pytest.fixture
def choice() -> ChartChoice:
    today = now().date()
    return ChartChoice(today.replace(day=1), today.replace(day=28))


@pytest.fixture
async def drawer(anyio_backend: str, database: Database) -> AsyncIterator[ChartDrawer]:
    made = ChartDrawer(database)
    made._within_s = 60.0  # this machine may be busy
    yield made
    await made.close()


async def test_charts_are_drawn_by_another_process_at_a_low_priority(
    drawer: ChartDrawer, choice: ChartChoice
) -> None:
    page = await drawer.sections(choice, ADDRESS)
    assert "<svg" in str(page)
    assert drawer._process
    pid = drawer._process._process.pid
    assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)


# Seen red with the dead process kept: every page after it failed until the server was started again.
async def test_after_the_process_has_died_the_next_page_has_another_one(
    drawer: ChartDrawer, choice: ChartChoice
) -> None:
    await drawer.sections(choice, ADDRESS)
    assert drawer._process
    drawer._process._process.kill()
    with pytest.raises(StatementError, match="has ended"):
        await drawer.sections(choice, ADDRESS)
    assert "<svg" in str(await drawer.sections(choice, ADDRESS))


@pytest.fixture
def drawn(drawer: ChartDrawer, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str | None], threading.Event]:
    """What is drawn, and what it waits for."""
    names, may_draw = list[str | None](), threading.Event()

    def slow(wanted: WantedDrawing) -> str:
        names.append(wanted.name)
        may_draw.wait()
        return "drawn"

    monkeypatch.setattr(drawer, "_ask", slow)
    return names, may_draw


# Seen red with a shield around what waits: pages that were given up were drawn one after the other, and who still waited came last.
async def test_a_page_that_was_given_up_before_its_turn_is_not_drawn(
    drawer: ChartDrawer, choice: ChartChoice, drawn: tuple[list[str | None], threading.Event]
) -> None:
    names, may_draw = drawn
    first = asyncio.ensure_future(drawer.csv(choice, "outcomes"))
    await asyncio.sleep(0)
    drawer._within_s = 0.0
    with pytest.raises(StatementError, match="not ready in time"):
        await drawer.csv(choice, "refusals")
    may_draw.set()
    assert await first == "drawn"
    await asyncio.to_thread(drawer._turns.shutdown)
    assert names == ["outcomes"]
