"""A month leaves for the vault step by step, loses no row on the way, and comes back as it was."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import make_conninfo

from audit.archive import month_table
from audit.archive.archiver import EMPTY, MonthOutcome
from audit.archive.export import export
from audit.archive.verify import verify_archive
from audit.checking.month_tiers import StoredMonth, find_losses, read_months
from audit.erasure.search import PersonalDataReport
from audit.erasure.target import ErasureTarget
from audit.errors import LedgerUnavailableError, MonthNotReadyError, VaultDamagedError, VaultError
from audit.ledger.database_writer import DatabaseWriter
from audit.ledger.entry import Entry
from audit.ledger.spool import ASIDE_FILE, SpoolBatch, deliver, line_of
from audit.proof.keys import SigningKey
from audit.proof.record import PERSONAL, SALT_BYTES, HashedRow, Row, Trail, hashed, row_of
from audit.proof.row_signature import sign_open, signed
from audit.proof.verdict import Verdict
from audit.vault import FolderVault
from engine.admission.operator_events import OperatorEvents
from engine.cli import main
from engine.cli.output import Arguments
from engine.storage.database import ARCHIVER, Database, changing, reading
from engine.wiring import now
from tests.command_line import affidavit
from tests.databases import migrated_database
from tests.logs.archiving import archiver_of, attached, events, rows_of, steps, tables
from tests.logs.recorded import make_months, write
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog, places, quiet, sealed_log, whole_trail

ALL = ["frozen", "uploaded", "verified", "detached", "dropped"]
MARCH = date(2025, 3, 1)
JANUARY_TABLE = "audit_logs_2025_01"


@pytest.fixture
async def log(anyio_backend: str, database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path) as made:
        with psycopg.connect(made.url) as connection:
            make_months(connection, [now().date()])
        yield made


def brief(outcomes: list[MonthOutcome]) -> list[tuple[str, str, int]]:
    return [(outcome.month, outcome.state, outcome.rows) for outcome in outcomes]


async def test_old_months_leave_and_every_step_is_on_record(log: SealedLog) -> None:
    outcomes = await archiver_of(log).archive(None)
    assert [outcome.words for outcome in outcomes if not outcome.is_well] == []
    assert brief(outcomes) == [("2025-01", "dropped", 5), ("2025-02", "dropped", 12)]
    assert steps(log, JANUARY) == steps(log, FEBRUARY) == ALL
    assert not {"audit_logs_2025_01", "audit_logs_2025_02"} & tables(log)
    assert events(log) == [
        ("affidavit audit archive", "recorded", {"month": month, "step": step})
        for month in ("2025-01", "2025-02")
        for step in ALL
    ]


async def test_a_second_run_finds_nothing_to_do(log: SealedLog) -> None:
    await archiver_of(log).archive(None)
    assert await archiver_of(log).archive(None) == []
    assert steps(log, JANUARY) == ALL


async def test_a_rehearsal_says_what_would_be_done_and_does_nothing(log: SealedLog) -> None:
    outcomes = await archiver_of(log).dry_run(None)
    assert [(outcome.month, outcome.state, outcome.rows, outcome.words) for outcome in outcomes] == [
        ("2025-01", "open", 5, "would be archived"), ("2025-02", "open", 12, "would be archived"),
    ]  # fmt: skip
    assert (steps(log, JANUARY), events(log), log.inspect().verdict) == ([], [], Verdict.VALID)


async def test_a_month_is_kept_out_of_sight_before_it_is_dropped(log: SealedLog) -> None:
    grace = timedelta(days=30)
    (kept,) = await archiver_of(log, grace=grace).archive(FEBRUARY)
    assert (kept.state, kept.is_well) == ("detached", True)
    assert JANUARY_TABLE in tables(log) - attached(log)
    (dropped,) = await archiver_of(log, grace=grace, clock=lambda: now() + grace).archive(FEBRUARY)
    assert dropped.state == "dropped"
    assert JANUARY_TABLE not in tables(log)


@pytest.mark.parametrize(
    ("today", "before", "expected"),
    [
        (datetime(2025, 3, 1, 12, tzinfo=UTC), date(2026, 1, 1), ["2025-01"]),  # February ended this morning
        (datetime(2025, 3, 2, 12, tzinfo=UTC), date(2026, 1, 1), ["2025-01", "2025-02"]),
        (datetime(2025, 6, 1, tzinfo=UTC), FEBRUARY, ["2025-01"]),
        (datetime(2025, 6, 1, tzinfo=UTC), None, []),
        (
            datetime(2026, 2, 15, tzinfo=UTC),
            None,
            ["2025-01"],
        ),  # and a day of February is younger than a year
    ],
)
async def test_only_months_that_are_closed_and_old_enough_are_chosen(
    log: SealedLog, today: datetime, before: date | None, expected: list[str]
) -> None:
    outcomes = await archiver_of(log, clock=lambda: today).dry_run(before)
    assert [outcome.month for outcome in outcomes] == expected


async def test_a_month_without_records_stays_as_it_is(log: SealedLog) -> None:
    with psycopg.connect(log.url) as connection:
        make_months(connection, [MARCH])
    outcomes = await archiver_of(log).archive(None)
    assert (outcomes[-1].month, outcomes[-1].words, outcomes[-1].is_well) == ("2025-03", EMPTY, True)
    assert "audit_logs_2025_03" in attached(log)


# Seen red with the standing not looked at again once the table is locked.
async def test_a_month_waits_until_the_sealer_has_been_there(
    log: SealedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.archive.archiver.SEALER_S", 0)
    log.write(JANUARY, 5)
    said: list[str] = []

    async def may_not_seal() -> bool:
        return False

    (waits,) = await archiver_of(log, seal=may_not_seal, say=said.append).archive(FEBRUARY)
    assert (waits.is_well, waits.state) == (False, "open")
    assert waits.words == "1 of its records are not sealed yet; run `affidavit audit seal`"
    assert said == ["2025-01: waiting for the sealer in another process …"]
    log.write(JANUARY, 6)  # it takes rows as before
    (outcome,) = await archiver_of(log).archive(FEBRUARY)
    assert (outcome.state, outcome.rows) == ("dropped", 7)


async def test_a_month_with_an_open_request_waits(log: SealedLog) -> None:
    known = {"log_id": str(uuid4()), "timestamp": "2025-01-20T00:00:00.000000Z"}
    alive = make_conninfo(log.url, application_name="affidavit lease 1")
    with psycopg.connect(alive, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO audit_open (log_id, opened_at, owner, trail, signature) VALUES (%s, '2025-01-20', 1, %s, %s)",
            (known["log_id"], json.dumps(known), sign_open(known, log.key)),
        )
        (waits,) = await archiver_of(log).archive(FEBRUARY)
    assert (waits.is_well, waits.state, steps(log, JANUARY)) == (False, "open", [])
    assert waits.words.startswith("1 of its requests are still open")
    assert [outcome for _, outcome, _ in events(log)] == ["failed"]


async def test_of_two_archivers_one_works_and_the_other_says_so(log: SealedLog) -> None:
    archiver = archiver_of(log)
    async with archiver.connect() as connection, month_table.lock(connection, JANUARY) as is_ours:
        assert is_ours
        busy, done = await archiver_of(log).archive(None)
    assert (busy.month, busy.words, busy.is_well) == ("2025-01", "another archiver is working on it", True)
    assert done.state == "dropped"
    outcomes = await asyncio.gather(*(archiver_of(log).archive(None) for _ in range(3)))
    assert steps(log, JANUARY) == ALL
    assert all(outcome.is_well for run in outcomes for outcome in run)


async def test_the_archivers_own_login_is_enough(log: SealedLog) -> None:
    url = make_conninfo(log.url, user=ARCHIVER)
    archiver = archiver_of(
        log,
        connect=partial(changing, url, ARCHIVER),
        reading=partial(reading, url, ARCHIVER),
    )
    assert [outcome.state for outcome in await archiver.archive(None)] == ["dropped", "dropped"]
    assert (await archiver.restore(JANUARY)).is_well


def pend(log: SealedLog) -> None:
    """A detach is interrupted while it waits for a reader."""
    with psycopg.connect(log.url) as reader, psycopg.connect(log.url, autocommit=True) as hasty:
        reader.execute("SELECT count(*) FROM audit_logs")
        hasty.execute("SET statement_timeout = '300ms'")
        with pytest.raises(errors.QueryCanceled):
            hasty.execute(f"ALTER TABLE audit_logs DETACH PARTITION {JANUARY_TABLE} CONCURRENTLY")
    assert JANUARY_TABLE not in attached(log)


# Seen red without FINALIZE: a second DETACH is refused, and the month stayed hidden.
async def test_an_interrupted_detach_of_a_verified_month_is_finished(log: SealedLog) -> None:
    await archiver_of(log, event=stopping_at(log, "detached")).archive(FEBRUARY)
    pend(log)
    (outcome,) = await archiver_of(log).archive(FEBRUARY)
    assert (outcome.state, outcome.is_well, steps(log, JANUARY)) == ("dropped", True, ALL)


async def test_an_interrupted_detach_of_a_month_that_is_in_no_archive_is_undone(log: SealedLog) -> None:
    before = rows_of(log, JANUARY)
    pend(log)
    assert rows_of(log, JANUARY) == []
    assert await archiver_of(log, warm=timedelta(days=10_000)).archive(None) == []
    assert rows_of(log, JANUARY) == before
    log.write(JANUARY, 5)


# Seen red with a plain DETACH: whoever writes queues behind it.
async def test_no_request_waits_while_a_month_waits_for_its_readers(
    log: SealedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.archive.month_table.READERS_MS", 3_000)
    monkeypatch.setattr("audit.archive.month_table.RETRY_S", 0.5)
    with psycopg.connect(log.url) as reader:
        reader.execute("SELECT count(*) FROM audit_logs")
        with writing(log) as written:
            (waits,) = await archiver_of(log).archive(FEBRUARY)
        assert (waits.is_well, waits.state) == (False, "verified")
        assert (
            waits.words
            == "its table has been in use for a minute; close long queries, or run the command again later"
        )
    assert len(written) > 1
    (outcome,) = await archiver_of(log).archive(FEBRUARY)
    assert (outcome.is_well, outcome.state) == (True, "dropped")


@contextmanager
def writing(log: SealedLog) -> Iterator[list[UUID]]:
    """Somebody whose records of this month may not wait for a lock."""
    is_over, written = threading.Event(), []

    def write_on() -> None:
        with psycopg.connect(log.url, autocommit=True, options="-c lock_timeout=1s") as connection:
            while not is_over.is_set():
                trail = Trail(log_id=uuid4(), query_id=uuid4(), timestamp=now(), endpoint="test")
                write(connection, trail, key=log.key)
                written.append(trail.log_id)

    with ThreadPoolExecutor(1) as other:
        writer = other.submit(write_on)
        try:
            yield written
        finally:
            is_over.set()
        writer.result()


def stopping_at(log: SealedLog, step: str) -> Any:
    """An archiver's events, the last of which cannot be recorded."""

    @asynccontextmanager
    async def event(command: str, **about: Any) -> AsyncIterator[object]:
        if about["step"] == step:
            raise MonthNotReadyError("stopped by the test")
        async with archiver_of(log).event(command, **about) as trail:
            yield trail

    return event


@pytest.mark.parametrize(
    ("step", "state", "verdict"),
    [
        ("uploaded", "frozen", Verdict.VALID),
        ("verified", "uploaded", Verdict.VALID),
        ("detached", "verified", Verdict.VALID),
        ("dropped", "detached", Verdict.ARCHIVED),
        ("none", "dropped", Verdict.ARCHIVED),
    ],
)
async def test_a_log_is_verified_whatever_the_state_of_its_months(
    log: SealedLog, step: str, state: str, verdict: Verdict
) -> None:
    outcomes = await archiver_of(log, event=stopping_at(log, step)).archive(FEBRUARY)
    assert outcomes[0].state == state
    assert await log.seal() == {}
    report = log.inspect()
    assert report.verdict is verdict
    rows = 12 + (5 if verdict is Verdict.VALID else 0)
    assert report.checked == rows + len(events(log))


async def test_a_restored_month_is_verified_row_by_row(log: SealedLog) -> None:
    await archiver_of(log).archive(FEBRUARY)
    await archiver_of(log).restore(JANUARY)
    assert await log.seal() == {}
    assert (log.inspect().verdict, log.inspect().checked) == (Verdict.VALID, 17 + len(events(log)))


@pytest.mark.parametrize("grace", [timedelta(), timedelta(days=30)], ids=["dropped", "detached"])
async def test_a_month_comes_back_as_it_was_and_leaves_again(log: SealedLog, grace: timedelta) -> None:
    before = rows_of(log, JANUARY)
    await archiver_of(log, grace=grace).archive(FEBRUARY)
    assert rows_of(log, JANUARY) == []
    restored = await archiver_of(log, grace=grace).restore(JANUARY)
    assert (restored.state, restored.is_well) == ("restored", True)
    assert rows_of(log, JANUARY) == before
    assert await archiver_of(log).archive(FEBRUARY) == []  # it stays as long as somebody looks at it
    ended = await archiver_of(log).end_restore(JANUARY)
    assert (ended.state, ended.is_well, rows_of(log, JANUARY)) == ("dropped", True, [])
    assert steps(log, JANUARY)[-3:] == ["restored", "detached", "dropped"]
    assert [about["step"] for endpoint, _, about in events(log) if endpoint == "affidavit audit restore"] == [
        "restored"
    ]


@pytest.mark.parametrize("grace", [timedelta(), timedelta(days=30)], ids=["dropped", "detached"])
async def test_nothing_is_added_to_a_restored_month_nor_changed_in_it(
    log: SealedLog, grace: timedelta
) -> None:
    await archiver_of(log, grace=grace).archive(FEBRUARY)
    await archiver_of(log).restore(JANUARY)
    with pytest.raises(psycopg.DatabaseError, match="archived"):
        log.write(JANUARY, 5)
    for statement in (
        "UPDATE audit_logs SET reason = 'x'", "DELETE FROM audit_logs", "TRUNCATE audit_logs_2025_01",
    ):  # fmt: skip
        with psycopg.connect(log.url) as connection, pytest.raises(errors.InsufficientPrivilege):
            connection.execute(statement.encode())


async def test_only_an_archived_month_can_be_restored_and_only_a_restored_one_sent_away(
    log: SealedLog,
) -> None:
    archiver = archiver_of(log)
    for month in (JANUARY, date(1999, 1, 1)):
        for outcome in (await archiver.restore(month), await archiver.end_restore(month)):
            assert (outcome.is_well, outcome.state) == (False, "open")
    await archiver.archive(FEBRUARY)
    assert (await archiver.end_restore(JANUARY)).words == "it is not restored"
    await archiver.restore(JANUARY)
    assert (await archiver.restore(JANUARY)).words == "was already restored"


# Seen red with the commitments of its line not kept: nobody could tell what had stood in the restored record.
@pytest.mark.parametrize("grace", [timedelta(), timedelta(days=30)], ids=["dropped", "detached"])
async def test_who_was_forgotten_does_not_come_back_and_is_proven_all_the_same(
    log: SealedLog, grace: timedelta
) -> None:
    archiver = archiver_of(log, grace=grace)
    await archiver.archive(FEBRUARY)
    forgotten = log.rows[JANUARY, 2]
    await log.erase(ErasureTarget(query_id=UUID(forgotten["query_id"])))
    assert (await archiver.restore(JANUARY)).is_well
    rows = {row["log_id"]: row for row in rows_of(log, JANUARY)}
    emptied = rows.pop(forgotten["log_id"])
    assert emptied["erased_at"]
    assert [emptied[name] for name in (*sorted(PERSONAL), "salt")] == [None] * (len(PERSONAL) + 1)
    assert all(row["salt"] and row["user_query_text"] for row in rows.values())
    assert await log.seal() == {}
    report = log.inspect()
    assert (report.verdict, report.counted) == (
        Verdict.VALID, {"records were erased, and are proven": 1},
    )  # fmt: skip
    assert (await archiver_of(log).end_restore(JANUARY)).state == "dropped"


async def test_a_record_whose_key_is_lost_is_not_taken_for_one_that_was_erased(log: SealedLog) -> None:
    archiver = archiver_of(log)
    await archiver.archive(FEBRUARY)
    log.attack("DELETE FROM audit_row_keys WHERE log_id = %(log_id)s", log_id=log.log_id(JANUARY, 2))
    outcome = await archiver.restore(JANUARY)
    assert not outcome.is_well
    assert "1 records have lost their key and were never erased" in outcome.words
    assert rows_of(log, JANUARY) == []


def whereabouts(log: SealedLog) -> list[StoredMonth]:
    async def read(role: str, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        with psycopg.connect(make_conninfo(log.url, user=role)) as connection:
            return [], connection.execute(statement.encode()).fetchall()

    return asyncio.run(read_months(read))


def gaps_of(log: SealedLog) -> list[str]:
    return find_losses(whereabouts(log), log.vault)


# Seen red: the month was ARCHIVED, there was no gap, and the keyless records were counted as erased.
async def test_lost_keys_of_archived_records_are_missing_and_a_gap(log: SealedLog) -> None:
    await archiver_of(log).archive(FEBRUARY)
    await log.erase(ErasureTarget(query_id=UUID(log.rows[JANUARY, 1]["query_id"])))
    assert await log.seal() == {}
    assert await asyncio.to_thread(gaps_of, log) == []
    assert places(log.inspect()) == {("ARCHIVED", "month", "2025-01", None)}
    gone = [log.log_id(JANUARY, index) for index in (2, 4)]
    log.attack("DELETE FROM audit_row_keys WHERE log_id = ANY (%(gone)s::uuid[])", gone=gone)
    assert await asyncio.to_thread(gaps_of, log) == [
        "2 records of 2025-01 have lost their key and were never erased"
    ]
    report = log.inspect()
    assert places(report) == {("ARCHIVED", "month", "2025-01", None), ("MISSING", "month", "2025-01", 2)}
    assert report.verdict is Verdict.MISSING
    assert "2 archived records have lost their key and were never erased" in str(report)


# Seen red with an erasure of an archived record believed without its signature.
async def test_an_erasure_that_nobody_signed_does_not_explain_a_lost_key(log: SealedLog) -> None:
    await archiver_of(log).archive(FEBRUARY)
    await log.erase(ErasureTarget(query_id=UUID(log.rows[JANUARY, 1]["query_id"])))
    assert await log.seal() == {}
    log.attack(
        "DELETE FROM audit_row_keys WHERE log_id = %(gone)s",
        "INSERT INTO audit_erasures SELECT erasure_id, %(gone)s, query_id, month, commitments, erased_at, basis, event,"
        " key_id, signature FROM audit_erasures",
        gone=log.log_id(JANUARY, 2),
    )
    assert places(log.inspect()) == {
        ("ARCHIVED", "month", "2025-01", None),
        ("TAMPERED", "row", "2025-01", 2),
    }


# Seen red: a traceback in the place of each verdict.
@pytest.mark.parametrize("forged", ["../x", "archive"])
async def test_a_manifest_that_is_named_where_none_can_be_is_a_finding_everywhere(
    log: SealedLog, forged: str
) -> None:
    await archiver_of(log, grace=timedelta(days=30)).archive(FEBRUARY)
    assert await log.seal() == {}
    log.attack(
        "UPDATE audit_archives SET manifest_key = %(forged)s WHERE manifest_key IS NOT NULL", forged=forged
    )
    assert places(log.inspect()) == {("MISSING", "file", "2025-01", None)}
    (gap,) = await asyncio.to_thread(gaps_of, log)
    assert gap.startswith("the archive of 2025-01: its manifest cannot be read: ")
    archiver = archiver_of(log)
    (archived,), restored = await archiver.archive(FEBRUARY), await archiver.restore(JANUARY)
    for outcome in (archived, restored):
        assert not outcome.is_well
        assert "its manifest cannot be read, so nothing was removed" in outcome.words
    assert JANUARY_TABLE in tables(log)
    report = verify_archive(log.vault, forged, None, log.keys, None, quiet)
    assert places(report) == {("MISSING", "file", None, None)}


class Damaged(FolderVault):
    """An object store that finds one kind of file spoiled."""

    def __init__(self, folder: Path, suffix: str) -> None:
        super().__init__(folder)
        self._suffix = suffix

    def open(self, key: str, version: str | None = None) -> BinaryIO:
        if key.endswith(self._suffix):
            raise VaultDamagedError(f"{key} is spoiled")
        return super().open(key, version)

    def get(self, key: str, version: str | None = None) -> bytes:
        with self.open(key, version) as stream:
            return stream.read()


# Seen red: VaultDamagedError ended the inspection.
@pytest.mark.parametrize("suffix", ["5.note", ".leaves"])
async def test_a_damaged_anchor_is_tampering(log: SealedLog, suffix: str) -> None:
    vault = Damaged(log.folder / "vault", suffix)
    report = log.inspect(vault=vault)
    assert report.verdict is Verdict.TAMPERED
    assert ("TAMPERED", "anchor", "2025-01", 4) in places(report)
    if suffix == "5.note":
        await archiver_of(log).archive(FEBRUARY)
        (manifest,) = (log.folder / "vault/archive/2025-01").glob("*.manifest.json")
        key = manifest.relative_to(log.folder / "vault").as_posix()
        report = verify_archive(vault, key, None, log.keys, None, quiet)
        assert ("TAMPERED", "anchor", "2025-01", None) in places(report)


def ended(monkeypatch: pytest.MonkeyPatch, command: Any, *, runs_until_stopped: bool = False) -> object:
    """What the console script exits with when this is its command."""
    given = Arguments(run=command, has_settings=False, runs_until_stopped=runs_until_stopped)
    monkeypatch.setattr(main, "parser", lambda: SimpleNamespace(parse_args=lambda: given))
    with pytest.raises(SystemExit) as exited:
        main.main()
    return exited.value.code


# Seen red: a traceback.
def test_a_vault_that_is_away_is_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def verify(_: Arguments) -> int:
        raise VaultError("The vault answered 503")

    assert ended(monkeypatch, verify) == 1
    assert capsys.readouterr().err == "affidavit: The vault answered 503\n"


# Seen red: it said that it was detached; and a restored month was counted twice.
async def test_a_verified_month_that_was_dropped_by_hand_is_archived_and_comes_back_once(
    log: SealedLog,
) -> None:
    await archiver_of(log, grace=timedelta(days=30)).archive(FEBRUARY)
    log.attack(f"DROP TABLE {JANUARY_TABLE}")
    assert [
        kept.tier(now()) for kept in await asyncio.to_thread(whereabouts, log) if kept.month == JANUARY
    ] == ["archived"]
    assert (await archiver_of(log).restore(JANUARY)).is_well
    assert [
        kept.tier(now()) for kept in await asyncio.to_thread(whereabouts, log) if kept.month == JANUARY
    ] == ["restored"]
    with psycopg.connect(log.url) as connection:
        assert connection.execute(
            "SELECT count(*) FROM audit_months WHERE month = %s", (JANUARY,)
        ).fetchone() == (1,)


class Unending:
    """A ledger that opens a record and cannot end it."""

    async def open(self, trail: Trail) -> None: ...

    async def close(self, trail: Trail, now: datetime) -> None:
        raise LedgerUnavailableError


# Seen red: it ended the run, and said that nothing was changed.
async def test_a_step_whose_record_cannot_be_ended_is_the_trouble_of_its_month(log: SealedLog) -> None:
    whole = archiver_of(log)

    def event(command: str, **about: Any) -> Any:
        is_spoiled = about["month"] == "2025-01" and about["step"] == "frozen"
        ledger: Any = nullcontext(Unending())
        return (
            OperatorEvents(lambda: ledger, now, uuid4).event(command, **about)
            if is_spoiled
            else whole.event(command, **about)
        )

    spoiled, done = await archiver_of(log, event=event).archive(None)
    assert (spoiled.is_well, spoiled.state) == (False, "open")
    assert spoiled.words.startswith("The action was started, but its end could not be recorded")
    assert (done.is_well, done.state) == (True, "dropped")
    assert [outcome.is_well for outcome in await archiver_of(log).archive(None)] == [True]


# Seen red with the first line that was found: the month could not be archived any more.
async def test_a_forged_line_of_an_erased_record_does_not_keep_its_month(log: SealedLog) -> None:
    await log.erase(ErasureTarget(query_id=UUID(log.rows[JANUARY, 2]["query_id"])))
    log.attack(
        "CREATE TABLE kept AS SELECT * FROM audit_erasures",
        "DELETE FROM audit_erasures",
        *(
            "INSERT INTO audit_erasures SELECT gen_random_uuid(), log_id, query_id, month, (SELECT jsonb_object_agg(key,"
            f" repeat('{digit}', 64)) FROM jsonb_each(commitments)), erased_at, basis, event, key_id, signature FROM kept"
            for digit in "0f"
        ),
        "INSERT INTO audit_erasures SELECT * FROM kept",
    )
    (outcome,) = await archiver_of(log).archive(FEBRUARY)
    assert (outcome.is_well, outcome.state, outcome.words) == (True, "dropped", "is in the vault")


# Seen red: exit 0 without a word.
@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("is_server", "code"), [(False, 1), (True, 0)])
def test_only_a_server_has_done_its_work_when_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], told: int, is_server: bool, code: int
) -> None:
    async def command(_: Arguments) -> int:
        os.kill(os.getpid(), told)
        await asyncio.sleep(60)
        return 0

    assert ended(monkeypatch, command, runs_until_stopped=is_server) == code
    assert capsys.readouterr().err == ("" if is_server else "Interrupted: it was not finished.\n")


def test_a_search_says_that_the_archive_was_not_searched() -> None:
    assert PersonalDataReport().as_json()["archived_searched"] is False


class BitFlip(FolderVault):
    """Gives back one file with one bit changed."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder)
        self._name = name

    def open(self, key: str, version: str | None = None) -> BinaryIO:
        with super().open(key, version) as stream:
            content = stream.read()
        if key.endswith(self._name):
            at = len(content) // 2
            content = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        return BytesIO(content)


# Seen red with `_verify` recording without `_prove`.
@pytest.mark.parametrize(
    "name", ["evidence.jsonl.zst", "rows.parquet", "leaves", "checkpoint.note", "keys.pub"]
)
async def test_what_is_read_back_wrong_is_not_verified_and_the_table_stays(log: SealedLog, name: str) -> None:
    vault = BitFlip(log.folder / "vault", name)
    (outcome,) = await archiver_of(log, vault=vault, with_copy=True).archive(FEBRUARY)
    assert (outcome.is_well, outcome.state) == (False, "uploaded")
    assert "its archive is damaged or incomplete, so nothing was removed" in outcome.words
    assert JANUARY_TABLE in attached(log)
    (outcome,) = await archiver_of(log).archive(FEBRUARY)  # it was the network's fault
    assert outcome.state == "dropped"


async def test_what_rots_on_the_disk_before_it_is_uploaded_is_not_archived(
    log: SealedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = export

    def rotten(*given: Any, **others: Any) -> Any:
        exported = real(*given, **others)
        path = exported.files["evidence.jsonl.zst"]
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        return exported

    with monkeypatch.context() as rotting:
        rotting.setattr("audit.archive.archiver.export", rotten)
        (outcome,) = await archiver_of(log).archive(FEBRUARY)
    assert (outcome.is_well, outcome.state) == (False, "frozen")
    assert "evidence.jsonl.zst was changed on this machine's disk" in outcome.words
    assert JANUARY_TABLE in attached(log)
    (outcome,) = await archiver_of(log).archive(FEBRUARY)
    assert outcome.state == "dropped"


@pytest.mark.parametrize("step", ["verified", "detached", "dropped"])
async def test_a_key_that_opens_its_box_no_more_is_not_the_only_one_left(log: SealedLog, step: str) -> None:
    await archiver_of(log, event=stopping_at(log, step)).archive(FEBRUARY)
    log.attack(
        "CREATE TABLE keys_before AS SELECT * FROM audit_row_keys",
        "UPDATE audit_row_keys SET key = sha256(key)",
    )
    (outcome,) = await archiver_of(log).archive(FEBRUARY)
    assert not outcome.is_well
    assert "its table has 5 records, 0 without their leaf and 5 without their key" in outcome.words
    assert JANUARY_TABLE in tables(log)
    log.attack(
        "UPDATE audit_row_keys k SET key = b.key FROM keys_before b WHERE b.log_id = k.log_id",
        "DROP TABLE keys_before",
    )
    (outcome,) = await archiver_of(log).archive(FEBRUARY)
    assert outcome.state == "dropped"


# Seen red with `compare` left out before the detach and before the drop.
@pytest.mark.parametrize("step", ["detached", "dropped"])
async def test_a_row_that_came_to_the_table_on_a_side_way_is_not_dropped(log: SealedLog, step: str) -> None:
    await archiver_of(log, event=stopping_at(log, step)).archive(FEBRUARY)
    with psycopg.connect(log.url) as connection:  # signed: other rows are not waited for
        trail = whole_trail(JANUARY, 90)
        text = signed(hashed(row_of(trail), bytes(SALT_BYTES)), trail.log_id, log.key).text
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            f"INSERT INTO {JANUARY_TABLE} SELECT * FROM json_populate_record(NULL::audit_logs, %s)".encode(),
            (json.dumps(json.loads(text) | {"spooled": False}),),
        )
    (outcome,) = await archiver_of(log).archive(FEBRUARY)
    assert not outcome.is_well
    assert "its table has 6 records, 1 without their leaf" in outcome.words
    assert JANUARY_TABLE in tables(log)


async def test_an_archive_that_was_lost_meanwhile_does_not_take_the_table_with_it(log: SealedLog) -> None:
    grace = timedelta(days=30)
    await archiver_of(log, grace=grace).archive(FEBRUARY)
    for path in (log.folder / "vault" / "archive").rglob("*.jsonl.zst"):
        path.unlink()
    (outcome,) = await archiver_of(log).archive(FEBRUARY)
    assert (outcome.is_well, outcome.state) == (False, "detached")
    assert JANUARY_TABLE in tables(log)


# Seen red with a month that was only uploaded counted as archived.
@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        ("the manifest is gone", ("MISSING", "file", "2025-01", None)),
        ("another byte", ("TAMPERED", "file", "2025-01", None)),
        ("the manifest of another month", ("TAMPERED", "file", "2025-01", None)),
        ("never verified", ("MISSING", "month", "2025-01", 0)),
    ],
)
async def test_a_month_counts_as_archived_only_by_its_own_manifest(
    log: SealedLog, attack: str, expected: tuple[str, str, str, int | None]
) -> None:
    await archiver_of(log).archive(None)
    assert await log.seal() == {}
    assert places(log.inspect()) == {("ARCHIVED", "month", month, None) for month in ("2025-01", "2025-02")}
    january, february = (
        next((log.folder / "vault/archive" / month).glob("*.manifest.json"))
        for month in ("2025-01", "2025-02")
    )
    if attack == "the manifest is gone":
        january.unlink()
    elif attack == "another byte":
        january.chmod(0o600)
        january.write_bytes(january.read_bytes()[:-1])
    elif attack == "never verified":
        log.attack(
            "DELETE FROM audit_archives WHERE month = '2025-01-01' AND state NOT IN ('frozen', 'uploaded')"
        )
    else:
        digest = february.name.partition(".")[0]
        log.attack(
            "UPDATE audit_archives SET manifest_key = 'archive/2025-02/' || %(name)s, manifest_version = %(digest)s,"
            " manifest_sha256 = %(digest)s WHERE month = '2025-01-01' AND state <> 'frozen'",
            name=february.name, digest=digest,
        )  # fmt: skip
    assert places(log.inspect()) == {expected, ("ARCHIVED", "month", "2025-02", None)}


def late(log: SealedLog, *, is_new: bool = True) -> Entry:
    """The end of a request of January, as a spool gives it back."""
    trail = whole_trail(JANUARY, 9) if is_new else None
    made = hashed(row_of(trail), b"\x07" * SALT_BYTES) if trail else _again(log.rows[JANUARY, 2])
    log_id = trail.log_id if trail else UUID(log.rows[JANUARY, 2]["log_id"])
    return replace(Entry.closed(log_id, made), is_spooled=True)


def _again(row: Row) -> HashedRow:
    text = {name: value for name, value in row.items() if name != "spooled"}
    return HashedRow(json.dumps(text, separators=(",", ":")), bytes.fromhex(row["leaf_hash"][2:]))


# Seen red with AF001 taken for a database that is away: the spool was never empty again.
@pytest.mark.parametrize("step", ["uploaded", "dropped", "none"], ids=["frozen", "detached", "dropped"])
async def test_what_comes_after_its_month_has_left_is_set_aside_loudly_and_holds_up_nothing(
    log: SealedLog, tmp_path: Path, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    await archiver_of(log, event=stopping_at(log, step)).archive(FEBRUARY)
    late_one, there_already = late(log), late(log, is_new=False)
    timely = Entry.closed(
        (trail := whole_trail(FEBRUARY, 99)).log_id, hashed(row_of(trail), b"\x07" * SALT_BYTES)
    )
    to = DatabaseWriter(make_conninfo(log.url, options="-c role=affidavit_engine"))
    await deliver(SpoolBatch([late_one, there_already, timely], [], 0), to, tmp_path / "a.spool", log.key)
    await to.close()
    assert (tmp_path / ASIDE_FILE).read_bytes() == line_of(late_one)
    assert f"Record {late_one.log_id} came after its month was archived" in caplog.text
    assert timely.log_id in {row["log_id"] for row in rows_of(log, FEBRUARY)}


async def test_no_month_that_has_left_is_made_again(log: SealedLog) -> None:
    await archiver_of(log).archive(FEBRUARY)
    with psycopg.connect(log.url) as connection, pytest.raises(psycopg.DatabaseError, match="archived"):
        make_months(connection, [JANUARY])


@pytest.fixture
def deployed(database: Database, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A deployment with a database that was given to it, and January in it: three records, none sealed yet."""
    with migrated_database(database) as made:
        with psycopg.connect(made.url) as inside:
            make_months(inside, [JANUARY, now().date()])
            key = SigningKey.create(tmp_path / "signing.key")
            write(inside, *(whole_trail(JANUARY, place) for place in range(3)), key=key)
        yield {"DATABASE_URL": made.url, "AFFIDAVIT_ARCHIVE__GRACE_DAYS": "0"}


def run(deployed: dict[str, str], data_dir: Path, *words: str) -> tuple[int, Any, str]:
    """Exit code, what is said as JSON, and what is said beside it."""
    said = affidavit("audit", *words, "--json", data_dir=data_dir, **deployed)
    return said.returncode, json.loads(said.stdout or "null"), said.stderr


def test_the_command_seals_archives_restores_and_says_what_it_did(
    deployed: dict[str, str], tmp_path: Path
) -> None:
    code, foreseen, _ = run(deployed, tmp_path, "archive", "--dry-run")
    assert (code, foreseen[0]["words"]) == (0, "would be sealed, then archived")
    code, (done,), beside = run(deployed, tmp_path, "archive")
    assert (code, done) == (0, {
        "month": "2025-01", "rows": 3, "state": "dropped", "words": "is in the vault", "is_well": True,
    })  # fmt: skip
    assert "2025-01 3/3" in beside
    assert run(deployed, tmp_path, "restore", "2025-01")[1][0]["state"] == "restored"
    assert run(deployed, tmp_path, "restore", "2025-01", "--end")[1][0]["state"] == "dropped"
    code, (refused,), _ = run(deployed, tmp_path, "restore", "2024-12")
    assert (code, refused["is_well"]) == (1, False)
