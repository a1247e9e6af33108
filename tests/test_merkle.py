"""The Merkle tree against published vectors, against pymerkle, and for every leaf of trees of 1 to 257 leaves."""

import hashlib
import random
from functools import cache

import pymerkle
import pytest
from hypothesis import given
from hypothesis import strategies as some
from pauseledger.infrastructure.merkle import (
    EMPTY,
    TILE,
    Edge,
    Unproved,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    root,
    tiled,
    verify_consistency,
    verify_inclusion,
)

# The eight leaves of Certificate Transparency's reference tests, and what their trees come to.
REFERENCE = [bytes.fromhex(text) for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657")]
REFERENCE.append(bytes(range(0x60, 0x70)))
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
INCLUDED = {
    (0, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (5, 8): [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
}
CONSISTENT = {
    (1, 8): INCLUDED[0, 8],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 5): [INCLUDED[0, 8][1], INCLUDED[5, 8][0]],
}
MOST = 257


class Grown:
    """A tree and its rows, grown in steps of any size."""

    def __init__(self, leaves, steps=()):
        self.leaves, self.rows, self.edge, at = leaves, {}, Edge(), 0
        for step in (*steps, len(leaves)):
            for row, place, whole in self.edge.add(leaves[at : at + step]):
                self.rows[row, place] = whole
            at = min(len(leaves), at + step)

    def read(self, row, number):
        if row == 0:
            return self.leaves[number * TILE : (number + 1) * TILE]
        places = range(number * TILE, (number + 1) * TILE)
        return [self.rows[row, at] for at in places if (row, at) in self.rows]

    def node(self, size=None):
        return tiled(self.read, len(self.leaves) if size is None else size)


@cache
def grown():
    return Grown([leaf_hash(number.to_bytes(32, "big")) for number in range(MOST)])


@cache
def roots():
    return [root(grown().node(size), size) for size in range(MOST + 1)]


def flipped(proof, bit):
    changed = bytearray(b"".join(proof))
    changed[bit // 8 % len(changed)] ^= 1 << bit % 8
    return [bytes(changed[at : at + 32]) for at in range(0, len(changed), 32)]


def test_the_published_roots():
    tree = Grown([leaf_hash(leaf) for leaf in REFERENCE])
    assert EMPTY.hex() == ROOTS[0]
    assert [root(tree.node(size), size).hex() for size in range(9)] == ROOTS
    assert [Grown(tree.leaves[:size]).edge.root().hex() for size in range(9)] == ROOTS


@pytest.mark.parametrize(("index", "size"), INCLUDED)
def test_the_published_inclusion_proofs(index, size):
    tree = Grown([leaf_hash(leaf) for leaf in REFERENCE])
    assert [one.hex() for one in inclusion_proof(tree.node(), index, size)] == INCLUDED[index, size]


@pytest.mark.parametrize(("old", "new"), CONSISTENT)
def test_the_published_consistency_proofs(old, new):
    tree = Grown([leaf_hash(leaf) for leaf in REFERENCE])
    assert [one.hex() for one in consistency_proof(tree.node(), old, new)] == CONSISTENT[old, new]


def test_a_second_implementation_agrees():
    other, data = pymerkle.InmemoryTree(algorithm="sha256"), [bytes([number]) * 32 for number in range(70)]
    ours = Grown([leaf_hash(one) for one in data])
    for size, one in enumerate(data, 1):
        other.append_entry(one)
        assert other.get_root() == root(ours.node(size), size)
    for size in (1, 2, 7, 8, 33, 64, 70):
        for index in range(size):
            # Its path begins with the leaf itself.
            theirs = other.prove_inclusion(index + 1, size).path[1:]
            assert theirs == inclusion_proof(ours.node(size), index, size)


def test_every_leaf_of_every_tree_is_proved():
    leaves = grown().leaves
    for size in range(1, MOST + 1):
        node = grown().node(size)
        for index in range(size):
            verify_inclusion(leaves[index], index, size, inclusion_proof(node, index, size), roots()[size])


def test_every_pair_of_trees_is_consistent():
    for new in range(MOST + 1):
        node = grown().node(new)
        # All of a stride that no power of two divides, and the pairs next to each power of two.
        for old in sorted({*range(new % 7, new + 1, 7), *(one for one in (0, 1, 127, 128, 129, new) if one <= new)}):
            verify_consistency(old, new, roots()[old], roots()[new], consistency_proof(node, old, new))


@given(some.integers(2, MOST), some.data())
def test_no_flipped_bit_in_an_inclusion_proof_is_believed(size, data):
    index = data.draw(some.integers(0, size - 1))
    proof = inclusion_proof(grown().node(size), index, size)
    leaf, wrong = grown().leaves[index], data.draw(some.integers(0, len(proof) * 256 - 1))
    with pytest.raises(Unproved):
        verify_inclusion(leaf, index, size, flipped(proof, wrong), roots()[size])
    with pytest.raises(Unproved):
        verify_inclusion(*(flipped([leaf], wrong)), index, size, proof, roots()[size])
    other = data.draw(some.integers(0, size - 1).filter(lambda one: one != index))
    with pytest.raises(Unproved):
        verify_inclusion(leaf, other, size, proof, roots()[size])
    for misshapen in (proof[:-1], [*proof, proof[-1]], proof[1:]):
        with pytest.raises(Unproved):
            verify_inclusion(leaf, index, size, misshapen, roots()[size])


@given(some.integers(2, MOST), some.data())
def test_no_flipped_bit_in_a_consistency_proof_is_believed(new, data):
    old = data.draw(some.integers(1, new - 1))
    proof = consistency_proof(grown().node(new), old, new)
    wrong = data.draw(some.integers(0, len(proof) * 256 - 1))
    for changed in (flipped(proof, wrong), proof[:-1], [*proof, proof[-1]]):
        with pytest.raises(Unproved):
            verify_consistency(old, new, roots()[old], roots()[new], changed)
    for one, other in ((roots()[old - 1], roots()[new]), (roots()[old], roots()[new - 1])):
        with pytest.raises(Unproved):
            verify_consistency(old, new, one, other, proof)


def test_a_tree_is_the_same_in_whatever_steps_it_grew():
    leaves = [leaf_hash(number.to_bytes(4, "big")) for number in range(TILE * TILE + TILE + 3)]
    chance = random.Random(6)
    at_once, stepwise = Grown(leaves), Grown(leaves, [chance.randrange(1, 2000) for _ in range(60)])
    assert at_once.rows == stepwise.rows
    assert at_once.edge.root() == stepwise.edge.root() == root(at_once.node(), len(leaves))
    assert Edge.read(at_once.read, len(leaves)).root() == at_once.edge.root()
    # Two rows of tiles are read for a proof, whatever the size.
    read = []
    node = tiled(lambda row, number: read.append((row, number)) or at_once.read(row, number), len(leaves))
    proof = inclusion_proof(node, 70, len(leaves))
    verify_inclusion(leaves[70], 70, len(leaves), proof, at_once.edge.root())
    assert len(read) <= 5


def test_the_first_tree_is_empty():
    assert root(grown().node(0), 0) == hashlib.sha256(b"").digest() == Edge().root()
    verify_consistency(0, 5, EMPTY, roots()[5], [])
    for objection in ((6, 5, b"", b""), (0, 5, roots()[1], roots()[5]), (-1, 5, EMPTY, roots()[5])):
        with pytest.raises(Unproved):
            verify_consistency(*objection, [])


def test_a_tile_with_a_hole_is_told():
    with pytest.raises(Unproved, match="missing"):
        root(tiled(lambda row, number: [], 5), 5)
    with pytest.raises(Unproved, match="missing"):
        Edge.read(lambda row, number: [], 5)
    with pytest.raises(ValueError, match="no leaf 5"):
        inclusion_proof(grown().node(5), 5, 5)
    with pytest.raises(ValueError, match="does not begin"):
        consistency_proof(grown().node(5), 6, 5)
