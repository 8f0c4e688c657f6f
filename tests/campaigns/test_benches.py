"""Smoke run of every bench, at sizes whose figures mean nothing: each ends, and shows a figure.

Seen red on `bench.engine`, which read one number from a lock file that had two.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT

TINY = ROOT / "tests" / "data" / "tiny_eval"
WITHIN_S = 300
BENCHES = {
    "account": ["--seconds", "0.5"],
    "archive": ["--rows", "2000"],
    "console": ["--rows", "2000", "--seconds", "1"],
    "drill": ["--rows", "2000"],
    "engine": ["--seconds", "0.5"],
    "engines": ["--seconds", "1"],
    "gate": [],
    "hostile": ["--seconds", "2"],
    "ingest": ["--copies", "1", "--passages", "300", "--million", "300"],
    "ledger": ["--rounds", "1"],
    "load": ["--seconds", "3"],
    "overload": ["--seconds", "3"],
    "oversampling": ["--passages", "200"],
    "package": ["--rows", "2000"],
    "retrieval": ["--passages", "300"],
    "signing": ["--rounds", "1", "--requests", "50"],
    "verify": ["--rows", "2000"],
}

WITH_TESTS_OF_THEIR_OWN = {"instructions", "publish"}  # test_instructions.py, tests/pure/test_bench_page.py


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    """A small set under the names of two large ones, each question several times: a certificate needs thirty."""
    folder = tmp_path / "sets"
    for name in ("xquad_en", "xquad_en_dropped"):
        shutil.copytree(TINY, folder / name)
        _repeat(folder / name / "queries.jsonl", _asked_again)
        _repeat(folder / name / "qrels.tsv", lambda line, n: f"{n}-{line}" if "query-id" not in line else "")
    (folder / "oos").mkdir()
    shutil.copy(TINY / "out_of_scope.jsonl", folder / "oos" / "queries.jsonl")
    _repeat(folder / "oos" / "queries.jsonl", _asked_again)
    return folder


def _asked_again(line: str, n: int) -> str:
    return line.replace('"_id": "', f'"_id": "{n}-', 1).replace('"text": "', f'"text": "({n}) ', 1)


def _repeat(file: Path, renamed: Callable[[str, int], str]) -> None:
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines, *(renamed(line, n) for n in range(7) for line in lines)]))


@pytest.mark.parametrize("bench", BENCHES)
def test_a_bench_ends_and_shows_its_figures(bench: str, sets: Path, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{bench}", *BENCHES[bench]], cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {"BENCH_RESULTS": str(results), "BENCH_SETS": str(sets)}, timeout=WITHIN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert {line["bench"] for line in json.loads(results.read_text())} == {bench}


def test_make_bench_runs_each_of_them() -> None:
    assert set(BENCHES) | WITH_TESTS_OF_THEIR_OWN == {
        line.split("bench.")[1].split()[0]
        for line in (ROOT / "Makefile").read_text().splitlines()
        if "-m bench." in line
    }
