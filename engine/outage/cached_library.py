"""Read-through caches of keys, editions and passages, so that questions are answered while the database is unavailable.

Keys and live editions change, so they are cached for one second (stale for up to ten minutes during an outage: see
stale_cache.py). A passage never changes, because its id is the hash of its text and place, and what has another hash is never
read: so it stays cached as long as there is room. Selections are always searched in the database.
"""

import asyncio
import contextlib
import gc
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Protocol, TypeVar
from uuid import UUID

from engine.admission.keys import KeyUses, digest, key_id_of
from engine.admission.public_tokens import Holders
from engine.errors import (
    DatabaseUnavailableError,
    PassageDamagedError,
    UnauthenticatedError,
    UnknownBookError,
)
from engine.models import Client, Generation, Passage
from engine.outage.stale_cache import QUERY_S, BackgroundTasks, CircuitBreaker, StaleIfErrorCache
from engine.ports import Library

CHARACTERS_MAX = 64_000_000  # about fifteen textbooks of a thousand pages, and 130 MB
SENTENCE_CHARACTERS = 60  # what a sentence's offsets count for: they take memory too
PRELOAD_BATCH = 50  # passages per query: a larger one would delay the requests that run meanwhile
RETRY_S = 1.0  # pause between the retries of a preload while the database is unavailable

Value = TypeVar("Value")


class ListableLibrary(Library, Protocol):
    """A library whose passages can be listed in order."""

    async def contents(self, generation: UUID, start: int, count: int) -> list[Passage]: ...


class CachedKeyring:
    """A cache of API keys. A wrong key is cached for one second too, so that a new key works at once."""

    def __init__(self, keyring: Holders, breaker: CircuitBreaker, uses: KeyUses | None = None) -> None:
        self._keyring = keyring
        self._uses = uses
        self._clients = StaleIfErrorCache[Client](breaker)

    async def authenticate(self, secret: str | None) -> Client:
        """Looks up the digest of the whole key, so that a wrong key takes the same path whether or not its key id exists.
        A rotated key expires on time, even while the database is unavailable."""
        if secret is None or key_id_of(secret) is None:
            raise UnauthenticatedError
        return self._valid(await self._clients.get(digest(secret), partial(self._client, secret)))

    async def holder(self, key_id: str) -> Client:
        """The holder of a valid key, by its id alone."""
        return self._valid(await self._clients.get(key_id, partial(self._holder, key_id)))

    async def close(self) -> None:
        await self._clients.close()

    def _valid(self, client: Client | None) -> Client:
        if client is None or (client.ends_at and client.ends_at <= datetime.now(UTC)):
            raise UnauthenticatedError
        if self._uses and client.key_id:
            self._uses.note(client.key_id)
        return client

    async def _client(self, secret: str) -> Client | None:
        try:
            return await self._keyring.authenticate(secret)
        except UnauthenticatedError:
            return None

    async def _holder(self, key_id: str) -> Client | None:
        try:
            return await self._keyring.holder(key_id)
        except UnauthenticatedError:
            return None


class CachedLibrary:
    """A cache of the live editions and, as far as there is room, of their passages."""

    def __init__(
        self, library: ListableLibrary, breaker: CircuitBreaker, characters_max: int = CHARACTERS_MAX
    ) -> None:
        self._library = library
        self._editions = StaleIfErrorCache[Generation](breaker)
        self._passages = PassageCache(characters_max)
        self._preloaded: dict[str, UUID] = {}
        self._tasks = BackgroundTasks()
        self._one_at_a_time = asyncio.Lock()

    def preload(self, book_ids: Sequence[str]) -> None:
        """Start to load these books in the background."""
        self._tasks.start(self._preload_books(book_ids))

    async def live(self, book_id: str) -> Generation:
        generation = await self._edition(book_id)
        if generation is None:
            raise UnknownBookError
        return generation

    async def passages(self, chunk_ids: Sequence[str]) -> dict[str, Passage]:
        found = self._passages.get_many(chunk_ids)
        missing = [name for name in chunk_ids if name not in found]
        if missing:
            read = await self._library.passages(missing)
            self._passages.put_many(read.values())
            found |= read
        return found

    async def documents_containing(
        self, generation: UUID, needles: Sequence[str], after: str = ""
    ) -> list[list[Passage]]:
        return await self._library.documents_containing(generation, needles, after)

    async def close(self) -> None:
        await self._tasks.close()
        await self._editions.close()

    async def _edition(self, book_id: str) -> Generation | None:
        return await self._editions.get(book_id, partial(self._look_up, book_id))

    async def _look_up(self, book_id: str) -> Generation | None:
        try:
            generation = await self._library.live(book_id)
        except UnknownBookError:
            return None
        if self._preloaded.get(book_id) != generation.generation_id:
            self._preloaded[book_id] = generation.generation_id
            self._tasks.start(self._preload_edition(generation.generation_id))
        return generation

    async def _preload_books(self, book_ids: Sequence[str]) -> None:
        for book_id in book_ids:
            await self._retry_until_available(partial(self._edition, book_id))

    async def _preload_edition(self, generation: UUID) -> None:
        """Then the garbage collector leaves alone what there is, which lives as long as the edition: a full collection of the
        words and passages of a small book would block the event loop for 100 ms."""
        await self._preload_passages(generation)
        gc.freeze()

    async def _preload_passages(self, generation: UUID) -> None:
        """Preloads passages in order, until all are loaded or the cache is full. A batch with a damaged one is left out."""
        characters = 0
        for start in count(0, PRELOAD_BATCH):
            batch = partial(self._library.contents, generation, start, PRELOAD_BATCH)
            with contextlib.suppress(PassageDamagedError):
                passages = await self._retry_until_available(batch)
                self._passages.put_many(passages)
                characters += sum(map(_characters, passages))
                if not passages or characters >= self._passages.characters_max:
                    return

    async def _retry_until_available(self, query: Callable[[], Awaitable[Value]]) -> Value:
        """No request waits for a preload, so it runs one query at a time and retries until the database responds."""
        while True:
            async with self._one_at_a_time:
                with contextlib.suppress(DatabaseUnavailableError, TimeoutError):
                    async with asyncio.timeout(QUERY_S):
                        return await query()
            await asyncio.sleep(RETRY_S)


class PassageCache:
    """An LRU cache of passages, limited by their size in characters."""

    def __init__(self, characters_max: int) -> None:
        self.characters_max = characters_max
        self._passages: OrderedDict[str, Passage] = OrderedDict()
        self._characters = 0

    def get_many(self, chunk_ids: Iterable[str]) -> dict[str, Passage]:
        """Those of them that are cached."""
        found = {name: self._passages[name] for name in chunk_ids if name in self._passages}
        for name in found:
            self._passages.move_to_end(name)
        return found

    def put_many(self, passages: Iterable[Passage]) -> None:
        for passage in passages:
            if passage.chunk_id not in self._passages:
                self._characters += _characters(passage)
            self._passages[passage.chunk_id] = passage
            self._passages.move_to_end(passage.chunk_id)
        while self._characters > self.characters_max:
            self._characters -= _characters(self._passages.popitem(last=False)[1])


def _characters(passage: Passage) -> int:
    return len(passage.text) + SENTENCE_CHARACTERS * len(passage.sentences)
