"""Gemini's contents: as many functionResponse parts as there were functionCall parts, in ONE user content after."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...domain.errors import InteractionConfigurationError
from ...domain.turn import Entry, ReservedCall, Result
from .codec import Answer, Codec, broken, extended, named, objects

#: A part's field as the REST reference spells it, and as the Python client dumps it.
SPELLINGS = {"functionCall": "functionResponse", "function_call": "function_response"}
#: The media that a functionResponse may carry beside its object.
MEDIA = ("inlineData", "inline_data", "fileData", "file_data")


class Gemini(Codec):
    """The `contents` of Gemini's generateContent, on either endpoint.

    Many calls have no id. Their responses have none either, and the provider counts those of one name off against the
    calls of that name, in order. So a response is written only where that count comes out right: the result of a call
    without an id is held back, and its call stays open, until every earlier call of the same name has its own.

    Model contents in a row are one round. What the provider ran itself (`toolCall`, `toolResponse`) waits for nobody.
    A `functionResponse` holds an object: text is wrapped as `{"result": text}`; of a list of parts, the media go beside
    it and the texts into it.

    Sources: Google's reference of generateContent (Content, FunctionCall, FunctionResponse), and the rules that lie
    beside the recorded turns in the tests.
    """

    format = "gemini"

    def _round(self, entries: Sequence[Entry]) -> tuple[ReservedCall, ...]:
        if not all(isinstance(entry, dict) and isinstance(entry.get("role"), str | None) for entry in entries):
            raise broken("every content has to be an object, and its role text")
        end = max((at for at, entry in enumerate(entries, 1) if entry.get("role") == "model"), default=0)
        begin = end
        while begin and entries[begin - 1].get("role") == "model":
            begin -= 1
        calls = [
            ReservedCall(index, _id(call), _name(call))
            for index, (_, call) in enumerate(_held(entries[begin:end], SPELLINGS))
        ]
        if not calls:
            raise broken("the last model content lists no calls")
        for content in entries[end:]:
            responses = list(_held([content], SPELLINGS.values()))
            if not responses:
                raise broken("only contents with results of its own calls may follow the last model content")
            for _, response in responses:
                at = _answered(calls, response)
                calls[at] = replace(calls[at], done=True)
        return tuple(calls)

    def _due(self, waiting: Sequence[ReservedCall], results: Mapping[int, Result]) -> list[Answer]:
        due, passed = [], set()
        for call in waiting:
            if call.index in results and (call.id is not None or call.tool not in passed):
                due.append((call, results[call.index]))
            else:
                passed.add(call.tool)
        return due

    def _folded(self, entries: tuple[Entry, ...], said: Sequence[Answer]) -> tuple[Entry, ...]:
        end = max(at for at, entry in enumerate(entries) if entry.get("role") == "model")
        spelling = SPELLINGS[next(key for key, _ in _held(entries[: end + 1][::-1], SPELLINGS))]
        parts = [{spelling: _response(call, content)} for call, content in said]
        if not parts:
            return entries
        *before, last = entries
        if last.get("role") == "model":
            return (*entries, {"role": "user", "parts": parts})
        return (*before, extended(last, "parts", parts))


def _held(contents: Sequence[Entry], keys: Iterable[str]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Give the calls, or the responses, that some contents hold, and by which key."""
    for content in contents:
        parts = content.get("parts") or []
        if not objects(parts):
            raise broken("the parts of the last contents have to be objects")
        for part in parts:
            for key in keys:
                # The Python client dumps the fields it does not use as null.
                if part.get(key) is not None:
                    if not isinstance(part[key], dict):
                        raise broken("a call or a response has to be an object")
                    yield key, part[key]


def _id(held: dict[str, Any]) -> str | None:
    name = held.get("id") or None
    if name is not None and not isinstance(name, str):
        raise broken("an id has to be text")
    return name


def _name(held: dict[str, Any]) -> str:
    if not named(held.get("name")):
        raise broken("every call and every response has to name its function")
    return str(held["name"])


def _answered(calls: Sequence[ReservedCall], response: dict[str, Any]) -> int:
    """Find whose response it is, as the provider does: by id, and without one by the next open call of that name."""
    name, tool = _id(response), _name(response)
    for call in calls:
        if not call.done and call.tool == tool and (name is None or call.id == name):
            if call.id != name:
                break
            return call.index
    raise broken("a response answers no open call, or lacks the id of the call it could be for")


def _response(call: ReservedCall, content: Result) -> dict[str, Any]:
    held: dict[str, Any] = {"name": call.tool, "response": {"result": content}}
    if not isinstance(content, str):
        if not objects(content) or not all(map(_is_carried, content)):
            raise InteractionConfigurationError("a result has to be text or a list of parts with text or media")
        media = [part for part in content if not _is_text(part)]
        held["response"] = {"result": [part for part in content if _is_text(part)]}
        if media:
            held["parts"] = media
    return held if call.id is None else {"id": call.id, **held}


def _is_text(part: dict[str, Any]) -> bool:
    return isinstance(part.get("text"), str)


def _is_carried(part: dict[str, Any]) -> bool:
    return _is_text(part) != any(isinstance(part.get(key), dict) for key in MEDIA)
