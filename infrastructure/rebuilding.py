"""Rebuilding: any number of views built anew in one pass over the log, beside the live ones, and swapped in."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial

from ..projections.projection import Projection
from ..projections.rows import LostRace, Place, Rows, RowsRejected
from ..projections.seen import Seen
from .follower import Follower
from .headers import Fronts, Log

#: Facts a batch. Rows that come and go within one are never written.
BATCH = 10_000
#: Beside a server: one thread reads ahead, the others write what was folded.
THREADS = 3
#: Facts that are made of rows at once: they go again before Python's collector comes by.
SLICE = 500

Progress = Callable[[int, int], None]
Anew = Callable[[], Sequence[Seen]]


class Building:
    """One view being built anew. Somebody else may build the same one at once: both work on the same build."""

    def __init__(self, projection: Projection, rows: Rows) -> None:
        self._projection = projection
        self._rows = rows
        self.apart = rows.apart
        self.at: Place | None = None
        self._on(rows.begin_build())
        self._indexed = False
        self._looked_at: Place | None = None
        self._odd = False
        self._written: tuple[Place, Anew] | None = None
        self._writing: Callable[[], None] | None = None

    def _on(self, at: Place | None) -> None:
        """Go on from a place; None where the build was put in its place."""
        if at is not None and (self.at is None or at.build != self.at.build):
            self._follower = Follower(self._projection, self._rows, at.build)
            self._indexed = False
        self._follower.forget()
        self.at = at

    def _look_up(self) -> None:
        """Go on from where the build is now, or with the one that somebody else has begun in its stead."""
        at = self._follower.place() or self._rows.under_way()
        self._on(None if at is None or at.build <= self._rows.place().build else at)

    def begin(self, start: int) -> None:
        """Begin with the batch after `start`; where the build is not so far, nothing of it is looked at."""
        if self._follower.full:
            # What is looked up again has to stand where it is looked for.
            self.settle()
            self._follower.forget()
        self._odd = False
        self._looked_at = None if self.at is None or self.at.position < start else self.at

    def look(self, facts: Sequence[Seen]) -> None:
        """Fold the next facts of the batch, as far as they are new, while the batch before is being written."""
        at = self._looked_at
        if at is None or facts[-1].position <= at.position:
            return
        new = facts if facts[0].position > at.position else [fact for fact in facts if fact.position > at.position]
        if not self._odd:
            try:
                self._follower.look(at, new)
            except RowsRejected:
                # One of them names what the store cannot even look for. It is found where they are written at once.
                self._odd = True
        self._looked_at = Place(at.build, facts[-1].position)

    def write(self, anew: Anew, writer: Executor | None) -> None:
        """Write what the batch came to; `writer` does that while the next one is folded. `anew` gives its facts again.

        Where that did not come to be, the build is left where it is, and goes on from there.
        """
        at, to = self.at, self._looked_at
        if at is None or to is None or to == at or not self.settle():
            return
        if self._odd:
            self._one_by_one(at, anew)
        else:
            save = partial(self._rows.save, at, self._follower.drawn(), to.position)
            self._writing = save if writer is None else writer.submit(save).result
            self.at, self._written = to, (at, anew)
            if writer is None and not self.settle():
                return
        self._index_in_time()

    def _one_by_one(self, at: Place, anew: Anew) -> None:
        self._follower.forget()
        self._follower.fold(at, [fact for fact in anew() if fact.position > at.position])
        self._look_up()

    def settle(self) -> bool:
        """Wait for what is being written; False where that did not come to be, and what followed has to be folded anew.

        Raises:
            StoreUnavailable: the store could not speak.
        """
        if self._writing is None or self._written is None:
            return True
        writing, self._writing = self._writing, None
        try:
            writing()
        except LostRace:
            self._look_up()
            return False
        except RowsRejected:
            self._one_by_one(*self._written)
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
        if self._rows.swap(self.at.build):
            self._on(None)
            return
        at = self.at
        self._look_up()
        if self.at == at:
            # That takes a while, in which the log goes on; the swap itself takes none.
            self._rows.index_build(at.build)


class Reading:
    """The log read in batches, the next one by a thread meanwhile where a server can do that."""

    def __init__(self, log: Log, batch: int, reader: Executor | None) -> None:
        self._log = log
        self._batch = batch
        self._reader = reader
        self._ahead: tuple[int, Future[Fronts]] | None = None

    def after(self, position: int) -> Fronts:
        """Read the batch after a position."""
        ahead, self._ahead = self._ahead, None
        read_before = ahead is not None and ahead[0] == position
        rows = ahead[1].result() if ahead and read_before else self._log.fronts(position, self._batch)
        if self._reader is not None and len(rows) == self._batch:
            newest = rows[-1][-1]
            self._ahead = newest, self._reader.submit(self._log.fronts, newest, self._batch)
        return rows

    def slices(self, rows: Fronts) -> Iterator[list[Seen]]:
        """Make facts of rows, some at a time."""
        for start in range(0, len(rows), SLICE):
            yield self._log.seen(rows[start : start + SLICE])


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
            rows = reading.after(start)
            for one in going:
                one.begin(start)
            for facts in reading.slices(rows):
                for one in going:
                    one.look(facts)
            for one in going:
                one.write(partial(log.seen, rows), pool if one.apart else None)
            if progress is not None:
                progress(rows[-1][-1] if rows else start, log.newest())
            if len(rows) < batch:
                for one in going:
                    one.swap()
