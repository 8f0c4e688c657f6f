"""How the log stands by month, and how many decisions hung on a hair of the score; every share counted by hand."""

import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from audit import partitions
from audit.ledger import Ledger
from audit.record import Trail
from audit.status import STATUS
from engine import settings as settings_file
from engine import wiring
from engine.settings import Settings
from engine.wiring import Database
from tests.test_cli import affidavit

JANUARY, FEBRUARY, MARCH, APRIL = (datetime(2031, month, 15, tzinfo=UTC) for month in (1, 2, 3, 4))
LAST_MOMENT = datetime(2031, 1, 31, 23, 59, 59, 999999, tzinfo=UTC)

Outcome = Literal["answered", "refused", "failed"]

NEAR = (0.60, 0.5800001, 0.6199999, 0.58, 0.62)  # .02 away is within .02, whatever binary makes of it
FAR = (0.0, 0.579999, 0.620001, 1.0)


@pytest.fixture(scope="module")
def shelf_settings(database: Database) -> Iterator[Settings]:
    """A log of its own in the running server."""
    name = sql.Identifier(f"status_{uuid4().hex}")
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        url = make_conninfo(database.url, dbname=name.as_string().strip('"'))
        yield settings_file.load({"DATABASE_URL": url}, data_dir=database.settings.data_dir)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def run(settings: Settings, *arguments: object) -> subprocess.CompletedProcess[str]:
    url = settings.database.url.get_secret_value()
    return affidavit("audit", "status", *arguments, data_dir=settings.data_dir, DATABASE_URL=url)


def row(when: datetime, outcome: Outcome, score: float | None, threshold: float | None = 0.60) -> Trail:
    return Trail(
        log_id=uuid4(), query_id=uuid4(), timestamp=when, endpoint="test", user_query_text="What is it?",
        outcome=outcome, best_score=score, threshold=threshold, filters={}, citations=[], chunks_returned=[],
    )  # fmt: skip


ROWS = [
    *(row(JANUARY, "answered", score) for score in NEAR),
    *(row(JANUARY, "answered", score) for score in FAR[1:]),
    *(row(JANUARY, "refused", score) for score in (NEAR[0], *FAR)),
    row(LAST_MOMENT, "refused", 0.59),
    # failed before a score was found, or after: no share counts them
    row(JANUARY, "failed", None), row(JANUARY, "failed", 0.60),
    # without a score, as an erased row may be
    row(FEBRUARY, "answered", None), row(FEBRUARY, "answered", 0.61), row(FEBRUARY, "refused", None),
    # another gate
    row(MARCH, "answered", 0.71, threshold=0.70), row(MARCH, "answered", 0.61, threshold=0.50),
    row(MARCH, "answered", 0.61, threshold=None),
    row(APRIL, "failed", None),
]  # fmt: skip

EXPECTED = [
    {"month": "2031-01", "records": 16, "answered": 8, "refused": 6, "failed": 2,
     "answers_near_gate": 0.625, "refusals_near_gate": 0.3333},
    {"month": "2031-02", "records": 3, "answered": 2, "refused": 1, "failed": 0,
     "answers_near_gate": 1.0, "refusals_near_gate": None},
    {"month": "2031-03", "records": 3, "answered": 3, "refused": 0, "failed": 0,
     "answers_near_gate": 0.5, "refusals_near_gate": None},
    {"month": "2031-04", "records": 1, "answered": 0, "refused": 0, "failed": 1,
     "answers_near_gate": None, "refusals_near_gate": None},
]  # fmt: skip


@pytest.fixture(scope="module")
async def empty(shelf_settings: Settings) -> AsyncIterator[Database]:
    async with wiring.open_database(shelf_settings, lambda _: None) as opened:
        opened.migrate()
        yield opened


@pytest.fixture(scope="module")
async def log(empty: Database) -> Database:
    async with empty.pool("affidavit_engine") as pool:
        await partitions.make_months_ahead(pool, JANUARY.date())
        ledger = Ledger(pool)
        await ledger.start()
        for trail in ROWS:
            await ledger.open(trail)
            await ledger.close(trail, trail.timestamp)
        await ledger.stop()
    return empty


def test_an_empty_log_says_so(shelf_settings: Settings, empty: Database) -> None:
    assert run(shelf_settings).stdout == "No records yet.\n"
    assert json.loads(run(shelf_settings, "--json").stdout) == []


# Seen red with all outcomes in one share, with rows without a score counted as far from the gate, with a fixed gate of
# .60, with `<` for `<=`, and with the difference compared as it is in binary: .58 and .62 were outside.
def test_months_counts_and_shares_are_those_counted_by_hand(shelf_settings: Settings, log: Database) -> None:
    said = run(shelf_settings, "--json")
    assert said.returncode == 0
    assert json.loads(said.stdout) == EXPECTED


def test_on_a_terminal_each_month_is_a_line(shelf_settings: Settings, log: Database) -> None:
    header, *lines = run(shelf_settings).stdout.splitlines()
    assert header.split() == list(EXPECTED[0])
    assert [line.split()[:5] for line in lines] == [
        [str(value) for value in list(month.values())[:5]] for month in EXPECTED
    ]


# Seen red with the month of the session's own time zone.
def test_months_are_those_of_utc_wherever_it_is_asked(log: Database) -> None:
    with psycopg.connect(log.url) as connection:
        connection.execute("SET ROLE affidavit_auditor")
        connection.execute("SET timezone = 'Pacific/Auckland'")
        found: list[Any] = connection.execute(STATUS.encode()).fetchall()
    assert [(month[0], month[1]) for month in found] == [
        (month["month"], month["records"]) for month in EXPECTED
    ]


def test_what_was_asked_is_counted(data_dir: Any, database: Database) -> None:
    month = f"{wiring.now():%Y-%m}"

    def counts() -> dict[str, Any]:
        found = json.loads(affidavit("audit", "status", "--json", data_dir=data_dir).stdout)
        return next((line for line in found if line["month"] == month), {"records": 0})

    before = counts()
    assert affidavit("ask", "What is gimbal lock?", data_dir=data_dir).returncode == 0
    assert counts()["records"] == before["records"] + 1
