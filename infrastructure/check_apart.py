"""Views compared by a process of their own, while this one goes through the rows: each has a processor to itself."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from threading import Thread, active_count
from typing import Any, Literal

from ..domain.errors import LedgerError, StoreUnavailable
from ..projections import PROJECTIONS
from .check_streams import Fault
from .check_views import views_faults
from .headers import Log
from .mapper import FactMapper
from .raising import parts, whole
from .settings import LedgerSettings
from .views import rows_of
from .wiring import open_recorder, open_views

#: In a smaller log the views are compared before another process has started.
WORTH = 20_000
#: How often whoever waits is told how far it is (seconds).
_TELL = 0.5

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Opening:
    """How another process opens the same ledger and the same views."""

    store: str = field(repr=False)
    views: str | None = field(repr=False)
    options: dict[str, Any]

    @classmethod
    def of(cls, store: str, settings: LedgerSettings) -> "Opening":
        """Say it by what a store is opened with alone: what the host registers need not be known there."""
        names = ("threads", "schema", "pooled", "busy_timeout", "connect_timeout", "statement_timeout", "pool_timeout")
        return cls(store, settings.views, {name: getattr(settings, name) for name in names})

    def faults(self, progress: Progress | None = None) -> list[Fault]:
        """Open them, and compare the views."""
        settings = LedgerSettings(**self.options, views=self.views)
        with closing(open_recorder(self.store, settings)) as recorder:
            apart = recorder if self.views is None else open_views(self.views, settings)
            with closing(apart):
                ledger_id = recorder.settings().ledger_id
                held = [(one, rows_of(one, apart)) for one in (projection() for projection in PROJECTIONS)]
                return list(views_faults(Log(recorder, FactMapper(ledger_id), ledger_id), held, progress))


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Let Python look for cycles seldom: none are made of what is read here, and looking takes a tenth of the time.

    A batch and what it comes to are some 100,000 objects; only what is left behind by several is looked through.
    """
    was = gc.get_threshold()
    gc.set_threshold(1_000_000, *was[1:])
    try:
        yield
    finally:
        gc.set_threshold(*was)


@contextmanager
def comparing(opening: Opening, progress: Progress | None = None) -> Iterator[Iterator[Fault]]:
    """Begin to compare the views in another process, and lend what waits for its faults. Leaving ends the process.

    Raises (what is lent):
        StoreUnavailable: the store could not speak, or somebody ended the process.
        LedgerError: what else the comparison raised, as it was raised there.
    """
    # What two of them have in common has no `Process` in typeshed.
    context: Any = get_context(_way())
    told, telling = context.Pipe(duplex=False)
    reached = context.Array("q", 2)
    process = context.Process(target=_work, args=(telling, reached, opening), daemon=True)
    process.start()
    telling.close()
    try:
        yield _waiting(told, reached, progress)
    finally:
        process.terminate()
        process.join()
        told.close()


def _way() -> Literal["fork", "spawn"]:
    """Fork where this thread is the only one, as all that is loaded here would take 0.6 s to be loaded anew.

    A lock that another thread holds would be carried over, and nobody would ever free the copy. Elsewhere than on Linux
    the system's own libraries may hold some.
    """
    return "fork" if sys.platform == "linux" and active_count() == 1 else "spawn"


def _waiting(told: Connection, reached: Any, progress: Progress | None) -> Iterator[Fault]:
    while not told.poll(_TELL):
        if progress is not None:
            progress(*reached)
    try:
        faults, failed = told.recv()
    except (EOFError, OSError):
        # The one where it ended before it spoke, the other in the middle of a word.
        raise StoreUnavailable(
            "the process that compared the views was ended; check again, or with --no-views"
        ) from None
    if failed is not None:
        raise whole(*failed)
    yield from faults


def _work(telling: Connection, reached: Any, opening: Opening) -> None:
    # Whoever waits decides what an interrupt means, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()

    def progress(*here: int) -> None:
        reached[:] = here

    try:
        with seldom_collected():
            telling.send((opening.faults(progress), None))
    except LedgerError as error:
        telling.send(([], parts(error)))


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None  # noqa: S101 - this process was started by another
    wait([parent.sentinel])
    os._exit(1)
