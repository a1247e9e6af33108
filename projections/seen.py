"""A fact as a view sees it: its header alone, with values as JSON holds them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

#: Why a fact cannot be folded.
Why = Literal["too_new", "corrupt"]


@dataclass(slots=True)
class Seen:
    """One row of the log, its contents unread.

    Attributes:
        position: Where it stands in the log.
        name: The fact's stored name without its revision.
        pause: The pause it is of, hyphenated; the stream where the header cannot be read.
        at: When, as stored; empty where the header cannot be read.
        scope: As `rows.spelled` spells it; empty where there is none, or where it cannot be read.
        header: The header as stored; empty where it cannot be read.
        parse: Reads the header; raises ValueError where it is no JSON object.
        unreadable: Why it cannot be folded; None as far as can be told without reading all of the header.
        fields: The header as the fact's newest revision has it, once read; else empty.
    """

    position: int
    stream: str
    version: int
    topic: str
    name: str
    pause: str
    at: str
    scope: str
    header: bytes = field(repr=False)
    parse: Callable[[bytes], dict[str, Any]] = field(repr=False)
    unreadable: Why | None = None
    fields: dict[str, Any] = field(default_factory=dict, repr=False)
    _read: bool | None = None

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

    @property
    def text(self) -> str:
        """The header as text; raises ValueError where it is none."""
        return self.header.decode()


def uuid_text(value: Any, known: str) -> str:
    """Give a UUID as a header names it; `known` is one that was judged before.

    Raises:
        ValueError, TypeError, AttributeError: it is none.
    """
    return known if value == known else str(UUID(value))


def completes(fact: Seen) -> bool:
    """Tell whether a pause holds its answer with this one: enough people agree on it, or one is enough."""
    policy = fact.fields["policy"]
    return policy is None or bool(fact.fields["number"] >= policy.get("quorum", 1))


def tag_of(actor: dict[str, Any] | None) -> str | None:
    """Tell who, as a tag."""
    return None if actor is None else actor["tag"]
