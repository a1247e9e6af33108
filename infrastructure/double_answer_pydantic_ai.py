"""The double-answer table's Pydantic AI agent: a tool that requires approval, its messages in a JSON file."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ModelMessagesTypeAdapter
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from .double_answer_stage import APPROVE, TENANT, TOOL, Host, Ticket, Told, World, call_id
from .kernels.pydantic_ai import PydanticAIKernel

_WHOLE = (
    "a run goes on with results for every deferred call or not at all; who has half of them has to keep that half "
    "elsewhere"
)


@dataclass(frozen=True)
class PydanticAI:
    """An agent whose runs end in `DeferredToolRequests`."""

    word: str = "decision"
    interactions: tuple[()] = ()
    cannot: Mapping[str, str] = field(default_factory=lambda: {"half a round": _WHOLE})

    def bare(self, world: World) -> Host:
        """Make the program that keeps messages, and runs the agent again with results."""
        return Bare(world)

    @asynccontextmanager
    async def kernel(self, world: World, session: str, capability: Any) -> AsyncGenerator[PydanticAIKernel, None]:
        """Open the kernel over the same agent."""
        yield PydanticAIKernel(_agent(world, session), capability, scope=TENANT)


@dataclass(frozen=True)
class Bare:
    """Runs the agent on the session's messages, as Pydantic AI's page on deferred tools has it."""

    world: World

    async def ask(self, session: str) -> Told:
        """Run up to the deferred calls."""
        return self._ended(session, await _agent(self.world, session).run("Refund."))

    async def answer(self, ticket: Ticket, decision: str) -> Told:
        """Run again with the decision on its call. Whatever is no approval is passed on as it came."""
        session = ticket["session"]
        messages = ModelMessagesTypeAdapter.validate_json(
            ticket["state"] if "stale" in ticket else self._file(session).read_text()
        )
        results = DeferredToolResults()
        said: Any = True if decision == APPROVE else decision
        results.approvals[ticket["call"]] = said
        agent = _agent(self.world, session)
        return self._ended(session, await agent.run(message_history=messages, deferred_tool_results=results))

    async def recover(self, ticket: Ticket) -> Told:
        """Run on from the stored messages: the call is deferred again, for an answer is not among them."""
        session = ticket["session"]
        messages = ModelMessagesTypeAdapter.validate_json(self._file(session).read_text())
        return self._ended(session, await _agent(self.world, session).run(message_history=messages))

    def _ended(self, session: str, result: Any) -> Told:
        state = result.all_messages_json().decode()
        self._file(session).write_text(state)
        if not isinstance(result.output, DeferredToolRequests):
            return {"ended": True, "tickets": []}
        calls = [call.tool_call_id for call in result.output.approvals]
        return {"ended": False, "tickets": [{"session": session, "call": call, "state": state} for call in calls]}

    def _file(self, session: str) -> Path:
        return self.world.folder / f"{session}.json"


def _agent(world: World, session: str) -> Agent[None, str | DeferredToolRequests]:
    def reply(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        said = [part for message in messages if isinstance(message, ModelResponse) for part in message.parts]
        called = [part.tool_call_id for part in said if isinstance(part, ToolCallPart)]
        orders = world.wanted(session, called)
        calls: list[ModelResponsePart] = [ToolCallPart(TOOL, {"order": order}, call_id(order)) for order in orders]
        return ModelResponse(calls or [TextPart("done")])

    agent = Agent(FunctionModel(reply), output_type=[str, DeferredToolRequests])

    @agent.tool_plain(name=TOOL, requires_approval=True)
    def refund(order: str) -> str:
        return world.refund(order)

    return agent


WAYS = {"pydantic-ai": PydanticAI()}
