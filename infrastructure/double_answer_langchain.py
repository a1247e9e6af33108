"""The double-answer table's LangChain agent: `HumanInTheLoopMiddleware` over its tool, its thread in a SQLite file."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command

from ..domain.interactions import Interaction
from .double_answer_stage import TENANT, TOOL, Host, Ticket, Told, World, call_id
from .kernels.langchain import LangChainKernel
from .kernels.langchain_middleware import TOOL_APPROVAL


@dataclass(frozen=True)
class LangChain:
    """An agent of `create_agent`, with one of the two modes in which it asks for a person."""

    mode: Literal["batched", "per_call"]
    cannot: Mapping[str, str] = field(default_factory=dict)
    word: str = "type"
    interactions: tuple[Interaction, ...] = (TOOL_APPROVAL,)

    def bare(self, world: World) -> Host:
        """Make the program that resumes a thread."""
        return Bare(self, world)

    @asynccontextmanager
    async def kernel(self, world: World, session: str, capability: Any) -> AsyncGenerator[LangChainKernel, None]:
        """Open the kernel over the same agent."""
        async with self.agent(world, session) as agent:
            yield LangChainKernel(agent, capability, scope=TENANT)

    @asynccontextmanager
    async def agent(self, world: World, session: str) -> AsyncGenerator[Any, None]:
        """Open the agent and its checkpoints."""

        @tool(TOOL)
        def refund(order: str) -> str:
            """Refund an order."""
            return world.refund(order)

        gated = HumanInTheLoopMiddleware({TOOL: True}, interrupt_mode=self.mode)
        async with AsyncSqliteSaver.from_conn_string(str(world.folder / "threads.db")) as saver:
            model = Scripted(world=world, session=session)
            yield create_agent(model, [refund], middleware=[gated], checkpointer=saver)


@dataclass(frozen=True)
class Bare:
    """Resumes the session's thread, as LangChain's page on people in the loop has it."""

    way: LangChain
    world: World

    async def ask(self, session: str) -> Told:
        """Run up to the interrupt."""
        return await self._run(session, {"messages": [{"role": "user", "content": "Refund."}]})

    async def answer(self, ticket: Ticket, decision: str) -> Told:
        """Resume with a decision: of a list by position, or by the interrupt's id."""
        said: Any = {"type": decision}
        resume = {"decisions": [said]} if self.way.mode == "batched" else {ticket["interrupt"]: said}
        stale = {"checkpoint_id": ticket["checkpoint"]} if "stale" in ticket else {}
        return await self._run(ticket["session"], Command(resume=resume), **stale)

    async def recover(self, ticket: Ticket) -> Told:
        """Run the thread on without an input, as LangGraph's page on durable execution has it."""
        return await self._run(ticket["session"], None)

    async def _run(self, session: str, given: Any, **where: str) -> Told:
        async with self.way.agent(self.world, session) as agent:
            thread = {"configurable": {"thread_id": session}}
            result = await agent.ainvoke(given, {"configurable": {"thread_id": session, **where}})
            state = await agent.aget_state(thread)
            checkpoint = state.config["configurable"]["checkpoint_id"]
            tickets = [
                {"session": session, "call": call, "interrupt": interrupt.id, "checkpoint": checkpoint}
                for interrupt in result.get("__interrupt__", ())
                for call in _asked(interrupt.value)
            ]
            return {"ended": not tickets and not result["messages"][-1].tool_calls, "tickets": tickets}


def _asked(value: Any) -> list[str]:
    if "tool_call_id" in value:
        return [value["tool_call_id"]]
    return [call_id(action["args"]["order"]) for action in value["action_requests"]]


class Scripted(BaseChatModel):
    """Asks for what the session's plan has next."""

    world: World
    session: str

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:  # noqa: ARG002 - it knows which tool it calls
        """Give itself."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        said = [message for message in messages if isinstance(message, AIMessage)]
        called = [str(call["id"]) for message in said for call in message.tool_calls]
        calls = [
            {"name": TOOL, "args": {"order": order}, "id": call_id(order), "type": "tool_call"}
            for order in self.world.wanted(self.session, called)
        ]
        reply = AIMessage("" if calls else "done", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=reply)])


_BY_POSITION = (
    "a batched request is answered by one list with a decision for each call; who has half of it has to keep that half "
    "elsewhere"
)

WAYS = {
    "langchain": LangChain("batched", cannot={"half a round": _BY_POSITION}),
    "langchain-per-call": LangChain("per_call"),
}
