"""Refusals: what attempts failed on, how often, and who keeps trying."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from ..domain.axes import Scope
from .projection import PATIENCE, Projection, View, within
from .rows import Condition, Key, Page, Query, Table, plain
from .seen import UNFOLDABLE, Seen


@dataclass(frozen=True, slots=True)
class RefusedAttempt:
    """One refused attempt. `by` is a tag; `presented` holds the axes it stated, as tags.

    Attributes:
        scope: The pause's own; None where the pause is not in this store.
    """

    position: int
    pause: UUID
    scope: Scope | None
    at: datetime
    step: int
    axis: str
    reason: str
    rule: str | None
    by: str | None
    attempt: UUID
    seen_version: int
    presented: Any


@dataclass(frozen=True, slots=True)
class RefusalHour:
    """How many attempts failed on one axis by one reason in one hour (UTC, such as `2026-11-30T18`)."""

    scope: Scope | None
    hour: str
    axis: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Insistent:
    """Who was refused how often; `by` is a tag, empty for attempts that named nobody."""

    scope: Scope | None
    by: str
    count: int
    first_at: datetime
    last_at: datetime
    last_pause: UUID


@dataclass(frozen=True, slots=True)
class RefusalCount:
    """A count of refusals: of a period (an hour or a day, UTC) by axis and reason.

    Attributes:
        scope: The tenant; in an operator's counts None stands for pauses that are not in this store.
    """

    scope: Scope | None
    period: str
    axis: str
    reason: str
    count: int


ATTEMPTS = Table("refusal_attempts", RefusedAttempt, ("position",), (("pause", "position"), ("scope", "position")))
HOURS = Table("refusal_hours", RefusalHour, ("scope", "hour", "axis", "reason"), (("hour",),))
ACTORS = Table("refusal_actors", Insistent, ("scope", "by"), (("scope", "count", "by"), ("count", "by")))

#: The length of an hour and of a day at the front of a moment.
_PERIODS: dict[str, int] = {"hour": len("2026-11-30T18"), "day": len("2026-11-30")}


class Refusals(Projection):
    """Counts refusals as they come, and keeps each."""

    name = "refusals"
    facts = frozenset({"pause.refused"})
    reads = facts
    own_tables = (ATTEMPTS, HOURS, ACTORS)

    def wants(self, facts: Sequence[Seen], page: Page) -> Iterator[tuple[Table[Any], Iterable[Key]]]:  # noqa: ARG002 - the facts say all
        """Look at the counts the attempts fall into."""
        hours, actors = set(), set()
        for fact in facts:
            # What is not there cannot be counted; whoever folds it finds out.
            with suppress(*UNFOLDABLE):
                if self.why_not(fact) is None:
                    hours.add(_hour(fact))
                    actors.add((fact.scope, fact.said.by or ""))
        yield HOURS, hours
        yield ACTORS, actors

    def fold(self, fact: Seen, page: Page) -> None:
        """Count one attempt, and keep it."""
        said, hour, by = fact.said, _hour(fact), fact.said.by or ""
        page.add(ATTEMPTS, (
            fact.position, fact.pause, fact.scope, fact.at, said.step, said.axis, said.reason, said.rule, by or None,
            said.attempt, said.seen_version, said.presented,
        ))  # fmt: skip
        counted = page.get(HOURS, *hour)
        count = 1 if counted is None else counted["count"] + 1
        page.put(HOURS, {**dict(zip(HOURS.key, hour, strict=True)), "count": count})
        tried = page.get(ACTORS, fact.scope, by) or {"count": 0, "first_at": fact.at, "last_at": fact.at}
        page.put(ACTORS, {
            "scope": fact.scope,
            "by": by,
            "count": tried["count"] + 1,
            "first_at": min(tried["first_at"], fact.at),
            "last_at": max(tried["last_at"], fact.at),
            "last_pause": fact.pause,
        })  # fmt: skip


def _hour(fact: Seen) -> Key:
    return (fact.scope, fact.at[: _PERIODS["hour"]], str(fact.said.axis), str(fact.said.reason))


class RefusalsView(View[Refusals]):
    """Questions to the refusals on record. Forged tokens name no pause and are not among them."""

    projection = Refusals

    async def counts(
        self,
        scope: Scope,
        *,
        by: Literal["hour", "day"] = "day",
        since: datetime | None = None,
        until: datetime | None = None,
        after: int | None = None,
        seconds: float = PATIENCE,
    ) -> list[RefusalCount]:
        """Count by period, axis and reason; whole hours from `since` up to before `until` (UTC)."""
        await self._ask.reach(after, seconds)
        return await self._counts(within(scope), by, since, until)

    async def counts_of_all_tenants(
        self,
        *,
        by: Literal["hour", "day"] = "day",
        since: datetime | None = None,
        until: datetime | None = None,
        after: int | None = None,
        seconds: float = PATIENCE,
    ) -> list[RefusalCount]:
        """Count by tenant, period, axis and reason, for an operator."""
        await self._ask.reach(after, seconds)
        return await self._counts((), by, since, until)

    async def last_attempts(
        self, scope: Scope, pause: UUID, *, limit: int = 20, after: int | None = None, seconds: float = PATIENCE
    ) -> list[RefusedAttempt]:
        """List the last refused attempts on a pause, newest first."""
        await self._ask.reach(after, seconds)
        [(_, _, held_by)] = within(scope)
        return await self._last((("+scope", "=", held_by), ("pause", "=", pause)), limit)

    async def last_attempts_of_all_tenants(
        self, pause: UUID | None = None, *, limit: int = 20, after: int | None = None, seconds: float = PATIENCE
    ) -> list[RefusedAttempt]:
        """List the last refused attempts on a pause or on any, newest first, for an operator."""
        await self._ask.reach(after, seconds)
        return await self._last(() if pause is None else (("pause", "=", pause),), limit)

    async def insistent(
        self, scope: Scope, *, limit: int = 20, after: int | None = None, seconds: float = PATIENCE
    ) -> list[Insistent]:
        """List who was refused most."""
        await self._ask.reach(after, seconds)
        return await self._insistent(within(scope), limit)

    async def insistent_of_all_tenants(
        self, *, limit: int = 20, after: int | None = None, seconds: float = PATIENCE
    ) -> list[Insistent]:
        """List who was refused most, tenant by tenant, for an operator."""
        await self._ask.reach(after, seconds)
        return await self._insistent((), limit)

    async def _counts(
        self, where: Sequence[Condition], by: str, since: datetime | None, until: datetime | None
    ) -> list[RefusalCount]:
        bounds: list[Condition] = []
        if since is not None:
            bounds.append(("hour", ">=", plain(since)[: _PERIODS["hour"]]))
        if until is not None:
            bounds.append(("hour", "<", plain(until)[: _PERIODS["hour"]]))
        counted: Counter[tuple[Scope | None, str, str, str]] = Counter()
        for row in await self._rows(Query(HOURS, (*where, *bounds), ("hour", "scope", "axis", "reason"))):
            counted[row.scope, row.hour[: _PERIODS[by]], row.axis, row.reason] += row.count
        return [RefusalCount(*of, count) for of, count in counted.items()]

    async def _last(self, where: Sequence[Condition], limit: int) -> list[RefusedAttempt]:
        # Few attempts are on one pause: by their positions they would be searched for among all.
        order = "+position" if any(name == "pause" for name, _, _ in where) else "position"
        return await self._rows(Query(ATTEMPTS, where, (order,), descending=True, limit=limit))

    async def _insistent(self, where: Sequence[Condition], limit: int) -> list[Insistent]:
        return await self._rows(Query(ACTORS, where, ("count", "by"), descending=True, limit=limit))
