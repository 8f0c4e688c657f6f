"""The writer of the audit log: a request opens with a durable record and closes with its row.

Each step is on disk before it is acknowledged: in PostgreSQL or, while that is unavailable, in this process's write-ahead
spool, which is drained in order later. If neither takes it, nothing may be answered. A process may die at any moment: each
request still ends in exactly one row, because `orphans.py` closes the open ones.
"""

import asyncio
import base64
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from audit.errors import (
    ClockBehindError,
    LedgerUnavailableError,
    NoSigningKeyError,
    PermanentWriteError,
    TransientWriteError,
    WithdrawnError,
)  # fmt: skip
from audit.ledger import partitions
from audit.ledger import spool as spools
from audit.ledger.database_writer import DatabaseWriter, weaknesses
from audit.ledger.entry import Entry
from audit.ledger.group_commit import GroupCommit, PendingWrite
from audit.ledger.numbers import RecordNumbers
from audit.ledger.orphans import UNACKNOWLEDGED, LivenessLock, Orphans
from audit.ledger.reported_reads import ReportedReads
from audit.ledger.spool import Spool
from audit.ledger.write_probe import PROBE_CHARACTERS, Taker, WriteProbe
from audit.proof.checkpoint import receipt_text
from audit.proof.keys import PublicKey, RowSigner
from audit.proof.record import SALT_BYTES, HashedRow, Receipt, Row, Trail, hashed, row_of
from audit.proof.row_signature import signed

LOCK_S = 10.0  # a database that takes longer to grant a free lock counts as unavailable
GRACE_S = 1.0  # a living process whose connection was lost has its lock again by then
DATABASE_SHARE = 0.6  # of the time for a record; the rest is for the spool if the database does not answer
REFUSING_S = 2.0  # an orderly stop waits so long for what was refused too late to be said in the spool
DRAIN_PAUSE_S = 0.25  # between two retries while the database is unavailable
LANES = 2  # while the database writes one batch, we make the next
DOUBT = timedelta(seconds=60)  # a commit that is not seen by then was none
MAINTENANCE_INTERVAL_S = 15.0  # so that what a dead process left open is closed within a minute

Loop = Callable[[], Coroutine[None, None, None]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    folder: Path
    bytes_max: int


class Ledger:
    """Opens and closes records. One for each process.

    Records go through group commit into `LANES` connections, and notes into one of their own: a reader of a stream and
    whoever is refused wait for a note alone. A supervised loop drains the spool, another does maintenance.
    """

    def __init__(
        self,
        pool: AsyncConnectionPool,
        key: RowSigner,
        clock: Callable[[], datetime],
        *,
        public_keys: Callable[[], Sequence[PublicKey]],
        within_s: float,
        spooling: SpoolSettings | None = None,
        clock_behind_max: timedelta = partitions.BEHIND_MAX,
    ) -> None:
        assert isinstance(pool.conninfo, str)
        self._pool = pool
        self._key = key
        self._clock = clock
        self._clock_behind_max = clock_behind_max
        self._latest = clock()
        self._is_clock_behind = False
        self._owner = secrets.randbits(63)
        self._spool = Spool.open(spooling.folder, self._owner, spooling.bytes_max) if spooling else None
        self._spooling = GroupCommit() if self._spool else None
        self._has_spooled = asyncio.Event()
        self._is_database_down = False  # when we last wrote or drained
        self._by_spool: set[str] = set()  # requests with a step in the spool: the next must not overtake it
        self._lanes = [DatabaseWriter(pool.conninfo) for _ in range(LANES)]
        self._note_lane = DatabaseWriter(pool.conninfo)
        self._draining = DatabaseWriter(pool.conninfo)
        self._commits, self._notes = GroupCommit(), GroupCommit()
        self._within_s = within_s
        self._database_s = within_s * (DATABASE_SHARE if self._spool else 1.0)
        self._probing = DatabaseWriter(pool.conninfo)
        self._probe = WriteProbe(self._try_database, self._spool.probe if self._spool else None)
        self._alive = LivenessLock(pool.conninfo, self._owner)
        self._orphans = Orphans(self._owner, self._spool, key, public_keys)
        self._reported = ReportedReads(key, clock)
        self._living: set[UUID] = set()
        self._doubtful: dict[Entry, Trail] = {}  # given up while the database was committing their end
        self._opened: set[UUID] = set()  # those whose open record is durable
        self._refused: dict[
            str, Entry
        ] = {}  # given up while the spool was taking their end: their rows instead
        self._refusing: dict[str, PendingWrite] = {}  # the same on their way into the spool
        self._numbers = RecordNumbers(uuid4())
        self._weaknesses: list[str] = []
        self._months_made_on: date | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.writes, self.writing_s = 0, 0.0

    async def start(self) -> int:
        """Take the liveness lock, then close what dead processes left open; returns the number of those requests."""
        self._begin(self._alive.run, self._maintain_periodically)
        self._begin(*(partial(self._commits.run, lane.write) for lane in self._lanes))
        self._begin(partial(self._notes.run, self._note_lane.write))
        if self._spool and self._spooling:
            self._begin(partial(self._spooling.run, self._spool.append), self._drain)
        async with asyncio.timeout(LOCK_S):
            await self._alive.is_held.wait()
        closed = await self.maintain()
        if self._orphans.seen:
            await asyncio.sleep(GRACE_S)
            closed += await self.maintain()
        return closed

    async def stop(self) -> None:
        """What waits in the spool stays there for the next process; doubts are known to this one alone."""
        if self._tasks and self._doubtful:
            with contextlib.suppress(TransientWriteError, LedgerUnavailableError, TimeoutError):
                async with asyncio.timeout(self._within_s):
                    await self._resolve_doubts()
        if self._tasks and self._refusing:
            await asyncio.wait([write.done for write in self._refusing.values()], timeout=REFUSING_S)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks.clear()
        for statements in (*self._lanes, self._note_lane, self._draining, self._probing):
            await statements.close()
        if self._spool:
            self._spool.close()
            self._spool = None

    async def open(self, trail: Trail) -> None:
        """Write ahead: from here on the request is on record, whatever happens to this process."""
        self._living.add(trail.log_id)
        spool = self._spool.identity if self._spool else None
        with self._numbered(trail):
            await self._durable(
                lambda: Entry.opened(trail, self._owner, spool, self._key.at(trail.timestamp))
            )
        self._opened.add(trail.log_id)

    async def note(self, trail: Trail) -> None:
        """Make durable what happened since the record was opened, before the client sees it."""
        await self._durable(lambda: Entry.noted(trail, self._key.at(trail.timestamp)))

    async def close(self, trail: Trail, issued_at: datetime) -> Receipt:
        """Write the row, once and for ever. An answer may leave only after this.

        Returns or fails within the time for a record, unless the commit has begun: then only its end tells what the row
        says, and the caller decides how long that may take.
        """
        row: list[HashedRow] = []

        def entry() -> Entry:
            row.append(self._signed(row_of(trail), trail))
            return Entry.closed(trail.log_id, row[0])

        try:
            with self._numbered(trail):
                await self._durable(entry, ending=trail)
        finally:
            # A record that could not be closed becomes an orphan, although this process lives.
            self._living.discard(trail.log_id)
        self._opened.discard(trail.log_id)
        leaf_hash = row[0].leaf_hash.hex()
        key = self._key.at(trail.timestamp)  # the row's, so that one delegation explains both
        signature = key.sign(receipt_text(trail.log_id, leaf_hash, issued_at))
        text = base64.b64encode(signature).decode()
        return Receipt(trail.log_id, leaf_hash, issued_at, key.key_id, text)

    async def beat(self, trail: Trail, clock: Callable[[], datetime]) -> None:
        """A heartbeat. While records wait in the spool it goes there too, so that it never comes before them."""
        trail.heartbeat = self._numbers.heartbeat()
        if self.is_spooling:
            self._by_spool.add(str(trail.log_id))
        await self.open(trail)
        await self.close(trail, clock())
        self._numbers.forget(trail.heartbeat)

    @contextlib.contextmanager
    def _numbered(self, trail: Trail) -> Iterator[None]:
        """Gives the record its number, once; if it cannot even be opened, a heartbeat will say so."""
        numbers = self._numbers
        if trail.writer == numbers.writer and trail.sequence is not None:
            is_first = trail.sequence in numbers.failed
        else:
            trail.writer, trail.sequence, is_first = numbers.writer, numbers.next(), True
        number = trail.sequence
        if not is_first:
            yield
            return
        numbers.opening.add(number)
        try:
            yield
        except BaseException:
            numbers.failed.add(number)
            raise
        else:
            numbers.failed.discard(number)
        finally:
            numbers.opening.discard(number)

    async def maintain(self) -> int:
        """Periodic maintenance: check durability, make months ahead, drain abandoned spools, record reported reads, close orphans."""
        async with self._pool.connection() as connection:
            self._check(await weaknesses(connection))
        await self._make_months()
        if (
            self._weaknesses
        ):  # nothing is drained into it, and no request whose end may wait in a spool is closed
            return 0
        if self._spool:
            await self._take_over(self._spool)
        await self._resolve_doubts()
        self._opened &= self._living
        if self.is_spooling:
            return 0  # the end of an apparent orphan may wait in the spool
        async with self._pool.connection() as connection:
            if self._may_sign():
                await self._record_reads(connection)
            return await self._orphans.close(connection, self._living)

    async def _record_reads(self, connection: psycopg.AsyncConnection) -> None:
        """A failure is said and tried again: what an auditor reported keeps no orphan open, and no engine from starting."""
        try:
            await self._reported.record(connection)
        except Exception as failure:  # noqa: BLE001  its message may repeat a row, so only its type is logged
            log.error(  # noqa: TRY400
                "The reads that auditors reported could not be recorded (%s): they wait, and are tried again",
                type(failure).__name__,
            )

    def has_record(self, log_id: UUID) -> bool:
        """Whether a durable record of this unfinished request exists, which becomes its row."""
        return log_id in self._opened

    async def taker(self) -> Taker | None:
        """Who takes the next record; None if nobody does. Cheap: anybody may ask."""
        return await self._probe.taker() if self._is_clock_right() and self._may_sign() else None

    @property
    def has_spool(self) -> bool:
        """Whether records can be written while the database is unavailable."""
        return self._spool is not None

    @property
    def is_spooling(self) -> bool:
        """Whether records wait for the database."""
        return self._spool is not None and not self._spool.is_empty

    def _may_sign(self) -> bool:
        """Neither the database nor the spool takes what nobody signed."""
        try:
            self._key.at(self._clock())
        except NoSigningKeyError:
            return False
        return True

    def _is_clock_right(self) -> bool:
        """A clock that is set back while we serve would date records into another month."""
        now, was_behind = self._clock(), self._is_clock_behind
        self._is_clock_behind = now < self._latest - self._clock_behind_max
        if self._is_clock_behind and not was_behind:
            log.error(
                "The clock was set back from %s to %s: nothing is recorded until it is right",
                self._latest,
                now,
            )
        self._latest = max(self._latest, now)
        return not self._is_clock_behind

    async def _durable(self, make: Callable[[], Entry], ending: Trail | None = None) -> None:
        """Makes the entry durable, with the spool as the fallback for the database."""
        if not self._is_clock_right():
            raise LedgerUnavailableError("The clock was set back")
        attempt, began_s = _Attempt(), time.monotonic()
        try:
            entry = make()
            if not self._must_wait(entry) and await self._write_to_database(entry, attempt):
                return
            await self._spool_it(entry, attempt)
        except (TransientWriteError, PermanentWriteError, ValueError, TypeError) as failure:
            self._give_up(attempt, ending)
            raise LedgerUnavailableError(type(failure).__name__) from None
        except asyncio.CancelledError:
            if not attempt.is_written:
                self._give_up(attempt, ending)
                raise
        finally:
            self.writes += 1
            self.writing_s += time.monotonic() - began_s

    def _must_wait(self, entry: Entry) -> bool:
        """Whether it goes to the spool at once. Requests that began since the database is back do not, or the spool would never empty."""
        is_behind = self.is_spooling and (self._is_database_down or entry.log_id in self._by_spool)
        return is_behind or bool(self._weaknesses)

    async def _write_to_database(self, entry: Entry, attempt: "_Attempt") -> bool:
        try:
            async with asyncio.timeout(self._database_s):
                if entry.kind == "opened":
                    await self._alive.is_held.wait()
                queue = self._notes if entry.kind == "noted" else self._commits
                attempt.in_database = queue.put(entry)
                await attempt.in_database.wait()
        except (TransientWriteError, TimeoutError) as failure:
            self._is_database_down = True
            log.warning("The database did not take a record (%s)", type(failure).__name__)
            return False
        return True

    async def _spool_it(self, entry: Entry, attempt: "_Attempt") -> None:
        """Without a spool, or if that fails too, the end of what the database has begun to commit decides."""
        in_database = attempt.in_database
        try:
            attempt.in_spool = self._put_in_spool(entry)
            await attempt.in_spool.wait_within(self._within_s - self._database_s)
        except TransientWriteError:
            if in_database is None or in_database.withdraw():
                raise
            await in_database.wait()
        else:
            if in_database:
                in_database.is_needless = True
        finally:
            self._has_spooled.set()  # also after a timeout: the entry may be on disk all the same

    def _unacknowledged(self, trail: Trail) -> Entry:
        """The row of a request whose end was recorded, but too late for its client."""
        row = self._signed(row_of(trail) | UNACKNOWLEDGED, trail)
        return replace(Entry.closed(trail.log_id, row), is_spooled=True)

    def _signed(self, row: Row, trail: Trail) -> HashedRow:
        return signed(
            hashed(row, secrets.token_bytes(SALT_BYTES)), trail.log_id, self._key.at(trail.timestamp)
        )

    def _put_in_spool(self, entry: Entry) -> PendingWrite:
        if self._spooling is None:
            raise TransientWriteError("No spool is configured")
        self._by_spool.add(entry.log_id)
        return self._spooling.put(entry)

    def _give_up(self, attempt: "_Attempt", ending: Trail | None) -> None:
        """The client gets 503. If a commit that has begun ends well even so, the log says what the client was told."""
        in_spool = attempt.in_spool
        if in_spool and not in_spool.withdraw() and not in_spool.done.done() and ending:
            self._refuse_late(self._unacknowledged(ending))
        if attempt.in_database and not attempt.in_database.withdraw() and ending:
            self._doubtful[attempt.in_database.entry] = ending

    def _refuse_late(self, row: Entry) -> None:
        """The spool has the answer's row, or soon will: this one follows, and counts, also if this process dies first."""
        self._refused[row.log_id] = row
        with contextlib.suppress(TransientWriteError):  # while this process lives, it knows
            self._refusing[row.log_id] = self._put_in_spool(row)

    async def _resolve_doubts(self) -> None:
        """Looks whether what was given up has been committed, and says so in a row of its own."""
        now = self._clock()
        for entry, ended in list(self._doubtful.items()):
            if await self._draining.discard_if_stored(entry):
                log.error("A record was committed after its client got 503: query %s", ended.query_id)
                told = "The client got 503, because the record of this query was committed too late"
                row = self._event(
                    "ledger", told, outcome="not_acknowledged", http_status=503, error_type="audit"
                )
                row.details = {"query_id": str(ended.query_id)}
                await self.close(row, now)
                del self._doubtful[entry]
            elif now - ended.timestamp > DOUBT:
                del self._doubtful[entry]

    async def _take_over(self, spool: Spool) -> None:
        """Drains the files of dead processes."""
        for path in spools.abandoned_files(spool.folder):
            pieces = spools.batches(path)
            while piece := await asyncio.to_thread(next, pieces, None):
                await spools.deliver(piece, self._draining, path, self._key)
                await self._report_loss(path, piece.bytes_missing)
            spools.remove(path)
        for path, bytes_missing in spools.lost_files(spool.folder):
            await self._report_loss(path, bytes_missing)
            spools.remove(path)

    async def _report_loss(self, path: Path, bytes_missing: int) -> None:
        """Says that acknowledged entries vanished, in a row of its own: those that it concerns may have left none."""
        if not bytes_missing:
            return
        spools.set_loss_aside(path, bytes_missing)
        row = self._event("spool", f"Acknowledged entries of {path.name} are missing", outcome="recorded")
        row.details = {"spool": path.name, "bytes_missing": bytes_missing}
        await self.close(row, self._clock())

    def _event(self, endpoint: str, message: str, **about: Any) -> Trail:
        """A row of the ledger's own, about rows of requests."""
        return Trail(
            log_id=uuid4(), query_id=uuid4(), timestamp=self._clock(), endpoint=endpoint, success=False,
            error_message=message, **about,
        )  # fmt: skip

    async def _drain(self) -> None:
        """Drain the spool into the database, in order, with retries until it takes everything."""
        assert self._spool
        while True:
            await self._has_spooled.wait()
            self._has_spooled.clear()
            while not self._spool.is_empty:
                try:
                    await self._drain_piece(self._spool)
                except (TransientWriteError, OSError):
                    await asyncio.sleep(DRAIN_PAUSE_S)

    async def _drain_piece(self, spool: Spool) -> None:
        piece = await asyncio.to_thread(spool.read)  # each row is hashed: 30 ms for a full piece
        if self._weaknesses or not (piece.entries or piece.damaged or piece.bytes_missing):
            raise TransientWriteError("Nothing can be drained yet")
        told = [
            self._refused.get(entry.log_id, entry) if entry.kind == "closed" else entry
            for entry in piece.entries
        ]
        await spools.deliver(replace(piece, entries=told), self._draining, spool.path, self._key)
        self._is_database_down = False
        spool.mark_drained(piece)
        await self._report_loss(spool.path, piece.bytes_missing)
        if spool.is_empty:
            self._by_spool.clear()
            self._refused.clear()
            self._refusing.clear()
            log.warning("The spool is empty: the database has all its records")

    async def _try_database(self) -> None:
        """Writes all of a record, and takes it back."""
        if self._weaknesses:
            raise TransientWriteError("The database can lose acknowledged records")
        text = secrets.token_hex(PROBE_CHARACTERS // 2)
        asked = self._event("probe", "", outcome="recorded", llm_prompt=text)
        row = self._signed(row_of(asked), asked)
        key = self._key.at(asked.timestamp)
        entries = [Entry.opened(asked, self._owner, None, key), Entry.closed(asked.log_id, row)]
        with contextlib.suppress(WithdrawnError):
            await self._probing.write(entries, _withdraw)

    async def _maintain_periodically(self) -> None:
        while True:
            await asyncio.sleep(MAINTENANCE_INTERVAL_S)
            try:
                async with asyncio.timeout(MAINTENANCE_INTERVAL_S):
                    await self.maintain()
            except (
                psycopg.Error, PoolTimeout, TransientWriteError, LedgerUnavailableError, ClockBehindError, OSError,
                TimeoutError,
            ) as failure:  # fmt: skip
                log.warning("Maintenance of the log failed (%s) and is retried", type(failure).__name__)

    def _check(self, found: list[str]) -> None:
        if found and found != self._weaknesses:
            log.error("The database can lose acknowledged records: %s", "; ".join(found))
        self._weaknesses = found

    async def _make_months(self) -> None:
        today = self._clock().date()
        if today == self._months_made_on:
            return
        await partitions.make_months_ahead(self._pool, today, self._clock_behind_max)
        ahead = await partitions.count_months_ahead(self._pool, today)
        if ahead < partitions.MONTHS_AHEAD_MIN:
            log.error("Only %s future months have a partition. Run `affidavit audit partitions`.", ahead)
        self._months_made_on = today

    def _begin(self, *loops: Loop) -> None:
        self._tasks += [asyncio.create_task(_supervise(loop)) for loop in loops]


@dataclass(slots=True)
class _Attempt:
    """The writes of one entry."""

    in_database: PendingWrite | None = None
    in_spool: PendingWrite | None = None

    @property
    def is_written(self) -> bool:
        return any(write is not None and write.is_written for write in (self.in_database, self.in_spool))


def _withdraw() -> None:
    raise WithdrawnError


async def _supervise(loop: Loop) -> None:
    """Restart a loop that fails: all records depend on it."""
    while True:
        try:
            await loop()
        except Exception as fault:  # noqa: BLE001  its message may repeat a row, so only its type is logged
            log.error("A fault in the ledger: %s", type(fault).__name__)  # noqa: TRY400
            await asyncio.sleep(DRAIN_PAUSE_S)
