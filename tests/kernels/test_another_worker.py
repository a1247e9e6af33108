"""A worker that differs from the one that asked says so, in each kernel: nothing let through is lost, none of it is lent."""

import asyncio
import json
from types import SimpleNamespace
from typing import Annotated

import pytest

pytest.importorskip("agents", reason="the openai-agents extra is not installed")
pytest.importorskip("langchain", reason="the langchain extra is not installed")
pytest.importorskip("langgraph", reason="the langchain extra is not installed")
pytest.importorskip("pydantic_ai", reason="the pydantic-ai extra is not installed")

import agents
import pydantic_ai
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tool_context import ToolContext
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage, messages_to_dict
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from pauseledger import (
    NOT_ANSWERED,
    InteractionConfigurationError,
    LedgerSettings,
    PauseRejected,
    RecoverCommand,
    open_ledger,
    resume_run,
    resume_stream,
    resume_stream_typed,
)
from pauseledger.infrastructure.kernels import Gate
from pauseledger.infrastructure.kernels.langchain import LangChainKernel
from pauseledger.infrastructure.kernels.langchain import side_effect as effect_in_langchain
from pauseledger.infrastructure.kernels.langchain_middleware import TOOL_APPROVAL, PauseMiddleware, gated
from pauseledger.infrastructure.kernels.openai_agents import OpenAIAgentsKernel
from pauseledger.infrastructure.kernels.openai_agents import side_effect as effect_in_openai
from pauseledger.infrastructure.kernels.plain import PlainKernel
from pauseledger.infrastructure.kernels.pydantic_ai import PydanticAIKernel
from pauseledger.infrastructure.testing_kernels import APPROVE, SCOPE, SURFACES
from pydantic_ai import DeferredToolRequests, RunContext
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

BOTH = ("deploy", "look")
GATES = {"deploy": Gate()}
DEPLOY = [("c1", "deploy", {})]


class Worker:
    """One process: a kernel whose model plays replies; `ran` holds what its tools saw, as (tool, key)."""

    def __init__(self, ledger, *replies, tools=BOTH):
        self.ledger, self.replies, self.tools = ledger, list(replies), tools
        self.ran, self.asked_model = [], 0
        self.kernel = self.made()

    def next(self):
        self.asked_model += 1
        return self.replies.pop(0)

    async def ask(self, run_id="run-1", **more):
        return await self.kernel.run("Deploy.", run_id=run_id, session_id="s", **more)

    async def go_on(self, ended, answer=APPROVE, **more):
        turn = await self.ledger.redeem(ended.paused[0].token, answer, axes=ended.asked[0].axes)
        return await resume_run(self.kernel, turn, **more)

    async def recover(self, ended, **more):
        command = RecoverCommand(ended.paused[0].pause_id, axes=ended.asked[0].axes)
        return await resume_run(self.kernel, await self.ledger.capability.recover(command), **more)


class Plain(Worker):
    def made(self):
        async def chat(messages):
            reply = self.next()
            if isinstance(reply, str):
                return {"role": "assistant", "content": reply}
            calls = [
                {"id": c, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}} for c, n, a in reply
            ]
            return {"role": "assistant", "content": None, "tool_calls": calls}

        def noting(name):
            async def run(arguments, key):
                self.ran.append((name, key))
                return f"{name} ran"

            return run

        tools = {name: noting(name) for name in self.tools}
        return PlainKernel(self.ledger.capability, chat, scope=SCOPE, tools=tools, gates=GATES)


class OpenAI(Worker):
    def made(self):
        def noting(name, approval):
            async def run(ctx: ToolContext) -> str:
                effect = effect_in_openai(ctx.tool_call_id)
                self.ran.append((name, effect and effect.idempotency_key))
                return f"{name} ran"

            return agents.function_tool(run, name_override=name, needs_approval=approval)

        def step(reply):
            said = isinstance(reply, str)
            return [assistant_message(reply)] if said else [function_call(n, a, call_id=c) for c, n, a in reply]

        agents.set_tracing_disabled(True)
        self.script = ScriptedModel([step(reply) for reply in self.replies])
        tools = [noting(name, name == "deploy") for name in self.tools]
        agent = agents.Agent(name="ops", model=self.script, tools=tools)
        return OpenAIAgentsKernel(agent, self.ledger.capability, scope=SCOPE, gates=GATES if tools[1:] else {})

    @property
    def asked_model(self):
        return len(self.script.calls)

    @asked_model.setter
    def asked_model(self, value):
        assert value == 0


class Pydantic(Worker):
    def made(self):
        def play(messages, info):
            reply = self.next()
            said = isinstance(reply, str)
            return ModelResponse([TextPart(reply)] if said else [ToolCallPart(n, a, c) for c, n, a in reply])

        def noting(name):
            def run(ctx: RunContext) -> str:
                self.ran.append((name, (ctx.tool_call_metadata or {}).get("idempotency_key")))
                return f"{name} ran"

            return run

        agent = pydantic_ai.Agent(FunctionModel(play), output_type=[str, DeferredToolRequests])
        for name in self.tools:
            agent.tool(noting(name), name=name, requires_approval=name == "deploy")
        return PydanticAIKernel(agent, self.ledger.capability, scope=SCOPE, gates=GATES)


class Bound(GenericFakeChatModel):
    def bind_tools(self, tools, **given):
        return self


class LangChain(Worker):
    def model(self):
        def play():
            while True:
                reply = self.next()
                said = isinstance(reply, str)
                listed = [] if said else [{"name": n, "args": a, "id": c, "type": "tool_call"} for c, n, a in reply]
                yield AIMessage(reply if said else "", tool_calls=listed)

        return Bound(messages=play())

    def noting(self, name):
        def run(tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
            """Run."""
            effect = effect_in_langchain(tool_call_id)
            self.ran.append((name, effect and effect.idempotency_key))
            return f"{name} ran"

        return tool(name)(run)

    def made(self):
        agent = create_agent(
            self.model(), [self.noting(name) for name in self.tools], middleware=[PauseMiddleware(GATES)]
        )
        return LangChainKernel(agent, self.ledger.capability, scope=SCOPE, gates=GATES)


WORKERS = [Plain, OpenAI, Pydantic, LangChain]
every_kernel = pytest.mark.parametrize("kind", WORKERS, ids=[kind.__name__ for kind in WORKERS])


@pytest.fixture
async def memory():
    async with open_ledger("memory:", LedgerSettings(interactions=[TOOL_APPROVAL])) as opened:
        yield opened


async def newest(ledger, ended):
    return (await ledger.story(ended.paused[0].pause_id))[-1].NAME


@every_kernel
async def test_a_call_let_through_stays_owed_where_its_tool_is_gone(memory, kind):
    """The model would be told that there is no such tool, and the turn would end, with what a person allowed undone."""
    ended = await kind(memory, DEPLOY).ask()
    without = kind(memory, "done", tools=("look",))
    with pytest.raises(InteractionConfigurationError, match="'c1' of 'deploy' through, and there is no such tool here"):
        await without.go_on(ended)
    assert (without.ran, await newest(memory, ended)) == ([], "pause.stalled")
    having = kind(memory, "done")
    await having.recover(ended)
    assert having.ran == [("deploy", str(ended.paused[0].pause_id))]
    assert await newest(memory, ended) == "pause.continued"


@every_kernel
async def test_a_turn_of_another_kernel_is_not_shown_to_the_model(memory, kind):
    """It stays as it was: whoever can go on with it does."""
    asking = WORKERS[WORKERS.index(kind) - 1]
    ended = await asking(memory, DEPLOY).ask()
    turn = await memory.redeem(ended.paused[0].token, APPROVE, axes=ended.asked[0].axes)
    other = kind(memory, "done")
    with pytest.raises(InteractionConfigurationError, match="goes on with turns of the format"):
        await resume_run(other.kernel, turn)
    assert (other.ran, other.asked_model) == ([], 0)
    own = asking(memory, "done")
    await resume_run(own.kernel, turn)
    assert [name for name, _ in own.ran] == ["deploy"]


@every_kernel
@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("unstated", ["run_id", "session_id"])
async def test_a_run_that_could_never_be_paused_is_not_begun(memory, kind, surface, unstated):
    worker = kind(memory, [("c0", "look", {}), *DEPLOY])
    axes = {"run_id": "r", "session_id": "s", unstated: " "}
    opened = getattr(worker.kernel, surface)("Deploy.", **axes)
    with pytest.raises(InteractionConfigurationError, match=f"{unstated} must be stated"):
        await (opened if surface == "run" else anext(opened))
    assert (worker.ran, worker.asked_model) == ([], 0)


@every_kernel
async def test_an_id_of_an_earlier_message_that_is_given_anew_is_another_call(memory, kind):
    worker = kind(memory, [("c1", "look", {})], "quiet", DEPLOY, DEPLOY, "Fine.")
    said = (await worker.ask()).messages
    ended = await worker.ask("run-2", history=dumped(said))
    again = await worker.ask("run-3", history=dumped(ended.messages))
    last = await worker.ask("run-4", history=dumped(again.messages))
    assert [len(one.paused) for one in (ended, again, last)] == [1, 1, 0]
    assert repr(last.messages).count(NOT_ANSWERED) == 2
    going = kind(memory, "done")
    await going.go_on(ended)
    assert going.ran == [("deploy", str(ended.paused[0].pause_id))]


@pytest.mark.parametrize("kind", [Plain, Pydantic, LangChain])
async def test_a_later_call_of_the_same_id_is_asked_about_and_shares_no_key(memory, kind):
    """The Agents SDK turns such a model's message down by itself."""
    worker = kind(memory, DEPLOY, [("c1", "look", {})], DEPLOY, "done")
    first = await worker.ask()
    second = await worker.go_on(first)
    assert len(second.paused) == 1
    await worker.go_on(second)
    (one, key), (other, unkeyed), (two, another) = worker.ran
    assert (one, other, two) == ("deploy", "look", "deploy")
    assert (key, another) == (str(first.paused[0].pause_id), str(second.paused[0].pause_id))
    assert unkeyed not in (key, another)


def dumped(messages):
    return messages_to_dict(messages) if isinstance(messages[0], BaseMessage) else messages


async def test_a_call_that_shares_its_id_with_a_neighbour_is_no_pause(memory):
    """The neighbour's result would stand for it, and nobody would be asked."""
    with pytest.raises(PauseRejected, match="call_ambiguous"):
        await Pydantic(memory, [("c1", "deploy", {}), ("c1", "look", {}), ("c2", "deploy", {})]).ask()


async def test_a_tool_without_arguments_may_be_called_with_an_empty_text(memory):
    for arguments in ({"arguments": ""}, {"arguments": None}, {}):

        async def chat(messages, given=arguments):
            call = {"id": "c1", "type": "function", "function": {"name": "deploy", **given}}
            return {"role": "assistant", "content": None, "tool_calls": [call]}

        worker = Plain(memory)
        worker.kernel = PlainKernel(memory.capability, chat, scope=SCOPE, tools={}, gates=GATES)
        ended = await worker.ask(f"run {arguments}")
        assert [asked.request for asked in ended.asked] == [{"tool": "deploy", "arguments": {}}]


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_context_that_was_not_stored_is_asked_for_before_a_tool_runs(memory, surface):
    """The SDK would run it on an empty mapping, and an error of the tool would be its result."""
    seen = []

    @agents.function_tool(needs_approval=True)
    def who(ctx: ToolContext) -> str:
        seen.append(ctx.context)
        return "somebody"

    script = ScriptedModel([[function_call("who", {}, call_id="c1")], [assistant_message("done")]])
    agents.set_tracing_disabled(True)
    worker = OpenAI(memory)
    agent = agents.Agent(name="ops", model=script, tools=[who])
    worker.kernel = OpenAIAgentsKernel(agent, memory.capability, scope=SCOPE)
    ended = await worker.ask(context=SimpleNamespace(user=7))
    turn = await memory.redeem(ended.paused[0].token, APPROVE, axes=ended.asked[0].axes)
    with pytest.raises(InteractionConfigurationError, match="give it again"):
        if surface == "run":
            await resume_run(worker.kernel, turn)
        else:
            resume = {"stream": resume_stream, "stream_typed": resume_stream_typed}[surface]
            await anext(aiter(resume(worker.kernel, turn)))
    assert seen == []
    await worker.recover(ended, context=SimpleNamespace(user=8))
    assert [context.user for context in seen] == [8]


async def test_per_call_a_run_from_an_older_checkpoint_goes_on(memory):
    """Its dispatched call runs in a graph of its own, in which that checkpoint is never found: it asked without an end."""
    worker = LangChain(memory, "hi", DEPLOY, "done")
    middleware = HumanInTheLoopMiddleware({"deploy": True}, interrupt_mode="per_call")
    agent = create_agent(
        worker.model(), [worker.noting("deploy")], middleware=[middleware], checkpointer=InMemorySaver()
    )
    worker.kernel = LangChainKernel(agent, memory.capability, scope=SCOPE)
    await worker.ask()
    older = (await agent.aget_state({"configurable": {"thread_id": "s"}})).config
    ended = await worker.ask("run-2", config=older)
    async with asyncio.timeout(30):
        await worker.go_on(ended, {"type": "approve"}, config=older)
    assert [name for name, _ in worker.ran] == ["deploy"]


@pytest.mark.parametrize("goes", [{"goto": "other"}, {"graph": Command.PARENT}])
async def test_a_dispatched_tool_that_leads_elsewhere_is_not_followed_in_silence(memory, goes):
    @tool
    def deploy(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command:
        """Deploy."""
        return Command(update={"messages": [ToolMessage("went", tool_call_id=tool_call_id)]}, **goes)

    worker = LangChain(memory, DEPLOY, "done")
    model = worker.model()
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([deploy]))
    graph.add_node("other", lambda state: {"messages": [HumanMessage("here")]})
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda s: END if gated(s["messages"], GATES) else "tools", ["tools", END])
    graph.add_edge("tools", "model")
    worker.kernel = LangChainKernel(graph.compile(), memory.capability, scope=SCOPE, gates=GATES)
    ended = await worker.ask()
    with pytest.raises(InteractionConfigurationError, match="goes to another node or graph"):
        await worker.go_on(ended)
    assert await newest(memory, ended) == "pause.stalled"
