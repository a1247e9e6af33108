"""`request_missing`: the pause is not in this store. The attempt goes to the pause's refusal stream, and to no other."""

from uuid import uuid4

from pauseledger import Actor, RecoverCommand, RequestMissing, ScopeMismatch, WithdrawCommand
from pauseledger.infrastructure.stories import STORED, asked, axes, refusal


async def lost(stage, ledger):
    """Ask, and lose the store's rows: a restored backup that is too old."""
    question = await asked(ledger)
    stage.forget()
    return question


async def test_a_pause_that_the_store_lost_is_named_and_recorded_apart(stage, ledger):
    question = await lost(stage, ledger)
    refused = await refusal(stage, question.redeem(), RequestMissing)
    assert (refused.reason, refused.step, refused.axis) == ("request_missing", 3, "request")
    await refusal(stage, question.answer(STORED), RequestMissing)
    rows = stage.rows()
    assert [row.version for row in rows] == [1, 2]
    assert {row.stream for row in rows} != {question.pause_id}
    assert [row.header["scope"] for row in rows] == [None, None]
    assert [row.header["pause"] for row in rows] == [str(question.pause_id)] * 2


async def test_its_id_is_not_poisoned(stage, ledger):
    question = await lost(stage, ledger)
    await refusal(stage, question.redeem(), RequestMissing)
    again = await asked(ledger)
    assert (again.pause_id, again.receipt.existing) == (question.pause_id, False)
    assert (await again.redeem()).fence == 1


async def test_the_axes_are_judged_before_the_stream(stage, ledger):
    question = await lost(stage, ledger)
    await refusal(
        stage,
        question.redeem(axes=axes("other", scope=axes().scope.model_copy(update={"namespace": "x"}))),
        ScopeMismatch,
    )


async def test_commands_that_name_an_absent_pause_are_refused(stage, ledger):
    await refusal(stage, ledger.capability.withdraw(WithdrawCommand(uuid4(), axes=axes())), RequestMissing)
    await refusal(stage, ledger.capability.recover(RecoverCommand(uuid4(), axes=axes())), RequestMissing)
    operator = ledger.operator(Actor("olga"))
    await refusal(stage, operator.withdraw(WithdrawCommand(uuid4())), RequestMissing)
