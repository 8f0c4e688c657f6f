"""Output of the benchmarks: lines on the terminal, and bench/results.json, which they share."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    kept = [line for line in earlier if line["bench"] != bench] + [{"bench": bench} | line for line in lines]
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(line) for line in kept) + "\n]\n")
