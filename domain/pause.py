"""The pause: one turn that stopped for a person, as its facts leave it."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, assert_never, cast
from uuid import UUID

from .axes import Axes
from .changes import changed
from .facts import (
    Abandoned,
    Answered,
    Claim,
    Consumed,
    Continued,
    Fact,
    Lapsed,
    Paused,
    PauseFact,
    Recovered,
    Refused,
    Reissued,
    Stalled,
    Withdrawn,
)

__all__ = [
    "Abandoned", "Answered", "Consumed", "Continued", "Fact", "Lapsed", "Pause", "PauseFact", "Paused", "Recovered",
    "Refused", "Reissued", "Stalled", "State", "Withdrawn", "evolve", "replay",
]  # fmt: skip

#: What a pause is, in one word. `owed`, `stalled`, `continued` and `abandoned` are told by the lead alone.
State = Literal[
    "open", "answered", "lapsed", "withdrawn", "consumed", "owed", "stalled", "continued", "abandoned"
]  # fmt: skip


@dataclass(frozen=True)
class Pause:
    """A pause as its facts leave it. Immutable: `evolve` makes the next one.

    Attributes:
        head: The digest of the newest row, or None where that row is not stored yet.
        claimed_by: The attempt that holds the newest claim.
        ends_below: Tokens of a generation below this one are ended.
        refusals: How many refusals this stream holds.
        votes: Under a policy that wants several people to agree, every answer given; `answered` is the one that
            completes it.
    """

    paused: Paused
    version: int
    head: bytes | None
    at: datetime
    answered: Answered | None = None
    consumed: Consumed | None = None
    withdrawn: Withdrawn | None = None
    lapsed: Lapsed | None = None
    claim: Claim | None = None
    claimed_at: datetime | None = None
    claimed_by: UUID | None = None
    stalled: Stalled | None = None
    continued: Continued | None = None
    abandoned: Abandoned | None = None
    recoveries: int = 0
    generation: int = 0
    ends_below: int = 0
    token_closes_at: datetime | None = None
    reissued_by: UUID | None = None
    refusals: int = 0
    votes: tuple[Answered, ...] = ()

    @property
    def id(self) -> UUID:
        """The pause's id, which is its stream's."""
        return self.paused.originator_id

    @property
    def axes(self) -> Axes:
        """The four axes it is bound to."""
        paused = self.paused
        return Axes(scope=paused.scope, session_id=paused.session_id, run_id=paused.run_id, call_id=paused.call_id)

    @property
    def lead_id(self) -> UUID:
        """The pause that holds the round's turn, and its claims."""
        return self.paused.round.lead

    @property
    def fence(self) -> int:
        """The newest claim's fence; 0 before the turn was ever handed out."""
        return self.claim.fence if self.claim else 0

    @property
    def is_open(self) -> bool:
        """Whether somebody may still answer it, as far as its facts say."""
        return not (self.answered or self.withdrawn or self.lapsed or self.consumed)

    @property
    def has_answer(self) -> bool:
        """Whether it holds an answer, or lapsed with one registered for that."""
        return self.withdrawn is None and (self.answered is not None or self.lapse_answers)

    @property
    def lapse_answers(self) -> bool:
        """Whether it lapsed, and its lapse answer stands for a person's."""
        return self.lapsed is not None and self.answered is None and self.paused.on_lapse.action == "answer"

    @property
    def state(self) -> State:
        """Say what the pause is, in one word."""
        if self.continued:
            return "continued"
        if self.abandoned:
            return "abandoned"
        if self.claim:
            return "stalled" if self.stalled else "owed"
        if self.withdrawn:
            return "withdrawn"
        if self.consumed:
            return "consumed"
        if self.answered:
            return "answered"
        return "lapsed" if self.lapsed else "open"

    @property
    def is_owed(self) -> bool:
        """Whether the turn was handed out, and has neither gone on to its end nor been given up."""
        return self.claim is not None and self.continued is None and self.abandoned is None

    def lease_end(self, renewed_until: datetime | None) -> datetime | None:
        """Tell when the newest claim's lease ends; renewals stand outside the stream."""
        if self.claim is None or self.claimed_at is None:
            return None
        granted = self.claimed_at + timedelta(seconds=self.claim.lease_seconds)
        return granted if renewed_until is None else max(granted, renewed_until)


#: What a pause is before anything else has happened to it; its place and its question come with the first fact.
_UNANSWERED = Pause(cast("Paused", None), 0, None, datetime.min.replace(tzinfo=UTC))


def _begin(fact: Paused) -> Pause:
    return changed(_UNANSWERED, {
        "paused": fact,
        "version": fact.originator_version,
        "head": fact.row_digest or None,
        "at": fact.at,
        "generation": fact.generation,
    })  # fmt: skip


def evolve(pause: Pause | None, fact: PauseFact) -> Pause:
    """Apply one fact. It has happened, so nothing here may object."""
    if isinstance(fact, Paused):
        return _begin(fact)
    assert pause is not None  # noqa: S101 - a store keeps every stream whole from its first fact on
    place: dict[str, Any] = {"version": fact.originator_version, "head": fact.row_digest or None, "at": fact.at}
    return changed(pause, place | _changes(pause, fact))


def _changes(pause: Pause, fact: PauseFact) -> dict[str, Any]:
    match fact:
        case Answered():
            return {"answered": fact} if fact.policy is None else _answers(pause, fact)
        case Consumed():
            return {"consumed": fact, "claim": fact.claim, "claimed_at": fact.at, "claimed_by": fact.attempt}
        case Refused():
            return {"refusals": pause.refusals + 1}
        case Continued():
            return {"continued": pause.continued or fact}
        case Stalled():
            return {"stalled": fact if fact.fence == pause.fence else pause.stalled}
        case Recovered():
            taken = {"claim": fact.claim, "claimed_at": fact.at, "claimed_by": fact.attempt}
            return {**taken, "stalled": None, "recoveries": pause.recoveries + 1}
        case Withdrawn():
            return {"withdrawn": fact}
        case Lapsed():
            return {"lapsed": fact}
        case Reissued():
            ends_below = fact.generation if fact.ends_earlier else pause.ends_below
            minted = {"token_closes_at": fact.closes_at, "reissued_by": fact.attempt}
            return {"generation": fact.generation, "ends_below": ends_below, **minted}
        case Abandoned():
            return {"abandoned": fact}
        case Paused():
            return {}
        case _:
            assert_never(fact)


def _answers(pause: Pause, fact: Answered) -> dict[str, Any]:
    if fact.policy is None or fact.policy.quorum == 1:
        return {"answered": fact}
    return {"votes": (*pause.votes, fact), "answered": fact if fact.completes else pause.answered}


def replay(facts: Iterable[PauseFact]) -> Pause | None:
    """Bring a pause back: its stream, from the first fact to the last."""
    pause: Pause | None = None
    for fact in facts:
        pause = evolve(pause, fact)
    return pause
