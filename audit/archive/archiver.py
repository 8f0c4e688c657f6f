"""The archiver: brings closed months into the vault, one step after the other, and back on demand.

    frozen    no row comes to the month any more; all are sealed and anchored, and each has the key of its personal columns
    uploaded  the month's files are in the vault, each as one version that cannot be deleted
    verified  they were read back by their versions, and hold all that the table holds
    detached  the table is out of the log, and nobody reads it
    dropped   it is gone; the archive was read back once more right before
    restored  the month is in the log again, as it was, until it is sent away again

Each step is done, then recorded: as an event of the log, then in `audit_archives`. Whoever is killed in between finds the
step half done or done, and does it again, which changes nothing. So each row is at every moment in a table or in a verified
archive. One archiver at a time works on a month; its statements go over the connection that holds the month's lock, so
whoever loses that stops.
"""

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from hashlib import file_digest, sha256
from pathlib import Path

import psycopg
from psycopg import AsyncConnection

from audit.archive import month_table
from audit.archive.export import export
from audit.archive.month_table import Again, ManifestPlace, Month
from audit.archive.verify import read_rows, verify_archive
from audit.checking.evidence import next_month
from audit.errors import (
    ArchiveError,
    ExportError,
    LedgerUnavailableError,
    MonthNotReadyError,
    VaultError,
    WorkerEndedError,
)
from audit.progress import Progress
from audit.proof.archive_format import MANIFEST, Manifest, object_key, open_manifest, sign_manifest
from audit.proof.keys import PublicKey, SigningKey
from audit.proof.record import Row, bytes_of, leaf_hash
from audit.proof.verdict import Report, Verdict
from audit.vault import Stored, Vault

CLOSED_FOR = timedelta(days=1)  # what waits in a spool at the end of a month has arrived by then
SEALER_S = 60.0  # a sealer that runs needs seconds
SEALER_PAUSE_S = 1.0
SOUND = {Verdict.VALID, Verdict.ERASED}
NOT_VERIFIED = {None, "frozen", "uploaded"}
_TROUBLES = (
    MonthNotReadyError, VaultError, ArchiveError, ExportError, WorkerEndedError, FileNotFoundError, LedgerUnavailableError,
)  # fmt: skip
EMPTY = "has no records, and stays as it is"

Event = Callable[..., AbstractAsyncContextManager[object]]


@dataclass(frozen=True, slots=True)
class MonthOutcome:
    """What became of a month: a line of the report."""

    month: str
    rows: int
    state: str
    words: str
    is_well: bool = True


@dataclass(frozen=True, slots=True)
class Archiver:
    """Who runs it must be let in as the archiver, and become the owner of the log's tables."""

    connect: Callable[[], AbstractAsyncContextManager[AsyncConnection]]
    reading: Callable[[], AbstractContextManager[psycopg.Connection]]  # for long readings, in a thread
    vault: Vault
    key: SigningKey
    public_keys: Callable[[], Sequence[PublicKey]]
    seal: Callable[[], Awaitable[bool]]  # whether it may; else another process seals
    event: Event
    folder: Path  # for the files on their way; what is personal in them is encrypted
    warm: timedelta
    grace: timedelta
    code_version: str
    clock: Callable[[], datetime]
    progress: Progress
    say: Callable[[str], None]

    async def archive(self, before: date | None) -> list[MonthOutcome]:
        """Bring every month that is old enough, or was begun, as far as it may go."""
        async with self.connect() as connection:
            months = await month_table.months(connection)
            # The rows of these are hidden until an interrupted detach has ended.
            hidden = [month for month in months if month.is_pending]
            healed = [await self._alone(connection, month.month, _nothing) for month in hidden]
            done = [
                await self._alone(connection, month.month, self._advance)
                for month in months
                if self._is_due(month, before)
            ]
            return [*(outcome for outcome in healed if not outcome.is_well), *done]

    async def rehearse(self, before: date | None) -> list[MonthOutcome]:
        """The same months, and what would be done with them. Changes nothing."""
        async with self.connect() as connection:
            months = await month_table.months(connection)
            return [
                await self._foreseen(connection, month) for month in months if self._is_due(month, before)
            ]

    async def restore(self, month: date) -> MonthOutcome:
        """Bring an archived month back into the log, to be read and nothing else."""
        async with self.connect() as connection:
            return await self._alone(connection, month, self._restore)

    async def end(self, month: date) -> MonthOutcome:
        """Send a restored month away again."""
        async with self.connect() as connection:
            return await self._alone(connection, month, self._end)

    async def _alone(
        self,
        connection: AsyncConnection,
        month: date,
        work: Callable[[AsyncConnection, Month], Awaitable[str]],
    ) -> MonthOutcome:
        """What hinders one month does not hinder the next one."""
        async with month_table.locked(connection, month) as is_ours:
            if not is_ours:
                return _outcome(await month_table.look(connection, month), "another archiver works on it")
            try:
                await self._heal(connection, await month_table.look(connection, month))
                words, is_well = await work(connection, await month_table.look(connection, month)), True
            except _TROUBLES as trouble:
                words, is_well = str(trouble), False
            return _outcome(await month_table.look(connection, month), words, is_well=is_well)

    async def _heal(self, connection: AsyncConnection, month: Month) -> None:
        """An interrupted detach hides the rows of its month and must end; and none is out of the log without its archive."""
        if month.is_pending:
            await month_table.detach(connection, month)
        is_out = month.is_pending or (month.table and not month.is_attached)
        if is_out and month.state in NOT_VERIFIED | {"restored"}:
            await month_table.attach(connection, month)

    def _is_due(self, month: Month, before: date | None) -> bool:
        if month.state == "restored" or (month.state == "dropped" and not month.table):
            return False
        if before is not None and month.month >= before:
            return False
        if month.state is not None:
            return True
        age = timedelta() if before else self.warm
        return next_month(month.month) <= (self.clock() - max(age, CLOSED_FOR)).date()

    async def _advance(self, connection: AsyncConnection, month: Month) -> str:
        if month.state is None and not await self._has_rows(connection, month):
            return EMPTY
        while (step := self._next(month)) is not None:
            await step(connection, month)
            month = await month_table.look(connection, month.month)
        return self._left(month)

    def _next(self, month: Month) -> Callable[[AsyncConnection, Month], Awaitable[None]] | None:
        if month.state in {"detached", "dropped"} and month.table:
            if month.is_attached or month.state == "dropped":  # a restore was interrupted
                return self._detach
            return self._drop if self._dropped_from(month) <= self.clock() else None
        return {
            None: self._freeze,
            "frozen": self._upload,
            "uploaded": self._verify,
            "verified": self._detach,
            "detached": self._drop,
        }.get(month.state)

    async def _freeze(self, connection: AsyncConnection, month: Month) -> None:
        if not month.is_attached:
            raise MonthNotReadyError("its table is gone; see `affidavit audit verify`")
        await self._await_sealer(connection, month)
        async with self.event("audit archive", month=str(month), step="frozen"):
            rows = await month_table.freeze(connection, month)
        await month_table.record(connection, month.month, "frozen", rows, None)

    async def _await_sealer(self, connection: AsyncConnection, month: Month) -> None:
        """Done here if this login may; else it is the work of another process."""
        if (await month_table.count(connection, month.month)).is_sealed or await self.seal():
            return
        self.say(f"{month} waits for the sealer, which is another process …")
        until = time.monotonic() + SEALER_S
        while time.monotonic() < until:
            if (await month_table.count(connection, month.month)).is_sealed:
                return
            await asyncio.sleep(SEALER_PAUSE_S)

    async def _upload(self, connection: AsyncConnection, month: Month) -> None:
        async with self.event("audit archive", month=str(month), step="uploaded"):
            place = await asyncio.to_thread(self._uploaded, month)
        await month_table.record(connection, month.month, "uploaded", month.rows, place)

    async def _verify(self, connection: AsyncConnection, month: Month) -> None:
        async with self.event("audit archive", month=str(month), step="verified"):
            await self._prove(connection, month)
        await month_table.record(connection, month.month, "verified", month.rows, month.manifest)

    async def _detach(
        self, connection: AsyncConnection, month: Month, command: str = "audit archive"
    ) -> None:
        async with self.event(command, month=str(month), step="detached"):
            if month.table:
                await month_table.compare(connection, month, (await self._manifest(month)).root)
            await month_table.detach(connection, month)
        await month_table.record(connection, month.month, "detached", month.rows, month.manifest)

    async def _drop(self, connection: AsyncConnection, month: Month) -> None:
        """The archive may have been verified long ago, and this cannot be undone: so it is read once more."""
        async with self.event("audit archive", month=str(month), step="dropped"):
            if month.table:
                await self._prove(connection, month)
                await month_table.drop(connection, month)
        await month_table.record(connection, month.month, "dropped", month.rows, month.manifest)

    async def _restore(self, connection: AsyncConnection, month: Month) -> str:
        if month.state == "restored" and month.is_attached:
            return "is restored already"
        if month.state in NOT_VERIFIED or (month.state == "verified" and month.is_attached):
            where = "in the log" if month.table else "nowhere: there is no such month"
            raise MonthNotReadyError(f"its records are {where}, so there is nothing to restore")
        async with self.event("audit restore", month=str(month), step="restored"):
            await self._bring_back(connection, month)
        await month_table.record(connection, month.month, "restored", month.rows, month.manifest)
        return "can be read in the log; `affidavit audit restore --end` sends it away again"

    async def _bring_back(self, connection: AsyncConnection, month: Month) -> None:
        if not month.table:
            await self._rebuild(connection, month)
        elif not month.is_attached:
            await month_table.compare(connection, month, (await self._manifest(month)).root)
            await month_table.attach(connection, month)

    async def _rebuild(self, connection: AsyncConnection, month: Month) -> None:
        """From the evidence. Nobody is erased while it is compared: who was before then has no key, and stops this."""
        await self._prove_archive(month)
        root = (await self._manifest(month)).root
        async with (
            month_table.rebuilding(connection, month) as rebuilt,
            aclosing(self._read_rows(month)) as pieces,
        ):
            async for rows in pieces:
                await month_table.fill(connection, rebuilt, rows)
            await month_table.hold_erasures(connection)
            await month_table.compare(connection, rebuilt, root)

    async def _end(self, connection: AsyncConnection, month: Month) -> str:
        if month.state != "restored":
            raise MonthNotReadyError("it is not restored")
        await self._detach(connection, month, "audit restore --end")
        return await self._advance(connection, await month_table.look(connection, month.month))

    async def _prove(self, connection: AsyncConnection, month: Month) -> None:
        """The archive is whole, opens, and holds all that the table holds."""
        await self._prove_archive(month)
        await month_table.compare(connection, month, (await self._manifest(month)).root)

    async def _prove_archive(self, month: Month) -> None:
        await self._manifest(month)
        report = await asyncio.to_thread(self._report, month)
        if report.verdict not in SOUND:
            raise ArchiveError(f"its archive is not whole, so nothing was removed. {report}")

    def _report(self, month: Month) -> Report:
        assert month.manifest
        with self.reading() as reading:
            return verify_archive(
                self.vault, month.manifest.key, month.manifest.version, self.public_keys(),
                lambda log_ids: month_table.read_row_keys(reading, log_ids), self.progress,
            )  # fmt: skip

    async def _manifest(self, month: Month) -> Manifest:
        """As it was when the month was uploaded: by its version, its digest and its signature."""
        place = month.manifest
        assert place
        try:
            content = await asyncio.to_thread(self.vault.get, place.key, place.version)
        except (OSError, ValueError) as wrong:  # the latter: it is no key of a vault
            raise ArchiveError(f"its manifest cannot be read, so nothing was removed: {wrong}") from None
        found = open_manifest(content)
        if sha256(content).hexdigest() != place.sha256 or not found.is_signed_by(self.public_keys()):
            raise ArchiveError(
                "its manifest in the vault is not the one that was written, so nothing was removed"
            )
        if (found.month, found.rows) != (month.month, month.rows):
            raise ArchiveError(f"its manifest is of {found.rows} records of {found.month:%Y-%m}")
        return found

    def _uploaded(self, month: Month) -> ManifestPlace:
        folder = self.folder / str(month)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        try:
            with self.reading() as reading:
                exported = export(
                    reading, month.month, folder, public_keys=self.public_keys(),
                    code_version=self.code_version, progress=self.progress,
                )  # fmt: skip
            files = {name: self._put(month, name, path) for name, path in exported.files.items()}
            path = folder / MANIFEST
            path.write_bytes(sign_manifest(exported, files, self.key))
            stored = self._put(month, MANIFEST, path)
        finally:
            shutil.rmtree(folder)
        return ManifestPlace(stored.key, stored.version, stored.sha256)

    def _put(self, month: Month, name: str, path: Path) -> Stored:
        with path.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        return self.vault.put_file(object_key(month.month, name, digest), path)

    async def _read_rows(self, month: Month) -> AsyncGenerator[Sequence[Again]]:
        found = await self._manifest(month)
        with self.reading() as reading:
            pieces = read_rows(
                self.vault, found, lambda log_ids: month_table.read_row_keys(reading, log_ids), self.progress
            )
            while piece := await asyncio.to_thread(next, pieces, None):
                yield [Again(_checked(row), stands_for) for row, stands_for in piece]

    async def _has_rows(self, connection: AsyncConnection, month: Month) -> bool:
        now = await month_table.count(connection, month.month)
        return bool(now.rows or now.leaves)

    async def _foreseen(self, connection: AsyncConnection, month: Month) -> MonthOutcome:
        if month.state is not None:
            return _outcome(month, self._left(month) if self._next(month) is None else "would go on")
        now = await month_table.count(connection, month.month)
        if not (now.rows or now.leaves):
            return _outcome(month, EMPTY)
        if now.is_sealed and now.trouble:
            return _outcome(month, f"not now: {now.trouble}", is_well=False)
        words = "would be archived" if now.is_sealed else "would be sealed, then archived"
        return _outcome(replace(month, rows=now.rows), words)

    def _left(self, month: Month) -> str:
        if month.state == "detached":
            return f"is in the vault; its table is dropped from {self._dropped_from(month):%Y-%m-%d} on"
        return "is in the vault"

    def _dropped_from(self, month: Month) -> datetime:
        assert month.since
        return month.since + self.grace


def _checked(row: Row) -> Row:
    """Every leaf is computed from what will stand in the table; of a row without a salt its commitments are all there is."""
    if row.get("salt") and leaf_hash(row) != bytes_of(row["leaf_hash"]):
        raise ArchiveError(f"the record {row['log_id']} in the archive is not what was sealed")
    return row


async def _nothing(_: AsyncConnection, __: Month) -> str:
    return ""


def _outcome(month: Month, words: str, *, is_well: bool = True) -> MonthOutcome:
    return MonthOutcome(str(month), month.rows, month.state or "open", words, is_well)
