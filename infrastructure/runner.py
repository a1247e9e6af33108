"""The runner: follows the log for several views, batch by batch, and tells how far they are."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from ..projections.projection import Projection
from ..projections.rows import Key, Rows
from .follower import Follower
from .headers import Log
from .rebuilding import BATCH as REBUILD_BATCH
from .rebuilding import Progress, rebuild

#: Facts a batch. Larger ones hold the view's row longer.
BATCH = 2000


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a view is behind the log.

    Attributes:
        position: The last position folded in.
        newest: The log's newest position.
        behind: How many facts are not folded in yet; counted up to 10,000.
        seconds: How long the oldest of these has stood in the log; 0 where there is none.
        set_aside: How many facts could not be folded.
        learnt: How many of these were too new, and this version knows them: `ledger.follow()` rebuilds the view.
    """

    view: str
    position: int
    newest: int
    behind: int
    seconds: float
    set_aside: int
    learnt: int


#: So many facts behind are counted one by one.
COUNTED = 10_000


class Runner:
    """Follows the log for several views. Every method blocks.

    Raises (every method):
        StoreUnavailable: a store could not speak; the same call later goes on.
    """

    def __init__(self, log: Log, views: Iterable[tuple[Projection, Rows]], batch: int = BATCH) -> None:
        self._log = log
        self._followers = {projection.name: Follower(projection, rows) for projection, rows in views}
        self.batch = batch
        self.rebuild_batch = REBUILD_BATCH

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views."""
        return tuple(self._followers)

    def step(self, views: Sequence[str] | None = None) -> int:
        """Fold the next batch into each view, or into those named; tell how many facts the slowest moved on by."""
        followers = [self._followers[name] for name in (self.views if views is None else views)]
        placed = [(place, follower) for follower in followers if (place := follower.place()) is not None]
        placed.sort(key=lambda one: one[0].position)
        most = 0
        for position, group in groupby(placed, key=lambda one: one[0].position):
            facts = self._log.after(position, self.batch)
            for place, follower in group if facts else ():
                follower.fold(place, facts)
            most = max(most, len(facts))
        return most

    def position(self, view: str) -> int:
        """Tell where a view is."""
        return self._followers[view].rows.place().position

    def newest(self) -> int:
        """Tell the log's newest position."""
        return self._log.newest()

    def progress(self) -> tuple[int, int]:
        """Tell where the slowest view is, and the log's newest position."""
        return min(self.position(view) for view in self._followers), self._log.newest()

    def catch_up(self, seconds: float, views: Sequence[str] | None = None) -> bool:
        """Fold until the views are where the log was when this began; False where the time was not enough."""
        wanted, deadline = self._log.newest(), time.monotonic() + seconds
        named = self.views if views is None else views
        while any(self.position(view) < wanted for view in named):
            if time.monotonic() > deadline:
                return False
            self.step(named)
        return True

    def lag(self, now: datetime) -> list[Lag]:
        """Tell how far each view is behind."""
        newest = self._log.newest()
        return [self._lag(name, follower, newest, now) for name, follower in self._followers.items()]

    def _lag(self, name: str, follower: Follower, newest: int, now: datetime) -> Lag:
        position = follower.rows.place().position
        waiting = self._log.after(position, 1)
        since = waiting[0].at if waiting else ""
        seconds = (now - datetime.fromisoformat(since)) / timedelta(seconds=1) if since else 0.0
        set_aside = follower.rows.tally(follower.projection.set_aside, ("why", "topic"))
        return Lag(
            view=name,
            position=position,
            newest=max(newest, position),
            behind=self._log.count_after(position, COUNTED) if waiting else 0,
            seconds=max(seconds, 0.0),
            set_aside=sum(set_aside.values()),
            learnt=self._learnt(set_aside),
        )

    def _learnt(self, set_aside: Mapping[Key, int]) -> int:
        return sum(count for (why, topic), count in set_aside.items() if why == "too_new" and self._log.knows(topic))

    def outgrown(self) -> list[str]:
        """Name the views that set facts aside which an earlier version did not know and this one does."""
        return [
            name
            for name, one in self._followers.items()
            if self._learnt(one.rows.tally(one.projection.set_aside, ("why", "topic")))
        ]

    def rebuild(self, views: Sequence[str], progress: Progress | None = None) -> dict[str, int]:
        """Build views anew beside the live ones, which answer meanwhile, in one pass; tell where each is then.

        Writers write on, and followers follow the live ones. Somebody else may rebuild the same views at once: both
        work on the same builds.
        """
        followers = [self._followers[name] for name in views]
        rebuild(self._log, [(one.projection, one.rows) for one in followers], progress, self.rebuild_batch)
        return {name: self.position(name) for name in views}
