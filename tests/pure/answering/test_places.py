"""Documents have places with room between them: what is kept stays, whatever comes between."""

from hypothesis import given
from hypothesis import strategies as st

from ingest.places import ROOM, places
from tests.build import steady

counts = st.lists(st.integers(0, 300), max_size=20)


def ends(counts: list[int], found: list[int]) -> list[int]:
    return [place + count for place, count in zip(found, counts, strict=True)]


@steady
@given(counts)
def test_at_first_there_is_room_for_all_and_between_them(counts: list[int]) -> None:
    found = places(counts, [None] * len(counts))
    assert found is not None
    assert all(place >= end for place, end in zip(found[1:], ends(counts, found), strict=False))
    assert all(place < ROOM * (sum(counts) + len(counts)) for place in found)


# Seen red with a place in the middle, whatever its size.
@steady
@given(counts, st.data())
def test_what_is_kept_stays_and_the_order_is_the_books(counts: list[int], data: st.DataObject) -> None:
    known: list[int | None] = list(places(counts, [None] * len(counts)) or [])
    sizes = list(counts)
    for _ in range(data.draw(st.integers(0, 8))):
        at = data.draw(st.integers(0, len(sizes)))
        sizes.insert(at, data.draw(st.integers(0, 300)))
        known.insert(at, None)
    found = places(sizes, known)
    if found is None:
        return
    assert all(place in (None, made) for place, made in zip(known, found, strict=True))
    assert all(place >= end for place, end in zip(found[1:], ends(sizes, found), strict=False))


def test_a_file_may_come_a_dozen_times_between_the_same_two() -> None:
    known: list[int | None] = [0, ROOM]
    sizes = [10, 10]
    for _ in range(12):
        sizes.insert(1, 50)
        known.insert(1, None)
        found = places(sizes, known)
        assert found is not None
        known = list(found)


def test_without_room_or_in_another_order_there_are_none() -> None:
    assert places([10, 5, 10], [0, None, 12]) is None
    assert places([1, 1], [5, 3]) is None
    assert places([4, 1], [5, 7]) is None
    assert places([], []) == []
