"""The event loop's own way to PostgreSQL: the statements of a decision, with no thread between."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, Self, cast
from uuid import UUID

import psycopg
from eventsourcing.persistence import StoredEvent
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from ..domain.errors import StoreUnavailable
from .pauses import Appended
from .postgres_database import (
    GOODBYES,
    SILENCE,
    UNHEARD,
    ConnectionLost,
    Database,
    Failures,
    Row,
    Values,
    break_off,
    insertion,
    loaded,
    loading,
    silent,
)
from .store import Ordered, Snapshot, VaultRow


class _Connection(psycopg.AsyncConnection[Row]):
    """One of a pool, that leaves word why it could not be made."""

    @classmethod
    async def connect(cls, conninfo: str = "", **kwargs: Any) -> Self:
        with cast("Failures", kwargs.pop("failures")).noted():
            return await super().connect(conninfo, **kwargs)


class PostgresStreams:
    """The `Streams` port over a pool of connections that belongs to one event loop.

    It writes the rows that `PostgresRecorder` writes, and tells every error by the same name. A statement is one round
    trip. Each has two deadlines: the server's own, and one here for a server of which nothing more is heard. Reads are
    tried once more when their connection proves dead; an append never is. A caller that is cancelled has the server
    give the statement up; whether an append still happened is then unknown, as with any caller that went away.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._deadline = database.statement_timeout + SILENCE
        self._pool: AsyncConnectionPool[_Connection] | None = None
        self._closed = False

    async def load(self, streams: Sequence[UUID]) -> Snapshot:
        """Read whole streams and what goes with them, in one statement."""
        return loaded(await self._repeat(*loading(streams)))

    async def append(
        self,
        rows: Sequence[StoredEvent],
        *,
        mints: bool,  # noqa: ARG002 - it is told anyway
        keys: Sequence[VaultRow] = (),
        briefly: bool = False,
    ) -> Appended:
        """Append rows in one statement that is its own transaction."""
        ordered = Ordered(rows, keys)
        try:
            found = await self._execute(*insertion(ordered.rows, ordered.keys, briefly=briefly), rows=ordered.rows)
        except ConnectionLost as lost:
            raise StoreUnavailable(lost.says, outcome=lost.outcome) from None
        return Appended(ordered.as_given(position for position, _ in found), found[0][1])

    async def newest(self, stream: UUID) -> StoredEvent | None:
        """Read the newest row of a stream."""
        found = await self._repeat("stream backward", (stream, -1, (1 << 63) - 1, 1))
        return StoredEvent(*found[0]) if found else None

    async def renew(self, pause: UUID, fence: int, seconds: float) -> bool:
        """Move a lease's end, unless a higher fence holds it. Repeating it does no harm."""
        return bool(await self._repeat("renew", (pause, fence, float(seconds)), outcome="unknown"))

    async def vault(self, pauses: Sequence[UUID]) -> Sequence[VaultRow]:
        """Read the data keys of these pauses."""
        return [VaultRow(*row) for row in await self._repeat("vault", (list(pauses),))]

    async def close(self) -> None:
        """Close the connections. Calls after that are `StoreUnavailable`."""
        self._closed = True
        if self._pool is not None:
            await self._pool.close()

    async def _repeat(
        self, statement: str, values: Values, *, outcome: Literal["not_started", "unknown"] = "not_started"
    ) -> list[Row]:
        with suppress(ConnectionLost):
            return await self._execute(statement, values)
        await asyncio.sleep(GOODBYES)
        try:
            return await self._execute(statement, values)
        except ConnectionLost:
            says = "PostgreSQL broke the connection, twice"
            raise StoreUnavailable(says, outcome=outcome, reached=False) from None

    async def _execute(self, statement: str, values: Values, *, rows: Sequence[StoredEvent] = ()) -> list[Row]:
        pool, connection = await self._connection()
        # Broken off, not cancelled: the driver waits for the server that it told to give a statement up.
        loop = asyncio.get_running_loop()
        silence = loop.call_later(self._deadline, break_off, connection)
        try:
            cursor = connection.cursor(binary=True)
            await cursor.execute(self._database.statements[statement], values)
            return await cursor.fetchall()
        except psycopg.Error as error:
            if loop.time() >= silence.when():
                raise ConnectionLost(UNHEARD, outcome="unknown") from None
            raise self._database.told(error, broken=connection.closed, rows=rows) from None
        finally:
            silence.cancel()
            await pool.putconn(connection)

    async def _connection(self) -> tuple[AsyncConnectionPool[_Connection], _Connection]:
        if self._closed:
            raise StoreUnavailable("the ledger is closed; open it again", reached=False)
        pool = self._pool
        if pool is None:
            pool = self._pool = AsyncConnectionPool(connection_class=_Connection, **self._database.of_pools)
        try:
            if pool.closed:
                # It is not open yet; once its ledger is closed nobody comes this far.
                await pool.open()
            return pool, await self._living(pool)
        except PoolTimeout:
            raise StoreUnavailable(self._database.no_connection, reached=False) from None
        except psycopg.OperationalError as error:
            says = f"PostgreSQL gave no connection: {type(error).__name__}"
            raise StoreUnavailable(says, reached=False) from None

    async def _living(self, pool: AsyncConnectionPool[_Connection]) -> _Connection:
        # The pool's own check pauses for seconds between dead connections; after a restart all of them are.
        for _ in range(self._database.pool_size):
            connection = await pool.getconn()
            there = False
            try:
                there = await _still_there(connection)
            finally:
                # Also where whoever asks is cancelled meanwhile: the pool would count it as lent for good.
                if not there:
                    await connection.close()
                    await pool.putconn(connection)
            if there:
                return connection
        return await pool.getconn()


async def _still_there(connection: _Connection) -> bool:
    # Only one that has something to say is worth a round trip.
    with suppress(psycopg.Error):
        if not silent(connection):
            silence = asyncio.get_running_loop().call_later(SILENCE, break_off, connection)
            try:
                await connection.execute("")
            finally:
                silence.cancel()
        return True
    return False
