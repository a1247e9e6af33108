"""Two sweepers that work from the views: closed windows become `Lapsed`, and ended leases are told of once."""

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import UUID

from ..domain.capability import Operator
from ..domain.commands import Actor, LapseCommand
from ..domain.errors import InteractionConfigurationError, LedgerError, PauseClosed, StoreUnavailable, WindowOpen
from ..domain.ports import Journal
from ..projections.stranded import Stranded, StrandedView

#: Who the sweepers are, where a fact names somebody.
SWEEPER = Actor("pauseledger sweeper", kind="service", assurance="authenticated")


#: How often the leases of settled turns are removed (seconds).
TIDY = 60.0


class Sweepers:
    """Any number may sweep at once, in any process: the aggregate decides, so that nothing lapses twice.

    A redemption that races a sweeper has one outcome: whichever of the two appends first is found by the other.
    """

    def __init__(
        self, view: StrandedView, operator: Operator, journal: Journal, forget_leases: Callable[[], Awaitable[int]]
    ) -> None:
        self._view = view
        self._operator = operator
        self._journal = journal
        self._forget_leases = forget_leases
        self._tidy_at = 0.0
        self._left_alone: set[UUID] = set()
        self._told: set[tuple[UUID, int]] = set()

    async def sweep(self) -> int:
        """Let both sweepers go through the views once; tell how many windows were marked.

        Raises:
            StoreUnavailable: the store could not speak; sweep again.
        """
        lapsed = [item async for item in self.closed_windows()]
        await self.ended_leases()
        if time.monotonic() >= self._tidy_at:
            self._tidy_at = time.monotonic() + TIDY
            await self._tidy()
        return len(lapsed)

    async def _tidy(self) -> None:
        """Remove the leases of settled turns."""
        try:
            await self._forget_leases()
        except InteractionConfigurationError as lacking:
            # A role that was granted its rights by an earlier version: leases that stay do no harm.
            self._tidy_at = math.inf
            self._journal.note("leases_kept", says=str(lacking))

    async def closed_windows(self) -> AsyncIterator[Stranded]:
        """Write down each window that has closed without an answer."""
        async for item in self._view.closed_of_all_tenants():
            if item.pause_id not in self._left_alone and await self._lapse(item.pause_id):
                yield item

    async def _lapse(self, pause: UUID) -> bool:
        try:
            receipt = await self._operator.lapse(LapseCommand(pause_id=pause))
        except (PauseClosed, WindowOpen):
            # It was answered, withdrawn or consumed meanwhile; the view hears of it. Or clocks differ by a moment.
            return False
        except (StoreUnavailable, InteractionConfigurationError):
            raise
        except LedgerError as objected:
            # Altered, or of a newer version: each further attempt would be refused, and be on record.
            self._left_alone.add(pause)
            self._journal.note("sweeper_left_alone", pause=pause, error=type(objected).__name__)
            return False
        return receipt.position is not None

    async def ended_leases(self) -> None:
        """Log each claim whose worker is gone, once; `stranded` shows it, and `recover` takes the turn up."""
        ended = set()
        async for item in self._view.lease_ended_of_all_tenants():
            ended.add((item.pause_id, item.fence))
            if (item.pause_id, item.fence) not in self._told:
                self._journal.note("lease_ended", pause=item.pause_id, fence=item.fence)
        self._told = ended
