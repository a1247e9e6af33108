"""OpenAI's chat completions: one `role: tool` message a call, directly after the assistant message."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...domain.errors import InteractionConfigurationError
from ...domain.turn import Entry, ReservedCall, Result
from .codec import Answer, Codec, broken, named

#: The role of a result, and the field by which it names its call.
NAMES = {"tool": "tool_call_id", "function": "name"}


class OpenAIChat(Codec):
    """The `messages` of a chat completion, those of compatible servers included.

    A legacy `function_call` is one call without an id, answered by its name.

    Sources: OpenAI's reference of the chat completions (roles, custom calls, tool content of text parts only, the older
    `function_call`), and the rules that lie beside the recorded turns in the tests.
    """

    format = "openai-chat"

    def _round(self, entries: Sequence[Entry]) -> tuple[ReservedCall, ...]:
        roles = [entry.get("role") if isinstance(entry, dict) else None for entry in entries]
        if not all(isinstance(role, str) for role in roles):
            raise broken("every message has to be an object with a role")
        if "assistant" not in roles:
            raise broken("the turn holds no message of the assistant")
        last = len(roles) - 1 - roles[::-1].index("assistant")
        calls = _calls(entries[last])
        done = _done({_whose(call) for call in calls}, entries[last + 1 :])
        return tuple(replace(call, done=True) if done and _whose(call) in done else call for call in calls)

    def _folded(self, entries: tuple[Entry, ...], said: Sequence[Answer]) -> tuple[Entry, ...]:
        return (*entries, *(_result(call, content) for call, content in said))


def _calls(message: dict[str, Any]) -> list[ReservedCall]:
    calls, legacy = message.get("tool_calls"), message.get("function_call")
    if isinstance(calls, list) and calls:
        return [ReservedCall(index, _id(call), _tool(call)) for index, call in enumerate(calls)]
    # Gateways fill the fields they do not use with empty values: a function_call without a name is none.
    if not calls and isinstance(legacy, dict) and named(legacy.get("name")):
        return [ReservedCall(0, None, legacy["name"])]
    raise broken("the last assistant message lists no calls")


def _id(call: Any) -> str:
    if not isinstance(call, dict) or not named(call.get("id")):
        raise broken("every call has to be an object with an id")
    return str(call["id"])


def _tool(call: dict[str, Any]) -> str:
    for kind in (call.get("function"), call.get("custom")):
        if isinstance(kind, dict) and named(kind.get("name")):
            return str(kind["name"])
    raise broken("every call has to name its tool")


def _whose(call: ReservedCall) -> tuple[str, str | None]:
    return ("function", call.tool) if call.id is None else ("tool", call.id)


def _done(own: set[tuple[str, str | None]], after: Sequence[Entry]) -> set[tuple[str, str | None]]:
    done: set[tuple[str, str | None]] = set()
    for entry in after:
        name = entry.get(NAMES.get(entry["role"], ""))
        whose = (entry["role"], name if isinstance(name, str) else None)
        if whose not in own:
            raise broken("only results of its own calls may follow the last assistant message")
        if whose in done:
            raise broken("a call of the last assistant message has two results")
        done.add(whose)
    return done


def _result(call: ReservedCall, content: Result) -> Entry:
    role, name = _whose(call)
    if not isinstance(content, str):
        if role == "function":
            raise InteractionConfigurationError("the result of a legacy function_call has to be text")
        if not isinstance(content, list) or not content or not all(map(_is_text, content)):
            raise InteractionConfigurationError("a result has to be text or a list of text parts and no others")
    return {"role": role, NAMES[role]: name, "content": content}


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
