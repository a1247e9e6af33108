"""An axis left unstated is the host's mistake, named before anything is read; some may be optional, for `resume` alone."""

import pytest
from pauseledger import (
    ASK_USER,
    Actor,
    AlreadyConsumed,
    Axes,
    InteractionConfigurationError,
    LapseCommand,
    LedgerSettings,
    PauseCommand,
    RecoverCommand,
    ReissueCommand,
    RunMismatch,
    Scope,
    SettleCommand,
    WithdrawCommand,
    prepare,
)
from pauseledger.infrastructure.stories import ANSWER, QUESTION, asked, axes, refusal, turn

UNSTATED = [
    *((name, value) for name in ("session_id", "run_id", "call_id") for value in (None, "", " ", "\t\n ")),
    *(("scope", value) for value in (None, "", " ", Scope(tenant_id=""), Scope(tenant_id=" \t"))),
]


@pytest.fixture
def spied(ledger, monkeypatch):
    """Fail whatever the recorder is asked."""
    calls = []
    for name in ("load", "append", "insert_events", "select_events", "identity", "renew"):
        monkeypatch.setattr(ledger.recorder, name, lambda *_, **__: calls.append(1) or 1 / 0)
    yield calls
    assert calls == []


async def test_prepare_names_it_and_reads_nothing(ledger, question, spied):
    for name, value in UNSTATED:
        stated = {**dict(question.axes), name: value}
        with pytest.raises(InteractionConfigurationError, match=name):
            await prepare(ledger.capability, envelope=question.envelope(), response=ANSWER, **stated)


async def test_pause_names_it_and_reads_nothing(ledger, spied):
    for name, value in UNSTATED:
        if name == "scope" and isinstance(value, str):
            continue
        stated = Axes(**{**dict(axes()), name: value})
        with pytest.raises(InteractionConfigurationError, match=name):
            await ledger.capability.pause(PauseCommand(ASK_USER, QUESTION, turn(), stated))


@pytest.mark.parametrize("name", ["scope", "call_id"])
async def test_so_do_all_the_others(ledger, question, spied, name):
    stated = question.axes.model_copy(update={name: None})
    capability = ledger.capability
    for attempt in (
        question.answer(axes=stated),
        capability.resume(question.command(axes=stated)),
        capability.withdraw(WithdrawCommand(question.pause_id, axes=stated)),
        capability.lapse(LapseCommand(question.pause_id, axes=stated)),
        capability.recover(RecoverCommand(question.pause_id, axes=stated)),
        capability.reissue(ReissueCommand(question.pause_id, axes=stated)),
        capability.settle(SettleCommand(question.pause_id, stated, 1, "finished")),
    ):
        with pytest.raises(InteractionConfigurationError, match=name):
            await attempt


async def test_no_axes_at_all_are_unstated_and_a_pause_is_named_one_way(ledger, question, spied):
    with pytest.raises(InteractionConfigurationError, match="axes must be stated"):
        await ledger.capability.withdraw(WithdrawCommand(question.pause_id))
    both = WithdrawCommand(question.pause_id, question.envelope(), question.axes)
    for command in (WithdrawCommand(axes=question.axes), both):
        with pytest.raises(InteractionConfigurationError, match="exactly one"):
            await ledger.capability.withdraw(command)


@pytest.mark.parametrize("value", ["x" * 256, "\ud800"], ids=["too long", "no text"])
async def test_an_axis_that_cannot_be_kept_is_named(ledger, spied, value):
    with pytest.raises(InteractionConfigurationError, match="run_id"):
        await asked(ledger, axes=axes(run_id=value))


async def test_an_axis_may_be_optional_for_resume_and_the_fact_says_so(stage):
    async with stage.ledger(optional_axes=frozenset({"run", "call"})) as ledger:
        question = await asked(ledger)
        loose = question.axes.model_copy(update={"run_id": None, "call_id": None})
        await refusal(stage, ledger.capability.resume(question.command(axes=axes(None, run_id="run-2"))), RunMismatch)
        with pytest.raises(InteractionConfigurationError, match="run_id"):
            await question.redeem(axes=loose)
        with pytest.raises(InteractionConfigurationError, match="session_id"):
            await ledger.capability.resume(question.command(axes=loose.model_copy(update={"session_id": None})))
        with pytest.raises(InteractionConfigurationError, match="run_id"):
            await ledger.capability.answer(question.command(axes=loose))
        outcome = await ledger.capability.resume(question.command(axes=loose))
        assert (outcome.response, outcome.fence, outcome.turn) == (ANSWER, 0, None)
    consumed = stage.rows()[-1].header
    assert consumed["unstated_axes"] == ["run", "call"]
    assert consumed["claim"] is None


async def test_who_was_first_is_told_to_the_same_scope_alone(stage):
    async with stage.ledger(optional_axes=frozenset({"scope"})) as ledger:
        question = await asked(ledger)
        await question.redeem(answered_by=Actor("maria"))
        nobody = question.axes.model_copy(update={"scope": None})
        for stated, by in ((question.axes, "maria"), (nobody, None)):
            refused = await refusal(stage, ledger.capability.resume(question.command(axes=stated)), AlreadyConsumed)
            assert refused.by == by


async def test_optional_axes_are_known_words():
    with pytest.raises(InteractionConfigurationError, match="tenant"):
        LedgerSettings(optional_axes=frozenset({"tenant"}))
