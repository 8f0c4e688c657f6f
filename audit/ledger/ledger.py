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
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from audit.errors import LedgerUnavailableError, PermanentWriteError, TransientWriteError
from audit.ledger import partitions
from audit.ledger.database_writer import DatabaseWriter, weaknesses
from audit.ledger.entry import Entry
from audit.ledger.group_commit import GroupCommit
from audit.ledger.numbers import RecordNumbers
from audit.ledger.orphans import LivenessLock, Orphans
from audit.ledger.spool import Spool, abandoned_files, batches, deliver
from audit.proof.checkpoint import receipt_text
from audit.proof.keys import PublicKey, Signer
from audit.proof.record import SALT_BYTES, HashedRow, Receipt, Trail, hashed, row_of
from audit.proof.row_signature import signed

LOCK_S = 10.0  # a database that takes longer to grant a free lock counts as unavailable
GRACE_S = 1.0  # a living process whose connection was lost has its lock again by then
DATABASE_SHARE = 0.6  # of the time for a record; the rest is for the spool if the database does not answer
DRAIN_PAUSE_S = 0.25  # between two retries while the database is unavailable
LANES = 2  # while the database writes one batch, we make the next
MAINTENANCE_INTERVAL_S = 15.0  # so that what a dead process left open is closed within a minute

Loop = Callable[[], Coroutine[None, None, None]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    folder: Path
    bytes_max: int


class Ledger:
    """Opens and closes records. One for each process.

    Records go through group commit into `LANES` connections; a supervised loop drains the spool, another does maintenance.
    """

    def __init__(
        self,
        pool: AsyncConnectionPool,
        key: Signer,
        clock: Callable[[], datetime],
        *,
        public_keys: Callable[[], Sequence[PublicKey]],
        within_s: float,
        spooling: SpoolSettings | None = None,
    ) -> None:
        assert isinstance(pool.conninfo, str)
        self._pool = pool
        self._key = key
        self._clock = clock
        self._owner = secrets.randbits(63)
        self._spool = Spool.open(spooling.folder, self._owner, spooling.bytes_max) if spooling else None
        self._spooling = GroupCommit() if self._spool else None
        self._has_spooled = asyncio.Event()
        self._is_database_down = False  # when we last wrote or drained
        self._by_spool: set[str] = set()  # requests with a step in the spool: the next must not overtake it
        self._lanes = [DatabaseWriter(pool.conninfo) for _ in range(LANES)]
        self._draining = DatabaseWriter(pool.conninfo)
        self._commits = GroupCommit()
        self._database_s = within_s * (DATABASE_SHARE if self._spool else 1.0)
        self._alive = LivenessLock(pool.conninfo, self._owner)
        self._orphans = Orphans(self._owner, self._spool, key, public_keys)
        self._living: set[UUID] = set()
        self._numbers = RecordNumbers(uuid4())
        self._weaknesses: list[str] = []
        self._months_made_on: date | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> int:
        """Take the liveness lock, then close what dead processes left open; returns the number of those requests."""
        self._begin(self._alive.run, self._maintain_periodically)
        self._begin(*(partial(self._commits.run, lane.write) for lane in self._lanes))
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
        """What waits in the spool stays there for the next process."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks.clear()
        for statements in (*self._lanes, self._draining):
            await statements.close()
        if self._spool:
            self._spool.close()
            self._spool = None

    async def open(self, trail: Trail) -> None:
        """Write ahead: from here on the request is on record, whatever happens to this process."""
        self._living.add(trail.log_id)
        spool = self._spool.identity if self._spool else None
        with self._numbered(trail):
            await self._durable(lambda: Entry.opened(trail, self._owner, spool, self._key))

    async def note(self, trail: Trail) -> None:
        """Make durable what happened since the record was opened, before the client sees it."""
        await self._durable(lambda: Entry.noted(trail, self._key))

    async def close(self, trail: Trail, issued_at: datetime) -> Receipt:
        """Write the row, once and for ever. An answer may leave only after this."""
        row: list[HashedRow] = []

        def entry() -> Entry:
            row.append(
                signed(hashed(row_of(trail), secrets.token_bytes(SALT_BYTES)), trail.log_id, self._key)
            )
            return Entry.closed(trail.log_id, row[0])

        try:
            with self._numbered(trail):
                await self._durable(entry)
        finally:
            # A record that could not be closed becomes an orphan, although this process lives.
            self._living.discard(trail.log_id)
        leaf_hash = row[0].leaf_hash.hex()
        signature = self._key.sign(receipt_text(trail.log_id, leaf_hash, issued_at))
        text = base64.b64encode(signature).decode()
        return Receipt(trail.log_id, leaf_hash, issued_at, self._key.key_id, text)

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
        """Periodic maintenance: check durability, make months ahead, drain abandoned spools, close orphans."""
        async with self._pool.connection() as connection:
            self._check(await weaknesses(connection))
        await self._make_months()
        if (
            self._weaknesses
        ):  # nothing is drained into it, and no request whose end may wait in a spool is closed
            return 0
        if self._spool:
            for path in abandoned_files(self._spool.folder):
                for piece in batches(path):
                    await deliver(piece, self._draining, self._spool.folder, self._key)
                path.unlink()
        if self.is_spooling:
            return 0  # the end of an apparent orphan may wait in the spool
        async with self._pool.connection() as connection:
            return await self._orphans.close(connection, self._living)

    @property
    def has_spool(self) -> bool:
        """Whether records can be written while the database is unavailable."""
        return self._spool is not None

    @property
    def is_spooling(self) -> bool:
        """Whether records wait for the database."""
        return self._spool is not None and not self._spool.is_empty

    async def _durable(self, make: Callable[[], Entry]) -> None:
        """Makes the entry durable, with the spool as the fallback for the database."""
        try:
            entry = make()
            if not self._must_wait(entry) and await self._write_to_database(entry):
                return
            await self._spool_it(entry)
        except (TransientWriteError, PermanentWriteError, ValueError, TypeError) as failure:
            raise LedgerUnavailableError(type(failure).__name__) from None

    def _must_wait(self, entry: Entry) -> bool:
        """Whether it goes to the spool at once. Requests that began since the database is back do not, or the spool would never empty."""
        is_behind = self.is_spooling and (self._is_database_down or entry.log_id in self._by_spool)
        return is_behind or bool(self._weaknesses)

    async def _write_to_database(self, entry: Entry) -> bool:
        try:
            async with asyncio.timeout(self._database_s):
                if entry.kind == "opened":
                    await self._alive.is_held.wait()
                await self._commits.write(entry)
        except (TransientWriteError, TimeoutError) as failure:
            self._is_database_down = True
            log.warning("The database did not take a record (%s)", type(failure).__name__)
            return False
        return True

    async def _spool_it(self, entry: Entry) -> None:
        if self._spooling is None:
            raise TransientWriteError("No spool is configured")
        self._by_spool.add(entry.log_id)
        try:
            await self._spooling.write(entry)
        finally:
            self._has_spooled.set()  # also after a timeout: the entry may be on disk all the same

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
        piece = spool.read()
        if self._weaknesses or not (piece.entries or piece.damaged):
            raise TransientWriteError("Nothing can be drained yet")
        await deliver(piece, self._draining, spool.folder, self._key)
        self._is_database_down = False
        spool.mark_drained(piece)
        if spool.is_empty:
            self._by_spool.clear()
            log.warning("The spool is empty: the database has all its records")

    async def _maintain_periodically(self) -> None:
        while True:
            await asyncio.sleep(MAINTENANCE_INTERVAL_S)
            try:
                async with asyncio.timeout(MAINTENANCE_INTERVAL_S):
                    await self.maintain()
            except (psycopg.Error, PoolTimeout, TransientWriteError, OSError, TimeoutError) as failure:
                log.warning("Maintenance of the log failed (%s) and is retried", type(failure).__name__)

    def _check(self, found: list[str]) -> None:
        if found and found != self._weaknesses:
            log.error("The database can lose acknowledged records: %s", "; ".join(found))
        self._weaknesses = found

    async def _make_months(self) -> None:
        today = self._clock().date()
        if today == self._months_made_on:
            return
        await partitions.make_months_ahead(self._pool, today)
        ahead = await partitions.count_months_ahead(self._pool, today)
        if ahead < partitions.MONTHS_AHEAD_MIN:
            log.error("Only %s future months have a partition. Run `affidavit audit partitions`.", ahead)
        self._months_made_on = today

    def _begin(self, *loops: Loop) -> None:
        self._tasks += [asyncio.create_task(_supervise(loop)) for loop in loops]


async def _supervise(loop: Loop) -> None:
    """Restart a loop that fails: all records depend on it."""
    while True:
        try:
            await loop()
        except Exception as fault:  # noqa: BLE001  its message may repeat a row, so only its type is logged
            log.error("A fault in the ledger: %s", type(fault).__name__)  # noqa: TRY400
            await asyncio.sleep(DRAIN_PAUSE_S)
