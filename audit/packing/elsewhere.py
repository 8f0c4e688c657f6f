"""Reads for a package what others have signed of the log: the head of heads, its proofs, and its time stamps. Data access."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date

import psycopg

from audit.heads.tlog_proof import TlogProof
from audit.heads.vaulted import HeadSource
from audit.package.manifest import HEAD, STAMPS, proof_name
from audit.proof.merkle import StoredTree
from audit.stamps.stored import list_stamps

_HEADS = "SELECT tree_size, note FROM public.audit_head_anchors ORDER BY tree_size DESC"
_ENTRIES = """
SELECT entry_index, tree_size, entry FROM public.audit_head_entries
WHERE month = %s AND entry_index < %s AND tree_size = ANY(%s) ORDER BY tree_size DESC, entry_index DESC
"""
_LEAVES = "SELECT leaf_hash FROM public.audit_head_entries WHERE entry_index < %s ORDER BY entry_index"

Anchors = Mapping[date, Mapping[int, bytes]]  # the notes of each month's heads, by their size


@dataclass(frozen=True, slots=True)
class LogOfHeads:
    """In the snapshot of one connection; the time stamps are in the vault."""

    connection: psycopg.Connection
    vault: HeadSource

    def files(self, anchors: Anchors) -> dict[str, bytes]:
        """Those that the package gets; none if there is no published head."""
        sizes = self._sizes()
        if not sizes:
            return {}
        size = self._best(list(sizes), anchors)
        return {
            HEAD: sizes[size].encode(),
            **dict(self._proofs(size, sizes[size], anchors)),
            **self._stamps(size),
        }

    def _sizes(self) -> dict[int, str]:
        return dict(self.connection.execute(_HEADS).fetchall())

    def _best(self, sizes: list[int], anchors: Anchors) -> int:
        """The newest head with a time stamp, if it covers the package as well as the newest one."""
        stamped = {stamp.size for stamp in list_stamps(self.vault)}
        newest = sizes[0]
        best = next((size for size in sizes if size in stamped), newest)
        return best if self._covered(best, anchors) == self._covered(newest, anchors) else newest

    def _covered(self, size: int, anchors: Anchors) -> dict[date, int]:
        return {month: entry[1] for month, entry in self._entries(size, anchors)}

    def _entries(self, size: int, anchors: Anchors) -> Iterator[tuple[date, tuple[int, int, str]]]:
        """The largest head of each month that the head of heads covers, and the package has."""
        for month, notes in anchors.items():
            for index, of, entry in self.connection.execute(_ENTRIES, (month, size, list(notes))):
                if notes[of] == entry.encode():
                    yield month, (index, of, entry)
                    break

    def _proofs(self, size: int, note: str, anchors: Anchors) -> Iterator[tuple[str, bytes]]:
        leaves = (leaf for (leaf,) in self.connection.execute(_LEAVES, (size,), binary=True))
        tree = StoredTree(b"".join(leaves))
        for month, (index, _, entry) in self._entries(size, anchors):
            proof = TlogProof(index, tree.inclusion_proof(index), note, entry.encode())
            yield proof_name(month), str(proof).encode()

    def _stamps(self, size: int) -> dict[str, bytes]:
        """Of this head, and the certificates that link them."""
        stamps = [stamp.key for stamp in list_stamps(self.vault) if stamp.size == size]
        chains = self.vault.keys(f"{STAMPS}chain-") if stamps else []
        return {key: self.vault.get(key) for key in sorted([*stamps, *chains])}
