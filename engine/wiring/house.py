"""Assembles the engine for serving, and closes its parts in the reverse order.

The composition root proper: everything that a request needs meets here.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from uuid import uuid4

from psycopg_pool import AsyncConnectionPool

from audit.ledger import partitions
from engine.admission.flood import FloodCounter
from engine.admission.keys import ApiKeys, KeyUses
from engine.admission.operator_events import OperatorEvents
from engine.admission.sessions import Sessions
from engine.answer import Engine, Rules
from engine.grounding.verify import SENTINEL, Instructions
from engine.house import House, check_books
from engine.outage.cached_library import CachedKeyring, CachedLibrary
from engine.outage.stale_cache import CircuitBreaker
from engine.ports import Embedder, Index, Library, Reranker
from engine.providers.postgres import EmbeddedPostgres
from engine.retrieval.library import StoredLibrary
from engine.retrieval.retrieve import Retriever
from engine.settings import PROMPT, Settings
from engine.signing import public_keys_of
from engine.storage import database as databases
from engine.storage.database import (
    Database,
)
from engine.wiring.audit_log import (
    ERASING_S,
    ledger_of,
    open_eraser_within,
    open_prover,
    sealing,
    standing_of,
)
from engine.wiring.books import gate_of
from engine.wiring.providers import (
    closed_by,
    embedder_of,
    generator_of,
    index_of,
    limiter_of,
    now,
    reranker_of,
)

READY_MIN = (
    3  # connections that the first readers after a quiet time need not wait for; settings ask for as many
)


def open_database(settings: Settings, say: Callable[[str], None]) -> AbstractAsyncContextManager[Database]:
    return databases.open_database(settings, EmbeddedPostgres, say)


@asynccontextmanager
async def open_house(settings: Settings, database: Database) -> AsyncIterator[House]:
    """The assembled engine. Refuses to start on a book that another embedder made, or on an older schema."""
    await asyncio.to_thread(database.check_schema)
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(_engine_pool(settings, database))
        await partitions.make_months_ahead(pool, now().date())
        library = StoredLibrary(pool)
        engine = await _open_engine(settings, database, pool, library, stack)
        house = House(
            engine=engine,
            library=library,
            index=engine.retriever.index,
            pool=pool,
            default_book=settings.books.default,
            top_k=settings.retrieval.top_k,
            body_bytes_max=settings.limits.body_bytes,
            page_enabled=settings.page.enabled,
            prover=await stack.enter_async_context(open_prover(database)),
            public_keys=partial(public_keys_of, settings),
            standing=partial(standing_of, settings, database, pool),
            sessions=(
                Sessions(pool, settings.sessions.purge_days, uuid4) if settings.sessions.enabled else None
            ),
            eraser=await stack.enter_async_context(open_eraser_within(database, ERASING_S)),
            operator_events=OperatorEvents(lambda: nullcontext(engine.ledger), now, uuid4),
        )
        await house.parts()
        yield house


async def _open_engine(
    settings: Settings,
    database: Database,
    pool: AsyncConnectionPool,
    stored: StoredLibrary,
    stack: AsyncExitStack,
) -> Engine:
    """The parts of a request. The stack closes them in the reverse order."""
    embedder = closed_by(stack, embedder_of(settings))
    index = closed_by(stack, index_of(settings))
    reranker = reranker_of(settings)
    if reranker:
        closed_by(stack, reranker)
    generator = closed_by(stack, generator_of(settings, embedder))
    await check_books(stored, embedder)
    breaker, keys = CircuitBreaker(time.monotonic), ApiKeys(pool)
    uses = closed_by(stack, KeyUses(keys.note_uses, now))
    keyring = closed_by(stack, CachedKeyring(keys, breaker, uses))
    library = closed_by(stack, CachedLibrary(stored, breaker))
    library.preload([book.book_id for book in await stored.books()])
    if settings.audit.seal_in_serve:
        await stack.enter_async_context(sealing(settings, database))
    ledger = ledger_of(settings, pool)
    await ledger.start()
    stack.push_async_callback(ledger.stop)
    within_s = settings.budget.audit_s
    return Engine(
        keyring=keyring,
        flood=closed_by(stack, FloodCounter(ledger, now, time.monotonic, within_s=within_s)),
        limiter=closed_by(stack, limiter_of(settings)),
        library=library,
        retriever=_retriever(settings, embedder, index, library, reranker),
        generator=generator,
        ledger=ledger,
        rules=_rules(settings),
        clock=now,
        new_id=uuid4,
        monotonic=time.monotonic,
    )


def _engine_pool(settings: Settings, database: Database) -> AbstractAsyncContextManager[AsyncConnectionPool]:
    connections_max = settings.database.connections_max
    return database.pool("affidavit_engine", connections_max, has_autocommit=True, size_min=READY_MIN)


def _retriever(
    settings: Settings, embedder: Embedder, index: Index, library: Library, reranker: Reranker | None
) -> Retriever:
    return Retriever(
        embedder=embedder,
        index=index,
        library=library,
        reranker=reranker,
        weights=gate_of(settings).weights,
        candidates_each=settings.retrieval.candidates,
        within_s=settings.budget.retrieval_s,
    )


def _rules(settings: Settings) -> Rules:
    budget, confidence = settings.budget, settings.confidence
    return Rules(
        total_s=budget.total_s,
        retrieval_s=budget.retrieval_s,
        generation_s=budget.generation_s,
        audit_s=budget.audit_s,
        threshold=settings.retrieval.threshold,
        confidence_weights=(confidence.weight_retrieval, confidence.weight_generation),
        confidence_levels=(confidence.high, confidence.medium),
        default_generation_confidence=confidence.default_generation,
        instructions=Instructions.of(PROMPT.read_text(), except_for=SENTINEL),
        settings_sha256=settings.fingerprint(),
        prompt_sha256=sha256(PROMPT.read_bytes()).hexdigest(),
        code_version=version("affidavit"),
    )
