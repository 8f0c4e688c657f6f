"""What is remembered of the database: for a second while it is there, for ten minutes while it is away."""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid4

import httpx
import pytest

from engine import wiring
from engine.admission.keys import ApiKeys, mint
from engine.answer import Asked
from engine.errors import DatabaseUnavailableError, OutOfTimeError, UnauthenticatedError, UnknownBookError
from engine.house import House
from engine.models import Client, Generation, Passage, Question
from engine.outage import stale_cache
from engine.outage.cached_library import SENTENCE_CHARACTERS, CachedKeyring, CachedLibrary, PassageCache
from engine.outage.stale_cache import FRESH_S, REFRESH_WAIT_S, STALE_S, CircuitBreaker, StaleIfErrorCache
from engine.ports import NullExchange
from engine.storage.database import Database
from tests.conftest import Records, Running
from tests.databases import locked

IMU = {"query": "What does an IMU measure?"}
SOON_S = 10


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Source:
    """A database that says what a test wants it to, and can be slow or away."""

    says: dict[str, str | None] = field(default_factory=dict)
    is_away: bool = False
    asked: Counter[str] = field(default_factory=Counter)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    async def ask(self, name: str) -> str | None:
        self.asked[name] += 1
        said = self.says.get(name)  # as of now, however long it takes to say it
        await self.gate.wait()
        if self.is_away:
            raise DatabaseUnavailableError
        return said


@dataclass
class Memory:
    clock: Clock
    source: Source
    words: StaleIfErrorCache[str]

    async def get(self, name: str) -> str | None:
        return await self.words.get(name, lambda: self.source.ask(name))


@pytest.fixture
async def memory(anyio_backend: str) -> AsyncIterator[Memory]:
    clock = Clock()
    words = StaleIfErrorCache[str](CircuitBreaker(clock))
    yield Memory(clock, Source({"a": "one"}), words)
    await words.close()


async def settled() -> None:
    """Whatever can go on without time has gone on."""
    for _ in range(20):
        await asyncio.sleep(0)


# Seen red with FRESH_S of two seconds in the comparison.
async def test_a_word_counts_for_a_second_and_not_longer(memory: Memory) -> None:
    assert await memory.get("a") == "one"
    memory.source.says["a"] = "two"
    memory.clock.now += 0.999
    assert await memory.get("a") == "one"
    memory.clock.now += 0.001
    assert await memory.get("a") == "two"
    assert memory.source.asked["a"] == 2


async def test_what_was_unknown_is_known_a_second_after_it_exists(memory: Memory) -> None:
    assert await memory.get("new") is None
    memory.source.says["new"] = "here"
    assert await memory.get("new") is None
    memory.clock.now += 1
    assert await memory.get("new") == "here"


# Seen red with the word dated when it was heard: it counted for a second more than it should.
async def test_a_word_is_as_old_as_the_question(memory: Memory) -> None:
    memory.source.gate.clear()
    asking = asyncio.create_task(memory.get("a"))
    await settled()
    memory.source.says["a"] = "two"
    memory.clock.now += 0.9
    memory.source.gate.set()
    assert await asking == "one"
    memory.clock.now += 0.1
    assert await memory.get("a") == "two"


# Seen red without `_running`: thirty-two questions.
async def test_one_asks_and_the_others_wait_for_it(memory: Memory) -> None:
    for n in range(3):
        memory.clock.now += 1
        told = await asyncio.gather(*(memory.get("a") for _ in range(32)))
        assert told == ["one"] * 32
        assert memory.source.asked["a"] == n + 1


# Seen red without the shield.
async def test_who_leaves_does_not_take_the_question_along(memory: Memory) -> None:
    memory.source.gate.clear()
    first, second = (asyncio.create_task(memory.get("a")) for _ in range(2))
    await settled()
    first.cancel()
    await asyncio.wait([first])
    memory.source.gate.set()
    assert await second == "one"
    assert memory.source.asked["a"] == 1


# Seen red with any open question joined.
async def test_nobody_waits_for_an_answer_that_will_be_too_old(memory: Memory) -> None:
    memory.source.gate.clear()
    first = asyncio.create_task(memory.get("a"))
    await settled()
    memory.source.says["a"] = "two"
    memory.clock.now += 1
    second = asyncio.create_task(memory.get("a"))
    await settled()
    memory.source.gate.set()
    assert (await first, await second) == ("one", "two")
    assert await memory.get("a") == "two"


async def test_an_old_answer_that_comes_late_does_not_replace_a_newer_one(memory: Memory) -> None:
    memory.source.gate.clear()
    first = asyncio.create_task(memory.get("a"))
    await settled()
    old_gate, memory.source.gate = memory.source.gate, asyncio.Event()
    memory.source.gate.set()
    memory.source.says["a"] = None
    memory.clock.now += 1
    assert await memory.get("a") is None
    old_gate.set()
    assert await first == "one"
    assert await memory.get("a") is None


# Seen red without the ten minutes.
async def test_the_last_word_holds_for_ten_minutes_while_the_database_is_away(memory: Memory) -> None:
    assert await memory.get("a") == "one"
    memory.source.is_away = True
    memory.clock.now += STALE_S - 0.001
    assert await memory.get("a") == "one"
    memory.clock.now += 0.001
    with pytest.raises(DatabaseUnavailableError):
        await memory.get("a")
    assert STALE_S == 600


async def test_what_was_unknown_is_not_said_to_be_unknown_while_nobody_can_know(memory: Memory) -> None:
    assert await memory.get("b") is None
    memory.source.is_away = True
    memory.clock.now += 1
    for name in ("b", "c"):
        with pytest.raises(DatabaseUnavailableError):
            await memory.get(name)


async def test_a_word_that_was_taken_back_does_not_come_back_in_an_outage(memory: Memory) -> None:
    assert await memory.get("a") == "one"
    memory.source.says["a"] = None
    memory.clock.now += 1
    assert await memory.get("a") is None
    memory.source.is_away = True
    memory.clock.now += 1
    with pytest.raises(DatabaseUnavailableError):
        await memory.get("a")


# Seen red with `allow_request` always true: every request asked.
async def test_while_it_is_away_one_request_a_second_looks_again(memory: Memory) -> None:
    memory.source.says = {name: name for name in "abcdefgh"}
    for name in memory.source.says:
        assert await memory.get(name) == name
    memory.source.is_away = True
    memory.source.asked.clear()
    memory.clock.now += 1
    for _ in range(100):  # ten seconds, eight requests at each tenth of them
        assert await asyncio.gather(*map(memory.get, memory.source.says)) == list("abcdefgh")
        memory.clock.now += 0.1
    assert 8 <= memory.source.asked.total() <= 8 + 10 / (FRESH_S - REFRESH_WAIT_S)


# Seen red with `end` doing nothing.
async def test_when_it_is_back_all_is_seen_again_within_a_second(memory: Memory) -> None:
    memory.source.says["b"] = "one"
    assert [await memory.get(name) for name in "ab"] == ["one", "one"]
    memory.source.is_away = True
    memory.clock.now += 1
    assert await memory.get("a") == "one"
    memory.source.is_away = False
    memory.source.says = {"a": None, "b": "two"}
    memory.clock.now += 1 - REFRESH_WAIT_S
    assert await memory.get("a") is None
    assert await memory.get("b") == "two"


# Seen red with the question cancelled when its time is up: a key would have stayed good for ten minutes.
async def test_a_slow_database_is_not_waited_for_but_heard(memory: Memory) -> None:
    assert await memory.get("a") == "one"
    memory.source.says["a"] = None
    memory.source.gate.clear()
    memory.clock.now += 1
    started = time.monotonic()
    assert await memory.get("a") == "one"
    assert time.monotonic() - started < SOON_S
    memory.source.gate.set()
    await settled()
    assert await memory.get("a") is None


async def test_each_request_gets_an_error_of_its_own(memory: Memory) -> None:
    """An engine writes into it which record is meant."""
    memory.source.is_away = True
    failures = await asyncio.gather(*(memory.get("a") for _ in range(5)), return_exceptions=True)
    assert all(isinstance(failure, DatabaseUnavailableError) for failure in failures)
    assert len({id(failure) for failure in failures}) == 5


async def test_an_unexpected_fault_is_no_outage(memory: Memory) -> None:
    async def stumble() -> str:
        raise ZeroDivisionError

    assert await memory.get("a") == "one"
    memory.clock.now += 1
    with pytest.raises(ZeroDivisionError):
        await memory.words.get("a", stumble)
    assert await memory.get("a") == "one"


# Seen red with one memory for both: the keys that are good were forgotten for those that are not.
async def test_what_strangers_make_up_takes_no_room_from_what_is_known(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stale_cache, "ENTRIES_MAX", 10)
    await memory.get("a")
    for n in range(50):
        assert await memory.get(f"stranger {n}") is None
    memory.source.is_away = True
    memory.clock.now += 1
    assert await memory.get("a") == "one"
    assert len(memory.words._unknown) == 10
    memory.source.is_away = False
    memory.source.says = {f"friend {n}": "hello" for n in range(50)}
    for name in memory.source.says:
        await memory.get(name)
    assert len(memory.words._known) == 10


async def test_closing_leaves_nothing_running(memory: Memory) -> None:
    memory.source.gate.clear()
    asking = asyncio.create_task(memory.get("a"))
    await settled()
    await memory.words.close()
    with pytest.raises(asyncio.CancelledError):
        await asking


# --- Keys


@dataclass
class Counted:
    """The real keys, and how often they were asked."""

    keys: ApiKeys
    count: int = 0

    async def authenticate(self, secret: str | None) -> Client:
        self.count += 1
        return await self.keys.authenticate(secret)

    async def holder(self, key_id: str) -> Client:
        self.count += 1
        return await self.keys.holder(key_id)


@dataclass
class Ring:
    clock: Clock
    counted: Counted
    keys: CachedKeyring

    async def knows(self, secret: str | None) -> bool:
        try:
            await self.keys.authenticate(secret)
        except UnauthenticatedError:
            return False
        return True


@pytest.fixture
async def ring(house: House) -> AsyncIterator[Ring]:
    clock, counted = Clock(), Counted(ApiKeys(house.pool))
    keys = CachedKeyring(counted, CircuitBreaker(clock))
    yield Ring(clock, counted, keys)
    await keys.close()


@asynccontextmanager
async def key_of(database: Database, client: str) -> AsyncIterator[tuple[ApiKeys, str]]:
    async with wiring.open_keys(database) as keys:
        yield keys, await keys.create(client, ["ask"], None)


async def test_a_revoked_key_is_refused_after_a_second(ring: Ring, database: Database) -> None:
    async with key_of(database, "fickle") as (keys, secret):
        assert await ring.knows(secret)
        assert await keys.revoke(client_id="fickle") == 1
        ring.clock.now += 0.9
        assert await ring.knows(secret)
        ring.clock.now += 0.1
        assert not await ring.knows(secret)


# The second is that of the guarantee: whoever asks after it is refused, in a process that knew the key to be good.
async def test_a_key_revoked_elsewhere_is_refused_by_a_running_server_within_a_second(
    server: Running, database: Database
) -> None:
    async with key_of(database, "leaver") as (keys, secret):
        async with httpx.AsyncClient(
            base_url=server.url, headers={"Authorization": f"Bearer {secret}"}
        ) as http:
            assert (await http.post("/v1/query", json=IMU)).status_code == 200
            await keys.revoke(client_id="leaver")
            await asyncio.sleep(FRESH_S)
            assert (await http.post("/v1/query", json=IMU)).status_code == 401


# Seen red with the key id as the name: the wrong one of a known id was answered without asking.
async def test_a_wrong_an_unknown_and_a_revoked_key_go_the_same_way(ring: Ring, database: Database) -> None:
    async with key_of(database, "known") as (_, known), key_of(database, "revoked") as (keys, revoked):
        await keys.revoke(client_id="revoked")
        assert await ring.knows(known)
        wrong = same_id_other_secret(known)
        for secret in (wrong, mint()[1], revoked):
            before = ring.counted.count
            assert not await ring.knows(secret)
            assert ring.counted.count == before + 1
        assert await ring.knows(known)


def same_id_other_secret(known: str) -> str:
    from tests.build import checksummed

    _, key_id, _ = known.split("_")
    return checksummed(f"aff_{key_id}_{'0' * 64}")


@pytest.mark.parametrize("secret", [None, "", "nonsense", "\ud800", "aff_0000000000_" + "0" * 72])
async def test_what_cannot_be_a_key_is_never_asked_for(ring: Ring, secret: str | None) -> None:
    assert not await ring.knows(secret)
    assert ring.counted.count == 0


async def test_no_key_is_kept_in_the_clear(ring: Ring, database: Database) -> None:
    async with key_of(database, "secretive") as (_, secret):
        assert await ring.knows(secret)
        assert secret not in repr(ring.keys._clients._known)


# --- Books


@dataclass
class Books:
    """A library that counts what is asked of it, and can be away."""

    generations: dict[str, Generation]
    shelves: dict[UUID, list[Passage]]
    is_away: bool = False
    looked_up: list[str] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)

    async def live(self, book_id: str) -> Generation:
        self._must_be_there()
        if book_id not in self.generations:
            raise UnknownBookError
        return self.generations[book_id]

    async def passages(self, chunk_ids: Sequence[str]) -> dict[str, Passage]:
        self._must_be_there()
        self.looked_up += chunk_ids
        held = {passage.chunk_id: passage for shelf in self.shelves.values() for passage in shelf}
        return {name: held[name] for name in chunk_ids if name in held}

    async def contents(self, generation: UUID, start: int, count: int) -> list[Passage]:
        self._must_be_there()
        self.batches.append(start)
        return self.shelves[generation][start : start + count]

    async def documents_containing(
        self, generation: UUID, needles: Sequence[str], after: str = ""
    ) -> list[list[Passage]]:
        self._must_be_there()
        return []

    def _must_be_there(self) -> None:
        if self.is_away:
            raise DatabaseUnavailableError


@dataclass
class Reading:
    clock: Clock
    books: Books
    library: CachedLibrary

    def publish(self, model: Generation, passages: list[Passage]) -> None:
        generation = replace(model, generation_id=uuid4())
        self.books.generations["book"] = generation
        self.books.shelves[generation.generation_id] = passages


@pytest.fixture
async def model(house: House) -> tuple[Generation, Passage]:
    generation = await house.library.live("physical-ai")
    return generation, (await house.library.contents(generation.generation_id, 0, 1))[0]


def passages_like(model: Passage, names: str, characters: int = 100) -> list[Passage]:
    return [replace(model, chunk_id=name, text="x" * characters, sentences=()) for name in names]


@asynccontextmanager
async def reading(characters_max: int) -> AsyncIterator[Reading]:
    clock, books = Clock(), Books({}, {})
    library = CachedLibrary(books, CircuitBreaker(clock), characters_max)
    yield Reading(clock, books, library)
    await library.close()


# Seen red without `_preload_passages`.
async def test_a_published_book_is_at_hand_when_the_database_goes_away(
    model: tuple[Generation, Passage],
) -> None:
    names = [f"{n:04}" for n in range(120)]
    passages = [replace(model[1], chunk_id=name) for name in names]
    async with reading(10_000_000) as at:
        at.publish(model[0], passages)
        at.library.preload(["book", "no such book"])
        await settled()
        at.books.is_away = True
        at.clock.now += 60
        assert (await at.library.live("book")).generation_id in at.books.shelves
        assert list(await at.library.passages(names)) == names
        assert at.books.looked_up == []
        with pytest.raises(DatabaseUnavailableError):
            await at.library.passages(["0000", "of another book"])


async def test_a_new_edition_is_seen_within_a_second_and_read_in(model: tuple[Generation, Passage]) -> None:
    async with reading(10_000) as at:
        at.publish(model[0], passages_like(model[1], "abc"))
        first = await at.library.live("book")
        at.publish(model[0], passages_like(model[1], "cde"))
        at.clock.now += 1
        second = await at.library.live("book")
        assert second.generation_id != first.generation_id
        await settled()
        assert list(await at.library.passages(list("abcde"))) == list("abcde")
        assert at.books.looked_up == []


# Seen red without `gc.freeze`: a full collection stopped the event loop for 100 ms during a thousand searches.
async def test_the_garbage_collector_leaves_an_edition_alone(model: tuple[Generation, Passage]) -> None:
    async with reading(10_000) as at:
        at.publish(model[0], passages_like(model[1], "abc"))
        await at.library.live("book")
        await settled()
        (held,) = (await at.library.passages(["a"])).values()
        assert not any(each is held for each in gc.get_objects())


async def test_what_is_longest_unused_goes_first_and_comes_back_when_it_is_wanted(
    model: tuple[Generation, Passage],
) -> None:
    async with reading(300) as at:
        at.publish(model[0], passages_like(model[1], "abcde"))
        await at.library.passages(["a"])
        await at.library.passages(["b", "c"])
        await at.library.passages(["a"])
        await at.library.passages(["d"])
        at.books.looked_up.clear()
        assert set(await at.library.passages(["a", "c", "d"])) == {"a", "c", "d"}
        assert at.books.looked_up == []
        assert set(await at.library.passages(["b"])) == {"b"}
        assert at.books.looked_up == ["b"]


# Seen red with a fill that goes on to the end of the book: its first passages made room for its last.
async def test_a_book_that_is_too_large_is_read_in_as_far_as_there_is_room(
    model: tuple[Generation, Passage],
) -> None:
    names = [f"{n:04}" for n in range(1000)]
    passages = [replace(model[1], chunk_id=name, text="x" * 100, sentences=()) for name in names]
    async with reading(10_000) as at:
        at.publish(model[0], passages)
        await at.library.live("book")
        await settled()
        assert at.books.batches == [0, 50]
        assert len(await at.library.passages(names[:100])) == 100
        assert at.books.looked_up == []


async def test_reading_in_goes_on_when_the_database_is_back(
    model: tuple[Generation, Passage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.outage.cached_library.RETRY_S", 0.0)
    async with reading(10_000) as at:
        at.publish(model[0], passages_like(model[1], "abc"))
        at.books.is_away = True
        at.library.preload(["book"])
        await settled()
        at.books.is_away = False
        await settled()
        await at.library.passages(list("abc"))
        assert at.books.looked_up == []


def test_the_passage_cache_counts_what_it_holds(model: tuple[Generation, Passage]) -> None:
    cache = PassageCache(1000)
    cache.put_many(passages_like(model[1], "ab"))
    cache.put_many(passages_like(model[1], "ab"))
    assert cache._characters == 200
    whole = replace(model[1], text="x" * 10)
    cache.put_many([whole])
    assert cache._characters == 200 + 10 + SENTENCE_CHARACTERS * len(whole.sentences)
    cache.put_many(passages_like(model[1], "c", 2000))
    assert (cache._characters, dict(cache._passages)) == (0, {})


async def test_the_library_reads_a_generation_from_one_end_to_the_other(house: House) -> None:
    generation = (await house.library.live("physical-ai")).generation_id
    whole = await house.library.contents(generation, 0, 10_000)
    halves = [await house.library.contents(generation, start, 7) for start in range(0, len(whole) + 7, 7)]
    assert [passage for part in halves for passage in part] == whole
    assert halves[-1] == []
    by_name = await house.library.passages([passage.chunk_id for passage in whole])
    assert list(by_name) and all(by_name[passage.chunk_id] == passage for passage in whole)


# --- All together, on the real database

TABLES = ("api_keys", "books", "generations", "generation_terms", "chunks", "generation_chunks")


# Seen red with `keyring=ApiKeys(pool)` and with `library=registry` in the wiring.
async def test_questions_go_on_while_the_tables_they_need_are_locked(
    house: House, database: Database, key: str, records: Records
) -> None:
    async def read() -> Question:
        return Question(IMU["query"], "physical-ai", 5)

    asked = Asked("test", "r-1", NullExchange(read), secret=key)
    first = await house.engine.answer(asked)
    with ExitStack() as stack:
        for table in TABLES:
            stack.enter_context(locked(database, table))
        await asyncio.sleep(FRESH_S)  # all that was heard is stale
        answers = [await house.engine.answer(asked) for _ in range(5)]
    for answer in answers:
        assert answer.outcome == first.outcome
        assert records.of(answer.trail.query_id)[0]["key_id"] == first.trail.key_id


async def test_the_book_has_a_time_limit_of_its_own(
    house: House, database: Database, records: Records
) -> None:
    from tests.asking import asked

    rules = replace(house.engine.rules, retrieval_s=0.2)
    with locked(database, "books"), pytest.raises(OutOfTimeError) as caught:
        await replace(house.engine, library=house.library, rules=rules).answer(asked())
    (row,) = records.of(caught.value.query_id)
    assert (row["http_status"], row["error_type"]) == (504, "timeout")
    assert "book took longer than 0.2 s" in row["error_message"]
