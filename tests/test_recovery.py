"""An answer is never lost: an owed turn is taken up again, under the next claim, until it is given up by name."""

import asyncio

import pytest
from pauseledger import (
    STORED,
    Actor,
    AlreadyConsumed,
    AlreadyContinued,
    Interaction,
    InteractionConfigurationError,
    LeaseHeld,
    NotConsumed,
    NothingOwed,
    RecoverCommand,
    ResumedTurn,
    SettleCommand,
    StoreUnavailable,
    TokenExpired,
    TurnAbandoned,
    continuing,
)
from pauseledger.infrastructure.executor import Executor
from pauseledger.infrastructure.postgres_async import PostgresStreams
from pauseledger.infrastructure.stories import ANSWER_TEXT, Stage, asked, contents, refusal, topics


@pytest.fixture
def stage(store_url, tmp_path):
    return Stage(store_url, tmp_path / "keys")


@pytest.fixture
async def ledger(stage):
    async with stage.ledger() as opened:
        yield opened


@pytest.fixture
async def question(ledger):
    return await asked(ledger)


async def recover(question, **fields):
    return await question.ledger.capability.recover(RecoverCommand(question.pause_id, axes=question.axes, **fields))


async def settle(question, fence, end, **fields):
    return await question.ledger.capability.settle(
        SettleCommand(question.pause_id, question.axes, fence, end, **fields)
    )


async def test_before_any_answer_nothing_is_owed(question):
    with pytest.raises(NotConsumed):
        await recover(question)


async def test_a_ready_pause_is_handed_out_under_the_first_claim(stage, question):
    await question.answer(answered_by=Actor("maria"))
    turned = await recover(question)
    assert (turned.fence, turned.outcome.answered_by) == (1, "maria")
    assert contents(turned) == {"call_1": ANSWER_TEXT}
    assert topics(stage.rows()) == ["paused", "answered", "consumed"]
    assert stage.rows()[-1].header["origin"] == "ready"


async def test_an_answer_given_in_time_is_continued_long_after(ledger, question):
    await question.answer()
    ledger.wait(days=400)
    assert contents(await recover(question)) == {"call_1": ANSWER_TEXT}


async def test_an_owed_turn_is_held_by_its_lease_and_then_taken_up(stage, ledger, question):
    first = await question.redeem()
    with pytest.raises(LeaseHeld) as caught:
        await recover(question)
    assert (caught.value.fence, caught.value.pause_id) == (1, question.pause_id)
    ledger.wait(seconds=61)
    second = await recover(question)
    assert (second.fence, second.history) == (2, first.history)
    assert second.idempotency_key == first.idempotency_key == str(question.pause_id)
    said = stage.rows()[-1].header
    assert (said["because"], said["from_fence"], said["claim"]["fence"]) == ("lease_ended", 1, 2)


async def test_a_stalled_turn_is_taken_up_at_once(stage, question):
    turned = await question.redeem()
    with pytest.raises(ZeroDivisionError):
        async with continuing(turned):
            raise ZeroDivisionError
    second = await recover(question)
    assert (second.fence, contents(second)) == (2, {"call_1": ANSWER_TEXT})
    assert stage.rows()[-1].header["because"] == "stalled"
    async with continuing(second):
        pass
    with pytest.raises(AlreadyContinued):
        await recover(question)


async def test_another_process_takes_it_up_and_of_two_at_once_one_wins(stage, ledger, question):
    await question.redeem()
    await settle(question, 1, "stalled")
    async with stage.ledger() as other, stage.ledger() as third:
        ends = await asyncio.gather(
            *(recover(question.at(process)) for process in (other, third, ledger) for _ in range(2)),
            return_exceptions=True,
        )
    assert [type(end) for end in ends].count(ResumedTurn) == 1
    assert [type(end) for end in ends].count(LeaseHeld) == 5
    assert stage.count("pause.recovered@1") == 1


async def test_after_five_recoveries_it_is_given_up_by_name(stage, question):
    await question.redeem()
    for fence in range(1, 6):
        await settle(question, fence, "stalled")
        assert (await recover(question)).fence == fence + 1
    await settle(question, 6, "stalled")
    for _ in range(2):
        with pytest.raises(TurnAbandoned):
            await recover(question)
    assert topics(stage.rows())[-1] == "abandoned"
    assert stage.count("pause.abandoned@1") == 1
    assert stage.rows()[-1].header["reason"] == "exhausted"
    assert (await settle(question, 3, "finished")).state == "continued"
    assert stage.rows()[-1].header["late"] is True


async def test_only_an_operator_ends_a_lease_that_runs(stage, ledger, question):
    await question.redeem()
    with pytest.raises(InteractionConfigurationError, match="operator"):
        await recover(question, reason="forced")
    operator = ledger.operator(Actor("olga"))
    with pytest.raises(LeaseHeld):
        await operator.recover(RecoverCommand(question.pause_id))
    turned = await operator.recover(RecoverCommand(question.pause_id, reason="forced"))
    assert turned.fence == 2
    said = stage.rows()[-1].header
    assert said["because"] == "forced"
    assert said["by"] is not None
    assert (await ledger.story(question.pause_id))[-1].by.who.clear() == b"olga"
    assert b"olga" not in stage.rows()[-1].state


async def test_an_operator_is_somebody(ledger):
    with pytest.raises(InteractionConfigurationError, match="operator"):
        ledger.operator(None)


async def test_a_zombies_stall_changes_nothing_and_its_finish_settles(stage, ledger, question):
    zombie = await question.redeem()
    ledger.wait(seconds=61)
    second = await recover(question)
    with pytest.raises(RuntimeError):
        async with continuing(zombie):
            raise RuntimeError
    assert topics(stage.rows())[-1] == "recovered"
    with pytest.raises(LeaseHeld):
        await recover(question)
    async with continuing(second):
        pass
    assert (await settle(question, 1, "finished")).position is None
    assert topics(stage.rows()) == ["paused", "answered", "consumed", "recovered", "continued"]
    with pytest.raises(AlreadyContinued):
        await recover(question)


async def test_a_zombie_that_finishes_first_settles_late_and_there_is_no_third_run(stage, ledger, question):
    zombie = await question.redeem()
    ledger.wait(seconds=61)
    second = await recover(question)
    async with continuing(zombie):
        pass
    said = stage.rows()[-1].header
    assert (said["fence"], said["late"], said["end"]) == (1, True, "finished")
    with pytest.raises(AlreadyContinued):
        await recover(question)
    async with continuing(second):
        pass
    assert stage.count("pause.continued@1") == 1
    assert second.settled


async def test_a_win_that_took_a_good_part_of_its_lease_is_held_from_then_on(stage):
    def slow(request, response):
        ledger.wait(seconds=response["seconds"])

    fields = {"request_schema": {}, "response_schema": {}, "cross_check": slow, "as_text": str}
    async with stage.ledger(interactions=[Interaction(name="slow", **fields)]) as ledger:
        for occurrence, (seconds, fences) in enumerate([(10, []), (30, [1])]):
            question = await asked(ledger, interaction="slow", request={}, occurrence=occurrence)
            turned = await question.redeem({"seconds": seconds})
            held = ledger.recorder.leases([question.pause_id]).values()
            assert (turned.fence, [lease.fence for lease in held]) == (1, fences)


async def test_the_lease_of_an_older_claim_holds_nobody_off(stage, monkeypatch):
    async with stage.ledger(lease=60) as ledger, stage.ledger(lease=30) as other:
        question = await asked(ledger)
        zombie = await question.redeem()
        await settle(question, 1, "stalled")
        renew = other.pauses.renew

        async def gone(*_):
            raise StoreUnavailable("not now")

        monkeypatch.setattr(other.pauses, "renew", gone)
        assert (await recover(question.at(other))).fence == 2
        monkeypatch.setattr(other.pauses, "renew", renew)
        assert await zombie.renew(), "the store has not heard of the newer claim"
        other.wait(seconds=31)
        assert (await recover(question.at(other))).fence == 3


async def test_a_zombie_cannot_renew(ledger, question):
    zombie = await question.redeem()
    assert await zombie.renew()
    await settle(question, 1, "stalled")
    second = await recover(question)
    assert await second.renew()
    assert not await zombie.renew()


async def test_a_worker_at_work_renews_its_lease_and_keeps_the_turn(stage):
    async with stage.ledger(lease=1) as ledger, stage.ledger(lease=1) as other:
        question = await asked(ledger)
        async with continuing(await question.redeem()):
            await asyncio.sleep(1.4)
            with pytest.raises(LeaseHeld):
                await recover(question.at(other))
        with pytest.raises(AlreadyContinued):
            await recover(question.at(other))
    assert topics(stage.rows()) == ["paused", "answered", "consumed", "continued"]


async def test_a_turn_entered_late_is_renewed_before_its_lease_ends(stage):
    async with stage.ledger(lease=2) as ledger, stage.ledger(lease=2) as other:
        question = await asked(ledger)
        turned = await question.redeem()
        await asyncio.sleep(1.8)
        async with continuing(turned):
            await asyncio.sleep(0.5)
            with pytest.raises(LeaseHeld):
                await recover(question.at(other))


async def test_a_turn_resumed_without_it_is_not_owed(ledger, question):
    await ledger.capability.resume(question.command())
    with pytest.raises(NothingOwed):
        await recover(question)


async def test_a_consumed_pause_is_not_redeemed_again_whatever_became_of_its_turn(stage, question):
    await question.redeem()
    await settle(question, 1, "stalled")
    await refusal(stage, question.redeem(STORED), AlreadyConsumed)


async def test_a_token_names_the_pause_as_well_also_after_its_window(stage, ledger):
    question = await asked(ledger, closes_in=60)
    await question.answer()
    ledger.wait(seconds=61)
    turned = await ledger.capability.recover(RecoverCommand(envelope=question.envelope(), axes=question.axes))
    assert turned.fence == 1
    late = await asked(ledger, closes_in=60, occurrence=1)
    ledger.wait(seconds=61)
    await refusal(stage, late.redeem(), TokenExpired)


# What a cancelled redemption leaves behind


def awaits_of(monkeypatch, cancel):
    """Count every await of a redemption that leaves the loop, and cancel at one of them, before or after it."""
    counted = [0]

    def watched(leave):
        async def leaving(self, *args, **named):
            counted[0] += 1
            cancel(counted[0], "before")
            done = await leave(self, *args, **named)
            cancel(counted[0], "after")
            return done

        return leaving

    for way, name in ((Executor, "__call__"), (PostgresStreams, "_execute")):
        monkeypatch.setattr(way, name, watched(getattr(way, name)))
    return counted


async def cancelled_at(question, monkeypatch, at, when, work):
    task = None

    def cancel(number, moment):
        if (number, moment) == (at, when):
            task.cancel()

    with monkeypatch.context() as patch:
        counted = awaits_of(patch, cancel)
        task = asyncio.ensure_future(work())
        ended = (await asyncio.gather(task, return_exceptions=True))[0]
    return ended, counted[0]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", [1, 2])
async def test_a_cancelled_redemption_runs_to_its_end_and_stalls(stage, ledger, question, monkeypatch, at, when):
    ended, counted = await cancelled_at(question, monkeypatch, at, when, question.redeem)
    assert isinstance(ended, asyncio.CancelledError)
    assert counted > 2
    assert topics(stage.rows()) == ["paused", "answered", "consumed", "stalled"]
    said = stage.rows()[-1].header
    assert (said["cause"], said["entered"], said["fence"]) == ("cancelled", False, 1)
    turned = await recover(question)
    assert (turned.fence, contents(turned)) == (2, {"call_1": ANSWER_TEXT})


async def test_that_is_every_await_of_a_redemption(question, monkeypatch):
    ended, counted = await cancelled_at(question, monkeypatch, 0, "never", question.redeem)
    assert (ended.fence, counted) == (1, 2)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", [1, 2])
async def test_a_cancelled_recovery_stalls_as_well(stage, question, monkeypatch, at, when):
    await question.answer()
    ended, _ = await cancelled_at(question, monkeypatch, at, when, lambda: recover(question))
    assert isinstance(ended, asyncio.CancelledError)
    assert topics(stage.rows()) == ["paused", "answered", "consumed", "stalled"]
    assert (await recover(question)).fence == 2


async def test_cancelled_again_and_again_it_still_ends(stage, question, monkeypatch):
    task = asyncio.ensure_future(question.redeem())
    with monkeypatch.context() as patch:
        awaits_of(patch, lambda number, _: task.cancel() if number else None)
        ended = (await asyncio.gather(task, return_exceptions=True))[0]
    assert isinstance(ended, asyncio.CancelledError)
    assert topics(stage.rows()) == ["paused", "answered", "consumed", "stalled"]


async def test_a_cancelled_redemption_that_loses_leaves_nothing(stage, ledger, question, monkeypatch):
    await question.redeem()
    ended, _ = await cancelled_at(question, monkeypatch, 1, "after", question.redeem)
    assert isinstance(ended, asyncio.CancelledError)
    assert topics(stage.rows()) == ["paused", "answered", "consumed", "refused"]


def slowly(patch):
    """Let whatever leaves the loop take longer than anybody here waits."""
    for way, name in ((Executor, "__call__"), (PostgresStreams, "_execute")):
        leave = getattr(way, name)

        async def leaving(self, *args, leave=leave, **named):
            await asyncio.sleep(0.05)
            return await leave(self, *args, **named)

        patch.setattr(way, name, leaving)


async def test_a_timeout_is_a_cancellation(stage, question, monkeypatch):
    with monkeypatch.context() as patch:
        slowly(patch)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(question.redeem(), 0.02)
    assert topics(stage.rows())[-1] == "stalled"
    assert (await recover(question)).fence == 2
