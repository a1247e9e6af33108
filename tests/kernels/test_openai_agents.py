"""The Agents SDK kernel: what the model sees first, how often tools had their effect, and the page that explains it."""

import ast
import asyncio
import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("agents", reason="the openai-agents extra is not installed")

import agents
from agents import HostedMCPTool, RunConfig, ToolGuardrailFunctionOutput, ToolInputGuardrail, function_tool, handoff
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from agents.tool_context import ToolContext
from openai.types.responses import ResponseReasoningItem
from openai.types.responses.response_output_item import McpApprovalRequest
from pauseledger import (
    ASK_USER,
    NOT_ANSWERED,
    NOT_DISPATCHED,
    Actor,
    AlreadyConsumed,
    AlreadyContinued,
    AnswerCommand,
    AskUserAnsweredEvent,
    Axes,
    InteractionConfigurationError,
    LapseAnswer,
    LedgerSettings,
    PauseCommand,
    PauseRejected,
    PauseWithdrawn,
    RecoverCommand,
    Refusal,
    ResumedTurn,
    RoundOpen,
    Scope,
    TokenExpired,
    Turn,
    open_ledger,
    resume_run,
    resume_stream,
    resume_stream_typed,
)
from pauseledger.infrastructure.kernels import Ended, Gate
from pauseledger.infrastructure.kernels.openai_agents import OpenAIAgentsKernel, ask_user_tool, side_effect
from pauseledger.infrastructure.keys import KeyFile

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kernels" / "openai-agents.md"
ACME = Scope(tenant_id="acme")
QUESTION = {"questions": [{"question": "Where to?", "options": [{"label": "Staging"}, {"label": "Production"}]}]}
ANSWER = {"answers": [{"question_id": "q1", "selections": ["Staging"]}]}
APPROVE = {"decision": "approve"}
REJECT = {"decision": "reject", "reason": "not on Friday"}
BY_HAND = {"decision": "respond", "text": "done by hand"}
EDIT = {"decision": "edit", "arguments": {"to": "staging"}}
SURFACES = ["run", "stream", "typed"]


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


class Host:
    """One process: an agent with tools that leave traces, and the kernel over it."""

    def __init__(self, ledger, *replies, gates=None, approvals=None, effects=None, agent=None):
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
        gates = {"ask_user": Gate(ASK_USER)} if gates is None else gates
        self.kernel = OpenAIAgentsKernel(self.agent, ledger.capability, scope=ACME, gates=gates, approvals=approvals)

    async def ask(self, prompt="Deploy.", run_id="run-1", **given):
        return await self.kernel.run(prompt, run_id=run_id, session_id="chat-7", **given)

    async def redeem(self, ended, answer, at=0):
        return await self.ledger.redeem(ended.paused[at].token, answer, axes=ended.asked[at].axes, by=Actor("maria"))

    async def redeem_all(self, ended, *answers):
        for at, answer in enumerate(answers[:-1]):
            with pytest.raises(RoundOpen):
                await self.redeem(ended, answer, at)
        return await self.redeem(ended, answers[-1], len(answers) - 1)

    async def recover(self, ended):
        return await self.ledger.capability.recover(RecoverCommand(ended.paused[0].pause_id, axes=ended.asked[0].axes))


async def go_on(surface, host, turn, **options):
    if surface == "run":
        return [await resume_run(host.kernel, turn, **options)]
    resume = {"stream": resume_stream, "typed": resume_stream_typed}[surface]
    return [item async for item in resume(host.kernel, turn, **options)]


def results(items):
    """Outputs by call, of the whole input; a call with two of them fails here."""
    found = [(item["call_id"], item["output"]) for item in items if item.get("type") == "function_call_output"]
    assert len(dict(found)) == len(found)
    return dict(found)


async def newest(ledger, receipt):
    return (await ledger.story(receipt.pause_id))[-1]


@pytest.fixture
async def ledger(store_url, tmp_path):
    KeyFile(tmp_path / "keys").create()
    async with open_ledger(store_url, LedgerSettings(keys_directory=tmp_path / "keys")) as opened:
        yield opened


@pytest.fixture
async def memory():
    async with open_ledger("memory:") as opened:
        yield opened


@pytest.fixture
async def brief():
    async with open_ledger("memory:", LedgerSettings(lease=1)) as opened:
        yield opened


@pytest.mark.parametrize("surface", SURFACES)
async def test_the_first_sight_holds_the_answer_on_its_call(memory, surface):
    ended = await Host(memory, [("c1", "ask_user", QUESTION)]).ask()
    going = Host(memory, "Staging it is.")
    turn = await going.redeem(ended, ANSWER)
    items = await go_on(surface, going, turn)
    (seen,) = going.script.seen
    assert seen == [*ended.messages, {"type": "function_call_output", "call_id": "c1", "output": "q1: Staging"}]
    assert seen == list(turn.history[1:])
    assert seen[0] == {"role": "user", "content": "Deploy."}
    assert isinstance(items[-1], Ended)
    assert items[-1].state["result"].final_output == "Staging it is."
    assert (await newest(memory, ended.paused[0])).end == "finished"
    if surface == "stream":
        assert "".join(items[:-1]) == "Staging it is."
    if surface == "typed":
        assert isinstance(items[0], AskUserAnsweredEvent)
        assert {"raw_response_event", "run_item_stream_event"} <= {item.type for item in items[1:-1]}


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize(
    ("answer", "ran", "said"),
    [
        (APPROVE, ["prod"], "deployed to prod"),
        ({"decision": "edit", "arguments": {"to": "staging"}}, ["staging"], "deployed to staging"),
        (REJECT, [], "not on Friday"),
        ({"decision": "respond", "text": "I did it myself"}, [], "I did it myself"),
    ],
)
async def test_each_decision_runs_what_it_says(memory, surface, answer, ran, said):
    ended = await Host(memory, [("c1", "deploy", {"to": "prod"})]).ask()
    going = Host(memory, "done")
    await go_on(surface, going, await going.redeem(ended, answer))
    (seen,) = going.script.seen
    assert said in results(seen)["c1"]
    assert going.runs == ran
    assert going.effects == {str(ended.paused[0].pause_id): to for to in ran}
    assert json.loads(seen[1]["arguments"]) == {"to": "prod"}
    assert "run_state" not in json.dumps(seen)


@pytest.mark.parametrize("surface", SURFACES)
async def test_finished_neighbours_keep_their_results_beside_every_kind_of_answer(memory, surface):
    calls = [
        ("c0", "look", {}),
        ("c1", "deploy", {"to": "x"}),
        ("c2", "ask_user", QUESTION),
        ("c3", "nowhere", {}),
        ("c4", "deploy", {"to": "y"}),
    ]
    host = Host(memory, calls)
    lenient = RunConfig(tool_not_found_behavior="return_error_to_model")
    ended = await host.ask(run_config=lenient)
    assert host.runs == ["look"]
    assert [asked.axes.call_id for asked in ended.asked] == ["c1", "c2", "c4"]
    going = Host(memory, "done")
    await go_on(surface, going, await going.redeem_all(ended, APPROVE, ANSWER, REJECT), run_config=lenient)
    said = results(going.script.seen[0])
    assert (said["c0"], said["c1"], said["c2"]) == ("all quiet", "deployed to x", "q1: Staging")
    assert "nowhere" in str(said["c3"])
    assert "not on Friday" in said["c4"]
    assert going.runs == ["x"]


@pytest.mark.parametrize("answer", [REJECT, APPROVE])
async def test_a_turn_the_sdk_never_ran_goes_on_by_its_items(memory, answer):
    """A host that paused items of its own: there is no run state to run a call in, but every answer has its place."""
    calls = [
        {"type": "function_call", "call_id": c, "name": n, "arguments": "{}"}
        for c, n in (("c0", "look"), ("c1", "deploy"))
    ]
    axes = Axes(scope=ACME, session_id="s", run_id="r", call_id="c1")
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
    await go_on(surface, going, await going.redeem(ended, APPROVE))
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
        ("typed", REJECT, False),
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
    *_, ended = await go_on(surface, going, turn, run_config=lenient)
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


@pytest.mark.parametrize("surface", SURFACES)
async def test_consumed_and_then_the_model_fails_the_effect_is_one(ledger, surface):
    ended = await Host(ledger, [("c1", "deploy", {"to": "prod"})]).ask()
    failing = Host(ledger, ConnectionError("hung up"))
    with pytest.raises(ConnectionError):
        await go_on(surface, failing, await failing.redeem(ended, APPROVE))
    assert (await newest(ledger, ended.paused[0])).NAME == "pause.stalled"
    again = Host(ledger, "done", effects=failing.effects)
    await go_on(surface, again, await again.recover(ended))
    assert results(again.script.seen[0]) == {"c1": "deployed to prod"}
    assert again.effects == {str(ended.paused[0].pause_id): "prod"}
    assert (await newest(ledger, ended.paused[0])).end == "finished"


async def test_of_many_decisions_at_once_one_goes_on_and_the_tool_runs_once(ledger):
    ended = await Host(ledger, [("c1", "deploy", {"to": "prod"})]).ask()
    host = Host(ledger, "done")
    tried = await asyncio.gather(
        *(host.redeem(ended, (APPROVE, REJECT)[n % 2]) for n in range(20)), return_exceptions=True
    )
    (turn,) = [one for one in tried if isinstance(one, ResumedTurn)]
    assert all(isinstance(one, AlreadyConsumed) for one in tried if one is not turn)
    await resume_run(host.kernel, turn)
    assert host.runs == (["prod"] if turn.outcome.response == APPROVE else [])
    assert len(host.script.seen) == 1


@pytest.mark.parametrize("at_once", [False, True])
async def test_answers_in_any_order_land_on_their_own_calls(ledger, at_once):
    ended = await Host(ledger, [(f"c{n}", "deploy", {"to": f"place {n}"}) for n in (1, 2, 3)]).ask()
    host = Host(ledger, "done")
    answers = {n: {"decision": "edit", "arguments": {"to": f"other {n}"}} for n in (0, 1, 2)}
    if at_once:
        tried = await asyncio.gather(*(host.redeem(ended, answers[n], n) for n in answers), return_exceptions=True)
    else:
        tried = [await asyncio.gather(host.redeem(ended, answers[n], n), return_exceptions=True) for n in (2, 1, 0)]
        tried = [one for (one,) in tried]
    (turn,) = [one for one in tried if isinstance(one, ResumedTurn)]
    assert all(isinstance(one, RoundOpen) for one in tried if one is not turn)
    await resume_run(host.kernel, turn)
    assert results(host.script.seen[0]) == {f"c{n + 1}": f"deployed to other {n}" for n in (0, 1, 2)}
    assert host.effects == {str(ended.paused[n].pause_id): f"other {n}" for n in (0, 1, 2)}


async def test_the_last_two_answers_at_once_from_two_ledgers_make_one_continuation(tmp_path):
    KeyFile(tmp_path / "keys").create()
    url, settings = f"sqlite:///{tmp_path / 'l.db'}", LedgerSettings(keys_directory=tmp_path / "keys")
    async with open_ledger(url, settings) as one, open_ledger(url, settings) as two:
        for n in range(10):
            ended = await Host(one, [(f"c{c}", "deploy", {"to": f"{c}"}) for c in (1, 2, 3)]).ask(run_id=f"run {n}")
            hosts = [Host(one, "done"), Host(two, "done")]
            with pytest.raises(RoundOpen):
                await hosts[0].redeem(ended, APPROVE, 0)
            tried = await asyncio.gather(
                hosts[0].redeem(ended, APPROVE, 1), hosts[1].redeem(ended, APPROVE, 2), return_exceptions=True
            )
            ((host, turn),) = [
                (host, found) for host, found in zip(hosts, tried, strict=True) if isinstance(found, ResumedTurn)
            ]
            await resume_run(host.kernel, turn)
            assert sorted(host.runs) == ["1", "2", "3"]


async def test_gone_right_after_the_last_answer_recover_finds_it(ledger):
    ended = await Host(ledger, [(f"c{n}", "deploy", {"to": f"place {n}"}) for n in (1, 2)]).ask()
    for receipt, asked in zip(ended.paused, ended.asked, strict=True):
        axes = asked.axes.model_dump()
        command = AnswerCommand(ledger.capability.decode_token(receipt.token), APPROVE, **{**axes, "scope": ACME})
        await ledger.capability.answer(command)
    going = Host(ledger, "done")
    await resume_run(going.kernel, await going.recover(ended))
    assert results(going.script.seen[0]) == {"c1": "deployed to place 1", "c2": "deployed to place 2"}


async def test_nobody_answers_and_the_lapse_answer_stands(memory):
    waits = Gate(closes_in=1, on_lapse=LapseAnswer({"decision": "reject", "reason": "nobody was there"}))
    ended = await Host(memory, [("c1", "deploy", {"to": "prod"})], approvals=waits).ask()
    await asyncio.sleep(2.1)
    going = Host(memory, "then not")
    with pytest.raises(TokenExpired):
        await going.redeem(ended, APPROVE)
    await resume_run(going.kernel, await going.recover(ended))
    assert "nobody was there" in results(going.script.seen[0])["c1"]
    assert going.runs == []


async def test_an_answer_in_time_stands_beside_one_that_never_came(memory):
    gates = {"deploy": Gate(closes_in=1), "ask_user": Gate(ASK_USER)}
    ended = await Host(memory, [("c1", "deploy", {"to": "x"}), ("c2", "ask_user", QUESTION)], gates=gates).ask()
    await asyncio.sleep(2.1)
    going = Host(memory, "done")
    await resume_run(going.kernel, await going.redeem(ended, ANSWER, 1))
    assert results(going.script.seen[0]) == {"c1": NOT_ANSWERED, "c2": "q1: Staging"}
    assert going.runs == []


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


@pytest.mark.parametrize("zombie_fails", [True, False])
async def test_a_zombie_changes_nothing_and_there_is_no_third_run(brief, zombie_fails):
    ended = await Host(brief, [("c1", "deploy", {"to": "prod"})]).ask()
    zombie = Host(brief, ConnectionError("hung up") if zombie_fails else "late")
    outlived = await zombie.redeem(ended, APPROVE)
    await asyncio.sleep(1.2)
    rescuer = Host(brief, "done", effects=zombie.effects)
    rescued = await rescuer.recover(ended)
    if zombie_fails:
        with pytest.raises(ConnectionError):
            await resume_run(zombie.kernel, outlived)
        assert (await newest(brief, ended.paused[0])).NAME == "pause.recovered"
    else:
        await resume_run(zombie.kernel, outlived)
        assert (await newest(brief, ended.paused[0])).late
    await resume_run(rescuer.kernel, rescued)
    with pytest.raises(AlreadyContinued):
        await rescuer.recover(ended)
    assert zombie.effects == {str(ended.paused[0].pause_id): "prod"}
    assert [fact.NAME for fact in await brief.story(ended.paused[0].pause_id)].count("pause.continued") == 1


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_second_stop_says_which_pause_is_next(memory, surface):
    first = await Host(memory, [("c1", "ask_user", QUESTION)]).ask()
    going = Host(memory, [("c2", "look", {})], [("c3", "deploy", {"to": "x"})], "done")
    *_, second = await go_on(surface, going, await going.redeem(first, ANSWER))
    fact = await newest(memory, first.paused[0])
    assert (fact.end, fact.next) == ("paused_again", (second.paused[0].pause_id,))
    await go_on(surface, going, await going.redeem(second, APPROVE))
    assert results(going.script.seen[2]) == {"c1": "q1: Staging", "c2": "all quiet", "c3": "deployed to x"}
    assert going.runs == ["look", "x"]


@pytest.mark.parametrize("surface", ["stream", "typed"])
async def test_walking_away_from_a_stream_stalls_the_turn(memory, surface):
    ended = await Host(memory, [("c1", "deploy", {"to": "prod"})]).ask()
    going = Host(memory, "one two three")
    turn = await going.redeem(ended, APPROVE)
    stream = (resume_stream if surface == "stream" else resume_stream_typed)(going.kernel, turn)
    await anext(stream)
    await stream.aclose()
    assert (await newest(memory, ended.paused[0])).NAME == "pause.stalled"


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
    going = asyncio.create_task(go_on(surface, host, await host.redeem(ended, APPROVE)))
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


@pytest.mark.parametrize("surface", ["run", "stream", "stream_typed"])
async def test_a_run_without_a_stop_is_no_pause(memory, surface):
    host = Host(memory, [("c1", "look", {})], "quiet")
    if surface == "run":
        ended = await host.ask()
    else:
        *_, ended = [item async for item in getattr(host.kernel, surface)("Look.", run_id="r", session_id="s")]
    assert (ended.paused, ended.state["result"].final_output) == ((), "quiet")


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


def test_a_process_that_never_saw_the_turn_goes_on_with_it(tmp_path):
    url = f"sqlite:///{tmp_path / 'l.db'}"
    program = f"""
import asyncio, importlib.util, json
spec = importlib.util.spec_from_file_location("story", {__file__!r})
story = importlib.util.module_from_spec(spec); spec.loader.exec_module(story)
async def main():
    async with story.open_ledger({url!r}) as ledger:
        ended = await story.Host(ledger, [("c1", "deploy", {{"to": "prod"}}), ("c2", "look", {{}})]).ask()
        print(json.dumps([ended.paused[0].token, ended.asked[0].axes.model_dump(mode="json")]))
asyncio.run(main())
"""
    env = {"PAUSELEDGER_KEYS_DIR": str(tmp_path / "keys"), "PATH": "/usr/bin:/bin"}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=False)
    assert run.returncode == 0, run.stderr
    token, axes = json.loads(run.stdout)

    async def resumed():
        async with open_ledger(url, LedgerSettings(keys_directory=tmp_path / "keys")) as ledger:
            host = Host(ledger, "done")
            await resume_run(host.kernel, await ledger.redeem(token, APPROVE, axes=Axes(**axes)))
            return host

    host = asyncio.run(resumed())
    assert results(host.script.seen[0]) == {"c1": "deployed to prod", "c2": "all quiet"}
    assert host.runs == ["prod"]


async def test_every_snippet_of_the_page_runs_and_prints_what_it_says():
    script = Script(
        [("c1", "deploy", {"to": "production"})], "It is on staging.", [("c2", "ask_user", QUESTION)], "Fine."
    )
    namespace = {"model": script.model}
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(snippets) == 3
    for snippet in snippets:
        printed = io.StringIO()
        code = compile(snippet, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            running = eval(code, namespace)
            if running is not None:
                await running
        assert printed.getvalue().splitlines() == re.findall(r"print\(.*\)  # (.*)", snippet)
    script.model.assert_complete()
