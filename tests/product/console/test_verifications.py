"""Verifications in the background: what they found is on record even where the log was out of reach at their end."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from audit.errors import LedgerUnavailableError
from audit.ledger.ledger import Ledger
from engine.admission.operator_events import OperatorEvents
from engine.house import House
from engine.storage.database import Database
from engine.wiring import now, verification
from engine.wiring.verification import BackgroundVerifier
from tests.conftest import Records

FOUND = {"verdict": "VALID", "checked": 1}
RUNNING = "INSERT INTO verification_runs (run_id, asked_by) VALUES (%s, 'another process')"


class FailingLog:
    """So many times."""

    def __init__(self, house: House, failures: int) -> None:
        self._house, self.failures = house, failures

    def __call__(self) -> AbstractAsyncContextManager[Ledger]:
        if self.failures:
            self.failures -= 1
            raise LedgerUnavailableError("The disk is full")
        return self._house.operator_events.open_ledger()


@pytest.fixture
def found(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Event]:
    """A verification that ends when this is set, and tells nothing meanwhile."""
    may_end = asyncio.Event()

    async def verified(*_: object) -> dict[str, Any]:
        await may_end.wait()
        return FOUND

    monkeypatch.setattr(verification, "_verified_elsewhere", verified)
    monkeypatch.setattr(verification, "TOLD_EVERY_S", 3600.0)
    monkeypatch.setattr(verification, "RECORD_PAUSES_S", (0.0,) * 3, raising=False)
    yield may_end
    with psycopg.connect(database.url) as connection:
        connection.execute("DELETE FROM verification_runs WHERE ended_at IS NULL")


def verifier_of(house: House, database: Database, failures: int = 0) -> BackgroundVerifier:
    events = OperatorEvents(FailingLog(house, failures), now, uuid4)
    return BackgroundVerifier(database, house.pool, house.console_pool, events)


def count(records: Records, client: str) -> int:
    return len(records.where("endpoint = 'affidavit audit verify' AND client_id = %s AND success", client))


async def ended(verifier: BackgroundVerifier) -> None:
    assert verifier._running
    await asyncio.wait([verifier._running])


# Seen red: the task ended with the first failure, and the page showed an older verdict.
async def test_a_verdict_is_recorded_once_the_log_can_be_written(
    house: House, database: Database, records: Records, found: asyncio.Event
) -> None:
    verifier, client = verifier_of(house, database, failures=2), f"patient {uuid4()}"
    assert await verifier.start(client, None)
    found.set()
    await ended(verifier)
    assert count(records, client) == 1
    newest = await verifier.newest()
    assert newest
    assert (newest.asked_by, newest.is_running, newest.verdict) == (client, False, "VALID")


# Seen red: nothing was said at all.
async def test_a_verdict_that_cannot_be_recorded_is_told_to_the_operator(
    house: House, database: Database, found: asyncio.Event, caplog: pytest.LogCaptureFixture
) -> None:
    verifier = verifier_of(house, database, failures=100)
    assert await verifier.start("an auditor", None)
    found.set()
    with caplog.at_level(logging.ERROR):
        await ended(verifier)
    assert "VALID" in caplog.text


# Seen red: a run of this process that could not tell how far it is got a second one beside it.
async def test_a_silent_run_of_this_process_is_the_only_one(
    house: House, database: Database, found: asyncio.Event
) -> None:
    verifier = verifier_of(house, database)
    assert await verifier.start("the first", None)
    with psycopg.connect(database.url) as connection:
        connection.execute(
            "UPDATE verification_runs SET seen_at = now() - interval '1 hour' WHERE ended_at IS NULL"
        )
    assert not await verifier.start("the second", None)
    found.set()
    await ended(verifier)


# Seen red: neither of two processes that began at the same moment saw the other's run.
async def test_two_processes_that_begin_at_once_begin_one_run(
    house: House, database: Database, found: asyncio.Event
) -> None:
    verifier, run_id = verifier_of(house, database), uuid4()
    async with await psycopg.AsyncConnection.connect(database.url) as other:
        await other.execute(RUNNING, (run_id,))
        starting = asyncio.create_task(verifier.start("an auditor", None))
        async with await psycopg.AsyncConnection.connect(database.url, autocommit=True) as watching:
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            while not starting.done() and (await (await watching.execute(waits)).fetchone()) == (0,):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await other.commit()
        is_begun = await starting
        await other.execute("DELETE FROM verification_runs WHERE run_id = %s", (run_id,))
    assert not is_begun
