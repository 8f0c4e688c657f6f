"""The vault as it was when a backup of the database was taken, and what the log has got since. Reads only.

A backup is right if it matches all that was anchored before it. What was anchored later is not missing in it: it is counted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from audit.anchored import AnchorKey, AnchorSource, Chain, MonthAnchors, anchor_key, list_anchors, read
from audit.errors import NoteError
from audit.heads.vaulted import begins_before
from audit.proof.checkpoint import Checkpoint, open_note
from audit.proof.keys import PublicKey

_LEAVES = 10_000  # read at once


@dataclass(frozen=True, slots=True)
class BackedUpMonth:
    """How far a month's tree goes in the backup."""

    size: int
    breaks: int = 0


Backup = Mapping[date, BackedUpMonth]


@dataclass(frozen=True, slots=True)
class VaultAsOf:
    """The part of a vault that is as old as the backup. It has no way to write."""

    vault: AnchorSource
    backup: Backup
    heads: int = 0  # entries of the log of heads in the backup

    def get(self, key: str, version: str | None = None) -> bytes:
        return self.vault.get(key, version)

    def keys(self, prefix: str = "") -> list[str]:
        return [
            key
            for key in self.vault.keys(prefix)
            if self._is_as_old(anchor_key(key)) and begins_before(key, self.heads)
        ]

    def _is_as_old(self, key: AnchorKey | None) -> bool:
        if key is None:
            return True
        month = self.backup.get(key.month)
        if month is None:
            return False
        if key.number is not None:
            return key.number <= month.breaks
        begin = key.leaves[0] if key.size is None else key.size - 1
        return key.branch < month.breaks or (key.branch == month.breaks and begin < month.size)


@dataclass(frozen=True, slots=True)
class Newer:
    """What the vault has of the log that the backup lacks."""

    rows: int = 0
    newest: Checkpoint | None = None  # in the vault


def find_newer(
    vault: AnchorSource, backup: Backup, unsealed: frozenset[bytes], keys: Sequence[PublicKey]
) -> Newer:
    """`unsealed` are leaves of rows that came back with the backup, and were sealed only later."""
    rows, newest = 0, None
    for month, anchors in sorted(list_anchors(vault).items()):
        chain = anchors.chain()
        newest = _newest(vault, chain, keys) or newest
        kept = _common(anchors, backup.get(month, BackedUpMonth(0)))
        rows += sum(leaf not in unsealed for leaf in _leaves_from(vault, chain, kept))
    return Newer(rows, newest)


def log_names(vault: AnchorSource) -> set[str]:
    """The names of the logs that the vault has anchors of, as they say themselves."""
    found = set()
    for anchors in list_anchors(vault).values():
        chain = anchors.chain()
        for size in chain.sizes[-1:]:
            first = read(vault, chain.key(size)).decode(errors="replace").partition("\n")[0]
            found.add(first.rpartition("/")[0])
    return found


def _common(anchors: MonthAnchors, month: BackedUpMonth) -> int:
    """Up to where the backup and today's log are the same: a break since then may have given up leaves that it has."""
    later = anchors.read_breaks()[month.breaks :]
    return min([month.size, *(each.kept.size for each in later)])


def _newest(vault: AnchorSource, chain: Chain, keys: Sequence[PublicKey]) -> Checkpoint | None:
    for size in reversed(chain.sizes):
        try:
            return open_note(read(vault, chain.key(size)).decode(errors="replace"), keys)
        except NoteError:
            continue
    return None


def _leaves_from(vault: AnchorSource, chain: Chain, begin: int) -> Iterator[bytes | None]:
    """None for a leaf that the vault cannot show: it is newer all the same."""
    end = max(chain.sizes, default=0)
    for first in range(begin, end, _LEAVES):
        last = min(first + _LEAVES, end)
        leaves, _ = chain.leaves(vault, first, last)
        yield from (leaves.get(index) for index in range(first, last))
