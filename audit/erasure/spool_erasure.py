"""Erasure in the write-ahead spool of this machine: counts pending entries, and overwrites dead letters.

The spool holds personal data too: entries that are not in the database yet, and lines that the database refused.
"""

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from audit.ledger.entry import Entry
from audit.ledger.spool import ASIDE_FILE, batches

_OVERWRITTEN = b"erased "

Matches = Callable[[dict[str, Any]], bool]  # given a record, or the first part of one


def count_waiting(folder: Path, matches: Matches) -> dict[str, int]:
    """The number of matching entries by spool file. Only reads: the files may belong to running processes."""
    found = {}
    for path in sorted(folder.glob("*.spool")):
        with contextlib.suppress(FileNotFoundError):
            count = sum(matches(_trail_of(entry)) for piece in batches(path) for entry in piece.entries)
            if count:
                found[path.name] = count
    return found


def count_set_aside(folder: Path, matches: Matches) -> int:
    """The number of matching dead letters."""
    with contextlib.suppress(FileNotFoundError):
        lines = (folder / ASIDE_FILE).read_bytes().splitlines()
        return sum(_is_match(line, matches) for line in lines)
    return 0


def overwrite_set_aside(folder: Path, matches: Matches, names: Sequence[str]) -> tuple[int, int]:
    """Overwrite matching lines in place, so that a process can append meanwhile. The record's id and hash stay.

    Returns how many lines were overwritten, and how many remain that are too damaged to be matched.
    """
    overwritten = damaged = position = 0
    with contextlib.suppress(FileNotFoundError), (folder / ASIDE_FILE).open("r+b") as file:
        for line in file.read().splitlines(keepends=True):
            left = _remainder(line, matches, names)
            if left is None:
                damaged += 1
            elif left != line:
                os.pwrite(file.fileno(), left, position)
                overwritten += 1
            position += len(line)
        os.fsync(file.fileno())
    return overwritten, damaged


def _remainder(line: bytes, matches: Matches, names: Sequence[str]) -> bytes | None:
    """The line's new content, in the same length; None for a damaged line without one of the names."""
    if line.startswith(_OVERWRITTEN):
        return line
    try:
        entry = Entry.of_line(line.decode().partition(" ")[2])
        trail = _trail_of(entry)
    except (ValueError, AttributeError, RecursionError):
        has_name = any(json.dumps(name).encode() in line for name in names)
        return _OVERWRITTEN.ljust(len(line) - 1) + b"\n" if has_name else None
    if not matches(trail):
        return line
    kept = _OVERWRITTEN + f"{entry.log_id} {trail.get('leaf_hash', '')}".encode()
    return kept[: len(line) - 1].ljust(len(line) - 1) + b"\n"


def _is_match(line: bytes, matches: Matches) -> bool:
    try:
        return matches(_trail_of(Entry.of_line(line.decode().partition(" ")[2])))
    except (ValueError, AttributeError, RecursionError):
        return False


def _trail_of(entry: Entry) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(entry.text)
    trail: dict[str, Any] = body.get("trail", body)
    return trail
