"""The agent middleware that stops at a gated tool, and LangChain's own requests for a person, as pauses."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware, AgentState, hook_config
from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.config import get_config
from langgraph.runtime import Runtime
from langgraph.types import Interrupt

from ...domain.answers import ASK_USER_REQUEST
from ...domain.errors import InteractionConfigurationError
from ...domain.facts import Decision
from ...domain.interactions import ASK_USER, Interaction
from . import Gate

#: What stands between the namespaces of a graph and of one that runs within it.
NESTED = "|"
#: Where in a run's `configurable` the kernel says which tools it has gates of; never stored, for it is no plain value.
GATED = "pauseledger_gated"


class PauseMiddleware(AgentMiddleware):
    """Ends the agent's run where the model calls a gated tool; no call of that message is run.

    It stores nothing: `LangChainKernel` pauses what it stopped at. List it first, so that it judges last, after every
    other middleware has had its say about the message.

    Args:
        gates: Which tools wait, and how, by the tool's name.
    """

    def __init__(self, gates: Mapping[str, Gate]) -> None:
        super().__init__()
        self.gates = dict(gates)

    @hook_config(can_jump_to=["end"])
    def after_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:  # noqa: ARG002
        """Stop where a call waits.

        Raises:
            InteractionConfigurationError: the agent runs inside another graph, whose turn cannot be paused from here;
                or it is run by a kernel that has no gate of the tool, and would ask nobody.
        """
        calls = gated(state["messages"], self.gates)
        if not calls:
            return None
        configurable = get_config()["configurable"]
        if NESTED in configurable.get("checkpoint_ns", ""):
            raise InteractionConfigurationError(
                "a gated tool was called by an agent inside another; gate the outer agent's tool instead"
            )
        known = configurable.get(GATED, self.gates)
        unknown = {call["name"] for call in calls} - {*known}
        if unknown:
            raise InteractionConfigurationError(
                f"the kernel that runs this agent has no gate of {', '.join(map(repr, sorted(unknown)))}; give "
                "LangChainKernel the gates of the agent's PauseMiddleware"
            )
        return {"jump_to": "end"}

    @hook_config(can_jump_to=["end"])
    async def aafter_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Stop where a call waits, as `after_model` does."""
        return self.after_model(state, runtime)


def gated(messages: Sequence[Any], names: Collection[str]) -> list[ToolCall]:
    """List the calls of the last AIMessage that name a gated tool and have no result yet."""
    return [call for call in open_calls(messages) if call["name"] in names]


def open_calls(messages: Sequence[Any]) -> list[ToolCall]:
    """List the calls of the last AIMessage that have no result yet."""
    last = max((at for at, message in enumerate(messages) if isinstance(message, AIMessage)), default=None)
    if last is None:
        return []
    done = {message.tool_call_id for message in messages[last + 1 :] if isinstance(message, ToolMessage)}
    return [call for call in messages[last].tool_calls if call["id"] not in done]


def ask_user_tool(name: str = ASK_USER) -> BaseTool:
    """Make the tool that lets the model ask a person. It is never run: gate it with `Gate(ASK_USER)`."""

    def ask(**_: Any) -> str:
        raise InteractionConfigurationError(f"{name} was run; gate it, so that a person answers in its place")

    return StructuredTool.from_function(
        func=ask,
        name=name,
        description="Ask the user one to four questions, each with two to four options to choose from.",
        args_schema=ASK_USER_REQUEST,
    )


# LangChain's own requests: `HumanInTheLoopMiddleware` and whatever raises interrupts of the same shapes.

_ACTION = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "args": {"type": "object"}},
    "required": ["name", "args"],
    "additionalProperties": False,
}


def _decision(type_: str, required: Collection[str] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"type": {"const": type_}, **properties},
        "required": ["type", *required],
        "additionalProperties": False,
    }


def _not_allowed(request: Any, response: Any) -> str | None:
    if response["type"] not in request["allowed_decisions"]:
        return "decision_not_allowed"
    if response["type"] == "edit" and response["edited_action"]["name"] != request["tool"]:
        return "tool_switched"
    return None


def _effective(request: Any, response: Any) -> Any:
    return response["edited_action"]["args"] if response["type"] == "edit" else request["arguments"]


def _type(response: Any) -> Decision:
    decision: Decision = response["type"]
    return decision


def _text(response: Any) -> str:
    if response["type"] == "respond":
        text: str = response["message"]
        return text
    reason = response.get("message") or "none given"
    return f"A person rejected this call, and it was not run. Reason: {reason}"


#: A request of LangChain's `HumanInTheLoopMiddleware` about one call, answered with one of its decisions as it spells
#: them. One that is not allowed, or an edit that names another tool, is `response_invalid`. The host registers it.
TOOL_APPROVAL = Interaction(
    name="langchain.tool_approval",
    request_schema={
        "type": "object",
        "properties": {
            "tool": {"type": "string"},
            "arguments": {"type": "object"},
            "description": {"type": "string"},
            "allowed_decisions": {
                "type": "array",
                "items": {"enum": ["approve", "edit", "reject", "respond"]},
                "minItems": 1,
            },
        },
        "required": ["tool", "arguments", "allowed_decisions"],
        "additionalProperties": False,
    },
    response_schema={
        "oneOf": [
            _decision("approve"),
            _decision("edit", ["edited_action"], edited_action=_ACTION),
            _decision("reject", message={"type": "string"}),
            _decision("respond", ["message"], message={"type": "string"}),
        ]
    },
    as_text=_text,
    cross_check=_not_allowed,
    decision=_type,
    effective=_effective,
)


def requested(interrupt: Interrupt, waiting: list[ToolCall]) -> list[tuple[str, Any]]:
    """Read an interrupt as requests for a person: for each its call's id, and what is asked with `TOOL_APPROVAL`.

    Each takes its call out of `waiting`. Batched requests name no call: each is about the next call that has its tool
    and its arguments, for they come in the order of the calls.

    Raises:
        InteractionConfigurationError: it is none of LangChain's requests, or asks about no call that waits.
    """
    value = interrupt.value
    if _is_per_call(value):
        return [(_taken(waiting, id=value["tool_call_id"]), _request(value, _allowed(interrupt)))]
    if isinstance(value, dict) and "action_requests" in value:
        allowed = {config["action_name"]: config["allowed_decisions"] for config in value["review_configs"]}
        return [
            (_taken(waiting, name=action["name"], args=action["args"]), _request(action, allowed[action["name"]]))
            for action in value["action_requests"]
        ]
    raise InteractionConfigurationError(
        "the graph stopped at an interrupt that is no request of HumanInTheLoopMiddleware, and that would be answered "
        "past the ledger; gate a tool in its place"
    )


def let_through(interrupt: Interrupt) -> dict[str, Any]:
    """Answer a per-call request about a call that a person let through already.

    Raises:
        InteractionConfigurationError: it is no such request.
    """
    value = interrupt.value
    if not _is_per_call(value):
        raise InteractionConfigurationError(
            "a dispatched tool stopped at an interrupt of its own, which nothing can answer here; gate the tool instead"
        )
    if "approve" in _allowed(interrupt):
        return {"type": "approve"}
    return {"type": "edit", "edited_action": {"name": value["name"], "args": value["args"]}}


def _is_per_call(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "tool_approval"


def _request(action: Any, allowed: Collection[str]) -> dict[str, Any]:
    return {
        "tool": action["name"],
        "arguments": action["args"],
        "description": action.get("description", ""),
        "allowed_decisions": list(allowed),
    }


def _taken(waiting: list[ToolCall], **wanted: Any) -> str:
    for at, call in enumerate(waiting):
        if wanted.items() <= call.items():
            return str(waiting.pop(at)["id"])
    raise InteractionConfigurationError("an interrupt asks about a call that the last AIMessage does not leave open")


def _allowed(interrupt: Interrupt) -> list[str]:
    """Read which decisions a per-call request allows out of the schema it publishes."""
    schema: Any = interrupt.response_schema
    named = [branch["$ref"].rpartition("/")[2] for branch in schema.get("oneOf", ())]
    branches = [schema["$defs"][name] for name in named] or [schema]
    return [branch["properties"]["type"]["const"] for branch in branches]
