"""An attempt that loses every race gives up after a bound; errors that are no refusals leave nothing on record."""

import asyncio

import pytest
from pauseledger import (
    AlreadyContinued,
    LeaseHeld,
    NotConsumed,
    RecoverCommand,
    Refusal,
    RoundOpen,
    StoreUnavailable,
    WindowOpen,
    WithdrawCommand,
    continuing,
)
from pauseledger.domain import axes as binding
from pauseledger.domain.commands import LapseCommand
from pauseledger.domain.errors import VersionConflict
from pauseledger.infrastructure.stories import ANSWER, Stage, ask, asked, asked_round, axes, round_of

RELOADS = 64


@pytest.fixture
def stage(tmp_path):
    return Stage("memory:", tmp_path / "keys")


@pytest.fixture
async def ledger(stage):
    async with stage.ledger() as opened:
        yield opened


@pytest.mark.parametrize("what", ["pause", "redeem", "answer", "withdraw"])
async def test_an_attempt_that_loses_every_race_gives_up_after_64_reloads_and_says_so(ledger, monkeypatch, what):
    question = await asked(ledger)
    before = ledger.recorder.max_notification_id()
    tried = 0

    async def lost(_):
        nonlocal tried
        tried += 1
        raise VersionConflict

    monkeypatch.setattr(ledger.pauses, "append", lost)
    capability = ledger.capability
    attempt = {
        "pause": lambda: capability.pause(ask(axes=axes(run_id="run-2"))),
        "redeem": question.redeem,
        "answer": question.answer,
        "withdraw": lambda: capability.withdraw(WithdrawCommand(pause_id=question.pause_id, axes=question.axes)),
    }[what]
    with pytest.raises(StoreUnavailable, match="try again") as told:
        await attempt()
    assert (tried, told.value.outcome) == (RELOADS, "not_started")
    assert ledger.recorder.max_notification_id() == before
    monkeypatch.undo()
    await attempt()


async def test_all_four_axes_are_compared_whichever_fails_first(ledger, monkeypatch):
    question = await asked(ledger)
    compared = []
    held = binding.Opened.binds

    def binds(opened, axis, *parts):
        compared.append(axis)
        return held(opened, axis, *parts)

    monkeypatch.setattr(binding.Opened, "binds", binds)
    with pytest.raises(Refusal, match="scope_mismatch"):
        await question.redeem(axes=axes(scope=binding.Scope(tenant_id="another"), run_id="another"))
    assert compared == ["scope", "session", "run", "call"]


async def test_what_is_no_refusal_leaves_none_on_record(stage, ledger):
    question = await asked(ledger)
    recovery = RecoverCommand(pause_id=question.pause_id, axes=question.axes)
    with pytest.raises(NotConsumed):
        await ledger.capability.recover(recovery)
    with pytest.raises(WindowOpen):
        await ledger.capability.lapse(LapseCommand(pause_id=question.pause_id, axes=question.axes))
    turn = await question.redeem()
    with pytest.raises(LeaseHeld):
        await ledger.capability.recover(recovery)
    async with continuing(turn):
        await asyncio.sleep(0)
    with pytest.raises(AlreadyContinued):
        await ledger.capability.recover(recovery)
    first, _ = await asked_round(ledger, *round_of("call_1", "call_2"))
    with pytest.raises(RoundOpen):
        await first.redeem(ANSWER)
    assert stage.count("pause.refused@1") == 0
