"""What the vault holds of each month's tree: the anchored heads, their leaves, and the breaks of its history.

    anchors/2026-11/000000000185.note                  an anchored head
    anchors/2026-11/000000000120-000000000185.leaves   the leaves under it that no earlier anchor has
    breaks/2026-11/0001.note                           a break: the history goes on from the tree that it kept
    anchors/2026-11/break-1/000000000150.note          an anchored head of the branch behind that break
    keys/9f3c61d20b7e4a55.pub                          a delegated key's line

Every key is written once, so a branch never overwrites what was lost.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from hashlib import sha256
from typing import NamedTuple, Protocol, TypeVar

from audit.errors import NoteError, VaultDamagedError
from audit.proof.checkpoint import HistoryBreak, read_break
from audit.proof.merkle import HASH_BYTES

TOGETHER = 8  # fewer than the connections that a client of S3 keeps
_ENDLESS = 10**12  # keys have twelve digits
_KEY = re.compile(
    r"""anchors/(?P<month>[0-9]{4}-[0-9]{2})/(?:break-(?P<branch>[1-9][0-9]{0,3})/)?
    (?:(?P<size>[0-9]{12})\.note|(?P<first>[0-9]{12})-(?P<last>[0-9]{12})\.leaves)
    |breaks/(?P<broken>[0-9]{4}-[0-9]{2})/(?P<number>[0-9]{4})\.note""",
    re.VERBOSE,
)


DELEGATED = "keys/"

Item = TypeVar("Item")
Result = TypeVar("Result")


class AnchorSource(Protocol):
    """Port: the part of a vault that holds anchors."""

    def get(self, key: str, version: str | None = None) -> bytes: ...

    def keys(self, prefix: str = "") -> list[str]: ...


class AnchorKey(NamedTuple):
    """What a key says: of a head its size, of leaves their range, of a break its number."""

    month: date
    branch: int
    number: int | None = None
    size: int | None = None
    leaves: tuple[int, int] = (0, 0)


class LeafFile(NamedTuple):
    first: int
    last: int
    branch: int
    until: int  # leaves from here on are of a lost history


def delegation_key(line: str) -> str:
    """Where the vault keeps a delegated key's line: under its hash, so that nobody reads what they have."""
    return f"{DELEGATED}{sha256(line.encode()).hexdigest()[:16]}.pub"


def delegations_in(vault: AnchorSource, known: Sequence[str]) -> list[str]:
    """The lines of delegated keys that the vault has beyond the known ones. Nothing is verified here."""
    missing = set(vault.keys(DELEGATED)) - set(map(delegation_key, known))
    return [read(vault, key).decode(errors="replace").removesuffix("\n") for key in sorted(missing)]


@dataclass(slots=True)
class Chain:
    """The anchors of one history: of the branches up to one of them, each as far as the next one kept it."""

    month: date
    heads: Mapping[int, int]  # the branch of each size
    files: Sequence[LeafFile]
    sizes: list[int] = field(init=False)
    _past: int = 0  # files before this one are not needed again: batches come in order
    _held: dict[LeafFile, bytes] = field(default_factory=dict)  # cache of files that span two batches

    def __post_init__(self) -> None:
        self.sizes = sorted(self.heads)

    def key(self, size: int) -> str:
        return note_key(self.month, size, self.heads[size])

    def between(self, begin: int, end: int) -> list[int]:
        return self.sizes[bisect_right(self.sizes, begin) : bisect_right(self.sizes, end)]

    def leaves(self, vault: AnchorSource, begin: int, end: int) -> tuple[dict[int, bytes], list[int]]:
        """The leaves from `begin` to before `end`, and the sizes of anchors with missing or contradicting leaves."""
        found: dict[int, bytes] = {}
        damaged = []
        while self._past < len(self.files) and self.files[self._past].until <= begin:
            self._past += 1
        files = self.files[self._past : bisect_right(self.files, (end - 1, _ENDLESS))]
        contents = self._contents(vault, [file for file in files if file.until > begin], end)
        for file, content in contents.items():
            known = {
                index: content[(index - file.first) * HASH_BYTES : (index - file.first + 1) * HASH_BYTES]
                for index in range(max(begin, file.first), min(end, file.until))
            }
            is_whole = len(content) == (file.last - file.first) * HASH_BYTES
            if is_whole and all(found.get(index, leaf) == leaf for index, leaf in known.items()):
                found |= known
            else:
                damaged.append(file.last)
        return found, damaged

    def _contents(self, vault: AnchorSource, files: Sequence[LeafFile], end: int) -> dict[LeafFile, bytes]:
        keys = {file: leaves_key(self.month, file.first, file.last, file.branch) for file in files}
        found = read_together(vault, [key for file, key in keys.items() if file not in self._held])
        contents = {
            file: self._held[file] if file in self._held else found[key] for file, key in keys.items()
        }
        self._held = {file: content for file, content in contents.items() if file.until > end}
        return contents


@dataclass(slots=True)
class MonthAnchors:
    """A month's keys in the vault. Its breaks are read, but nothing is verified here."""

    month: date
    sizes: dict[int, list[int]] = field(default_factory=dict)  # by branch
    files: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    breaks: dict[int, bytes] = field(default_factory=dict)  # the notes, by number

    def read_breaks(self) -> list[HistoryBreak]:
        """Those that can be read, in order, up to a gap."""
        found: list[HistoryBreak] = []
        while note := self.breaks.get(len(found) + 1):
            try:
                found.append(read_break(note.decode(errors="replace")))
            except NoteError:
                break
        return found

    def chain(self, breaks: int | None = None) -> Chain:
        """The history after so many breaks; without a number after all of them."""
        kept = [each.kept.size for each in self.read_breaks()][:breaks]
        heads: dict[int, int] = {}
        files: list[LeafFile] = []
        for branch in range(len(kept) + 1):
            until = min(kept[branch:], default=_ENDLESS)
            heads |= {size: branch for size in self.sizes.get(branch, ()) if size <= until}
            of_branch = self.files.get(branch, ())
            files += [
                LeafFile(first, last, branch, min(last, until)) for first, last in of_branch if first < until
            ]
        return Chain(self.month, heads, sorted(files))


def list_anchors(vault: AnchorSource, month: date | None = None) -> dict[date, MonthAnchors]:
    """What the vault holds of this month, or of all."""
    found: dict[date, MonthAnchors] = {}
    below = f"{month:%Y-%m}/" if month else ""
    for key in (*vault.keys(f"breaks/{below}"), *vault.keys(f"anchors/{below}")):
        named = anchor_key(key)
        if named is None:
            continue
        anchors = found.setdefault(named.month, MonthAnchors(named.month))
        if named.number is not None:
            anchors.breaks[named.number] = read(vault, key)
        elif named.size is not None:
            anchors.sizes.setdefault(named.branch, []).append(named.size)
        else:
            anchors.files.setdefault(named.branch, []).append(named.leaves)
    return found


def anchor_key(key: str) -> AnchorKey | None:
    """None if the key is of something else."""
    named = _KEY.fullmatch(key)
    if named is None:
        return None
    month, branch = date.fromisoformat(f"{named['month'] or named['broken']}-01"), int(named["branch"] or 0)
    if named["number"]:
        return AnchorKey(month, branch, number=int(named["number"]))
    if named["size"]:
        return AnchorKey(month, branch, size=int(named["size"]))
    return AnchorKey(month, branch, leaves=(int(named["first"]), int(named["last"])))


def month_anchors(vault: AnchorSource, month: date) -> MonthAnchors:
    return list_anchors(vault, month).get(month, MonthAnchors(month))


def note_key(month: date, size: int, branch: int = 0) -> str:
    return f"{_folder(month, branch)}{size:012d}.note"


def leaves_key(month: date, first: int, last: int, branch: int = 0) -> str:
    return f"{_folder(month, branch)}{first:012d}-{last:012d}.leaves"


def break_key(month: date, number: int) -> str:
    return f"breaks/{month:%Y-%m}/{number:04d}.note"


def read(vault: AnchorSource, key: str, version: str | None = None) -> bytes:
    """Damaged content reads as empty, which no signature fits either."""
    try:
        return vault.get(key, version)
    except VaultDamagedError:
        return b""


def read_together(vault: AnchorSource, keys: Sequence[str]) -> dict[str, bytes]:
    return dict(zip(keys, together(partial(read, vault), keys), strict=True))


def together(task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Several at a time: an object store answers each in some milliseconds, and a quiet log has an anchor for each record."""
    if len(items) <= 1:
        return [task(item) for item in items]
    with ThreadPoolExecutor(TOGETHER) as threads:
        return list(threads.map(task, items))


def _folder(month: date, branch: int) -> str:
    return f"anchors/{month:%Y-%m}/" + (f"break-{branch}/" if branch else "")
