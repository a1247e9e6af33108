"""The Agents SDK kernel: what the model sees first, how often tools had their effect, and the page that explains it."""

import asyncio
import json

import pytest

pytest.importorskip("agents", reason="the openai-agents extra is not installed")

import agents
from agents import HostedMCPTool, RunConfig, ToolGuardrailFunctionOutput, ToolInputGuardrail, function_tool, handoff
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from agents.tool_context import ToolContext
from openai.types.responses import ResponseReasoningItem
from openai.types.responses.response_output_item import McpApprovalRequest
from pauseledger import (
    NOT_ANSWERED,
    NOT_DISPATCHED,
    AskUserAnsweredEvent,
    Axes,
    InteractionConfigurationError,
    PauseCommand,
    PauseRejected,
    PauseWithdrawn,
    RecoverCommand,
    Refusal,
    Scope,
    Turn,
    resume_run,
)
from pauseledger.infrastructure.kernels import Ended, Gate
from pauseledger.infrastructure.kernels.openai_agents import OpenAIAgentsKernel, ask_user_tool, side_effect
from pauseledger.infrastructure.testing_kernels import (
    ANSWER,
    APPROVE,
    GATES,
    QUESTION,
    REJECT,
    SCOPE,
    SURFACES,
    Agent,
    KernelConformance,
    by_call,
)

BY_HAND = {"decision": "respond", "text": "done by hand"}
EDIT = {"decision": "edit", "arguments": {"to": "staging"}}


@pytest.fixture(autouse=True)
def offline():
    agents.set_tracing_disabled(True)


def step(reply):
    """A list is calls, or items of the SDK's own; a text is a text, an error is raised."""
    if isinstance(reply, Exception):
        return ModelStep.raise_error(reply)
    if isinstance(reply, str):
        return [assistant_message(reply)]
    return [one if not isinstance(one, tuple) else function_call(one[1], one[2], call_id=one[0]) for one in reply]


class Script:
    """A model that plays replies, streamed or whole, and tells what it saw."""

    def __init__(self, *replies):
        self.model = ScriptedModel([step(reply) for reply in replies])

    @property
    def seen(self):
        return [call.input for call in self.model.calls]


class Host(Agent):
    """One process: an agent with tools that leave traces, and the kernel over it."""

    options = {"run_config": RunConfig(tool_not_found_behavior="return_error_to_model")}

    def __init__(self, ledger, *replies, gates=GATES, effects=None, agent=None):
        self.ledger, self.script = ledger, Script(*replies)
        self.runs, self.effects = [], {} if effects is None else effects

        @function_tool(needs_approval=True)
        def deploy(ctx: ToolContext, to: str) -> str:
            self.runs.append(to)
            self.effects.setdefault(side_effect(ctx.tool_call_id).idempotency_key, to)
            return f"deployed to {to}"

        @function_tool
        def look(ctx: ToolContext) -> str:
            assert side_effect(ctx.tool_call_id) is None
            self.runs.append("look")
            return "all quiet"

        self.tools = [deploy, look, ask_user_tool()]
        make = agent or (lambda host: agents.Agent(name="ops", model=host.script.model, tools=host.tools))
        self.agent = make(self)
        self.kernel = OpenAIAgentsKernel(self.agent, ledger.capability, scope=SCOPE, gates=gates)

    @property
    def seen(self):
        return [results(shown) for shown in self.script.seen]


def results(items):
    """Outputs by call, of the whole input; a call with two of them fails here."""
    return by_call((item["call_id"], item["output"]) for item in items if item.get("type") == "function_call_output")


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
    turn = await going.redeem(ended, ANSWER)
    items = await going.go_on(surface, turn)
    (seen,) = going.script.seen
    assert seen == [*ended.messages, {"type": "function_call_output", "call_id": "c1", "output": "q1: Staging"}]
    assert seen == list(turn.history[1:])
    assert seen[0] == {"role": "user", "content": "Deploy."}
    assert isinstance(items[-1], Ended)
    assert items[-1].state["result"].final_output == "Staging it is."
    assert (await newest(memory, ended.paused[0])).end == "finished"
    if surface == "stream":
        assert "".join(items[:-1]) == "Staging it is."
    if surface == "stream_typed":
        assert isinstance(items[0], AskUserAnsweredEvent)
        assert {"raw_response_event", "run_item_stream_event"} <= {item.type for item in items[1:-1]}


@pytest.mark.parametrize("answer", [REJECT, APPROVE])
async def test_a_turn_the_sdk_never_ran_goes_on_by_its_items(memory, answer):
    """A host that paused items of its own: there is no run state to run a call in, but every answer has its place."""
    calls = [
        {"type": "function_call", "call_id": c, "name": n, "arguments": "{}"}
        for c, n in (("c0", "look"), ("c1", "deploy"))
    ]
    axes = Axes(scope=SCOPE, session_id="s", run_id="r", call_id="c1")
    turn = Turn("openai-responses", [{"role": "user", "content": "Deploy."}, *calls])
    command = PauseCommand("approval", {"tool": "deploy", "arguments": {}}, turn, axes)
    receipt = await memory.capability.pause(command)
    going = Host(memory, "done")
    turn = await memory.redeem(receipt.token, answer, axes=axes)
    if answer == APPROVE:
        with pytest.raises(InteractionConfigurationError, match="with_results"):
            await resume_run(going.kernel, turn)
        turn = await memory.capability.recover(RecoverCommand(receipt.pause_id, axes=axes))
        turn = turn.with_results({"c1": "not on Friday"})
    await resume_run(going.kernel, turn)
    said = results(going.script.seen[0])
    assert (said["c0"], "not on Friday" in said["c1"]) == (NOT_DISPATCHED, True)
    assert going.runs == []


@pytest.mark.parametrize("surface", SURFACES)
async def test_whoever_was_in_charge_goes_on(memory, surface):
    def team(host):
        ops = agents.Agent(name="ops", model=host.script.model, tools=host.tools, instructions="You are ops.")
        return agents.Agent(
            name="desk", model=host.script.model, handoffs=[handoff(ops)], instructions="You are the desk."
        )

    first = Host(memory, [("c0", "transfer_to_ops", {})], [("c1", "deploy", {"to": "prod"})], agent=team)
    ended = await first.ask()
    going = Host(memory, "done", agent=team)
    await going.go_on(surface, await going.redeem(ended, APPROVE))
    assert going.script.model.calls[0].system_instructions == "You are ops."
    assert results(going.script.seen[0])["c1"] == "deployed to prod"
    assert going.runs == ["prod"]


async def test_an_edit_past_a_guardrail_runs_nothing_and_stays_owed(memory):
    def guarded(host):
        (deploy, *_) = host.tools
        check = ToolInputGuardrail(guardrail_function=lambda data: ToolGuardrailFunctionOutput.allow())
        deploy.tool_input_guardrails = [check]
        return agents.Agent(name="ops", model=host.script.model, tools=[deploy])

    ended = await Host(memory, [("c1", "deploy", {"to": "prod"})], agent=guarded).ask()
    going = Host(memory, "done", agent=guarded)
    with pytest.raises(InteractionConfigurationError, match="edited"):
        await resume_run(going.kernel, await going.redeem(ended, EDIT))
    turn = await going.recover(ended)
    await resume_run(going.kernel, turn.with_results({"c1": f"by hand: {turn.dispatch[0].arguments['to']}"}))
    assert results(going.script.seen[0]) == {"c1": "by hand: staging"}
    assert going.runs == []


async def test_an_inner_agents_tool_is_no_pause_of_the_outer_turn(memory):
    def outer(host):
        inner = agents.Agent(
            name="inner", model=Script([("i1", "deploy", {"to": "prod"})]).model, tools=[host.tools[0]]
        )
        return agents.Agent(name="outer", model=host.script.model, tools=[inner.as_tool("delegate", "Delegates.")])

    with pytest.raises(InteractionConfigurationError, match="inner agent"):
        await Host(memory, [("c1", "delegate", {"input": "x"})], agent=outer).ask()


@pytest.mark.parametrize("context", [{"user": 7}, object()])
async def test_a_mapping_is_kept_and_any_other_context_is_given_again(memory, context):
    seen = []

    def knowing(host):
        @function_tool(needs_approval=True)
        def who(ctx: ToolContext) -> str:
            seen.append(ctx.context)
            return "somebody"

        return agents.Agent(name="ops", model=host.script.model, tools=[who])

    ended = await Host(memory, [("c1", "who", {})], agent=knowing).ask(context=context)
    going = Host(memory, "done", agent=knowing)
    again = {} if isinstance(context, dict) else {"context": context}
    await resume_run(going.kernel, await going.redeem(ended, APPROVE), **again)
    assert seen == [context]


BESIDE = {
    "a handoff": function_call("transfer_to_billing", {}, call_id="c2"),
    "two handoffs": [function_call(f"transfer_to_{name}", {}, call_id=name) for name in ("billing", "sales")],
    "a hosted tool that the host would approve": McpApprovalRequest(
        id="mcpr_1", arguments="{}", name="wipe", server_label="files", type="mcp_approval_request"
    ),
    "an ungated tool": function_call("look", {}, call_id="c2"),
    "a tool that fails": function_call("stumble", {}, call_id="c2"),
    "an unknown tool": function_call("nowhere", {}, call_id="c2"),
}
FINISHED = {"an ungated tool": "all quiet", "a tool that fails": "An error occurred", "an unknown tool": "not found"}


@pytest.mark.parametrize(
    ("surface", "answer", "first"),
    [
        ("run", APPROVE, True),
        ("run", EDIT, False),
        ("run", REJECT, True),
        ("stream", APPROVE, False),
        ("stream_typed", REJECT, False),
    ],
)
@pytest.mark.parametrize("beside", BESIDE)
async def test_nothing_that_stood_beside_a_stop_is_done_when_it_goes_on(memory, surface, answer, first, beside):
    """What had finished keeps its result; what had none is told so, and happens in no way, whatever was answered."""
    approved = []

    def team(host):
        @function_tool
        def stumble() -> str:
            host.runs.append("stumble")
            raise ValueError("stumbled")

        def approve(request):
            approved.append(request)
            return {"approve": True}

        files = {
            "type": "mcp",
            "server_label": "files",
            "server_url": "https://files.test",
            "require_approval": "always",
        }
        hosted = HostedMCPTool(tool_config=files, on_approval_request=approve)
        others = [
            agents.Agent(name=name, model=host.script.model, instructions=f"You are {name}.")
            for name in ("billing", "sales")
        ]
        tools = [*host.tools, stumble, hosted]
        return agents.Agent(
            name="ops", model=host.script.model, instructions="You are ops.", tools=tools, handoffs=others
        )

    lenient = RunConfig(tool_not_found_behavior="return_error_to_model")
    gated, stands = function_call("deploy", {"to": "prod"}, call_id="c1"), BESIDE[beside]
    stands = stands if isinstance(stands, list) else [stands]
    calls = [gated, *stands] if first else [*stands, gated]
    asking = Host(memory, calls, agent=team)
    ended = await asking.ask(run_config=lenient)
    assert [asked.axes.call_id for asked in ended.asked] == ["c1"]
    going = Host(memory, "done", [("c9", "transfer_to_billing", {})], "over to billing", agent=team)
    turn = await going.redeem(ended, answer)
    *_, ended = await going.go_on(surface, turn, run_config=lenient)
    assert going.script.model.calls[0].system_instructions == "You are ops."
    said = results(going.script.seen[0])
    assert said.pop("c1") in ("deployed to prod", "deployed to staging") or answer == REJECT
    assert going.runs == {"approve": ["prod"], "edit": ["staging"], "reject": []}[answer["decision"]]
    if beside in FINISHED:
        assert FINISHED[beside] in said["c2"]
        assert len(asking.runs) == (beside != "an unknown tool")
    elif "hosted" in beside:
        (response,) = [item for item in going.script.seen[0] if item.get("type") == "mcp_approval_response"]
        assert (response["approve"], response["reason"], approved) == (False, NOT_DISPATCHED, [])
    else:
        assert set(said.values()) == {NOT_DISPATCHED}
        assert len(said) == len(stands)
    # The model may still do later what was withheld: here it hands over.
    ended = await going.kernel.run("And now?", run_id="run-2", session_id="chat-7", history=ended.messages)
    assert going.script.model.calls[-1].system_instructions == "You are billing."


async def test_a_turn_that_stopped_twice_withholds_each_time(memory):
    def team(host):
        billing = agents.Agent(name="billing", model=host.script.model, instructions="You are billing.")
        return agents.Agent(name="ops", model=host.script.model, tools=host.tools, handoffs=[billing])

    first = Host(memory, [("c1", "deploy", {"to": "a"}), ("h1", "transfer_to_billing", {})], agent=team)
    ended = await first.ask()
    again = Host(memory, [("h2", "transfer_to_billing", {}), ("c2", "deploy", {"to": "b"})], agent=team)
    second = await resume_run(again.kernel, await again.redeem(ended, APPROVE))
    last = Host(memory, "done", agent=team)
    await resume_run(last.kernel, await last.redeem(second, APPROVE))
    assert results(last.script.seen[0]) == {
        "c1": "deployed to a",
        "h1": NOT_DISPATCHED,
        "c2": "deployed to b",
        "h2": NOT_DISPATCHED,
    }
    assert last.script.model.calls[0].system_instructions is None


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


def waiting(started):
    def make(host):
        @function_tool
        async def wait() -> str:
            started.set()
            try:
                await asyncio.sleep(60)
            finally:
                host.runs.append("stopped")
            return "waited"

        return agents.Agent(name="ops", model=host.script.model, tools=[*host.tools, wait])

    return make


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_cancelled_consumer_takes_the_tool_under_way_along(memory, surface):
    started = asyncio.Event()
    host = Host(memory, [("c1", "deploy", {"to": "prod"})], [("c2", "wait", {})], agent=waiting(started))
    ended = await host.ask()
    going = asyncio.create_task(host.go_on(surface, await host.redeem(ended, APPROVE)))
    await started.wait()
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert host.runs == ["prod", "stopped"]
    fact = await newest(memory, ended.paused[0])
    assert (fact.NAME, fact.cause) == ("pause.stalled", "cancelled")


async def test_walking_away_stops_the_run_that_went_ahead(memory):
    started = asyncio.Event()
    host = Host(memory, [("c1", "wait", {})], agent=waiting(started))
    stream = host.kernel.stream_typed("Wait.", run_id="run-1", session_id="chat-7")
    await anext(stream)
    async with asyncio.timeout(10):
        await started.wait()
    await stream.aclose()
    assert host.runs == ["stopped"]


async def test_a_prompt_comes_after_the_answers(memory):
    ended = await Host(memory, [("c1", "deploy", {"to": "prod"}), ("c2", "ask_user", QUESTION)]).ask()
    going = Host(memory, "done")
    turn = await going.redeem_all(ended, APPROVE, ANSWER)
    await resume_run(going.kernel, turn.with_prompt("Be quick."))
    assert results(going.script.seen[0]) == {"c1": "deployed to prod", "c2": "q1: Staging"}
    assert going.script.seen[0][-1] == {"role": "user", "content": "Be quick."}


async def test_a_tool_that_asks_for_some_arguments_alone_stops_at_these(memory):
    def careful(host):
        async def outside(context, arguments, call_id):
            return arguments["path"].startswith("/")

        @function_tool(needs_approval=outside)
        def remove(path: str) -> str:
            host.runs.append(path)
            return f"removed {path}"

        return agents.Agent(name="ops", model=host.script.model, tools=[remove])

    host = Host(memory, [("c1", "remove", {"path": "tmp"}), ("c2", "remove", {"path": "/etc"})], "done", agent=careful)
    ended = await host.ask()
    assert [asked.request for asked in ended.asked] == [{"tool": "remove", "arguments": {"path": "/etc"}}]
    await resume_run(host.kernel, await host.redeem(ended, APPROVE))
    assert host.runs == ["tmp", "/etc"]


async def test_a_result_from_outside_is_folded_in_as_text(memory):
    host = Host(memory, [("c1", "deploy", {"to": "x"})], "done")
    ended = await host.ask()
    turn = await host.redeem(ended, APPROVE)
    with pytest.raises(InteractionConfigurationError, match="text"):
        await resume_run(host.kernel, turn.with_results({"c1": [{"type": "input_text", "text": "by hand"}]}))
    turn = await host.recover(ended)
    await resume_run(host.kernel, turn.with_results({"c1": "by hand"}))
    assert results(host.script.seen[1]) == {"c1": "by hand"}
    assert host.runs == []


async def test_a_question_that_does_not_fit_is_no_pause(memory):
    with pytest.raises(PauseRejected):
        await Host(memory, [("c1", "ask_user", {"questions": []})]).ask()


async def test_the_turn_comes_back_as_it_was(memory):
    """Reasoning with what is sealed in it, earlier rounds, text of any script: what the model sees is what the run held."""
    thought = ResponseReasoningItem(id="rs_1", summary=[], encrypted_content="gAAA+/=", type="reasoning")
    call = function_call("deploy", {"to": "été 🚀"}, call_id="c1")
    host = Host(memory, [("c0", "look", {})], [thought, call], "done")
    earlier = {"role": "assistant", "content": [{"type": "output_text", "text": "Hello."}], "status": "completed"}
    prompt = "Ship it, \u0645\u0631\u062d\u0628\u0627."
    ended = await host.ask(prompt, history=[{"role": "user", "content": "Hi."}, earlier])
    turn = await host.redeem(ended, BY_HAND)
    await resume_run(host.kernel, turn)
    seen = host.script.seen[2]
    assert seen[:-1] == ended.messages
    assert [item["content"] for item in seen[:3]] == ["Hi.", earlier["content"], prompt]
    assert next(item for item in seen if item.get("type") == "reasoning")["encrypted_content"] == "gAAA+/="
    assert results(seen) == {"c0": "all quiet", "c1": "done by hand"}
    kept = turn.outcome.turn.entries[0]
    assert kept["type"] == "openai_agents.run_state"
    assert json.loads(json.dumps(kept["state"]))["$schemaVersion"]


async def test_every_snippet_of_the_page_runs_and_prints_what_it_says(play):
    script = Script(
        [("c1", "deploy", {"to": "production"})], "It is on staging.", [("c2", "ask_user", QUESTION)], "Fine."
    )
    namespace = {"model": script.model}
    assert await play("openai-agents.md", namespace) == 3
    script.model.assert_complete()


async def test_a_turn_of_another_tenant_is_not_gone_on_with(memory):
    """Its next stop would be paused among this kernel's own."""
    ended = await Host(memory, [("c1", "deploy", {"to": "prod"})]).ask()
    turn = await memory.redeem(ended.paused[0].token, APPROVE, axes=ended.asked[0].axes)
    other = Host(memory, "done")
    other.kernel.scope = Scope(tenant_id="globex")
    with pytest.raises(InteractionConfigurationError, match="another tenant"):
        await resume_run(other.kernel, turn)
    assert other.runs == []


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_turn_that_used_its_turns_up_goes_on_by_more(memory, surface):
    """The SDK counts on where the run stopped, and reads the most of it out of the state."""
    host = Host(memory, [("c1", "deploy", {"to": "prod"})], [("c2", "look", {})], "done")
    ended = await host.ask(max_turns=1)
    turn = await host.redeem(ended, APPROVE)
    with pytest.raises(agents.MaxTurnsExceeded):
        await host.go_on(surface, turn)
    await host.go_on(surface, await host.recover(ended), max_turns=3)
    assert (await newest(memory, ended.paused[0])).NAME == "pause.continued"


REACHED = {
    "start": lambda ops, model: ops,
    "handoff": lambda ops, model: agents.Agent(name="desk", model=model, handoffs=[ops]),
    "handoff_made": lambda ops, model: agents.Agent(name="desk", model=model, handoffs=[agents.handoff(ops)]),
    "tool": lambda ops, model: agents.Agent(name="desk", model=model, tools=[ops.as_tool("ops", "Ask ops.")]),
}


@pytest.mark.parametrize("reached", REACHED.values(), ids=REACHED)
async def test_a_gated_tool_that_needs_no_approval_runs_nothing(memory, reached):
    def make(host):
        return reached(agents.Agent(name="ops", model=host.script.model, tools=host.tools), host.script.model)

    host = Host(memory, [("c1", "look", {})], "done", gates={"look": Gate()}, agent=make)
    with pytest.raises(InteractionConfigurationError, match="'look' has a gate .* needs_approval=True"):
        await host.ask()
    assert (host.runs, host.seen) == ([], [])


async def test_agents_that_hand_over_to_each_other_are_looked_at_once(memory):
    def make(host):
        one, other = (agents.Agent(name="ops", model=host.script.model, tools=host.tools) for _ in range(2))
        one.handoffs, other.handoffs = [other], [one]
        return one

    host = Host(memory, "done", agent=make)
    assert (await host.ask()).paused == ()
