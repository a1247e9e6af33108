"""The log as views read it: headers alone, and of most of them only the front."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

from pydantic_core import from_json

from ..domain.errors import LedgerTooNew
from ..projections.rows import spelled
from ..projections.seen import Seen, Why, unheard
from .layout import HEARD
from .mapper import FRONT, LENGTH_BYTES, MAGIC, FactMapper
from .store import Front, LedgerRecorder

_END = ord("}")

Parse = Callable[[bytes], dict[str, Any]]
Hear = Callable[[bytes], Any]
Fronts = Sequence[Front]

_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
_TEXT = r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"'
# How every header begins that this package writes: what each view needs of any fact, without reading the rest.
_FRONT = (
    r'\{"ledger":"%s","pause":"([0-9a-f-]{36})","scope":'
    rf'(\{{"tenant_id":{_TEXT},"sub_tenant_id":(?:null|{_TEXT}),"namespace":(?:null|{_TEXT})\}}|null)'
    rf',"at":"({_MOMENT.pattern})"(?=,"attempt":)'
)


class Log:
    """The log as followers read it."""

    def __init__(self, recorder: LedgerRecorder, mapper: FactMapper, ledger_id: UUID) -> None:
        self._recorder = recorder
        self._mapper = mapper
        self._ledger = str(ledger_id)
        self._front = re.compile((_FRONT % self._ledger).encode()).match
        self._parsers: dict[str, tuple[str, Parse | None, Hear]] = {}
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
        try:
            return list(self._all(rows))
        except (TypeError, AttributeError):
            # A column's type is a wish in SQLite. Asked only now, as a question for each row would cost more.
            return list(self._all([_typed(*row) for row in rows]))

    def _all(self, rows: Fronts) -> Iterator[Seen]:
        """Make facts of rows; written out in one loop, as it goes through every fact of the log."""
        match_front, parsers = self._front, self._parsers
        for stream, version, topic, state, position in rows:
            end = FRONT + int.from_bytes(state[FRONT - LENGTH_BYTES : FRONT], "big")
            header = state[FRONT:end]
            front = match_front(header) if state.startswith(MAGIC) and end <= len(state) else None
            if front is None or header[-1] != _END:
                cut = _cut(state) if state.startswith(MAGIC) else b""
                yield self._odd(stream, version, topic, cut, position)
                continue
            pause_bytes, scope_bytes, at = front.groups()
            pause = pause_bytes.decode()
            scope = _scope(scope_bytes)
            if scope is None or (pause != stream and pause.replace("-", "") != stream):
                yield self._odd(stream, version, topic, header, position)
                continue
            name, parse, hear = parsers.get(topic) or self._parser(topic)
            told = at.decode()
            why: Why | None = None
            if parse is None:
                parse, why = json_object, "too_new"
            yield Seen(position, pause, version, topic, name, pause, told, scope, header, parse, hear, why, front.end())

    def _whole(self, position: int) -> bytes | None:
        """Read a whole row's state; None where what stands there is no row of ours."""
        try:
            state = self._recorder.whole(position)
        except (TypeError, ValueError):
            return None
        return None if _cut(state) is None else state

    def _odd(self, spelled_stream: str, version: int, topic: str, header: bytes | None, position: int) -> Seen:
        """Read a header whose front is not as this package writes it, or that was not read far enough."""
        if header is None:
            whole = self._whole(position)
            if whole is not None:
                [seen] = self._all([(spelled_stream, version, topic, whole, position)])
                return seen
            header = b""
        name, parse, _ = self._parser(topic)
        stream = pause = _stream(spelled_stream)
        scope, told, why = "", "", None if parse else "too_new"
        try:
            fields = json_object(header)
            scope = spelled(fields.get("scope"))
            pause = str(UUID(fields["pause"]))
            told = fields["at"] if _MOMENT.fullmatch(fields["at"]) else ""
            if not told or fields["ledger"] != self._ledger:
                why = "corrupt"
        except (ValueError, KeyError, TypeError, AttributeError):
            why = "corrupt"
        read = parse or json_object
        return Seen(position, stream, version, topic, name, pause, told, scope, header, read, unheard, why)  # type: ignore[arg-type]

    def _parser(self, topic: str) -> tuple[str, Parse | None, Hear]:
        """Tell a topic's name, and how its header is read and heard; None where this version does not know it."""
        known = self._parsers.get(topic)
        if known is None:
            known = self._parsers[topic] = self._new_parser(topic)
        return known

    def _new_parser(self, topic: str) -> tuple[str, Parse | None, Hear]:
        nowhere, nothing = UUID(int=0), dict[str, Any]()
        try:
            name, upcasted = self._mapper.newest(topic, nothing, nowhere)
        except LedgerTooNew:
            return topic.partition("@")[0], None, unheard
        except (KeyError, TypeError, ValueError):
            # An upcaster that asks for a field: it is given one that has it, each time.
            name, upcasted = topic.partition("@")[0], None
        if upcasted is nothing:
            return name, json_object, self._hearing(topic)

        def upcast(header: bytes) -> dict[str, Any]:
            try:
                return self._mapper.newest(topic, json_object(header), nowhere)[1]
            except (KeyError, TypeError, AttributeError):
                raise ValueError(topic) from None

        return name, upcast, unheard

    def _hearing(self, topic: str) -> Hear:
        cut = HEARD.get(topic)
        if cut is None:
            return unheard

        def hear(rest: bytes) -> Any:
            try:
                return cut(rest.decode())
            except UnicodeDecodeError:
                return None

        return hear


def json_object(header: bytes) -> dict[str, Any]:
    """Read a header; it was strict JSON when it was written, so a fast and lenient reader does.

    Raises:
        ValueError: it is no JSON object.
    """
    fields = from_json(header)
    if not isinstance(fields, dict):
        raise ValueError("a header is an object")  # noqa: TRY004 - whoever asks wants one kind of error
    return fields


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
def _scope(text: bytes) -> str | None:
    try:
        return spelled(from_json(text))
    except ValueError:
        return None
