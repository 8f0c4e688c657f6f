"""Exact search of a generation in this process: one matrix product, and one sum over the postings of the question's words. Pure.

Nothing is approximated, and equal scores keep the order in which the points were stored, which is the book's.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.models import Filters, Hit, Point, Vector

Places = NDArray[np.intp]  # of points, in the order in which they were stored

_FILTERED = tuple(field.name for field in fields(Filters))


class StoredPoint(NamedTuple):
    """A point with its words as two arrays: a dictionary of them takes ten times the memory."""

    chunk_id: str
    windows: Vector
    term_ids: NDArray[np.uint32]
    weights: Vector
    payload: dict[str, Any]

    @classmethod
    def of(cls, point: Point) -> "StoredPoint":
        count = len(point.terms)
        return cls(
            point.chunk_id, np.array(point.windows, "<f4"), np.fromiter(point.terms, "<u4", count),
            np.fromiter(point.terms.values(), "<f4", count), point.payload,
        )  # fmt: skip

    def point(self) -> Point:
        terms = dict(zip(self.term_ids.tolist(), self.weights.tolist(), strict=True))
        return Point(self.chunk_id, self.windows, terms, self.payload)


class ExactSearch:
    """The points of a generation, laid out for searching."""

    def __init__(self, points: Sequence[StoredPoint], dimension: int) -> None:
        self._names = [point.chunk_id for point in points]
        self._positions = [point.payload.get("position") for point in points]
        self._all: Places = np.arange(len(points))
        self._places = {name: place for place, name in enumerate(self._names)}
        self._windows = _joined((point.windows for point in points), np.float32).reshape(-1, dimension)
        self._windows_each = np.array([len(point.windows) for point in points], np.intp)
        self._first_windows = np.cumsum(self._windows_each) - self._windows_each
        self._postings = _Postings(points)
        self._holding = _places_by_value(points)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def numbers(self) -> int:
        """Of all vectors: what a search has to read."""
        return self._windows.size

    def search(
        self, dense: Vector, terms: dict[int, float], limit: int, filters: Filters, among: Sequence[str]
    ) -> list[Hit]:
        """The top `limit` by each score, every hit with both; `ValueError` for a vector of another dimension."""
        cosines, weights = self._cosines(dense), self._postings.sums(terms)
        where = self._where(filters, among)
        by_meaning = _top(cosines, where, limit)
        by_words = _top(weights, where[weights[where] != 0], limit)
        found = np.union1d(by_meaning, by_words)
        hits = zip(found.tolist(), cosines[found].tolist(), weights[found].tolist(), strict=True)
        names, positions = self._names, self._positions
        return [Hit(names[place], cosine, weight, positions[place]) for place, cosine, weight in hits]

    def _cosines(self, dense: Vector) -> NDArray[Any]:
        """Of each point's best window."""
        cosines = self._windows @ dense
        if len(cosines) == len(self._names):
            return cosines
        return np.maximum.reduceat(cosines, self._first_windows)

    def _where(self, filters: Filters, among: Sequence[str]) -> Places:
        where = self._all
        if among:
            named = {self._places[name] for name in among if name in self._places}
            where = np.array(sorted(named), np.intp)
        for name in _FILTERED:
            for value in _values(getattr(filters, name)):
                holding = self._holding.get((name, value), np.zeros(0, np.intp))
                where = np.intersect1d(where, holding, assume_unique=True)
        return where


class _Postings:
    """For each word the points that hold it, and its weights there."""

    def __init__(self, points: Sequence[StoredPoint]) -> None:
        term_ids = _joined((point.term_ids for point in points), np.uint32)
        order = np.argsort(term_ids, kind="stable")
        places = np.repeat(np.arange(len(points)), [len(point.term_ids) for point in points])
        self._count = len(points)
        self._places = places[order]
        self._weights = _joined((point.weights for point in points), np.float32)[order]
        known, firsts = np.unique(term_ids[order], return_index=True)
        lasts = np.append(firsts, len(term_ids))[1:]
        # Pairs of numbers, which the garbage collector leaves alone: it would look at each slice.
        ends = zip(firsts.tolist(), lasts.tolist(), strict=True)
        self._ends = dict(zip(known.tolist(), ends, strict=True))

    def sums(self, terms: dict[int, float]) -> NDArray[np.float64]:
        """Of all points; 0 for one without any of the words."""
        found = [(slice(*self._ends[term]), factor) for term, factor in terms.items() if term in self._ends]
        if not found:
            return np.zeros(self._count)
        places = np.concatenate([self._places[part] for part, _ in found])
        weights = np.concatenate([self._weights[part] * factor for part, factor in found])
        return np.asarray(np.bincount(places, weights, self._count), np.float64)


def _top(scores: NDArray[Any], where: Places, limit: int) -> Places:
    """The places of the best scores among these; of equal ones at the end of the list the first."""
    if len(where) <= limit:
        return where
    among = scores[where]
    least = np.partition(among, -limit)[-limit]
    better = where[among > least]
    return np.concatenate([better, where[among == least][: limit - len(better)]])


def _places_by_value(points: Iterable[StoredPoint]) -> dict[tuple[str, Any], Places]:
    found: dict[tuple[str, Any], list[int]] = {}
    for place, point in enumerate(points):
        for name in _FILTERED:
            for value in _values(point.payload.get(name)):
                found.setdefault((name, value), []).append(place)
    return {key: np.array(places, np.intp) for key, places in found.items()}


def _values(value: Any) -> Iterator[Any]:
    """What a field holds, or what is asked of it: nothing, one value, or several different ones."""
    if isinstance(value, list | tuple):
        yield from dict.fromkeys(value)
    elif value:
        yield value


def _joined(parts: Iterable[NDArray[Any]], kind: type) -> NDArray[Any]:
    held = list(parts)
    return np.concatenate(held) if held else np.zeros(0, kind)
