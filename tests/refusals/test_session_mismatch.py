"""`session_mismatch`: the token is bound to another session."""

import pytest
from pauseledger import RecoverCommand, RunMismatch, SessionMismatch, WithdrawCommand
from pauseledger.infrastructure.stories import axes, refusal

OTHER = {"session_id": "session-2"}


async def test_another_session_is_refused_by_its_name_and_the_pause_stands(stage, ledger, question):
    refused = await refusal(stage, question.redeem(axes=axes(**OTHER)), SessionMismatch)
    assert (refused.reason, refused.step, refused.axis) == ("session_mismatch", 2, "session")
    assert (refused.retryable, refused.pause_id) == (False, question.pause_id)
    await refusal(stage, question.answer(axes=axes(**OTHER)), SessionMismatch)
    assert (await question.redeem()).fence == 1


async def test_what_is_presented_is_kept_as_tags_and_the_expected_is_told_to_nobody(stage, ledger, question):
    refused = await refusal(stage, question.redeem(axes=axes(**OTHER)), SessionMismatch)
    row = stage.rows()[-1]
    presented = row.header["presented"]
    assert all(len(tag) == 16 and int(tag, 16) >= 0 for tag in presented.values())
    await refusal(stage, question.redeem(axes=axes(run_id="run-3")), RunMismatch)
    again = stage.rows()[-1].header["presented"]
    same = {axis for axis in presented if presented[axis] == again[axis]}
    assert same == {"scope", "session", "run", "call"} - {"run", "session"}
    for told in (str(refused), repr(refused)):
        assert not any(value in told for value in ("acme", "session-1", "run-1", "call_1"))


@pytest.mark.parametrize("named", ["by its id", "by its token"])
async def test_other_commands_are_bound_to_the_session_as_well(stage, ledger, question, named):
    name = {"pause_id": question.pause_id} if named == "by its id" else {"envelope": question.envelope()}
    stated = {**name, "axes": axes(**OTHER)}
    await refusal(stage, ledger.capability.withdraw(WithdrawCommand(**stated)), SessionMismatch)
    await refusal(stage, ledger.capability.recover(RecoverCommand(**stated)), SessionMismatch)
    assert (await question.redeem()).fence == 1
