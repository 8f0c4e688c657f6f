"""Assembles the engine for serving from everything that a request needs, and closes the parts in the reverse order."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from datetime import timedelta
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

from psycopg_pool import AsyncConnectionPool

from audit.coverage.months import read_coverage
from audit.coverage.recent import Coverage, RecentCoverage
from audit.ledger import partitions
from audit.ledger.ledger import Ledger
from audit.sealing.sealer import Sealer
from audit.sealing.stamper import Stamper
from engine.admission.console_sessions import ConsoleSessions
from engine.admission.flood import FloodCounter
from engine.admission.keys import ApiKeys, KeyUses
from engine.admission.operator_events import OperatorEvents
from engine.admission.overload.concurrency_limit import ConcurrencyLimit
from engine.admission.overload.recent_keys import RecentKeys
from engine.admission.overload.refused_rows import PAUSE_S, RefusedRows
from engine.admission.overload.turnstile import Turnstile
from engine.admission.proxies import TrustedProxies
from engine.admission.public_tokens import PublicTokens, TokenKeyring
from engine.admission.sessions import Sessions
from engine.admission.shared_rows import SharedRows
from engine.admission.single_sign_on import Roles, SingleSignOn
from engine.answer import Engine, Rules
from engine.errors import ConfigurationError, DatabaseUnavailableError, StatementError
from engine.grounding.verify import NOT_STATED, SENTINEL, Instructions
from engine.house import NO_QUORUM, READY, SEALING_STOPPED, House, check_books
from engine.outage.cached_library import CachedKeyring, CachedLibrary
from engine.outage.stale_cache import CircuitBreaker
from engine.ports import Embedder, Index, Searchable
from engine.providers.postgres import EmbeddedPostgres
from engine.retrieval.library import StoredLibrary
from engine.retrieval.retrieve import Retriever
from engine.settings import PROMPT, Settings
from engine.spans import Tracer
from engine.storage import database as databases
from engine.storage.database import AUDITOR, Database
from engine.wiring import access, audit_log, charts, providers, reports, signing
from engine.wiring.books import gate_of
from engine.wiring.providers import closed_by, now
from engine.wiring.verification import BackgroundVerifier
from ingest.indexing import IndexRepair
from ingest.registry import Registry
from ingest.watched_index import WatchedIndex

CONSOLE_CONNECTIONS = 8
READY_MIN = 3  # connections for the first readers after a quiet time; the settings ask for at least as many


def open_database(
    settings: Settings, say: Callable[[str], None] = lambda _: None
) -> AbstractAsyncContextManager[Database]:
    """The embedded one is made if there is none."""
    return databases.open_database(settings, EmbeddedPostgres, say)


def open_existing_database(
    settings: Settings, say: Callable[[str], None] = lambda _: None
) -> AbstractAsyncContextManager[Database]:
    """For commands that have nothing to do in a new one: it would only hide that they run in the wrong folder."""
    if not has_database(settings):
        raise ConfigurationError(
            f"There is no database in {settings.data_dir}. Run `affidavit up` or `affidavit ingest` to make one, or name the"
            f" folder that has it: --data-dir, or AFFIDAVIT_DATA_DIR.{_above(settings.data_dir)}"
        )
    return open_database(settings, say)


def has_database(settings: Settings) -> bool:
    """Whether there is anything to open: an address of a database, or the embedded one."""
    return bool(settings.database.url.get_secret_value()) or _has_database(settings.data_dir)


def _has_database(folder: Path) -> bool:
    return EmbeddedPostgres(folder).is_made()


def _above(folder: Path) -> str:
    """The same folder in a directory above, for who is in a directory of the project."""
    above = (parent / folder.name for parent in folder.parent.parents)
    found = next(filter(_has_database, above), None)
    return f" There is one above: --data-dir {found}" if found else ""


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
        tokens = await asyncio.to_thread(lambda: PublicTokens(signing.head_key(database).sign))
        await asyncio.to_thread(signing.row_key, database)  # now, before anything waits for it
        engine, sealer = await _open_engine(settings, database, pool, library, watched, tokens, stack)
        stamper = await _start_stamper(settings, database, stack)
        if settings.audit.seal_in_serve:
            await enter(charts.keeping_rollups(settings, database))
        sessions = Sessions(pool, settings.sessions.purge_days, uuid4)
        tracer = _tracer(settings, stack)
        events = OperatorEvents(lambda: nullcontext(engine.ledger), now, uuid4)
        console_pool = await enter(open_console_pool(database, settings.budget.total_s))
        single_sign_on = _single_sign_on(settings, stack)
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
            allowed_origins=frozenset(settings.server.allowed_origins),
            public_tokens=tokens,
            prover=await enter(audit_log.open_prover(database)),
            public_keys=partial(signing.key_texts, settings, pool),
            log_gauges=partial(audit_log.log_gauges_of, settings, database, pool, sealer, stamper),
            tallies=partial(_tallies, pool, engine, sealer, stamper, tracer),
            sessions=sessions if settings.sessions.enabled else None,
            eraser=await enter(audit_log.open_eraser_within(database, audit_log.ERASING_S)),
            operator_events=events,
            tracer=tracer,
            seals=partial(_seals, sealer),
            console_sessions=_console_sessions(settings, pool, single_sign_on),
            single_sign_on=single_sign_on,
            console_pool=console_pool,
            coverage=closed_by(
                stack, RecentCoverage(partial(coverage_of, settings, database), time.monotonic)
            ),
            verifier=closed_by(stack, BackgroundVerifier(database, pool, console_pool, events)),
            charts=closed_by(stack, charts.ChartDrawer(database)),
            access_policy=access.access_policy_of(settings),
            unmask_requests=partial(access.requests_now, database),
            reports=reports.reports_of(settings, database),
        )
        await watched.start()
        await house.parts()
        yield house


def open_console_pool(
    database: Database, within_s: float
) -> AbstractAsyncContextManager[AsyncConnectionPool]:
    """Beside the readers' pool, so that no auditor makes a reader wait for a connection."""
    wait_s = database.settings.budget.audit_s
    return databases.open_lazily(
        database.url, AUDITOR, size_max=CONSOLE_CONNECTIONS, wait_s=wait_s, within_s=within_s
    )


async def coverage_of(settings: Settings, database: Database) -> Coverage:
    """Reads the state of the log, which on a long one takes a while."""
    at = now()
    try:
        status = await audit_log.status_of(settings, database)
        months = await read_coverage(database.read, status, at - timedelta(days=settings.audit.hot_days))
    except (ConfigurationError, StatementError) as failure:
        raise DatabaseUnavailableError from failure
    return Coverage(at, months, status)


def _seals(sealer: Sealer | None) -> str:
    """Of this process's sealer, if it has one."""
    if sealer and sealer.stopped:
        return SEALING_STOPPED
    return NO_QUORUM if sealer and sealer.publication.waits_for_quorum else READY


def _tracer(settings: Settings, stack: AsyncExitStack) -> Tracer | None:
    exporter = providers.trace_exporter_of(settings)
    if exporter is None:
        return None
    vendor = providers.VENDORS.get(settings.providers.generator, settings.providers.generator)
    return Tracer(closed_by(stack, exporter), settings.traces.share, vendor)


def _single_sign_on(settings: Settings, stack: AsyncExitStack) -> SingleSignOn | None:
    given = settings.oidc
    if not given.issuer:
        return None
    provider = closed_by(stack, providers.identity_provider_of(settings))
    groups = [frozenset(each) for each in (given.auditors, given.reviewers, given.leads)]
    return SingleSignOn(provider, Roles(given.issuer, *groups), given.address)


def _console_sessions(
    settings: Settings, pool: AsyncConnectionPool, on: SingleSignOn | None
) -> ConsoleSessions:
    return ConsoleSessions(pool, on.roles if on else None, timedelta(days=settings.archive.retention_days))


def _tallies(
    pool: AsyncConnectionPool,
    engine: Engine,
    sealer: Sealer | None,
    stamper: Stamper | None,
    tracer: Tracer | None,
) -> dict[str, float]:
    """What the parts of this process have counted, by the name of its metric."""
    counted, turnstile = pool.get_stats(), engine.turnstile
    return {
        "affidavit_questions_refused_total": turnstile.refused,
        "affidavit_questions_waiting": turnstile.waiting,
        "affidavit_questions_served": turnstile.serving,
        "affidavit_questions_at_once_max": int(turnstile.limit.at_once),
        "affidavit_record_writes_total": engine.ledger.writes,
        "affidavit_record_write_seconds_total": engine.ledger.writing_s,
        "affidavit_pool_requests_total": counted.get("requests_num", 0),
        "affidavit_pool_waits_total": counted.get("requests_queued", 0),
        "affidavit_pool_wait_seconds_total": counted.get("requests_wait_ms", 0) / 1000,
        "affidavit_pool_timeouts_total": counted.get("requests_errors", 0),
        "affidavit_pool_busy_seconds_total": counted.get("usage_ms", 0) / 1000,
        "affidavit_vault_errors_total": sealer.vault_errors if sealer else 0,
        "affidavit_witness_requests_total": sealer.publication.asked if sealer else 0,
        "affidavit_witness_failures_total": sealer.publication.failed if sealer else 0,
        "affidavit_sealing_stopped": float(bool(sealer and sealer.stopped)),
        "affidavit_time_stamp_errors_total": stamper.errors if stamper else 0,
        "affidavit_spans_exported_total": tracer.exporter.exported if tracer else 0,
        "affidavit_spans_dropped_total": tracer.exporter.dropped if tracer else 0,
    }


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
    tokens: PublicTokens,
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
        keyring=TokenKeyring(keyring, tokens, frozenset(settings.server.allowed_origins), now),
        flood=closed_by(stack, FloodCounter(ledger, now, time.monotonic, within_s=within_s)),
        turnstile=Turnstile(ConcurrencyLimit(), time.monotonic),
        refused_rows=closed_by(stack, _refused_rows(ledger, within_s)),
        recent_keys=RecentKeys(time.monotonic),
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
        rules=rules_of(settings),
        clock=now,
        new_id=uuid4,
        monotonic=time.monotonic,
    )
    return engine, sealer


def _refused_rows(ledger: Ledger, within_s: float) -> RefusedRows:
    rows = SharedRows(ledger, now, time.monotonic, within_s=within_s, beat_s=PAUSE_S)
    return RefusedRows(rows, time.monotonic)


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


async def _start_stamper(settings: Settings, database: Database, stack: AsyncExitStack) -> Stamper | None:
    """Where the log is sealed."""
    if not settings.audit.seal_in_serve:
        return None
    return await stack.enter_async_context(audit_log.stamping(settings, database))


async def _load_used(embedders: Mapping[str, Embedder], library: StoredLibrary) -> None:
    """Loads the models of the books before their first reader: that takes longer than a retrieval may."""
    used = {book.embedder for book in await library.books()}
    for name, embedder in embedders.items():
        if name in used:
            await embedder.embed_query("ready?")


def rules_of(settings: Settings) -> Rules:
    return Rules(
        **of_settings(settings),
        instructions=Instructions.of(PROMPT.read_text(), except_for=f"{SENTINEL} {NOT_STATED}"),
        prompt_sha256=sha256(PROMPT.read_bytes()).hexdigest(),
        code_version=version("affidavit"),
    )


def of_settings(settings: Settings) -> dict[str, Any]:
    """The rules that a reload may change. The generator keeps its prompt and the process its code, whatever lies there by now."""
    budget, confidence = settings.budget, settings.confidence
    return {
        "total_s": budget.total_s,
        "retrieval_s": budget.retrieval_s,
        "generation_s": budget.generation_s,
        "audit_s": budget.audit_s,
        "threshold": settings.retrieval.threshold,
        "confidence_weights": (confidence.weight_retrieval, confidence.weight_generation),
        "confidence_levels": (confidence.high, confidence.medium),
        "default_generation_confidence": confidence.default_generation,
        "settings_sha256": settings.fingerprint(),
    }
