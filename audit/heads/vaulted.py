"""What the vault holds of the log of heads. Pure but for the port.

    heads/000000000041-000000000042.entries   the entries from index 41 to before 42: JSON strings, one a line
    heads/000000000042.note                   the signed head of 42 entries, with the cosignatures that it had

An entry is written before the head that covers it, so the files of entries decide the order of the log: after a crash, and
after a failover that lost them in the database, they are taken over from here.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from audit.errors import NoteError

PREFIX = "heads/"
_KEY = re.compile(r"heads/(?:(?P<size>[0-9]{12})\.note|(?P<first>[0-9]{12})-(?P<last>[0-9]{12})\.entries)")


class HeadSource(Protocol):
    """Port: the part of a vault that holds the log of heads."""

    def get(self, key: str, version: str | None = None) -> bytes: ...

    def keys(self, prefix: str = "") -> list[str]: ...


@dataclass(frozen=True, slots=True)
class VaultedHeads:
    """The keys, and no content."""

    sizes: list[int] = field(default_factory=list)  # of the heads
    files: list[tuple[int, int]] = field(
        default_factory=list
    )  # the ranges of entries, each where the last one ends

    @property
    def size(self) -> int:
        """How many entries there are."""
        return self.files[-1][1] if self.files else 0

    def files_from(self, begin: int) -> list[tuple[int, int]]:
        return [(first, last) for first, last in self.files if last > begin]


def list_heads(vault: HeadSource) -> VaultedHeads:
    sizes, ranges = [], list[tuple[int, int]]()
    for key in vault.keys(PREFIX):
        found = _KEY.fullmatch(key)
        if found and found["size"]:
            sizes.append(int(found["size"]))
        elif found:
            ranges.append((int(found["first"]), int(found["last"])))
    return VaultedHeads(sorted(sizes), _chain(ranges))


def begins_before(key: str, size: int) -> bool:
    """Whether a log of heads of this size has had something to do with the key; of other keys it says yes."""
    found = _KEY.fullmatch(key)
    if found is None:
        return True
    return int(found["size"]) <= size if found["size"] else int(found["first"]) < size


def read_entries(vault: HeadSource, files: Iterable[tuple[int, int]]) -> Iterator[tuple[int, str]]:
    """Each entry with its index. `NoteError` if a file does not hold what its name says."""
    for first, last in files:
        key = entries_key(first, last)
        entries = decode_entries(vault.get(key))
        if len(entries) != last - first:
            raise NoteError(f"{key} in the vault does not hold {last - first} entries")
        yield from enumerate(entries, first)


def note_key(size: int) -> str:
    return f"{PREFIX}{size:012d}.note"


def entries_key(first: int, last: int) -> str:
    return f"{PREFIX}{first:012d}-{last:012d}.entries"


def encode_entries(entries: Sequence[str]) -> bytes:
    return "".join(f"{json.dumps(entry, ensure_ascii=False)}\n" for entry in entries).encode()


def decode_entries(content: bytes) -> list[str]:
    try:
        entries = [json.loads(line) for line in content.decode().split("\n")[:-1]]
    except (ValueError, RecursionError):
        entries = [None]
    if not all(isinstance(entry, str) for entry in entries) or encode_entries(entries) != content:
        raise NoteError("The entries of the log of heads in the vault are not JSON strings, one a line")
    return entries


def _chain(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that follow each other from 0 on; of two from the same index the longer one."""
    longest: dict[int, int] = {}
    for first, last in ranges:
        if last > first:
            longest[first] = max(last, longest.get(first, 0))
    at, chain = 0, list[tuple[int, int]]()
    while at in longest:
        chain.append((at, longest[at]))
        at = longest[at]
    return chain
