"""The sealed log in this process's memory."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from threading import RLock
from weakref import WeakKeyDictionary, ref

from eventsourcing.persistence import Notification

from .memory import MemoryRecorder
from .merkle import TILE
from .sealed import DIGEST_AT, DIGEST_BYTES, Leaf, SealedRows, SignedHead, Tip

_MADE: "WeakKeyDictionary[MemoryRecorder, MemorySealed]" = WeakKeyDictionary()
_MAKING = RLock()


class MemorySealed(SealedRows):
    """Leaves in a list."""

    def __init__(self, recorder: MemoryRecorder) -> None:
        # Its own would keep the recorder, and with it the whole ledger, for as long as the process.
        self._recorder = ref(recorder)
        self._lock = RLock()
        self._leaves: list[Leaf] = []
        self._at: dict[int, int] = {}
        self._tiles: dict[int, list[bytes]] = {}
        self._position = 0
        self._heads: list[SignedHead] = []

    def tip(self) -> Tip:
        """Tell how far the log is sealed."""
        with self._lock:
            return Tip(len(self._leaves), self._position)

    def append(self, at: Tip, leaves: Sequence[tuple[int, bytes]], tiles: Sequence[tuple[int, int, bytes]]) -> bool:
        """Write leaves behind a tip."""
        with self._lock:
            if self.tip() != at:
                return False
            self._leaves += [Leaf(at.size + turn, *leaf) for turn, leaf in enumerate(leaves)]
            self._at |= {position: at.size + turn for turn, (position, _) in enumerate(leaves)}
            for row, _, whole in tiles:
                self._tiles.setdefault(row, []).append(whole)
            self._position = max(at.position, *(position for position, _ in leaves))
            return True

    def tile(self, row: int, number: int) -> Sequence[bytes]:
        """Read the hashes of a tile."""
        part = slice(number * TILE, (number + 1) * TILE)
        with self._lock:
            return self._tiles.get(row, [])[part] if row else [leaf.hash for leaf in self._leaves[part]]

    def leaves(self, start: int, limit: int) -> Sequence[Leaf]:
        """Read leaves in their order."""
        with self._lock:
            return self._leaves[start : start + limit]

    def tiles(self, row: int, start: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Read a row of the tiles."""
        with self._lock:
            return list(enumerate(self._tiles.get(row, [])))[start : start + limit]

    def indexes(self, positions: Sequence[int]) -> dict[int, int]:
        """Find the leaves of rows."""
        with self._lock:
            return {position: self._at[position] for position in positions if position in self._at}

    def digests(self, gt: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Read positions and stored digests."""
        recorder = self._recorder()
        found = [] if recorder is None else recorder.select_notifications(gt, limit, inclusive_of_start=False)
        return [(row.id, row.state[DIGEST_AT : DIGEST_AT + DIGEST_BYTES]) for row in found]

    def streams(self, batch: int) -> Iterator[Sequence[Notification]]:
        """Read all rows whole, by stream."""
        recorder = self._recorder()
        found = [] if recorder is None else list(recorder.walk())
        found.sort(key=lambda row: (row.originator_id, row.originator_version))
        for start in range(0, len(found), batch):
            yield found[start : start + batch]

    def unsealed(self, lte: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Find rows that stand at no leaf."""
        found = self.digests(0, lte)
        return [row for row in found if row[0] <= lte and row[0] not in self._at][:limit]

    def strays(self, size: int, limit: int) -> Sequence[tuple[int, int]]:  # noqa: ARG002 - lists have no gaps
        """Find nothing: a list has no gaps."""
        return []

    def keep(self, size: int, checkpoint: str) -> None:
        """Keep a signed head."""
        with self._lock:
            sizes = [head.size for head in self._heads]
            if size not in sizes:
                head = SignedHead(size, checkpoint, datetime.now(UTC))
                self._heads.insert(bisect_right(sizes, size), head)

    def heads(self, after: int, limit: int) -> Sequence[SignedHead]:
        """Read signed heads."""
        with self._lock:
            return [head for head in self._heads if head.size > after][:limit]

    def newest_head(self) -> SignedHead | None:
        """Read the newest signed head."""
        with self._lock:
            return self._heads[-1] if self._heads else None


def memory_sealed(recorder: MemoryRecorder) -> MemorySealed:
    """Give a recorder's one sealed log; it ends with the recorder."""
    with _MAKING:
        return _MADE.setdefault(recorder, MemorySealed(recorder))
