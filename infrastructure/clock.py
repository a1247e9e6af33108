"""The store's time: the process's monotonic clock plus an offset that every read corrects."""

import time
from datetime import UTC, datetime, timedelta


class StoreClock:
    """Tells the store's time without asking it; steps of the host's own clock do not move it."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def correct(self, now: datetime) -> None:
        """Take over the time that the store just told."""
        self._offset = now.timestamp() - time.monotonic()

    def now(self) -> datetime:
        """Tell the store's time (UTC)."""
        return datetime.fromtimestamp(0, UTC) + timedelta(seconds=time.monotonic() + self._offset)
