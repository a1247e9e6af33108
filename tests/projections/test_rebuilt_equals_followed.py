"""Rebuilt equals followed, row for row: after a random life, beside competing followers, through kills and restarts."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest
from pauseledger import (
    Actor,
    LapseAnswer,
    LedgerError,
    RecoverCommand,
    Routing,
    SettleCommand,
    StoreUnavailable,
    WithdrawCommand,
)
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.runner import Runner
from pauseledger.infrastructure.stories import (
    ANSWER,
    OTHER_ANSWER,
    WRONG_ANSWER,
    Stage,
    asked_round,
    axes,
    round_of,
    turn,
)
from pauseledger.infrastructure.testing import TemporaryPostgres
from pauseledger.projections import PROJECTIONS
from pauseledger.projections.rows import Query

FOLLOW = """
import asyncio, sys
from pathlib import Path
from pauseledger.infrastructure.settings import LedgerSettings
from pauseledger.infrastructure.wiring import open_ledger
from pauseledger.infrastructure.runner import Runner

async def main():
    async with open_ledger(sys.argv[1], LedgerSettings(keys_directory=Path(sys.argv[2]))) as ledger:
        ledger.views.runner.batch = 3
        print("on", flush=True)
        await ledger.follow(sweep=False).run()

asyncio.run(main())
"""


async def live(ledger, seed, rounds):
    """Lead a random life: rounds, answers right and wrong, refusals, lapses, withdrawals, stalls and recoveries."""
    chance, held, turns = random.Random(seed), [], []

    async def pause():
        size = chance.choice([1, 1, 2, 3])
        calls = [f"c{index}" for index in range(size)]
        lapse = chance.choice([None, None, LapseAnswer(ANSWER)])
        routing = Routing(assignees=chance.sample(["ann", "bob", "eve"], chance.randrange(3)), queue="q")
        stopped = turn(*calls, said=f"{seed} {len(held)}")
        held.extend(
            await asked_round(
                ledger,
                *round_of(*calls, turn=stopped, closes_in=chance.choice([30, 3000]), on_lapse=lapse, routing=routing),
            )
        )

    async def answer(one):
        await one.answer(chance.choice([ANSWER, OTHER_ANSWER, WRONG_ANSWER]), answered_by=Actor(chance.choice("ab")))

    async def redeem(one):
        turns.append(
            (one, await one.redeem(chance.choice([ANSWER, OTHER_ANSWER]), answered_by=Actor(chance.choice("ab"))))
        )

    async def refuse(one):
        await one.redeem(axes=axes(chance.choice(["c0", "zz"]), session_id="elsewhere"))

    async def withdraw(one):
        await ledger.operator(Actor("op")).withdraw(WithdrawCommand(one.pause_id))

    async def settle(_):
        one, handed_out = chance.choice(turns)
        end = chance.choice(["finished", "stalled", "released", "abandoned", "paused_again"])
        await ledger.operator(Actor("op")).settle(SettleCommand(one.pause_id, None, handed_out.fence, end))

    async def recover(one):
        turns.append(
            (one, await ledger.operator(Actor("op")).recover(RecoverCommand(pause_id=one.pause_id, reason="forced")))
        )

    async def sweep(_):
        ledger.wait(seconds=chance.choice([1, 31]))
        await ledger.views.catch_up(views=["stranded"])
        await ledger.views.sweepers(ledger.capability).sweep()

    for _ in range(rounds):
        act = chance.choice(
            [None, None, answer, answer, redeem, redeem, refuse, withdraw, settle, settle, recover, sweep]
        )
        try:
            await (pause() if act is None or not held else act(chance.choice(held[-12:])))
        except (LedgerError, IndexError) as objected:
            assert not isinstance(objected, StoreUnavailable)


def rows(ledger):
    """Every row of every view, and each view's position."""
    followers = ledger.views.runner._followers
    return {
        name: (
            follower.rows.place().position,
            {table.name: sorted(map(repr, follower.rows.select(Query(table)))) for table in follower.projection.tables},
        )
        for name, follower in followers.items()
    }


async def hold_rebuilt_against(ledger, followed):
    ledger.views.runner.rebuild_batch = 11
    for names in (("history",), ()):
        await ledger.views.rebuild(*names)
        rebuilt = rows(ledger)
        for name, (position, tables) in rebuilt.items():
            assert position == ledger.views.runner.newest()
            assert followed[name] == (position, tables), name


async def test_followed_one_by_one_in_batches_and_rebuilt_come_to_the_same(store_url, tmp_path):
    stage = Stage(store_url, tmp_path / "keys")
    async with stage.ledger() as ledger:
        await live(ledger, 1, 150)
        ledger.views.runner.batch = 1
        for _ in range(10):
            await ledger.views._run(ledger.views.runner.step)
        ledger.views.runner.batch = 7
        await ledger.views.catch_up()
        followed = rows(ledger)
        assert all(any(tables.values()) for _, tables in followed.values())
        topics = {row.topic for row in stage.rows()}
        assert len(topics) >= 9, topics
        ledger.views.runner.batch = 2000
        await hold_rebuilt_against(ledger, followed)


async def test_competing_tasks_stay_exact_while_others_write(store_url, tmp_path):
    async with Stage(store_url, tmp_path / "keys").ledger() as ledger:
        runner = ledger.views.runner
        views = [(one.projection, one.rows) for one in runner._followers.values()]
        others = [Runner(ledger.views._log, views, batch) for batch in (1, 4, 9)]
        writing = asyncio.ensure_future(live(ledger, 2, 40))

        async def follow(other):
            while not writing.done() or min(map(other.position, other.views)) < other.newest():
                await ledger.views._run(other.step)
                await asyncio.sleep(0)

        await asyncio.gather(writing, *map(follow, others))
        await hold_rebuilt_against(ledger, rows(ledger))


async def test_a_view_is_rebuilt_while_writers_write_and_followers_follow(store_url, tmp_path):
    async with Stage(store_url, tmp_path / "keys").ledger() as ledger:
        ledger.views.runner.batch = 5
        await live(ledger, 3, 15)
        async with ledger.follow(sweep=False):
            writing = asyncio.ensure_future(live(ledger, 4, 30))
            answers = []
            while not writing.done():
                # Two at once: both work on the same build.
                await asyncio.gather(ledger.views.rebuild("history"), ledger.views.rebuild("history"))
                answers.append(len(await ledger.views.history.of_run(axes().scope, "run-1", limit=10_000)))
            await writing
        assert answers == sorted(answers), "a rebuild never goes back behind what was answered before"
        await ledger.views.catch_up()
        await hold_rebuilt_against(ledger, rows(ledger))


async def test_of_two_threads_at_one_view_neither_takes_up_what_the_other_is_in_the_middle_of(store_url, tmp_path):
    async with Stage(store_url, tmp_path / "keys").ledger() as ledger:
        runner = ledger.views.runner
        one, two = await asked_round(ledger, *round_of("call_1", "call_2"))
        await ledger.views.catch_up()
        await one.answer()
        await two.answer()
        follower, runner.batch = runner._followers["stranded"], 1
        found, over = threading.Event(), threading.Event()
        whole_find, whole_take = follower.rows.find, follower.projection.take
        beside = threading.Thread(target=runner.step, args=(["stranded"],))

        def find(*given):
            if beside.ident is None:
                beside.start()
                found.wait(0.5)
            return whole_find(*given)

        def take(*given):
            if threading.current_thread() is beside:
                found.set()
                over.wait(0.5)
            whole_take(*given)

        follower.forget()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(follower.rows, "find", find)
            patch.setattr(follower.projection, "take", take)
            for _ in range(2):
                await asyncio.to_thread(runner.step, ["stranded"])
            over.set()
            beside.join()
        await ledger.views.catch_up()
        await hold_rebuilt_against(ledger, rows(ledger))


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("where", ["wants", "save"])
async def test_a_batch_that_is_cut_off_is_folded_again_whole(store_url, tmp_path, monkeypatch, where):
    async with Stage(store_url, tmp_path / "keys").ledger() as ledger:
        await live(ledger, 5, 20)
        ledger.views.runner.batch = 4
        chance = random.Random(6)
        for follower in ledger.views.runner._followers.values():
            target = follower.projection if where == "wants" else follower.rows
            whole = getattr(target, where)

            def cut(*given, whole=whole):
                if chance.random() < 0.3:
                    raise _Killed
                return whole(*given)

            monkeypatch.setattr(target, where, cut)
        while min(map(ledger.views.runner.position, ledger.views.runner.views)) < ledger.views.runner.newest():
            with suppress(_Killed):
                ledger.views.runner.step()
        monkeypatch.undo()
        await hold_rebuilt_against(ledger, rows(ledger))


@pytest.fixture
def database(request, tmp_path):
    if request.param == "sqlite":
        yield None, f"sqlite:///{tmp_path / 'ledger.db'}"
        return
    with TemporaryPostgres(durable=True) as server:
        dsn = server.dsn(server.fresh_database())
        PostgresRecorder(dsn).migrate()
        yield server, dsn


@pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
async def test_three_processes_killed_at_random_and_a_restart_under_them_change_nothing(database, tmp_path):
    server, url = database
    stage, chance = Stage(url, tmp_path / "keys"), random.Random(7)

    def start():
        process = subprocess.Popen([sys.executable, "-c", FOLLOW, url, str(stage.keys)], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"on\n"
        return process

    async with stage.ledger() as ledger:
        await live(ledger, 8, 10)
        followers = await asyncio.gather(*(asyncio.to_thread(start) for _ in range(3)))
        try:
            for number in range(6):
                await live(ledger, 20 + number, 8)
                await asyncio.sleep(chance.random() / 20)
                victim = chance.randrange(3)
                os.kill(followers[victim].pid, signal.SIGKILL)
                followers[victim].wait()
                followers[victim].stdout.close()
                if server is not None and number == 3:
                    await asyncio.to_thread(server.restart, "immediate")
                followers[victim] = await asyncio.to_thread(start)
            # No new event: whoever is left catches up by itself.
            newest, deadline = ledger.views.runner.newest(), time.monotonic() + 30
            while min(map(ledger.views.runner.position, ledger.views.runner.views)) < newest:
                assert time.monotonic() < deadline, await ledger.views.lag()
                await asyncio.sleep(0.05)
        finally:
            for follower in followers:
                follower.kill()
                follower.wait()
                follower.stdout.close()
        await hold_rebuilt_against(ledger, rows(ledger))


def test_every_view_is_among_the_projections():
    assert {projection.name for projection in PROJECTIONS} == {
        "open_pauses", "history", "refusals", "response_times", "stranded"
    }  # fmt: skip
