"""The log as integration events in the CloudEvents 1.0 shape: pages behind a cursor, and an iterator that follows."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ..domain.axes import Scope
from ..domain.errors import InteractionConfigurationError, StoreUnavailable
from ..domain.ports import Journal
from ..projections.projection import within
from ..projections.rows import spelled
from ..projections.seen import Seen, Why
from .executor import Executor
from .extras import extra
from .following import BUSY, IDLE, UNAVAILABLE
from .headers import Log, json_object

if TYPE_CHECKING:
    from cloudevents.core.v1.event import CloudEvent

#: Events a page holds where nothing else is said, and at most.
PAGE, LARGEST_PAGE = 100, 10_000
#: Facts that one page looks at, at most, to find those of a scope; and so many at a time.
LOOKED_AT, AT_A_TIME = 10_000, 1000

_POSITIONS = 1 << 63
_CURSOR = re.compile(r"[0-9]{20}", re.ASCII)
_TOPIC = re.compile(r"([a-z0-9_.-]{1,100})@([0-9]{1,9})", re.ASCII)
#: The type of a row whose stored name is none.
UNNAMED = "pauseledger.unnamed"


@dataclass(frozen=True, slots=True)
class EventPage:
    """A page of the log.

    Attributes:
        events: In the order of the log.
        next: The cursor to go on after; the one given where nothing came.
        more: Whether the log was not read to its end. A page may hold no event of its scope and still say so.
    """

    events: "tuple[CloudEvent, ...]"
    next: str
    more: bool


class LedgerEvents:
    """The log as CloudEvents 1.0: `page = await ledger.events.page(scope, after=cursor)`.

    An event tells a fact's header: ids, words, digests, tags and times, never what people wrote. Nothing is missed or
    told twice, whoever writes meanwhile: a page ends where something may still turn up. A fact that this version does
    not know, or that is damaged, comes as well, with the attribute `unreadable` and no data.

    A cursor is the `next` of a page or the `sequence` of an event, a text that sorts as the log does; None is the
    log's beginning.

    Raises (every method):
        InteractionConfigurationError: the scope, the cursor or the limit is none; or the library is not installed.
    """

    def __init__(self, log: Log, ledger_id: UUID, run: Executor, journal: Journal) -> None:
        try:
            from cloudevents.core.v1.event import CloudEvent  # noqa: PLC0415 - an extra; few hosts need it
        except ModuleNotFoundError:
            raise InteractionConfigurationError(f"events need the library cloudevents; run {extra('events')}") from None
        self._made = CloudEvent
        self._log = log
        self._source = f"urn:uuid:{ledger_id}"
        self._run = run
        self._journal = journal

    async def page(self, scope: Scope, *, after: str | None = None, limit: int = PAGE) -> EventPage:
        """Read the next events of one scope, at most `limit`, looking at 10,000 facts at most.

        Raises:
            StoreUnavailable: the store could not speak; the same call later goes on.
        """
        return await self._page(_whose(scope), after, limit)

    async def page_of_all_tenants(self, *, after: str | None = None, limit: int = PAGE) -> EventPage:
        """Read the next events of every tenant, at most `limit`; those of no tenant or an unreadable one among them.

        Raises:
            StoreUnavailable: the store could not speak; the same call later goes on.
        """
        return await self._page(None, after, limit)

    def follow(self, scope: Scope, *, after: str | None = None) -> AsyncIterator["CloudEvent"]:
        """Go through the events of one scope, and wait for more, until whoever iterates ends it.

        A store that cannot speak is tried again for good; that is logged.

        Raises:
            StoreUnavailable: the ledger was closed.
        """
        return self._follow(_whose(scope), after)

    def follow_of_all_tenants(self, *, after: str | None = None) -> AsyncIterator["CloudEvent"]:
        """Go through the events of every tenant, and wait for more, as `follow` does."""
        return self._follow(None, after)

    async def _page(self, whose: str | None, after: str | None, limit: int) -> EventPage:
        if type(limit) is not int or not 1 <= limit <= LARGEST_PAGE:
            raise InteractionConfigurationError(f"limit must be a whole number from 1 to {LARGEST_PAGE}")
        return await self._run(self._read, whose, _position(after), limit)

    async def _follow(self, whose: str | None, after: str | None) -> AsyncIterator["CloudEvent"]:
        at, wait = _position(after), BUSY
        while True:
            try:
                page = await self._run(self._read, whose, at, AT_A_TIME)
            except StoreUnavailable as gone:
                if self._run.closed:
                    raise
                self._journal.note("following_waits", part="events", says=str(gone))
                wait = min(max(wait, IDLE) * 2, UNAVAILABLE)
            else:
                for event in page.events:
                    yield event
                wait = BUSY if page.events else min(wait * 1.5, IDLE)
                at = int(page.next)
                if page.more:
                    continue
            await asyncio.sleep(wait)

    # Everything below blocks, and runs in the executor.

    def _read(self, whose: str | None, at: int, limit: int) -> EventPage:
        events: list[CloudEvent] = []
        most, looked_at = limit if whose is None else AT_A_TIME, 0
        while looked_at < LOOKED_AT:
            facts = self._log.after(at, most)
            for fact in facts:
                at = fact.position
                if whose is None or fact.scope == whose:
                    events.append(self._event(fact))
                if len(events) == limit:
                    return EventPage(tuple(events), _cursor(at), more=True)
            if len(facts) < most:
                return EventPage(tuple(events), _cursor(at), more=False)
            looked_at += len(facts)
        return EventPage(tuple(events), _cursor(at), more=True)

    def _event(self, fact: Seen) -> "CloudEvent":
        attributes: dict[str, Any] = {
            "specversion": "1.0",
            "id": f"{fact.stream}.{fact.version}",
            "source": self._source,
            "type": type_of(fact.topic),
            "subject": fact.pause,
            "sequence": _cursor(fact.position),
            "partitionkey": fact.pause,
        }
        data, unreadable = _data(fact)
        if data is not None:
            attributes["datacontenttype"] = "application/json"
        if unreadable is not None:
            attributes["unreadable"] = unreadable
        at = _moment(fact.at)
        if at is not None:
            attributes["time"] = at
        event = self._made(attributes, data)
        if at is None:
            # The library puts the present time where none is given.
            del event.get_attributes()["time"]
        return event


def _data(fact: Seen) -> tuple[dict[str, Any] | None, Why | None]:
    """Give the header as it is stored: the event's type names that revision, and no later one."""
    if fact.unreadable is not None:
        return None, fact.unreadable
    try:
        return json_object(fact.header), None
    except ValueError:
        return None, "corrupt"


def type_of(topic: str) -> str:
    """Name the type of a stored name: `pause.paused@1` becomes `pauseledger.pause.paused.v1`."""
    stored = _TOPIC.fullmatch(topic)
    return f"pauseledger.{stored[1]}.v{int(stored[2])}" if stored else UNNAMED


def _whose(scope: Scope) -> str:
    [(_, _, stated)] = within(scope)
    return spelled(stated)


def _cursor(position: int) -> str:
    return f"{position:020d}"


def _position(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not isinstance(cursor, str) or not _CURSOR.fullmatch(cursor) or int(cursor) >= _POSITIONS:
        raise InteractionConfigurationError("a cursor is the `next` of a page or the `sequence` of an event")
    return int(cursor)


def _moment(at: str) -> datetime | None:
    try:
        return datetime.fromisoformat(at)
    except ValueError:
        return None
