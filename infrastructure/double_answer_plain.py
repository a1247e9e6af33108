"""The double-answer table's plain loop: messages in a JSON file, and whoever answers runs the tool."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .double_answer_stage import APPROVE, TENANT, TOOL, Host, Ticket, Told, World, call_id, waiting
from .kernels import Gate
from .kernels.plain import PlainKernel

Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class PlainLoop:
    """A loop of one's own over chat completions."""

    word: str = "decision"
    interactions: tuple[()] = ()
    cannot: Mapping[str, str] = field(default_factory=dict)

    def bare(self, world: World) -> Host:
        """Make the loop that keeps its messages in a file."""
        return Bare(world)

    @asynccontextmanager
    async def kernel(self, world: World, session: str, capability: Any) -> AsyncGenerator[PlainKernel, None]:
        """Open the kernel that is that loop."""

        async def chat(messages: list[Any]) -> dict[str, Any]:
            return _reply(world, session, messages)

        async def refund(arguments: dict[str, Any], _: str) -> str:
            return world.refund(arguments["order"])

        yield PlainKernel(capability, chat, scope=TENANT, tools={TOOL: refund}, gates={TOOL: Gate()})


@dataclass(frozen=True)
class Bare:
    """Each answer is put on its call; when no call is open, the model goes on."""

    world: World

    async def ask(self, session: str) -> Told:
        """Run up to the stop."""
        return self._go_on(session, [{"role": "user", "content": "Refund."}])

    async def answer(self, ticket: Ticket, decision: str) -> Told:
        """Run the approved call, and go on where none is left open."""
        session = ticket["session"]
        messages = json.loads(ticket["state"] if "stale" in ticket else self._file(session).read_text())
        order = waiting([order for order, call in _open(messages) if call == ticket["call"]])
        if decision != APPROVE:
            raise ValueError("an answer is approve")
        messages.append({"role": "tool", "tool_call_id": ticket["call"], "content": self.world.refund(order)})
        return self._stopped(session, messages) if _open(messages) else self._go_on(session, messages)

    async def recover(self, ticket: Ticket) -> Told:
        """Read the file: the call is open, for an answer stands nowhere until its tool ran."""
        return self._stopped(ticket["session"], json.loads(self._file(ticket["session"]).read_text()))

    def _go_on(self, session: str, messages: Messages) -> Told:
        return self._stopped(session, [*messages, _reply(self.world, session, messages)])

    def _stopped(self, session: str, messages: Messages) -> Told:
        state = json.dumps(messages)
        self._file(session).write_text(state)
        tickets = [{"session": session, "call": call, "state": state} for _, call in _open(messages)]
        return {"ended": not tickets, "tickets": tickets}

    def _file(self, session: str) -> Path:
        return self.world.folder / f"{session}.json"


def _reply(world: World, session: str, messages: Messages) -> dict[str, Any]:
    calls = [
        {
            "id": call_id(order),
            "type": "function",
            "function": {"name": TOOL, "arguments": json.dumps({"order": order})},
        }
        for order in world.wanted(session, [call for _, call in _calls(messages)])
    ]
    if not calls:
        return {"role": "assistant", "content": "done"}
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _calls(messages: Messages) -> list[tuple[str, str]]:
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    return [(json.loads(call["function"]["arguments"])["order"], call["id"]) for call in calls]


def _open(messages: Messages) -> list[tuple[str, str]]:
    done = {message.get("tool_call_id") for message in messages}
    return [(order, call) for order, call in _calls(messages) if call not in done]


WAYS = {"plain": PlainLoop()}
