"""The index as readers use it: watched, never searched while it is known to be damaged, and rebuilt in the background."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from uuid import UUID

from engine.errors import AffidavitError, IndexDamagedError, IndexUnavailableError
from engine.models import Filters, Hit, Vector
from engine.outage.stale_cache import BackgroundTasks
from engine.ports import Searchable
from ingest.indexing import IndexRepair
from ingest.registry import LiveIndex

LOOK_S = 10.0  # between two counts of the points, unless a search fails before
LOOK_S_MIN = 0.5  # however many searches fail
FULL_S = 3600.0  # between two readings of all that is stored, by whichever process
START_S = 2.0  # the first reading may delay a start by so much: 5,000 passages in Edge take 0.6 s
TOLD_S = 10.0  # between two lines of the log about failed searches: readers cause them

UNKNOWN, WHOLE = "being checked", "whole"

log = logging.getLogger(__name__)


class WatchedIndex:
    def __init__(
        self, index: Searchable, repair: IndexRepair, monotonic: Callable[[], float], default_book: str
    ) -> None:
        self._index = index
        self._repair = repair
        self._monotonic = monotonic
        self._default_book = default_book
        self._damaged: dict[UUID, str] = {}
        self._states: dict[str, str] = {default_book: UNKNOWN}
        self._default_is_whole = asyncio.Event()
        self._search_failed = asyncio.Event()
        self._told_at = -TOLD_S
        self._read_at = -FULL_S
        self._tasks = BackgroundTasks()

    async def start(self) -> None:
        """Returns when all books are checked, or soon: a large index, and a rebuild, go on in the background."""
        self._started_at = self._monotonic()
        first = asyncio.Event()
        self._tasks.start(self._watch(first))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                await first.wait()

    async def search(
        self,
        generation: UUID,
        dense: Vector,
        terms: dict[int, float],
        limit: int,
        filters: Filters,
        among: Sequence[str] = (),
    ) -> list[Hit]:
        if generation in self._damaged:
            raise IndexDamagedError(self._damaged[generation])
        try:
            return await self._index.search(generation, dense, terms, limit, filters, among)
        except IndexUnavailableError as failure:
            self._search_failed.set()
            self._tell("A search failed: %s", failure.reason)
            raise

    def damage_of(self, generation: UUID) -> str:
        """What is wrong with it, for the operator; nothing if it may be searched."""
        return self._damaged.get(generation, "")

    def state_of(self, book_id: str) -> str:
        return self._states.get(book_id, WHOLE)

    async def wait_until_searchable(self) -> None:
        """Until the default book can be searched, or there is none."""
        await self._default_is_whole.wait()

    async def close(self) -> None:
        await self._tasks.close()

    async def _watch(self, first: asyncio.Event) -> None:
        while True:
            try:
                await self._look_at_all()
            except Exception as fault:  # noqa: BLE001  the database is unavailable, and /readyz says so; tried again
                self._tell("The indexes could not be checked: %s", type(fault).__name__)
            first.set()
            await asyncio.sleep(LOOK_S_MIN)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._search_failed.wait()
            self._search_failed.clear()

    async def _look_at_all(self) -> None:
        books = await self._repair.registry.live_indexes()
        now = self._monotonic()
        is_full = now - self._read_at >= FULL_S
        are_whole = [await self._look(live, is_full=is_full) for live in books]
        if is_full and all(are_whole):
            self._read_at = now
        gone = self._damaged.keys() - {live.generation_id for live in books}
        for generation in gone:
            del self._damaged[generation]
        if self._default_book not in {live.book_id for live in books}:  # not published: nothing to wait for
            self._states[self._default_book] = WHOLE
            self._default_is_whole.set()

    async def _look(self, live: LiveIndex, *, is_full: bool) -> bool:
        try:
            if damage := await self._repair.shortage(live):
                self._close_to_readers(live, damage)
            if is_full or live.generation_id in self._damaged:
                await self._mend(live)
        except IndexUnavailableError as failure:
            self._note(live, "unavailable")
            self._tell("The index does not answer: %s", failure.reason)
        except AffidavitError as failure:
            self._note(live, "damaged, and it cannot be rebuilt")
            self._tell("An index cannot be rebuilt: %s", str(failure))
        else:
            self._damaged.pop(live.generation_id, None)
            self._note(live, WHOLE)
            return True
        return False

    async def _mend(self, live: LiveIndex) -> None:
        """What another process has read since is not read again: since this one started, or has noticed the damage."""
        began = self._monotonic()
        since = began if live.generation_id in self._damaged else max(self._started_at, began - FULL_S)
        damage = await self._repair.mend(
            live,
            is_recent=lambda checked_s_ago: checked_s_ago < self._monotonic() - since,
            tell=lambda damage: self._close_to_readers(live, damage),
        )
        if damage:
            log.warning("The index of %s was rebuilt in %.1f s", live.book_id, self._monotonic() - began)

    def _close_to_readers(self, live: LiveIndex, damage: str) -> None:
        if live.generation_id not in self._damaged:
            log.error(
                "The index of %s is damaged: %s. It is rebuilt from the database; until then, questions get a 503.",
                live.book_id, damage,
            )  # fmt: skip
        self._damaged[live.generation_id] = damage
        self._note(live, "damaged, and it is being rebuilt")

    def _note(self, live: LiveIndex, state: str) -> None:
        self._states[live.book_id] = state
        if live.book_id != self._default_book:
            return
        if state == WHOLE:
            self._default_is_whole.set()
        else:
            self._default_is_whole.clear()

    def _tell(self, message: str, words: str) -> None:
        if self._monotonic() - self._told_at >= TOLD_S:
            self._told_at = self._monotonic()
            log.error(message, words)
