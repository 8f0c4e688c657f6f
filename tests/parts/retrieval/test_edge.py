"""The index in its worker processes: exact scores, and no death of a worker that a later search would notice."""

import asyncio
import contextlib
import errno
import gc
import os
import resource
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import numpy as np
import pytest

from engine.errors import IndexDamagedError, IndexUnavailableError
from engine.models import Filters, Hit, Point, point_id
from engine.providers import edge, edge_worker
from engine.providers.edge import EdgeIndex
from engine.providers.edge_worker import BATCH_MAX, EXACT_POINTS_MAX
from tests.parts.retrieval.vectors import (
    DIMENSION,
    LIMIT,
    POINTS,
    QUERIES,
    assert_exact,
    exact,
    random_point,
    unit,
)

NEXT_S = 3.0  # within this time a search must work again
HUNG_S = 2.0
TOLD_S = 1.0  # a death is heard of, not waited for
GONE_S = 6.0
READ = Path("/proc/self/io")
WIDE_PART = 3000 * 1024  # numbers: the store optimises no less than 10 MB


def workers(folder: Path) -> dict[int, str]:
    """The living worker processes of a folder, by pid, with their names."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "engine.providers.edge_worker" in words and str(folder) in words:
            found[int(process.name)] = words[words.index(str(folder)) + 1]
    return found


def serving(folder: Path) -> int:
    (pid,) = (pid for pid, name in workers(folder).items() if name == "serve")
    return pid


async def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Another process' end is no event of ours; it can only be looked at."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return condition()


async def kill(folder: Path, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert await until(lambda: pid not in workers(folder), GONE_S)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="affidavit-edge-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="module")
async def generation(folder: Path) -> UUID:
    """The 300 points, sealed."""
    made = uuid4()
    async with opened(folder) as index:
        await index.create(made, DIMENSION)
        for start in range(0, len(POINTS), 64):
            await index.upsert(made, POINTS[start : start + 64])
        assert await index.seal(made) == len(POINTS)
    return made


class opened:  # noqa: N801  used like a function
    """A client that ends with its block, and its worker with it: nobody waits for a worker to notice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def __aenter__(self) -> EdgeIndex:
        self._index = EdgeIndex(self._folder)
        return self._index

    async def __aexit__(self, *_: object) -> None:
        for pid in workers(self._folder):
            os.kill(pid, signal.SIGKILL)
        await self._index.close()


@pytest.fixture
async def index(folder: Path, generation: UUID) -> AsyncIterator[EdgeIndex]:
    """A client of a worker that has the generation open already."""
    async with opened(folder) as client:
        assert await client.count(generation) == len(POINTS)
        yield client


@pytest.fixture
async def search(index: EdgeIndex, generation: UUID) -> Callable[[], Awaitable[None]]:
    return lambda: search_exactly(index, generation)


async def search_exactly(client: EdgeIndex, generation: UUID, query: int = 0) -> None:
    dense, terms = QUERIES[query]
    assert_exact(await client.search(generation, dense, terms, LIMIT, Filters()), exact(POINTS, dense, terms))


async def right_or_unavailable(searching: Awaitable[None]) -> None:
    """A wrong or a partial result is the one thing that must not happen."""
    try:
        await searching
    except IndexUnavailableError:
        return


async def works_again(searching: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(NEXT_S):
        await searching()


# Seen red with the replies of a batch given out in the opposite order.
async def test_two_hundred_searches_at_once_are_each_exact(index: EdgeIndex, generation: UUID) -> None:
    rng = np.random.default_rng(3)
    asked = [
        (unit(rng.normal(size=DIMENSION)), {int(term): 1.0 for term in rng.choice(60, size=4, replace=False)})
        for _ in range(200)
    ]
    found = await asyncio.gather(
        *(index.search(generation, dense, terms, LIMIT, Filters()) for dense, terms in asked)
    )
    for hits, (dense, terms) in zip(found, asked, strict=True):
        assert_exact(hits, exact(POINTS, dense, terms))


# Seen red with the filter of the first search used for the whole batch.
async def test_searches_with_other_filters_and_limits_do_not_mix_in_a_batch(
    index: EdgeIndex, generation: UUID, folder: Path
) -> None:
    asked = [(number % len(QUERIES), 1 + number % 4, 1 + number % 13) for number in range(BATCH_MAX)]
    async with stopped(folder):  # so that all of them are waiting when it goes on
        searches = [
            asyncio.ensure_future(index.search(generation, *QUERIES[query], limit, Filters(module=module)))
            for query, module, limit in asked
        ]
        await asyncio.sleep(0)  # every search has written its request
    for searching, (query, module, limit) in zip(searches, asked, strict=True):
        inside = [point for point in POINTS if point.payload["module"] == module]
        assert_exact(await searching, exact(inside, *QUERIES[query], limit))


# Seen red with the fault of a batch told to all of it.
async def test_a_bad_search_in_a_batch_fails_alone(index: EdgeIndex, generation: UUID, folder: Path) -> None:
    dense, terms = QUERIES[0]
    async with stopped(folder):
        good = [asyncio.ensure_future(search_exactly(index, generation, query)) for query in range(4)]
        bad = [
            asyncio.ensure_future(searching)
            for searching in (
                index.search(generation, dense[:-1], terms, LIMIT, Filters()),
                index.search(generation, dense, {-1: 1.0}, LIMIT, Filters()),
                index.search(uuid4(), dense, terms, LIMIT, Filters()),
            )
        ]
        good += [asyncio.ensure_future(search_exactly(index, generation, query)) for query in range(4, 8)]
        await asyncio.sleep(0)  # every search has written its request
    await asyncio.gather(*good)
    for searching in bad:
        with pytest.raises(IndexUnavailableError):
            await searching


class stopped:  # noqa: N801  used like a function
    """The serving worker does nothing for the length of a block."""

    def __init__(self, folder: Path) -> None:
        self._pid = serving(folder)

    async def __aenter__(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    async def __aexit__(self, *_: object) -> None:
        os.kill(self._pid, signal.SIGCONT)


# Seen red with the rescoring switched off: the cosines were those of four bits.
async def test_a_large_book_is_searched_quickly_with_exact_scores(folder: Path) -> None:
    """The best may be missed now and then; a score is never an estimate."""
    made, rng = uuid4(), np.random.default_rng(4)
    points = [random_point(number, rng) for number in range(EXACT_POINTS_MAX + 500)]
    by_name = {point.chunk_id: point for point in points}
    async with opened(folder) as index:
        await index.create(made, DIMENSION)
        for start in range(0, len(points), 1000):
            await index.upsert(made, points[start : start + 1000])
        assert await index.seal(made) == len(points)
        missed = 0
        for dense, terms in QUERIES:
            hits = await index.search(made, dense, terms, 50, Filters())
            found = [by_name[hit.chunk_id] for hit in hits]
            assert_exact(hits, exact(found, dense, terms, len(found)))
            missed += len(exact(points, dense, terms, 50).keys() - {hit.chunk_id for hit in hits})
    assert missed <= 0.02 * 50 * len(QUERIES)


async def test_an_unknown_generation_is_unavailable_and_harms_nobody(
    index: EdgeIndex, search: Callable[[], Awaitable[None]], folder: Path
) -> None:
    before = serving(folder)
    for _ in range(2):
        with pytest.raises(IndexUnavailableError):
            await index.search(uuid4(), QUERIES[0][0], {}, LIMIT, Filters())
        with pytest.raises(IndexUnavailableError):
            await index.count(uuid4())
    await search()
    assert serving(folder) == before


# Seen red with the wait counted: with load beside them 147 of 1,000 searches failed, and no worker was at fault.
async def test_a_search_that_waits_for_its_turn_does_not_fail(
    index: EdgeIndex, search: Callable[[], Awaitable[None]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge, "SEARCH_S", 0.05)
    before = serving(folder)
    async with contextlib.AsyncExitStack() as crowd:
        for _ in range(edge.SEARCHES_MAX):
            await crowd.enter_async_context(index._slots)
        searching = asyncio.ensure_future(search())
        done, _ = await asyncio.wait([searching], timeout=4 * edge.SEARCH_S)
        assert not done
        monkeypatch.undo()
    await searching
    assert serving(folder) == before


# Seen red with no word of it in the lock: the first search killed the worker, and so on with each new one.
async def test_a_worker_that_takes_long_to_open_a_generation_is_not_taken_for_hung(folder: Path) -> None:
    made = uuid4()
    async with opened(folder) as index:
        await index.create(made, DIMENSION)
        await index.upsert(made, POINTS)
        await index.seal(made)
    async with opened(folder) as index:
        with pytest.raises(IndexUnavailableError):
            await index.count(uuid4())  # the worker is there, and has nothing open
        before = serving(folder)
        with slow_to_open(folder / str(made)) as go_on:
            searches = [search_exactly(index, made, query) for query in range(4)]
            for result in await asyncio.gather(*searches, return_exceptions=True):
                assert isinstance(result, IndexUnavailableError)
            counting = asyncio.ensure_future(index.count(made))
            go_on()
            assert await counting == len(POINTS)
        await search_exactly(index, made)
        assert serving(folder) == before


@contextlib.contextmanager
def slow_to_open(generation: Path) -> Iterator[Callable[[], None]]:
    """Whoever opens it waits for the rest of its description until it is told to go on."""
    description = generation / "edge_config.json"
    text = description.read_bytes()
    description.unlink()
    os.mkfifo(description)
    writing = os.open(description, os.O_RDWR)

    def go_on() -> None:
        description.unlink()
        description.write_bytes(text)
        os.write(writing, text)
        os.close(writing)

    yield go_on


async def test_nothing_is_left_of_a_builder_whose_work_is_thrown_away(folder: Path) -> None:
    made = uuid4()

    def builders() -> list[str]:
        return [name for name in workers(folder).values() if name == f"build-{made}"]

    async with opened(folder) as index:
        for _ in range(2):
            await index.create(made, DIMENSION)
            await index.upsert(made, POINTS[:5])
            assert len(builders()) == 1
        await index.drop(made)
        assert builders() == []
        await index.create(made, DIMENSION)
        await index.close()
        assert builders() == []
        gc.collect()  # a connection left open says so now


async def test_two_clients_share_a_worker(index: EdgeIndex, folder: Path, generation: UUID) -> None:
    before = serving(folder)
    async with opened(folder) as another:
        await search_exactly(another, generation)
        await search_exactly(index, generation)
        assert workers(folder) == {before: "serve"}


async def test_clients_that_begin_at_once_share_a_worker(folder: Path, generation: UUID) -> None:
    async with opened(folder) as first, opened(folder) as second, opened(folder) as third:
        async with asyncio.timeout(NEXT_S):
            await asyncio.gather(*(search_exactly(client, generation) for client in (first, second, third)))
        assert await until(lambda: len(workers(folder)) == 1, GONE_S)


async def test_a_killed_worker_is_replaced(
    search: Callable[[], Awaitable[None]], folder: Path, generation: UUID, index: EdgeIndex
) -> None:
    for _ in range(3):
        await kill(folder, serving(folder))
        await right_or_unavailable(search())
        await works_again(search)
    assert await index.count(generation) == len(POINTS)


async def test_a_search_in_the_moment_of_the_kill_leaves_nothing_broken(
    search: Callable[[], Awaitable[None]], folder: Path
) -> None:
    """Not waiting for the process to be gone: its socket may still take a connection and then drop it."""
    for _ in range(5):
        os.kill(serving(folder), signal.SIGKILL)
        await right_or_unavailable(search())
        await works_again(search)


# Seen red with a worker's end taken for an empty result.
async def test_thirty_two_readers_outlive_the_kill_of_the_worker(
    search: Callable[[], Awaitable[None]], folder: Path, index: EdgeIndex, generation: UUID
) -> None:
    """Each search is exactly right or unavailable, whenever the worker dies."""
    served, stop = asyncio.Event(), False

    async def read(reader: int) -> None:
        while not stop:
            await right_or_unavailable(search_exactly(index, generation, reader % len(QUERIES)))
            served.set()

    readers = [asyncio.ensure_future(read(reader)) for reader in range(32)]
    for _ in range(3):
        served.clear()
        await served.wait()
        os.kill(serving(folder), signal.SIGKILL)
        await right_or_unavailable(search())
        await works_again(search)
    stop = True
    await asyncio.gather(*readers)


# Seen red with the waiting calls not told of the worker's end: they all ran into their time limit.
async def test_a_kill_under_fifty_searches(
    search: Callable[[], Awaitable[None]], folder: Path, index: EdgeIndex, generation: UUID
) -> None:
    for _ in range(3):
        searches = [
            asyncio.ensure_future(search_exactly(index, generation, number % len(QUERIES)))
            for number in range(50)
        ]
        await asyncio.wait(searches, return_when=asyncio.FIRST_COMPLETED)
        os.kill(serving(folder), signal.SIGKILL)
        async with asyncio.timeout(TOLD_S):
            await asyncio.gather(*map(right_or_unavailable, searches))
        await right_or_unavailable(search())  # all fifty may have been answered just before
        await works_again(search)


async def test_a_hung_worker_is_given_up_and_replaced(
    search: Callable[[], Awaitable[None]], folder: Path
) -> None:
    hung = serving(folder)
    os.kill(hung, signal.SIGSTOP)
    async with asyncio.timeout(HUNG_S):
        with pytest.raises(IndexUnavailableError):
            await search()
    await works_again(search)
    assert serving(folder) != hung


# Seen red with a polite close: it waited for ever for its last bytes to be read.
async def test_a_hung_worker_is_given_up_with_requests_stuck_on_the_way(
    index: EdgeIndex, search: Callable[[], Awaitable[None]], folder: Path, generation: UUID
) -> None:
    dense, terms = QUERIES[0]
    more_than_a_socket_holds = [f"{number:064x}" for number in range(20_000)]
    os.kill(serving(folder), signal.SIGSTOP)
    async with asyncio.timeout(HUNG_S):
        with pytest.raises(IndexUnavailableError):
            await index.search(generation, dense, terms, LIMIT, Filters(), more_than_a_socket_holds)
    await works_again(search)


async def test_a_worker_that_hangs_before_its_first_word_is_replaced(
    index: EdgeIndex, folder: Path, generation: UUID
) -> None:
    """An engine that was started anew finds the old one's worker hung: it has never heard its pid."""
    hung = serving(folder)
    os.kill(hung, signal.SIGSTOP)
    async with opened(folder) as another:
        async with asyncio.timeout(HUNG_S):
            with pytest.raises(IndexUnavailableError):
                await search_exactly(another, generation)
        await works_again(lambda: search_exactly(another, generation))
        assert serving(folder) != hung


async def test_a_worker_that_dies_before_its_first_word_is_replaced(
    index: EdgeIndex, folder: Path, generation: UUID
) -> None:
    """The connection stands, the greeting never comes: the client must not keep it."""
    hung, connected = serving(folder), connections(folder)
    os.kill(hung, signal.SIGSTOP)
    async with opened(folder) as another:
        searching = asyncio.ensure_future(search_exactly(another, generation))
        assert await until(lambda: connections(folder) > connected, NEXT_S)
        await kill(folder, hung)
        await right_or_unavailable(searching)
        for _ in range(3):
            await works_again(lambda: search_exactly(another, generation))


async def test_a_request_given_up_while_connecting_leaves_nothing_broken(
    index: EdgeIndex, folder: Path, generation: UUID
) -> None:
    """The reader has gone or the time of the request is over: that is no reason to fail the next one."""
    worker, connected = serving(folder), connections(folder)
    os.kill(worker, signal.SIGSTOP)
    async with opened(folder) as another:
        searching = asyncio.ensure_future(search_exactly(another, generation))
        assert await until(lambda: connections(folder) > connected, NEXT_S)
        searching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await searching
        os.kill(worker, signal.SIGCONT)
        await works_again(lambda: search_exactly(another, generation))


def connections(folder: Path) -> int:
    """Of the serving worker's socket, the accepted and the waiting ones and the listening one itself."""
    return Path("/proc/net/unix").read_text().count(f"{folder}/serve.sock")


async def test_a_sealed_generation_outlives_its_worker(folder: Path) -> None:
    made, points = uuid4(), POINTS[:50]
    dense, terms = QUERIES[5]
    async with opened(folder) as index:
        await index.create(made, DIMENSION)
        await index.upsert(made, points)
        await index.seal(made)
    for _ in range(2):
        async with opened(folder) as index:
            hits = await index.search(made, dense, terms, LIMIT, Filters())
            assert_exact(hits, exact(points, dense, terms))
            assert await index.count(made) == len(points)
            await kill(folder, serving(folder))


# Seen red with every failure to open taken for damage: a machine with too few descriptors rebuilt its whole index in vain.
@pytest.mark.parametrize(
    ("limit", "reason"), [("open files", "Too many open files"), ("disk", "File too large")]
)
async def test_an_index_that_the_machine_does_not_let_open_is_not_damaged(
    folder: Path, generation: UUID, limit: str, reason: str
) -> None:
    """A limit of a file's size stands for a full disk: the store writes when it opens."""
    async with opened(folder) as index:
        with pytest.raises(IndexDamagedError):
            await index.count(uuid4())  # the worker runs, and has opened nothing
        pid = serving(folder)
        kind = resource.RLIMIT_NOFILE if limit == "open files" else resource.RLIMIT_FSIZE
        used = len(list(Path(f"/proc/{pid}/fd").iterdir())) if limit == "open files" else 100
        usual = resource.prlimit(pid, kind)
        resource.prlimit(pid, kind, (used, usual[1]))
        with pytest.raises(IndexUnavailableError) as caught:
            await index.count(generation)
        assert reason in caught.value.reason
        assert not isinstance(caught.value, IndexDamagedError)
        resource.prlimit(pid, kind, usual)
        assert await index.count(generation) == len(POINTS)
        assert serving(folder) == pid


# Seen red with every failure taken for damage.
@pytest.mark.parametrize(
    ("said", "is_damaged"),
    [
        ("Failed to open mmap payload storage: Permission denied (os error 13)", False),
        ("Failed to save structure on disk with error: No space left on device (os error 28)", False),
        ("called `Result::unwrap()` on an `Err` value: Os { code: 24, kind: Uncategorized }", False),
        ("IO Error: No such file or directory (os error 2)", True),
        ("Failed to deserialize edge_config.json: expected value at line 1 column 1", True),
        ("mmap failed: Input/output error (os error 5)", True),
    ],
)
def test_damage_is_what_the_machine_did_not_refuse(said: str, is_damaged: bool) -> None:
    assert isinstance(edge_worker._unreadable(Exception(said)), IndexDamagedError) is is_damaged
    panic = edge_worker._fault(type("PanicException", (BaseException,), {})(said))
    assert panic[0] == {"error": f"PanicException: {said}", "is_damaged": is_damaged}


# Seen red with a worker that cannot be started taken for one that dies over the index: damaged, after the second time.
async def test_an_engine_without_descriptors_knows_nothing_of_the_index(
    folder: Path, generation: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async with opened(folder) as index:
        monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
        with pytest.raises(IndexUnavailableError) as caught:
            await index.count(generation)
        monkeypatch.setattr(asyncio, "open_unix_connection", refuse)
        with pytest.raises(IndexUnavailableError) as also:
            await index.count(generation)
        monkeypatch.undo()
        assert await index.count(generation) == len(POINTS)
    for failure in (caught.value, also.value):
        assert not isinstance(failure, IndexDamagedError)
        assert "cannot be reached ([Errno 24] Too many open files)" in failure.reason


async def test_a_killed_builder_is_noticed_and_the_book_built_anew(folder: Path) -> None:
    made = uuid4()
    rng = np.random.default_rng(1)
    many = [random_point(number, rng) for number in range(2000)]
    async with opened(folder) as index:
        await index.create(made, DIMENSION)
        await index.upsert(made, POINTS[:10])
        (builder,) = (pid for pid, name in workers(folder).items() if name == f"build-{made}")
        os.kill(builder, signal.SIGSTOP)  # so that it cannot be done before the kill
        upserting = asyncio.ensure_future(index.upsert(made, many))
        await asyncio.sleep(0)
        os.kill(builder, signal.SIGKILL)
        with pytest.raises(IndexUnavailableError):
            await upserting
        gc.collect()  # whatever was left waiting says so now, and not in another test
        await index.create(made, DIMENSION)
        await index.upsert(made, POINTS)
        assert await index.seal(made) == len(POINTS)
        await search_exactly(index, made)


# Seen red without a look at the disk.
async def test_a_worker_that_ends_on_a_full_disk_is_said_to_lack_space(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge, "FULL_BYTES", 2**63)
    made = uuid4()
    async with opened(folder) as index:
        await index.create(made, DIMENSION)
        (builder,) = (pid for pid, name in workers(folder).items() if name == f"build-{made}")
        os.kill(builder, signal.SIGSTOP)
        upserting = asyncio.ensure_future(index.upsert(made, POINTS))
        await asyncio.sleep(0)
        os.kill(builder, signal.SIGKILL)
        with pytest.raises(IndexUnavailableError) as failed:
            await upserting
    assert f"its disk is full: free some space for {folder}" in failed.value.reason


def upsert(shards: edge_worker.Shards, points: Sequence[Point]) -> None:
    described = [
        {
            "id": point_id(point.chunk_id), "windows": len(point.windows), "terms": len(point.terms),
            "payload": {"chunk_id": point.chunk_id},
        }
        for point in points
    ]  # fmt: skip
    body = edge.packed(
        [point.windows for point in points],
        (term for point in points for term in point.terms),
        (weight for point in points for weight in point.terms.values()),
    )
    assert shards.answer({"do": "upsert", "generation": "book", "points": described}, body) == ({}, b"")


# Seen red with both kinds made for each book, and with the store left to merge the parts.
@pytest.mark.parametrize("has_windows", [False, True])
def test_a_book_is_built_in_parts_and_has_room_for_no_other_vectors_than_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_windows: bool
) -> None:
    """Windows come late: the parts before them were made without any."""
    monkeypatch.setattr(edge_worker, "PART_NUMBERS", WIDE_PART)
    monkeypatch.setattr(edge_worker, "PART_KB_MAX", 4 * WIDE_PART // 1024 * 3 // 2)
    rng = np.random.default_rng(3)
    points = [random_point(number, rng, 1024) for number in range(8000)]
    last = points[7000:] if has_windows else []
    points = [replace(point, windows=point.windows[:1]) for point in points[: len(points) - len(last)]] + last
    with (tmp_path / "lock").open("wb") as lock:
        shards = edge_worker.Shards(tmp_path, lock.fileno())
        shards.answer({"do": "create", "generation": "book"}, b"")
        for start in range(0, len(points), 1000):
            upsert(shards, points[start : start + 1000])
        assert shards.answer({"do": "seal", "generation": "book"}, b"") == ({}, b"")
        opened = shards._shard("book")
        dense = points[7500].windows[-1]
        search = edge_worker.HybridSearch(
            {"limit": LIMIT, "filters": {}, "among": [], "terms": [3], "weights": [1.0]},
            dense.tobytes(),
            opened.kinds,
        )
        edge_worker._query(opened.store, [search], [search.tops(edge_worker.EXACT)])
        edge_worker._query(opened.store, [search], [search.missing()])
        reply, body = search.reply()
        parts = opened.store.info().segments_count
        shards.close()
    assert opened.kinds == (["plain", "windows"] if has_windows else ["plain"])
    assert parts > 2
    cosines, weights = np.frombuffer(body, "<f4").reshape(2, -1).tolist()
    assert_exact(list(map(Hit, reply["hits"], cosines, weights)), exact(points, dense, {3: 1.0}))


# Seen red without the reading: the first searches of a book of 1,000,000 passages took 42 ms instead of 18.
@pytest.mark.skipif(not READ.exists(), reason="only Linux counts what a process reads")
def test_opening_a_book_reads_all_that_its_searches_touch(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    points = [random_point(number, rng) for number in range(300)]
    with (tmp_path / "lock").open("wb") as lock:
        shards = edge_worker.Shards(tmp_path, lock.fileno())
        shards.answer({"do": "create", "generation": "book"}, b"")
        upsert(shards, points)
        assert shards.answer({"do": "seal", "generation": "book"}, b"") == ({}, b"")
        touched = [
            path.stat().st_size
            for kind in ("vector_storage-*", "payload_storage")
            for path in (tmp_path / "book").glob(f"segments/*/{kind}/**/*")
            if path.is_file()
        ]
        before = bytes_read()
        shards._shard("book")
        read = bytes_read() - before
        shards.close()
    assert read >= sum(touched) > 0


# Seen red without a limit: opening a book that the disk gives slowly outlasted the lease, so it could never be searched.
def test_an_opening_that_takes_too_long_leaves_the_rest_unread(tmp_path: Path) -> None:
    file = tmp_path / "segments" / "one" / "vector_storage" / "vectors.dat"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(4 * edge_worker.READ_BYTES))
    before = bytes_read()
    edge_worker._warm(tmp_path, time.monotonic())
    assert bytes_read() - before < edge_worker.READ_BYTES


def bytes_read() -> int:
    """By this process in all calls of `read`, whether from the disk or not."""
    return int(READ.read_text().split()[1])


# Seen red with parts of one size: a million passages had twelve, and a search rescores candidates in each.
def test_a_part_is_as_large_as_all_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    points = [
        replace(each, windows=each.windows[:1]) for each in (random_point(n, rng, 8) for n in range(80))
    ]
    monkeypatch.setattr(edge_worker, "PART_NUMBERS", 10 * 8 - 1)  # full after ten
    saved, save = list[int](), edge_worker.Shard.save

    def noting(shard: edge_worker.Shard) -> None:
        save(shard)
        saved.append(shard.optimised // 8)

    monkeypatch.setattr(edge_worker.Shard, "save", noting)
    with (tmp_path / "lock").open("wb") as lock:
        shards = edge_worker.Shards(tmp_path, lock.fileno())
        shards.answer({"do": "create", "generation": "book"}, b"")
        for start in range(0, len(points), 10):
            upsert(shards, points[start : start + 10])
        shards.close()
    assert saved == [10, 30, 70]


# Seen red with a traceback of each failure.
def test_a_failure_of_the_disk_is_a_reply_and_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    reply, _ = edge_worker._fault(OSError(28, "No space left on device"))
    assert "No space left on device" in reply["error"]
    assert capfd.readouterr().err == ""


async def test_a_search_does_not_wait_for_a_build(
    index: EdgeIndex, search: Callable[[], Awaitable[None]], generation: UUID
) -> None:
    made = uuid4()
    rng = np.random.default_rng(2)
    await index.create(made, 384)
    for start in range(0, 3000, 500):
        await index.upsert(made, [random_point(number, rng, 384) for number in range(start, start + 500)])
    sealing = asyncio.ensure_future(index.seal(made))
    during = 0
    while not sealing.done():
        await search()
        during += not sealing.done()
    assert await sealing == 3000
    assert during > 1


async def test_a_worker_ends_with_its_last_client(folder: Path, generation: UUID) -> None:
    first, second = EdgeIndex(folder), EdgeIndex(folder)
    await search_exactly(first, generation)
    await search_exactly(second, generation)
    worker = serving(folder)
    await second.close()
    await search_exactly(first, generation)
    assert workers(folder) == {worker: "serve"}
    await first.close()
    assert await until(lambda: not workers(folder), GONE_S)
    assert list(folder.glob("*.sock")) == []


async def test_a_client_leaves_without_waiting_for_the_others(folder: Path, generation: UUID) -> None:
    """Else the engine that started the worker cannot stop as long as another engine runs."""
    starter, staying = EdgeIndex(folder), EdgeIndex(folder)
    await search_exactly(starter, generation)
    await search_exactly(staying, generation)
    leaving = asyncio.ensure_future(starter.close())
    done, _ = await asyncio.wait([leaving], timeout=GONE_S)
    await search_exactly(staying, generation)
    os.kill(serving(folder), signal.SIGKILL)
    await leaving
    await staying.close()
    assert done


async def test_a_client_that_comes_back_finds_its_worker_warm(folder: Path, generation: UUID) -> None:
    """A restart of the engine takes less time than a worker waits for the next client."""
    first = EdgeIndex(folder)
    await search_exactly(first, generation)
    worker = serving(folder)
    leaving = asyncio.ensure_future(first.close())
    async with opened(folder) as second:
        await search_exactly(second, generation)
        assert serving(folder) == worker
    await leaving
