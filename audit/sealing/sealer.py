"""The sealer, a background loop: turns committed rows into leaves of the month's Merkle tree, signs its head and anchors it.

Order is assigned after the commit: an id or a time says nothing about when a transaction commits, so a cursor on them
loses rows. A row without a leaf is unsealed. Several sealers may run; two primary keys (a leaf's index, a row's id) let
only one of them win, and the lock merely spares the others the work.

Only rows that the engine signed are sealed: see admission.py. If the stored tree is not what was signed, that month is sealed
no further. Nothing is repaired here: an auditor must see what happened. Before a vault that is not the log's nothing is sealed
at all, because only the right one tells that the database is an older copy.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from psycopg_pool import AsyncConnectionPool

from audit.errors import (
    HeadsMismatchError,
    NoSigningKeyError,
    TreeMismatchError,
    UnfamiliarKeyError,
    VaultError,
    WrongVaultError,
)
from audit.ledger.delegated_keys import DELEGATIONS
from audit.ledger.partitions import month_start, next_month
from audit.proof.checkpoint import HistoryBreak
from audit.proof.keys import HeadSigner, KeyRing, PublicKey
from audit.sealing import log_tables
from audit.sealing.admission import RowAdmission, of_older_versions
from audit.sealing.anchors import VaultAnchors
from audit.sealing.breaks import HistoryBreaks, break_counts
from audit.sealing.head_growth import HeadGrowth
from audit.sealing.log_tables import TRY_LOCK, WAIT_FOR_LOCK, LogCheckpoints, UnsealedRow
from audit.sealing.publication import HeadPublication, Witnessing
from audit.sealing.tree_growth import TreeGrowth
from audit.vault import Vault

RECENT = timedelta(minutes=15)  # the full search finds rows that commit later than that
FULL_SHARE = 20  # one twentieth of the time may go into the full search
PAGE_ROWS = 1_000  # read at once: few enough to hold up no request
BATCH_ROWS = 10_000  # in one transaction: a backlog is worked off without holding the lock for long
LAST_S = 3.0  # an orderly stop waits so long for its last round; the next start seals what that misses

log = logging.getLogger(__name__)

_BEFORE_ALL, _AFTER_ALL = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
_NIL = UUID(int=0)
_COUNT_DELEGATIONS = "SELECT count(*) FROM public.audit_delegations"


@dataclass(frozen=True, slots=True)
class SealingResult:
    rows: int = 0
    anchors: int = 0


@dataclass
class Sealer:
    """`failures` holds, by month, why its sealing has stopped, and `stopped` why all sealing has, until the process ends."""

    pool: AsyncConnectionPool
    key: HeadSigner
    public_keys: Callable[[], Sequence[PublicKey]]
    vault: Vault
    seal_every_s: float
    anchor_every_s: float
    clock: Callable[[], datetime]
    monotonic: Callable[[], float]
    may_begin_vault: bool = False  # although the log was anchored in another one
    witnessing: Witnessing | None = None
    failures: dict[date, str] = field(default_factory=dict)
    stopped: str = ""
    vault_errors: int = 0
    _unfamiliar: dict[date, str] = field(default_factory=dict)
    _publishing: asyncio.Task[None] | None = None
    _publishing_trouble: str = ""
    _said: str = ""  # what is wrong with the log of heads
    _is_signed: bool = False  # whether the log has a tree whose rows are signed
    _searched_s: float = 0.0
    _full_at_s: float = 0.0
    _anchor_at_s: float = 0.0
    _trouble: str = ""
    _delegations: list[str] = field(default_factory=list)
    _ring: KeyRing | None = None
    _ring_of: tuple[Sequence[PublicKey], int] = ((), 0)
    _broken: dict[date, int] = field(default_factory=dict)  # how many breaks each month's history has

    def __post_init__(self) -> None:
        self._checkpoints = LogCheckpoints(self.key, self.public_keys)
        self._breaks = HistoryBreaks(self.pool, self._checkpoints, self.vault, self.clock)
        self._trees = TreeGrowth(self.pool, self._checkpoints, self._breaks, self.clock)
        self.admission = RowAdmission(self._row_keys)
        self._heads = HeadGrowth(self.pool, self._checkpoints, self.vault, self.clock)
        self._anchors = VaultAnchors(
            self.pool, self._checkpoints, self.vault, self._heads, self.clock, self.may_begin_vault
        )
        self.publication = HeadPublication(self.pool, self._heads, self.vault, self.clock, self.witnessing)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Seal in the background until the block ends, and then once more, unless that takes too long."""
        stop = asyncio.Event()
        task = asyncio.create_task(self.run(stop))
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait([task], timeout=2 * LAST_S)
            task.cancel()
            await asyncio.wait([task])

    async def run(self, stop: asyncio.Event) -> None:
        """Seal and anchor until `stop` is set, and then once more. A failure does not end the loop: it retries."""
        try:
            while not stop.is_set():
                await self._try(self._round)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.seal_every_s):
                        await stop.wait()
        finally:
            await self._end_publishing()
        await self._try(self._last_round)

    async def seal_once(self) -> SealingResult:
        """Seal and anchor everything that is committed now."""
        rows = await self._seal(_BEFORE_ALL, WAIT_FOR_LOCK)
        anchors = await self._anchor(WAIT_FOR_LOCK)
        await self._publish(WAIT_FOR_LOCK)
        return SealingResult(rows, anchors)

    async def declare_break(self, month: date, basis: str, event: UUID) -> HistoryBreak:
        """An operator's statement after a failover or a restore; sealing of the month goes on after it, in every process."""
        await self._anchors.check_vault()
        return await self._breaks.declare(month, basis, event)

    async def _round(self) -> None:
        is_full = self.monotonic() >= self._full_at_s
        await self._seal(_BEFORE_ALL if is_full else self.clock() - RECENT, TRY_LOCK)
        if self.monotonic() >= self._anchor_at_s or self._trees.has_new_line:
            self._trees.has_new_line = False
            await self._anchor(TRY_LOCK)
            self._anchor_at_s = self.monotonic() + self.anchor_every_s
            if self._publishing is None or self._publishing.done():
                self._publishing = asyncio.create_task(self._try_publishing())

    async def _last_round(self) -> None:
        """What a witness has no time for now is published by the next start."""
        async with asyncio.timeout(LAST_S):
            await self._seal(_BEFORE_ALL, WAIT_FOR_LOCK)
            await self._anchor(WAIT_FOR_LOCK)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                await self._publish(WAIT_FOR_LOCK)

    async def _end_publishing(self) -> None:
        if self._publishing:
            self._publishing.cancel()
            await asyncio.wait([self._publishing])

    async def _try(self, work: Callable[[], Awaitable[None]]) -> None:
        """Logs a failure once when it begins and once when it is over. A driver's message could repeat a row: only its type is logged."""
        trouble = ""
        try:
            await work()
        except WrongVaultError as wrong:
            trouble = f"Nothing is sealed or anchored: {wrong}"
            self.vault_errors += 1
        except NoSigningKeyError as away:
            trouble = f"Nothing is sealed: {str(away).rstrip('.')}. The sealer retries; no row is lost."
        except Exception as failure:  # noqa: BLE001  every failure is retried: rows are sealed late rather than never
            trouble = f"Nothing can be sealed or anchored ({type(failure).__name__}). The sealer retries; no row is lost."
            self.vault_errors += isinstance(failure, VaultError)
        if trouble and trouble != self._trouble:
            log.warning("%s", trouble)
        if self._trouble and not trouble:
            log.warning("Rows are sealed and anchored again.")
        self._trouble = trouble

    async def _seal(self, since: datetime, lock: str) -> int:
        """Seal all unsealed rows in the order of their times, in batches of one month each; returns their number."""
        for month in self._unfamiliar:
            self.failures.pop(month, None)
        await self._checkpoints.register(self.pool, self.clock())
        await self._anchors.check_vault()
        if not await self._has_whole_heads():
            return 0
        await self._read_delegations()
        await self._forget_broken()
        old: int | None = 0
        if not self._is_signed and not await self._trees.is_signed():
            old = await self._search(_BEFORE_ALL, lock, is_signed=False)
            if old is None:
                return 0
        self._is_signed, self._searched_s = True, 0.0
        sealed = await self._search(since, lock, is_signed=True)
        if since == _BEFORE_ALL:
            self._full_at_s = self.monotonic() + (FULL_SHARE - 1) * self._searched_s
        return (old or 0) + (sealed or 0)

    async def _has_whole_heads(self) -> bool:
        """Whether the log of heads is what was signed, and no witness has seen more of it: else nothing is sealed at all."""
        if not self.stopped:
            with self._stopping_all():
                if await self._heads.take_over():
                    await self.publication.check()
        return not self.stopped

    async def _read_delegations(self) -> None:
        """Those of all processes. They are only added, so their number says whether any are new."""
        async with self.pool.connection() as connection:
            ((count,),) = await log_tables.fetch(connection, _COUNT_DELEGATIONS)
            if count == len(self._delegations):
                return
            lines = [line for (line,) in await log_tables.fetch(connection, DELEGATIONS)]
        self._delegations = lines

    def _row_keys(self) -> KeyRing:
        """Made anew only if there are other keys: reading thousands of lines takes a while."""
        pinned = self.public_keys()
        if self._ring is None or self._ring_of != (pinned, len(self._delegations)):
            self._ring = KeyRing.of(pinned).with_delegations(self._delegations)
            self._ring_of = (list(pinned), len(self._delegations))
        return self._ring

    async def _search(self, since: datetime, lock: str, *, is_signed: bool) -> int | None:
        """Seal the rows that are signed, or those of older versions, which are not; None if another sealer is at work."""
        at, sealed = (since, _NIL), 0
        while True:
            began_s = self.monotonic()
            rows, at = await self._next(at, is_signed=is_signed)
            self._searched_s += self.monotonic() - began_s
            if not rows:
                break
            with self._stopping(rows[0].month):
                count = await self._trees.seal_batch(rows[0].month, rows, lock, is_signed=is_signed)
                if count is None:
                    return None
                sealed += count
        if is_signed:
            self.admission.end_pass(is_full=since == _BEFORE_ALL)
        return sealed

    async def _next(
        self, at: tuple[datetime, UUID], *, is_signed: bool
    ) -> tuple[list[UnsealedRow], tuple[datetime, UUID]]:
        """The next rows of one month that may be sealed, and where the search goes on; no rows: there are no more."""
        found: list[UnsealedRow] = []
        while len(found) < BATCH_ROWS:
            async with self.pool.connection() as connection:
                page = await log_tables.unsealed_rows(
                    connection, at, _AFTER_ALL, min(PAGE_ROWS, BATCH_ROWS - len(found))
                )
            if not page or (found and page[0].month != found[0].month):
                break
            month = page[0].month
            if month in self.failures:
                at = (month_start(next_month(month)), _NIL)
                continue
            rows = [row for row in page if row.month == month]
            found += await self.admission.signed(rows) if is_signed else of_older_versions(rows)
            at = rows[-1].place
        return found, at

    async def _forget_broken(self) -> None:
        """A month whose history was stated to be broken is read anew, and sealed again."""
        broken = await break_counts(self.pool)
        for month in broken:
            if broken[month] != self._broken.get(month):
                self.failures.pop(month, None)
                self._full_at_s = 0.0  # its rows may be older than a round looks
                self._trees.forget(month)
                self._anchors.forget(month)
        self._broken = broken

    async def _anchor(self, lock: str) -> int:
        """Anchor the newest checkpoint of every month; returns the number of anchors written."""
        count = 0
        await self._anchors.put_delegations(self._delegations)
        for month in await self._anchors.months():
            while month not in self.failures and not self.stopped:
                with self._stopping_all(), self._stopping(month):
                    if not await self._anchors.put_next(month, lock):
                        break
                    count += 1
        return count

    async def _publish(self, lock: str) -> None:
        if not self.stopped:
            with self._stopping_all():
                await self.publication.publish(lock)

    async def _try_publishing(self) -> None:
        """Beside the sealing: a witness that does not answer must not hold that up."""
        trouble = ""
        try:
            await self._publish(TRY_LOCK)
        except Exception as failure:  # noqa: BLE001  every failure is retried
            trouble = f"The log of heads cannot be published ({type(failure).__name__}). The sealer retries."
            self.vault_errors += isinstance(failure, VaultError)
        if trouble and trouble != self._publishing_trouble:
            log.warning("%s", trouble)
        self._publishing_trouble = trouble

    @contextlib.contextmanager
    def _stopping(self, month: date) -> Iterator[None]:
        """A mismatch stops the sealing of its month, and of no other."""
        try:
            yield
        except HeadsMismatchError:
            raise
        except TreeMismatchError as wrong:
            is_known = self._unfamiliar.get(month) == str(wrong)
            self.failures[month] = str(wrong)
            if isinstance(wrong, UnfamiliarKeyError):
                self._unfamiliar[month] = str(wrong)
            if not is_known:
                log.error("Sealing of this month has stopped. %s. Run `affidavit audit verify`.", wrong)  # noqa: TRY400  the place in our code explains nothing

    @contextlib.contextmanager
    def _stopping_all(self) -> Iterator[None]:
        """What is wrong with the log of heads stops the sealing of all months: it may be an older copy of everything.

        An unfamiliar key does not: the log of heads waits for its line, and the months are checked one by one.
        """
        try:
            yield
        except (HeadsMismatchError, UnfamiliarKeyError) as wrong:
            if isinstance(wrong, HeadsMismatchError):
                self.stopped = str(wrong)
            if self._said != str(wrong):
                words = f"The log of heads does not grow any further. {wrong}. Run `affidavit audit verify`."
                log.error("%s", words)  # noqa: TRY400  the place in our code explains nothing
            self._said = str(wrong)
