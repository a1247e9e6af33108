"""OpenAI's responses: one output item a call, of the call's own kind, after the last item the model made."""

from collections.abc import Sequence
from typing import Any

from ...domain.errors import InteractionConfigurationError
from ...domain.turn import Entry, ReservedCall, Result
from .codec import Answer, Codec, broken, named, objects

#: Which kinds of items answer which kinds of calls.
OUTPUTS = {
    "function_call": ("function_call_output",),
    "custom_tool_call": ("custom_tool_call_output",),
    "tool_search_call": ("tool_search_output", "function_call_output"),
    "local_shell_call": ("local_shell_call_output",),
    "shell_call": ("shell_call_output",),
    "apply_patch_call": ("apply_patch_call_output",),
    "computer_call": ("computer_call_output",),
    "mcp_approval_request": ("mcp_approval_response",),
}
ANSWERING = frozenset(kind for kinds in OUTPUTS.values() for kind in kinds)
#: By which field an item names its call, where it is not `call_id`.
NAMES = {"mcp_approval_request": "id", "mcp_approval_response": "approval_request_id"}
#: The calls answered by parts as well as by text, and what these may be.
SPEAKING = ("function_call", "custom_tool_call")
PARTS = ("input_text", "input_image", "input_file")


class OpenAIResponses(Codec):
    """The `input` items of OpenAI's Responses API, those of compatible servers included.

    There is no assistant message to hold the calls: a round begins after the last message somebody else wrote, or
    after the last output that left no call open, and every item since then is the model's, or the output of one of its
    calls. Outputs are appended, so that nothing comes between them and what the model made.

    Text is an answer to every kind of call but one. A function, a custom tool and a local shell take it as their
    output, a client's tool search as a function's. To an approval request it is a no with its reason, to a shell or a
    patch a failure that says why: text never approves, and never claims that something ran. Whoever let such a call
    through gives the whole output item instead, as a list of one; a computer call, which wants a screenshot, takes
    nothing else. What the provider runs itself waits for nobody.

    Sources: OpenAI's reference of the Responses API (the input items and their outputs, hosted shell environments, tool
    search by the client) and its guide on the local shell; how its Agents SDK words what was not run; and the rules
    that lie beside the recorded turns in the tests.
    """

    format = "openai-responses"

    def _round(self, entries: Sequence[Entry]) -> tuple[ReservedCall, ...]:
        if not all(isinstance(item, dict) and _kind(item) for item in entries):
            raise broken("every item has to be an object with a type or a role")
        items = entries[_begin(entries) :]
        calls = [item for item in items if _waits(item)]
        if not calls and not (entries and _answers(entries[-1])):
            raise broken("the turn does not end at calls that wait for their outputs")
        if not all(named(_name(call)) and _tool(call) != "" for call in calls):
            raise broken("every call has to have an id, and a function the name of its tool")
        _judge_reasoning(items)
        done = _done(items)
        return tuple(
            ReservedCall(index, _name(call), _tool(call), done=_name(call) in done) for index, call in enumerate(calls)
        )

    def _folded(self, entries: tuple[Entry, ...], said: Sequence[Answer]) -> tuple[Entry, ...]:
        calls = [item for item in entries[_begin(entries) :] if _waits(item)]
        return (*entries, *(_output(calls[call.index], content) for call, content in said))


def _kind(item: dict[str, Any]) -> str | None:
    """Tell an item's type; messages and references may leave it out."""
    kind = item.get("type")
    if kind is not None:
        return kind if isinstance(kind, str) else None
    if isinstance(item.get("role"), str):
        return "message"
    return "item_reference" if isinstance(item.get("id"), str) else None


def _waits(item: dict[str, Any]) -> bool:
    """Tell whether an item is a call for the host to answer."""
    kind = _kind(item)
    if kind == "tool_search_call":
        return item.get("execution") == "client"
    return kind in OUTPUTS and not _is_hosted(item)


def _is_hosted(item: dict[str, Any]) -> bool:
    where = item.get("environment")
    return _kind(item) == "shell_call" and isinstance(where, dict) and where.get("type", "local") != "local"


def _answers(item: dict[str, Any]) -> bool:
    kind = _kind(item)
    return kind in ANSWERING and (kind != "tool_search_output" or item.get("execution") == "client")


def _name(item: dict[str, Any]) -> str | None:
    """Tell which call an item is or answers."""
    kind = _kind(item) or ""
    name = item.get(NAMES.get(kind, "call_id"))
    if name is None and kind == "local_shell_call_output":
        # The reference names the call by `id` here, the guide by `call_id`.
        name = item.get("id")
    return name if isinstance(name, str) else None


def _tool(item: dict[str, Any]) -> str | None:
    name = item.get("name")
    if _kind(item) in SPEAKING:
        return name if isinstance(name, str) else ""
    return name if named(name) else None


def _begin(items: Sequence[Entry]) -> int:
    begin, waiting = 0, set()
    for at, item in enumerate(items, 1):
        if _waits(item):
            waiting.add(_name(item))
        elif _answers(item):
            waiting.discard(_name(item))
            begin = begin if waiting else at
        elif (item.get("role") or "assistant") != "assistant":
            begin, waiting = at, set()
    return begin


def _judge_reasoning(items: Sequence[Entry]) -> None:
    """Reasoning that nothing of the model's follows is refused, by its id ("without its required following item")."""
    followed = False
    for item in reversed(items):
        kind = _kind(item)
        if kind == "reasoning" and item.get("id") and not followed:
            raise broken("a reasoning item has to be followed by what it led to")
        if kind not in ("reasoning", "compaction"):
            followed = not _answers(item)


def _done(items: Sequence[Entry]) -> set[str | None]:
    own: dict[str | None, str] = {}
    done: set[str | None] = set()
    for item in items:
        kind, name = _kind(item) or "", _name(item)
        if _waits(item) or _is_hosted(item):
            own[name] = kind
        elif _answers(item):
            if name not in own or kind not in OUTPUTS[own[name]]:
                raise broken("only outputs of its own calls may follow the calls of the last round")
            if name in done:
                raise broken("a call of the last round has two outputs")
            done.add(name)
    return done


def _output(call: Entry, content: Result) -> dict[str, Any]:
    kind, name = _kind(call) or "", _name(call)
    # A program that the model wrote may be what called; its output says so too, as OpenAI's own SDK has it.
    caller = {"caller": call["caller"]} if isinstance(call.get("caller"), dict) else {}
    if isinstance(content, str):
        return _said(kind, name, content) | caller
    if kind in SPEAKING:
        if not content or not objects(content) or not all(part.get("type") in PARTS for part in content):
            raise InteractionConfigurationError(f"a result has to be text or a list of parts: {', '.join(PARTS)}")
        return {"type": OUTPUTS[kind][0], "call_id": name, "output": content} | caller
    if not objects(content) or len(content) != 1 or not _is_for(content[0], kind, name):
        raise InteractionConfigurationError(
            f"the result of this {kind} has to be text or its own output item whole, as a list of one"
        )
    item: dict[str, Any] = content[0]
    return item


def _is_for(item: dict[str, Any], kind: str, name: str | None) -> bool:
    return _answers(item) and _kind(item) in OUTPUTS[kind] and _name(item) == name


def _said(kind: str, name: str | None, text: str) -> dict[str, Any]:
    if kind == "computer_call":
        raise InteractionConfigurationError(
            "a computer_call is answered by a screenshot; give its computer_call_output, as a list of one"
        )
    if kind == "mcp_approval_request":
        return {"type": OUTPUTS[kind][0], "approval_request_id": name, "approve": False, "reason": text}
    if kind == "apply_patch_call":
        return {"type": OUTPUTS[kind][0], "call_id": name, "status": "failed", "output": text}
    if kind == "shell_call":
        failed = {"stdout": "", "stderr": text, "outcome": {"type": "exit", "exit_code": 1}}
        return {"type": OUTPUTS[kind][0], "call_id": name, "output": [failed]}
    # The last kind listed is the one that takes text: a client's tool search may be answered as a function is.
    return {"type": OUTPUTS[kind][-1], "call_id": name, "output": text}
