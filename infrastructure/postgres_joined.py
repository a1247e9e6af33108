"""Streams over a PostgreSQL connection that the host lends, inside the transaction it has open there."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from uuid import UUID
from weakref import WeakSet

import psycopg
from eventsourcing.persistence import StoredEvent
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from ..domain.errors import InteractionConfigurationError, StoreUnavailable, TransactionStale
from .executor import Executor
from .pauses import Appended
from .postgres_database import SAYS, SILENCE, Database, Row, Values, insertion, loaded, loading
from .store import Ordered, Snapshot, StreamConflict, VaultRow

Lent = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

#: What a statement's failure means for the whole transaction, by the server's state code.
_STALE = {
    "40001": "the server could not serialise the transaction",
    "40P01": "the server broke a deadlock",
    "PLF01": "the transaction is older than 30 seconds, and may not append any more",
}

_READ_ONLY = "the transaction is read-only, or its server a standby; begin one that may write, on the primary"
_BROKE = "the connection of the host's transaction broke, and the transaction with it; begin a new one"

_NOT_FIT = {
    TransactionStatus.ACTIVE: "another statement, stream or COPY is under way on the connection; let it end first",
    TransactionStatus.INERROR: "the transaction has failed; roll it back, or back to a savepoint, and then go on",
}

# Committed or one's own. A row that has the place and is not seen came after the transaction's snapshot.
_SEEN = """
SELECT EXISTS (
    SELECT FROM {events} JOIN unnest(%b::uuid[], %b::bigint[]) AS given (originator_id, originator_version)
    USING (originator_id, originator_version))
"""


class JoinedStreams:
    """The `Streams` port over one connection of the host's, psycopg's asynchronous or blocking one.

    Every append stands behind a savepoint: one that fails, a lost race among them, leaves the transaction as it was.
    It waits for another transaction as long as a statement of the ledger's own may take. The host's factories of rows
    and cursors are not used, nor are its settings changed.

    Args:
        connection: The host's. A blocking one is used in a thread.
        known: The connections that were seen to lead to this ledger.
    """

    def __init__(
        self, connection: Lent, database: Database, ledger_id: UUID, run: Executor, known: WeakSet[Lent]
    ) -> None:
        if not isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection)):
            raise InteractionConfigurationError(
                "a ledger joins a psycopg 3 connection, asynchronous or blocking; of SQLAlchemy pass"
                " `(await connection.get_raw_connection()).driver_connection`"
            )
        self._connection = connection
        self._database = database
        self._ledger_id = ledger_id
        self._run = run
        self._known = known
        self._turn = asyncio.Lock()

    async def load(self, streams: Sequence[UUID]) -> Snapshot:
        """Read whole streams and what goes with them, as the transaction sees them."""
        statement, values = loading(streams)
        async with self._turn:
            await self._begin()
            return loaded(await self._told(self._database.statements[statement], values))

    async def append(
        self,
        rows: Sequence[StoredEvent],
        *,
        mints: bool,  # noqa: ARG002 - it is told anyway
        keys: Sequence[VaultRow] = (),
    ) -> Appended:
        """Append rows behind a savepoint.

        Raises:
            TransactionStale: somebody else appended first, and the transaction's snapshot does not show it.
        """
        ordered = Ordered(rows, keys)
        statement, values = insertion(ordered.rows, ordered.keys)
        async with self._turn:
            await self._begin()
            try:
                found = await self._guarded(self._database.statements[statement], values, ordered.rows)
            except StreamConflict:
                if not await self._sees(ordered.rows):
                    raise TransactionStale("somebody else appended after the transaction's snapshot") from None
                raise
        return Appended(ordered.as_given(position for position, _ in found), found[0][1])

    async def newest(self, stream: UUID) -> StoredEvent | None:
        """Read the newest row of a stream, as the transaction sees it."""
        async with self._turn:
            await self._begin()
            found = await self._told(self._database.statements["stream backward"], (stream, -1, (1 << 63) - 1, 1))
        return StoredEvent(*found[0]) if found else None

    async def renew(self, pause: UUID, fence: int, seconds: float) -> bool:
        """Move a lease's end in the transaction, unless a higher fence holds it."""
        async with self._turn:
            await self._begin()
            return bool(await self._guarded(self._database.statements["renew"], (pause, fence, float(seconds))))

    async def vault(self, pauses: Sequence[UUID]) -> Sequence[VaultRow]:
        """Read the data keys of these pauses, as the transaction sees them."""
        async with self._turn:
            await self._begin()
            return [VaultRow(*row) for row in await self._told(self._database.statements["vault"], (list(pauses),))]

    async def close(self) -> None:
        """Leave the connection to the host."""

    # The connection

    async def _begin(self) -> None:
        """Make sure that the connection can take part, and leads to this very ledger."""
        self._require_fit()
        if self._connection in self._known:
            return
        try:
            found = await self._guarded(self._database.statements["identity"], ())
        except StoreUnavailable as gone:
            if str(gone).startswith((SAYS["42P01"], SAYS["3F000"])):
                raise self._elsewhere() from None
            raise
        if [row[0] for row in found] != [self._ledger_id]:
            raise self._elsewhere()
        self._known.add(self._connection)

    def _elsewhere(self) -> InteractionConfigurationError:
        return InteractionConfigurationError(
            f"the connection does not lead to this ledger (schema {self._database.schema}); connect to its database"
        )

    def _require_fit(self) -> None:
        connection = self._connection
        if connection.closed:
            raise StoreUnavailable("the connection of the host's transaction is closed; open another one")
        if connection.pgconn.pipeline_status != PipelineStatus.OFF:
            raise InteractionConfigurationError("the connection is in pipeline mode; leave the pipeline block first")
        status = connection.info.transaction_status
        if status in _NOT_FIT:
            raise InteractionConfigurationError(_NOT_FIT[status])
        if status == TransactionStatus.IDLE and connection.autocommit:
            raise InteractionConfigurationError(
                "the connection is in autocommit, with no transaction to join; open one by `connection.transaction()`"
            )

    # Statements

    async def _guarded(self, statement: bytes, values: Values, rows: Sequence[StoredEvent] = ()) -> list[Row]:
        """Say a statement behind a savepoint; what fails takes nothing else with it."""
        await self._told(b"SAVEPOINT pauseledger")
        try:
            found = await self._told(statement, values, rows, within=self._database.statement_timeout)
        except BaseException:
            if not self._connection.closed:
                await self._told(b"ROLLBACK TO SAVEPOINT pauseledger")
                await self._told(b"RELEASE SAVEPOINT pauseledger")
            raise
        await self._told(b"RELEASE SAVEPOINT pauseledger")
        return found

    async def _sees(self, rows: Sequence[StoredEvent]) -> bool:
        places = ([UUID(str(row.originator_id)) for row in rows], [row.originator_version for row in rows])
        return (await self._told(self._database.compose(_SEEN).as_bytes(None), places)) == [(True,)]

    async def _told(
        self, statement: bytes, values: Values = (), rows: Sequence[StoredEvent] = (), *, within: float | None = None
    ) -> list[Row]:
        """Say a statement, and tell what fails by the name that callers know.

        After `within` seconds the server gives up what waits for another transaction, for the host may have set no
        deadline; None is for what waits for nobody.
        """
        connection = self._connection
        try:
            if isinstance(connection, psycopg.AsyncConnection):
                async with _deadline(connection, within):
                    return await _say(connection, statement, values)
            return await self._run(_say_blocking, connection, statement, values, within)
        except psycopg.Error as error:
            raise self._meaning(error, rows) from None

    def _meaning(self, error: psycopg.Error, rows: Sequence[StoredEvent]) -> Exception:
        if self._connection.closed or error.diag.severity_nonlocalized in {"FATAL", "PANIC"}:
            # The server rolls back what nobody committed.
            return StoreUnavailable(_BROKE)
        if error.sqlstate in _STALE:
            return TransactionStale(_STALE[error.sqlstate])
        if error.sqlstate == "25006":
            return StoreUnavailable(_READ_ONLY)
        return self._database.told(error, broken=False, rows=rows)


async def _say(connection: psycopg.AsyncConnection[Any], statement: bytes, values: Values) -> list[Row]:
    cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
    await cursor.execute(statement, values or None, binary=True)
    return await cursor.fetchall() if cursor.description else []


@asynccontextmanager
async def _deadline(connection: psycopg.AsyncConnection[Any], within: float | None) -> AsyncIterator[None]:
    if within is None:
        yield
        return
    giving_up: list[asyncio.Future[None]] = []

    def give_up() -> None:
        giving_up.append(asyncio.ensure_future(_cancel(connection)))

    late = asyncio.get_running_loop().call_later(within, give_up)
    try:
        yield
    finally:
        late.cancel()
        # It must not reach the next statement.
        await asyncio.gather(*giving_up)


async def _cancel(connection: psycopg.AsyncConnection[Any]) -> None:
    # A connection that cannot be told is broken; its statement says so.
    with suppress(psycopg.Error):
        if psycopg.capabilities.has_cancel_safe():
            await connection.cancel_safe(timeout=SILENCE)
            return
        # Before libpq 17 psycopg would use a thread of the loop's, and the host's own work may hold them all.
        run = Executor(1)
        try:
            await run(connection.cancel)
        finally:
            run.close(wait=False)


def _say_blocking(
    connection: psycopg.Connection[Any], statement: bytes, values: Values, within: float | None
) -> list[Row]:
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    with _timer(connection, within):
        cursor.execute(statement, values or None, binary=True)
    return cursor.fetchall() if cursor.description else []


@contextmanager
def _timer(connection: psycopg.Connection[Any], within: float | None) -> Iterator[None]:
    """Cancel from a thread of its own: what waits may hold all of the ledger's.

    The time a statement waits for one of those does not count: cancelled before it began, it would wait for ever.
    """
    if within is None:
        yield
        return
    late = threading.Timer(within, _cancel_blocking, (connection,))
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()
        # It must not reach the next statement.
        late.join()


def _cancel_blocking(connection: psycopg.Connection[Any]) -> None:
    # A connection that cannot be told is broken; its statement says so.
    with suppress(psycopg.Error):
        connection.cancel_safe(timeout=SILENCE)
