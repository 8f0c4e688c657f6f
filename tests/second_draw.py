"""A second implementation of the draw, written from the specification in `audit/review/__init__.py` and not from the code."""

import json
from fractions import Fraction
from hashlib import sha256
from typing import Any


def stratum_text(stratum: list[str | None]) -> str:
    return json.dumps(stratum, ensure_ascii=False, separators=(",", ":"))


def population_digest(population: dict[str, list[str | None]]) -> str:
    """The population in the order of months and leaves."""
    lines = [f"{log_id} {stratum_text(stratum)}\n" for log_id, stratum in population.items()]
    return sha256("".join(lines).encode("utf-8")).hexdigest()


def redraw(file: bytes, population: dict[str, list[str | None]]) -> list[dict[str, Any]]:
    """The records of a sample's file, from the file's statement and head, and the population as the log has it."""
    body = json.loads(file)
    signed = body["head"].split("\n\n")[0] + "\n"
    size, seed = body["statement"]["size"], sha256(signed.encode("utf-8")).digest()
    groups: dict[str, list[str]] = {}
    for log_id, stratum in population.items():
        groups.setdefault(stratum_text(stratum), []).append(log_id)
    names = sorted(groups, key=lambda name: name.encode("utf-8"))
    taken = _allocated([len(groups[name]) for name in names], size)
    drawn = []
    for name, count in zip(names, taken, strict=True):
        ranked = sorted(
            (sha256(seed + log_id.encode("ascii")).hexdigest(), log_id) for log_id in groups[name]
        )
        drawn += ranked[:count]
    return [{"log_id": log_id, "stratum": population[log_id]} for _, log_id in sorted(drawn)]


def _allocated(counts: list[int], size: int) -> list[int]:
    total = sum(counts)
    if size >= total:
        return counts
    exact = [Fraction(size * count, total) for count in counts]
    taken = [max(1, int(share)) for share in exact]
    while sum(taken) != size:
        lacks = [(share - got) * total for share, got in zip(exact, taken, strict=True)]
        if sum(taken) > size:
            allowed = [at for at, got in enumerate(taken) if got > 1]
            taken[min(allowed, key=lambda at: (lacks[at], at))] -= 1
        else:
            allowed = [at for at, got in enumerate(taken) if got < counts[at]]
            taken[min(allowed, key=lambda at: (-lacks[at], at))] += 1
    return taken
