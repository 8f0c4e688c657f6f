"""The coverage as it was lately: one reading for all who ask, and its failure is told to whoever asks next."""

import asyncio

import pytest

from audit.coverage.recent import FRESH_S, SHARE_MAX, Coverage, RecentCoverage


class Reading:
    """One that takes longer than any page waits, and then fails or not."""

    def __init__(self, *failures: Exception | None) -> None:
        self.may_end, self.begun, self._failures = asyncio.Event(), 0, list(failures)

    async def __call__(self) -> Coverage:
        self.begun += 1
        await self.may_end.wait()
        if failure := self._failures.pop(0):
            raise failure
        return "counted"  # type: ignore[return-value]


async def ended(coverage: RecentCoverage, reading: Reading) -> None:
    reading.may_end.set()
    assert coverage._reading
    await asyncio.wait([coverage._reading])


# Seen red: a reading that failed late was begun again, and nobody was told.
async def test_a_reading_that_fails_late_is_the_failure_of_who_asks_next() -> None:
    reading = Reading(OSError("gone"), None)
    coverage = RecentCoverage(reading, lambda: 0.0, patience_s=0.0)
    assert await coverage.get() is None
    await ended(coverage, reading)
    with pytest.raises(OSError, match="gone"):
        await coverage.get()
    coverage._patience_s = 60.0
    assert (await coverage.get(), reading.begun) == ("counted", 2)  # type: ignore[comparison-overlap]


async def test_one_reading_fails_for_all_who_wait_for_it_and_only_for_them() -> None:
    reading = Reading(OSError("gone"), None)
    coverage = RecentCoverage(reading, lambda: 0.0, patience_s=60.0)
    reading.may_end.set()
    told = await asyncio.gather(*(coverage.get() for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in told] == [OSError] * 3
    assert (await coverage.get(), reading.begun) == ("counted", 2)  # type: ignore[comparison-overlap]


async def test_what_was_counted_late_is_shown_until_it_is_old() -> None:
    reading, at = Reading(None, None), 0.0
    coverage = RecentCoverage(reading, lambda: at, patience_s=0.0)
    assert await coverage.get() is None
    await ended(coverage, reading)
    assert (await coverage.get(), reading.begun) == ("counted", 1)  # type: ignore[comparison-overlap]
    at, coverage._patience_s = FRESH_S + 1, 60.0
    assert (await coverage.get(), reading.begun) == ("counted", 2)  # type: ignore[comparison-overlap]


# Seen red with fifteen seconds for every log: of one that takes ten to read, a processor was busy with nothing else.
async def test_what_took_long_to_count_is_shown_for_longer() -> None:
    reading, at = Reading(None, None), 0.0
    coverage = RecentCoverage(reading, lambda: at, patience_s=0.0)
    assert await coverage.get() is None
    at = 10.0
    await ended(coverage, reading)
    at, coverage._patience_s = 10.0 + 10.0 / SHARE_MAX - 1, 60.0
    assert (await coverage.get(), reading.begun) == ("counted", 1)  # type: ignore[comparison-overlap]
    at += 2
    assert (await coverage.get(), reading.begun) == ("counted", 2)  # type: ignore[comparison-overlap]
