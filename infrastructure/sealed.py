"""The sealed log: which row stands at which leaf of the tree, and what each store keeps for it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from eventsourcing.persistence import Notification

from ..domain.errors import InteractionConfigurationError
from .memory import MemoryRecorder
from .merkle import TILE, Node, tiled
from .sqlite import SQLiteRecorder
from .store import LedgerRecorder

#: Where a row's digest stands in its state: behind the magic word.
DIGEST_AT, DIGEST_BYTES = 4, 32

#: What is said where a head is needed and there is none.
NO_HEAD = "no head was signed yet; whoever runs the ledger runs `pauseledger keys log` once, then `pauseledger seal`"


@dataclass(frozen=True, slots=True)
class Tip:
    """How far the log is sealed: how many leaves, and the highest position among them."""

    size: int
    position: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf: its number, the position of its row, its hash."""

    index: int
    position: int
    hash: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SignedHead:
    """A head that was signed: how many leaves, the note, and when (UTC, the store's clock)."""

    size: int
    checkpoint: str
    made_at: datetime


class SealedRows(ABC):
    """What a store keeps of the sealed log. Every method blocks, and is safe to call from several threads.

    Raises (every method):
        StoreUnavailable: the store could not speak.
        InteractionConfigurationError: the database role lacks the right.
    """

    @abstractmethod
    def tip(self) -> Tip:
        """Tell how far the log is sealed."""

    @abstractmethod
    def append(self, at: Tip, leaves: Sequence[tuple[int, bytes]], tiles: Sequence[tuple[int, int, bytes]]) -> bool:
        """Write leaves (position and hash) behind a tip, and the tiles they fill, and move the tip: all or nothing.

        False, and nothing is written, where somebody else is sealing or has sealed meanwhile.
        """

    @abstractmethod
    def leaves(self, start: int, limit: int) -> Sequence[Leaf]:
        """Read leaves in their order, from a number on."""

    @abstractmethod
    def tiles(self, row: int, start: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Read a row of the tiles in its order, from a place on: place and hash."""

    @abstractmethod
    def indexes(self, positions: Sequence[int]) -> dict[int, int]:
        """Find the leaves of rows by their positions; those not sealed yet are left out."""

    @abstractmethod
    def digests(self, gt: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Read positions and stored digests of the log after a position, as far as nothing can turn up below."""

    @abstractmethod
    def streams(self, batch: int) -> Iterator[Sequence[Notification]]:
        """Read all rows whole, by stream and version, so many at once, however they were altered.

        What is no id any more is given as `NO_STREAM`, what is no number as -1, and what are no bytes as none.
        """

    @abstractmethod
    def unsealed(self, lte: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Find rows up to a position that stand at no leaf: positions and stored digests. Goes through all of them."""

    @abstractmethod
    def strays(self, size: int, limit: int) -> Sequence[tuple[int, int]]:
        """Find what stands outside of the tree of all that was sealed, or of `size` leaves where that is more.

        Rows of tiles with places in them; row 0 are the leaves. What is no number any more is given as -1.
        """

    @abstractmethod
    def keep(self, size: int, checkpoint: str) -> None:
        """Keep a signed head; one of that size that is there stays."""

    @abstractmethod
    def heads(self, after: int, limit: int) -> Sequence[SignedHead]:
        """Read signed heads of more than `after` leaves, smallest first."""

    @abstractmethod
    def newest_head(self) -> SignedHead | None:
        """Read the newest signed head; None where there is none."""

    def tile(self, row: int, number: int) -> Sequence[bytes]:
        """Read the hashes of a tile, as far as it is filled; those of row 0 are the leaves."""
        if row:
            return [whole for _, whole in self.tiles(row, number * TILE, TILE)]
        return [leaf.hash for leaf in self.leaves(number * TILE, TILE)]

    def node(self, size: int) -> Node:
        """Find complete subtrees of the first `size` leaves."""
        return tiled(self.tile, size)


def sealed_rows(recorder: LedgerRecorder) -> SealedRows:
    """Give the sealed log beside what a recorder keeps.

    Raises:
        InteractionConfigurationError: there is none for a store of that kind.
    """
    if isinstance(recorder, MemoryRecorder):
        from .sealed_memory import memory_sealed  # noqa: PLC0415 - each store's own is loaded with it alone

        return memory_sealed(recorder)
    if isinstance(recorder, SQLiteRecorder):
        from .sealed_sqlite import SQLiteSealed  # noqa: PLC0415 - as above

        return SQLiteSealed(recorder)
    from .postgres import PostgresRecorder  # noqa: PLC0415 - a driver that an embedded ledger need not load
    from .sealed_postgres import PostgresSealed  # noqa: PLC0415 - as above

    if isinstance(recorder, PostgresRecorder):
        return PostgresSealed(recorder)
    raise InteractionConfigurationError(f"there is no sealed log beside a {type(recorder).__name__}; use another store")
