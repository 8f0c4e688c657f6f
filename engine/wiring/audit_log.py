"""Factories of all that writes, seals, checks, archives and erases the audit log.

Each opens its connections in the one role whose rights it needs.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from datetime import date, timedelta
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
from psycopg_pool import AsyncConnectionPool

from audit.access.access import Access
from audit.archive.month_table import read_row_keys
from audit.checking.evidence import EVER, Period, StoredEvidence
from audit.checking.month_tiers import read_manifest
from audit.checking.prover import Prover
from audit.checking.range_judge import RangeJudges
from audit.checking.stamp_check import StampRules
from audit.checking.status import (
    READS_WAITING,
    RECENT_ANCHORS,
    Backlog,
    LogGauges,
    SpoolFile,
    Status,
    find_foreign_vault,
    read_log_gauges,
    read_status,
    spool_files,
)
from audit.definitions.comparison import Difference, differences
from audit.erasure.erase import Eraser
from audit.errors import DeliveryError, HeldError, KeyFileError
from audit.heads.inspection import Seen, Watch
from audit.heads.policy import PolicyWitness
from audit.heads.submission import WitnessNetwork
from audit.heads.vaulted import list_heads
from audit.holding.doubts import HoldTables, hold_doubts
from audit.holding.holds import Holds, ListedHolds
from audit.holding.tables import read_hold_tables
from audit.ledger import partitions
from audit.ledger.database_writer import failover_losses, weaknesses
from audit.ledger.heartbeat import Heartbeat
from audit.ledger.ledger import Ledger, SpoolSettings
from audit.progress import Progress
from audit.proof.record import PERSONAL, Row
from audit.proof.row_signature import is_row_signed
from audit.sealing.forged_rows import forged_open, put_aside, rows_not_ours
from audit.sealing.publication import Witnessing
from audit.sealing.sealer import Sealer
from audit.sealing.signers import identity_doubts
from audit.sealing.stamper import Stamper
from audit.search import word_index
from audit.search.finding import Finder
from audit.stamps.stored import StampedHead, last_stamp
from audit.vault import Vault
from engine import cores
from engine.admission.key_trail import KeyRecord, unexplained
from engine.admission.keys import ApiKeys
from engine.admission.operator_events import OperatorEvents
from engine.admission.sessions import HELD
from engine.errors import ConfigurationError
from engine.settings import HOUSE, Settings
from engine.signing import public_keys_file
from engine.storage import database as databases
from engine.storage.database import ARCHIVER, AUDITOR, OWNER, Database, reading
from engine.wiring.providers import (
    closed_by,
    now,
    pinned_authorities,
    time_stamp_authority_of,
    vault_of,
    witness_policy_of,
    witnesses_of,
)
from engine.wiring.signing import head_key, known_keys, public_keys_of, row_key, signing_s

if TYPE_CHECKING:
    from audit.archive.archiver import Archiver
    from audit.archive.rows import RowKeys
    from audit.export.sealed_rows import SealedRows
    from audit.query.tiers import TieredLog

ERASING_S = 1.5  # of a request's five seconds, for records that are still on their way
PATIENCE_S = 20.0  # the same at a terminal: a request ends within five seconds, and is sealed within ten
ERASER_CONNECTIONS = 3  # what keeps the holds as they are, the erasure, and a vacuum in the background
CHECK_S = 5.0  # a cold index worker starts well within it


_KEY_RECORDS = """
SELECT log_id::text, leaf_hash, signature, substr(endpoint, length('affidavit keys ') + 1), key_id, client_id, timestamp, details
FROM audit_logs WHERE endpoint LIKE 'affidavit keys %' AND outcome = 'recorded'
"""
_MANIFEST = """
SELECT manifest_key, manifest_version, manifest_sha256 FROM audit_archives
WHERE month = %s AND state IN ('verified', 'detached', 'dropped') ORDER BY step DESC LIMIT 1
"""


@asynccontextmanager
async def open_sealer(
    settings: Settings, database: Database, *, may_begin_vault: bool = False
) -> AsyncIterator[Sealer]:
    key, audit = head_key(database), settings.audit
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(database.pool("affidavit_sealer"))
        yield Sealer(
            pool, key, public_keys_of(settings), vault_of(settings),
            seal_every_s=audit.seal_every_s, anchor_every_s=audit.anchor_every_s, clock=now, monotonic=time.monotonic,
            may_begin_vault=may_begin_vault, witnessing=_witnessing(settings, stack),
        )  # fmt: skip


def _witnessing(settings: Settings, stack: AsyncExitStack) -> Witnessing | None:
    policy = witness_policy_of(settings)
    if policy is None:
        return None
    return Witnessing(policy, closed_by(stack, witnesses_of(settings)), settings.witness.required)


async def origin_of(database: Database) -> str:
    """The name of the log, for ever."""
    _, ((origin,),) = await database.read(AUDITOR, "SELECT origin FROM audit_origin")
    return str(origin)


async def watch_of(settings: Settings, database: Database) -> Watch:
    """What the witnesses of the settings have seen of this log."""
    policy = witness_policy_of(settings)
    if policy is None:
        return Watch()
    origin, network = await origin_of(database), witnesses_of(settings)
    try:
        asked = [witness for witness in policy.witnesses.values() if witness.url]
        seen = await asyncio.gather(*(_seen_by(network, witness, origin) for witness in asked))
    finally:
        await network.close()
    return Watch(policy, settings.witness.required, seen)


async def _seen_by(network: WitnessNetwork, witness: PolicyWitness, origin: str) -> Seen:
    try:
        reply = await network.last_note(witness.url, origin)
    except OSError as failure:
        return Seen(witness.name, None, f"it does not answer ({failure})")
    if reply.status == HTTPStatus.OK:
        return Seen(witness.name, reply.text)
    return Seen(witness.name, None, f"it answers with status {reply.status}")


@asynccontextmanager
async def sealing(settings: Settings, database: Database) -> AsyncIterator[Sealer]:
    """A background task that seals rows until the end of the block, and a last time at its end."""
    async with open_sealer(settings, database) as sealer, sealer.running():
        yield sealer


@asynccontextmanager
async def open_stamper(settings: Settings, database: Database) -> AsyncIterator[Stamper | None]:
    """None if time stamps are off."""
    if settings.time_stamps.mode == "off":
        yield None
        return
    async with database.pool("affidavit_sealer", 1) as pool:
        yield Stamper(
            pool, vault_of(settings), time_stamp_authority_of(settings), partial(pinned_authorities, settings),
            public_keys_of(settings), now,
        )  # fmt: skip


@asynccontextmanager
async def stamping(settings: Settings, database: Database) -> AsyncIterator[Stamper | None]:
    """A background task that has the log's newest head stamped each day, until the end of the block."""
    async with open_stamper(settings, database) as stamper:
        async with stamper.running() if stamper else nullcontext():
            yield stamper


def stamp_rules_of(settings: Settings) -> StampRules:
    """What `verify` believes and demands."""
    return StampRules(pinned_authorities(settings), is_required=settings.time_stamps.mode == "required")


def stamped_of(settings: Settings) -> tuple[StampedHead | None, int]:
    """The last time stamp in the vault, and the size of the newest head there; 0: there is none."""
    vault = vault_of(settings)
    return last_stamp(vault, pinned_authorities(settings)), max(list_heads(vault).sizes, default=0)


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
            pool, await asyncio.to_thread(row_key, database), now, public_keys=public_keys_of(settings), within_s=CHECK_S,
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
    key = row_key(Database(pool.conninfo, settings))
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
            await _drain(settings, pool)
        ledger = await stack.enter_async_context(open_ledger(database))
        eraser = await stack.enter_async_context(open_eraser_within(database, PATIENCE_S))
        yield eraser, OperatorEvents(lambda: nullcontext(ledger), now, uuid4)


@asynccontextmanager
async def open_holds(database: Database) -> AsyncIterator[Holds]:
    async with databases.open_lazily(database.url, ARCHIVER, size_max=1, wait_s=CHECK_S) as pool:
        yield Holds(pool, await asyncio.to_thread(row_key, database), uuid4)


@asynccontextmanager
async def open_listed_holds(database: Database) -> AsyncIterator[ListedHolds]:
    async with databases.open_lazily(database.url, AUDITOR, size_max=1, wait_s=CHECK_S) as pool:
        yield ListedHolds(pool)


async def reads_waiting_of(database: Database) -> Backlog:
    return Backlog(*(await database.read(AUDITOR, READS_WAITING))[1][0])


async def hold_doubts_of(database: Database) -> list[str]:
    """Holds that are not as the log's records of them say, as far as these are in the database."""
    if not public_keys_file(database.settings).exists():
        return []
    tables = await asyncio.to_thread(_hold_tables, database)
    return hold_doubts(tables, await asyncio.to_thread(known_keys, database))


def _hold_tables(database: Database) -> HoldTables:
    with reading(database.url, AUDITOR) as connection:
        connection.autocommit = True
        return read_hold_tables(connection)


async def drain_spool(settings: Settings, database: Database, folder: Path) -> list[SpoolFile]:
    """Writes the records of dead processes that wait in this folder into the database, and closes what they left open.

    Returns the files that are left: those of living processes, and the dead letters.
    """
    here = settings.audit.model_copy(update={"spool_dir": str(folder.absolute())})
    async with database.pool("affidavit_engine", has_autocommit=True) as pool:
        await _drain(settings.model_copy(update={"audit": here}), pool)
    return spool_files(folder)


async def _drain(settings: Settings, pool: AsyncConnectionPool) -> None:
    draining = ledger_of(settings, pool)
    try:
        await draining.start()
    finally:
        await draining.stop()


@asynccontextmanager
async def open_eraser_within(database: Database, within_s: float) -> AsyncIterator[Eraser]:
    settings = database.settings
    wait_s = settings.budget.audit_s
    async with databases.open_lazily(
        database.url, ARCHIVER, size_max=ERASER_CONNECTIONS, wait_s=wait_s
    ) as pool:
        eraser = Eraser(
            pool, await asyncio.to_thread(row_key, database), public_keys_of(settings), _spool_folder(settings), within_s=within_s,
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
    from audit.archive.packing import Packers

    database.check_schema()
    return Archiver(
        connect=partial(databases.changing, database.url, ARCHIVER),
        reading=partial(reading, database.url, ARCHIVER),
        vault=vault_of(settings),
        key=head_key(database),
        public_keys=partial(known_keys, database, ARCHIVER),
        seal=partial(try_seal, settings, database),
        event=operator_events_of(database).event,
        folder=settings.data_dir / "archiving",
        warm=timedelta(days=settings.audit.warm_days),
        grace=timedelta(days=settings.archive.grace_days),
        code_version=version("affidavit"),
        clock=now,
        progress=progress,
        say=say,
        packers=Packers(databases.as_role(database.url, ARCHIVER), cores.usable()),
        with_copy=settings.archive.parquet,
    )


async def try_seal(settings: Settings, database: Database) -> bool:
    """Seals the committed rows. False if this login lacks the right to."""
    try:
        async with open_sealer(settings, database) as sealer:
            await sealer.seal_once()
    except ConfigurationError:
        return False
    return True


async def set_aside(
    database: Database, basis: str, keep: Callable[[list[dict[str, Any]]], object] = lambda _: None
) -> list[dict[str, Any]]:
    """Take what the engine did not sign out of the log, in one transaction with its event; returns it as it was.

    `keep` gets it before: only the operator's copy has all of it afterwards, so without one nothing is taken.
    """
    keys = await asyncio.to_thread(known_keys, database, ARCHIVER)
    async with (
        databases.changing(database.url, ARCHIVER) as connection,
        connection.transaction(),
        refusing_held(),
    ):
        rows = await rows_not_ours(connection, keys)
        opened = [log_id for _, log_id in await forged_open(connection, keys)]
        if not rows and not opened:
            return []
        ((login,),) = await (await connection.execute("SELECT session_user::text")).fetchall()
        access = Access(
            login, "rows that the engine did not sign", PERSONAL, "operator", basis, None, len(rows)
        )
        event = operator_events_of(database).event("audit set-aside", basis=basis, access=access.as_details())
        async with event as trail:
            taken = await put_aside(connection, rows, opened, trail.log_id)
            keep(taken)
            trail.reason = f"{len(taken)} rows that the engine did not sign"
    return taken


@asynccontextmanager
async def refusing_held() -> AsyncIterator[None]:
    try:
        yield
    except psycopg.Error as failure:
        if failure.sqlstate == HELD:
            raise HeldError(
                "A hold covers some of these rows, so none was set aside. They stay as evidence until it is released:"
                " see `affidavit audit hold list`."
            ) from None
        raise


@contextmanager
def open_evidence(settings: Settings, database: Database, period: Period) -> Iterator[StoredEvidence]:
    """The evidence for a verifier, read in the auditor's role."""
    address = databases.as_role(database.url, AUDITOR)
    with reading(database.url, AUDITOR) as connection, RangeJudges(address, cores.usable()) as judges:
        evidence = StoredEvidence(connection, vault_of(settings), period, now(), judges)
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
        prover = Prover(pool)
        try:
            yield prover
        finally:
            await prover.close()


@asynccontextmanager
async def open_finder(database: Database) -> AsyncIterator[Finder]:
    """At a terminal, where nobody waits for a page: it looks through all that it may."""
    async with databases.open_lazily(database.url, AUDITOR, size_max=1, wait_s=CHECK_S) as pool:
        yield Finder(pool, now().date(), budget_s=database.settings.audit.query_s)


async def make_months_ahead(database: Database, today: date) -> list[str]:
    async with database.pool("affidavit_engine") as pool:
        return await partitions.make_months_ahead(pool, today, database.settings.audit.clock_behind_max)


async def make_months(database: Database, since: date, today: date) -> list[str]:
    async with database.pool("affidavit_engine") as pool:
        return await partitions.make_months(pool, since, today)


async def build_search_indexes(database: Database, today: date) -> list[date]:
    """Of the months that are over. It takes some minutes for a million records, and delays nobody."""
    async with databases.changing(database.url, OWNER) as connection:
        return await word_index.build_missing(connection, today)


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
    settings: Settings,
    database: Database,
    pool: AsyncConnectionPool,
    sealer: Sealer | None,
    stamper: Stamper | None,
) -> LogGauges:
    refused_rows = len(sealer.admission.refused) if sealer else None
    spool, left_s = _spool_folder(settings), signing_s(database)
    gauges = await read_log_gauges(pool, database.read, spool, now().date(), refused_rows, left_s)
    return replace(gauges, time_stamp_age_s=stamper.age_s if stamper else None)


def identity_doubts_of(database: Database) -> list[str]:
    """None if there is no file of public keys to compare with."""
    if not public_keys_file(database.settings).exists():
        return []
    with psycopg.connect(database.url) as connection:
        return identity_doubts(connection, vault_of(database.settings), public_keys_of(database.settings)())


async def key_doubts_of(database: Database) -> list[str]:
    """API keys that are not as the log's records of them say, as far as these are in the database and can be checked."""
    if not public_keys_file(database.settings).exists():
        return []
    _, rows = await database.read(AUDITOR, _KEY_RECORDS)
    _, archived = await database.read(
        AUDITOR, "SELECT DISTINCT month FROM audit_archives WHERE state <> 'frozen'"
    )
    public = await asyncio.to_thread(known_keys, database)
    records = [
        KeyRecord(*said)
        for log_id, leaf, signature, *said in rows
        if is_row_signed(signature, log_id, leaf, said[3], public)  # its timestamp
    ]
    async with open_keys(database) as keys:
        stored = await keys.stored()
    return unexplained(stored, records, frozenset(month for (month,) in archived))


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


@contextmanager
def open_sealed_rows(
    settings: Settings, database: Database, since: date | None, *, is_open: bool
) -> Iterator["SealedRows"]:
    """Sealed rows of all tiers, in the auditor's role. Personal data of archives needs the keys that the archiver's role reads."""
    from audit.export.sealed_rows import SealedRows

    with ExitStack() as stack:
        connection = stack.enter_context(reading(database.url, AUDITOR))
        connection.autocommit = True
        keys = row_keys_of(database, stack) if is_open else _no_keys
        yield SealedRows(connection, partial(_archived_rows, connection, vault_of(settings), keys), since)


def sealed_rows_of(connection: psycopg.Connection, vault: Vault) -> Callable[[date], Iterator[Row]]:
    """Reads archived months, without their personal columns."""
    return partial(_archived_rows, connection, vault, _no_keys)


def row_keys_of(database: Database, stack: ExitStack) -> "RowKeys":
    """The keys of archived rows, in the archiver's role: asked for only where there are some, because an auditor lacks that role."""
    opened = list[psycopg.Connection]()

    def read(log_ids: Sequence[str]) -> Mapping[str, bytes]:
        if not opened:
            opened.append(stack.enter_context(reading(database.url, ARCHIVER)))
        return read_row_keys(opened[0], log_ids)

    return read


def _no_keys(_: Sequence[str]) -> Mapping[str, bytes]:
    return {}


def _archived_rows(
    connection: psycopg.Connection, vault: Vault, keys: "RowKeys", month: date
) -> Iterator[Row]:
    from audit.archive.reader import read_rows

    place = connection.execute(_MANIFEST, (month,)).fetchone()
    if place is None:
        raise DeliveryError(
            f"The rows of {month:%Y-%m} are in no table of the log and in no verified archive. Run `affidavit audit verify`."
        )
    manifest = read_manifest(vault, *place)
    for batch in read_rows(vault, manifest, keys, lambda *_: None):
        for row, _ in batch:
            yield row
