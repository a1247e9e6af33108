"""The delegate over a compiled LangGraph graph: what it stops at becomes a round, and a resumed turn goes on in it."""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any
from uuid import UUID

from langchain_core.messages import (
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    ToolMessage,
    messages_from_dict,
    messages_to_dict,
)
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.config import merge_configs
from langgraph.channels import BinaryOperatorAggregate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt.tool_node import INVALID_TOOL_NAME_ERROR_TEMPLATE
from langgraph.types import Command, Interrupt, Overwrite, Send, StateSnapshot

from ...domain.axes import Axes, Scope
from ...domain.commands import Dispatch
from ...domain.errors import InteractionConfigurationError
from ...domain.rehydration import NOT_ANSWERED
from ...domain.turn import CheckpointReference, Entry, Turn
from . import Ended, Gate, SideEffect, require_tools, side_effects, stated
from .langchain_guard import Guard
from .langchain_middleware import GATED, TOOL_APPROVAL, gated, let_through, open_calls, requested

FORMAT = "langchain"
#: Where in a run's `configurable` its side effects are told apart; never stored, for it is no plain value.
EFFECTS = "pauseledger"
#: How the answer of LangGraph's tool node begins to a call of a tool that it does not have.
_UNKNOWN = INVALID_TOOL_NAME_ERROR_TEMPLATE.partition(", try one of")[0]
#: The node by which a host's own state enters the graph that runs dispatched calls; none of the host's has this name.
STATE = "pauseledger_state"


def side_effect(tool_call_id: str) -> SideEffect | None:
    """Tell, inside a tool, what to key its side effect by; None where nobody was asked about the call.

    LangChain injects the id (`InjectedToolCallId`, or `ToolRuntime`).
    """
    effects: Mapping[str, SideEffect] = get_config()["configurable"].get(EFFECTS, {})
    return effects.get(tool_call_id)


class LangChainKernel:
    """Runs a compiled graph whose state holds `messages`, as `create_agent` makes them.

    No interrupted node runs again: a resumed turn enters the graph at its start, with the rehydrated messages in the
    place of the thread's, and the first thing that runs is what runs before the model's next call.

    Args:
        agent: The compiled graph.
        capability: The ledger's.
        scope: The tenant whose runs these are.
        gates: Those of the agent's `PauseMiddleware`; a graph of one's own ends where `gated` finds a call.
        approvals: How requests of `HumanInTheLoopMiddleware` wait; register `TOOL_APPROVAL` with the ledger.
        checkpoints: The name under which `LangGraphCheckpoints` over the agent's own saver is wired. Then the ledger
            holds a reference and a digest, and the turn stays in the checkpoint. Without it, the ledger holds the turn.
        tools_node: The graph's node that runs tools, a `ToolNode`.
    """

    dispatches = True
    turn_format = FORMAT

    def __init__(
        self,
        agent: CompiledStateGraph[Any, Any, Any, Any],
        capability: Any,
        *,
        scope: Scope,
        gates: Mapping[str, Gate] | None = None,
        approvals: Gate | None = None,
        checkpoints: str | None = None,
        tools_node: str = "tools",
    ) -> None:
        # Its methods are overloaded over modes and versions that are known when running alone.
        self._agent: Any = agent
        self._capability, self.scope = capability, scope
        self._gates = dict(gates or {})
        self._approvals = approvals or Gate(TOOL_APPROVAL.name)
        self._checkpoints, self._tools_node = checkpoints, tools_node
        if checkpoints is not None and not agent.checkpointer:
            raise InteractionConfigurationError("the agent keeps no checkpoints; compile it with a checkpointer")

    async def run(self, prompt: str, **given: Any) -> Ended:
        """Run to the end, or to a stop. Takes what `stream_typed` takes."""
        async with aclosing(self._parts(prompt, stream_mode=(), **given)) as parts:
            *_, ended = [part async for part in parts]
        return ended  # type: ignore[no-any-return]  # the last part tells how it ended

    async def stream(self, prompt: str, **given: Any) -> AsyncGenerator[Any, None]:
        """Give message chunks as they come, and how it ended. Takes what `stream_typed` takes, but no modes."""
        async with aclosing(self._parts(prompt, stream_mode=("messages",), **given)) as parts:
            async for part in parts:
                yield part if isinstance(part, Ended) else part["data"][0]

    async def stream_typed(
        self, prompt: str, *, stream_mode: Sequence[str] = ("updates", "messages"), **given: Any
    ) -> AsyncGenerator[Any, None]:
        """Give LangGraph's typed stream parts (`version="v2"`) of these modes, and how it ended.

        Takes `run_id`, `session_id` and `history` (entries as `messages_to_dict` gives them), `dispatch`, `fence` and
        `idempotency_key` as a resumed turn brings them, `supersedes` (a pause that a new stop takes the place of),
        `state` (more of the graph's input) and what `astream` takes. The thread is the session, unless
        `config` names another.
        """
        async with aclosing(self._parts(prompt, stream_mode=stream_mode, **given)) as parts:
            async for part in parts:
                yield part

    async def _parts(
        self,
        prompt: str,
        *,
        run_id: str,
        session_id: str,
        stream_mode: Sequence[str],
        history: Sequence[Entry] = (),
        dispatch: Sequence[Dispatch] = (),
        fence: int = 0,
        idempotency_key: str | None = None,  # noqa: ARG002 - a delegate that dispatches is told; calls have their own
        supersedes: UUID | None = None,
        state: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncGenerator[Any, None]:
        axes = stated(self.scope, session_id, run_id)
        config = _configured(config or {}, session_id, self._gates)
        going = messages_from_dict(list(history))
        # Told to these calls alone: in what follows, a model may give their ids to others.
        told = _configurable(config, EFFECTS, side_effects(dispatch, fence))
        values = {**(state or {}), **await self._dispatched(going, dispatch, state or {}, told, options)}
        messages = await self._entered(going, values.pop("messages", []), prompt, config)
        last: Mapping[str, Any] = {}
        modes = list({*stream_mode, "values"})
        guard = Guard(self._gates)
        guarded: Any = merge_configs(config, {"callbacks": [guard]})  # type: ignore[arg-type]  # a config of the host's
        stream = self._agent.astream(
            {**values, "messages": messages}, guarded, stream_mode=modes, version="v2", **options
        )
        async with aclosing(stream) as parts:
            async for part in parts:
                if part["type"] == "values" and not part["ns"]:
                    last = part["data"]
                    self._require_kept(part["interrupts"])
                if part["type"] in stream_mode:
                    yield part
        if guard.failed is not None:
            raise guard.failed
        yield await self._ended(last, config, axes, supersedes)

    # Going in

    async def _entered(
        self, going: list[Any], results: Sequence[Any], prompt: str, config: Mapping[str, Any]
    ) -> list[Any]:
        """A history takes the place of the thread's messages; a new message answers what the thread left open."""
        said = [HumanMessage(prompt)] if prompt else []
        if going:
            gone_on = [*going, *results]
            return [RemoveMessage(id=REMOVE_ALL_MESSAGES), *gone_on, *(_not_answered(gone_on) if said else ()), *said]
        return [*_not_answered((await self._thread(config)).get("messages", ())), *said]

    async def _thread(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self._agent.checkpointer:
            return {}
        values: Mapping[str, Any] = (await self._agent.aget_state(config)).values
        return values

    async def _dispatched(
        self,
        going: Sequence[BaseMessage],
        dispatch: Sequence[Dispatch],
        state: Mapping[str, Any],
        config: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Run exactly the calls that a person let through, in the graph's own tool node, and give what it wrote.

        The node keeps its wrappers and injects what it injects. It runs in a graph of its own, for the agent's starts
        with the model. Where a per-call request asks about a dispatched call again, it was approved.
        """
        if not dispatch:
            return {}
        thread = {name: value for name, value in (await self._thread(config)).items() if name != "messages"}
        more = {name: value for name, value in state.items() if name != "messages"}
        graph = self._tools_alone([_call(one) for one in dispatch], more)
        given: Any = {**thread, "messages": [*going]}
        said = {name: options[name] for name in ("context",) if name in options}
        # Nothing of the thread is in this graph's own checkpoints: an older one of the thread would never be found.
        config = _head(config)
        messages: list[Any] = []
        written: dict[str, list[Any]] = {name: [value] for name, value in more.items()}
        last: Mapping[str, Any] = {}
        while given is not None:
            waiting: list[Interrupt] = []
            async for part in graph.astream(given, config, stream_mode=["updates", "values"], version="v2", **said):
                if part["type"] == "values":
                    last = part["data"]
                    continue
                waiting += part["data"].get("__interrupt__", ())
                for update in _updates(part["data"].get(self._tools_node)):
                    messages += update.pop("messages", [])
                    for name, value in update.items():
                        written.setdefault(name, []).append(value)
            given = Command(resume={one.id: let_through(one) for one in waiting}) if waiting else None
        _require_run(dispatch, messages)
        merged = {name: self._merged(name, told, thread, last) for name, told in written.items()}
        return {**merged, "messages": messages}

    def _merged(self, name: str, told: Sequence[Any], thread: Mapping[str, Any], last: Mapping[str, Any]) -> Any:
        """Make one write of several to a key: a graph's input has room for one, and its reducer was applied already."""
        if len(told) == 1 or not isinstance(self._agent.builder.channels.get(name), BinaryOperatorAggregate):
            return told[-1]
        # A channel that holds nothing yet does not unwrap what is to overwrite it.
        return Overwrite(last[name]) if name in thread else last[name]

    def _tools_alone(self, calls: Sequence[Mapping[str, Any]], state: Mapping[str, Any]) -> Any:
        """Make a graph that runs these calls alone, on a thread's state and what was given beside it."""
        builder = self._agent.builder
        if self._tools_node not in builder.nodes:
            raise InteractionConfigurationError(
                f"the graph has no node {self._tools_node!r} to run a dispatched call; name its ToolNode by tools_node"
            )
        graph = StateGraph(builder.state_schema, context_schema=builder.context_schema)
        graph.add_node(STATE, lambda _: state)
        graph.add_node(self._tools_node, builder.nodes[self._tools_node].runnable | RunnableLambda(_staying))
        graph.add_edge(START, STATE)
        graph.add_conditional_edges(STATE, lambda _: [Send(self._tools_node, [call]) for call in calls])
        # A request for a person is an interrupt, which LangGraph answers in a checkpoint alone.
        saver = InMemorySaver() if self._agent.checkpointer else None
        return graph.compile(checkpointer=saver, store=self._agent.store)

    # Coming out

    async def _ended(
        self, last: Mapping[str, Any], config: Mapping[str, Any], axes: Axes, supersedes: UUID | None
    ) -> Ended:
        config = _head(config)
        snapshot = await self._agent.aget_state(config) if self._agent.checkpointer else None
        asking = self._asking(last["messages"], snapshot.interrupts if snapshot else ())
        if not asking:
            _require_end(snapshot)
            return Ended(last["messages"], state=last)
        if snapshot is not None and snapshot.interrupts:
            # Taken out of the thread, so that nobody answers it past the ledger; what finished beside it stays.
            await self._agent.aupdate_state(config, None, as_node=END)
            snapshot = await self._agent.aget_state(config)
            last = snapshot.values
        turn = self._turn(last["messages"], snapshot)
        asked = tuple(
            gate.command(request, turn=turn, axes=axes.model_copy(update={"call_id": call_id}), supersedes=supersedes)
            for call_id, gate, request in asking
        )
        return Ended(last["messages"], await self._capability.pause_round(asked), asked, last)

    def _require_kept(self, interrupts: Sequence[Interrupt]) -> None:
        if interrupts and not self._agent.checkpointer:
            raise InteractionConfigurationError(
                "the graph stopped at an interrupt and keeps no checkpoints, so that nothing of the request is left; "
                "compile the agent with a checkpointer, or gate the tool by PauseMiddleware, which needs none"
            )

    def _asking(self, messages: Sequence[BaseMessage], interrupts: Sequence[Interrupt]) -> list[tuple[str, Gate, Any]]:
        waiting = open_calls(messages)
        asks = [
            (call_id, self._approvals, request)
            for interrupt in interrupts
            for call_id, request in requested(interrupt, waiting)
        ]
        for call in gated(messages, self._gates) if not asks else ():
            gate = self._gates[call["name"]]
            asks.append((str(call["id"]), gate, gate.request(call["name"], call["args"])))
        return asks

    def _turn(self, messages: Sequence[BaseMessage], snapshot: StateSnapshot | None) -> Turn | CheckpointReference:
        if self._checkpoints is None or snapshot is None:
            return Turn(FORMAT, messages_to_dict(messages))
        where = snapshot.config["configurable"]
        return CheckpointReference(FORMAT, self._checkpoints, where["thread_id"], where["checkpoint_id"])


def _configured(config: Mapping[str, Any], session_id: str, gates: Collection[str]) -> dict[str, Any]:
    given = {**config, "configurable": {"thread_id": session_id, **config.get("configurable", {})}}
    return _configurable(given, GATED, frozenset(gates))


def _configurable(config: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    return {**config, "configurable": {**config["configurable"], name: value}}


def _head(config: Mapping[str, Any]) -> dict[str, Any]:
    """A run that began at an older checkpoint ends at the thread's head."""
    configurable = {name: value for name, value in config["configurable"].items() if name != "checkpoint_id"}
    return {**config, "configurable": configurable}


def _staying(written: Any) -> Any:
    """Let what a tool node gives pass, unless it leads elsewhere: the model always speaks after a dispatched call."""
    for one in written if isinstance(written, list) else [written]:
        if isinstance(one, Command) and (one.goto or one.graph):
            raise InteractionConfigurationError(
                "a dispatched tool returned a Command that goes to another node or graph, which nothing follows here; "
                "let it return its result, or run the call and fold its result in by `turn.with_results`"
            )
    return written


def _require_run(dispatch: Sequence[Dispatch], messages: Sequence[Any]) -> None:
    """A wrapper of the node may bring a tool of its own, so that only the node's answer says that there was none."""
    unknown = {
        message.tool_call_id
        for message in messages
        if isinstance(message, ToolMessage) and message.text.startswith(_UNKNOWN.format(requested_tool=message.name))
    }
    require_tools(dispatch, {call.tool for call in dispatch if call.interrupt_id not in unknown})


def _require_end(snapshot: StateSnapshot | None) -> None:
    if snapshot is not None and snapshot.next:
        raise InteractionConfigurationError(
            f"the graph stopped before it ended, at {', '.join(map(repr, snapshot.next))}, and asks nothing of "
            "anybody; compile it without interrupt_before and interrupt_after, and gate a tool in their place"
        )


def _not_answered(messages: Sequence[Any]) -> list[ToolMessage]:
    return [ToolMessage(NOT_ANSWERED, name=call["name"], tool_call_id=call["id"]) for call in open_calls(messages)]


def _call(one: Dispatch) -> dict[str, Any]:
    return {"name": one.tool, "args": one.arguments, "id": one.interrupt_id, "type": "tool_call"}


def _updates(written: Any) -> list[dict[str, Any]]:
    return [dict(update) for update in (written if isinstance(written, list) else [written]) if update]
