"""The connection breaks at the worst moment: who won learns it, and nobody is told what is not so."""

import asyncio
import random
import time
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from uuid import UUID

import pauseledger as pl
import psycopg
import pytest
from pauseledger.infrastructure import raw_check
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.testing import TemporaryPostgres


def _load(name):
    spec = spec_from_file_location(f"pauseledger_tests_{name}", Path(__file__).parent / "processes" / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


crew, host = _load("crew"), _load("host")
proxy, judge, host_behind_a_proxy, OPERATIONS = host.proxy, host.judge, host.host_behind_a_proxy, host.OPERATIONS
MOMENTS = (proxy.BEFORE, proxy.MIDST, proxy.AFTER)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_an_append_cut_off_is_asked_about_and_happens_once(pg, pg_dsn, tmp_path, operation, moment):
    before, fact = OPERATIONS[operation]
    async with host_behind_a_proxy(pg, pg_dsn, tmp_path) as host:
        for earlier in before:
            await getattr(host, earlier)()
        host.cutting.arm(moment)
        judge(operation, await getattr(host, operation)())
        assert host.cutting.cut == 1
    raw = raw_check.read(pg_dsn)
    assert raw_check.faults(raw) == []
    assert len(raw.of(fact)) == 1
    assert raw_check.refusals(raw) == {}


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_redeem_cut_off_three_times_wins_once(pg, pg_dsn, tmp_path, moment):
    async with host_behind_a_proxy(pg, pg_dsn, tmp_path) as host:
        await host.pause()
        host.cutting.arm(moment, moment, moment)
        judge("redeem", await host.redeem())
    raw = raw_check.read(pg_dsn)
    assert raw_check.faults(raw) == []
    assert len(raw.of("pause.consumed")) == 1
    assert raw_check.refusals(raw) == {}


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_server_that_stays_away_leaves_it_unknown_and_the_same_call_tells_later(pg, pg_dsn, tmp_path, moment):
    """All operations at once, each with a ledger of its own: nobody may say that nothing was written."""
    names = [name for name in OPERATIONS if name != "pause"]
    dsns = [pg.fresh_database() for _ in OPERATIONS]

    async def one(operation, database):
        dsn = pg.dsn(database)
        PostgresRecorder(dsn).migrate()
        before, fact = OPERATIONS[operation]
        async with host_behind_a_proxy(pg, dsn, folder_of(tmp_path, operation)) as host:
            for earlier in before:
                await getattr(host, earlier)()
            host.cutting.arm(moment, then_unreachable=True)
            with pytest.raises(pl.StoreUnavailable) as gone:
                await getattr(host, operation)()
            assert gone.value.outcome == "unknown", operation
            happened = len(raw_check.read(dsn).of(fact))
            assert happened == (moment == proxy.AFTER), operation
            host.cutting.heal()
            await until_it_is_back(host)
            await tells_later(host, operation, happened=bool(happened))
        raw = raw_check.read(dsn)
        assert raw_check.faults(raw) == []
        assert len(raw.of(fact)) == 1, operation
        assert raw_check.refusals(raw) == {}

    await asyncio.gather(*map(one, ["pause", *names], dsns))
    for database in dsns:
        pg.drop_database(database)


def folder_of(tmp_path, operation):
    folder = tmp_path / operation
    folder.mkdir()
    return folder


async def until_it_is_back(host):
    """Wait for the pool, which pauses between its attempts; five seconds are more than it ever does here."""
    for _ in range(10):
        try:
            return await host.ledger.story(UUID(int=0))
        except pl.StoreUnavailable as gone:
            assert gone.outcome == "not_started"
            await asyncio.sleep(0.2)
    return pytest.fail("the server is back, and is called away")


async def tells_later(host, operation, *, happened):
    """Repeat the call once the server is back."""
    if operation == "redeem" and happened:
        with pytest.raises(pl.AlreadyConsumed) as own:
            await host.redeem()
        assert (own.value.own, own.value.state) == (True, "owed")
        by = host.ledger.operator(pl.Actor("operator"))
        turn = await by.recover(pl.RecoverCommand(pause_id=host.receipt.pause_id, reason="forced"))
        assert turn.fence == 2
    elif operation == "recover" and happened:
        with pytest.raises(pl.LeaseHeld):
            await host.recover()
    elif operation == "pause":
        receipt = await host.pause()
        assert receipt.existing is happened
    else:
        judge(operation, await getattr(host, operation)())


async def test_a_winner_that_learns_it_late_holds_its_own_claim_and_not_its_heirs(pg, pg_dsn, tmp_path):
    """While the winner still asks whether it won, an operator lets somebody else take the turn up."""
    async with host_behind_a_proxy(pg, pg_dsn, tmp_path) as host:
        await host.pause()
        host.cutting.arm(proxy.AFTER, then_unreachable=True)
        redeeming = asyncio.ensure_future(host.redeem())
        while not host.cutting.cut:
            await asyncio.sleep(0.01)
        async with pl.open_ledger(pg_dsn, pl.LedgerSettings(keys_directory=tmp_path / "keys")) as other:
            command = pl.RecoverCommand(pause_id=host.receipt.pause_id, reason="forced")
            heir = await other.operator(pl.Actor("operator")).recover(command)
            host.cutting.heal()
            late = await redeeming
            assert (late.fence, heir.fence) == (1, 2)
            with pytest.raises(RuntimeError, match="broke off"):
                async with pl.continuing(late):
                    raise RuntimeError("broke off")
            async with pl.continuing(heir):
                pass
            assert [type(fact).__name__ for fact in await other.story(host.receipt.pause_id)] == [
                "Paused",
                "Answered",
                "Consumed",
                "Recovered",
                "Continued",
            ]
    assert raw_check.faults(raw_check.read(pg_dsn)) == []


# The server itself goes away


@pytest.fixture(scope="module")
def mortal():
    """A server of our own, that waits for the disk: it is stopped and crashed here."""
    with TemporaryPostgres(durable=True) as server:
        yield server


@pytest.fixture
def mortal_dsn(mortal):
    name = mortal.fresh_database()
    PostgresRecorder(mortal.dsn(name)).migrate()
    yield mortal.dsn(name)
    mortal.drop_database(name)


def end_backends(dsn, state=None):
    """Terminate the backends of a database, all or those in a state, and say how many."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        return admin.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND (%s::text IS NULL OR state = %s)",
            (state, state),
        ).fetchone()[0]


def test_a_redeem_survives_that_every_idle_backend_was_ended(pg_dsn, tmp_path):
    with crew.Crew(pg_dsn, tmp_path) as made:
        worker = made.worker()
        for number in range(10):
            paused = worker.ask(task="pause", run=f"run {number}")
            assert end_backends(pg_dsn, "idle") >= 1
            assert worker.ask(task="redeem", token=paused["tokens"][0], run=f"run {number}").get("won")
    raw = raw_check.read(pg_dsn)
    assert raw_check.faults(raw) == []
    assert len(raw.of("pause.consumed")) == 10


def under(disturb, url, folder, rounds):
    """Let three workers live while the server is disturbed, round after round; then hold each word against the rows."""
    told = Counter()
    with crew.Crew(url, folder, pool_timeout=10, connect_timeout=2) as made:
        for number in range(rounds):
            workers = made.workers(3)
            for name, worker in enumerate(workers):
                worker.tell(task="live_on", runs=[f"{number}.{name}.{at}" for at in range(12)])
            disturb(random.Random(number))
            said = [one for worker in workers for one in lines(worker)]
            told.update(acknowledged(raw_check.read(url), said))
            for worker in workers:
                worker.kill()
        heir = made.worker()
        assert heir.ask(task="pause", run="after all")["existing"] is False
    assert raw_check.faults(raw_check.read(url)) == []
    return told


def lines(worker):
    while not (said := worker.hear()).pop("done", False):
        yield said


def acknowledged(raw, said):
    """Hold each word against the rows: what was told is there, and what was not started is not."""
    consumed = {row.header["pause"]: row for row in raw.of("pause.consumed")}
    paused = {row.header["run_id"] for row in raw.of("pause.paused")}
    for one in said:
        if "tokens" in one:
            assert one["run"] in paused
            yield "paused"
        elif one.get("won"):
            assert one["pause"] in consumed
            yield "won"
        elif one.get("error"):
            assert one["error"] == "StoreUnavailable", one
            there = one["run"] in paused if one["step"] == "pause" else one["pause"] in consumed
            assert one["outcome"] == "unknown" or not there, one
            yield f"{one['step']}: {one['outcome']}"


def test_busy_backends_ended_at_random_moments_leave_truth(pg_dsn, tmp_path):
    def disturb(chance):
        for _ in range(12):
            time.sleep(chance.uniform(0, 0.05))
            end_backends(pg_dsn)

    told = under(disturb, pg_dsn, tmp_path, rounds=3)
    assert told["won"] > 0


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_restarted_leaves_truth(mortal, mortal_dsn, tmp_path, mode):
    def disturb(chance):
        time.sleep(chance.uniform(0.05, 0.3))
        mortal.restart(mode)

    told = under(disturb, mortal_dsn, tmp_path, rounds=2)
    assert told["won"] > 0
