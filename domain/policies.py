"""Policies on record: one stream a ledger, whose facts say who changed what for which interaction, and when."""

import asyncio
import time
from collections.abc import Sequence
from uuid import UUID, uuid5

from .authority import PolicyChanged, newest, rules_for
from .errors import PolicyMismatch
from .pause import Pause
from .ports import Pauses

#: What was read longer ago than this (seconds) is read again before a pause is made by it.
FRESH_SECONDS = 1.0


def policy_stream(ledger_id: UUID) -> UUID:
    """Derive the id of a ledger's one stream of policies: a version 5 UUID, which no pause has."""
    return uuid5(ledger_id, "policies")


class PolicyBook:
    """The policies of one ledger, as one process knows them.

    Args:
        shared: Whether many ask at once, so that a reading goes on for the others when whoever began it is cancelled.
            In a transaction of the host's it must not: nothing may be under way there once the caller is gone.
    """

    def __init__(self, pauses: Pauses, ledger_id: UUID, *, shared: bool = True) -> None:
        self.stream = policy_stream(ledger_id)
        self._pauses = pauses
        self._shared = shared
        self._known: tuple[PolicyChanged, ...] = ()
        self._begun = self._due = float("-inf")
        self._reading: asyncio.Task[tuple[PolicyChanged, ...]] | None = None

    async def in_force(self, interactions: Sequence[str]) -> dict[str, PolicyChanged]:
        """Tell the policies that new pauses are made under, as they were a second ago at most.

        Raises:
            StoreUnavailable: the store could not speak.
            LedgerCorrupt, LedgerTooNew: the policies on record cannot be read.
        """
        if time.monotonic() >= self._due:
            await (self._read_for_all() if self._shared else self.read())
        if not self._known:
            return {}
        found = {name: newest(self._known, name) for name in interactions}
        return {name: change for name, change in found.items() if change is not None and change.policy is not None}

    async def _read_for_all(self) -> None:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self.read())
        await asyncio.shield(self._reading)

    async def read(self) -> tuple[PolicyChanged, ...]:
        """Read every change, oldest first; raises as `in_force` does."""
        begun = time.monotonic()
        facts = await self._pauses.story([self.stream])
        changes = tuple(fact for fact in facts if isinstance(fact, PolicyChanged))
        # One that began before another may have found more. Fewer than before stand where the store was set back.
        if begun >= self._begun or len(changes) > len(self._known):
            self._known, self._begun, self._due = changes, begun, begun + FRESH_SECONDS
        return changes

    def stands(self, pause: Pause) -> bool:
        """Tell whether a pause made under a policy may still be answered under it, by what was read last."""
        try:
            rules_for(pause, self._known)
        except PolicyMismatch:
            return False
        return True

    def forget(self) -> None:
        """Read again before the next pause is made: something was changed here."""
        self._due = float("-inf")
