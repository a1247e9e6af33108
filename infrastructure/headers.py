"""The log as views read it: headers alone, and of most of them only the front."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

from pydantic_core import from_json

from ..domain.errors import LedgerTooNew
from ..projections.rows import spelled
from ..projections.seen import Seen
from .mapper import FRONT, LENGTH_BYTES, MAGIC, FactMapper
from .store import Front, LedgerRecorder

Parse = Callable[[bytes], dict[str, Any]]
Fronts = Sequence[Front]

_MOMENT = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
_MOMENT_LENGTH = len("2026-11-30T18:00:00.000000Z")
# How every header goes on that this package writes: what each view needs of a fact in its pause's own stream, without
# reading the rest. Quotes inside of a text are escaped, so that none can hold these.
_PAUSE, _SCOPE, _AT = 36, b'","scope":', b',"at":"'
# What of a question no view reads, and is half of it: what was asked, and the turn.
_UNREAD_FROM, _UNREAD_TO = b',"request":{', b',"round":{'


class Log:
    """The log as followers read it."""

    def __init__(self, recorder: LedgerRecorder, mapper: FactMapper, ledger_id: UUID) -> None:
        self._recorder = recorder
        self._mapper = mapper
        self._ledger = str(ledger_id)
        self._front = b'{"ledger":"%b","pause":"' % self._ledger.encode()
        self._scope_from = len(self._front) + _PAUSE
        self._parsers: dict[str, tuple[str, Parse | None]] = {}
        #: Whether a server reads while this process folds.
        self.apart = recorder.apart

    def after(self, position: int, limit: int) -> list[Seen]:
        """Read the next facts, in order; one that cannot be read says so."""
        return self.seen(self.fronts(position, limit))

    def knows(self, topic: str) -> bool:
        """Tell whether this version can read facts of a topic."""
        return self._parser(topic)[1] is not None

    def fronts(self, position: int, limit: int) -> Fronts:
        """Read the next rows as they are; `seen` makes facts of them."""
        return self._recorder.headers(position, limit)

    def newest(self) -> int:
        """Tell the newest position, 0 where the log is empty."""
        return self._recorder.max_notification_id() or 0

    def count_after(self, position: int, most: int) -> int:
        """Count the facts after a position, up to `most`."""
        return len(self._recorder.headers(position, most))

    def seen(self, rows: Fronts) -> list[Seen]:
        """Make facts of rows."""
        see = self._see
        try:
            return [see(*row) for row in rows]
        except (TypeError, AttributeError):
            # A column's type is a wish in SQLite. Asked only now, as a question for each row would cost more.
            return [see(*_typed(*row)) for row in rows]

    def _see(self, stream: str, version: int, topic: str, state: bytes, position: int) -> Seen:
        header = _cut(state)
        if header is None:
            header = self._whole(position)
        scope_from = self._scope_from
        at = header.find(_AT, scope_from) + len(_AT)
        pause = header[scope_from - _PAUSE : scope_from].decode("latin-1")
        end = at + _MOMENT_LENGTH
        if (
            at - len(_AT) < scope_from + len(_SCOPE)
            or not header.startswith(self._front)
            or not header.startswith(_SCOPE, scope_from)
            or (pause != stream and pause.replace("-", "") != stream)
            or _MOMENT.fullmatch(header, at, end) is None
            or header[end : end + 1] + header[-1:] != b'"}'
        ):
            return self._odd(stream, version, topic, header, position)
        name, parse = self._parsers.get(topic) or self._parser(topic)
        try:
            scope = _scope(header[scope_from + len(_SCOPE) : at - len(_AT)])
        except (KeyError, TypeError, ValueError):
            return self._odd(stream, version, topic, header, position)
        told = header[at:end].decode()
        if parse is None:
            return Seen(position, pause, version, topic, name, pause, told, scope, header, json_object, "too_new")
        return Seen(position, pause, version, topic, name, pause, told, scope, header, parse)

    def _whole(self, position: int) -> bytes:
        """Read a header from the whole row; none where what stands there is no row of ours."""
        try:
            return _cut(self._recorder.whole(position)) or b""
        except (TypeError, ValueError):
            return b""

    def _odd(self, spelled_stream: str, version: int, topic: str, header: bytes, position: int) -> Seen:
        """Read a header whose front is not as this package writes it."""
        name, parse = self._parser(topic)
        stream = pause = _stream(spelled_stream)
        scope, told, why = "", "", None if parse else "too_new"
        try:
            fields = json_object(header)
            scope = spelled(fields.get("scope"))
            pause = str(UUID(fields["pause"]))
            told = fields["at"] if _MOMENT.fullmatch(fields["at"].encode()) else ""
            if not told or fields["ledger"] != self._ledger:
                why = "corrupt"
        except (ValueError, KeyError, TypeError, AttributeError):
            why = "corrupt"
        return Seen(position, stream, version, topic, name, pause, told, scope, header, parse or json_object, why)  # type: ignore[arg-type]

    def _parser(self, topic: str) -> tuple[str, Parse | None]:
        """Tell a topic's name, and how its header is read; None where this version does not know it."""
        known = self._parsers.get(topic)
        if known is None:
            known = self._parsers[topic] = self._new_parser(topic)
        return known

    def _new_parser(self, topic: str) -> tuple[str, Parse | None]:
        nowhere, nothing = UUID(int=0), dict[str, Any]()
        try:
            name, upcasted = self._mapper.newest(topic, nothing, nowhere)
        except LedgerTooNew:
            return topic.partition("@")[0], None
        except (KeyError, TypeError, ValueError):
            # An upcaster that asks for a field: it is given one that has it, each time.
            name, upcasted = topic.partition("@")[0], None
        if upcasted is nothing:
            return name, _question if name == "pause.paused" else json_object

        def upcast(header: bytes) -> dict[str, Any]:
            try:
                return self._mapper.newest(topic, json_object(header), nowhere)[1]
            except (KeyError, TypeError, AttributeError):
                raise ValueError(topic) from None

        return name, upcast


def json_object(header: bytes) -> dict[str, Any]:
    """Read a header; it was strict JSON when it was written, so a fast and lenient reader does.

    Raises:
        ValueError: it is no JSON object.
    """
    fields = from_json(header)
    if not isinstance(fields, dict):
        raise ValueError("a header is an object")  # noqa: TRY004 - whoever asks wants one kind of error
    return fields


def _question(header: bytes) -> dict[str, Any]:
    """Read a question without what no view needs of it."""
    start = header.find(_UNREAD_FROM)
    end = header.find(_UNREAD_TO, start)
    return json_object(header if min(start, end) < 0 else header[:start] + header[end:])


def _typed(stream: object, version: object, topic: object, state: object, position: int) -> Front:
    """Give a row whose columns were altered into another type as one of no stream, version or header."""
    whole = state if isinstance(state, bytes) else b""
    return str(stream), version if isinstance(version, int) else -1, str(topic), whole, position


def _stream(stored: str) -> str:
    """Spell a stream's id; one that was altered into none is told as that of no stream."""
    try:
        return str(UUID(stored))
    except ValueError:
        return str(UUID(int=0))


def _cut(state: bytes) -> bytes | None:
    """Cut a row's header out; None where it is not in the ledger's format, or was not read far enough."""
    if not isinstance(state, bytes):
        # A column's type is a wish in SQLite.
        return None
    end = FRONT + int.from_bytes(state[FRONT - LENGTH_BYTES : FRONT], "big")
    return state[FRONT:end] if state.startswith(MAGIC) and FRONT <= end <= len(state) else None


@lru_cache(4096)
def _scope(text: bytes) -> str:
    return spelled(from_json(text))
