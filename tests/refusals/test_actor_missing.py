"""`actor_missing`: a policy is in force, and nobody says whose answer it is."""

from pauseledger import Actor, ActorMissing, Policy
from pauseledger.infrastructure.stories import ANSWER_TEXT, asked, contents, refusal, topics


async def test_every_policy_wants_to_know_who_answers(stage, ledger):
    await ledger.capability.govern("ask_user", Policy(name="named"), by=Actor("carla"))
    question = await asked(ledger)
    for attempt in (question.answer(), question.redeem(), question.answer(submitted_by=Actor("the backend"))):
        refused = await refusal(stage, attempt, ActorMissing)
        assert (refused.reason, refused.step, refused.axis, refused.rule) == (
            "actor_missing",
            4,
            "actor",
            "answered_by",
        )
        assert not refused.retryable
    assert contents(await question.redeem(answered_by=Actor("maria"))) == {"call_1": ANSWER_TEXT}
    assert topics(stage.rows(question.pause_id)) == ["paused", *["refused"] * 3, "answered", "consumed"]


async def test_without_a_policy_nobody_need_be_named(stage, ledger, question):
    before = stage.count()
    await question.answer()
    assert stage.count() == before + 1
    assert stage.rows(question.pause_id)[0].header["policy"] is None
    assert stage.rows(question.pause_id)[1].header["policy"] is None
