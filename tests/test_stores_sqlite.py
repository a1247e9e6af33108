"""The store in a SQLite file."""

import fcntl
import os
import sqlite3
import stat
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from subprocess import PIPE, Popen
from uuid import uuid4

import pytest
from eventsourcing.persistence import IntegrityError
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore
from eventsourcing.tests.persistence import ApplicationRecorderTestCase, NonInterleavingNotificationIDsBaseCase
from pauseledger.domain.errors import LedgerTooNew, StoreUnavailable
from pauseledger.infrastructure.sqlite import SQLiteRecorder
from pauseledger.infrastructure.testing import RecorderConformance, refused, row


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


@pytest.fixture
def recorder(path):
    recorder = SQLiteRecorder(path)
    yield recorder
    recorder.close()


class TestSQLite(RecorderConformance):
    """The suite, on a file."""


class _OnAFile:
    @pytest.fixture(autouse=True)
    def _path(self, recorder):
        self.recorder = recorder

    def create_recorder(self):
        return self.recorder


class TestLibraryApplicationRecorder(_OnAFile, ApplicationRecorderTestCase):
    """The library's own suite. Its AggregateRecorderTestCase wants insert_events to return None; ours returns positions."""


class TestLibraryNonInterleaving(_OnAFile, NonInterleavingNotificationIDsBaseCase):
    """The library's own suite."""


del ApplicationRecorderTestCase, NonInterleavingNotificationIDsBaseCase


def foreign(path, *, recursive=False):
    """Connect as any other program would."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA recursive_triggers = {recursive}")
    return connection


def test_an_unmodified_reader_of_the_library_follows_the_log(recorder, path):
    streams = [uuid4(), uuid4()]
    recorder.insert_events([row(stream, version) for stream in streams for version in (1, 2)])
    stock = SQLiteApplicationRecorder(SQLiteDatastore(str(path)))
    assert stock.select_notifications(None, 10) == list(recorder.walk())
    assert stock.select_notifications(2, 10, inclusive_of_start=False) == list(recorder.walk(2))
    assert stock.select_events(streams[1]) == recorder.select_events(streams[1]) != []
    assert stock.max_notification_id() == 4
    stock.datastore.close()


def test_positions_outlive_a_vacuum(recorder, path):
    stream = uuid4()
    recorder.insert_events([row(stream, version) for version in range(1, 6)])
    before = list(recorder.walk())
    recorder.close()
    foreign(path).execute("VACUUM")
    assert list(SQLiteRecorder(path).walk()) == before


KEY = "originator_id, originator_version, topic, state"
UPSERT = (
    f"INSERT INTO stored_events ({KEY}) SELECT {KEY} FROM stored_events WHERE true"
    " ON CONFLICT (originator_id, originator_version) DO UPDATE SET state = x'00'"
)


@pytest.mark.parametrize("recursive", [False, True])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE stored_events SET state = x'00'",
        "UPDATE OR REPLACE stored_events SET originator_version = 1",
        "UPDATE stored_events SET rowid = rowid + 10",
        "DELETE FROM stored_events",
        "DELETE FROM stored_events WHERE rowid = 2",
        f"INSERT OR REPLACE INTO stored_events ({KEY}) SELECT {KEY} FROM stored_events WHERE rowid = 1",
        f"REPLACE INTO stored_events ({KEY}) SELECT originator_id, 2, topic, x'00' FROM stored_events WHERE rowid = 4",
        f"REPLACE INTO stored_events (rowid, {KEY}) VALUES (1, '{'0' * 32}', 1, 't', x'00')",
        f"REPLACE INTO stored_events (rowid, {KEY}) VALUES (-1, '{'0' * 32}', 1, 't', x'00')",
        f"INSERT OR REPLACE INTO stored_events ({KEY}) VALUES ('{'0' * 32}', 2, 't', x'00')",
        UPSERT,
        f"INSERT INTO stored_events ({KEY}) VALUES ('{'0' * 32}', 2, 't', x'00')",
        f"INSERT INTO stored_events ({KEY}) VALUES ('{'0' * 32}', -1, 't', x'00')",
        f"INSERT INTO stored_events ({KEY}) VALUES ('{'0' * 32}', 1, NULL, x'00')",
    ],
)
def test_no_program_changes_what_is_stored(recorder, path, statement, recursive):
    recorder.insert_events([row(uuid4(), 1), row(uuid4(), 1)])
    stream = uuid4()
    recorder.insert_events([row(stream, version) for version in (1, 2, 3)])
    before = list(recorder.walk())
    with pytest.raises(sqlite3.IntegrityError):
        foreign(path, recursive=recursive).execute(statement)
    assert list(recorder.walk()) == before


def test_an_ignored_conflict_changes_nothing(recorder, path):
    recorder.insert_events([row(uuid4(), 1)])
    before = list(recorder.walk())
    with pytest.raises(sqlite3.IntegrityError, match="the stream has that version"):
        foreign(path).execute(f"INSERT OR IGNORE INTO stored_events ({KEY}) SELECT {KEY} FROM stored_events")
    assert list(recorder.walk()) == before


def test_another_constraint_is_no_lost_race(recorder, path):
    foreign(path).execute("SELECT 1")
    recorder.identity()
    foreign(path).execute("CREATE UNIQUE INDEX by_host ON stored_events (topic)")
    recorder.insert_events([row(uuid4(), 1)])
    with refused(IntegrityError):
        recorder.insert_events([row(uuid4(), 1)])


START = """
import sys, uuid
from pauseledger.infrastructure.sqlite import SQLiteRecorder
from pauseledger.infrastructure.testing import row
print("ready", flush=True)
sys.stdin.readline()
recorder = SQLiteRecorder(sys.argv[1], busy_timeout=30)
recorder.insert_events([row(uuid.uuid4(), 1)])
print(recorder.identity().ledger_id)
"""


def at_once(script, *arguments, processes):
    """Run a script in several processes that start their work together, and collect what they print."""
    command = [sys.executable, "-c", script, *arguments]
    running = [Popen(command, stdin=PIPE, stdout=PIPE, text=True) for _ in range(processes)]
    for process in running:
        assert process.stdout.readline() == "ready\n"
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
    printed = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0] * processes
    return printed


def test_sixteen_processes_may_start_at_once(path):
    path = path.parent / "new" / "ledger.db"
    found = set(at_once(START, str(path), processes=16))
    assert len(found) == 1
    assert len(list(SQLiteRecorder(path).walk())) == 16


def test_what_is_made_is_private(tmp_path):
    old = os.umask(0)
    try:
        SQLiteRecorder(tmp_path / "a" / "b" / "ledger.db").identity()
    finally:
        os.umask(old)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/ledger.db")}
    assert modes == {"a": 0o700, "a/b": 0o700, "a/b/ledger.db": 0o600}


def test_commits_are_on_the_disk_before_they_are_told(recorder):
    recorder.insert_events([row(uuid4(), 1)])
    [connection] = recorder._idle_writers
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_processes_queue_by_a_lock_that_decides_nothing_but_the_order(path):
    recorder = SQLiteRecorder(path, busy_timeout=0.2)
    recorder.insert_events([row(uuid4(), 1)])
    turn = path.with_name(f"{path.name}-turn")
    assert (stat.S_IMODE(turn.stat().st_mode), turn.read_bytes()) == (0o600, b"")
    with turn.open() as queue:
        fcntl.flock(queue, fcntl.LOCK_EX)
        # Whoever is next never comes to write: after a while SQLite alone decides, and nobody else writes.
        recorder.insert_events([row(uuid4(), 1)])
    turn.unlink()
    recorder.insert_events([row(uuid4(), 1)])
    assert len(list(recorder.walk())) == 3


def test_whoever_has_just_written_does_not_come_first_again(path):
    """A process that writes without a pause would else keep another one out for as long as it likes."""
    first, second = SQLiteRecorder(path), SQLiteRecorder(path)
    first.identity()
    with ThreadPoolExecutor(1) as threads, first._next(time.monotonic() + 5):
        # The queue is taken, and nobody writes: the other one does not pass.
        waiting = threads.submit(second.insert_events, [row(uuid4(), 1)])
        time.sleep(0.1)
        assert not waiting.done()
        assert list(first.walk()) == []
        with first._connection(first._idle_writers) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    assert waiting.result() == [1]


def test_without_create_nothing_is_made(path):
    recorder = SQLiteRecorder(path, create=False)
    with pytest.raises(StoreUnavailable, match="pauseledger migrate"):
        recorder.identity()
    assert not path.exists()
    sqlite3.connect(path).close()
    with pytest.raises(StoreUnavailable, match="pauseledger migrate"):
        recorder.insert_events([row(uuid4(), 1)])
    assert recorder.migrate() == ["made the tables of schema@4"]
    assert recorder.insert_events([row(uuid4(), 1)]) == [1]


def test_a_closed_store_says_so(recorder):
    recorder.identity()
    recorder.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        recorder.identity()


def test_tables_of_a_newer_version_are_left_alone(recorder, path):
    recorder.identity()
    foreign(path).execute("UPDATE ledger SET schema_revision = 99")
    for call in (recorder.identity, recorder.migrate, lambda: recorder.load([uuid4()])):
        with pytest.raises(LedgerTooNew, match="schema@99"):
            call()


def test_a_locked_file_is_unavailable_and_reads_go_on(path):
    recorder = SQLiteRecorder(path, busy_timeout=0.05)
    recorder.insert_events([row(uuid4(), 1)])
    other = foreign(path)
    other.execute("BEGIN IMMEDIATE")
    with refused(StoreUnavailable) as caught:
        recorder.insert_events([row(uuid4(), 1)])
    assert "SQLITE_BUSY" in str(caught[0])
    assert caught[0].outcome == "not_started"
    assert len(recorder.load([]).rows) == 0
    assert len(list(recorder.walk())) == 1
    other.execute("ROLLBACK")
    recorder.insert_events([row(uuid4(), 1)])


def test_recorders_of_one_file_take_turns_in_a_process(path, tmp_path):
    (tmp_path / "link").symlink_to(path)
    first, second = SQLiteRecorder(path), SQLiteRecorder(tmp_path / "link", busy_timeout=0.05)
    second.identity()
    with first._turn(), pytest.raises(StoreUnavailable, match="writers of this process") as caught:
        second.insert_events([row(uuid4(), 1)])
    assert caught.value.outcome == "not_started"
    second.insert_events([row(uuid4(), 1)])


@pytest.mark.parametrize(
    ("pragma", "name", "remedy"),
    [("query_only = 1", "SQLITE_READONLY", "come as its owner"), ("max_page_count = 1", "SQLITE_FULL", "make room")],
)
def test_what_the_disk_refuses_is_unavailable(recorder, path, pragma, name, remedy):
    recorder.draw_epoch()
    recorder._idle_writers[0].execute(f"PRAGMA {pragma}")
    with refused(StoreUnavailable) as caught:
        recorder.insert_events([row(uuid4(), 1, b"a" * 99999)])
    assert str(caught[0]).startswith(f"SQLite cannot use {path}: {name}; ")
    assert remedy in str(caught[0])
    assert caught[0].outcome == "not_started"
    assert list(recorder.walk()) == []


def test_another_file_is_unavailable(path):
    path.write_bytes(b"what people wrote, and no database" * 99)
    with refused(StoreUnavailable):
        SQLiteRecorder(path).identity()
    with refused(StoreUnavailable):
        SQLiteRecorder(path.parent).identity()


class FailingCommit(sqlite3.Connection):
    """A disk that fails at the worst moment, before or after the commit took place."""

    code, lands = sqlite3.SQLITE_IOERR_FSYNC, False

    def execute(self, statement, *values):
        if statement != "COMMIT":
            return super().execute(statement, *values)
        if self.lands:
            super().execute(statement)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode, error.sqlite_errorname = self.code, "SQLITE_IOERR_FSYNC"
        if self.code == sqlite3.SQLITE_BUSY:
            error.sqlite_errorname = "SQLITE_BUSY"
        raise error


@pytest.mark.parametrize(
    ("code", "lands", "outcome"),
    [
        (sqlite3.SQLITE_IOERR_FSYNC, True, "unknown"),
        (sqlite3.SQLITE_IOERR_FSYNC, False, "unknown"),
        (sqlite3.SQLITE_BUSY, False, "not_started"),
    ],
)
def test_only_a_commit_that_failed_leaves_the_outcome_unknown(recorder, path, code, lands, outcome):
    recorder.identity()
    recorder.close_idle()
    connection = sqlite3.connect(path, isolation_level=None, factory=FailingCommit)
    connection.code, connection.lands = code, lands
    recorder._idle_writers.append(connection)
    with refused(StoreUnavailable) as caught:
        recorder.insert_events([row(uuid4(), 1)])
    assert caught[0].outcome == outcome
    assert len(list(recorder.walk())) == lands
    connection.close()


def test_a_child_never_uses_its_parents_connections(recorder, path):
    stream = uuid4()
    recorder.insert_events([row(stream, 1)])
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        # The parent closes the file meanwhile: a connection carried over would write into a log that is gone.
        os.close(writer)
        os.read(reader, 1)
        recorder.insert_events([row(stream, 2)])
        os._exit(0)
    os.close(reader)
    recorder.close()
    os.close(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [event.originator_version for event in SQLiteRecorder(path).select_events(stream)] == [1, 2]


WRITE = """
import sys, uuid
from pauseledger.infrastructure.sqlite import SQLiteRecorder
from pauseledger.infrastructure.store import StreamConflict
from pauseledger.infrastructure.testing import row
recorder, stream, won = SQLiteRecorder(sys.argv[1], busy_timeout=30), uuid.UUID(sys.argv[2]), 0
print("ready", flush=True)
sys.stdin.readline()
for version in range(1, 21):
    try:
        recorder.insert_events([row(stream, version)])
        won += 1
    except StreamConflict:
        pass
print(won)
"""


def test_processes_share_a_file(path):
    stream = uuid4()
    won = at_once(WRITE, str(path), str(stream), processes=4)
    assert sum(map(int, won)) == 20
    assert [e.originator_version for e in SQLiteRecorder(path).select_events(stream)] == list(range(1, 21))


def test_closing_while_others_work_breaks_nothing(path):
    recorder, started = SQLiteRecorder(path), threading.Event()
    recorder.identity()

    def work(_):
        done = 0
        try:
            while True:
                recorder.insert_events([row(uuid4(), 1)])
                done += 1
                started.set()
        except StoreUnavailable:
            return done

    with ThreadPoolExecutor(4) as threads:
        working = threads.map(work, range(4))
        started.wait()
        recorder.close()
        done = sum(working)
    assert recorder._idle == recorder._idle_writers == []
    assert len(list(SQLiteRecorder(path).walk())) == done
