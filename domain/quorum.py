"""The quorum: which of several people's answers to one pause agree, who has spoken, and how many are missing."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from .content import Content
from .errors import AnsweredTwice, QuorumOpen
from .facts import ActorRecord, Answered, Decision, Tag
from .pause import Pause

Effect = tuple[str, bytes]


def principals(actor: ActorRecord) -> frozenset[Tag]:
    """Tell who stands behind an act: the actor, and whoever it is done for."""
    return frozenset(tag for tag in (actor.tag, actor.on_behalf_of) if tag is not None)


def effect_of(decision: Decision, response: Content, effective: Content | None) -> Effect:
    """Tell what an answer comes to; answers that come to the same agree.

    To let a call run with the same arguments is the same, whether approved or edited to them. To reject is the same
    whatever the reason: else no two people would ever reject. Any other answer is its own text.
    """
    if decision in ("approve", "edit"):
        return "run", b"" if effective is None else effective.clear()
    return decision, b"" if decision == "reject" else response.clear()


def number_of(pause: Pause, fields: Mapping[str, Any]) -> int:
    """Count the answers that agree with one about to be written, itself included."""
    if not pause.votes:
        return 1
    mine = effect_of(fields["decision"], fields["response"], fields["effective"])
    return 1 + sum(_effect(vote) == mine for vote in pause.votes)


def own_vote(pause: Pause, by: ActorRecord | None) -> Answered | None:
    """Find what the person, or whoever they act for, has answered to a pause that wants several."""
    if by is None or not pause.votes:
        return None
    mine = principals(by)
    return next((vote for vote in pause.votes if vote.by is not None and principals(vote.by) & mine), None)


def judge_once(pause: Pause, by: ActorRecord | None, canonical: bytes | None) -> bool:
    """Let each person count once. Returns whether they gave this very answer before; None is one that does not fit.

    Raises:
        AnsweredTwice: they gave another one before.
    """
    vote = own_vote(pause, by)
    if vote is not None and (canonical is None or vote.response.clear() != canonical):
        raise AnsweredTwice(pause.id, rule="quorum")
    return vote is not None


def agrees(pause: Pause, fields: Mapping[str, Any]) -> bool:
    """Tell whether an answer comes to the same as the one that enough people agreed on."""
    if pause.answered is None or not pause.votes:
        return False
    return _effect(pause.answered) == effect_of(fields["decision"], fields["response"], fields["effective"])


def counted(pause: Pause, attempt: UUID) -> bool:
    """Tell whether an attempt's answer is among those that made the pause's answer."""
    made = versions(pause)
    return any(
        one.attempt == attempt and one.originator_version in made for one in (*pause.votes, pause.answered) if one
    )


def missing(pause: Pause) -> int:
    """Tell how many more people have to answer at least; 0 where the pause holds its answer."""
    policy = pause.paused.policy
    if policy is None or not pause.is_open:
        return 0
    return policy.quorum - max((vote.number for vote in pause.votes), default=0)


def judge_complete(pause: Pause) -> None:
    """Step 6: an answer that not enough people agree on is kept, and nothing is consumed yet.

    Raises:
        QuorumOpen: more people have to answer; how many, and not who said what.
    """
    if pause.votes and pause.is_open:
        raise QuorumOpen(pause.id, missing=missing(pause))


def versions(pause: Pause) -> tuple[int, ...]:
    """List where the answers stand that made the pause's answer."""
    if pause.answered is None:
        return ()
    made = _effect(pause.answered) if pause.votes else None
    agreeing = [vote.originator_version for vote in pause.votes if _effect(vote) == made]
    return tuple(agreeing) or (pause.answered.originator_version,)


def standing(pause: Pause) -> tuple[int, ...]:
    """List where the answers stand that were given when a window closed without enough of them."""
    return tuple(vote.originator_version for vote in pause.votes)


def _effect(vote: Answered) -> Effect:
    return effect_of(vote.decision, vote.response, vote.effective)
