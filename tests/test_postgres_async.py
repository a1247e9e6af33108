"""The event loop's own way to PostgreSQL: the recorder's suite, the same rows, and the same word for every fault."""

import asyncio
import contextlib
import socket
import threading
from collections import Counter
from uuid import uuid4

import psycopg
import pytest
from pauseledger.domain import redeeming
from pauseledger.domain.axes import Scope
from pauseledger.domain.errors import AlreadyConsumed, LedgerTooNew, ScopeMismatch, StoreUnavailable, VersionConflict
from pauseledger.domain.redeeming import Redemption
from pauseledger.infrastructure.executor import Executor
from pauseledger.infrastructure.gathering import GatheredStreams
from pauseledger.infrastructure.pauses import ThreadedStreams
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.postgres_async import PostgresStreams
from pauseledger.infrastructure.store import StreamConflict
from pauseledger.infrastructure.stories import ANSWER, Stage, asked
from pauseledger.infrastructure.testing import RecorderConformance, TemporaryPostgres, refused, row
from psycopg.conninfo import make_conninfo

KEY = "originator_id, originator_version, topic, state"
INSERT = f"INSERT INTO pauseledger.stored_events ({KEY}) VALUES (%s, %s, 't', '')"


@pytest.fixture
def owner(pg_dsn):
    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        yield connection


class OverALoop(PostgresRecorder):
    """A recorder that decides over the streams of an event loop, and is read by its threads."""

    def __init__(self, dsn, loop, **options):
        super().__init__(dsn, **options)
        self.loop, self.streams = loop, PostgresStreams(self.database)

    def wait(self, made):
        return asyncio.run_coroutine_threadsafe(made, self.loop).result(60)

    def insert_events(self, stored_events, **_):
        return self.wait(self.streams.append(stored_events, mints=False)).positions if stored_events else []

    def load(self, streams):
        return self.wait(self.streams.load(streams))

    def renew(self, pause, fence, seconds):
        return self.wait(self.streams.renew(pause, fence, seconds))

    def close(self):
        self.wait(self.streams.close())
        super().close()


@pytest.fixture
def loop():
    """An event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class TestStreams(RecorderConformance):
    """The recorders' own suite, over the loop."""

    @pytest.fixture
    def recorder(self, pg_dsn, loop):
        recorder = OverALoop(pg_dsn, loop)
        yield recorder
        recorder.close()


@pytest.fixture(params=["threads", "loop", "together"])
async def streams(request, pg_dsn):
    """Every way to the streams of one database."""
    executor, recorder = Executor(4), PostgresRecorder(pg_dsn)
    ways = {
        "threads": ThreadedStreams(recorder, executor),
        "loop": PostgresStreams(recorder.database),
        "together": GatheredStreams(PostgresStreams(recorder.database), lanes=1),
    }
    yield ways[request.param]
    for way in ways.values():
        await way.close()
    recorder.close()
    executor.close()


async def test_every_way_finds_what_another_wrote(streams, pg_dsn, owner):
    recorder, stream = PostgresRecorder(pg_dsn), uuid4()
    rows = [row(stream, version, bytes([version])) for version in range(1, 8)]
    assert (await streams.append(rows[:1], mints=True)).positions == [1]
    assert recorder.insert_events(rows[1:2]) == [2]
    # Listed backward, and more than one statement has places for.
    appended = await streams.append(rows[:1:-1], mints=True)
    assert (appended.positions, appended.epoch) == ([7, 6, 5, 4, 3], recorder.identity().epoch)
    found = await streams.load([stream])
    assert found == type(found)(recorder.load([stream]).rows, {}, found.epoch, found.now)
    assert [event.state for event in found.rows] == [event.state for event in rows]
    assert (await streams.newest(stream)).state == b"\x07"
    assert await streams.newest(uuid4()) is None
    recorder.close()


async def test_the_epoch_is_that_of_the_ledger_when_it_was_written(streams, pg_dsn):
    recorder = PostgresRecorder(pg_dsn)
    await streams.append([row(uuid4(), 1)], mints=True)
    drawn = recorder.draw_epoch()
    assert (await streams.append([row(uuid4(), 1)], mints=True)).epoch == drawn
    recorder.close()


async def test_a_newer_ledger_is_told(streams, owner):
    owner.execute("UPDATE pauseledger.ledger SET schema_revision = 99")
    with pytest.raises(LedgerTooNew, match="schema@99"):
        await streams.load([])


async def test_a_taken_version_is_a_conflict_and_the_connection_goes_on(streams):
    stream = uuid4()
    await streams.append([row(stream, 1)], mints=False)
    for _ in range(3):
        with refused(StreamConflict):
            await streams.append([row(stream, 1), row(uuid4(), 1)], mints=False)
    assert len((await streams.load([stream])).rows) == 1


async def test_thirty_two_appends_of_one_version_make_one_row(streams):
    stream = uuid4()
    ends = await asyncio.gather(
        *[streams.append([row(stream, 1, b"%d" % number)], mints=False) for number in range(32)],
        return_exceptions=True,
    )
    assert Counter(type(end).__name__ for end in ends) == {"Appended": 1, "StreamConflict": 31}


# Faults


def end_others(owner):
    owner.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


@pytest.fixture
async def alone(pg_dsn):
    """Streams over a pool of one connection."""
    recorder = PostgresRecorder(pg_dsn, pool_size=1, statement_timeout=0.5, pool_timeout=0.5)
    streams = PostgresStreams(recorder.database)
    yield streams
    await streams.close()


async def test_connections_that_were_ended_while_idle_are_never_used(streams, owner):
    for _ in range(3):
        await asyncio.gather(*[streams.append([row(uuid4(), 1)], mints=False) for _ in range(8)])
        end_others(owner)
    await streams.append([row(uuid4(), 1)], mints=False)


async def test_whoever_is_cancelled_while_a_connection_is_looked_at_gives_it_back(pg_dsn, monkeypatch):
    database = PostgresRecorder(pg_dsn, pool_timeout=1.0).database
    streams = PostgresStreams(database)
    await streams.load([])
    looked_at = asyncio.Event()

    async def never(connection):
        looked_at.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr("pauseledger.infrastructure.postgres_async._still_there", never)
        for _ in range(database.pool_size + 1):
            looked_at.clear()
            loading = asyncio.ensure_future(streams.load([]))
            await looked_at.wait()
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
    assert (await streams.load([])).rows == []
    await streams.close()


async def blind(connection):
    return True


async def test_a_read_that_lost_its_connection_is_tried_once_more(alone, owner, monkeypatch):
    monkeypatch.setattr("pauseledger.infrastructure.postgres_async._still_there", blind)
    await alone.load([])
    end_others(owner)
    assert (await alone.load([])).rows == []


async def test_an_append_that_lost_its_connection_is_not(alone, owner, monkeypatch):
    monkeypatch.setattr("pauseledger.infrastructure.postgres_async._still_there", blind)
    await alone.load([])
    end_others(owner)
    with refused(StoreUnavailable):
        await alone.append([row(uuid4(), 1)], mints=False)
    assert owner.execute("SELECT count(*) FROM pauseledger.stored_events").fetchone() == (0,)
    await alone.append([row(uuid4(), 1)], mints=False)


@contextlib.contextmanager
def held(owner):
    """A stream whose first version somebody else is writing, for as long as the block lasts."""
    stream = uuid4()
    with owner.transaction(force_rollback=True):
        owner.execute(INSERT, (stream, 1))
        yield stream


async def test_a_statement_has_a_deadline(alone, owner):
    with held(owner) as stream, refused(StoreUnavailable) as caught:
        await alone.append([row(stream, 1)], mints=False)
    assert caught[0].outcome == "not_started"
    await alone.append([row(stream, 1)], mints=False)


async def test_a_full_pool_says_so(alone, owner):
    with held(owner) as stream:
        first = asyncio.ensure_future(alone.append([row(stream, 1)], mints=False))
        await asyncio.sleep(0.05)
        alone._database.__dict__["pool_timeout"] = 0.1
        alone._pool.timeout = 0.1
        with refused(StoreUnavailable) as caught:
            await alone.load([])
        assert "no connection within" in str(caught[0])
        assert caught[0].outcome == "not_started"
        await asyncio.gather(first, return_exceptions=True)
    await alone.load([])


async def test_a_caller_that_is_cancelled_leaves_a_pool_that_works(alone, owner):
    with held(owner) as stream:
        task = asyncio.ensure_future(alone.append([row(stream, 1)], mints=False))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    for _ in range(3):
        await alone.append([row(uuid4(), 1)], mints=False)
    assert (await alone.load([stream])).rows == []


class Deaf:
    """Passes bytes between a client and the server's socket, until it goes deaf: then all is taken, and none passed."""

    def __init__(self, server, folder):
        self.server, self.deaf = server, False
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(f"{folder}/.s.PGSQL.5432")
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, server = self.listener.accept()[0], socket.socket(socket.AF_UNIX)
                server.connect(self.server)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self.carry, args=ends, daemon=True).start()

    def carry(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self.deaf:
                    target.sendall(data)


async def test_a_server_of_which_nothing_more_is_heard_leaves_it_unknown(pg, pg_dsn, tmp_path, monkeypatch):
    monkeypatch.setattr("pauseledger.infrastructure.postgres_async.SILENCE", 0)
    between = Deaf(f"{pg.host}/.s.PGSQL.5432", tmp_path)
    recorder = PostgresRecorder(make_conninfo(pg_dsn, host=str(tmp_path)), statement_timeout=0.3, connect_timeout=1)
    streams = PostgresStreams(recorder.database)
    await streams.load([])
    between.deaf = True
    with refused(StoreUnavailable) as caught:
        await streams.append([row(uuid4(), 1)], mints=False)
    assert caught[0].outcome == "unknown"
    between.deaf = False
    await streams.append([row(uuid4(), 1)], mints=False)
    between.listener.close()
    await streams.close()


async def test_a_server_that_is_not_there_says_so_and_no_password(tmp_path):
    recorder = PostgresRecorder(f"host={tmp_path} dbname=none password=hunter2", pool_timeout=0.2)
    streams = PostgresStreams(recorder.database)
    for call in (streams.load([]), streams.append([row(uuid4(), 1)], mints=False), streams.renew(uuid4(), 1, 1)):
        with refused(StoreUnavailable) as caught:
            await call
        assert caught[0].outcome == "not_started"
        assert "hunter2" not in str(caught[0])
    await streams.close()


async def test_closed_streams_say_so(alone):
    await alone.load([])
    await alone.close()
    await alone.close()
    with refused(StoreUnavailable):
        await alone.load([])


async def test_a_restart_a_crash_and_a_standby():
    with TemporaryPostgres() as server:
        recorder = PostgresRecorder(server.dsn(), pool_timeout=10)
        recorder.migrate()
        streams = PostgresStreams(recorder.database)
        for mode in ("fast", "immediate"):
            await streams.append([row(uuid4(), 1)], mints=False)
            server.restart(mode)
        stream = uuid4()
        await streams.append([row(stream, 1)], mints=False)
        server.restart_as_standby()
        assert len((await streams.load([stream])).rows) == 1
        for call in (streams.append([row(uuid4(), 1)], mints=False), streams.renew(uuid4(), 1, 1)):
            with refused(StoreUnavailable) as caught:
                await call
            assert ("read-only" in str(caught[0]), caught[0].outcome) == (True, "not_started")
        await streams.close()


# What a ledger asks of it


@pytest.fixture
def asked_for(monkeypatch):
    """The names of the statements, as they are sent."""
    names, send = [], PostgresStreams._execute

    async def noted(self, statement, *values, **rows):
        names.append(statement)
        return await send(self, statement, *values, **rows)

    monkeypatch.setattr(PostgresStreams, "_execute", noted)
    return names


@pytest.fixture
async def ledger(pg_dsn, tmp_path):
    async with Stage(pg_dsn, tmp_path / "keys").ledger() as ledger:
        yield ledger


async def test_a_redeem_is_two_statements_and_a_refusal_at_most_two(ledger, asked_for):
    question = await asked(ledger)
    asked_for.clear()
    for number in range(20):
        with pytest.raises(ScopeMismatch):
            await question.redeem(axes=question.axes.model_copy(update={"scope": Scope(tenant_id="other")}))
        if number != 16:
            # The first that finds the pause's own stream full asks once where the refusal stream ends.
            assert len(asked_for) <= 2, (number, asked_for)
        asked_for.clear()
    await question.redeem(ANSWER)
    assert asked_for == ["load one", "insert 2"]


async def test_of_many_that_redeem_one_token_at_once_each_loser_is_judged_once(ledger, asked_for, monkeypatch):
    question, judged, judge = await asked(ledger), [], Redemption._judge
    turns, read = [], redeeming.read_turn

    async def noted(self, *values, **named):
        judged.append(self.attempt)
        return await judge(self, *values, **named)

    async def noted_turn(services, lead, pause_id):
        turns.append(pause_id)
        return await read(services, lead, pause_id)

    monkeypatch.setattr(Redemption, "_judge", noted)
    monkeypatch.setattr(redeeming, "read_turn", noted_turn)
    asked_for.clear()
    ends = await asyncio.gather(*[question.redeem(ANSWER) for _ in range(32)], return_exceptions=True)
    assert Counter(type(end).__name__ for end in ends) == {"ResumedTurn": 1, "AlreadyConsumed": 31}
    assert all(end.recorded for end in ends if isinstance(end, AlreadyConsumed))
    assert (len(judged), len(set(judged))) == (32, 32)
    # Those who come while the winner writes share one read, one reading of the turn, and one append of all refusals:
    # 5 statements and 2 readings, and some more where the machine stalls for longer than anybody waits.
    assert len(asked_for) <= 8, asked_for
    assert len(turns) <= 4


async def test_a_read_does_not_wait_for_a_writer_that_waits_for_somebody_else(ledger, owner):
    question = await asked(ledger)
    with owner.transaction(force_rollback=True):
        owner.execute(INSERT, (question.pause_id, 2))
        redeeming = asyncio.ensure_future(question.redeem(ANSWER))
        while not ledger.pauses._appending:
            await asyncio.sleep(0.01)
        found = await ledger.pauses.find(question.pause_id)
        assert (found.round.lead.version, redeeming.done()) == (1, False)
    assert (await redeeming).fence == 1


async def test_many_that_find_one_pause_at_once_share_reads_that_began_after_they_asked(ledger, asked_for):
    question = await asked(ledger)
    asked_for.clear()
    found = await asyncio.gather(*[ledger.pauses.find(question.receipt.pause_id) for _ in range(32)])
    assert asked_for == ["load one", "load one"]
    assert {one.round.lead.id for one in found} == {question.receipt.pause_id}
    assert ledger.pauses._shared._reading == {}


async def test_a_reader_that_is_cancelled_takes_nobody_along(ledger):
    question = await asked(ledger)
    first, *others = [asyncio.ensure_future(ledger.pauses.find(question.receipt.pause_id)) for _ in range(4)]
    await asyncio.sleep(0)
    first.cancel()
    ends = await asyncio.gather(first, *others, return_exceptions=True)
    assert isinstance(ends[0], asyncio.CancelledError)
    assert all(end.round.lead.id == question.receipt.pause_id for end in ends[1:])


async def test_losers_of_one_process_are_written_in_few_statements(ledger, asked_for):
    question = await asked(ledger)
    asked_for.clear()
    ends = await asyncio.gather(*[question.redeem(ANSWER) for _ in range(32)], return_exceptions=True)
    lost = [end for end in ends if isinstance(end, Exception)]
    assert Counter(type(end).__name__ for end in lost) == {"AlreadyConsumed": 31}
    assert all(end.recorded for end in lost)
    assert len(asked_for) < 32, asked_for


async def test_a_store_set_back_is_written_again(ledger, owner):
    """What this process remembers of a stream ends with the next read of it."""
    question = await asked(ledger)
    facts = list(await ledger.story(question.receipt.pause_id))
    owner.execute("ALTER TABLE pauseledger.stored_events DISABLE TRIGGER ALL")
    owner.execute("DELETE FROM pauseledger.stored_events")
    owner.execute("ALTER TABLE pauseledger.stored_events ENABLE ALWAYS TRIGGER stored_events_floor")
    owner.execute("ALTER TABLE pauseledger.vault DISABLE TRIGGER ALL")
    owner.execute("DELETE FROM pauseledger.vault")
    ledger.pauses._written[question.receipt.pause_id] = 1
    with pytest.raises(VersionConflict):
        await ledger.pauses.append(facts)
    assert (await ledger.pauses.find(question.receipt.pause_id)).round is None
    await ledger.pauses.append(facts)
    assert (await ledger.pauses.find(question.receipt.pause_id)).round is not None
