"""The composition root (dependency injection by hand): the only file that names concrete providers.

A new vendor is a new file in engine/providers and one line here. Only the command line imports this file.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from datetime import UTC, date, datetime, timedelta
from functools import partial
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import uuid4

from psycopg_pool import AsyncConnectionPool

from audit.archive.month_table import read_row_keys
from audit.checking.evidence import EVER, Period, StoredEvidence
from audit.checking.log_gauges import LogGauges, read_log_gauges
from audit.checking.prover import Prover
from audit.checking.status import Status, read_status
from audit.erasure.erase import Eraser
from audit.ledger import partitions
from audit.ledger.durability import weaknesses
from audit.ledger.ledger import Ledger, SpoolSettings
from audit.progress import Progress
from audit.proof.keys import read_public_keys
from audit.sealing.sealer import Sealer
from audit.vault import FolderVault, Vault
from engine import database as databases
from engine.admission.flood import FloodCounter
from engine.admission.keys import ApiKeys, KeyUses
from engine.admission.operator_events import OperatorEvents
from engine.admission.sessions import Sessions
from engine.answer import Engine, Rules
from engine.database import ARCHIVER, AUDITOR, Database, as_login, as_role, changing, open_lazily, reading
from engine.errors import ConfigurationError
from engine.grounding.verify import SENTINEL, Instructions
from engine.house import House, check_books
from engine.outage.cached_library import CachedKeyring, CachedLibrary
from engine.outage.stale_cache import CircuitBreaker
from engine.ports import Embedder, Generator, Index, Library, Limiter, Reranker
from engine.providers.postgres import EmbeddedPostgres
from engine.retrieval.calibrate import Gate, Weights
from engine.retrieval.library import StoredLibrary
from engine.retrieval.retrieve import Retriever
from engine.settings import CONFIG, PROMPT, Settings
from engine.signing import public_keys_file, public_keys_of, signing_key_of
from ingest.pipeline import Ingest
from ingest.registry import Registry
from ingest.self_calibration import SelfCalibration, read_probes
from ingest.split import Size

if TYPE_CHECKING:
    from audit.archive.archiver import Archiver
    from audit.query.tiers import TieredLog


def _provider(module: str, factory: str) -> Callable[..., Any]:
    """A lazy import: every command imports this file, and only the chosen vendor's library is worth loading."""

    def make(*given: Any) -> Any:
        return getattr(import_module(f"engine.providers.{module}"), factory)(*given)

    return make


EMBEDDERS: dict[str, Callable[[Settings], Embedder]] = {
    "cohere": _provider("cohere", "embedder"),
    "minilm": _provider("minilm", "embedder"),
}
INDEXES: dict[str, Callable[[Settings], Index]] = {
    "edge": _provider("edge", "index"),
    "qdrant": _provider("qdrant", "index"),
}
RERANKERS: dict[str, Callable[[Settings], Reranker | None]] = {
    "cohere": _provider("cohere", "reranker"),
    "none": lambda _: None,
}
GENERATORS: dict[str, Callable[[Settings, Embedder], Generator]] = {
    "claude": _provider("claude", "generator"),
    "extractive": _provider("extractive", "generator"),
}
LIMITERS: dict[str, Callable[[Settings], Limiter]] = {
    "memory": _provider("limits", "memory"),
    "redis": _provider("limits", "redis"),
}
VAULTS: dict[str, Callable[[Settings], Vault]] = {
    "folder": lambda settings: FolderVault(settings.data_dir / "vault"),
    "s3": _provider("s3", "vault"),
}

PROBES_MIN = 50  # "nine in ten of them" needs some to count
READY_MIN = (
    3  # connections that the first readers after a quiet time need not wait for; settings ask for as many
)
ERASING_S = 1.5  # of a request's five seconds, for records that are still on their way
PATIENCE_S = 20.0  # the same at a terminal: a request ends within five seconds, and is sealed within ten
CHECK_S = 5.0  # a cold index worker starts well within it
SAMPLE_BOOK = CONFIG / "sample-book"
SAMPLE_TITLE = "Physical AI and Humanoid Robotics: A Short Introduction"

Made = TypeVar("Made")


def now() -> datetime:
    return datetime.now(UTC)


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
            eraser=await stack.enter_async_context(_open_eraser_within(database, ERASING_S)),
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
    embedder = _closed_by(stack, embedder_of(settings))
    index = _closed_by(stack, index_of(settings))
    reranker = _choose("reranker", RERANKERS, settings.providers.reranker)(settings)
    if reranker:
        _closed_by(stack, reranker)
    generator = _closed_by(stack, generator_of(settings, embedder))
    await check_books(stored, embedder)
    breaker, keys = CircuitBreaker(time.monotonic), ApiKeys(pool)
    uses = _closed_by(stack, KeyUses(keys.note_uses, now))
    keyring = _closed_by(stack, CachedKeyring(keys, breaker, uses))
    library = _closed_by(stack, CachedLibrary(stored, breaker))
    library.preload([book.book_id for book in await stored.books()])
    if settings.audit.seal_in_serve:
        await stack.enter_async_context(sealing(settings, database))
    ledger = ledger_of(settings, pool)
    await ledger.start()
    stack.push_async_callback(ledger.stop)
    within_s = settings.budget.audit_s
    return Engine(
        keyring=keyring,
        flood=_closed_by(stack, FloodCounter(ledger, now, time.monotonic, within_s=within_s)),
        limiter=_closed_by(stack, _choose("limits", LIMITERS, settings.providers.limits)(settings)),
        library=library,
        retriever=_retriever(settings, embedder, index, library, reranker),
        generator=generator,
        ledger=ledger,
        rules=_rules(settings),
        clock=now,
        new_id=uuid4,
        monotonic=time.monotonic,
    )


class _Closing(Protocol):
    async def close(self) -> None: ...


_Part = TypeVar("_Part", bound=_Closing)


def _closed_by(stack: AsyncExitStack, part: _Part) -> _Part:
    stack.push_async_callback(part.close)
    return part


def _engine_pool(settings: Settings, database: Database) -> AbstractAsyncContextManager[AsyncConnectionPool]:
    connections_max = settings.database.connections_max
    return database.pool("affidavit_engine", connections_max, has_autocommit=True, size_min=READY_MIN)


@asynccontextmanager
async def open_ingest(settings: Settings, database: Database, progress: Progress) -> AsyncIterator[Ingest]:
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(database.pool("affidavit_engine"))
        embedder = _closed_by(stack, embedder_of(settings))
        index = _closed_by(stack, index_of(settings))
        chunking = settings.chunking
        registry = Registry(pool)
        yield Ingest(
            registry=registry,
            index=index,
            embedder=embedder,
            size=Size(chunking.tokens, chunking.overlap, chunking.tokens_min),
            self_calibration=_self_calibration(settings, registry, embedder, index),
            new_id=uuid4,
            monotonic=time.monotonic,
            progress=progress,
        )


@asynccontextmanager
async def open_sealer(settings: Settings, database: Database) -> AsyncIterator[Sealer]:
    key, audit = signing_key_of(settings), settings.audit
    public = public_keys_file(settings)
    async with database.pool("affidavit_sealer") as pool:
        yield Sealer(
            pool, key, lambda: read_public_keys(public), vault_of(settings),
            seal_every_s=audit.seal_every_s, anchor_every_s=audit.anchor_every_s, clock=now, monotonic=time.monotonic,
        )  # fmt: skip


@asynccontextmanager
async def sealing(settings: Settings, database: Database) -> AsyncIterator[None]:
    """A background task seals rows until the end of the block, and once more at its end."""
    async with open_sealer(settings, database) as sealer, sealer.running():
        yield


@asynccontextmanager
async def open_keys(database: Database) -> AsyncIterator[ApiKeys]:
    """To look at and to change. Each change is recorded by a ledger of its own, in the role of the engine."""
    async with database.pool("affidavit_owner") as pool:
        yield ApiKeys(pool, OperatorEvents(partial(_open_ledger, database), now, uuid4))


@asynccontextmanager
async def _open_ledger(database: Database) -> AsyncIterator[Ledger]:
    """Patient, and without a spool: what it records needs the database itself."""
    async with database.pool("affidavit_engine", has_autocommit=True) as pool:
        ledger = Ledger(pool, signing_key_of(database.settings), now, within_s=CHECK_S)
        try:
            await ledger.start()
            yield ledger
        finally:
            await ledger.stop()


@asynccontextmanager
async def open_eraser(settings: Settings, database: Database) -> AsyncIterator[tuple[Eraser, OperatorEvents]]:
    """At the end the records of what was done are sealed too, unless a sealer of its own does that here."""
    async with AsyncExitStack() as stack:
        if settings.audit.seal_in_serve:
            await stack.enter_async_context(sealing(settings, database))
        pool = await stack.enter_async_context(database.pool("affidavit_engine", has_autocommit=True))
        if settings.audit.spool_dir:  # what dead processes left comes to the log first
            draining = ledger_of(settings, pool)
            await draining.start()
            await draining.stop()
        ledger = await stack.enter_async_context(_open_ledger(database))
        eraser = await stack.enter_async_context(_open_eraser_within(database, PATIENCE_S))
        yield eraser, OperatorEvents(lambda: nullcontext(ledger), now, uuid4)


@asynccontextmanager
async def _open_eraser_within(database: Database, within_s: float) -> AsyncIterator[Eraser]:
    settings = database.settings
    async with open_lazily(database.url, ARCHIVER, size_max=2, wait_s=settings.budget.audit_s) as pool:
        eraser = Eraser(
            pool, signing_key_of(settings), _spool_folder(settings), within_s=within_s, monotonic=time.monotonic,
            new_id=uuid4,
        )  # fmt: skip
        try:
            yield eraser
        finally:
            await eraser.close()


def archiver_of(
    settings: Settings, database: Database, progress: Progress, say: Callable[[str], None]
) -> "Archiver":
    from audit.archive.archiver import Archiver

    database.check_schema()
    public = public_keys_file(settings)
    return Archiver(
        connect=partial(changing, database.url, ARCHIVER),
        reading=partial(reading, database.url, ARCHIVER),
        vault=vault_of(settings),
        key=signing_key_of(settings),
        public_keys=lambda: read_public_keys(public),
        seal=partial(_has_sealed, settings, database),
        event=OperatorEvents(partial(_open_ledger, database), now, uuid4).event,
        folder=settings.data_dir / "archiving",
        warm=timedelta(days=settings.audit.warm_days),
        grace=timedelta(days=settings.archive.grace_days),
        code_version=version("affidavit"),
        clock=now,
        progress=progress,
        say=say,
    )


async def _has_sealed(settings: Settings, database: Database) -> bool:
    """Seal what is committed, if this login may."""
    try:
        async with open_sealer(settings, database) as sealer:
            await sealer.seal_once()
    except ConfigurationError:
        return False
    return True


@asynccontextmanager
async def open_registry(database: Database, role: str = "affidavit_engine") -> AsyncIterator[Registry]:
    async with database.pool(role) as pool:
        yield Registry(pool)


@asynccontextmanager
async def open_sessions(settings: Settings, database: Database) -> AsyncIterator[Sessions]:
    async with database.pool("affidavit_engine") as pool:
        yield Sessions(pool, settings.sessions.purge_days, uuid4)


@contextmanager
def open_evidence(settings: Settings, database: Database, period: Period) -> Iterator[StoredEvidence]:
    """What a verifier reads, as the auditor's role."""
    with reading(database.url, AUDITOR) as connection:
        evidence = StoredEvidence(connection, vault_of(settings), period, now())
        evidence.begin()
        yield evidence


@contextmanager
def open_tiers(
    settings: Settings, database: Database, period: Period, *, is_open: bool
) -> Iterator["TieredLog"]:
    """The log over all tiers, as the auditor's role; what is personal in archives only with the keys of the archiver."""
    from audit.query.tiers import TieredLog

    with ExitStack() as stack:
        row_keys = None
        if is_open:
            row_keys = partial(read_row_keys, stack.enter_context(reading(database.url, ARCHIVER)))
        is_given = bool(settings.database.url.get_secret_value())
        login = as_role if is_given else as_login
        yield TieredLog(login(database.url, AUDITOR), vault_of(settings), period, row_keys)


def operator_events_of(database: Database) -> OperatorEvents:
    """For what is done at a terminal; each event is recorded by a ledger of its own."""
    return OperatorEvents(partial(_open_ledger, database), now, uuid4)


@asynccontextmanager
async def open_prover(database: Database) -> AsyncIterator[Prover]:
    wait_s = database.settings.budget.audit_s
    async with open_lazily(database.url, AUDITOR, size_max=2, wait_s=wait_s) as pool:
        yield Prover(pool)


async def make_months_ahead(database: Database, today: date) -> list[str]:
    async with database.pool("affidavit_engine") as pool:
        return await partitions.make_months_ahead(pool, today)


async def count_months_ahead(database: Database, today: date) -> int:
    async with database.pool("affidavit_engine") as pool:
        return await partitions.count_months_ahead(pool, today)


async def status_of(settings: Settings, database: Database, period: Period = EVER) -> Status:
    return await read_status(database.read, vault_of(settings), _spool_folder(settings), now().date(), period)


async def standing_of(settings: Settings, database: Database, pool: AsyncConnectionPool) -> LogGauges:
    return await read_log_gauges(pool, partial(database.read, AUDITOR), _spool_folder(settings), now().date())


def _spool_folder(settings: Settings) -> Path | None:
    return settings.data_dir / settings.audit.spool_dir if settings.audit.spool_dir else None


async def weaknesses_of(database: Database) -> list[str]:
    async with database.pool("affidavit_engine", 1) as pool, pool.connection() as connection:
        return await weaknesses(connection)


def embedder_of(settings: Settings) -> Embedder:
    return _choose("embedder", EMBEDDERS, settings.providers.embedder)(settings)


def index_of(settings: Settings) -> Index:
    return _choose("index", INDEXES, settings.providers.index)(settings)


def generator_of(settings: Settings, embedder: Embedder) -> Generator:
    return _choose("generator", GENERATORS, settings.providers.generator)(settings, embedder)


def vault_of(settings: Settings) -> Vault:
    return _choose("vault", VAULTS, settings.providers.vault)(settings)


def ledger_of(settings: Settings, pool: AsyncConnectionPool) -> Ledger:
    """With an empty spool_dir there is no spool: while the database is away nothing is answered."""
    audit = settings.audit
    spooling = (
        SpoolSettings(settings.data_dir / audit.spool_dir, audit.spool_bytes_max) if audit.spool_dir else None
    )
    return Ledger(pool, signing_key_of(settings), now, within_s=settings.budget.audit_s, spooling=spooling)


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


def gate_of(settings: Settings) -> Gate:
    retrieval = settings.retrieval
    return Gate(Weights(retrieval.weight_semantic, retrieval.weight_lexical), retrieval.threshold)


_PROBES_HINT = 'Name a file with one question a line, or set it to "" for the curve shipped for the embedder.'


def _self_calibration(
    settings: Settings, registry: Registry, embedder: Embedder, index: Index
) -> SelfCalibration | None:
    if not settings.calibration.probes_file:
        return None
    file = CONFIG / settings.calibration.probes_file
    try:
        probes = read_probes(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as wrong:
        raise ConfigurationError(
            f"calibration.probes_file: {file} cannot be read: {wrong}. {_PROBES_HINT}"
        ) from None
    if len(probes) < PROBES_MIN:
        raise ConfigurationError(
            f"calibration.probes_file: {file} has {len(probes)} questions; {PROBES_MIN} are needed. {_PROBES_HINT}"
        )
    return SelfCalibration(
        probes, settings.calibration.probes_refused, gate_of(settings), settings.retrieval.candidates,
        registry, embedder, index,
    )  # fmt: skip


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


def _choose(seam: str, providers: dict[str, Made], name: str) -> Made:
    if name not in providers:
        raise ConfigurationError(
            f'providers.{seam} = "{name}" is not available here. Available: {", ".join(sorted(providers))}.'
        )
    return providers[name]
