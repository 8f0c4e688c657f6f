"""Charts that nobody waits for any more end, so that they keep neither the database nor the next page busy."""

import asyncio
import threading

import pytest

from audit.charts.figures.chart import Chart
from audit.charts.figures.chart_log import ChartLog
from audit.charts.figures.choice import ChartChoice
from engine.errors import StatementError
from engine.storage.database import Database
from engine.wiring import charts, now

NAMES = ["outcomes", "refusals"]


@pytest.fixture
def choice() -> ChartChoice:
    today = now().date()
    return ChartChoice(today.replace(day=1), today.replace(day=28))


# Seen red with nothing cancelled: the thread went on until its statement's own limit, and the next page drew beside it.
async def test_a_page_that_is_given_up_stops_its_statement(
    database: Database, choice: ChartChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended, said = threading.Event(), threading.Event(), list[str]()

    def slow(name: str, log: ChartLog, *_: object) -> Chart:
        said.append(name)
        begun.set()
        try:
            log.connection.execute("SELECT pg_sleep(300)")
        except Exception as failure:
            said.append(str(failure))
            raise
        finally:
            ended.set()
        raise AssertionError

    monkeypatch.setattr(charts, "chart_of", slow)
    drawing = asyncio.ensure_future(charts.charts_of(database.settings, database)(choice, NAMES))
    await asyncio.to_thread(begun.wait)
    drawing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drawing
    await asyncio.to_thread(ended.wait)
    assert said == ["outcomes", "canceling statement due to user request"]


# Seen red with the threads of the whole process: those of abandoned pages would be the ones that embed readers' questions.
async def test_charts_have_threads_of_their_own(
    database: Database, choice: ChartChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def named(*_: object) -> Chart:
        raise StatementError(threading.current_thread().name)

    monkeypatch.setattr(charts, "chart_of", named)
    with pytest.raises(StatementError, match=r"^charts"):
        await charts.charts_of(database.settings, database)(choice, NAMES)
