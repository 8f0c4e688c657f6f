"""Months as they are known: what is sealed, anchored, witnessed, archived, missing, erased and held; and their picture."""

from datetime import UTC, date, datetime
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from audit.checking.month_tiers import StoredMonth
from audit.checking.status import Backlog, Status
from audit.coverage.months import MonthCoverage, of_months
from audit.coverage.picture import LANES, picture

NOVEMBER = date(2026, 11, 1)
NOW = datetime(2026, 11, 20, tzinfo=UTC)


def stored(**about: Any) -> StoredMonth:
    known: dict[str, Any] = {
        "month": NOVEMBER, "is_attached": True, "has_table": True, "rows": 10, "leaves": 10, "tree_size": 10, "state": None,
        "is_verified": False, "archived": None, "erased": 0, "keyless": 0, "manifest_key": None, "manifest_version": None,
        "manifest_sha256": None,
    }  # fmt: skip
    return StoredMonth(**known | about)


def status(months: list[StoredMonth], **about: Any) -> Status:
    nothing = Backlog(0, None)
    known: dict[str, Any] = {
        "records": [], "evidence": [], "partitions": [], "months_ahead": 3, "unsealed": nothing, "open": nothing, "rowless": [],
        "spool": [], "months": months, "heads": {}, "breaks": [], "lost": [],
    }  # fmt: skip
    return Status(**known | about)


def known_of(one: StoredMonth, *holds: Any, witnessed: int = 0, **about: Any) -> MonthCoverage:
    (found,) = of_months(status([one], **about), {NOVEMBER: witnessed}, holds, NOW)
    return found


def test_a_month_in_the_database_is_counted_there() -> None:
    found = known_of(stored(leaves=8), witnessed=5, evidence=[{"month": "2026-11", "anchored_size": 7}])
    assert (found.records, found.sealed, found.anchored, found.witnessed) == (10, 8, 7, 5)
    assert (found.archived, found.missing) == (0, 0)


def test_a_month_in_a_verified_archive_is_counted_there() -> None:
    found = known_of(
        stored(is_attached=False, has_table=False, rows=0, state="dropped", is_verified=True, archived=10)
    )
    assert (found.tier, found.records, found.archived, found.missing) == ("archived", 10, 10, 0)


# Seen red with an archive counted that was never verified.
def test_what_is_in_no_table_and_no_verified_archive_is_missing() -> None:
    found = known_of(stored(is_attached=False, has_table=False, rows=0, state="written", archived=10))
    assert (found.tier, found.records, found.archived, found.missing) == ("missing", 0, 0, 10)


def test_a_leaf_without_its_row_is_missing() -> None:
    assert known_of(stored(rows=9), rowless=[("2026-11", 1, 4)]).missing == 1


@pytest.mark.parametrize(
    ("since", "until", "covers"),
    [
        (None, None, True),
        (datetime(2026, 11, 30, tzinfo=UTC), None, True),
        (datetime(2026, 12, 1, tzinfo=UTC), None, False),
        (None, datetime(2026, 11, 1, tzinfo=UTC), False),
        (None, datetime(2026, 11, 1, 0, 0, 1, tzinfo=UTC), True),
    ],
)
def test_a_hold_is_shown_in_the_months_that_it_may_cover(since: Any, until: Any, covers: bool) -> None:
    assert known_of(stored(), (since, until)).holds == int(covers)


def test_the_picture_is_well_formed_and_each_cell_says_what_it_means() -> None:
    months = [
        MonthCoverage(date(2025 + n // 12, n % 12 + 1, 1), "hot", n, n, n, 0, 0, n % 2, 12_345, 1)
        for n in range(24)
    ]
    drawn = ET.fromstring(str(picture(months)))
    titles = [title.text for title in drawn.iter("title")]
    assert len(titles) == 24 * len(LANES)
    assert "2025-02: missing 1 (hot)" in titles
    assert [text.text for text in drawn.iter("text") if text.get("class") == "label year"] == ["2025", "2026"]
    assert {text.text for text in drawn.iter("text") if text.get("class") == "count"} == {"12k", "1"}
