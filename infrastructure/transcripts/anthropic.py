"""Anthropic's messages: all results of a turn in the ONE user message right after it, before anything else there."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import dropwhile
from typing import Any

from ...domain.errors import InteractionConfigurationError
from ...domain.turn import Entry, ReservedCall, Result
from .codec import Answer, Codec, broken, extended, named, objects

#: What the content of a result may hold.
PARTS = ("text", "image", "document", "search_result", "tool_reference")


class Anthropic(Codec):
    """The `messages` of Anthropic's Messages API.

    Neighbours of one role are one turn to the API, so the last assistant messages in a row are one round. What the
    provider ran itself (`server_tool_use`, `mcp_tool_use`) has its result in the assistant's own message and waits
    for nobody.

    Sources: Anthropic's guide on handling tool calls (results first, all in the next message), and the rules that lie
    beside the recorded turns in the tests.
    """

    format = "anthropic"

    def _round(self, entries: Sequence[Entry]) -> tuple[ReservedCall, ...]:
        if not all(isinstance(entry, dict) and isinstance(entry.get("role"), str) for entry in entries):
            raise broken("every message has to be an object with a role")
        end = max((at for at, entry in enumerate(entries, 1) if entry["role"] == "assistant"), default=0)
        begin = end
        while begin and entries[begin - 1]["role"] == "assistant":
            begin -= 1
        calls = _calls(entries[begin:end])
        done = _done({call.id for call in calls}, entries[end:])
        return tuple(replace(call, done=True) if call.id in done else call for call in calls)

    def _folded(self, entries: tuple[Entry, ...], said: Sequence[Answer]) -> tuple[Entry, ...]:
        blocks = [_result(call, content) for call, content in said]
        if not blocks:
            return entries
        *before, last = entries
        if last["role"] == "assistant":
            return (*entries, {"role": "user", "content": blocks})
        return (*before, extended(last, "content", blocks))


def _calls(messages: Sequence[Entry]) -> list[ReservedCall]:
    held = [_uses(message.get("content")) for message in messages]
    uses = [use for some in held for use in some]
    if not uses:
        raise broken("the last assistant message lists no calls")
    if not all(dropwhile(lambda some: not some, held)):
        raise broken("an assistant message stands between a call and its result")
    if not all(named(use.get("id")) and named(use.get("name")) for use in uses):
        raise broken("every call has to be an object with an id and the name of its tool")
    return [ReservedCall(index, use["id"], use["name"]) for index, use in enumerate(uses)]


def _uses(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return []
    if not objects(content):
        raise broken("the content of the last assistant message has to be text or a list of objects")
    return [block for block in content if block.get("type") == "tool_use"]


def _done(own: set[str | None], after: Sequence[Entry]) -> set[str | None]:
    if not after:
        return set()
    blocks = after[0].get("content")
    if len(after) > 1 or after[0]["role"] != "user" or not objects(blocks) or not blocks:
        raise broken("only one user message with results may follow the last assistant message")
    done: set[str | None] = set()
    for block in blocks:
        name = block.get("tool_use_id")
        if block.get("type") != "tool_result" or not named(name) or name not in own:
            # Text before a result is refused, so nothing but results may stand where one is still to come.
            raise broken("only results of its own calls may follow the last assistant message")
        if name in done:
            raise broken("a call of the last assistant message has two results")
        done.add(name)
    return done


def _result(call: ReservedCall, content: Result) -> dict[str, Any]:
    if not isinstance(content, str) and not (objects(content) and all(part.get("type") in PARTS for part in content)):
        raise InteractionConfigurationError(
            f"a result has to be text or a list of parts of the types {', '.join(PARTS)}"
        )
    return {"type": "tool_result", "tool_use_id": call.id, "content": content}
