"""Turns kept in LangGraph's checkpoints: the recorded one is read, as plain data, and nothing in it is ever run."""

import asyncio
import copy
from dataclasses import dataclass
from typing import Any, Never

import ormsgpack
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2, JsonPlusSerializer

from ...domain.strict_json import LARGEST, Unfit, write
from ...domain.turn import CheckpointReference

#: The types that a turn may hold, by module and name; each is read as the fields it was stored with.
MESSAGES = frozenset(
    (f"langchain_core.messages.{module}", name + chunk)
    for module, name in (
        ("ai", "AIMessage"),
        ("chat", "ChatMessage"),
        ("function", "FunctionMessage"),
        ("human", "HumanMessage"),
        ("system", "SystemMessage"),
        ("tool", "ToolMessage"),
    )
    for chunk in ("", "Chunk")
)
#: What a checkpoint reads as whose turn holds anything else: no list of messages, so no codec takes it for a turn, and
#: no digest of a turn is its digest.
UNREADABLE = b'{"unreadable":true}'
_OPTIONS = ormsgpack.OPT_NON_STR_KEYS


def strict_serializer() -> JsonPlusSerializer:
    """Make the serialiser for the host's own saver: LangGraph's, with its built-in list of types and no pickle.

    Without it a saver imports and calls whatever a checkpoint names (LangGraph warns, and goes on).
    """
    return JsonPlusSerializer(pickle_fallback=False, allowed_json_modules=None, allowed_msgpack_modules=None)


class LangGraphCheckpoints:
    """The port to turns in a LangGraph saver, PostgreSQL's or SQLite's. Pass it to `LedgerSettings(checkpoints=...)`.

    A reference names a thread (`locator`) and a checkpoint (`version`). What was stored is spelled as JSON without
    making a message of it, so its digest outlives an upgrade of LangChain.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], *, messages_key: str = "messages") -> None:
        self._saver = copy.copy(saver)
        self._saver.serde = _Inert()
        self._key = messages_key

    async def read(self, reference: CheckpointReference) -> bytes | None:
        """Read the messages of the recorded checkpoint; None where it is gone.

        A turn that holds a pickle, or a type that is not listed, comes back as no turn at all: pausing rejects it as
        `turn_broken`, a redemption refuses it as `turn_mismatch`.
        """
        found = await self._find(
            {
                "configurable": {
                    "thread_id": reference.locator,
                    "checkpoint_ns": "",
                    "checkpoint_id": reference.version,
                }
            }
        )
        if found is None:
            return None
        checkpoint: Any = found.checkpoint
        try:
            return write(checkpoint["channel_values"][self._key], limit=LARGEST)
        except (Unfit, KeyError, TypeError):
            return UNREADABLE

    async def _find(self, config: Any) -> CheckpointTuple | None:
        try:
            return await self._saver.aget_tuple(config)
        except NotImplementedError:
            return await asyncio.to_thread(self._saver.get_tuple, config)


@dataclass(frozen=True, slots=True)
class _Unread:
    """A value that was left as it is. JSON cannot carry it, so a turn that holds it is unreadable."""

    kind: str


class _Inert:
    """A serialiser that reads stored values as plain data, and makes and imports nothing."""

    def dumps_typed(self, obj: Any) -> Never:  # noqa: ARG002 - the signature of a serialiser
        raise TypeError("checkpoints are read here, never written")

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, stored = data
        if kind == "null":
            return None
        if kind != "msgpack":
            return _Unread(kind)
        try:
            return ormsgpack.unpackb(stored, ext_hook=_plain, option=_OPTIONS)
        except (KeyError, TypeError, ValueError):
            return _Unread("broken")


def _plain(code: int, stored: bytes) -> Any:
    if code != EXT_PYDANTIC_V2:
        return _Unread(str(code))
    module, name, fields, *_ = ormsgpack.unpackb(stored, ext_hook=_plain, option=_OPTIONS)
    if (module, name) not in MESSAGES:
        return _Unread("type")
    return {"type": fields["type"], "data": fields}
