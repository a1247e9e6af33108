"""The double-answer table's OpenAI Agents SDK agent: a tool that needs approval, its run state in a JSON file."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

from agents import Agent, Runner, RunState, function_tool, set_tracing_disabled
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call

from .double_answer_stage import TENANT, TOOL, Host, Ticket, Told, World, call_id, waiting
from .kernels.openai_agents import OpenAIAgentsKernel

#: Model calls that a script is good for; no scenario needs more.
MOST = 9
_A_METHOD = "an answer is a call of `approve` or of `reject`; what else a person may have sent is the host's to judge"


@dataclass(frozen=True)
class OpenAIAgents:
    """An agent whose runs end in interruptions."""

    word: str = "decision"
    interactions: tuple[()] = ()
    cannot: Mapping[str, str] = field(default_factory=lambda: {"invalid, then valid": _A_METHOD})

    def bare(self, world: World) -> Host:
        """Make the program that keeps run states, approves in them and runs them on."""
        return Bare(world)

    @asynccontextmanager
    async def kernel(self, world: World, session: str, capability: Any) -> AsyncGenerator[OpenAIAgentsKernel, None]:
        """Open the kernel over the same agent."""
        yield OpenAIAgentsKernel(_agent(world, session), capability, scope=TENANT)


@dataclass(frozen=True)
class Bare:
    """Approves in the session's run state and runs it on, as the SDK's page on people in the loop has it."""

    world: World

    async def ask(self, session: str) -> Told:
        """Run up to the interruptions."""
        return self._ended(session, await Runner.run(_agent(self.world, session), "Refund."))

    async def answer(self, ticket: Ticket, decision: str) -> Told:  # noqa: ARG002 - it can be nothing else
        """Approve the interruption of the call, and run on."""
        session = ticket["session"]
        agent = _agent(self.world, session)
        stored = json.loads(ticket["state"] if "stale" in ticket else self._file(session).read_text())
        state = await RunState.from_json(agent, stored)
        state.approve(waiting([one for one in state.get_interruptions() if one.call_id == ticket["call"]]))
        return self._ended(session, await Runner.run(agent, state))

    async def recover(self, ticket: Ticket) -> Told:
        """Run the stored state on: it is interrupted again, for it was stored before it was approved."""
        session = ticket["session"]
        agent = _agent(self.world, session)
        state = await RunState.from_json(agent, json.loads(self._file(session).read_text()))
        return self._ended(session, await Runner.run(agent, state))

    def _ended(self, session: str, result: Any) -> Told:
        state = json.dumps(result.to_state().to_json())
        self._file(session).write_text(state)
        calls = [interruption.call_id for interruption in result.interruptions]
        tickets = [{"session": session, "call": call, "state": state} for call in calls]
        return {"ended": not tickets, "tickets": tickets}

    def _file(self, session: str) -> Path:
        return self.world.folder / f"{session}.json"


def _agent(world: World, session: str) -> Agent[Any]:
    set_tracing_disabled(True)

    def reply(call: ModelCall) -> list[Any]:
        given: Any = call.input
        called = [] if isinstance(given, str) else [entry["call_id"] for entry in given if _is_call(entry)]
        orders = world.wanted(session, called)
        calls = [function_call(TOOL, {"order": order}, call_id=call_id(order)) for order in orders]
        return calls or [assistant_message("done")]

    @function_tool(name_override=TOOL, needs_approval=True)
    def refund(order: str) -> str:
        return world.refund(order)

    model = ScriptedModel(repeat(ModelStep.respond(reply), MOST))
    return Agent(name="desk", model=model, tools=[refund])


def _is_call(entry: Any) -> bool:
    return bool(entry.get("type") == "function_call")


WAYS = {"openai-agents": OpenAIAgents()}
