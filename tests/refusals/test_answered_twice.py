"""`answered_twice`: of those who have to agree each counts once. The same answer again is no news."""

import pytest
from pauseledger import Actor, AnsweredTwice, Policy
from pauseledger.infrastructure.stories import ANSWER, OTHER_ANSWER, WRONG_ANSWER, asked, refusal


@pytest.fixture
async def question(ledger):
    await ledger.capability.govern("ask_user", Policy(name="two", quorum=2), by=Actor("carla"))
    return await asked(ledger)


async def test_another_answer_of_the_same_person_is_refused(stage, question):
    receipt = await question.answer(answered_by=Actor("maria"))
    assert (receipt.state, receipt.missing) == ("open", 1)
    same = (Actor("maria"), Actor("assistant", on_behalf_of="maria"), Actor("maria", assurance="signed"))
    for actor in same:
        for said in (OTHER_ANSWER, WRONG_ANSWER):
            refused = await refusal(stage, question.answer(said, answered_by=actor), AnsweredTwice)
            assert (refused.reason, refused.step, refused.axis, refused.rule) == (
                "answered_twice",
                4,
                "actor",
                "quorum",
            )
    assert (await question.answer(answered_by=Actor("tom"))).state == "answered"


async def test_the_same_answer_of_the_same_person_changes_nothing_and_counts_once(stage, question):
    await question.answer(answered_by=Actor("maria"))
    before = stage.count()
    again = await question.answer(answered_by=Actor("maria"))
    assert (again.state, again.missing, again.position) == ("open", 1, None)
    assert stage.count() == before


async def test_once_enough_agree_who_answered_may_still_not_answer_otherwise(stage, question):
    await question.answer(answered_by=Actor("maria"))
    await question.answer(answered_by=Actor("tom"))
    await refusal(stage, question.redeem(OTHER_ANSWER, answered_by=Actor("maria")), AnsweredTwice)
    assert (await question.redeem(ANSWER, answered_by=Actor("maria"))).fence == 1
