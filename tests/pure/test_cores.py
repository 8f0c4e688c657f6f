"""How many cores an ingest uses: those that it may use, not those that the machine has."""

import os
from pathlib import Path

import pytest

from engine import cores


@pytest.mark.parametrize(
    ("cpu_max", "expected"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("", 8), ("9900000 100000", 8)],
)  # fmt: skip
def test_a_containers_quota_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu_max: str, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    (tmp_path / "cpu.max").write_text(cpu_max)
    assert cores.usable(tmp_path / "cpu.max") == expected


# Seen red with `os.cpu_count()`.
def test_a_core_that_the_process_may_not_use_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert cores.usable(tmp_path / "no container") == 1
