"""Response times: how long people take, how often nobody answers, and who answers faster than anybody can read."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from math import ceil
from typing import Any
from uuid import UUID

from ..domain.axes import Scope
from .projection import PATIENCE, Projection, View, within
from .rows import Condition, Key, Page, Query, Table, Values, as_json
from .seen import UNFOLDABLE, Seen, known

_MICROSECOND = timedelta(microseconds=1)
#: The row of a pause that stands for all its assignees, or for none.
EVERYBODY = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """One pause, once for everybody and once for each assignee.

    Attributes:
        assignee: A tag, or empty.
        state: open, answered, lapsed or withdrawn.
        elapsed: Microseconds from the question to the answer, by the store's clock.
        by: Who answered, a tag.
    """

    pause: UUID
    assignee: str
    scope: Scope | None
    interaction: str
    state: str
    asked_at: datetime
    elapsed: int | None
    by: str | None
    assignees: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ResponseTimes:
    """How one interaction of one tenant is answered. Times are seconds; percentiles are times that occurred.

    Attributes:
        assignee: A tag; None counts every pause once, whoever it was for.
        oldest_open: Since when the oldest open one waits (UTC).
        lapsed_share: Of those answered or lapsed, how many lapsed; 0 to 1.
    """

    scope: Scope | None
    interaction: str
    assignee: str | None
    answered: int
    open: int
    lapsed: int
    withdrawn: int
    p50: float | None
    p90: float | None
    p99: float | None
    oldest_open: datetime | None
    lapsed_share: float


@dataclass(frozen=True, slots=True)
class HastyAnswer:
    """An answer that came sooner than the threshold after the question. `by` is a tag."""

    pause: UUID
    scope: Scope | None
    interaction: str
    by: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class RubberStamps:
    """The answers that came faster than a threshold.

    Attributes:
        fastest: The fastest of them, fastest first.
        by_answerer: By the answerer's tag, or None: how many were hasty, of how many answers.
    """

    threshold: float
    hasty: int
    answered: int
    fastest: tuple[HastyAnswer, ...]
    by_answerer: dict[str | None, tuple[int, int]]


ASKED = Table(
    "response_times",
    Asked,
    ("pause", "assignee"),
    (
        # All that rubber stamps are counted by stands in it.
        ("scope", "assignee", "state", "interaction", "elapsed", "by"),
        ("scope", "assignee", "interaction", "state", "asked_at"),
    ),
)

_ENDS = {"pause.answered": "answered", "pause.lapsed": "lapsed", "pause.withdrawn": "withdrawn"}


class TimesTaken(Projection):
    """Measures from each `Paused` to its end."""

    name = "response_times"
    revision = 3
    facts = frozenset({"pause.paused", *_ENDS})
    reads = frozenset({"pause.paused", "pause.answered"})
    own_tables = (ASKED,)

    def wants(self, facts: Sequence[Seen], page: Page) -> Iterator[tuple[Table[Any], Iterable[Key]]]:
        """Look at the pause for everybody, and then for each of its assignees."""
        pauses = known(facts)
        yield ASKED, [(pause, EVERYBODY) for pause in pauses]
        rows = [page.get(ASKED, pause, EVERYBODY) for pause in pauses]
        yield ASKED, {(row["pause"], one) for row in rows if row is not None for one in _assignees(row)}

    def fold(self, fact: Seen, page: Page) -> None:
        """Take one fact into the times; only the first end counts."""
        if fact.name == "pause.paused":
            assignees, text = _people(fact.said.assignees)
            page.put(ASKED, _asked(fact, EVERYBODY, text))
            for one in assignees:
                page.put(ASKED, _asked(fact, one, "[]"))
            return
        everybody = page.get(ASKED, fact.pause, EVERYBODY)
        if everybody is None or everybody["state"] != "open":
            return
        if fact.name == "pause.answered" and not fact.said.complete:
            return
        ends: Values = {"state": _ENDS[fact.name]}
        if fact.name == "pause.answered":
            taken = datetime.fromisoformat(fact.at) - datetime.fromisoformat(everybody["asked_at"])
            ends |= {"elapsed": taken // _MICROSECOND, "by": fact.said.by}
        assignees, _ = _people(everybody["assignees"])
        for one in (EVERYBODY, *assignees):
            row = page.get(ASKED, fact.pause, one)
            if row is not None:
                page.put(ASKED, {**row, **ends})


@lru_cache(4096)
def _people(listed: str) -> tuple[tuple[str, ...], str]:
    """Read whom a question is for, each once and in order, and spell that. The same few are asked again and again."""
    people = tuple(sorted(set(json.loads(listed))))
    return people, as_json(list(people))


def _assignees(row: Values) -> tuple[str, ...]:
    try:
        assignees, _ = _people(row["assignees"])
    except UNFOLDABLE:
        # The row was altered: its next fact is set aside.
        return ()
    return assignees


def _asked(fact: Seen, assignee: str, assignees: str) -> Values:
    return {
        "pause": fact.pause,
        "assignee": assignee,
        "scope": fact.scope,
        "interaction": fact.said.interaction,
        "state": "open",
        "asked_at": fact.at,
        "elapsed": None,
        "by": None,
        "assignees": assignees,
    }


class ResponseTimesView(View[TimesTaken]):
    """Questions to the response times."""

    projection = TimesTaken

    async def report(
        self, scope: Scope, *, assignee: str | None = None, after: int | None = None, seconds: float = PATIENCE
    ) -> list[ResponseTimes]:
        """Report by interaction, for everybody and for each assignee; or for one, by the id the host gave."""
        await self._ask.reach(after, seconds)
        return await self._report(within(scope), assignee)

    async def report_of_all_tenants(
        self, *, assignee: str | None = None, after: int | None = None, seconds: float = PATIENCE
    ) -> list[ResponseTimes]:
        """Report by tenant, interaction and assignee, for an operator."""
        await self._ask.reach(after, seconds)
        return await self._report((), assignee)

    async def rubber_stamps(
        self,
        scope: Scope,
        threshold: float,
        *,
        limit: int = 50,
        after: int | None = None,
        seconds: float = PATIENCE,
    ) -> RubberStamps:
        """Report the answers that came sooner than `threshold` seconds after the question."""
        await self._ask.reach(after, seconds)
        return await self._rubber_stamps(within(scope), threshold, limit)

    async def rubber_stamps_of_all_tenants(
        self, threshold: float, *, limit: int = 50, after: int | None = None, seconds: float = PATIENCE
    ) -> RubberStamps:
        """Report the answers that came sooner than `threshold` seconds after the question, for an operator."""
        await self._ask.reach(after, seconds)
        return await self._rubber_stamps((), threshold, limit)

    async def _report(self, where: Sequence[Condition], assignee: str | None) -> list[ResponseTimes]:
        chosen: Sequence[Condition] = where
        if assignee is not None:
            chosen = (*where, ("assignee", "=", self._ask.tag("actor", assignee)))
        counted = await self._ask.tally(ASKED, ("scope", "interaction", "assignee", "state"), chosen)
        groups: dict[Key, dict[str, int]] = defaultdict(dict)
        for (*group, state), count in counted.items():
            groups[tuple(group)][state] = count
        return [await self._times(group, groups[group]) for group in sorted(groups)]

    async def _times(self, group: Key, counts: dict[str, int]) -> ResponseTimes:
        of: list[Condition] = [(name, "=", value) for name, value in zip(_GROUP, group, strict=True)]
        answered, lapsed = counts.get("answered", 0), counts.get("lapsed", 0)
        p50, p90, p99 = [await self._percentile(of, answered, share) for share in (0.5, 0.9, 0.99)]
        waits = await self._rows(Query(ASKED, (*of, ("state", "=", "open")), ("asked_at", "pause"), limit=1))
        values = dict.fromkeys(ASKED.columns) | dict(zip(_GROUP, group, strict=True)) | {"assignees": "[]"}
        shown = ASKED.show({**values, "pause": str(UUID(int=0))})
        return ResponseTimes(
            scope=shown.scope,
            interaction=shown.interaction,
            assignee=shown.assignee or None,
            answered=answered,
            open=counts.get("open", 0),
            lapsed=lapsed,
            withdrawn=counts.get("withdrawn", 0),
            p50=p50,
            p90=p90,
            p99=p99,
            oldest_open=waits[0].asked_at if waits else None,
            lapsed_share=lapsed / (answered + lapsed) if answered + lapsed else 0.0,
        )

    async def _percentile(self, of: Sequence[Condition], count: int, share: float) -> float | None:
        """Find the nearest rank: the smallest time that at least this share of the answers did not exceed."""
        if not count:
            return None
        query = Query(
            ASKED, (*of, ("state", "=", "answered")), ("elapsed", "pause"), limit=1, offset=ceil(share * count) - 1
        )
        found = await self._rows(query)
        # An answer that came between the two questions can only have made it longer.
        return None if not found or found[0].elapsed is None else found[0].elapsed / 1_000_000

    async def _rubber_stamps(self, where: Sequence[Condition], threshold: float, limit: int) -> RubberStamps:
        answered: list[Condition] = [*where, ("assignee", "=", EVERYBODY), ("state", "=", "answered")]
        hasty: list[Condition] = [*answered, ("elapsed", "<", round(threshold * 1_000_000))]
        of_all = await self._ask.tally(ASKED, ("by",), answered)
        of_hasty = await self._ask.tally(ASKED, ("by",), hasty)
        fastest = await self._rows(Query(ASKED, hasty, ("elapsed", "pause"), limit=limit))
        counts = {by: (count, of_all.get((by,), count)) for (by,), count in of_hasty.items()}
        return RubberStamps(
            threshold=threshold,
            hasty=sum(of_hasty.values()),
            answered=sum(of_all.values()),
            fastest=tuple(
                HastyAnswer(row.pause, row.scope, row.interaction, row.by, (row.elapsed or 0) / 1_000_000)
                for row in fastest
            ),
            by_answerer=dict(sorted(counts.items(), key=lambda one: (-one[1][0], one[0] or ""))),
        )


_GROUP = ("scope", "interaction", "assignee")
