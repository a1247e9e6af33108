"""The sealed log in the ledger's schema on PostgreSQL."""

from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import Any

import psycopg
from eventsourcing.persistence import Notification
from psycopg import sql

from .postgres import PostgresRecorder
from .sealed import DIGEST_AT, DIGEST_BYTES, Leaf, SealedRows, SignedHead, Tip

_Connection = psycopg.Connection[tuple[Any, ...]]
#: Rows are looked for at no leaf in slices of so many positions: a statement has a deadline.
_SLICE = 500_000

_UNSEALED = f"""
SELECT notification_id, substring(state FROM {DIGEST_AT + 1} FOR {DIGEST_BYTES}) FROM {{events}} AS event
WHERE notification_id > %s AND notification_id <= %s AND NOT EXISTS (
    SELECT FROM {{schema}}.sealed WHERE sealed.notification_id = event.notification_id
        AND sealed.notification_id > %s AND sealed.notification_id <= %s)
ORDER BY notification_id LIMIT %s
"""  # noqa: S608 - constants
# One statement, so that all is of one moment.
_STRAYS = """
WITH sealed_up_to (size) AS (
    SELECT greatest(%s::bigint, (SELECT size FROM {schema}.sealing WHERE one = 1)))
SELECT 0, leaf_index FROM {schema}.sealed WHERE leaf_index < 0
UNION ALL
SELECT 0, leaf_index FROM {schema}.sealed WHERE leaf_index >= (SELECT size FROM sealed_up_to)
UNION ALL
SELECT line, place FROM {schema}.sealed_tiles, sealed_up_to
WHERE CASE WHEN line BETWEEN 1 AND 7 THEN place < 0 OR place >= (size >> 8 * line) ELSE true END
LIMIT %s
"""


class PostgresSealed(SealedRows):
    """Leaves in a table, written by COPY in one transaction with the tip."""

    def __init__(self, recorder: PostgresRecorder) -> None:
        self._recorder = recorder

    def tip(self) -> Tip:
        """Tell how far the log is sealed."""
        found = self._read("SELECT size, position FROM {schema}.sealing WHERE one = 1")
        # Where somebody removed the row, nothing is sealed: the leaves that are there then say otherwise.
        return Tip(*found[0]) if found else Tip(0, 0)

    def append(self, at: Tip, leaves: Sequence[tuple[int, bytes]], tiles: Sequence[tuple[int, int, bytes]]) -> bool:
        """Write leaves behind a tip."""
        newest = max(at.position, *(position for position, _ in leaves))
        with self._recorder.lent() as connection, connection.transaction():
            # Whoever finds the row locked leaves the work to the other.
            held = connection.execute(
                self._compose("SELECT size, position FROM {schema}.sealing WHERE one = 1 FOR UPDATE SKIP LOCKED")
            ).fetchone()
            if held != (at.size, at.position):
                return False
            self._copy(connection, "sealed", [(at.size + turn, *leaf) for turn, leaf in enumerate(leaves)])
            self._copy(connection, "sealed_tiles", tiles)
            connection.execute(
                self._compose("UPDATE {schema}.sealing SET size = %s, position = %s WHERE one = 1"),
                (at.size + len(leaves), newest),
            )
            return True

    def _copy(self, connection: _Connection, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        statement = self._compose("COPY {schema}.{table} FROM STDIN", table=sql.Identifier(table))
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    def leaves(self, start: int, limit: int) -> Sequence[Leaf]:
        """Read leaves in their order."""
        statement = (
            "SELECT leaf_index, notification_id, leaf_hash FROM {schema}.sealed"
            " WHERE leaf_index >= %s AND leaf_index < %s ORDER BY leaf_index"
        )
        return [Leaf(*row) for row in self._read(statement, start, start + limit)]

    def tiles(self, row: int, start: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Read a row of the tiles."""
        statement = (
            "SELECT place, hash FROM {schema}.sealed_tiles"
            " WHERE line = %s AND place >= %s AND place < %s ORDER BY place"
        )
        return [(place, whole) for place, whole in self._read(statement, row, start, start + limit)]

    def indexes(self, positions: Sequence[int]) -> dict[int, int]:
        """Find the leaves of rows."""
        statement = "SELECT notification_id, leaf_index FROM {schema}.sealed WHERE notification_id = ANY(%s::bigint[])"
        return dict(self._read(statement, list(positions)))

    def digests(self, gt: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Read positions and stored digests, up to the log's bound."""
        return [
            (at, (state or b"")[DIGEST_AT:]) for at, state in self._recorder.fronts(gt, limit, DIGEST_AT + DIGEST_BYTES)
        ]

    def streams(self, batch: int) -> Iterator[Sequence[Notification]]:
        """Read all rows whole, by stream."""
        statement = (
            "SELECT originator_id, originator_version, topic, state, notification_id FROM {{events}} {}"
            " ORDER BY originator_id, originator_version LIMIT %s"
        )
        behind = "WHERE (originator_id, originator_version) > (%s, %s::bigint)"
        # No bound at first: rows that no rule lets in stand below every stream.
        found = self._read(statement.format(""), batch)
        while found:
            yield [
                Notification(stream, version, topic or "", state or b"", id=at or 0)
                for stream, version, topic, state, at in found
            ]
            found = self._read(statement.format(behind), *found[-1][:2], batch)

    def unsealed(self, lte: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Find rows that stand at no leaf."""
        found: list[tuple[int, bytes]] = []
        for start in range(0, lte, _SLICE):
            bounds = (start, min(start + _SLICE, lte))
            found += [(at, told) for at, told in self._read(_UNSEALED, *bounds, *bounds, limit - len(found))]
        return found

    def strays(self, size: int, limit: int) -> Sequence[tuple[int, int]]:
        """Find what stands outside of the tree."""
        return [(row, place) for row, place in self._read(_STRAYS, size, limit)]

    def keep(self, size: int, checkpoint: str) -> None:
        """Keep a signed head."""
        statement = (
            "INSERT INTO {schema}.tree_heads (size, checkpoint) VALUES (%s, %s) ON CONFLICT DO NOTHING RETURNING size"
        )
        self._read(statement, size, checkpoint)

    def heads(self, after: int, limit: int) -> Sequence[SignedHead]:
        """Read signed heads."""
        statement = "SELECT size, checkpoint, made_at FROM {schema}.tree_heads WHERE size > %s ORDER BY size LIMIT %s"
        return [_head(*row) for row in self._read(statement, after, limit)]

    def newest_head(self) -> SignedHead | None:
        """Read the newest signed head."""
        found = self._read("SELECT size, checkpoint, made_at FROM {schema}.tree_heads ORDER BY size DESC LIMIT 1")
        return _head(*found[0]) if found else None

    def _read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._recorder.lent() as connection, connection.cursor(binary=True) as cursor:
            cursor.execute(self._compose(statement), values)
            return cursor.fetchall()

    def _compose(self, statement: str, **names: sql.Composable) -> sql.Composed:
        return self._recorder.database.compose(statement, **names)


def _head(size: int, checkpoint: str, made_at: Any) -> SignedHead:
    return SignedHead(size, checkpoint, made_at.astimezone(UTC))
