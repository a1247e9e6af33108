"""Stranded turns: ready and not taken up, broken off, left by a dead worker; and windows that closed unmarked."""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from pydantic_core import from_json, to_json

from ..domain.axes import Axes, Scope
from ..domain.facts import FACTS, rfc3339
from .projection import PATIENCE, Projection, View, within
from .rows import Condition, Key, Page, Query, Table, Values
from .seen import Seen, joined, known


@dataclass(frozen=True, slots=True)
class RoundPause:
    """A pause of a round that is not consumed yet: open, answered, lapsed, withdrawn, or unreadable."""

    pause: UUID
    lead: UUID | None
    scope: Scope | None
    session_id: str | None
    run_id: str | None
    call_id: str | None
    state: str
    since: datetime | None
    closes_at: datetime | None
    unreadable: bool


@dataclass(frozen=True, slots=True)
class OwedRound:
    """A round until its turn has gone on or was given up, by its lead.

    Attributes:
        phase: waiting, ready, owed or stalled.
        members: By pause: its state, the end of its window, and whether a lapse answers it.
        closes_at: When waiting: the moment from which it is ready though nobody answers any more; None if it never is.
        since: When it got into its phase (UTC).
        lease_until: The end of the newest claim's lease as granted; renewals stand beside the log.
    """

    lead: UUID
    scope: Scope | None
    session_id: str
    run_id: str
    call_id: str
    calls: int
    members: Mapping[str, Any]
    phase: str
    closes_at: datetime | None
    since: datetime
    fence: int
    holder: str | None
    lease_until: datetime | None
    cause: str | None
    recoveries: int
    unreadable: bool


@dataclass(frozen=True, slots=True)
class Stranded:
    """One turn that nobody goes on with, or one window that closed unmarked.

    `ledger.capability.recover(RecoverCommand(pause_id=item.pause_id, axes=item.axes))` takes up what is ready, stalled
    or lease_ended.

    Attributes:
        pause_id: The round's lead; of `closed` and `unreadable` the pause itself.
        axes: None where they cannot be read.
        state: `ready`: answered and never handed out. `stalled`: it broke off. `lease_ended`: its worker is gone.
            `closed`: a window that closed unmarked. `unreadable`: a fact of it cannot be read here.
        since: From when on (UTC); None where it cannot be read.
        fence: The newest claim's; 0 where it was never handed out.
        holder: Who holds that claim, a tag.
        lease_until: When that claim's lease ended, renewals included (UTC).
        cause: What broke it off.
        recoveries: How often it was taken up again.
    """

    pause_id: UUID
    axes: Axes | None
    state: Literal["ready", "stalled", "lease_ended", "closed", "unreadable"]
    since: datetime | None
    fence: int = 0
    holder: str | None = None
    lease_until: datetime | None = None
    cause: str | None = None
    recoveries: int = 0

    def age(self, now: datetime) -> timedelta | None:
        """Tell for how long."""
        return None if self.since is None else now - self.since


MEMBERS = Table(
    "stranded_pauses",
    RoundPause,
    ("pause",),
    (
        ("scope", "state", "closes_at", "pause"),
        ("scope", "unreadable", "since", "pause"),
        # Apart, so that nothing within one scope is ever looked for among all tenants' rows.
        ("+state", "closes_at", "pause"),
        ("+unreadable", "since", "pause"),
    ),
)
ROUNDS = Table(
    "stranded_rounds",
    OwedRound,
    ("lead",),
    (
        ("scope", "phase", "since", "lead"),
        ("scope", "phase", "closes_at", "lead"),
        ("scope", "phase", "lease_until", "lead"),
        ("+phase", "since", "lead"),
        ("+phase", "closes_at", "lead"),
        ("+phase", "lease_until", "lead"),
    ),
)


_NOBODY = "{}"


class StrandedTurns(Projection):
    """Follows each round from its question to the end of its turn."""

    name = "stranded"
    revision = 2
    facts = frozenset(kind.NAME for kind in FACTS) - {"pause.refused", "pause.reissued"}
    reads = facts - {"pause.withdrawn", "pause.lapsed", "pause.continued", "pause.abandoned"}
    own_tables = (MEMBERS, ROUNDS)

    def wants(self, facts: Sequence[Seen], page: Page) -> Iterator[tuple[Table[Any], Iterable[Key]]]:
        """Look at each pause, and then at its round."""
        pauses = known(facts)
        yield MEMBERS, [(pause,) for pause in pauses]
        rows = [page.get(MEMBERS, pause) for pause in pauses]
        leads = {row["lead"] for row in rows if row is not None and row["lead"]}
        # Settlements stand in the lead's stream, when its own row is gone.
        yield ROUNDS, [(lead,) for lead in leads.union(pauses, joined(facts))]

    def fold(self, fact: Seen, page: Page) -> None:
        """Take one fact into its round."""
        match fact.name:
            case "pause.paused":
                _pause(fact, page)
            case "pause.answered" if not fact.said.complete:
                pass
            case "pause.answered" | "pause.lapsed" | "pause.withdrawn":
                _end(fact, page, fact.name.removeprefix("pause."))
            case "pause.consumed":
                _consume(fact, page)
            case "pause.continued" | "pause.abandoned":
                page.drop(ROUNDS, fact.pause)
            case _:
                _claim(fact, page)

    def flag(self, fact: Seen, page: Page) -> None:
        """Show the pause first, and offer its round to no worker."""
        row = page.get(MEMBERS, fact.pause)
        if row is None:
            unknown = dict.fromkeys(MEMBERS.columns)
            row = {**unknown, "pause": fact.pause, "scope": fact.scope, "state": "unreadable", "since": fact.at}
        page.put(MEMBERS, {**row, "unreadable": 1})
        round_ = page.get(ROUNDS, row["lead"] or fact.pause)
        if round_ is not None:
            page.put(ROUNDS, {**round_, "unreadable": 1})


def _pause(fact: Seen, page: Page) -> None:
    said, lead = fact.said, fact.said.lead
    before = page.get(MEMBERS, fact.pause)
    unreadable = 0 if before is None else before["unreadable"]
    axes = {"scope": fact.scope, "session_id": said.session_id, "run_id": said.run_id}
    page.put(MEMBERS, {
        **axes,
        "pause": fact.pause,
        "lead": lead,
        "call_id": said.call_id,
        "state": "open",
        "since": fact.at,
        "closes_at": said.closes_at,
        "unreadable": unreadable,
    })  # fmt: skip
    round_ = page.get(ROUNDS, lead)
    if round_ is None:
        round_ = {
            **axes,
            "lead": lead,
            "call_id": said.lead_call,
            "calls": said.calls,
            "members": _NOBODY,
            "phase": "waiting",
            "closes_at": None,
            "since": fact.at,
            "fence": 0,
            "holder": None,
            "lease_until": None,
            "cause": None,
            "recoveries": 0,
            "unreadable": unreadable,
        }
    members = from_json(round_["members"])
    members[fact.pause] = ["open", said.closes_at, said.answers]
    _judge(round_, members, fact, page)


def _end(fact: Seen, page: Page, state: str) -> None:
    row = page.get(MEMBERS, fact.pause)
    if row is None:
        return
    page.put(MEMBERS, {**row, "state": state, "since": fact.at})
    round_ = page.get(ROUNDS, row["lead"])
    members = {} if round_ is None else from_json(round_["members"])
    if round_ is not None and fact.pause in members:
        members[fact.pause][0] = state
        _judge(round_, members, fact, page)


def _judge(round_: Values, members: dict[str, Any], fact: Seen, page: Page) -> None:
    """Say whether a round that was not handed out is ready, or from when on it is."""
    open_, holds = [], False
    for state, closes_at, answers in members.values():
        if state == "open":
            open_.append(closes_at)
        holds = holds or state == "answered" or (answers and state != "withdrawn")
    whole = len(members) == round_["calls"]
    if whole and not open_ and not holds:
        page.drop(ROUNDS, round_["lead"])
        for pause in members:
            page.drop(MEMBERS, pause)
        return
    ready = whole and not open_
    page.put(ROUNDS, {
        **round_,
        # All of it is ASCII; so small an object is encoded several times as fast by this one.
        "members": to_json(members).decode(),
        "phase": "ready" if ready else "waiting",
        "closes_at": max(open_) if whole and open_ and holds else None,
        "since": fact.at if ready else round_["since"],
    })  # fmt: skip


def _consume(fact: Seen, page: Page) -> None:
    page.drop(MEMBERS, fact.pause)
    if fact.said.lead != fact.pause:
        return
    round_ = page.get(ROUNDS, fact.pause)
    if fact.said.claim is None:
        page.drop(ROUNDS, fact.pause)
    elif round_ is not None:
        page.put(ROUNDS, {**round_, "members": _NOBODY, "closes_at": None, **_claimed(fact)})


def _claim(fact: Seen, page: Page) -> None:
    round_ = page.get(ROUNDS, fact.pause)
    if round_ is None:
        return
    if fact.name == "pause.recovered":
        page.put(ROUNDS, {**round_, **_claimed(fact), "recoveries": round_["recoveries"] + 1})
    elif fact.name == "pause.stalled" and fact.said.fence == round_["fence"]:
        page.put(ROUNDS, {**round_, "phase": "stalled", "since": fact.at, "cause": fact.said.cause})


def _claimed(fact: Seen) -> Values:
    fence, holder, lease_seconds = fact.said.claim
    until = datetime.fromisoformat(fact.at) + timedelta(seconds=lease_seconds)
    return {
        "phase": "owed",
        "since": fact.at,
        "fence": fence,
        "holder": holder,
        "lease_until": rfc3339(until),
        "cause": None,
    }


class StrandedView(View[StrandedTurns]):
    """Questions to the stranded turns. Whether a lease has ended is judged when asked, by its newest renewal."""

    projection = StrandedTurns

    async def stranded(
        self, scope: Scope, *, limit: int = 100, after: int | None = None, seconds: float = PATIENCE
    ) -> list[Stranded]:
        """List what is stranded, at most `limit` of each state: unreadable, stalled, lease_ended, ready, closed."""
        await self._ask.reach(after, seconds)
        return await self._list(within(scope), limit)

    async def stranded_of_all_tenants(
        self, *, limit: int = 100, after: int | None = None, seconds: float = PATIENCE
    ) -> list[Stranded]:
        """List what is stranded, for an operator."""
        await self._ask.reach(after, seconds)
        return await self._list((), limit)

    async def owed(self, scope: Scope) -> AsyncIterator[Stranded]:
        """Go through what `recover` can take up: stalled, lease_ended, ready."""
        async for item in self._owed(within(scope)):
            yield item

    async def owed_of_all_tenants(self) -> AsyncIterator[Stranded]:
        """Go through what `recover` can take up, for an operator."""
        async for item in self._owed(()):
            yield item

    async def closed_of_all_tenants(self) -> AsyncIterator[Stranded]:
        """Go through the windows that closed unmarked, for a sweeper."""
        async for item in self._closed(()):
            yield item

    async def lease_ended_of_all_tenants(self) -> AsyncIterator[Stranded]:
        """Go through the turns whose worker is gone, for a sweeper."""
        async for item in self._lease_ended(()):
            yield item

    async def _list(self, where: Sequence[Condition], limit: int) -> list[Stranded]:
        parts = (
            self._unreadable_pauses(where),
            self._stalled(where),
            self._lease_ended(where),
            self._ready(where),
            self._closed(where),
        )
        return [item for part in parts for item in await _first(limit, part)]

    async def _owed(self, where: Sequence[Condition]) -> AsyncIterator[Stranded]:
        for part in (self._stalled(where), self._lease_ended(where), self._ready(where)):
            async for item in part:
                yield item

    async def _unreadable_pauses(self, where: Sequence[Condition]) -> AsyncIterator[Stranded]:
        async for row in self._each(Query(MEMBERS, (*where, (_by("unreadable", where), "=", 1)), ("since", "pause"))):
            yield _member(row, "unreadable", row.since)

    async def _stalled(self, where: Sequence[Condition]) -> AsyncIterator[Stranded]:
        async for row in self._each(Query(ROUNDS, (*where, *_phase("stalled", where)), ("since", "lead"))):
            yield _turn(row, "stalled", row.since)

    async def _ready(self, where: Sequence[Condition]) -> AsyncIterator[Stranded]:
        async for row in self._each(Query(ROUNDS, (*where, *_phase("ready", where)), ("since", "lead"))):
            yield _turn(row, "ready", row.since)
        closed: list[Condition] = [*_phase("waiting", where), ("closes_at", "<=", self._closed_by())]
        async for row in self._each(Query(ROUNDS, (*where, *closed), ("closes_at", "lead"))):
            assert row.closes_at is not None  # noqa: S101 - it was asked by
            yield _turn(row, "ready", row.closes_at + self._ask.leeway)

    async def _lease_ended(self, where: Sequence[Condition]) -> AsyncIterator[Stranded]:
        now = self._ask.now()
        query = Query(ROUNDS, (*where, *_phase("owed", where), ("lease_until", "<=", now)), ("lease_until", "lead"))
        async for rows in self._pages(query):
            renewed = await self._ask.leases([row.lead for row in rows])
            for row in rows:
                assert row.lease_until is not None  # noqa: S101 - it was asked by
                fence, until = renewed.get(row.lead, (0, row.lease_until))
                ends = max(until, row.lease_until) if fence == row.fence else row.lease_until
                if ends <= now:
                    yield _turn(row, "lease_ended", ends, ends)

    async def _closed(self, where: Sequence[Condition]) -> AsyncIterator[Stranded]:
        closed: list[Condition] = [(_by("state", where), "=", "open"), ("closes_at", "<=", self._closed_by())]
        async for row in self._each(Query(MEMBERS, (*where, *closed), ("closes_at", "pause"))):
            assert row.closes_at is not None  # noqa: S101 - it was asked by
            yield _member(row, "closed", row.closes_at + self._ask.leeway)

    def _closed_by(self) -> datetime:
        return self._ask.now() - self._ask.leeway

    async def _each(self, query: Query[Any]) -> AsyncIterator[Any]:
        async for rows in self._pages(query):
            for row in rows:
                yield row

    async def _pages(self, query: Query[Any], size: int = 200) -> AsyncIterator[list[Any]]:
        after: tuple[Any, ...] | None = None
        while True:
            page = Query(query.table, query.where, query.order, after=after, limit=size)
            found = await self._ask.select(page)
            if found:
                yield [query.table.show(values) for values in found]
            if len(found) < size:
                return
            after = tuple(found[-1][name] for name in query.order)


async def _first(limit: int, items: AsyncIterator[Stranded]) -> list[Stranded]:
    listed: list[Stranded] = []
    async for item in items:
        if len(listed) == limit:
            break
        listed.append(item)
    return listed


def _by(column: str, where: Sequence[Condition]) -> str:
    """Name a column so that its question goes by the index made for it: of one scope, or of all tenants."""
    return column if where else f"+{column}"


def _phase(phase: str, where: Sequence[Condition]) -> tuple[Condition, ...]:
    # What is unreadable is rare, and is passed over rather than searched.
    return (_by("phase", where), "=", phase), ("+unreadable", "=", 0)


def _turn(
    row: OwedRound,
    state: Literal["ready", "stalled", "lease_ended"],
    since: datetime,
    lease_until: datetime | None = None,
) -> Stranded:
    return Stranded(
        pause_id=row.lead,
        axes=Axes(scope=row.scope, session_id=row.session_id, run_id=row.run_id, call_id=row.call_id),
        state=state,
        since=since,
        fence=row.fence,
        holder=row.holder,
        lease_until=lease_until or row.lease_until,
        cause=row.cause,
        recoveries=row.recoveries,
    )


def _member(row: RoundPause, state: Literal["closed", "unreadable"], since: datetime | None) -> Stranded:
    axes = None
    if row.scope is not None and row.run_id is not None:
        axes = Axes(scope=row.scope, session_id=row.session_id, run_id=row.run_id, call_id=row.call_id)
    return Stranded(row.pause, axes, state, since)
