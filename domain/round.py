"""The round: the gated calls of one assistant message, answered one by one and consumed together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from . import quorum
from .changes import changed
from .content import Content
from .errors import AlreadyAnswered, AlreadyConsumed, NotAnswered, PauseLapsed, PauseWithdrawn, TokenSuperseded
from .facts import ActorRecord, Answered, Claim, Consumed, Lapsed, PauseFact, SiblingEnd, TokenRecord
from .pause import Pause, evolve
from .stamp import Stamp


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """An answer that step 4 let through: the fields of `Answered`, and the canonical bytes to compare by."""

    canonical: bytes = field(repr=False)
    fields: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What an attempt at consuming says about itself, beside the answer; `presented` is the pause its token is for."""

    origin: Literal["redeem", "ready", "lapse"]
    lease_seconds: int
    owed: bool = True
    unstated_axes: tuple[str, ...] = ()
    key: str | None = None
    by: ActorRecord | None = None
    token: TokenRecord | None = None
    presented: UUID | None = None


@dataclass(frozen=True)
class Round:
    """All pauses of one assistant message, the lead first, as their facts leave them.

    Attributes:
        leeway: How long past its window a pause may still be answered, for clocks that differ.
        leased_until: When the lead's lease ends by its newest renewal; no fact, and the one thing beside the stream.
    """

    pauses: tuple[Pause, ...]
    leeway: timedelta = timedelta(0)
    leased_until: datetime | None = None

    @property
    def lead(self) -> Pause:
        """The pause that holds the turn and the claims."""
        return self.pauses[0]

    def of(self, pause_id: UUID) -> Pause:
        """Find one of the round's pauses."""
        # Most are of one pause. Ids compare by methods of their own, a microsecond each.
        return next(pause for pause in self.pauses if pause.id is pause_id or pause.id == pause_id)

    def after(self, facts: Sequence[PauseFact]) -> "Round":
        """Give the round as it is once these facts have happened."""
        if not facts:
            return self
        by_stream = {pause.id: pause for pause in self.pauses}
        for fact in facts:
            if fact.originator_id in by_stream:
                by_stream[fact.originator_id] = evolve(by_stream[fact.originator_id], fact)
        return changed(self, {"pauses": tuple(by_stream.values())})

    def closed(self, pause: Pause, now: datetime) -> bool:
        """Tell whether a pause's window, leeway included, is over."""
        return now >= pause.paused.closes_at + self.leeway

    def waiting(self, now: datetime) -> tuple[Pause, ...]:
        """List the pauses somebody may still answer."""
        return tuple(pause for pause in self.pauses if pause.is_open and not self.closed(pause, now))

    @property
    def has_answer(self) -> bool:
        """Whether any pause holds an answer."""
        return any(pause.has_answer for pause in self.pauses)


def stored_answer(pause: Pause) -> Content | None:
    """Find the answer a pause holds: a person's, or the one registered for its lapse."""
    if pause.answered:
        return pause.answered.response
    return pause.paused.on_lapse.response if pause.lapse_answers else None


def judge_generation(pause: Pause, generation: int, token_epoch: int, epoch: int) -> None:
    """Step 6, first: a token that was ended is not the pause's any more.

    Raises:
        TokenSuperseded: a newer token ended it, or the ledger was restored since.
    """
    if generation < pause.ends_below or token_epoch != epoch:
        raise TokenSuperseded(pause.id)


def judge_own(pause: Pause, stamp: Stamp) -> bool:
    """Tell whether this very attempt consumed the pause already, its acknowledgement lost."""
    return pause.consumed is not None and pause.consumed.attempt == stamp.attempt


def judge_consumption(pause: Pause, key: str | None = None) -> None:
    """Step 6: what is over cannot be answered or consumed.

    Raises:
        PauseWithdrawn, AlreadyConsumed: it is over, and how.
    """
    if pause.withdrawn:
        raise PauseWithdrawn(pause.id, at=pause.withdrawn.at, why=pause.withdrawn.reason)
    if pause.consumed:
        own = key is not None and pause.consumed.key == key
        state = pause.state if own else None
        raise AlreadyConsumed(pause.id, at=pause.consumed.at, by=named(pause.consumed.by), own=own, state=state)


def answer(round_: Round, pause_id: UUID, given: GivenAnswer | None, stamp: Stamp) -> list[PauseFact]:
    """Decide whether an answer stands. None is the stored one. The same answer again is no news: an empty list.

    Raises:
        AlreadyAnswered, PauseLapsed, NotAnswered, QuorumOpen: it does not, and why.
    """
    pause = round_.of(pause_id)
    stored = stored_answer(pause)
    if given is None:
        if stored is None:
            quorum.judge_complete(pause)
            raise PauseLapsed(pause.id) if pause.lapsed else NotAnswered(pause.id)
        return []
    if stored is not None and stored.clear() == given.canonical:
        return []
    if pause.answered:
        if quorum.agrees(pause, given.fields):
            return []
        raise AlreadyAnswered(pause.id, at=pause.answered.at, by=named(pause.answered.by))
    if pause.lapsed:
        raise PauseLapsed(pause.id)
    if quorum.judge_once(pause, given.fields.get("by"), given.canonical):
        return []
    return [stamp.write(pause, Answered, number=quorum.number_of(pause, given.fields), **given.fields)]


def lapses(round_: Round, stamp: Stamp) -> list[PauseFact]:
    """Write down which of the round's windows have closed without an answer."""
    return [
        lapsed(round_, pause, stamp) for pause in round_.pauses if pause.is_open and round_.closed(pause, stamp.now)
    ]


def lapsed(round_: Round, pause: Pause, stamp: Stamp) -> Lapsed:
    """Write down that one window has closed without an answer."""
    leeway = int(round_.leeway.total_seconds())
    return stamp.write(
        pause, Lapsed, closed_at=pause.paused.closes_at, leeway_seconds=leeway, answers_standing=quorum.standing(pause)
    )


def consume(round_: Round, stamp: Stamp, attempt: Attempt) -> list[PauseFact]:
    """Decide whether the round can be consumed: one `Consumed` on each of its streams, or nothing.

    Nothing where a pause still waits, or where no pause holds an answer. Windows that have closed lapse in the same
    append. The round must not be consumed already.
    """
    if round_.waiting(stamp.now):
        return []
    closed = lapses(round_, stamp)
    settled = round_.after(closed)
    if not settled.has_answer:
        return []
    return [*closed, *(_consumed(pause, settled, stamp, attempt) for pause in settled.pauses)]


def _consumed(pause: Pause, settled: Round, stamp: Stamp, attempt: Attempt) -> Consumed:
    leads = pause is settled.lead and attempt.owed
    response = stored_answer(pause) if pause.has_answer else None
    return stamp.write(
        pause,
        Consumed,
        claim=Claim(fence=1, holder=stamp.holder, lease_seconds=attempt.lease_seconds) if leads else None,
        lead=settled.lead.id,
        siblings=tuple(
            SiblingEnd(pause=other.id, version=other.version, end=_end(other))
            for other in settled.pauses
            if other is not pause
        ),
        answers=quorum.versions(pause) if pause.has_answer else (),
        response_digest=response.digest if response else None,
        unstated_axes=attempt.unstated_axes,
        key=attempt.key,
        by=_copy(attempt.by),
        token=attempt.token if pause.id == attempt.presented else None,
        origin=attempt.origin,
    )


def _end(pause: Pause) -> Literal["answered", "lapsed", "withdrawn"]:
    if pause.withdrawn:
        return "withdrawn"
    return "answered" if pause.answered else "lapsed"


def _copy(actor: ActorRecord | None) -> ActorRecord | None:
    """Salt a person's id anew for each row that names it."""
    if actor is None or actor.who is None:
        return actor
    return actor.model_copy(update={"who": Content.of(actor.who.clear(), actor.who.media_type, "person")})


def named(actor: ActorRecord | None) -> str | None:
    """Name an actor by their id, or by their tag where the id cannot be read."""
    if actor is None:
        return None
    return actor.who.clear().decode() if actor.who is not None and actor.who.intact else actor.tag
