"""Samples and verdicts on a log, as the commands make them."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from datetime import date
from typing import Any
from uuid import UUID, uuid4

from psycopg import connect

from audit.export.sealed_rows import SealedRows
from audit.review.reviews import Person, Reviews
from audit.review.rubric import Marks
from audit.review.sample import STRATA, Sample, Wish, reason_of
from audit.review.sampling import STATING, Sampling
from engine.admission.operator_events import OperatorEvents
from engine.storage.database import AUDITOR, reading
from engine.wiring import now
from tests.logs.recorded import make_months
from tests.logs.sealed_log import SealedLog

ADA, LIN, KAY = Person("ada", "reviewer"), Person("lin", "lead"), Person("kay", "lead")
RIGHT, WRONG = Marks("yes", "yes", "no", "no"), Marks("no", "partly", "no", "yes", "It names the reader.")
ALL = Wish(None, None, tuple(STRATA), 6)


def make_present(log: SealedLog) -> date:
    """The month in which commands are recorded."""
    month = now().date().replace(day=1)
    with connect(log.url) as connection:
        make_months(connection, [month])
    return month


@contextmanager
def sampling(log: SealedLog) -> Iterator[Sampling]:
    def archived(_: date) -> Iterator[dict[str, Any]]:
        raise AssertionError("no month of this log is archived")

    with reading(log.url, AUDITOR) as connection:
        connection.autocommit = True
        yield Sampling(SealedRows(connection, archived), log.vault, log.keys)


@asynccontextmanager
async def reviewing(log: SealedLog, connections: int = 1) -> AsyncIterator[Reviews]:
    """With so many connections from the start, so that as many can act at once."""
    async with (
        log.open_ledger() as ledger,
        log.database.pool(AUDITOR, connections, has_autocommit=True, size_min=connections) as pool,
        log.database.pool(
            "affidavit_engine", connections, has_autocommit=True, size_min=connections
        ) as writers,
    ):
        yield Reviews(pool, writers, OperatorEvents(lambda: nullcontext(ledger), now, uuid4).event)


async def stated(log: SealedLog, wish: Wish = ALL) -> UUID:
    """A population on record, whose row is not sealed yet."""
    with sampling(log) as reader:
        statement = reader.state(wish)
    async with log.open_ledger() as ledger:
        async with OperatorEvents(lambda: nullcontext(ledger), now, uuid4).event(
            STATING, statement=statement
        ) as trail:
            trail.reason = reason_of(statement)
    return trail.log_id


async def sampled(log: SealedLog, wish: Wish = ALL) -> Sample:
    """A drawn sample, on record."""
    sample_id = await stated(log, wish)
    assert await log.seal() == {}
    with sampling(log) as reader:
        sample = reader.draw(sample_id)
    assert sample
    async with reviewing(log) as reviews:
        await reviews.keep(sample)
    return sample
