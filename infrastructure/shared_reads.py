"""Reads that are shared: of many who ask for one thing at once, one reads for all who asked before it began."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar
from uuid import UUID

T = TypeVar("T")

#: A thing is read so many times at most while others here write to it.
REREADS = 3


@dataclass(frozen=True, slots=True)
class _Read(Generic[T]):
    """What one read found: its number among the reads, and how many writes had ended when it began."""

    number: int
    written: int
    what: T


@dataclass(slots=True)
class _Reading(Generic[T]):
    """The reads of one thing.

    Attributes:
        begun: How many reads began.
        written: How many writes ended here.
        askers: How many wait.
        ended: Set when the read under way ends, whatever comes of it.
    """

    begun: int = 0
    written: int = 0
    askers: int = 0
    found: _Read[T] | None = None
    ended: asyncio.Event | None = None


class SharedReads(Generic[T]):
    """Finds things by id.

    Those who wait are woken together, so that what they do next can be done together as well.

    Args:
        ready: Waits until it makes sense to read.
        read: Reads.
    """

    def __init__(self, ready: Callable[[UUID], Awaitable[None]], read: Callable[[UUID], Awaitable[T]]) -> None:
        self._ready = ready
        self._read = read
        # By numbers: ids are hashed by a method of their own, which takes longer than all the rest of a look.
        self._reading: dict[int, _Reading[T]] = {}

    async def find(self, what: UUID) -> T:
        """Tell what a read finds that began after this was called; raises what that read raises."""
        reading = self._reading.setdefault(what.int, _Reading())
        wanted = reading.begun + 1
        reading.askers += 1
        try:
            return await self._late_enough(reading, what, wanted)
        finally:
            reading.askers -= 1
            if not reading.askers:
                del self._reading[what.int]

    def wrote(self, number: int) -> None:
        """Hear that somebody here wrote to what has this number: what was read before is told no more."""
        if number in self._reading:
            self._reading[number].written += 1

    async def _late_enough(self, reading: _Reading[T], what: UUID, wanted: int) -> T:
        overtaken = 0
        while True:
            found = reading.found
            if found is not None and found.number >= wanted:
                # What was read before somebody here wrote is told only where they write without end.
                if found.written == reading.written or overtaken == REREADS - 1:
                    return found.what
                overtaken += 1
            if reading.ended is None:
                await self._once(reading, what)
            else:
                await reading.ended.wait()

    async def _once(self, reading: _Reading[T], what: UUID) -> None:
        """Read for all who have asked by the time it begins. One that fails fails for its reader alone."""
        ended = reading.ended = asyncio.Event()
        try:
            await self._ready(what)
            reading.begun += 1
            number, written = reading.begun, reading.written
            reading.found = _Read(number, written, await self._read(what))
        finally:
            reading.ended = None
            ended.set()
