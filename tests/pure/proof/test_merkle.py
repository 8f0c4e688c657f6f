"""The tree of RFC 6962: heads known by hand, three ways to the same root, and proofs that nothing else fits."""

from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.proof.merkle import Frontier, consistency_proof, inclusion_proof, is_consistent, is_included, root
from tests.build import head

SIZE_MAX = 300
LEAVES = [sha256(b"\x00" + number.to_bytes(2, "big")).digest() for number in range(SIZE_MAX + 1)]
STRANGER = sha256(b"stranger").digest()


def grown(leaves: list[bytes]) -> Frontier:
    frontier = Frontier()
    for leaf in leaves:
        frontier.append(leaf)
    return frontier


# Computed by hand: `printf '\x00\x00\x00' | openssl sha256`, and so on up with \x01 before two of them.
@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (1, "709e80c88487a2411e1ee4dfb9f22a861492d20c4765150c0c794abd70f8147c"),
    ],
)
def test_small_heads_are_those_computed_by_hand(size: int, expected: str) -> None:
    assert root(LEAVES[:size]).hex() == grown(LEAVES[:size]).root().hex() == expected


def test_three_leaves_are_two_and_one() -> None:
    a, b, c = LEAVES[:3]
    pair = sha256(b"\x01" + a + b).digest()
    assert root([a, b, c]) == sha256(b"\x01" + pair + c).digest()


def test_recursion_frontier_and_levels_agree_at_every_size() -> None:
    frontier = Frontier()
    for size in range(SIZE_MAX + 1):
        assert frontier.size == size
        assert root(LEAVES[:size]) == frontier.root() == head(LEAVES[:size])
        frontier.append(LEAVES[size])


def test_the_tree_over_full_chunks_is_the_tree_over_their_leaves() -> None:
    for size in range(1, SIZE_MAX):
        chunks = [root(LEAVES[begin : min(begin + 8, size)]) for begin in range(0, size, 8)]
        assert root(chunks) == root(LEAVES[:size])


def test_a_copy_of_a_frontier_grows_alone() -> None:
    frontier = grown(LEAVES[:7])
    before = frontier.root()
    frontier.copy().append(LEAVES[7])
    assert (frontier.size, frontier.root()) == (7, before)


def test_every_leaf_of_every_size_is_proven_with_no_hash_too_many() -> None:
    for size in range(1, SIZE_MAX + 1):
        signed = root(LEAVES[:size])
        for index in {0, 1, size // 2, size - 2, size - 1} & set(range(size)):
            proof = inclusion_proof(LEAVES[:size], index)
            assert len(proof) <= (size - 1).bit_length()
            assert is_included(LEAVES[index], index, size, proof, signed)


places = st.integers(1, SIZE_MAX).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1)))


# Seen red with the index unchecked against the size.
@settings(max_examples=300, deadline=None)
@given(places, st.data())
def test_nothing_else_fits_a_proof(place: tuple[int, int], data: st.DataObject) -> None:
    size, index = place
    proof, signed = inclusion_proof(LEAVES[:size], index), root(LEAVES[:size])
    leaf = LEAVES[index]
    other = data.draw(st.integers(-2, 2 * SIZE_MAX).filter(lambda number: number != index))
    assert not is_included(leaf, other, size, proof, signed)
    assert not is_included(STRANGER, index, size, proof, signed)
    assert not is_included(leaf, index, size, proof, STRANGER)
    assert not is_included(leaf, index, size, [*proof, STRANGER], signed)
    assert not is_included(leaf, index, size, [STRANGER, *proof], signed)
    if proof:
        at = data.draw(st.integers(0, len(proof) - 1))
        assert not is_included(leaf, index, size, proof[:at] + proof[at + 1 :], signed)
        assert not is_included(leaf, index, size, [*proof[:at], STRANGER, *proof[at + 1 :]], signed)
        assert not is_included(leaf, index, size, [*proof, proof[at]], signed)


# Seen red with the length of the proof unchecked.
@settings(max_examples=300, deadline=None)
@given(places, st.integers(-1, 2 * SIZE_MAX))
def test_under_a_wrong_size_a_proof_fits_only_where_the_way_up_is_the_same(
    place: tuple[int, int], wrong: int
) -> None:
    """So nobody may take the size from a proof: a signed checkpoint says it."""
    size, index = place
    proof, signed = inclusion_proof(LEAVES[:size], index), root(LEAVES[:size])
    fits = is_included(LEAVES[index], index, wrong, proof, signed)
    assert fits == (way_up(index, size) == way_up(index, wrong))


def way_up(index: int, size: int) -> list[str] | None:
    """On which side the neighbours stand, the highest first."""
    if not 0 <= index < size:
        return None
    if size == 1:
        return []
    left = 1
    while left * 2 < size:
        left *= 2
    if index < left:
        return ["right", *(way_up(index, left) or [])]
    return ["left", *(way_up(index - left, size - left) or [])]


# Seen red with the lengths unchecked: a byte that moves from one hash to the next leaves the node's text the same.
def test_a_byte_moved_from_the_leaf_to_its_neighbour_is_refused() -> None:
    a, b = LEAVES[:2]
    assert is_included(a, 0, 2, [b], root([a, b]))
    assert not is_included(a[:-1], 0, 2, [a[-1:] + b], root([a, b]))


def test_there_is_no_proof_of_what_is_not_in_the_tree() -> None:
    for index in (-1, 3):
        with pytest.raises(IndexError):
            inclusion_proof(LEAVES[:3], index)


# Seen red with the last hash left out of `consistency_proof` where the earlier tree is no full subtree.
def test_every_tree_is_consistent_with_every_earlier_one_and_with_no_other() -> None:
    leaves = [sha256(bytes([place])).digest() for place in range(34)]
    for size in range(len(leaves)):
        for old in range(size + 1):
            proof = consistency_proof(leaves[:size], old)
            roots = root(leaves[:old]), root(leaves[:size])
            assert is_consistent(old, size, *roots, proof)
            for at in range(len(proof)):
                changed = [*proof[:at], sha256(proof[at]).digest(), *proof[at + 1 :]]
                assert not is_consistent(old, size, *roots, changed)
                assert not is_consistent(old, size, *roots, proof[:at] + proof[at + 1 :])
            assert not is_consistent(old, size, *roots, [*proof, roots[0]])
            if old:
                assert not is_consistent(old, size, sha256(roots[0]).digest(), roots[1], proof)
                assert not is_consistent(old, size, roots[0], sha256(roots[1]).digest(), proof)


def test_the_consistency_proofs_of_the_standard_s_example() -> None:
    """RFC 6962, 2.1.3: seven leaves, and the trees of three, four and six before them."""
    leaves = [sha256(b"\0" + bytes([place])).digest() for place in range(7)]

    def node(left: bytes, right: bytes) -> bytes:
        return sha256(b"\1" + left + right).digest()

    a, b, c, d, e, f, j = leaves
    g, h, i = node(a, b), node(c, d), node(e, f)
    k, l = node(g, h), node(i, j)  # noqa: E741  named as there
    assert consistency_proof(leaves, 3) == [c, d, g, l]
    assert consistency_proof(leaves, 4) == [l]
    assert consistency_proof(leaves, 6) == [i, j, k]
