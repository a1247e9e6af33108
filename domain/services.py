"""What every operation of the capability works with: its ports, and the host's settings."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from .commands import Actor, require_actor
from .content import TEXT_TYPE, Content
from .errors import Refusal, StoreUnavailable
from .facts import ActorRecord
from .ids import Identity
from .interactions import Interactions, Objection
from .pause import Pause
from .policies import PolicyBook
from .ports import Checkpoints, Journal, OffLoop, Pauses, Seal, Vault
from .stamp import Stamp
from .turn import Transcripts

#: How often an attempt that lost a race judges again before it gives up.
RELOADS = 64
#: A lease is renewed this often within its length.
RENEWALS = 3


@dataclass(frozen=True, slots=True)
class Services:
    """The ports and settings of one ledger.

    Attributes:
        checkpoints: Where hosts keep their turns, by the name of the store.
        optional_axes: Axes that `resume` may leave unstated: scope, session, run, call.
        leeway: How far clocks may differ, whole seconds.
        lease_seconds: How long a claim holds before somebody else may take it up.
        counts: Refusals of this process by reason, forged tokens and those past the bounds of the record included.
        holder: The tag of this process, for claims.
    """

    identity: Identity
    pauses: Pauses
    policies: PolicyBook
    seal: Seal
    interactions: Interactions
    transcripts: Transcripts
    journal: Journal
    off_loop: OffLoop
    writer: str
    holder: str
    checkpoints: dict[str, Checkpoints] = field(default_factory=dict)
    optional_axes: frozenset[str] = frozenset()
    leeway: timedelta = timedelta(seconds=0)
    lease_seconds: int = 60
    vault: Vault | None = None
    counts: Counter[str] = field(default_factory=Counter)

    def stamp(self, attempt: UUID | None = None) -> Stamp:
        """Begin an attempt, or go on with one at a later moment."""
        return Stamp(
            ledger=self.identity.ledger_id,
            now=self.pauses.now(),
            attempt=attempt or uuid4(),
            writer=self.writer,
            holder=self.holder,
        )

    async def hold(self, lead_id: UUID, fence: int) -> None:
        """Have the lease of a claim run from now on; a store that fails is logged."""
        try:
            await self.pauses.renew(lead_id, fence, self.lease_seconds)
        except StoreUnavailable as gone:
            self.journal.note("renewal_failed", pause=lead_id, fence=fence, error=type(gone).__name__)

    def decided(self, decision: str, pause: Pause, **more: Any) -> None:
        """Log a decision on a pause: its id and state, its claim, its axes as tags."""
        self.journal.note(
            decision,
            axes=lambda: self.identity.presented(pause.axes),
            pause=pause.id,
            state=pause.state,
            fence=pause.fence or None,
            **more,
        )

    def rule_failed(self, objection: Objection, pause_id: UUID | None = None) -> None:
        """Log what a host's own function raised, by its type and place: its message may quote what was said."""
        if objection.cause is not None:
            error, where = type(objection.cause).__name__, _where(objection.cause)
            self.journal.note("rule_failed", pause=pause_id, rule=objection.rule, error=error, where=where)

    def refused(self, refusal: Refusal, **more: Any) -> None:
        """Count and log a refusal, on record or not."""
        self.counts[refusal.reason] += 1
        self.journal.note(
            "refused",
            pause=refusal.pause_id,
            reason=refusal.reason,
            axis=refusal.axis,
            step=refusal.step,
            recorded=refusal.recorded,
            **more,
        )

    def record_of(self, actor: Actor | None) -> ActorRecord | None:
        """Turn the host's actor, if there is one, into what is stored."""
        return None if actor is None else record_of(self.identity, actor)


def _where(raised: Exception) -> str | None:
    """Tell the module and the line that an error comes from, where it came from any."""
    trace = raised.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else f"{trace.tb_frame.f_globals.get('__name__')}:{trace.tb_lineno}"


def record_of(identity: Identity, actor: Actor) -> ActorRecord:
    """Turn an actor into what is stored: a tag of the id, and the id beside the header.

    Raises:
        InteractionConfigurationError: it is no Actor.
    """
    require_actor("whoever acts", actor)
    behalf = actor.on_behalf_of
    return ActorRecord(
        tag=identity.tag("actor", actor.id),
        kind=actor.kind,
        assurance=actor.assurance,
        method=actor.method,
        authenticated_at=actor.authenticated_at,
        on_behalf_of=None if behalf is None else identity.tag("actor", behalf),
        who=Content.of(actor.id.encode(), TEXT_TYPE, "person"),
    )
