"""The ledger on PostgreSQL, for any number of machines."""

import os
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC
from functools import partial
from importlib.resources import files
from math import inf
from secrets import randbelow, token_bytes
from typing import Any, Literal, Self, TypeVar, cast
from uuid import UUID, uuid4

import psycopg
from eventsourcing.persistence import ApplicationRecorder, Notification, StoredEvent, Subscription
from psycopg import sql
from psycopg_pool import ConnectionPool, PoolTimeout

from ..domain.errors import InteractionConfigurationError, SettingsCorrupt, StoreUnavailable
from .postgres_constraints import CONSTRAINTS
from .postgres_database import (
    GOODBYES,
    SEARCH_PATH,
    SILENCE,
    TABLE_FILES,
    UNHEARD,
    ConnectionLost,
    Failures,
    Row,
    Values,
    database,
    insertion,
    loaded,
    loading,
    silent,
)
from .store import (
    EPOCHS,
    HEADER_BYTES,
    IDENTITY_KEY_BYTES,
    KEY_KINDS,
    SCHEMA_REVISION,
    TABLES,
    Front,
    KeyKind,
    Lease,
    LedgerIdentity,
    LedgerRecorder,
    Snapshot,
    VaultRow,
    known,
    understood,
    wrapper_of,
)
from .views_postgres import make_views

T = TypeVar("T")

_LAST = (1 << 63) - 1

_GRANTS = """
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, INSERT (originator_id, originator_version, topic, state) ON {events} TO {role};
GRANT SELECT ON {ledger}, {schema}.floor_holders TO {role};
GRANT SELECT, INSERT (pause, content_key, person_key, content, person) ON {vault} TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON {lease} TO {role};
GRANT EXECUTE ON FUNCTION {schema}.bound(), {schema}.newest_position(),
    {schema}.read_log(bigint, bigint, text[], integer, bigint) TO {role};
GRANT SELECT, INSERT ON {schema}.sealed, {schema}.sealed_tiles TO {role};
GRANT SELECT, INSERT (size, checkpoint) ON {schema}.tree_heads TO {role};
GRANT SELECT, UPDATE (size, position) ON {schema}.sealing TO {role};
"""

# Of a wrapped key an auditor needs to know that it is there, how long it is, and what wrapped it.
_VAULT_TOLD = """
CREATE OR REPLACE VIEW {told} AS SELECT pause, content_key, person_key, {content}, {person} FROM {vault}
"""
_TOLD_KEY = """
substring({key} FROM 1 FOR 4) || decode(repeat('00', greatest(length({key}) - 4, 0)), 'hex') AS {key}
"""

_READS = """
GRANT USAGE ON SCHEMA {schema}, {views} TO {role};
GRANT SELECT ON ALL TABLES IN SCHEMA {schema}, {views} TO {role};
REVOKE SELECT ON {vault} FROM {role};
GRANT EXECUTE ON FUNCTION {schema}.bound(), {schema}.newest_position(),
    {schema}.read_log(bigint, bigint, text[], integer, bigint), {schema}.record_reading(bigint, bytea) TO {role};
"""

# The one right to change anything that was written; the vault's guard lets it null a key and set its tombstone.
_ERASES = """
GRANT UPDATE (content, content_destroyed_at, person, person_destroyed_at) ON {vault} TO {role};
"""

# Whoever may append in an older ledger may do so after it was brought over.
_WRITERS = """
SELECT DISTINCT rolname FROM pg_attribute, aclexplode(attacl) JOIN pg_roles ON pg_roles.oid = grantee
WHERE attrelid = {events_name}::regclass AND privilege_type = 'INSERT' ORDER BY rolname
"""

# Writers that are under way end first; their rows are then below every floor.
_OUT_OF_1 = """
LOCK TABLE {events} IN ACCESS EXCLUSIVE MODE;
DROP TRIGGER stored_events_one_writer ON {events};
DROP FUNCTION {schema}.one_writer();
"""


@contextmanager
def _once() -> Iterator[None]:
    """Tell a lost connection by the name that callers know, where nothing is tried again."""
    try:
        yield
    except ConnectionLost as lost:
        raise StoreUnavailable(lost.says, outcome=lost.outcome) from None


class _Unheard(Exception):
    """Nothing was heard of the server for as long as a statement may take."""


class _Connection(psycopg.Connection[Row]):
    """One of a pool, that leaves word why it could not be made, and gives a silent server up.

    Attributes:
        patience: How long one exchange with the server may take (seconds).
    """

    patience: float = inf

    @classmethod
    def connect(cls, conninfo: str = "", **kwargs: Any) -> Self:
        with cast("Failures", kwargs.pop("failures")).noted():
            return super().connect(conninfo, **kwargs)

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        # TCP's own deadline helps where nobody acknowledges; a middleman may, and pass nothing on.
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        deadline = time.monotonic() + self.patience
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                # The driver looks up every so often, nothing heard.
                if not ready and time.monotonic() > deadline:
                    self.close()
                    raise _Unheard
                wanted = gen.send(ready)
        except StopIteration as done:
            return cast("T", done.value)


class PostgresRecorder(LedgerRecorder):
    """Rows in a table of one schema. Its time is the server's clock.

    Updates, deletes, truncation and gaps are turned down by triggers, whoever connects; the runtime role has no right
    to them either. A statement that only reads, or that may be repeated without harm, is tried once more when its
    connection proves dead; an append never is. On a hot standby streams are read; an append is `StoreUnavailable`
    there, and so is reading the log.

    Any number write at once. Positions interleave, and the log is told up to a bound below which nothing can turn up
    any more (postgres_log.sql). A transaction of somebody else's that inserts and stays open holds that bound, never
    the writers; the view `floor_holders` in the schema names it.

    Args:
        dsn: A connection string or URL, https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING.
        schema: The schema that holds the tables.
        pool_size: How many connections a process opens at most.
        connect_timeout: How long one attempt to connect may take, in seconds (whole ones, rounded up).
        statement_timeout: How long the server may work on one statement, in seconds; waiting for other writers counts.
        pool_timeout: How long a call waits for a free or new connection, in seconds.
        pooled: Whether a pooler in transaction mode stands between: then nothing is prepared in the server, and no
            parameter is set at the start, which such a pooler would turn down or forget.

    Raises:
        InteractionConfigurationError: the connection string cannot be read.
    """

    apart = True

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "pauseledger",
        pool_size: int = 10,
        connect_timeout: float = 5.0,
        statement_timeout: float = 10.0,
        pool_timeout: float = 5.0,
        pooled: bool = False,
    ) -> None:
        self.database = database(
            dsn,
            schema=schema,
            pool_size=pool_size,
            connect_timeout=connect_timeout,
            statement_timeout=statement_timeout,
            pool_timeout=pool_timeout,
            pooled=pooled,
        )
        self._schema = schema
        self._closed = False
        self._pools: dict[int, ConnectionPool[_Connection]] = {}

    @property
    def views_schema(self) -> str:
        """The schema that holds the tables of the views."""
        return f"{self._schema}_views"

    def append(self, rows: Sequence[StoredEvent], keys: Sequence[VaultRow] = ()) -> Sequence[int]:
        """Write sorted rows in one statement that is its own transaction."""
        statement, values = insertion(rows, keys)
        with _once():
            found = self._execute(statement, values, rows=rows)
        return [position for position, _ in found]

    def record_reading(self, row: StoredEvent) -> None:
        """Append an auditor's reading, by the function that an auditor's role may call."""
        with _once():
            self._execute("record reading", (row.originator_version, row.state), rows=[row])

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
        found = self._repeat("stream backward" if desc else "stream", bounds)
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
        last = _LAST if stop is None else stop
        found = self._repeat("log", (first, last, list(topics) or None, None, limit))
        return [
            Notification(stream, version, topic, state, id=position)
            for stream, version, topic, state, position in found
        ]

    def max_notification_id(self) -> int | None:
        """Read the newest position that a reader may be given, None where there is none."""
        newest: int | None = self._repeat("newest position")[0][0]
        return newest

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> Subscription[ApplicationRecorder]:
        """Refuse: a NOTIFY in every append would make writers wait for each other's flush."""
        raise NotImplementedError("the ledger sends no notifications; poll select_notifications instead")

    def load(self, streams: Sequence[UUID]) -> Snapshot:
        """Read whole streams and what goes with them, in one statement."""
        return loaded(self._repeat(*loading(streams)))

    def headers(self, gt: int, limit: int) -> Sequence[Front]:
        """Read the log after position `gt`, of each state `HEADER_BYTES` at most."""
        return self._repeat("headers", (gt + 1, _LAST, None, HEADER_BYTES, limit))

    def fronts(self, gt: int, limit: int, most_bytes: int) -> Sequence[tuple[int, bytes]]:
        """Read positions and states of the log after position `gt`, of each state `most_bytes` at most."""
        found = self._repeat("fronts", (gt + 1, _LAST, None, most_bytes, limit))
        return cast("list[tuple[int, bytes]]", found)

    def leases(self, pauses: Sequence[UUID]) -> dict[UUID, Lease]:
        """Read the leases of these pauses."""
        found = self._repeat("leases", (list(pauses),))
        return {pause: Lease(fence, until.astimezone(UTC)) for pause, fence, until in found}

    @contextmanager
    def lent(self) -> Iterator[psycopg.Connection[Row]]:
        """Lend a connection (autocommit) to views in the same database; what fails is told as by every method."""
        with self._connection() as connection, self._told(connection):
            yield connection

    def renew(self, pause: UUID, fence: int, seconds: float) -> bool:
        """Move a lease's end, unless a higher fence holds it. Repeating it does no harm."""
        return bool(self._repeat("renew", (pause, fence, float(seconds)), outcome="unknown"))

    def forget_leases(self) -> int:
        """Remove ended leases of settled turns."""
        return len(self._repeat("forget leases"))

    def identity(self) -> LedgerIdentity:
        """Read who this ledger is, and hold its tables against the rules that a log without gaps stands on.

        Raises:
            InteractionConfigurationError: one of the rules was broken since the tables were made.
        """
        held, broken = self.settings(), self.broken_rules()
        if broken:
            raise InteractionConfigurationError(
                f"somebody changed the ledger's tables, and readers could miss facts; put back: {'; '.join(broken)}"
            )
        return held

    def tables(self) -> set[str]:
        """Name the tables that are there."""
        with self.lent() as connection:
            found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (self._schema,))
            return {name for (name,) in found}

    def broken_rules(self) -> Sequence[str]:
        """List what was changed of the tables' own rules."""
        broken = [rule for (rule,) in self._repeat("broken rules")]
        made = self.database.functions
        # A host's own functions may stand beside, some of the same name.
        found = self._repeat("functions", (SEARCH_PATH, sorted({name for name, _ in made})))
        there = {(name, arguments): how for name, arguments, *how in found}
        for named, (body, definer) in made.items():
            its_body, *runs = there.get(named, (body, definer, True))
            if its_body != body:
                broken.append(f"function {named[0]} does not do what it did")
            told = any(named[0] in rule for rule in broken)
            if named not in there and not told:
                broken.append(f"function {named[0]} is gone")
            elif runs != [definer, True] and not told:
                broken.append(f"function {named[0]} does not run as it did: by whose rights, or by which search_path")
        return sorted(broken)

    def altered_tables(self) -> Sequence[str]:
        """List keys and conditions that are gone or are other ones. A ledger is opened over them; check tells."""
        found = set(self._repeat("constraints", {"tables": list(TABLES)}))
        return [
            f"{name} on {table} ({says}) is not there as it was made"
            for table, name, says in CONSTRAINTS
            if (table, name, says) not in found
        ]

    def added_rules(self) -> Sequence[str]:
        """List triggers and rules that the tables were not made with."""
        found = self._repeat("triggers and rules", {"tables": list(TABLES)})
        return [
            f"{kind} {name!r} on {table} is not of this package"
            for kind, name, table in found
            if kind == "rule" or (name, table) not in self.database.triggers
        ]

    def settings(self) -> LedgerIdentity:
        """Read who this ledger is, and nothing of its rules."""
        found = self._repeat("identity")
        if not found:
            raise SettingsCorrupt("row")
        ledger_id, key, epoch, revision = found[0]
        understood(revision)
        try:
            wrapped = self._repeat("any wrapped")
        except InteractionConfigurationError:
            if not self._read_as_told():
                raise
            wrapped = self._repeat("any wrapped")
        return LedgerIdentity(ledger_id, key, epoch, revision, wrapper_of(wrapped[0][0]) if wrapped else None)

    def draw_epoch(self) -> int:
        """Replace the epoch by another random one.

        Raises:
            InteractionConfigurationError: the role is not the tables' owner.
        """
        with _once():
            [(epoch,)] = self._execute("draw epoch", (1 + randbelow(EPOCHS - 1), EPOCHS))
        return int(epoch)

    def vault(self, pauses: Sequence[UUID]) -> Sequence[VaultRow]:
        """Read the data keys of these pauses."""
        return [VaultRow(*row) for row in self._repeat("vault", (list(pauses),))]

    def vault_after(self, pause: UUID | None, limit: int) -> Sequence[VaultRow]:
        """Go through the vault by pause."""
        found = self._repeat("vault first", (limit,)) if pause is None else self._repeat("vault after", (pause, limit))
        return [VaultRow(*row) for row in found]

    def require_eraser(self, kind: KeyKind) -> None:
        """Ask the server whether this role may update the two columns of such a key."""
        [(role, may)] = self._repeat("may destroy", (kind, f"{kind}_destroyed_at"))
        if not may:
            raise InteractionConfigurationError(
                f"the database role {role} may not destroy keys, and nothing was recorded or withdrawn; erase as the "
                "role that `pauseledger migrate --eraser-role NAME` was given, or as the tables' owner"
            )

    def destroy(self, pauses: Sequence[UUID], kind: KeyKind) -> int:
        """Destroy one data key of each of these pauses; what the server keeps of old rows is `scrub`'s business.

        Raises:
            InteractionConfigurationError: the role was not given that right (`migrate --eraser-role`).
        """
        return len(self._repeat(f"destroy {kind}", (list(pauses),), outcome="unknown"))

    def rewrap(self, was: VaultRow, now: VaultRow) -> bool:
        """Replace wrapped keys; the tables' owner alone may."""
        values = (now.content, now.person, was.pause, was.content, was.person)
        with _once():
            return bool(self._execute("rewrap", values))

    def writers_ended(self) -> None:
        """Wait a moment, by a lock that every writer of the vault is in the way of, prepared transactions included.

        Raises:
            InteractionConfigurationError: one goes on, or the role is not the tables' owner.
        """
        with _once(), self._direct() as connection, self._told(connection), connection.transaction():
            # Whoever writes keys meanwhile queues up behind it.
            connection.execute("SET LOCAL lock_timeout = '2s'")
            try:
                connection.execute(self.database.compose("LOCK TABLE {vault} IN SHARE MODE"))
            except psycopg.errors.LockNotAvailable:
                raise InteractionConfigurationError(
                    "a transaction that is still open wrote into the vault, and may bring data keys that no rewrap has"
                    " seen; end it (pg_stat_activity, pg_prepared_xacts), run `pauseledger keys rewrap`, and try again"
                ) from None

    def scrub(self) -> bool:
        """Vacuum the vault: the server then reuses the space of old rows. WAL and backups keep what they hold.

        Raises:
            InteractionConfigurationError: the role is not the tables' owner.
        """
        with _once(), self._direct() as connection, self._told(connection):
            owns = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = {vault_name}::regclass"
            if connection.execute(self.database.compose(owns)).fetchone() != (True,):
                # The server would warn, and vacuum nothing.
                raise InteractionConfigurationError("only the tables' owner vacuums the vault; connect as that role")
            connection.execute(self.database.compose("VACUUM (FREEZE) {vault}"))
            return True

    def migrate(
        self, runtime_role: str | None = None, auditor_role: str | None = None, eraser_role: str | None = None
    ) -> list[str]:
        """Make the tables where they are missing, and give roles that exist what they need.

        The runtime role may read and insert events and keys, seal events, read the ledger's settings, renew leases, and
        write the rows of views. The eraser role may besides destroy keys. An auditor's may read all of it and write
        nothing but that it has read. PUBLIC may do nothing.

        Raises:
            InteractionConfigurationError: a role given does not exist, or the one connected may not make tables.
        """
        with _once(), self._direct() as connection, self._told(connection), connection.transaction():
            # Of several that migrate at once the others wait, as long as it takes, and then find the work done.
            connection.execute("SET LOCAL statement_timeout = 0")
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"pauseledger {self._schema}",)
            )
            done = self._make(connection)
            if make_views(connection, self.views_schema, runtime_role) and not done:
                done.append(f"made the tables of the views in {self.views_schema}")
            if auditor_role is not None:
                self._let_read(connection, auditor_role)
                done.append(f"granted {auditor_role} to read, and to record what it reads")
            if runtime_role is not None:
                self._grant(connection, runtime_role)
                done.append(f"granted {runtime_role} to read and to append")
            if eraser_role is not None:
                make_views(connection, self.views_schema, eraser_role)
                self._grant(connection, eraser_role)
                connection.execute(self.database.compose(_ERASES, role=sql.Identifier(eraser_role)))
                done.append(f"granted {eraser_role} to read, to append and to destroy keys")
            return done

    def _let_read(self, connection: psycopg.Connection[Row], role: str) -> None:
        keys = {kind: sql.SQL(_TOLD_KEY).format(key=sql.Identifier(kind)) for kind in KEY_KINDS}
        connection.execute(self.database.compose(_VAULT_TOLD, **keys))
        names = {"role": sql.Identifier(role), "views": sql.Identifier(self.views_schema)}
        connection.execute(self.database.compose(_READS, **names))

    def _read_as_told(self) -> bool:
        """Read the vault from now on as an auditor's role may; False where that helps nothing."""
        told = self.database.names["told"].as_string(None)
        with self.lent() as connection:
            self.told = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (told,)).fetchone() == (True,)
        self.database = replace(self.database, vault="vault_told")
        return self.told

    def _direct(self) -> psycopg.Connection[Row]:
        try:
            return psycopg.connect(**self.database.target, autocommit=True, prepare_threshold=None)
        except psycopg.OperationalError as error:
            raise StoreUnavailable(f"PostgreSQL cannot be reached: {' '.join(str(error).split())}") from None

    def _make(self, connection: psycopg.Connection[Row]) -> list[str]:
        revision = self._revision(connection)
        if revision == SCHEMA_REVISION:
            return []
        if revision:
            self._bring_over(connection, revision)
            return [f"brought the tables in {self._schema} from schema@{revision} to schema@{SCHEMA_REVISION}"]
        # Whoever may use a schema that is there need not have the right to create one.
        there = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self._schema,)).fetchone()
        if there is None:
            connection.execute(self.database.compose("CREATE SCHEMA {schema}"))
        for name in TABLE_FILES:
            self._run(connection, name)
        connection.execute(
            self.database.compose(
                "INSERT INTO {ledger} (ledger_id, identity_key, epoch, schema_revision) VALUES (%s, %s, %s, %s)"
            ),
            (uuid4(), token_bytes(IDENTITY_KEY_BYTES), randbelow(EPOCHS), SCHEMA_REVISION),
        )
        return [f"made the tables of schema@{SCHEMA_REVISION} in {self._schema}"]

    def _bring_over(self, connection: psycopg.Connection[Row], revision: int) -> None:
        """Bring a ledger of an older revision over; what is stored stays as it is."""
        if revision < 2:  # noqa: PLR2004 - the revisions there were
            connection.execute(self.database.compose(_OUT_OF_1))
            self._run(connection, "postgres_log.sql")
        if revision < 3:  # noqa: PLR2004 - the revisions there were
            self._run(connection, "postgres_sealed.sql")
        self._run(connection, "postgres_vault.sql")
        connection.execute(self.database.compose("UPDATE {ledger} SET schema_revision = %s"), (SCHEMA_REVISION,))
        for (writer,) in connection.execute(self.database.compose(_WRITERS)).fetchall():
            self._grant(connection, writer)

    def _run(self, connection: psycopg.Connection[Row], name: str) -> None:
        connection.execute(self.database.compose(files(__package__).joinpath(name).read_text("utf-8")))

    def _grant(self, connection: psycopg.Connection[Row], role: str) -> None:
        connection.execute(self.database.compose(_GRANTS, role=sql.Identifier(role)))

    def _revision(self, connection: psycopg.Connection[Row]) -> int:
        quoted = self.database.names["ledger"].as_string(connection)
        if connection.execute("SELECT to_regclass(%s)", (quoted,)).fetchone() == (None,):
            return 0
        [(revision,)] = connection.execute(self.database.compose("SELECT schema_revision FROM {ledger}")).fetchall()
        return known(revision)

    def close(self) -> None:
        """Close this process's connections. Calls after that are `StoreUnavailable`."""
        self._closed = True
        pool = self._pools.get(os.getpid())
        if pool is not None:
            pool.close()

    def rest(self) -> None:
        """Close this process's connections until somebody needs one; no call may be under way."""
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            pool.close()

    def _repeat(
        self, statement: str, values: Values = (), *, outcome: Literal["not_started", "unknown"] = "not_started"
    ) -> list[Row]:
        with suppress(ConnectionLost):
            return self._execute(statement, values)
        time.sleep(GOODBYES)
        try:
            return self._execute(statement, values)
        except ConnectionLost:
            raise StoreUnavailable("PostgreSQL broke the connection, twice", outcome=outcome) from None

    def _execute(self, statement: str, values: Values, *, rows: Sequence[StoredEvent] = ()) -> list[Row]:
        with self._connection() as connection, self._told(connection, rows), connection.cursor(binary=True) as cursor:
            cursor.execute(self.database.statements[statement], values)
            return cursor.fetchall()

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Row]]:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        # A pool does not survive a fork. The child must not even drop the parent's: it stays in the dict, untouched.
        make = partial(ConnectionPool[_Connection], connection_class=_Connection, **self.database.of_pools)
        pool = self._pools.get(os.getpid()) or self._pools.setdefault(os.getpid(), make())
        try:
            pool.open()
            connection = self._living(pool)
        except PoolTimeout:
            raise StoreUnavailable(self.database.no_connection) from None
        except psycopg.OperationalError as error:
            raise StoreUnavailable(f"PostgreSQL gave no connection: {type(error).__name__}") from None
        try:
            yield connection
        finally:
            pool.putconn(connection)

    def _living(self, pool: ConnectionPool[_Connection]) -> _Connection:
        # The pool's own check pauses for seconds between dead connections; after a restart all of them are.
        for _ in range(self.database.pool_size):
            connection = pool.getconn()
            connection.patience = SILENCE
            there = _still_there(connection)
            connection.patience = self.database.statement_timeout + SILENCE
            if there:
                return connection
            connection.close()
            pool.putconn(connection)
        return pool.getconn()

    @contextmanager
    def _told(self, connection: psycopg.Connection[Row], rows: Sequence[StoredEvent] = ()) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self.database.told(error, broken=connection.closed, rows=rows) from None
        except _Unheard:
            raise ConnectionLost(UNHEARD, outcome="unknown") from None


def _still_there(connection: psycopg.Connection[Row]) -> bool:
    # Only one that has something to say is worth a round trip.
    with suppress(psycopg.Error, _Unheard):
        if not silent(connection):
            connection.execute("")
        return True
    return False
