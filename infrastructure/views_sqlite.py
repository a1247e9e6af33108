"""Views in a SQLite file: the ledger's own, or another."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from eventsourcing.persistence import IntegrityError, Tracking

from ..projections.projection import Projection
from ..projections.rows import (
    LOG,
    Changes,
    Condition,
    Key,
    LostRace,
    Place,
    Query,
    Rows,
    RowsRejected,
    Still,
    Table,
    Values,
    ViewGone,
)
from .sqlite import SQLiteRecorder, fetched
from .views_sql import SLOTS, Sql, asked, listed, next_build, quoted, read, slot_of, stored_name

#: Every table of a view begins with this, so that it stands apart from the ledger's own.
PREFIX = "view_"

_TYPES = {"int": "INTEGER", "flag": "INTEGER"}
_SQL = Sql()

# Keyed by the view: two views in one file would else share the one position of the application they follow.
_TRACKING = f"""
CREATE TABLE IF NOT EXISTS {PREFIX}tracking (
    view TEXT NOT NULL,
    build INTEGER NOT NULL,
    application_name TEXT NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (view, build, application_name)
) WITHOUT ROWID
"""
_LIVE = f"CREATE TABLE IF NOT EXISTS {PREFIX}live (view TEXT PRIMARY KEY, build INTEGER NOT NULL) WITHOUT ROWID"


class ViewsFile(SQLiteRecorder):
    """A file for views alone: no ledger is made in it."""

    def _open(self) -> sqlite3.Connection:
        self._make_file()
        return self._connect()


class SQLiteRows(Rows):
    """Rows in tables of a SQLite file, made on first use.

    Args:
        file: What lends connections.
        own: Whether the file is the views' own, to be closed with them.
    """

    index_by = 1_000_000

    def __init__(self, file: SQLiteRecorder, projection: Projection, *, own: bool = False) -> None:
        self._file = file
        self._own = own
        self._projection = projection
        self._made = False

    def place(self) -> Place:
        """Tell where the live build is."""
        with self._reading() as connection:
            return self._place(connection)

    def _place(self, connection: sqlite3.Connection) -> Place:
        found = connection.execute(
            f"SELECT build, position FROM {PREFIX}live JOIN {PREFIX}tracking USING (view, build)"  # noqa: S608 - own names
            " WHERE view = ? AND application_name = ?",
            (self._projection.id, LOG),
        ).fetchone()
        if found is None:
            raise ViewGone(f"the tables of view {self._projection.id} are gone; open the ledger again")
        return Place(*found)

    def find(self, build: int, table: Table[Any], keys: Sequence[Key]) -> dict[Key, Values]:
        """Read the rows of these keys."""
        # Each column by itself finds all that are wanted, and perhaps more.
        among = " AND ".join(_SQL.among(quoted(name), table.columns[name]) for name in table.key)
        values = [_SQL.listed_value(sorted({key[at] for key in keys})) for at in range(len(table.key))]
        statement = f"SELECT {_SQL.columns(table)} FROM {self._name(table, build)} WHERE {among}"  # noqa: S608 - own names
        with self._reading() as connection:
            rows = [read(table, row) for row in fetched(connection, statement, values)]
        wanted = set(keys)
        return {key: row for key, row in ((table.key_of(row), row) for row in rows) if key in wanted}

    def save(self, at: Place, changes: Changes, position: int) -> None:
        """Write a batch and the position in one transaction."""
        move = (
            f"UPDATE {PREFIX}tracking SET position = ?"  # noqa: S608 - own names
            " WHERE view = ? AND build = ? AND application_name = ? AND position = ?"
        )
        with self._writing() as connection:
            moved = connection.execute(move, (position, self._projection.id, at.build, LOG, at.position)).rowcount
            if not moved:
                raise LostRace("the view went on")
            for table, change in changes.items():
                name, columns = self._name(table, at.build), table.columns
                if change.gone:
                    chosen = " AND ".join(f"{quoted(column)} = ?" for column in table.key)
                    connection.executemany(f"DELETE FROM {name} WHERE {chosen}", change.gone)  # noqa: S608 - own names
                marks = ", ".join("?" for _ in columns)
                insert = f"INSERT INTO {name} ({listed(tuple(columns))}) VALUES ({marks})"  # noqa: S608 - own names
                with _fitting():
                    connection.executemany(insert, change.come)

    def select(self, query: Query[Any]) -> list[Values]:
        """Answer from the live build."""
        with self._reading() as connection:
            return self._select(connection, query)

    def stored(self, query: Query[Any]) -> list[tuple[Any, ...]]:
        """Answer with rows as the file holds them, to hold two files against each other."""
        with self._reading() as connection:
            return self._stored(connection, query)

    def _stored(self, connection: sqlite3.Connection, query: Query[Any]) -> list[tuple[Any, ...]]:
        statement, values = _SQL.select(query, self._live_name(connection, query.table))
        return fetched(connection, statement, values)

    @contextmanager
    def still(self) -> Iterator[Still]:
        """Lend the live build as it stands now."""
        with self._reading() as connection:
            yield Still(self._place(connection), partial(self._stored, connection))

    def select_both(self, one: Query[Any], other: Query[Any]) -> tuple[list[Values], list[Values]]:
        """Answer two questions of one snapshot."""
        with self._reading() as connection:
            return self._select(connection, one), self._select(connection, other)

    def _select(self, connection: sqlite3.Connection, query: Query[Any]) -> list[Values]:
        statement, values = _SQL.select(query, self._live_name(connection, query.table))
        return [read(query.table, row) for row in fetched(connection, statement, values)]

    def tally(self, table: Table[Any], columns: Sequence[str], where: Sequence[Condition] = ()) -> dict[Key, int]:
        """Count by columns."""
        with self._reading() as connection:
            statement, values = _SQL.tally(table, columns, where, self._live_name(connection, table))
            return {tuple(key): count for *key, count in fetched(connection, statement, values)}

    def begin_build(self) -> Place:
        """Empty the tables of the next build."""
        with self._writing() as connection:
            view, live = self._projection.id, self._place(connection).build
            build = next_build(live, self._newest(connection))
            for table in self._projection.tables:
                for name in _indexes(self._stored_name(table, build), table):
                    connection.execute(f"DROP INDEX IF EXISTS {quoted(name)}")
                connection.execute(f"DELETE FROM {self._name(table, build)}")  # noqa: S608 - own names
            left = f"DELETE FROM {PREFIX}tracking WHERE view = ? AND build <> ?"  # noqa: S608 - own names
            connection.execute(left, (view, live))
            connection.execute(f"INSERT INTO {PREFIX}tracking VALUES (?, ?, ?, 0)", (view, build, LOG))  # noqa: S608 - own names
            return Place(build, 0)

    def under_way(self) -> Place | None:
        """Tell where the next build is."""
        with self._reading() as connection:
            newest = self._newest(connection)
            return None if newest == self._place(connection).build else self._place_of(connection, newest)

    def _newest(self, connection: sqlite3.Connection) -> int:
        statement = f"SELECT max(build) FROM {PREFIX}tracking WHERE view = ? AND application_name = ?"  # noqa: S608 - own names
        newest: int = connection.execute(statement, (self._projection.id, LOG)).fetchone()[0]
        return newest

    def index_build(self, build: int) -> None:
        """Make the indexes of a build, each in a transaction of its own: writers come in between."""
        with self._reading() as connection:
            lacking = self._lacking(connection, build)
        for statement in lacking:
            with self._writing() as connection:
                connection.execute(statement)

    def _lacking(self, connection: sqlite3.Connection, build: int) -> list[str]:
        """List the statements that make the indexes a build is without."""
        there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
        return [
            statement
            for table in self._projection.tables
            for name, statement in _indexes(self._stored_name(table, build), table).items()
            if name not in there
        ]

    def place_of(self, build: int) -> Place | None:
        """Tell where a build is."""
        with self._reading() as connection:
            return self._place_of(connection, build)

    def _place_of(self, connection: sqlite3.Connection, build: int) -> Place | None:
        found = connection.execute(
            f"SELECT position FROM {PREFIX}tracking WHERE view = ? AND build = ? AND application_name = ?",  # noqa: S608 - own names
            (self._projection.id, build, LOG),
        ).fetchone()
        return Place(build, found[0]) if found else None

    def swap(self, build: int) -> bool:
        """Make a build the live one."""
        with self._writing() as connection:
            new, live = self._place_of(connection, build), self._place(connection)
            if new is None or build <= live.build or new.position < live.position or self._lacking(connection, build):
                return False
            view = self._projection.id
            connection.execute(f"UPDATE {PREFIX}live SET build = ? WHERE view = ?", (build, view))  # noqa: S608 - own names
            connection.execute(
                f"DELETE FROM {PREFIX}tracking WHERE view = ? AND build = ?",  # noqa: S608 - own names
                (view, live.build),
            )
            return True

    def insert_tracking(self, tracking: Tracking) -> None:
        """Move the live build's position for an application on."""
        with self._writing() as connection:
            statement = (
                f"INSERT INTO {PREFIX}tracking VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE"  # noqa: S608 - own names
                " SET position = excluded.position WHERE position < excluded.position"
            )
            build = self._place(connection).build
            values = (self._projection.id, build, tracking.application_name, tracking.notification_id)
            if not connection.execute(statement, values).rowcount:
                raise IntegrityError("that position was tracked before")

    def max_tracking_id(self, application_name: str) -> int | None:
        """Tell the live build's position for an application."""
        with self._reading() as connection:
            found = connection.execute(
                f"SELECT position FROM {PREFIX}tracking WHERE view = ? AND build = ? AND application_name = ?",  # noqa: S608 - own names
                (self._projection.id, self._place(connection).build, application_name),
            ).fetchone()
        return found[0] or None if found else None

    def close(self) -> None:
        """Close the file, if it is the views' own."""
        if self._own:
            self._file.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        self._make()
        with self._file.reading() as connection:
            # One snapshot: which build is live, and what stands in it.
            connection.execute("BEGIN")
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        self._make()
        with self._file.writing() as connection:
            yield connection

    def _make(self) -> None:
        if self._made:
            return
        with self._file.writing() as connection:
            connection.execute(_TRACKING)
            connection.execute(_LIVE)
            for slot in SLOTS:
                for table in self._projection.tables:
                    _make_table(connection, PREFIX + stored_name(self._projection, table, slot), table)
            view = self._projection.id
            first = f"INSERT OR IGNORE INTO {PREFIX}live VALUES (?, 1)"  # noqa: S608 - own names
            if connection.execute(first, (view,)).rowcount:
                connection.execute(f"INSERT INTO {PREFIX}tracking VALUES (?, 1, ?, 0)", (view, LOG))  # noqa: S608 - own names
        self._made = True

    def _live_name(self, connection: sqlite3.Connection, table: Table[Any]) -> str:
        return self._name(table, self._place(connection).build)

    def _name(self, table: Table[Any], build: int) -> str:
        return quoted(self._stored_name(table, build))

    def _stored_name(self, table: Table[Any], build: int) -> str:
        return PREFIX + stored_name(self._projection, table, slot_of(build))


def _make_table(connection: sqlite3.Connection, name: str, table: Table[Any]) -> None:
    columns = ", ".join(f"{quoted(column)} {_TYPES.get(kind, 'TEXT')}" for column, kind in table.columns.items())
    # A number alone is the rowid itself.
    key = (
        f"{quoted(table.key[0])} INTEGER PRIMARY KEY"
        if len(table.key) == 1 and table.columns[table.key[0]] == "int"
        else ""
    )
    if key:
        columns = columns.replace(f"{quoted(table.key[0])} INTEGER", key, 1)
    else:
        columns += f", PRIMARY KEY ({listed(table.key)})"
    there = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone()
    if there is None:
        connection.execute(f"CREATE TABLE {quoted(name)} ({columns})")
        for statement in _indexes(name, table).values():
            connection.execute(statement)


def _indexes(name: str, table: Table[Any]) -> dict[str, str]:
    """Give the indexes of a table, and what makes each."""
    return {
        f"{name}_{number}": f"CREATE INDEX IF NOT EXISTS {quoted(f'{name}_{number}')}"
        f" ON {quoted(name)} ({', '.join(asked(table, column) for column in by)})"
        for number, by in enumerate(table.indexes)
    }


@contextmanager
def _fitting() -> Iterator[None]:
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError) as error:
        raise RowsRejected(type(error).__name__) from None
    except (OverflowError, UnicodeEncodeError) as error:
        raise RowsRejected(type(error).__name__) from None
