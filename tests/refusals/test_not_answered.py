"""`not_answered`: STORED was presented, and nothing is stored yet."""

from pauseledger import STORED, NotAnswered
from pauseledger.infrastructure.stories import ANSWER_TEXT, contents, refusal


async def test_stored_before_any_answer_is_refused_and_works_once_there_is_one(stage, ledger, question):
    for attempt in (question.redeem(STORED), question.answer(STORED)):
        refused = await refusal(stage, attempt, NotAnswered)
        assert (refused.reason, refused.step, refused.axis) == ("not_answered", 6, "consumption")
        assert refused.retryable
    await question.answer()
    assert (await question.answer(STORED)).state == "answered"
    assert contents(await question.redeem(STORED)) == {"call_1": ANSWER_TEXT}
