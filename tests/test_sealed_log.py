"""The sealed log on every store: dense leaves, one active sealer, late rows, heads, and what nobody may change."""

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from uuid import uuid4

import psycopg
import pytest
from pauseledger.domain.errors import InteractionConfigurationError, StoreUnavailable
from pauseledger.infrastructure.following import Following
from pauseledger.infrastructure.memory import MemoryRecorder
from pauseledger.infrastructure.merkle import Edge, Unproved, leaf_hash, verify_consistency
from pauseledger.infrastructure.notes import Checkpoint, Signer
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.sealed import Tip, sealed_rows
from pauseledger.infrastructure.sealer import Sealer, prove, prove_consistency
from pauseledger.infrastructure.sqlite import SQLiteRecorder
from pauseledger.infrastructure.testing import row

SIGNER = Signer("pauseledger/one", bytes(range(32)))


@pytest.fixture(scope="module")
def database(pg):
    """One database for all of these tests; a schema for each is made in a tenth of the time."""
    name = pg.fresh_database()
    yield pg.dsn(name)
    pg.drop_database(name)


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def recorder(request, tmp_path):
    if request.param == "postgresql":
        recorder = PostgresRecorder(request.getfixturevalue("database"), schema=f"s{uuid4().hex}")
        recorder.migrate()
    else:
        recorder = MemoryRecorder() if request.param == "memory" else SQLiteRecorder(tmp_path / "ledger.db")
    yield recorder
    recorder.close()


def rows(count, start=0):
    """Rows whose states differ; what stands where a digest would is their leaf."""
    return [row(uuid4(), 1, b"PLF1" + (start + at).to_bytes(32, "big") + b"rest") for at in range(count)]


def root_of(recorder):
    edge = Edge()
    edge.add([leaf_hash(one.state[4:36]) for one in recorder.walk()])
    return edge.root()


def sealer(recorder, **options):
    return Sealer(sealed_rows(recorder), SIGNER.name, SIGNER, **options)


def head_of(note):
    return Checkpoint.open(note, [SIGNER.verifier])


class TestOnEveryStore:
    def test_rows_become_leaves_in_the_order_of_the_log(self, recorder):
        positions = recorder.insert_events(rows(600))
        done = sealer(recorder, batch=70).seal()
        assert (done.sealed, done.size, list(done.late)) == (600, 600, [])
        assert head_of(done.head) == Checkpoint(SIGNER.name, 600, root_of(recorder))
        sealed = sealed_rows(recorder)
        assert [(leaf.index, leaf.position) for leaf in sealed.leaves(0, 1000)] == list(enumerate(sorted(positions)))
        assert sealed.tip() == Tip(600, max(positions))
        assert sealed.indexes([*positions[:3], 10**9]) == {p: sorted(positions).index(p) for p in positions[:3]}
        assert sealed.tiles(1, 0, 9) == [(at, sealed.tile(1, 0)[at]) for at in range(2)]
        assert sealer(recorder).seal() == done.__class__(0, 600, [], done.head)

    def test_each_row_is_proved_under_each_head_that_covers_it(self, recorder):
        recorder.insert_events(rows(270))
        first = sealer(recorder).seal().head
        recorder.insert_events(rows(60, 270))
        second = sealer(recorder).seal().head
        sealed = sealed_rows(recorder)
        for note, size in ((first, 270), (second, 330)):
            for index, one in list(enumerate(recorder.walk()))[:size:29]:
                assert prove(sealed, index, note).verify(leaf_hash(one.state[4:36]), [SIGNER.verifier]).size == size
        with pytest.raises(ValueError, match="no leaf 270"):
            prove(sealed, 270, first)
        older, newer = head_of(first), head_of(second)
        verify_consistency(270, 330, older.root, newer.root, prove_consistency(sealed, older, newer))
        with pytest.raises(Unproved, match="other way round"):
            prove_consistency(sealed, newer, older)
        assert [(head.size, head.checkpoint) for head in sealed.heads(0, 9)] == [(270, first), (330, second)]
        assert [head.size for head in sealed.heads(270, 9)] == [330] == [sealed.newest_head().size]

    def test_of_many_sealers_one_seals_each_row(self, recorder):
        recorder.insert_events(rows(400))

        def work(_):
            one = sealer(recorder, batch=20)
            return sum(one.step() for _ in range(25))

        with ThreadPoolExecutor(4) as threads:
            assert sum(threads.map(work, range(4))) <= 400
        done = sealer(recorder).seal()
        assert done.size == 400
        assert head_of(done.head).root == root_of(recorder)

    def test_a_tip_that_has_moved_is_not_written_behind(self, recorder):
        recorder.insert_events(rows(2))
        sealed = sealed_rows(recorder)
        assert sealed.append(Tip(0, 0), [(1, leaf_hash(b"a"))], [])
        assert not sealed.append(Tip(0, 0), [(1, leaf_hash(b"a"))], [])
        assert not sealed.append(Tip(1, 0), [(2, leaf_hash(b"a"))], [])
        assert sealed.tip() == Tip(1, 1)

    def test_without_a_key_rows_are_sealed_and_no_head_is_signed(self, recorder):
        recorder.insert_events(rows(3))
        done = Sealer(sealed_rows(recorder), SIGNER.name).seal()
        assert (done.size, done.head) == (3, None)
        assert sealer(recorder).seal().head is not None

    def test_an_empty_log_has_no_head(self, recorder):
        assert sealer(recorder).seal() == sealer(recorder).seal()
        assert sealer(recorder).seal().size == 0
        assert sealed_rows(recorder).newest_head() is None

    def test_a_head_kept_outside_tells_of_a_rollback_and_of_a_fork(self, recorder):
        recorder.insert_events(rows(5))
        done = sealer(recorder).seal()
        sealer(recorder).must_begin_with(done.head)
        larger = SIGNER.sign(Checkpoint(SIGNER.name, 6, bytes(32)).text())
        with pytest.raises(Unproved, match="rolled back"):
            sealer(recorder).must_begin_with(larger)
        other = SIGNER.sign(Checkpoint(SIGNER.name, 4, bytes(32)).text())
        with pytest.raises(Unproved, match="forked"):
            sealer(recorder).must_begin_with(other)
        foreign = SIGNER.sign(Checkpoint("pauseledger/two", 4, bytes(32)).text())
        with pytest.raises(Unproved, match="of pauseledger/two"):
            sealer(recorder).must_begin_with(foreign)

    def test_no_head_is_signed_that_leaves_the_newest_one_behind(self, recorder):
        recorder.insert_events(rows(5))
        sealer(recorder).seal()
        sealed_rows(recorder).keep(6, SIGNER.sign(Checkpoint(SIGNER.name, 6, bytes(32)).text()))
        recorder.insert_events(rows(5, 5))
        with pytest.raises(Unproved, match="forked"):
            sealer(recorder).seal()


def late_sqlite(path):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO stored_events VALUES (2, ?, 1, 'test.happened@1', ?)", (uuid4().hex, b"PLF1" + b"L" * 32)
        )


def test_a_late_row_becomes_a_late_leaf_and_is_told_sqlite(tmp_path):
    recorder = SQLiteRecorder(tmp_path / "ledger.db")
    recorder.insert_events(rows(1))
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection, connection:
        connection.execute("UPDATE sqlite_sequence SET seq = 5 WHERE name = 'stored_events'")
    recorder.insert_events(rows(2, 1))
    assert sealer(recorder).seal().size == 3
    late_sqlite(tmp_path / "ledger.db")
    done = sealer(recorder).seal()
    assert (done.size, done.sealed, list(done.late)) == (4, 1, [2])
    assert [leaf.position for leaf in sealed_rows(recorder).leaves(0, 9)] == [1, 6, 7, 2]
    assert sealed_rows(recorder).tip() == Tip(4, 7)
    recorder.close()


def test_a_late_row_becomes_a_late_leaf_and_is_told_postgres(pg_dsn):
    recorder = PostgresRecorder(pg_dsn)
    recorder.insert_events(rows(1))
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        owner.execute("ALTER SEQUENCE pauseledger.stored_events_notification_id_seq RESTART 5")
        recorder.insert_events(rows(2, 1))
        assert sealer(recorder).seal().size == 3
        owner.execute(
            "INSERT INTO pauseledger.stored_events (originator_id, originator_version, topic, state, notification_id)"
            " OVERRIDING SYSTEM VALUE VALUES (gen_random_uuid(), 1, 'test.happened@1', %s, 2)",
            (b"PLF1" + b"L" * 32,),
        )
    done = sealer(recorder).seal()
    assert (done.size, done.sealed, list(done.late)) == (4, 1, [2])
    assert [leaf.position for leaf in sealed_rows(recorder).leaves(0, 9)] == [1, 5, 6, 2]
    recorder.close()


FORBIDDEN = [
    "UPDATE {}sealed SET leaf_hash = leaf_hash",
    "UPDATE {}sealed SET notification_id = 9 WHERE leaf_index = 0",
    "DELETE FROM {}sealed",
    "UPDATE {}sealed_tiles SET hash = hash",
    "DELETE FROM {}sealed_tiles",
    "UPDATE {}tree_heads SET checkpoint = ''",
    "DELETE FROM {}tree_heads",
    "DELETE FROM {}sealing",
    "UPDATE {}sealing SET size = size",
    "UPDATE {}sealing SET size = size - 1",
    "UPDATE {}sealing SET size = size + 1",
    "UPDATE {}sealing SET size = 301, position = 0",
    "INSERT INTO {}sealing (one, size, position) VALUES (2, 0, 0)",
]


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_what_is_sealed_stays_on_sqlite(statement, tmp_path):
    recorder = SQLiteRecorder(tmp_path / "ledger.db")
    recorder.insert_events(rows(300))
    sealer(recorder).seal()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        with pytest.raises(sqlite3.IntegrityError, match="pauseledger"):
            connection.execute(statement.format(""))
        for table in ("sealed", "sealed_tiles", "tree_heads", "sealing"):
            with pytest.raises(sqlite3.IntegrityError, match="pauseledger"):
                connection.execute(f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}")
    recorder.close()


def test_what_is_sealed_stays_on_postgres_whoever_asks(pg_dsn):
    recorder = PostgresRecorder(pg_dsn)
    recorder.insert_events(rows(300))
    sealer(recorder).seal()
    truncates = [f"TRUNCATE {{}}{table} CASCADE" for table in ("sealed", "sealed_tiles", "tree_heads", "sealing")]
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        owner.execute("SET session_replication_role = replica")
        for statement in (*FORBIDDEN, *truncates):
            with pytest.raises(psycopg.Error) as caught:
                owner.execute(statement.format("pauseledger."))
            assert caught.value.sqlstate == "PLA01", statement
    recorder.close()


def test_the_app_seals_and_has_no_right_to_more(pg, pg_dsn):
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        owner.execute("DO $$ BEGIN CREATE ROLE app LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    PostgresRecorder(pg_dsn).migrate("app")
    database = psycopg.conninfo.conninfo_to_dict(pg_dsn)["dbname"]
    app = PostgresRecorder(pg.dsn(database, "app"))
    app.insert_events(rows(300))
    assert sealer(app).seal().size == 300
    with psycopg.connect(pg.dsn(database, "app"), autocommit=True) as session:
        for statement in (*FORBIDDEN[:8], FORBIDDEN[-1], "TRUNCATE {}sealed", "UPDATE {}sealing SET one = 1"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(statement.format("pauseledger."))
    app.close()


def test_a_ledger_whose_sealed_log_lost_a_guard_does_not_open(pg_dsn):
    recorder = PostgresRecorder(pg_dsn)
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        for table in ("sealed", "sealed_tiles", "tree_heads", "sealing"):
            owner.execute(f"ALTER TABLE pauseledger.{table} DISABLE TRIGGER {table}_append_only")
            with pytest.raises(InteractionConfigurationError, match=f"{table}_append_only"):
                recorder.identity()
            owner.execute(f"ALTER TABLE pauseledger.{table} ENABLE ALWAYS TRIGGER {table}_append_only")
    recorder.identity()
    recorder.close()


def test_migrate_brings_an_older_file_over(tmp_path):
    recorder = SQLiteRecorder(tmp_path / "ledger.db")
    recorder.insert_events(rows(3))
    was = recorder.identity()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection, connection:
        for table in ("sealed", "sealed_tiles", "tree_heads", "sealing", "vault"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("UPDATE ledger SET schema_revision = 2")
    for call in (recorder.identity, lambda: recorder.load([])):
        with pytest.raises(StoreUnavailable, match="pauseledger migrate"):
            call()
    assert recorder.migrate() == ["brought the tables from schema@2 to schema@4"]
    assert recorder.migrate() == []
    assert recorder.altered_tables() == []
    assert recorder.identity() == was
    assert sealer(recorder).seal().size == 3
    recorder.close()


def test_migrate_brings_a_schema_of_revision_2_over(pg, pg_dsn):
    recorder = PostgresRecorder(pg_dsn)
    recorder.insert_events(rows(3))
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        owner.execute("DO $$ BEGIN CREATE ROLE app LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        recorder.migrate("app")
        owner.execute(
            "DROP TABLE pauseledger.sealed, pauseledger.sealed_tiles, pauseledger.tree_heads, pauseledger.sealing;"
            "DROP TABLE pauseledger.vault; DROP FUNCTION pauseledger.guard_vault();"
            "DROP FUNCTION pauseledger.seal_forward(), pauseledger.record_reading(bigint, bytea);"
            "UPDATE pauseledger.ledger SET schema_revision = 2"
        )
    with pytest.raises(StoreUnavailable, match="pauseledger migrate"):
        recorder.identity()
    assert recorder.migrate() == ["brought the tables in pauseledger from schema@2 to schema@4"]
    app = PostgresRecorder(pg.dsn(psycopg.conninfo.conninfo_to_dict(pg_dsn)["dbname"], "app"))
    assert sealer(app).seal().size == 3
    app.close()
    recorder.close()


async def test_a_follower_waits_once_less_than_a_batch_was_there(monkeypatch):
    """Under load there is always a row more: a follower that went on would seal row by row, beside all it slows down."""
    done, counts = [], iter([10, 10, 3, 1, 0])

    class Sealing:
        batch = 10

        def tick(self):
            done.append("tick")
            return next(counts)

    async def sleep(_):
        done.append("wait")
        if done.count("wait") == 4:
            raise asyncio.CancelledError

    async def run(work):
        return work()

    monkeypatch.setattr("pauseledger.infrastructure.following.asyncio.sleep", sleep)
    following = Following(None, None, run, None, sweep_seconds=1.0, notary=Sealing())
    with pytest.raises(asyncio.CancelledError):
        await following._seal(following._notary)
    assert " ".join(done) == "wait tick tick tick wait tick wait tick wait"
