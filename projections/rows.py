"""What a view stands on: tables of plain rows, and a position in the log that moves with them or not at all."""

import json
import types
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import lru_cache
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from eventsourcing.persistence import IntegrityError, TrackingRecorder

from ..domain.axes import Scope
from ..domain.facts import rfc3339

R = TypeVar("R")

#: The name of the log in each view's tracking.
LOG = "pauseledger"

#: How a column is kept. Moments are RFC 3339 texts of one length, so that they sort as they are; a scope is one text,
#: so that it is compared as a whole; flags are 0 and 1.
Kind = Literal["uuid", "text", "int", "flag", "moment", "scope", "json"]
Key = tuple[Any, ...]
Values = dict[str, Any]

_KINDS: dict[Any, Kind] = {
    UUID: "uuid", str: "text", int: "int", bool: "flag", datetime: "moment", Scope: "scope",
}  # fmt: skip


class LostRace(IntegrityError):
    """Somebody else moved the view on first. Nothing was written; go on from the new position."""


class RowsRejected(Exception):
    """The store cannot hold a row of this batch. Nothing was written."""


def shown(default: Any) -> Any:
    """Mark a field of a row that is filled in when it is shown, and is no column."""
    return field(default=default, metadata={"shown": True})


@dataclass(frozen=True, eq=False)
class Table(Generic[R]):
    """One table of a view. Its columns are the fields of `row`, a frozen dataclass.

    Attributes:
        name: Its stored name, without the view's revision.
        key: The columns that name a row.
        indexes: Columns by which it is asked. `+` before a column makes it an expression of its own: questions
            that say `+` go by no index but one that says so too, and others never by that one.
    """

    name: str
    row: type[R]
    key: tuple[str, ...]
    indexes: tuple[tuple[str, ...], ...] = ()
    columns: dict[str, Kind] = field(init=False)

    def __post_init__(self) -> None:
        hints = get_type_hints(self.row)
        kept = [one.name for one in fields(self.row) if not one.metadata.get("shown")]  # type: ignore[arg-type]
        object.__setattr__(self, "columns", {name: _kind(hints[name]) for name in kept})

    def show(self, values: Mapping[str, Any], **more: Any) -> R:
        """Make the row that people and programs are given."""
        return self.row(**{name: _SHOWN[kind](values[name]) for name, kind in self.columns.items()}, **more)

    def kind_of(self, name: str) -> Kind:
        """Tell the kind of a column, or of an expression on it."""
        return self.columns[name.removeprefix("+")]

    def key_of(self, values: Mapping[str, Any]) -> Key:
        """Tell what names a row."""
        return (values[self.key[0]],) if len(self.key) == 1 else tuple(values[name] for name in self.key)


def _kind(hint: Any) -> Kind:
    if get_origin(hint) in (Union, types.UnionType):
        [hint] = [one for one in get_args(hint) if one is not types.NoneType]
    return _KINDS.get(hint, "json")


def spelled(scope: Scope | Mapping[str, Any] | None) -> str:
    """Spell a scope as one text; none is empty. Any two scopes that differ in a part differ here."""
    if scope is None:
        return ""
    if isinstance(scope, Scope):
        return _spelled(*scope.parts())
    return _spelled(scope["tenant_id"], scope.get("sub_tenant_id"), scope.get("namespace"))


@lru_cache(4096)
def _spelled(*parts: str | None) -> str:
    return json.dumps(parts, separators=(",", ":"))


def _scope(text: str) -> Scope | None:
    if not text:
        return None
    tenant, sub_tenant, namespace = json.loads(text)
    return Scope(tenant_id=tenant, sub_tenant_id=sub_tenant, namespace=namespace)


def plain(value: Any) -> Any:
    """Turn what somebody asks by into what columns hold."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, Scope):
        return spelled(value)
    return int(value) if isinstance(value, bool) else value


def _frozen(value: Any) -> Any:
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value


_SHOWN: dict[Kind, Callable[[Any], Any]] = {
    "uuid": lambda value: None if value is None else UUID(value),
    "text": lambda value: value,
    "int": lambda value: value,
    "flag": bool,
    # Unknown moments are empty where rows are sorted by them: None would fall out of the order.
    "moment": lambda value: datetime.fromisoformat(value) if value else None,
    "scope": _scope,
    "json": _frozen,
}


Operator = Literal["=", "<", "<=", ">", ">=", "in", "has"]
Condition = tuple[str, Operator, Any]


@dataclass(frozen=True)
class Query(Generic[R]):
    """A question to one table.

    Attributes:
        where: All of these hold; of a column that is None, none does. `in` takes a list; `has` asks a list of tags for
            one.
        order: The columns to sort by, all in one direction; the last makes it unique.
        after: Values of these columns, of the row to go on after.
    """

    table: Table[R]
    where: Sequence[Condition] = ()
    order: tuple[str, ...] = ()
    descending: bool = False
    after: tuple[Any, ...] | None = None
    limit: int | None = None
    offset: int = 0


@dataclass(frozen=True)
class Place:
    """Where a view is: which build of its tables, and the last position folded into that."""

    build: int
    position: int


@dataclass(frozen=True)
class Change:
    """What one batch does to one table: rows that go, and rows that come. A row that changes does both."""

    gone: Sequence[Key]
    come: Sequence[Values]


Changes = Mapping[Table[Any], Change]


class Page:
    """The rows a batch works on, as they are after each fact; rows are replaced and never changed."""

    def __init__(self) -> None:
        self._rows: dict[Table[Any], dict[Key, Values | None]] = {}
        self._stored: dict[Table[Any], set[Key]] = {}
        self._changed: dict[Table[Any], dict[Key, None]] = {}
        self._undo: list[tuple[Table[Any], Key, Values | None]] = []

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def missing(self, table: Table[Any], keys: Iterable[Key]) -> list[Key]:
        """List the keys nobody has looked up yet."""
        here = self._rows.setdefault(table, {})
        return [key for key in set(keys) if key not in here]

    def load(self, table: Table[Any], keys: Iterable[Key], found: Mapping[Key, Values]) -> None:
        """Take in what the store holds under these keys."""
        here = self._rows.setdefault(table, {})
        here.update({key: found.get(key) for key in keys})
        self._stored.setdefault(table, set()).update(found)

    def get(self, table: Table[Any], *key: Any) -> Values | None:
        """Give a row, or None where there is none."""
        return self._rows.get(table, {}).get(key)

    def put(self, table: Table[Any], values: Values) -> None:
        """Write a row."""
        self._set(table, table.key_of(values), values)

    def drop(self, table: Table[Any], *key: Any) -> None:
        """Remove a row; no matter if there is none."""
        self._set(table, key, None)

    def _set(self, table: Table[Any], key: Key, values: Values | None) -> None:
        here = self._rows.setdefault(table, {})
        if key not in here and values is None:
            # Nobody looked, so it may be there.
            self._stored.setdefault(table, set()).add(key)
        self._undo.append((table, key, here.get(key)))
        here[key] = values
        self._changed.setdefault(table, {})[key] = None

    def mark(self) -> None:
        """Begin with a fact."""
        self._undo.clear()

    def undo(self) -> None:
        """Take back what the fact begun last has done."""
        for table, key, values in reversed(self._undo):
            self._rows[table][key] = values
        self._undo.clear()

    def changes(self) -> Changes:
        """Tell what has to be written."""
        return {table: self._change(table, keys) for table, keys in self._changed.items()}

    def _change(self, table: Table[Any], keys: Iterable[Key]) -> Change:
        here, stored = self._rows[table], self._stored.get(table, set())
        come = [row for row in (here[key] for key in keys) if row is not None]
        return Change([key for key in keys if key in stored], come)

    def saved(self) -> None:
        """Take note that everything was written. What is never looked up is not kept."""
        for table, keys in self._changed.items():
            if table not in self._stored:
                del self._rows[table]
                continue
            here, stored = self._rows[table], self._stored[table]
            for key in keys:
                (stored.discard if here[key] is None else stored.add)(key)
        self._changed.clear()
        self._undo.clear()


class Rows(TrackingRecorder):
    """Where the rows of one view are kept; every method blocks. A write moves the position along, or neither happens.

    A view has one live build of its tables, which answers; another may be under way beside it.

    Raises (every method):
        StoreUnavailable: the store could not speak.
    """

    @abstractmethod
    def place(self) -> Place:
        """Tell where the live build is."""

    @abstractmethod
    def find(self, build: int, table: Table[Any], keys: Sequence[Key]) -> dict[Key, Values]:
        """Read the rows of these keys, as far as there are any."""

    @abstractmethod
    def save(self, at: Place, changes: Changes, position: int) -> None:
        """Write a batch and move the build from `at` to `position`, in one transaction.

        Raises:
            LostRace: the build is not at that place any more.
            RowsRejected: the store cannot hold a row.
        """

    @abstractmethod
    def select(self, query: Query[Any]) -> list[Values]:
        """Answer from the live build."""

    @abstractmethod
    def tally(self, table: Table[Any], columns: Sequence[str], where: Sequence[Condition] = ()) -> dict[Key, int]:
        """Count rows of the live build by columns."""

    @abstractmethod
    def begin_build(self) -> Place:
        """Empty the tables beside the live ones, for the next build, and give its place."""

    @abstractmethod
    def place_of(self, build: int) -> Place | None:
        """Tell where a build is, None where there is no such build (any more)."""

    @abstractmethod
    def swap(self, build: int) -> bool:
        """Make a build the live one. False where it is not as far as the live one yet, or where it is gone."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held apart from the ledger's own store. Safe to call twice."""
