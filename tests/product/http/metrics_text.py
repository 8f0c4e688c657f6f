"""A parser of the Prometheus text format, as strict as a test needs it."""

import re

LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="[^"\\\n]*",?)*)\})? ([0-9.e+-]+)')
Value = dict[tuple[str, str], float]  # by name and labels


def read(text: str) -> Value:
    """As Prometheus reads it: every line is a comment that announces a family, or a sample of one."""
    values: Value = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.match(r"# (HELP|TYPE) affidavit_[a-z_]+ .", line)
            continue
        found = LINE.fullmatch(line)
        assert found, line
        assert (found[1], found[2] or "") not in values, "the same series twice"
        values[found[1], found[2] or ""] = float(found[3])
    return values


def added(before: Value, after: Value, name: str, *labels: str) -> float:
    return sum(
        value - before.get(series, 0)
        for series, value in after.items()
        if series[0] == name and all(label in series[1] for label in labels)
    )
