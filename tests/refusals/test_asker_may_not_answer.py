"""`asker_may_not_answer`: four eyes; neither who asked answers, nor whoever it was asked for."""

import pytest
from pauseledger import Actor, AskerMayNotAnswer, LapseAnswer, PauseRejected, Policy
from pauseledger.infrastructure.stories import approve, asked, refusal

FOUR_EYES = Policy(name="four-eyes", four_eyes=True)
YES = {"decision": "approve"}
BOT = Actor("bot", kind="service", on_behalf_of="maria")


@pytest.fixture
async def governed(ledger):
    await ledger.capability.govern("approval", FOUR_EYES, by=Actor("carla"))
    return ledger


@pytest.mark.parametrize("same", [Actor("maria"), Actor("tom", on_behalf_of="maria"), Actor("bot")])
async def test_whoever_stands_behind_the_question_does_not_answer_it(stage, governed, same):
    question = await asked(governed, approve(asked_by=BOT))
    for attempt in (question.answer(YES, answered_by=same), question.redeem(YES, answered_by=same)):
        refused = await refusal(stage, attempt, AskerMayNotAnswer)
        assert (refused.reason, refused.step, refused.axis, refused.rule) == (
            "asker_may_not_answer",
            4,
            "actor",
            "four_eyes",
        )
    turn = await question.redeem(YES, answered_by=Actor("tom"))
    assert [call.tool for call in turn.dispatch] == ["transfer"]


async def test_a_question_that_nobody_asked_is_not_paused_under_it(stage, governed):
    before = stage.count()
    with pytest.raises(PauseRejected, match="asker_missing"):
        await asked(governed, approve())
    assert stage.count() == before


async def test_no_lapse_answer_lets_a_call_run_that_a_policy_governs(stage, governed):
    with pytest.raises(PauseRejected, match="lapse_answer_forbidden"):
        await asked(governed, approve(asked_by=BOT, on_lapse=LapseAnswer(YES)))
    rejecting = LapseAnswer({"decision": "reject", "reason": "nobody answered"})
    assert (await asked(governed, approve(asked_by=BOT, on_lapse=rejecting))).receipt.existing is False
