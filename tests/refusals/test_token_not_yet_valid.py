"""`token_not_yet_valid`: the window has not opened; the same attempt succeeds later."""

from pauseledger import ScopeMismatch, TokenNotYetValid
from pauseledger.infrastructure.stories import WRONG_ANSWER, asked, axes, refusal


async def test_a_token_waits_for_its_window(stage, ledger):
    question = await asked(ledger, opens_in=60, closes_in=120)
    refused = await refusal(stage, question.redeem(), TokenNotYetValid)
    assert (refused.step, refused.axis, refused.retryable) == (1, "token", True)
    await refusal(stage, question.answer(), TokenNotYetValid)
    ledger.wait(seconds=61)
    assert (await question.redeem()).fence == 1


async def test_it_names_the_refusal_before_axes_and_answer(stage, ledger):
    question = await asked(ledger, opens_in=60, closes_in=120)
    wrong = axes(scope=question.axes.scope.model_copy(update={"tenant_id": "evil"}))
    await refusal(stage, question.redeem(WRONG_ANSWER, axes=wrong), TokenNotYetValid)
    ledger.wait(seconds=61)
    await refusal(stage, question.redeem(WRONG_ANSWER, axes=wrong), ScopeMismatch)


async def test_leeway_opens_it_earlier(stage):
    async with stage.ledger(leeway=30) as ledger:
        question = await asked(ledger, opens_in=60, closes_in=120)
        ledger.wait(seconds=20)
        await refusal(stage, question.redeem(), TokenNotYetValid)
        ledger.wait(seconds=20)
        assert (await question.redeem()).fence == 1
