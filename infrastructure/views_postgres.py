"""Views in PostgreSQL: tables in a schema of their own, in the ledger's database or another."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from eventsourcing.persistence import IntegrityError, Tracking
from psycopg import sql

from ..domain.errors import InteractionConfigurationError
from ..projections import PROJECTIONS
from ..projections.projection import Projection
from ..projections.rows import (
    LOG,
    Changes,
    Condition,
    Key,
    Kind,
    LostRace,
    Place,
    Query,
    Row,
    Rows,
    RowsRejected,
    Still,
    Table,
    Values,
    ViewGone,
    plain,
)
from .views_sql import SLOTS, Sql, asked, listed, next_build, quoted, read, slot_of, stored_name

if TYPE_CHECKING:
    from .postgres import PostgresRecorder

#: How COPY is told that there is nothing, and of how many rows it is told at once.
_NULL, _CHUNK = "None", 1000
_PLAIN = frozenset({str, int, type(None)})

T = TypeVar("T")
_ReadRow = Callable[[Table[Any], Sequence[Any]], T]
_Connection = psycopg.Connection[tuple[Any, ...]]

#: Sorted byte by byte: moments are texts of one length, and as such the same order in every store.
_TEXT = 'text COLLATE "C"'
_TYPES: dict[Kind, str] = {"uuid": "uuid", "int": "bigint", "flag": "integer"}

# Keyed by the view: two views in one schema would else share the one position of the application they follow.
_FOR_ALL = """
CREATE TABLE {schema}.tracking (
    view text NOT NULL,
    build integer NOT NULL,
    application_name text NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (view, build, application_name)
) WITH (fillfactor = 50);
CREATE TABLE {schema}.live (view text PRIMARY KEY, build integer NOT NULL);
"""

_GRANTS = """
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA {schema} TO {role};
"""


class _PostgresSql(Sql):
    within = "strpos"

    def among(self, column: str, kind: Kind) -> str:
        return f"{column} = ANY(?::{_TYPES.get(kind, 'text')}[])"

    def listed_value(self, values: Sequence[Any]) -> Any:
        return [plain(value) for value in values]

    def value(self, kind: Kind, value: Any) -> Any:
        return carried(value) if kind == "text" else value

    def columns(self, table: Table[Any]) -> str:
        # Named apart: an ORDER BY would else mean the text, which no index holds.
        return ", ".join(
            f"{quoted(name)}::text AS {quoted(name + '_text')}" if kind == "uuid" else quoted(name)
            for name, kind in table.columns.items()
        )


_SQL = _PostgresSql()


def carried(value: Any) -> Any:
    """Spell a text so that the server can hold it: U+0000 stands in no text of PostgreSQL."""
    if isinstance(value, str) and ("\\" in value or "\0" in value):
        return value.replace("\\", "\\\\").replace("\0", "\\0")
    return value


def _uncarried(value: str) -> str:
    return "\\".join(part.replace("\\0", "\0") for part in value.split("\\\\")) if "\\" in value else value


class PostgresRows(Rows):
    """Rows in tables of a schema, which `pauseledger migrate` makes.

    Args:
        database: What lends connections.
        own: Whether its connections are the views' own, to be closed with them.
    """

    apart = True

    def __init__(self, database: "PostgresRecorder", projection: Projection, *, schema: str, own: bool = False) -> None:
        self._database = database
        self._own = own
        self._projection = projection
        self._schema = schema
        self._quoted_schema = sql.Identifier(schema).as_string(None)
        self._live = 1

    def place(self) -> Place:
        """Tell where the live build is."""
        with self._database.lent() as connection:
            return self._place(connection)

    def _place(self, connection: _Connection) -> Place:
        found = self._say(
            connection,
            "SELECT build, position FROM {schema}.live JOIN {schema}.tracking USING (view, build)"
            " WHERE view = ? AND application_name = ?",
            (self._projection.id, LOG),
        )
        if not found:
            raise ViewGone(f"view {self._projection.id} is not there; run `pauseledger migrate`")
        self._live = found[0][0]
        return Place(*found[0])

    def find(self, build: int, table: Table[Any], keys: Sequence[Key]) -> dict[Key, Values]:
        """Read the rows of these keys."""
        given, values = self._keys(table, keys)
        columns = _SQL.columns(table)
        statement = f"SELECT {columns} FROM {self._name(table, build)} NATURAL JOIN {given}"  # noqa: S608 - own names
        with self._database.lent() as connection, _fitting():
            rows = [_read(table, row) for row in self._say(connection, statement, values)]
        return {table.key_of(row): row for row in rows}

    def save(self, at: Place, changes: Changes, position: int) -> None:
        """Write a batch and the position in one transaction."""
        move = (
            "UPDATE {schema}.tracking SET position = ?"
            " WHERE view = ? AND build = ? AND application_name = ? AND position = ? RETURNING position"
        )
        with self._database.lent() as connection, connection.transaction():
            if at.build > self._live:
                # Until it is swapped in, which waits for the disk, a build is lost whole or not at all.
                self._say(connection, "SET LOCAL synchronous_commit = off")
            # First of all: whoever moves the view at the same time waits here, and then finds it moved.
            if not self._say(connection, move, (position, self._projection.id, at.build, LOG, at.position)):
                raise LostRace("the view went on")
            with _fitting():
                for table, change in changes.items():
                    if change.gone:
                        self._remove(connection, table, at.build, change.gone)
                    if change.come:
                        self._copy(connection, table, at.build, change.come)

    def _remove(self, connection: _Connection, table: Table[Any], build: int, keys: Sequence[Key]) -> None:
        given, values = self._keys(table, keys)
        same = " AND ".join(f"held.{quoted(name)} = given.{quoted(name)}" for name in table.key)
        name = self._name(table, build)
        self._say(connection, f"DELETE FROM {name} AS held USING {given} WHERE {same}", values)  # noqa: S608 - own names

    def _copy(self, connection: _Connection, table: Table[Any], build: int, rows: Sequence[Row]) -> None:
        columns = listed(tuple(table.columns))
        statement = f"COPY {self._name(table, build)} ({columns}) FROM STDIN (NULL '{_NULL}')"
        texts = [at for at, kind in enumerate(table.columns.values()) if kind == "text"]
        with connection.cursor() as cursor, cursor.copy(self._compose(statement)) as copy:
            for start in range(0, len(rows), _CHUNK):
                some = rows[start : start + _CHUNK]
                copy.write(_plain_lines(some) or "".join(_line(row, texts) for row in some))

    def select(self, query: Query[Any]) -> list[Values]:
        """Answer from the live build."""
        return self._select([query], _read)[0]

    def stored(self, query: Query[Any]) -> Sequence[tuple[Any, ...]]:
        """Answer with rows as a file would hold them."""
        return self._select([query], _as_in_a_file)[0]

    @contextmanager
    def still(self) -> Iterator[Still]:
        """Lend the live build as it stands now; a rebuild may still empty what was not read of one it replaced."""
        with self._database.lent() as connection, connection.transaction():
            self._say(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            place = self._place(connection)

            def stored(query: Query[Any]) -> Sequence[tuple[Any, ...]]:
                statement, values = _SQL.select(query, self._name(query.table, place.build))
                return [_as_in_a_file(query.table, row) for row in self._say(connection, statement, values)]

            yield Still(place, stored)

    def select_both(self, one: Query[Any], other: Query[Any]) -> tuple[list[Values], list[Values]]:
        """Answer two questions in one statement."""
        first, second = self._select([one, other], _read)
        return first, second

    def _select(
        self, queries: Sequence[Query[Any]], read_row: Callable[[Table[Any], Sequence[Any]], T]
    ) -> list[list[T]]:
        """Answer in one round trip: each row tells the live build as well, of the same snapshot."""
        table = queries[0].table
        with self._database.lent() as connection:
            while True:
                build, answers = self._live, list[list[T]]([] for _ in queries)
                statement, values = self._selection(queries, build)
                rows = self._say(connection, statement, values)
                for row in rows:
                    answers[row[-2]].append(read_row(table, row[:-2]))
                if (rows[0][-1] if rows else self._place(connection).build) == build:
                    return answers
                self._place(connection)

    def _selection(self, queries: Sequence[Query[Any]], build: int) -> tuple[str, list[Any]]:
        parts, all_values = [], list[Any]()
        for number, query in enumerate(queries):
            told = f", {number}, (SELECT build FROM {{schema}}.live WHERE view = ?)"  # noqa: S608 - own names
            statement, values = _SQL.select(query, self._name(query.table, build), told)
            parts.append(f"({statement})")
            all_values += [self._projection.id, *values]
        return " UNION ALL ".join(parts), all_values

    def tally(self, table: Table[Any], columns: Sequence[str], where: Sequence[Condition] = ()) -> dict[Key, int]:
        """Count by columns."""

        def ask(connection: _Connection, build: int) -> dict[Key, int]:
            statement, values = _SQL.tally(table, columns, where, self._name(table, build))
            return {_read_key(table, columns, key): count for *key, count in self._say(connection, statement, values)}

        return self._of_live(ask)

    def _of_live(self, ask: Callable[[_Connection, int], T]) -> T:
        with self._database.lent() as connection:
            while True:
                build = self._live
                answer = ask(connection, build)
                # The build asked may have been replaced, and emptied for another one, meanwhile.
                if self._place(connection).build == build:
                    return answer

    def begin_build(self) -> Place:
        """Empty the tables of the next build."""
        with self._database.lent() as connection, connection.transaction():
            view = self._projection.id
            # Held, so that nobody else begins or swaps before this is over.
            self._say(connection, "SELECT FROM {schema}.live WHERE view = ? FOR UPDATE", (view,))
            live = self._place(connection).build
            build = next_build(live, self._newest(connection))
            # Whoever writes to it is waited for, and loses from then on.
            self._say(connection, "DELETE FROM {schema}.tracking WHERE view = ? AND build <> ?", (view, live))
            self._say(connection, "INSERT INTO {schema}.tracking VALUES (?, ?, ?, 0)", (view, build, LOG))
            for table in self._projection.tables:
                self._say(connection, f"TRUNCATE {self._name(table, build)}")
            self._unindex(connection, build)
            return Place(build, 0)

    def under_way(self) -> Place | None:
        """Tell where the next build is."""
        with self._database.lent() as connection:
            newest, live = self._newest(connection), self._place(connection).build
        return None if newest <= live else self.place_of(newest)

    def _newest(self, connection: _Connection) -> int:
        statement = "SELECT max(build) FROM {schema}.tracking WHERE view = ? AND application_name = ?"
        newest: int = self._say(connection, statement, (self._projection.id, LOG))[0][0]
        return newest

    def index_build(self, build: int) -> None:
        """Make the indexes of a build; whoever builds it too waits."""
        with self._database.lent() as connection, connection.transaction():
            held = "SELECT FROM {schema}.tracking WHERE view = ? AND build = ? AND application_name = ? FOR UPDATE"
            self._say(connection, held, (self._projection.id, build, LOG))
            self._say(connection, "SET LOCAL statement_timeout = 0")
            for statement in self._lacking(connection, build):
                self._say(connection, statement)

    def _lacking(self, connection: _Connection, build: int) -> list[str]:
        """List the statements that make the indexes a build is without."""
        found = self._say(connection, "SELECT indexname FROM pg_indexes WHERE schemaname = ?", (self._schema,))
        there = {name for (name,) in found}
        return [statement for name, statement in self._indexes(build).items() if name not in there]

    def _indexes(self, build: int) -> dict[str, str]:
        slot = slot_of(build)
        return {
            name: statement
            for table in self._projection.tables
            for name, statement in _indexes(stored_name(self._projection, table, slot), table).items()
        }

    def _unindex(self, connection: _Connection, build: int) -> None:
        """Take the indexes away, so that they are made at once in the end; a role that does not own them lets them be.

        Raises:
            InteractionConfigurationError: this role does not own the tables, and some are without.
        """
        [(owns,)] = self._say(
            connection,
            "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = ?::regclass",
            (self._compose(self._name(self._projection.set_aside, build)).decode(),),
        )
        if owns:
            for name in self._indexes(build):
                self._say(connection, f"DROP INDEX IF EXISTS {{schema}}.{quoted(name)}")
        elif self._lacking(connection, build):
            raise InteractionConfigurationError(
                f"a rebuild of {self._projection.name} by the owner of its tables was cut off, and left them without"
                f" indexes; let that role run `pauseledger rebuild {self._projection.name}`"
            )

    def place_of(self, build: int) -> Place | None:
        """Tell where a build is."""
        with self._database.lent() as connection:
            found = self._say(
                connection,
                "SELECT position FROM {schema}.tracking WHERE view = ? AND build = ? AND application_name = ?",
                (self._projection.id, build, LOG),
            )
        return Place(build, found[0][0]) if found else None

    def swap(self, build: int) -> bool:
        """Make a build the live one."""
        view = self._projection.id
        with self._database.lent() as connection:
            for table in self._projection.tables:
                # Until autovacuum comes by, plans would be made for what stood there before. A role that is not the
                # tables' owner is passed over with a warning.
                self._say(connection, f"ANALYZE {self._name(table, build)}")
        with self._database.lent() as connection, connection.transaction():
            self._say(connection, "SELECT build FROM {schema}.live WHERE view = ? FOR UPDATE", (view,))
            live = self._place(connection).build
            # Held, so that nobody moves either of the two before this is over.
            found = self._say(
                connection,
                "SELECT build, position FROM {schema}.tracking WHERE view = ? AND application_name = ?"
                " ORDER BY build FOR UPDATE",
                (view, LOG),
            )
            positions = {at: position for at, position in found}  # noqa: C416 - dict() would hide the types
            if build <= live or positions.get(build, -1) < positions[live] or self._lacking(connection, build):
                return False
            self._say(connection, "UPDATE {schema}.live SET build = ? WHERE view = ?", (build, view))
            self._say(connection, "DELETE FROM {schema}.tracking WHERE view = ? AND build = ?", (view, live))
            return True

    def insert_tracking(self, tracking: Tracking) -> None:
        """Move the live build's position for an application on."""
        statement = (
            "INSERT INTO {schema}.tracking AS held VALUES (?, ?, ?, ?)"
            " ON CONFLICT (view, build, application_name) DO UPDATE"
            " SET position = excluded.position WHERE held.position < excluded.position RETURNING position"
        )
        with self._database.lent() as connection:
            build = self._place(connection).build
            values = (self._projection.id, build, tracking.application_name, tracking.notification_id)
            if not self._say(connection, statement, values):
                raise IntegrityError("that position was tracked before")

    def max_tracking_id(self, application_name: str) -> int | None:
        """Tell the live build's position for an application."""
        with self._database.lent() as connection:
            found = self._say(
                connection,
                "SELECT position FROM {schema}.tracking JOIN {schema}.live USING (view, build)"
                " WHERE view = ? AND application_name = ?",
                (self._projection.id, application_name),
            )
        return found[0][0] or None if found else None

    def close(self) -> None:
        """Close the connections, if they are the views' own."""
        if self._own:
            self._database.close()

    def _keys(self, table: Table[Any], keys: Sequence[Key]) -> tuple[str, list[Any]]:
        kinds = [table.columns[name] for name in table.key]
        arrays = ", ".join(f"?::{_TYPES.get(kind, 'text')}[]" for kind in kinds)
        values = [[_SQL.value(kind, key[at]) for key in keys] for at, kind in enumerate(kinds)]
        return f"unnest({arrays}) AS given ({listed(table.key)})", values

    def _name(self, table: Table[Any], build: int) -> str:
        return f"{{schema}}.{quoted(stored_name(self._projection, table, slot_of(build)))}"

    def _compose(self, statement: str) -> bytes:
        # Every statement is made of this package's own names; values go beside it.
        return statement.replace("?", "%s").replace("{schema}", self._quoted_schema).encode()

    def _say(self, connection: _Connection, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            said = connection.execute(self._compose(statement), values)
        except psycopg.errors.UndefinedTable:
            raise ViewGone(
                f"a table of view {self._projection.id} is not there; run `pauseledger migrate`, or, where that makes"
                f" none, drop schema {self._schema} first"
            ) from None
        return said.fetchall() if said.description else []


def _read(table: Table[Any], row: Sequence[Any]) -> Values:
    values = read(table, row)
    for name in _texts(table):
        text = values[name]
        if text is not None and "\\" in text:
            values[name] = _uncarried(text)
    return values


def _as_in_a_file(table: Table[Any], row: Sequence[Any]) -> tuple[Any, ...]:
    for at in _texts_at(table):
        if row[at] is not None and "\\" in row[at]:
            row = (*row[:at], _uncarried(row[at]), *row[at + 1 :])
    return tuple(row)


@lru_cache
def _texts_at(table: Table[Any]) -> tuple[int, ...]:
    return tuple(at for at, kind in enumerate(table.columns.values()) if kind == "text")


@lru_cache
def _texts(table: Table[Any]) -> tuple[str, ...]:
    return tuple(name for name, kind in table.columns.items() if kind == "text")


def _read_key(table: Table[Any], columns: Sequence[str], key: Sequence[Any]) -> Key:
    return tuple(
        _uncarried(value) if table.columns[name] == "text" and value is not None else value
        for name, value in zip(columns, key, strict=True)
    )


def _plain_lines(rows: Sequence[Row]) -> str | None:
    """Spell rows for COPY all at once; None where one has to be looked at."""
    values = list(chain.from_iterable(rows))
    if not _PLAIN.issuperset(map(type, values)) or _NULL in values:
        return None
    # Python spells None as the word that COPY is told to take for it.
    pattern = "\t".join(["%s"] * len(rows[0])) + "\n"
    lines = "".join(map(pattern.__mod__, rows))
    whole = lines.count("\n") == len(rows) and lines.count("\t") == len(values) - len(rows)
    return lines if whole and not ("\\" in lines or "\r" in lines or "\0" in lines) else None


def _line(row: Row, texts: Sequence[int]) -> str:
    return "\t".join(_field(carried(value) if at in texts else value) for at, value in enumerate(row)) + "\n"


def _field(value: Any) -> str:
    if value is None:
        return _NULL
    if not isinstance(value, str | int):
        raise RowsRejected(type(value).__name__)
    spelled = str(value).replace("\\", "\\\\")
    for character, escape in (("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        spelled = spelled.replace(character, escape)
    # What COPY is told to take for nothing, it does not where an escape is in it.
    return "\\" + spelled if spelled == _NULL else spelled


@contextmanager
def _fitting() -> Iterator[None]:
    try:
        yield
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError) as error:
        if error.sqlstate is not None and error.sqlstate[:2] not in {"22", "23"}:
            raise
        raise RowsRejected(type(error).__name__) from None
    except (OverflowError, UnicodeEncodeError) as error:
        raise RowsRejected(type(error).__name__) from None


def make_views(connection: _Connection, schema: str, runtime_role: str | None = None) -> bool:
    """Make the tables of views where they are missing, and say whether any were; a role is given what it needs."""
    names = {"schema": sql.Identifier(schema)}

    def say(statement: str, **more: sql.Composable) -> psycopg.Cursor[tuple[Any, ...]]:
        return connection.execute(sql.SQL(statement).format(**names, **more))

    if connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone() is None:
        say("CREATE SCHEMA {schema}")
        say("REVOKE ALL ON SCHEMA {schema} FROM PUBLIC")
    # A role that may not make tables finds out only where some are missing.
    if connection.execute("SELECT to_regclass(format('%%I.live', %s::text))", (schema,)).fetchone() == (None,):
        say(_FOR_ALL)
    known = {view for (view,) in say("SELECT view FROM {schema}.live").fetchall()}
    missing = [projection for projection in (make() for make in PROJECTIONS) if projection.id not in known]
    for projection in missing:
        for slot in SLOTS:
            for table in projection.tables:
                _make_table(say, stored_name(projection, table, slot), table)
        say("INSERT INTO {schema}.live VALUES ({view}, 1)", view=sql.Literal(projection.id))
        say(
            "INSERT INTO {schema}.tracking VALUES ({view}, 1, {log}, 0)",
            view=sql.Literal(projection.id),
            log=sql.Literal(LOG),
        )
    if runtime_role is not None:
        say(_GRANTS, role=sql.Identifier(runtime_role))
    return bool(missing)


def _make_table(say: Callable[[str], Any], name: str, table: Table[Any]) -> None:
    columns = ", ".join(f"{quoted(column)} {_TYPES.get(kind, _TEXT)}" for column, kind in table.columns.items())
    say(f"CREATE TABLE {{schema}}.{quoted(name)} ({columns}, PRIMARY KEY ({listed(table.key)}))")
    for statement in _indexes(name, table).values():
        say(statement)


def _indexes(name: str, table: Table[Any]) -> dict[str, str]:
    """Give the indexes of a table, and what makes each."""
    columns = [", ".join(map(partial(asked, table), by)) for by in table.indexes]
    names = [f"{name}_{number}" for number in range(len(columns))]
    return {
        index: f"CREATE INDEX {quoted(index)} ON {{schema}}.{quoted(name)} ({by})"
        for index, by in zip(names, columns, strict=True)
    }
