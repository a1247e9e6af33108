"""The sealed log in the ledger's SQLite file."""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from json import dumps

from eventsourcing.persistence import Notification

from .sealed import DIGEST_AT, DIGEST_BYTES, Leaf, SealedRows, SignedHead, Tip
from .sqlite import SQLiteRecorder, fetched, row_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Of a state that was altered into text, or into nothing, it is some bytes nevertheless.
_DIGEST = f"CAST(substr(state, {DIGEST_AT + 1}, {DIGEST_BYTES}) AS BLOB)"
# Where somebody removed the row, or its numbers, nothing is sealed: the leaves that are there then say otherwise.
_TIP = "FROM sealing WHERE one = 1 AND typeof(size) = 'integer' AND typeof(position) = 'integer'"
# One statement, so that all is of one moment.
_STRAYS = f"""
WITH sealed_up_to (size) AS (SELECT max(?, coalesce((SELECT size {_TIP}), 0)))
SELECT 0, leaf_index FROM sealed WHERE leaf_index < 0
UNION ALL
SELECT 0, leaf_index FROM sealed WHERE leaf_index >= (SELECT size FROM sealed_up_to)
UNION ALL
SELECT line, place FROM sealed_tiles, sealed_up_to
WHERE CASE WHEN line BETWEEN 1 AND 7 THEN place < 0 OR place >= (size >> 8 * line) ELSE true END
LIMIT ?
"""  # noqa: S608 - constants


class SQLiteSealed(SealedRows):
    """Leaves in the ledger's own file, written in one transaction with the tip."""

    def __init__(self, recorder: SQLiteRecorder) -> None:
        self._recorder = recorder

    def tip(self) -> Tip:
        """Tell how far the log is sealed."""
        with self._recorder.reading() as connection:
            return _tip(connection)

    def append(self, at: Tip, leaves: Sequence[tuple[int, bytes]], tiles: Sequence[tuple[int, int, bytes]]) -> bool:
        """Write leaves behind a tip."""
        with self._recorder.writing() as connection:
            if _tip(connection) != at:
                return False
            numbered = [(at.size + turn, *leaf) for turn, leaf in enumerate(leaves)]
            connection.executemany("INSERT INTO sealed VALUES (?, ?, ?)", numbered)
            connection.executemany("INSERT INTO sealed_tiles VALUES (?, ?, ?)", tiles)
            newest = max(at.position, *(position for position, _ in leaves))
            connection.execute("UPDATE sealing SET size = ?, position = ?", (at.size + len(leaves), newest))
            return True

    def leaves(self, start: int, limit: int) -> Sequence[Leaf]:
        """Read leaves in their order."""
        statement = (
            "SELECT leaf_index, notification_id, leaf_hash FROM sealed"
            " WHERE leaf_index >= ? AND leaf_index < ? ORDER BY leaf_index"
        )
        found = self._read(statement, start, start + limit)
        return [
            Leaf(index, at if isinstance(at, int) else -1, whole if isinstance(whole, bytes) else b"")
            for index, at, whole in found
        ]

    def tiles(self, row: int, start: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Read a row of the tiles."""
        statement = "SELECT place, hash FROM sealed_tiles WHERE line = ? AND place >= ? AND place < ? ORDER BY place"
        found = self._read(statement, row, start, start + limit)
        return [(place, whole if isinstance(whole, bytes) else b"") for place, whole in found]

    def indexes(self, positions: Sequence[int]) -> dict[int, int]:
        """Find the leaves of rows."""
        statement = (
            "SELECT notification_id, leaf_index FROM sealed WHERE notification_id IN (SELECT value FROM json_each(?))"
        )
        return dict(self._read(statement, dumps(list(positions))))

    def digests(self, gt: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Read positions and stored digests."""
        statement = f"SELECT rowid, {_DIGEST} FROM stored_events WHERE rowid > ? ORDER BY rowid LIMIT ?"  # noqa: S608 - constants
        return self._read(statement, gt, limit)

    def streams(self, batch: int) -> Iterator[Sequence[Notification]]:
        """Read all rows whole, by stream."""
        statement = (
            "SELECT originator_id, originator_version, topic, state, rowid FROM stored_events {}"
            " ORDER BY originator_id, originator_version LIMIT ?"
        )
        # Named by its row: what an altered column holds may not come back as what the index goes by.
        behind = (
            "WHERE (originator_id, originator_version) >"
            " (SELECT originator_id, originator_version FROM stored_events WHERE rowid = ?)"
        )
        found = self._read(statement.format(""), batch)
        while found:
            yield [row_of(*row) for row in found]
            found = self._read(statement.format(behind), found[-1][4], batch)

    def unsealed(self, lte: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Find rows that stand at no leaf."""
        statement = (
            f"SELECT rowid, {_DIGEST} FROM stored_events WHERE rowid <= ? AND NOT EXISTS ("  # noqa: S608 - constants
            "SELECT 1 FROM sealed WHERE notification_id = stored_events.rowid) ORDER BY rowid LIMIT ?"
        )
        return self._read(statement, lte, limit)

    def strays(self, size: int, limit: int) -> Sequence[tuple[int, int]]:
        """Find what stands outside of the tree."""
        found = self._read(_STRAYS, size, limit)
        return [tuple(one if isinstance(one, int) else -1 for one in row) for row in found]  # type: ignore[misc]  # two

    def keep(self, size: int, checkpoint: str) -> None:
        """Keep a signed head."""
        with self._recorder.writing() as connection:
            if not connection.execute("SELECT 1 FROM tree_heads WHERE size = ?", (size,)).fetchone():
                made_at = time.time_ns() // 1000
                connection.execute("INSERT INTO tree_heads VALUES (?, ?, ?)", (size, checkpoint, made_at))

    def heads(self, after: int, limit: int) -> Sequence[SignedHead]:
        """Read signed heads."""
        statement = "SELECT size, checkpoint, made_at FROM tree_heads WHERE size > ? ORDER BY size LIMIT ?"
        return [_head(*row) for row in self._read(statement, after, limit)]

    def newest_head(self) -> SignedHead | None:
        """Read the newest signed head."""
        found = self._read("SELECT size, checkpoint, made_at FROM tree_heads ORDER BY size DESC LIMIT 1")
        return _head(*found[0]) if found else None

    def _read(self, statement: str, *values: object) -> list[tuple]:  # type: ignore[type-arg]  # as the driver gives them
        with self._recorder.reading() as connection:
            return fetched(connection, statement, values)


def _tip(connection: sqlite3.Connection) -> Tip:
    return Tip(*(connection.execute(f"SELECT size, position {_TIP}").fetchone() or (0, 0)))


def _head(size: int, checkpoint: object, made_at: object) -> SignedHead:
    """Give a head whose columns may hold anything; one that was altered into none is one that nobody signed."""
    try:
        if isinstance(checkpoint, str) and isinstance(made_at, int):
            return SignedHead(size, checkpoint, _EPOCH + timedelta(microseconds=made_at))
    except OverflowError:
        pass
    return SignedHead(size, "", _EPOCH)
