"""Reads a ledger's raw rows with nothing of the rest of the package, and tells what must hold of them and does not.

It stands on docs/facts.md alone, so that a mistake in the mapper or in a decision cannot hide itself here.
"""

import hashlib
import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

import zstandard

_FRONT = 40
_SALT = 16
_CIPHER_TAG = 16
_MOST = (4 << 20) + _SALT
_PAUSED, _CONSUMED, _REFUSED, _ANSWERED = "pause.paused@1", "pause.consumed@1", "pause.refused@1", "pause.answered@1"
_RECOVERED, _CONTINUED, _WITHDRAWN = "pause.recovered@1", "pause.continued@1", "pause.withdrawn@1"
_PRESENTED = "pause.presented@1"


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row as the store holds it, and what its header says (empty where that cannot be read)."""

    position: int
    stream: UUID
    version: int
    topic: str
    state: bytes = field(repr=False)

    @property
    def header(self) -> dict[str, Any]:
        """The fact as JSON, out of the middle of `state`."""
        try:
            said = json.loads(self.state[_FRONT : _FRONT + int.from_bytes(self.state[36:_FRONT], "big")])
        except ValueError:
            return {}
        return said if isinstance(said, dict) else {}


@dataclass(frozen=True, slots=True)
class RawLedger:
    """A ledger's id and all its rows, in the order of the log."""

    ledger_id: UUID
    rows: tuple[RawRow, ...]

    def of(self, topic: str, stream: UUID | None = None) -> list[RawRow]:
        """List the rows of one kind of fact (`pause.consumed`), in all streams or in one."""
        return [
            row
            for row in self.rows
            if row.topic.partition("@")[0] == topic and (stream is None or row.stream == stream)
        ]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that must never be, and where it stands (version 0: the stream as a whole)."""

    stream: UUID
    version: int
    says: str


def read(url: str, *, schema: str = "pauseledger", after: int = 0) -> RawLedger:
    """Read `sqlite:///path` or `postgresql://...` by plain SQL; all rows, or those after a position.

    Raises:
        sqlite3.Error, psycopg.Error: as the drivers do.
    """
    if url.startswith("sqlite:"):
        return _read_sqlite(Path(unquote(urlsplit(url).path)[1:]), after)
    return _read_postgres(url, schema, after)


def _read_sqlite(path: Path, after: int) -> RawLedger:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30)
    try:
        connection.execute("BEGIN")
        [(ledger,)] = connection.execute("SELECT ledger_id FROM ledger").fetchall()
        found = connection.execute(
            "SELECT rowid, originator_id, originator_version, topic, state FROM stored_events"
            " WHERE rowid > ? ORDER BY rowid",
            (after,),
        ).fetchall()
    finally:
        connection.close()
    return RawLedger(UUID(ledger), tuple(RawRow(at, UUID(stream), *rest) for at, stream, *rest in found))


def _read_postgres(dsn: str, schema: str, after: int) -> RawLedger:
    import psycopg  # noqa: PLC0415 - a driver that an embedded ledger need not load
    from psycopg import sql  # noqa: PLC0415 - the same

    events, ledger = sql.Identifier(schema, "stored_events"), sql.Identifier(schema, "ledger")
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        [(ledger_id,)] = connection.execute(sql.SQL("SELECT ledger_id FROM {}").format(ledger)).fetchall()
        found = connection.execute(
            sql.SQL(
                "SELECT notification_id, originator_id, originator_version, topic, state FROM {}"
                " WHERE notification_id > %s ORDER BY notification_id"
            ).format(events),
            (after,),
            binary=True,
        ).fetchall()
    return RawLedger(ledger_id, tuple(RawRow(*row) for row in found))


def faults(raw: RawLedger) -> list[Fault]:
    """List what is wrong with the rows; an empty list is a whole ledger.

    Every row: its format, its digest chained to the row before, each content's own digest, its ledger. Every stream:
    versions without a gap from 1, times that never go back, positions that rise. Every pause: at most one `Consumed`,
    fences one by one, at most one `Continued`. Every round: all its streams are there, and consumed together or not
    at all, by one attempt, each naming the others as they stand. A header that is not of its fact raises.
    """
    streams: dict[UUID, list[RawRow]] = defaultdict(list)
    for row in sorted(raw.rows, key=lambda row: (row.stream, row.version)):
        streams[row.stream].append(row)
    found = [fault for rows in streams.values() for fault in (*_of_stream(raw.ledger_id, rows), *_of_kinds(rows))]
    if found:
        # What the headers say of each other is worth nothing where a row is not what was written.
        return found
    pauses = {stream: rows for stream, rows in streams.items() if rows[0].topic == _PAUSED}
    found += [fault for stream, rows in streams.items() for fault in _of_names(stream, rows)]
    found += [fault for stream, rows in pauses.items() for fault in _of_claims(stream, rows)]
    found += [fault for stream, rows in pauses.items() for fault in _of_round(stream, rows, pauses)]
    return found


def _of_stream(ledger: UUID, rows: Sequence[RawRow]) -> Iterator[Fault]:
    before, at, position = bytes(32), "", 0
    for expected, row in enumerate(rows, 1):
        if row.version != expected:
            yield Fault(row.stream, row.version, f"version {expected} is missing")
            return
        yield from (Fault(row.stream, row.version, says) for says in _of_row(ledger, row, before))
        said = row.header
        if str(said.get("at", "")) < at:
            yield Fault(row.stream, row.version, "its time is before that of the row before it")
        if row.position <= position:
            yield Fault(row.stream, row.version, "its position is not behind that of the row before it")
        before, at, position = row.state[4:36], str(said.get("at", "")), row.position


def _of_row(ledger: UUID, row: RawRow, before: bytes) -> Iterator[str]:
    said, length = row.header, int.from_bytes(row.state[36:_FRONT], "big")
    if row.state[:4] != b"PLF1" or not said:
        yield "it is not in the format PLF1"
        return
    contents = sorted(_contents(said), key=lambda content: int(content["segment"]))
    segments, start = [], _FRONT + length
    for content in contents:
        segments.append(row.state[start : start + content["stored"]])
        start += content["stored"]
    if [content["segment"] for content in contents] != list(range(len(contents))) or start != len(row.state):
        yield "its segments are not those that its header names"
    parts = (b"plf/1", ledger.bytes, row.stream.bytes, row.version.to_bytes(8, "big"), row.topic.encode(), before)
    digest = hashlib.sha256()
    for part in (*parts, row.state[_FRONT : _FRONT + length], *segments):
        digest.update(len(part).to_bytes(4, "big") + part)
    if digest.digest() != row.state[4:36]:
        yield "its digest is another one: the row, or the one before it, is not what was written"
    yield from (says for each in zip(contents, segments, strict=True) for says in _of_content(*each))
    if said.get("ledger") != str(ledger):
        yield "it is of another ledger"


def _contents(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        # A label may have any of these names; its value is text.
        if {"segment", "stored", "digest", "comp"} <= value.keys() and isinstance(value["segment"], int):
            return [value]
        return [found for part in value.values() for found in _contents(part)]
    return [found for part in value for found in _contents(part)] if isinstance(value, list) else []


def _of_content(content: dict[str, Any], stored: bytes) -> Iterator[str]:
    if content.get("cipher", "none") != "none":
        # Without the keys, which are no part of a ledger's rows, the row's own digest has to do.
        if content["comp"] == "none" and len(stored) != content["size"] + _SALT + _CIPHER_TAG:
            yield f"its segment {content['segment']} has another size than its header says"
        return
    clear = _inflated(content, stored)
    if len(clear) != content["size"] + _SALT or hashlib.sha256(clear).hexdigest() != content["digest"]:
        yield f"its segment {content['segment']} is not what was digested"


def _inflated(content: dict[str, Any], stored: bytes) -> bytes:
    whole = content["size"] + _SALT
    try:
        packed = content["comp"] == "zstd"
        # The library inflates what a frame declares, whatever its own limit says.
        honest = not packed or zstandard.get_frame_parameters(stored).content_size == whole <= _MOST
        return zstandard.ZstdDecompressor().decompress(stored, max_output_size=whole) if packed and honest else stored
    except zstandard.ZstdError:
        return b""


def content(row: RawRow, name: str) -> bytes:
    """Read a content of a whole row that is stored in clear, by its name in the header, without its salt."""
    contents = sorted(_contents(row.header), key=lambda one: int(one["segment"]))
    start = _FRONT + int.from_bytes(row.state[36:_FRONT], "big")
    for one in contents:
        if one == row.header[name]:
            return _inflated(one, row.state[start : start + one["stored"]])[_SALT:]
        start += one["stored"]
    raise KeyError(name)


def _of_kinds(rows: Sequence[RawRow]) -> Iterator[Fault]:
    """A stream with facts of a pause begins with its `Paused`, or is of refusals or presentations; some come once.

    Where a policy wants several people to agree, `Answered` comes once by each, and once with enough of them.
    """
    count = Counter(row.topic for row in rows if row.topic != _ANSWERED or _completes(row))
    stream = rows[0].stream
    people = Counter(_who(row) for row in rows if row.topic == _ANSWERED and _quorum(row) > 1)
    if any(often > 1 for often in people.values()):
        yield Fault(stream, 0, "one person's answers count twice")
    for topic in (_PAUSED, _ANSWERED, _CONSUMED, _CONTINUED):
        if count[topic] > 1:
            yield Fault(stream, 0, f"it holds {count[topic]} times {topic}")
    topics = {row.topic for row in rows}
    of_a_pause = any(topic.startswith("pause.") for topic in topics)
    if of_a_pause and rows[0].topic != _PAUSED and topics not in ({_REFUSED}, {_PRESENTED}):
        yield Fault(stream, 0, "it does not begin with its pause")


def _quorum(row: RawRow) -> int:
    policy = row.header.get("policy")
    return int(policy["quorum"]) if policy else 1


def _completes(row: RawRow) -> bool:
    return bool(row.header.get("number", 1) >= _quorum(row))


def _who(row: RawRow) -> str:
    return str((row.header.get("by") or {}).get("tag"))


def _of_names(stream: UUID, rows: Sequence[RawRow]) -> Iterator[Fault]:
    named = {row.header.get("pause") for row in rows if row.topic.startswith("pause.")}
    if len(named) > 1 or (rows[0].topic == _PAUSED and named != {str(stream)}):
        yield Fault(stream, 0, "it holds facts of another pause")


def _of_claims(stream: UUID, rows: Sequence[RawRow]) -> Iterator[Fault]:
    claims = [row.header["claim"] for row in rows if row.topic in (_CONSUMED, _RECOVERED)]
    fences = [claim["fence"] for claim in claims if claim]
    if fences != list(range(1, len(fences) + 1)):
        yield Fault(stream, 0, f"its fences are {fences}")


def _of_round(stream: UUID, rows: Sequence[RawRow], pauses: dict[UUID, list[RawRow]]) -> Iterator[Fault]:
    """Judge a round once, at its lead."""
    told = rows[0].header["round"]
    members = [UUID(call["pause"]) for call in told["calls"] if call["pause"]]
    if stream not in members:
        yield Fault(stream, 1, "its round does not name it")
        return
    if told["lead"] != str(stream):
        lead = pauses.get(UUID(told["lead"]))
        if lead is None:
            yield Fault(stream, 1, "its lead is not there")
        elif lead[0].header["round"] != told:
            yield Fault(stream, 1, "its lead is of another round")
        return
    missing = [member for member in members if member not in pauses]
    yield from (Fault(member, 0, "its round names it, and it is not there") for member in missing)
    ends = {member: row for member in members for row in pauses.get(member, ()) if row.topic == _CONSUMED}
    if missing or not ends:
        return
    if set(ends) != set(members):
        yield Fault(stream, 0, f"half a round: {len(ends)} of its {len(members)} streams are consumed")
    elif len({row.header["attempt"] for row in ends.values()}) > 1:
        yield Fault(stream, 0, "several attempts consumed its round")
    else:
        yield from _of_consumed(ends, pauses)


def _of_consumed(ends: dict[UUID, RawRow], pauses: dict[UUID, list[RawRow]]) -> Iterator[Fault]:
    for member, row in ends.items():
        said = row.header
        stand = {str(other): end.version - 1 for other, end in ends.items() if other != member}
        if {sibling["pause"]: sibling["version"] for sibling in said["siblings"]} != stand:
            yield Fault(member, row.version, "it names its siblings as they do not stand")
        stream = pauses[member]
        withdrawn = any(before.topic == _WITHDRAWN for before in stream)
        given = {before.version: before for before in stream if before.topic == _ANSWERED and not withdrawn}
        made = [answer for answer in given.values() if _completes(answer)]
        numbers = [given[version].header["number"] for version in said["answers"] if version in given]
        wanted = list(range(1, made[0].header["number"] + 1)) if made else []
        strangers = len(said["answers"]) != len(numbers) or (made and made[0].version not in said["answers"])
        if numbers != wanted or strangers:
            yield Fault(member, row.version, "it names another answer than its stream holds")
        digests = {answer.header["response"]["digest"] for answer in made}
        if digests and said["response_digest"] not in digests:
            yield Fault(member, row.version, "it was consumed with another answer than its stream holds")


def refusals(raw: RawLedger, pauses: Iterable[UUID] | None = None) -> Counter[str]:
    """Count the refusals on record by their reason, of the pauses named or of all."""
    among = None if pauses is None else {str(pause) for pause in pauses}
    return Counter(
        row.header["reason"]
        for row in raw.rows
        if row.topic == _REFUSED and (among is None or row.header["pause"] in among)
    )
