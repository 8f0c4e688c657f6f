"""Factories of what publishes books, without opening the whole engine, and of the calibration of a new edition."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import uuid4

from audit.progress import Progress
from engine.admission.sessions import Sessions
from engine.errors import ConfigurationError
from engine.ports import Embedder, Index
from engine.retrieval.calibrate import Gate, Weights
from engine.settings import CONFIG, Settings
from engine.storage.database import Database
from engine.wiring.providers import closed_by, embedder_of, index_of, other_embedders
from ingest.indexing import IndexRepair
from ingest.pipeline import Ingest
from ingest.registry import Registry
from ingest.self_calibration import SelfCalibration, read_probes
from ingest.split import Size

SAMPLE_BOOK = CONFIG / "sample-book"
SAMPLE_TITLE = "Physical AI and Humanoid Robotics: A Short Introduction"
LOCKS_AND_WORK = 3  # connections: the lock of the book, the lock of its index, and the work
PROBES_MIN = 50  # "nine in ten of them" needs some to count

_PROBES_HINT = 'Name a file with one question a line, or set it to "" for the curve shipped for the embedder.'


@asynccontextmanager
async def open_ingest(settings: Settings, database: Database, progress: Progress) -> AsyncIterator[Ingest]:
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(database.pool("affidavit_engine", LOCKS_AND_WORK))
        embedder = closed_by(stack, embedder_of(settings))
        index = closed_by(stack, index_of(settings))
        chunking = settings.chunking
        registry = Registry(pool)
        yield Ingest(
            registry=registry,
            index=index,
            embedder=embedder,
            size=Size(chunking.tokens, chunking.overlap, chunking.tokens_min),
            self_calibration=self_calibration_of(settings, registry, embedder, index),
            new_id=uuid4,
            monotonic=time.monotonic,
            progress=progress,
            others=other_embedders(settings),
        )


@asynccontextmanager
async def open_registry(database: Database, role: str = "affidavit_engine") -> AsyncIterator[Registry]:
    async with database.pool(role) as pool:
        yield Registry(pool)


@asynccontextmanager
async def open_repair(settings: Settings, database: Database) -> AsyncIterator[IndexRepair]:
    async with AsyncExitStack() as stack:
        registry = await stack.enter_async_context(open_registry(database))
        yield IndexRepair(registry, closed_by(stack, index_of(settings)))


@asynccontextmanager
async def open_sessions(settings: Settings, database: Database) -> AsyncIterator[Sessions]:
    async with database.pool("affidavit_engine") as pool:
        yield Sessions(pool, settings.sessions.purge_days, uuid4)


def gate_of(settings: Settings) -> Gate:
    retrieval = settings.retrieval
    return Gate(Weights(retrieval.weight_semantic, retrieval.weight_lexical), retrieval.threshold)


def self_calibration_of(
    settings: Settings, registry: Registry, embedder: Embedder, index: Index
) -> SelfCalibration | None:
    if not settings.calibration.probes_file:
        return None
    file = CONFIG / settings.calibration.probes_file
    place = f"calibration.probes_file: {file}"
    try:
        probes = read_probes(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as wrong:
        raise ConfigurationError(f"{place} cannot be read: {wrong}. {_PROBES_HINT}") from None
    if len(probes) < PROBES_MIN:
        short = f"{len(probes)} questions; {PROBES_MIN} are needed"
        raise ConfigurationError(f"{place} has {short}. {_PROBES_HINT}")
    return SelfCalibration(
        probes, settings.calibration.probes_refused, gate_of(settings), settings.retrieval.candidates,
        registry, embedder, index, _probes_by_language(file),
    )  # fmt: skip


def _probes_by_language(file: Path) -> dict[str, tuple[str, ...]]:
    """Of the files beside it: probes.de.txt beside probes.txt."""
    found = sorted(file.parent.glob(f"{file.stem}.*{file.suffix}"))
    return {each.suffixes[0][1:]: read_probes(each.read_text("utf-8")) for each in found}
