"""Output of the benchmarks: lines on the terminal, and bench/results.json, which they share (publish.py makes a page of it)."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LOAD_BEFORE = os.getloadavg()[0]  # of the minute before this bench began: what else the machine did

# A smoke run has small sets; its meaningless figures go elsewhere.
RESULTS = Path(os.environ.get("BENCH_RESULTS", Path(__file__).resolve().parent / "results.json"))

SETS = Path(
    os.environ.get("BENCH_SETS", Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "eval")
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of the table."""

    what: str
    value: float | str
    goal: str


def show(figure: Figure) -> None:
    print(f"{figure.what:<88} {figure.value!s:>12}   {figure.goal}", flush=True)


def record(bench: str, lines: Sequence[dict[str, Any]]) -> None:
    """Replaces the earlier lines of this bench; those of other benches stay."""
    earlier = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    kept = [line for line in earlier if line["bench"] != bench]
    kept += [{"bench": bench} | line for line in ({"measured": _circumstances()}, *lines)]
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(line) for line in kept) + "\n]\n")


def _circumstances() -> dict[str, Any]:
    """What a reader must know of a measurement to judge it."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    return {
        "on": datetime.now(UTC).date().isoformat(),
        "commit": commit or "unknown",
        "load_before": round(LOAD_BEFORE, 1),
    }
