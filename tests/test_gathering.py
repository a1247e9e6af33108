"""Calls that go together: each comes to what it would have come to alone, and nobody waits for somebody else's."""

import asyncio
import contextlib
import sqlite3
from uuid import uuid4

import psycopg
import pytest
from eventsourcing.persistence import IntegrityError
from pauseledger.domain.errors import StoreUnavailable
from pauseledger.infrastructure.executor import Executor
from pauseledger.infrastructure.gathering import LIGHT, PATIENCE, Apart, GatheredStreams, Gathering
from pauseledger.infrastructure.pauses import ThreadedStreams
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.postgres_async import PostgresStreams
from pauseledger.infrastructure.sqlite import SQLiteRecorder
from pauseledger.infrastructure.store import StreamConflict, VaultRow
from pauseledger.infrastructure.stories import ANSWER, Stage, asked, axes
from pauseledger.infrastructure.testing import refused, row

MANY, MOST = 40, 8


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """However slow the machine is, nobody goes for having waited, but where that is what is tested."""
    monkeypatch.setattr("pauseledger.infrastructure.gathering.PATIENCE", 600)


@pytest.fixture
def hasty(monkeypatch, patient):
    monkeypatch.setattr("pauseledger.infrastructure.gathering.PATIENCE", PATIENCE)


class Doubling:
    """Doubles numbers; what was asked for, alone or together, stands in `calls`, and waits until `open` is set."""

    def __init__(self, lanes=1):
        self.calls, self.open, self.failing = [], asyncio.Event(), None
        self.gathering = Gathering(self.one, self.many, lanes=lanes, most=MOST)

    async def one(self, number):
        self.calls.append(number)
        await self.open.wait()
        return 2 * number

    async def many(self, numbers):
        self.calls.append(list(numbers))
        if self.failing:
            raise self.failing
        await self.open.wait()
        return [2 * number for number in numbers]

    async def begun(self, *numbers):
        tasks = [asyncio.ensure_future(self.gathering(number)) for number in numbers]
        await asyncio.sleep(0)
        return tasks


async def test_who_comes_while_others_are_under_way_goes_with_the_next():
    doubling = Doubling(lanes=2)
    tasks = await doubling.begun(1, 2, 3, 4, 5)
    assert doubling.calls == [1, 2]
    doubling.open.set()
    assert await asyncio.gather(*tasks) == [2, 4, 6, 8, 10]
    assert doubling.calls == [1, 2, [3, 4, 5]]
    assert await doubling.gathering(6) == 12
    assert doubling.calls[-1] == 6


async def test_no_more_go_together_than_may():
    doubling = Doubling()
    tasks = await doubling.begun(*range(2 * MOST + 2))
    doubling.open.set()
    assert await asyncio.gather(*tasks) == [2 * number for number in range(2 * MOST + 2)]
    assert [len(call) for call in doubling.calls[1:]] == [MOST, MOST, 1]


async def test_nobody_waits_for_long_behind_one_that_does_not_end(hasty):
    doubling = Doubling()
    await doubling.begun(1)
    tasks = await doubling.begun(2, 3)
    await asyncio.sleep(4 * PATIENCE)
    assert doubling.calls == [1, [2, 3]]
    doubling.open.set()
    assert await asyncio.gather(*tasks) == [4, 6]


async def test_who_is_cancelled_while_waiting_is_left_out_and_others_go_on():
    doubling = Doubling()
    first, gone, last = await doubling.begun(1, 2, 3)
    gone.cancel()
    await asyncio.sleep(0)
    doubling.open.set()
    assert (await first, await last) == (2, 6)
    assert doubling.calls == [1, [3]]


async def test_thousands_who_are_gone_keep_nobody_waiting():
    doubling = Doubling()
    first, *gone = await doubling.begun(*range(5000))
    for task in gone:
        task.cancel()
    await asyncio.sleep(0)
    [last] = await doubling.begun(7)
    await asyncio.sleep(0)
    assert len(doubling.gathering._waiting) == 1
    doubling.open.set()
    assert (await first, await last) == (0, 14)
    assert doubling.calls == [0, [7]]


async def test_where_all_who_waited_are_gone_the_next_goes_at_once():
    doubling = Doubling()
    first, gone = await doubling.begun(1, 2)
    gone.cancel()
    doubling.open.set()
    assert await first == 2
    assert await doubling.gathering(4) == 8
    assert doubling.calls == [1, 4]


async def test_who_is_cancelled_under_way_leaves_the_others_their_answers(hasty):
    doubling = Doubling()
    first, gone, last = await doubling.begun(1, 2, 3)
    await asyncio.sleep(2 * PATIENCE)
    assert doubling.calls == [1, [2, 3]]
    gone.cancel()
    await asyncio.sleep(0)
    doubling.open.set()
    assert (await first, await last) == (2, 6)


async def test_what_fails_is_told_to_all_who_went_and_each_raises_its_own():
    doubling = Doubling()
    first, *tasks = await doubling.begun(1, 2, 3)
    doubling.failing = StoreUnavailable("gone", outcome="unknown")
    doubling.open.set()
    await first
    one, other = await asyncio.gather(*tasks, return_exceptions=True)
    assert (one.outcome, str(one)) == (other.outcome, str(other)) == ("unknown", str(doubling.failing))
    assert one is not other
    assert doubling.failing not in (one, other)
    doubling.failing = None
    assert await doubling.gathering(4) == 8


async def test_what_could_not_go_together_is_tried_alone():
    doubling = Doubling()
    first, *tasks = await doubling.begun(1, 2, 3)
    doubling.failing = Apart()
    doubling.open.set()
    assert await first == 2
    assert await asyncio.gather(*tasks) == [4, 6]
    assert doubling.calls == [1, [2, 3], 2, 3]
    await doubling.gathering.ended()


# Over the stores


class Counted(GatheredStreams):
    """Streams that count the calls which reach the store."""

    def __init__(self, streams, lanes):
        self.appends, self.loads = [], []
        append, load = streams.append, streams.load

        async def appending(rows, **more):
            self.appends.append(len(rows))
            return await append(rows, **more)

        async def loading(asked_for):
            self.loads.append(len(asked_for))
            return await load(asked_for)

        streams.append, streams.load = appending, loading
        super().__init__(streams, lanes)


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request, tmp_path):
    """Gathered streams of a store, and a way to count the rows it holds without them."""
    executor = Executor(4)
    if request.param == "sqlite":
        recorder = SQLiteRecorder(tmp_path / "l.db")
        inner = ThreadedStreams(recorder, executor)

        def count(table="stored_events"):
            with contextlib.closing(sqlite3.connect(tmp_path / "l.db")) as connection:
                return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]

    else:
        dsn = request.getfixturevalue("pg_dsn")
        recorder = PostgresRecorder(dsn)
        inner = PostgresStreams(recorder.database)

        def count(table="stored_events"):
            with psycopg.connect(dsn) as connection:
                return connection.execute(f"SELECT count(*) FROM pauseledger.{table}").fetchone()[0]

    recorder.migrate()
    streams = Counted(inner, lanes=1)
    yield streams, count
    await streams.close()
    recorder.close()
    executor.close()


def keys(pause):
    return VaultRow(pause, uuid4(), uuid4(), b"abcd" + bytes(48), b"abcd" + bytes(48))


async def test_many_appends_at_once_are_few_statements_and_each_hears_its_own_places(store):
    streams, count = store
    ids = [uuid4() for _ in range(MANY)]
    rows = {one: [row(one, version, one.bytes) for version in range(1, 2 + place % 3)] for place, one in enumerate(ids)}
    appended = await asyncio.gather(*[streams.append(rows[one], mints=True, keys=[keys(one)]) for one in ids])
    assert (count(), count("vault")) == (sum(map(len, rows.values())), MANY)
    assert len(streams.appends) == 2
    assert {one.epoch for one in appended} == {(await streams.load([])).epoch}
    found = await asyncio.gather(*[streams.load([one]) for one in ids])
    assert len(streams.loads) <= 5
    for one, told, snapshot in zip(ids, appended, found, strict=True):
        assert [(event.originator_id, event.state) for event in snapshot.rows] == [(one, one.bytes)] * len(rows[one])
        assert [event.id for event in snapshot.rows] == list(told.positions)
        assert [key.pause for key in snapshot.keys] == [one]


async def test_one_that_cannot_be_written_takes_no_other_along(store):
    streams, count = store
    taken, gap = uuid4(), uuid4()
    await streams.append([row(taken, 1)], mints=False)
    ids = [uuid4() for _ in range(MANY)]
    wanted = [row(one, 1) for one in ids]
    wanted[7], wanted[30] = row(taken, 1), row(gap, 5)
    told = await asyncio.gather(*[streams.append([one], mints=False) for one in wanted], return_exceptions=True)
    assert type(told[7]) is StreamConflict
    assert type(told[30]) is IntegrityError
    assert [type(one).__name__ for at, one in enumerate(told) if at not in (7, 30)] == ["Appended"] * (MANY - 2)
    assert count() == MANY - 1


async def test_a_row_that_cannot_be_read_is_told_to_whoever_asked_for_it(store):
    streams, _ = store
    ids = [uuid4() for _ in range(10)]
    load = streams._streams.load

    async def failing(asked_for):
        if ids[4] in asked_for:
            raise OverflowError
        return await load(asked_for)

    streams._streams.load = streams._loads._one = failing
    told = await asyncio.gather(*[streams.load([one]) for one in ids], return_exceptions=True)
    assert [type(one).__name__ for one in told] == ["Snapshot"] * 4 + ["OverflowError"] + ["Snapshot"] * 5


async def test_where_there_is_no_store_nobody_tries_twice(store):
    streams, _ = store
    tried = []

    async def gone(asked_for):
        tried.append(len(asked_for))
        await asyncio.sleep(0)
        raise StoreUnavailable("no connection", reached=False)

    streams._streams.load = streams._loads._one = gone
    told = await asyncio.gather(*[streams.load([uuid4()]) for _ in range(10)], return_exceptions=True)
    assert {type(one) for one in told} == {StoreUnavailable}
    assert tried == [1, 9]


async def test_where_nobody_knows_what_became_of_them_none_is_tried_again(store):
    """What went together may stand: written once more, it would stand in its own way."""
    streams, _ = store
    tried = []

    async def lost(rows, **_):
        tried.append(len(rows))
        await asyncio.sleep(0)
        raise StoreUnavailable("nothing was heard any more", outcome="unknown")

    streams._streams.append = lost
    appends = [streams.append([row(uuid4(), 1)], mints=False) for _ in range(10)]
    told = await asyncio.gather(*appends, return_exceptions=True)
    assert [one.outcome for one in told] == ["unknown"] * 10
    assert tried == [1, 9]


async def test_what_is_large_goes_alone(store):
    streams, count = store
    sizes = [LIGHT + 1, 1, LIGHT + 1, 1, 1]
    await asyncio.gather(*[streams.append([row(uuid4(), 1, bytes(size))], mints=False) for size in sizes])
    assert count() == len(sizes)
    # One small one found the lane free; the other two waited for it.
    assert sorted(streams.appends) == [1, 1, 1, 2]


async def test_closed_streams_leave_nobody_waiting(store):
    streams, _ = store
    tasks = [asyncio.ensure_future(streams.load([uuid4()])) for _ in range(5)]
    await asyncio.sleep(0)
    await streams.close()
    told = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(one).__name__ for one in told} <= {"Snapshot", "StoreUnavailable"}


async def test_nobody_waits_with_one_that_waits_for_somebody_elses_transaction(pg_dsn):
    recorder = PostgresRecorder(pg_dsn)
    streams = Counted(PostgresStreams(recorder.database), lanes=1)
    held, ids = uuid4(), [uuid4() for _ in range(8)]
    with psycopg.connect(pg_dsn) as other:
        other.execute(
            "INSERT INTO pauseledger.stored_events (originator_id, originator_version, topic, state)"
            " VALUES (%s, 1, 't', '')",
            (held,),
        )
        tasks = [
            asyncio.ensure_future(streams.append([row(one, 1)], mints=False)) for one in (*ids[:4], held, *ids[4:])
        ]
        waiting = tasks.pop(4)
        await asyncio.gather(*tasks)
        assert not waiting.done()
        other.commit()
    with refused(StreamConflict):
        await waiting
    assert streams.appends == [1, 8, *[1] * 8]
    await streams.close()
    recorder.close()


async def test_a_crowd_pauses_and_redeems_in_few_statements(pg_dsn, tmp_path, monkeypatch):
    sent, execute = [], PostgresStreams._execute

    async def noted(self, statement, *values, **rows):
        sent.append(statement)
        return await execute(self, statement, *values, **rows)

    monkeypatch.setattr(PostgresStreams, "_execute", noted)
    async with Stage(pg_dsn, tmp_path / "keys").ledger() as ledger:
        questions = await asyncio.gather(*[asked(ledger, axes=axes(run_id=f"r{number}")) for number in range(MANY)])
        begun = len(sent)
        turns = await asyncio.gather(*[question.redeem(ANSWER) for question in questions])
        assert len({turn.outcome.pause_id for turn in turns}) == MANY
        assert len(sent) - begun < MANY
    with psycopg.connect(pg_dsn) as connection:
        found = connection.execute(
            "SELECT split_part(topic, '@', 1), count(*) FROM pauseledger.stored_events GROUP BY 1 ORDER BY 1"
        ).fetchall()
    assert found == [("pause.answered", MANY), ("pause.consumed", MANY), ("pause.paused", MANY)]
