"""A fact as a view sees it: its header alone, with values as JSON holds them."""

from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID


@dataclass(slots=True)
class Seen:
    """One row of the log, its contents unread.

    Attributes:
        position: Where it stands in the log.
        name: The fact's stored name without its revision; `fields` are those of its newest revision.
        pause: The pause it is of, hyphenated; the stream where the header cannot be read.
        at: When, as stored; empty where the header cannot be read.
        scope: As `rows.spelled` spells it; empty where there is none, or where it cannot be read.
        text: The header as stored; empty where it cannot be read.
        unreadable: Why it cannot be folded; None where it can.
    """

    position: int
    stream: str
    version: int
    topic: str
    name: str
    pause: str
    at: str
    scope: str
    fields: dict[str, Any] = field(repr=False)
    text: str = field(repr=False)
    unreadable: Literal["too_new", "corrupt"] | None = None


def uuid_text(value: Any, known: str) -> str:
    """Give a UUID as a header names it; `known` is one that was judged before.

    Raises:
        ValueError, TypeError, AttributeError: it is none.
    """
    return known if value == known else str(UUID(value))


def tag_of(actor: dict[str, Any] | None) -> str | None:
    """Tell who, as a tag."""
    return None if actor is None else actor["tag"]
