"""Erasure: a round's keys are destroyed, once that is on record, and what becomes of it is recorded as well."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal
from uuid import UUID

from .after import After
from .closing import withdraw
from .commands import Actor
from .content import ContentKind
from .custody import custody_read
from .errors import (
    ErasureHeld,
    InteractionConfigurationError,
    NotErasable,
    RequestMissing,
    StoreUnavailable,
    VersionConflict,
)
from .facts import Abandoned, ActorRecord, Fact, PauseFact, contents_of
from .ports import Vault
from .round import Round
from .services import RELOADS, Services
from .stamp import Stamp
from .words import require_one_of, require_word

Outcome = Literal["destroyed", "held"]
KINDS: tuple[ContentKind, ...] = ("content", "person")


class ErasureOrdered(Fact):
    """Somebody ordered that one of a pause's two keys be destroyed, and on what ground. It stands before it happens."""

    NAME = "erasure.ordered"
    kind: ContentKind
    reason: str
    by: ActorRecord


class ErasureEnded(Fact):
    """What became of an order: the key was destroyed, or a hold that stood before it was found."""

    NAME = "erasure.ended"
    kind: ContentKind
    ordered: int
    outcome: Outcome
    by: ActorRecord


#: The facts of each pause's stream of erasures.
Told = dict[UUID, list[Fact]]


@dataclass(frozen=True, slots=True)
class Erased:
    """What an erasure came to.

    Attributes:
        pauses: The pauses of the round that have keys; all were erased together.
        existing: Whether there was nothing left to do.
        scrubbed: Whether the store's own files were scrubbed behind it, so that the key is in none. False: readers or
            the database role were in the way, or it was not asked for; `Ledger.scrub` does it later.
        in_clear: The pauses of the round that were begun before the ledger had a vault key: what was written of them
            until then stays, and can be read.
    """

    pauses: tuple[UUID, ...]
    kind: ContentKind
    existing: bool
    scrubbed: bool = False
    in_clear: tuple[UUID, ...] = ()


@dataclass(slots=True)
class Erasing:
    """Erases one round: what was said (`content`), or who said it and whom it was for (`person`).

    A round is erased as a whole: its turn is stored once, and holds every call's request. What is still open is taken
    back first, and an owed turn is given up, in the same append as the order. Whatever is cut off in between is done
    by asking again.
    """

    services: Services
    pause: UUID
    kind: ContentKind
    reason: str
    by: Actor

    async def erase(self, *, scrub: bool = True) -> Erased:
        """Order it, destroy the keys, record that, and scrub what they left: also where they were destroyed before."""
        require_one_of("kind", self.kind, KINDS)
        require_word("reason", self.reason)
        vault = self.services.vault
        if vault is None:
            raise InteractionConfigurationError("an erasure is no part of a transaction; erase by the ledger itself")
        await vault.require_eraser(self.kind)
        for _ in range(RELOADS):
            try:
                done = await self._erase(vault)
                return replace(done, scrubbed=scrub and await _scrubbed(vault))
            except VersionConflict:
                continue
        raise StoreUnavailable(f"pause {self.pause} is too busy; {RELOADS} attempts lost their race; try again")

    async def _erase(self, vault: Vault) -> Erased:
        round_ = await self._round()
        ids = tuple(pause.id for pause in round_.pauses)
        standing = await vault.standing(ids, self.kind)
        clear = _in_clear(round_)
        # Of a pause begun before there was a vault key, what came later is encrypted.
        ids = tuple(one for one in ids if one in standing)
        if not ids:
            raise NotErasable(self.pause)
        told = await self._told(ids)
        pending = self._pending(told)
        if any(standing.values()):
            newest = await self._newest(round_, told)
            await self._require_free(round_, newest)
            await self._order(round_, told, [one for one in ids if standing[one] and one not in pending])
            await self._require_still_free(vault, round_, newest)
            await vault.destroy(ids, self.kind)
        elif not pending:
            return Erased(ids, self.kind, existing=True, in_clear=clear)
        # Nothing is left that a hold could keep.
        await self._record(ids, "destroyed")
        self.services.decided("erased", round_.lead, kind=self.kind)
        return Erased(ids, self.kind, existing=False, in_clear=clear)

    async def _round(self) -> Round:
        found = await self.services.pauses.find(self.pause)
        if found.round is None:
            raise RequestMissing(self.pause)
        found.require_whole()
        return found.round

    async def _require_free(self, round_: Round, newest: datetime) -> None:
        custody = await custody_read(self.services, round_.lead.paused.scope)
        custody.require_free(round_, self.services.pauses.now(), newest)

    async def _require_still_free(self, vault: Vault, round_: Round, newest: datetime) -> None:
        """Look again: a hold placed before the order stands in front of it, and one placed later comes too late."""
        try:
            await self._require_free(round_, newest)
        except ErasureHeld:
            # Of two that erase at once the other may have found no hold, and have destroyed the keys by now.
            standing = await vault.standing([pause.id for pause in round_.pauses], self.kind)
            await self._record([pause for pause, stands in standing.items() if stands], "held")
            raise

    async def _newest(self, round_: Round, told: Told) -> datetime:
        """Tell when a round's newest fact was written, but for what erasing it brought about, or went by.

        An order closes what is open. A floor that ran from there would keep the other key, or what is left of an order
        that was cut off.
        """
        orders = [fact for facts in told.values() for fact in facts if isinstance(fact, ErasureOrdered)]
        if not orders:
            return max(pause.at for pause in round_.pauses)
        closed = {order.attempt for order in orders}
        pending = self._pending(told)
        until = [order.at for order in orders if pending.get(order.pause) == order.originator_version]
        facts = await self.services.pauses.story([pause.id for pause in round_.pauses])
        times = [fact.at for fact in facts if fact.attempt not in closed]
        return max((at for at in times if not until or at <= min(until)), default=round_.lead.paused.at)

    async def _order(self, round_: Round, told: Told, pauses: Sequence[UUID]) -> None:
        stamp = self.services.stamp()
        facts: list[Fact] = [*self._closing(round_, stamp)] if self.kind == "content" else []
        facts += [self._fact(ErasureOrdered, round_, pause, told, stamp, reason=self.reason) for pause in pauses]
        if facts:
            await self.services.pauses.append(facts)

    def _closing(self, round_: Round, stamp: Stamp) -> list[PauseFact]:
        """End what is not over: nothing could be answered, redeemed or gone on with any more."""
        lead = round_.lead
        if lead.is_owed:
            by = self.services.record_of(self.by)
            return [stamp.write(lead, Abandoned, fence=lead.fence, reason="erased", by=by, note=None)]
        if lead.consumed:
            return []
        facts: list[PauseFact] = []
        for pause in round_.pauses:
            if pause.withdrawn is None and (pause.is_open or pause.has_answer):
                facts += withdraw(pause, stamp, reason="host", by=self.services.record_of(self.by))
        return facts

    async def _record(self, pauses: Sequence[UUID], outcome: Outcome) -> None:
        """Record what became of the orders; whoever else records meanwhile, it is recorded."""
        for _ in range(RELOADS):
            try:
                return await self._end(pauses, outcome)
            except VersionConflict:
                continue
        raise StoreUnavailable(f"pause {self.pause} is too busy; {RELOADS} attempts lost their race; try again")

    async def _end(self, pauses: Sequence[UUID], outcome: Outcome) -> None:
        """Record how orders ended; of two that erase at once one does.

        That a hold was met ends orders that have not ended. That the key is gone is recorded behind whatever stands.
        """
        round_, told = await self._round(), await self._told(pauses)
        orders = self._pending(told) if outcome == "held" else self._unrecorded(told)
        stamp = self.services.stamp()
        ended = [
            self._fact(ErasureEnded, round_, pause, told, stamp, ordered=order, outcome=outcome)
            for pause, order in orders.items()
        ]
        if ended:
            await self.services.pauses.append(ended)

    async def _told(self, pauses: Sequence[UUID]) -> Told:
        """Read what stands about erasing these pauses. What is decided on it is appended behind it, or conflicts."""
        streams = {self.services.identity.erasures(pause): pause for pause in pauses}
        told: Told = {pause: [] for pause in pauses}
        for fact in await self.services.pauses.story(list(streams)):
            told[streams[fact.originator_id]].append(fact)
        return told

    def _pending(self, told: Told) -> dict[UUID, int]:
        """Find the orders that have not ended: by pause, the version of the order."""
        return {pause: order for pause, (order, end) in self._orders(told).items() if end is None}

    def _unrecorded(self, told: Told) -> dict[UUID, int]:
        """Find the orders behind which it does not stand that the key was destroyed."""
        return {pause: order for pause, (order, end) in self._orders(told).items() if end != "destroyed"}

    def _orders(self, told: Told) -> dict[UUID, tuple[int, Outcome | None]]:
        """Find the newest order of each pause, and what became of it last."""
        found: dict[UUID, tuple[int, Outcome | None]] = {}
        for pause, facts in told.items():
            for fact in facts:
                if isinstance(fact, ErasureOrdered) and fact.kind == self.kind:
                    found[pause] = fact.originator_version, None
                elif isinstance(fact, ErasureEnded) and fact.kind == self.kind and pause in found:
                    found[pause] = found[pause][0], fact.outcome
        return found

    def _fact(self, named: type[Fact], round_: Round, pause: UUID, told: Told, stamp: Stamp, **fields: object) -> Fact:
        scope = round_.of(pause).paused.scope
        last = told[pause][-1] if told[pause] else None
        after = After(self.services.identity.erasures(pause), pause, scope, last)
        return after.write(stamp, named, by=self.services.record_of(self.by), kind=self.kind, **fields)


async def _scrubbed(vault: Vault) -> bool:
    try:
        return await vault.scrub()
    except StoreUnavailable:
        # The key is gone, and that is on record: what was left of it is scrubbed later.
        return False


def _in_clear(round_: Round) -> tuple[UUID, ...]:
    """List the pauses of a round that were stored as they are, before the ledger had a vault key."""
    clear = (pause for pause in round_.pauses if any(one.cipher == "none" for one in contents_of(pause.paused)))
    return tuple(pause.id for pause in clear)
