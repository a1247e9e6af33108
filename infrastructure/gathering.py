"""Calls that come while others are under way go together: one statement for many pauses, at the price of one."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from eventsourcing.persistence import IntegrityError, StoredEvent

from ..domain.errors import StoreUnavailable
from .pauses import Appended, Streams
from .raising import anew
from .store import Snapshot, VaultRow

A = TypeVar("A")
R = TypeVar("R")

#: So many statements of a kind are under way at once; whoever comes then goes with the next.
LANES = 2
#: Nobody waits longer for one of them to end (seconds): it may be waiting for somebody else's transaction.
PATIENCE = 0.05
#: So many appends go together at most, and so many loads: a turn that is read may have 4 MiB.
APPENDS, LOADS = 64, 16
#: Appends of more bytes than this go alone.
LIGHT = 64 * 1024


class Apart(Exception):
    """Nothing was done of what went together, or nothing that could not be done again: each is tried alone."""


class Gathering(Generic[A, R]):
    """One kind of call. Where few are under way each is made at once and by itself, as if nothing stood between.

    A caller that is cancelled while it waits is left out; one whose call is under way has gone with the others.

    Args:
        one: Makes one call.
        many: Makes several, and gives what each comes to; raises `Apart` where each has to be tried alone.
        lanes: So many are under way at once.
        most: So many go together.
    """

    def __init__(
        self,
        one: Callable[[A], Awaitable[R]],
        many: Callable[[Sequence[A]], Awaitable[Sequence[R]]],
        *,
        lanes: int,
        most: int,
    ) -> None:
        self._one = one
        self._many = many
        self._lanes = lanes
        self._most = most
        self._busy = 0
        self._waiting: dict[asyncio.Future[R], A] = {}
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
        self._waiting[answer] = asked
        if self._timer is None:
            self._timer = loop.call_later(PATIENCE, self._overdue)
        try:
            return await answer
        finally:
            self._waiting.pop(answer, None)

    def _freed(self) -> None:
        self._busy -= 1
        while self._waiting and self._busy < self._lanes:
            self._go()
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _overdue(self) -> None:
        self._timer = None
        while self._waiting:
            self._go()

    def _go(self) -> None:
        going = list(islice(self._waiting.items(), self._most))
        for answer, _ in going:
            del self._waiting[answer]
        wanted = [(answer, asked) for answer, asked in going if not answer.done()]
        if wanted:
            self._busy += 1
            self._start(self._together(wanted))

    def _start(self, made: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(made)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _together(self, wanted: Sequence[tuple[asyncio.Future[R], A]]) -> None:
        try:
            found = await self._many([asked for _, asked in wanted])
        except Apart:
            # None of them holds a lane: one may wait long for somebody else's transaction.
            for answer, asked in wanted:
                self._start(self._alone(answer, asked))
        except asyncio.CancelledError:
            for answer, _ in wanted:
                answer.cancel()
            raise
        except Exception as failed:  # noqa: BLE001 - each of those who wait is told
            for answer, _ in wanted:
                _fail(answer, failed)
        else:
            for (answer, _), one in zip(wanted, found, strict=True):
                _end(answer, one)
        finally:
            self._freed()

    async def _alone(self, answer: "asyncio.Future[R]", asked: A) -> None:
        if answer.done():
            return
        try:
            _end(answer, await self._one(asked))
        except asyncio.CancelledError:
            answer.cancel()
            raise
        except Exception as failed:  # noqa: BLE001 - whoever waits is told
            _fail(answer, failed)


def _end(answer: "asyncio.Future[R]", found: R) -> None:
    if not answer.done():
        answer.set_result(found)


def _fail(answer: "asyncio.Future[R]", failed: Exception) -> None:
    if not answer.done():
        answer.set_exception(anew(failed))


@dataclass(frozen=True, slots=True)
class _Append:
    rows: Sequence[StoredEvent]
    mints: bool
    keys: Sequence[VaultRow]


class BatchedStreams(Streams, Protocol):
    """Streams whose appends may be of many pauses."""

    async def append(
        self, rows: Sequence[StoredEvent], *, mints: bool, keys: Sequence[VaultRow] = (), briefly: bool = False
    ) -> Appended:
        """Append rows, and new keys, all or none.

        `briefly`: rather than wait long for somebody else's transaction, write nothing and raise StoreUnavailable.
        """
        ...


class GatheredStreams:
    """The `Streams` port over another one: loads and appends of many pauses go together where many come at once.

    Appends that went together are one transaction, so that one that cannot be written takes the others along: then
    nothing was, and each is tried alone. None waits there for another process's transaction for long. Loads that
    failed together are tried alone as well, so that a row which cannot be read is told to whoever asked for it.

    Args:
        lanes: So many loads, and as many appends, are under way at once before others are gathered.
    """

    def __init__(self, streams: BatchedStreams, lanes: int = LANES) -> None:
        self._streams = streams
        self._loads = Gathering[Sequence[UUID], Snapshot](streams.load, self._load_all, lanes=lanes, most=LOADS)
        self._appends = Gathering[_Append, Appended](self._append_one, self._append_all, lanes=lanes, most=APPENDS)
        self.newest = streams.newest
        self.renew = streams.renew
        self.vault = streams.vault

    async def load(self, streams: Sequence[UUID]) -> Snapshot:
        """Read whole streams and what goes with them."""
        return await self._loads(streams)

    async def append(self, rows: Sequence[StoredEvent], *, mints: bool, keys: Sequence[VaultRow] = ()) -> Appended:
        """Append rows, and new keys, all or none."""
        if sum(len(row.state) for row in rows) > LIGHT:
            return await self._streams.append(rows, mints=mints, keys=keys)
        return await self._appends(_Append(rows, mints, keys))

    async def close(self) -> None:
        """Close the streams, and tell those who wait."""
        await self._streams.close()
        await self._loads.ended()
        await self._appends.ended()

    async def _load_all(self, asked: Sequence[Sequence[UUID]]) -> Sequence[Snapshot]:
        try:
            found = await self._streams.load(list({stream for streams in asked for stream in streams}))
        except Exception as failed:
            if isinstance(failed, StoreUnavailable) and not failed.reached:
                raise
            # It may be one pause's row, and reading once more harms nobody.
            raise Apart from None
        return [found.of(streams) for streams in asked]

    async def _append_one(self, asked: _Append) -> Appended:
        return await self._streams.append(asked.rows, mints=asked.mints, keys=asked.keys)

    async def _append_all(self, asked: Sequence[_Append]) -> Sequence[Appended]:
        rows = [row for one in asked for row in one.rows]
        keys = [key for one in asked for key in one.keys]
        mints = any(one.mints for one in asked)
        try:
            appended = await self._streams.append(rows, mints=mints, keys=keys, briefly=len(asked) > 1)
        except IntegrityError:
            raise Apart from None
        except StoreUnavailable as failed:
            if failed.outcome == "unknown" or not failed.reached:
                raise
            raise Apart from None
        positions = iter(appended.positions)
        return [Appended([next(positions) for _ in one.rows], appended.epoch) for one in asked]
