"""What still needs a key: pauses made before it stopped minting that are open or ready, and no others."""

from datetime import timedelta

import pytest
from pauseledger import (
    STORED,
    Axes,
    LapseAnswer,
    LapseCommand,
    PauseCommand,
    Scope,
    Turn,
    WithdrawCommand,
    open_ledger,
    recognise,
)
from pauseledger.domain.commands import AnswerCommand
from pauseledger.infrastructure.standing import standing

REQUEST = {"questions": [{"question": "Which?", "options": [{"label": "A"}, {"label": "B"}]}]}
ANSWER = {"answers": [{"question_id": "q1", "selections": ["A"]}]}
TURN = [
    {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]}
]
AXES = Axes(scope=Scope(tenant_id="acme"), session_id="s", run_id="r", call_id="c")
WINDOW = timedelta(seconds=60)


@pytest.fixture
async def ledger():
    async with open_ledger("memory:") as opened:
        yield opened


async def paused(ledger, **more):
    command = PauseCommand("ask_user", REQUEST, Turn("openai-chat", TURN), AXES, closes_in=60, **more)
    return await ledger.capability.pause(command)


def stands(ledger, *, after=timedelta(0), leeway=timedelta(0), made_before=timedelta(seconds=1)):
    now = ledger.pauses.now()
    return standing(ledger.pauses.facts(), made_before=now + made_before, now=now + after, leeway=leeway)


async def kept(ledger, receipt):
    said = {"scope": AXES.scope, "session_id": "s", "run_id": "r", "call_id": "c"}
    envelope = recognise(ledger.capability, receipt.token).envelope
    await ledger.capability.answer(AnswerCommand(envelope=envelope, response=ANSWER, **said))


async def test_an_open_pause_needs_it_until_its_window_is_over(ledger):
    receipt = await paused(ledger)
    assert list(stands(ledger)) == [receipt.pause_id]
    assert not stands(ledger, after=WINDOW)
    assert list(stands(ledger, after=WINDOW, leeway=timedelta(seconds=9))) == [receipt.pause_id]


async def test_a_pause_made_after_it_stopped_does_not(ledger):
    await paused(ledger)
    assert not stands(ledger, made_before=timedelta(seconds=-5))


async def test_an_answered_one_needs_it_for_good_until_it_is_consumed(ledger):
    receipt = await paused(ledger)
    await kept(ledger, receipt)
    assert list(stands(ledger, after=10 * WINDOW)) == [receipt.pause_id]
    await ledger.redeem(receipt.token, STORED, axes=AXES)
    assert not stands(ledger)


async def test_one_with_a_lapse_answer_needs_it_past_its_window(ledger):
    receipt = await paused(ledger, on_lapse=LapseAnswer(ANSWER))
    assert list(stands(ledger, after=10 * WINDOW)) == [receipt.pause_id]


async def test_one_that_was_taken_back_does_not(ledger):
    receipt = await paused(ledger)
    await ledger.capability.withdraw(WithdrawCommand(receipt.pause_id, axes=AXES))
    assert not stands(ledger)


@pytest.mark.parametrize("on_lapse", [None, LapseAnswer(ANSWER)])
async def test_a_lapsed_one_needs_it_only_where_it_took_an_answer(ledger, monkeypatch, on_lapse):
    receipt = await paused(ledger, on_lapse=on_lapse)
    later = ledger.pauses.now() + WINDOW
    # A long leeway, so that the lapse as such is judged and not the clock.
    with monkeypatch.context() as patched:
        patched.setattr(ledger.pauses, "now", lambda: later)
        await ledger.capability.lapse(LapseCommand(receipt.pause_id, axes=AXES))
    assert bool(stands(ledger, leeway=10 * WINDOW)) is (on_lapse is not None)


async def test_refused_attempts_change_nothing(ledger):
    receipt = await paused(ledger)
    with pytest.raises(Exception, match="call_mismatch"):
        await ledger.redeem(receipt.token, ANSWER, axes=AXES.model_copy(update={"call_id": "x"}))
    assert list(stands(ledger)) == [receipt.pause_id]
