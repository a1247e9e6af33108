"""What must hold of the views: each row is what the log comes to, folded anew beside them."""

import tempfile
from collections.abc import Callable, Iterator
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

_PAGE = 2000
#: A view that moves on while it is compared is compared again, so many times.
_TRIES = 5


def views_faults(
    log: Log, views: list[tuple[Projection, Rows]], progress: Callable[[int, int], None] | None = None
) -> Iterator[Fault]:
    """Fold the log anew, as far as each view is, into a file that is removed afterwards, and compare row by row."""
    with tempfile.TemporaryDirectory(prefix="pauseledger-check-") as folder:
        file = ViewsFile(Path(folder) / "views.db")
        try:
            for projection, rows in views:
                yield from _of_view(log, projection, rows, SQLiteRows(file, projection), progress)
        finally:
            file.close()


def _of_view(
    log: Log, projection: Projection, rows: Rows, anew: Rows, progress: Callable[[int, int], None] | None
) -> Iterator[Fault]:
    builder = Follower(projection, anew)
    found: list[Fault] = []
    for _ in range(_TRIES):
        place = rows.place()
        _fold(log, builder, place.position, progress)
        found = [fault for table in projection.tables for fault in _of_table(projection.name, table, rows, anew)]
        if place.position > log.newest():
            found.append(Fault("view", "it is ahead of the log", place.position, view=projection.name))
        if rows.place() == place:
            break
    else:
        says = "it moved on each time it was compared; end the followers, or check again later"
        found = [Fault("view", says, view=projection.name)] if found else []
    yield from found


def _fold(log: Log, builder: Follower, until: int, progress: Callable[[int, int], None] | None) -> None:
    at = builder.place() or Place(1, 0)
    while at.position < until:
        facts = [fact for fact in log.after(at.position, BATCH) if fact.position <= until]
        if not facts:
            return
        builder.fold(at, facts)
        at = builder.place() or at
        if progress is not None:
            progress(at.position, until)


def _of_table(view: str, table: Table[Any], rows: Rows, anew: Rows) -> Iterator[Fault]:
    for one, other in zip_longest(_all(table, rows), _all(table, anew)):
        if one != other:
            says = f"a row of {table.name} is not what the log comes to"
            yield Fault("view", says, _position(other or one), view=view)
            return


def _all(table: Table[Any], rows: Rows) -> Iterator[Values]:
    after: tuple[Any, ...] | None = None
    while found := rows.select(Query(table, order=table.key, after=after, limit=_PAGE)):
        yield from found
        after = table.key_of(found[-1])


def _position(values: Values | None) -> int | None:
    told = (values or {}).get("position")
    return told if isinstance(told, int) else None
