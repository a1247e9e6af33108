"""The delegate over an OpenAI Agents SDK agent: interruptions become a round, the run state goes with the turn."""
# ruff: noqa: SLF001 - what the SDK would still do, and what a tool is, stands in no public attribute

import asyncio
import copy
import json
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agents import (
    Agent,
    FunctionTool,
    Handoff,
    MCPApprovalResponseItem,
    RunContextWrapper,
    Runner,
    RunResultStreaming,
    RunState,
    ToolApprovalItem,
    ToolCallOutputItem,
)
from agents.tool import invoke_function_tool
from agents.tool_context import ToolContext

from ...domain.answers import ASK_USER_REQUEST
from ...domain.axes import Axes, Scope
from ...domain.commands import Dispatch, PauseCommand
from ...domain.errors import InteractionConfigurationError
from ...domain.interactions import ASK_USER
from ...domain.rehydration import NOT_ANSWERED
from ...domain.strict_json import digest
from ...domain.turn import Entry, Turn
from ..transcripts.openai_responses import ANSWERING
from . import Ended, Gate, SideEffect, require_tools, side_effects, stated

FORMAT = "openai-responses"
#: The type of the turn's first entry, which holds the serialised run state. No provider knows it, and none is shown it.
RUN_STATE = "openai_agents.run_state"

#: Of the run under way, by call id. Tools run in tasks of their own, and tasks take a copy of it along.
_effects: ContextVar[Mapping[str, SideEffect]] = ContextVar("pauseledger_openai_agents_effects")


def side_effect(tool_call_id: str) -> SideEffect | None:
    """Tell, inside a tool, what to key its side effect by; None where nobody was asked about the call.

    The id is the `tool_call_id` of the tool's `ToolContext`.
    """
    return _effects.get({}).get(tool_call_id)


@dataclass(frozen=True, slots=True)
class _Entered:
    """What the SDK's runner is entered with, and what a stop of the run is paused with."""

    given: str | list[Any] | RunState[Any, Any]
    options: Mapping[str, Any]
    effects: Mapping[str, SideEffect]
    axes: Axes
    supersedes: UUID | None


class OpenAIAgentsKernel:
    """Runs an agent with the SDK's `Runner`; a run that ends in interruptions is paused.

    The turn is the run's items, and before them its `RunState` as `to_json` gives it: one content, under one digest, in
    the ledger. A resumed turn is restored from that. What the ledger let through is approved there, what was said on
    any other call is the message it is rejected with; so each goes to the model as the call's output.

    Args:
        agent: The agent the run starts with; whichever was in charge at the stop goes on.
        capability: The ledger's.
        scope: The tenant whose runs these are.
        gates: How a tool's calls wait, by the tool's name. Its tool has to be one with `needs_approval`: that is looked
            at before a run, but for tools that an MCP server brings, whose `require_approval` says so.
        approvals: How the calls of other tools wait that need an approval.
    """

    dispatches = True
    turn_format = FORMAT

    def __init__(
        self,
        agent: Agent[Any],
        capability: Any,
        *,
        scope: Scope,
        gates: Mapping[str, Gate] | None = None,
        approvals: Gate | None = None,
    ) -> None:
        self._agent, self._capability, self.scope = agent, capability, scope
        self._gates, self._approvals = dict(gates or {}), approvals or Gate()

    async def run(self, prompt: str, **given: Any) -> Ended:
        """Run to the end, or to a stop. Takes what `stream_typed` takes.

        Raises:
            InteractionConfigurationError: it stopped at what is no call of a function tool of its own agent; or a call
                was edited that cannot be run outside the SDK's loop.
            PauseRejected: what was asked does not fit its interaction, or cannot be carried.
        """
        entered = await self._entered(prompt, **given)
        token = _effects.set(entered.effects)
        try:
            result = await Runner.run(self._agent, entered.given, **entered.options)
        finally:
            _effects.reset(token)
        return await self._ended(result, entered)

    async def stream(self, prompt: str, **given: Any) -> AsyncGenerator[str | Ended, None]:
        """Give the model's texts as they come, and how it ended. Takes what `stream_typed` takes."""
        async with aclosing(self.stream_typed(prompt, **given)) as events:
            async for event in events:
                if isinstance(event, Ended):
                    yield event
                elif event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                    yield event.data.delta

    async def stream_typed(self, prompt: str, **given: Any) -> AsyncGenerator[Any, None]:
        """Give the SDK's stream events, and how it ended.

        Takes `run_id`, `session_id` and `history` (input items), `dispatch`, `fence` and `idempotency_key` as a resumed
        turn brings them, `supersedes` (a pause that a new stop takes the place of) and what `Runner.run` takes:
        `context`, `session`, `run_config` and so on.
        """
        entered = await self._entered(prompt, **given)
        # The run is a task, made here; only that it takes along.
        token = _effects.set(entered.effects)
        try:
            result = Runner.run_streamed(self._agent, entered.given, **entered.options)
        finally:
            _effects.reset(token)
        stream: Any = result.stream_events()
        try:
            async for event in stream:
                yield event
        finally:
            await _stopped(result, stream)
        if result.run_loop_exception is not None:
            raise result.run_loop_exception
        yield await self._ended(result, entered)

    # Going in

    async def _entered(
        self,
        prompt: str,
        *,
        run_id: str,
        session_id: str,
        history: Sequence[Entry] = (),
        dispatch: Sequence[Dispatch] = (),
        fence: int = 0,
        idempotency_key: str | None = None,  # noqa: ARG002 - a delegate that dispatches is told; calls have their own
        supersedes: UUID | None = None,
        **options: Any,
    ) -> _Entered:
        axes = stated(self.scope, session_id, run_id)
        _require_asking(self._agent, self._gates)
        effects = side_effects(dispatch, fence)
        kept, items = _parted(history)
        given: str | list[Any] | RunState[Any, Any]
        if kept is None and dispatch:
            raise InteractionConfigurationError(
                "this turn holds no run state to run a call in; run turn.dispatch and fold the results in by "
                "with_results"
            )
        if kept is not None:
            given = await self._restored(kept, options.pop("context", None), items, dispatch, effects)
            if "max_turns" in options:
                # The runner goes by the state's own, and a turn that has used it up could never go on.
                given._max_turns = options["max_turns"]
            if prompt:
                given.add_input(prompt)
        else:
            given = [*items, *(_left_open(items) if prompt else ()), *_message(prompt)]
        return _Entered(given, options, effects, axes, supersedes)

    async def _restored(
        self,
        kept: dict[str, Any],
        context: Any,
        items: Sequence[Any],
        dispatch: Sequence[Dispatch],
        effects: Mapping[str, SideEffect],
    ) -> RunState[Any, Any]:
        """Bring the run state back, with a decision on each of its interruptions, and nothing else left to run."""
        if context is None:
            _require_stored(kept["context"])
        wrapper = RunContextWrapper(kept["context"].get("context") if context is None else context)
        state = await RunState.from_json(self._agent, copy.deepcopy(kept), context_override=wrapper)
        let_through, said = {call.interrupt_id: call for call in dispatch}, _answers(items)
        for item in state.get_interruptions():
            call_id = _call_id(item)
            allowed = let_through.get(call_id)
            if allowed is not None:
                owner: Any = item.agent
                require_tools([allowed], {tool.name for tool in await owner.get_all_tools(wrapper)})
            if allowed is None:
                state.reject(item, rejection_message=_text_of(said[call_id]["output"]))
            elif digest(_arguments(item)) == allowed.digest:
                state.approve(item)
            else:
                state.reject(item, rejection_message=await _ran(item, allowed, wrapper, effects))
        _withhold(state, items)
        return state

    # Coming out

    async def _ended(self, result: Any, entered: _Entered) -> Ended:
        messages, state = result.to_input_list(), {"result": result}
        if not result.interruptions:
            return Ended(messages, state=state)
        _require_own(result.interruptions, messages)
        # A context that is no mapping stays with the host, who gives it again; nothing is pickled.
        kept = result.to_state().to_json(context_serializer=lambda _: {})
        turn = Turn(FORMAT, [{"type": RUN_STATE, "state": kept}, *messages])
        asked = tuple(self._command(item, turn, entered) for item in result.interruptions)
        return Ended(messages, await self._capability.pause_round(asked), asked, state)

    def _command(self, item: ToolApprovalItem, turn: Turn, entered: _Entered) -> PauseCommand:
        name = item.tool_name or ""
        gate = self._gates.get(name, self._approvals)
        axes = entered.axes.model_copy(update={"call_id": _call_id(item)})
        return gate.command(gate.request(name, _arguments(item)), turn=turn, axes=axes, supersedes=entered.supersedes)


def _require_asking(agent: Agent[Any], gates: Collection[str]) -> None:
    """The SDK stops at what needs an approval alone; a gated tool that needs none would run, and nobody be asked."""
    seen: list[Agent[Any]] = [agent]
    for one in seen:
        # By identity: agents that hand over to each other are compared without an end.
        known = {id(other) for other in seen}
        seen += [other for other in _reached(one) if id(other) not in known]
        for tool in one.tools:
            if isinstance(tool, FunctionTool) and tool.name in gates and tool.needs_approval is False:
                raise InteractionConfigurationError(
                    f"{tool.name!r} has a gate and would run without waiting at it; make it with needs_approval=True"
                )


def _reached(agent: Agent[Any]) -> list[Agent[Any]]:
    """List the agents that one hands over to, and those that are its tools."""
    made = [other._agent_ref() for other in agent.handoffs if isinstance(other, Handoff) and other._agent_ref]
    inner = [tool._agent_instance for tool in agent.tools if isinstance(tool, FunctionTool)]
    return [other for other in (*agent.handoffs, *made, *inner) if isinstance(other, Agent)]


def _withhold(state: RunState[Any, Any], items: Sequence[Any]) -> None:
    """Take what stood beside the interruptions out of what the SDK would still do, and put its observation there.

    The SDK keeps the handoffs and hosted approvals of a stopped message for when it goes on, and does them then,
    whatever was answered; nothing public says no to them. What its items hold as answered is not done again.
    """
    left, owner = state._last_processed_response, state._current_agent
    if left is None or owner is None:
        raise InteractionConfigurationError("this run state stands at no response; it was not written by a stop")
    said = _answers(items)
    for handed in left.handoffs:
        output = said[handed.tool_call.call_id]
        state._generated_items.append(ToolCallOutputItem(owner, output, output["output"]))
    for request in left.mcp_approval_requests:
        response = MCPApprovalResponseItem(owner, said[request.request_item.id])
        state._generated_items.append(response)
        state._session_items.append(response)
    left.handoffs, left.mcp_approval_requests = [], []


async def _stopped(result: RunResultStreaming, stream: Any) -> None:
    """End a run whose stream nobody reads any more: once this returns, none of its tools is under way.

    Cancelled first, for the SDK's stream waits for the run's own end when it is closed.
    """
    if not result.is_complete:
        result.cancel()
    await stream.aclose()
    if result.run_loop_task is not None:
        await asyncio.gather(result.run_loop_task, return_exceptions=True)


def ask_user_tool(name: str = ASK_USER) -> FunctionTool:
    """Make the tool that lets the model ask a person. It is never run: gate it with `Gate(ASK_USER)`."""

    async def ask(_context: ToolContext[Any], _arguments: str) -> str:
        raise InteractionConfigurationError(f"{name} was run; gate it, so that a person answers in its place")

    return FunctionTool(
        name=name,
        description="Ask the user one to four questions, each with two to four options to choose from.",
        params_json_schema=ASK_USER_REQUEST,
        on_invoke_tool=ask,
        strict_json_schema=False,
        needs_approval=True,
    )


def _parted(history: Sequence[Entry]) -> tuple[dict[str, Any] | None, list[Any]]:
    if history and history[0].get("type") == RUN_STATE:
        return history[0]["state"], list(history[1:])
    return None, list(history)


def _require_stored(kept: Mapping[str, Any]) -> None:
    """A tool that ran without the context it was written for would fail, or act for somebody else."""
    if (kept.get("context_meta") or {}).get("requires_deserializer"):
        raise InteractionConfigurationError(
            "this run had a context that is no mapping, and is not stored; recover the turn, and give it again: "
            "resume_run(kernel, turn, context=...)"
        )


def _message(prompt: str) -> list[Any]:
    return [{"role": "user", "content": prompt}] if prompt else []


def _answers(items: Sequence[Any]) -> dict[str, Any]:
    """Find the item that answers a call, by the call."""
    answering = (item for item in items if item.get("type") in ANSWERING)
    return {item.get("call_id") or item["approval_request_id"]: item for item in answering}


def _left_open(items: Sequence[Any]) -> list[Any]:
    """Answer what a stop left open that the user talked past; providers reject a call without an output."""
    return [{"type": "function_call_output", "call_id": call_id, "output": NOT_ANSWERED} for call_id in _waiting(items)]


def _waiting(items: Sequence[Any]) -> list[str]:
    """List the function calls without an output. An id that a model gives anew is another call."""
    waiting: dict[str, None] = {}
    for item in items:
        if item.get("type") == "function_call":
            waiting[item["call_id"]] = None
        elif item.get("type") in ANSWERING:
            waiting.pop(item.get("call_id"), None)
    return list(waiting)


def _require_own(interruptions: Sequence[ToolApprovalItem], items: Sequence[Any]) -> None:
    own = {*_waiting(items)}
    if not all(_call_id(item) in own for item in interruptions):
        raise InteractionConfigurationError(
            "the run stopped at what is no call of a function tool of its own: gate the tool that runs an inner agent "
            "in place of the inner agent's tools, and a function tool in place of a hosted one"
        )


def _call_id(item: ToolApprovalItem) -> str:
    return str(getattr(item.raw_item, "call_id", None))


def _arguments(item: ToolApprovalItem) -> Any:
    try:
        return json.loads(getattr(item.raw_item, "arguments", "") or "{}")
    except ValueError:
        return None


def _text_of(output: Any) -> str:
    if not isinstance(output, str):
        raise InteractionConfigurationError("the SDK takes a call's result from outside as text alone; fold in text")
    return output


async def _ran(
    item: ToolApprovalItem,
    allowed: Dispatch,
    wrapper: RunContextWrapper[Any],
    effects: Mapping[str, SideEffect],
) -> str:
    """Run a call with the arguments a person made of it, and give its output as text.

    The SDK's loop runs a call with the model's arguments or not at all, so such a call is run here.
    """
    owner: Any = item.agent
    found = [tool for tool in await owner.get_all_tools(wrapper) if tool.name == allowed.tool]
    tool = found[0] if len(found) == 1 else None
    if not isinstance(tool, FunctionTool) or _is_more_than_a_function(tool):
        raise InteractionConfigurationError(
            f"a call of {allowed.tool!r} was edited, which the SDK cannot run: its loop knows the model's arguments "
            "alone, and outside of it guardrails and inner agents would be passed by; run it and fold its result in "
            "by with_results"
        )
    arguments = json.dumps(allowed.arguments)
    context: ToolContext[Any] = ToolContext.from_agent_context(
        wrapper, allowed.interrupt_id, agent=owner, tool_name=tool.name, tool_arguments=arguments
    )
    token = _effects.set(effects)
    try:
        return str(await invoke_function_tool(function_tool=tool, context=context, arguments=arguments))
    finally:
        _effects.reset(token)


def _is_more_than_a_function(tool: FunctionTool) -> bool:
    guarded = tool.tool_input_guardrails or tool.tool_output_guardrails
    return bool(guarded) or tool._is_agent_tool
