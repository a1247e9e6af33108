"""The store's clock steps back and forth, and a process's own idea of it lags: once is once, and no time goes back."""

import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import psycopg
import pytest
from pauseledger import (
    Actor,
    LeaseHeld,
    RecoverCommand,
    SettleCommand,
    TokenExpired,
    TokenNotYetValid,
)
from pauseledger.infrastructure import raw_check, sqlite
from pauseledger.infrastructure.clock import StoreClock
from pauseledger.infrastructure.stories import Stage, asked

HOUR = 3600


class HostClock:
    """Steps the clock that a SQLite store goes by, the host's."""

    def __init__(self, monkeypatch):
        self.by = clock = SimpleNamespace(seconds=0)

        class Stepped(datetime):
            @classmethod
            def now(cls, tz=None):
                return datetime.now(tz) + timedelta(seconds=clock.seconds)

        def time_ns():
            return time.time_ns() + clock.seconds * 10**9

        others = {name: getattr(time, name) for name in ("monotonic", "sleep")}
        monkeypatch.setattr(sqlite, "datetime", Stepped)
        monkeypatch.setattr(sqlite, "time", SimpleNamespace(time_ns=time_ns, **others))

    def step(self, seconds):
        self.by.seconds += seconds


class ServerClock:
    """Steps the clock that a PostgreSQL store goes by: a function of that name comes before the server's."""

    def __init__(self, dsn):
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.connection.execute(
            "CREATE SCHEMA stepped; CREATE TABLE stepped.step (by interval); INSERT INTO stepped.step VALUES ('0');"
            "CREATE FUNCTION stepped.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS"
            " 'SELECT pg_catalog.clock_timestamp() + by FROM stepped.step'"
        )

    def step(self, seconds):
        self.connection.execute("UPDATE stepped.step SET by = by + %s * interval '1 second'", (seconds,))


@pytest.fixture(params=["sqlite", "postgresql"])
def stepped(request, tmp_path, monkeypatch):
    """Give a stage and the clock that it goes by."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'ledger.db'}"
        yield Stage(url, tmp_path / "keys"), HostClock(monkeypatch)
        return
    dsn = request.getfixturevalue("pg_dsn")
    clock = ServerClock(dsn)
    yield Stage(f"{dsn}&options=-csearch_path%3Dstepped,pg_catalog", tmp_path / "keys"), clock
    clock.connection.close()


async def test_no_step_makes_two_of_one_or_takes_a_time_back(stepped):
    stage, clock = stepped
    async with stage.ledger() as ledger, stage.ledger() as other:
        for step in (0, HOUR, -HOUR, -2 * HOUR, 5, 3 * HOUR, -HOUR):
            question = await asked(ledger, closes_in=86_400, idempotency_key=f"step {step} {time.monotonic()}")
            # Stepped back, the window would not be open yet.
            clock.step(max(step, 0))
            turn = await question.at(other).redeem()
            clock.step(-step)
            axes = question.axes
            by = other.operator(Actor("olga"))
            heir = await by.recover(RecoverCommand(question.pause_id, reason="forced"))
            assert (turn.fence, heir.fence) == (1, 2)
            clock.step(step)
            await ledger.capability.settle(SettleCommand(question.pause_id, axes, 2, "finished"))
    raw = raw_check.read(stage.url)
    assert raw_check.faults(raw) == []
    assert len(raw.of("pause.consumed")) == len(raw.of("pause.continued")) == 7


async def test_a_lease_and_a_window_go_by_the_stores_clock_wherever_it_goes(stepped):
    stage, clock = stepped
    async with stage.ledger() as ledger:
        question = await asked(ledger, closes_in=600)
        clock.step(HOUR)
        await ledger.story(question.pause_id)
        with pytest.raises(TokenExpired):
            await question.redeem()
        clock.step(-HOUR)
        await ledger.story(question.pause_id)
        turn = await question.redeem()
        command = RecoverCommand(question.pause_id, axes=question.axes)
        with pytest.raises(LeaseHeld):
            await ledger.capability.recover(command)
        # The refusal is of an hour ahead, and no fact of the stream is of an earlier time; so is the lease.
        clock.step(HOUR + 120)
        heir = await ledger.capability.recover(command)
        clock.step(-2 * HOUR)
        # Put back, the lease would run for hours; an operator ends it.
        with pytest.raises(LeaseHeld):
            await ledger.capability.recover(command)
        third = await ledger.operator(Actor("olga")).recover(RecoverCommand(question.pause_id, reason="forced"))
        assert (turn.fence, heir.fence, third.fence) == (1, 2, 3)
    assert raw_check.faults(raw_check.read(stage.url)) == []


async def test_a_process_whose_clock_lags_refuses_no_token_that_is_open(store_url, tmp_path):
    """Its idea of the store's time may be old by what an answer took; a token minted since is open all the same."""
    stage = Stage(store_url, tmp_path / "keys")
    async with stage.ledger() as ledger:
        question = await asked(ledger)
        ledger.pauses._clock._offset -= 5
        assert (await question.redeem()).fence == 1
        later = await asked(ledger, opens_in=60, idempotency_key="later")
        ledger.pauses._clock._offset -= 5
        with pytest.raises(TokenNotYetValid):
            await later.redeem()


def at(clock, seconds):
    return datetime.fromtimestamp(seconds + time.monotonic(), UTC)


def test_the_clock_is_never_ahead_and_a_slow_answer_does_not_put_it_back():
    clock, now = StoreClock(), time.monotonic
    clock.correct(at(clock, 1000), now())
    told = clock.now()
    # An answer that took 3 seconds tells of 2.9 seconds ago: less than is known.
    clock.correct(at(clock, 997.1), now() - 3)
    assert clock.now() >= told
    # One that took no time tells of a step, back or forth.
    clock.correct(at(clock, 900), now())
    assert abs(clock.now() - at(clock, 900)) < timedelta(seconds=1)
    clock.correct(at(clock, 2000), now())
    assert abs(clock.now() - at(clock, 2000)) < timedelta(seconds=1)


def test_the_hosts_own_clock_counts_until_the_store_was_asked_and_no_longer(monkeypatch):
    monkeypatch.setattr("pauseledger.infrastructure.clock.time.time", lambda: time.monotonic() + 5000)
    clock = StoreClock()
    assert abs(clock.now() - at(clock, 5000)) < timedelta(seconds=1)
    clock.correct(at(clock, 4999.5), time.monotonic() - 2)
    assert clock.now() < at(clock, 4999.9)
