"""`interaction_unregistered`: this process does not know the interaction as it was when pausing; another one may."""

import pytest
from pauseledger import STORED, Interaction, InteractionUnregistered, RecoverCommand
from pauseledger.infrastructure.stories import asked, refusal

WHOLE = {"type": "integer"}


def pick(response=WHOLE, revision=1, **fields):
    return Interaction(
        name="pick", revision=revision, request_schema={}, response_schema=response, as_text=str, **fields
    )


async def paused(stage):
    async with stage.ledger(interactions=[pick()]) as ledger:
        return await asked(ledger, interaction="pick", request={"of": 3})


@pytest.mark.parametrize(
    ("known", "rule"),
    [([], "absent"), ([pick(revision=2)], "absent"), ([pick({"type": "number"})], "schema_differs")],
    ids=["absent", "another revision", "another schema"],
)
async def test_it_is_refused_and_redeemed_where_it_is_known(stage, known, rule):
    question = await paused(stage)
    async with stage.ledger(interactions=known) as other:
        refused = await refusal(stage, question.at(other).redeem(2), InteractionUnregistered)
        assert (refused.step, refused.axis, refused.retryable, refused.rule) == (4, "response", True, rule)
        await refusal(stage, question.at(other).answer(2), InteractionUnregistered)
    async with stage.ledger(interactions=[pick(), pick(revision=2)]) as other:
        turn = await question.at(other).redeem(2)
        assert (turn.outcome.name, turn.outcome.response, turn.history[-1]["content"]) == ("pick", 2, "2")


async def test_a_stored_answer_without_words_here_is_not_consumed(stage):
    question = await paused(stage)
    async with stage.ledger(interactions=[pick()]) as ledger:
        await question.at(ledger).answer(2)
    async with stage.ledger() as other:
        await refusal(stage, question.at(other).redeem(STORED), InteractionUnregistered)
        recover = RecoverCommand(question.pause_id, axes=question.axes)
        await refusal(stage, other.capability.recover(recover), InteractionUnregistered)
    async with stage.ledger(interactions=[pick()]) as ledger:
        assert (await question.at(ledger).redeem(STORED)).history[-1]["content"] == "2"


async def test_a_new_pause_is_made_with_the_newest_revision(stage):
    async with stage.ledger(interactions=[pick(revision=2), pick()]) as ledger:
        await asked(ledger, interaction="pick", request=None)
    assert stage.rows()[0].header["interaction"]["revision"] == 2
