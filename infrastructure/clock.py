"""The store's time: the process's monotonic clock plus an offset that every read corrects."""

import time
from datetime import UTC, datetime


class StoreClock:
    """Tells the store's time without asking it; steps of the host's own clock do not move it.

    Once the store has been asked it is never ahead of the store's clock, and behind by less than the quickest answer
    took to come. A slow answer does not put it back: what a store told that long ago says less than is known.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._told = False

    def correct(self, now: datetime, asked: float) -> None:
        """Take over the time that the store told just now, having been asked at `asked` (monotonic seconds)."""
        lowest, highest = now.timestamp() - time.monotonic(), now.timestamp() - asked
        if not self._told or not lowest <= self._offset <= highest:
            self._offset = lowest
        self._told = True

    def now(self) -> datetime:
        """Tell the store's time (UTC)."""
        return datetime.fromtimestamp(time.monotonic() + self._offset, UTC)
