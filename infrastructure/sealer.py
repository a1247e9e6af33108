"""The sealer: puts the log's rows into the tree, in batches, and signs its heads. Of any number one is active."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..domain.errors import StoreUnavailable
from .merkle import Edge, Unproved, consistency_proof, inclusion_proof, leaf_hash, root, verify_consistency
from .notes import Checkpoint, Proof, Signer
from .sealed import SealedRows, Tip

#: Leaves a batch; larger ones are no faster, and hold the tip longer.
BATCH = 10_000
#: Late rows named at most, of those found at once.
LATE = 1000


def origin_of(ledger_id: object) -> str:
    """Name a ledger's log, as its heads and its keys are named."""
    return f"pauseledger/{ledger_id}"


@dataclass(frozen=True, slots=True)
class Sealing:
    """What sealing came to.

    Attributes:
        sealed: How many leaves were added.
        size: How many there are now.
        late: The positions of rows that turned up below what was sealed; they stand behind the others now.
        head: The newest signed head; None where there is no key.
    """

    sealed: int
    size: int
    late: Sequence[int] = ()
    head: str | None = field(default=None, repr=False)


class Sealer:
    """Seals one ledger's log. Every method blocks; not to be shared by threads.

    Raises (every method):
        StoreUnavailable: the store could not speak; the same call later goes on.
        Unproved: what is sealed does not hold together. Nothing is signed; `pauseledger check` says where.
    """

    def __init__(self, rows: SealedRows, origin: str, signer: Signer | None = None, batch: int = BATCH) -> None:
        self._rows = rows
        self._origin = origin
        self._signer = signer
        self.batch = batch
        self._edge = Edge()

    def step(self) -> int:
        """Seal the next batch; tell how many rows that were. 0 where there are none, or somebody else seals."""
        tip = self._rows.tip()
        found = self._rows.digests(tip.position, self.batch)
        return len(found) if found and self._add(tip, found) else 0

    def _add(self, tip: Tip, found: Sequence[tuple[int, bytes]]) -> bool:
        leaves = [(position, leaf_hash(digest)) for position, digest in found]
        grown = self._edge_at(tip.size).copy()
        tiles = grown.add([leaf for _, leaf in leaves])
        try:
            if not self._rows.append(tip, leaves, tiles):
                return False
        except StoreUnavailable as refused:
            if not self._rows.strays(tip.size, 1):
                raise
            raise Unproved(
                "leaves or tiles stand where none were sealed, and keep others out; `pauseledger check` names them"
            ) from refused
        self._edge = grown
        return True

    def _edge_at(self, size: int) -> Edge:
        if self._edge.size != size:
            self._edge = Edge.read(self._rows.tile, size)
        return self._edge

    def seal(self, *, sign: bool = True) -> Sealing:
        """Seal all there is, late rows behind the others, and sign a head."""
        late = self.seal_late()
        sealed = len(late)
        while moved := self.step():
            sealed += moved
        return Sealing(sealed, self._rows.tip().size, late, self.sign() if sign else None)

    def seal_late(self) -> list[int]:
        """Find rows that turned up below what was sealed, and seal them behind the others; give their positions.

        Goes through the whole log. Nothing of ours writes below what was sealed: each of them is an alarm.
        """
        tip = self._rows.tip()
        found = self._rows.unsealed(tip.position, LATE)
        return [position for position, _ in found] if found and self._add(tip, found) else []

    def sign(self) -> str | None:
        """Sign the head of what is sealed, unless it was signed; None where there is no key, or nothing to sign.

        A head is never signed that does not begin with the newest one signed before.
        """
        size = self._rows.tip().size
        newest = self._rows.newest_head()
        if newest is not None and newest.size == size:
            return newest.checkpoint
        if self._signer is None or not size:
            return None
        head = Checkpoint(self._origin, size, self._edge_at(size).root())
        if newest is not None:
            self.must_begin_with(newest.checkpoint, head)
        note = self._signer.sign(head.text())
        self._rows.keep(size, note)
        return note

    def must_begin_with(self, older: str, head: Checkpoint | None = None) -> None:
        """Hold the tree against a head of before, whoever kept it: its text alone, not who signed it.

        Raises:
            Unproved: the tree does not begin with that head's.
        """
        was = Checkpoint.of(older)
        size = self._rows.tip().size if head is None else head.size
        if was.origin != self._origin:
            raise Unproved(f"the head kept is of {was.origin}, and this ledger's are of {self._origin}")
        if was.size > size:
            raise Unproved(
                f"{was.size} leaves were sealed, and {size} are here: the end of the log is gone, or rolled back"
            )
        found = root(self._rows.node(size), was.size)
        if found != was.root:
            raise Unproved(
                f"the first {was.size} leaves are not those that were signed: the log was forked, or altered"
            )


def prove(rows: SealedRows, index: int, head: str) -> Proof:
    """Prove that a leaf stands in the tree of a head.

    Raises:
        ValueError: there is no such leaf.
        Unproved: what is sealed does not hold together.
    """
    size = Checkpoint.of(head).size
    return Proof(index, inclusion_proof(rows.node(size), index, size), head)


def prove_consistency(rows: SealedRows, older: Checkpoint, newer: Checkpoint) -> list[bytes]:
    """Prove that the tree of one head begins with that of an older one.

    Raises:
        Unproved: it does not.
    """
    if older.size > newer.size:
        raise Unproved(
            f"the older head has {older.size} leaves, the newer one {newer.size}; give them the other way round"
        )
    path = consistency_proof(rows.node(newer.size), older.size, newer.size)
    verify_consistency(older.size, newer.size, older.root, newer.root, path)
    return path
