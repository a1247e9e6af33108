"""Facts to rows and back: the closed registry of stored names, the row format, and the chain of digests."""

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import zstandard
from eventsourcing.persistence import Mapper, Notification, StoredEvent
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from ..domain import strict_json
from ..domain.authority import PolicyChanged
from ..domain.content import SALT_BYTES, Content
from ..domain.custody import HoldLifted, HoldPlaced, RetentionSet
from ..domain.envelope import length_prefixed
from ..domain.erasing import ErasureEnded, ErasureOrdered
from ..domain.errors import InteractionConfigurationError, LedgerCorrupt, LedgerError, LedgerTooNew
from ..domain.facts import FACTS, Fact
from ..domain.presenting import Presented
from ..domain.readings import AuditRead
from ..domain.switches import SwitchFlipped
from ..domain.turn import TURN_BYTES
from .vault import CIPHER, DataKey, Sealing, SegmentSeal, SegmentsOpened, Vault, placed

MAGIC = b"PLF1"
DIGEST_BYTES = 32
LENGTH_BYTES = 4
#: Before the header: the magic word, the digest, the header's length.
FRONT = len(MAGIC) + DIGEST_BYTES + LENGTH_BYTES
NO_PREDECESSOR = bytes(DIGEST_BYTES)
#: Nothing is encrypted.
IN_CLEAR: Final = Sealing()
NO_KEYS: Final[Mapping[int, DataKey]] = MappingProxyType({})
#: zstd level 3: faster than no compression on a real store, and a third of the disk.
LEVEL = 3
#: No clear segment is larger; a frame that declares more is not inflated.
SEGMENT_BYTES = TURN_BYTES + SALT_BYTES

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]


#: Every fact of this version: those of a pause, and those that stand in streams of their own.
STORED: tuple[type[Fact], ...] = (
    *FACTS, Presented, SwitchFlipped, PolicyChanged, AuditRead, HoldPlaced, HoldLifted, RetentionSet, ErasureOrdered,
    ErasureEnded,
)  # fmt: skip


class Registry:
    """The stored names this version knows, and how older revisions are read. Nothing is imported from a database."""

    def __init__(
        self, facts: Iterable[type[Fact]] = STORED, upcasters: Mapping[tuple[str, int], Upcaster] | None = None
    ) -> None:
        self._facts = {kind.NAME: kind for kind in facts}
        self._upcasters = dict(upcasters or {})

    def read(self, topic: str, header: dict[str, Any], stream: UUID) -> tuple[type[Fact], dict[str, Any]]:
        """Find the fact a topic names, its header brought to the newest revision.

        Raises:
            LedgerTooNew: the name or the revision is unknown here.
        """
        name, _, revision = topic.rpartition("@")
        kind = self._facts.get(name)
        if kind is None or not (revision.isascii() and revision.isdigit()) or int(revision) > kind.REVISION:
            raise LedgerTooNew(topic, stream)
        for old in range(int(revision), kind.REVISION):
            upcast = self._upcasters.get((name, old))
            if upcast is None:
                raise LedgerTooNew(topic, stream)
            header = upcast(header)
        return kind, header


class _Writing:
    """The segments of a row being written."""

    def __init__(self, seal: SegmentSeal | None) -> None:
        self.stored: list[bytes] = []
        self._seal = seal
        self.failed: LedgerError | None = None

    def put(self, content: Content) -> dict[str, Any] | None:
        try:
            return self._put(content)
        except LedgerError as failed:
            self.failed = failed
            raise

    def _put(self, content: Content) -> dict[str, Any] | None:
        body = content.body()
        if len(body) > SEGMENT_BYTES:
            raise InteractionConfigurationError(
                f"a text of {content.size} bytes is more than a row may hold; pass less"
            )
        packed = _compressor().compress(body)
        comp, stored = ("zstd", packed) if len(packed) < len(body) else ("none", body)
        cipher, key = "none", None
        if self._seal is not None:
            sealed = self._seal.seal(content, stored, len(self.stored))
            if sealed is None:
                return None
            (stored, key), cipher = sealed, CIPHER
        self.stored.append(stored)
        return {
            "segment": len(self.stored) - 1,
            "media_type": content.media_type,
            "size": content.size,
            "stored": len(stored),
            "digest": content.digest,
            "comp": comp,
            "cipher": cipher,
            "key": key,
        }

    def source(self, content: Content) -> None:
        """Nothing is read while writing."""


class _Reading:
    """The segments of a row being read; they are inflated when somebody asks."""

    def __init__(self, state: bytes, start: int, opened: SegmentsOpened) -> None:
        self._state = state
        self._at = start
        self._opened = opened
        self._places: dict[int, tuple[int, int]] = {}

    def locate(self, header: dict[str, Any]) -> list[bytes] | None:
        """Cut the row into the segments its header names, in the order of their numbers; None where they do not fit."""
        named = sorted(_named_segments(header))
        if [number for number, _ in named] != list(range(len(named))):
            return None
        for number, stored in named:
            self._places[number] = (self._at, self._at + stored)
            self._at += stored
        if self._at != len(self._state):
            return None
        return [self._state[start:end] for start, end in self._places.values()]

    def put(self, content: Content) -> dict[str, Any]:
        raise NotImplementedError(content.digest)

    def source(self, content: Content) -> Callable[[], bytes]:
        start, end = self._places.get(content.segment, (0, 0))
        if content.cipher == "none":
            return lambda: _inflate(self._state[start:end], content)
        return lambda: _inflate(self._opened.open(content, self._state[start:end]), content)


#: Rows, and the digest of each.
Rows = list[tuple[StoredEvent, bytes]]


@dataclass(frozen=True, slots=True)
class Written:
    """The rows of one append as they will be stored, and the keys they are sealed with."""

    rows: Rows
    sealing: Sealing


@dataclass(frozen=True, slots=True)
class Decoded:
    """A row as it was read: the fact, and whether its bytes are those that were digested."""

    fact: Fact
    whole: bool


class FactMapper(Mapper[UUID]):
    """Maps facts to rows as docs/facts.md lays them out. The library's own mapper imports what the database names."""

    def __init__(self, ledger_id: UUID, registry: Registry | None = None, vault: Vault | None = None) -> None:
        self._ledger = ledger_id
        self._digested = length_prefixed(b"plf/1", ledger_id.bytes)
        self._registry = registry or Registry()
        self._vault = vault or Vault(ledger_id)

    def encode(self, facts: Sequence[Fact], sealing: Sealing = IN_CLEAR) -> Rows:
        """Write the rows of one append, each with its digest; rows of one stream are chained in the order given."""
        heads: dict[UUID, bytes] = {}
        rows = []
        for fact in facts:
            before = heads.get(fact.originator_id, fact.predecessor)
            if before is None:
                raise ValueError(f"fact {fact.originator_version} of stream {fact.originator_id} has no predecessor")
            row, digest = self._encode(fact, before, sealing)
            heads[fact.originator_id] = digest
            rows.append((row, digest))
        return rows

    def to_stored_event(self, domain_event: Any) -> StoredEvent:
        """Write one row; its predecessor must be known."""
        return self.encode([domain_event])[0][0]

    def _encode(self, fact: Fact, before: bytes, sealing: Sealing) -> tuple[StoredEvent, bytes]:
        topic = fact.topic()
        row = placed(fact.originator_id, fact.originator_version, topic)
        segments = _Writing(sealing.of(fact, self._vault.within + row))
        try:
            header = fact.model_dump_json(context=segments).encode()
        except PydanticSerializationError:
            if segments.failed is None:
                raise
        if segments.failed is not None:
            # Raised out here: pydantic's own error hides which one it was.
            raise segments.failed
        digest = self._digest(row, before, header, *segments.stored)
        state = b"".join((MAGIC, digest, _u32(len(header)), header, *segments.stored))
        return StoredEvent(fact.originator_id, fact.originator_version, topic, state), digest

    def decode(self, row: StoredEvent, before: bytes, keys: Mapping[int, DataKey] = NO_KEYS) -> Decoded:
        """Read one row and hold it against its digest; `before` is the digest that stands in the row before it.

        `keys` are those that were read with it; others are looked up, blocking, once a text is asked for.

        Raises:
            LedgerTooNew: the fact is unknown here.
            LedgerCorrupt: the row cannot be read at all.
        """
        version, state = row.originator_version, bytes(row.state)
        stream = row.originator_id if isinstance(row.originator_id, UUID) else UUID(row.originator_id)
        position = row.id if isinstance(row, Notification) else None
        header, start = self._header(stream, version, state, position)
        pause = header.get("pause")
        place = placed(stream, version, row.topic)
        opened = SegmentsOpened(self._vault, self._vault.within + place, str(pause), keys)
        reading = _Reading(state, start, opened)
        segments = reading.locate(header)
        if segments is None:
            raise LedgerCorrupt(stream, version, "the row's segments do not fit its header", position=position)
        digest = stored_digest(state)
        raw = state[FRONT:start]
        whole = digest == self._digest(place, before, raw, *segments)
        kind, fields = self._registry.read(row.topic, header, stream)
        stands = {
            "originator_id": stream,
            "originator_version": version,
            "predecessor": before,
            "row_digest": digest,
            "position": position,
        }
        try:
            fact = kind.model_validate({**fields, **stands}, context=reading)
        except ValidationError as unfit:
            word = any(
                error["type"] == "literal_error" for error in unfit.errors(include_input=False, include_url=False)
            )
            fact = None
        if fact is None:
            # Raised out here: pydantic's own error quotes the header.
            if word and whole:
                raise LedgerTooNew(row.topic, stream)
            raise LedgerCorrupt(stream, version, "the row's header lacks what its fact needs", position=position)
        if fact.ledger != self._ledger:
            raise LedgerCorrupt(stream, version, "the row is of another ledger", position=position)
        return Decoded(fact, whole)

    def header(self, row: Notification) -> bytes:
        """Cut a row's header out: nothing is inflated, and no digest is proved, as that takes the whole row.

        Raises:
            LedgerCorrupt: the row is not in the ledger's format, or was not read far enough.
        """
        state = row.state
        start = FRONT + int.from_bytes(state[FRONT - LENGTH_BYTES : FRONT], "big")
        if not state.startswith(MAGIC) or not FRONT <= start <= len(state):
            raise LedgerCorrupt(
                UUID(str(row.originator_id)),
                row.originator_version,
                "the row is not in the ledger's format",
                position=row.id,
            )
        return state[FRONT:start]

    def newest(self, topic: str, fields: dict[str, Any], stream: UUID) -> tuple[str, dict[str, Any]]:
        """Tell the fact's name, and its fields as its newest revision has them.

        Raises:
            LedgerTooNew: the fact is unknown here.
        """
        kind, newest = self._registry.read(topic, fields, stream)
        return kind.NAME, newest

    def fact_of(self, topic: str, fields: dict[str, Any], stream: UUID, version: int, position: int) -> Fact:
        """Make a fact of a header alone, for readers that show no content.

        Raises:
            LedgerTooNew: the fact is unknown here.
            LedgerCorrupt: the header lacks what the fact needs.
        """
        kind, newest = self._registry.read(topic, fields, stream)
        place = {"originator_id": stream, "originator_version": version, "position": position}
        try:
            return kind.model_validate({**newest, **place})
        except ValidationError:
            raise LedgerCorrupt(
                stream, version, "the row's header lacks what its fact needs", position=position
            ) from None

    def to_domain_event(self, stored_event: StoredEvent) -> Any:
        """Read one row by itself, for readers that follow the log; its chain is judged where whole streams are read."""
        return self.decode(stored_event, NO_PREDECESSOR).fact

    def _header(self, stream: UUID, version: int, state: bytes, position: int | None) -> tuple[Any, int]:
        length = int.from_bytes(state[FRONT - LENGTH_BYTES : FRONT], "big")
        start = FRONT + length
        if not state.startswith(MAGIC) or len(state) < start or len(state) < FRONT:
            raise LedgerCorrupt(stream, version, "the row is not in the ledger's format", position=position)
        try:
            header = strict_json.reread(state[FRONT:start])
        except strict_json.Unfit:
            header = None
        if not isinstance(header, dict):
            raise LedgerCorrupt(stream, version, "the row's header is not JSON", position=position)
        return header, start

    def _digest(self, place: bytes, *parts: bytes) -> bytes:
        """Digest a row, spelled as `length_prefixed` spells it.

        `place` is where it is `placed`, `parts` are its predecessor's digest, its header and its segments as stored.
        """
        named = [self._digested, place]
        for part in parts:
            named += (len(part).to_bytes(LENGTH_BYTES, "big"), part)
        return hashlib.sha256(b"".join(named)).digest()


def stored_digest(state: bytes) -> bytes:
    """Take a row's digest from the front of its state."""
    return state[len(MAGIC) : len(MAGIC) + DIGEST_BYTES]


def _u32(number: int) -> bytes:
    return number.to_bytes(LENGTH_BYTES, "big")


_CONTENT_KEYS: Final = {"segment", "stored", "digest", "comp"}
_NESTS: Final = (dict, list)


def _named_segments(value: dict[str, Any]) -> list[tuple[int, int]]:
    """Find every content a header names: its segment's number and stored length.

    Its number is one: a map of the host's own words holds text alone, so that no words of theirs can name a segment.
    """
    found: list[tuple[int, int]] = []
    left: list[Any] = [value]
    while left:
        part = left.pop()
        if type(part) is list:
            left += [inner for inner in part if type(inner) in _NESTS]
        elif "segment" in part and part.keys() >= _CONTENT_KEYS and type(part["segment"]) is int:
            found.append((_length(part["segment"]), _length(part["stored"])))
        else:
            left += [inner for inner in part.values() if type(inner) in _NESTS]
    return found


def _length(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= SEGMENT_BYTES else -1


def _inflate(stored: bytes, content: Content) -> bytes:
    """Bring a segment back to its clear size. The size declared is checked first: the library's own limit is not."""
    if content.comp == "none":
        return stored
    wanted = content.size + SALT_BYTES
    try:
        declared = zstandard.get_frame_parameters(stored).content_size
        if declared != wanted or wanted > SEGMENT_BYTES:
            return b""
        return _decompressor().decompress(stored, max_output_size=wanted)
    except zstandard.ZstdError:
        return b""


_thread = threading.local()


def _compressor() -> zstandard.ZstdCompressor:
    if not hasattr(_thread, "compressor"):
        _thread.compressor = zstandard.ZstdCompressor(level=LEVEL)
    compressor: zstandard.ZstdCompressor = _thread.compressor
    return compressor


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_thread, "decompressor"):
        _thread.decompressor = zstandard.ZstdDecompressor()
    decompressor: zstandard.ZstdDecompressor = _thread.decompressor
    return decompressor
