"""How an owed turn ends: every word of it, under which fence, and what a host's own loop leaves behind."""

import asyncio
import copy
import dataclasses
import gc
import pickle
from contextlib import nullcontext

import pytest
from pauseledger import (
    RESUME_PROMPT,
    InteractionConfigurationError,
    NotConsumed,
    NothingOwed,
    RecoverCommand,
    ResumedTurn,
    RunMismatch,
    SettleCommand,
    StoreUnavailable,
    TurnAbandoned,
    continuing,
)
from pauseledger.infrastructure.stories import (
    ANSWER_TEXT,
    Stage,
    approve,
    asked,
    asked_round,
    axes,
    contents,
    refusal,
    round_of,
    topics,
)


@pytest.fixture
def stage(store_url, tmp_path):
    return Stage(store_url, tmp_path / "keys")


@pytest.fixture
async def ledger(stage):
    async with stage.ledger() as opened:
        yield opened


@pytest.fixture
async def question(ledger):
    return await asked(ledger)


async def settle(question, fence, end, **fields):
    return await question.ledger.capability.settle(
        SettleCommand(question.pause_id, question.axes, fence, end, **fields)
    )


def newest(stage):
    row = stage.rows()[-1]
    return topics([row])[0], row.header


ENDS = {
    "finished": ("continued", "continued"),
    "paused_again": ("continued", "continued"),
    "handed_over": ("continued", "continued"),
    "stalled": ("stalled", "stalled"),
    "released": ("stalled", "stalled"),
    "abandoned": ("abandoned", "abandoned"),
}


@pytest.mark.parametrize("end", ENDS)
async def test_each_word_of_settling(stage, question, end):
    fact, state = ENDS[end]
    await question.redeem()
    receipt = await settle(question, 1, end)
    assert (receipt.pause_id, receipt.state) == (question.pause_id, state)
    written, said = newest(stage)
    assert (written, said["fence"]) == (fact, 1)
    before = stage.rows()
    assert (await settle(question, 1, end)).position is None
    assert stage.rows() == before
    if end == "released":
        assert said["cause"] == "released"


async def test_given_up_by_its_host_is_given_up_for_good_unless_it_finishes(stage, ledger, question):
    await question.redeem()
    await settle(question, 1, "abandoned")
    with pytest.raises(TurnAbandoned):
        await ledger.capability.recover(RecoverCommand(question.pause_id, axes=question.axes))
    assert (await settle(question, 1, "stalled")).state == "abandoned"
    assert (await settle(question, 1, "finished")).state == "continued"
    assert newest(stage)[1]["late"] is True


async def test_what_cannot_be_settled(stage, ledger, question):
    with pytest.raises(NotConsumed):
        await settle(question, 1, "finished")
    await question.redeem()
    for fence in (0, 2, -1):
        with pytest.raises(InteractionConfigurationError, match="fence"):
            await settle(question, fence, "finished")
    other = await asked(ledger, axes=axes(run_id="run-2"))
    await ledger.capability.resume(other.command())
    with pytest.raises(NothingOwed):
        await settle(other, 1, "finished")


async def test_settling_is_bound_to_the_axes(stage, question):
    await question.redeem()
    command = SettleCommand(question.pause_id, axes(run_id="run-2"), 1, "finished")
    await refusal(stage, question.ledger.capability.settle(command), RunMismatch)


async def test_a_sibling_settles_for_the_round(stage, ledger):
    first, second = await asked_round(ledger, *round_of("call_1", "call_2"))
    await first.answer()
    await second.redeem()
    await settle(second, 1, "finished")
    assert stage.rows()[-1].stream == first.pause_id


async def test_a_block_that_ends_has_finished(stage, question):
    turned = await question.redeem()
    assert not turned.settled
    async with continuing(turned) as going:
        assert going.history == turned.history
        assert going.turn is turned
    assert turned.settled
    assert newest(stage)[1]["end"] == "finished"


async def test_paused_again_names_the_next_pauses(stage, ledger, question):
    async with continuing(await question.redeem()) as going:
        again = await asked(ledger, axes=axes(run_id="run-2"))
        going.next.append(again.pause_id)
    said = newest(stage)[1]
    assert (said["end"], said["next"]) == ("paused_again", [str(again.pause_id)])


async def test_handed_over_is_settled_as_such(stage, question):
    async with continuing(await question.redeem()) as going:
        going.handed_over = True
    assert newest(stage)[1]["end"] == "handed_over"


CAUSES = [
    (ValueError("a text that is nobody's business"), "error"),
    (asyncio.CancelledError(), "cancelled"),
    (GeneratorExit(), "consumer_gone"),
    (KeyboardInterrupt(), "shutdown"),
    (SystemExit(), "shutdown"),
]


@pytest.mark.parametrize(("error", "cause"), CAUSES, ids=[type(error).__name__ for error, _ in CAUSES])
async def test_a_block_that_breaks_off_has_stalled_and_raises_what_it_raised(stage, question, error, cause):
    turned = await question.redeem()
    going = continuing(turned)
    await going.__aenter__()
    assert await going.__aexit__(type(error), error, None) is False
    written, said = newest(stage)
    assert (written, said["cause"], said["entered"]) == ("stalled", cause, True)
    assert said["error_type"] == type(error).__name__
    assert b"nobody's business" not in stage.rows()[-1].state
    assert turned.settled


async def test_a_cancelled_block_stalls_though_it_is_cancelled_again(stage, question):
    turned = await question.redeem()
    inside = asyncio.Event()

    async def work():
        async with continuing(turned):
            inside.set()
            await asyncio.sleep(60)

    task = asyncio.ensure_future(work())
    await inside.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert newest(stage)[1]["cause"] == "cancelled"


async def test_a_stream_whose_consumer_walks_away_has_stalled(stage, question):
    turned = await question.redeem()

    async def stream():
        async with continuing(turned) as going:
            for entry in going.history:
                yield entry

    walking = stream()
    await anext(walking)
    await walking.aclose()
    assert newest(stage)[1]["cause"] == "consumer_gone"


async def test_a_stream_that_is_forgotten_has_stalled_too(stage, question):
    turned = await question.redeem()

    async def stream():
        async with continuing(turned):
            yield 1

    walking = stream()
    await anext(walking)
    del walking
    gc.collect()
    for _ in range(100):
        if turned.settled:
            break
        await asyncio.sleep(0.02)
    assert newest(stage)[1]["cause"] == "consumer_gone"


async def test_a_turn_is_entered_once(stage, question):
    turned = await question.redeem()
    async with continuing(turned):
        with pytest.raises(InteractionConfigurationError, match="once"):
            async with continuing(turned.with_prompt("Go on.")):
                pass
    with pytest.raises(InteractionConfigurationError, match="once"):
        async with continuing(turned):
            pass
    assert topics(stage.rows()) == ["paused", "answered", "consumed", "continued"]


async def test_a_settlement_that_fails_changes_nothing_of_what_the_block_does(
    stage, ledger, question, monkeypatch, caplog
):
    turned = await question.redeem()

    async def gone(*_, **__):
        raise StoreUnavailable("the database went away")

    with caplog.at_level("INFO", "pauseledger"):
        async with continuing(turned):
            monkeypatch.setattr(ledger.pauses._streams, "append", gone)
    assert not turned.settled
    assert "settlement_failed" in caplog.text
    monkeypatch.undo()
    ledger.wait(seconds=61)
    assert (await ledger.capability.recover(RecoverCommand(question.pause_id, axes=question.axes))).fence == 2


@pytest.mark.parametrize("raising", [False, True])
async def test_nor_does_a_ledger_that_was_closed_meanwhile(stage, raising):
    ledger = stage.ledger()
    async with ledger:
        question = await asked(ledger)
        turned = await question.redeem()
    with pytest.raises(ZeroDivisionError) if raising else nullcontext():
        async with continuing(turned):
            if raising:
                raise ZeroDivisionError
    assert not turned.settled


async def test_a_ledger_that_is_closed_says_so(stage):
    async with stage.ledger() as ledger:
        question = await asked(ledger)
        command, capability = question.command(), ledger.capability
    with pytest.raises(StoreUnavailable, match="closed"):
        await capability.resume(command)


async def test_an_open_dispatch_is_accepted_on_entry_and_folded_in(stage, ledger):
    approval = await asked(ledger, approve())
    turned = await approval.redeem({"decision": "approve"})
    assert contents(turned) == {}
    async with continuing(turned) as going:
        call = going.turn.dispatch[0]
        assert (call.tool, call.arguments) == ("transfer", {"amount": 7, "to": "Bob"})
        assert going.with_results({call.interrupt_id: "moved"}) is going
        assert going.history[-1] == {"role": "tool", "tool_call_id": "call_1", "content": "moved"}
        assert going.turn.dispatch == ()
        with pytest.raises(InteractionConfigurationError, match="dispatch"):
            going.with_results({"call_1": "moved twice"})
    assert newest(stage)[1]["end"] == "finished"


async def test_results_are_for_calls_left_open_alone(question):
    turned = await question.redeem()
    with pytest.raises(InteractionConfigurationError, match="dispatch"):
        turned.with_results({"call_1": "something else"})
    assert contents(turned.with_prompt("Go on.")) == {"call_1": ANSWER_TEXT}


async def test_a_prompt_is_added_to_a_copy_that_shares_the_settlement(stage, question):
    turned = await question.redeem()
    prompted = turned.with_prompt("Go on.")
    assert (turned.prompt, prompted.prompt) == (RESUME_PROMPT, "Go on.")
    assert prompted.history == turned.history
    async with continuing(prompted):
        pass
    assert turned.settled


async def test_a_resumed_turn_is_made_by_prepare_and_recover_alone(question):
    turned = await question.redeem()
    with pytest.raises((TypeError, InteractionConfigurationError)):
        ResumedTurn()
    with pytest.raises(InteractionConfigurationError):
        ResumedTurn(made_by_prepare_or_recover_alone=None)
    for forge in (copy.copy, copy.deepcopy, pickle.dumps, dataclasses.replace):
        with pytest.raises(TypeError):
            forge(turned)
    with pytest.raises(InteractionConfigurationError):
        type("Mine", (ResumedTurn,), {})
    for name in ("history", "prompt", "outcome", "_claim", "other"):
        with pytest.raises(AttributeError):
            setattr(turned, name, ())
    with pytest.raises(AttributeError):
        object.__new__(ResumedTurn).fence  # noqa: B018 - reading it is what fails


async def test_an_envelope_is_made_by_decode_token_alone(ledger, question):
    envelope = question.envelope()
    for forge in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            forge(envelope)
    with pytest.raises(InteractionConfigurationError):
        type(envelope)()
    with pytest.raises(AttributeError):
        envelope._token = "plp1"
    assert repr(envelope) == "<Envelope>"
