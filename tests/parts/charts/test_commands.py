"""`affidavit audit chart` and `rollup`, and the background work of `serve`, on a log of their own."""

import csv
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import CompletedProcess
from xml.etree import ElementTree as ET

import psycopg
import pytest

from audit.charts.rollups.keeping import RollupKeeper
from audit.session import Session
from engine.storage.database import Database, as_role
from engine.wiring import charts
from engine.wiring.audit_log import sealed_rows_of
from tests.command_line import affidavit
from tests.logs.sealed_log import SealedLog, sealed_log

FEBRUARY_2025 = ("--from", "2025-02-01", "--to", "2025-03-01")


@pytest.fixture
async def log(anyio_backend: str, database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path) as made:
        yield made


def run(log: SealedLog, *words: str) -> CompletedProcess[str]:
    return affidavit("audit", *words, data_dir=log.folder, DATABASE_URL=log.url)


async def test_a_chart_is_a_picture_or_a_table(log: SealedLog) -> None:
    picture, table = log.folder / "a.svg", log.folder / "a.csv"
    drawn = [run(log, "chart", "outcomes", *FEBRUARY_2025, "-o", str(file)) for file in (picture, table)]
    assert [one.returncode for one in drawn] == [0, 0]
    assert ET.fromstring(picture.read_text("utf-8")).get("role") == "img"
    assert "12 requests: answered 12" in drawn[0].stderr
    rows = list(csv.reader(table.read_text("utf-8-sig").splitlines()))
    assert rows[0] == ["day", "answered"]
    assert ["2025-02-10", "12"] in rows
    assert run(log, "chart", "outcomes", *FEBRUARY_2025, "--book", "none").stdout.split() == ["day"]


@pytest.mark.parametrize(
    "words",
    [
        ["outcomes", "--from", "2025-02-01T10:00", "--to", "2025-03-01"], ["outcomes", "--from", "2025-03-01", "--to", "2025-03-01"],
        ["outcomes", "-o", "chart.png"],
    ],
)  # fmt: skip
async def test_what_cannot_be_drawn_is_wrong_usage(log: SealedLog, words: list[str]) -> None:
    assert run(log, "chart", *words).returncode == 2


async def test_rollups_are_made_and_checked_and_a_difference_is_exit_1(log: SealedLog) -> None:
    made = run(log, "rollup")
    assert made.returncode == 0
    assert "2025-02, leaves 0 to 11, under the head of 12 leaves with the root " in made.stdout
    checked = run(log, "rollup", "--check")
    assert (checked.returncode, checked.stdout) == (0, "Every rollup is what the sealed rows give.\n")
    log.attack("UPDATE audit_rollup_counts SET client_id = E'\\x1b[2J' WHERE measure = 'questions'")
    checked = run(log, "rollup", "--check")
    assert checked.returncode == 1
    assert "2025-02-10 questions, book b" in checked.stdout
    assert "\x1b" not in checked.stdout


async def test_a_rollup_is_due_when_a_day_is_over_or_many_rows_came(
    log: SealedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    noon = datetime(2025, 3, 1, 12, tzinfo=UTC)
    with Session.connect(as_role(log.url, charts.SEALER), autocommit=True) as connection:

        def keeper(at: datetime) -> RollupKeeper:
            return RollupKeeper(connection, sealed_rows_of(connection, log.vault), lambda: at)

        assert keeper(noon).is_due()
        keeper(noon).make(lambda *_: None)
        assert not keeper(noon + timedelta(hours=11)).is_due()
        assert not keeper(noon + timedelta(hours=12, minutes=14)).is_due()
        assert keeper(noon + timedelta(hours=12, minutes=15)).is_due()
        monkeypatch.setattr("audit.charts.rollups.keeping.LIVE_ROWS", 0)
        log.write(datetime(2025, 2, 1, tzinfo=UTC).date(), 70)
        assert await log.seal() == {}
        assert keeper(noon).is_due()


async def test_serve_makes_them_in_the_background_and_stops_at_once(
    log: SealedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_made = threading.Event()
    made = charts._make_if_due

    def make(*given: object) -> None:
        made(*given)  # type: ignore[arg-type]
        is_made.set()

    monkeypatch.setattr(charts, "FIRST_LOOK_S", 0.0)
    monkeypatch.setattr(charts, "_make_if_due", make)
    others = set(threading.enumerate())  # the house of other tests may keep rollups too
    async with charts.keeping_rollups(log.database.settings, log.database):
        assert is_made.wait(30)
    assert {thread.name for thread in threading.enumerate() if thread not in others} == set()
    with psycopg.connect(log.url) as connection:
        assert connection.execute("SELECT count(*) FROM audit_rollups").fetchone() == (2,)
