"""Blocking calls beside the event loop: an executor of our own, so that a full default one starves nobody."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ..domain.errors import InteractionConfigurationError, StoreUnavailable

T = TypeVar("T")


class Executor:
    """Threads for drivers that block, or for work that takes long; one for each, lest a host's rule stop a store."""

    def __init__(self, threads: int) -> None:
        self._process = os.getpid()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="pauseledger")
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether it takes nothing more."""
        return self._closed

    async def __call__(self, function: Callable[..., T], *args: Any) -> T:
        """Run it in a thread. A caller that is cancelled leaves the thread to its end.

        Raises:
            StoreUnavailable: the executor was closed, and its ledger with it.
            InteractionConfigurationError: the process was forked since; threads do not survive that.
        """
        if self._closed:
            raise StoreUnavailable("the ledger is closed; open it again")
        if os.getpid() != self._process:
            raise InteractionConfigurationError("the ledger was opened before a fork; open one in each process")
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def close(self, *, wait: bool = True) -> None:
        """Take nothing more, and let what runs end; without `wait`, whenever it does."""
        self._closed = True
        self._pool.shutdown(wait=wait)
