"""Factories of what samples questions and takes people's verdicts on them."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from uuid import UUID

from audit.proof.keys import PublicKey
from audit.review.reviews import Person, Reviews, Role
from audit.review.sample import Sample, Statement, Wish, reason_of
from audit.review.sampling import STATING, Sampling
from engine.settings import Settings
from engine.storage import database as databases
from engine.storage.database import AUDITOR, Database
from engine.wiring.audit_log import CHECK_S, open_sealed_rows, operator_events_of, try_seal
from engine.wiring.providers import vault_of
from engine.wiring.signing import known_keys

ANCHORED_S = 120.0  # a running engine anchors each half minute
POLL_S = 1.0
_ENGINE = "affidavit_engine"
_KEYS = "SELECT client_id, scopes FROM api_keys WHERE revoked_at IS NULL OR revoked_at > now()"


@contextmanager
def open_sampling(
    settings: Settings, database: Database, keys: Sequence[PublicKey] | None = None
) -> Iterator[Sampling]:
    """In the auditor's role. Without `keys` those of this installation count."""
    with open_sealed_rows(settings, database, None, is_open=False) as rows:
        yield Sampling(rows, vault_of(settings), known_keys(database) if keys is None else keys)


@asynccontextmanager
async def open_reviews(database: Database) -> AsyncIterator[Reviews]:
    async with (
        databases.open_lazily(database.url, AUDITOR, size_max=1, wait_s=CHECK_S) as pool,
        databases.open_lazily(database.url, _ENGINE, size_max=1, wait_s=CHECK_S) as writers,
    ):
        yield Reviews(pool, writers, operator_events_of(database).event)


async def person_named(database: Database, name: str) -> Person:
    """The client of this name, in the role that its valid API keys give."""
    _, rows = await database.read(_ENGINE, _KEYS)
    scopes = {scope for client_id, given in rows if client_id == name for scope in given}
    return Person(name, role_of(scopes))


def role_of(scopes: set[str]) -> Role:
    if "audit" not in scopes:
        return "auditor"
    if "lead" in scopes:
        return "lead"
    return "reviewer" if "review" in scopes else "auditor"


async def state_population(settings: Settings, database: Database, wish: Wish) -> UUID:
    """Puts it on record, and has that sealed and anchored if this login may; returns the sample's id."""
    await try_seal(settings, database)

    def stated() -> Statement:
        with open_sampling(settings, database) as sampling:
            return sampling.state(wish)

    statement = await asyncio.to_thread(stated)
    async with operator_events_of(database).event(STATING, statement=statement) as trail:
        trail.reason = reason_of(statement)
    await try_seal(settings, database)
    return trail.log_id


async def draw_when_anchored(settings: Settings, database: Database, sample_id: UUID) -> Sample | None:
    """Draws from the first head that is anchored after the population went on record. None: there is none after two minutes."""

    def drawn() -> Sample | None:
        with open_sampling(settings, database) as sampling:
            return sampling.draw(sample_id)

    end = time.monotonic() + ANCHORED_S
    while (sample := await asyncio.to_thread(drawn)) is None and time.monotonic() < end:  # noqa: ASYNC110  another process anchors
        await asyncio.sleep(POLL_S)
    return sample
