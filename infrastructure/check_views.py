"""What must hold of the views: each row is what the log comes to, folded anew beside them."""

import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any

from ..projections.projection import Projection
from ..projections.rows import Changes, Condition, Place, Query, Rows, Still, Table, ViewGone
from ..projections.seen import Seen
from .check_streams import Fault
from .follower import Follower
from .headers import Log
from .rebuilding import Reading
from .views_sqlite import SQLiteRows, ViewsFile

_PAGE = 5000
#: Facts folded at once: rows that come and go within them are never written.
_BATCH = 10_000
#: A view that is rebuilt while it is compared is compared again, so many times.
_TRIES = 5

Progress = Callable[[int, int], None]
_Row = tuple[Any, ...]


class _Scratch(ViewsFile):
    """A file that nobody needs once the process is gone."""

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("PRAGMA synchronous = OFF")
        return connection


class _Anew(SQLiteRows):
    """A view folded anew. A row that stands at its fact's own position, for good, is held against the view's at once.

    All others are kept until the end, without the indexes that only questions need.

    Attributes:
        differing: Where the first row of such a table is another one.
    """

    def __init__(self, file: ViewsFile, projection: Projection, live: Rows) -> None:
        super().__init__(file, projection)
        self._live = live
        self._ahead: dict[Query[Any], Future[Sequence[_Row]]] = {}
        self.differing: dict[Table[Any], int] = {}
        #: A build under way has no indexes.
        self.build = self.begin_build().build

    def read_ahead(self, after: int, up_to: int, reader: Executor) -> None:
        """Let the view's server look for what these facts are held against, while they are folded."""
        wanted = [_between(table, after, up_to) for table in self._compared()]
        self._ahead = {query: reader.submit(self._live.stored, query) for query in wanted}

    def _compared(self) -> list[Table[Any]]:
        """List the tables that are compared right away, those left out in which a row differs."""
        return [table for table in self._projection.tables if _at_positions(table) and table not in self.differing]

    def save(self, at: Place, changes: Changes, position: int) -> None:
        """Write a batch and the position, but for what is compared right away."""
        super().save(at, {table: change for table, change in changes.items() if not _at_positions(table)}, position)
        for table in self._compared():
            come = changes[table].come if table in changes else ()
            self._hold(table, sorted(come, key=_position_in(table)), at.position, position)

    def _live_name(self, connection: sqlite3.Connection, table: Table[Any]) -> str:  # noqa: ARG002 - one build is asked here
        return self._name(table, self.build)

    def _hold(self, table: Table[Any], expected: Sequence[_Row], after: int, up_to: int) -> None:
        query = _between(table, after, up_to)
        ahead = self._ahead.pop(query, None)
        found = self._live.stored(query) if ahead is None else ahead.result()
        if found != expected:
            wrong = next(both for both in zip_longest(found, expected) if both[0] != both[1])
            self.differing[table] = min(_position_in(table)(row) for row in wrong if row is not None)


def _at_positions(table: Table[Any]) -> bool:
    return table.key == ("position",)


def _between(table: Table[Any], after: int, up_to: int) -> Query[Any]:
    return Query(table, (*_above(after), ("position", "<=", up_to)), ("position",))


def _above(position: int) -> tuple[Condition, ...]:
    """Leave out what was compared; at the beginning that is nothing, also where no fact can stand."""
    return (("position", ">", position),) if position else ()


def _position_in(table: Table[Any]) -> Callable[[_Row], int]:
    return itemgetter(list(table.columns).index("position"))


@dataclass
class _Compared:
    """A view, what is folded anew beside it, and how far that has to go."""

    projection: Projection
    rows: Rows
    anew: _Anew
    builder: Follower
    place: Place
    gone: str | None = None

    def reached(self) -> Place:
        return self.builder.place() or Place(self.anew.build, 0)


def views_faults(
    log: Log, views: Sequence[tuple[Projection, Rows]], progress: Progress | None = None
) -> Iterator[Fault]:
    """Fold the log anew, as far as each view is, and compare every row; what has to be kept is in a file meanwhile."""
    with tempfile.TemporaryDirectory(prefix="pauseledger-check-") as folder:
        file = _Scratch(Path(folder) / "views.db")
        try:
            there: list[_Compared] = []
            for projection, rows in views:
                try:
                    there.append(_beside(projection, rows, file))
                except ViewGone as gone:
                    yield Fault("view", str(gone), view=projection.name)
            yield from _of_views(log, there, progress)
        finally:
            file.close()


def _beside(projection: Projection, rows: Rows, file: ViewsFile) -> _Compared:
    anew = _Anew(file, projection, rows)
    return _Compared(projection, rows, anew, Follower(projection, anew, anew.build), rows.place())


def _of_views(log: Log, views: Sequence[_Compared], progress: Progress | None) -> Iterator[Fault]:
    _fold(log, views, progress)
    for one in views:
        for _ in range(_TRIES):
            found = _as_it_stands(log, one)
            # Tables of a build that was replaced may have been emptied for the next one.
            if not found or one.gone is not None or one.rows.place().build == one.place.build:
                break
        yield from found


def _as_it_stands(log: Log, one: _Compared) -> list[Fault]:
    """Compare a view at one moment: what it has moved on by meanwhile is little."""
    try:
        with one.rows.still() as still:
            one.place = still.place
            _fold(log, [one], None)
            return list(_of_view(log, one, still))
    except ViewGone as gone:
        one.gone = str(gone)
        return [Fault("view", one.gone, view=one.projection.name)]


def _fold(log: Log, views: Sequence[_Compared], progress: Progress | None) -> None:
    """Read the log once for all of them, and the views' rows, meanwhile where a server can do that."""
    left = list(views)
    with ThreadPoolExecutor(1, thread_name_prefix="pauseledger-check") as pool:
        reading = Reading(log, _BATCH, pool if log.apart else None)
        while waiting := [(at, one) for one in left if (at := one.reached()).position < one.place.position]:
            first = min(at.position for at, _ in waiting)
            facts = log.seen(reading.after(first))
            if not facts:
                return
            due = [(_up_to(facts, one.place), at, one) for at, one in waiting if at.position == first]
            for its, at, one in due:
                if its and one.rows.apart:
                    one.anew.read_ahead(at.position, its[-1].position, pool)
            for its, at, one in due:
                if its:
                    try:
                        one.builder.fold(at, its)
                    except ViewGone as gone:
                        one.gone = str(gone)
                        left.remove(one)
                else:
                    # Rows are gone: none is left up to where the view is. Its own rows, and the tree, tell so.
                    left.remove(one)
            if progress is not None:
                progress(first, max(one.place.position for _, one in waiting))


def _up_to(facts: Sequence[Seen], place: Place) -> Sequence[Seen]:
    if facts[-1].position <= place.position:
        return facts
    return [fact for fact in facts if fact.position <= place.position]


def _of_view(log: Log, one: _Compared, still: Still) -> Iterator[Fault]:
    name, reached = one.projection.name, one.reached().position
    if one.gone is not None:
        yield Fault("view", one.gone, view=name)
        return
    if one.place.position > log.newest():
        yield Fault("view", "it is ahead of the log", one.place.position, view=name)
    for table in one.projection.tables:
        if _at_positions(table):
            wrong = one.anew.differing[table] if table in one.anew.differing else _behind(table, still, reached)
            differs = wrong is not None
        else:
            differs, wrong = _differing(table, still, one.anew)
        if differs:
            yield Fault("view", f"a row of {table.name} is not what the log comes to", wrong, view=name)


def _behind(table: Table[Any], rows: Still, position: int) -> int | None:
    """Tell where a row stands behind all that was folded."""
    found = rows.stored(Query(table, _above(position), ("position",), limit=1))
    return _position_in(table)(found[0]) if found else None


def _differing(table: Table[Any], rows: Still, anew: Rows) -> tuple[bool, int | None]:
    """Tell whether a row differs, and the position that it names, if it does."""
    columns = list(table.columns)
    key = [columns.index(name) for name in table.key]
    after: _Row | None = None
    while True:
        page = Query(table, order=table.key, after=after, limit=_PAGE)
        found, expected = rows.stored(page), anew.stored(page)
        if found != expected:
            wrong = next(other or one for one, other in zip_longest(found, expected) if one != other)
            told = wrong[columns.index("position")] if "position" in columns else None
            return True, told if isinstance(told, int) else None
        if len(found) < _PAGE:
            return False, None
        after = tuple(found[-1][at] for at in key)
