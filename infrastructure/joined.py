"""The ledger's operations inside a transaction of the host's: what belongs there, and what must not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from ..domain.axes import Axes
from ..domain.capability import HumanInteractionCapability
from ..domain.commands import Actor, ResumeOutcome
from ..domain.continuation import redeem
from ..domain.errors import InteractionConfigurationError, VersionConflict
from ..domain.facts import Consumed, Fact, Recovered, Refused
from ..domain.kernel_resume import ResumedTurn
from ..domain.policies import PolicyBook
from ..domain.ports import Found, Journal, Tail
from ..domain.services import Services
from ..domain.settlement import End
from .pauses import EventSourcedPauses, Streams


class JoinedPauses:
    """The `Pauses` port over the host's transaction; refusals alone go by the ledger's own connections.

    Whoever is refused gets an error, and a host that gets an error rolls back: a refusal inside its transaction would
    leave no trace of the attempt. It goes to the refusal stream, which the transaction never writes: an append to the
    pause's own stream would wait there for the transaction that waits for it.
    """

    def __init__(self, own: EventSourcedPauses, streams: Streams) -> None:
        self._own = own
        self._joined = own.over(streams)
        self._claims: dict[int | None, bytes] = {}

    def now(self) -> datetime:
        """Tell the store's time (UTC)."""
        return self._joined.now()

    def epoch(self) -> int:
        """Tell the epoch as the last read found it."""
        return self._joined.epoch()

    async def find(self, pause_id: UUID) -> Found:
        """Bring a pause back as the transaction sees it."""
        return await self._joined.find(pause_id)

    async def story(self, streams: Sequence[UUID]) -> tuple[Fact, ...]:
        """Read whole streams as the transaction sees them."""
        return await self._joined.story(streams)

    async def append(self, facts: Sequence[Fact]) -> tuple[Fact, ...]:
        """Append in the transaction; a refusal is sent on to its refusal stream, as one that lost its race."""
        if any(isinstance(fact, Refused) for fact in facts):
            raise VersionConflict("a refusal is not part of the host's transaction")
        stored = await self._joined.append(facts)
        self._claims |= {fact.position: fact.row_digest for fact in stored if isinstance(fact, (Consumed, Recovered))}
        return stored

    def holds(self, claim: int | None, fact: Fact) -> bool:
        """Tell whether a fact is the very claim that was handed out here at that position.

        A server that crashed may give the positions of a transaction that was lost to others.
        """
        return fact.position == claim and self._claims.get(claim, fact.row_digest) == fact.row_digest

    async def refuse(self, stream: UUID, write: Callable[[Tail], Refused | None], *, of: UUID | None) -> bool:
        """Append to a refusal stream, outside the transaction."""
        return await self._own.refuse(stream, write, of=of)

    async def renew(self, lead: UUID, fence: int, seconds: int) -> bool:
        """Renew a lease in the transaction, for a claim that is part of it."""
        return await self._joined.renew(lead, fence, seconds)


class _Noting:
    """Says in each line of the log that it tells of a transaction which may still be rolled back."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def note(self, decision: str, *, axes: Callable[[], Mapping[str, str | None]] | None = None, **fields: Any) -> None:
        self._journal.note(decision, axes=axes, joined=True, **fields)


class Joined(HumanInteractionCapability):
    """The capability inside one transaction of the host's: `joined = ledger.joined(connection)`.

    It reads, decides and appends on the host's connection. If the host commits, both happened; if it rolls back,
    neither did. Make one for each transaction. `prepare(joined, ...)` and `joined.operator(actor)` work as ever.

    A turn that is handed out here is entered after the commit: until then whoever continues it is refused. Refused
    attempts stand on record whatever becomes of the transaction.

    Raises (every operation, beside its own):
        InteractionConfigurationError: the connection cannot take part as it is, and what to do.
        TransactionStale: the transaction has to be rolled back and run again; nothing is lost.
        StoreUnavailable: the connection broke, and the transaction with it.
    """

    def __init__(
        self, services: Services, own: HumanInteractionCapability, pauses: EventSourcedPauses, at: Streams
    ) -> None:
        joined = JoinedPauses(pauses, at)
        # Its policies are those that the transaction sees.
        book = PolicyBook(joined, services.identity.ledger_id, shared=False)
        super().__init__(replace(services, vault=None, pauses=joined, policies=book, journal=_Noting(services.journal)))
        self._own = own
        self._outside = pauses
        self._inside = joined

    async def redeem(
        self,
        token: str,
        response: Any,
        *,
        axes: Axes,
        by: Actor | None = None,
        attempt_key: str | None = None,
        cites: Sequence[UUID] = (),
    ) -> ResumedTurn:
        """Recognise a token and redeem it, as `Ledger.redeem` does.

        Raises:
            NotRedeemable: the string is not one of our tokens.
            What `prepare` raises.
        """
        return await redeem(self, token, response, axes=axes, by=by, attempt_key=attempt_key, cites=cites)

    # A claim is settled and renewed once its turn goes on, and that is after the transaction.

    async def confirm_claim(self, lead_id: UUID, position: int | None) -> None:
        """Let a turn be entered once its claim is committed, as another connection sees it.

        Raises:
            InteractionConfigurationError: it is not, or never will be.
            StoreUnavailable: the store could not speak; enter the turn again.
        """
        if not any(self._inside.holds(position, fact) for fact in await self._outside.story([lead_id])):
            raise InteractionConfigurationError(
                "the transaction that handed this turn out has not committed, or was rolled back; go on with a turn"
                " after the commit, outside of the transaction"
            )

    async def settle_claim(self, pause_id: UUID, fence: int, end: End, **said: Any) -> bool:
        """Settle a claim by the ledger's own connections."""
        return await self._own.settle_claim(pause_id, fence, end, **said)

    async def renew(self, lead_id: UUID, fence: int) -> bool:
        """Renew the lease of a claim by the ledger's own connections."""
        return await self._own.renew(lead_id, fence)

    async def _stall(self, outcome: ResumeOutcome) -> None:
        """Stall what a cancelled call won where it stands: in the transaction."""
        await super().settle_claim(outcome.pause_id, outcome.fence, "stalled", cause="cancelled", entered=False)
