"""Settlement and recovery: an owed turn goes on, breaks off, is taken up again, or is given up."""

from dataclasses import dataclass
from typing import Literal, get_args
from uuid import UUID

from .errors import (
    AlreadyContinued,
    InteractionConfigurationError,
    LeaseHeld,
    NotConsumed,
    NothingOwed,
    RoundOpen,
    TurnAbandoned,
)
from .facts import Abandoned, ActorRecord, Claim, Continued, PauseFact, Recovered, Stalled
from .pause import Pause
from .round import Attempt, Round, consume
from .stamp import Stamp

#: How often a turn is taken up again before it is given up.
RECOVERIES = 5

End = Literal["finished", "paused_again", "handed_over", "stalled", "released", "abandoned"]


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a claim ended, as whoever held it says."""

    fence: int
    end: End
    next: tuple[UUID, ...] = ()
    cause: Literal["error", "cancelled", "consumer_gone", "shutdown"] = "error"
    error_type: str | None = None
    entered: bool = True
    by: ActorRecord | None = None


def settle(lead: Pause, said: Settlement, stamp: Stamp) -> list[PauseFact]:
    """Decide what a settlement changes. A finish of any claim settles the turn; a stall counts from the newest alone.

    What changes nothing is an empty list: a turn that has gone on already, a stall of an older claim.

    Raises:
        NotConsumed, NothingOwed: the turn was never handed out, or nothing is owed for it.
        InteractionConfigurationError: the end is no such word, or the fence was never given out.
    """
    if said.end not in get_args(End):
        raise InteractionConfigurationError(f"a turn ends as one of {', '.join(get_args(End))}; pass one of these")
    _must_be_claimed(lead)
    if type(said.fence) is not int or not 1 <= said.fence <= lead.fence:
        raise InteractionConfigurationError(
            f"fence {said.fence} was never given out for pause {lead.id}; pass the fence of the turn being settled"
        )
    if lead.continued:
        return []
    newest = said.fence == lead.fence
    if said.end in ("finished", "paused_again", "handed_over"):
        late = not newest or lead.abandoned is not None
        return [stamp.write(lead, Continued, fence=said.fence, late=late, end=said.end, next=said.next, result=None)]
    if lead.abandoned or not newest:
        return []
    if said.end == "abandoned":
        return [stamp.write(lead, Abandoned, fence=said.fence, reason="host", by=said.by, note=None)]
    if lead.stalled:
        return []
    cause = "released" if said.end == "released" else said.cause
    return [stamp.write(lead, Stalled, fence=said.fence, cause=cause, error_type=said.error_type, entered=said.entered)]


def recover(round_: Round, stamp: Stamp, attempt: Attempt, *, forced: bool = False) -> list[PauseFact]:
    """Decide whether a turn may be taken up: an owed one under the next claim, a ready one under the first.

    The last fact is `Abandoned` where it was taken up too often; the caller raises once that is stored.

    Raises:
        AlreadyContinued, TurnAbandoned, NothingOwed, NotConsumed: there is nothing to take up, and why.
        RoundOpen: calls of the round still wait for an answer.
        LeaseHeld: a worker still holds it.
    """
    lead = round_.lead
    if lead.continued:
        raise AlreadyContinued(lead.id)
    if lead.abandoned:
        raise TurnAbandoned(lead.id, f"because: {lead.abandoned.reason}")
    if lead.consumed:
        if lead.claim is None:
            raise NothingOwed(lead.id, "it was consumed without asking for its turn")
        return _take_up(round_, lead.claim, stamp, attempt, forced=forced)
    waiting = round_.waiting(stamp.now)
    if waiting:
        calls = [pause.paused.call_id for pause in waiting]
        raise RoundOpen(lead.id, calls) if round_.has_answer else NotConsumed(lead.id)
    facts = consume(round_, stamp, attempt)
    if not facts:
        raise NothingOwed(lead.id, "its round closed without any answer")
    return facts


def _take_up(round_: Round, claim: Claim, stamp: Stamp, attempt: Attempt, *, forced: bool) -> list[PauseFact]:
    lead = round_.lead
    lease_end = lead.lease_end(round_.leased_until)
    because: Literal["stalled", "lease_ended", "forced"]
    if lead.stalled:
        because = "stalled"
    elif lease_end is None or stamp.now >= lease_end:
        because = "lease_ended"
    elif forced:
        because = "forced"
    else:
        raise LeaseHeld(lead.id, lease_end, claim.fence)
    if lead.recoveries >= RECOVERIES:
        return [stamp.write(lead, Abandoned, fence=claim.fence, reason="exhausted", by=attempt.by, note=None)]
    taken = Claim(fence=claim.fence + 1, holder=stamp.holder, lease_seconds=attempt.lease_seconds)
    return [stamp.write(lead, Recovered, claim=taken, from_fence=claim.fence, because=because, by=attempt.by)]


def _must_be_claimed(lead: Pause) -> None:
    if lead.claim is None:
        raise NothingOwed(lead.id) if lead.consumed else NotConsumed(lead.id)
