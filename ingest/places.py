"""Places of documents in the order of a book, with room between them: one that grows or comes moves no other. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from ingest.read.document import Document

ROOM = (
    1 << 20
)  # for each passage at first; a book of a billion passages stays below 2^53, where JSON is exact everywhere


@dataclass(frozen=True, slots=True)
class Placed:
    """A document in an edition: where its passages are, and the place of the first in the order of the book."""

    document: Document  # without its sections
    positions: range
    place: int
    kept: range | None = None  # its positions in the edition before, if its file is as it was


def placed(
    documents: Sequence[tuple[Document, int]], kept: Mapping[str, range], found: Sequence[int] | None = None
) -> list[Placed]:
    """Documents, in order, with the numbers of their passages; in the places that were found for them, or anew."""
    counts = [count for _, count in documents]
    found = found or places(counts, [None] * len(counts)) or []
    firsts = accumulate(counts, initial=0)
    return [
        Placed(document, range(first, first + count), place, kept.get(document.filename))
        for (document, count), first, place in zip(documents, firsts, found, strict=False)
    ]


def places(counts: Sequence[int], known: Sequence[int | None]) -> list[int] | None:
    """The place of each document's first passage; its others follow one by one.

    A document with a known place keeps it, and the others get the room between. None if there is too little, or if the
    known ones are in another order.
    """
    made: list[int] = []
    end = 0
    for is_known, run in groupby(range(len(counts)), key=lambda number: known[number] is not None):
        numbers = list(run)
        until = next(iter(known[numbers[-1] + 1 :]), None)
        found = [known[number] for number in numbers]
        if not is_known:
            found = _spread(end, until, [counts[number] for number in numbers])
        for number, place in zip(numbers, found, strict=True):
            if place is None or place < end:
                return None
            made.append(place)
            end = place + counts[number]
    return made


def _spread(start: int, until: int | None, counts: Sequence[int]) -> list[int | None]:
    """With the same gap before and behind each; without an end with as much as they may ever need."""
    free = ROOM * (sum(counts) + 1) if until is None else until - start - sum(counts)
    gap = free // (len(counts) + 1)
    made: list[int | None] = []
    for count in counts:
        start += gap
        made.append(start)
        start += count
    return made
