"""What both ways to PostgreSQL share: where it is, its deadlines, the statements, and what its errors mean."""

import logging
import os
import re
import select
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC
from functools import cached_property
from importlib.resources import files
from math import ceil
from typing import Any, Literal
from uuid import UUID

import psycopg
from eventsourcing.persistence import IntegrityError, Notification, StoredEvent
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from ..domain.errors import InteractionConfigurationError, LedgerTooNew, StoreUnavailable
from . import postgres_constraints
from .store import SCHEMA_REVISION, SETTLED, Lease, RightMissing, Snapshot, StreamConflict, VaultRow, named, understood

# What the driver and its pool warn of is told by our errors; a host that gives their loggers a handler hears both.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

Row = tuple[Any, ...]
Values = Sequence[Any] | Mapping[str, Any]

#: What ended one connection has often ended all. So many seconds later the others' goodbyes have arrived, and the pool
#: hands none of them out.
GOODBYES = 0.05

#: How much longer than the server's own deadline a statement may take where nothing is heard of it (seconds).
SILENCE = 5
UNHEARD = "nothing was heard of PostgreSQL any more"

#: What the server says by its state code, https://www.postgresql.org/docs/current/errcodes-appendix.html. All of
#: these roll the statement back before they are told. PLF codes are those of postgres_log.sql.
SAYS = {
    "25006": "the server is read-only, perhaps a standby; connect to the primary",
    "40001": "the server could not serialise the statement; try again",
    "40P01": "the server broke a deadlock; try again",
    "42P01": "the ledger's tables are not there; run `pauseledger migrate`",
    "3F000": "the ledger's schema is not there; run `pauseledger migrate`",
    "42703": "the ledger's tables are of another make; run `pauseledger migrate`",
    "42883": "the ledger's functions are not there; run `pauseledger migrate`",
    "53100": "the server's disk is full",
    "55P03": "a lock was not given in time; try again",
    "57014": "the statement took too long, or was cancelled; try again",
    "57P01": "the server is shutting down",
    "57P03": "the server is starting up or shutting down",
    "PLF01": "the transaction is too old to append in; append in its first 30 seconds",
    "PLF02": "somebody else's exclusive advisory lock has the key of the log's floor; end that session",
    "PLF03": "the log is not read on a standby, which knows no locks; connect to the primary",
    "PLV01": "the vault's guard turned the change down: keys are destroyed, or wrapped anew by the tables' owner",
    "PLF04": "the log is not read in REPEATABLE READ or SERIALIZABLE; read it in READ COMMITTED",
}

_NO_RIGHT = (
    "the database role{} lacks the right to do this. `pauseledger migrate` grants it: by --runtime-role to pause,"
    " answer, go on, seal and keep views; by --eraser-role that, and to destroy keys; by --auditor-role to read (check,"
    " head, prove, export without --seal) and to record what was read. Only the tables' owner migrates, draws an epoch,"
    " rewraps and scrubs"
)

#: What makes the tables and their functions, in order.
TABLE_FILES = ("postgres.sql", "postgres_log.sql", "postgres_sealed.sql", "postgres_vault.sql")
_FUNCTION = re.compile(r"CREATE FUNCTION \{schema\}\.(\w+)\(([^)]*)\)(.*?)AS \$body\$(.*?)\$body\$", re.DOTALL)
_TRIGGER = re.compile(r"CREATE TRIGGER (\w+) .*? ON \{schema\}\.(\w+)")
#: By which names each of the functions finds what it calls, whoever calls it.
SEARCH_PATH = "search_path=pg_catalog, pg_temp"

#: An append of more rows than this goes by arrays; of fewer, each number of rows is a statement of its own.
LISTED = 4
#: An append that waits only briefly waits so long for each of somebody else's transactions (milliseconds).
BRIEFLY = 200

_COLUMNS = "originator_id, originator_version, topic, state"
# Dividing by nought is how a statement of one round trip is called off where the tables are of another make.
_TELLING = f"""RETURNING notification_id, (
    SELECT CASE WHEN schema_revision = {SCHEMA_REVISION} THEN epoch ELSE epoch / (schema_revision - schema_revision) END
    FROM {{ledger}} WHERE one = 1)
"""  # noqa: S608 - constants
_OTHER_MAKE = "22012"
_INSERT_MANY = f"""
INSERT INTO {{events}} ({_COLUMNS})
SELECT {_COLUMNS} FROM unnest(%b::uuid[], %b::bigint[], %b::text[], %b::bytea[]) WITH ORDINALITY
    AS given ({_COLUMNS}, turn)
ORDER BY turn {_TELLING}
"""  # noqa: S608 - constants
# Whoever waits for somebody else's transaction keeps those waiting whose rows go together with its own. The setting is
# made before the first row is written, and ends with the statement's transaction.
_INSERT_BRIEFLY = _INSERT_MANY.replace(
    f"AS given ({_COLUMNS}, turn)",
    f"AS given ({_COLUMNS}, turn), (SELECT set_config('lock_timeout', '{BRIEFLY}ms', true) AS set) AS patience",
)


# Data-modifying parts of one statement are written together, whether or not the rest reads them. Nearly always the
# keys are of one pause, and lists cost the driver several times what values do.
_WITH_KEYS = """
WITH kept AS (
    INSERT INTO {vault} (pause, content_key, person_key, content, person)
    SELECT * FROM unnest(%b::uuid[], %b::uuid[], %b::uuid[], %b::bytea[], %b::bytea[])
)
"""
_WITH_KEY = """
WITH kept AS (
    INSERT INTO {vault} (pause, content_key, person_key, content, person) VALUES (%b, %b, %b, %b, %b)
)
"""


def _insert(rows: int) -> str:
    return f"INSERT INTO {{events}} ({_COLUMNS}) VALUES {', '.join(['(%b, %b, %b, %b)'] * rows)} {_TELLING}"  # noqa: S608 - constants


_STREAM = """
SELECT originator_id, originator_version, topic, state FROM {events}
WHERE originator_id = %b AND originator_version > %b::bigint AND originator_version <= %b::bigint
ORDER BY originator_version LIMIT %b::bigint
"""

# One statement, so that rows and leases are of one moment; the first columns come with every row. The planner has to
# hear that the ledger is one row, or it plans for hundreds.
_LOADED = """
SELECT ledger.epoch, ledger.schema_revision, clock_timestamp(), lease.pause, lease.fence, lease.until,
    events.originator_id, events.originator_version, events.topic, events.state, events.notification_id,
    vault.pause, vault.content_key, vault.person_key, vault.content, vault.person
FROM {ledger} AS ledger
"""
_LOAD = f"""{_LOADED}
LEFT JOIN unnest(%b::uuid[]) AS asked (id) ON true
LEFT JOIN {{lease}} AS lease ON lease.pause = asked.id
LEFT JOIN {{vault}} AS vault ON vault.pause = asked.id
LEFT JOIN {{events}} AS events ON events.originator_id = asked.id
WHERE ledger.one = 1
ORDER BY asked.id, events.originator_version
"""
_LOAD_ONE = f"""{_LOADED}
LEFT JOIN {{lease}} AS lease ON lease.pause = %(stream)b
LEFT JOIN {{vault}} AS vault ON vault.pause = %(stream)b
LEFT JOIN {{events}} AS events ON events.originator_id = %(stream)b
WHERE ledger.one = 1
ORDER BY events.originator_version
"""

# A rule of the tables that does not hold, in words. Without one of them readers could miss what is committed, or rows
# be changed: see postgres_log.sql.
_BROKEN_RULES = """
WITH events AS (SELECT * FROM pg_class WHERE oid = {events_name}::regclass),
expected (name, kind) AS (VALUES
    ('stored_events_floor', 6), ('stored_events_in_turn', 7), ('stored_events_append_only', 58)),
runs (function, trigger) AS (VALUES
    ('take_floor', 'stored_events_floor'), ('in_turn', 'stored_events_in_turn'),
    ('append_only', 'stored_events_append_only'), ('bound', NULL), ('read_log', NULL), ('newest_position', NULL))
SELECT 'the table is temporary or unlogged' FROM events WHERE relpersistence <> 'p'
UNION ALL
SELECT 'the key of streams (stored_events_stream) is not there' WHERE NOT EXISTS (
    SELECT FROM pg_constraint JOIN pg_index ON indexrelid = conindid JOIN events ON conrelid = events.oid
    WHERE conname = 'stored_events_stream' AND contype = 'p' AND indisvalid AND NOT condeferrable)
UNION ALL
SELECT 'positions do not come from their own sequence, one by one: CACHE 1, INCREMENT 1, NO CYCLE, ALWAYS'
WHERE NOT EXISTS (
    SELECT FROM pg_sequence
    JOIN pg_depend ON objid = seqrelid AND classid = 'pg_class'::regclass AND deptype = 'i'
    JOIN pg_attribute ON attrelid = refobjid AND attnum = refobjsubid
    JOIN events ON refobjid = events.oid
    WHERE seqrelid = {positions}::regclass AND seqcache = 1 AND seqincrement = 1 AND NOT seqcycle
        AND attname = 'notification_id' AND attidentity = 'a')
UNION ALL
SELECT format('trigger %%s is not there as it was made, enabled always', expected.name) FROM expected
WHERE NOT EXISTS (
    SELECT FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid JOIN events ON tgrelid = events.oid
    JOIN runs ON runs.trigger = expected.name AND proname = runs.function AND pronamespace = relnamespace
    WHERE tgname = expected.name AND tgtype = kind AND tgenabled = 'A' AND tgqual IS NULL)
UNION ALL
SELECT format('function %%s is not there as it was made, or not the owner''s', runs.function) FROM runs
WHERE NOT EXISTS (
    SELECT FROM pg_proc JOIN events ON pronamespace = relnamespace AND proowner = relowner
    WHERE proname = runs.function AND provolatile = 'v' AND proconfig = ARRAY['search_path=pg_catalog, pg_temp']
        AND (prosecdef OR runs.function IN ('read_log', 'newest_position')))
UNION ALL
SELECT format('trigger %%s is not there as it was made, enabled always', guard.name)
FROM (VALUES ('sealed', 'sealed_append_only', 'append_only', 58),
    ('sealed_tiles', 'sealed_tiles_append_only', 'append_only', 58),
    ('tree_heads', 'tree_heads_append_only', 'append_only', 58),
    ('sealing', 'sealing_append_only', 'append_only', 46),
    ('sealing', 'sealing_forward', 'seal_forward', 19),
    ('vault', 'vault_no_truncate', 'guard_vault', 34),
    ('vault', 'vault_guard', 'guard_vault', 27)) AS guard (guarded, name, function, kind)
WHERE NOT EXISTS (
    SELECT FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid JOIN pg_class AS held ON held.oid = tgrelid
    JOIN events ON events.relnamespace = held.relnamespace AND events.relowner = proowner
    WHERE held.relname = guard.guarded AND tgname = guard.name AND proname = guard.function
        AND pronamespace = held.relnamespace AND tgtype = guard.kind AND tgenabled = 'A' AND tgqual IS NULL)
"""

_SETTLED = (
    "EXISTS (SELECT FROM {events} WHERE originator_id = held.pause AND split_part(topic, '@', 1) IN ("
    + ", ".join(f"'{name}'" for name in SETTLED)
    + "))"
)
_RENEW = f"""
INSERT INTO {{lease}} AS was (pause, fence, until)
SELECT pause, fence, clock_timestamp() + seconds * interval '1 second'
FROM (VALUES (%b::uuid, %b::integer, %b::double precision)) AS held (pause, fence, seconds) WHERE NOT {_SETTLED}
ON CONFLICT (pause) DO UPDATE SET fence = excluded.fence, until = excluded.until WHERE excluded.fence >= was.fence
RETURNING fence
"""  # noqa: S608 - constants
_FORGET_LEASES = f"DELETE FROM {{lease}} AS held WHERE until < clock_timestamp() AND {_SETTLED} RETURNING 1"  # noqa: S608 - constants

_LOG = "SELECT {} FROM {{schema}}.read_log(%b::bigint, %b::bigint, %b::text[], %b::integer, %b::bigint)"
# The rows are locked in the order of their pauses, or two that erase at once could wait for each other for good.
_DESTROY = """
UPDATE {vault} AS held SET KIND = NULL, KIND_destroyed_at = clock_timestamp()
FROM (SELECT pause FROM {vault} WHERE pause = ANY(%b::uuid[]) AND KIND IS NOT NULL ORDER BY pause FOR UPDATE) AS found
WHERE held.pause = found.pause RETURNING held.pause
"""
_KEYS = "SELECT pause, content_key, person_key, content, person FROM {vault}"

_STATEMENTS = {
    **{f"insert {rows}": _insert(rows) for rows in range(1, LISTED + 1)},
    **{f"insert {rows} with keys": _WITH_KEYS + _insert(rows) for rows in range(1, LISTED + 1)},
    "insert many": _INSERT_MANY,
    "insert many with keys": _WITH_KEYS + _INSERT_MANY,
    "insert briefly": _INSERT_BRIEFLY,
    "insert briefly with keys": _WITH_KEYS + _INSERT_BRIEFLY,
    "insert briefly with a key": _WITH_KEY + _INSERT_BRIEFLY,
    **{f"insert {rows} with a key": _WITH_KEY + _insert(rows) for rows in range(1, LISTED + 1)},
    "insert many with a key": _WITH_KEY + _INSERT_MANY,
    "vault": f"{_KEYS} WHERE pause = ANY(%b::uuid[]) ORDER BY pause",
    "vault after": f"{_KEYS} WHERE pause > %b::uuid ORDER BY pause LIMIT %b::bigint",
    "vault first": f"{_KEYS} ORDER BY pause LIMIT %b::bigint",
    "may destroy": """
SELECT current_user, has_column_privilege({vault_name}::regclass, %b::text, 'UPDATE')
    AND has_column_privilege({vault_name}::regclass, %b::text, 'UPDATE')
""",
    "destroy content": _DESTROY.replace("KIND", "content"),
    "destroy person": _DESTROY.replace("KIND", "person"),
    "rewrap": """
UPDATE {vault} SET content = %b::bytea, person = %b::bytea
WHERE pause = %b AND content IS NOT DISTINCT FROM %b::bytea AND person IS NOT DISTINCT FROM %b::bytea RETURNING pause
""",
    "stream": _STREAM,
    "stream backward": _STREAM.replace("ORDER BY originator_version", "ORDER BY originator_version DESC"),
    "log": _LOG.format("*"),
    "fronts": _LOG.format("notification_id, state"),
    "headers": _LOG.format("originator_id::text, originator_version, topic, state, notification_id"),
    "newest position": "SELECT {schema}.newest_position()",
    "load": _LOAD,
    "load one": _LOAD_ONE,
    "renew": _RENEW,
    "forget leases": _FORGET_LEASES,
    "leases": "SELECT pause, fence, until FROM {lease} WHERE pause = ANY(%b::uuid[])",
    "identity": "SELECT ledger_id, identity_key, epoch, schema_revision FROM {ledger}",
    "any wrapped": """
SELECT coalesce(content, person) FROM {vault} WHERE content IS NOT NULL OR person IS NOT NULL LIMIT 1
""",
    "draw epoch": "UPDATE {ledger} SET epoch = (epoch + %b::integer) %% %b::integer RETURNING epoch",
    "record reading": "SELECT {schema}.record_reading(%b::bigint, %b::bytea)",
    "broken rules": _BROKEN_RULES,
    "functions": """
SELECT proname, pg_get_function_identity_arguments(oid), prosrc, prosecdef,
    proconfig = ARRAY[%b] AND proowner = (SELECT relowner FROM pg_class WHERE oid = {events_name}::regclass)
FROM pg_proc WHERE pronamespace = {schema_name}::regnamespace AND proname = ANY(%b::text[])
""",
    "constraints": postgres_constraints.FOUND,
    "triggers and rules": """
SELECT 'trigger', tgname, relname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
WHERE relnamespace = {schema_name}::regnamespace AND relname = ANY(%(tables)b::text[]) AND NOT tgisinternal
UNION ALL
SELECT 'rule', rulename, relname FROM pg_rewrite JOIN pg_class ON pg_class.oid = ev_class
WHERE relnamespace = {schema_name}::regnamespace AND relname = ANY(%(tables)b::text[])
ORDER BY 3, 2
""",
}


class ConnectionLost(StoreUnavailable):
    """The connection broke while it was used. Reads try once more on another one; no caller sees this class."""

    def __init__(self, says: str, *, outcome: Literal["not_started", "unknown"]) -> None:
        super().__init__(says, outcome=outcome)
        self.says = says


class Failures:
    """Why the last connection could not be made; None where it was."""

    def __init__(self) -> None:
        self.last: str | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what becomes of an attempt. What the driver says of one names host, user and database, and no secret."""
        try:
            yield
        except psycopg.Error as error:
            self.last = " ".join(str(error).split())
            raise
        self.last = None


@dataclass(frozen=True)
class Database:
    """One ledger's schema in a database, and how a process reaches it. Times are seconds.

    Attributes:
        target: What a connection is made with.
        statement_timeout: How long the server may work on one statement.
        pool_timeout: How long a call waits for a connection.
        pooled: Whether a pooler in transaction mode stands between.
        failures: Why no connection could be made.
        vault: The table that holds the vault, or the view that tells of it.
    """

    target: Mapping[str, Any] = field(repr=False)
    schema: str
    pool_size: int
    statement_timeout: float
    pool_timeout: float
    pooled: bool = False
    failures: Failures = field(default_factory=Failures, compare=False)
    vault: str = "vault"

    @cached_property
    def names(self) -> dict[str, sql.Composable]:
        """The tables' names, as statements hold them."""
        events = sql.Identifier(self.schema, "stored_events")
        vault = sql.Identifier(self.schema, self.vault)
        positions = sql.Identifier(self.schema, "stored_events_notification_id_seq")
        return {
            "schema": sql.Identifier(self.schema),
            "schema_name": sql.Literal(sql.Identifier(self.schema).as_string(None)),
            "events": events,
            "ledger": sql.Identifier(self.schema, "ledger"),
            "lease": sql.Identifier(self.schema, "lease"),
            "vault": vault,
            "told": sql.Identifier(self.schema, "vault_told"),
            "vault_name": sql.Literal(vault.as_string(None)),
            "events_name": sql.Literal(events.as_string(None)),
            "positions": sql.Literal(positions.as_string(None)),
        }

    def compose(self, statement: str, **names: sql.Composable) -> sql.Composed:
        """Put names into a statement. Every one is a constant of this package; psycopg quotes the identifiers."""
        return sql.SQL(statement).format(**self.names, **names)

    @cached_property
    def statements(self) -> dict[str, bytes]:
        """The statements by their names, ready to be sent."""
        return {name: self.compose(statement).as_bytes(None) for name, statement in _STATEMENTS.items()}

    @cached_property
    def functions(self) -> dict[tuple[str, str], tuple[str, bool]]:
        """The functions as `migrate` makes them, by name and arguments: the body, and whether as SECURITY DEFINER."""
        return {
            (name, " ".join(arguments.split())): (self.compose(body).as_string(None), "SECURITY DEFINER" in how)
            for name, arguments, how, body in _FUNCTION.findall(_made())
        }

    @cached_property
    def triggers(self) -> set[tuple[str, str]]:
        """The triggers that `migrate` makes, and of which table each is."""
        return set(_TRIGGER.findall(_made()))

    @cached_property
    def of_pools(self) -> dict[str, Any]:
        """What a pool is made with."""
        return {
            "kwargs": {
                **self.target,
                "autocommit": True,
                "prepare_threshold": None if self.pooled else 0,
                "failures": self.failures,
            },
            "min_size": 1,
            "max_size": self.pool_size,
            "timeout": self.pool_timeout,
            "open": False,
        }

    @property
    def no_connection(self) -> str:
        """Say that the pool gave none."""
        why = (
            self.failures.last or f"all {self.pool_size} are in use; ask less at once, or raise LedgerSettings.threads"
        )
        return f"PostgreSQL gave no connection within {self.pool_timeout} s: {why}"

    def told(self, error: psycopg.Error, *, broken: bool, rows: Sequence[StoredEvent] = ()) -> Exception:
        """Say what an error means to callers. What the server says may quote the row: only its code is passed on."""
        if broken or error.diag.severity_nonlocalized in {"FATAL", "PANIC"}:
            return _lost(error)
        taken = (self.schema, "stored_events", "stored_events_stream"), (self.schema, "vault", "vault_pause")
        if _constraint(error) in taken:
            return StreamConflict(f"stored already: {named(rows)}")
        return _translated(error, rows, self.target.get("user"))


def _made() -> str:
    return "".join(files(__package__).joinpath(name).read_text("utf-8") for name in TABLE_FILES)


def database(
    dsn: str,
    *,
    schema: str,
    pool_size: int,
    connect_timeout: float,
    statement_timeout: float,
    pool_timeout: float,
    pooled: bool,
) -> Database:
    """Read a connection string.

    Raises:
        InteractionConfigurationError: it cannot be read.
    """
    target = _target(dsn, connect_timeout, statement_timeout, pooled=pooled)
    return Database(target, schema, pool_size, statement_timeout, pool_timeout, pooled)


def insertion(
    rows: Sequence[StoredEvent], keys: Sequence[VaultRow] = (), *, briefly: bool = False
) -> tuple[str, Values]:
    """Name the statement that appends rows, and new keys with them, and give its values.

    `briefly`: it waits no longer than `BRIEFLY` for anybody else's transaction.
    """
    columns = (
        [row.originator_id if isinstance(row.originator_id, UUID) else UUID(row.originator_id) for row in rows],
        [row.originator_version for row in rows],
        [row.topic for row in rows],
        [row.state for row in rows],
    )
    kept: list[Any] = []
    more = ""
    if len(keys) == 1:
        kept, more = list(vault_columns(keys[0])), " with a key"
    elif keys:
        kept, more = [list(column) for column in zip(*map(vault_columns, keys), strict=True)], " with keys"
    if briefly or len(rows) > LISTED:
        return f"insert {'briefly' if briefly else 'many'}{more}", [*kept, *columns]
    return f"insert {len(rows)}{more}", [*kept, *(value for row in zip(*columns, strict=True) for value in row)]


def vault_columns(row: VaultRow) -> tuple[Any, ...]:
    """List what a row of the vault holds, in the order of its columns."""
    return row.pause, row.content_key, row.person_key, row.content, row.person


def loading(streams: Sequence[UUID]) -> tuple[str, Values]:
    """Name the statement that loads streams, and give its values."""
    asked = set(streams)
    return ("load one", {"stream": streams[0]}) if len(asked) == 1 else ("load", [list(asked)])


def loaded(found: Sequence[Row]) -> Snapshot:
    """Make a snapshot of what a load found.

    Raises:
        StoreUnavailable: there is no ledger in the tables, or they are of an older make.
        LedgerTooNew: they are of a newer one.
    """
    if not found:
        raise StoreUnavailable(SAYS["42P01"])
    epoch, revision, now = found[0][:3]
    understood(revision)
    return Snapshot(
        rows=[Notification(row[6], row[7], row[8], row[9], id=row[10]) for row in found if row[6] is not None],
        leases={row[3]: Lease(row[4], row[5].astimezone(UTC)) for row in found if row[3] is not None},
        epoch=epoch,
        now=now.astimezone(UTC),
        keys=list({row[11]: VaultRow(*row[11:16]) for row in found if row[11] is not None}.values()),
    )


def break_off(connection: psycopg.Connection[Row] | psycopg.AsyncConnection[Row]) -> None:
    """End a connection under whoever waits for it; they are told that it broke."""
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


def silent(connection: psycopg.Connection[Row] | psycopg.AsyncConnection[Row]) -> bool:
    """Tell whether an idle connection has nothing to say: one that has was told goodbye, most likely.

    Raises:
        psycopg.Error: it is closed.
    """
    descriptor = connection.fileno()
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return not poll.poll(0)
    return not select.select([descriptor], [], [], 0)[0]


def _target(dsn: str, connect_timeout: float, statement_timeout: float, *, pooled: bool) -> dict[str, Any]:
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
        # Under a stricter default of the database, a reader of the log would miss what was committed meanwhile.
        " -c default_transaction_isolation=read\\ committed"
    )
    # The server's deadline does not help where the network swallows its answer: TCP's own has to.
    network = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
    network |= {"tcp_user_timeout": milliseconds + SILENCE * 1000, "connect_timeout": ceil(connect_timeout)}
    target = {"application_name": "pauseledger", **network, **given, "client_encoding": "UTF8"}
    return target if pooled else {**target, "options": settings}


def _lost(error: psycopg.Error) -> ConnectionLost:
    state = error.sqlstate or ""
    # A server that says why it goes has rolled back. Class 08 is also what a pooler says of a server it lost.
    outcome: Literal["not_started", "unknown"] = "unknown" if state[:2] in {"", "08"} else "not_started"
    return ConnectionLost(SAYS.get(state, "PostgreSQL broke the connection"), outcome=outcome)


def _constraint(error: psycopg.Error) -> tuple[str | None, ...]:
    at = error.diag
    return (at.schema_name, at.table_name, at.constraint_name) if error.sqlstate == "23505" else ()


def _translated(error: psycopg.Error, rows: Sequence[StoredEvent], role: str | None) -> Exception:
    state = error.sqlstate or ""
    if rows and state == _OTHER_MAKE:
        # An open ledger met older tables when it was opened, and they only move on.
        return LedgerTooNew(f"a schema after schema@{SCHEMA_REVISION}")
    if rows and state not in SAYS and state[:2] in {"", "22", "23", "PL"}:
        return IntegrityError(f"turned down by a rule of the table: {named(rows)}")
    if state == "42501":
        return RightMissing(_NO_RIGHT.format(f" {role}" if role else ""))
    if state == "42704":
        return InteractionConfigurationError(
            "a role given to `pauseledger migrate` does not exist; make it by CREATE ROLE ... LOGIN, then migrate again"
        )
    return StoreUnavailable(SAYS.get(state, f"PostgreSQL could not do it: {state or type(error).__name__}"))
