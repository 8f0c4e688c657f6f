"""What a question needs of the database, remembered: questions go on while the database is away.

Whose key it is and which edition of a book is in force may change, so a word about them counts for a second only, and
longer only while nobody can be asked (last_words.py). A passage never changes: its id is the hash of what it says and
where. A selection is looked for in the database itself.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Protocol, TypeVar
from uuid import UUID

from engine.admission.keys import KeyUses, digest, key_id_of
from engine.errors import DatabaseUnavailableError, UnauthenticatedError, UnknownBookError
from engine.models import Client, Generation, Passage
from engine.outage.stale_cache import QUERY_S, CircuitBreaker, StaleIfErrorCache, Work
from engine.ports import Keyring, Library

CHARACTERS_MAX = 64_000_000  # about fifteen textbooks of a thousand pages, and 130 MB
SENTENCE_CHARACTERS = 60  # of them for knowing where a sentence stands: that takes room too
FILLED_AT_ONCE = 50  # passages: reading more at a time would hold up the requests beside it
PAUSE_S = 1.0  # before a database that is away is asked again for what nobody waits for

Said = TypeVar("Said")


class Books(Library, Protocol):
    """A library that can be read from one end to the other."""

    async def contents(self, generation: UUID, start: int, count: int) -> list[Passage]: ...


class CachedKeyring:
    """API keys. A wrong one is forgotten after a second like any other, so that a new key is good at once."""

    def __init__(self, keyring: Keyring, breaker: CircuitBreaker, uses: KeyUses | None = None) -> None:
        self._keyring = keyring
        self._uses = uses
        self._clients = StaleIfErrorCache[Client](breaker)

    async def authenticate(self, secret: str | None) -> Client:
        """By the digest of the whole key: a wrong one goes the same way whether or not its key id is somebody's."""
        if secret is None or key_id_of(secret) is None:
            raise UnauthenticatedError
        client = await self._clients.get(digest(secret), partial(self._client, secret))
        if client is None or _is_over(client):
            raise UnauthenticatedError
        if self._uses and client.key_id:
            self._uses.note(client.key_id)
        return client

    async def close(self) -> None:
        await self._clients.close()

    async def _client(self, secret: str) -> Client | None:
        try:
            return await self._keyring.authenticate(secret)
        except UnauthenticatedError:
            return None


class CachedLibrary:
    """The editions in force, and their passages, as far as there is room for them."""

    def __init__(self, books: Books, breaker: CircuitBreaker, characters_max: int = CHARACTERS_MAX) -> None:
        self._books = books
        self._editions = StaleIfErrorCache[Generation](breaker)
        self._shelf = PassageCache(characters_max)
        self._seen: dict[str, UUID] = {}
        self._work = Work()
        self._one_at_a_time = asyncio.Lock()

    def prepare(self, book_ids: Sequence[str]) -> None:
        """Have these books at hand, as soon as may be."""
        self._work.begin(self._read_in(book_ids))

    async def live(self, book_id: str) -> Generation:
        generation = await self._edition(book_id)
        if generation is None:
            raise UnknownBookError
        return generation

    async def passages(self, chunk_ids: Sequence[str]) -> dict[str, Passage]:
        found = self._shelf.take(chunk_ids)
        missing = [name for name in chunk_ids if name not in found]
        if missing:
            read = await self._books.passages(missing)
            self._shelf.put(read.values())
            found |= read
        return found

    async def documents_containing(
        self, generation: UUID, needles: Sequence[str], after: str = ""
    ) -> list[list[Passage]]:
        return await self._books.documents_containing(generation, needles, after)

    async def close(self) -> None:
        await self._work.close()
        await self._editions.close()

    async def _edition(self, book_id: str) -> Generation | None:
        return await self._editions.get(book_id, partial(self._look_up, book_id))

    async def _look_up(self, book_id: str) -> Generation | None:
        try:
            generation = await self._books.live(book_id)
        except UnknownBookError:
            return None
        if self._seen.get(book_id) != generation.generation_id:
            self._seen[book_id] = generation.generation_id
            self._work.begin(self._fill(generation.generation_id))
        return generation

    async def _read_in(self, book_ids: Sequence[str]) -> None:
        for book_id in book_ids:
            await self._patiently(partial(self._edition, book_id))

    async def _fill(self, generation: UUID) -> None:
        """From the first passage on, until there are no more or there is no more room."""
        start = characters = 0
        while characters < self._shelf.characters_max:
            passages = await self._patiently(partial(self._books.contents, generation, start, FILLED_AT_ONCE))
            if not passages:
                return
            self._shelf.put(passages)
            characters += sum(map(_characters, passages))
            start += FILLED_AT_ONCE

    async def _patiently(self, ask: Callable[[], Awaitable[Said]]) -> Said:
        """Nobody waits for it: one thing after the other, and again if the database is away."""
        while True:
            async with self._one_at_a_time:
                with contextlib.suppress(DatabaseUnavailableError, TimeoutError):
                    async with asyncio.timeout(QUERY_S):
                        return await ask()
            await asyncio.sleep(PAUSE_S)


class PassageCache:
    """The passages used last."""

    def __init__(self, characters_max: int) -> None:
        self.characters_max = characters_max
        self._passages: OrderedDict[str, Passage] = OrderedDict()
        self._characters = 0

    def take(self, chunk_ids: Iterable[str]) -> dict[str, Passage]:
        """Those of them that are here."""
        found = {name: self._passages[name] for name in chunk_ids if name in self._passages}
        for name in found:
            self._passages.move_to_end(name)
        return found

    def put(self, passages: Iterable[Passage]) -> None:
        for passage in passages:
            if passage.chunk_id not in self._passages:
                self._characters += _characters(passage)
            self._passages[passage.chunk_id] = passage
            self._passages.move_to_end(passage.chunk_id)
        while self._characters > self.characters_max:
            self._characters -= _characters(self._passages.popitem(last=False)[1])


def _is_over(client: Client) -> bool:
    """A rotated key ends at its hour, also while the database is away."""
    return client.ends_at is not None and client.ends_at <= datetime.now(UTC)


def _characters(passage: Passage) -> int:
    return len(passage.text) + SENTENCE_CHARACTERS * len(passage.sentences)
