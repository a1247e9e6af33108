"""Open pauses: who is waited for, since when and until when: the inbox."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from ..domain.axes import Scope
from ..domain.errors import InteractionConfigurationError
from .projection import PATIENCE, Projection, View, within
from .rows import Condition, Key, Page, Query, Table, Values, shown
from .seen import Seen, joined, known


@dataclass(frozen=True, slots=True)
class OpenPause:
    """One row of the inbox. Groups, assignees and `asked_by` are tags.

    Attributes:
        round: The lead's pause id, the same for all pauses of one assistant message.
        since: When it was asked (UTC); of an unreadable one, when that fact was written.
        position: Where the question stands in the log.
        unreadable: A fact of this pause cannot be read here; what is None could not be told.
        answers_needed: How many people have to agree by the pause's policy.
        answers_agreeing: How many do so far: the most that gave the same answer.
        round_calls: How many calls of the round wait, or waited, for a person.
        round_answered: How many of these hold an answer.
    """

    pause: UUID
    scope: Scope | None
    session_id: str | None
    run_id: str | None
    call_id: str | None
    round: UUID | None
    interaction: str | None
    revision: int | None
    tool: str | None
    agent: str | None
    queue: str | None
    priority: int
    groups: tuple[str, ...]
    assignees: tuple[str, ...]
    asked_by: str | None
    labels: Mapping[str, str]
    since: datetime | None
    opens_at: datetime | None
    closes_at: datetime | None
    position: int
    unreadable: bool
    answers_needed: int
    answers_agreeing: int
    round_calls: int
    round_answered: int = shown(0)


@dataclass(frozen=True, slots=True)
class OpenRound:
    """How far a round of several gated calls is: how many are over, and how many of those hold an answer."""

    lead: UUID
    calls: int
    over: int
    answered: int


OPEN = Table(
    "open_pauses",
    OpenPause,
    ("pause",),
    (
        ("scope", "unreadable", "closes_at", "pause"),
        ("scope", "unreadable", "since", "pause"),
        # Apart, so that nothing within one scope is ever looked for among all tenants' rows.
        ("+unreadable", "closes_at", "pause"),
        ("+unreadable", "since", "pause"),
        # The session first, so that only questions about one go by it.
        ("session_id", "scope"),
    ),
)
ROUNDS = Table("open_rounds", OpenRound, ("lead",))


class OpenPauses(Projection):
    """Folds the log into the inbox. A refused redemption leaves a pause open."""

    name = "open_pauses"
    revision = 2
    facts = frozenset({"pause.paused", "pause.answered", "pause.consumed", "pause.withdrawn", "pause.lapsed"})
    reads = frozenset({"pause.paused", "pause.answered"})
    own_tables = (OPEN, ROUNDS)

    def wants(self, facts: Sequence[Seen], page: Page) -> Iterator[tuple[Table[Any], Iterable[Key]]]:
        """Look at each pause, and then at its round."""
        pauses = known(facts)
        yield OPEN, [(pause,) for pause in pauses]
        rows = [page.get(OPEN, pause) for pause in pauses]
        leads = {row["round"] for row in rows if row is not None and row["round"]}
        yield ROUNDS, [(lead,) for lead in leads.union(joined(facts))]

    def fold(self, fact: Seen, page: Page) -> None:
        """Take one fact into the inbox."""
        if fact.name == "pause.paused":
            before = page.get(OPEN, fact.pause)
            row = _opened(fact)
            page.put(OPEN, row if before is None else {**row, "unreadable": before["unreadable"]})
            if row["round_calls"] > 1 and page.get(ROUNDS, row["round"]) is None:
                page.put(ROUNDS, {"lead": row["round"], "calls": row["round_calls"], "over": 0, "answered": 0})
            return
        row_before = page.get(OPEN, fact.pause)
        if row_before is not None and fact.name == "pause.answered" and not fact.said.complete:
            agreeing = max(row_before["answers_agreeing"], fact.said.number)
            page.put(OPEN, {**row_before, "answers_agreeing": agreeing})
        elif row_before is not None:
            page.drop(OPEN, fact.pause)
            _settle(page, row_before["round"], answered=fact.name == "pause.answered")

    def flag(self, fact: Seen, page: Page) -> None:
        """Show the pause first; one that nothing is known of as well."""
        row = page.get(OPEN, fact.pause)
        if row is None:
            unknown = dict.fromkeys(OPEN.columns)
            row = {
                **unknown,
                "priority": 0,
                "groups": "[]",
                "assignees": "[]",
                "labels": "{}",
                "position": fact.position,
            }
            row |= {"answers_needed": 1, "answers_agreeing": 0, "round_calls": 1}
            row |= {"pause": fact.pause, "scope": fact.scope, "since": fact.at}
        page.put(OPEN, {**row, "unreadable": 1})


def _settle(page: Page, lead: str | None, *, answered: bool) -> None:
    round_ = page.get(ROUNDS, lead)
    if round_ is None:
        return
    if round_["over"] + 1 >= round_["calls"]:
        page.drop(ROUNDS, lead)
        return
    page.put(ROUNDS, {**round_, "over": round_["over"] + 1, "answered": round_["answered"] + answered})


def _opened(fact: Seen) -> Values:
    said = fact.said
    return {
        "pause": fact.pause,
        "scope": fact.scope,
        "session_id": said.session_id,
        "run_id": said.run_id,
        "call_id": said.call_id,
        "round": said.lead,
        "interaction": said.interaction,
        "revision": said.revision,
        "tool": said.tool,
        "agent": said.agent,
        "queue": said.queue,
        "priority": said.priority,
        "groups": said.groups,
        "assignees": said.assignees,
        "asked_by": said.asked_by,
        "labels": said.labels,
        "since": fact.at,
        "opens_at": said.opens_at,
        "closes_at": said.closes_at,
        "position": fact.position,
        "unreadable": 0,
        "answers_needed": said.needed,
        "answers_agreeing": 0,
        "round_calls": said.calls,
    }


@dataclass(frozen=True, slots=True)
class Inbox:
    """Which open pauses are meant; what is left out does not choose.

    Attributes:
        assignee: A person's id, as the host gave it when pausing.
        group: A group's, likewise.
        closes_before: The window ends before this (UTC).
    """

    session_id: str | None = None
    interaction: str | None = None
    assignee: str | None = None
    group: str | None = None
    queue: str | None = None
    closes_before: datetime | None = None


ALL = Inbox()


@dataclass(frozen=True, slots=True)
class InboxPage:
    """Some rows of the inbox, and where to go on: None at the end."""

    rows: tuple[OpenPause, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class InboxCounts:
    """How many pauses may be answered now, how many of them by each interaction, and how many cannot be read."""

    open: int
    by_interaction: Mapping[str, int]
    unreadable: int


class OpenPausesView(View[OpenPauses]):
    """Questions to the inbox: what may be answered now. A window that has closed is shown by `stranded` instead.

    What cannot be read comes first, whatever the order.
    """

    projection = OpenPauses

    async def most_urgent(
        self,
        scope: Scope,
        chosen: Inbox = ALL,
        *,
        limit: int = 50,
        page: str | None = None,
        after: int | None = None,
        seconds: float = PATIENCE,
    ) -> InboxPage:
        """List what closes first. `page` is the `next` of the page before."""
        await self._ask.reach(after, seconds)
        return await self._list(within(scope), chosen, "closes_at", limit, page)

    async def most_urgent_of_all_tenants(
        self,
        chosen: Inbox = ALL,
        *,
        limit: int = 50,
        page: str | None = None,
        after: int | None = None,
        seconds: float = PATIENCE,
    ) -> InboxPage:
        """List what closes first, for an operator."""
        await self._ask.reach(after, seconds)
        return await self._list((), chosen, "closes_at", limit, page)

    async def newest(
        self,
        scope: Scope,
        chosen: Inbox = ALL,
        *,
        limit: int = 50,
        page: str | None = None,
        after: int | None = None,
        seconds: float = PATIENCE,
    ) -> InboxPage:
        """List what was asked last."""
        await self._ask.reach(after, seconds)
        return await self._list(within(scope), chosen, "since", limit, page)

    async def newest_of_all_tenants(
        self,
        chosen: Inbox = ALL,
        *,
        limit: int = 50,
        page: str | None = None,
        after: int | None = None,
        seconds: float = PATIENCE,
    ) -> InboxPage:
        """List what was asked last, for an operator."""
        await self._ask.reach(after, seconds)
        return await self._list((), chosen, "since", limit, page)

    async def count(
        self, scope: Scope, chosen: Inbox = ALL, *, after: int | None = None, seconds: float = PATIENCE
    ) -> InboxCounts:
        """Count what may be answered now."""
        await self._ask.reach(after, seconds)
        return await self._count(within(scope), chosen)

    async def count_of_all_tenants(
        self, chosen: Inbox = ALL, *, after: int | None = None, seconds: float = PATIENCE
    ) -> InboxCounts:
        """Count what may be answered now, for an operator."""
        await self._ask.reach(after, seconds)
        return await self._count((), chosen)

    async def _list(
        self, where: Sequence[Condition], chosen: Inbox, order: str, limit: int, page: str | None
    ) -> InboxPage:
        if limit < 1:
            raise InteractionConfigurationError("a page has at least one row; pass a limit from 1 up")
        (part, after), unreadable = _going_on(page), _flag(where)
        chooses = [*where, *self._chosen(chosen)]
        # Where rows come by another order, the windows that have closed are passed over, and not searched.
        closes = "closes_at" if order == "closes_at" else "+closes_at"
        open_now: list[Condition] = [(unreadable, "=", 0), (closes, ">", self._closed_by())]
        rest = Query(OPEN, (*chooses, *open_now), (order, "pause"), order == "since", limit=limit + 1)
        if part == _FIRST:
            broken = Query(OPEN, (*where, (unreadable, "=", 1)), ("since", "pause"), after=after, limit=limit + 1)
            first, others = await self._ask.select_both(broken, rest)
            rows = first + others
        else:
            rows = await self._ask.select(replace(rest, after=after))
        listed = rows[:limit]
        return InboxPage(await self._told(listed), _next(listed[-1], order) if len(rows) > limit else None)

    def _closed_by(self) -> datetime:
        return self._ask.now() - self._ask.leeway

    def _chosen(self, chosen: Inbox) -> Iterator[Condition]:
        if chosen.session_id is not None:
            yield "session_id", "=", chosen.session_id
        if chosen.interaction is not None:
            yield "interaction", "=", chosen.interaction
        if chosen.queue is not None:
            yield "queue", "=", chosen.queue
        if chosen.assignee is not None:
            yield "assignees", "has", self._ask.tag("actor", chosen.assignee)
        if chosen.group is not None:
            yield "groups", "has", self._ask.tag("group", chosen.group)
        if chosen.closes_before is not None:
            yield "closes_at", "<", chosen.closes_before

    async def _told(self, listed: Sequence[Values]) -> tuple[OpenPause, ...]:
        leads = sorted({row["round"] for row in listed if row["round_calls"] > 1})
        found = await self._ask.select(Query(ROUNDS, (("lead", "in", leads),))) if leads else []
        answered = {one["lead"]: one["answered"] for one in found}
        return tuple(OPEN.show(row, round_answered=answered.get(row["round"], 0)) for row in listed)

    async def _count(self, where: Sequence[Condition], chosen: Inbox) -> InboxCounts:
        unreadable = _flag(where)
        open_now: list[Condition] = [(unreadable, "=", 0), ("closes_at", ">", self._closed_by())]
        by = await self._ask.tally(OPEN, ("interaction",), (*where, *self._chosen(chosen), *open_now))
        broken = await self._ask.tally(OPEN, ("unreadable",), (*where, (unreadable, "=", 1)))
        counts = {str(name): count for (name,), count in sorted(by.items())}
        return InboxCounts(sum(counts.values()), counts, sum(broken.values()))


def _flag(where: Sequence[Condition]) -> str:
    """Name the flag so that its question goes by the index made for it: of one scope, or of all tenants."""
    return "unreadable" if where else "+unreadable"


_FIRST, _REST = "unreadable", "readable"


def _next(row: Values, order: str) -> str:
    part, column = (_FIRST, "since") if row["unreadable"] else (_REST, order)
    return f"{part} {row[column]} {row['pause']}"


def _going_on(page: str | None) -> tuple[str, tuple[Any, ...] | None]:
    if page is None:
        return _FIRST, None
    part, _, rest = page.partition(" ")
    moment, _, pause = rest.partition(" ")
    try:
        after = (moment, str(UUID(pause)))
    except ValueError:
        raise InteractionConfigurationError(
            "that is no page of the inbox; pass the `next` of the page before"
        ) from None
    return part, after
