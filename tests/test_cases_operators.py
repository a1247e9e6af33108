"""An operator names a pause by its id and states no axes; who did it, and why, stands in the facts."""

import pytest
from pauseledger import (
    Actor,
    AnswerCommand,
    InteractionConfigurationError,
    LapseCommand,
    RecoverCommand,
    ReissueCommand,
    ScopeMismatch,
    SettleCommand,
    WithdrawCommand,
)
from pauseledger.infrastructure.stories import ANSWER, SCOPE, Stage, asked, axes, refusal, topics

OLGA = Actor("olga@example.org", kind="service", assurance="authenticated")


@pytest.fixture
def stage(store_url, tmp_path):
    return Stage(store_url, tmp_path / "keys")


@pytest.fixture
async def ledger(stage):
    async with stage.ledger() as opened:
        yield opened


def newest(stage):
    """Tell what was written last, and that it names the operator beside the header and by a tag within."""
    row = stage.rows()[-1]
    by = row.header["submitted_by" if row.topic.startswith("pause.answered") else "by"]
    assert (by["kind"], by["assurance"], len(by["tag"])) == ("service", "authenticated", 16)
    assert by["who"]["size"] == len(OLGA.id)
    assert OLGA.id not in str(row.header)
    return topics([row])[0], row.header


async def test_everything_an_operator_does_names_them(stage, ledger):
    operator = ledger.operator(OLGA)
    question = await asked(ledger, closes_in=60)
    await operator.reissue(ReissueCommand(question.pause_id, reason="reminder"))
    assert newest(stage)[1]["reason"] == "reminder"
    await operator.answer(AnswerCommand(question.envelope(), ANSWER))
    assert newest(stage)[0] == "answered"
    await operator.recover(RecoverCommand(question.pause_id))
    assert newest(stage)[0] == "consumed"
    await operator.recover(RecoverCommand(question.pause_id, reason="forced"))
    assert newest(stage)[1]["because"] == "forced"
    await operator.settle(SettleCommand(question.pause_id, None, 2, "abandoned"))
    assert newest(stage)[0] == "abandoned"
    other = await asked(ledger, occurrence=1)
    await operator.withdraw(WithdrawCommand(other.pause_id, reason="stopped"))
    assert newest(stage)[1]["reason"] == "stopped"


async def test_an_operator_lapses_what_ran_out(stage, ledger):
    question = await asked(ledger, closes_in=60)
    ledger.wait(seconds=61)
    receipt = await ledger.operator(OLGA).lapse(LapseCommand(question.pause_id))
    assert (receipt.state, topics(stage.rows())) == ("lapsed", ["paused", "lapsed"])


async def test_an_operator_acts_in_no_other_name(stage, ledger):
    question = await asked(ledger)
    before = stage.rows()
    with pytest.raises(InteractionConfigurationError, match="own name"):
        await ledger.operator(Actor("somebody else")).withdraw(WithdrawCommand(question.pause_id, by=OLGA))
    with pytest.raises(InteractionConfigurationError, match="own name"):
        answer = AnswerCommand(question.envelope(), ANSWER, submitted_by=OLGA)
        await ledger.operator(Actor("somebody else")).answer(answer)
    assert stage.rows() == before


async def test_axes_that_an_operator_states_are_judged_by_the_token(stage, ledger):
    question = await asked(ledger)
    evil = axes(scope=SCOPE.model_copy(update={"tenant_id": "evil"}))
    stated = AnswerCommand(question.envelope(), ANSWER, evil.scope)
    await refusal(stage, ledger.operator(OLGA).answer(stated), ScopeMismatch)
    named = WithdrawCommand(envelope=question.envelope(), axes=evil)
    await refusal(stage, ledger.operator(OLGA).withdraw(named), ScopeMismatch)
