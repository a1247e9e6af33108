"""`request_mismatch`: what is stored is not what the token says was asked."""

import json

import pytest
from pauseledger import LedgerCorrupt, RecoverCommand, RequestMismatch, ScopeMismatch, WithdrawCommand
from pauseledger.domain.content import Content
from pauseledger.domain.facts import RoutingRecord
from pauseledger.infrastructure.stories import QUESTION, STORED, WRONG_ANSWER, asked_round, axes, refusal, round_of

REPLACED = json.dumps({"questions": [{**QUESTION["questions"][0], "id": "q1", "question": "Whose account?"}]}).encode()


def garbled(segments):
    """Change the first byte of the first segment: the request's."""
    return bytes([segments[0] ^ 1]) + segments[1:]


FORGERIES = {
    "the request": lambda fact: fact.model_copy(update={"request": Content.of(REPLACED)}),
    "the same request, salted anew": lambda fact: fact.model_copy(update={"request": Content.of(fact.request.clear())}),
    "the window": lambda fact: fact.model_copy(update={"closes_at": fact.closes_at.replace(year=2999)}),
    "the run": lambda fact: fact.model_copy(update={"run_id": "run-2"}),
    "the scope": lambda fact: fact.model_copy(update={"scope": axes().scope.model_copy(update={"tenant_id": "evil"})}),
    "whom it is for": lambda fact: fact.model_copy(update={"routing": RoutingRecord(queue="elsewhere")}),
    "request and turn": lambda fact: fact.model_copy(
        update={
            "request": Content.of(REPLACED),
            "turn": fact.turn.model_copy(update={"content": (c := Content.of(b"[]")), "digest": c.digest}),
        }
    ),
}


async def test_an_altered_request_is_refused_and_nothing_is_consumed(stage, ledger, question):
    stage.alter(stage.rows()[0], garbled)
    refused = await refusal(stage, question.redeem(), RequestMismatch)
    assert (refused.reason, refused.step, refused.axis) == ("request_mismatch", 3, "request")
    await refusal(stage, question.answer(), RequestMismatch)
    assert stage.count("pause.consumed@1") == stage.count("pause.answered@1") == 0


async def test_put_back_as_it_was_the_pause_is_redeemed(stage, ledger, question):
    row = stage.rows()[0]
    stage.alter(row, garbled)
    await refusal(stage, question.redeem(), RequestMismatch)
    stage.overwrite(row, row.state)
    assert (await question.redeem()).fence == 1


@pytest.mark.parametrize("forged", FORGERIES.values(), ids=FORGERIES)
async def test_a_forger_who_makes_every_digest_anew_is_found_out_by_the_token(stage, ledger, question, forged):
    stage.forge(stage.rows()[0], forged)
    await refusal(stage, question.redeem(), RequestMismatch)
    await refusal(stage, question.redeem(WRONG_ANSWER), RequestMismatch)


async def test_the_axes_are_judged_before_the_request_and_the_request_before_the_answer(stage, ledger, question):
    stage.alter(stage.rows()[0], garbled)
    wrong = axes(scope=axes().scope.model_copy(update={"tenant_id": "evil"}))
    await refusal(stage, question.redeem(WRONG_ANSWER, axes=wrong), ScopeMismatch)
    await refusal(stage, question.redeem(WRONG_ANSWER), RequestMismatch)


async def test_an_altered_request_is_not_managed_either(stage, ledger, question):
    stage.alter(stage.rows()[0], garbled)
    named = {"pause_id": question.pause_id, "axes": question.axes}
    await refusal(stage, ledger.capability.withdraw(WithdrawCommand(**named)), RequestMismatch)
    await refusal(stage, ledger.capability.recover(RecoverCommand(**named)), RequestMismatch)


async def test_another_altered_row_is_corrupt_and_names_its_place(stage, ledger, question):
    await question.answer()
    answered = stage.rows()[1]
    stage.alter(answered, garbled)
    before = stage.rows()
    with pytest.raises(LedgerCorrupt) as caught:
        await question.redeem(STORED)
    assert (caught.value.stream, caught.value.version) == (question.pause_id, 2)
    assert stage.rows() == before


async def test_no_round_is_consumed_over_a_sibling_whose_answer_was_altered(stage, ledger):
    first, second = await asked_round(ledger, *round_of("call_1", "call_2"))
    await second.answer()
    await first.answer()
    stage.alter(stage.rows(second.pause_id)[-1], garbled)
    before = stage.rows()
    with pytest.raises(LedgerCorrupt) as caught:
        await first.redeem(STORED)
    assert (caught.value.stream, caught.value.version) == (second.pause_id, 2)
    with pytest.raises(LedgerCorrupt):
        await ledger.capability.recover(RecoverCommand(first.pause_id, axes=first.axes))
    assert stage.rows() == before
