"""State machine of the archive: moves closed months into the vault, one idempotent step at a time, and back on demand.

    frozen    the month takes no more rows; all are sealed and anchored, and each has a key for its personal columns
    uploaded  the month's files are in the vault, each as one version that cannot be deleted
    verified  the files were read back by their versions, and contain all that the table contains
    detached  the table is no longer part of the log, and no query reads it
    dropped   the table is gone; the archive was verified once more right before
    restored  the month is in the log again, as it was, until the restore is ended

Each step is done first and then recorded: as an event of the log, and in `audit_archives`. After a crash the step is
repeated, which is safe because it is idempotent. So at every moment each row is in a table or in a verified archive. A
claim admits one archiver for each month. Its statements use the connection that holds the claim, so an archiver that
loses it stops.
"""

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime, timedelta
from functools import partial
from hashlib import file_digest, sha256
from pathlib import Path

import psycopg
from psycopg import AsyncConnection

from audit import errors
from audit.archive import month_table
from audit.archive.export import export
from audit.archive.month_table import ManifestPlace, Month, RestoredRow, State
from audit.archive.packing import HERE, Packers
from audit.archive.reader import read_rows
from audit.archive.verify import verify_archive, verify_stored
from audit.errors import ArchiveError, HeldError, MonthNotReadyError
from audit.ledger.partitions import next_month
from audit.progress import Progress
from audit.proof import archive_format
from audit.proof.archive_format import MANIFEST, Manifest, StoredFile
from audit.proof.keys import HeadSigner, PublicKey
from audit.proof.record import Row, bytes_of, leaf_hash
from audit.proof.verdict import WHOLE, Report
from audit.sealing.forged_rows import forged_open, rows_not_ours
from audit.vault import Vault
from audit.vault_owner import check_vault

CLOSED_FOR = timedelta(days=1)  # by then, entries spooled at the end of a month have arrived
SEALER_S = 60.0  # a running sealer needs seconds
SEALER_PAUSE_S = 1.0
NOT_VERIFIED = {None, "frozen", "uploaded"}
_EXPECTED = (
    MonthNotReadyError, ArchiveError, FileNotFoundError, errors.VaultError, errors.ExportError, errors.WorkerEndedError,
    errors.LedgerUnavailableError,
)  # fmt: skip
EMPTY = "has no records, so nothing was done"
STAYS = "is in the vault; its table stays until the holds on its records are released"

Event = Callable[..., AbstractAsyncContextManager[object]]


@dataclass(frozen=True, slots=True)
class MonthOutcome:
    month: str
    rows: int
    state: str
    words: str
    is_well: bool = True


@dataclass(frozen=True, slots=True)
class Archiver:
    """Runs the state machine. Its login must have the archiver's role, and may switch to the owner of the log's tables."""

    connect: Callable[[], AbstractAsyncContextManager[AsyncConnection]]
    reading: Callable[[], AbstractContextManager[psycopg.Connection]]  # for long reads, in a thread
    vault: Vault
    key: HeadSigner
    public_keys: Callable[[], Sequence[PublicKey]]
    seal: Callable[[], Awaitable[bool]]  # False if this login must not, because another process seals
    event: Event
    folder: Path  # for temporary files; personal columns in them are encrypted
    warm: timedelta
    grace: timedelta
    code_version: str
    clock: Callable[[], datetime]
    progress: Progress
    say: Callable[[str], None]
    packers: Packers = HERE
    with_copy: bool = False  # Parquet beside the evidence

    async def archive(self, before: date | None) -> list[MonthOutcome]:
        """Advance every month that is old enough, or already begun, as far as possible."""
        async with self.connect() as connection:
            months = await month_table.list_months(connection)
            # An interrupted detach hides the rows of its month until it is finished.
            hidden = [month for month in months if month.is_pending]
            repaired = [await self._with_lock(connection, month.month, _do_nothing) for month in hidden]
            due = [month for month in months if self._is_due(month, before)]
            done = [await self._with_lock(connection, month.month, self._advance) for month in due]
            return [*(outcome for outcome in repaired if not outcome.is_well), *done]

    async def dry_run(self, before: date | None) -> list[MonthOutcome]:
        """Dry run: the same months, and the step that each would take. Changes nothing."""
        async with self.connect() as connection:
            months = await month_table.list_months(connection)
            due = [month for month in months if self._is_due(month, before)]
            return [await self._forecast(connection, month) for month in due]

    async def restore(self, month: date) -> MonthOutcome:
        """Bring an archived month back into the log, read-only."""
        async with self.connect() as connection:
            return await self._with_lock(connection, month, self._restore)

    async def end_restore(self, month: date) -> MonthOutcome:
        async with self.connect() as connection:
            return await self._with_lock(connection, month, self._end)

    async def _with_lock(
        self,
        connection: AsyncConnection,
        month: date,
        work: Callable[[AsyncConnection, Month], Awaitable[str]],
    ) -> MonthOutcome:
        """Run the work under the month's lock. A failure is that month's outcome and does not stop the others."""
        async with month_table.lock(connection, month) as is_locked:
            if not is_locked:
                busy = await month_table.read_month(connection, month)
                return _outcome(busy, "another archiver is working on it")
            try:
                await self._repair(connection, await month_table.read_month(connection, month))
                words, is_well = await work(connection, await month_table.read_month(connection, month)), True
            except HeldError:
                words, is_well = STAYS, True
            except _EXPECTED as failure:
                words, is_well = str(failure), False
            return _outcome(await month_table.read_month(connection, month), words, is_well=is_well)

    async def _repair(self, connection: AsyncConnection, month: Month) -> None:
        """Finish an interrupted detach, and attach a month again that is out of the log without a verified archive."""
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
        if month.state is None and (await month_table.count(connection, month.month)).is_empty:
            return EMPTY
        await check_vault(connection, self.vault)
        if month.table:
            await self._check_ours(connection, month)
        while (step := self._next(month)) is not None:
            await step(connection, month)
            month = await month_table.read_month(connection, month.month)
        return self._describe(month)

    async def _check_ours(self, connection: AsyncConnection, month: Month) -> None:
        """What the engine did not sign is never sealed, so no wait would end."""
        keys = self.public_keys()
        forged = [row.log_id for row in await rows_not_ours(connection, keys) if row.month == month.month]
        forged += [log_id for at, log_id in await forged_open(connection, keys) if at == month.month]
        if forged:
            raise MonthNotReadyError(
                f"{len(forged)} of its records were not signed by the engine, the first is {forged[0]}: find out who else can write"
                " to the database, then take them out of the log with `affidavit audit set-aside`"
            )

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
            raise MonthNotReadyError("its table is missing; run `affidavit audit verify`")
        await self._wait_for_sealer(connection, month)
        async with self.event("audit archive", month=str(month), step="frozen"):
            rows = await month_table.freeze(connection, month)
        await month_table.record_step(connection, month.month, "frozen", rows, None)

    async def _wait_for_sealer(self, connection: AsyncConnection, month: Month) -> None:
        """Seal here if this login may, else wait for the sealer in another process."""
        if (await month_table.count(connection, month.month)).is_sealed or await self.seal():
            return
        self.say(f"{month}: waiting for the sealer in another process …")
        until = time.monotonic() + SEALER_S
        while time.monotonic() < until:
            if (await month_table.count(connection, month.month)).is_sealed:
                return
            await asyncio.sleep(SEALER_PAUSE_S)

    async def _upload(self, connection: AsyncConnection, month: Month) -> None:
        async with self.event("audit archive", month=str(month), step="uploaded"):
            place = await asyncio.to_thread(self._export_and_upload, month)
        await month_table.record_step(connection, month.month, "uploaded", month.rows, place)

    @asynccontextmanager
    async def _step(
        self, connection: AsyncConnection, month: Month, state: State, command: str = "audit archive"
    ) -> AsyncIterator[None]:
        """One step of a month whose files are in the vault, done in the block and then recorded."""
        async with self.event(command, month=str(month), step=state):
            yield
        await month_table.record_step(connection, month.month, state, month.rows, month.manifest)

    async def _verify(self, connection: AsyncConnection, month: Month) -> None:
        async with self._step(connection, month, "verified"):
            await self._prove(connection, month)

    async def _detach(
        self, connection: AsyncConnection, month: Month, command: str = "audit archive"
    ) -> None:
        async with self._step(connection, month, "detached", command):
            if month.table:
                await month_table.compare(connection, month, (await self._manifest(month)).root)
            await month_table.detach(connection, month)

    async def _drop(self, connection: AsyncConnection, month: Month) -> None:
        """Verify once more before the drop: the last verification may be old, and a drop cannot be undone."""
        async with self._step(connection, month, "dropped"):
            if month.table:
                if await month_table.is_held(connection, month):
                    raise HeldError(STAYS)
                await self._prove(connection, month)
                await month_table.drop(connection, month)

    async def _restore(self, connection: AsyncConnection, month: Month) -> str:
        if month.state == "restored" and month.is_attached:
            return "was already restored"
        if month.state in NOT_VERIFIED or (month.state == "verified" and month.is_attached):
            reason = "its records are in the log" if month.table else "the log has no such month"
            raise MonthNotReadyError(f"{reason}, so there is nothing to restore")
        async with self._step(connection, month, "restored", "audit restore"):
            if not month.table:
                await self._rebuild(connection, month)
            elif not month.is_attached:
                await month_table.compare(connection, month, (await self._manifest(month)).root)
                await month_table.attach(connection, month)
        return "can be read in the log until `affidavit audit restore --end`"

    async def _rebuild(self, connection: AsyncConnection, month: Month) -> None:
        """Build the table from the evidence. Erasures are blocked during the comparison, because it fails if a key is lost."""
        manifest = await self._prove_archive(month, self._judge_again)
        async with (
            month_table.rebuilding(connection, month) as rebuilt,
            aclosing(self._read_rows(manifest)) as batches,
        ):
            async for rows in batches:
                await month_table.fill(connection, rebuilt, rows)
            await month_table.block_erasures(connection)
            await month_table.compare(connection, rebuilt, manifest.root)

    async def _end(self, connection: AsyncConnection, month: Month) -> str:
        if month.state != "restored":
            raise MonthNotReadyError("it is not restored")
        await self._detach(connection, month, "audit restore --end")
        return await self._advance(connection, await month_table.read_month(connection, month.month))

    async def _prove(self, connection: AsyncConnection, month: Month) -> None:
        """Prove that the vault holds what was judged as it was written, and that it contains all that the table contains.

        Each record was judged once, against its leaf, while its bytes were written, and its box was opened again. Here the files
        are read back by their versions, and equal digests mean equal bytes. `compare` proves that each box's key is still its own.
        """
        manifest = await self._prove_archive(month, self._read_again)
        await month_table.compare(connection, month, manifest.root)

    async def _prove_archive(self, month: Month, read: Callable[[Month, Manifest], Report]) -> Manifest:
        manifest = await self._manifest(month)
        report = await asyncio.to_thread(read, month, manifest)
        if report.verdict not in WHOLE:
            raise ArchiveError(f"its archive is damaged or incomplete, so nothing was removed. {report}")
        return manifest

    def _read_again(self, month: Month, manifest: Manifest) -> Report:
        """By the digests of whole files; archives of older versions were not judged as they were written."""
        assert month.manifest
        if not manifest.is_judged:
            return self._judge_again(month, manifest)
        place = month.manifest
        return verify_stored(self.vault, place.key, place.version, self.public_keys(), self.progress)

    def _judge_again(self, month: Month, _: Manifest) -> Report:
        """Record by record, with every box opened: nothing but the archive is left to compare with."""
        assert month.manifest
        with self.reading() as reading:
            return verify_archive(
                self.vault, month.manifest.key, month.manifest.version, self.public_keys(),
                partial(month_table.read_row_keys, reading), self.progress,
            )  # fmt: skip

    async def _manifest(self, month: Month) -> Manifest:
        """The manifest that was uploaded: read by its version, checked by digest and signature."""
        place = month.manifest
        assert place
        try:
            content = await asyncio.to_thread(self.vault.get, place.key, place.version)
        except (OSError, ValueError) as wrong:  # ValueError: not a key of a vault
            raise ArchiveError(f"its manifest cannot be read, so nothing was removed: {wrong}") from None
        found = archive_format.open_manifest(content)
        if sha256(content).hexdigest() != place.sha256 or not found.is_signed_by(self.public_keys()):
            raise ArchiveError(
                "its manifest in the vault differs from the one that was written, so nothing was removed"
            )
        if (found.month, found.rows) != (month.month, month.rows):
            raise ArchiveError(f"its manifest is of {found.rows} records of {found.month:%Y-%m}")
        return found

    def _export_and_upload(self, month: Month) -> ManifestPlace:
        folder = self.folder / str(month)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        try:
            with self.reading() as reading:
                exported = export(
                    reading, month.month, folder, public_keys=self.public_keys(),
                    code_version=self.code_version, progress=self.progress, packers=self.packers, with_copy=self.with_copy,
                )  # fmt: skip
            files = {
                name: put(self.vault, month.month, name, path, exported.digests[name])
                for name, path in exported.files.items()
            }
            content = archive_format.sign_manifest(exported, files, self.key)
            (folder / MANIFEST).write_bytes(content)
            digest = sha256(content).hexdigest()
            stored = put(self.vault, month.month, MANIFEST, folder / MANIFEST, digest)
        finally:
            shutil.rmtree(folder)
        return ManifestPlace(stored.key, stored.version, stored.sha256)

    async def _read_rows(self, manifest: Manifest) -> AsyncGenerator[Sequence[RestoredRow]]:
        with self.reading() as reading:
            row_keys = partial(month_table.read_row_keys, reading)
            batches = read_rows(self.vault, manifest, row_keys, self.progress)
            while batch := await asyncio.to_thread(next, batches, None):
                yield [RestoredRow(_check_leaf(row), commitments) for row, commitments in batch]

    async def _forecast(self, connection: AsyncConnection, month: Month) -> MonthOutcome:
        if month.state is not None:
            next_step = "would take its next step"
            return _outcome(month, self._describe(month) if self._next(month) is None else next_step)
        now = await month_table.count(connection, month.month)
        if now.is_empty:
            return _outcome(month, EMPTY)
        if now.is_sealed and now.obstacle:
            return _outcome(month, f"not now: {now.obstacle}", is_well=False)
        words = "would be archived" if now.is_sealed else "would be sealed, then archived"
        return _outcome(replace(month, rows=now.rows), words)

    def _describe(self, month: Month) -> str:
        if month.state == "detached":
            return f"is in the vault; its table is dropped from {self._dropped_from(month):%Y-%m-%d} on"
        return "is in the vault"

    def _dropped_from(self, month: Month) -> datetime:
        assert month.since
        return month.since + self.grace


def put(vault: Vault, month: date, name: str, path: Path, digest: str) -> StoredFile:
    """Store the file, which must still be what was written: it has this digest. A wrong one would stay in the vault."""
    with path.open("rb") as file:
        is_same = file_digest(file, "sha256").hexdigest() == digest
    stored = vault.put_file(archive_format.object_key(month, name, digest), path) if is_same else None
    if stored is None or stored.sha256 != digest:
        raise ArchiveError(
            f"{name} was changed on this machine's disk after it was written, so nothing was removed"
        )
    return StoredFile(**asdict(stored))


def _check_leaf(row: Row) -> Row:
    """Recompute the leaf from the row that will be inserted. A row without a salt has only its commitments to check."""
    if row.get("salt") and leaf_hash(row) != bytes_of(row["leaf_hash"]):
        raise ArchiveError(f"the record {row['log_id']} in the archive differs from what was sealed")
    return row


async def _do_nothing(_: AsyncConnection, __: Month) -> str:
    return ""


def _outcome(month: Month, words: str, *, is_well: bool = True) -> MonthOutcome:
    return MonthOutcome(str(month), month.rows, month.state or "open", words, is_well)
