"""What must hold of the views: each row is what the log comes to, folded anew beside them."""

import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..projections.projection import Projection
from ..projections.rows import Place, Query, Rows, Table, Values
from .check_streams import Fault
from .follower import Follower
from .headers import Log
from .runner import BATCH
from .views_sqlite import SQLiteRows, ViewsFile

_PAGE = 5000
#: A view that moves on while it is compared is compared again, so many times.
_TRIES = 5

Progress = Callable[[int, int], None]


class _Scratch(ViewsFile):
    """A file that nobody needs once the process is gone."""

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        connection.execute("PRAGMA synchronous = OFF")
        return connection


@dataclass
class _Compared:
    """A view, what is folded anew beside it, and how far that has to go."""

    projection: Projection
    rows: Rows
    anew: Rows
    builder: Follower
    place: Place


def views_faults(
    log: Log, views: Sequence[tuple[Projection, Rows]], progress: Progress | None = None
) -> Iterator[Fault]:
    """Fold the log anew, as far as each view is, into a file that is removed afterwards, and compare row by row."""
    with tempfile.TemporaryDirectory(prefix="pauseledger-check-") as folder:
        file = _Scratch(Path(folder) / "views.db")
        try:
            yield from _of_views(log, [_beside(projection, rows, file) for projection, rows in views], progress)
        finally:
            file.close()


def _beside(projection: Projection, rows: Rows, file: ViewsFile) -> _Compared:
    anew = SQLiteRows(file, projection)
    return _Compared(projection, rows, anew, Follower(projection, anew), rows.place())


def _of_views(log: Log, views: Sequence[_Compared], progress: Progress | None) -> Iterator[Fault]:
    left = list(views)
    for _ in range(_TRIES):
        _fold(log, left, progress)
        moved = []
        for one in left:
            found = list(_of_view(log, one))
            if found and one.rows.place() != one.place:
                one.place = one.rows.place()
                moved.append(one)
            else:
                yield from found
        left = moved
    says = "it moved on each time it was compared; end the followers, or check again later"
    yield from (Fault("view", says, view=one.projection.name) for one in left)


def _of_view(log: Log, one: _Compared) -> Iterator[Fault]:
    if one.place.position > log.newest():
        yield Fault("view", "it is ahead of the log", one.place.position, view=one.projection.name)
    for table in one.projection.tables:
        yield from _of_table(one.projection.name, table, one.rows, one.anew)


def _fold(log: Log, views: Sequence[_Compared], progress: Progress | None) -> None:
    """Read the log once for all of them."""
    left = list(views)
    while waiting := [(at, one) for one in left if (at := _reached(one)).position < one.place.position]:
        first = min(at.position for at, _ in waiting)
        facts = log.after(first, BATCH)
        if not facts:
            return
        for at, one in waiting:
            its = [fact for fact in facts if at.position < fact.position <= one.place.position]
            if at.position != first:
                continue
            if its:
                one.builder.fold(at, its)
            else:
                # Rows are gone: none is left up to where the view is. Its own rows, and the tree, tell so.
                left.remove(one)
        if progress is not None:
            progress(first, max(one.place.position for _, one in waiting))


def _reached(one: _Compared) -> Place:
    return one.builder.place() or Place(1, 0)


def _of_table(view: str, table: Table[Any], rows: Rows, anew: Rows) -> Iterator[Fault]:
    if isinstance(rows, SQLiteRows) and isinstance(anew, SQLiteRows) and _alike(table, rows, anew):
        return
    for one, other in zip_longest(_all(table, rows), _all(table, anew)):
        if one != other:
            says = f"a row of {table.name} is not what the log comes to"
            yield Fault("view", says, _position(other or one), view=view)
            return


def _alike(table: Table[Any], rows: SQLiteRows, anew: SQLiteRows) -> bool:
    """Tell whether two files hold the same, without reading what they hold: most often they do, and reading is slow."""
    columns = list(table.columns)
    key = [columns.index(name) for name in table.key]
    after: tuple[Any, ...] | None = None
    while True:
        page = Query(table, order=table.key, after=after, limit=_PAGE)
        found = rows.stored(page)
        if found != anew.stored(page):
            return False
        if len(found) < _PAGE:
            return True
        after = tuple(found[-1][at] for at in key)


def _all(table: Table[Any], rows: Rows) -> Iterator[Values]:
    after: tuple[Any, ...] | None = None
    while found := rows.select(Query(table, order=table.key, after=after, limit=_PAGE)):
        yield from found
        after = table.key_of(found[-1])


def _position(values: Values | None) -> int | None:
    told = (values or {}).get("position")
    return told if isinstance(told, int) else None
