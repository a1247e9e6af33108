"""Following in a host's event loop, and the two sweepers."""

import asyncio
import json
import logging

import pytest
from pauseledger import (
    Actor,
    AlreadyConsumed,
    InteractionConfigurationError,
    LapseAnswer,
    PauseLapsed,
    Refusal,
    StoreUnavailable,
    TokenExpired,
    WithdrawCommand,
)
from pauseledger.infrastructure.stories import ANSWER, SCOPE, Stage, asked, asked_round, round_of

LAPSED = "pause.lapsed@1"


@pytest.fixture
def stage(store_url, tmp_path):
    return Stage(store_url, tmp_path / "keys")


async def until(holds, seconds=15):
    async with asyncio.timeout(seconds):
        while not await holds():
            await asyncio.sleep(0.01)


async def test_a_follower_keeps_the_views_and_stops_with_its_host(stage):
    async with stage.ledger() as ledger:
        async with ledger.follow():
            pause = await asked(ledger)

            async def there():
                return bool((await ledger.views.open_pauses.most_urgent(SCOPE)).rows)

            await until(there)
            await pause.answer()
            await until(lambda: _none_open(ledger))
        await ledger.operator(Actor("op")).withdraw(WithdrawCommand(pause.pause_id))
        await asyncio.sleep(0.3)
        assert {one.behind for one in await ledger.views.lag()} == {1}


async def _none_open(ledger):
    return (await ledger.views.open_pauses.count(SCOPE)).open == 0


async def test_a_window_that_closed_lapses_once_whoever_sweeps(stage):
    async with stage.ledger() as ledger, stage.ledger() as other:
        pauses = [await asked(ledger, closes_in=30)]
        pauses += await asked_round(ledger, *round_of("a", "b", closes_in=30, on_lapse=LapseAnswer(ANSWER)))
        for one in (ledger, other):
            one.wait(seconds=31)
        await ledger.views.catch_up()
        sweepers = [one.views.sweepers(one.capability) for one in (ledger, other, ledger, other)]
        assert sum(await asyncio.gather(*(sweeper.sweep() for sweeper in sweepers))) == 3
        await ledger.views.catch_up()
        assert [await sweeper.sweep() for sweeper in sweepers] == [0, 0, 0, 0]
        assert [stage.count(LAPSED, pause.pause_id) for pause in pauses] == [1, 1, 1]
        with pytest.raises(Refusal) as late:
            await pauses[0].redeem()
        assert isinstance(late.value, TokenExpired | PauseLapsed)


async def test_an_answer_given_in_time_is_never_swept_away(stage):
    async with stage.ledger() as ledger:
        pause = await asked(ledger, closes_in=30)
        await ledger.views.catch_up()
        await pause.answer()
        ledger.wait(seconds=31)
        # The view has not heard of the answer; the aggregate has.
        assert await ledger.views.sweepers(ledger.capability).sweep() == 0
        assert stage.count(LAPSED) == 0
        [item] = [item async for item in ledger.owed(SCOPE)]
        assert item.state == "ready"


async def test_a_redemption_that_races_the_sweeper_has_one_outcome(stage):
    async with stage.ledger() as ledger, stage.ledger() as late:
        for number in range(6):
            pause = await asked(ledger, closes_in=30, occurrence=number)
            await ledger.views.catch_up()
            # One process thinks that the window is open, the other that it has closed.
            late.wait(seconds=31 + number)
            redeemed, swept = await asyncio.gather(
                pause.redeem(), late.views.sweepers(late.capability).sweep(), return_exceptions=True
            )
            lapses, consumed = (stage.count(topic, pause.pause_id) for topic in (LAPSED, "pause.consumed@1"))
            if isinstance(redeemed, BaseException):
                assert isinstance(redeemed, PauseLapsed | TokenExpired | AlreadyConsumed), redeemed
                assert (lapses, consumed, swept) == (1, 0, 1)
            else:
                assert (lapses, consumed, swept) == (0, 1, 0)


async def test_an_altered_pause_is_swept_once_and_then_left_alone(stage):
    async with stage.ledger() as ledger:
        pause = await asked(ledger, closes_in=30)
        await ledger.views.catch_up()
        [row] = stage.rows(pause.pause_id)
        stage.alter(row, lambda segments: segments[:-1] + bytes([segments[-1] ^ 1]))
        ledger.wait(seconds=31)
        sweepers = ledger.views.sweepers(ledger.capability)
        assert [await sweepers.sweep() for _ in range(3)] == [0, 0, 0]
        assert len(stage.rows()) <= 2


async def test_an_ended_lease_is_logged_once(stage, caplog):
    async with stage.ledger() as ledger:
        pause = await asked(ledger)
        turn = await pause.redeem()
        await ledger.views.catch_up()
        ledger.wait(seconds=61)
        sweepers = ledger.views.sweepers(ledger.capability)
        with caplog.at_level(logging.INFO, "pauseledger"):
            await sweepers.sweep()
            await sweepers.sweep()
        lines = [json.loads(record.getMessage()) for record in caplog.records]
        assert [(line["pause"], line["fence"]) for line in lines if line["decision"] == "lease_ended"] == [
            (str(pause.pause_id), turn.fence)
        ]


async def test_a_follower_outlives_a_store_that_cannot_speak(stage, monkeypatch):
    async with stage.ledger() as ledger:
        failing, step = iter([True, True]), ledger.views.runner.step

        def stuttering(*given):
            if next(failing, False):
                raise StoreUnavailable("gone for a moment")
            return step(*given)

        monkeypatch.setattr(ledger.views.runner, "step", stuttering)
        pause = await asked(ledger)
        async with ledger.follow():

            async def there():
                return [row.pause for row in (await ledger.views.open_pauses.most_urgent(SCOPE)).rows] == [
                    pause.pause_id
                ]

            await until(there)


@pytest.mark.parametrize("error", [InteractionConfigurationError("no right"), FileNotFoundError("roots.pem")])
async def test_what_keeps_the_log_from_being_sealed_keeps_no_view_from_following(stage, monkeypatch, caplog, error):
    monkeypatch.setattr("pauseledger.infrastructure.following.SEAL", 0.01)

    class Broken:
        def tick(self):
            raise error

    async with stage.ledger() as ledger:
        with caplog.at_level(logging.INFO, "pauseledger"):
            async with ledger.views.follow(ledger.capability, sweep=True, progress=None, notary=Broken()) as following:

                async def told():
                    return [line for line in lines_of(caplog) if line["decision"] == "following_waits"]

                await until(told)
                pause = await asked(ledger)

                async def there():
                    return [row.pause for row in (await ledger.views.open_pauses.most_urgent(SCOPE)).rows] == [
                        pause.pause_id
                    ]

                await until(there)
                assert not following._task.done()
        assert {line["part"] for line in await told()} == {"sealed log"}
        assert "roots.pem" not in caplog.text


def lines_of(caplog):
    return [json.loads(record.getMessage()) for record in caplog.records if record.name.startswith("pauseledger")]


async def test_what_breaks_a_follower_is_told_by_its_end_and_in_the_log(stage, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "pauseledger")
    async with stage.ledger() as ledger:

        def broken(*_):
            raise ZeroDivisionError

        monkeypatch.setattr(ledger.views.runner, "step", broken)
        with pytest.raises(ExceptionGroup) as told:
            await asyncio.wait_for(ledger.follow().run(), 5)
        assert told.group_contains(ZeroDivisionError)
    assert "ZeroDivisionError" in [line["error"] for line in lines_of(caplog) if line["decision"] == "following_ended"]


async def test_progress_tells_where_the_slowest_view_is(stage):
    async with stage.ledger() as ledger:
        await asked(ledger)
        seen = []
        async with ledger.follow(progress=lambda *at: seen.append(at)):

            async def done():
                return bool(seen) and seen[-1][0] == seen[-1][1] >= 1

            await until(done)
