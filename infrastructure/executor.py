"""Blocking calls beside the event loop: an executor of our own, so that a full default one starves nobody."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ..domain.errors import StoreUnavailable

T = TypeVar("T")


class Executor:
    """Threads for drivers that block and for work that takes long."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="pauseledger")
        self._closed = False

    async def __call__(self, function: Callable[..., T], *args: Any) -> T:
        """Run it in a thread. A caller that is cancelled leaves the thread to its end.

        Raises:
            StoreUnavailable: the executor was closed, and its ledger with it.
        """
        if self._closed:
            raise StoreUnavailable("the ledger is closed; open it again")
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def close(self) -> None:
        """Let what runs end, and take nothing more."""
        self._closed = True
        self._pool.shutdown(wait=True)
