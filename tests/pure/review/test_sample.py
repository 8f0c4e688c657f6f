"""A sample is what population and head give, for whoever draws it."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.errors import SampleError
from audit.review.sample import (
    Drawable,
    Sample,
    StatedHead,
    Wish,
    allocate,
    draw,
    first_head,
    heads_of,
    read_sample,
    reason_of,
    seed_of,
    state,
    wish_of,
)
from tests.second_draw import population_digest, redraw

HEADS = [StatedHead(date(2026, 10, 1), 400, bytes(32))]
WISH = Wish(datetime(2026, 10, 1, tzinfo=UTC), None, ("reason", "confidence", "book"), 12)
SAMPLE_ID = UUID(int=1)

strata = st.tuples(
    st.sampled_from([None, "not_covered", "citation_failed"]), st.sampled_from([None, "high", "low"]), st.sampled_from(["a", 'é"', None])
)  # fmt: skip
populations = st.dictionaries(st.uuids(), strata, min_size=1, max_size=80)


def note(text: str, *more: str) -> str:
    """A head as the vault has it; `more` are signature lines of keys that nobody knows."""
    return f"{text}\n\n— affidavit q83vEgE=\n{''.join(f'— {line}{chr(10)}' for line in more)}"


def candidates(population: dict[UUID, tuple[str | None, ...]]) -> list[Drawable]:
    return [Drawable(str(log_id), stratum) for log_id, stratum in population.items()]


def drawn(found: list[Drawable], size: int = 12, head: str = "a head") -> Sample:
    return draw(SAMPLE_ID, state(replace(WISH, size=size), "log", HEADS, found), 7, note(head), iter(found))


FIXED = [
    Drawable(str(UUID(int=number)), (None, ("high", "low")[number % 2], f"book {number % 3}"))
    for number in range(60)
]


# Seen red with a digest over the bytes of the id in place of its characters.
@settings(max_examples=150)
@given(populations, st.integers(1, 90), st.text("aé0 ", min_size=1, max_size=5))
def test_whoever_writes_the_draw_from_its_specification_draws_the_same(
    population: dict[UUID, tuple[str | None, ...]], size: int, head: str
) -> None:
    found = candidates(population)
    plain = {log_id: list(stratum) for log_id, stratum in found}
    if size < min(len(found), len(set(population.values()))):
        with pytest.raises(SampleError, match="draw at least"):
            drawn(found, size, head)
        return
    sample = drawn(found, size, head)
    assert sample.statement["digest"] == population_digest(plain)
    assert sample.as_json()["records"] == redraw(sample.file(), plain)


@given(st.dictionaries(strata, st.integers(1, 500), min_size=1), st.integers(1, 300))
def test_each_stratum_gives_one_and_the_rest_is_proportional(
    counts: dict[tuple[str | None, ...], int], size: int
) -> None:
    size = max(size, len(counts))
    given_out, total = allocate(counts, size), sum(counts.values())
    assert sum(given_out.values()) == min(size, total)
    assert all(1 <= given_out[each] <= counts[each] for each in counts)
    if all(size * count >= total for count in counts.values()) and size < total:
        assert all(abs(size * counts[each] / total - given_out[each]) < 1 for each in counts)


def test_a_sample_comes_back_from_its_file() -> None:
    sample = drawn(FIXED)
    assert read_sample(sample.file()) == sample
    assert wish_of(sample.statement) == replace(WISH, size=12)
    assert heads_of(sample.statement) == HEADS


@pytest.mark.parametrize(
    "content", [b"", b"{}\n", b"[]\n", b'{"format":"affidavit sample 1"}\n', b"\xff", b'{"a":1e999}\n']
)
def test_what_is_no_sample_is_refused(content: bytes) -> None:
    with pytest.raises(SampleError):
        read_sample(content)


def test_a_file_whose_bytes_were_changed_is_refused() -> None:
    with pytest.raises(SampleError, match="not canonical"):
        read_sample(drawn(FIXED).file().replace(b'"size":12', b'"size": 12'))


# Seen red without the comparison of digests.
@pytest.mark.parametrize("change", ["stratum", "removed", "added", "order"])
def test_a_changed_population_is_never_drawn_from(change: str) -> None:
    statement = state(WISH, "log", HEADS, FIXED)
    changed = {
        "stratum": [FIXED[0]._replace(stratum=(None, "low", "book 0")), *FIXED[1:]],
        "removed": FIXED[1:],
        "order": [*FIXED[1:], FIXED[0]],
        "added": [*FIXED, Drawable(str(UUID(int=99)), FIXED[0].stratum)],
    }[change]
    with pytest.raises(SampleError, match="does not have the population"):
        draw(SAMPLE_ID, statement, 7, note("a head"), changed)


def test_the_seed_is_from_the_first_head_that_has_the_statement() -> None:
    """Leaf 7 is the eighth: a head of 7 leaves was signed before the population had been stated."""
    assert first_head(7, [3, 7, 8, 12]) == 8
    assert first_head(7, [3, 7]) is None


def test_another_head_draws_other_records() -> None:
    assert drawn(FIXED, head="a head").records != drawn(FIXED, head="another head").records
    assert seed_of(note("a head")) != seed_of(note("another head"))


def test_signature_lines_that_nobody_knows_change_no_seed() -> None:
    assert seed_of(note("a head", "stranger AAAAAAE=", "stranger AAAAAAI=")) == seed_of(note("a head"))


def test_a_head_that_is_no_note_gives_no_sample() -> None:
    with pytest.raises(SampleError, match="not a sample's file"):
        read_sample(replace(drawn(FIXED), head="a head").file())


def test_the_reason_of_the_row_binds_the_whole_statement() -> None:
    statement = state(WISH, "log", HEADS, FIXED)
    assert reason_of(statement) != reason_of(statement | {"size": 13})


def test_every_record_is_drawn_about_equally_often() -> None:
    """Over 400 heads each of 60 records is in a fifth of the samples."""
    seen = Counter(each.log_id for number in range(400) for each in drawn(FIXED, head=str(number)).records)
    assert len(seen) == 60
    assert min(seen.values()) > 45 and max(seen.values()) < 120


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"strata": ()}, "strata"), ({"strata": ("book", "book")}, "strata"), ({"strata": ("end_user",)}, "strata"),
        ({"size": 0}, "from 1"), ({"size": 2001}, "from 1"), ({"until": datetime(2026, 9, 1, tzinfo=UTC)}, "empty"),
    ],
)  # fmt: skip
def test_a_wish_that_cannot_be_met_says_so(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(WISH, **wrong).check()  # type: ignore[arg-type]


def test_a_period_without_questions_has_no_sample() -> None:
    with pytest.raises(SampleError, match="nothing to draw"):
        state(WISH, "log", HEADS, [])
