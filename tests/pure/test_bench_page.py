"""The published page of the benchmarks: every figure, what it was measured on, and each goal that was missed."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import publish, results
from tests.conftest import ROOT

MEASURED = {"bench": "ledger", "measured": {"on": "2026-11-20", "commit": "abc1234", "load_before": 0.1}}


def _figure(value: float | str, goal: str, bench: str = "ledger") -> dict[str, Any]:
    return {"bench": bench, "what": "requests per second", "value": value, "goal": goal}


def _page(*lines: dict[str, Any], plots: frozenset[str] = frozenset()) -> str:
    return publish.page(lines, "a machine", set(plots))


@pytest.mark.parametrize(
    ("value", "goal", "is_missed"),
    [(99, "≥ 100", True), (100, "≥ 100", False), (21.5, "≤ 20", True), (20, "≤ 20 (ms)", False), ("none", "≤ 1", False), (5, "", False),
     (1_500, "≥ 2,000", True)],
)  # fmt: skip
def test_a_goal_that_was_missed_says_so(value: float | str, goal: str, is_missed: bool) -> None:
    """Seen red on a comparison that read "2,000" as 2."""
    assert ("**missed**" in _page(MEASURED, _figure(value, goal))) == is_missed


def test_each_bench_tells_what_it_measures_when_and_on_which_code() -> None:
    page = _page(MEASURED, _figure(1, ""))
    assert "Ledger benchmark" in page
    assert "2026-11-20 at `abc1234`, load before 0.1" in page


def test_a_bench_that_did_not_run_has_no_section() -> None:
    assert "## Ledger" not in _page(_figure(1, "", "verify"))


def test_figures_have_three_digits() -> None:
    page = _page(_figure(0.0123456, ""), _figure(7_919.4, ""), _figure(2.3978, ""), _figure(1_000_000, ""))
    assert all(f"| {shown} |" in page for shown in ("0.0123", "7,919", "2.40", "1,000,000"))


def test_lines_with_other_fields_are_a_table_of_their_own_without_empty_columns() -> None:
    row = {
        "bench": "retrieval",
        "system": "ours",
        "passages": 5000,
        "p50_ms": 1.25,
        "note": "",
        "peak_mb": None,
    }
    page = _page(row, _figure(1, "", "retrieval"))
    assert "| system | passages | p50 ms |\n| --- | --- | --- |\n| ours | 5,000 | 1.25 |" in page
    assert "| what | measured | goal |" in page


def test_a_plot_stands_in_the_section_of_its_bench() -> None:
    assert "![ledger](ledger-growth.svg)" in _page(
        _figure(1, ""), plots=frozenset({"ledger-growth.svg", "other.svg"})
    )


def test_every_bench_that_make_runs_has_its_place_on_the_page() -> None:
    run = {
        line.split("bench.")[1].split()[0]
        for line in (ROOT / "Makefile").read_text().splitlines()
        if "-m bench." in line
    }
    assert run - {"publish"} <= set(publish.BENCHES)


def test_each_result_carries_what_it_was_measured_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results.json")
    results.record("ledger", [{"what": "a", "value": 1, "goal": ""}])
    results.record("ledger", [{"what": "b", "value": 2, "goal": ""}])
    measured, figure = json.loads((tmp_path / "results.json").read_text())
    assert measured["measured"].keys() == {"on", "commit", "load_before"}
    assert figure["what"] == "b"
