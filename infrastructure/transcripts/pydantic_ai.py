"""Pydantic AI's messages as `ModelMessagesTypeAdapter` writes them: results as parts of a request of their own."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...domain.errors import InteractionConfigurationError
from ...domain.turn import Entry, ReservedCall, Result
from .codec import Answer, Codec, broken, named, objects

#: The parts that answer a call; a `retry-prompt` without a tool's name answers none.
RESULTS = ("tool-return", "retry-prompt")
#: How the kinds of parts end that record a change of tools or settings, and say nothing.
RECORDS = ("-delta", "-baseline")


class PydanticAI(Codec):
    """The list that pydantic-ai's `ModelMessagesTypeAdapter` dumps and loads.

    Where a run had some of the calls executed before it stopped, its history ends with a request that holds their
    results, and pydantic-ai puts the deferred ones into a second request; so is it done here. A `builtin-tool-call`
    was run by the provider.

    Only what a `ToolReturnPart` cannot do without is written: all else has a default that fits, and the time at which
    a result came is not known here.

    Sources: pydantic-ai 2.x, `ModelRequest`, `ToolReturnPart`, `RetryPromptPart`; the rules that lie beside the
    recorded turns in the tests.
    """

    format = "pydantic-ai"

    def _round(self, entries: Sequence[Entry]) -> tuple[ReservedCall, ...]:
        if not all(map(_is_message, entries)):
            raise broken("every message has to be a request or a response with a list of parts")
        last = max((at for at, entry in enumerate(entries) if entry["kind"] == "response"), default=None)
        if last is None:
            raise broken("the turn holds no response")
        calls = _calls(entries[last]["parts"])
        done = _done({call.id: call.tool for call in calls}, entries[last + 1 :])
        return tuple(replace(call, done=True) if call.id in done else call for call in calls)

    def _folded(self, entries: tuple[Entry, ...], said: Sequence[Answer]) -> tuple[Entry, ...]:
        parts = [_result(call, content) for call, content in said]
        return (*entries, {"parts": parts, "kind": "request"}) if parts else entries


def _is_message(entry: Entry) -> bool:
    return isinstance(entry, dict) and entry.get("kind") in ("request", "response") and objects(entry.get("parts"))


def _calls(parts: list[dict[str, Any]]) -> list[ReservedCall]:
    calls = [part for part in parts if part.get("part_kind") == "tool-call"]
    if not calls:
        raise broken("the last response lists no calls")
    if not all(named(call.get("tool_call_id")) and named(call.get("tool_name")) for call in calls):
        raise broken("every call has to have an id and the name of its tool")
    return [ReservedCall(index, call["tool_call_id"], call["tool_name"]) for index, call in enumerate(calls)]


def _done(own: dict[str | None, str | None], after: Sequence[Entry]) -> set[str | None]:
    done: set[str | None] = set()
    for part in (part for entry in after for part in entry["parts"]):
        kind, name = part.get("part_kind"), part.get("tool_call_id")
        if isinstance(kind, str) and kind.endswith(RECORDS):
            continue
        if kind not in RESULTS or not named(name) or name not in own or own[name] != part.get("tool_name"):
            raise broken("only results of its own calls may follow the last response")
        if name in done:
            raise broken("a call of the last response has two results")
        done.add(name)
    return done


def _result(call: ReservedCall, content: Result) -> dict[str, Any]:
    if not isinstance(content, str) and not _is_content(content):
        raise InteractionConfigurationError("a result has to be text or a list of texts and objects")
    return {
        "tool_name": call.tool,
        "content": content,
        "tool_call_id": call.id,
        "outcome": "success",
        "part_kind": "tool-return",
    }


def _is_content(content: Any) -> bool:
    return isinstance(content, list) and all(isinstance(part, str | dict) for part in content)
