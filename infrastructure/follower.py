"""One view being folded: batch by batch, position and rows moving together, whoever else folds it too."""

from collections.abc import Sequence
from threading import RLock

from ..projections.projection import Projection
from ..projections.rows import Changes, LostRace, Page, Place, Rows, RowsRejected
from ..projections.seen import Seen

#: Rows a view's page keeps from batch to batch, as long as nobody else has moved the view, before it starts afresh.
KEPT_ROWS = 100_000


class Follower:
    """One view being folded: safe beside any number of others, in this process or elsewhere.

    Exactly one of all who fold the same batch moves the position; the others write nothing, and go on from there.
    """

    def __init__(self, projection: Projection, rows: Rows, build: int | None = None) -> None:
        self.projection = projection
        self.rows = rows
        self._build = build
        self._page = Page()
        self._page_at: Place | None = None
        # A process steps in several threads at once, and a page in the middle of a batch is for one of them alone.
        self._folding = RLock()

    def place(self) -> Place | None:
        """Tell where the build followed is; None where it is gone."""
        return self.rows.place() if self._build is None else self.rows.place_of(self._build)

    def fold(self, at: Place, facts: Sequence[Seen]) -> bool:
        """Fold facts that follow a place, and move on to the last of them; False where somebody else did."""
        with self._folding:
            try:
                self.rows.save(at, self.changes(at, facts), facts[-1].position)
            except LostRace:
                self.forget()
                return False
            except RowsRejected:
                self.forget()
                return self._apart(at, facts)
            except BaseException:
                self.forget()
                raise
            return True

    def changes(self, at: Place, facts: Sequence[Seen]) -> Changes:
        """Work out what facts that follow a place change; `forget` it all where that is not written."""
        if self.full:
            self.forget()
        self.look(at, facts)
        return self.drawn()

    @property
    def full(self) -> bool:
        """Whether so many rows are kept that it is time to `forget` them, once what was drawn is written."""
        return len(self._page) > KEPT_ROWS

    def look(self, at: Place, facts: Sequence[Seen]) -> None:
        """Fold facts that follow a place, or those looked at last; nothing is drawn yet."""
        if self._page_at != at:
            self._page = Page()
        self._page_at, page = None, self._page
        folded = self.projection.facts
        looked_at = [fact for fact in facts if fact.name in folded or fact.unreadable]
        for table, keys in self.projection.wants(looked_at, page):
            missing = page.missing(table, keys)
            if missing:
                page.load(table, missing, self.rows.find(at.build, table, missing))
        take = self.projection.take
        for fact in looked_at:
            take(fact, page)
        self._page_at = Place(at.build, facts[-1].position)

    def drawn(self) -> Changes:
        """Give what all that was looked at since the last time changes."""
        changes = self._page.changes()
        self._page.saved()
        return changes

    def forget(self) -> None:
        """Look every row up again from here on."""
        self._page_at = None

    def _apart(self, at: Place, facts: Sequence[Seen]) -> bool:
        """Find the fact that the store cannot hold the rows of, half by half, and set it aside."""
        if len(facts) == 1:
            return self._alone(at, facts[0])
        half = len(facts) // 2
        first, rest = facts[:half], facts[half:]
        return self.fold(at, first) and self.fold(Place(at.build, first[-1].position), rest)

    def _alone(self, at: Place, fact: Seen) -> bool:
        # Perhaps only a row stood where none was looked for.
        for again in (fact.again(), fact.again(spoiled=True)):
            try:
                self.rows.save(at, self.changes(at, [again]), fact.position)
            except LostRace:
                self.forget()
                return False
            except RowsRejected:
                self.forget()
            else:
                return True
        raise RowsRejected(f"view {self.projection.name} cannot even set aside the fact at position {fact.position}")
