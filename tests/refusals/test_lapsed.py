"""`lapsed`: the window closed without an answer, and that was written down."""

import pytest
from pauseledger import (
    LapseAnswer,
    LapseCommand,
    NothingOwed,
    PauseClosed,
    PauseLapsed,
    RecoverCommand,
    TokenExpired,
    WindowOpen,
)
from pauseledger.infrastructure.stories import OTHER_ANSWER, STORED, asked, contents, refusal, topics


async def lapse(question):
    return await question.ledger.capability.lapse(LapseCommand(question.pause_id, axes=question.axes))


async def test_a_token_whose_window_outlives_the_lapse_is_refused_by_it(stage):
    async with stage.ledger() as ledger, stage.ledger(leeway=120) as patient:
        question = await asked(ledger, closes_in=60)
        ledger.wait(seconds=61)
        patient.wait(seconds=61)
        assert (await lapse(question)).state == "lapsed"
        refused = await refusal(stage, question.at(patient).redeem(), PauseLapsed)
        assert (refused.reason, refused.step, refused.axis) == ("lapsed", 6, "consumption")
        await refusal(stage, question.at(patient).redeem(STORED), PauseLapsed)
        await refusal(stage, question.redeem(), TokenExpired)
        assert topics(stage.rows(question.pause_id)) == ["paused", "lapsed"]


async def test_a_window_lapses_once_and_not_before_its_end(stage, ledger):
    question = await asked(ledger, closes_in=60)
    with pytest.raises(WindowOpen) as caught:
        await lapse(question)
    assert caught.value.closes_at == question.receipt.closes_at
    ledger.wait(seconds=61)
    await lapse(question)
    assert (await lapse(question)).position is None
    assert topics(stage.rows()) == ["paused", "lapsed"]


async def test_leeway_keeps_it_open(stage):
    async with stage.ledger(leeway=30) as ledger:
        question = await asked(ledger, closes_in=60)
        ledger.wait(seconds=61)
        with pytest.raises(WindowOpen):
            await lapse(question)
        ledger.wait(seconds=30)
        await lapse(question)
        assert stage.rows()[-1].header["leeway_seconds"] == 30


async def test_a_pause_that_holds_its_answer_never_lapses(stage, ledger):
    question = await asked(ledger, closes_in=60)
    await question.answer()
    ledger.wait(seconds=61)
    with pytest.raises(PauseClosed) as caught:
        await lapse(question)
    assert caught.value.state == "answered"
    assert (await question.redeem(STORED)).fence == 1


async def test_without_a_lapse_answer_nothing_is_owed(stage, ledger):
    question = await asked(ledger, closes_in=60)
    ledger.wait(seconds=61)
    recover = RecoverCommand(question.pause_id, axes=question.axes)
    with pytest.raises(NothingOwed):
        await ledger.capability.recover(recover)
    await lapse(question)
    with pytest.raises(NothingOwed):
        await ledger.capability.recover(recover)


@pytest.mark.parametrize("written", [True, False], ids=["lapsed before", "lapsed by recover"])
async def test_with_a_lapse_answer_the_turn_continues_with_it(stage, ledger, written):
    question = await asked(ledger, closes_in=60, on_lapse=LapseAnswer(OTHER_ANSWER))
    ledger.wait(seconds=61)
    if written:
        await lapse(question)
    turn = await ledger.capability.recover(RecoverCommand(question.pause_id, axes=question.axes))
    assert contents(turn) == {"call_1": "q1: Bob"}
    assert turn.outcome.time_to_resolve_seconds >= 60
    assert topics(stage.rows()) == ["paused", "lapsed", "consumed"]
    assert stage.rows()[-1].header["origin"] == "lapse"
