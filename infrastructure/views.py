"""The views of one ledger: where their rows are kept, and how they are asked and followed."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from ..domain.axes import Scope
from ..domain.capability import HumanInteractionCapability
from ..domain.content import Content, ContentAlteredError, ContentErasedError, ContentUnreadError
from ..domain.errors import InteractionConfigurationError, LedgerCorrupt, LedgerTooNew
from ..domain.facts import Fact, Paused
from ..domain.sentences import tell
from ..domain.services import Services
from ..projections import PROJECTIONS
from ..projections.history import History, HistoryView, Told
from ..projections.open_pauses import OpenPause, OpenPauses, OpenPausesView
from ..projections.projection import Projection, ViewBehind
from ..projections.refusals import Refusals, RefusalsView
from ..projections.response_times import ResponseTimesView, TimesTaken
from ..projections.rows import Condition, Key, Query, Rows, Table, Values
from ..projections.stranded import Stranded, StrandedTurns, StrandedView
from .executor import Executor
from .following import Following
from .headers import Log
from .memory import MemoryRecorder
from .notary import Notary
from .pauses import EventSourcedPauses
from .runner import Lag, Runner
from .sqlite import SQLiteRecorder
from .store import LedgerRecorder
from .sweepers import SWEEPER, Sweepers
from .views_memory import memory_rows
from .views_sqlite import SQLiteRows

#: Somebody waits: look this often (seconds), and after so long lend the view a hand.
SOON, HELP = 0.005, 0.05
#: How long `owed` catches up before it tells what is known (seconds).
CATCH_UP = 10.0
#: How often closed windows and ended leases are looked for (seconds).
SWEEP = 1.0


def rows_of(projection: Projection, recorder: LedgerRecorder, *, own: bool = False) -> Rows:
    """Give the rows of a view beside what a recorder keeps; `own` ones close it with them.

    Raises:
        InteractionConfigurationError: there are no views for a store of that kind.
    """
    if isinstance(recorder, MemoryRecorder):
        return memory_rows(recorder, projection)
    if isinstance(recorder, SQLiteRecorder):
        return SQLiteRows(recorder, projection, own=own)
    from .postgres import PostgresRecorder  # noqa: PLC0415 - a driver that an embedded ledger need not load
    from .views_postgres import PostgresRows  # noqa: PLC0415 - as above

    if isinstance(recorder, PostgresRecorder):
        return PostgresRows(recorder, projection, schema=recorder.views_schema, own=own)
    raise InteractionConfigurationError(
        f"there are no views beside a {type(recorder).__name__}; set LedgerSettings.views to another store"
    )


class _Asking:
    """How one view's questions reach its rows, from an event loop."""

    def __init__(
        self, name: str, *, rows: Rows, runner: Runner, services: Services, recorder: LedgerRecorder, run: Executor
    ) -> None:
        self._name = name
        self._rows = rows
        self._runner = runner
        self._services = services
        self._recorder = recorder
        self._run = run
        self.ledger: UUID = services.identity.ledger_id
        self.leeway: timedelta = services.leeway

    def now(self) -> datetime:
        return self._services.pauses.now()

    def tag(self, kind: str, name: str) -> str:
        return self._services.identity.tag(kind, name)

    async def reach(self, position: int | None, seconds: float) -> None:
        if position is None:
            return
        begun = time.monotonic()
        while (reached := (await self._run(self._rows.place)).position) < position:
            waited = time.monotonic() - begun
            if waited >= seconds:
                raise ViewBehind(self._name, position, reached, seconds)
            # Perhaps nobody follows; and where somebody does, one of the two moves the view and the other nothing.
            moved = await self._run(self._runner.step, [self._name]) if waited >= HELP else 0
            if not moved:
                await asyncio.sleep(SOON)

    async def select(self, query: Query[Any]) -> list[Values]:
        return await self._run(self._rows.select, query)

    async def select_both(self, one: Query[Any], other: Query[Any]) -> tuple[list[Values], list[Values]]:
        return await self._run(self._rows.select_both, one, other)

    async def tally(self, table: Table[Any], columns: Sequence[str], where: Sequence[Condition] = ()) -> dict[Key, int]:
        return await self._run(self._rows.tally, table, columns, where)

    async def leases(self, pauses: Sequence[UUID]) -> Mapping[UUID, tuple[int, datetime]]:
        leases = await self._run(self._recorder.leases, pauses)
        return {pause: (lease.fence, lease.until) for pause, lease in leases.items()}


class LedgerViews:
    """What can be asked of a ledger: `await ledger.views.open_pauses.most_urgent(scope)`.

    A view tells what was folded into it. With a follower (`ledger.follow()`, `pauseledger follow`) that is a moment
    ago; without one, pass the position of a receipt as `after`, or `catch_up` first.
    """

    def __init__(
        self,
        recorder: LedgerRecorder,
        views: LedgerRecorder,
        pauses: EventSourcedPauses,
        services: Services,
        run: Executor,
    ) -> None:
        own = views is not recorder
        projections = [projection() for projection in PROJECTIONS]
        self._rows = {projection.name: rows_of(projection, views, own=own) for projection in projections}
        self._log = Log(recorder, pauses.mapper, services.identity.ledger_id)
        self._pauses = pauses
        self._recorder = recorder
        self._services = services
        self._run = run
        self.runner = Runner(self._log, [(projection, self._rows[projection.name]) for projection in projections])
        self.open_pauses = OpenPausesView(self._asking(OpenPauses))
        self.history = HistoryView(self._asking(History))
        self.refusals = RefusalsView(self._asking(Refusals))
        self.response_times = ResponseTimesView(self._asking(TimesTaken))
        self.stranded = StrandedView(self._asking(StrandedTurns))

    def _asking(self, projection: type[Projection]) -> _Asking:
        name = projection.name
        return _Asking(
            name,
            rows=self._rows[name],
            runner=self.runner,
            services=self._services,
            recorder=self._recorder,
            run=self._run,
        )

    async def catch_up(self, seconds: float = CATCH_UP, views: Sequence[str] | None = None) -> bool:
        """Fold what the log holds now, into all views or those named; False where `seconds` were not enough.

        Raises:
            StoreUnavailable: the store could not speak.
        """
        return await self._run(self.runner.catch_up, seconds, views)

    async def lag(self) -> list[Lag]:
        """Tell how far each view is behind.

        Raises:
            StoreUnavailable: the store could not speak.
        """
        return await self._run(self.runner.lag, self._services.pauses.now())

    async def rebuild(self, *views: str, progress: Callable[[int, int], None] | None = None) -> dict[str, int]:
        """Build views anew beside the live ones, all or those named, in one pass over the log, and put them in place.

        Writers write on.

        Returns:
            Each view's position.

        Raises:
            InteractionConfigurationError: there is no such view.
            StoreUnavailable: the store could not speak; rebuild again.
        """
        for view in views:
            if view not in self.runner.views:
                raise InteractionConfigurationError(f"there is no view {view!r}; one of {', '.join(self.runner.views)}")
        return await self._run(self.runner.rebuild, views or self.runner.views, progress)

    def follow(
        self,
        capability: HumanInteractionCapability,
        *,
        sweep: bool = True,
        progress: Callable[[int, int], None] | None = None,
        notary: Notary | None = None,
    ) -> Following:
        """Make what follows the log in an event loop."""
        return Following(
            self.runner,
            self.sweepers(capability) if sweep else None,
            self._run,
            self._services.journal,
            sweep_seconds=SWEEP,
            progress=progress,
            notary=notary,
        )

    def sweepers(self, capability: HumanInteractionCapability) -> Sweepers:
        """Make the sweepers of closed windows and ended leases."""
        forget = partial(self._run, self._recorder.forget_leases)
        return Sweepers(self.stranded, capability.operator(SWEEPER), self._services.journal, forget)

    async def owed(self, scope: Scope) -> AsyncIterator[Stranded]:
        """Catch up, and go through what `recover` can take up in a scope."""
        await self.catch_up(CATCH_UP, [StrandedTurns.name])
        async for item in self.stranded.owed(scope):
            yield item

    async def question(self, row: OpenPause) -> Any:
        """Read what an open pause asks, out of the ledger; None where it cannot be read."""
        return await self._run(self._question, row)

    async def whom(self, row: OpenPause) -> Sequence[str]:
        """Name whom an open pause is for, assignees and then groups; by their tags where that cannot be read."""
        return await self._run(self._whom, row)

    async def sentences(self, told: Sequence[Told], *, content: bool = False) -> list[str]:
        """Tell a history as sentences: by tags, or with `content` by names and with what people wrote."""
        return await self._run(self._sentences, told, content)

    async def close(self) -> None:
        """Let go of what the views hold apart from the ledger's own store."""
        for rows in self._rows.values():
            await self._run(rows.close)

    # Everything below blocks, and runs in the executor.

    def _question(self, row: OpenPause) -> Any:
        return self._clear(row, lambda paused: paused.request)

    def _whom(self, row: OpenPause) -> Sequence[str]:
        named = self._clear(row, lambda paused: paused.routing.people) or {}
        return [*named.get("assignees", row.assignees), *named.get("groups", row.groups)]

    def _clear(self, row: OpenPause, part: Callable[[Paused], Content | None]) -> Any:
        with suppress(LedgerCorrupt, LedgerTooNew, ContentAlteredError, ContentErasedError, ContentUnreadError):
            fact = self._stored(row.position)
            if isinstance(fact, Paused) and fact.originator_id == row.pause:
                content = part(fact)
                return None if content is None else json.loads(content.clear())
        return None

    def _sentences(self, told: Sequence[Told], content: bool) -> list[str]:
        return [self._sentence(one, content) for one in told]

    def _sentence(self, told: Told, content: bool) -> str:
        try:
            fact = self._stored(told.position) if content else self._headed(told)
        except (LedgerCorrupt, LedgerTooNew):
            fact = None
        if fact is None or told.unreadable:
            when = "At a time unknown" if told.at is None else f"At {told.at:%Y-%m-%d %H:%M:%S} UTC"
            return f"{when} something happened that cannot be read here: {told.topic} at position {told.position}."
        return tell(fact, content=content)

    def _stored(self, position: int) -> Fact | None:
        found = self._recorder.select_notifications(position, 1, position)
        fact: Fact | None = self._pauses.mapper.to_domain_event(found[0]) if found else None
        return fact

    def _headed(self, told: Told) -> Fact:
        return self._pauses.mapper.fact_of(told.topic, dict(told.fields), told.stream, told.version, told.position)
