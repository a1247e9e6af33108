"""Views in this process's memory, beside a ledger in memory."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

from eventsourcing.persistence import IntegrityError, Tracking

from ..projections.projection import Projection
from ..projections.rows import (
    LOG,
    Change,
    Changes,
    Condition,
    Key,
    Kind,
    LostRace,
    Place,
    Query,
    Rows,
    RowsRejected,
    Still,
    Table,
    Values,
    plain,
)
from .memory import MemoryRecorder

_HELD: "WeakKeyDictionary[MemoryRecorder, dict[str, MemoryRows]]" = WeakKeyDictionary()
_LOCK = RLock()


class MemoryRows(Rows):
    """Rows in dicts, one lock around all."""

    def __init__(self, projection: Projection) -> None:
        self._tables = projection.tables
        self._lock = RLock()
        self._live = 1
        self._builds: dict[int, dict[Table[Any], dict[Key, Values]]] = {1: self._empty()}
        self._at: dict[int, dict[str, int]] = {1: {LOG: 0}}

    def _empty(self) -> dict[Table[Any], dict[Key, Values]]:
        return {table: {} for table in self._tables}

    def place(self) -> Place:
        """Tell where the live build is."""
        with self._lock:
            return Place(self._live, self._at[self._live][LOG])

    def find(self, build: int, table: Table[Any], keys: Sequence[Key]) -> dict[Key, Values]:
        """Read the rows of these keys."""
        with self._lock:
            held = self._builds.get(build, {}).get(table, {})
            return {key: held[key] for key in keys if key in held}

    def save(self, at: Place, changes: Changes, position: int) -> None:
        """Write a batch, if the build is still where it was."""
        with self._lock:
            if self.place_of(at.build) != at:
                raise LostRace("the view went on")
            if not all(_fits(table, row) for table, change in changes.items() for row in _values(table, change)):
                raise RowsRejected("a value is not of its column's kind")
            tables = self._builds[at.build]
            if any(_taken(tables[table], table, change) for table, change in changes.items()):
                raise RowsRejected("a row stands there already")
            for table, change in changes.items():
                for key in change.gone:
                    tables[table].pop(key, None)
                tables[table].update({table.key_of(row): row for row in _values(table, change)})
            self._at[at.build][LOG] = position

    def select(self, query: Query[Any]) -> list[Values]:
        """Answer from the live build."""
        with self._lock:
            rows = [row for row in self._builds[self._live][query.table].values() if _holds(row, query.where)]
        rows.sort(key=lambda row: _sortable(row, query.order), reverse=query.descending)
        if query.after is not None:
            after = tuple((True, plain(value)) for value in query.after)
            passed: Callable[[Any], bool] = (lambda key: key < after) if query.descending else (lambda key: key > after)
            rows = [row for row in rows if passed(_sortable(row, query.order))]
        return rows[query.offset :][: query.limit]

    def stored(self, query: Query[Any]) -> Sequence[tuple[Any, ...]]:
        """Answer with rows as a file would hold them."""
        return list(map(query.table.row_of, self.select(query)))

    @contextmanager
    def still(self) -> Iterator[Still]:
        """Lend the live build; whoever follows waits."""
        with self._lock:
            yield Still(self.place(), self.stored)

    def select_both(self, one: Query[Any], other: Query[Any]) -> tuple[list[Values], list[Values]]:
        """Answer two questions at once."""
        with self._lock:
            return self.select(one), self.select(other)

    def tally(self, table: Table[Any], columns: Sequence[str], where: Sequence[Condition] = ()) -> dict[Key, int]:
        """Count by columns."""
        with self._lock:
            rows = [row for row in self._builds[self._live][table].values() if _holds(row, where)]
        return dict(Counter(tuple(row[name] for name in columns) for row in rows))

    def begin_build(self) -> Place:
        """Empty the tables of the next build."""
        with self._lock:
            build = max(self._builds) + 1
            for left in [one for one in self._builds if one != self._live]:
                del self._builds[left], self._at[left]
            self._builds[build], self._at[build] = self._empty(), {LOG: 0}
            return Place(build, 0)

    def under_way(self) -> Place | None:
        """Tell where the next build is."""
        with self._lock:
            build = max(self._builds)
            return None if build == self._live else self.place_of(build)

    def index_build(self, build: int) -> None:
        """Do nothing: dicts have none."""

    def place_of(self, build: int) -> Place | None:
        """Tell where a build is."""
        with self._lock:
            return Place(build, self._at[build][LOG]) if build in self._at else None

    def swap(self, build: int) -> bool:
        """Make a build the live one."""
        with self._lock:
            new, live = self.place_of(build), self.place()
            if new is None or build <= live.build or new.position < live.position:
                return False
            self._live = build
            del self._builds[live.build], self._at[live.build]
            return True

    def insert_tracking(self, tracking: Tracking) -> None:
        """Move the live build's position for an application on."""
        with self._lock:
            at = self._at[self._live]
            if tracking.notification_id <= at.get(tracking.application_name, 0):
                raise IntegrityError("that position was tracked before")
            at[tracking.application_name] = tracking.notification_id

    def max_tracking_id(self, application_name: str) -> int | None:
        """Tell the live build's position for an application."""
        with self._lock:
            return self._at[self._live].get(application_name) or None

    def close(self) -> None:
        """Do nothing: the rows live as long as their ledger's recorder."""


def memory_rows(recorder: MemoryRecorder, projection: Projection) -> MemoryRows:
    """Give the rows of a view on a ledger in memory: the same for everybody who works with that."""
    with _LOCK:
        held = _HELD.setdefault(recorder, {})
        return held.setdefault(projection.id, MemoryRows(projection))


def _values(table: Table[Any], change: Change) -> Iterator[Values]:
    return (dict(zip(table.columns, row, strict=True)) for row in change.come)


def _taken(held: Mapping[Key, Values], table: Table[Any], change: Change) -> bool:
    """Tell whether a row would come where one stands that nobody looked up, as a database's key would tell."""
    gone = set(change.gone)
    return any((key := table.key_of(row)) in held and key not in gone for row in _values(table, change))


def _fits(table: Table[Any], row: Values) -> bool:
    """Tell whether databases could hold a row as well."""
    return all(row[name] is None or _FITS[kind](row[name]) for name, kind in table.columns.items())


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.encode("utf-8", "replace") == value.encode("utf-8", "surrogatepass")


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and -_LARGEST <= value < _LARGEST


_LARGEST = 1 << 63
_FITS: Mapping[Kind, Callable[[Any], bool]] = {
    "uuid": _is_text,
    "text": _is_text,
    "int": _is_number,
    "flag": _is_number,
    "moment": _is_text,
    "scope": _is_text,
    "json": _is_text,
}

_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda held, asked: held == asked,
    "<": lambda held, asked: held < asked,
    "<=": lambda held, asked: held <= asked,
    ">": lambda held, asked: held > asked,
    ">=": lambda held, asked: held >= asked,
    "in": lambda held, asked: held in {plain(one) for one in asked},
    # Tags are 16 hex, so their quoted text stands in the list's text where the tag is in the list.
    "has": lambda held, asked: json.dumps(asked) in held,
}


def _holds(row: Values, where: Sequence[Condition]) -> bool:
    held = [(row[name.removeprefix("+")], test, plain(asked)) for name, test, asked in where]
    return all(value is not None and _TESTS[test](value, asked) for value, test, asked in held)


def _sortable(row: Values, order: Sequence[str]) -> tuple[Any, ...]:
    values = (row[name.removeprefix("+")] for name in order)
    return tuple((value is not None, value) for value in values)
