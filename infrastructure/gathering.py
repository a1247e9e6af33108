"""Calls that come while others are under way go together: one statement for many pauses, at the price of one."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import UUID

from eventsourcing.persistence import IntegrityError, StoredEvent

from .pauses import Appended, Streams
from .store import Contended, Snapshot, VaultRow

A = TypeVar("A")
R = TypeVar("R")

#: So many statements of a kind are under way at once; whoever comes then goes with the next.
LANES = 2
#: Nobody waits longer for one of them to end (seconds): it may be waiting for somebody else's transaction.
PATIENCE = 0.05
#: So many calls go together at most.
TOGETHER = 64
#: Appends of more bytes than this go alone.
LIGHT = 64 * 1024

#: A call that waits for others to go with, and where its caller waits.
Waiting = tuple[A, asyncio.Future[R]]


class Apart(Exception):
    """Nothing was done of what went together: each has to be tried alone."""


class Gathering(Generic[A, R]):
    """One kind of call. Where few are under way each is made at once and by itself, as if nothing stood between.

    A caller that is cancelled while it waits is left out; one whose call is under way has gone with the others.

    Args:
        one: Makes one call.
        many: Makes several, and gives what each comes to; raises `Apart` where none was made, and each may be alone.
        lanes: So many are under way at once.
    """

    def __init__(
        self, one: Callable[[A], Awaitable[R]], many: Callable[[Sequence[A]], Awaitable[Sequence[R]]], lanes: int
    ) -> None:
        self._one = one
        self._many = many
        self._lanes = lanes
        self._busy = 0
        self._waiting: list[Waiting[A, R]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, asked: A) -> R:
        """Make a call; raises what it raises."""
        if self._busy >= self._lanes:
            return await self._with_others(asked)
        self._busy += 1
        try:
            return await self._one(asked)
        finally:
            self._freed()

    async def ended(self) -> None:
        """Wait for those that went together."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _with_others(self, asked: A) -> R:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[R] = loop.create_future()
        self._waiting.append((asked, answer))
        if self._timer is None:
            self._timer = loop.call_later(PATIENCE, self._go)
        return await answer

    def _freed(self) -> None:
        self._busy -= 1
        if self._waiting and self._busy < self._lanes:
            self._go()

    def _go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        going, self._waiting = self._waiting[:TOGETHER], self._waiting[TOGETHER:]
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._go)
        wanted = [(asked, answer) for asked, answer in going if not answer.done()]
        if wanted:
            self._busy += 1
            self._start(self._together(wanted))
        elif self._waiting and self._busy < self._lanes:
            self._go()

    def _start(self, made: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(made)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _together(self, wanted: Sequence[Waiting[A, R]]) -> None:
        try:
            answers = await self._many([asked for asked, _ in wanted])
        except Apart:
            # None of them holds a lane: one may wait long for somebody else's transaction.
            for one in wanted:
                self._start(self._alone(one))
        except asyncio.CancelledError:
            for _, answer in wanted:
                answer.cancel()
            raise
        except Exception as failed:  # noqa: BLE001 - each of those who wait is told
            for _, answer in wanted:
                _fail(answer, failed)
        else:
            for (_, answer), found in zip(wanted, answers, strict=True):
                if not answer.done():
                    answer.set_result(found)
        finally:
            self._freed()

    async def _alone(self, one: Waiting[A, R]) -> None:
        asked, answer = one
        if answer.done():
            return
        try:
            found = await self._one(asked)
        except asyncio.CancelledError:
            answer.cancel()
            raise
        except Exception as failed:  # noqa: BLE001 - whoever waits is told
            _fail(answer, failed)
        else:
            if not answer.done():
                answer.set_result(found)


def _fail(answer: "asyncio.Future[R]", failed: Exception) -> None:
    if not answer.done():
        answer.set_exception(failed)


@dataclass(frozen=True, slots=True)
class _Append:
    rows: Sequence[StoredEvent]
    mints: bool
    keys: Sequence[VaultRow]


class GatheredStreams:
    """The `Streams` port over another one: loads and appends of many pauses go together where many come at once.

    Appends that went together are one transaction, so that one that cannot be written takes the others along: then
    nothing was, and each is tried alone. None waits there for another process's transaction for long.

    Args:
        lanes: So many loads, and as many appends, are under way at once before others are gathered.
    """

    def __init__(self, streams: Streams, lanes: int = LANES) -> None:
        self._streams = streams
        self._loads = Gathering[Sequence[UUID], Snapshot](streams.load, self._load_all, lanes)
        self._appends = Gathering[_Append, Appended](self._append_one, self._append_all, lanes)
        self.newest = streams.newest
        self.renew = streams.renew
        self.vault = streams.vault

    async def load(self, streams: Sequence[UUID]) -> Snapshot:
        """Read whole streams and what goes with them."""
        return await self._loads(streams)

    async def append(
        self, rows: Sequence[StoredEvent], *, mints: bool, keys: Sequence[VaultRow] = (), briefly: bool = False
    ) -> Appended:
        """Append rows, and new keys, all or none."""
        if briefly or sum(len(row.state) for row in rows) > LIGHT:
            return await self._streams.append(rows, mints=mints, keys=keys, briefly=briefly)
        return await self._appends(_Append(rows, mints, keys))

    async def close(self) -> None:
        """Close the streams, and tell those who wait."""
        await self._streams.close()
        await self._loads.ended()
        await self._appends.ended()

    async def _load_all(self, asked: Sequence[Sequence[UUID]]) -> Sequence[Snapshot]:
        found = await self._streams.load(list({stream for streams in asked for stream in streams}))
        return [found.of(streams) for streams in asked]

    async def _append_one(self, asked: _Append) -> Appended:
        return await self._streams.append(asked.rows, mints=asked.mints, keys=asked.keys)

    async def _append_all(self, asked: Sequence[_Append]) -> Sequence[Appended]:
        rows = [row for one in asked for row in one.rows]
        keys = [key for one in asked for key in one.keys]
        mints = any(one.mints for one in asked)
        try:
            appended = await self._streams.append(rows, mints=mints, keys=keys, briefly=len(asked) > 1)
        except (IntegrityError, Contended):
            raise Apart from None
        positions = iter(appended.positions)
        return [Appended([next(positions) for _ in one.rows], appended.epoch) for one in asked]
