"""Holds on a log, added and released as the commands do it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any
from uuid import UUID, uuid4

from audit.erasure.target import spellings
from audit.holding.hold import Scope
from audit.holding.holds import HoldEvent, Holds
from engine.admission.operator_events import OperatorEvents
from engine.wiring import now
from tests.logs.sealed_log import SealedLog

ORDERED, ASKS, APPROVES = "A. Counsel", "A. Counsel", "B. Officer"


@asynccontextmanager
async def holding(log: SealedLog) -> AsyncIterator[tuple[Holds, HoldEvent]]:
    async with (
        log.open_ledger() as ledger,
        log.database.pool("affidavit_archiver", has_autocommit=True) as pool,
    ):
        yield Holds(pool, log.key, uuid4), OperatorEvents(lambda: nullcontext(ledger), now, uuid4).event


async def hold(log: SealedLog, user: str | None = None, **criteria: Any) -> UUID:
    scope = Scope(spellings(user) if user else (), **criteria)
    async with holding(log) as (holds, event):
        hold_id, _ = await holds.add(scope, ORDERED, "case 12/2026", event)
    return hold_id


async def release(log: SealedLog, hold_id: UUID, asks: str = ASKS, approves: str = APPROVES) -> None:
    async with holding(log) as (holds, event):
        await holds.release(hold_id, asks, approves, "case closed", event)


async def finish(log: SealedLog) -> list[Any]:
    async with log.erasing() as (eraser, event):
        return await eraser.finish(event)
