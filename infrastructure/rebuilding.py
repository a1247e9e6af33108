"""Rebuilding: any number of views built anew in one pass over the log, beside the live ones, and swapped in."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor

from ..projections.projection import Projection
from ..projections.rows import Changes, LostRace, Place, Rows, RowsRejected
from ..projections.seen import Seen
from .follower import Follower
from .headers import Fronts, Log

#: Facts a batch. Rows that come and go within one are never written.
BATCH = 10_000
#: Beside a server: one thread reads ahead, the others write what was folded.
THREADS = 3

Progress = Callable[[int, int], None]


class Building:
    """One view being built anew. Somebody else may build the same one at once: both work on the same build."""

    def __init__(self, projection: Projection, rows: Rows) -> None:
        self._rows = rows
        self.apart = rows.apart
        try:
            self.at: Place | None = rows.begin_build()
        except LostRace:
            # Somebody else has swapped one in just now.
            self.at = None
        self._follower = Follower(projection, rows, None if self.at is None else self.at.build)
        self._indexed = False
        self._written: tuple[Place, Sequence[Seen]] | None = None
        self._writing: Future[None] | None = None

    def fold(self, start: int, facts: Sequence[Seen], writer: Executor | None) -> None:
        """Fold the facts after `start`, as far as they are new; `writer` writes while the next ones are folded."""
        while self.at is not None and self.at.position >= start:
            at = self.at
            new = facts if at.position == start else [fact for fact in facts if fact.position > at.position]
            if not new:
                return
            changes = None if writer is None else self._changes(at, new)
            if not self.settle():
                continue
            if writer is None or changes is None:
                self._moved(at, new, written=self._follower.fold(at, new))
            else:
                self._written = at, new
                self._writing = writer.submit(self._rows.save, at, changes, new[-1].position)
                self._moved(at, new, written=True)
            break
        self._index_in_time()

    def _changes(self, at: Place, facts: Sequence[Seen]) -> Changes | None:
        try:
            return self._follower.changes(at, facts)
        except RowsRejected:
            # One of them names what the store cannot even look for. It is found where they are written at once.
            self._follower.forget()
            return None

    def _moved(self, at: Place, facts: Sequence[Seen], *, written: bool) -> None:
        self.at = Place(at.build, facts[-1].position) if written else self._follower.place()

    def settle(self) -> bool:
        """Wait for what is being written; False where that did not come to be, and what followed has to be folded anew.

        Raises:
            StoreUnavailable: the store could not speak.
        """
        if self._writing is None or self._written is None:
            return True
        writing, self._writing = self._writing, None
        try:
            writing.result()
        except (LostRace, RowsRejected) as objected:
            self._follower.forget()
            if isinstance(objected, RowsRejected):
                self._follower.fold(*self._written)
            self._follower.forget()
            self.at = self._follower.place()
            return False
        return True

    def _index_in_time(self) -> None:
        by = self._rows.index_by
        if by is not None and self.at is not None and self.at.position > by and not self._indexed:
            self._indexed = True
            self._rows.index_build(self.at.build)

    def swap(self) -> None:
        """Put the build in its place, if it is as far as the live one and has its indexes; `at` is None then."""
        if not self.settle() or self.at is None:
            return
        if self._rows.swap(self.at.build) or self._rows.place().build >= self.at.build:
            self.at = None
        else:
            # That takes a while, in which the log goes on; the swap itself takes none.
            self._rows.index_build(self.at.build)


class Reading:
    """The log read in batches, the next one by a thread meanwhile where a server can do that."""

    def __init__(self, log: Log, batch: int, reader: Executor | None) -> None:
        self._log = log
        self._batch = batch
        self._reader = reader
        self._ahead: tuple[int, Future[Fronts]] | None = None

    def after(self, position: int) -> list[Seen]:
        """Read the batch after a position."""
        ahead, self._ahead = self._ahead, None
        read_before = ahead is not None and ahead[0] == position
        rows = ahead[1].result() if ahead and read_before else self._log.fronts(position, self._batch)
        if self._reader is not None and len(rows) == self._batch:
            newest = rows[-1][-1]
            self._ahead = newest, self._reader.submit(self._log.fronts, newest, self._batch)
        return self._log.seen(rows)


def rebuild(
    log: Log, views: Iterable[tuple[Projection, Rows]], progress: Progress | None = None, batch: int = BATCH
) -> None:
    """Build views anew, and put each in its place once it is as far as the live one. Writers and followers go on.

    Raises:
        StoreUnavailable: a store could not speak; rebuild again.
        InteractionConfigurationError: a rebuild by the tables' owner was cut off, and this role may not finish it.
    """
    buildings = [Building(projection, rows) for projection, rows in views]
    with ThreadPoolExecutor(THREADS, thread_name_prefix="pauseledger-rebuild") as pool:
        reading = Reading(log, batch, pool if log.apart else None)
        while going := [one for one in buildings if one.at is not None]:
            start = min(one.at.position for one in going if one.at is not None)
            facts = reading.after(start)
            for one in going:
                one.fold(start, facts, pool if one.apart else None)
            if progress is not None:
                progress(facts[-1].position if facts else start, log.newest())
            if len(facts) < batch:
                for one in going:
                    one.swap()
