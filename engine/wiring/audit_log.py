"""Factories of all that writes, seals, checks, archives and erases the audit log.

Each opens its connections in the one role whose rights it needs.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, nullcontext
from datetime import date, timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
from psycopg_pool import AsyncConnectionPool

from audit.archive.month_table import read_row_keys
from audit.checking.evidence import EVER, Period, StoredEvidence
from audit.checking.prover import Prover
from audit.checking.signature_check import SignatureProcess
from audit.checking.status import (
    RECENT_ANCHORS,
    LogGauges,
    Status,
    find_foreign_vault,
    read_log_gauges,
    read_status,
)
from audit.definitions.comparison import Difference, differences
from audit.erasure.erase import Eraser
from audit.errors import KeyFileError
from audit.ledger import partitions
from audit.ledger.database_writer import failover_losses, weaknesses
from audit.ledger.heartbeat import Heartbeat
from audit.ledger.ledger import Ledger, SpoolSettings
from audit.progress import Progress
from audit.proof.keys import PublicKey, SigningKey, read_public_keys
from audit.sealing.sealer import Sealer
from audit.sealing.signers import KnownSigner, find_signers
from engine.admission.keys import ApiKeys
from engine.admission.operator_events import OperatorEvents
from engine.errors import ConfigurationError, StatementError
from engine.settings import HOUSE, Settings
from engine.signing import public_keys_file, signing_key_of
from engine.storage import database as databases
from engine.storage.database import ARCHIVER, AUDITOR, Database, reading
from engine.wiring.providers import now, vault_of

if TYPE_CHECKING:
    from audit.archive.archiver import Archiver
    from audit.query.tiers import TieredLog

ERASING_S = 1.5  # of a request's five seconds, for records that are still on their way
PATIENCE_S = 20.0  # the same at a terminal: a request ends within five seconds, and is sealed within ten
CHECK_S = 5.0  # a cold index worker starts well within it
CONNECT_S = 10


@asynccontextmanager
async def open_sealer(settings: Settings, database: Database) -> AsyncIterator[Sealer]:
    key, audit = _signing_key(database), settings.audit
    async with database.pool("affidavit_sealer") as pool:
        yield Sealer(
            pool, key, public_keys_of(settings), vault_of(settings),
            seal_every_s=audit.seal_every_s, anchor_every_s=audit.anchor_every_s, clock=now, monotonic=time.monotonic,
        )  # fmt: skip


@asynccontextmanager
async def sealing(settings: Settings, database: Database) -> AsyncIterator[Sealer]:
    """A background task that seals rows until the end of the block, and a last time at its end."""
    async with open_sealer(settings, database) as sealer, sealer.running():
        yield sealer


@asynccontextmanager
async def open_keys(database: Database) -> AsyncIterator[ApiKeys]:
    async with database.pool("affidavit_owner") as pool:
        yield ApiKeys(pool, operator_events_of(database))


def operator_events_of(database: Database) -> OperatorEvents:
    """The audit trail of a command's actions; each is recorded through a ledger of its own, in the engine's role."""
    return OperatorEvents(partial(open_ledger, database), now, uuid4)


@asynccontextmanager
async def open_ledger(database: Database) -> AsyncIterator[Ledger]:
    """A ledger with a long timeout and without a spool, because the actions that it records need the database anyway."""
    async with database.pool("affidavit_engine", has_autocommit=True) as pool:
        settings = database.settings
        ledger = Ledger(
            pool, _signing_key(database), now, public_keys=public_keys_of(settings), within_s=CHECK_S,
            clock_behind_max=settings.audit.clock_behind_max,
        )  # fmt: skip
        try:
            await ledger.start()
            yield ledger
        finally:
            await ledger.stop()


def ledger_of(settings: Settings, pool: AsyncConnectionPool) -> Ledger:
    """With an empty spool_dir there is no spool: while the database is unavailable, no question is answered."""
    folder = _spool_folder(settings)
    spooling = SpoolSettings(folder, settings.audit.spool_bytes_max) if folder else None
    assert isinstance(pool.conninfo, str)
    key = _signing_key(Database(pool.conninfo, settings))
    return Ledger(
        pool, key, now, public_keys=public_keys_of(settings), within_s=settings.budget.audit_s,
        spooling=spooling, clock_behind_max=settings.audit.clock_behind_max,
    )  # fmt: skip


def heartbeat_of(ledger: Ledger) -> Heartbeat:
    return Heartbeat(ledger, now, uuid4)


@asynccontextmanager
async def open_eraser(settings: Settings, database: Database) -> AsyncIterator[tuple[Eraser, OperatorEvents]]:
    """The records of the erasure are sealed at the end of the block, unless a separate process does the sealing."""
    async with AsyncExitStack() as stack:
        if settings.audit.seal_in_serve:
            await stack.enter_async_context(sealing(settings, database))
        pool = await stack.enter_async_context(database.pool("affidavit_engine", has_autocommit=True))
        # Drain the spools of dead processes first, so that their records are erased too.
        if settings.audit.spool_dir:
            draining = ledger_of(settings, pool)
            await draining.start()
            await draining.stop()
        ledger = await stack.enter_async_context(open_ledger(database))
        eraser = await stack.enter_async_context(open_eraser_within(database, PATIENCE_S))
        yield eraser, OperatorEvents(lambda: nullcontext(ledger), now, uuid4)


@asynccontextmanager
async def open_eraser_within(database: Database, within_s: float) -> AsyncIterator[Eraser]:
    settings = database.settings
    wait_s = settings.budget.audit_s
    async with databases.open_lazily(database.url, ARCHIVER, size_max=2, wait_s=wait_s) as pool:
        eraser = Eraser(
            pool, _signing_key(database), public_keys_of(settings), _spool_folder(settings), within_s=within_s,
            monotonic=time.monotonic, new_id=uuid4,
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
    return Archiver(
        connect=partial(databases.changing, database.url, ARCHIVER),
        reading=partial(reading, database.url, ARCHIVER),
        vault=vault_of(settings),
        key=_signing_key(database),
        public_keys=public_keys_of(settings),
        seal=partial(_try_seal, settings, database),
        event=operator_events_of(database).event,
        folder=settings.data_dir / "archiving",
        warm=timedelta(days=settings.audit.warm_days),
        grace=timedelta(days=settings.archive.grace_days),
        code_version=version("affidavit"),
        clock=now,
        progress=progress,
        say=say,
    )


async def _try_seal(settings: Settings, database: Database) -> bool:
    """Seals the committed rows. False if this login lacks the right to."""
    try:
        async with open_sealer(settings, database) as sealer:
            await sealer.seal_once()
    except ConfigurationError:
        return False
    return True


@contextmanager
def open_evidence(settings: Settings, database: Database, period: Period) -> Iterator[StoredEvidence]:
    """The evidence for a verifier, read in the auditor's role."""
    with reading(database.url, AUDITOR) as connection, SignatureProcess() as process:
        evidence = StoredEvidence(connection, vault_of(settings), period, now(), process.check)
        evidence.begin()
        yield evidence


@contextmanager
def open_tiers(
    settings: Settings, database: Database, period: Period, *, is_open: bool
) -> Iterator["TieredLog"]:
    """The log over all tiers, in the auditor's role. Personal data of archives needs the keys that the archiver's role reads."""
    from audit.query.tiers import QueryLimits, TieredLog

    with ExitStack() as stack:
        row_keys = None
        if is_open:
            row_keys = partial(read_row_keys, stack.enter_context(reading(database.url, ARCHIVER)))
        is_given = bool(settings.database.url.get_secret_value())
        login = databases.as_role if is_given else databases.as_login
        limits = QueryLimits(settings.audit.query_s, settings.audit.query_bytes_max)
        url = databases.within(login(database.url, AUDITOR), limits.seconds)
        yield TieredLog(url, vault_of(settings), shipped_definitions(), limits, period, row_keys)


def shipped_definitions() -> dict[str, str]:
    """The digests of the schema's definitions, as `make schema` wrote them."""
    digests: dict[str, str] = json.loads((HOUSE / "sql" / "definitions.json").read_text("utf-8"))
    return digests


def differences_of(database: Database) -> list[Difference]:
    """What is not as it was shipped, seen in the auditor's role."""
    with reading(database.url, AUDITOR) as connection:
        return differences(connection, shipped_definitions())


@asynccontextmanager
async def open_prover(database: Database) -> AsyncIterator[Prover]:
    wait_s = database.settings.budget.audit_s
    async with databases.open_lazily(database.url, AUDITOR, size_max=2, wait_s=wait_s) as pool:
        yield Prover(pool)


async def make_months_ahead(database: Database, today: date) -> list[str]:
    async with database.pool("affidavit_engine") as pool:
        return await partitions.make_months_ahead(pool, today, database.settings.audit.clock_behind_max)


async def make_months(database: Database, since: date, today: date) -> list[str]:
    async with database.pool("affidavit_engine") as pool:
        return await partitions.make_months(pool, since, today)


async def check_clock(database: Database, today: date) -> None:
    async with database.pool("affidavit_engine", 1) as pool, pool.connection() as connection:
        newest = await partitions.newest_checkpoint_at(connection)
    partitions.check_clock(today, newest, database.settings.audit.clock_behind_max)


async def count_months_ahead(database: Database, today: date) -> int:
    async with database.pool("affidavit_engine") as pool:
        return await partitions.count_months_ahead(pool, today)


async def status_of(settings: Settings, database: Database, period: Period = EVER) -> Status:
    try:
        keys = public_keys_of(settings)()
    except KeyFileError:
        keys = None
    spool = _spool_folder(settings)
    return await read_status(database.read, vault_of(settings), spool, now().date(), period, keys)


async def log_gauges_of(
    settings: Settings, database: Database, pool: AsyncConnectionPool, sealer: Sealer | None
) -> LogGauges:
    refused_rows = len(sealer.admission.refused) if sealer else 0
    return await read_log_gauges(pool, database.read, _spool_folder(settings), now().date(), refused_rows)


def public_keys_of(settings: Settings) -> Callable[[], list[PublicKey]]:
    """Reads the file each time: another process may have rotated the key."""
    return partial(read_public_keys, public_keys_file(settings))


def _signing_key(database: Database) -> SigningKey:
    return signing_key_of(database.settings, lambda: [signer.key_id for signer in signers_of(database)])


def signers_of(database: Database) -> list[KnownSigner]:
    """The keys that have signed the log, the newest first."""
    try:
        with psycopg.connect(database.url, connect_timeout=CONNECT_S) as connection:
            return find_signers(connection, vault_of(database.settings))
    except psycopg.Error as failure:
        raise StatementError(
            f"The database does not say who signed this log: {type(failure).__name__}"
        ) from None


def _spool_folder(settings: Settings) -> Path | None:
    return settings.data_dir / settings.audit.spool_dir if settings.audit.spool_dir else None


async def weaknesses_of(database: Database) -> list[str]:
    async with database.pool("affidavit_engine", 1) as pool, pool.connection() as connection:
        return await weaknesses(connection)


async def failover_losses_of(database: Database) -> str:
    async with database.pool("affidavit_engine", 1) as pool, pool.connection() as connection:
        return await failover_losses(connection)


async def foreign_vault_of(settings: Settings, database: Database) -> str:
    """What is wrong if this vault is not the one that the log's anchors were written into; empty if all is well."""
    anchors = (await database.read(AUDITOR, RECENT_ANCHORS))[1]
    return await asyncio.to_thread(find_foreign_vault, vault_of(settings), [key for (key,) in anchors])


async def warnings_at_start(settings: Settings, database: Database) -> list[str]:
    """What does not stop the engine, but can cost records or their proof."""
    found = (await failover_losses_of(database), await foreign_vault_of(settings, database))
    return [warning for warning in found if warning]
