"""`withdrawn`: the host took the question back, or a newer one superseded it."""

import pytest
from pauseledger import Actor, PauseClosed, PauseWithdrawn, ResponseInvalid, WithdrawCommand
from pauseledger.infrastructure.stories import STORED, WRONG_ANSWER, ask, asked, axes, contents, refusal, topics, turn


async def test_an_answer_to_a_question_taken_back_is_refused(stage, ledger, question):
    receipt = await ledger.capability.withdraw(
        WithdrawCommand(question.pause_id, axes=question.axes, by=Actor("olga"), reason="moved_on", note="not needed")
    )
    assert (receipt.state, receipt.position) == ("withdrawn", 2)
    refused = await refusal(stage, question.redeem(), PauseWithdrawn)
    assert (refused.reason, refused.step, refused.axis, refused.why) == ("withdrawn", 6, "consumption", "moved_on")
    assert refused.at == (await ledger.story(question.pause_id))[1].at
    await refusal(stage, question.answer(), PauseWithdrawn)
    await refusal(stage, question.redeem(STORED), PauseWithdrawn)
    await refusal(stage, question.redeem(WRONG_ANSWER), ResponseInvalid)


async def test_a_refusal_after_the_end_is_never_in_the_pauses_own_stream(stage, ledger, question):
    await ledger.capability.withdraw(WithdrawCommand(question.pause_id, axes=question.axes))
    await refusal(stage, question.redeem(), PauseWithdrawn)
    assert topics(stage.rows(question.pause_id)) == ["paused", "withdrawn"]


async def test_taken_back_twice_is_no_news_and_consumed_is_too_late(stage, ledger, question):
    command = WithdrawCommand(question.pause_id, axes=question.axes)
    await ledger.capability.withdraw(command)
    before = stage.rows()
    assert (await ledger.capability.withdraw(command)).position is None
    assert stage.rows() == before
    other = await asked(ledger, axes=axes(run_id="run-2"))
    await other.redeem()
    with pytest.raises(PauseClosed) as caught:
        await ledger.capability.withdraw(WithdrawCommand(other.pause_id, axes=other.axes))
    assert caught.value.state == "owed"


async def test_an_answer_given_may_be_taken_back_before_it_is_consumed(stage, ledger, question):
    await question.answer()
    await ledger.capability.withdraw(WithdrawCommand(question.pause_id, axes=question.axes))
    await refusal(stage, question.redeem(STORED), PauseWithdrawn)


async def test_a_superseded_pause_ends_in_the_same_append_and_its_token_never_lands_on_the_newer(
    stage, ledger, question
):
    newer = await asked(
        ledger, ask(turn=turn(said="Never mind."), axes=axes(run_id="run-2"), supersedes=question.pause_id)
    )
    assert [(row.stream, row.topic.split("@")[0]) for row in stage.rows()[1:]] == [
        (stream, topic)
        for stream, topic in sorted(
            [(newer.pause_id, "pause.paused"), (question.pause_id, "pause.withdrawn")], key=lambda row: str(row[0])
        )
    ]
    said = stage.rows(question.pause_id)[-1].header
    assert (said["reason"], said["superseded_by"]) == ("superseded", str(newer.pause_id))
    refused = await refusal(stage, question.redeem(), PauseWithdrawn)
    assert refused.why == "superseded"
    for stated in (newer.axes, question.axes):
        if stated != question.axes:
            with pytest.raises(Exception, match="run_mismatch"):
                await question.redeem(axes=stated)
    assert contents(await newer.redeem()) == {"call_1": "q1: Anne"}
