"""Questions and rows as SQL, for both databases: statements with `?` for each value, and how values are spelled."""

import json
from collections.abc import Sequence
from typing import Any

from ..projections.projection import Projection
from ..projections.rows import Condition, Kind, Query, Table, Values, plain

#: Builds take turns in two sets of tables.
SLOTS = ("a", "b")


def stored_name(projection: Projection, table: Table[Any], slot: str) -> str:
    """Name a table of one build: its own name, the view's revision, and whose turn it is."""
    return f"{table.name}_{projection.revision}{slot}"


def slot_of(build: int) -> str:
    """Tell in which tables a build is."""
    return SLOTS[build % len(SLOTS)]


def next_build(live: int, newest: int) -> int:
    """Number the next build: higher than any before, and in the tables beside the live one."""
    return newest + 1 if slot_of(newest + 1) != slot_of(live) else newest + 2


def quoted(name: str) -> str:
    """Quote a name of this package's own."""
    return f'"{name}"'


def asked(table: Table[Any], name: str) -> str:
    """Spell a column by which is asked, or the expression on it that a `+` stands for."""
    if not name.startswith("+"):
        return quoted(name)
    same = "+ 0" if table.kind_of(name) in ("int", "flag") else "|| ''"
    return f"({quoted(name[1:])} {same})"


def listed(names: Sequence[str]) -> str:
    """List columns."""
    return ", ".join(map(quoted, names))


def read(table: Table[Any], row: Sequence[Any]) -> Values:
    """Read a row whose columns stand in their order."""
    return dict(zip(table.columns, row, strict=True))


class Sql:
    """SQL as SQLite speaks it; the other database differs in these methods.

    Attributes:
        within: The function that looks for a text in another.
    """

    within = "instr"

    def among(self, column: str, kind: Kind) -> str:  # noqa: ARG002 - the other database asks it
        """Hold a column against a list that is one value."""
        return f"{column} IN (SELECT value FROM json_each(?))"  # noqa: S608 - own names

    def value(self, kind: Kind, value: Any) -> Any:  # noqa: ARG002 - as above
        """Spell one value."""
        return value

    def listed_value(self, values: Sequence[Any]) -> Any:
        """Spell such a list."""
        return json.dumps([plain(value) for value in values])

    def condition(self, table: Table[Any], condition: Condition) -> tuple[str, Any]:
        """Spell a condition and its value."""
        name, operator, value = condition
        column = asked(table, name)
        if operator == "in":
            return self.among(column, table.kind_of(name)), self.listed_value(value)
        if operator == "has":
            # Tags are 16 hex, so their quoted text stands in the list's text where the tag is in the list.
            return f"{self.within}({column}, ?) > 0", json.dumps(value)
        return f"{column} {operator} ?", self.value(table.kind_of(name), plain(value))

    def where(self, table: Table[Any], conditions: Sequence[Condition]) -> tuple[str, list[Any]]:
        """Spell all conditions."""
        spelled = [self.condition(table, one) for one in conditions]
        return " AND ".join(text for text, _ in spelled) or "1 = 1", [value for _, value in spelled]

    def select(self, query: Query[Any], source: str, more: str = "") -> tuple[str, list[Any]]:
        """Spell a question to a table; `more` columns stand behind its own."""
        table = query.table
        where, values = self.where(table, query.where)
        if query.after is not None:
            past = "<" if query.descending else ">"
            columns = ", ".join(asked(table, name) for name in query.order)
            where += f" AND ({columns}) {past} ({', '.join('?' for _ in query.order)})"
            values += [
                self.value(table.kind_of(name), plain(value))
                for name, value in zip(query.order, query.after, strict=True)
            ]
        direction = " DESC" if query.descending else ""
        by = ", ".join(asked(table, name) + direction for name in query.order)
        order = f" ORDER BY {by}" if by else ""
        cut = ""
        if query.limit is not None:
            cut = " LIMIT ? OFFSET ?"
            values += [query.limit, query.offset]
        chosen = self.columns(table) + more
        return f"SELECT {chosen} FROM {source} WHERE {where}{order}{cut}", values  # noqa: S608 - own names

    def columns(self, table: Table[Any]) -> str:
        """List a table's columns to be read."""
        return listed(tuple(table.columns))

    def tally(
        self, table: Table[Any], columns: Sequence[str], where: Sequence[Condition], source: str
    ) -> tuple[str, list[Any]]:
        """Spell a count by columns."""
        chosen, values = self.where(table, where)
        by = listed(columns)
        return f"SELECT {by}, count(*) FROM {source} WHERE {chosen} GROUP BY {by}", values  # noqa: S608 - own names
