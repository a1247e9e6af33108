"""What must hold of each stream and each round, judged row by row out of the bytes as stored.

It reads rows by docs/facts.md, and shares no line with the mapper, which wrote them, nor with raw_check.py, which the
tests hold both against: a mistake made once would else be found by nobody.
"""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Any, Literal
from uuid import UUID

import zstandard
from eventsourcing.persistence import Notification
from pydantic_core import from_json

_FRONT, _DIGEST = 40, slice(4, 36)
_SALT = 16
#: A frame that declares more is not inflated.
_MOST = (4 << 20) + _SALT
_NOTHING = bytes(32)
_NAMED = {"segment", "stored", "digest", "comp"}
_ONCE = ("pause.paused", "pause.answered", "pause.consumed", "pause.continued")

#: Raised where what a header holds is not what such a fact has.
NOT_SO = (LookupError, TypeError, AttributeError, ValueError, OverflowError)

Part = Literal["table", "row", "stream", "round", "tree", "head", "view", "vault"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that must not be, and where.

    Attributes:
        part: What does not hold: a table, a row, its stream, its round, the tree, a head, a view, or the vault.
        says: What is wrong, in words; of what a row holds it tells nothing.
        position: In the log.
        stream, version: Of the row.
        leaf: In the tree; of a head, how many leaves are proved to be as they were signed.
        view: Which one.
    """

    part: Part
    says: str
    position: int | None = None
    stream: UUID | None = None
    version: int | None = None
    leaf: int | None = None
    view: str | None = None

    def __str__(self) -> str:
        told = {
            "position": self.position,
            "leaf": self.leaf,
            "stream": self.stream,
            "version": self.version,
            "view": self.view,
        }
        where = ", ".join(f"{name} {value}" for name, value in told.items() if value is not None)
        return f"{where}: {self.says}" if where else self.says


@dataclass(slots=True)
class Stream:
    """A stream while it is read: what the next row is held against, and what its round has to be."""

    id: UUID
    version: int = 0
    digest: bytes = _NOTHING
    at: str = ""
    position: int = 0
    first: str = ""
    names: dict[str, int] = field(default_factory=dict)
    fences: list[int] = field(default_factory=list)
    pauses: set[Any] = field(default_factory=set)
    round: dict[str, Any] | None = None
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    consumed: tuple[int, dict[str, Any]] | None = None
    sound: bool = True
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = str(self.id)


def _sized(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part


@lru_cache(8)
def _of_ledger(ledger: UUID) -> tuple[str, bytes]:
    return str(ledger), _sized(b"plf/1") + _sized(ledger.bytes)


@lru_cache(64)
def _of_topic(topic: str) -> bytes:
    return _sized(topic.encode("utf-8", "surrogatepass"))


class _Inflating(threading.local):
    """Each thread's own: making one for each segment would take longer than most of them."""

    def __init__(self) -> None:
        self.by = zstandard.ZstdDecompressor()


_inflating = _Inflating()


def read_row(ledger: UUID, row: Notification, stream: Stream) -> Sequence[Fault]:
    """Hold a row against the one before it in its stream, and add it to what is known of the stream."""
    found: list[str] = []
    try:
        _of_row(ledger, row, stream, found)
    except NOT_SO:
        found.append("its header lacks what its fact needs")
        _go_on(row, stream)
    if not found:
        return ()
    stream.sound = False
    return [Fault("row", says, row.id, stream.id, row.originator_version) for says in found]


def _of_row(ledger: UUID, row: Notification, stream: Stream, found: list[str]) -> None:
    state, version = bytes(row.state), row.originator_version
    if version != stream.version + 1:
        found.append(f"version {stream.version + 1} of its stream is missing")
    if row.id <= stream.position:
        found.append("its position is not behind that of the row before it in its stream")
    end = _FRONT + int.from_bytes(state[36:_FRONT], "big")
    header = _header(state, end)
    if header is None:
        found.append("it is not in the format PLF1")
    else:
        _of_bytes(ledger, row, state, end, header, stream.digest, found)
        _of_header(ledger, row, header, stream, found)
    _go_on(row, stream)


def _go_on(row: Notification, stream: Stream) -> None:
    """Hold what follows against this row, whatever it was."""
    stream.version, stream.digest, stream.position = row.originator_version, bytes(row.state)[_DIGEST], row.id


def _header(state: bytes, end: int) -> dict[str, Any] | None:
    if state[:4] != b"PLF1" or not _FRONT < end <= len(state):
        return None
    try:
        said = from_json(state[_FRONT:end])
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def _of_bytes(  # noqa: PLR0917 - one caller
    ledger: UUID, row: Notification, state: bytes, start: int, header: dict[str, Any], before: bytes, found: list[str]
) -> None:
    # In a row as in what is digested, the header stands behind its length.
    parts = [
        _of_ledger(ledger)[1], _UUID_SIZE, id_of(row).bytes, _U64_SIZE, _u64(row.originator_version),
        _of_topic(row.topic), _sized(before), state[36:start],
    ]  # fmt: skip
    # Quotes inside of a text are escaped, so that the name of a key is found wherever there is one.
    contents = _contents(header, state.count(_SEGMENT, _FRONT, start))
    contents.sort(key=_number)
    whole = True
    for turn, content in enumerate(contents):
        stored = state[start : start + content["stored"]]
        parts.append(_sized(stored))
        start += content["stored"]
        whole = whole and content["segment"] == turn
        # What was encrypted is digested as it was before.
        if content.get("cipher", "none") == "none" and not _as_digested(content, stored):
            found.append(f"its segment {content['segment']} is not what was digested")
    if not whole or start != len(state):
        found.append("its segments are not those that its header names")
    if hashlib.sha256(b"".join(parts)).digest() != state[_DIGEST]:
        found.append("its digest is another one: the row, or the one before it, is not what was written")


def _u64(number: int) -> bytes:
    return (number % (1 << 64)).to_bytes(8, "big")


def id_of(row: Notification) -> UUID:
    """Give a row's stream."""
    return row.originator_id if isinstance(row.originator_id, UUID) else UUID(row.originator_id)


_number = itemgetter("segment")
_SEGMENT = b'"segment":'
_UUID_SIZE, _U64_SIZE = (16).to_bytes(4, "big"), (8).to_bytes(4, "big")


def _contents(header: dict[str, Any], most: int) -> list[dict[str, Any]]:
    """Find the contents that a header names, wherever they stand in it; there are so many at most."""
    found: list[dict[str, Any]] = []
    left = [header]
    while left and len(found) < most:
        for value in left.pop().values():
            if type(value) is dict:
                if value.keys() >= _NAMED and type(value["segment"]) is int:
                    # A length that is none is one that no row has.
                    found.append(
                        value if type(value["stored"]) is int and value["stored"] >= 0 else {**value, "stored": _MOST}
                    )
                else:
                    left.append(value)
            elif type(value) is list:
                left += [{"": one} for one in value if type(one) in {dict, list}]
    return found


def _as_digested(content: dict[str, Any], stored: bytes) -> bool:
    size = content.get("size")
    whole = size + _SALT if type(size) is int else -1
    if content["comp"] == "zstd":
        try:
            # The library inflates what a frame declares, whatever its own limit says.
            if not zstandard.get_frame_parameters(stored).content_size == whole <= _MOST:
                return False
            stored = _inflating.by.decompress(stored, max_output_size=whole)
        except zstandard.ZstdError:
            return False
    return len(stored) == whole and hashlib.sha256(stored).hexdigest() == content["digest"]


def _of_header(ledger: UUID, row: Notification, header: dict[str, Any], stream: Stream, found: list[str]) -> None:
    name, at = row.topic.partition("@")[0], str(header.get("at", ""))
    if header.get("ledger") != _of_ledger(ledger)[0]:
        found.append("it is of another ledger")
    if at < stream.at:
        found.append("its time is before that of the row before it in its stream")
    stream.at = at
    stream.first = stream.first or name
    once = name if name != "pause.answered" or _completes(header) else "one of several pause.answered"
    stream.names[once] = stream.names.get(once, 0) + 1
    if name.startswith("pause."):
        stream.pauses.add(header.get("pause"))
    match name:
        case "pause.paused":
            stream.round = header.get("round")
        case "pause.answered":
            stream.answers[row.originator_version] = header
        case "pause.withdrawn":
            stream.answers.clear()
        case "pause.consumed":
            stream.consumed = (row.originator_version, header)
    if name in {"pause.consumed", "pause.recovered"} and header.get("claim"):
        stream.fences.append(header["claim"].get("fence"))


def judge(stream: Stream) -> Iterator[Fault]:
    """Judge a stream that was read to its end."""
    try:
        found = list(_of_stream(stream))
    except NOT_SO:
        found = ["one of its facts lacks what such a fact needs"]
    yield from (Fault("stream", says, stream.position, stream.id, stream.version) for says in found)


def _of_stream(stream: Stream) -> Iterator[str]:
    for name in _ONCE:
        if stream.names.get(name, 0) > 1:
            yield f"it holds {stream.names[name]} times {name}"
    if not stream.pauses:
        return
    people = [_who(answer) for answer in stream.answers.values() if _quorum(answer) > 1]
    if len(set(people)) < len(people):
        yield "one person's answers count twice"
    alone = stream.names.keys() in ({"pause.refused"}, {"pause.presented"})
    if stream.first != "pause.paused" and not alone:
        yield "it does not begin with its pause"
    if len(stream.pauses) > 1 or (stream.first == "pause.paused" and stream.pauses != {stream.name}):
        yield "it holds facts of another pause"
    if stream.fences != list(range(1, len(stream.fences) + 1)):
        yield f"its fences are {stream.fences}, and not one after the other"


def members(stream: Stream) -> tuple[UUID, list[UUID]] | None:
    """Tell the lead of a stream's round, and all whose pauses it is made of; None where it is not among them."""
    try:
        told = stream.round or {}
        lead, others = UUID(told["lead"]), [UUID(call["pause"]) for call in told["calls"] if call["pause"]]
    except NOT_SO:
        return None
    return (lead, others) if stream.id in others else None


def judge_alone(stream: Stream) -> Iterator[Fault] | None:
    """Judge the round of a pause that is the only one in it; None where it is not."""
    told = stream.round or {}
    try:
        if told["lead"] != stream.name or [call["pause"] for call in told["calls"] if call["pause"]] != [stream.name]:
            return None
        version, end = stream.consumed or (0, {})
        says = list(_of_consumed(stream, end, {})) if stream.consumed else []
    except NOT_SO:
        return None
    return (Fault("round", one, stream.position, stream.id, version) for one in says)


def judge_round(lead: UUID, held: dict[UUID, Stream]) -> Iterator[Fault]:
    """Judge a round whose streams were read at one moment: consumed together by one attempt, or not at all."""
    try:
        yield from _of_round(lead, held)
    except NOT_SO:
        yield Fault("round", "what consumed its round lacks what such a fact needs", stream=lead)


def _of_round(lead: UUID, held: dict[UUID, Stream]) -> Iterator[Fault]:
    names = members(held[lead])
    if names is None or names[0] != lead:
        return
    at = held[lead]
    missing = [one for one in names[1] if one not in held]
    yield from (Fault("round", "its round names it, and it is not there", stream=one) for one in missing)
    ends = {one: held[one].consumed for one in names[1] if one in held}
    consumed = {one: end for one, end in ends.items() if end is not None}
    if missing or not consumed:
        return
    if len(consumed) != len(ends):
        says = f"half a round: {len(consumed)} of its {len(ends)} streams are consumed"
        yield Fault("round", says, at.position, lead, at.version)
    elif len({end["attempt"] for _, end in consumed.values()}) > 1:
        yield Fault("round", "several attempts consumed its round", at.position, lead, at.version)
    else:
        for one, (version, end) in consumed.items():
            stand = {str(other): seen - 1 for other, (seen, _) in consumed.items() if other != one}
            yield from (
                Fault("round", says, held[one].position, one, version) for says in _of_consumed(held[one], end, stand)
            )


def _of_consumed(stream: Stream, end: dict[str, Any], stand: dict[str, int]) -> Iterator[str]:
    if {one["pause"]: one["version"] for one in end["siblings"]} != stand:
        yield "it names its siblings as they do not stand"
    made = next((version for version, answer in stream.answers.items() if _completes(answer)), None)
    numbers = [stream.answers[version]["number"] for version in end["answers"] if version in stream.answers]
    wanted = [] if made is None else list(range(1, stream.answers[made]["number"] + 1))
    strangers = len(numbers) != len(end["answers"]) or (made is not None and made not in end["answers"])
    if numbers != wanted or strangers:
        yield "it names another answer than its stream holds"
    elif made is not None and end["response_digest"] != stream.answers[made]["response"]["digest"]:
        yield "it was consumed with another answer than its stream holds"


def _quorum(answer: dict[str, Any]) -> int:
    """Tell how many people have to agree, by the policy that an answer names."""
    policy = answer.get("policy")
    return int(policy["quorum"]) if isinstance(policy, dict) else 1


def _completes(answer: dict[str, Any]) -> bool:
    return int(answer.get("number", 1)) >= _quorum(answer)


def _who(answer: dict[str, Any]) -> str:
    by = answer.get("by")
    return str(by["tag"]) if isinstance(by, dict) else ""


def whole_streams(ledger: UUID, rows: Sequence[Notification]) -> dict[UUID, Stream]:
    """Read streams that were loaded whole; only those in which every row is what was written are given."""
    held: dict[UUID, Stream] = {}
    for row in rows:
        read_row(ledger, row, held.get(id_of(row)) or held.setdefault(id_of(row), Stream(id_of(row))))
    return {name: stream for name, stream in held.items() if stream.sound}
