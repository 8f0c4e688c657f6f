"""How the log stands by month, and how many decisions hung on a hair of the score; every share counted by hand."""

import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import UUID, uuid4

import psycopg
import pytest

from audit.checking.status import RECORDS, Backlog, SpoolFile, Status, gaps, read_status
from audit.ledger.partitions import months_from
from audit.ledger.spool import ASIDE_FILE
from audit.proof.keys import SigningKey
from audit.proof.record import Trail
from audit.vault import FolderVault
from engine import settings as settings_file
from engine import wiring
from engine.settings import Settings
from engine.storage.database import Database
from tests.command_line import affidavit
from tests.databases import empty_database
from tests.logs.recorded import make_months, write

JANUARY, FEBRUARY, MARCH, APRIL = (datetime(2031, month, 15, tzinfo=UTC) for month in (1, 2, 3, 4))
NOW = wiring.now()
TODAY = NOW.date()
LAST_MOMENT = datetime(2031, 1, 31, 23, 59, 59, 999999, tzinfo=UTC)

Outcome = Literal["answered", "refused", "served", "failed"]

NEAR = (0.60, 0.5800001, 0.6199999, 0.58, 0.62)  # .02 away is within .02, whatever binary makes of it
FAR = (0.0, 0.579999, 0.620001, 1.0)


@pytest.fixture(scope="module")
def shelf_settings(database: Database) -> Iterator[Settings]:
    """A log of its own in the running server."""
    with empty_database(database) as url:
        yield settings_file.load({"DATABASE_URL": url}, data_dir=database.settings.data_dir)


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
    # a passage that was looked up is neither answered nor failed; a flood's row stands for all of it
    replace(row(APRIL, "failed", None), repeat_count=30), row(APRIL, "served", None),
]  # fmt: skip

EXPECTED = [
    {"month": "2031-01", "records": 16, "requests": 16, "answered": 8, "refused": 6, "served": 0, "failed": 2,
     "answers_near_gate": 0.625, "refusals_near_gate": 0.3333},
    {"month": "2031-02", "records": 3, "requests": 3, "answered": 2, "refused": 1, "served": 0, "failed": 0,
     "answers_near_gate": 1.0, "refusals_near_gate": None},
    {"month": "2031-03", "records": 3, "requests": 3, "answered": 3, "refused": 0, "served": 0, "failed": 0,
     "answers_near_gate": 0.5, "refusals_near_gate": None},
    {"month": "2031-04", "records": 2, "requests": 31, "answered": 0, "refused": 0, "served": 1, "failed": 30,
     "answers_near_gate": None, "refusals_near_gate": None},
]  # fmt: skip


@pytest.fixture(scope="module")
async def empty(shelf_settings: Settings) -> AsyncIterator[Database]:
    async with wiring.open_database(shelf_settings, lambda _: None) as opened:
        opened.migrate()
        yield opened


@pytest.fixture(scope="module")
def log(empty: Database) -> Database:
    with psycopg.connect(empty.url) as connection:
        make_months(connection, [*months_from(TODAY, 4), *months_from(JANUARY.date(), 4)])
        key = SigningKey.ensured(empty.settings.data_dir / empty.settings.audit.signing_key_file)
        write(connection, *ROWS, key=key)
    return empty


@pytest.fixture
def disturbed(log: Database) -> Iterator[psycopg.Connection]:
    """What is put in here is seen by others, and gone afterwards."""
    evidence = ("audit_leaves", "audit_checkpoints", "audit_anchors", "audit_open")
    with psycopg.connect(log.url, autocommit=True) as connection:
        yield connection
        connection.execute("SET session_replication_role = replica")
        for table in evidence:
            connection.execute(f"DELETE FROM {table}".encode())
        connection.execute("DELETE FROM audit_logs WHERE timestamp < '2031-01-01'")


async def status_of(database: Database, spool: Path | None = None) -> Status:
    vault = FolderVault(database.settings.data_dir / "vault")
    return await read_status(database.read, vault, spool, TODAY)


def test_an_empty_log_says_so(shelf_settings: Settings, empty: Database) -> None:
    """And that it has no month to write to."""
    said = run(shelf_settings)
    assert said.stdout.startswith("No records yet.\nNothing is sealed yet.\n")
    assert (
        "GAP           Only 0 of 3 future months have a partition: run `affidavit audit partitions`"
        in said.stdout
    )
    assert said.returncode == 1
    assert json.loads(run(shelf_settings, "--json").stdout)["records"] == []


# Seen red with all outcomes in one share, with rows without a score counted as far from the gate, with a fixed gate of
# .60, with `<` for `<=`, and with the difference compared as it is in binary: .58 and .62 were outside.
def test_months_counts_and_shares_are_those_counted_by_hand(shelf_settings: Settings, log: Database) -> None:
    said = run(shelf_settings, "--json")
    found = json.loads(said.stdout)
    assert found["records"] == EXPECTED
    assert found["gaps"] == []
    assert said.returncode == 0


def test_on_a_terminal_each_month_is_a_line(shelf_settings: Settings, log: Database) -> None:
    said = run(shelf_settings)
    header, *lines = said.stdout.splitlines()
    assert header.split() == list(EXPECTED[0])
    assert [line.split()[:6] for line in lines[:4]] == [
        [str(value) for value in list(month.values())[:6]] for month in EXPECTED
    ]
    assert "\nunsealed      24, the oldest since 2031-01-15 00:00:00 UTC\n" in said.stdout
    assert "\nopen          none\nspool         empty\n" in said.stdout
    assert said.returncode == 0


# Seen red with the month of the session's own time zone.
def test_months_are_those_of_utc_wherever_it_is_asked(log: Database) -> None:
    with psycopg.connect(log.url) as connection:
        connection.execute("SET ROLE affidavit_auditor")
        connection.execute("SET timezone = 'Pacific/Auckland'")
        found: list[Any] = connection.execute(RECORDS.encode()).fetchall()
    assert [(month[0], month[1]) for month in found] == [
        (month["month"], month["records"]) for month in EXPECTED
    ]


def test_what_was_asked_is_counted(data_dir: Any, database: Database) -> None:
    month = f"{wiring.now():%Y-%m}"

    def counts() -> dict[str, Any]:
        found = json.loads(affidavit("audit", "status", "--json", data_dir=data_dir).stdout)["records"]
        return next((line for line in found if line["month"] == month), {"records": 0})

    before = counts()
    assert affidavit("ask", "What is gimbal lock?", data_dir=data_dir).returncode == 0
    assert counts()["records"] == before["records"] + 1


# Seen red with a row looked for by its month, and with `min(timestamp)` of all rows.
async def test_rows_without_a_leaf_are_counted_and_become_a_gap(
    log: Database, disturbed: psycopg.Connection
) -> None:
    before = await status_of(log)
    late, in_time = (row(NOW - timedelta(seconds=age_s), "answered", 0.9) for age_s in (61, 70))
    write(disturbed, late, in_time)
    seal(disturbed, in_time.log_id)
    found = await status_of(log)
    assert found.unsealed == Backlog(before.unsealed.count + 1, late.timestamp)
    (gap,) = gaps(found, NOW)
    assert gap.startswith(f"{found.unsealed.count} records are not sealed")
    assert gaps(found, NOW - timedelta(seconds=2)) == []
    seal(disturbed, late.log_id, first=1)
    assert (await status_of(log)).unsealed == before.unsealed


async def test_leaves_without_a_row_are_a_gap_with_their_place(
    log: Database, disturbed: psycopg.Connection
) -> None:
    there = ROWS[0].log_id
    seal(disturbed, there, uuid4(), uuid4(), month=date(2031, 1, 1))
    found = await status_of(log)
    assert found.rowless == [("2031-01", 2, 1)]
    assert "2 leaves of 2031-01 have no row, the first is 1: run `affidavit audit verify`" in gaps(found, NOW)


# Seen red with the newest checkpoint's time: as long as rows were sealed, nobody heard that the vault was away.
async def test_what_is_not_anchored_for_a_minute_is_a_gap(
    log: Database, disturbed: psycopg.Connection
) -> None:
    january, february = date(2031, 1, 1), date(2031, 2, 1)
    for month, size, age_s in ((january, 3, 90), (january, 5, 70), (january, 9, 1), (february, 4, 300)):
        checkpoint(disturbed, month, size, NOW - timedelta(seconds=age_s))
    for month, size, age_s in ((january, 3, 80), (february, 4, 290)):
        anchor(disturbed, month, size, NOW - timedelta(seconds=age_s))
    found = await status_of(log)
    assert found.evidence == [
        {"month": "2031-01", "tree_size": 9, "sealed_at": NOW - timedelta(seconds=1), "anchored_size": 3,
         "anchored_at": NOW - timedelta(seconds=80), "waiting_since": NOW - timedelta(seconds=70),
         "rows_signed": False},
        {"month": "2031-02", "tree_size": 4, "sealed_at": NOW - timedelta(seconds=300), "anchored_size": 4,
         "anchored_at": NOW - timedelta(seconds=290), "waiting_since": None, "rows_signed": False},
    ]  # fmt: skip
    (gap,) = gaps(found, NOW)
    assert gap.startswith("2031-01 has not been anchored since")
    assert gaps(found, NOW - timedelta(seconds=11)) == []


async def test_a_month_that_was_never_anchored_waits_since_its_first_checkpoint(
    log: Database, disturbed: psycopg.Connection
) -> None:
    checkpoint(disturbed, date(2031, 1, 1), 3, NOW - timedelta(seconds=90))
    checkpoint(disturbed, date(2031, 1, 1), 5, NOW)
    (month,) = (await status_of(log)).evidence
    assert (month["anchored_size"], month["waiting_since"]) == (None, NOW - timedelta(seconds=90))


async def test_open_records_are_counted_and_become_a_gap(
    log: Database, disturbed: psycopg.Connection
) -> None:
    for age_s in (5, 61):
        disturbed.execute(
            "INSERT INTO audit_open (log_id, opened_at, owner, trail) VALUES (%s, %s, 1, '{}')",
            (uuid4(), NOW - timedelta(seconds=age_s)),
        )
    found = await status_of(log)
    assert found.open == Backlog(2, NOW - timedelta(seconds=61))
    (gap,) = gaps(found, NOW)
    assert gap.startswith("2 requests are still open")
    assert gaps(found, NOW - timedelta(seconds=2)) == []


async def test_the_command_exits_1_when_a_gap_is_found(
    shelf_settings: Settings, log: Database, disturbed: psycopg.Connection
) -> None:
    write(disturbed, row(NOW - timedelta(minutes=2), "answered", 0.9))
    said = run(shelf_settings)
    assert said.returncode == 1
    assert "\nGAP           25 records are not sealed" in said.stdout
    assert "\nGAP           1 records were not signed by the engine" in said.stdout


async def test_what_waits_in_the_spool_is_counted(log: Database, tmp_path: Path) -> None:
    (tmp_path / "00000000000000aa.spool").write_bytes(b"digest one\ndigest two\ndig")
    (tmp_path / "00000000000000bb.spool").write_bytes(b"")
    (tmp_path / ASIDE_FILE).write_bytes(b"digest refused\n")
    (tmp_path / "identity").write_text("1")
    found = (await status_of(log, tmp_path)).spool
    assert [(file.name, file.size_bytes, file.entries) for file in found] == [
        ("00000000000000aa.spool", 25, 3), ("00000000000000bb.spool", 0, 0), (ASIDE_FILE, 15, 1),
    ]  # fmt: skip
    assert (await status_of(log, tmp_path / "not there")).spool == []
    assert (await status_of(log, None)).spool == []


def standing(**changes: Any) -> Status:
    """A log in which all is well."""
    names = [f"audit_logs_{month:%Y_%m}" for month in months_from(date(2026, 9, 1), 6)]
    well = Status(
        records=[], evidence=[], partitions=names, months_ahead=3, unsealed=Backlog(0, None),
        open=Backlog(0, None), rowless=[], spool=[], months=[], breaks=[], lost=[],
        heads={"heads": 4, "published": 4, "published_at": None, "has_quorum": False, "waiting_since": None},
    )  # fmt: skip
    return replace(well, **changes)


NOVEMBER = datetime(2026, 11, 18, tzinfo=UTC)


@pytest.mark.parametrize("waits_s", [0, 59, 61])
def test_a_head_that_waits_for_its_quorum_is_a_gap(waits_s: int) -> None:
    heads = standing().heads | {"heads": 5, "waiting_since": NOVEMBER - timedelta(seconds=waits_s)}
    assert len(gaps(standing(heads=heads), NOVEMBER)) == (waits_s > 60)


@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
def test_fewer_than_two_months_ahead_are_an_alarm(ahead: int) -> None:
    assert len(gaps(standing(months_ahead=ahead), NOVEMBER)) == (ahead < 2)


# Seen red with the current month left out.
@pytest.mark.parametrize("gone", ["2026_10", "2026_11"])
def test_a_month_without_a_partition_is_a_gap(gone: str) -> None:
    names = [name for name in standing().partitions if not name.endswith(gone)]
    (gap,) = gaps(standing(partitions=names), NOVEMBER)
    assert gap.startswith(f"{gone.replace('_', '-')} has no partition")


def test_a_log_that_begins_later_has_no_gap_before() -> None:
    assert gaps(standing(partitions=standing().partitions[2:]), NOVEMBER) == []


@pytest.mark.parametrize(
    ("name", "entries", "age_s", "words"),
    [
        ("aa.spool", 3, 61, "3 entries wait in aa.spool since"),
        ("aa.spool", 3, 59, None),
        ("aa.spool", 0, 999, None),
        (ASIDE_FILE, 2, 1, f"2 entries in {ASIDE_FILE} are damaged"),
        (ASIDE_FILE, 0, 1, None),
    ],
)  # fmt: skip
def test_what_stays_in_the_spool_is_a_gap(name: str, entries: int, age_s: int, words: str | None) -> None:
    file = SpoolFile(name, 10 * entries, entries, NOVEMBER - timedelta(seconds=age_s))
    assert [gap.startswith(words or "?") for gap in gaps(standing(spool=[file]), NOVEMBER)] == (
        [True] if words else []
    )


def seal(connection: psycopg.Connection, *log_ids: UUID, month: date | None = None, first: int = 0) -> None:
    for index, log_id in enumerate(log_ids, first):
        connection.execute(
            "INSERT INTO audit_leaves VALUES (%s, %s, %s, %s, now())",
            (month or TODAY.replace(day=1), index, log_id, bytes(32)),
        )


def checkpoint(connection: psycopg.Connection, month: date, size: int, at: datetime) -> None:
    connection.execute("INSERT INTO audit_checkpoints VALUES (%s, %s, 'a note', %s)", (month, size, at))


def anchor(connection: psycopg.Connection, month: date, size: int, at: datetime) -> None:
    connection.execute("INSERT INTO audit_anchors VALUES (%s, %s, 'k', 'v', %s)", (month, size, at))
