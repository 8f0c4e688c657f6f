"""Assembles the engine for serving from everything that a request needs, and closes the parts in the reverse order."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from uuid import uuid4

from psycopg_pool import AsyncConnectionPool

from audit.ledger import partitions
from audit.ledger.ledger import Ledger
from audit.sealing.sealer import Sealer
from engine.admission.flood import FloodCounter
from engine.admission.keys import ApiKeys, KeyUses
from engine.admission.operator_events import OperatorEvents
from engine.admission.proxies import TrustedProxies
from engine.admission.sessions import Sessions
from engine.answer import Engine, Rules
from engine.grounding.verify import NOT_STATED, SENTINEL, Instructions
from engine.house import House, check_books
from engine.outage.cached_library import CachedKeyring, CachedLibrary
from engine.outage.stale_cache import CircuitBreaker
from engine.ports import Embedder, Index, Searchable
from engine.providers.postgres import EmbeddedPostgres
from engine.retrieval.library import StoredLibrary
from engine.retrieval.retrieve import Retriever
from engine.settings import PROMPT, Settings
from engine.signing import public_keys_of
from engine.storage import database as databases
from engine.storage.database import Database
from engine.wiring import audit_log, providers
from engine.wiring.books import gate_of
from engine.wiring.providers import closed_by, now
from ingest.indexing import IndexRepair
from ingest.registry import Registry
from ingest.watched_index import WatchedIndex

READY_MIN = 3  # connections for the first readers after a quiet time; the settings ask for at least as many


def open_database(
    settings: Settings, say: Callable[[str], None] = lambda _: None
) -> AbstractAsyncContextManager[Database]:
    return databases.open_database(settings, EmbeddedPostgres, say)


@asynccontextmanager
async def open_house(settings: Settings, database: Database) -> AsyncIterator[House]:
    """The assembled engine. Refuses to start on a book that another embedder made, or on an older schema."""
    await asyncio.to_thread(database.check_schema)
    async with AsyncExitStack() as stack:
        enter, size_max = stack.enter_async_context, settings.database.connections_max
        pool = await enter(
            database.pool("affidavit_engine", size_max, has_autocommit=True, size_min=READY_MIN)
        )
        await partitions.make_months_ahead(pool, now().date(), settings.audit.clock_behind_max)
        library = StoredLibrary(pool)
        index = closed_by(stack, providers.index_of(settings))
        watched = await _watched(settings, database, index, stack)
        engine, sealer = await _open_engine(settings, database, pool, library, watched, stack)
        sessions = Sessions(pool, settings.sessions.purge_days, uuid4)
        house = House(
            engine=engine,
            library=library,
            index=index,
            watched_index=watched,
            pool=pool,
            default_book=settings.books.default,
            top_k=settings.retrieval.top_k,
            body_bytes_max=settings.limits.body_bytes,
            page_enabled=settings.page.enabled,
            proxies=TrustedProxies.named(settings.server.trusted_proxies),
            prover=await enter(audit_log.open_prover(database)),
            public_keys=partial(public_keys_of, settings),
            log_gauges=partial(audit_log.log_gauges_of, settings, database, pool, sealer),
            sessions=sessions if settings.sessions.enabled else None,
            eraser=await enter(audit_log.open_eraser_within(database, audit_log.ERASING_S)),
            operator_events=OperatorEvents(lambda: nullcontext(engine.ledger), now, uuid4),
        )
        await watched.start()
        await house.parts()
        yield house


async def _watched(
    settings: Settings, database: Database, index: Index, stack: AsyncExitStack
) -> WatchedIndex:
    """With connections of its own: a repair holds two of them."""
    opened = databases.open_lazily(database.url, "affidavit_engine", size_max=2, wait_s=databases.OPEN_S)
    pool = await stack.enter_async_context(opened)
    repair = IndexRepair(Registry(pool), index)
    return closed_by(stack, WatchedIndex(index, repair, time.monotonic, settings.books.default))


async def _open_engine(
    settings: Settings,
    database: Database,
    pool: AsyncConnectionPool,
    stored: StoredLibrary,
    index: Searchable,
    stack: AsyncExitStack,
) -> tuple[Engine, Sealer | None]:
    """The parts of a request, and the sealer. The stack closes them in the reverse order."""
    embedder = closed_by(stack, providers.embedder_of(settings))
    reranker = providers.reranker_of(settings)
    if reranker:
        closed_by(stack, reranker)
    others = {each.name: closed_by(stack, each) for each in providers.other_embedders(settings)}
    generator = closed_by(stack, providers.generator_of(settings, embedder, others))
    await check_books(stored, embedder, others)
    await _load_used(others, stored)
    breaker, keys = CircuitBreaker(time.monotonic), ApiKeys(pool)
    uses = closed_by(stack, KeyUses(keys.note_uses, now))
    keyring = closed_by(stack, CachedKeyring(keys, breaker, uses))
    library = closed_by(stack, CachedLibrary(stored, breaker))
    library.preload([book.book_id for book in await stored.books()])
    ledger, sealer = await _start_log(settings, database, pool, stack)
    within_s = settings.budget.audit_s
    engine = Engine(
        keyring=keyring,
        flood=closed_by(stack, FloodCounter(ledger, now, time.monotonic, within_s=within_s)),
        limiter=closed_by(stack, providers.limiter_of(settings)),
        library=library,
        retriever=Retriever(
            embedder=embedder,
            index=index,
            library=library,
            reranker=reranker,
            weights=gate_of(settings).weights,
            candidates_each=settings.retrieval.candidates,
            within_s=settings.budget.retrieval_s,
            others=others,
        ),
        generator=generator,
        ledger=ledger,
        rules=_rules(settings),
        clock=now,
        new_id=uuid4,
        monotonic=time.monotonic,
    )
    return engine, sealer


async def _start_log(
    settings: Settings, database: Database, pool: AsyncConnectionPool, stack: AsyncExitStack
) -> tuple[Ledger, Sealer | None]:
    """The ledger starts first: what a version left open that did not sign rows must be closed before the first seal.

    And it stops first, so that the last seal has all its rows.
    """
    ledger, sealer = audit_log.ledger_of(settings, pool), None
    await ledger.start()
    try:
        if settings.audit.seal_in_serve:
            sealer = await stack.enter_async_context(audit_log.sealing(settings, database))
    finally:
        stack.push_async_callback(ledger.stop)
    return ledger, sealer


async def _load_used(embedders: Mapping[str, Embedder], library: StoredLibrary) -> None:
    """Loads the models of the books before their first reader: that takes longer than a retrieval may."""
    used = {book.embedder for book in await library.books()}
    for name, embedder in embedders.items():
        if name in used:
            await embedder.embed_query("ready?")


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
        instructions=Instructions.of(PROMPT.read_text(), except_for=f"{SENTINEL} {NOT_STATED}"),
        settings_sha256=settings.fingerprint(),
        prompt_sha256=sha256(PROMPT.read_bytes()).hexdigest(),
        code_version=version("affidavit"),
    )
