"""Checks a break of a month's history: what it says was lost must be what the vault has, and nothing else was changed. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from audit.errors import NoteError
from audit.proof.checkpoint import BreakLine, HistoryBreak, open_break, open_note
from audit.proof.keys import PublicKey
from audit.proof.merkle import Frontier
from audit.proof.verdict import Finding, Verdict


@dataclass(slots=True)
class StoredBreak:
    """A break of a month's history as the vault and the database hold it, and what the vault holds of the lost history."""

    number: int
    anchored: bytes | None  # the vault's note
    stored: str | None  # the database's
    has_event: bool = False  # whether the log has the record that documents it
    since: int = 0  # up to here today's tree and the lost one are the same
    leaves: Mapping[int, bytes] = field(default_factory=dict)  # of the lost history from there on
    heads: Mapping[int, bytes] = field(default_factory=dict)  # its notes beyond, by the tree's size


@dataclass(slots=True)
class LostRange:
    """A break that is true."""

    broken: HistoryBreak
    line: BreakLine
    gone: set[bytes]  # the lost leaves that have not been sealed again

    def __str__(self) -> str:
        first, end = self.broken.kept.size, self.broken.lost.size
        return (
            f"A failover or a restore lost the leaves {first} to {end - 1}: {len(self.gone)} of their {end - first} records"
            f" are gone, the others were sealed again. Stated by the record {self.broken.event} of"
            f" {self.broken.issued_at:%Y-%m-%d %H:%M:%S} UTC, basis: {self.broken.basis}"
        )


def check_break(
    stored: StoredBreak, month: date, tree: Frontier | None, keys: Sequence[PublicKey]
) -> tuple[LostRange | None, Finding | None]:
    """What was lost, if the break is true, and what is wrong with the break.

    `tree` has the leaves before `since`; None if one of them is lost, so that no root can be computed.
    """
    broken = _opened(stored, month, keys)
    if isinstance(broken, tuple):
        return None, _finding(stored, month, *broken)
    if tree is not None and (wrong := _follow(stored, broken, tree.copy(), keys)):
        return None, _finding(stored, month, *wrong)
    gone = {leaf for index, leaf in stored.leaves.items() if index >= broken.kept.size}
    lost = LostRange(broken, broken.line((stored.anchored or b"").decode()), gone)
    if stored.stored is None:
        return lost, _finding(stored, month, Verdict.MISSING, "is in the vault, but not in the database")
    if not stored.has_event:
        words = f"has no record in the log, where {broken.event} must be"
        return lost, _finding(stored, month, Verdict.MISSING, words)
    return lost, None


def _opened(
    stored: StoredBreak, month: date, keys: Sequence[PublicKey]
) -> HistoryBreak | tuple[Verdict, str]:
    """The vault's break, if one of the keys signed it and the database holds no other; else what is wrong."""
    if stored.anchored is None:
        return Verdict.TAMPERED, "is not in the vault, which alone can tell what was lost"
    note = stored.anchored.decode(errors="replace")
    try:
        broken = open_break(note, keys)
    except NoteError as wrong:
        return Verdict.TAMPERED, f"in the vault: {wrong}"
    if stored.stored not in {None, note} or (broken.month, broken.number) != (month, stored.number):
        return Verdict.TAMPERED, "is not the one that was written into the vault"
    return broken


def _follow(
    stored: StoredBreak, broken: HistoryBreak, tree: Frontier, keys: Sequence[PublicKey]
) -> tuple[Verdict, str] | None:
    """Rebuild the lost history, and compare it with each of its heads; returns what is wrong."""
    if beyond := [size for size in stored.heads if size > broken.lost.size]:
        return Verdict.MISSING, f"does not name all that was lost: the vault has a head of size {max(beyond)}"
    roots = {size: {_root(note.decode(errors="replace"), keys)} for size, note in stored.heads.items()}
    for stated in (broken.kept, broken.lost):
        roots.setdefault(stated.size, set()).add(stated.root)
    for size in range(stored.since, broken.lost.size + 1):
        if size > stored.since:
            leaf = stored.leaves.get(size - 1)
            if leaf is None:
                return Verdict.MISSING, f"names leaves that the vault no longer holds, from {size - 1} on"
            tree.append(leaf)
        if roots.get(size, {tree.root()}) != {tree.root()}:
            words = f"is not true: the kept and the lost leaves do not have the root of size {size}"
            return Verdict.TAMPERED, words
    return None


def _root(note: str, keys: Sequence[PublicKey]) -> bytes:
    """Empty, which no tree has, if none of the keys signed it."""
    try:
        return open_note(note, keys).root
    except NoteError:
        return b""


def _finding(stored: StoredBreak, month: date, verdict: Verdict, words: str) -> Finding:
    return Finding(verdict, "break", f"The break {stored.number} of the month's history {words}", month)
