"""The ledger in one SQLite file, for one machine and any number of its processes."""

import os
import random
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from json import dumps
from pathlib import Path
from secrets import randbelow, token_bytes
from threading import Lock
from typing import Any
from uuid import UUID, uuid4
from weakref import WeakSet

try:
    import fcntl
except ImportError:  # Windows: its writers take turns by SQLite's lock alone.
    fcntl = None  # type: ignore[assignment]

from eventsourcing.persistence import ApplicationRecorder, IntegrityError, Notification, StoredEvent, Subscription

from ..domain.errors import InteractionConfigurationError, SettingsCorrupt, StoreUnavailable
from .store import (
    EPOCHS,
    HEADER_BYTES,
    IDENTITY_KEY_BYTES,
    NO_STREAM,
    SCHEMA_REVISION,
    SETTLED,
    TABLES,
    Front,
    KeyKind,
    Lease,
    LedgerIdentity,
    LedgerRecorder,
    Snapshot,
    StreamConflict,
    VaultRow,
    known,
    named,
    understood,
    wrapper_of,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: What the trigger says where the stream's own key (originator_id, originator_version) is taken. It speaks before
#: the UNIQUE constraint can, because INSERT OR REPLACE would pass that one by.
_TAKEN = "pauseledger: the stream has that version"

#: One writer at a time in a process: SQLite lets its waiters sleep, so that threads would starve each other.
#: By process too: a fork copies a lock that another thread held, and nobody would ever free the copy.
_TURNS: dict[tuple[int, str], Lock] = {}

#: How often a writer looks whether it is its turn (seconds, at most): SQLite's own waiting sleeps for up to 100 ms, and
#: lets whoever comes next go first.
_LOOK, _GLANCE = 0.001, 0.0002

_OPEN: "WeakSet[SQLiteRecorder]" = WeakSet()


def _close_idle() -> None:
    for recorder in tuple(_OPEN):
        recorder.close_idle()


# A connection carried into a child believes that it holds file locks that only the parent holds, and the child's
# writes can then vanish with a WAL file that the parent removes (https://sqlite.org/howtocorrupt.html, 2.6).
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_close_idle)


class SQLiteRecorder(LedgerRecorder):
    """Rows in a file in WAL mode; a commit is on the disk before it is told (synchronous=FULL).

    Its time is the host's clock. Updates, deletes, replacements and gaps are turned down by triggers, whoever
    connects; nothing in SQLite can keep a program that may write the file from dropping a trigger or a table. A process
    may fork while no other thread is inside a recorder.

    A file that is moved, removed or replaced under an open ledger is `StoreUnavailable`, until it is back.

    Processes take turns: whoever writes next holds a lock on an empty file beside (the path and `-turn`) until the one
    before is done, so that nobody who has just written can come first again.

    Args:
        path: The file. With `create`, it (mode 0600), its missing folders (0700) and its tables are made on first use.
        busy_timeout: How long to wait for other writers, in seconds: once for those of this process, once for others.
        create: Whether to make what is missing; without it that is `StoreUnavailable`.
    """

    def __init__(self, path: str | Path, *, busy_timeout: float = 5.0, create: bool = True) -> None:
        self._path = Path(os.path.realpath(path))
        self._busy_timeout = busy_timeout
        self._create = create
        self._closed = False
        self._file: tuple[int, int] | None = None
        self._idle: list[sqlite3.Connection] = []
        self._idle_writers: list[sqlite3.Connection] = []
        _OPEN.add(self)

    def append(self, rows: Sequence[StoredEvent], keys: Sequence[VaultRow] = ()) -> Sequence[int]:
        """Write sorted rows in one transaction."""
        with self._writing() as connection:
            known(connection.execute("SELECT schema_revision FROM ledger").fetchone()[0])
            positions = [self._insert(connection, row) for row in rows]
            for row in keys:
                self._keep(connection, row)
            return positions

    @staticmethod
    def _keep(connection: sqlite3.Connection, row: VaultRow) -> None:
        statement = (
            "INSERT INTO vault (pause, content_key, person_key, content, person, made_at) VALUES (?, ?, ?, ?, ?, ?)"
        )
        named_by = (row.pause.hex, row.content_key.hex, row.person_key.hex)
        try:
            connection.execute(statement, (*named_by, row.content, row.person, time.time_ns() // 1000))
        except sqlite3.IntegrityError:
            taken = True
        else:
            return
        if taken:
            raise StreamConflict(f"pause {row.pause} has keys already")

    @staticmethod
    def _insert(connection: sqlite3.Connection, row: StoredEvent) -> int:
        statement = "INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES (?, ?, ?, ?)"
        values = (_text(row.originator_id), row.originator_version, row.topic, row.state)
        try:
            return connection.execute(statement, values).lastrowid or 0
        except sqlite3.IntegrityError as error:
            taken = str(error) == _TAKEN
        if taken:
            raise StreamConflict(f"stored already: {named([row])}")
        raise IntegrityError(f"turned down by a rule of the table: {named([row])}")

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
        order = "DESC" if desc else "ASC"
        statement = (
            f"{_ROWS} WHERE originator_id = ? AND originator_version > ? AND originator_version <= ?"
            f" ORDER BY originator_version {order} LIMIT ?"
        )
        bounds = (-1 if gt is None else gt, _LAST if lte is None else lte, -1 if limit is None else limit)
        with self._connection() as connection:
            found = connection.execute(statement, (_text(originator_id), *bounds)).fetchall()
        rows = [row_of(*row) for row in found]
        return [StoredEvent(row.originator_id, row.originator_version, row.topic, row.state) for row in rows]

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
        chosen = "AND topic IN (SELECT value FROM json_each(?))" if topics else "AND ? = '[]'"
        statement = f"{_ROWS} WHERE rowid BETWEEN ? AND ? {chosen} ORDER BY rowid LIMIT ?"
        values = (first, _LAST if stop is None else stop, dumps(list(topics)), limit)
        with self._connection() as connection:
            return _notifications(fetched(connection, statement, values))

    def max_notification_id(self) -> int | None:
        """Read the newest position, None where the log is empty."""
        with self._connection() as connection:
            newest: int | None = connection.execute("SELECT max(rowid) FROM stored_events").fetchone()[0]
            return newest

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> Subscription[ApplicationRecorder]:
        """Refuse: a file cannot call anybody."""
        raise NotImplementedError("a SQLite file tells nobody of new rows; poll select_notifications instead")

    def load(self, streams: Sequence[UUID]) -> Snapshot:
        """Read whole streams and what goes with them, in one read transaction."""
        asked = (dumps([stream.hex for stream in streams]),)
        among = "IN (SELECT value FROM json_each(?))"
        with self._connection() as connection:
            connection.execute("BEGIN")
            epoch, revision = connection.execute("SELECT epoch, schema_revision FROM ledger").fetchone()
            understood(revision)
            rows = fetched(
                connection, f"{_ROWS} WHERE originator_id {among} ORDER BY originator_id, originator_version", asked
            )
            leases = connection.execute(f"SELECT pause, fence, until FROM lease WHERE pause {among}", asked)  # noqa: S608 - constants
            keys = fetched(connection, _KEYS_OF, asked)
            try:
                return Snapshot(
                    rows=_notifications(rows),
                    leases={UUID(pause): Lease(fence, _time(until)) for pause, fence, until in leases},
                    epoch=epoch,
                    now=datetime.now(UTC),
                    keys=_vault_rows(keys),
                )
            except (OverflowError, TypeError, ValueError):
                pass
        # Raised out here, so that no traceback drags along what the row holds.
        raise StoreUnavailable("a lease, or a row of the vault, is not what was written; see `pauseledger check`")

    def headers(self, gt: int, limit: int) -> Sequence[Front]:
        """Read the log after position `gt`, of each state `HEADER_BYTES` at most."""
        statement = (
            "SELECT originator_id, originator_version, topic, substr(state, 1, ?), rowid FROM stored_events"
            " WHERE rowid > ? ORDER BY rowid LIMIT ?"
        )
        with self._connection() as connection:
            return fetched(connection, statement, (HEADER_BYTES, gt, limit))

    def leases(self, pauses: Sequence[UUID]) -> dict[UUID, Lease]:
        """Read the leases of these pauses."""
        statement = "SELECT pause, fence, until FROM lease WHERE pause IN (SELECT value FROM json_each(?))"
        with self._connection() as connection:
            found = connection.execute(statement, (dumps([pause.hex for pause in pauses]),)).fetchall()
        return {UUID(pause): Lease(fence, _time(until)) for pause, fence, until in found}

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """Lend a connection to read with, to views in the same file; what fails is told as by every method."""
        return self._connection()

    def writing(self) -> AbstractContextManager[sqlite3.Connection]:
        """Lend a connection inside a write transaction, which commits in the end."""
        return self._writing()

    def renew(self, pause: UUID, fence: int, seconds: float) -> bool:
        """Move a lease's end, unless a higher fence holds it."""
        until = time.time_ns() // 1000 + int(seconds * 1_000_000)
        statement = (
            f"INSERT INTO lease SELECT :pause, :fence, :until WHERE NOT {_SETTLED.format(':pause')}"
            " ON CONFLICT (pause) DO UPDATE"
            " SET fence = excluded.fence, until = excluded.until WHERE excluded.fence >= lease.fence"
        )
        with self._writing() as connection:
            renewal = {"pause": pause.hex, "fence": fence, "until": until}
            return connection.execute(statement, renewal).rowcount > 0

    def forget_leases(self) -> int:
        """Remove ended leases of settled turns."""
        over = f"FROM lease WHERE until < ? AND {_SETTLED.format('lease.pause')}"
        now = (time.time_ns() // 1000,)
        with self._connection() as connection:
            # Most of the time there is nothing to do, and no turn to write to wait for.
            if connection.execute(f"SELECT 1 {over} LIMIT 1", now).fetchone() is None:
                return 0
        with self._writing() as connection:
            return connection.execute(f"DELETE {over}", now).rowcount

    def identity(self) -> LedgerIdentity:
        """Read who this ledger is."""
        with self._connection() as connection:
            [(ledger_id, key, epoch, revision)] = fetched(
                connection, "SELECT ledger_id, identity_key, epoch, schema_revision FROM ledger", ()
            )
            understood(revision)
            wrapped = connection.execute(
                "SELECT CASE typeof(content) WHEN 'blob' THEN content ELSE person END FROM vault"
                " WHERE typeof(content) = 'blob' OR typeof(person) = 'blob' LIMIT 1"
            ).fetchone()
        if not isinstance(key, bytes) or len(key) != IDENTITY_KEY_BYTES:
            raise SettingsCorrupt("identity key")
        if not isinstance(epoch, int) or not 0 <= epoch < EPOCHS:
            raise SettingsCorrupt("epoch")
        stream = _stream(ledger_id)
        if stream == NO_STREAM:
            raise SettingsCorrupt("id")
        return LedgerIdentity(stream, key, epoch, revision, wrapper_of(wrapped[0]) if wrapped else None)

    def tables(self) -> set[str]:
        """Name the tables that are there, and make none."""
        with self._told(), closing(self._connect()) as connection:
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def broken_rules(self) -> Sequence[str]:
        """List the triggers that are gone, or not as they were made."""
        with self._connection() as connection:
            there = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall())
        made = _triggers().items()
        gone = [f"trigger {name} is gone" for name, _ in made if name not in there]
        return gone + [
            f"trigger {name} does not do what it did" for name, text in made if there.get(name, text) != text
        ]

    def altered_tables(self) -> Sequence[str]:
        """List tables of other columns, keys or conditions than they were made with."""
        with self._connection() as connection:
            there = dict(fetched(connection, "SELECT name, sql FROM sqlite_master WHERE type = 'table'", ()))
        return [
            f"table {name} is not as it was made, in its columns, keys or conditions"
            for name, text in _tables().items()
            if there.get(name) != text
        ]

    def added_rules(self) -> Sequence[str]:
        """List triggers that the tables were not made with."""
        statement = (
            "SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger'"
            " AND tbl_name COLLATE NOCASE IN (SELECT value FROM json_each(?)) ORDER BY tbl_name, name"
        )
        with self._connection() as connection:
            found = fetched(connection, statement, (dumps(TABLES),))
        return [
            f"trigger {name!r} on {table} is not of this package" for name, table in found if name not in _triggers()
        ]

    def epoch(self) -> int:
        """Read the ledger's epoch alone."""
        with self._connection() as connection:
            [(epoch, revision)] = connection.execute("SELECT epoch, schema_revision FROM ledger").fetchall()
        understood(revision)
        return int(epoch)

    def draw_epoch(self) -> int:
        """Replace the epoch by another random one."""
        statement = "UPDATE ledger SET epoch = (epoch + ?) % ? RETURNING epoch"
        with self._writing() as connection:
            [(epoch,)] = connection.execute(statement, (1 + randbelow(EPOCHS - 1), EPOCHS)).fetchall()
            return int(epoch)

    def migrate(self) -> list[str]:
        """Make the file and the tables where they are missing; bring older tables over."""
        with self._told(), self._turn():
            self._make_file()
            self._require_room()
            connection = self._connect()
            try:
                return _make_tables(connection)
            finally:
                connection.close()

    def vault(self, pauses: Sequence[UUID]) -> Sequence[VaultRow]:
        """Read the data keys of these pauses."""
        asked = (dumps([pause.hex for pause in pauses]),)
        with self._connection() as connection:
            return _vault_rows(fetched(connection, _KEYS_OF, asked))

    def vault_after(self, pause: UUID | None, limit: int) -> Sequence[VaultRow]:
        """Go through the vault by pause."""
        after = "" if pause is None else pause.hex
        with self._connection() as connection:
            return _vault_rows(fetched(connection, f"{_KEYS} WHERE pause > ? ORDER BY pause LIMIT ?", (after, limit)))

    def destroy(self, pauses: Sequence[UUID], kind: KeyKind) -> int:
        """Destroy one data key of each of these pauses, overwritten in the file; `scrub` empties the log beside it."""
        statement = (
            f"UPDATE vault SET {kind} = NULL, {kind}_destroyed_at = ?"  # noqa: S608 - one of two constants
            f" WHERE {kind} IS NOT NULL AND pause IN (SELECT value FROM json_each(?))"
        )
        values = (time.time_ns() // 1000, dumps([pause.hex for pause in pauses]))
        with self._writing() as connection:
            return connection.execute(statement, values).rowcount

    def rewrap(self, was: VaultRow, now: VaultRow) -> bool:
        """Replace wrapped keys."""
        statement = "UPDATE vault SET content = ?, person = ? WHERE pause = ? AND content IS ? AND person IS ?"
        with self._writing() as connection:
            values = (now.content, now.person, was.pause.hex, was.content, was.person)
            return connection.execute(statement, values).rowcount > 0

    def writers_ended(self) -> None:
        """Wait for the turn to write: whoever wrote before has ended by then."""
        with self._writing():
            pass

    def scrub(self) -> bool:
        """Bring all that was written into the file, and empty the log beside it; False where readers hold it."""
        with self._turn(), self._connection(self._idle_writers) as connection:
            deadline = time.monotonic() + self._busy_timeout
            while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                if time.monotonic() > deadline:
                    return False
                time.sleep(_LOOK)
            return True

    def close(self) -> None:
        """Close every connection; one in use closes when its call is over. Calls after that are `StoreUnavailable`."""
        self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections that nobody uses; the next call opens one."""
        for idle in (self._idle, self._idle_writers):
            while idle:
                # Another thread may have taken the last one meanwhile.
                with suppress(IndexError):
                    idle.pop().close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._turn(), self._connection(self._idle_writers) as connection:
            self._begin(connection)
            yield connection
            self._require_file()
            _commit(connection)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        turn = _TURNS.setdefault((os.getpid(), str(self._path)), Lock())
        if not turn.acquire(timeout=self._busy_timeout):
            raise StoreUnavailable("other writers of this process kept the SQLite file busy")
        try:
            yield
        finally:
            turn.release()

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Begin to write as soon as whoever is before in the queue of processes has ended."""
        deadline = time.monotonic() + self._busy_timeout
        with self._next(deadline):
            while True:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                        raise
                    time.sleep(_GLANCE)
                else:
                    return

    @contextmanager
    def _next(self, deadline: float) -> Iterator[None]:
        """Be the process that writes next. It is a matter of order alone: where it cannot be had, SQLite decides."""
        if fcntl is None:
            yield
            return
        try:
            # Opened anew each time: a descriptor carried into a child would hold the parent's place.
            file = os.open(f"{self._path}-turn", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            yield
            return
        try:
            while time.monotonic() < deadline:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    time.sleep(random.uniform(_GLANCE, _LOOK))  # noqa: S311 - no secret: nobody shall look in step
                else:
                    break
            yield
        finally:
            os.close(file)

    @contextmanager
    def _connection(self, idle: list[sqlite3.Connection] | None = None) -> Iterator[sqlite3.Connection]:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        shelf = self._idle if idle is None else idle
        self._require_file()
        with self._told():
            connection = self._take(shelf)
            self._file = self._file or self._at_path()
            try:
                yield connection
            except sqlite3.Error:
                connection.close()
                raise
            finally:
                self._give(shelf, connection)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            name = _name(error)
            raise StoreUnavailable(f"SQLite cannot use {self._path}: {name}{self._remedy(name)}") from None

    def _remedy(self, name: str) -> str:
        kind = name
        if name.startswith("SQLITE_CANTOPEN") and self._path.is_file() and not os.access(self._path.parent, os.W_OK):
            # So it says of a disk or a folder where the files beside cannot be made.
            kind = "SQLITE_READONLY"
        return _remedy(kind)

    def _require_file(self) -> None:
        """Take nothing into a file that nobody finds any more, and make no second one in its place.

        Raises:
            StoreUnavailable: what is at the path is not the file that was opened.
        """
        if self._file is not None and self._at_path() != self._file:
            raise StoreUnavailable(
                "the SQLite file was moved, removed or replaced while it was open; put it back, or open the ledger anew"
            )

    @property
    def _uri(self) -> str:
        return f"{self._path.as_uri()}?mode=rw"

    def _at_path(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _take(self, idle: list[sqlite3.Connection]) -> sqlite3.Connection:
        try:
            return idle.pop()
        except IndexError:
            connection = self._open()
        if idle is self._idle_writers:
            # `_begin` waits in its own way.
            connection.execute("PRAGMA busy_timeout = 0")
        return connection

    def _give(self, idle: list[sqlite3.Connection], connection: sqlite3.Connection) -> None:
        try:
            connection.rollback()
        except sqlite3.Error:
            connection.close()
            return
        idle.append(connection)
        if self._closed:
            self.close_idle()

    def _open(self) -> sqlite3.Connection:
        if self._create:
            self._make_file()
            self._require_room()
        elif self._file is None:
            self._require_tables()
        connection = self._connect()
        try:
            if not _revision(connection):
                _make_tables(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _require_tables(self) -> None:
        """Change nothing, not even the mode of its log, of a file that may be somebody else's."""
        with closing(sqlite3.connect(self._uri, uri=True, timeout=self._busy_timeout)) as connection:
            if not _revision(connection):
                raise StoreUnavailable(
                    f"there is no ledger in {self._path}; name the file you mean, or make one by `pauseledger migrate`"
                )

    def _require_room(self) -> None:
        """Change nothing, likewise, of a file in which somebody else's tables bear the names of a ledger's.

        Raises:
            InteractionConfigurationError: they do.
        """
        if self._file is not None:
            return
        with closing(sqlite3.connect(self._uri, uri=True, timeout=self._busy_timeout)) as connection:
            # In one statement: of several first starts another may make the tables in between.
            there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        taken = sorted(there & _tables().keys())
        if taken and "ledger" not in there:
            raise InteractionConfigurationError(
                f"{self._path} is another program's: it holds {', '.join(taken)}, as eventsourcing's own applications"
                " do, and no ledger; give the ledger a file of its own"
            )

    def _make_file(self) -> None:
        try:
            for folder in reversed(self._path.parents):
                if not folder.exists():
                    folder.mkdir(mode=0o700, exist_ok=True)
            # Only a file that is not there: closing a descriptor of one that is drops every lock this process has on
            # it (POSIX), and another process would take the log away under the connections that are open.
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            return
        except OSError as error:
            raise StoreUnavailable(
                f"the SQLite file {self._path} cannot be made: {error.strerror}; check its folder's owner and disk"
            ) from None

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._uri,
            uri=True,
            timeout=self._busy_timeout,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._enter_wal(connection)
            connection.execute("PRAGMA synchronous = FULL")
            # What is overwritten or given up is filled with zeros, or a destroyed key would stay in the file.
            connection.execute("PRAGMA secure_delete = ON")
        except BaseException:
            connection.close()
            raise
        return connection

    def _enter_wal(self, connection: sqlite3.Connection) -> None:
        # Of several first starts one changes the mode, and SQLite tells the others "locked" without waiting.
        deadline = time.monotonic() + self._busy_timeout
        while True:
            try:
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                break
        if mode != "wal":
            raise StoreUnavailable(
                f"the SQLite file {self._path} cannot be kept in WAL mode (it stays in {mode}); keep it on a local disk"
            )


_LAST = (1 << 63) - 1
#: What to do, by the kind of what SQLite says (https://sqlite.org/rescode.html).
_REMEDIES = {
    "SQLITE_BUSY": "another process kept it busy; try again",
    "SQLITE_CANTOPEN": "is there a ledger? `pauseledger migrate` makes one",
    "SQLITE_CORRUPT": "it is damaged; put a backup back",
    "SQLITE_FULL": "its disk is full; make room, and try again",
    "SQLITE_IOERR": "its disk is full or fails; make room, or move the file, and try again",
    "SQLITE_NOTADB": "it is no SQLite database; name the ledger's own file, or put a backup back",
    "SQLITE_READONLY": "it is not this user's to write, or its disk or folder is read-only. SQLite writes beside a file"
    " to read it too: come as its owner, or copy it and its -wal to where you may write",
}
_FILES = ("sqlite.sql", "sqlite_sealed.sql", "sqlite_vault.sql")
_ROWS = "SELECT originator_id, originator_version, topic, state, rowid FROM stored_events"
_KEYS = "SELECT pause, content_key, person_key, content, person FROM vault"
_KEYS_OF = f"{_KEYS} WHERE pause IN (SELECT value FROM json_each(?)) ORDER BY pause"  # noqa: S608 - constants


_SETTLED = "EXISTS (SELECT 1 FROM stored_events WHERE originator_id = {{}} AND ({}))".format(  # noqa: S608 - constants
    " OR ".join(f"topic GLOB '{name}@*'" for name in SETTLED)
)


def _text(originator_id: UUID | str) -> str:
    return originator_id.hex if isinstance(originator_id, UUID) else UUID(originator_id).hex


def _time(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def fetched(connection: sqlite3.Connection, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
    """Read rows, those too that hold text which was altered into none: what is no UTF-8 in it is replaced."""
    try:
        return connection.execute(statement, values).fetchall()
    except sqlite3.OperationalError as error:
        # SQLite's own errors have a code; the module's own, of text that it cannot decode, has none.
        if hasattr(error, "sqlite_errorcode"):
            raise
    connection.text_factory = _replaced
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.text_factory = str


def _replaced(text: bytes) -> str:
    return text.decode(errors="replace")


def _notifications(found: Sequence[tuple[Any, ...]]) -> list[Notification]:
    return [row_of(*row) for row in found]


def row_of(stream: object, version: object, topic: object, state: object, position: int) -> Notification:
    """Give a row whose columns may hold anything: a column's type is a wish in SQLite."""
    return Notification(
        _stream(stream),
        version if isinstance(version, int) else -1,
        topic if isinstance(topic, str) else str(topic),
        state if isinstance(state, bytes) else b"",
        id=position,
    )


@lru_cache(1024)
def _stream(given: object) -> UUID:
    try:
        stream = UUID(str(given))
    except ValueError:
        return NO_STREAM
    return stream if stream.hex == given else NO_STREAM


def _vault_rows(found: Sequence[tuple[Any, ...]]) -> list[VaultRow]:
    return [
        VaultRow(UUID(pause), _key_id(one), _key_id(other), _wrapped(content), _wrapped(person))
        for pause, one, other, content, person in found
    ]


def _wrapped(stored: object) -> bytes | None:
    """Give a wrapped key; what was altered into anything else opens nothing."""
    return stored if stored is None or isinstance(stored, bytes) else b""


def _key_id(stored: object) -> UUID:
    """Give a key's id; one that was altered into none is one that no row names."""
    try:
        return UUID(str(stored))
    except ValueError:
        return UUID(int=0)


def _revision(connection: sqlite3.Connection) -> int:
    """Tell the revision of the tables that are there; 0 where there are none."""
    there = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'ledger'").fetchone()
    found = connection.execute("SELECT schema_revision FROM ledger").fetchone() if there else None
    if not there:
        return 0
    if found is None or not isinstance(found[0], int):
        raise SettingsCorrupt("row, or its schema's revision,")
    return found[0]


def _make_tables(connection: sqlite3.Connection) -> list[str]:
    """Make the tables, or bring older ones over, and say what was done; of several processes one does it."""
    connection.execute("BEGIN IMMEDIATE")
    done: list[str] = []
    try:
        revision = known(_revision(connection))
        if not revision:
            _run(connection, "sqlite.sql")
            connection.execute(
                "INSERT INTO ledger VALUES (1, ?, ?, ?, ?, ?)",
                (
                    uuid4().hex,
                    token_bytes(IDENTITY_KEY_BYTES),
                    randbelow(EPOCHS),
                    SCHEMA_REVISION,
                    datetime.now(UTC).isoformat(),
                ),
            )
            done = [f"made the tables of schema@{SCHEMA_REVISION}"]
        elif revision < SCHEMA_REVISION:
            connection.execute("UPDATE ledger SET schema_revision = ?", (SCHEMA_REVISION,))
            done = [f"brought the tables from schema@{revision} to schema@{SCHEMA_REVISION}"]
        if revision < 3:  # noqa: PLR2004 - the revisions there were
            _run(connection, "sqlite_sealed.sql")
        if revision < SCHEMA_REVISION:
            _run(connection, "sqlite_vault.sql")
    except BaseException:
        connection.rollback()
        raise
    _commit(connection)
    return done


@lru_cache
def _triggers() -> dict[str, str]:
    """Give the triggers that guard the tables by their names, as SQLite keeps them: without the last semicolon."""
    return {name: text for text, name in re.findall(r"(CREATE TRIGGER (\w+).*?\nEND);", _made(), re.DOTALL)}


@lru_cache
def _tables() -> dict[str, str]:
    """Give the tables by their names, as SQLite keeps them."""
    tables = re.findall(r"(CREATE TABLE (\w+) \(.*?\n\)(?: WITHOUT ROWID)?);", _made(), re.DOTALL)
    return {name: text for text, name in tables}


def _made() -> str:
    return "".join(files(__package__).joinpath(name).read_text("utf-8") for name in _FILES)


def _run(connection: sqlite3.Connection, name: str) -> None:
    for statement in files(__package__).joinpath(name).read_text("utf-8").split("\n\n"):
        connection.execute(statement)


def _commit(connection: sqlite3.Connection) -> None:
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        # Busy leaves the transaction open, to be rolled back. After anything else the frames may be in the WAL file.
        if _name(error).startswith("SQLITE_BUSY"):
            raise
        name = _name(error)
        raise StoreUnavailable(f"SQLite could not finish a commit: {name}{_remedy(name)}", outcome="unknown") from None


def _remedy(name: str) -> str:
    says = _REMEDIES.get("_".join(name.split("_")[:2]))
    return "" if says is None else f"; {says}"


def _name(error: sqlite3.Error) -> str:
    # Errors of the Python module itself, such as a closed connection, carry no SQLite name.
    return getattr(error, "sqlite_errorname", type(error).__name__)
