"""What lies of a person in the spool of this machine: records on their way, and lines that no database ever took."""

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from audit.ledger.entry import Entry
from audit.ledger.spool import ASIDE_FILE, batches

_BLOTTED = b"erased "

Concerns = Callable[[dict[str, Any]], bool]  # a record, or what is known of one so far


def count_waiting(folder: Path, concerns: Concerns) -> dict[str, int]:
    """By the spool's file, how many entries concern them. Files of the living are only read."""
    found = {}
    for path in sorted(folder.glob("*.spool")):
        with contextlib.suppress(FileNotFoundError):
            count = sum(concerns(_told(entry)) for piece in batches(path) for entry in piece.entries)
            if count:
                found[path.name] = count
    return found


def overwrite_set_aside(folder: Path, concerns: Concerns, names: Sequence[str]) -> tuple[int, int]:
    """Overwrite what was set aside of them, in its place: whoever adds a line meanwhile is not disturbed. The record's id
    and hash stay. How many lines, and how many are left that are damaged, so that nobody can tell whose they are."""
    blotted = damaged = position = 0
    with contextlib.suppress(FileNotFoundError), (folder / ASIDE_FILE).open("r+b") as file:
        for line in file.read().splitlines(keepends=True):
            left = _left_of(line, concerns, names)
            if left is None:
                damaged += 1
            elif left != line:
                os.pwrite(file.fileno(), left, position)
                blotted += 1
            position += len(line)
        os.fsync(file.fileno())
    return blotted, damaged


def _left_of(line: bytes, concerns: Concerns, names: Sequence[str]) -> bytes | None:
    """What stays of a line, in the same length; None of one that is damaged and does not name them."""
    if line.startswith(_BLOTTED):
        return line
    try:
        entry = Entry.of_line(line.decode().partition(" ")[2])
        told = _told(entry)
    except ValueError:
        is_theirs = any(json.dumps(name).encode() in line for name in names)
        return _BLOTTED.ljust(len(line) - 1) + b"\n" if is_theirs else None
    if not concerns(told):
        return line
    stays = _BLOTTED + f"{entry.log_id} {told.get('leaf_hash', '')}".encode()
    return stays[: len(line) - 1].ljust(len(line) - 1) + b"\n"


def _told(entry: Entry) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(entry.text)
    trail: dict[str, Any] = said.get("trail", said)
    return trail
