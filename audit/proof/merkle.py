"""Merkle tree of RFC 6962 over leaf hashes. Pure.

A leaf is 32 bytes that are hashed already (`record.py`); a node is SHA-256(0x01 ‖ left ‖ right). An inclusion proof alone
proves nothing: many a proof also fits a wrong tree size, so the size must come from a signed checkpoint.
"""

from collections.abc import Sequence
from hashlib import sha256

HASH_BYTES = 32

EMPTY_ROOT = sha256(b"").digest()

Range = tuple[int, int]  # of leaves: the first, and the one after the last


def root(leaves: Sequence[bytes]) -> bytes:
    """The tree's root, by the recursive definition."""
    return _subtree(leaves, 0, len(leaves)) if leaves else EMPTY_ROOT


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The sibling hashes on the path from the leaf to the root, the lowest first."""
    return [_subtree(leaves, *beside) for beside in inclusion_ranges(index, len(leaves))]


def inclusion_ranges(index: int, size: int) -> list[Range]:
    """The leaves under each hash of the proof: of a large tree only some need to be read."""
    if not 0 <= index < size:
        raise IndexError(f"A tree of {size} leaves has no leaf {index}")
    begin, end, beside = 0, size, []
    while end - begin > 1:
        middle = begin + _left_size(end - begin)
        if index < middle:
            beside.append((middle, end))
            end = middle
        else:
            beside.append((begin, middle))
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


def consistency_proof(leaves: Sequence[bytes], old: int) -> list[bytes]:
    """The hashes that show, with both roots, that the tree's first `old` leaves are the earlier tree. None for 0 or all leaves."""
    return [_subtree(leaves, *beside) for beside in consistency_ranges(old, len(leaves))]


def consistency_ranges(old: int, size: int) -> list[Range]:
    """The leaves under each hash of the proof."""
    if not 0 <= old <= size:
        raise IndexError(f"A tree of {size} leaves never had {old}")
    begin, end, beside, is_root_known = 0, size, list[Range](), True
    if old in {0, end}:
        return []
    while old != end:
        middle = begin + _left_size(end - begin)
        if old <= middle:
            beside.append((middle, end))
            end = middle
        else:
            beside.append((begin, middle))
            begin, is_root_known = middle, False
    if not is_root_known:
        beside.append((begin, end))
    return beside[::-1]


def is_consistent(old: int, size: int, old_root: bytes, root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether the proof shows that the tree of `size` leaves begins with the tree of `old` leaves."""
    if not 0 <= old <= size or any(len(part) != HASH_BYTES for part in (old_root, root, *proof)):
        return False
    if old in {0, size}:
        return not proof and old_root == (root if old == size else EMPTY_ROOT)
    at, last, rest = old - 1, size - 1, list(proof)
    while at % 2:  # the earlier tree ends with a full subtree of this height
        at, last = at >> 1, last >> 1
    if at and not rest:
        return False
    earlier = later = rest.pop(0) if at else old_root
    for beside in rest:
        if last == 0:
            return False
        if at % 2 or at == last:
            earlier, later = _node(beside, earlier), _node(beside, later)
            while at and not at % 2:  # on the right edge, levels without a neighbour are skipped
                at, last = at >> 1, last >> 1
        else:
            later = _node(later, beside)
        at, last = at >> 1, last >> 1
    return last == 0 and (earlier, later) == (old_root, root)


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
            return EMPTY_ROOT
        node = self._heads[-1]
        for head in self._heads[-2::-1]:
            node = _node(head, node)
        return node

    def copy(self) -> "Frontier":
        """A copy to extend, so that a failure leaves this tree as it is."""
        twin = Frontier()
        twin.size, twin._heads = self.size, self._heads.copy()
        return twin


class StoredTree:
    """A whole tree with all its nodes, for the proofs of many leaves: 64 bytes for each leaf, and a proof needs no hash."""

    def __init__(self, leaves: bytes) -> None:
        """The leaves one after the other."""
        self.size = len(leaves) // HASH_BYTES
        self._levels = [leaves]
        while len(self._levels[-1]) > HASH_BYTES:
            self._levels.append(_level_above(self._levels[-1]))

    def root(self) -> bytes:
        return self._node(0, self.size) if self.size else EMPTY_ROOT

    def inclusion_proof(self, index: int) -> list[bytes]:
        if not 0 <= index < self.size:
            raise IndexError(f"A tree of {self.size} leaves has no leaf {index}")
        proof = []
        for level in self._levels[:-1]:
            beside = (index ^ 1) * HASH_BYTES
            if beside < len(level):  # on the right edge, a node without a neighbour rises as it is
                proof.append(level[beside : beside + HASH_BYTES])
            index >>= 1
        return proof

    def consistency_proof(self, old: int) -> list[bytes]:
        return [self._node(*beside) for beside in consistency_ranges(old, self.size)]

    def _node(self, begin: int, end: int) -> bytes:
        """The root of a subtree of this tree."""
        height = (end - begin - 1).bit_length()
        at = (begin >> height) * HASH_BYTES
        return self._levels[height][at : at + HASH_BYTES]


def _level_above(level: bytes) -> bytes:
    pairs, rest = divmod(len(level), 2 * HASH_BYTES)
    step = 2 * HASH_BYTES
    nodes = [sha256(b"\x01" + level[at : at + step]).digest() for at in range(0, pairs * step, step)]
    return b"".join(nodes) + (level[-HASH_BYTES:] if rest else b"")


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
