"""run, stream and typed stream: the same turn, the answer in its history, and one settlement whoever walks away."""

import asyncio
import gc
import subprocess
import sys
import textwrap
from uuid import UUID

import pytest
from pauseledger import (
    APPROVAL,
    ASK_USER,
    STORED,
    Actor,
    AskUserAnsweredEvent,
    Axes,
    InteractionConfigurationError,
    LedgerSettings,
    PauseCommand,
    RecoverCommand,
    Scope,
    StoreUnavailable,
    Turn,
    answered_event,
    open_ledger,
    resume_run,
    resume_stream,
    resume_stream_typed,
)
from pauseledger.infrastructure.keys import KeyFile
from pauseledger.infrastructure.stories import Stage, asked

QUESTION = {
    "questions": [
        {
            "question": "Where to?",
            "options": [{"label": "Staging"}, {"label": "Production"}],
            "multi_select": True,
            "allow_other": True,
        }
    ]
}
ANSWER = {"answers": [{"question_id": "q1", "selections": ["Staging", "Production"], "other": "and tell me"}]}


def messages(tool):
    call = {"id": "call_1", "type": "function", "function": {"name": tool, "arguments": "{}"}}
    return [{"role": "user", "content": "Deploy."}, {"role": "assistant", "content": None, "tool_calls": [call]}]


AXES = Axes(scope=Scope(tenant_id="acme"), session_id="s", run_id="r", call_id="call_1")


@pytest.fixture
async def ledger(store_url, tmp_path):
    KeyFile(tmp_path / "keys").create()
    async with open_ledger(store_url, LedgerSettings(keys_directory=tmp_path / "keys")) as opened:
        yield opened


async def paused_and_redeemed(ledger, interaction=ASK_USER, request=QUESTION, answer=ANSWER):
    command = PauseCommand(interaction, request, Turn("openai-chat", messages(interaction)), AXES)
    receipt = await ledger.capability.pause(command)
    return await ledger.redeem(receipt.token, answer, axes=AXES, by=Actor("maria"))


class Kernel:
    """A kernel that remembers how it was called, and what became of its streams."""

    def __init__(self, items=(1, 2, 3), fails_at=None):
        self.items, self.fails_at = items, fails_at
        self.calls, self.closed, self.opened = [], 0, 0

    async def run(self, prompt, **given):
        self.calls.append((prompt, given))
        if self.fails_at is not None:
            raise ConnectionError("the provider hung up")
        return "done"

    async def _stream(self, prompt, given):
        self.opened += 1
        self.calls.append((prompt, given))
        try:
            for at, item in enumerate(self.items):
                if at == self.fails_at:
                    raise ConnectionError("the provider hung up")
                yield item
        finally:
            self.closed += 1

    def stream(self, prompt, **given):
        return self._stream(prompt, given)

    def stream_typed(self, prompt, **given):
        return self._stream(prompt, given)


async def state(ledger, turn):
    facts = await ledger.story(turn.outcome.pause_id)
    return [fact.NAME for fact in facts][-1], facts[-1]


async def test_a_run_sees_the_answer_on_its_call_and_is_settled(ledger):
    turn, kernel = await paused_and_redeemed(ledger), Kernel()
    assert await resume_run(kernel, turn, temperature=0) == "done"
    prompt, given = kernel.calls[0]
    assert prompt == ""
    assert given == {"run_id": "r", "session_id": "s", "history": turn.history, "temperature": 0}
    assert given["history"][-1]["tool_call_id"] == "call_1"
    assert "Staging" in given["history"][-1]["content"]
    name, fact = await state(ledger, turn)
    assert (name, fact.end, fact.late) == ("pause.continued", "finished", False)
    assert turn.settled


async def test_all_three_surfaces_give_the_kernel_the_same_history(ledger):
    seen = []
    for surface in ("run", "stream", "stream_typed"):
        axes = AXES.model_copy(update={"run_id": f"run of {surface}"})
        command = PauseCommand(ASK_USER, QUESTION, Turn("openai-chat", messages(ASK_USER)), axes)
        receipt = await ledger.capability.pause(command)
        turn, kernel = await ledger.redeem(receipt.token, ANSWER, axes=axes), Kernel()
        if surface == "run":
            await resume_run(kernel, turn)
        else:
            resume = resume_stream if surface == "stream" else resume_stream_typed
            _ = [item async for item in resume(kernel, turn)]
        seen.append(kernel.calls[0][1]["history"])
    assert seen[0] == seen[1] == seen[2]


async def test_the_answered_event_comes_first_on_the_typed_stream_alone(ledger):
    turn = await paused_and_redeemed(ledger)
    items = [item async for item in resume_stream_typed(Kernel(), turn)]
    event = items[0]
    assert isinstance(event, AskUserAnsweredEvent)
    assert items[1:] == [1, 2, 3]
    assert (event.run_id, event.session_id, event.tool_call_id) == ("r", "s", "call_1")
    assert (event.selected_labels, event.has_other) == (["Staging", "Production"], True)
    assert event.time_to_answer_seconds == turn.outcome.time_to_resolve_seconds >= 0


async def test_time_to_answer_runs_from_the_pause_to_the_answer_whenever_the_turn_goes_on(store_url, tmp_path):
    if store_url.startswith("postgres"):
        KeyFile(tmp_path / "keys").create()
    async with Stage(store_url, tmp_path / "keys").ledger() as ledger:
        question = await asked(ledger)
        ledger.wait(seconds=90)
        await question.answer()
        ledger.wait(hours=6)
        turn = await question.redeem(STORED)
        event = await anext(resume_stream_typed(Kernel(), turn))
        assert 90 <= event.time_to_answer_seconds < 3600


async def test_a_plain_stream_invents_no_event(ledger):
    turn = await paused_and_redeemed(ledger)
    assert [item async for item in resume_stream(Kernel(), turn)] == [1, 2, 3]


async def test_no_event_is_invented_for_another_interaction(ledger):
    request = {"tool": "deploy", "arguments": {}}
    turn = await paused_and_redeemed(ledger, APPROVAL, request, {"decision": "reject", "reason": "no"})
    assert answered_event(turn.outcome) is None
    assert [item async for item in resume_stream_typed(Kernel(), turn)] == [1, 2, 3]


@pytest.mark.parametrize("surface", [resume_stream, resume_stream_typed])
async def test_a_stream_that_fails_is_stalled_and_recovered(ledger, surface):
    turn, kernel = await paused_and_redeemed(ledger), Kernel(fails_at=1)
    with pytest.raises(ConnectionError):
        _ = [item async for item in surface(kernel, turn)]
    name, fact = await state(ledger, turn)
    assert (name, fact.cause, fact.error_type, fact.entered) == ("pause.stalled", "error", "ConnectionError", True)
    again = await ledger.capability.recover(RecoverCommand(pause_id=turn.outcome.pause_id, axes=AXES))
    assert (again.fence, again.history, again.idempotency_key) == (2, turn.history, turn.idempotency_key)
    assert await resume_run(Kernel(), again) == "done"


async def test_a_run_that_fails_raises_what_the_kernel_raised(ledger):
    turn = await paused_and_redeemed(ledger)
    with pytest.raises(ConnectionError):
        await resume_run(Kernel(fails_at=0), turn)
    assert (await state(ledger, turn))[0] == "pause.stalled"


@pytest.mark.parametrize("surface", [resume_stream, resume_stream_typed])
async def test_walking_away_after_the_first_item_closes_the_kernel_and_stalls(ledger, surface):
    turn, kernel = await paused_and_redeemed(ledger), Kernel()
    stream = surface(kernel, turn)
    first = await anext(stream)
    if isinstance(first, AskUserAnsweredEvent):
        assert await anext(stream) == 1
    await stream.aclose()
    assert (kernel.opened, kernel.closed) == (1, 1)
    name, fact = await state(ledger, turn)
    assert (name, fact.cause, fact.entered) == ("pause.stalled", "consumer_gone", True)


async def test_walking_away_after_the_event_says_that_the_kernel_was_not_entered(ledger):
    turn, kernel = await paused_and_redeemed(ledger), Kernel()
    stream = resume_stream_typed(kernel, turn)
    assert isinstance(await anext(stream), AskUserAnsweredEvent)
    await stream.aclose()
    name, fact = await state(ledger, turn)
    assert (name, fact.cause, fact.entered, kernel.calls) == ("pause.stalled", "consumer_gone", False, [])


async def test_a_consumer_that_raises_or_breaks_leaves_closing_to_the_loop(ledger):
    turn, kernel = await paused_and_redeemed(ledger), Kernel()

    async def consume():
        async for _ in resume_stream(kernel, turn):
            raise KeyError("the consumer's own")

    with pytest.raises(KeyError):
        await consume()
    gc.collect()
    for _ in range(200):
        if turn.settled:
            break
        await asyncio.sleep(0.01)
    assert kernel.closed == 1
    assert (await state(ledger, turn))[0] == "pause.stalled"


async def test_a_cancelled_consumer_stalls_the_turn(ledger):
    turn, reached = await paused_and_redeemed(ledger), asyncio.Event()

    class Slow(Kernel):
        async def run(self, prompt, **given):
            reached.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(resume_run(Slow(), turn))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    name, fact = await state(ledger, turn)
    assert (name, fact.cause) == ("pause.stalled", "cancelled")


@pytest.mark.parametrize("surface", [resume_stream, resume_stream_typed])
async def test_a_stream_never_iterated_enters_nothing(ledger, surface):
    turn, kernel = await paused_and_redeemed(ledger), Kernel()
    stream = surface(kernel, turn)
    await stream.aclose()
    assert (kernel.opened, turn.settled) == (0, False)
    assert await resume_run(kernel, turn) == "done"


async def test_a_turn_is_entered_once(ledger):
    turn = await paused_and_redeemed(ledger)
    await resume_run(Kernel(), turn)
    for again in (turn, turn.with_prompt("go on")):
        with pytest.raises(InteractionConfigurationError, match="once"):
            await resume_run(Kernel(), again)
        with pytest.raises(InteractionConfigurationError, match="once"):
            _ = [item async for item in resume_stream(Kernel(), again)]


async def test_an_open_dispatch_needs_a_delegate_that_dispatches(ledger):
    request = {"tool": "deploy", "arguments": {"to": "staging"}}
    turn = await paused_and_redeemed(ledger, APPROVAL, request, {"decision": "approve"})
    with pytest.raises(InteractionConfigurationError, match="dispatch"):
        await resume_run(Kernel(), turn)
    assert not turn.settled

    class Dispatching(Kernel):
        dispatches = True

    kernel = Dispatching()
    await resume_run(kernel, turn)
    given = kernel.calls[0][1]
    assert given["dispatch"] == turn.dispatch
    assert (given["fence"], given["idempotency_key"]) == (1, turn.idempotency_key)


async def test_a_dispatch_folded_in_needs_nothing_of_the_delegate(ledger):
    request = {"tool": "deploy", "arguments": {"to": "staging"}}
    turn = await paused_and_redeemed(ledger, APPROVAL, request, {"decision": "approve"})
    done = turn.with_results({"call_1": "deployed"})
    kernel = Kernel()
    assert await resume_run(kernel, done) == "done"
    assert kernel.calls[0][1]["history"][-1] == {"role": "tool", "tool_call_id": "call_1", "content": "deployed"}
    assert turn.settled
    assert done.settled


@pytest.mark.parametrize(
    ("result", "name"),
    [("half a \ud83d pair", "lone_surrogate"), ([{"n": float("nan")}], "nan"), ([object()], "not_json")],
)
async def test_a_result_that_cannot_be_carried_is_named_by_its_call(ledger, result, name):
    request = {"tool": "deploy", "arguments": {"to": "staging"}}
    turn = await paused_and_redeemed(ledger, APPROVAL, request, {"decision": "approve"})
    with pytest.raises(InteractionConfigurationError, match=f"'call_1' cannot be carried: {name}"):
        turn.with_results({"call_1": result})
    with pytest.raises(InteractionConfigurationError, match="leave out 'call_9'"):
        turn.with_results({"call_1": "deployed", "call_9": "what?"})
    assert turn.with_results({"call_1": "deployed"}).dispatch == ()


async def test_an_iterator_without_aclose_is_good_enough(ledger):
    turn = await paused_and_redeemed(ledger)

    class Bare:
        def __init__(self):
            self.left = [1, 2]

        def __aiter__(self):
            return self

        async def __anext__(self):
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop(0)

    class Kernel:
        def stream(self, prompt, **given):
            return Bare()

    assert [item async for item in resume_stream(Kernel(), turn)] == [1, 2]
    assert (await state(ledger, turn))[0] == "pause.continued"


async def test_a_kernel_that_stops_again_says_where(ledger):
    turn = await paused_and_redeemed(ledger)
    axes = AXES.model_copy(update={"run_id": "r2"})

    class Stopped:
        def __init__(self, *paused):
            self.paused = paused

    class Again(Kernel):
        async def run(self, prompt, **given):
            command = PauseCommand(ASK_USER, QUESTION, Turn("openai-chat", messages(ASK_USER)), axes)
            return Stopped(await ledger.capability.pause(command))

    result = await resume_run(Again(), turn)
    name, fact = await state(ledger, turn)
    assert (name, fact.end, fact.next) == ("pause.continued", "paused_again", (result.paused[0].pause_id,))


async def test_a_settlement_that_fails_changes_nothing_for_the_caller(ledger, monkeypatch):
    turn = await paused_and_redeemed(ledger)

    async def gone(facts):
        raise StoreUnavailable("gone")

    monkeypatch.setattr(ledger.pauses, "append", gone)
    assert await resume_run(Kernel(), turn) == "done"
    assert not turn.settled


def test_a_process_that_ends_in_the_middle_of_a_stream_leaves_the_turn_owed(tmp_path):
    program = textwrap.dedent("""
        import asyncio, sys
        sys.path.insert(0, {tests!r})
        from pauseledger import *
        from pauseledger import open_ledger
        import importlib.util
        spec = importlib.util.spec_from_file_location("entry", {file!r})
        entry = importlib.util.module_from_spec(spec); spec.loader.exec_module(entry)
        async def main():
            async with open_ledger({url!r}, LedgerSettings(lease=1)) as ledger:
                turn = await entry.paused_and_redeemed(ledger)
                stream = resume_stream(entry.Kernel(), turn)
                print(turn.outcome.pause_id, await anext(stream), flush=True)
                entry.kept = stream
        asyncio.run(main())
    """).format(tests=str(tmp_path), file=__file__, url=f"sqlite:///{tmp_path / 'l.db'}")
    env = {"PAUSELEDGER_KEYS_DIR": str(tmp_path / "keys"), "PATH": "/usr/bin:/bin"}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=False)
    assert run.returncode == 0, run.stderr
    pause_id, item = run.stdout.split()
    assert item == "1"

    async def recovered():
        settings = LedgerSettings(lease=1, keys_directory=tmp_path / "keys")
        async with open_ledger(f"sqlite:///{tmp_path / 'l.db'}", settings) as ledger:
            await asyncio.sleep(1.1)
            turn = await ledger.capability.recover(RecoverCommand(pause_id=UUID(pause_id), axes=AXES))
            return await resume_run(Kernel(), turn)

    assert asyncio.run(recovered()) == "done"


@pytest.mark.parametrize("resume", [resume_run, resume_stream, resume_stream_typed])
async def test_a_delegate_of_another_tenant_is_not_entered_and_the_right_one_is(ledger, resume):
    async def gone_on(kernel):
        going = resume(kernel, turn)
        return await going if resume is resume_run else [item async for item in going]

    turn = await paused_and_redeemed(ledger)
    kernel = Kernel()
    kernel.scope = Scope(tenant_id="acme", namespace="billing")
    with pytest.raises(InteractionConfigurationError, match="another tenant"):
        await gone_on(kernel)
    assert (kernel.calls, turn.settled) == ([], False)
    kernel.scope = turn.outcome.scope
    await gone_on(kernel)
    assert turn.settled
