"""The paused turn in its own wire format, and the two things a transcript codec knows about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .errors import InteractionConfigurationError, PauseRejected

#: A turn may have this many bytes as stored.
TURN_BYTES = 4 * 1024 * 1024

Entry = Any
#: What is folded in on a call: text, or a list of content parts in the format's own shape.
Result = str | list[Any]


@dataclass(frozen=True, slots=True)
class ReservedCall:
    """A call of the last assistant message, in the order in which that message lists it.

    Attributes:
        index: Its place among the reserved calls, from 0.
        id: The provider's id, or None where the format gave none.
        tool: The tool it names, where it names one.
        done: Whether the turn holds its result already.
    """

    index: int
    id: str | None
    tool: str | None = None
    done: bool = False

    @property
    def address(self) -> str:
        """The call axis: the provider's id, or `@n` for the n-th reserved call. `@n` never enters the history."""
        return self.id if self.id is not None else f"@{self.index}"


class Transcript(Protocol):
    """What is known of one wire format. A codec is plain JSON and needs no framework."""

    #: The format's name, as stored.
    format: str

    def reserved(self, entries: Sequence[Entry]) -> tuple[ReservedCall, ...]:
        """List the calls of the last assistant message, done ones included.

        Raises:
            PauseRejected: `turn_broken` where the turn has not the format's shape, or does not end at a tool call.
        """
        ...

    def fold(self, entries: Sequence[Entry], results: Mapping[int, Result]) -> tuple[Entry, ...]:
        """Spell results, by call index, where and how the provider wants them, in the order of the calls.

        Nothing else changes: every entry given comes back as it is, save a last one that already holds results
        and is extended after them where the format wants that. The entries given are never altered. A result whose
        place a provider could not tell yet is held back: its call stays open until its earlier namesakes have theirs.
        """
        ...


@dataclass(frozen=True, slots=True)
class CheckpointReference:
    """A turn kept by the host: which store, where, and at which recorded version; never the thread's head."""

    format: str
    store: str
    locator: str
    version: str


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn as the host hands it in: entries to be written once, unsorted; or bytes, which stay as they are.

    `messages` is the list of entries (messages, items, contents: whatever the format calls them), or the UTF-8 bytes
    or text of that list as JSON.
    """

    format: str
    messages: Sequence[Entry] | bytes | str = field(repr=False)


@dataclass(frozen=True, slots=True)
class PausedTurn:
    """A turn read back from its durable checkpoint.

    Attributes:
        format: The wire format's name.
        text: The very bytes stored.
        entries: The same, parsed.
        calls: The calls it reserved.
    """

    format: str
    text: bytes = field(repr=False)
    entries: tuple[Entry, ...] = field(repr=False)
    calls: tuple[ReservedCall, ...]
    transcript: Transcript = field(repr=False, compare=False)

    @property
    def messages(self) -> tuple[Entry, ...]:
        """The entries, by the name most formats give them."""
        return self.entries

    def fold(self, results: Mapping[int, Result]) -> tuple[Entry, ...]:
        """Give the entries with these results folded in."""
        return self.transcript.fold(self.entries, results)


class Transcripts:
    """The codecs known, by the name of their format."""

    def __init__(self, codecs: Sequence[Transcript] = ()) -> None:
        self._codecs: dict[str, Transcript] = {}
        for codec in codecs:
            self.register(codec)

    def register(self, codec: Transcript) -> None:
        """Add a codec.

        Raises:
            InteractionConfigurationError: the format has one already.
        """
        if codec.format in self._codecs:
            raise InteractionConfigurationError(f"the format {codec.format!r} has a codec already")
        self._codecs[codec.format] = codec

    def of(self, format: str) -> Transcript | None:  # noqa: A002 - the field's own name
        """Find a format's codec."""
        return self._codecs.get(format)

    def names(self) -> tuple[str, ...]:
        """List the formats known."""
        return tuple(sorted(self._codecs))

    def read(self, format: str, text: bytes, entries: Sequence[Entry]) -> PausedTurn:  # noqa: A002
        """Bring a parsed turn into shape, and learn which calls it reserved.

        Raises:
            PauseRejected: the format is unknown, the turn is broken, or two of its calls cannot be told apart.
        """
        codec = self.of(format)
        if codec is None:
            known = ", ".join(self.names())
            raise PauseRejected("format_unknown", f"{format!r} has no codec here; known are {known}")
        try:
            calls = codec.reserved(entries)
        except PauseRejected as rejected:
            # Most of what is broken is of another format than was said.
            raise PauseRejected(rejected.name, f"read as {format}: {rejected.says}") from None
        addresses = [call.address for call in calls]
        if len(set(addresses)) != len(addresses):
            raise PauseRejected("call_ambiguous", "two calls of the last assistant message have the same id")
        return PausedTurn(format, text, tuple(entries), calls, codec)
