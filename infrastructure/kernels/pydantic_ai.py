"""The delegate over a Pydantic AI agent: deferred calls become a round, and what people let through its results."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pydantic_ai import (
    AgentRunResult,
    AgentRunResultEvent,
    ExternalToolset,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolDefinition,
    ToolReturnPart,
)
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved

from ...domain.answers import ASK_USER_REQUEST
from ...domain.axes import Axes, Scope
from ...domain.commands import Dispatch, PauseCommand
from ...domain.errors import InteractionConfigurationError, PauseRejected
from ...domain.interactions import APPROVAL, ASK_USER
from ...domain.rehydration import NOT_ANSWERED
from ...domain.turn import Entry, Turn
from . import Ended, Gate, require_tools, stated

FORMAT = "pydantic-ai"
#: What of the agent's `run` the kernel fills in, and what to give in its place.
_OWN = {
    "user_prompt": "give it as the prompt",
    "message_history": "give it as `history`",
    "deferred_tool_results": "answer by redeeming the pauses' tokens, or fold a result in by `turn.with_results`",
}


@dataclass(frozen=True, slots=True)
class _Stop:
    """What a stop of this run is paused with."""

    axes: Axes
    supersedes: UUID | None
    dispatch: Sequence[Dispatch]


class PydanticAIKernel:
    """Runs an agent whose `output_type` lists `DeferredToolRequests`; a run that ends in them is paused.

    Calls without a gate run, and their results are in the turn. Every deferred call of the message is a pause of one
    round. What was said on a call comes back in the history; what a person let through is the one thing handed over as
    `DeferredToolResults`, so that exactly those calls run, once a claim, before the model is called.

    Args:
        agent: The agent; its tools, toolsets and output stay what they are.
        capability: The ledger's.
        scope: The tenant whose runs these are.
        gates: How a tool's deferred calls wait, by the tool's name. Calls that are deferred for their result
            (`CallDeferred`, external tools) need one. A gate defers nothing itself: `requires_approval=True` does, or
            what the tool raises, which nobody can tell before it runs.
        approvals: How calls wait that ask for an approval and have no gate of their own.
    """

    dispatches = True
    turn_format = FORMAT

    def __init__(
        self,
        agent: AbstractAgent[Any, Any],
        capability: Any,
        *,
        scope: Scope,
        gates: Mapping[str, Gate] | None = None,
        approvals: Gate | None = None,
    ) -> None:
        # What its methods give depends on the output type, which is the host's.
        self._agent: Any = agent
        self._capability, self.scope = capability, scope
        self._gates, self._approvals = dict(gates or {}), approvals or Gate()

    async def run(self, prompt: str, **given: Any) -> Ended:
        """Run to the end, or to a stop. Takes what `stream_typed` takes.

        Raises:
            InteractionConfigurationError: a call is deferred for its result, and has no gate; or one that a person let
                through is deferred again.
            PauseRejected: what was asked does not fit its interaction, or cannot be carried.
        """
        arguments, stop = self._entered(prompt, **given)
        return await self._ended(await self._agent.run(**arguments), stop)

    async def stream(self, prompt: str, **given: Any) -> AsyncGenerator[str | Ended, None]:
        """Give the model's texts as they come, and how it ended. Takes what `stream_typed` takes."""
        async with aclosing(self.stream_typed(prompt, **given)) as events:
            async for event in events:
                if isinstance(event, Ended):
                    yield event
                elif text := _text(event):
                    yield text

    async def stream_typed(self, prompt: str, **given: Any) -> AsyncGenerator[Any, None]:
        """Give Pydantic AI's events as `run_stream_events` does, and how it ended.

        Takes `run_id`, `session_id` and `history` (entries as the format spells them, or messages), `dispatch`, `fence`
        and `idempotency_key` as a resumed turn brings them, `supersedes` (a pause that a new stop takes the place of)
        and what the agent's `run` takes: `deps`, `model`, `toolsets` and so on.
        """
        arguments, stop = self._entered(prompt, **given)
        result = None
        async with self._agent.run_stream_events(**arguments) as events:
            async for event in events:
                if isinstance(event, AgentRunResultEvent):
                    result = event.result
                yield event
        yield await self._ended(result, stop)

    # Going in

    def _entered(
        self,
        prompt: str,
        *,
        run_id: str,
        session_id: str,
        history: Sequence[Entry | ModelMessage] = (),
        dispatch: Sequence[Dispatch] = (),
        fence: int = 0,
        idempotency_key: str | None = None,  # noqa: ARG002 - a delegate that dispatches is told; calls have their own
        supersedes: UUID | None = None,
        **options: Any,
    ) -> tuple[dict[str, Any], _Stop]:
        axes = stated(self.scope, session_id, run_id)
        for name, instead in _OWN.items():
            if name in options:
                raise InteractionConfigurationError(f"{name} is the kernel's own; {instead}")
        messages = _read(history)
        if prompt and not dispatch:
            messages += _left_open(messages)
        entering = {
            "user_prompt": prompt or None,
            "message_history": messages,
            "deferred_tool_results": _results(dispatch, fence) if dispatch else None,
        }
        return {**options, **entering}, _Stop(axes, supersedes, dispatch)

    # Coming out

    async def _ended(self, result: AgentRunResult[Any] | None, stop: _Stop) -> Ended:
        if result is None:
            raise InteractionConfigurationError("the agent's events ended without a result; do not filter them")
        messages, state = result.all_messages(), {"result": result}
        _require_run(stop.dispatch, result.new_messages())
        if not isinstance(result.output, DeferredToolRequests):
            return Ended(messages, state=state)
        turn = Turn(FORMAT, result.all_messages_json())
        asked = tuple(
            gate.command(
                request,
                turn=turn,
                axes=stop.axes.model_copy(update={"call_id": call.tool_call_id}),
                supersedes=stop.supersedes,
            )
            for call, gate, request in self._asking(messages, result.output)
        )
        if not any(isinstance(message, ModelResponse) for message in result.new_messages()):
            _require_new(asked)
        return Ended(messages, await self._capability.pause_round(asked), asked, state)

    def _asking(
        self, messages: Sequence[ModelMessage], requests: DeferredToolRequests
    ) -> list[tuple[ToolCallPart, Gate, Any]]:
        gates = {call.tool_call_id: self._gates.get(call.tool_name, self._approvals) for call in requests.approvals}
        for call in requests.calls:
            if call.tool_name not in self._gates:
                raise InteractionConfigurationError(
                    f"a call of {call.tool_name!r} is deferred for its result, and nothing says how it waits for one; "
                    "give the tool a gate"
                )
            gates[call.tool_call_id] = self._gates[call.tool_name]
        asking = [
            (call, gates[call.tool_call_id], _request(call, gates[call.tool_call_id], requests))
            for call in _open_calls(messages)
            if call.tool_call_id in gates
        ]
        if len(asking) != len(gates):
            # The neighbour's result stands for both.
            raise PauseRejected("call_ambiguous", "two calls of the last response have the same id")
        return asking


def ask_user_toolset(name: str = ASK_USER) -> ExternalToolset[Any]:
    """Make the tool that lets the model ask a person; gate it with `Gate(ASK_USER)`."""
    description = "Ask the user one to four questions, each with two to four options to choose from."
    return ExternalToolset(
        [ToolDefinition(name=name, parameters_json_schema=ASK_USER_REQUEST, description=description)], id=name
    )


def _read(history: Sequence[Entry | ModelMessage]) -> list[ModelMessage]:
    entries = [
        one if isinstance(one, dict) else ModelMessagesTypeAdapter.dump_python([one], mode="json")[0] for one in history
    ]
    # By way of text, for only so does the adapter read bytes and times as it wrote them.
    return ModelMessagesTypeAdapter.validate_json(json.dumps(entries))


def _results(dispatch: Sequence[Dispatch], fence: int) -> DeferredToolResults:
    """Approve exactly these calls; the tool finds the key and the fence in its context's `tool_call_metadata`."""
    return DeferredToolResults(
        approvals={call.interrupt_id: ToolApproved(override_args=call.arguments) for call in dispatch},
        metadata={call.interrupt_id: {"idempotency_key": call.idempotency_key, "fence": fence} for call in dispatch},
    )


def _open_calls(messages: Sequence[ModelMessage]) -> list[ToolCallPart]:
    """List the calls of the last response that have no result yet."""
    last = max((at for at, message in enumerate(messages) if isinstance(message, ModelResponse)), default=None)
    if last is None:
        return []
    done = {getattr(part, "tool_call_id", None) for message in messages[last + 1 :] for part in message.parts}
    return [part for part in messages[last].parts if isinstance(part, ToolCallPart) and part.tool_call_id not in done]


def _left_open(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Answer what a stop left open that the user talked past; providers reject a call without a result."""
    parts = [ToolReturnPart(call.tool_name, NOT_ANSWERED, call.tool_call_id) for call in _open_calls(messages)]
    return [ModelRequest(parts)] if parts else []


def _request(call: ToolCallPart, gate: Gate, requests: DeferredToolRequests) -> Any:
    """Tell what is asked about a call, and why where the tool's `ApprovalRequired` gave a reason."""
    request = gate.request(call.tool_name, call.args_as_dict())
    reason = requests.metadata.get(call.tool_call_id, {}).get("reason")
    return {**request, "reason": reason} if gate.interaction == APPROVAL and isinstance(reason, str) else request


def _require_run(dispatch: Sequence[Dispatch], messages: Sequence[ModelMessage]) -> None:
    """Which tools an agent has, its run alone knows: what was missing is told by what the model was shown."""
    told: Sequence[Any] = messages[0].parts if dispatch and messages else ()
    unknown = {part.tool_call_id for part in told if _is_unknown(part)}
    require_tools(dispatch, {call.tool for call in dispatch if call.interrupt_id not in unknown})


def _is_unknown(part: Any) -> bool:
    name = getattr(part, "tool_name", None)
    return name is not None and str(part.content).startswith(f"Unknown tool name: {name!r}.")


def _require_new(asked: Sequence[PauseCommand]) -> None:
    """Where the model has not spoken, what waits is what was handed over."""
    raise InteractionConfigurationError(
        f"a person let call {asked[0].axes.call_id!r} through, and its tool deferred it again; let an approved tool "
        "return, and wait for what comes later in a tool of its own"
    )


def _text(event: Any) -> str:
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    return ""
