"""The store on PostgreSQL."""

import contextlib
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest
from eventsourcing.persistence import IntegrityError
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore
from eventsourcing.tests.persistence import ApplicationRecorderTestCase
from pauseledger.domain.errors import InteractionConfigurationError, LedgerTooNew, StoreUnavailable
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.store import SCHEMA_REVISION, RightMissing, StreamConflict
from pauseledger.infrastructure.testing import RecorderConformance, TemporaryPostgres, refused, row
from psycopg.conninfo import conninfo_to_dict, make_conninfo


@pytest.fixture
def recorder(pg_dsn):
    recorder = PostgresRecorder(pg_dsn)
    yield recorder
    recorder.close()


@pytest.fixture
def owner(pg_dsn):
    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def runtime_dsn(recorder, owner, pg_dsn):
    """The same database, as the role an application runs under."""
    with contextlib.suppress(psycopg.errors.DuplicateObject):
        owner.execute("CREATE ROLE app LOGIN")
    recorder.migrate(runtime_role="app")
    return make_conninfo(pg_dsn, user="app")


class TestPostgres(RecorderConformance):
    """The suite, on a real server."""


class TestPostgresAsTheRuntimeRole(RecorderConformance):
    """The suite, with the rights that `migrate` grants and no others."""

    @pytest.fixture
    def recorder(self, runtime_dsn):
        recorder = PostgresRecorder(runtime_dsn)
        yield recorder
        recorder.close()

    def test_another_epoch_is_seen_by_the_next_load(self, recorder):
        """Drawing an epoch is the owner's."""
        before = recorder.load([]).epoch
        with refused(RightMissing) as caught:
            recorder.draw_epoch()
        assert "owner" in str(caught[0])
        assert recorder.load([]).epoch == before


class _OnAServer:
    @pytest.fixture(autouse=True)
    def _server(self, recorder):
        self.recorder = recorder

    def create_recorder(self):
        return self.recorder


class TestLibraryApplicationRecorder(_OnAServer, ApplicationRecorderTestCase):
    """The library's own suite. Its AggregateRecorderTestCase wants insert_events to return None; ours returns positions.

    Its NonInterleavingNotificationIDsBaseCase does not apply: writers write at once, so positions interleave by design.
    What that suite is there for, that no reader misses one, is held by test_log_floor_locks.py.
    """


del ApplicationRecorderTestCase


@pytest.mark.parametrize("role", ["pauseledger", "app"])
def test_an_unmodified_reader_of_the_library_follows_the_log(recorder, runtime_dsn, role):
    streams = [uuid4(), uuid4()]
    recorder.insert_events([row(stream, version) for stream in streams for version in (1, 2)])
    at = conninfo_to_dict(runtime_dsn)
    datastore = PostgresDatastore(
        dbname=at["dbname"], host=at["host"], port="5432", user=role, password="", schema="pauseledger"
    )
    stock = PostgresApplicationRecorder(datastore)
    assert stock.select_notifications(None, 10) == list(recorder.walk())
    assert stock.select_notifications(2, 10, inclusive_of_start=False) == list(recorder.walk(2))
    assert stock.select_events(streams[1]) == recorder.select_events(streams[1]) != []
    assert stock.max_notification_id() == 4
    datastore.close()


KEY = "originator_id, originator_version, topic, state"
UPSERT = (
    f"INSERT INTO pauseledger.stored_events ({KEY}) SELECT {KEY} FROM pauseledger.stored_events"
    " ON CONFLICT (originator_id, originator_version) DO UPDATE SET state = ''"
)
NEW = "'00000000-0000-0000-0000-000000000000'"


@pytest.mark.parametrize("replica", [False, True], ids=["origin", "replica"])
@pytest.mark.parametrize(
    ("statement", "state"),
    [
        ("UPDATE pauseledger.stored_events SET state = ''", "PLA01"),
        ("UPDATE pauseledger.stored_events SET originator_version = 9 WHERE false", "PLA01"),
        ("DELETE FROM pauseledger.stored_events", "PLA01"),
        ("TRUNCATE pauseledger.stored_events", "PLA01"),
        ("TRUNCATE pauseledger.stored_events RESTART IDENTITY CASCADE", "PLA01"),
        (UPSERT, "PLA01"),
        (
            "MERGE INTO pauseledger.stored_events e USING (SELECT 1) s ON true WHEN MATCHED THEN DELETE",
            "PLA01",
        ),
        (f"INSERT INTO pauseledger.stored_events ({KEY}) VALUES ({NEW}, 2, 't', '')", "PLG01"),
        (f"INSERT INTO pauseledger.stored_events ({KEY}) VALUES ({NEW}, 1, 't', ''), ({NEW}, 3, 't', '')", "PLG01"),
        (f"INSERT INTO pauseledger.stored_events ({KEY}) VALUES ({NEW}, -1, 't', '')", "23514"),
        (f"INSERT INTO pauseledger.stored_events VALUES ({NEW}, 1, 't', '', 1)", "428C9"),
    ],
)
def test_not_even_the_owner_changes_what_is_stored(recorder, owner, statement, state, replica):
    stream = uuid4()
    recorder.insert_events([row(stream, version) for version in (1, 2, 3)])
    before = list(recorder.walk())
    if replica:
        owner.execute("SET session_replication_role = replica")
    with pytest.raises(psycopg.Error) as caught:
        owner.execute(statement)
    assert caught.value.sqlstate == state
    assert list(recorder.walk()) == before


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE pauseledger.stored_events SET state = ''",
        "DELETE FROM pauseledger.stored_events",
        "TRUNCATE pauseledger.stored_events",
        f"INSERT INTO pauseledger.stored_events OVERRIDING SYSTEM VALUE VALUES ({NEW}, 1, 't', '', 1)",
        "SELECT nextval('pauseledger.stored_events_notification_id_seq')",
        "ALTER TABLE pauseledger.stored_events DISABLE TRIGGER ALL",
        "DROP TABLE pauseledger.stored_events",
        "UPDATE pauseledger.ledger SET epoch = 1",
        "CREATE TABLE pauseledger.mine ()",
        "SET session_replication_role = replica",
    ],
)
def test_the_runtime_role_may_read_and_append_and_nothing_else(runtime_dsn, statement):
    with psycopg.connect(runtime_dsn) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement)


def test_a_role_that_was_granted_nothing_may_do_nothing(recorder, owner, pg_dsn):
    with contextlib.suppress(psycopg.errors.DuplicateObject):
        owner.execute("CREATE ROLE stranger LOGIN")
    stranger = PostgresRecorder(make_conninfo(pg_dsn, user="stranger"))
    for call in (stranger.identity, stranger.max_notification_id, lambda: stranger.insert_events([row(uuid4(), 1)])):
        with refused(RightMissing):
            call()
    stranger.close()


def test_a_runtime_role_has_to_exist(recorder):
    with refused(InteractionConfigurationError) as caught:
        recorder.migrate(runtime_role='no"body')
    assert "does not exist" in str(caught[0])


def test_another_constraint_is_no_lost_race(recorder, owner):
    owner.execute("CREATE UNIQUE INDEX by_host ON pauseledger.stored_events (topic)")
    recorder.insert_events([row(uuid4(), 1)])
    with refused(IntegrityError):
        recorder.insert_events([row(uuid4(), 1)])
    owner.execute("DROP INDEX pauseledger.by_host")
    # A trigger of the host's fails on its own table, whose key has the very name of ours.
    owner.execute("CREATE SCHEMA host")
    owner.execute("CREATE TABLE host.stored_events (one int CONSTRAINT stored_events_stream PRIMARY KEY)")
    owner.execute("INSERT INTO host.stored_events VALUES (1)")
    owner.execute(
        "CREATE FUNCTION host.note() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO host.stored_events VALUES (1); RETURN NEW; END'"
    )
    owner.execute("CREATE TRIGGER note AFTER INSERT ON pauseledger.stored_events EXECUTE FUNCTION host.note()")
    with refused(IntegrityError):
        recorder.insert_events([row(uuid4(), 1)])


@pytest.mark.parametrize("topic", ["nought \0", "\ud800"])
def test_text_the_server_cannot_hold_is_refused(recorder, topic):
    with refused(IntegrityError) if "\0" in topic else pytest.raises(UnicodeEncodeError):
        recorder.insert_events([row(uuid4(), 1, topic=topic)])
    assert recorder.max_notification_id() is None


def test_a_commit_is_on_the_disk_whatever_the_session_says(owner):
    owner.execute("SET synchronous_commit = off")
    with owner.transaction():
        owner.execute(f"INSERT INTO pauseledger.stored_events ({KEY}) VALUES ({NEW}, 1, 't', '')")
        assert owner.execute("SHOW synchronous_commit").fetchone() == ("on",)
    assert owner.execute("SHOW synchronous_commit").fetchone() == ("off",)


def until_one_waits(owner):
    """Wait until a writer waits for another one's row."""
    while owner.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone() is None:
        time.sleep(0.01)


def test_a_writer_that_waited_sees_what_it_waited_for(recorder, owner, pg_dsn):
    owner.execute(
        f"ALTER DATABASE {conninfo_to_dict(pg_dsn)['dbname']} SET default_transaction_isolation = serializable"
    )
    stream = uuid4()
    with psycopg.connect(pg_dsn) as other, ThreadPoolExecutor(1) as thread:
        other.execute(f"INSERT INTO pauseledger.stored_events ({KEY}) VALUES (%s, 1, 't', '')", (stream,))
        waiting = thread.submit(recorder.insert_events, [row(stream, 1)])
        until_one_waits(owner)
        other.commit()
        with refused(StreamConflict):
            waiting.result()
    assert [n.topic for n in recorder.walk()] == ["t"]
    recorder.insert_events([row(stream, 2)])
    assert recorder.select_events(stream)[-1].originator_version == 2


class TestMigrate:
    @pytest.fixture
    def empty(self, pg):
        name = pg.fresh_database()
        yield pg.dsn(name)
        pg.drop_database(name)

    def test_it_alone_makes_the_tables(self, empty):
        recorder = PostgresRecorder(empty)
        for call in (recorder.identity, lambda: recorder.load([]), lambda: recorder.insert_events([row(uuid4(), 1)])):
            with refused(StoreUnavailable) as caught:
                call()
            assert "pauseledger migrate" in str(caught[0])
            assert caught[0].outcome == "not_started"
        assert recorder.migrate() == ["made the tables of schema@4 in pauseledger"]
        assert recorder.insert_events([row(uuid4(), 1)]) == [1]
        recorder.close()

    def test_sixteen_may_run_at_once(self, empty):
        with ThreadPoolExecutor(16) as threads:
            done = list(threads.map(lambda _: PostgresRecorder(empty).migrate(), range(16)))
        assert sorted(map(len, done)) == [0] * 15 + [1]

    def test_a_schema_of_another_name_is_quoted(self, empty):
        schema = 'o"dd Schema; --'
        recorder = PostgresRecorder(empty, schema=schema)
        recorder.migrate()
        stream = uuid4()
        assert recorder.insert_events([row(stream, 1)]) == [1]
        assert recorder.migrate() == []
        assert recorder.load([stream]).rows == list(recorder.walk())
        recorder.close()

    def test_two_ledgers_of_one_database_are_apart(self, empty):
        one, two = PostgresRecorder(empty, schema="one"), PostgresRecorder(empty, schema="two")
        one.migrate()
        two.migrate()
        one.insert_events([row(uuid4(), 1)])
        assert two.max_notification_id() is None
        assert one.identity().ledger_id != two.identity().ledger_id
        one.close()
        two.close()

    def test_tables_of_a_newer_version_are_left_alone(self, recorder, owner):
        owner.execute("UPDATE pauseledger.ledger SET schema_revision = 99")
        for call in (recorder.identity, recorder.migrate, lambda: recorder.load([uuid4()])):
            with pytest.raises(LedgerTooNew, match="schema@99"):
                call()


def kill(owner, *, busy=False):
    """End every other connection to this database."""
    owner.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND (state = 'active') = %s",
        (busy,),
    )


class Cable:
    """Passes bytes between clients and the server's socket, until it is cut on the clients' side."""

    def __init__(self, server, folder):
        self.server, self.clients = server, []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(f"{folder}/.s.PGSQL.5432")
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, server = self.listener.accept()[0], socket.socket(socket.AF_UNIX)
                server.connect(self.server)
                self.clients.append(client)
                threading.Thread(target=self.carry, args=(client, server), daemon=True).start()
                threading.Thread(target=self.carry, args=(server, client), daemon=True).start()

    def carry(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)

    def cut(self):
        self.listener.close()
        for client in self.clients:
            client.shutdown(socket.SHUT_RDWR)


class TestWhenTheDatabaseGoesAway:
    def test_idle_connections_that_were_ended_are_never_used(self, recorder, owner):
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: recorder.insert_events([row(uuid4(), 1)]), range(40)))
        for _ in range(3):
            kill(owner)
            recorder.insert_events([row(uuid4(), 1)])
        kill(owner)
        assert len(list(recorder.walk())) == 43

    def test_a_read_that_lost_its_connection_is_tried_once_more(self, recorder, owner, monkeypatch):
        recorder.insert_events([row(uuid4(), 1)])
        monkeypatch.setattr("pauseledger.infrastructure.postgres._still_there", lambda connection: True)
        recorder.close()
        blind = PostgresRecorder(owner.info.dsn, pool_size=1)
        assert len(list(blind.walk())) == 1
        kill(owner)
        assert len(list(blind.walk())) == 1
        blind.close()

    def test_an_append_that_lost_its_connection_is_not_tried_again(self, owner, monkeypatch):
        monkeypatch.setattr("pauseledger.infrastructure.postgres._still_there", lambda connection: True)
        blind = PostgresRecorder(owner.info.dsn)
        blind.identity()
        kill(owner)
        with pytest.raises(StoreUnavailable):
            blind.insert_events([row(uuid4(), 1)])
        assert list(blind.walk()) == []
        blind.close()

    def waiting(self, recorder, owner):
        """Begin an append that waits for another writer of its stream."""
        stream = uuid4()
        owner.execute("BEGIN")
        owner.execute(f"INSERT INTO pauseledger.stored_events ({KEY}) VALUES (%s, 1, 't', '')", (stream,))
        thread = ThreadPoolExecutor(1)
        future = thread.submit(recorder.insert_events, [row(stream, 1)])
        until_one_waits(owner)
        thread.shutdown(wait=False)
        return future

    def test_a_busy_connection_that_is_ended_has_written_nothing(self, recorder, owner):
        waiting = self.waiting(recorder, owner)
        kill(owner, busy=True)
        with pytest.raises(StoreUnavailable) as caught:
            waiting.result()
        assert caught.value.outcome == "not_started"
        owner.execute("ROLLBACK")
        assert list(recorder.walk()) == []

    def test_a_connection_that_breaks_meanwhile_leaves_the_outcome_unknown(self, owner, pg, pg_dsn, tmp_path):
        cable = Cable(f"{pg.host}/.s.PGSQL.5432", tmp_path)
        recorder = PostgresRecorder(make_conninfo(pg_dsn, host=str(tmp_path)))
        waiting = self.waiting(recorder, owner)
        cable.cut()
        with pytest.raises(StoreUnavailable) as caught:
            waiting.result()
        assert caught.value.outcome == "unknown"
        # The server never heard of it, and commits.
        owner.execute("ROLLBACK")
        while owner.execute("SELECT count(*) FROM pauseledger.stored_events").fetchone() != (1,):
            time.sleep(0.01)
        recorder.close()

    def test_a_writer_that_never_ends_does_not_hold_the_others_for_good(self, owner, pg_dsn):
        recorder = PostgresRecorder(pg_dsn, statement_timeout=0.3)
        with refused(StoreUnavailable) as caught:
            self.waiting(recorder, owner).result()
        assert caught[0].outcome == "not_started"
        # Writers of other streams do not even wait.
        recorder.insert_events([row(uuid4(), 1)])
        owner.execute("ROLLBACK")
        recorder.close()

    def test_a_full_pool_says_so(self, pg_dsn):
        recorder = PostgresRecorder(pg_dsn, pool_size=1, pool_timeout=0.1)
        recorder.identity()
        with recorder._connection(), refused(StoreUnavailable) as caught:
            recorder.identity()
        assert caught[0].outcome == "not_started"
        recorder.close()

    def test_a_server_that_is_not_there_says_so(self, tmp_path):
        dsn = f"host={tmp_path} dbname=none password=hunter2"
        recorder = PostgresRecorder(dsn, pool_timeout=0.2)
        for call in (recorder.identity, recorder.migrate, lambda: recorder.insert_events([row(uuid4(), 1)])):
            with refused(StoreUnavailable) as caught:
                call()
            assert caught[0].outcome == "not_started"
            assert "hunter2" not in str(caught[0])
        recorder.close()

    def test_a_closed_store_says_so(self, recorder):
        recorder.identity()
        recorder.close()
        with refused(StoreUnavailable):
            recorder.identity()

    def test_a_connection_string_that_cannot_be_read_is_not_quoted(self):
        with refused(InteractionConfigurationError) as caught:
            PostgresRecorder("host=x password='hunter2")
        assert "hunter2" not in str(caught[0])

    def test_a_child_never_uses_its_parents_connections(self, recorder):
        stream = uuid4()
        recorder.insert_events([row(stream, 1)])
        child = os.fork()
        if not child:
            recorder.insert_events([row(stream, 2)])
            recorder.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        recorder.insert_events([row(stream, 3)])
        assert recorder.select_events(stream)[-1].originator_version == 3


@pytest.fixture
def own_server():
    with TemporaryPostgres() as server:
        yield server


def test_a_restart_a_crash_and_a_standby(own_server):
    recorder = PostgresRecorder(own_server.dsn(), pool_timeout=10)
    recorder.migrate()
    recorder.insert_events([row(uuid4(), 1)])
    own_server.restart()
    recorder.insert_events([row(uuid4(), 1)])
    own_server.restart("immediate")
    assert len(list(recorder.walk())) == 2
    recorder.insert_events([row(uuid4(), 1)])
    streams = [n.originator_id for n in recorder.walk()]
    own_server.restart_as_standby()
    assert recorder.identity().schema_revision == SCHEMA_REVISION
    assert len(recorder.load(streams).rows) == 3
    for call in (recorder.max_notification_id, lambda: recorder.headers(0, 9), lambda: list(recorder.walk())):
        with refused(StoreUnavailable) as caught:
            call()
        assert "standby" in str(caught[0])
    for call in (lambda: recorder.insert_events([row(uuid4(), 1)]), lambda: recorder.renew(uuid4(), 1, 1)):
        with refused(StoreUnavailable) as caught:
            call()
        assert "read-only" in str(caught[0])
        assert caught[0].outcome == "not_started"
    recorder.close()
