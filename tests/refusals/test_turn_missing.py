"""`turn_missing`: the host's checkpoint is gone. No model is called, and the pause stands."""

import json

import pytest
from pauseledger import (
    STORED,
    CheckpointReference,
    InteractionConfigurationError,
    PauseRejected,
    RecoverCommand,
    ResponseInvalid,
    TurnMissing,
)
from pauseledger.infrastructure.stories import ANSWER_TEXT, FORMAT, WRONG_ANSWER, ask, asked, contents, refusal, turn

KEPT = json.dumps(turn().messages).encode()
REFERENCE = CheckpointReference(FORMAT, "shelf", "thread-1", "7")


class Shelf:
    """A host's own checkpoints."""

    def __init__(self):
        self.kept = {("thread-1", "7"): KEPT, ("thread-1", "head"): b"[]"}

    async def read(self, reference):
        return self.kept.get((reference.locator, reference.version))


class Broken:
    async def read(self, reference):
        raise ConnectionError("the shelf is unreachable")


async def test_a_checkpoint_that_is_gone_is_refused_and_comes_back(stage):
    shelf = Shelf()
    async with stage.ledger(checkpoints={"shelf": shelf}) as ledger:
        question = await asked(ledger, ask(turn=REFERENCE))
        shelf.kept.clear()
        refused = await refusal(stage, question.redeem(), TurnMissing)
        assert (refused.reason, refused.step, refused.axis) == ("turn_missing", 5, "turn")
        await refusal(stage, question.answer(), TurnMissing)
        await refusal(stage, question.redeem(WRONG_ANSWER), ResponseInvalid)
        assert stage.count("pause.answered@1") == 0
        shelf.kept["thread-1", "7"] = KEPT
        assert contents(await question.redeem()) == {"call_1": ANSWER_TEXT}


async def test_an_answer_kept_before_it_went_is_not_lost(stage):
    shelf = Shelf()
    async with stage.ledger(checkpoints={"shelf": shelf}) as ledger:
        question = await asked(ledger, ask(turn=REFERENCE))
        await question.answer()
        shelf.kept.clear()
        await refusal(stage, question.redeem(STORED), TurnMissing)
        recover = RecoverCommand(question.pause_id, axes=question.axes)
        await refusal(stage, ledger.capability.recover(recover), TurnMissing)
        shelf.kept["thread-1", "7"] = KEPT
        assert contents(await ledger.capability.recover(recover)) == {"call_1": ANSWER_TEXT}


async def test_only_a_digest_and_a_reference_are_stored(stage):
    async with stage.ledger(checkpoints={"shelf": Shelf()}) as ledger:
        await asked(ledger, ask(turn=REFERENCE))
    row = stage.rows()[0]
    assert row.header["turn"]["content"] is None
    assert row.header["turn"]["checkpoint"] == {"store": "shelf", "locator": "thread-1", "version": "7"}
    assert b"Hello" not in row.state


async def test_a_checkpoint_that_is_not_there_cannot_be_paused(stage):
    async with stage.ledger(checkpoints={"shelf": Shelf()}) as ledger:
        with pytest.raises(PauseRejected) as caught:
            await asked(ledger, ask(turn=CheckpointReference(FORMAT, "shelf", "thread-1", "8")))
    assert caught.value.name == "turn_missing"
    assert stage.rows() == []


async def test_a_checkpoint_port_that_raises_propagates(stage):
    shelf = Shelf()
    async with stage.ledger(checkpoints={"shelf": shelf}) as ledger:
        question = await asked(ledger, ask(turn=REFERENCE))
    before = stage.rows()
    async with stage.ledger(checkpoints={"shelf": Broken()}) as ledger:
        with pytest.raises(ConnectionError, match="unreachable"):
            await question.at(ledger).redeem()
    async with stage.ledger() as ledger:
        with pytest.raises(InteractionConfigurationError, match="shelf"):
            await question.at(ledger).redeem()
    assert stage.rows() == before
