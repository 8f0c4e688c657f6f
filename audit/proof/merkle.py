"""Merkle tree of RFC 6962 over leaf hashes. Pure.

A leaf is 32 bytes that are hashed already (`record.py`); a node is SHA-256(0x01 ‖ left ‖ right). An inclusion proof alone
proves nothing: many a proof also fits a wrong tree size, so the size must come from a signed checkpoint.
"""

from collections.abc import Sequence
from hashlib import sha256

HASH_BYTES = 32

_EMPTY = sha256(b"").digest()


def root(leaves: Sequence[bytes]) -> bytes:
    """The tree's root, by the recursive definition."""
    return _subtree(leaves, 0, len(leaves)) if leaves else _EMPTY


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The sibling hashes on the path from the leaf to the root, the lowest first."""
    if not 0 <= index < len(leaves):
        raise IndexError(f"A tree of {len(leaves)} leaves has no leaf {index}")
    begin, end, beside = 0, len(leaves), []
    while end - begin > 1:
        middle = begin + _left_size(end - begin)
        if index < middle:
            beside.append(_subtree(leaves, middle, end))
            end = middle
        else:
            beside.append(_subtree(leaves, begin, middle))
            begin = middle
    return beside[::-1]


def is_included(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether the proof leads from the leaf to the root and has exactly as many hashes as it must have."""
    if not 0 <= index < size or any(len(part) != HASH_BYTES for part in (leaf, root, *proof)):
        return False
    node, at, last = leaf, index, size - 1
    for beside in proof:
        if last == 0:
            return False
        if at % 2 or at == last:
            node = _node(beside, node)
            while at and not at % 2:  # on the right edge, levels without a neighbour are skipped
                at, last = at >> 1, last >> 1
        else:
            node = _node(node, beside)
        at, last = at >> 1, last >> 1
    return last == 0 and node == root


class Frontier:
    """An append-only tree that keeps only the roots of its full subtrees, the largest first."""

    def __init__(self) -> None:
        self.size = 0
        self._heads: list[bytes] = []

    def append(self, leaf: bytes) -> None:
        node, full = leaf, self.size
        while full & 1:
            node, full = _node(self._heads.pop(), node), full >> 1
        self._heads.append(node)
        self.size += 1

    def root(self) -> bytes:
        if not self._heads:
            return _EMPTY
        node = self._heads[-1]
        for head in self._heads[-2::-1]:
            node = _node(head, node)
        return node

    def copy(self) -> "Frontier":
        """A copy to extend, so that a failure leaves this tree as it is."""
        twin = Frontier()
        twin.size, twin._heads = self.size, self._heads.copy()
        return twin


def _subtree(leaves: Sequence[bytes], begin: int, end: int) -> bytes:
    if end - begin == 1:
        return leaves[begin]
    middle = begin + _left_size(end - begin)
    return _node(_subtree(leaves, begin, middle), _subtree(leaves, middle, end))


def _left_size(size: int) -> int:
    """The largest power of two below the size."""
    return 1 << ((size - 1).bit_length() - 1)


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()
