"""A fact as a view sees it: its header alone, with values as JSON holds them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

from .said import Parsed

#: Why a fact cannot be folded.
Why = Literal["too_new", "corrupt"]

#: What folding a header raises that lacks what it needs.
UNFOLDABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError)

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Seen:
    """One row of the log, its contents unread.

    Attributes:
        position: Where it stands in the log.
        name: The fact's stored name without its revision.
        pause: The pause it is of, hyphenated; the stream where the header cannot be read.
        at: When, as stored; empty where the header cannot be read.
        scope: As `rows.spelled` spells it; empty where there is none, or where it cannot be read.
        header: The header as stored; empty where it cannot be read.
        front: How much of it (bytes) begins as this package writes it, and says only what pause, scope and time say
            here, and whose ledger it is; 0 where it begins otherwise.
        parse: Reads the header; raises ValueError where it is no JSON object.
        hear: Cuts what views read out of what follows the front; None where it is not laid out as expected.
        unreadable: Why it cannot be folded; None as far as can be told without reading all of the header.
        first: It begins its pause's own stream, so that nothing in the log before it has made a row for that pause.
        fields: The header as the fact's newest revision has it, once read; else empty.
        said: What views read of it, once heard.
    """

    __slots__ = (
        "_read", "at", "fields", "first", "front", "header", "hear", "name", "parse", "pause", "position", "said",
        "scope", "stream", "topic", "unreadable", "version",
    )  # fmt: skip

    def __init__(  # noqa: PLR0917 - written out by hand, and filled in order: one is made for every fact of the log
        self,
        position: int,
        stream: str,
        version: int,
        topic: str,
        name: str,
        pause: str,
        at: str,
        scope: str,
        header: bytes,
        parse: Callable[[bytes], dict[str, Any]],
        hear: Callable[[bytes], Any],
        unreadable: Why | None = None,
        front: int = 0,
    ) -> None:
        self.position = position
        self.stream = stream
        self.version = version
        self.topic = topic
        self.name = name
        self.pause = pause
        self.at = at
        self.scope = scope
        self.header = header
        self.parse = parse
        self.hear = hear
        self.unreadable = unreadable
        self.front = front
        self.first = version <= 1 and pause == stream
        self.fields = _NOTHING
        self.said: Any = None
        self._read: bool | None = None

    def again(self, *, spoiled: bool = False) -> "Seen":
        """Give it anew, for a view that shall look at every row it names; `spoiled` as one that cannot be read."""
        same = (self.position, self.stream, self.version, self.topic, self.name, self.pause, self.at, self.scope)
        fresh = (
            Seen(*same, b"", self.parse, unheard, "corrupt")
            if spoiled
            else Seen(*same, self.header, self.parse, self.hear, self.unreadable, self.front)
        )
        fresh.first = False
        return fresh

    def readable(self) -> bool:
        """Read the header, once for all views; tell whether it could be."""
        if self._read is None:
            try:
                self.fields = self.parse(self.header)
            except ValueError:
                self._read = False
            else:
                self._read = True
        return self._read

    def heard(self) -> bool:
        """Read what views read of it, once for all views; tell whether it could be."""
        if self.said is None:
            self.said = self.hear(self.header[self.front :])
            if self.said is None:
                if not self.readable():
                    return False
                self.said = Parsed(self.name, self.fields)
        return True

    @property
    def text(self) -> str:
        """The header as text without its front; raises ValueError where it is none."""
        return self.header[self.front :].decode()


def unheard(_rest: bytes) -> None:
    """Hear nothing: the header has to be parsed."""


def known(facts: Iterable[Seen]) -> set[str]:
    """Name the pauses that rows may stand of before these facts: all but those of which the first one begins it."""
    begun, others = set(), set()
    for fact in facts:
        if fact.first and fact.name == "pause.paused":
            begun.add(fact.pause)
        elif not fact.first and fact.pause not in begun:
            others.add(fact.pause)
    return others


def joined(facts: Iterable[Seen]) -> Iterator[str]:
    """Name the rounds that new pauses are of, but for those of one call: nothing before can have begun such a round."""
    for fact in facts:
        if fact.first:
            lead, calls = _round(fact)
            if lead == fact.pause and calls == 1:
                continue
            yield fact.pause
            if lead is not None:
                yield lead


def _round(fact: Seen) -> tuple[str | None, int]:
    if fact.name == "pause.paused" and fact.unreadable is None and fact.heard():
        try:
            return fact.said.lead, fact.said.calls
        except UNFOLDABLE:
            # No round, then; whoever folds it finds out.
            return None, 0
    return None, 0
