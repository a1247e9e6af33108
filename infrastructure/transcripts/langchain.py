"""LangChain's messages as `messages_to_dict` writes them: one ToolMessage a call, directly after the AIMessage."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...domain.errors import InteractionConfigurationError
from ...domain.turn import Entry, ReservedCall, Result
from .codec import Answer, Codec, broken, named

#: An AIMessage, and one put together from a stream.
ASSISTANT = ("ai", "AIMessageChunk")


class LangChain(Codec):
    """The list that langchain-core's `messages_to_dict` gives and `messages_from_dict` takes.

    A call may stand in a message several times (`tool_calls`, content blocks, a map of signatures); what counts is
    `tool_calls` and then `invalid_tool_calls`, the ones whose arguments could not be parsed: providers want a result
    on either.

    Sources: langchain-core 1.x, `AIMessage`, `ToolMessage` and `message_to_dict`; the rules that lie beside the
    recorded turns in the tests.
    """

    format = "langchain"

    def _round(self, entries: Sequence[Entry]) -> tuple[ReservedCall, ...]:
        if not all(map(_is_message, entries)):
            raise broken("every message has to be an object with a type and its data")
        last = max((at for at, entry in enumerate(entries) if entry["type"] in ASSISTANT), default=None)
        if last is None:
            raise broken("the turn holds no AIMessage")
        calls = _calls(entries[last]["data"])
        done = _done({call.id for call in calls}, entries[last + 1 :])
        return tuple(replace(call, done=True) if call.id in done else call for call in calls)

    def _folded(self, entries: tuple[Entry, ...], said: Sequence[Answer]) -> tuple[Entry, ...]:
        return (*entries, *(_result(call, content) for call, content in said))


def _is_message(entry: Entry) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("type"), str) and isinstance(entry.get("data"), dict)


def _calls(data: dict[str, Any]) -> list[ReservedCall]:
    parsed, invalid = data.get("tool_calls") or [], data.get("invalid_tool_calls") or []
    if not isinstance(parsed, list) or not isinstance(invalid, list):
        raise broken("the calls of the last AIMessage have to be lists")
    if not parsed and not invalid:
        raise broken("the last AIMessage lists no calls")
    return [_call(index, call) for index, call in enumerate([*parsed, *invalid])]


def _call(index: int, call: Any) -> ReservedCall:
    # LangChain allows a call without an id, but a ToolMessage could not say that it answers it.
    if not isinstance(call, dict) or not named(call.get("id")):
        raise broken("every call has to be an object with an id")
    name = call.get("name")
    if name is not None and not isinstance(name, str):
        raise broken("a tool's name has to be text")
    return ReservedCall(index, call["id"], name)


def _done(own: set[str | None], after: Sequence[Entry]) -> set[str | None]:
    done: set[str | None] = set()
    for entry in after:
        name = entry["data"].get("tool_call_id")
        if entry["type"] != "tool" or not isinstance(name, str) or name not in own:
            raise broken("only results of its own calls may follow the last AIMessage")
        if name in done:
            raise broken("a call of the last AIMessage has two results")
        done.add(name)
    return done


def _result(call: ReservedCall, content: Result) -> Entry:
    if not isinstance(content, str) and not _is_content(content):
        raise InteractionConfigurationError("a result has to be text or a list of texts and objects")
    # All the fields of a ToolMessage, in its own order: what is folded in is loaded and dumped again unchanged.
    data: dict[str, Any] = {
        "content": content,
        "additional_kwargs": {},
        "response_metadata": {},
        "type": "tool",
        "name": call.tool,
        "id": None,
        "tool_call_id": call.id,
        "artifact": None,
        "status": "success",
    }
    return {"type": "tool", "data": data}


def _is_content(content: Any) -> bool:
    return isinstance(content, list) and all(isinstance(part, str | dict) for part in content)
