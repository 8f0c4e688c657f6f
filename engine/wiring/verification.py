"""Verifies the whole log: for the command, and for the console in a process of its own, so that no reader waits for it."""

import asyncio
import json
import logging
import os
import pickle
import stat
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

import psycopg
from psycopg_pool import AsyncConnectionPool

from audit import worker
from audit.checking.evidence import Period, StoredEvidence
from audit.checking.inspection import inspect
from audit.checking.resumption import Resumption, about
from audit.checking.stamp_check import check_stamps
from audit.coverage.verifications import COMMAND, VerificationRun, reason_of
from audit.definitions.comparison import check_with
from audit.errors import AuditError, WorkerEndedError
from audit.heads.inspection import Watch
from audit.progress import Progress
from audit.proof.keys import PublicKey
from audit.proof.record import Trail
from audit.proof.verdict import Report
from engine.admission.operator_events import OperatorEvents
from engine.errors import AffidavitError, ConfigurationError
from engine.storage.database import AUDITOR, Database, borrowed
from engine.wiring.audit_log import (
    open_evidence,
    operator_events_of,
    shipped_definitions,
    stamp_rules_of,
)
from engine.wiring.providers import FROM_ENVIRONMENT

PROCESS = "engine.wiring.verifying"
SILENT_S = 30.0  # a run whose process has said nothing for so long is over
TOLD_EVERY_S = 1.0
RUN_S = 24 * 3600.0
RECORD_PAUSES_S = (1.0, 5.0, 15.0, *[30.0] * 8)  # what took hours to find is worth some minutes

# Two that begin at once do not see each other's row. No reader can take this lock.
_ALONE = "LOCK TABLE verification_runs IN SHARE ROW EXCLUSIVE MODE"
_BEGIN = """
INSERT INTO verification_runs (run_id, asked_by)
SELECT %s, %s WHERE NOT EXISTS (
    SELECT FROM verification_runs WHERE ended_at IS NULL AND seen_at > now() - make_interval(secs => %s))
"""
_TELL = "UPDATE verification_runs SET seen_at = now(), what = %s, done = %s, total = %s WHERE run_id = %s"
_END = "UPDATE verification_runs SET seen_at = now(), ended_at = now(), log_id = %s, logged_at = %s WHERE run_id = %s"
_ENDED = "INSERT INTO verification_runs (run_id, begun_at, ended_at, log_id, logged_at) VALUES (%s, %s, now(), %s, %s)"
# The one that is under way, else the last that ended. A dead one is neither.
_NEWEST = """
SELECT r.begun_at, r.asked_by, r.ended_at IS NULL, r.what, r.done, r.total, r.ended_at, r.log_id::text,
       (SELECT details FROM audit_logs l WHERE l.log_id = r.log_id AND l.timestamp = r.logged_at)
FROM verification_runs r WHERE r.ended_at IS NOT NULL OR r.seen_at > now() - make_interval(secs => %s)
ORDER BY r.ended_at IS NULL DESC, r.begun_at DESC LIMIT 1
"""

_IS_ALIVE = """
SELECT EXISTS (SELECT FROM audit_logs WHERE endpoint = 'heartbeat' AND timestamp > now() - interval '3 minutes')
"""

Done = TypeVar("Done")
Told = tuple[str, int, int]

log = logging.getLogger(__name__)


def verified(
    database: Database,
    keys: list[PublicKey],
    watch: Watch,
    period: Period,
    show: Progress,
    resumed: Path | None = None,
) -> Report:
    """Everything that can be verified of this period. `watch` was read before: the log grows meanwhile.

    With `resumed`, a file, it goes on where an earlier run was stopped. The file ends with the run.
    """
    rules = stamp_rules_of(database.settings)
    with open_evidence(database.settings, database, period) as evidence:
        resumption = _resumption(resumed, keys, evidence) if resumed else None

        def checked() -> Report:
            report = inspect(evidence, keys, show, watch, resumption)
            if evidence.has_vault:
                check_stamps(evidence.vault, rules, evidence.newest_head(), evidence.now, report)
            return report

        report = check_with(evidence.connection, shipped_definitions(), checked)
    if resumed:
        resumed.unlink(missing_ok=True)
    return report


def _resumption(path: Path, keys: list[PublicKey], evidence: StoredEvidence) -> Resumption:
    """It is believed, so nobody else may be able to write it."""
    content = b""
    if path.exists():
        found = path.stat()
        if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or path.is_symlink():
            raise ConfigurationError(
                f"{path} belongs to somebody else, or others may write it: then they could say what was verified. Name another file"
            )
        content = path.read_bytes()

    def keep(text: bytes) -> None:
        written = path.with_name(f"{path.name}.new")
        written.unlink(missing_ok=True)
        with open(written, "xb", opener=partial(os.open, mode=0o600)) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)

    period = evidence.period
    said = about(keys, sorted(evidence.origins()), period.since, period.until, version("affidavit"))
    return Resumption.of(content, said, evidence.now, keep)


async def record_verification(database: Database, said: dict[str, Any], begun_at: datetime) -> str:
    """Leaves the record of a run by command, and says why if it could not. Where no engine runs it leaves none: the next
    verdict would be that a record is not sealed."""
    try:
        _, ((is_alive,),) = await database.read(AUDITOR, _IS_ALIVE)
        if not is_alive:
            return ""
        async with operator_events_of(database).event(COMMAND, **said) as trail:
            trail.reason = reason_of(said)
        async with database.pool("affidavit_engine", 1) as pool, borrowed(pool) as connection:
            await connection.execute(_ENDED, (uuid4(), begun_at, trail.log_id, trail.timestamp))
    except (AffidavitError, AuditError, psycopg.Error, OSError, TimeoutError):
        return "The verdict is not on record: this login, or this machine, cannot write the log."
    return ""


@dataclass(slots=True)
class BackgroundVerifier:
    """One run at a time, among all processes of the log."""

    database: Database
    pool: AsyncConnectionPool  # of the engine
    reading: AsyncConnectionPool  # of the auditor
    events: OperatorEvents
    _running: asyncio.Task[None] | None = None
    _told: Told | None = None

    async def start(self, client_id: str, key_id: str | None) -> bool:
        if self._running and not self._running.done():
            return False
        run_id = uuid4()
        async with borrowed(self.pool) as connection, connection.transaction():
            await connection.execute(_ALONE)
            begun = await connection.execute(_BEGIN, (run_id, client_id, SILENT_S))
        if not begun.rowcount:
            return False
        self._running = asyncio.create_task(self._run(run_id, client_id, key_id))
        return True

    @property
    def can_start(self) -> bool:
        return True

    async def newest(self) -> VerificationRun | None:
        return await newest_run(self.reading)

    async def close(self) -> None:
        if self._running:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _run(self, run_id: UUID, client_id: str, key_id: str | None) -> None:
        telling = asyncio.create_task(self._tell(run_id))
        said: dict[str, Any] = {"verdict": None}
        try:
            said = await _verified_elsewhere(self.database, self._hear)
            trail = await _persistently(lambda: self._record(client_id, key_id, said))
            await _persistently(lambda: self._end(run_id, trail))
        except Exception as failure:  # noqa: BLE001  nobody awaits this task; a driver's message could repeat a row
            log.error(  # noqa: TRY400
                "The verification ended with the verdict %s, and that is not on record (%s). Verify again.",
                said["verdict"], type(failure).__name__,
            )  # fmt: skip
        finally:
            telling.cancel()
            self._told = None

    async def _record(self, client_id: str, key_id: str | None, said: dict[str, Any]) -> Trail:
        async with self.events.event(COMMAND, client_id=client_id, key_id=key_id, **said) as trail:
            trail.reason = reason_of(said)
        return trail

    async def _end(self, run_id: UUID, trail: Trail) -> None:
        async with borrowed(self.pool) as connection:
            await connection.execute(_END, (trail.log_id, trail.timestamp, run_id))

    def _hear(self, notice: bytes) -> None:
        what, done, total = notice.decode().rsplit(" ", 2)
        self._told = (what, int(done), int(total))

    async def _tell(self, run_id: UUID) -> None:
        while True:
            with suppress(AffidavitError):
                async with borrowed(self.pool) as connection:
                    await connection.execute(_TELL, (*(self._told or ("", 0, 0)), run_id))
            await asyncio.sleep(TOLD_EVERY_S)


async def newest_run(reading: AsyncConnectionPool) -> VerificationRun | None:
    async with borrowed(reading) as connection:
        row = await (await connection.execute(_NEWEST, (SILENT_S,))).fetchone()
    return VerificationRun(*row) if row else None


async def _persistently(attempt: Callable[[], Awaitable[Done]]) -> Done:
    for pause_s in RECORD_PAUSES_S:
        with suppress(AffidavitError, AuditError, psycopg.Error, OSError, TimeoutError):
            return await attempt()
        await asyncio.sleep(pause_s)
    return await attempt()


async def _verified_elsewhere(database: Database, hear: Callable[[bytes], object]) -> dict[str, Any]:
    process = worker.Worker(worker.command(PROCESS), env=worker.environment(*FROM_ENVIRONMENT))
    thread = ThreadPoolExecutor(1, "verification")  # it waits for hours; the threads of all are readers'
    ask = partial(process.request, b"", pickle.dumps(database), deadline_s=RUN_S, hear=hear)
    try:
        _, said = await asyncio.get_running_loop().run_in_executor(thread, ask)
        return json.loads(said)  # type: ignore[no-any-return]
    except WorkerEndedError:
        return {"verdict": None, "failed": "The process that verified ended before it was done."}
    finally:
        process.end()
        thread.shutdown(wait=False)
