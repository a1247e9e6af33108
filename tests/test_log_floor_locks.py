"""The log on PostgreSQL under concurrent writers: a reader by the bound misses nothing, and each mistake is told."""

import random
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest
from pauseledger.domain.errors import InteractionConfigurationError, LedgerTooNew, StoreUnavailable
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.postgres_database import database
from pauseledger.infrastructure.testing import TemporaryPostgres, refused, row

KEY = "originator_id, originator_version, topic, state"
INSERT = f"INSERT INTO pauseledger.stored_events ({KEY}) VALUES (%s, %s, 't', '')"
EVENTS, POSITIONS = "pauseledger.stored_events", "pauseledger.stored_events_notification_id_seq"


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
def writing(pg_dsn):
    """Another writer, in a transaction of its own."""
    with psycopg.connect(pg_dsn) as connection:
        yield connection


def begin(connection, version=1, stream=None):
    connection.execute(INSERT, (stream or uuid4(), version))


def ids(recorder, after=0):
    return [n.id for n in recorder.walk(after)]


# A tail reader among writers


class Tail:
    """Four writers with delays between insert and commit and random rollbacks, and one reader that follows them."""

    WRITERS, SECONDS = 4, 2.5

    def __init__(self, dsn, read, *, before=None):
        self.dsn, self.read, self.before = dsn, read, before
        self.stop = threading.Event()
        self.kept = [[] for _ in range(self.WRITERS)]

    def write(self, kept, chance):
        with psycopg.connect(self.dsn) as connection:
            if self.before:
                connection.execute(self.before)
                connection.commit()
            while not self.stop.is_set():
                rows = [(uuid4(), chance.randint(1, 3)) for _ in range(chance.randint(1, 2))]
                for stream, versions in rows:
                    for version in range(1, versions + 1):
                        begin(connection, version, stream)
                time.sleep(chance.choice([0, 0.001, 0.004]) * chance.random())
                if chance.random() < 0.2:
                    connection.rollback()
                    continue
                connection.commit()
                kept += [(stream, version) for stream, versions in rows for version in range(1, versions + 1)]
                # Most of the time nobody holds a low floor: a wrong reader cannot hide behind one.
                time.sleep(0.004 * chance.random())

    def follow(self):
        """Return how many rows were missed; what was read came once and in order."""
        threads = [
            threading.Thread(target=self.write, args=(kept, random.Random(number)))
            for number, kept in enumerate(self.kept)
        ]
        for thread in threads:
            thread.start()
        seen, end = [], time.monotonic() + self.SECONDS
        while time.monotonic() < end:
            seen += self.read(seen[-1][0] if seen else 0)
        self.stop.set()
        for thread in threads:
            thread.join()
        while more := self.read(seen[-1][0] if seen else 0):
            seen += more
        positions = [position for position, _ in seen]
        assert positions == sorted(set(positions))
        kept = {place for mine in self.kept for place in mine}
        found = {place for _, place in seen}
        assert found <= kept
        assert len(kept) > 100
        return len(kept - found)


def as_read(rows):
    return [(n.id, (n.originator_id, n.originator_version)) for n in rows]


def as_headers(fronts):
    return [(position, (UUID(stream), version)) for stream, version, _, _, position in fronts]


def test_a_follower_misses_nothing(pg_dsn, recorder):
    def read(after):
        return as_read(recorder.select_notifications(after, 100, inclusive_of_start=False))

    assert Tail(pg_dsn, read).follow() == 0


def test_a_follower_of_headers_misses_nothing(pg_dsn, recorder):
    assert Tail(pg_dsn, lambda after: as_headers(recorder.headers(after, 100))).follow() == 0


def test_a_follower_up_to_the_newest_position_misses_nothing(pg_dsn, recorder):
    def read(after):
        newest = recorder.max_notification_id()
        return as_read(recorder.select_notifications(after, 100, newest, inclusive_of_start=False))

    assert Tail(pg_dsn, read).follow() == 0


PLAIN = f"SELECT notification_id, originator_id, originator_version FROM {EVENTS} WHERE notification_id > %s"


def reading(connection, statement):
    def read(after):
        found = connection.execute(f"{statement} ORDER BY notification_id LIMIT 100", (after,)).fetchall()
        return [(position, (stream, version)) for position, stream, version in found]

    return read


def test_without_the_bound_it_misses_some(pg_dsn, owner):
    """As a stock reader reads: the table, and nothing else."""
    assert Tail(pg_dsn, reading(owner, PLAIN)).follow() > 0


def test_without_the_floors_it_misses_some(pg_dsn, recorder, owner):
    owner.execute(f"ALTER TABLE {EVENTS} DISABLE TRIGGER stored_events_floor")
    assert Tail(pg_dsn, lambda after: as_headers(recorder.headers(after, 100))).follow() > 0


# The mistakes, one by one


def test_bound_and_rows_in_one_statement_would_miss_some(owner, pg_dsn):
    """Why the rows are a statement of their own: here the commit comes while the bound is being read."""
    owner.execute(
        "CREATE FUNCTION slow_bound() RETURNS bigint LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(0.5); RETURN pauseledger.bound(); END $$"
    )
    with psycopg.connect(pg_dsn, autocommit=True) as reader:
        wrong = threading.Thread(target=lambda: seen.append(reader.execute(statement).fetchall()))
        seen, statement = [], ""
        statement = (
            f"WITH b AS MATERIALIZED (SELECT slow_bound() AS b) SELECT b, (SELECT count(*) FROM {EVENTS}) FROM b"
        )
        wrong.start()
        time.sleep(0.2)
        begin(owner)
        wrong.join()
    # It was told that all up to position 1 is there, and did not see it.
    assert seen == [[(1, 0)]]


def test_the_readers_are_volatile_and_the_start_says_so_where_one_is_not(recorder, owner):
    signature = "pauseledger.read_log(bigint, bigint, text[], integer, bigint)"
    owner.execute(f"ALTER FUNCTION {signature} STABLE")
    told(recorder, "function read_log")


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_reader_of_one_snapshot_is_turned_away(owner, level):
    owner.execute(f"SET default_transaction_isolation = '{level.lower()}'")
    for call in ("bound()", "newest_position()", "read_log(0, 9, NULL, NULL, 9)"):
        with pytest.raises(psycopg.Error) as caught:
            owner.execute(f"SELECT * FROM pauseledger.{call}")
        assert caught.value.sqlstate == "PLF04"


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_writer_may_use_any_level(recorder, writing, level):
    writing.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    begin(writing)
    recorder.insert_events([row(uuid4(), 1)])
    assert ids(recorder) == []
    writing.commit()
    assert ids(recorder) == [1, 2]


def test_the_last_value_is_read_before_the_locks(owner):
    """The order within the function, as its text has it: it cannot be shown from outside without stopping it there."""
    (text,) = owner.execute("SELECT prosrc FROM pg_proc WHERE proname = 'bound'").fetchone()
    assert text.index("pg_sequence_last_value") < text.index("FROM pg_locks")


def test_an_empty_sequence_is_nought(recorder, owner, writing):
    assert owner.execute(f"SELECT last_value FROM {POSITIONS}").fetchone() == (1,)
    assert owner.execute("SELECT pauseledger.bound()").fetchone() == (0,)
    begin(writing)
    assert owner.execute("SELECT floor FROM pauseledger.floor_holders").fetchall() == [(0,)]
    assert recorder.max_notification_id() is None
    writing.commit()
    assert recorder.max_notification_id() == 1


def test_a_commit_is_on_the_disk_before_it_is_told(owner):
    owner.execute("SET synchronous_commit = off")
    with owner.transaction():
        begin(owner)
        assert owner.execute("SHOW synchronous_commit").fetchone() == ("on",)


# What the bound does


def test_nothing_above_a_floor_is_told_and_writers_do_not_wait(recorder, writing):
    recorder.insert_events([row(uuid4(), 1)])
    begin(writing)
    recorder.insert_events([row(uuid4(), 1), row(uuid4(), 1)])
    assert (ids(recorder), recorder.max_notification_id(), len(recorder.headers(0, 9))) == ([1], 1, 1)
    assert recorder.select_notifications(3, 1, 3) == []
    writing.commit()
    assert (ids(recorder), recorder.max_notification_id()) == ([1, 2, 3, 4], 4)


def test_a_rolled_back_position_is_passed(recorder, writing):
    begin(writing)
    recorder.insert_events([row(uuid4(), 1)])
    writing.rollback()
    assert ids(recorder) == [2]


def test_a_savepoint_that_was_rolled_back_gives_its_floor_back(recorder, writing):
    recorder.insert_events([row(uuid4(), 1)])
    writing.execute("SAVEPOINT here")
    begin(writing)
    writing.execute("ROLLBACK TO SAVEPOINT here")
    recorder.insert_events([row(uuid4(), 1)])
    assert ids(recorder) == [1, 3]
    begin(writing)
    recorder.insert_events([row(uuid4(), 1)])
    assert ids(recorder) == [1, 3]
    writing.commit()
    assert ids(recorder) == [1, 3, 4, 5]


MERGE = (
    f"MERGE INTO {EVENTS} e USING (SELECT 1) s ON false WHEN NOT MATCHED THEN"
    f" INSERT ({KEY}) VALUES (gen_random_uuid(), 1, 't', '')"
)
AFTER = (
    f"DROP TRIGGER stored_events_floor ON {EVENTS}; CREATE TRIGGER stored_events_floor AFTER INSERT ON {EVENTS}"
    f" EXECUTE FUNCTION pauseledger.take_floor(); ALTER TABLE {EVENTS} ENABLE ALWAYS TRIGGER stored_events_floor"
)


@pytest.mark.parametrize(
    "way",
    [
        f"INSERT INTO {EVENTS} ({KEY}) SELECT gen_random_uuid(), 1, 't', '' FROM generate_series(1, 2)",
        f"WITH made AS (INSERT INTO {EVENTS} ({KEY}) VALUES (gen_random_uuid(), 1, 't', '') RETURNING 1) SELECT * FROM made",
        MERGE,
        f"INSERT INTO {EVENTS} ({KEY}) VALUES (gen_random_uuid(), 1, 't', '') ON CONFLICT DO NOTHING",
        f"COPY {EVENTS} ({KEY}) FROM STDIN",
    ],
    ids=["select", "with", "merge", "upsert", "copy"],
)
@pytest.mark.parametrize("replica", [False, True])
def test_every_way_to_insert_takes_a_floor_first(recorder, writing, way, replica):
    if replica:
        writing.execute("SET session_replication_role = replica")
    if way.startswith("COPY"):
        with writing.cursor().copy(way) as copy:
            copy.write_row((uuid4(), 1, "t", ""))
    else:
        writing.execute(way)
    recorder.insert_events([row(uuid4(), 1)])
    assert ids(recorder) == []
    writing.commit()
    assert len(ids(recorder)) > 1


def test_a_key_is_half_a_position_and_wraps(recorder, owner, writing):
    owner.execute(f"SELECT setval('{POSITIONS}', {(1 << 32) - 2})")
    recorder.insert_events([row(uuid4(), 1)])
    begin(writing)
    recorder.insert_events([row(uuid4(), 1)])
    assert ids(recorder) == [(1 << 32) - 1]
    assert owner.execute("SELECT floor FROM pauseledger.floor_holders").fetchall() == [((1 << 32) - 1,)]
    writing.commit()
    recorder.insert_events([row(uuid4(), 1)])
    assert ids(recorder) == [(1 << 32) - 1, 1 << 32, (1 << 32) + 1, (1 << 32) + 2]


@pytest.mark.parametrize("last", [(1 << 31) - 2, (1 << 31) + 5, (1 << 33) + (1 << 31) - 1])
def test_a_floor_is_told_wherever_the_halves_part(recorder, owner, writing, last):
    owner.execute(f"SELECT setval('{POSITIONS}', {last})")
    begin(writing)
    recorder.insert_events([row(uuid4(), 1) for _ in range(4)])
    assert ids(recorder) == []
    writing.commit()
    assert ids(recorder) == [last + number for number in range(1, 6)]


def test_a_foreign_exclusive_lock_is_an_error_at_once(recorder, owner, writing):
    (table,) = owner.execute(f"SELECT '{EVENTS}'::regclass::oid::bigint::bit(32)::integer").fetchone()
    writing.execute("SELECT pg_advisory_xact_lock(%s, 0)", (table,))
    with refused(StoreUnavailable) as caught:
        recorder.insert_events([row(uuid4(), 1)])
    assert caught[0].outcome == "not_started"
    assert "advisory lock" in str(caught[0])
    writing.rollback()
    recorder.insert_events([row(uuid4(), 1)])


def test_locks_of_other_tables_and_databases_hold_nobody_up(pg, recorder, owner, writing):
    (table,) = owner.execute(f"SELECT '{EVENTS}'::regclass::oid::bigint::bit(32)::integer").fetchone()
    writing.execute("SELECT pg_advisory_xact_lock_shared(%s, 0)", (table + 1,))
    with psycopg.connect(pg.dsn()) as elsewhere:
        elsewhere.execute("SELECT pg_advisory_xact_lock_shared(%s, 0)", (table,))
        recorder.insert_events([row(uuid4(), 1)])
        assert ids(recorder) == [1]


def test_a_transaction_somebody_forgot_may_not_take_a_floor(recorder, owner, writing):
    """After 30 seconds; here after less, by the function's own text."""
    (text,) = owner.execute("SELECT pg_get_functiondef('pauseledger.take_floor'::regproc)").fetchone()
    assert text.count("interval '30 seconds'") == 1
    owner.execute(text.replace("interval '30 seconds'", "interval '0.2 seconds'"))
    begin(writing)
    time.sleep(0.3)
    with pytest.raises(psycopg.Error) as caught:
        begin(writing)
    assert caught.value.sqlstate == "PLF01"
    writing.rollback()
    begin(writing)


def test_a_view_names_who_holds_the_floor(recorder, owner, writing):
    recorder.insert_events([row(uuid4(), 1)])
    begin(writing)
    [(floor, pid, role, since)] = owner.execute(
        "SELECT floor, pid, role, since FROM pauseledger.floor_holders"
    ).fetchall()
    assert (floor, pid, role) == (1, writing.info.backend_pid, "pauseledger")
    assert since is not None
    writing.rollback()
    assert owner.execute("SELECT * FROM pauseledger.floor_holders").fetchall() == []


def test_two_phases_with_a_crash_between_keep_the_floor():
    with TemporaryPostgres(durable=True, max_prepared_transactions="4") as server:
        recorder = PostgresRecorder(server.dsn(), pool_timeout=10)
        recorder.migrate()
        with psycopg.connect(server.dsn(), autocommit=True) as owner:
            owner.execute("BEGIN")
            begin(owner)
            owner.execute("PREPARE TRANSACTION 'theirs'")
        recorder.insert_events([row(uuid4(), 1)])
        assert ids(recorder) == []
        server.restart("immediate")
        recorder.insert_events([row(uuid4(), 1)])
        assert ids(recorder) == []
        with psycopg.connect(server.dsn(), autocommit=True) as owner:
            held = owner.execute("SELECT floor, pid, prepared_as FROM pauseledger.floor_holders").fetchall()
            assert held == [(0, None, "theirs")]
            owner.execute("COMMIT PREPARED 'theirs'")
        assert len(ids(recorder)) == 3
        recorder.close()


# The check at start


def told(recorder, *words):
    with refused(InteractionConfigurationError) as caught:
        recorder.identity()
    assert all(word in str(caught[0]) for word in words), str(caught[0])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (f"ALTER SEQUENCE {POSITIONS} CACHE 20", "CACHE 1"),
        (f"ALTER SEQUENCE {POSITIONS} CYCLE", "NO CYCLE"),
        (f"ALTER SEQUENCE {POSITIONS} INCREMENT 2", "INCREMENT 1"),
        (f"ALTER TABLE {EVENTS} ALTER notification_id SET GENERATED BY DEFAULT", "ALWAYS"),
        (f"ALTER TABLE {EVENTS} DISABLE TRIGGER stored_events_floor", "stored_events_floor"),
        (f"ALTER TABLE {EVENTS} ENABLE TRIGGER stored_events_floor", "stored_events_floor"),
        (f"ALTER TABLE {EVENTS} ENABLE REPLICA TRIGGER stored_events_in_turn", "stored_events_in_turn"),
        (f"DROP TRIGGER stored_events_append_only ON {EVENTS}", "stored_events_append_only"),
        (f"ALTER TABLE {EVENTS} SET UNLOGGED", "unlogged"),
        (f"ALTER TABLE {EVENTS} DROP CONSTRAINT stored_events_stream", "stored_events_stream"),
        ("ALTER FUNCTION pauseledger.take_floor() SECURITY INVOKER", "take_floor"),
        ("ALTER FUNCTION pauseledger.bound() RESET search_path", "bound"),
        ("ALTER FUNCTION pauseledger.bound() STABLE", "bound"),
        ("ALTER FUNCTION pauseledger.bound() OWNER TO somebody", "bound"),
        (AFTER, "stored_events_floor"),
    ],
)
def test_a_table_that_breaks_a_rule_is_not_opened(recorder, owner, change, word):
    owner.execute("DO $$ BEGIN CREATE ROLE somebody; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    recorder.identity()
    owner.execute(change)
    told(recorder, word)


# A ledger of revision 1


@contextmanager
def of_revision_1(pg):
    """A ledger as the first version made it, with rows, and with a role that appends."""
    name = pg.fresh_database()
    dsn = pg.dsn(name)
    made = database(
        dsn,
        schema="pauseledger",
        pool_size=1,
        connect_timeout=5,
        statement_timeout=5,
        pool_timeout=5,
        pooled=False,
    )
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute("CREATE SCHEMA pauseledger")
        owner.execute(made.compose(Path(__file__).with_name("postgres_schema_1.sql").read_text()))
        owner.execute(
            "INSERT INTO pauseledger.ledger (ledger_id, identity_key, epoch, schema_revision)"
            " VALUES (gen_random_uuid(), sha256('x'), 7, 1)"
        )
        owner.execute("DO $$ BEGIN CREATE ROLE app LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        owner.execute(
            "GRANT USAGE ON SCHEMA pauseledger TO app;"
            f"GRANT SELECT, INSERT ({KEY}) ON {EVENTS} TO app;"
            "GRANT SELECT ON pauseledger.ledger TO app; GRANT SELECT, INSERT, UPDATE ON pauseledger.lease TO app"
        )
        stream = uuid4()
        for version in (1, 2):
            begin(owner, version, stream)
        yield dsn, name, owner, stream
    pg.drop_database(name)


def test_migrate_brings_a_ledger_of_revision_1_over(pg):
    with of_revision_1(pg) as (dsn, name, owner, stream):
        before = owner.execute(f"SELECT * FROM {EVENTS} ORDER BY notification_id").fetchall()
        (was,) = owner.execute("SELECT ledger_id FROM pauseledger.ledger").fetchone()
        app = PostgresRecorder(pg.dsn(name, "app"))
        for call in (app.identity, lambda: app.load([stream])):
            with refused(StoreUnavailable) as caught:
                call()
            assert "pauseledger migrate" in str(caught[0])
        recorder = PostgresRecorder(dsn)
        assert recorder.migrate()[0] == "brought the tables in pauseledger from schema@1 to schema@4"
        assert recorder.migrate() == []
        assert recorder.altered_tables() == []
        assert owner.execute(f"SELECT * FROM {EVENTS} ORDER BY notification_id").fetchall() == before
        assert app.identity().ledger_id == was
        assert app.load([stream]).epoch == 7
        assert ids(app) == [1, 2]
        assert app.insert_events([row(stream, 3)]) == [3]
        assert app.max_notification_id() == 3
        recorder.close()
        app.close()


def test_migrate_waits_for_writers_that_are_under_way(pg):
    with of_revision_1(pg) as (dsn, _, _, _), psycopg.connect(dsn) as writing:
        begin(writing)
        recorder = PostgresRecorder(dsn)
        migrating = threading.Thread(target=recorder.migrate)
        migrating.start()
        time.sleep(0.2)
        assert migrating.is_alive()
        writing.commit()
        migrating.join()
        assert ids(recorder) == [1, 2, 3]
        recorder.close()


def test_an_older_product_leaves_the_new_tables_alone(recorder, owner):
    """What it does with a revision it does not know is what this one does with the next."""
    owner.execute("UPDATE pauseledger.ledger SET schema_revision = schema_revision + 1")
    for call in (recorder.identity, recorder.migrate, lambda: recorder.load([])):
        with pytest.raises(LedgerTooNew):
            call()
