"""`already_consumed`: another attempt was first; the loser is told who and when, and never handed the winner's answer."""

import asyncio

import pytest
from pauseledger import (
    STORED,
    Actor,
    AlreadyConsumed,
    InteractionConfigurationError,
    RecoverCommand,
    ResponseInvalid,
    ResumedTurn,
    continuing,
)
from pauseledger.infrastructure.stories import ANSWER, OTHER_ANSWER, WRONG_ANSWER, contents, refusal, topics


async def test_the_loser_is_told_who_consumed_it_and_when(stage, ledger, question):
    await question.redeem(answered_by=Actor("maria"))
    consumed = (await ledger.story(question.pause_id))[-1]
    for attempt in (question.redeem(answered_by=Actor("tom")), question.redeem(STORED), question.answer()):
        refused = await refusal(stage, attempt, AlreadyConsumed)
        assert (refused.reason, refused.step, refused.axis) == ("already_consumed", 6, "consumption")
        assert (refused.at, refused.by, refused.own, refused.state) == (consumed.at, "maria", False, None)


async def test_it_is_judged_before_already_answered_and_after_the_answer(stage, ledger, question):
    await question.redeem()
    await refusal(stage, question.redeem(OTHER_ANSWER), AlreadyConsumed)
    await refusal(stage, question.redeem(WRONG_ANSWER), ResponseInvalid)


async def test_of_fifty_decisions_at_once_one_wins_and_its_answer_alone_stands(stage, ledger, question):
    async with stage.ledger() as second, stage.ledger() as third:
        attempts = [
            question.at((ledger, second, third)[n % 3]).redeem(
                ANSWER if n % 2 else OTHER_ANSWER, answered_by=Actor(f"person-{n}")
            )
            for n in range(50)
        ]
        ends = await asyncio.gather(*attempts, return_exceptions=True)
    won = [end for end in ends if isinstance(end, ResumedTurn)]
    lost = [end for end in ends if isinstance(end, AlreadyConsumed)]
    assert (len(won), len(lost)) == (1, 49)
    winner = f"person-{ends.index(won[0])}"
    assert {refused.by for refused in lost} == {winner}
    assert len({refused.at for refused in lost}) == 1
    assert contents(won[0]) == {"call_1": "q1: Anne" if ends.index(won[0]) % 2 else "q1: Bob"}
    assert topics(stage.rows()).count("consumed") == topics(stage.rows()).count("answered") == 1
    assert topics(stage.rows()).count("refused") == len([refused for refused in lost if refused.recorded]) == 49


async def test_the_same_attempt_key_from_another_process_learns_that_it_won(stage, ledger, question):
    await question.redeem(attempt_key="click-7")
    before = stage.rows()
    async with stage.ledger() as other:
        try:
            await question.at(other).redeem(attempt_key="click-7")
        except AlreadyConsumed as refused:
            told = refused
        assert (told.own, told.state, told.recorded) == (True, "owed", False)
        assert "recover" in str(told)
        assert stage.rows() == before
        refused = await refusal(stage, question.at(other).redeem(attempt_key="click-8"), AlreadyConsumed)
        assert not refused.own
        await ledger.capability.settle_claim(question.pause_id, 1, "stalled")
        turn = await other.capability.recover(RecoverCommand(question.pause_id, axes=question.axes))
        assert turn.fence == 2


@pytest.mark.parametrize("blank", ["", " \n"])
async def test_a_blank_key_is_the_hosts_mistake_as_everybody_who_forgot_theirs_would_share_it(stage, question, blank):
    with pytest.raises(InteractionConfigurationError, match="attempt_key"):
        await question.redeem(attempt_key=blank)
    assert stage.count() == 1


async def test_the_ledgers_own_redeem_takes_a_key_as_well(stage, ledger, question):
    await ledger.redeem(question.token, ANSWER, axes=question.axes, attempt_key="click-7")
    with pytest.raises(AlreadyConsumed) as told:
        await ledger.redeem(question.token, ANSWER, axes=question.axes, attempt_key="click-7")
    assert (told.value.own, told.value.state) == (True, "owed")
    assert stage.count("pause.refused@1") == 0


async def test_the_key_itself_is_not_stored(stage, ledger, question):
    await question.redeem(attempt_key="click-7")
    assert not any(b"click-7" in row.state for row in stage.rows())
    assert len(stage.rows()[-1].header["key"]) == 16


async def test_the_own_key_tells_the_state_as_it_goes_on(stage, ledger, question):
    turn = await question.redeem(attempt_key="click-7")
    async with continuing(turn):
        pass
    try:
        await question.redeem(attempt_key="click-7")
    except AlreadyConsumed as refused:
        assert (refused.own, refused.state) == (True, "continued")
    else:
        raise AssertionError
