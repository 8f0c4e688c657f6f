"""What a hold covers is neither erased, nor ended, nor dropped, until two people release it."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors

from audit import auditor
from audit.erasure.erase import ErasureReport
from audit.erasure.target import ErasureTarget, spellings
from audit.errors import ErasureUnavailableError, HeldError, HoldRefusedError
from audit.holding.hold import Scope, check_people, signed_line
from audit.ledger.entry import Entry
from audit.ledger.spool import ASIDE_FILE, line_of
from audit.proof.record import Trail, commitments, hashed, row_of
from audit.proof.verdict import Verdict
from engine import wiring
from engine.admission.sessions import Owner, Sessions
from engine.errors import UnderHoldError
from engine.models import Client
from engine.storage.database import Database
from engine.wiring import now
from tests.logs.archiving import archiver_of, tables
from tests.logs.holding import finish, hold, holding, release
from tests.logs.recorded import write
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog, sealed_log, whole_trail
from tests.parts.archive.test_erase import (
    CANARY,
    NAMED,
    READER,
    add_theirs,
    found,
    open_record,
    personal,
    theirs,
)

THEM = ErasureTarget(spellings(NAMED))
HELD = "AF002"
MARCH = date(2025, 3, 1)


@pytest.fixture(scope="module")
async def whole(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SealedLog]:
    """Two of February's records are the reader's."""
    async with sealed_log(database, tmp_path_factory.mktemp("held")) as made:
        await add_theirs(made)
        made.keep()
        yield made


@pytest.fixture
def log(whole: SealedLog) -> Iterator[SealedLog]:
    yield whole
    whole.restore()


@pytest.fixture
async def leaving(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path) as made:
        await add_theirs(made)
        yield made


def ask(log: SealedLog, query: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(log.url) as connection:
        return connection.execute(query.encode(), values).fetchall()


def is_there(log: SealedLog) -> int:
    """How many of their records still say something."""
    return int(ask(log, "SELECT count(*) FROM audit_logs WHERE end_user = %s", NAMED)[0][0])


async def is_refused(log: SealedLog, target: ErasureTarget = THEM) -> HeldError:
    with pytest.raises(HeldError) as refused:
        await log.erase(target)
    return refused.value


# --- what it covers


# Seen red with an eraser that does not ask for holds: the database refused, and no request was kept.
async def test_a_held_person_is_not_erased_and_the_request_is_carried_out_on_release(log: SealedLog) -> None:
    hold_id = await hold(log, NAMED)
    refused = await is_refused(log)
    assert (refused.holds, refused.records) == ((hold_id,), 2)
    assert "nothing was erased" in str(refused) and str(refused.request_id) in str(refused)
    assert is_there(log) == 2
    assert await finish(log) == []
    await release(log, hold_id)
    (done,) = await finish(log)
    assert (done.erasure_id, done.records, done.left) == (refused.request_id, 2, [])
    assert is_there(log) == 0
    assert await finish(log) == []


CRITERIA: dict[str, tuple[dict[str, Any], bool]] = {
    "the client": ({"client_id": "c"}, True),
    "another client": ({"client_id": "C"}, False),
    "the minute": (
        {"since": datetime(2025, 2, 10, 13, 42, tzinfo=UTC), "until": datetime(2025, 2, 10, 13, 43, tzinfo=UTC)}, True
    ),
    "until their first": ({"until": datetime(2025, 2, 10, 13, 42, tzinfo=UTC)}, False),
    "from after their last": ({"since": datetime(2025, 2, 10, 13, 47, 0, 1, tzinfo=UTC)}, False),
    "from their last": ({"since": datetime(2025, 2, 10, 13, 47, tzinfo=UTC)}, True),
    "another time zone": (
        {"since": datetime(2025, 2, 10, 15, 42, tzinfo=timezone(timedelta(hours=2))), "until": datetime(2025, 2, 10, 13, 43, tzinfo=UTC)},
        True,
    ),
    "client and another period": ({"client_id": "c", "since": datetime(2025, 3, 1, tzinfo=UTC)}, False),
    "another query": ({"query_id": uuid4()}, False),
}  # fmt: skip


# Seen red with an end of the period that is included, and with criteria that are joined by OR.
@pytest.mark.parametrize(("criteria", "covers"), CRITERIA.values(), ids=CRITERIA)
async def test_criteria_narrow_each_other(log: SealedLog, criteria: dict[str, Any], covers: bool) -> None:
    await hold(log, **criteria)
    if covers:
        await is_refused(log)
    else:
        assert (await log.erase(THEM)).records == 2


@pytest.mark.parametrize("zone", [timezone(timedelta(hours=14)), UTC, timezone(timedelta(hours=-12))])
async def test_a_month_ends_in_utc(log: SealedLog, zone: timezone) -> None:
    edge = datetime(2025, 2, 1, tzinfo=UTC)
    with psycopg.connect(log.url) as connection:
        last = write(connection, whole_trail(JANUARY, 50), key=log.key)  # before the edge
        at = whole_trail(FEBRUARY, 51)
        at.timestamp = edge - timedelta(microseconds=1)
        last = write(connection, at, key=log.key)
        at = whole_trail(FEBRUARY, 52)
        at.timestamp = edge
        first = write(connection, at, key=log.key)
    assert await log.seal() == {}
    await hold(log, since=edge.astimezone(zone))
    assert (await log.erase(ErasureTarget(query_id=UUID(last["query_id"])))).records == 1
    await is_refused(log, ErasureTarget(query_id=UUID(first["query_id"])))


async def test_a_query_is_held(log: SealedLog) -> None:
    first, second = theirs(log)
    hold_id = await hold(log, query_id=UUID(first["query_id"]))
    await is_refused(log, ErasureTarget(query_id=UUID(first["query_id"])))
    assert (await log.erase(ErasureTarget(query_id=UUID(second["query_id"])))).records == 1
    await is_refused(log)  # the whole person waits, because one record is held
    await release(log, hold_id)
    assert sum(report.records for report in await finish(log)) == 1


async def test_two_holds_overlap_and_the_second_still_holds(log: SealedLog) -> None:
    one, other = await hold(log, NAMED), await hold(log, client_id="c")
    await is_refused(log)
    await release(log, one)
    assert await finish(log) == []
    assert is_there(log) == 2
    await release(log, other)
    assert [report.records for report in await finish(log)] == [2]


@pytest.mark.parametrize(
    "user", ["user:o'brien\"; DROP TABLE audit_holds; --", "user:%s{}\\\\", "anon:\uff12\uff10\uff10\uff11::1", "user:😀\u202ename", "  user:x y  "]
)  # fmt: skip
async def test_odd_characters_are_only_characters(log: SealedLog, user: str) -> None:
    with psycopg.connect(log.url) as connection:
        trail = whole_trail(FEBRUARY, 300, **(personal(CANARY) | {"end_user": user.strip()}))
        write(connection, trail, key=log.key)
    assert await log.seal() == {}
    await hold(log, user)
    assert (await is_refused(log, ErasureTarget(spellings(user)))).records == 1
    assert (await log.erase(THEM)).records == 2


async def test_a_hold_without_records_says_so_and_holds_what_comes_later(log: SealedLog) -> None:
    async with holding(log) as (holds, event):
        _, records = await holds.add(Scope(client_id="later"), "A", "case", event)
    assert records == 0
    with psycopg.connect(log.url) as connection:
        row = write(connection, whole_trail(FEBRUARY, 300, client_id="later"), key=log.key)
    assert await log.seal() == {}
    await is_refused(log, ErasureTarget(query_id=UUID(row["query_id"])))


@pytest.mark.parametrize(
    "scope",
    [Scope(), Scope(since=datetime(2025, 2, 1, tzinfo=UTC), until=datetime(2025, 2, 1, tzinfo=UTC))],
    ids=["of everything", "of no time"],
)
async def test_a_hold_that_says_nothing_is_refused(log: SealedLog, scope: Scope) -> None:
    async with holding(log) as (holds, event):
        with pytest.raises(ValueError, match=r"Say what is held|empty"):
            await holds.add(scope, "A", "case", event)


# --- who releases it


SAME = [
    ("A. Counsel", "A. Counsel"),
    ("A. Counsel", " a.  COUNSEL "),
    ("\uff21. Counsel", "A.\u200b Counsel"),
]


# Seen red with names that are compared letter by letter.
@pytest.mark.parametrize(("asks", "approves"), SAME)
async def test_nobody_releases_a_hold_alone(log: SealedLog, asks: str, approves: str) -> None:
    hold_id = await hold(log, NAMED)
    with pytest.raises(HoldRefusedError, match=r"alone|one line"):
        await release(log, hold_id, asks, approves)
    await is_refused(log)
    ((outcome, reason),) = ask(
        log, "SELECT outcome, reason FROM audit_logs WHERE endpoint = 'affidavit audit hold release'"
    )
    assert (outcome, reason) == ("failed", None)


# Seen red with no check that the two people differ.
async def test_the_database_itself_asks_for_two(log: SealedLog) -> None:
    hold_id = await hold(log, NAMED)
    line = signed_line(
        "hold", log.key, hold_id=hold_id, change="released", at=now(), actor="A", approved_by="a ", basis="b", event=uuid4()
    )  # fmt: skip
    with psycopg.connect(log.url) as connection:
        connection.execute("SET ROLE affidavit_archiver")
        with pytest.raises(errors.CheckViolation):
            connection.execute("SELECT audit_change_hold(%s::json, NULL, NULL)", (json.dumps(line),))


async def test_a_hold_is_released_once(log: SealedLog) -> None:
    hold_id = await hold(log, NAMED)
    await release(log, hold_id)
    with pytest.raises(HoldRefusedError, match="released already"):
        await release(log, hold_id)
    with pytest.raises(HoldRefusedError, match="no such hold"):
        await release(log, uuid4())
    assert ask(log, "SELECT count(*) FROM audit_holds") == [(2,)]


def test_the_actor_is_not_the_reader() -> None:
    with pytest.raises(ValueError, match="must not be the reader's"):
        check_people("User:X", None, ["user:x"])


# --- everything is a record of the log


async def test_every_change_and_every_blocked_attempt_is_a_record_without_the_name(log: SealedLog) -> None:
    hold_id = await hold(log, NAMED)
    refused = await is_refused(log)
    again = await is_refused(log)
    await release(log, hold_id)
    await finish(log)
    assert again.request_id == refused.request_id
    rows = ask(
        log,
        "SELECT endpoint, outcome, reason, l::text FROM audit_logs l WHERE endpoint LIKE 'affidavit audit %%' ORDER BY timestamp",
    )
    assert [row[:3] for row in rows] == [
        ("affidavit audit hold add", "recorded", f"hold {hold_id}: added"),
        ("affidavit audit erase", "recorded", f"erasure request {refused.request_id}: waits for 1 holds"),
        ("affidavit audit erase", "recorded", f"erasure request {refused.request_id}: waits for 1 holds"),
        ("affidavit audit hold release", "recorded", f"hold {hold_id}: released"),
        ("affidavit audit erase", "recorded", f"erasure {refused.request_id}: 2 records"),
        ("affidavit audit erase", "recorded", "1 erasure requests are done"),
    ]
    assert READER not in str([row[3] for row in rows])
    assert ask(log, "SELECT change FROM audit_erasure_requests ORDER BY at") == [("asked",), ("done",)]


# Seen red with the names left where they were.
async def test_g10_after_the_erasure_no_hold_names_them_any_more(log: SealedLog) -> None:
    hold_id = await hold(log, NAMED)
    await is_refused(log)
    await release(log, hold_id)
    async with log.erasing() as (eraser, event):
        await eraser.finish(event)
        await eraser.vacuum()
    assert found(log, CANARY, READER) == set()
    assert await log.seal() == {}
    assert log.inspect().verdict is Verdict.VALID
    for row in theirs(log):
        assert auditor.check(await log.prove(row), log.keys).verdict is Verdict.ERASED


async def test_an_erasure_after_the_release_forgets_the_name_of_the_hold_too(log: SealedLog) -> None:
    await release(log, await hold(log, NAMED))
    assert (await log.erase(THEM)).records == 2
    assert ask(log, "SELECT count(*) FROM audit_hold_subjects") == [(0,)]


async def test_the_name_of_a_hold_in_force_cannot_be_forgotten(log: SealedLog) -> None:
    await hold(log, NAMED)
    with psycopg.connect(log.url) as connection:
        connection.execute("SET ROLE affidavit_owner")
        with pytest.raises(psycopg.Error) as refused:
            connection.execute("DELETE FROM audit_hold_subjects")
    assert refused.value.sqlstate == HELD


# --- the database refuses by itself


def a_line(log: SealedLog, row: dict[str, Any]) -> str:
    """What the eraser sends, but for the hold."""
    return json.dumps([
        {
            "erasure_id": str(uuid4()), "log_id": row["log_id"], "query_id": row["query_id"], "timestamp": row["timestamp"],
            "month": f"{row['timestamp'][:7]}-01", "erased_at": now().isoformat(), "basis": "b", "event": str(uuid4()),
            "key_id": "", "signature": "", "commitments": commitments(row),
        }
    ])  # fmt: skip


# Seen red with no look for holds in `audit_refuse_change`.
async def test_the_erasing_function_refuses_what_is_held(log: SealedLog) -> None:
    await hold(log, NAMED)
    (row, _), free = theirs(log), log.rows[FEBRUARY, 3]
    with psycopg.connect(log.url, autocommit=True) as connection:
        connection.execute("SET ROLE affidavit_archiver")
        with pytest.raises(psycopg.Error) as refused:
            connection.execute("SELECT audit_erase(%s::json)", (a_line(log, row),))
        assert refused.value.sqlstate == HELD
        assert connection.execute("SELECT audit_erase(%s::json)", (a_line(log, free),)).fetchone() == (1,)
        connection.execute("SET ROLE affidavit_engine")
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute("SELECT audit_erase(%s::json)", (a_line(log, row),))
    assert is_there(log) == 2


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("affidavit_engine", "INSERT INTO audit_holds (hold_id) VALUES (gen_random_uuid())"),
        ("affidavit_archiver", "INSERT INTO audit_holds (hold_id) VALUES (gen_random_uuid())"),
        ("affidavit_owner", "DELETE FROM audit_holds"),
        ("affidavit_owner", "UPDATE audit_holds SET until = now()"),
        ("affidavit_owner", "TRUNCATE audit_holds"),
        ("affidavit_owner", "UPDATE audit_hold_subjects SET names = '{x}'"),
        ("affidavit_owner", "DELETE FROM audit_erasure_requests"),
        ("affidavit_owner", "UPDATE audit_row_keys SET timestamp = now()"),
        ("affidavit_owner", "TRUNCATE audit_row_keys"),
        ("postgres", "DELETE FROM audit_holds"),
        ("postgres", "DROP TABLE audit_holds CASCADE"),
        ("postgres", "DROP TABLE audit_hold_subjects"),
        ("postgres", "DROP TABLE audit_row_keys"),
    ],
)
async def test_nobody_changes_a_hold_otherwise(log: SealedLog, role: str, statement: str) -> None:
    await hold(log, NAMED)
    with psycopg.connect(log.url) as connection:
        connection.execute(f"SET ROLE {role}".encode())
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute(statement.encode())


# --- where a record may be


# Seen red with an open record that is emptied whoever holds it.
async def test_an_open_request_is_held(log: SealedLog) -> None:
    open_record(log)
    hold_id = await hold(log, NAMED)
    assert (await is_refused(log)).records == 3
    with psycopg.connect(log.url, autocommit=True) as connection:
        connection.execute("SET ROLE affidavit_archiver")
        with pytest.raises(psycopg.Error) as refused:
            connection.execute("SELECT audit_empty_open(log_id, NULL) FROM audit_open")
        assert refused.value.sqlstate == HELD
    await release(log, hold_id)
    async with log.erasing(within_s=0.5) as (eraser, event):
        (done,) = await eraser.finish(event)
    assert (done.records, done.open) == (2, 1)
    assert found(log, CANARY) <= {"pg_statistic"}


# Seen red with no look into the spool.
async def test_a_record_that_waits_in_the_spool_is_held(log: SealedLog, tmp_path: Path) -> None:
    """Of a hold that knows it only by its client and its time."""
    with psycopg.connect(log.url) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("DELETE FROM audit_logs WHERE end_user = %s", (NAMED,))
    trail = whole_trail(FEBRUARY, 400, **(personal(CANARY) | {"client_id": "spooling"}))
    line = line_of(Entry.closed(trail.log_id, hashed(row_of(trail), b"s" * 32)))
    (tmp_path / ASIDE_FILE).write_bytes(line)
    hold_id = await hold(log, client_id="spooling", until=datetime(2025, 3, 1, tzinfo=UTC))
    async with log.erasing(spool=tmp_path) as (eraser, event):
        with pytest.raises(HeldError) as refused:
            await eraser.erase(THEM, "a wish", event)
        assert refused.value.holds == (hold_id,)
        assert CANARY.encode() in (tmp_path / ASIDE_FILE).read_bytes()
        await release(log, hold_id)
        (done,) = await eraser.finish(event)
    assert done.set_aside == 1
    assert CANARY.encode() not in (tmp_path / ASIDE_FILE).read_bytes()


# Seen red with a key that goes whoever holds its record.
async def test_an_archived_record_is_held(leaving: SealedLog) -> None:
    await archive(leaving)
    assert not {"audit_logs_2025_01", "audit_logs_2025_02"} & tables(leaving)
    for criteria, covers in (
        ({"user": NAMED}, True),
        ({"client_id": "c"}, True),
        ({"client_id": "d"}, False),
        ({"since": datetime(2025, 2, 10, 13, 42, 1, tzinfo=UTC)}, True),
        ({"since": datetime(2025, 2, 10, 13, 47, 1, tzinfo=UTC)}, False),
    ):
        hold_id = await hold(leaving, **criteria)
        if covers:
            async with holding(leaving) as (holds, _):
                assert next(one.records for one in await holds.all() if one.hold_id == hold_id) > 0
            await is_refused(leaving)
        else:
            assert ask(leaving, "SELECT count(*) FROM audit_holds_against(%s, '{}')", list(THEM.names)) == [
                (0,)
            ]
        with psycopg.connect(leaving.url) as connection:
            connection.execute("SET ROLE affidavit_archiver")
            statement = "DELETE FROM audit_row_keys WHERE log_id = %s"
            if covers:
                with pytest.raises(psycopg.Error) as refused:
                    connection.execute(statement, (theirs(leaving)[1]["log_id"],))
                assert refused.value.sqlstate == HELD
            else:
                assert connection.execute(statement, (theirs(leaving)[1]["log_id"],)).rowcount == 1
            connection.rollback()
        await release(leaving, hold_id)
    (done,) = await finish(leaving)
    assert (done.archived, done.records) == (2, 0)


async def test_a_key_that_knows_no_time_counts_as_held_by_its_month(leaving: SealedLog) -> None:
    await archive(leaving)
    leaving.attack("UPDATE audit_row_keys SET client_id = NULL, timestamp = NULL")
    march = await hold(leaving, client_id="other", since=datetime(2025, 3, 1, tzinfo=UTC))
    assert ask(leaving, "SELECT audit_count_held(%s)", march) == [(0,)]
    await hold(leaving, client_id="other", until=datetime(2025, 2, 1, 0, 0, 1, tzinfo=UTC))
    await is_refused(leaving)


async def archive(log: SealedLog) -> None:
    outcomes = await archiver_of(log).archive(MARCH)
    assert {outcome.state for outcome in outcomes} == {"dropped"}, outcomes


# --- the archive copies, and drops nothing


# Seen red with no look for holds in `audit_guard.refuse_drop`.
async def test_the_archive_copies_a_held_month_and_does_not_drop_it(leaving: SealedLog) -> None:
    hold_id = await hold(leaving, NAMED)
    archiver = archiver_of(leaving)
    january, february = await archiver.archive(MARCH)
    assert (january.state, february.state) == ("dropped", "detached")
    assert february.is_well and "until the holds on its records are released" in february.words
    assert ask(
        leaving,
        "SELECT count(*) FROM audit_logs WHERE endpoint = 'affidavit audit archive' AND outcome = 'failed'",
    ) == [(1,)]
    with psycopg.connect(leaving.url) as connection:
        connection.execute("SET ROLE affidavit_archiver")
        connection.execute("SET ROLE affidavit_owner")
        with pytest.raises(psycopg.Error) as refused:
            connection.execute("DROP TABLE audit_logs_2025_02")
    assert refused.value.sqlstate == HELD
    await release(leaving, hold_id)
    (february,) = await archiver.archive(MARCH)
    assert february.state == "dropped"


# Seen red with a guard that looks at keys alone.
async def test_a_month_without_keys_is_not_dropped_under_any_hold_that_reaches_it(leaving: SealedLog) -> None:
    """Who may write that a month is verified could drop it before it has a key."""
    await hold(leaving, client_id="c")
    with psycopg.connect(leaving.url) as connection:
        connection.execute("SET ROLE affidavit_archiver")
        connection.execute(
            "INSERT INTO audit_archives (month, state, rows, manifest_key, manifest_version, manifest_sha256)"
            " VALUES (%s, 'verified', 5, 'k', 'v', 's')", (JANUARY,)
        )  # fmt: skip
        connection.execute("SET ROLE affidavit_owner")
        with pytest.raises(psycopg.Error) as refused:
            connection.execute("DROP TABLE audit_logs_2025_01")
    assert refused.value.sqlstate == HELD


# --- retention


# Seen red with a look for old records that finds held ones too.
async def test_retention_passes_over_what_is_held(log: SealedLog) -> None:
    hold_id = await hold(log, client_id="c", since=datetime(2025, 2, 1, tzinfo=UTC))
    done = await end_retention(log)
    assert (done.records, done.held, done.left) == (5, 14, [])
    assert is_there(log) == 2
    reasons = ask(
        log, "SELECT reason FROM audit_logs WHERE endpoint = 'affidavit audit erase' AND outcome = 'recorded'"
    )
    assert ("14 records are under a hold and stay",) in reasons
    await release(log, hold_id)
    assert (await end_retention(log)).records == 14


async def test_retention_of_the_archive_passes_over_what_is_held(leaving: SealedLog) -> None:
    await archive(leaving)
    await hold(leaving, NAMED)
    done = await end_retention(leaving)
    assert (done.archived, done.held) == (17, 2)
    assert ask(leaving, "SELECT count(*) FROM audit_row_keys") == [(2,)]


# Seen red with names that go whenever their hold has ended.
async def test_retention_forgets_the_names_of_holds_that_ended_before(log: SealedLog) -> None:
    await release(log, await hold(log, NAMED))
    await hold(log, "user:else")
    await end_retention(log)
    assert ask(log, "SELECT count(*) FROM audit_hold_subjects") == [(2,)]
    await end_retention(log, now() + timedelta(seconds=1))
    assert ask(log, "SELECT count(*) FROM audit_hold_subjects") == [(1,)]


async def end_retention(log: SealedLog, until: datetime = datetime(2025, 3, 1, tzinfo=UTC)) -> ErasureReport:
    async with log.erasing() as (eraser, event):
        return await eraser.end_retention(until, "older than a day", event, lambda *_: None)


# --- conversations


def converse(log: SealedLog, row: dict[str, Any], user_id: str | None = READER) -> None:
    with psycopg.connect(log.url) as connection:
        session = uuid4()
        connection.execute(
            "INSERT INTO chat_sessions (id, client_id, user_id, session_token, last_activity_at)"
            " VALUES (%s, 'c', %s, %s, now() - interval '1 year')", (session, user_id, session.hex),
        )  # fmt: skip
        connection.execute(
            "INSERT INTO chat_messages (session_id, query_id, book_id, role, content) VALUES (%s, %s, 'b', 'user', %s)",
            (session, row["query_id"], CANARY),
        )


# Seen red with a purge that takes all: it failed at the first that is held. And with messages that go whoever holds them.
async def test_a_purge_passes_over_conversations_of_held_records(log: SealedLog) -> None:
    converse(log, theirs(log)[0])
    converse(log, log.rows[FEBRUARY, 3], None)
    hold_id = await hold(log, NAMED)
    with psycopg.connect(log.url, autocommit=True) as connection:
        connection.execute("SET ROLE affidavit_engine")
        assert connection.execute("SELECT purge_old_chat_sessions(30)").fetchone() == (1,)
        assert connection.execute("SELECT audit_held_sessions(30)").fetchone() == (1,)
        with pytest.raises(psycopg.Error) as refused:
            connection.execute("DELETE FROM chat_sessions")
        assert refused.value.sqlstate == HELD
    await release(log, hold_id)
    with psycopg.connect(log.url, autocommit=True) as connection:
        connection.execute("SET ROLE affidavit_engine")
        assert connection.execute("SELECT purge_old_chat_sessions(30)").fetchone() == (1,)


async def test_the_owner_of_a_held_conversation_cannot_delete_it(log: SealedLog) -> None:
    converse(log, theirs(log)[0])
    ((session_id,),) = ask(log, "SELECT id FROM chat_sessions")
    await hold(log, NAMED)
    owner = Owner(Client("c", "k", frozenset()), UUID(READER), None)
    async with log.database.pool("affidavit_engine") as pool:
        with pytest.raises(UnderHoldError):
            await Sessions(pool, 1000, uuid4).delete(session_id, owner)
    assert ask(log, "SELECT count(*) FROM chat_messages") == [(1,)]


# --- rows that the engine did not sign


# Seen red with a trigger that lets an unsigned row go whoever holds it.
async def test_what_is_held_is_not_set_aside(log: SealedLog) -> None:
    """It may be the evidence."""
    with psycopg.connect(log.url) as connection:
        write(connection, whole_trail(FEBRUARY, 600, **personal(CANARY)))
    hold_id = await hold(log, NAMED)
    with pytest.raises(HeldError, match="none was set aside"):
        await wiring.set_aside(log.database, "ticket 4711")
    assert is_there(log) == 3
    await release(log, hold_id)
    assert len(await wiring.set_aside(log.database, "ticket 4711")) == 1


# Seen red with a hold that knows no conversations.
async def test_what_is_known_to_be_theirs_only_by_their_conversation_is_held_too(log: SealedLog) -> None:
    row = log.rows[FEBRUARY, 3]  # of another name
    converse(log, row)
    await hold(log, NAMED)
    await is_refused(log, ErasureTarget(query_id=UUID(row["query_id"])))
    assert (await end_retention(log)).held == 3


# --- at the same time


async def test_a_hold_that_is_added_during_an_erasure_comes_before_it_or_after_it(log: SealedLog) -> None:
    for _ in range(6):
        converse(log, theirs(log)[0])
        erasing = asyncio.create_task(log.erase(THEM))
        adding = asyncio.create_task(hold(log, NAMED))
        erased, hold_id = await asyncio.gather(erasing, adding, return_exceptions=True)
        assert isinstance(hold_id, UUID), hold_id
        conversations = ask(log, "SELECT count(*) FROM chat_messages")[0][0]
        if isinstance(erased, HeldError):
            assert (is_there(log), conversations) == (2, 1)
        else:
            assert isinstance(erased, ErasureReport)
            assert (is_there(log), conversations) == (0, 0)
        log.restore()


# Seen red with erasures that do not share the lock: the conversation went, and a record stayed.
async def test_a_hold_waits_for_the_end_of_an_erasure_that_began_before(log: SealedLog) -> None:
    """The conversation is gone already, and a record is not."""
    converse(log, theirs(log)[0])
    reached, goes_on, begun = asyncio.Event(), asyncio.Event(), 0
    async with log.erasing() as (eraser, event):

        @asynccontextmanager
        async def stopping() -> AsyncIterator[Trail]:
            nonlocal begun
            begun += 1
            if begun == 2:
                reached.set()
                await goes_on.wait()
            async with event() as trail:
                yield trail

        erasing = asyncio.create_task(eraser.erase(THEM, "a wish", stopping))
        await reached.wait()
        adding = asyncio.create_task(hold(log, NAMED))
        waiting = asyncio.create_task(until_waiting(log))
        await asyncio.wait([adding, waiting], return_when=asyncio.FIRST_COMPLETED)
        assert (is_there(log), adding.done()) == (1, False)
        goes_on.set()
        assert (await erasing).records == 2
        await adding
    assert is_there(log) == 0


async def test_an_erasure_waits_for_a_hold_that_is_being_added(log: SealedLog) -> None:
    with psycopg.connect(log.url) as connection:
        connection.execute("SET ROLE affidavit_archiver")
        line = signed_line(
            "hold", log.key, hold_id=uuid4(), change="added", at=now(), actor="A", basis="b", event=uuid4(), client_id="c"
        )  # fmt: skip
        connection.execute("SELECT audit_change_hold(%s::json, NULL, NULL)", (json.dumps(line),))
        erasing = asyncio.create_task(log.erase(THEM))
        await until_waiting(log)
        connection.commit()
        with pytest.raises(HeldError):
            await erasing
    assert is_there(log) == 2


async def until_waiting(log: SealedLog) -> None:
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(10):
        while not ask(log, waits)[0][0]:  # noqa: ASYNC110  another session's wait
            await asyncio.sleep(0.02)


# --- forged


async def doubts(log: SealedLog) -> list[str]:
    return await wiring.hold_doubts_of(log.database)


async def test_all_is_well_with_what_the_commands_do(log: SealedLog) -> None:
    hold_id = await hold(log, NAMED)
    await hold(log, client_id="c", until=datetime(2025, 1, 1, tzinfo=timezone(timedelta(hours=2))))
    await is_refused(log)
    assert await doubts(log) == []
    await release(log, hold_id)
    assert await doubts(log) == []
    await finish(log)
    assert await doubts(log) == []
    assert await log.seal() == {}
    assert log.inspect().verdict is Verdict.VALID


FORGERIES = {
    "a hold nobody added": (
        (
        "INSERT INTO audit_holds (hold_id, change, at, actor, basis, client_id, event, key_id, signature)"
        " SELECT gen_random_uuid(), 'added', at, actor, basis, 'c', event, key_id, signature FROM audit_holds LIMIT 1"
        ),
        "was not signed by this log",
    ),
    "a hold that ends sooner": ("UPDATE audit_holds SET until = '2025-01-01'", "was not signed by this log"),
    "a hold that is gone": ("DELETE FROM audit_holds", "is in the log, and was deleted from audit_holds"),
    "other names": ("UPDATE audit_hold_subjects SET names = '{nobody}'", "were changed"),
    "no names": ("DELETE FROM audit_hold_subjects", "were deleted"),
    "the record of it gone": ("DELETE FROM audit_logs WHERE endpoint = 'affidavit audit hold add'", "has no record in the log"),
    "a release": (
        (
        "INSERT INTO audit_holds (hold_id, change, at, actor, approved_by, basis, event, key_id, signature)"
        " SELECT hold_id, 'released', at, actor, 'B', basis, event, key_id, signature FROM audit_holds"
        ),
        "was not signed by this log",
    ),
}  # fmt: skip


# Seen red with lines that are read without their signature, and without the comparison with the log's records.
@pytest.mark.parametrize(("statement", "words"), FORGERIES.values(), ids=FORGERIES)
async def test_what_a_superuser_changes_is_seen(log: SealedLog, statement: str, words: str) -> None:
    await hold(log, NAMED)
    log.attack(statement)
    assert any(words in doubt for doubt in await doubts(log)), await doubts(log)
    assert await log.seal() == {}
    report = log.inspect()
    assert report.verdict is Verdict.TAMPERED
    assert any(finding.what == "hold" and words in finding.words for finding in report.findings)


# Seen red with an eraser that believes the database.
async def test_a_forged_release_releases_nothing(log: SealedLog) -> None:
    await hold(log, NAMED)
    log.attack(FORGERIES["a release"][0])
    with pytest.raises(ErasureUnavailableError, match="was not signed by this log"):
        await log.erase(THEM)
    with pytest.raises(ErasureUnavailableError, match="was not signed by this log"):
        await end_retention(log)
    assert is_there(log) == 2


# Seen red with a hold without names that covers nobody.
async def test_a_hold_without_its_names_holds_more_and_not_less(log: SealedLog) -> None:
    await hold(log, NAMED)
    log.attack("DELETE FROM audit_hold_subjects")
    await is_refused(log)


# Seen red with requests that are carried out unread.
async def test_a_forged_request_erases_nobody(log: SealedLog) -> None:
    """Else whoever owns the database could have the engine erase, and sign it."""
    log.attack(
        "INSERT INTO audit_erasure_requests (request_id, change, at, basis, query_id, event, key_id, signature)"
        " VALUES (gen_random_uuid(), 'asked', now(), 'b', %(query_id)s, gen_random_uuid(), 'k', '')",
        query_id=theirs(log)[0]["query_id"],
    )
    (done,) = await finish(log)
    assert "is not as this log signed it" in done.left[0]
    assert is_there(log) == 2


def test_a_line_says_the_same_whoever_writes_its_time() -> None:
    trail = Trail(log_id=uuid4(), query_id=uuid4(), timestamp=datetime(2025, 2, 1, tzinfo=UTC), endpoint="e")
    assert Scope(since=datetime(2025, 2, 1, 2, tzinfo=timezone(timedelta(hours=2)))).covers(row_of(trail))
