"""A loop over any chat function: the smallest kernel, and the example of how one is written."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any
from uuid import UUID

from ...domain.axes import Axes, Scope
from ...domain.commands import Dispatch, PauseCommand
from ...domain.rehydration import NOT_ANSWERED
from ...domain.turn import Turn
from . import Ended, Gate, require_tools, stated

FORMAT = "openai-chat"
#: Takes the messages, gives the assistant's next one; both as OpenAI's chat completions spell them.
Chat = Callable[[list[Any]], Awaitable[dict[str, Any]]]
#: Takes a call's arguments and the idempotency key of its side effect, gives the result.
Tool = Callable[[dict[str, Any], str], Awaitable[str]]


class PlainKernel:
    """Calls the model and the tools in turn, until the model calls no tool, or one that waits for a person."""

    dispatches = True
    turn_format = FORMAT

    def __init__(
        self, capability: Any, chat: Chat, *, scope: Scope, tools: Mapping[str, Tool], gates: Mapping[str, Gate]
    ) -> None:
        self._capability, self._chat, self.scope, self._tools, self._gates = capability, chat, scope, tools, gates

    async def run(self, prompt: str, **given: Any) -> Ended:
        """Run to the end, or to a stop. Takes what `stream_typed` takes."""
        *_, ended = [item async for item in self.stream_typed(prompt, **given)]
        return ended  # type: ignore[no-any-return]  # the last item tells how it ended

    async def stream(self, prompt: str, **given: Any) -> AsyncGenerator[str | Ended, None]:
        """Give the texts of the assistant as they come, and how it ended. Takes what `stream_typed` takes."""
        async with aclosing(self.stream_typed(prompt, **given)) as items:
            async for item in items:
                if isinstance(item, Ended):
                    yield item
                elif item["role"] == "assistant" and item.get("content"):
                    yield item["content"]

    async def stream_typed(
        self,
        prompt: str,
        *,
        run_id: str,
        session_id: str,
        history: Sequence[Any] = (),
        dispatch: Sequence[Dispatch] = (),
        fence: int = 0,  # noqa: ARG002 - a delegate that dispatches is told; tools here are kept apart by their key
        idempotency_key: str | None = None,
        supersedes: UUID | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Give each message as it comes, and how it ended.

        `dispatch` are the calls that a person let through: they run first, under keys of their own. `supersedes` is
        the pause that a new stop takes the place of.

        Raises:
            InteractionConfigurationError: an axis of the run is not stated, or a person let a call through whose tool
                is not there.
            PauseRejected: what was asked does not fit its interaction, or cannot be carried.
        """
        axes = stated(self.scope, session_id, run_id)
        require_tools(dispatch, self._tools)
        messages = list(history)
        for let_through in dispatch:
            ran = await self._ran(let_through.tool, let_through.arguments, let_through.idempotency_key)
            yield _noted(messages, _result(let_through.interrupt_id, ran))
        if prompt:
            messages += [_result(call["id"], NOT_ANSWERED) for call in _left_open(messages)]
            messages.append({"role": "user", "content": prompt})
        while True:
            reply = _noted(messages, await self._chat(list(messages)))
            yield reply
            calls = [_read(call) for call in reply.get("tool_calls") or ()]
            asked = self._asked(calls, messages, axes, supersedes)
            if asked or not calls:
                paused = await self._capability.pause_round(asked) if asked else ()
                yield Ended(messages, paused, asked)
                return
            for call_id, tool, arguments in calls:
                key = _key(idempotency_key or run_id, call_id, messages)
                yield _noted(messages, _result(call_id, await self._ran(tool, arguments, key)))

    async def _ran(self, tool: str, arguments: Any, key: str) -> str:
        if tool not in self._tools or not isinstance(arguments, dict):
            return "This call was not run: there is no such tool, or its arguments are not a JSON object."
        return await self._tools[tool](arguments, key)

    def _asked(
        self, calls: Sequence[tuple[str, str, Any]], messages: list[Any], axes: Axes, supersedes: UUID | None
    ) -> tuple[PauseCommand, ...]:
        turn = Turn(FORMAT, messages)
        return tuple(
            gate.command(
                gate.request(tool, arguments),
                turn=turn,
                axes=axes.model_copy(update={"call_id": call_id}),
                supersedes=supersedes,
            )
            for call_id, tool, arguments in calls
            if (gate := self._gates.get(tool)) is not None
        )


def _read(call: dict[str, Any]) -> tuple[str, str, Any]:
    try:
        # Some servers spell the arguments of a tool that takes none as an empty text, or leave them out.
        arguments = json.loads(call["function"].get("arguments") or "{}")
    except ValueError:
        arguments = None
    return call["id"], call["function"]["name"], arguments


def _key(turn: str, call_id: str, messages: Sequence[Any]) -> str:
    """Key a call's side effect; some models give an id anew in a later message, and that is another effect."""
    of_it = [
        call
        for message in messages
        if message["role"] == "assistant"
        for call in message.get("tool_calls") or ()
        if call["id"] == call_id
    ]
    return f"{turn}/{call_id}" if len(of_it) == 1 else f"{turn}/{call_id}/{len(of_it)}"


def _left_open(messages: Sequence[Any]) -> list[Any]:
    """List the calls that a stop left open and the user talked past; providers reject a call without a result."""
    last = max((at for at, message in enumerate(messages) if message["role"] == "assistant"), default=None)
    if last is None:
        return []
    done = {message.get("tool_call_id") for message in messages[last + 1 :]}
    return [call for call in messages[last].get("tool_calls") or () if call["id"] not in done]


def _result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _noted(messages: list[Any], message: dict[str, Any]) -> dict[str, Any]:
    messages.append(message)
    return message
