"""`already_answered`: another answer was given first. The same one again is no news."""

from pauseledger import STORED, Actor, AlreadyAnswered, ResponseInvalid
from pauseledger.infrastructure.stories import ANSWER, ANSWER_TEXT, OTHER_ANSWER, WRONG_ANSWER, contents, refusal


async def test_the_first_answer_stands(stage, ledger, question):
    receipt = await question.answer(answered_by=Actor("maria"))
    assert (receipt.state, receipt.position) == ("answered", 2)
    refused = await refusal(stage, question.answer(OTHER_ANSWER), AlreadyAnswered)
    assert (refused.reason, refused.step, refused.axis) == ("already_answered", 6, "consumption")
    assert (refused.at, refused.by) == ((await ledger.story(question.pause_id))[1].at, "maria")
    assert "STORED" in str(refused)
    await refusal(stage, question.redeem(OTHER_ANSWER), AlreadyAnswered)
    turn = await question.redeem(STORED)
    assert contents(turn) == {"call_1": ANSWER_TEXT}
    assert turn.outcome.answered_by == "maria"


async def test_the_same_answer_again_changes_nothing(stage, ledger, question):
    await question.answer(answered_by=Actor("maria"))
    before = stage.rows()
    again = await question.answer(
        {"answers": [{"selections": ["Anne"], "question_id": "q1"}]}, answered_by=Actor("tom")
    )
    assert (again.state, again.position) == ("answered", None)
    assert stage.rows() == before
    assert (await question.redeem(ANSWER)).outcome.answered_by == "maria"


async def test_null_and_absent_are_different_answers(stage, ledger, question):
    await question.answer()
    with_null = {"answers": [{"question_id": "q1", "selections": ["Anne"], "other": None}]}
    await refusal(stage, question.answer(with_null), AlreadyAnswered)


async def test_an_invalid_answer_is_refused_at_its_own_step(stage, ledger, question):
    await question.answer()
    await refusal(stage, question.answer(WRONG_ANSWER), ResponseInvalid)
