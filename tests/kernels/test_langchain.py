"""A LangChain agent that stops for a person and goes on: what its model sees, and how often its tools ran."""

import asyncio
import io
import json
import operator
import re
from pathlib import Path

import pytest

pytest.importorskip("langchain", reason="the langchain extra is not installed")
pytest.importorskip("langgraph", reason="the langchain extra is not installed")

from typing import Annotated, Any

from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, wrap_tool_call
from langchain.tools import ToolRuntime
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    messages_from_dict,
    messages_to_dict,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from pauseledger import (
    NOT_ANSWERED,
    NOT_DISPATCHED,
    AskUserAnsweredEvent,
    InteractionConfigurationError,
    LedgerSettings,
    PauseWithdrawn,
    RecoverCommand,
    ResponseInvalid,
    RoundOpen,
    Scope,
    WithdrawCommand,
    open_ledger,
    resume_run,
    resume_stream,
    resume_stream_typed,
)
from pauseledger.infrastructure import cli
from pauseledger.infrastructure.kernels import Ended, Gate
from pauseledger.infrastructure.kernels.langchain import LangChainKernel, side_effect
from pauseledger.infrastructure.kernels.langchain_middleware import TOOL_APPROVAL, PauseMiddleware, ask_user_tool
from pauseledger.infrastructure.keys import KeyFile
from pauseledger.infrastructure.testing_kernels import (
    ANSWER,
    GATES,
    QUESTION,
    SCOPE,
    SURFACES,
    Agent,
    KernelConformance,
    by_call,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kernels" / "langchain.md"


class Model(BaseChatModel):
    """Plays its replies in order, and remembers what it was given each time. A reply that is an error is raised."""

    replies: list[Any]
    seen: list[Any] = []

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **given):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **given):
        self.seen.append(list(messages))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return ChatResult(generations=[ChatGeneration(message=reply)])


def calling(*calls):
    listed = [{"name": name, "args": args, "id": call_id, "type": "tool_call"} for call_id, name, args in calls]
    return AIMessage("", tool_calls=listed)


class World:
    """Where tools leave their traces; one effect an idempotency key, as a host would have it."""

    def __init__(self):
        self.runs, self.effects = [], {}

    def tools(self):
        @tool
        def deploy(to: str, runtime: ToolRuntime) -> str:
            """Deploy the release."""
            effect = side_effect(runtime.tool_call_id)
            self.runs.append(("deploy", to, effect))
            self.effects.setdefault(effect.idempotency_key, to)
            return f"deployed to {to}"

        @tool
        def look(runtime: ToolRuntime) -> str:
            """Look around."""
            self.runs.append(("look", None, side_effect(runtime.tool_call_id)))
            return "all quiet"

        return [deploy, look, ask_user_tool()]


STOPPERS = {
    "middleware": lambda: PauseMiddleware(GATES),
    "batched": lambda: HumanInTheLoopMiddleware({"deploy": True}),
    "per_call": lambda: HumanInTheLoopMiddleware({"deploy": True}, interrupt_mode="per_call"),
}


class Host(Agent):
    """One process's agent over a ledger."""

    def __init__(self, ledger, *replies, stopper="middleware", saver=None, gates=GATES, world=None, **kernel):
        self.ledger, self.world = ledger, world or World()
        self.model = Model(replies=list(replies), seen=[])
        middleware = STOPPERS[stopper]() if gates is GATES else PauseMiddleware(gates)
        if stopper != "middleware":
            saver = saver or InMemorySaver()
        self.agent = create_agent(self.model, self.world.tools(), middleware=[middleware], checkpointer=saver)
        gates = gates if stopper == "middleware" else None
        self.kernel = LangChainKernel(self.agent, ledger.capability, scope=SCOPE, gates=gates, **kernel)


def results(messages):
    return by_call((one.tool_call_id, one.content) for one in messages if isinstance(one, ToolMessage))


class Suited(Host):
    """The same, as the suite knows it."""

    def __init__(self, ledger, *replies, gates, effects):
        world = World()
        world.effects = {} if effects is None else effects
        super().__init__(ledger, *map(self._said, replies), gates=gates, world=world)

    def _said(self, reply):
        if isinstance(reply, str):
            return AIMessage(reply)
        return reply if isinstance(reply, Exception) else calling(*reply)

    @property
    def runs(self):
        return [to or name for name, to, _ in self.world.runs]

    @property
    def effects(self):
        return self.world.effects

    @property
    def seen(self):
        return [results(messages) for messages in self.model.seen]


class TestConformance(KernelConformance):
    """What every kernel must do."""

    def agent(self, ledger, *replies, gates=GATES, effects=None):
        return Suited(ledger, *replies, gates=gates, effects=effects)


async def newest(ledger, receipt):
    return (await ledger.story(receipt.pause_id))[-1]


@pytest.fixture
async def ledger(store_url, tmp_path):
    KeyFile(tmp_path / "keys").create()
    settings = LedgerSettings(keys_directory=tmp_path / "keys", lease=1, interactions=[TOOL_APPROVAL])
    async with open_ledger(store_url, settings) as opened:
        yield opened


@pytest.fixture
async def memory(tmp_path):
    async with open_ledger("memory:", LedgerSettings(interactions=[TOOL_APPROVAL])) as opened:
        yield opened


# Stopping


@pytest.mark.parametrize("stopper", STOPPERS)
async def test_a_gated_call_stops_the_run_before_its_tool(memory, stopper):
    host = Host(memory, calling(("c1", "deploy", {"to": "prod"})), stopper=stopper)
    ended = await host.ask()
    assert [receipt.existing for receipt in ended.paused] == [False]
    assert ended.asked[0].axes.call_id == "c1"
    assert (ended.asked[0].request["tool"], ended.asked[0].request["arguments"]) == ("deploy", {"to": "prod"})
    assert host.world.runs == []
    paused = (await memory.story(ended.paused[0].pause_id))[0]
    assert (paused.run_id, paused.session_id, paused.call_id) == ("run-1", "chat-7", "c1")


async def test_the_stored_turn_gives_back_equal_messages(memory):
    reply = calling(("c1", "ask_user", QUESTION))
    reply.response_metadata = {"model": "m", "logprobs": None}
    reply.usage_metadata = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    history = messages_to_dict([SystemMessage("Be brief."), HumanMessage([{"type": "text", "text": "héllo"}])])
    host = Host(memory, reply)
    ended = await host.ask("", history=history)
    turn = await host.redeem(ended, ANSWER)
    *before, result = messages_from_dict(list(turn.history))
    assert before == list(ended.messages)
    assert (result.tool_call_id, result.name, result.content) == ("c1", "ask_user", "q1: Staging")


async def test_an_agent_within_another_cannot_pause_the_outer_turn(memory):
    inner = create_agent(
        Model(replies=[calling(("i1", "deploy", {"to": "prod"}))], seen=[]),
        World().tools(),
        middleware=[PauseMiddleware(GATES)],
    )

    @tool
    async def delegate() -> str:
        """Let another agent do it."""
        return str(await inner.ainvoke({"messages": [HumanMessage("Deploy.")]}))

    outer = create_agent(Model(replies=[calling(("c1", "delegate", {}))], seen=[]), [delegate])
    kernel = LangChainKernel(outer, memory.capability, scope=SCOPE, gates=GATES)
    with pytest.raises(InteractionConfigurationError, match="inside another"):
        await kernel.run("Go.", run_id="r", session_id="s")


async def test_an_interrupt_of_another_kind_is_no_request(memory):
    @tool
    def think() -> str:
        """Ask in a way of its own."""
        return interrupt("well?")

    model = Model(replies=[calling(("c1", "think", {}))], seen=[])
    agent = create_agent(model, [think], checkpointer=InMemorySaver())
    with pytest.raises(InteractionConfigurationError, match="past the ledger"):
        await LangChainKernel(agent, memory.capability, scope=SCOPE).run("Go.", run_id="r", session_id="s")


async def test_a_stopped_request_can_no_longer_be_answered_in_the_thread(memory):
    host = Host(memory, calling(("c1", "deploy", {"to": "prod"})), stopper="per_call")
    await host.ask()
    thread = {"configurable": {"thread_id": "chat-7"}}
    assert (await host.agent.aget_state(thread)).interrupts == ()
    await host.agent.ainvoke(Command(resume={"type": "approve"}), thread)
    assert host.world.runs == []


async def test_a_graph_of_ones_own_ends_where_a_gated_call_waits(memory):
    model = Model(replies=[calling(("c1", "ask_user", QUESTION)), AIMessage("Staging it is.")], seen=[])

    async def node(state: MessagesState):
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", node)
    graph.add_edge(START, "model")
    graph.add_edge("model", END)
    kernel = LangChainKernel(graph.compile(), memory.capability, scope=SCOPE, gates=GATES)
    ended = await kernel.run("Deploy.", run_id="r", session_id="s")
    turn = await memory.redeem(ended.paused[0].token, ANSWER, axes=ended.asked[0].axes)
    assert (await resume_run(kernel, turn)).messages[-1].content == "Staging it is."
    assert results(model.seen[1]) == {"c1": "q1: Staging"}


# Going on


async def resumed(surface, kernel, turn):
    if surface == "run":
        return [await resume_run(kernel, turn)]
    return [
        item async for item in {"stream": resume_stream, "stream_typed": resume_stream_typed}[surface](kernel, turn)
    ]


@pytest.mark.parametrize("surface", SURFACES)
async def test_the_models_first_sight_holds_the_answer_on_its_call(ledger, surface):
    await first_sight(ledger, surface, saver=None)


@pytest.mark.parametrize("surface", SURFACES)
async def test_the_models_first_sight_in_a_thread_that_is_kept(memory, surface):
    await first_sight(memory, surface, saver=InMemorySaver())


async def first_sight(ledger, surface, saver):
    asking = Host(ledger, calling(("c1", "ask_user", QUESTION)), saver=saver)
    ended = await asking.ask()
    # Another process, which never saw the turn.
    going = Host(ledger, AIMessage("Staging it is."), saver=saver)
    items = await resumed(surface, going.kernel, await going.redeem(ended, ANSWER))
    assert isinstance(items[-1], Ended)
    assert items[-1].paused == ()
    first, *more = going.model.seen
    assert [type(message) for message in first] == [HumanMessage, AIMessage, ToolMessage]
    assert first[:2] == list(ended.messages)
    assert results(first) == {"c1": "q1: Staging"}
    assert more == []
    assert items[-1].messages[-1].content == "Staging it is."
    fact = await newest(ledger, ended.paused[0])
    assert (fact.NAME, fact.end) == ("pause.continued", "finished")
    if surface == "stream":
        assert [item.content for item in items[:-1]] == ["Staging it is."]
    if surface == "stream_typed":
        assert isinstance(items[0], AskUserAnsweredEvent)
        assert {part["type"] for part in items[1:-1]} == {"updates", "messages"}


async def test_a_prompt_given_on_top_comes_after_the_answer(memory):
    host = Host(memory, calling(("c1", "ask_user", QUESTION)), AIMessage("ok"))
    turn = await host.redeem(await host.ask(), ANSWER)
    await resume_run(host.kernel, turn.with_prompt("And hurry."))
    assert [type(message).__name__ for message in host.model.seen[1]][-2:] == ["ToolMessage", "HumanMessage"]


@pytest.mark.parametrize("stopper", STOPPERS)
async def test_an_approved_call_runs_once_under_its_own_key_and_fence(memory, stopper):
    host = Host(memory, calling(("c1", "deploy", {"to": "prod"})), AIMessage("done"), stopper=stopper)
    ended = await host.ask()
    answer = {"decision": "approve"} if stopper == "middleware" else {"type": "approve"}
    await resume_run(host.kernel, await host.redeem(ended, answer))
    ((name, to, effect),) = host.world.runs
    assert (name, to, effect.fence) == ("deploy", "prod", 1)
    assert effect.idempotency_key == str(ended.paused[0].pause_id)
    assert results(host.model.seen[1]) == {"c1": "deployed to prod"}


@pytest.mark.parametrize("stopper", STOPPERS)
async def test_an_edited_call_runs_with_the_persons_arguments(memory, stopper):
    host = Host(memory, calling(("c1", "deploy", {"to": "prod"})), AIMessage("done"), stopper=stopper)
    ended = await host.ask()
    answer = {"decision": "edit", "arguments": {"to": "staging"}}
    if stopper != "middleware":
        answer = {"type": "edit", "edited_action": {"name": "deploy", "args": {"to": "staging"}}}
    await resume_run(host.kernel, await host.redeem(ended, answer))
    assert [run[:2] for run in host.world.runs] == [("deploy", "staging")]
    assert results(host.model.seen[1]) == {"c1": "deployed to staging"}
    # The model's own call stands as it made it.
    assert host.model.seen[1][1].tool_calls[0]["args"] == {"to": "prod"}


@pytest.mark.parametrize("stopper", STOPPERS)
@pytest.mark.parametrize("decision", ["reject", "respond"])
async def test_declined_or_answered_in_its_place_nothing_runs(memory, stopper, decision):
    host = Host(memory, calling(("c1", "deploy", {"to": "prod"})), AIMessage("as you wish"), stopper=stopper)
    ended = await host.ask()
    text = {"reject": "reason", "respond": "text"}[decision]
    answer = {"decision": decision, text: "on Monday"}
    if stopper != "middleware":
        answer = {"type": decision, "message": "on Monday"}
    await resume_run(host.kernel, await host.redeem(ended, answer))
    assert host.world.runs == []
    said = results(host.model.seen[1])
    assert said.keys() == {"c1"}
    assert "on Monday" in said["c1"]
    assert ("rejected" in said["c1"]) == (decision == "reject")


@pytest.mark.parametrize("mode", ["batched", "per_call"])
async def test_a_decision_that_is_not_allowed_is_refused_and_an_allowed_one_redeems(memory, mode):
    allowed = {"deploy": {"allowed_decisions": ["edit", "reject"]}}
    world, model = World(), Model(replies=[calling(("c1", "deploy", {"to": "prod"})), AIMessage("done")], seen=[])
    middleware = HumanInTheLoopMiddleware(allowed, interrupt_mode=mode)
    agent = create_agent(model, world.tools(), middleware=[middleware], checkpointer=InMemorySaver())
    kernel = LangChainKernel(agent, memory.capability, scope=SCOPE)
    ended = await kernel.run("Deploy.", run_id="r", session_id="s")
    token, axes = ended.paused[0].token, ended.asked[0].axes
    assert ended.asked[0].request["allowed_decisions"] == ["edit", "reject"]
    switched = {"type": "edit", "edited_action": {"name": "look", "args": {}}}
    for refused in ({"type": "approve"}, switched, {"decision": "approve"}):
        with pytest.raises(ResponseInvalid):
            await memory.redeem(token, refused, axes=axes)
    edit = {"type": "edit", "edited_action": {"name": "deploy", "args": {"to": "staging"}}}
    await resume_run(kernel, await memory.redeem(token, edit, axes=axes))
    assert [run[:2] for run in world.runs] == [("deploy", "staging")]


async def test_per_call_with_one_allowed_decision(memory):
    middleware = HumanInTheLoopMiddleware({"deploy": {"allowed_decisions": ["approve"]}}, interrupt_mode="per_call")
    world, model = World(), Model(replies=[calling(("c1", "deploy", {"to": "prod"})), AIMessage("done")], seen=[])
    agent = create_agent(model, world.tools(), middleware=[middleware], checkpointer=InMemorySaver())
    kernel = LangChainKernel(agent, memory.capability, scope=SCOPE)
    ended = await kernel.run("Deploy.", run_id="r", session_id="s")
    turn = await memory.redeem(ended.paused[0].token, {"type": "approve"}, axes=ended.asked[0].axes)
    await resume_run(kernel, turn)
    assert [run[:2] for run in world.runs] == [("deploy", "prod")]


async def test_a_dispatched_tool_sees_the_threads_state_and_the_wrappers_of_the_agent(memory):
    class State(AgentState):
        user: str
        seen_by: str

    @wrap_tool_call
    async def signed(request, handler):
        result = await handler(request)
        return result if isinstance(result, Command) else result.model_copy(update={"content": result.content + "!"})

    @tool
    def greet(runtime: ToolRuntime) -> str:
        """Greet."""
        return f"hello {runtime.state['user']}"

    @tool
    def mark(runtime: ToolRuntime) -> Command:
        """Leave a mark."""
        said = ToolMessage("marked", tool_call_id=runtime.tool_call_id)
        return Command(update={"seen_by": "mark", "messages": [said]})

    gates = {"greet": Gate(), "mark": Gate()}
    model = Model(replies=[calling(("c1", "greet", {}), ("c2", "mark", {})), AIMessage("done")], seen=[])
    agent = create_agent(
        model,
        [greet, mark],
        middleware=[PauseMiddleware(gates), signed],
        state_schema=State,
        checkpointer=InMemorySaver(),
    )
    kernel = LangChainKernel(agent, memory.capability, scope=SCOPE, gates=gates)
    ended = await kernel.run("Greet.", run_id="r", session_id="s", state={"user": "Maria"})
    with pytest.raises(RoundOpen):
        await memory.redeem(ended.paused[0].token, {"decision": "approve"}, axes=ended.asked[0].axes)
    turn = await memory.redeem(ended.paused[1].token, {"decision": "approve"}, axes=ended.asked[1].axes)
    gone_on = await resume_run(kernel, turn)
    assert results(model.seen[1]) == {"c1": "hello Maria!", "c2": "marked"}
    assert gone_on.state["seen_by"] == "mark"


# What goes wrong in the field


class Logged(AgentState):
    """A state with two keys beside the messages: one that gathers, and one that holds the last."""

    log: Annotated[list[str], operator.add]
    last: str


def logging_agent(replies, saver):
    @tool
    def note(word: str, runtime: ToolRuntime) -> Command:
        """Write a word down."""
        said = ToolMessage(f"after {runtime.state['log']}", tool_call_id=runtime.tool_call_id)
        return Command(update={"messages": [said], "log": [word]})

    model = Model(replies=replies, seen=[])
    middleware = [PauseMiddleware({"note": Gate()})]
    return create_agent(model, [note], middleware=middleware, state_schema=Logged, checkpointer=saver)


@pytest.mark.parametrize("saver", [InMemorySaver, lambda: None], ids=["kept", "not_kept"])
async def test_what_several_dispatched_tools_add_to_one_key_is_all_there(memory, saver):
    asking = calling(("c1", "note", {"word": "one"}), ("c2", "note", {"word": "two"}))
    kept = saver()
    agent = logging_agent([asking, AIMessage("Noted.")], kept)
    kernel = LangChainKernel(agent, memory.capability, scope=SCOPE, gates={"note": Gate()})
    ended = await kernel.run("Note both.", run_id="r", session_id="s", state={"log": ["before"], "last": "before"})
    with pytest.raises(RoundOpen):
        await memory.redeem(ended.paused[0].token, {"decision": "approve"}, axes=ended.asked[0].axes)
    turn = await memory.redeem(ended.paused[1].token, {"decision": "approve"}, axes=ended.asked[1].axes)
    before = ["before", "again"] if kept else ["again"]
    ended = await resume_run(kernel, turn, state={"log": ["again"], "last": "again"})
    assert ended.state["log"][: len(before)] == before
    assert sorted(ended.state["log"][len(before) :]) == ["one", "two"]
    assert ended.state["last"] == "again"
    assert results(ended.messages) == {"c1": f"after {before}", "c2": f"after {before}"}
    if kept:
        state = (await agent.aget_state({"configurable": {"thread_id": "s"}})).values
        assert state["log"] == ended.state["log"]


async def test_a_model_that_fails_in_a_thread_that_is_kept_leaves_the_turn_owed(memory):
    saver = InMemorySaver()
    host = Host(memory, calling(("c1", "deploy", {"to": "prod"})), ConnectionError("hung up"), saver=saver)
    ended = await host.ask()
    with pytest.raises(ConnectionError):
        await resume_run(host.kernel, await host.redeem(ended, {"decision": "approve"}))
    stalled = await newest(memory, ended.paused[0])
    assert (stalled.NAME, stalled.entered) == ("pause.stalled", True)
    again = Host(memory, AIMessage("done"), saver=saver, world=host.world)
    turn = await memory.capability.recover(RecoverCommand(ended.paused[0].pause_id, axes=ended.asked[0].axes))
    await resume_run(again.kernel, turn)
    assert results(again.model.seen[0]) == {"c1": "deployed to prod"}
    assert host.world.effects == {str(ended.paused[0].pause_id): "prod"}
    assert [effect.fence for _, _, effect in host.world.runs] == [1, 2]


ROUND = calling(("c1", "look", {}), ("c2", "deploy", {"to": "prod"}), ("c3", "nowhere", {}), ("c4", "look", {}))


@pytest.mark.parametrize("stopper", STOPPERS)
async def test_ungated_calls_of_a_stopped_message_have_a_result_each(memory, stopper):
    host = Host(memory, ROUND.model_copy(deep=True), AIMessage("done"), stopper=stopper)
    ended = await host.ask()
    answer = {"decision": "approve"} if stopper == "middleware" else {"type": "approve"}
    await resume_run(host.kernel, await host.redeem(ended, answer))
    said = results(host.model.seen[1])
    assert said["c2"] == "deployed to prod"
    if stopper == "per_call":
        # Those had run beside the request; they keep their results.
        assert (said["c1"], said["c4"]) == ("all quiet", "all quiet")
        assert "nowhere" in said["c3"]
        assert [run[0] for run in host.world.runs] == ["look", "look", "deploy"]
    else:
        assert said == {"c1": NOT_DISPATCHED, "c2": "deployed to prod", "c3": NOT_DISPATCHED, "c4": NOT_DISPATCHED}
        assert [run[0] for run in host.world.runs] == ["deploy"]


async def test_a_call_with_broken_arguments_beside_a_gated_one_has_a_result(memory):
    reply = calling(("c1", "ask_user", QUESTION))
    reply.invalid_tool_calls = [{"name": "look", "args": "{", "id": "c2", "error": "eof", "type": "invalid_tool_call"}]
    host = Host(memory, reply, AIMessage("done"))
    await resume_run(host.kernel, await host.redeem(await host.ask(), ANSWER))
    assert results(host.model.seen[1]) == {"c1": "q1: Staging", "c2": NOT_DISPATCHED}


THREE = calling(*((f"c{n}", "deploy", {"to": f"place {n}"}) for n in (1, 2, 3)))
ALIKE = calling(*((f"c{n}", "deploy", {"to": "prod"}) for n in (1, 2, 3)))


@pytest.mark.parametrize("stopper", STOPPERS)
@pytest.mark.parametrize("reply", [THREE, ALIKE], ids=["different", "alike"])
async def test_answers_given_in_reverse_order_land_on_their_own_calls(memory, stopper, reply):
    host = Host(memory, reply.model_copy(deep=True), AIMessage("done"), stopper=stopper)
    ended = await host.ask()
    assert [command.axes.call_id for command in ended.asked] == ["c1", "c2", "c3"]
    assert len({receipt.token for receipt in ended.paused}) == 3
    ours = stopper == "middleware"
    reject = {"decision": "reject", "reason": "not 3"} if ours else {"type": "reject", "message": "not 3"}
    respond = {"decision": "respond", "text": "did 2"} if ours else {"type": "respond", "message": "did 2"}
    approve = {"decision": "approve"} if ours else {"type": "approve"}
    for at, answer in ((2, reject), (1, respond)):
        with pytest.raises(RoundOpen):
            await host.redeem(ended, answer, at)
    await resume_run(host.kernel, await host.redeem(ended, approve, 0))
    said = results(host.model.seen[1])
    assert said["c1"].startswith("deployed to")
    assert said["c2"] == "did 2"
    assert "not 3" in said["c3"]
    ((_, _, effect),) = host.world.runs
    assert effect.idempotency_key == str(ended.paused[0].pause_id)


async def test_a_new_message_supersedes_and_the_thread_stays_in_order(ledger):
    host = Host(
        ledger,
        calling(("c1", "deploy", {"to": "prod"})),
        calling(("c2", "ask_user", QUESTION)),
        AIMessage("Staging it is."),
        saver=InMemorySaver(),
    )
    first = await host.ask()
    second = await host.ask("Wait, ask me first.", run_id="run-2", supersedes=first.paused[0].pause_id)
    withdrawn = await newest(ledger, first.paused[0])
    assert (withdrawn.NAME, withdrawn.reason, withdrawn.superseded_by) == (
        "pause.withdrawn",
        "superseded",
        second.paused[0].pause_id,
    )
    # What was left open has its result before the new message, or providers reject the history.
    assert [type(message).__name__ for message in host.model.seen[1]] == [
        "HumanMessage",
        "AIMessage",
        "ToolMessage",
        "HumanMessage",
    ]
    assert results(host.model.seen[1]) == {"c1": NOT_ANSWERED}
    with pytest.raises(PauseWithdrawn):
        await host.redeem(first, {"decision": "approve"})
    await resume_run(host.kernel, await host.redeem(second, ANSWER))
    assert results(host.model.seen[2]) == {"c1": NOT_ANSWERED, "c2": "q1: Staging"}
    assert host.world.runs == []


async def test_a_new_message_after_a_run_that_ended_with_results_adds_none(memory):
    @tool(return_direct=True)
    def look() -> str:
        """Look around."""
        return "all quiet"

    model = Model(replies=[calling(("c1", "look", {})), AIMessage("still quiet")], seen=[])
    agent = create_agent(model, [look], checkpointer=InMemorySaver())
    kernel = LangChainKernel(agent, memory.capability, scope=SCOPE)
    for prompt in ("Look.", "And now?"):
        await kernel.run(prompt, run_id=prompt, session_id="s")
    assert [type(message).__name__ for message in model.seen[1]] == [
        "HumanMessage",
        "AIMessage",
        "ToolMessage",
        "HumanMessage",
    ]
    assert results(model.seen[1]) == {"c1": "all quiet"}


async def test_withdrawn_by_the_host_it_runs_nothing(memory):
    host = Host(memory, calling(("c1", "deploy", {"to": "prod"})))
    ended = await host.ask()
    await memory.capability.withdraw(
        WithdrawCommand(ended.paused[0].pause_id, axes=ended.asked[0].axes, reason="moved_on")
    )
    with pytest.raises(PauseWithdrawn):
        await host.redeem(ended, {"decision": "approve"})
    assert (host.world.runs, len(host.model.seen)) == ([], 1)


async def test_an_ask_user_tool_that_nobody_gated_says_so():
    with pytest.raises(InteractionConfigurationError, match="gate it"):
        await ask_user_tool().ainvoke(QUESTION)


async def test_a_graph_without_that_tool_node_cannot_dispatch(memory):
    host = Host(memory, calling(("c1", "deploy", {"to": "prod"})), tools_node="hands")
    ended = await host.ask()
    with pytest.raises(InteractionConfigurationError, match="tools_node"):
        await resume_run(host.kernel, await host.redeem(ended, {"decision": "approve"}))


@pytest.mark.parametrize("named", [True, False])
async def test_the_command_line_answers_a_tool_approval_where_it_is_named(tmp_path, monkeypatch, capsys, named):
    """The command of the page, with its file."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    settings = LedgerSettings(keys_directory=tmp_path / "keys", interactions=[TOOL_APPROVAL])
    async with open_ledger(url, settings) as ledger:
        ended = await Host(ledger, calling(("call_1", "deploy", {"to": "prod"})), stopper="batched").ask()
    (page,) = re.findall(r"pauseledger (answer .*?)```", PAGE.read_text(), re.DOTALL)
    words = page.replace("\\\n", " ").split()
    (tmp_path / "decision.json").write_text(json.dumps({"type": "reject", "message": "on Monday"}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PAUSELEDGER_STORE", url)
    monkeypatch.setenv("PAUSELEDGER_KEYS_DIR", str(tmp_path / "keys"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(ended.paused[0].token.encode())))
    code = await asyncio.to_thread(cli.run, [*(words if named else words[:-2]), "--json"])
    said = json.loads(capsys.readouterr().out)
    if named:
        assert (code, said["outcome"]) == (0, "answered")
    else:
        assert (code, said["reason"]) == (3, "interaction_unregistered")


async def test_a_turn_of_another_tenant_is_not_gone_on_with(memory):
    """Its next stop would be paused among this kernel's own."""
    ended = await Host(memory, calling(("c1", "deploy", {"to": "prod"}))).ask()
    turn = await memory.redeem(ended.paused[0].token, {"decision": "approve"}, axes=ended.asked[0].axes)
    other = Host(memory, AIMessage("done"))
    other.kernel.scope = Scope(tenant_id="globex")
    with pytest.raises(InteractionConfigurationError, match="another tenant"):
        await resume_run(other.kernel, turn)
    assert other.world.runs == []


@pytest.mark.parametrize("known", [{}, {"deploy": Gate()}])
async def test_a_stop_at_a_tool_that_the_kernel_has_no_gate_of_is_said(memory, known):
    """It would be no stop to the kernel, and the turn would end with a call that nobody is asked about."""
    host = Host(memory, calling(("c1", "deploy", {"to": "prod"}), ("c2", "ask_user", QUESTION)))
    kernel = LangChainKernel(host.agent, memory.capability, scope=SCOPE, gates=known)
    with pytest.raises(InteractionConfigurationError, match=r"no gate of 'ask_user'.*; give LangChainKernel the gates"):
        await kernel.run("Deploy.", run_id="r", session_id="s")


@wrap_tool_call
async def told_the_model(request, handler):
    """What a tool raises becomes its result, as hosts have it whose model shall try again."""
    try:
        return await handler(request)
    except Exception as failed:
        return ToolMessage(str(failed), tool_call_id=request.tool_call["id"])


@pytest.mark.parametrize("middleware", [[told_the_model], []], ids=["errors_are_told_the_model", "errors_are_raised"])
@pytest.mark.parametrize("nested", [True, False], ids=["in_an_inner_agent", "in_the_agent"])
async def test_a_gate_that_nothing_stops_at_runs_no_tool(memory, nested, middleware):
    world = World()
    replies = [calling(("c1", "deploy", {"to": "prod"})), AIMessage("Done.")]
    agent = create_agent(Model(replies=replies, seen=[]), world.tools(), middleware=middleware)

    @tool
    async def delegate() -> str:
        """Let another agent do it."""
        return str(await agent.ainvoke({"messages": [HumanMessage("Deploy.")]}))

    said = [calling(("o1", "delegate", {})), AIMessage("Done.")]
    outer = create_agent(Model(replies=said, seen=[]), [delegate], middleware=middleware)
    kernel = LangChainKernel(outer if nested else agent, memory.capability, scope=SCOPE, gates=GATES)
    with pytest.raises(InteractionConfigurationError, match="list PauseMiddleware"):
        await kernel.run("Go.", run_id="r", session_id="s")
    assert world.runs == []


async def test_a_middleware_run_past_the_kernel_stops_as_ever(memory):
    host = Host(memory, calling(("c1", "deploy", {"to": "prod"})))
    said = await host.agent.ainvoke({"messages": [HumanMessage("Deploy.")]})
    assert (said["messages"][-1].tool_calls[0]["id"], host.world.runs) == ("c1", [])


@pytest.mark.parametrize("mode", ["all", "per_call"])
async def test_a_request_that_nothing_keeps_is_said(memory, mode):
    world, model = World(), Model(replies=[calling(("c1", "deploy", {"to": "prod"}))], seen=[])
    asking = HumanInTheLoopMiddleware({"deploy": True}, **({} if mode == "all" else {"interrupt_mode": mode}))
    kernel = LangChainKernel(create_agent(model, world.tools(), middleware=[asking]), memory.capability, scope=SCOPE)
    with pytest.raises(InteractionConfigurationError, match="checkpointer"):
        await kernel.run("Deploy.", run_id="r", session_id="s")


async def test_a_graph_that_stops_before_a_node_has_not_ended(memory):
    model = Model(replies=[calling(("c1", "look", {}))], seen=[])
    agent = create_agent(model, World().tools(), interrupt_before=["tools"], checkpointer=InMemorySaver())
    kernel = LangChainKernel(agent, memory.capability, scope=SCOPE)
    with pytest.raises(InteractionConfigurationError, match="stopped before it ended, at 'tools'"):
        await kernel.run("Look.", run_id="r", session_id="s")


async def test_a_run_from_an_older_checkpoint_is_paused_where_it_ends(memory):
    host = Host(
        memory, AIMessage("Hello."), calling(("c1", "deploy", {"to": "prod"})), AIMessage("done"), stopper="batched"
    )
    await host.ask("Hello.")
    older = (await host.agent.aget_state({"configurable": {"thread_id": "chat-7"}})).config["configurable"]
    ended = await host.ask("Deploy.", "run-2", config={"configurable": {"checkpoint_id": older["checkpoint_id"]}})
    assert [command.request["tool"] for command in ended.asked] == ["deploy"]
    await host.go_on("run", await host.redeem(ended, {"type": "approve"}))
    assert [to for _, to, _ in host.world.runs] == ["prod"]


async def test_a_new_message_in_a_history_that_waits_leaves_no_call_without_a_result(memory):
    host = Host(memory, calling(("c1", "deploy", {"to": "prod"}), ("c2", "look", {})), AIMessage("As you say."))
    first = await host.ask()
    await host.ask("Never mind.", "run-2", history=messages_to_dict(first.messages))
    assert [type(message).__name__ for message in host.model.seen[1]] == [
        "HumanMessage",
        "AIMessage",
        "ToolMessage",
        "ToolMessage",
        "HumanMessage",
    ]
    assert results(host.model.seen[1]) == {"c1": NOT_ANSWERED, "c2": NOT_ANSWERED}


async def test_state_that_no_thread_keeps_is_given_again(memory):
    class Customer(AgentState):
        customer: str

    @tool
    def pay(runtime: ToolRuntime) -> str:
        """Pay."""
        return f"paid {runtime.state.get('customer')}"

    gates = {"pay": Gate()}
    model = Model(replies=[calling(("c1", "pay", {})), AIMessage("done")], seen=[])
    agent = create_agent(model, [pay], middleware=[PauseMiddleware(gates)], state_schema=Customer)
    kernel = LangChainKernel(agent, memory.capability, scope=SCOPE, gates=gates)
    ended = await kernel.run("Pay.", run_id="r", session_id="s", state={"customer": "bob"})
    turn = await memory.redeem(ended.paused[0].token, {"decision": "approve"}, axes=ended.asked[0].axes)
    await resume_run(kernel, turn, state={"customer": "bob"})
    assert results(model.seen[1]) == {"c1": "paid bob"}
