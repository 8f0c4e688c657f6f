"""What a client was told and what its row says agree, whatever the disk does: late commits, full disks, hung flushes."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from audit.errors import LedgerUnavailableError
from audit.ledger import write_probe
from audit.ledger.ledger import Ledger
from audit.proof.record import Trail
from engine.storage.database import Database
from engine.wiring import now
from tests.conftest import Records
from tests.databases import scratch_log
from tests.logs.writers import MEBIBYTE, open_records, trail
from tests.parts.ledger.test_spooling import (
    AWAY,
    arrived,
    execute,
    full,
    gone,
    slow,
    spool_is_drained,
    writing,
)

WITHIN_S = 0.3
REQUEST_S = 2.0
LATE_S = 1.0


@pytest.fixture
async def log(database: Database) -> AsyncIterator[Database]:
    async with scratch_log(database) as made:
        yield made


@pytest.fixture
def rows(log: Database) -> Records:
    return Records(log.url)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a request left open is closed when it is looked at."""
    monkeypatch.setattr("audit.ledger.orphans.FORGOTTEN_S", 0)


@contextmanager
def late(log: Database, seconds: float) -> Iterator[None]:
    """Each commit of a row takes so long: a slow disk, or a standby that must confirm it."""
    execute(
        log,
        f"CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END $$",
    )
    execute(
        log,
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON audit_logs DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION late()",
    )
    yield
    execute(log, "DROP TRIGGER late ON audit_logs")


async def told(ledger: Ledger, asked: Trail, request_s: float = REQUEST_S) -> int:
    """The status of the client's response, as the engine decides it."""
    asked.outcome, asked.http_status, asked.success = "answered", 200, True
    try:
        async with asyncio.timeout(request_s):
            await ledger.close(asked, now())
    except (LedgerUnavailableError, TimeoutError):
        return 503
    return 200


async def close_what_is_open(log: Database, ledger: Ledger, *asked: Trail) -> None:
    async with asyncio.timeout(10):
        while open_records(log, *(one.log_id for one in asked)):
            await ledger.maintain()


# Seen red with a commit that is given up although it has begun, as before: 503, and the row of a moment later said `answered`.
async def test_a_commit_that_is_late_is_waited_for(log: Database, rows: Records) -> None:
    asked = trail()
    async with writing(log, None, within_s=WITHIN_S) as ledger:
        await ledger.open(asked)
        with late(log, LATE_S):
            assert await told(ledger, asked) == 200
    (row,) = rows.of(asked.query_id)
    assert (row["outcome"], row["http_status"]) == ("answered", 200)


# Seen red with a batch that commits what was withdrawn, as before: the row was written after the client got 503.
async def test_what_was_refused_while_the_database_hung_is_not_written_after_all(
    log: Database, rows: Records
) -> None:
    asked = [trail() for _ in range(5)]
    async with writing(log, None, within_s=WITHIN_S) as ledger:
        for one in asked:
            await ledger.open(one)
        with slow(log):
            assert await asyncio.gather(*(told(ledger, one) for one in asked)) == [503] * 5
            assert all(ledger.has_record(one.log_id) for one in asked)
        await close_what_is_open(log, ledger, *asked)
        after = trail()
        assert await told(ledger, after) == 200
    found = rows.where("log_id = ANY(%s)", [one.log_id for one in asked])
    assert [(row["outcome"], row["http_status"]) for row in found] == [("not_acknowledged", 503)] * 5
    assert open_records(log, *(one.log_id for one in asked)) == 0


# Seen red with a batch that is given up with what was withdrawn; green before, because each was a batch of its own.
async def test_a_refused_one_does_not_take_its_batch_along(
    log: Database, rows: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others of its batch are still waiting, and get their rows."""
    monkeypatch.setattr("audit.ledger.ledger.LANES", 1)  # else each is a batch of its own
    patient, impatient = trail(), trail()
    async with writing(log, None, within_s=REQUEST_S) as ledger:
        with slow(log):
            ends = [
                asyncio.create_task(told(ledger, patient)),
                asyncio.create_task(told(ledger, impatient, 0.2)),
            ]
            await ends[1]
        assert await asyncio.gather(*ends) == [200, 503]
    assert len(rows.of(patient.query_id)) == 1
    assert rows.of(impatient.query_id) == []


# Seen red with nothing noted of it, as before: the append went on after the client's 503, and was drained as an answer.
async def test_what_the_spool_took_too_late_says_so(
    log: Database, rows: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, asked = os.fsync, trail()

    def slowly(descriptor: int) -> None:
        time.sleep(LATE_S)
        fsync(descriptor)

    async with writing(log, tmp_path, within_s=WITHIN_S) as ledger:
        await ledger.open(asked)
        with gone(log), monkeypatch.context() as disk:
            disk.setattr("audit.ledger.spool.os.fsync", slowly)
            assert await told(ledger, asked, WITHIN_S) == 503
        (row,) = await arrived(rows, asked)
        await spool_is_drained(ledger)
    assert (row["outcome"], row["http_status"], row["spooled"]) == ("not_acknowledged", 503, True)


# Seen red with nothing put into the spool, as before: only this process knew, and the next one drained an answer.
async def test_what_the_spool_took_too_late_says_so_after_the_end_of_the_process_too(
    log: Database, rows: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, asked = os.fsync, trail()

    def slowly(descriptor: int) -> None:
        time.sleep(LATE_S)
        fsync(descriptor)

    with ExitStack() as down:
        async with writing(log, tmp_path, within_s=WITHIN_S) as ledger:
            down.enter_context(gone(log))
            with monkeypatch.context() as disk:
                disk.setattr("audit.ledger.spool.os.fsync", slowly)
                assert await told(ledger, asked, WITHIN_S) == 503
    async with writing(log, tmp_path, within_s=WITHIN_S):
        (row,) = await arrived(rows, asked)
    assert (row["outcome"], row["http_status"], row["spooled"]) == ("not_acknowledged", 503, True)


# Seen red with a wait that gives up although the append has begun.
async def test_a_slow_spool_is_waited_for(
    log: Database, rows: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, asked = os.fsync, trail()

    def slowly(descriptor: int) -> None:
        time.sleep(LATE_S)
        fsync(descriptor)

    async with writing(log, tmp_path, within_s=WITHIN_S) as ledger:
        with gone(log), monkeypatch.context() as disk:
            disk.setattr("audit.ledger.spool.os.fsync", slowly)
            assert await told(ledger, asked) == 200
        (row,) = await arrived(rows, asked)
    assert row["outcome"] == "answered"


# Seen red at a stop: the row went on to say `answered`.
@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_commit_that_ends_after_the_request_is_told_of(
    log: Database, rows: Records, is_stopped: bool
) -> None:
    """Nobody can know within five seconds how it ends: the log corrects itself."""
    asked = trail()
    async with writing(log, None, within_s=WITHIN_S) as ledger:
        with late(log, LATE_S):
            assert await told(ledger, asked, 2 * WITHIN_S) == 503
            (row,) = await arrived(rows, asked)
        assert row["outcome"] == "answered"
        for _ in range(0 if is_stopped else 2):
            await ledger.maintain()
    (correction,) = rows.where("endpoint = 'ledger'")
    assert correction["details"] == {"query_id": str(asked.query_id)}
    assert (correction["outcome"], correction["http_status"]) == ("not_acknowledged", 503)


# Seen red with ids that are known before their records are durable.
async def test_an_id_is_known_only_if_its_record_is_durable(log: Database) -> None:
    opened, never = trail(), trail()
    async with writing(log, None, within_s=WITHIN_S) as ledger:
        await ledger.open(opened)
        with slow(log):
            with pytest.raises(LedgerUnavailableError):
                await ledger.open(never)
            assert await told(ledger, opened) == await told(ledger, never) == 503
            assert ledger.has_record(opened.log_id)
            assert not ledger.has_record(never.log_id)


# Seen red with a probe that names the database although its try has failed. Before, `/readyz` only looked at the months.
@pytest.mark.parametrize("away", AWAY)
async def test_readiness_tries_a_write(
    log: Database, rows: Records, tmp_path: Path, away: Callable[[Database], AbstractContextManager[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(write_probe, "EVERY_S", 0)
    async with (
        writing(log, None) as bare,
        writing(log, tmp_path / "roomy") as roomy,
        writing(log, tmp_path / "narrow", bytes_max=MEBIBYTE // 32) as narrow,
    ):
        ledgers = bare, roomy, narrow
        assert [await ledger.taker() for ledger in ledgers] == ["database"] * 3
        with away(log):
            assert [await ledger.taker() for ledger in ledgers] == [None, "spool", None]
        assert [await ledger.taker() for ledger in ledgers] == ["database"] * 3
    assert rows.where("true") == []
    assert open_records(log) == 0
    assert list(tmp_path.rglob("*.probe")) == []


# Seen red without the lock around a try.
async def test_many_who_ask_for_readiness_cause_one_try(log: Database) -> None:
    tried = []

    async def attempt() -> None:
        tried.append(1)
        await asyncio.sleep(0)

    probe = write_probe.WriteProbe(attempt, None)
    assert set(await asyncio.gather(*(probe.taker() for _ in range(1000)))) == {"database"}
    assert tried == [1]


# Seen red with a try of the spool that is not flushed.
async def test_a_spool_on_a_full_disk_takes_nothing(
    log: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with writing(log, tmp_path, within_s=WITHIN_S) as ledger:
        with full(log), monkeypatch.context() as disk:
            disk.setattr("audit.ledger.spool.os.fsync", no_space)
            assert await ledger.taker() is None


def no_space(_: int) -> None:
    raise OSError(28, "No space left on device")
