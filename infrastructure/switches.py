"""Switches kept in the ledger: flips appended as facts, and the last known state kept in this process."""

import asyncio
import threading
import time
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from ..domain.after import After
from ..domain.commands import Actor
from ..domain.errors import (
    InteractionConfigurationError,
    LedgerCorrupt,
    LedgerTooNew,
    StoreUnavailable,
    VersionConflict,
)
from ..domain.services import RELOADS, Services, record_of
from ..domain.switches import Surface, SwitchFlipped, as_flipped, require_flip, switch_stream
from .pauses import EventSourcedPauses

#: A state read longer ago than this (seconds) is read again before it is told.
FRESH_SECONDS = 1.0
#: Nobody waits longer than this (seconds) for the store to say what the switches are.
PATIENCE_SECONDS = 0.25


class LedgerSwitches:
    """The switches of one ledger, for every process on it.

    A state told is at most `FRESH_SECONDS` old where the store answers within `PATIENCE_SECONDS`. Where it does not,
    the last known state stands, and the log says `switches_unread`: a rolled-back surface needs no store to stay so. A
    flip made here holds here at once.

    Attributes:
        stream: The id of the stream of flips; `ledger.story(ledger.switches.stream)` reads them.
    """

    def __init__(self, services: Services, pauses: EventSourcedPauses) -> None:
        self.stream = switch_stream(services.identity.ledger_id)
        self._services = services
        self._pauses = pauses
        self._on = as_flipped(())
        self._version = 0
        self._due = float("-inf")
        self._learning = threading.Lock()
        self._reading: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = WeakKeyDictionary()

    async def begin(self) -> None:
        """Read the switches for the first time. Flips that cannot be read leave every surface rolled back.

        Raises:
            StoreUnavailable: the store could not speak.
        """
        try:
            await self._read()
        except (LedgerCorrupt, LedgerTooNew) as unreadable:
            self._unread(unreadable)

    async def is_on(self, surface: Surface) -> bool:
        """Tell whether the kernel serves this surface. Raises nothing."""
        if time.monotonic() >= self._due:
            _, late = await asyncio.wait({self._one_reading()}, timeout=PATIENCE_SECONDS)
            if late and time.monotonic() >= self._due:
                self._unread(TimeoutError())
        return self._on[surface]

    async def flip(self, surface: Surface, on: bool, by: Actor) -> bool:
        """Switch a surface on, or roll it back. What changes nothing writes nothing, and gives False.

        Raises:
            InteractionConfigurationError: there is no such surface, `on` is no bool, or nobody is named.
            StoreUnavailable: the store could not speak; the same flip again tells.
            LedgerCorrupt, LedgerTooNew: the flips on record cannot be read.
        """
        require_flip(surface, on=on)
        if not isinstance(by, Actor):
            raise InteractionConfigurationError("a flip is somebody's; pass an Actor")
        for _ in range(RELOADS):
            flips = await self._read()
            if as_flipped(flips)[surface] is on:
                return False
            flip = self._next(flips, surface, on=on, by=by)
            try:
                await self._pauses.append([flip])
            except VersionConflict:
                continue
            self._learn([*flips, flip], time.monotonic())
            self._services.journal.note("switch_flipped", surface=surface, on=on, by=flip.by.tag)
            return True
        raise StoreUnavailable(f"the switches are too busy; {RELOADS} flips lost their race; try again")

    def _next(self, flips: Sequence[SwitchFlipped], surface: Surface, *, on: bool, by: Actor) -> SwitchFlipped:
        return After(self.stream, self.stream, None, flips[-1] if flips else None).write(
            self._services.stamp(),
            SwitchFlipped,
            surface=surface,
            on=on,
            by=record_of(self._services.identity, by),
        )

    def _one_reading(self) -> "asyncio.Task[None]":
        """Give the reading under way in this loop, or begin one: a store that hangs is asked once, not by everybody."""
        loop = asyncio.get_running_loop()
        reading = self._reading.get(loop)
        if reading is None or reading.done():
            reading = self._reading[loop] = loop.create_task(self._try_reading())
        return reading

    async def _try_reading(self) -> None:
        try:
            await self._read()
        except Exception as failed:  # noqa: BLE001 - the lever is total: whatever fails, the last known state stands
            self._unread(failed)

    def _unread(self, failed: Exception) -> None:
        self._due = time.monotonic() + FRESH_SECONDS
        self._services.journal.note("switches_unread", error=type(failed).__name__)

    async def _read(self) -> list[SwitchFlipped]:
        begun = time.monotonic()
        facts = await self._pauses.story([self.stream])
        flips = [fact for fact in facts if isinstance(fact, SwitchFlipped)]
        self._learn(flips, begun)
        return flips

    def _learn(self, flips: Sequence[SwitchFlipped], read: float) -> None:
        """Take over what was read, unless something newer is known: a flip made here may overtake a reading."""
        version = flips[-1].originator_version if flips else 0
        with self._learning:
            if version >= self._version:
                self._on, self._version, self._due = as_flipped(flips), version, read + FRESH_SECONDS
