"""`scope_mismatch`: the token is bound to another scope."""

import pytest
from pauseledger import RecoverCommand, RunMismatch, ScopeMismatch, WithdrawCommand
from pauseledger.infrastructure.stories import SCOPE, asked, axes, refusal

OTHER = {"scope": SCOPE.model_copy(update={"sub_tenant_id": ""})}


async def test_another_scope_is_refused_by_its_name_and_the_pause_stands(stage, ledger, question):
    refused = await refusal(stage, question.redeem(axes=axes(**OTHER)), ScopeMismatch)
    assert (refused.reason, refused.step, refused.axis) == ("scope_mismatch", 2, "scope")
    assert (refused.retryable, refused.pause_id) == (False, question.pause_id)
    await refusal(stage, question.answer(axes=axes(**OTHER)), ScopeMismatch)
    assert (await question.redeem()).fence == 1


async def test_what_is_presented_is_kept_as_tags_and_the_expected_is_told_to_nobody(stage, ledger, question):
    refused = await refusal(stage, question.redeem(axes=axes(**OTHER)), ScopeMismatch)
    row = stage.rows()[-1]
    presented = row.header["presented"]
    assert all(len(tag) == 16 and int(tag, 16) >= 0 for tag in presented.values())
    await refusal(stage, question.redeem(axes=axes(run_id="run-3")), RunMismatch)
    again = stage.rows()[-1].header["presented"]
    same = {axis for axis in presented if presented[axis] == again[axis]}
    assert same == {"scope", "session", "run", "call"} - {"run", "scope"}
    for told in (str(refused), repr(refused)):
        assert not any(value in told for value in ("acme", "session-1", "run-1", "call_1"))


@pytest.mark.parametrize("named", ["by its id", "by its token"])
async def test_other_commands_are_bound_to_the_scope_as_well(stage, ledger, question, named):
    name = {"pause_id": question.pause_id} if named == "by its id" else {"envelope": question.envelope()}
    stated = {**name, "axes": axes(**OTHER)}
    await refusal(stage, ledger.capability.withdraw(WithdrawCommand(**stated)), ScopeMismatch)
    await refusal(stage, ledger.capability.recover(RecoverCommand(**stated)), ScopeMismatch)
    assert (await question.redeem()).fence == 1


TENANTS = [("acme", None, None), ("acme", "", None), ("acme", None, ""), ("acme", "a", None), ("acme", None, "a")]


@pytest.mark.parametrize("at", range(len(TENANTS)))
async def test_parts_are_compared_one_by_one_and_absent_differs_from_empty(stage, ledger, at):
    scopes = [
        SCOPE.model_copy(update=dict(zip(("tenant_id", "sub_tenant_id", "namespace"), parts, strict=True)))
        for parts in TENANTS
    ]
    question = await asked(ledger, axes=axes(scope=scopes[at]))
    for other in scopes:
        if other != scopes[at]:
            await refusal(stage, question.redeem(axes=axes(scope=other)), ScopeMismatch)
    assert (await question.redeem()).fence == 1
