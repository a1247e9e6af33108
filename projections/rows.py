"""What a view stands on: tables of plain rows, and a position in the log that moves with them or not at all."""

import json
import types
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from typing import Any, ClassVar, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from eventsourcing.persistence import IntegrityError, TrackingRecorder

from ..domain.axes import Scope
from ..domain.errors import StoreUnavailable
from ..domain.facts import rfc3339

R = TypeVar("R")

#: The name of the log in each view's tracking.
LOG = "pauseledger"

#: How a column is kept. Moments are RFC 3339 texts of one length, so that they sort as they are; a scope is one text,
#: so that it is compared as a whole; flags are 0 and 1; what has a shape of its own is JSON as text, made by `as_json`.
Kind = Literal["uuid", "text", "int", "flag", "moment", "scope", "json"]
Key = tuple[Any, ...]
Values = dict[str, Any]
#: A row's values in the order of its table's columns.
Row = tuple[Any, ...]

_KINDS: dict[Any, Kind] = {
    UUID: "uuid", str: "text", int: "int", bool: "flag", datetime: "moment", Scope: "scope",
}  # fmt: skip


class LostRace(IntegrityError):
    """Somebody else moved the view on first. Nothing was written; go on from the new position."""


class ViewGone(StoreUnavailable):
    """Where a view is was taken away: nothing of it can be told, and its tables are to be made again."""


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
        key: The columns that name a row; `key_of` tells the key of one, `row_of` its values in the columns' order.
        indexes: Columns by which it is asked. `+` before a column makes it an expression of its own: questions
            that say `+` go by no index but one that says so too, and others never by that one.
    """

    name: str
    row: type[R]
    key: tuple[str, ...]
    indexes: tuple[tuple[str, ...], ...] = ()
    columns: dict[str, Kind] = field(init=False)
    key_of: Callable[[Mapping[str, Any]], Key] = field(init=False)
    row_of: Callable[[Mapping[str, Any]], Row] = field(init=False)
    _shown: tuple[tuple[str, Callable[[Any], Any]], ...] = field(init=False)

    def __post_init__(self) -> None:
        hints = get_type_hints(self.row)
        kept = [one.name for one in fields(self.row) if not one.metadata.get("shown")]  # type: ignore[arg-type]
        object.__setattr__(self, "columns", {name: _kind(hints[name]) for name in kept})
        object.__setattr__(self, "key_of", _picked(self.key))
        object.__setattr__(self, "row_of", _picked(kept))
        shown_by = ((name, _SHOWN.get(kind)) for name, kind in self.columns.items())
        object.__setattr__(self, "_shown", tuple((name, show) for name, show in shown_by if show is not None))

    def show(self, values: Mapping[str, Any], **more: Any) -> R:
        """Make the row that people and programs are given.

        Raises:
            StoreUnavailable: it was altered into none.
        """
        shown = dict(values)
        try:
            for name, show in self._shown:
                shown[name] = show(shown[name])
        except (ValueError, TypeError, AttributeError):
            raise StoreUnavailable(
                f"a row of {self.name} was altered and cannot be read; run `pauseledger rebuild all`"
            ) from None
        return self.row(**shown, **more)

    def kind_of(self, name: str) -> Kind:
        """Tell the kind of a column, or of an expression on it."""
        return self.columns[name.removeprefix("+")]


def _picked(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Make what picks values out of a row, in the order of their names."""
    if len(names) > 1:
        return itemgetter(*names)
    [name] = names
    return lambda values: (values[name],)


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


@lru_cache(4096)
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


def as_json(value: Any) -> str:
    """Spell what has a shape of its own."""
    # Most are empty, and a JSON encoder takes its time to say so.
    return "[]" if value == [] else _encode(value)


_encode = json.JSONEncoder(separators=(",", ":")).encode


def _frozen(value: Any) -> Any:
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value


_SHOWN: dict[Kind, Callable[[Any], Any]] = {
    "uuid": lambda value: None if value is None else UUID(value),
    "flag": bool,
    # Unknown moments are empty where rows are sorted by them: None would fall out of the order.
    "moment": lambda value: datetime.fromisoformat(value) if value else None,
    "scope": _scope,
    "json": lambda text: _frozen(json.loads(text)),
}


Operator = Literal["=", "<", "<=", ">", ">=", "in", "has"]
Condition = tuple[str, Operator, Any]


@dataclass(frozen=True)
class Query(Generic[R]):
    """A question to one table.

    Attributes:
        where: All of these hold; of a column that is None, none does. `in` takes a list; `has` asks a list of tags for
            one.
        order: The columns to sort by, all in one direction; the last makes it unique. `+` before one keeps an index
            from giving the order, where what is looked for is little and has to be found first.
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
    """What one batch does to one table: rows that go, and rows that come. A row that changes does both.

    Attributes:
        come: Each row's values in the order of the table's columns.
    """

    gone: Sequence[Key]
    come: Sequence[Row]


Changes = Mapping[Table[Any], Change]


class _Sheet:
    """What a page knows of one table."""

    __slots__ = ("added", "changed", "looked_up", "rows", "stored", "unseen")

    def __init__(self) -> None:
        self.added: list[Row] = []
        self.rows: dict[Key, Values | None] = {}
        self.stored: set[Key] = set()
        #: Written, and never looked up: whether a row stands there is found out by writing it.
        self.unseen: set[Key] = set()
        self.changed: dict[Key, None] = {}
        self.looked_up = False


class Page:
    """The rows a batch works on, as they are after each fact; rows are replaced and never changed."""

    def __init__(self) -> None:
        self._sheets: dict[Table[Any], _Sheet] = {}
        self._undo: list[tuple[_Sheet, Key | None, Values | None]] = []

    def __len__(self) -> int:
        return sum(len(sheet.rows) for sheet in self._sheets.values())

    def _sheet(self, table: Table[Any]) -> _Sheet:
        return self._sheets.setdefault(table, _Sheet())

    def missing(self, table: Table[Any], keys: Iterable[Key]) -> list[Key]:
        """List the keys nobody has looked up yet."""
        sheet = self._sheet(table)
        sheet.looked_up = True
        return [key for key in set(keys) if key not in sheet.rows]

    def load(self, table: Table[Any], keys: Iterable[Key], found: Mapping[Key, Values]) -> None:
        """Take in what the store holds under these keys."""
        sheet = self._sheet(table)
        sheet.rows.update({key: found.get(key) for key in keys})
        sheet.stored.update(found)

    def get(self, table: Table[Any], *key: Any) -> Values | None:
        """Give a row, or None where there is none."""
        sheet = self._sheets.get(table)
        return None if sheet is None else sheet.rows.get(key)

    def put(self, table: Table[Any], values: Values) -> None:
        """Write a row."""
        sheet, key = self._sheets.get(table) or self._sheet(table), table.key_of(values)
        if key not in sheet.rows:
            sheet.unseen.add(key)
        self._set(sheet, key, values)

    def add(self, table: Table[Any], row: Row) -> None:
        """Write a row that nobody has written before, and that no batch looks at again."""
        sheet = self._sheets.get(table) or self._sheet(table)
        self._undo.append((sheet, None, None))
        sheet.added.append(row)

    def drop(self, table: Table[Any], *key: Any) -> None:
        """Remove a row; no matter if there is none."""
        sheet = self._sheets.get(table) or self._sheet(table)
        if key not in sheet.rows or key in sheet.unseen:
            # Nobody looked, so it may be there.
            sheet.stored.add(key)
        self._set(sheet, key, None)

    def _set(self, sheet: _Sheet, key: Key, values: Values | None) -> None:
        self._undo.append((sheet, key, sheet.rows.get(key)))
        sheet.rows[key] = values
        sheet.changed[key] = None

    def mark(self) -> None:
        """Begin with a fact."""
        self._undo.clear()

    def undo(self) -> None:
        """Take back what the fact begun last has done."""
        for sheet, key, values in reversed(self._undo):
            if key is None:
                sheet.added.pop()
            else:
                sheet.rows[key] = values
        self._undo.clear()

    def changes(self) -> Changes:
        """Tell what has to be written."""
        return {table: _change(table, sheet) for table, sheet in self._sheets.items() if sheet.changed or sheet.added}

    def saved(self) -> None:
        """Take note that everything was written. What is never looked up is not kept."""
        for sheet in self._sheets.values():
            if sheet.looked_up:
                for key in sheet.changed:
                    (sheet.stored.discard if sheet.rows[key] is None else sheet.stored.add)(key)
            else:
                sheet.rows.clear()
                sheet.stored.clear()
            sheet.changed, sheet.added = {}, []
            sheet.unseen.clear()
        self._undo.clear()


def _change(table: Table[Any], sheet: _Sheet) -> Change:
    rows, stored, changed = sheet.rows, sheet.stored, list(sheet.changed)
    if table.columns[table.key[0]] == "uuid":
        # Ids are as good as random: in their order, those that stand on one page of the key's index come together.
        changed.sort(key=itemgetter(0))
    come = [row for row in map(rows.__getitem__, changed) if row is not None]
    gone = [key for key in changed if key in stored] if stored else []
    return Change(gone, [*map(table.row_of, come), *sheet.added])


@dataclass(frozen=True)
class Still:
    """A view as it stood at one moment.

    Attributes:
        stored: Answers as `Rows.stored` does.
    """

    place: Place
    stored: Callable[[Query[Any]], Sequence[tuple[Any, ...]]]


class Rows(TrackingRecorder):
    """Where the rows of one view are kept; every method blocks. A write moves the position along, or neither happens.

    A view has one live build of its tables, which answers; another may be under way beside it.

    Raises (every method):
        StoreUnavailable: the store could not speak.

    Attributes:
        apart: Whether a server does the work, so that it is worth a thread to let it go on meanwhile.
        index_by: A build is given its indexes once it is past this position, as that holds up whoever writes, the
            longer the later; None where it holds up nobody.
    """

    apart: ClassVar[bool] = False
    index_by: ClassVar[int | None] = None

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
    def stored(self, query: Query[Any]) -> Sequence[tuple[Any, ...]]:
        """Answer from the live build with rows as they are stored, to be held against others that are as cheaply read.

        Columns stand in their order, and are spelled alike by every store; what was altered may be of any type.
        """

    @abstractmethod
    def still(self) -> AbstractContextManager[Still]:
        """Lend the live build as it stands now; whoever follows goes on meanwhile."""

    @abstractmethod
    def select_both(self, one: Query[R], other: Query[R]) -> tuple[list[Values], list[Values]]:
        """Answer two questions to the same table at once."""

    @abstractmethod
    def tally(self, table: Table[Any], columns: Sequence[str], where: Sequence[Condition] = ()) -> dict[Key, int]:
        """Count rows of the live build by columns."""

    @abstractmethod
    def begin_build(self) -> Place:
        """Empty the tables beside the live ones, for the next build, and give its place. Indexes are left for later.

        Its number was never taken before: whoever still works on a build that stood there loses, and finds it gone.
        """

    @abstractmethod
    def under_way(self) -> Place | None:
        """Tell where the build is that is to follow the live one; None where there is none."""

    @abstractmethod
    def index_build(self, build: int) -> None:
        """Make the indexes of a build; nothing where it has them.

        Raises:
            InteractionConfigurationError: they are not there, and this role may not make them.
        """

    @abstractmethod
    def place_of(self, build: int) -> Place | None:
        """Tell where a build is, None where there is no such build (any more)."""

    @abstractmethod
    def swap(self, build: int) -> bool:
        """Make a build the live one. False where it is not as far as the live one yet, or where it is gone."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held apart from the ledger's own store. Safe to call twice."""
