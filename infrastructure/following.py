"""Following as it runs in a host's event loop: one task folds, one sweeps, one seals, until somebody ends it."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

from ..domain.errors import LedgerError, StoreUnavailable
from ..domain.ports import Journal
from .executor import Executor
from .notary import ALARM, SEAL, Notary
from .runner import Runner
from .sweepers import Sweepers

#: How long to wait for the next look at the log (seconds): while facts come, at most when none do, and at most while
#: the store cannot speak.
BUSY, IDLE, UNAVAILABLE = 0.02, 0.2, 2.0
#: How often to look for views that an earlier version could not fold whole (seconds); twice as seldom after each time
#: that some were rebuilt, lest an earlier one that still runs beside this one keep it at it.
LEARN, SELDOM = 60.0, 3600.0


class _Ended(Exception):
    """Following has ended while a view was rebuilt. Nobody waits for the thread that raises it."""


class Following:
    """`async with ledger.follow():` follows beside what the host does; `await ledger.follow().run()` does nothing else.

    Views that set facts aside which an earlier version did not know are rebuilt once this one does; that is logged.
    A store that cannot speak is tried again for good; that is logged too, and so is whatever keeps the log from being
    sealed, which keeps neither views nor sweeping. Ending it, in either way, leaves every view whole: whoever follows
    next goes on from there.
    """

    def __init__(
        self,
        runner: Runner,
        sweepers: Sweepers | None,
        run: Executor,
        journal: Journal,
        *,
        sweep_seconds: float,
        progress: Callable[[int, int], None] | None = None,
        notary: Notary | None = None,
    ) -> None:
        self._runner = runner
        self._sweepers = sweepers
        self._run = run
        self._journal = journal
        self._sweep_seconds = sweep_seconds
        self._progress = progress
        self._notary = notary
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None  # noqa: S101 - made on entry
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def run(self) -> None:
        """Follow, sweep and seal until cancelled."""
        try:
            await self._all()
        except Exception as broken:
            # Whoever follows beside other work hears of it from the log, and not at the end alone.
            self._journal.note("following_ended", error=_names(broken))
            raise

    async def _all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._learn())
            if self._sweepers is not None:
                tasks.create_task(self._sweep(self._sweepers))
            if self._notary is not None:
                tasks.create_task(self._seal(self._notary))

    async def _follow(self) -> None:
        wait = BUSY
        while True:
            moved = await self._tried(self._step, "views")
            slower = min(max(wait, IDLE) * 2, UNAVAILABLE) if moved is None else min(wait * 1.5, IDLE)
            wait = BUSY if moved else slower
            if not moved or moved < self._runner.batch:
                await asyncio.sleep(wait)

    async def _step(self) -> int:
        moved = await self._run(self._runner.step)
        if self._progress is not None:
            self._progress(*await self._run(self._runner.progress))
        return moved

    async def _learn(self) -> None:
        wait = LEARN
        while True:
            rebuilt = await self._tried(self._rebuild_outgrown, "views")
            wait = min(wait * 2, SELDOM) if rebuilt else LEARN
            await asyncio.sleep(wait)

    async def _rebuild_outgrown(self) -> int:
        views = await self._run(self._runner.outgrown)
        if views:
            self._journal.note("views_outgrown", views=views)
            await self._rebuild(views)
        return len(views)

    async def _rebuild(self, views: Sequence[str]) -> None:
        ended = threading.Event()

        def go_on(*_: int) -> None:
            if ended.is_set():
                raise _Ended

        try:
            await self._run(self._runner.rebuild, views, go_on)
        finally:
            # The thread would else go on to the end of the log, and whoever closes the ledger wait for it.
            ended.set()

    async def _sweep(self, sweepers: Sweepers) -> None:
        while True:
            await asyncio.sleep(self._sweep_seconds)
            await self._tried(sweepers.sweep, "sweepers")

    async def _seal(self, notary: Notary) -> None:
        wait = SEAL
        while True:
            await asyncio.sleep(wait)
            try:
                # What comes meanwhile is left for the next time: under load it would else be sealed row by row.
                while await self._run(notary.tick) >= notary.batch:
                    pass
                wait = SEAL
            except (LedgerError, OSError) as kept:
                # Neither views nor sweeping need the sealed log: a right that is missing there stops them not.
                wait = min(wait * 2, ALARM)
                says = str(kept) if isinstance(kept, LedgerError) else _names(kept)
                self._journal.note("following_waits", part="sealed log", says=says)

    async def _tried(self, work: Callable[[], Awaitable[int]], what: str) -> int | None:
        try:
            return await work()
        except StoreUnavailable as gone:
            self._journal.note("following_waits", part=what, says=str(gone))
            return None


def _names(error: BaseException) -> str:
    """Name the kinds of errors, and not what they say: they are not ours, and may quote anything."""
    if isinstance(error, BaseExceptionGroup):
        return ", ".join(_names(one) for one in error.exceptions)
    return type(error).__name__
