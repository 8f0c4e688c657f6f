"""Builds the index of a generation beside the one that is searched, checks it, and rebuilds it from the database.

Vectors and passages are in the database, so a rebuild needs no embedder.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import UUID

import numpy as np

from engine.errors import AffidavitError, IndexDamagedError, PassageDamagedError
from engine.models import Generation, Passage, Point, Windows
from engine.ports import Index
from engine.retrieval import lexical
from engine.retrieval.index_digest import of_point, of_points
from engine.retrieval.library import shortened
from ingest.registry import LiveIndex, Registry
from ingest.windows import windows as windows_of

BATCH = 96  # passages at once

_ROW = np.dtype([("key", "S16"), ("digest", "S32")])
_WHOLE = np.dtype(f"S{_ROW.itemsize}")


class NotRebuildableError(AffidavitError):
    """The index of a book cannot be made of what the database holds."""


class IndexContent:
    """What an index holds: of each point a key of its passage and its digest, in 48 bytes, because a book may have millions."""

    def __init__(self) -> None:
        self._rows = bytearray()

    def __len__(self) -> int:
        return len(self._rows) // _ROW.itemsize

    def add(self, points: Sequence[Point]) -> None:
        self._rows += b"".join(key_of(point.chunk_id) + of_point(point) for point in points)

    @property
    def rows(self) -> Any:
        return np.frombuffer(self._rows, _ROW)  # without a copy

    @property
    def digest(self) -> str:
        return of_points(self.rows["digest"])

    def holds(self, keys: bytes) -> bool:
        """Whether these are the keys of its points, in whatever order."""
        wanted = np.sort(np.frombuffer(keys, _ROW["key"]))
        return np.array_equal(np.sort(self.rows["key"]), wanted)

    def continues(self, before: str, gone: "IndexContent", come: "IndexContent") -> bool:
        """Whether this is what had the digest `before`, without what is gone and with what has come."""
        new = np.isin(self.rows.view(_WHOLE), come.rows.view(_WHOLE))
        digests = np.concatenate([self.rows["digest"][~new], gone.rows["digest"]])
        return int(new.sum()) == len(come) and of_points(digests) == before

    def difference(self, wanted: "IndexContent") -> tuple[int, int, int]:
        """How many passages are missing, are altered, and are not wanted."""
        ours, theirs = self.rows, wanted.rows
        known = len(np.intersect1d(ours["key"], theirs["key"]))
        equal = len(np.intersect1d(ours.view(_WHOLE), theirs.view(_WHOLE)))
        return len(np.unique(theirs["key"])) - known, known - equal, len(np.unique(ours["key"])) - known


def key_of(chunk_id: str) -> bytes:
    return sha256(chunk_id.encode()).digest()[:16]


@dataclass(frozen=True, slots=True)
class IndexRepair:
    """Idempotent, and safe to kill: readers see the rebuilt index when it is whole. One process at a time works on a book's."""

    registry: Registry
    index: Index

    async def mend(
        self,
        live: LiveIndex,
        *,
        is_recent: Callable[[float], bool] = lambda _: False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> str:
        """Rebuilds the index if it is damaged; what was wrong with it, or nothing.

        The check of another process counts if it `is_recent`, by its seconds ago. `tell` hears of a damage before the rebuild.
        """
        async with self.registry.lock_index(live.generation_id):
            now = await self.registry.live_index(live.book_id)
            if now is None or now.generation_id != live.generation_id:
                return ""  # another edition was published
            damage = await self.shortage(now)
            if not damage and now.checked_s_ago is not None and is_recent(now.checked_s_ago):
                return ""
            damage = damage or await self._difference(now)
            if damage:
                tell(damage)
                await self._rebuild(now)
            return damage

    async def rebuild(self, live: LiveIndex) -> None:
        async with self.registry.lock_index(live.generation_id):
            await self._rebuild(live)

    async def examine(self, live: LiveIndex) -> str:
        """What is wrong with the index, in words; nothing if all is well."""
        return await self.shortage(live) or await self._difference(live)

    async def altered(self, live: LiveIndex) -> str:
        """Which passages of the book are not as they were ingested, in words; nothing if all are. They are answered from
        no more; only an ingest of the book can mend them."""
        damaged = await self.registry.damaged_passages(live.generation_id)
        if not damaged:
            return ""
        return f"{len(damaged)} passages are not as they were ingested ({shortened(damaged)}): ingest the book again"

    async def shortage(self, live: LiveIndex) -> str:
        """The cheap half of a check: can it be opened, and does it hold as many points as the book has passages."""
        try:
            held = await self.index.count(live.generation_id)
        except IndexDamagedError as damage:
            return f"it is missing, or it cannot be opened ({damage.reason})"
        return "" if held == live.passages else f"it holds {held} of {live.passages} passages"

    async def _difference(self, live: LiveIndex) -> str:
        """Reads all that is stored. An edition of before has no digest yet: it is compared with the database."""
        try:
            stored = await content_of(self.index.points(live.generation_id))
        except IndexDamagedError as damage:
            return f"it cannot be read ({damage.reason})"
        if stored.digest != live.digest and (words := await self._compared(live, stored)):
            return words
        await self.registry.note_index(live.generation_id, stored.digest)
        return ""

    async def _compared(self, live: LiveIndex, stored: IndexContent) -> str:
        generation = await self.registry.live(live.book_id)
        try:
            wanted = await content_of(self._points(generation))
        except NotRebuildableError:
            return "" if live.digest is None else "its content has changed"
        missing, altered, extra = stored.difference(wanted)
        if not missing + extra + altered:
            return ""
        return f"{missing} passages are missing, {altered} are altered, {extra} are not of the book"

    async def _rebuild(self, live: LiveIndex) -> None:
        generation = await self.registry.live(live.book_id)
        if generation.generation_id != live.generation_id:
            return  # another edition was published
        built = await build(
            self.index, generation.generation_id, generation.dimension, self._points(generation)
        )
        if len(built) != live.passages:
            raise NotRebuildableError(
                f"The rebuilt index of {live.book_id} holds {len(built)} of {live.passages} passages:"
                " run `affidavit index rebuild` again."
            )
        await self.index.announce(live.book_id, generation.generation_id)
        await self.registry.note_index(generation.generation_id, built.digest)

    def _points(self, generation: Generation) -> AsyncIterator[list[Point]]:
        return stored_points(self.registry, generation, [range(generation.lexicon.passages)])


async def stored_points(
    registry: Registry, generation: Generation, runs: Sequence[range]
) -> AsyncIterator[list[Point]]:
    """Of the passages at these positions, as the ingest has made them."""
    places = await registry.places(generation.generation_id)
    for start, end in ((start, min(start + BATCH, run.stop)) for run in runs for start in run[::BATCH]):
        try:
            passages = await registry.contents(generation.generation_id, start, end - start)
        except PassageDamagedError as damage:
            raise NotRebuildableError(
                f"Passages of {generation.book_id} are {damage.upstream}: ingest the book again."
            ) from damage
        texts = ["\n".join(windows_of(passage)) for passage in passages]
        known = await registry.stored_windows(texts, generation.embedder, generation.dimension)
        if any(windows is None for windows in known):
            raise NotRebuildableError(
                f"The database lacks vectors of {generation.book_id}: ingest the book again."
            )
        words = [lexical.words(searchable(passage), generation.language) for passage in passages]
        yield [
            point_of(
                passage,
                _place(passage, places, position),
                windows,
                lexical.passage_weights(counted, generation.lexicon),
            )
            for position, (passage, counted, windows) in enumerate(
                zip(passages, words, known, strict=True), start
            )
            if windows is not None
        ]


def _place(passage: Passage, places: Mapping[str, int | None], position: int) -> int:
    """In an edition from before documents had places, its position."""
    place = places.get(passage.filename)
    return position if place is None else place + passage.chunk_index


async def build(
    index: Index, generation: UUID, dimension: int, batches: AsyncIterator[Sequence[Point]]
) -> IndexContent:
    """Pipelining: the next batch is made while the index, another process, stores the last one."""
    going = asyncio.ensure_future(index.create(generation, dimension))
    try:
        async for points in batches:
            await going
            going = asyncio.ensure_future(index.upsert(generation, points))
    finally:
        await asyncio.wait([going])
    await going
    await index.seal(generation)
    return await content_of(index.points(generation))


async def extend(
    index: Index, generation: Generation, of: UUID, before: str,
    gone: AsyncIterator[Sequence[Point]], come: AsyncIterator[Sequence[Point]],
) -> IndexContent:  # fmt: skip
    """Makes the index of a generation of another one's, which had the digest `before`. `IndexDamagedError` if the points of
    both are not, to the bit, what they were."""
    left, sent, names = IndexContent(), IndexContent(), []
    async for points in gone:
        left.add(points)
        names += [point.chunk_id for point in points]
    await index.extend(generation.generation_id, generation.dimension, of, names)
    async for points in come:
        sent.add(points)
        await index.upsert(generation.generation_id, points)
    await index.seal(generation.generation_id)
    stored = await content_of(index.points(generation.generation_id))
    if not stored.continues(before, left, sent):
        raise IndexDamagedError("its points are not what they were")
    return stored


async def content_of(batches: AsyncIterator[Sequence[Point]]) -> IndexContent:
    """A point that is stored twice counts twice, so the digest is another one."""
    found = IndexContent()
    async for points in batches:
        await asyncio.to_thread(found.add, points)
    return found


def searchable(passage: Passage) -> str:
    """The words to search: the passage with its headings, though these are never quoted."""
    headings = dict.fromkeys(
        [passage.chapter, passage.section, *(item.heading for item in passage.sentences)]
    )
    return f"{'. '.join(headings)}.\n{passage.text}"


def point_of(passage: Passage, position: int, windows: Windows, terms: dict[int, float]) -> Point:
    payload = {name: getattr(passage, name) for name in ("chapter", "section", "module", "difficulty")}
    payload |= {"tags": list(passage.tags), "position": position}
    return Point(passage.chunk_id, windows, terms, payload)
