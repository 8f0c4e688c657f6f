"""Charts as data and as pictures: what they say is what was counted, and what others wrote stays text."""

import csv as reader
import xml.etree.ElementTree as ET
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.charts.drawing.axes import Axis, scale_of
from audit.charts.drawing.drawn import csv, svg
from audit.charts.figures.catalogue import NAMES, chart_of
from audit.charts.figures.chart import Chart
from audit.charts.figures.choice import ChartChoice
from audit.charts.rollups.buckets import ERROR, margin_bucket, percentile, time_bucket
from tests.pure.charts.counted import BEGIN, CountedLog, fact, logged, month_of_facts

OCTOBER = ChartChoice(date(2026, 10, 1), date(2026, 11, 1))
PRICES = {"m": (1.0, 5.0)}
HOSTILE = "=cmd|'/c calc'!A1<script>alert(1)</script>]]>&\"'\x00\x1b[2J\u202e"


def drawn(name: str, log: CountedLog) -> Chart:
    return chart_of(name, log, PRICES, "USD")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [0, 1, 600])
@pytest.mark.parametrize("is_linked", [False, True])
def test_every_chart_is_whole_xml_with_title_and_description(name: str, count: int, is_linked: bool) -> None:
    log = logged(OCTOBER, month_of_facts(count))
    chart = drawn(name, log)
    picture = ET.fromstring(svg(chart, (lambda _: "/console/charts?x=1&y=2") if is_linked else None))
    first, second = list(picture)[:2]
    assert (first.tag.split("}")[1], second.tag.split("}")[1]) == ("title", "desc")
    assert first.text == chart.title
    assert second.text == chart.description
    assert picture.get("role") == ("group" if is_linked else "img")
    assert chart.is_empty == ("Nothing in this period" in svg(chart)) or count


@pytest.mark.parametrize("name", NAMES)
def test_what_others_wrote_is_text_in_the_picture_and_no_formula_in_the_csv(name: str) -> None:
    """Seen red with `escape` left out of `plain`, and without the apostrophe of `spreadsheet.cell`."""
    hostile = fact(
        book_id=HOSTILE, client_id=HOSTILE, reason=HOSTILE, model_used=HOSTILE, chapter=HOSTILE, code_version=HOSTILE,
        tokens_input=1, total_latency_ms=5, best_score=0.7, threshold=0.6, embedder=HOSTILE,
    )  # fmt: skip
    chart = drawn(
        name,
        logged(OCTOBER, [hostile, hostile._replace(outcome="refused"), hostile._replace(outcome=HOSTILE)]),
    )
    picture = svg(chart, lambda chosen: "?" + "&".join(chosen))
    tree = ET.fromstring(picture)
    assert not [part for part in tree.iter() if part.tag.endswith("script")]
    assert not any(character in picture for character in "\x00\x1b\u202e")
    rows = list(reader.reader(StringIO(csv(chart).removeprefix("\ufeff"))))
    assert rows
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "@", "\t"))]


def test_requests_are_drawn_by_day_and_those_of_a_flood_count_for_all() -> None:
    chart = drawn("outcomes", logged(ChartChoice(date(2026, 10, 1), date(2026, 10, 3)), [
        fact(), fact(repeat_count=40, outcome="failed", is_question=False), fact(BEGIN + timedelta(days=1)), fact(outcome="recorded"),
    ]))  # fmt: skip
    assert list(chart.heading) == ["day", "answered", "failed"]
    assert [list(row) for row in chart.rows] == [["2026-10-01", 1, 40], ["2026-10-02", 1, 0]]


def test_a_leap_day_is_a_day_and_a_change_of_the_clocks_is_none() -> None:
    leap = ChartChoice(date(2024, 2, 28), date(2024, 3, 2))
    moments = [datetime(2024, 2, 29, 23, 59, 59, 999999, UTC), datetime(2024, 3, 1, tzinfo=UTC)]
    chart = drawn("outcomes", logged(leap, [fact(at) for at in moments]))
    assert [row[:2] for row in chart.rows] == [["2024-02-28", 0], ["2024-02-29", 1], ["2024-03-01", 1]]
    october = ChartChoice(date(2026, 10, 25), date(2026, 10, 26))  # 25 hours in Berlin
    hours = [fact(datetime(2026, 10, 25, tzinfo=UTC) + timedelta(hours=hour)) for hour in range(24)]
    assert [list(row) for row in drawn("outcomes", logged(october, hours)).rows] == [["2026-10-25", 24]]


@given(st.dates(date(2020, 1, 1), date(2030, 1, 1)), st.integers(1, 2000))
def test_every_day_of_a_period_is_in_exactly_one_step(since: date, days: int) -> None:
    choice = ChartChoice(since, since + timedelta(days=days))
    steps = choice.steps()
    assert steps == sorted(set(steps))
    assert all(choice.step_of(since + timedelta(days=day)) in steps for day in (0, days // 2, days - 1))
    assert len(steps) <= 110


# Seen red with the lower bound of the bucket in place of its middle.
@given(st.lists(st.integers(1, 10**8), min_size=1), st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_within_its_bound(times: list[int], share: float) -> None:
    histogram: dict[int, int] = {}
    for taken in times:
        histogram[time_bucket(taken)] = histogram.get(time_bucket(taken), 0) + 1
    exact = sorted(times)[max(0, -(-int(share * 100) * len(times) // 100) - 1)]
    found = percentile(histogram, share)
    assert found is not None
    assert abs(found - exact) <= exact * ERROR * 1.000001
    assert 0.05 < ERROR < 0.06


@pytest.mark.parametrize(
    ("score", "threshold", "bucket"),
    [(0.6, 0.6, 0), (0.62, 0.6, 1), (0.6199, 0.6, 0), (0.58, 0.6, -1), (0.5999, 0.6, -1), (0.5799, 0.6, -2), (1, 0, 49), (0, 1, -50)],
)  # fmt: skip
def test_scores_count_by_their_distance_from_the_gate(score: float, threshold: float, bucket: int) -> None:
    assert margin_bucket(score, threshold) == bucket


def test_near_misses_are_counted_on_both_sides_of_the_gate() -> None:
    facts = [
        fact(best_score=score, threshold=0.6, outcome="answered" if score >= 0.6 else "refused")
        for score in (0.59, 0.595, 0.61, 0.9)
    ]
    chart = drawn("gate", logged(OCTOBER, facts))
    assert "Near misses: 2 questions within 0.02 below the gate, 1 within 0.02 above." in chart.description


def test_costs_are_of_models_with_a_price_and_the_others_are_named() -> None:
    facts = [
        fact(model_used="m", tokens_input=1_000_000, tokens_output=100_000),
        fact(model_used="other", tokens_input=5),
    ]
    chart = drawn("cost", logged(OCTOBER, facts))
    assert "1.50 USD" in chart.description
    assert chart.note == "Without a price in `[prices]`: other."


def test_a_change_of_the_model_begins_a_span_and_a_return_begins_another() -> None:
    facts = [fact(BEGIN + timedelta(days=day), model_used=model) for day, model in enumerate("aabba")]
    chart = drawn("changes", logged(OCTOBER, facts))
    assert [row[2:4] for row in chart.rows] == [
        ["a", "2026-10-01 00:00:00+00:00"], ["b", "2026-10-03 00:00:00+00:00"], ["a", "2026-10-05 00:00:00+00:00"],
    ]  # fmt: skip


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["b1", "b2"]),
            st.sampled_from(["c1", None]),
            st.sampled_from(["answered", "refused"]),
        )
    )
)
def test_a_filter_shows_what_a_log_of_these_alone_would_show(who: list[tuple[str, Any, str]]) -> None:
    facts = [
        fact(book_id=book, client_id=client, outcome=outcome, total_latency_ms=9)
        for book, client, outcome in who
    ]
    alone = [one for one in facts if (one.book_id, one.outcome) == ("b1", "answered")]
    chosen = ChartChoice(OCTOBER.since, OCTOBER.until, book_id="b1", outcome="answered")
    for name in ("outcomes", "latency", "books", "clients", "chapters"):
        assert drawn(name, logged(chosen, facts)).rows == drawn(name, logged(chosen, alone)).rows


def test_counts_have_no_ticks_between_whole_numbers() -> None:
    few, many = (scale_of(Axis("questions", low=0, whole=True), [0, most], 0, 100) for most in (1, 40))
    assert (few.ticks(), many.ticks()) == ([0, 1], [0, 10, 20, 30, 40])
