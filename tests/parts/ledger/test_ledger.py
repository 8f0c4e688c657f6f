"""One request, one row: whatever dies, whenever, and in whichever month."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool

from audit.errors import LedgerUnavailableError
from audit.ledger import partitions
from audit.ledger.ledger import LANES, Ledger
from audit.proof.record import COLUMNS, Trail, leaf_hash, row_of
from audit.proof.row_signature import is_row_signed, sign_open
from engine.storage.database import Database
from engine.wiring import now
from tests.conftest import ROOT, Records
from tests.databases import locked, scratch_log
from tests.logs.writers import KEY, ledger_on, open_records, rebuilt, trail

CANARY = "canary-81c6b2"
ENGINE = "affidavit_engine"
GONE_S = 10

# What a process does that dies in the middle of a request: it says so, and then waits for the end.
DYING = """
import asyncio, sys
from uuid import UUID
from audit.proof.record import Trail
from tests.logs.writers import ledger_on
from engine.storage.database import open_pool
from engine.wiring import now

async def main(url, names):
    async with open_pool(url, "affidavit_engine", size_max=3, wait_s=5) as pool:
        ledger = ledger_on(pool)
        await ledger.start()
        for name in names:
            await ledger.open(Trail(log_id=UUID(name), query_id=UUID(name), timestamp=now(), endpoint="dying",
                                    user_query_text="What is it?", threshold=0.6, filters={"tags": []}))
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main(sys.argv[1], sys.argv[2:]))
"""


@pytest.fixture(scope="module")
async def log(database: Database) -> AsyncIterator[Database]:
    """A log of its own in the running server: here months are missing and processes die."""
    async with scratch_log(database) as made:
        yield made


@pytest.fixture(scope="module")
async def pool(log: Database) -> AsyncIterator[AsyncConnectionPool]:
    async with log.pool(ENGINE, 12) as opened:
        yield opened


@pytest.fixture(scope="module")
async def ledger(pool: AsyncConnectionPool) -> AsyncIterator[Ledger]:
    made = ledger_on(pool)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture(scope="module")
def rows(log: Database) -> Records:
    return Records(log.url)


def whole_trail() -> Trail:
    """Every column that a request can fill, with text that any careless encoding would spoil."""
    return trail(
        answer_id=uuid4(), user_query_text='Was misst\n\t"eine" IMU? 机器人 🤖 e\u0301 \u2028', outcome="answered",
        source_mode="full-book", retrieval_query="IMU", chunks_retrieved_count=50, retrieval_latency_ms=12,
        chunks_returned=[{"chunk_id": "ab", "cosine": 0.1 + 0.2, "bm25": 1e-7, "score": 1.0, "z": None, "a": True}],
        llm_prompt="p", llm_response='{"claims": []}', answer_text="It measures … [1]", confidence_score=1 / 3,
        citations=[{"n": 1, "excerpt": "é", "start": 0, "end": 10**12, "score": 0.0}], success=True,
        error_message="none", request_id="r", client_id="c", key_id="k", end_user="user:1",
        client_address="::1", session_id=uuid4(), book_id="b", http_status=200, reason="r", error_type="e",
        selected_text="s", filters={"tags": ["ä", "b"], "module": 3, "chapter": None}, top_k=5, confidence_level="low",
        retrieval_confidence=0.7, generation_confidence=0.30000000000000004, index_generation=uuid4(),
        embedder="m", calibration_id="i", threshold=0.6, model_requested="x", model_used="y",
        provider_request_id="z", stop_reason="end", tokens_input=1, tokens_output=2, generation_latency_ms=3,
        total_latency_ms=4, limit_decision="admitted", repeat_count=2, prompt_sha256="0", settings_sha256="1",
        code_version="2", calibration_kind="self", best_score=2 / 3, filter_message="ü", rerank="r", released_text="s", instruction_like=["question", "ab"],
    )  # fmt: skip


@asynccontextmanager
async def another_process(log: Database) -> AsyncIterator[Ledger]:
    """To the database another ledger on its own pool is one."""
    async with log.pool(ENGINE, 3) as pool:
        ledger = ledger_on(pool)
        yield ledger
        await ledger.stop()


async def started_elsewhere(log: Database) -> int:
    async with another_process(log) as ledger:
        return await ledger.start()


# Seen red with the DELETE taken out of `_write_row`: the record stayed open.
async def test_open_and_close_leave_one_row_and_nothing_open(
    ledger: Ledger, log: Database, rows: Records
) -> None:
    asked = whole_trail()
    await ledger.open(asked)
    assert open_records(log, asked.log_id) == 1
    assert rows.of(asked.query_id) == []
    await ledger.close(asked, now())
    assert open_records(log, asked.log_id) == 0
    (row,) = rows.of(asked.query_id)
    assert row["partition"] == partitions.partition_name(asked.timestamp.date())


async def test_a_close_without_an_open_is_a_row_too(ledger: Ledger, rows: Records) -> None:
    """A request that fails before its body is read has no open record, and must have its row."""
    asked = trail(outcome="failed", http_status=401)
    await ledger.close(asked, now())
    assert len(rows.of(asked.query_id)) == 1


async def test_a_row_says_what_the_trail_said(ledger: Ledger, rows: Records) -> None:
    asked = whole_trail()
    await ledger.close(asked, now())
    (row,) = rows.of(asked.query_id)
    kept = {"salt", "leaf_hash", "signature"}
    assert is_row_signed(
        row["signature"], str(asked.log_id), row["leaf_hash"], row["timestamp"], [KEY.public]
    )
    assert {name: row[name] for name in COLUMNS if name not in kept} == {
        name: getattr(asked, name) for name in COLUMNS if name not in kept
    }
    assert len(row["salt"]) == 32


# Seen red with the leaf taken before `outcome` was set, and with times hashed in local time.
@pytest.mark.parametrize("session_zone", ["UTC", "Pacific/Auckland"])
async def test_a_row_read_back_proves_itself(ledger: Ledger, log: Database, session_zone: str) -> None:
    asked = whole_trail()
    receipt = await ledger.close(asked, now())
    url = make_conninfo(log.url, user="affidavit_auditor", options=f"-c timezone={session_zone}")
    (row,) = Records(url).of(asked.query_id)
    assert leaf_hash(row_of(rebuilt(row))) == row["leaf_hash"]
    assert receipt.leaf_hash == row["leaf_hash"].hex()
    assert receipt.log_id == row["log_id"]
    changed = replace(rebuilt(row), answer_text="It measures nothing. [1]")
    assert leaf_hash(row_of(changed)) != row["leaf_hash"]


@pytest.mark.parametrize(
    "fields",
    [
        {"confidence_score": 1},  # a model says "confidence": 1, and JSON has no other one
        {"generation_confidence": 0, "retrieval_confidence": 1},
        {"citations": [{"score": 1}]},
        {"confidence_score": -0.0},
        {"chunks_returned": [{"bm25": 123456789012345.6}]},
        {"chunks_returned": [{"bm25": 5e-324}]},
        {"timestamp": datetime(2026, 11, 18, 9, 0, tzinfo=timezone(timedelta(hours=13)))},
    ],
    ids=str,
)
async def test_a_row_with_an_unusual_value_proves_itself(
    ledger: Ledger, pool: AsyncConnectionPool, rows: Records, fields: dict[str, Any]
) -> None:
    """The database may spell a number in another way than we did when we hashed it."""
    await partitions.make_months_ahead(pool, date(2026, 11, 1))
    asked = trail(**fields)
    await ledger.close(asked, now())
    (row,) = rows.of(asked.query_id)
    assert leaf_hash(row_of(rebuilt(row))) == row["leaf_hash"]


async def test_two_rows_never_share_a_salt(ledger: Ledger, rows: Records) -> None:
    asked = [trail() for _ in range(5)]
    await asyncio.gather(*(ledger.close(one, now()) for one in asked))
    found = rows.where("query_id = ANY(%s)", [one.query_id for one in asked])
    assert len({row["salt"] for row in found}) == len({row["leaf_hash"] for row in found}) == 5


@pytest.mark.parametrize(
    ("timestamp", "partition"),
    [
        (datetime(2026, 12, 31, 23, 59, 59, 999999, UTC), "audit_logs_2026_12"),
        (datetime(2027, 1, 1, tzinfo=UTC), "audit_logs_2027_01"),
        (datetime(2028, 2, 29, 23, 59, 59, 999999, UTC), "audit_logs_2028_02"),
        (datetime(2027, 1, 1, 0, 30, tzinfo=timezone(timedelta(hours=1))), "audit_logs_2026_12"),
    ],
)
async def test_a_row_stands_in_the_month_of_its_utc_time(
    ledger: Ledger, pool: AsyncConnectionPool, rows: Records, timestamp: datetime, partition: str
) -> None:
    await partitions.make_months_ahead(pool, timestamp.astimezone(UTC).date())
    asked = trail(timestamp=timestamp)
    await ledger.open(asked)
    await ledger.close(asked, now())
    (row,) = rows.of(asked.query_id)
    assert (row["partition"], row["timestamp"]) == (partition, timestamp)


async def test_the_next_month_is_there_before_it_begins(ledger: Ledger, rows: Records) -> None:
    first, next_month = partitions.months_from(now().date(), 2)
    asked = trail(timestamp=datetime(next_month.year, next_month.month, 1, tzinfo=UTC))
    await ledger.close(asked, now())
    (row,) = rows.of(asked.query_id)
    assert row["partition"] == partitions.partition_name(next_month) != partitions.partition_name(first)


# Seen red with the record deleted in a transaction of its own: it was gone without a row.
async def test_a_missing_month_is_no_row_and_no_loss(ledger: Ledger, log: Database, rows: Records) -> None:
    asked = trail(timestamp=datetime(2001, 1, 1, tzinfo=UTC), user_query_text=CANARY)
    await ledger.open(asked)
    with pytest.raises(LedgerUnavailableError) as failure:
        await ledger.close(asked, now())
    assert open_records(log, asked.log_id) == 1
    assert rows.of(asked.query_id) == []
    assert CANARY not in str(failure.value) + str(failure.value.__cause__)
    with psycopg.connect(log.url) as connection:
        connection.execute("DELETE FROM audit_open WHERE log_id = %s", (asked.log_id,))


# Seen red with the primary key of the log taken away: two rows.
async def test_a_second_close_is_refused(ledger: Ledger, rows: Records) -> None:
    asked = trail(user_query_text=CANARY)
    await ledger.open(asked)
    await ledger.close(asked, now())
    with pytest.raises(LedgerUnavailableError) as failure:
        await ledger.close(replace(asked, answer_text="another"), now())
    (row,) = rows.of(asked.query_id)
    assert row["answer_text"] is None
    assert CANARY not in str(failure.value) + str(failure.value.__cause__)


async def test_two_closes_at_once_are_one_row(ledger: Ledger, rows: Records) -> None:
    asked = trail()
    await ledger.open(asked)
    ends = await asyncio.gather(*(ledger.close(asked, now()) for _ in range(5)), return_exceptions=True)
    assert len(rows.of(asked.query_id)) == 1
    assert sum(isinstance(end, LedgerUnavailableError) for end in ends) == 4


async def test_two_hundred_closes_at_once_are_two_hundred_rows(
    ledger: Ledger, log: Database, rows: Records
) -> None:
    asked = [trail(user_query_text=str(number)) for number in range(200)]

    async def record(one: Trail) -> str:
        await ledger.open(one)
        return (await ledger.close(one, now())).leaf_hash

    async with asyncio.timeout(20):
        receipts = await asyncio.gather(*map(record, asked))
    found = rows.where("query_id = ANY(%s)", [one.query_id for one in asked])
    assert sorted(row["user_query_text"] for row in found) == sorted(map(str, range(200)))
    assert {row["leaf_hash"].hex() for row in found} == set(receipts)
    assert open_records(log, *(one.log_id for one in asked)) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"answer_text": CANARY, "http_status": 2**40},
        {"source_mode": CANARY * 10},
        {"endpoint": None, "user_query_text": CANARY},
        {"citations": [{CANARY: float("nan")}]},
        {"top_k": 2**53 + 1, "user_query_text": CANARY},
    ],
    ids=str,
)
async def test_what_cannot_be_recorded_says_nothing_of_its_text(
    ledger: Ledger, rows: Records, fields: dict[str, Any]
) -> None:
    """One kind of failure, whatever the reason, so that the engine knows it; and no text in its words."""
    asked = trail(**fields)
    with pytest.raises(LedgerUnavailableError) as failure:
        await ledger.close(asked, now())
    assert CANARY not in str(failure.value)
    assert rows.of(asked.query_id) == []


@pytest.mark.parametrize("bad", ["\0", "\ud800", "\udfff\0"], ids=ascii)
async def test_what_the_database_cannot_hold_is_recorded_as_a_replacement(
    ledger: Ledger, rows: Records, bad: str
) -> None:
    """A model may say anything; its request must have its row all the same, and the row its proof."""
    asked = trail(llm_response=f"a{bad}b 🤖", citations=[{"n": 1, "excerpt": bad}])
    await ledger.open(asked)
    await ledger.note(asked)
    await ledger.close(asked, now())
    (row,) = rows.of(asked.query_id)
    assert row["llm_response"] == "a" + "\ufffd" * len(bad) + "b 🤖"
    assert leaf_hash(row_of(rebuilt(row))) == row["leaf_hash"]


@contextmanager
def dying(log: Database, *log_ids: UUID) -> Iterator[subprocess.Popen[str]]:
    """A process with open records; killed at the end at the latest."""
    process = subprocess.Popen(
        [sys.executable, "-c", DYING, log.url, *map(str, log_ids)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None and process.stdin is not None
    try:
        assert process.stdout.readline() == "open\n"
        yield process
    finally:
        process.kill()
        process.wait(GONE_S)
        process.stdin.close()
        process.stdout.close()


def wait_for_leases(log: Database, held: int) -> None:
    """The server needs a moment to notice that somebody has died."""
    deadline = time.monotonic() + GONE_S
    with psycopg.connect(log.url, autocommit=True) as connection:
        while connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'affidavit lease %'"
            " AND datname = current_database()"
        ).fetchone() != (held,):
            assert time.monotonic() < deadline
            time.sleep(0.01)


# Seen red with `_close_abandoned` doing nothing.
async def test_what_a_dead_process_left_open_is_closed_by_the_next_start(
    ledger: Ledger, log: Database, rows: Records
) -> None:
    left = [uuid4() for _ in range(3)]
    with dying(log, *left) as process:
        os.kill(process.pid, signal.SIGKILL)
        wait_for_leases(log, 1)  # that of the ledger of this module
        await started_elsewhere(log)
    found = rows.where("log_id = ANY(%s)", left)
    assert [row["outcome"] for row in found] == ["abandoned"] * 3
    assert {row["user_query_text"] for row in found} == {"What is it?"}
    assert not any(row["success"] for row in found)
    assert all(leaf_hash(row_of(rebuilt(row))) == row["leaf_hash"] for row in found)
    assert open_records(log, *left) == 0
    assert await started_elsewhere(log) == 0
    assert len(rows.where("log_id = ANY(%s)", left)) == 3


# Seen red as before: "The process died while it worked on this request", although each that it counts was answered.
async def test_the_shared_row_of_a_dead_process_says_what_it_counts(
    ledger: Ledger, log: Database, rows: Records
) -> None:
    shared = trail()
    shared.outcome, shared.http_status, shared.repeat_count = "failed", 401, 7
    shared.error_message = "Those beyond are counted here"
    async with log.pool("affidavit_engine", 3) as pool:
        dead = ledger_on(pool, None)
        await dead.start()
        await dead.open(shared)
        await dead.stop()
    wait_for_leases(log, 1)
    assert await started_elsewhere(log) == 1
    (row,) = rows.of(shared.query_id)
    assert (row["outcome"], row["http_status"], row["repeat_count"]) == ("abandoned", 401, 7)
    assert row["error_message"] == "Those beyond are counted here; the process died before its end"


# Seen red with the lease not asked for in `_ABANDONED`: the living one's request was closed under it.
async def test_what_a_living_process_has_open_is_left_alone(
    ledger: Ledger, log: Database, rows: Records
) -> None:
    theirs, ours = uuid4(), trail()
    await ledger.open(ours)
    with dying(log, theirs):
        assert await started_elsewhere(log) == 0
        assert open_records(log, theirs, ours.log_id) == 2
    await ledger.close(ours, now())
    assert len(rows.of(ours.query_id)) == 1
    wait_for_leases(log, 1)
    await started_elsewhere(log)  # or this module's ledger, which looks every few seconds, was faster
    assert [row["outcome"] for row in rows.where("log_id = %s", theirs)] == ["abandoned"]


# Seen red with notes in the queue of the rows.
async def test_a_note_does_not_wait_for_rows(ledger: Ledger, log: Database) -> None:
    noted, *ended = [trail() for _ in range(LANES + 1)]
    for each in (noted, *ended):
        await ledger.open(each)
    closing: list[asyncio.Task[Any]] = []
    with locked(log, "audit_logs") as connection:
        for each in ended:
            closing.append(asyncio.create_task(ledger.close(each, now())))
            await _until(lambda: connection.execute(WAITING).fetchone() == (len(closing),))
        await ledger.note(noted)
        assert not any(each.done() for each in closing)
    await asyncio.gather(*closing)
    await ledger.close(noted, now())


async def _until(is_so: Callable[[], bool]) -> None:
    """PostgreSQL tells nobody when a lock is waited for, or a row is gone."""
    async with asyncio.timeout(GONE_S):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'audit_logs'::regclass"


async def test_starts_at_once_close_each_record_once(ledger: Ledger, log: Database, rows: Records) -> None:
    left = [uuid4() for _ in range(40)]
    with dying(log, *left):
        pass
    wait_for_leases(log, 1)
    assert sum(await asyncio.gather(*(started_elsewhere(log) for _ in range(4)))) <= 40
    await _until(lambda: not open_records(log, *left))  # this module's ledger may have some in hand
    assert len(rows.where("log_id = ANY(%s)", left)) == 40


ALL_OF_THEM = "application_name LIKE 'affidavit %%'"
THE_LEASE = "application_name LIKE 'affidavit lease %%'"


@asynccontextmanager
async def cut_off(log: Database, whom: str = ALL_OF_THEM) -> AsyncIterator[Ledger]:
    """A ledger whose connections were ended by the server, as a restart or an administrator does it."""
    with psycopg.connect(log.url, autocommit=True) as connection:
        here = "SELECT array_agg(pid) FROM pg_stat_activity WHERE datname = current_database()"
        before = connection.execute(here).fetchone()
        assert before is not None
        async with log.pool(ENGINE, 3) as pool:
            ledger = ledger_on(pool)
            await ledger.start()
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                f" WHERE datname = current_database() AND pid <> ALL(%s) AND {whom}".encode(),
                before,
            ).fetchall()
            assert ended
            yield ledger
            await ledger.stop()


@pytest.mark.parametrize("whom", [ALL_OF_THEM, THE_LEASE], ids=["all", "the lease"])
async def test_a_process_lives_on_when_its_connections_were_ended(
    log: Database, rows: Records, whom: str
) -> None:
    """It is the process that must have died, not its connection: else its answers could not be recorded."""
    async with cut_off(log, whom) as living:
        asked = [trail() for _ in range(20)]
        await asyncio.gather(*(opened_again(living, one) for one in asked))
        assert await started_elsewhere(log) == 0
        await asyncio.gather(*(living.close(one, now()) for one in asked))
    found = rows.where("query_id = ANY(%s)", [one.query_id for one in asked])
    assert [row["outcome"] for row in found] == ["open"] * 20


async def test_a_record_waits_for_nobody_who_holds_the_pool(log: Database, rows: Records) -> None:
    async with log.pool(ENGINE, 3) as pool:
        ledger = ledger_on(pool)
        await ledger.start()
        asked = trail()
        async with AsyncExitStack() as busy:
            for _ in range(3):
                await busy.enter_async_context(pool.connection())
            await ledger.open(asked)
            await ledger.close(asked, now())
        assert len(rows.of(asked.query_id)) == 1
        await ledger.stop()


async def test_stopping_after_the_connections_were_ended_is_no_error(log: Database) -> None:
    async with cut_off(log) as living:
        await living.stop()


async def opened_again(ledger: Ledger, asked: Trail) -> None:
    """The first requests after a restart may meet a dead connection; then it must go on."""
    async with asyncio.timeout(GONE_S):
        while True:
            try:
                return await ledger.open(asked)
            except LedgerUnavailableError:
                continue


async def test_a_record_of_a_missing_month_does_not_keep_the_engine_from_starting(
    log: Database, rows: Records
) -> None:
    """Asked in a month for which no partition was made; the others must be closed all the same."""
    months_gone = trail(timestamp=datetime(2002, 2, 2, tzinfo=UTC))
    this_month = trail()
    body = psycopg.types.json.Jsonb
    with psycopg.connect(log.url) as connection:
        for left in (months_gone, this_month):
            connection.execute(
                "INSERT INTO audit_open (log_id, opened_at, owner, trail, signature) VALUES (%s, %s, 4711, %s, %s)",
                (left.log_id, left.timestamp, body(row_of(left)), sign_open(row_of(left), KEY)),
            )
    try:
        await started_elsewhere(log)
        assert len(rows.of(this_month.query_id)) == 1
        assert len(rows.of(months_gone.query_id)) + open_records(log, months_gone.log_id) == 1
    finally:
        with psycopg.connect(log.url) as connection:
            connection.execute("DELETE FROM audit_open WHERE owner = 4711")
