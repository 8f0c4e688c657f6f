"""The two forms of a generation in the data folder: a file up to a size, and Edge beyond it. Never half of one, and never both."""

import asyncio
import errno
import gc
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import numpy as np
import pytest

from engine.errors import IndexDamagedError, IndexUnavailableError
from engine.models import Filters, Hit, Point
from engine.providers import embedded
from engine.providers.edge import EdgeIndex
from engine.providers.embedded import EmbeddedIndex, PacedSearches
from engine.retrieval.exact_search import ExactSearch, StoredPoint
from tests.conftest import ROOT
from tests.parts.retrieval.test_edge import until, workers
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

GONE_S = 6.0
CROWD = 200
ROUNDS = 6


@pytest.fixture
async def index(tmp_path: Path) -> AsyncIterator[EmbeddedIndex]:
    opened = EmbeddedIndex(tmp_path)
    yield opened
    await opened.close()
    for pid in workers(tmp_path):
        os.kill(pid, signal.SIGKILL)


async def build(index: EmbeddedIndex | EdgeIndex, made: UUID, points: Sequence[Point]) -> None:
    await index.create(made, DIMENSION)
    for start in range(0, len(points), 64):
        await index.upsert(made, points[start : start + 64])
    assert await index.seal(made) == len(points)


async def finds(index: EmbeddedIndex | EdgeIndex, made: UUID, points: Sequence[Point]) -> None:
    for dense, terms in QUERIES[:2]:
        hits = await index.search(made, dense, terms, LIMIT, Filters())
        assert_exact(hits, exact(points, dense, terms))


def file_of(folder: Path, made: UUID) -> Path:
    return folder / f"{made}.exact"


# Seen red with the worker asked to close what is not there: each start of an engine with small books had one.
async def test_a_small_book_needs_no_worker(index: EmbeddedIndex, tmp_path: Path) -> None:
    made = uuid4()
    await build(index, made, POINTS)
    await finds(index, made, POINTS)
    assert workers(tmp_path) == {}
    await index.drop(made)
    assert list(tmp_path.iterdir()) == []
    assert workers(tmp_path) == {}


# Seen red with a slice for each word: a full collection looked at all words of all books.
def test_the_garbage_collector_leaves_the_words_of_a_book_alone() -> None:
    search = ExactSearch(list(map(StoredPoint.of, POINTS)), DIMENSION)
    gc.collect()
    assert search._postings._ends
    assert not any(map(gc.is_tracked, search._postings._ends.values()))


# Seen red with only what came after the limit sent to Edge.
async def test_a_book_that_grows_beyond_the_limit_goes_to_edge_as_a_whole(
    index: EmbeddedIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = uuid4()
    monkeypatch.setattr(embedded, "EXACT_NUMBERS_MAX", sum(point.windows.size for point in POINTS) // 2)
    await build(index, made, POINTS)
    assert not file_of(tmp_path, made).exists()
    assert (tmp_path / str(made)).is_dir()
    await finds(index, made, POINTS)
    stored = [point.chunk_id async for batch in index.points(made) for point in batch]
    assert sorted(stored) == sorted(point.chunk_id for point in POINTS)


# Seen red with the other form left where it was.
async def test_a_generation_that_is_built_again_at_another_size_leaves_one_form(
    index: EmbeddedIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = uuid4()
    for limit, points in (
        (embedded.EXACT_NUMBERS_MAX, POINTS[:50]),
        (0, POINTS),
        (embedded.EXACT_NUMBERS_MAX, POINTS[:20]),
    ):
        monkeypatch.setattr(embedded, "EXACT_NUMBERS_MAX", limit)
        await build(index, made, points)
        await finds(index, made, points)
        assert file_of(tmp_path, made).exists() == (limit > 0)
        assert (tmp_path / str(made)).exists() == (limit == 0)


async def test_a_generation_of_before_is_searched_in_edge_until_it_is_rebuilt(
    index: EmbeddedIndex, tmp_path: Path
) -> None:
    made, before = uuid4(), EdgeIndex(tmp_path)
    await build(before, made, POINTS[:80])
    await before.close()
    assert await index.count(made) == 80
    await finds(index, made, POINTS[:80])
    await build(index, made, POINTS[:80])
    assert not (tmp_path / str(made)).exists()
    await finds(index, made, POINTS[:80])


# Seen red with the ties of `_top` left to np.argpartition.
async def test_both_forms_find_the_same_and_ties_keep_the_order_of_the_book(
    index: EmbeddedIndex, tmp_path: Path
) -> None:
    small, large, other = uuid4(), uuid4(), EdgeIndex(tmp_path)
    await build(index, small, POINTS)
    await build(other, large, POINTS)
    for dense, terms in QUERIES:
        for filters in (Filters(), Filters(module=2), Filters(tags=("imu", "zmp"))):
            ours, theirs = [
                sorted(await each.search(made, dense, terms, LIMIT, filters), key=lambda hit: hit.chunk_id)
                for each, made in ((index, small), (other, large))
            ]
            assert [hit.chunk_id for hit in ours] == [hit.chunk_id for hit in theirs]
            assert np.allclose(
                [(hit.cosine, hit.bm25) for hit in ours],
                [(hit.cosine, hit.bm25) for hit in theirs],
                atol=1e-6,
            )
    await other.close()
    twins = [replace(POINTS[1], chunk_id=f"{number:064x}") for number in range(40)]
    await build(index, small, twins)
    hits = await index.search(small, QUERIES[0][0], POINTS[1].terms, LIMIT, Filters())
    assert [hit.chunk_id for hit in hits] == [point.chunk_id for point in twins[:LIMIT]]


# Seen red without the digest of the file (a byte), and with what was read first kept for good (all of them).
@pytest.mark.parametrize("damage", ["a byte", "the end", "all of it", "empty"])
async def test_a_damaged_file_is_noticed_by_the_next_search(
    index: EmbeddedIndex, tmp_path: Path, damage: str
) -> None:
    made = uuid4()
    await build(index, made, POINTS[:80])
    await finds(index, made, POINTS[:80])
    file = file_of(tmp_path, made)
    if damage == "a byte":
        with file.open("r+b") as opened:
            opened.seek(file.stat().st_size // 2)
            byte = opened.read(1)
            opened.seek(-1, os.SEEK_CUR)
            opened.write(bytes([byte[0] ^ 1]))
    elif damage == "all of it":
        file.unlink()
    else:
        os.truncate(file, 0 if damage == "empty" else file.stat().st_size // 2)
    for asking in (index.search(made, *QUERIES[0], LIMIT, Filters()), index.count(made)):
        with pytest.raises(IndexDamagedError):
            await asking
    with pytest.raises(IndexDamagedError):
        [batch async for batch in index.points(made)]
    await build(index, made, POINTS[:80])
    await finds(index, made, POINTS[:80])


async def test_a_file_that_the_machine_does_not_let_read_is_not_damaged(
    index: EmbeddedIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = uuid4()
    await build(index, made, POINTS[:10])
    another = EmbeddedIndex(index._folder)

    def refuse(*_: object) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(IndexUnavailableError) as caught:
        await another.count(made)
    assert "Too many open files" in caught.value.reason
    assert not isinstance(caught.value, IndexDamagedError)
    monkeypatch.undo()
    assert await another.count(made) == 10


# Seen red with the file written in place.
async def test_a_full_disk_leaves_what_was_there(
    index: EmbeddedIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = uuid4()
    await build(index, made, POINTS[:80])
    await index.create(made, DIMENSION)
    await index.upsert(made, POINTS[:5])

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(IndexUnavailableError) as caught:
        await index.seal(made)
    assert "No space left" in caught.value.reason
    assert not isinstance(caught.value, IndexDamagedError)
    monkeypatch.undo()
    await finds(index, made, POINTS[:80])
    await build(index, made, POINTS[:5])
    assert list(tmp_path.iterdir()) == [file_of(tmp_path, made)]


# Seen red with what was read first kept for good.
async def test_what_another_process_builds_is_found_by_the_next_search(
    index: EmbeddedIndex, tmp_path: Path
) -> None:
    made, another = uuid4(), EmbeddedIndex(tmp_path)
    await build(index, made, POINTS[:80])
    await finds(index, made, POINTS[:80])
    await build(another, made, POINTS[80:200])
    await finds(index, made, POINTS[80:200])
    await another.drop(made)
    with pytest.raises(IndexDamagedError):
        await index.search(made, *QUERIES[0], LIMIT, Filters())


# Seen red with nothing thrown out.
async def test_memory_is_bounded_by_what_was_searched_last(
    index: EmbeddedIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    books = [uuid4() for _ in range(4)]
    numbers = sum(point.windows.size for point in POINTS[:30])
    monkeypatch.setattr(embedded, "HELD_NUMBERS_MAX", 2 * numbers)
    for made in books:
        await build(index, made, POINTS[:30])
    for made in (*books, *reversed(books)):
        await finds(index, made, POINTS[:30])
        assert len(index._held) <= 2


# Seen red with the searches of one turn of the loop done at once.
async def test_a_crowd_of_searches_lets_others_go_on_between_them(
    index: EmbeddedIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "SEARCHING_S", 0.0)  # used up by one
    made, turns = uuid4(), 0
    await build(index, made, POINTS)

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(others())
    asked = [QUERIES[number % len(QUERIES)] for number in range(CROWD)]
    found = await asyncio.gather(*(index.search(made, *query, LIMIT, Filters()) for query in asked))
    beside.cancel()
    assert turns >= CROWD
    for hits, (dense, terms) in zip(found, asked, strict=True):
        assert_exact(hits, exact(POINTS, dense, terms))


# Seen red with one search in each turn of the loop: two hundred questions waited here for seconds while a core was idle.
async def test_what_has_time_in_one_turn_of_the_loop_does_not_wait_for_the_next() -> None:
    paced, done = PacedSearches(), list[int]()
    asked = [asyncio.ensure_future(paced.run(partial(_noted, done, number))) for number in range(5)]
    await asyncio.sleep(0)
    asked[3].cancel()
    await asyncio.sleep(0)
    assert done == [0, 1, 2, 4]
    await asyncio.wait(asked)


def _noted(done: list[int], number: int) -> list[Hit]:
    done.append(number)
    return []


BUILDING = """
import asyncio, sys
from pathlib import Path
from uuid import UUID
from engine.providers.embedded import EmbeddedIndex
from engine.retrieval.exact_search import ExactSearch, StoredPoint
from tests.parts.retrieval.vectors import DIMENSION, POINTS

async def main():
    index, made = EmbeddedIndex(Path(sys.argv[1])), UUID(sys.argv[2])
    print("begun", flush=True)
    while True:
        for points in (POINTS[:150], POINTS[150:]):
            await index.create(made, DIMENSION)
            await index.upsert(made, points)
            await index.seal(made)

asyncio.run(main())
"""


async def test_a_generation_without_a_passage_is_whole(index: EmbeddedIndex) -> None:
    made = uuid4()
    await build(index, made, [])
    assert await index.count(made) == 0
    assert await index.search(made, *QUERIES[0], LIMIT, Filters()) == []


# Seen red with the file written in place: it was damaged.
async def test_a_kill_at_any_moment_of_a_build_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    made, chance = uuid4(), np.random.default_rng(5)
    for _ in range(ROUNDS):
        index = EmbeddedIndex(tmp_path)
        await build(index, made, POINTS[:150])
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", BUILDING, str(tmp_path), str(made), cwd=ROOT, stdout=subprocess.PIPE
        )  # fmt: skip
        assert process.stdout is not None and await process.stdout.readline() == b"begun\n"
        await asyncio.sleep(chance.uniform(0, 0.05))
        process.kill()
        await process.wait()
        stored = {point.chunk_id async for batch in index.points(made) for point in batch}
        assert stored in ({point.chunk_id for point in half} for half in (POINTS[:150], POINTS[150:]))
        await finds(index, made, POINTS[:150] if POINTS[0].chunk_id in stored else POINTS[150:])
    await build(index, made, POINTS)
    assert list(tmp_path.iterdir()) == [file_of(tmp_path, made)]


async def test_a_book_of_several_windows_is_searched_as_by_hand(index: EmbeddedIndex) -> None:
    made, rng = uuid4(), np.random.default_rng(9)
    points = [random_point(number, rng) for number in range(1500)]
    await build(index, made, points)
    for limit in (1, 50, 5000):
        dense = unit(rng.normal(size=DIMENSION))
        hits = await index.search(made, dense, {5: 1.0, 6: 2.0}, limit, Filters())
        assert_exact(hits, exact(points, dense, {5: 1.0, 6: 2.0}, limit))
    among = [point.chunk_id for point in points[::7]]
    hits = await index.search(made, dense, {5: 1.0}, 50, Filters(module=2), among)
    assert_exact(
        hits, exact([point for point in points[::7] if point.payload["module"] == 2], dense, {5: 1.0}, 50)
    )
    assert await until(lambda: not workers(index._folder), GONE_S)
