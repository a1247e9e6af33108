"""What must hold of the sealed log: each row at its leaf, each leaf in the tree, each head of this tree."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from .check_streams import Fault
from .merkle import Edge, Unproved, leaf_hash
from .notes import Checkpoint, Verifier
from .sealed import Leaf, SealedRows, Tip

_BATCH = 5000
#: So many rows that were passed over are remembered, to be found again as late leaves.
_PASSED = 100_000
#: So many that stand outside of the tree are told.
_STRAYS = 1000


@dataclass(frozen=True, slots=True)
class Kept:
    """A head to hold the tree against: the note, who kept it, and as that of how many leaves, where that is told."""

    note: str
    by: str
    size: int | None = None


@dataclass(slots=True)
class _Walk:
    """The log read beside the leaves: rows that no leaf was met for yet."""

    log: Callable[[int], Iterator[tuple[int, bytes]]]
    top: int = 0
    count: int = 0
    passed: dict[int, bytes] = field(default_factory=dict)
    next: tuple[int, bytes] | None = None
    _last: int = 0
    _rows: Iterator[tuple[int, bytes]] | None = None

    def go_on(self) -> None:
        """Read on where the log ended: rows may have come since, and leaves for them."""
        if self._rows is None:
            self._rows = self.log(self._last)

    def ahead(self) -> tuple[int, bytes] | None:
        if self.next is None and self._rows is not None:
            self.next = next(self._rows, None)
            if self.next is None:
                self._rows = None
            else:
                self.count, self._last = self.count + 1, self.next[0]
        return self.next

    def up_to(self, position: int) -> bytes | None:
        """Go on to a position; give the digest of the row there, None where there is none."""
        while (row := self.ahead()) is not None and row[0] <= position:
            self.next = None
            if row[0] == position:
                return row[1]
            if len(self.passed) < _PASSED:
                self.passed[row[0]] = row[1]
        return None


class TreeCheck:
    """Goes once through the log and its leaves, side by side.

    Attributes:
        rows: How many rows the log has.
        size: How many leaves there are.
        unsealed: How many rows stand behind the last leaf; nothing outside says yet what they are.
        proved: The largest head, of those given, that the tree begins with.
    """

    def __init__(self, rows: SealedRows, origin: str, keys: Sequence[Verifier]) -> None:
        self._rows = rows
        self._origin = origin
        self._keys = [key for key in keys if key.name == origin]
        self.rows = self.size = self.unsealed = self.proved = 0

    def faults(self, kept: Iterable[Kept]) -> Iterator[Fault]:
        """Give what does not hold, in the order of the tree."""
        heads, refused = self._heads(kept)
        yield from refused
        walk, edge, tip = _Walk(self._log), Edge(), Tip(0, 0)
        while True:
            while leaves := self._rows.leaves(self.size, _BATCH):
                walk.go_on()
                yield from self._of_leaves(leaves, walk)
                yield from self._of_tree(edge, [leaf.hash for leaf in leaves], heads)
            before, tip = tip, self._rows.tip()
            # Somebody may be sealing beside this: where the tip has moved, there are more leaves, or it was altered.
            if tip.size <= self.size or tip == before:
                break
        walk.go_on()
        yield from self._of_end(walk, tip.size, tip.position)
        for _, says, by in heads:
            yield Fault("head", f"{says.size} leaves were signed ({by}), and {self.size} are here: the end is gone")

    def _log(self, at: int) -> Iterator[tuple[int, bytes]]:
        while found := self._rows.digests(at, _BATCH):
            yield from found
            at = found[-1][0]

    def _heads(self, kept: Iterable[Kept]) -> tuple[list[tuple[int, Checkpoint, str]], list[Fault]]:
        heads: list[tuple[int, Checkpoint, str]] = []
        refused: list[Fault] = []
        for one in kept:
            try:
                head = Checkpoint.open(one.note, self._keys) if self._keys else Checkpoint.of(one.note)
                if one.size not in {None, head.size}:
                    raise Unproved(f"it is of {head.size} leaves, and kept as that of {one.size}")  # noqa: TRY301 - told alike
                if head.origin != self._origin:
                    raise Unproved(f"it is of {head.origin}, and this ledger's are of {self._origin}")  # noqa: TRY301 - told alike
                heads.append((head.size, head, one.by))
            except Unproved as wrong:
                refused.append(Fault("head", f"a head ({one.by}) does not hold: {wrong}", leaf=one.size))
        return sorted(heads, key=lambda one: one[0]), refused

    def _of_leaves(self, leaves: Sequence[Leaf], walk: _Walk) -> Iterator[Fault]:
        for leaf in leaves:
            if leaf.index != self.size:
                yield Fault("tree", f"leaf {self.size} is missing, and leaf {leaf.index} follows", leaf=self.size)
            self.size = leaf.index + 1
            if leaf.position > walk.top:
                digest, walk.top = walk.up_to(leaf.position), leaf.position
            else:
                digest = walk.passed.pop(leaf.position, None)
                yield Fault(
                    "tree", "a late leaf: its row turned up below what was sealed", leaf.position, leaf=leaf.index
                )
            if digest is None:
                yield Fault("tree", "a row was sealed here, and is gone", leaf.position, leaf=leaf.index)
            elif leaf_hash(digest) != leaf.hash:
                yield Fault("tree", "the row is not the one that was sealed here", leaf.position, leaf=leaf.index)

    def _of_tree(
        self, edge: Edge, hashes: Sequence[bytes], heads: list[tuple[int, Checkpoint, str]]
    ) -> Iterator[Fault]:
        """Add hashes, stopping where a head was signed."""
        while hashes:
            stop = heads[0][0] - edge.size if heads else len(hashes)
            yield from self._of_tiles(edge.add(hashes[: max(stop, 0)]))
            hashes = hashes[max(stop, 0) :]
            while heads and heads[0][0] == edge.size:
                yield from self._of_head(*heads.pop(0), edge.root())

    def _of_tiles(self, made: Sequence[tuple[int, int, bytes]]) -> Iterator[Fault]:
        for row in {row for row, _, _ in made}:
            places = [(place, whole) for at, place, whole in made if at == row]
            held = list(self._rows.tiles(row, places[0][0], len(places)))
            for place, whole in places if held != places else ():
                if [one for at, one in held if at == place] != [whole]:
                    says = f"tile {place} of row {row} is not that of its leaves"
                    yield Fault("tree", says, leaf=place * 256**row)

    def _of_head(self, size: int, head: Checkpoint, by: str, found: bytes) -> Iterator[Fault]:
        if head.root == found:
            self.proved = max(self.proved, size)
        else:
            says = (
                f"the first {size} leaves are not those that were signed ({by}): one from {self.proved} on is another"
            )
            yield Fault("head", says, leaf=self.proved)

    def _of_end(self, walk: _Walk, size: int, position: int) -> Iterator[Fault]:
        if (size, position) != (self.size, walk.top):
            says = f"sealing stands at leaf {size}, position {position}; the leaves end at {self.size}, {walk.top}"
            yield Fault("tree", says, walk.top, leaf=self.size)
        for row, place in self._rows.strays(self.size, _STRAYS):
            if row:
                yield Fault("tree", f"tile {place} of row {row} is of no leaves that were sealed; remove it")
            else:
                says = f"a leaf stands apart from the {self.size} that were sealed, and keeps others from it; remove it"
                yield Fault("tree", says, leaf=place)
        yield from (Fault("tree", "a row turned up below what was sealed, at no leaf", at) for at in walk.passed)
        while walk.ahead() is not None:
            walk.next = None
            self.unsealed += 1
        self.rows = walk.count
