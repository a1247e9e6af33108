"""The Merkle tree of RFC 6962 (RFC 9162, section 2.1): roots, inclusion proofs, consistency proofs, in tiles of 256.

A leaf of the ledger's tree is a row's digest, in sealed order. Nothing here reads a store: whoever asks for a proof
hands in how the hash of a complete subtree is found.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice

HASH_BYTES = 32
#: What an empty tree's root is: the SHA-256 of nothing.
EMPTY = hashlib.sha256().digest()
#: A tile holds so many hashes of one row: those of 256 ** row leaves each. Row 0 are the leaves themselves.
TILE = 256
_LEVELS = 8
#: Whoever proves many leaves in their order reads each tile once, and hashes few subtrees twice. 512 KiB, and 256 KiB.
_KEPT_TILES, _KEPT_NODES = 64, 8192

#: Finds the hash of the complete subtree of 2 ** level leaves that begins at leaf index * 2 ** level.
Node = Callable[[int, int], bytes]
#: Finds the hashes of a tile, as far as it is filled: row, number.
ReadTile = Callable[[int, int], Sequence[bytes]]


class Unproved(ValueError):
    """A proof, or a head, does not show what it is held to show."""


def leaf_hash(data: bytes) -> bytes:
    """Hash what stands in a leaf."""
    return hashlib.sha256(b"\0" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash two subtrees into the one above."""
    return hashlib.sha256(b"\1" + left + right).digest()


def _whole(hashes: Sequence[bytes]) -> bytes:
    """Hash a complete subtree, out of as many hashes of one level as a power of two."""
    while len(hashes) > 1:
        hashes = [node_hash(left, right) for left, right in zip(hashes[::2], hashes[1::2], strict=True)]
    return hashes[0]


def _split(size: int) -> int:
    """Tell the largest power of two below a size."""
    return 1 << (size - 1).bit_length() - 1


def root(node: Node, size: int) -> bytes:
    """Hash the tree of the first `size` leaves."""
    return _subtree(node, 0, size) if size else EMPTY


def _subtree(node: Node, start: int, end: int) -> bytes:
    size = end - start
    if size & (size - 1) == 0:
        return node(size.bit_length() - 1, start // size)
    middle = start + _split(size)
    return node_hash(_subtree(node, start, middle), _subtree(node, middle, end))


def inclusion_proof(node: Node, index: int, size: int) -> list[bytes]:
    """List the hashes that lead from a leaf to the root of the tree of `size` leaves, its sibling first.

    Raises:
        ValueError: there is no such leaf.
    """
    if not 0 <= index < size:
        raise ValueError(f"a tree of {size} leaves has no leaf {index}")
    path, start, end = [], 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            path.append(_subtree(node, middle, end))
            end = middle
        else:
            path.append(_subtree(node, start, middle))
            start = middle
    return path[::-1]


def consistency_proof(node: Node, old: int, new: int) -> list[bytes]:
    """List the hashes that show that the tree of `new` leaves begins with the tree of `old` ones.

    Raises:
        ValueError: the old tree is larger, or one of them is negative.
    """
    if not 0 <= old <= new:
        raise ValueError(f"a tree of {new} leaves does not begin with {old}")
    path: list[bytes] = []
    start, end, known = 0, new, True
    while 0 < old < end:
        middle = start + _split(end - start)
        if old <= middle:
            path.append(_subtree(node, middle, end))
            end = middle
        else:
            path.append(_subtree(node, start, middle))
            start, known = middle, False
    if old and not known:
        path.append(_subtree(node, start, end))
    return path[::-1]


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], expected: bytes) -> None:
    """Hold a leaf's hash against a root, RFC 9162, section 2.1.3.2.

    Raises:
        Unproved: the proof does not lead there.
    """
    if not 0 <= index < size:
        raise Unproved(f"a tree of {size} leaves has no leaf {index}")
    here, last, found = index, size - 1, leaf
    for beside in proof:
        if last == 0:
            raise Unproved("the proof is too long")
        if here & 1 or here == last:
            found = node_hash(beside, found)
            while not here & 1 and here:
                here, last = here >> 1, last >> 1
        else:
            found = node_hash(found, beside)
        here, last = here >> 1, last >> 1
    if last or found != expected:
        raise Unproved(f"leaf {index} is not what stands in the tree of {size} leaves")


def verify_consistency(old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> None:
    """Hold two roots against each other, RFC 9162, section 2.1.4.2.

    Raises:
        Unproved: the proof does not show that the newer tree begins with the older one.
    """
    says = f"the tree of {new} leaves does not begin with the tree of {old}"
    if not 0 <= old <= new:
        raise Unproved(says)
    if old in {0, new}:
        if proof or (old_root != new_root if old else old_root != EMPTY):
            raise Unproved(says)
        return
    path = [old_root, *proof] if old & (old - 1) == 0 else list(proof)
    here, last = old - 1, new - 1
    while here & 1:
        here, last = here >> 1, last >> 1
    if not path:
        raise Unproved(says)
    before = after = path[0]
    for beside in path[1:]:
        if last == 0:
            raise Unproved(says)
        if here & 1 or here == last:
            before, after = node_hash(beside, before), node_hash(beside, after)
            while not here & 1 and here:
                here, last = here >> 1, last >> 1
        else:
            after = node_hash(after, beside)
        here, last = here >> 1, last >> 1
    if last or before != old_root or after != new_root:
        raise Unproved(says)


def tiled(read: ReadTile, size: int) -> Node:
    """Find complete subtrees of a tree of `size` leaves in its tiles; the last of both that were used are kept.

    A proof reads one or two tiles a row, and there is a row for every 256-fold of leaves.
    """

    @lru_cache(_KEPT_TILES)
    def tile(row: int, number: int) -> Sequence[bytes]:
        return read(row, number)

    @lru_cache(_KEPT_NODES)
    def node(level: int, index: int) -> bytes:
        row, rest = divmod(level, _LEVELS)
        if (index + 1) << level > size:
            raise ValueError(f"a tree of {size} leaves has no complete subtree {index} of 2 ** {level}")
        number, at = divmod(index << rest, TILE)
        hashes = tile(row, number)[at : at + (1 << rest)]
        if len(hashes) != 1 << rest:
            raise Unproved(f"hashes are missing in tile {number} of row {row}; build the rows anew from the leaves")
        return _whole(hashes)

    return node


class Edge:
    """The right edge of a growing tree: the tile of each row that is not full. Enough to add leaves, and for a root."""

    def __init__(self, size: int = 0, rows: Sequence[Sequence[bytes]] = ()) -> None:
        self.size = size
        self._rows = [list(row) for row in rows]

    @classmethod
    def read(cls, read: ReadTile, size: int) -> "Edge":
        """Read the edge of a tree of `size` leaves out of its tiles.

        Raises:
            Unproved: a hash is missing there.
        """
        rows: list[list[bytes]] = []
        full = size
        while full:
            number, filled = divmod(full, TILE)
            rows.append(list(read(len(rows), number))[:filled] if filled else [])
            if len(rows[-1]) != filled:
                raise Unproved(f"hashes are missing in tile {number} of row {len(rows) - 1}; see `pauseledger check`")
            full = number
        return cls(size, rows)

    def copy(self) -> "Edge":
        """Make another one, to add to without changing this."""
        return Edge(self.size, self._rows)

    def add(self, leaves: Sequence[bytes]) -> list[tuple[int, int, bytes]]:
        """Add hashes of leaves; list each tile that they fill: the row above, the place in it, the tile's hash."""
        done: list[tuple[int, int, bytes]] = []
        start = self.size
        self.size += len(leaves)
        self._add(0, start, leaves, done)
        return done

    def _add(self, row: int, start: int, hashes: Sequence[bytes], done: list[tuple[int, int, bytes]]) -> None:
        if row == len(self._rows):
            self._rows.append([])
        held, number = [*self._rows[row], *hashes], start // TILE
        filled = [_whole(tile) for tile in _chunks(held, TILE) if len(tile) == TILE]
        self._rows[row] = held[len(filled) * TILE :]
        if filled:
            done += [(row + 1, number + at, whole) for at, whole in enumerate(filled)]
            self._add(row + 1, number, filled, done)

    def root(self) -> bytes:
        """Hash the whole tree."""
        found: bytes | None = None
        for row in self._rows:
            end = len(row)
            while end:
                width = end & -end
                left = _whole(row[end - width : end])
                found = left if found is None else node_hash(left, found)
                end -= width
        return EMPTY if found is None else found


def _chunks(hashes: Sequence[bytes], size: int) -> Iterator[list[bytes]]:
    left = iter(hashes)
    while chunk := list(islice(left, size)):
        yield chunk
