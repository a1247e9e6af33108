"""The Pydantic AI kernel: what the model sees first, how often tools had their effect, and the page that explains it."""

import asyncio
import json
import re

import pytest

pytest.importorskip("pydantic_ai", reason="the pydantic-ai extra is not installed")

import pydantic_ai
from pauseledger import (
    NOT_ANSWERED,
    NOT_DISPATCHED,
    AskUserAnsweredEvent,
    Axes,
    InteractionConfigurationError,
    PauseCommand,
    PauseRejected,
    PauseWithdrawn,
    Refusal,
    Scope,
    Turn,
    resume_run,
)
from pauseledger.infrastructure.kernels import Ended, Gate
from pauseledger.infrastructure.kernels.pydantic_ai import PydanticAIKernel, ask_user_toolset
from pauseledger.infrastructure.testing_kernels import (
    ANSWER,
    APPROVE,
    GATES,
    QUESTION,
    SCOPE,
    SURFACES,
    Agent,
    KernelConformance,
    by_call,
)
from pydantic_ai import ApprovalRequired, CallDeferred, ModelMessagesTypeAdapter, RunContext
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.tools import DeferredToolRequests

BY_HAND = {"decision": "respond", "text": "done by hand"}


class Script:
    """A model that plays replies, streamed or whole, and keeps what it saw. A list is calls, a text is a text."""

    def __init__(self, *replies):
        self.replies, self.seen = list(replies), []
        self.model = FunctionModel(self.whole, stream_function=self.streamed)

    def next(self, messages):
        self.seen.append(list(messages))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def whole(self, messages, info):
        reply = self.next(messages)
        if isinstance(reply, ModelResponse):
            return reply
        if isinstance(reply, str):
            return ModelResponse([TextPart(reply)])
        return ModelResponse([ToolCallPart(name, args, call_id) for call_id, name, args in reply])

    async def streamed(self, messages, info):
        reply = self.next(messages)
        if isinstance(reply, str):
            for word in re.findall(r"\S+\s*", reply):
                yield word
        else:
            for at, (call_id, name, args) in enumerate(reply):
                yield {at: DeltaToolCall(name, json.dumps(args), tool_call_id=call_id)}


class Host(Agent):
    """One process: an agent with tools that leave traces, and the kernel over it."""

    def __init__(self, ledger, *replies, gates=GATES, effects=None):
        self.ledger, self.script = ledger, Script(*replies)
        self.runs, self.effects = [], {} if effects is None else effects
        self.agent = agent = pydantic_ai.Agent(
            self.script.model, output_type=[str, DeferredToolRequests], toolsets=[ask_user_toolset()]
        )

        @agent.tool(requires_approval=True)
        def deploy(ctx: RunContext, to: str) -> str:
            self.runs.append(to)
            self.effects.setdefault(ctx.tool_call_metadata["idempotency_key"], to)
            return f"deployed to {to}"

        @agent.tool_plain
        def look() -> str:
            self.runs.append("look")
            return "all quiet"

        @agent.tool
        def remove(ctx: RunContext, path: str) -> str:
            if path.startswith("/") and not ctx.tool_call_approved:
                raise ApprovalRequired(metadata={"reason": "absolute"})
            self.runs.append(path)
            return f"removed {path}"

        @agent.tool_plain
        def fetch(url: str) -> str:
            raise CallDeferred

        self.kernel = PydanticAIKernel(agent, ledger.capability, scope=SCOPE, gates=gates)

    @property
    def seen(self):
        return [results(shown) for shown in self.script.seen]


def results(messages):
    """Results by call, of the whole history; a call with two of them fails here."""
    parts = [part for message in messages for part in message.parts if hasattr(part, "tool_call_id")]
    return by_call(
        (p.tool_call_id, p.content) for p in parts if isinstance(p, ToolReturnPart) or p.part_kind == "retry-prompt"
    )


class TestConformance(KernelConformance):
    """What every kernel must do."""

    neighbours_run = True

    def agent(self, ledger, *replies, gates=GATES, effects=None):
        return Host(ledger, *replies, gates=gates, effects=effects)


async def newest(ledger, receipt):
    return (await ledger.story(receipt.pause_id))[-1]


@pytest.mark.parametrize("surface", SURFACES)
async def test_the_first_sight_holds_the_answer_on_its_call(memory, surface):
    ended = await Host(memory, [("c1", "ask_user", QUESTION)]).ask()
    going = Host(memory, "Staging it is.")
    items = await going.go_on(surface, await going.redeem(ended, ANSWER))
    (seen,) = going.script.seen
    assert [type(message) for message in seen] == [ModelRequest, ModelResponse, ModelRequest]
    assert [p.content for p in seen[0].parts] == ["Deploy."]
    assert results(seen) == {"c1": "q1: Staging"}
    assert isinstance(items[-1], Ended)
    assert items[-1].messages[-1].parts == [TextPart("Staging it is.")]
    assert (await newest(memory, ended.paused[0])).end == "finished"
    if surface == "stream":
        assert "".join(items[:-1]) == "Staging it is."
        assert len(items) > 2
    if surface == "stream_typed":
        assert isinstance(items[0], AskUserAnsweredEvent)
        assert items[-2].result.output == "Staging it is."


async def test_a_call_without_a_result_gets_the_observation_and_never_runs(memory):
    """A host that pauses a turn of its own, in which nothing ran: the neighbours are told so, and stay undone."""
    calls = [ToolCallPart("look", {}, "c0"), ToolCallPart("deploy", {"to": "x"}, "c1")]
    messages = [ModelRequest([UserPromptPart("Deploy.")]), ModelResponse(calls)]
    axes = Axes(scope=SCOPE, session_id="s", run_id="r", call_id="c1")
    turn = Turn("pydantic-ai", ModelMessagesTypeAdapter.dump_json(messages))
    request = {"tool": "deploy", "arguments": {"to": "x"}}
    receipt = await memory.capability.pause(PauseCommand("approval", request, turn, axes))
    going = Host(memory, "done")
    await resume_run(going.kernel, await memory.redeem(receipt.token, APPROVE, axes=axes))
    assert results(going.script.seen[0]) == {"c0": NOT_DISPATCHED, "c1": "deployed to x"}
    assert going.runs == ["x"]


async def test_a_new_message_supersedes_the_old_question(memory):
    first = await Host(memory, [("c1", "deploy", {"to": "prod"})]).ask()
    going = Host(memory, [("c2", "deploy", {"to": "staging"})], "done")
    old = first.paused[0].pause_id
    second = await going.ask("Staging first.", run_id="run-2", history=first.messages, supersedes=old)
    assert results(going.script.seen[0]) == {"c1": NOT_ANSWERED}
    with pytest.raises(PauseWithdrawn) as refused:
        await going.redeem(first, APPROVE)
    assert isinstance(refused.value, Refusal)
    assert (await newest(memory, first.paused[0])).NAME == "pause.refused"
    await resume_run(going.kernel, await going.redeem(second, APPROVE))
    assert going.runs == ["staging"]


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_cancelled_consumer_takes_the_tool_under_way_along(memory, surface):
    started = asyncio.Event()
    host = Host(memory, [("c1", "deploy", {"to": "prod"})], [("c2", "wait", {})])

    @host.agent.tool_plain
    async def wait() -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            host.runs.append("stopped")
        return "waited"

    ended = await host.ask()
    going = asyncio.create_task(host.go_on(surface, await host.redeem(ended, APPROVE)))
    await started.wait()
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert host.runs == ["prod", "stopped"]
    fact = await newest(memory, ended.paused[0])
    assert (fact.NAME, fact.cause) == ("pause.stalled", "cancelled")


async def test_a_prompt_comes_after_the_answers(memory):
    ended = await Host(memory, [("c1", "deploy", {"to": "prod"}), ("c2", "ask_user", QUESTION)]).ask()
    going = Host(memory, "done")
    turn = await going.redeem_all(ended, APPROVE, ANSWER)
    await resume_run(going.kernel, turn.with_prompt("Be quick."))
    last = going.script.seen[0][-1].parts
    assert {part.content for part in last[:2]} == {"deployed to prod", "q1: Staging"}
    assert last[2].content == "Be quick."


async def test_a_tool_that_asks_for_some_arguments_alone_says_why(memory):
    host = Host(memory, [("c1", "remove", {"path": "tmp"}), ("c2", "remove", {"path": "/etc"})], "done")
    ended = await host.ask()
    assert [asked.request for asked in ended.asked] == [
        {"tool": "remove", "arguments": {"path": "/etc"}, "reason": "absolute"}
    ]
    await resume_run(host.kernel, await host.redeem(ended, APPROVE))
    assert host.runs == ["tmp", "/etc"]


async def test_a_result_from_outside_is_folded_in(memory):
    gates = {"fetch": Gate(closes_in=60)}
    host = Host(memory, [("c1", "fetch", {"url": "u"}), ("c2", "deploy", {"to": "x"})], "done", gates=gates)
    ended = await host.ask()
    turn = await host.redeem_all(ended, APPROVE, APPROVE)
    await resume_run(host.kernel, turn.with_results({"c1": "200 OK"}))
    assert results(host.script.seen[1]) == {"c1": "200 OK", "c2": "deployed to x"}


async def test_a_call_deferred_for_its_result_needs_a_gate(memory):
    with pytest.raises(InteractionConfigurationError, match="'fetch'"):
        await Host(memory, [("c1", "fetch", {"url": "u"})]).ask()


async def test_a_question_that_does_not_fit_is_no_pause(memory):
    with pytest.raises(PauseRejected):
        await Host(memory, [("c1", "ask_user", {"questions": []})]).ask()


async def test_the_turn_comes_back_as_it_was(memory):
    """Binary prompts, thinking with its signature, provider's details: what the model sees is what the run held."""
    thought = ModelResponse(
        [
            ThinkingPart("hm", id="t", signature="s1g", provider_name="anthropic"),
            ToolCallPart("deploy", {"to": "é"}, "c1"),
        ],
        provider_details={"n": 1.5},
    )
    prompt = ["Deploy this:", BinaryContent(b"\x00\xff" * 9, media_type="image/png")]
    host = Host(memory, thought, "done")
    ended = await host.ask(prompt)
    await resume_run(host.kernel, await host.redeem(ended, BY_HAND))
    seen = host.script.seen[1]
    kept = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(ended.messages))
    assert seen[:2] == kept
    assert seen[0].parts[0].content[1].data == b"\x00\xff" * 9
    assert results(seen) == {"c1": "done by hand"}


async def test_every_snippet_of_the_page_runs_and_prints_what_it_says(play):
    script = Script(
        [("c1", "deploy", {"to": "production"})], "It is on staging.", [("c2", "ask_user", QUESTION)], "Fine."
    )
    namespace = {"model": script.model}
    assert await play("pydantic-ai.md", namespace) == 3
    assert script.replies == []


async def test_a_turn_of_another_tenant_is_not_gone_on_with(memory):
    """Its next stop would be paused among this kernel's own."""
    ended = await Host(memory, [("c1", "deploy", {"to": "prod"})]).ask()
    turn = await memory.redeem(ended.paused[0].token, APPROVE, axes=ended.asked[0].axes)
    other = Host(memory, "done")
    other.kernel.scope = Scope(tenant_id="globex")
    with pytest.raises(InteractionConfigurationError, match="another tenant"):
        await resume_run(other.kernel, turn)
    assert other.runs == []


@pytest.mark.parametrize("given", ["message_history", "deferred_tool_results", "user_prompt"])
async def test_what_the_kernel_fills_in_is_not_taken_and_dropped(memory, given):
    host = Host(memory, "done")
    with pytest.raises(InteractionConfigurationError, match=f"{given} is the kernel's own"):
        await host.ask(**{given: None})
    assert host.seen == []


async def test_a_call_that_was_let_through_and_waits_again_says_so_and_stays_owed(memory):
    host = Host(memory, [("c1", "later", {})])

    @host.agent.tool_plain(requires_approval=True)
    def later() -> str:
        raise CallDeferred

    host.kernel = PydanticAIKernel(host.agent, memory.capability, scope=SCOPE, gates={"later": Gate()})
    ended = await host.ask()
    with pytest.raises(InteractionConfigurationError, match="'c1' through, and its tool deferred it again"):
        await host.go_on("run", await host.redeem(ended, APPROVE))
    assert (await newest(memory, ended.paused[0])).NAME == "pause.stalled"
