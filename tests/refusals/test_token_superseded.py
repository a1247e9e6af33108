"""`token_superseded`: a newer token ended this one, or the ledger was restored since."""

from datetime import timedelta

import pytest
from pauseledger import (
    Actor,
    InteractionConfigurationError,
    PauseClosed,
    ReissueCommand,
    ResponseInvalid,
    TokenExpired,
    TokenSuperseded,
    WithdrawCommand,
)
from pauseledger.infrastructure.stories import STORED, WRONG_ANSWER, ask, asked, refusal


async def reissued(question, **fields):
    return await question.ledger.capability.reissue(ReissueCommand(question.pause_id, axes=question.axes, **fields))


async def test_a_token_that_was_ended_is_refused_and_the_newer_one_works(stage, ledger, question):
    newer = await reissued(question, ends_earlier=True)
    assert (newer.existing, newer.pause_id, newer.round) == (True, question.pause_id, question.pause_id)
    refused = await refusal(stage, question.redeem(), TokenSuperseded)
    assert (refused.reason, refused.step, refused.axis, refused.retryable) == ("token_superseded", 6, "token", False)
    await refusal(stage, question.answer(), TokenSuperseded)
    await refusal(stage, question.redeem(STORED), TokenSuperseded)
    assert (await question.redeem(token=newer.token)).fence == 1


async def test_steps_4_and_5_are_judged_before(stage, ledger, question):
    await reissued(question, ends_earlier=True)
    await refusal(stage, question.redeem(WRONG_ANSWER), ResponseInvalid)


async def test_a_reminder_leaves_the_earlier_token_standing(ledger, question):
    reminder = await reissued(question, reason="reminder")
    assert reminder.token != question.token
    await question.answer()
    assert (await question.redeem(token=reminder.token)).fence == 1


async def test_only_generations_below_the_last_ending_are_ended(stage, ledger, question):
    first = await reissued(question, ends_earlier=True)
    second = await reissued(question)
    await refusal(stage, question.redeem(), TokenSuperseded)
    await question.answer(token=first.token)
    assert (await question.redeem(token=second.token)).fence == 1


async def test_a_restored_ledger_ends_every_older_token(stage, ledger, question):
    ledger.recorder.draw_epoch()
    await refusal(stage, question.redeem(), TokenSuperseded)
    again = await ledger.capability.pause(ask())
    assert (again.existing, again.pause_id) == (True, question.pause_id)
    newer = await ledger.operator(Actor("olga")).reissue(ReissueCommand(question.pause_id, reason="restored"))
    await question.answer(token=newer.token)
    assert (await question.redeem(token=again.token)).fence == 1


async def test_another_process_hears_of_the_new_epoch(stage, ledger, question):
    async with stage.ledger() as other:
        await question.at(other).answer()
        ledger.recorder.draw_epoch()
        await refusal(stage, question.at(other).redeem(STORED), TokenSuperseded)


async def test_a_token_minted_again_has_its_own_window_within_the_pauses(stage, ledger):
    question = await asked(ledger, closes_in=3600)
    short = await reissued(question, closes_in=60)
    long = await reissued(question, closes_in=7200)
    assert short.closes_at < question.receipt.closes_at == long.closes_at
    ledger.wait(seconds=61)
    await refusal(stage, question.redeem(token=short.token), TokenExpired)
    await question.answer(token=long.token)
    ledger.wait(hours=1)
    assert (await question.redeem(STORED, token=short.token)).fence == 1


async def test_a_pause_found_again_hands_out_a_token_of_the_newest_generation(stage, ledger):
    question = await asked(ledger, closes_in=3600)
    short = await reissued(question, ends_earlier=True, closes_in=60)
    ledger.wait(seconds=61)
    again = await ledger.capability.pause(ask(closes_in=3600))
    assert again.closes_at == question.receipt.closes_at > short.closes_at
    assert (await question.redeem(token=again.token)).fence == 1


@pytest.mark.parametrize("closes_in", [0, -1, 1.5, True])
async def test_a_window_is_a_whole_number_of_seconds(stage, ledger, question, closes_in):
    before = stage.rows()
    with pytest.raises(InteractionConfigurationError, match="closes_in"):
        await reissued(question, closes_in=closes_in)
    assert stage.rows() == before


async def test_what_is_over_gets_no_token(stage, ledger, question):
    await question.redeem()
    with pytest.raises(PauseClosed) as caught:
        await reissued(question)
    assert caught.value.state == "owed"
    other = await asked(ledger, ask(occurrence=1))
    await ledger.capability.withdraw(WithdrawCommand(other.pause_id, axes=other.axes))
    with pytest.raises(PauseClosed) as caught:
        await reissued(other)
    assert caught.value.state == "withdrawn"


async def test_the_fact_tells_who_and_why(stage, ledger, question):
    await ledger.operator(Actor("olga", kind="service")).reissue(
        ReissueCommand(question.pause_id, reason="rotated", ends_earlier=True)
    )
    said = stage.rows()[-1].header
    assert (said["reason"], said["generation"], said["ends_earlier"]) == ("rotated", 1, True)
    assert said["by"]["kind"] == "service"
    assert timedelta(0) < question.receipt.closes_at - ledger.pauses.now()
