"""The ledger on PostgreSQL, for any number of machines."""

import os
import selectors
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC
from importlib.resources import files
from math import ceil
from secrets import randbelow, token_bytes
from typing import Any, Literal
from uuid import UUID, uuid4

import psycopg
from eventsourcing.persistence import ApplicationRecorder, IntegrityError, Notification, StoredEvent, Subscription
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool, PoolTimeout

from ..domain.errors import InteractionConfigurationError, StoreUnavailable
from .store import (
    EPOCHS,
    HEAD_BYTES,
    HEADER_BYTES,
    SCHEMA_REVISION,
    Head,
    Lease,
    LedgerIdentity,
    LedgerRecorder,
    Snapshot,
    StreamConflict,
    known,
    named,
    place,
)
from .views_postgres import make_views

_Row = tuple[Any, ...]
_LAST = (1 << 63) - 1

#: What ended one connection has often ended all. So many seconds later the others' goodbyes have arrived, and the pool
#: hands none of them out.
_GOODBYES = 0.05

#: What the server says by its state code, https://www.postgresql.org/docs/current/errcodes-appendix.html. All of
#: these roll the statement back before they are told.
_SAYS = {
    "25006": "the server is read-only, perhaps a standby; connect to the primary",
    "40001": "the server could not serialise the statement; try again",
    "40P01": "the server broke a deadlock; try again",
    "42P01": "the ledger's tables are not there; run `pauseledger migrate`",
    "3F000": "the ledger's schema is not there; run `pauseledger migrate`",
    "42703": "the ledger's tables are of another make; run `pauseledger migrate`",
    "55P03": "a lock was not given in time; try again",
    "57014": "the statement took too long, or was cancelled; try again",
    "57P01": "the server is shutting down",
    "57P03": "the server is starting up or shutting down",
}

_INSERT = """
INSERT INTO {events} (originator_id, originator_version, topic, state)
SELECT originator_id, originator_version, topic, state
FROM unnest(%b::uuid[], %b::bigint[], %b::text[], %b::bytea[]) WITH ORDINALITY
    AS given (originator_id, originator_version, topic, state, turn)
ORDER BY turn
RETURNING originator_id, originator_version, notification_id
"""

_STREAM = """
SELECT originator_id, originator_version, topic, state FROM {events}
WHERE originator_id = %b AND originator_version > %b::bigint AND originator_version <= %b::bigint
ORDER BY originator_version LIMIT %b::bigint
"""
_BACKWARD = _STREAM.replace("ORDER BY originator_version", "ORDER BY originator_version DESC")

_LOG = """
SELECT originator_id, originator_version, topic, state, notification_id FROM {events}
WHERE notification_id BETWEEN %b::bigint AND %b::bigint AND (%b::text[] IS NULL OR topic = ANY(%b::text[]))
ORDER BY notification_id LIMIT %b::bigint
"""

# One statement, so that rows and leases are of one moment; the first columns come with every row. The planner has to
# hear that the ledger is one row, or it plans for hundreds.
_LOAD = """
SELECT ledger.epoch, ledger.schema_revision, clock_timestamp(), asked.id, lease.fence, lease.until,
    events.originator_version, events.topic, events.state, events.notification_id
FROM {ledger} AS ledger
LEFT JOIN unnest(%b::uuid[]) AS asked (id) ON true
LEFT JOIN {lease} AS lease ON lease.pause = asked.id
LEFT JOIN {events} AS events ON events.originator_id = asked.id
WHERE ledger.one = 1
ORDER BY asked.id, events.originator_version
"""

_HEAD = """
SELECT originator_version, substring(state FROM 1 FOR %b::integer) FROM {events}
WHERE originator_id = %b ORDER BY originator_version DESC LIMIT 1
"""

_HEADERS = """
SELECT originator_id, originator_version, topic, substring(state FROM 1 FOR %b::integer), notification_id FROM {events}
WHERE notification_id > %b::bigint ORDER BY notification_id LIMIT %b::bigint
"""

_RENEW = """
INSERT INTO {lease} AS held (pause, fence, until)
VALUES (%b, %b, clock_timestamp() + %b::double precision * interval '1 second')
ON CONFLICT (pause) DO UPDATE SET fence = excluded.fence, until = excluded.until WHERE excluded.fence >= held.fence
RETURNING fence
"""

_GRANTS = """
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, INSERT (originator_id, originator_version, topic, state) ON {events} TO {role};
GRANT SELECT ON {ledger} TO {role};
GRANT SELECT, INSERT, UPDATE ON {lease} TO {role};
"""


class _ConnectionLost(StoreUnavailable):
    """The connection broke while it was used. Reads try once more on another one; no caller sees this class."""

    def __init__(self, says: str, *, outcome: Literal["not_started", "unknown"]) -> None:
        super().__init__(says, outcome=outcome)
        self.says = says


@contextmanager
def _once() -> Iterator[None]:
    """Tell a lost connection by the name that callers know, where nothing is tried again."""
    try:
        yield
    except _ConnectionLost as lost:
        raise StoreUnavailable(lost.says, outcome=lost.outcome) from None


class PostgresRecorder(LedgerRecorder):
    """Rows in a table of one schema. Its time is the server's clock.

    Updates, deletes, truncation and gaps are turned down by triggers, whoever connects; the runtime role has no right
    to them either. A statement that only reads, or that may be repeated without harm, is tried once more when its
    connection proves dead; an append never is. On a hot standby reads work and an append is `StoreUnavailable`.

    Args:
        dsn: A connection string or URL, https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING.
        schema: The schema that holds the tables.
        pool_size: How many connections a process opens at most.
        connect_timeout: How long one attempt to connect may take, in seconds (whole ones, rounded up).
        statement_timeout: How long the server may work on one statement, in seconds; waiting for other writers counts.
        pool_timeout: How long a call waits for a free or new connection, in seconds.

    Raises:
        InteractionConfigurationError: the connection string cannot be read.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "pauseledger",
        pool_size: int = 10,
        connect_timeout: float = 5.0,
        statement_timeout: float = 10.0,
        pool_timeout: float = 5.0,
    ) -> None:
        self._target = _target(dsn, connect_timeout, statement_timeout)
        self._schema = schema
        self._pool_size = pool_size
        self._pool_timeout = pool_timeout
        self._closed = False
        self._pools: dict[int, ConnectionPool[psycopg.Connection[_Row]]] = {}
        self._names = {
            "schema": sql.Identifier(schema),
            "events": sql.Identifier(schema, "stored_events"),
            "ledger": sql.Identifier(schema, "ledger"),
            "lease": sql.Identifier(schema, "lease"),
        }

    @property
    def views_schema(self) -> str:
        """The schema that holds the tables of the views."""
        return f"{self._schema}_views"

    def append(self, rows: Sequence[StoredEvent]) -> Sequence[int]:
        """Write sorted rows in one statement that is its own transaction."""
        columns = (
            [UUID(str(row.originator_id)) for row in rows],
            [row.originator_version for row in rows],
            [row.topic for row in rows],
            [row.state for row in rows],
        )
        with _once():
            found = self._execute(_INSERT, columns, rows=rows)
        positions = {(str(stream), version): position for stream, version, position in found}
        return [positions[place(row)] for row in rows]

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """Read a stream, or the part of it after version `gt` up to and with `lte`."""
        bounds = (UUID(str(originator_id)), -1 if gt is None else gt, _LAST if lte is None else lte, limit)
        found = self._repeat(_BACKWARD if desc else _STREAM, bounds)
        return [StoredEvent(*row) for row in found]

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Read the log from position `start` up to and with `stop`."""
        first = 0 if start is None else start if inclusive_of_start else start + 1
        among = list(topics) or None
        found = self._repeat(_LOG, (first, _LAST if stop is None else stop, among, among, limit))
        return [
            Notification(stream, version, topic, state, id=position)
            for stream, version, topic, state, position in found
        ]

    def max_notification_id(self) -> int | None:
        """Read the newest position, None where the log is empty."""
        newest: int | None = self._repeat("SELECT max(notification_id) FROM {events}")[0][0]
        return newest

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> Subscription[ApplicationRecorder]:
        """Refuse: a NOTIFY in every append would make writers wait for each other's flush."""
        raise NotImplementedError("the ledger sends no notifications; poll select_notifications instead")

    def load(self, streams: Sequence[UUID]) -> Snapshot:
        """Read whole streams and what goes with them, in one statement."""
        found = self._repeat(_LOAD, (list(set(streams)),))
        if not found:
            raise StoreUnavailable(_SAYS["42P01"])
        epoch, revision, now = found[0][:3]
        known(revision)
        return Snapshot(
            rows=[
                Notification(stream, version, topic, state, id=position)
                for _, _, _, stream, _, _, version, topic, state, position in found
                if version is not None
            ],
            leases={row[3]: Lease(row[4], row[5].astimezone(UTC)) for row in found if row[4] is not None},
            epoch=epoch,
            now=now.astimezone(UTC),
        )

    def head(self, stream: UUID) -> Head | None:
        """Read the newest row's version and digest."""
        found = self._repeat(_HEAD, (HEAD_BYTES, stream))
        return Head(*found[0]) if found else None

    def headers(self, gt: int, limit: int) -> Sequence[Notification]:
        """Read the log after position `gt`, of each state `HEADER_BYTES` at most."""
        found = self._repeat(_HEADERS, (HEADER_BYTES, gt, limit))
        return [
            Notification(stream, version, topic, state, id=position)
            for stream, version, topic, state, position in found
        ]

    def leases(self, pauses: Sequence[UUID]) -> dict[UUID, Lease]:
        """Read the leases of these pauses."""
        found = self._repeat("SELECT pause, fence, until FROM {lease} WHERE pause = ANY(%b::uuid[])", (list(pauses),))
        return {pause: Lease(fence, until.astimezone(UTC)) for pause, fence, until in found}

    @contextmanager
    def lent(self) -> Iterator[psycopg.Connection[_Row]]:
        """Lend a connection (autocommit) to views in the same database; what fails is told as by every method."""
        with self._connection() as connection, self._told(connection):
            yield connection

    def renew(self, pause: UUID, fence: int, seconds: float) -> bool:
        """Move a lease's end, unless a higher fence holds it. Repeating it does no harm."""
        return bool(self._repeat(_RENEW, (pause, fence, float(seconds)), outcome="unknown"))

    def identity(self) -> LedgerIdentity:
        """Read who this ledger is."""
        found = self._repeat("SELECT ledger_id, identity_key, epoch, schema_revision FROM {ledger}")
        if not found:
            raise StoreUnavailable(_SAYS["42P01"])
        ledger_id, key, epoch, revision = found[0]
        return LedgerIdentity(ledger_id, key, epoch, known(revision))

    def draw_epoch(self) -> int:
        """Replace the epoch by another random one.

        Raises:
            InteractionConfigurationError: the role is not the tables' owner.
        """
        statement = "UPDATE {ledger} SET epoch = (epoch + %b::integer) %% %b::integer RETURNING epoch"
        with _once():
            [(epoch,)] = self._execute(statement, (1 + randbelow(EPOCHS - 1), EPOCHS))
        return int(epoch)

    def migrate(self, runtime_role: str | None = None) -> list[str]:
        """Make the tables where they are missing, and give a role that exists what it needs at run time.

        The role may read and insert events, read the ledger's settings, renew leases, and write the rows of views;
        PUBLIC may do nothing.

        Raises:
            InteractionConfigurationError: the role given does not exist, or the one connected may not make tables.
        """
        with _once(), self._direct() as connection, self._told(connection), connection.transaction():
            # Of several that migrate at once the others wait, as long as it takes, and then find the work done.
            connection.execute("SET LOCAL statement_timeout = 0")
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"pauseledger {self._schema}",)
            )
            done = [f"made the tables of schema@{SCHEMA_REVISION} in {self._schema}"] if self._make(connection) else []
            if make_views(connection, self.views_schema, runtime_role) and not done:
                done.append(f"made the tables of the views in {self.views_schema}")
            if runtime_role is not None:
                connection.execute(self._compose(_GRANTS, role=sql.Identifier(runtime_role)))
                done.append(f"granted {runtime_role} to read and to append")
            return done

    def _direct(self) -> psycopg.Connection[_Row]:
        try:
            return psycopg.connect(**self._target, autocommit=True)
        except psycopg.OperationalError as error:
            raise StoreUnavailable(f"PostgreSQL cannot be reached: {str(error).strip()}") from None

    def _make(self, connection: psycopg.Connection[_Row]) -> bool:
        if self._revision(connection):
            return False
        # Whoever may use a schema that is there need not have the right to create one.
        there = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self._schema,)).fetchone()
        if there is None:
            connection.execute(self._compose("CREATE SCHEMA {schema}"))
        connection.execute(self._compose(files(__package__).joinpath("postgres.sql").read_text("utf-8")))
        connection.execute(
            self._compose(
                "INSERT INTO {ledger} (ledger_id, identity_key, epoch, schema_revision) VALUES (%s, %s, %s, %s)"
            ),
            (uuid4(), token_bytes(32), randbelow(EPOCHS), SCHEMA_REVISION),
        )
        return True

    def _revision(self, connection: psycopg.Connection[_Row]) -> int:
        quoted = self._names["ledger"].as_string(connection)
        if connection.execute("SELECT to_regclass(%s)", (quoted,)).fetchone() == (None,):
            return 0
        [(revision,)] = connection.execute(self._compose("SELECT schema_revision FROM {ledger}")).fetchall()
        return known(revision)

    def close(self) -> None:
        """Close this process's connections. Calls after that are `StoreUnavailable`."""
        self._closed = True
        pool = self._pools.get(os.getpid())
        if pool is not None:
            pool.close()

    def _repeat(
        self,
        statement: str,
        values: Sequence[Any] = (),
        *,
        outcome: Literal["not_started", "unknown"] = "not_started",
    ) -> list[_Row]:
        with suppress(_ConnectionLost):
            return self._execute(statement, values)
        time.sleep(_GOODBYES)
        try:
            return self._execute(statement, values)
        except _ConnectionLost:
            raise StoreUnavailable("PostgreSQL broke the connection, twice", outcome=outcome) from None

    def _execute(self, statement: str, values: Sequence[Any], *, rows: Sequence[StoredEvent] = ()) -> list[_Row]:
        with self._connection() as connection, self._told(connection, rows), connection.cursor(binary=True) as cursor:
            cursor.execute(self._compose(statement), values)
            return cursor.fetchall()

    def _compose(self, statement: str, **names: sql.Composable) -> sql.Composed:
        # Every statement is a constant of this package; only identifiers are put in, and psycopg quotes them.
        return sql.SQL(statement).format(**self._names, **names)

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[_Row]]:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        # A pool does not survive a fork. The child must not even drop the parent's: it stays in the dict, untouched.
        pool = self._pools.get(os.getpid()) or self._pools.setdefault(os.getpid(), self._new_pool())
        try:
            pool.open()
            connection = self._living(pool)
        except PoolTimeout:
            raise StoreUnavailable(
                f"PostgreSQL gave no connection within {self._pool_timeout} s; the log of psycopg.pool says why"
            ) from None
        except psycopg.OperationalError as error:
            raise StoreUnavailable(f"PostgreSQL gave no connection: {type(error).__name__}") from None
        try:
            yield connection
        finally:
            pool.putconn(connection)

    def _living(self, pool: ConnectionPool[psycopg.Connection[_Row]]) -> psycopg.Connection[_Row]:
        # The pool's own check pauses for seconds between dead connections; after a restart all of them are.
        for _ in range(self._pool_size):
            connection = pool.getconn()
            if _still_there(connection):
                return connection
            connection.close()
            pool.putconn(connection)
        return pool.getconn()

    @contextmanager
    def _told(self, connection: psycopg.Connection[_Row], rows: Sequence[StoredEvent] = ()) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            # What the server says may quote the row: nothing of it is passed on but its code.
            if _broken(error, connection):
                raise _lost(error) from None
            if _constraint(error) == (self._schema, "stored_events", "stored_events_stream"):
                raise StreamConflict(f"stored already: {named(rows)}") from None
            raise _translated(error, rows) from None

    def _new_pool(self) -> ConnectionPool[psycopg.Connection[_Row]]:
        return ConnectionPool(
            kwargs={**self._target, "autocommit": True, "prepare_threshold": 0},
            min_size=1,
            max_size=self._pool_size,
            timeout=self._pool_timeout,
            open=False,
        )


def _target(dsn: str, connect_timeout: float, statement_timeout: float) -> dict[str, Any]:
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # What the driver says quotes the string, password included.
        raise InteractionConfigurationError("the connection string of PostgreSQL cannot be read") from None
    milliseconds = ceil(statement_timeout * 1000)
    settings = (
        f"{given.get('options') or ''} -c statement_timeout={milliseconds} -c TimeZone=UTC"
        # Every statement here goes by an index, whatever it is given: plan it once, not anew for each call (a load is
        # 40 % faster), and never for the small table it was at first.
        " -c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c jit=off"
        # Under a stricter default of the database, a writer that waited would not see what it waited for.
        " -c default_transaction_isolation=read\\ committed"
    )
    # The server's deadline does not help where the network swallows its answer: TCP's own has to.
    network = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
    network |= {"tcp_user_timeout": milliseconds + 5000, "connect_timeout": ceil(connect_timeout)}
    return {"application_name": "pauseledger", **network, **given, "client_encoding": "UTF8", "options": settings}


def _still_there(connection: psycopg.Connection[_Row]) -> bool:
    # An idle connection has nothing to read unless the server said goodbye; only then is it worth a round trip.
    with suppress(psycopg.Error), selectors.DefaultSelector() as selector:
        selector.register(connection.fileno(), selectors.EVENT_READ)
        if selector.select(0):
            connection.execute("")
        return True
    return False


def _broken(error: psycopg.Error, connection: psycopg.Connection[_Row]) -> bool:
    return connection.closed or error.diag.severity_nonlocalized in {"FATAL", "PANIC"}


def _lost(error: psycopg.Error) -> _ConnectionLost:
    state = error.sqlstate or ""
    # A server that says why it goes has rolled back. Class 08 is also what a pooler says of a server it lost.
    outcome: Literal["not_started", "unknown"] = "unknown" if state[:2] in {"", "08"} else "not_started"
    return _ConnectionLost(_SAYS.get(state, "PostgreSQL broke the connection"), outcome=outcome)


def _constraint(error: psycopg.Error) -> tuple[str | None, ...]:
    at = error.diag
    return (at.schema_name, at.table_name, at.constraint_name) if error.sqlstate == "23505" else ()


def _translated(error: psycopg.Error, rows: Sequence[StoredEvent]) -> Exception:
    state = error.sqlstate or ""
    if rows and state[:2] in {"", "22", "23", "PL"}:
        return IntegrityError(f"turned down by a rule of the table: {named(rows)}")
    if state == "42501":
        return InteractionConfigurationError(
            "the database role lacks the right: `pauseledger migrate` grants a runtime role what it needs, and only the"
            " tables' owner makes them or draws an epoch"
        )
    if state == "42704":
        return InteractionConfigurationError("the runtime role does not exist; create it first")
    return StoreUnavailable(_SAYS.get(state, f"PostgreSQL could not do it: {state or type(error).__name__}"))
