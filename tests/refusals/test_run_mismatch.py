"""`run_mismatch`: the token is bound to another run."""

import pytest
from pauseledger import RecoverCommand, RunMismatch, WithdrawCommand
from pauseledger.infrastructure.stories import axes, refusal

OTHER = {"run_id": "run-2"}


async def test_another_run_is_refused_by_its_name_and_the_pause_stands(stage, ledger, question):
    refused = await refusal(stage, question.redeem(axes=axes(**OTHER)), RunMismatch)
    assert (refused.reason, refused.step, refused.axis) == ("run_mismatch", 2, "run")
    assert (refused.retryable, refused.pause_id) == (False, question.pause_id)
    await refusal(stage, question.answer(axes=axes(**OTHER)), RunMismatch)
    assert (await question.redeem()).fence == 1


async def test_what_is_presented_is_kept_as_tags_and_the_expected_is_told_to_nobody(stage, ledger, question):
    refused = await refusal(stage, question.redeem(axes=axes(**OTHER)), RunMismatch)
    row = stage.rows()[-1]
    presented = row.header["presented"]
    assert all(len(tag) == 16 and int(tag, 16) >= 0 for tag in presented.values())
    await refusal(stage, question.redeem(axes=axes(run_id="run-3")), RunMismatch)
    again = stage.rows()[-1].header["presented"]
    same = {axis for axis in presented if presented[axis] == again[axis]}
    assert same == {"scope", "session", "run", "call"} - {"run"}
    for told in (str(refused), repr(refused)):
        assert not any(value in told for value in ("acme", "session-1", "run-1", "call_1"))


@pytest.mark.parametrize("named", ["by its id", "by its token"])
async def test_other_commands_are_bound_to_the_run_as_well(stage, ledger, question, named):
    name = {"pause_id": question.pause_id} if named == "by its id" else {"envelope": question.envelope()}
    stated = {**name, "axes": axes(**OTHER)}
    await refusal(stage, ledger.capability.withdraw(WithdrawCommand(**stated)), RunMismatch)
    await refusal(stage, ledger.capability.recover(RecoverCommand(**stated)), RunMismatch)
    assert (await question.redeem()).fence == 1
