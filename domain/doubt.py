"""Doubt: a commit that may have happened is asked about before anybody is told that nobody knows."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from .errors import StoreUnavailable
from .ports import Found, Pauses

#: The store is asked again after so many seconds, in turn.
WAITS = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0)
#: Nobody is kept in doubt for longer (seconds), however long the store takes to say nothing.
LONGEST = 30.0


@dataclass(slots=True)
class Doubt:
    """What one attempt knows of its own appends; open once one of them may have happened unheard."""

    is_open: bool = False
    _waits: Iterator[float] = field(default_factory=lambda: iter(WAITS))
    _until: float | None = None

    async def arises(self, gone: StoreUnavailable) -> None:
        """Wait before the store is asked again.

        Raises:
            StoreUnavailable: nothing was written for certain, as given; or nobody knows after all, as `unknown`.
        """
        if gone.outcome != "unknown" and not self.is_open:
            raise gone
        self.is_open = True
        now = asyncio.get_running_loop().time()
        self._until = self._until or now + LONGEST
        wait = next(self._waits, None)
        if wait is None or now + wait >= self._until:
            raise StoreUnavailable("the store does not say whether the append happened", outcome="unknown") from gone
        await asyncio.sleep(wait)

    async def find(self, pauses: Pauses, pause_id: UUID) -> Found:
        """Read a pause; while in doubt, as often as it takes. Raises as `arises` does."""
        while True:
            try:
                if self._until is None:
                    return await pauses.find(pause_id)
                async with asyncio.timeout_at(self._until):
                    return await pauses.find(pause_id)
            except StoreUnavailable as gone:
                await self.arises(gone)
            except TimeoutError:
                await self.arises(StoreUnavailable("the store says nothing", outcome="unknown"))
