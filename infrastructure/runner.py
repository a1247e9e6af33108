"""The runner: follows the log, folds it into the views batch by batch, and builds one anew beside the live one."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import groupby
from typing import Any
from uuid import UUID

from eventsourcing.persistence import Notification
from pydantic_core import from_json

from ..domain.errors import LedgerCorrupt, LedgerTooNew
from ..projections.projection import Projection
from ..projections.rows import LostRace, Page, Place, Rows, RowsRejected, spelled
from ..projections.seen import Seen, Why
from .mapper import FactMapper
from .store import LedgerRecorder

#: Facts a batch. Larger ones are no faster, and hold the view's row longer.
BATCH = 2000
#: Rows a view's page keeps from batch to batch before it starts afresh.
KEPT_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a view is behind the log.

    Attributes:
        position: The last position folded in.
        newest: The log's newest position.
        behind: How many facts are not folded in yet; counted up to 10,000.
        seconds: How long the oldest of these has stood in the log; 0 where there is none.
        set_aside: How many facts could not be folded.
    """

    view: str
    position: int
    newest: int
    behind: int
    seconds: float
    set_aside: int


#: So many facts behind are counted one by one.
COUNTED = 10_000


class Log:
    """The log as followers read it: headers alone."""

    def __init__(self, recorder: LedgerRecorder, mapper: FactMapper, ledger_id: UUID) -> None:
        self._recorder = recorder
        self._mapper = mapper
        self._ledger = str(ledger_id)
        self._front = b'{"ledger":"%b","pause":"' % self._ledger.encode()
        self._parsers: dict[str, tuple[str, Callable[[bytes], dict[str, Any]] | None]] = {}

    def after(self, position: int, limit: int = BATCH) -> list[Seen]:
        """Read the next facts, in order; one that cannot be read says so."""
        return [self._see(row) for row in self._recorder.headers(position, limit)]

    def newest(self) -> int:
        """Tell the newest position, 0 where the log is empty."""
        return self._recorder.max_notification_id() or 0

    def count_after(self, position: int) -> int:
        """Count the facts after a position, up to `COUNTED`."""
        return len(self._recorder.headers(position, COUNTED))

    def _see(self, row: Notification) -> Seen:
        try:
            header = self._mapper.header(row)
        except LedgerCorrupt:
            try:
                header = self._mapper.header(self._recorder.whole(row))
            except LedgerCorrupt:
                header = b""
        stream, front, at = str(row.originator_id), len(self._front), header.find(_AT, len(self._front))
        scope, end = front + _PAUSE + len(_SCOPE), at + len(_AT) + _MOMENT_LENGTH
        told = header[at + len(_AT) : end].decode("latin-1")
        if (
            at < scope
            or not header.startswith(self._front)
            or header[front + _PAUSE : scope] != _SCOPE
            or header[front : front + _PAUSE].decode("latin-1") != stream
            or not _MOMENT.fullmatch(told)
            or header[end : end + 1] + header[-1:] != b'"}'
        ):
            return self._read(row, stream, header)
        name, parse = self._parser(row.topic)
        why: Why | None = "too_new" if parse is None else None
        try:
            spelled_scope = _scope(header[scope:at])
        except (KeyError, TypeError, ValueError):
            return self._read(row, stream, header)
        return Seen(
            row.id, stream, row.originator_version, row.topic, name, stream, told, spelled_scope, header,
            parse or json_object, why,
        )  # fmt: skip

    def _read(self, row: Notification, stream: str, header: bytes) -> Seen:
        """Read a header whose front is not as this package writes it."""
        name, parse = self._parser(row.topic)
        seen = Seen(
            row.id, stream, row.originator_version, row.topic, name, stream, "", "", header, parse or json_object,
            "too_new" if parse is None else None,
        )  # fmt: skip
        try:
            fields = json_object(header)
            seen.scope = spelled(fields.get("scope"))
            seen.pause = str(UUID(fields["pause"]))
            seen.at = fields["at"] if _MOMENT.fullmatch(fields["at"]) else ""
            if not seen.at or fields["ledger"] != self._ledger:
                seen.unreadable = "corrupt"
        except (ValueError, KeyError, TypeError, AttributeError):
            seen.unreadable = "corrupt"
        return seen

    def _parser(self, topic: str) -> tuple[str, Callable[[bytes], dict[str, Any]] | None]:
        """Tell a topic's name, and how its header is read; None where this version does not know it."""
        known = self._parsers.get(topic)
        if known is None:
            known = self._parsers[topic] = self._new_parser(topic)
        return known

    def _new_parser(self, topic: str) -> tuple[str, Callable[[bytes], dict[str, Any]] | None]:
        nowhere = UUID(int=0)
        try:
            name, _ = self._mapper.newest(topic, {}, nowhere)
        except LedgerTooNew:
            return topic.partition("@")[0], None
        except (KeyError, TypeError, ValueError):
            # An upcaster that asks for a field: it is given one that has it, each time.
            name = topic.partition("@")[0]

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


@lru_cache(4096)
def _scope(text: bytes) -> str:
    return spelled(from_json(text))


_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
_MOMENT_LENGTH = len("2026-11-30T18:00:00.000000Z")
# How every header goes on that this package writes: what each view needs of a fact in its pause's own stream, without
# reading the rest. Quotes inside of a text are escaped, so that none can hold these.
_PAUSE, _SCOPE, _AT = 36, b'","scope":', b',"at":"'


class Follower:
    """One view being folded: safe beside any number of others, in this process or elsewhere.

    Exactly one of all who fold the same batch moves the position; the others write nothing, and go on from there.
    """

    def __init__(self, projection: Projection, rows: Rows, build: int | None = None) -> None:
        self.projection = projection
        self.rows = rows
        self._build = build
        self._page = Page()
        self._page_at: Place | None = None

    def place(self) -> Place | None:
        """Tell where the build followed is; None where it is gone."""
        return self.rows.place() if self._build is None else self.rows.place_of(self._build)

    def fold(self, at: Place, facts: Sequence[Seen]) -> bool:
        """Fold facts that follow a place, and move on to the last of them; False where somebody else did."""
        try:
            self._write(at, facts)
        except LostRace:
            self._page_at = None
            return False
        except RowsRejected:
            self._page_at = None
            return self._one_by_one(at, facts)
        return True

    def _one_by_one(self, at: Place, facts: Sequence[Seen]) -> bool:
        """Find the fact that the store cannot hold the rows of, and set it aside."""
        for fact in facts:
            try:
                self._write(at, [fact])
            except LostRace:
                return False
            except RowsRejected:
                self._page_at = None
                self._write(at, [replace(fact, header=b"", fields={}, unreadable="corrupt")])
            at = Place(at.build, fact.position)
        return True

    def _write(self, at: Place, facts: Sequence[Seen]) -> None:
        page = self._page_of(at)
        looked_at = [fact for fact in facts if fact.unreadable or fact.name in self.projection.facts]
        for table, keys in self.projection.wants(looked_at, page):
            missing = page.missing(table, keys)
            if missing:
                page.load(table, missing, self.rows.find(at.build, table, missing))
        for fact in looked_at:
            self.projection.take(fact, page)
        try:
            self.rows.save(at, page.changes(), facts[-1].position)
        except BaseException:
            self._page_at = None
            raise
        page.saved()
        self._page_at = Place(at.build, facts[-1].position)

    def _page_of(self, at: Place) -> Page:
        """Give the page left by the last batch, as long as nobody else has moved the view since."""
        if self._page_at != at or len(self._page) > KEPT_ROWS:
            self._page = Page()
        self._page_at = None
        return self._page


class Runner:
    """Follows the log for several views. Every method blocks.

    Raises (every method):
        StoreUnavailable: a store could not speak; the same call later goes on.
    """

    def __init__(self, log: Log, views: Iterable[tuple[Projection, Rows]], batch: int = BATCH) -> None:
        self._log = log
        self._followers = {projection.name: Follower(projection, rows) for projection, rows in views}
        self.batch = batch

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views."""
        return tuple(self._followers)

    def step(self, views: Sequence[str] | None = None) -> int:
        """Fold the next batch into each view, or into those named; tell how many facts the slowest moved on by."""
        followers = [self._followers[name] for name in (self.views if views is None else views)]
        placed = [(place, follower) for follower in followers if (place := follower.place()) is not None]
        placed.sort(key=lambda one: one[0].position)
        most = 0
        for position, group in groupby(placed, key=lambda one: one[0].position):
            facts = self._log.after(position, self.batch)
            for place, follower in group if facts else ():
                follower.fold(place, facts)
            most = max(most, len(facts))
        return most

    def position(self, view: str) -> int:
        """Tell where a view is."""
        return self._followers[view].rows.place().position

    def newest(self) -> int:
        """Tell the log's newest position."""
        return self._log.newest()

    def progress(self) -> tuple[int, int]:
        """Tell where the slowest view is, and the log's newest position."""
        return min(self.position(view) for view in self._followers), self._log.newest()

    def catch_up(self, seconds: float, views: Sequence[str] | None = None) -> bool:
        """Fold until the views are where the log was when this began; False where the time was not enough."""
        wanted, deadline = self._log.newest(), time.monotonic() + seconds
        named = self.views if views is None else views
        while any(self.position(view) < wanted for view in named):
            if time.monotonic() > deadline:
                return False
            self.step(named)
        return True

    def lag(self, now: datetime) -> list[Lag]:
        """Tell how far each view is behind."""
        newest = self._log.newest()
        return [self._lag(name, follower, newest, now) for name, follower in self._followers.items()]

    def _lag(self, name: str, follower: Follower, newest: int, now: datetime) -> Lag:
        position = follower.rows.place().position
        waiting = self._log.after(position, 1)
        since = waiting[0].at if waiting else ""
        seconds = (now - datetime.fromisoformat(since)) / timedelta(seconds=1) if since else 0.0
        set_aside = follower.rows.tally(follower.projection.set_aside, ("why",))
        return Lag(
            view=name,
            position=position,
            newest=max(newest, position),
            behind=self._log.count_after(position) if waiting else 0,
            seconds=max(seconds, 0.0),
            set_aside=sum(set_aside.values()),
        )

    def rebuild(self, view: str, progress: Callable[[int, int], None] | None = None) -> int:
        """Build a view anew beside the live one, which answers meanwhile, and put it in its place; gives its position.

        Writers write on, and followers follow the live one. Somebody else may rebuild the same view at once: both
        work on the same build.
        """
        follower = self._followers[view]
        try:
            place = follower.rows.begin_build()
        except LostRace:
            return follower.rows.place().position
        builder = Follower(follower.projection, follower.rows, place.build)
        while (at := builder.place()) is not None and at.build > follower.rows.place().build:
            facts = self._log.after(at.position, self.batch)
            if facts and not builder.fold(at, facts):
                continue
            if progress is not None:
                progress(facts[-1].position if facts else at.position, self._log.newest())
            if len(facts) < self.batch and follower.rows.swap(place.build):
                break
        # Where the build is gone, or is the live one, somebody else has swapped it in.
        return follower.rows.place().position
