"""Custody: legal holds and retention floors of a tenant, each a fact, which every erasure has to respect."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from .after import After
from .axes import Scope
from .commands import Actor
from .errors import ErasureHeld, InteractionConfigurationError, RequestMissing, StoreUnavailable, VersionConflict
from .facts import ActorRecord, Fact
from .round import Round
from .services import RELOADS, Services
from .words import require_word

#: A floor may be this long at most (days): a hundred years.
LONGEST_FLOOR = 36_600


class HoldPlaced(Fact):
    """Nothing in a scope, or in one pause, may be erased until the hold is lifted."""

    NAME = "hold.placed"
    held: UUID | None = None
    reason: str
    by: ActorRecord


class HoldLifted(Fact):
    """A hold ended; `hold` is the version at which it was placed."""

    NAME = "hold.lifted"
    hold: int
    reason: str
    by: ActorRecord


class RetentionSet(Fact):
    """From here on nothing in a scope may be erased until so many days after a round's newest fact; 0 sets none."""

    NAME = "retention.set"
    days: int
    reason: str
    by: ActorRecord


Decide = Callable[["Custody"], tuple[type[Fact], dict[str, object]]]


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold that stands.

    Attributes:
        number: What it is lifted by.
        pause: The one pause it holds; None for all of its scope.
        reason: A word of whoever placed it, such as the number of a case.
    """

    number: int
    scope: Scope
    pause: UUID | None
    reason: str
    by: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Custody:
    """What a tenant's facts of custody come to. A scope's rules hold for what is narrower than it."""

    holds: tuple[Hold, ...] = ()
    floors: tuple[tuple[Scope, int], ...] = ()

    def require_free(self, round_: Round, now: datetime, newest: datetime) -> None:
        """Check that nothing keeps a round from being erased; a floor runs from its `newest` fact.

        Raises:
            ErasureHeld: something does, and what.
        """
        scope, ids = round_.lead.paused.scope, {pause.id for pause in round_.pauses}
        for hold in self.holds:
            if (hold.pause is None and _covers(hold.scope, scope)) or hold.pause in ids:
                raise ErasureHeld(round_.lead.id, f"legal hold {hold.number} ({hold.reason}) stands; lift it first")
        days = max((days for floor, days in self.floors if _covers(floor, scope)), default=0)
        until = newest + timedelta(days=days)
        if days and now < until:
            raise ErasureHeld(round_.lead.id, f"it has to be kept until {until.isoformat(timespec='seconds')}")


def _covers(rule: Scope, scope: Scope | None) -> bool:
    if scope is None or rule.tenant_id != scope.tenant_id:
        return False
    return rule.sub_tenant_id in (None, scope.sub_tenant_id) and rule.namespace in (None, scope.namespace)


def _require_scope(scope: Scope) -> None:
    if not isinstance(scope, Scope):
        raise InteractionConfigurationError("a hold or a floor is a scope's; pass a Scope")


def custody_of(facts: Iterable[Fact]) -> Custody:
    """Fold a tenant's facts of custody, oldest first."""
    holds: dict[int, Hold] = {}
    floors: dict[Scope, int] = {}
    for fact in facts:
        match fact:
            case HoldPlaced() if fact.scope is not None:
                number = fact.originator_version
                holds[number] = Hold(number, fact.scope, fact.held, fact.reason, fact.by.tag, fact.at)
            case HoldLifted():
                holds.pop(fact.hold, None)
            case RetentionSet() if fact.scope is not None:
                floors[fact.scope] = fact.days
            case _:
                pass
    return Custody(tuple(holds.values()), tuple(floors.items()))


@dataclass(frozen=True, slots=True)
class Keeping:
    """Places holds, lifts them, and sets floors, in one operator's name."""

    services: Services
    by: Actor

    async def place(self, scope: Scope, reason: str, pause: UUID | None = None) -> int:
        """Place a hold; gives its number.

        Raises:
            RequestMissing: the pause is not in this store.
            InteractionConfigurationError: the pause is not in that scope, so that the hold would hold nothing.
        """
        require_word("reason", reason)
        if pause is not None:
            await self._require_covered(scope, pause)
        return await self._write(scope, lambda _: (HoldPlaced, {"held": pause, "reason": reason}))

    async def _require_covered(self, scope: Scope, pause: UUID) -> None:
        _require_scope(scope)
        found = (await self.services.pauses.find(pause)).round
        if found is None:
            raise RequestMissing(pause)
        if not _covers(scope, found.of(pause).paused.scope):
            raise InteractionConfigurationError(
                f"pause {pause} is not in that scope, and would not be held; give the scope it was made in, or a wider"
            )

    async def lift(self, scope: Scope, number: int, reason: str) -> int:
        """Lift a hold of this scope.

        Raises:
            InteractionConfigurationError: no such hold stands.
        """
        require_word("reason", reason)

        def lifted(custody: Custody) -> tuple[type[Fact], dict[str, object]]:
            if number not in {hold.number for hold in custody.holds if hold.scope == scope}:
                raise InteractionConfigurationError(f"no hold {number} stands in that scope; `hold list` shows them")
            return HoldLifted, {"hold": number, "reason": reason}

        return await self._write(scope, lifted)

    async def keep(self, scope: Scope, days: int, reason: str) -> int:
        """Set a retention floor in whole days; 0 takes it away."""
        require_word("reason", reason)
        if type(days) is not int or not 0 <= days <= LONGEST_FLOOR:
            raise InteractionConfigurationError(f"days must be a whole number from 0 to {LONGEST_FLOOR}")
        return await self._write(scope, lambda _: (RetentionSet, {"days": days, "reason": reason}))

    async def _write(self, scope: Scope, decide: Decide) -> int:
        _require_scope(scope)
        stream = self.services.identity.custody(scope.tenant_id)
        stamp = self.services.stamp()
        for _ in range(RELOADS):
            facts = await self.services.pauses.story([stream])
            if facts and facts[-1].attempt == stamp.attempt:
                return facts[-1].originator_version
            kind, fields = decide(custody_of(facts))
            after = After(stream, stream, scope, facts[-1] if facts else None)
            fact = after.write(self.services.stamp(stamp.attempt), kind, by=self.services.record_of(self.by), **fields)
            try:
                await self.services.pauses.append([fact])
            except VersionConflict:
                continue
            self.services.journal.note(kind.NAME.replace(".", "_"), by=self.services.identity.tag("actor", self.by.id))
            return fact.originator_version
        raise StoreUnavailable(f"the holds are too busy; {RELOADS} attempts lost their race; try again")


async def custody_read(services: Services, scope: Scope | None) -> Custody:
    """Read what holds in a scope now."""
    if scope is None:
        return Custody()
    facts: Sequence[Fact] = await services.pauses.story([services.identity.custody(scope.tenant_id)])
    return custody_of(facts)
