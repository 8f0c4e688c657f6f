"""A page is drawn once for all who look at it, and again as soon as the log has more."""

from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from audit.charts.figures.catalogue import chart_of
from audit.charts.figures.chart import Chart
from audit.charts.figures.chart_log import ChartLog
from audit.charts.figures.choice import ChartChoice
from engine.storage.database import Database
from engine.wiring import drawing
from engine.wiring.charts import WantedDrawing
from tests.logs.sealed_log import FEBRUARY, SealedLog, sealed_log

YEAR = ChartChoice(date(2025, 1, 1), date(2026, 1, 1))


@pytest.fixture
async def log(anyio_backend: str, database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path) as made:
        yield made


@pytest.fixture
def drawn(log: SealedLog, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The charts that were drawn."""
    names = list[str]()

    def noted(name: str, log: ChartLog, *prices: Any) -> Chart:
        names.append(name)
        return chart_of(name, log, *prices)

    monkeypatch.setattr("engine.wiring.drawing.chart_of", noted)
    return names


def csv_of(log: SealedLog) -> WantedDrawing:
    return WantedDrawing(log.database, YEAR, name="outcomes")


# Seen red with the period alone as the key of what is kept: the page stayed as it was when it was drawn first.
async def test_a_page_is_drawn_once_until_something_is_sealed(log: SealedLog, drawn: list[str]) -> None:
    desk = drawing.Drawing()
    first = desk.drawn(csv_of(log))
    assert "2025-02-10,12" in first
    assert desk.drawn(csv_of(log)) == first
    assert len(drawn) == 1
    log.write(FEBRUARY, 40)
    assert desk.drawn(csv_of(log)) == first  # it is not sealed yet
    assert await log.seal() == {}
    assert "2025-02-10,13" in desk.drawn(csv_of(log))
    assert len(drawn) == 2


async def test_only_some_pages_are_kept(
    log: SealedLog, drawn: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "KEPT", 1)
    desk = drawing.Drawing()
    for name in ("outcomes", "refusals", "outcomes"):
        desk.drawn(WantedDrawing(log.database, YEAR, name=name))
    assert drawn == ["outcomes", "refusals", "outcomes"]
