"""Authority: who may answer a pause, by the policy it was made under; judged first within step 4."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import get_args

from .axes import require_name
from .commands import PEOPLE, Actor, ActorKind, Assurance, PauseCommand
from .content import Content
from .errors import (
    ActorMissing,
    ActorNotAllowed,
    AskerMayNotAnswer,
    InteractionConfigurationError,
    PauseRejected,
    PolicyMismatch,
)
from .facts import ActorRecord, Decision, Fact, Paused, Stored, Tag
from .facts import Policy as PolicyRecord
from .pause import Pause
from .quorum import principals
from .strict_json import canonical, digest
from .words import require_one_of, require_word

#: From the least to the most.
ASSURANCES: tuple[Assurance, ...] = get_args(Assurance)
#: A presentation may be cited for so long at least, and at most (seconds): a minute, and a year.
SHORTEST_SIGHT, LONGEST_SIGHT = 60, 366 * 24 * 3600
#: A policy with all its names may have this many bytes.
POLICY_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Who may answer an interaction's pauses, and what an answer needs. Every policy wants to know who answers.

    Attributes:
        name: A word, for people and for the record.
        least_assurance: How sure the host has to be of who answers: claimed, authenticated or signed.
        kinds: Which kinds of actors may answer.
        actors: Ids of those who may answer.
        groups: Groups whose members may answer; the host says in `Actor.groups` of which ones somebody is a member.
            Where neither actors nor groups are named, anybody may.
        four_eyes: Who asked, or had it asked on their behalf, may not answer.
        quorum: So many distinct people have to give the same effective answer.
        shown_within: An answer has to cite a presentation to its giver that is at most this old (seconds).
    """

    name: str
    least_assurance: Assurance = "claimed"
    kinds: Sequence[ActorKind] = ("person",)
    actors: Sequence[str] = field(default=(), repr=False)
    groups: Sequence[str] = field(default=(), repr=False)
    four_eyes: bool = False
    quorum: int = 1
    shown_within: int | None = None

    def __post_init__(self) -> None:
        """Take no policy that says nothing, or that nobody could ever satisfy."""
        require_word("a policy's name", self.name)
        require_one_of("least_assurance", self.least_assurance, ASSURANCES)
        for parameter, listed in (("kinds", self.kinds), ("actors", self.actors), ("groups", self.groups)):
            if isinstance(listed, (str, bytes)) or not isinstance(listed, Sequence) or len(listed) > PEOPLE:
                raise InteractionConfigurationError(f"{parameter} must be a list of at most {PEOPLE}")
        for kind in self.kinds:
            require_one_of("a policy's kind", kind, get_args(ActorKind))
        for name in (*self.actors, *self.groups):
            require_name("whom a policy names", name)
        if type(self.four_eyes) is not bool:
            raise InteractionConfigurationError("four_eyes must be True or False")
        if type(self.quorum) is not int or not 1 <= self.quorum <= PEOPLE:
            raise InteractionConfigurationError(f"quorum must be a whole number from 1 to {PEOPLE}")
        if self.shown_within is not None and (
            type(self.shown_within) is not int or not SHORTEST_SIGHT <= self.shown_within <= LONGEST_SIGHT
        ):
            raise InteractionConfigurationError(
                f"shown_within must be a whole number of seconds from {SHORTEST_SIGHT} to {LONGEST_SIGHT}, or None"
            )
        if not self.kinds or (self.actors and not self.groups and len(set(self.actors)) < self.quorum):
            raise InteractionConfigurationError(
                "nobody could ever answer under this policy; allow a kind, and name at least as many actors as have "
                "to agree"
            )


class PolicyRules(Stored):
    """A policy as it is stored and hashed: tags in the place of names."""

    least_assurance: Assurance
    kinds: tuple[ActorKind, ...]
    actors: tuple[Tag, ...] = ()
    groups: tuple[Tag, ...] = ()
    four_eyes: bool = False
    quorum: int = 1
    shown_within: int | None = None


class PolicyChanged(Fact):
    """Somebody put a policy in force for an interaction, or took it away. It stands in a stream of its own.

    Attributes:
        policy: Its name, its revision (counted up for each interaction) and its digest; None where there is none now.
        people: The names behind the tags, as JSON beside the header.
        ends_earlier: Pauses made under earlier revisions cannot be answered any more.
    """

    NAME = "policy.changed"
    interaction: str
    revision: int
    policy: PolicyRecord | None = None
    rules: PolicyRules | None = None
    people: Content | None = None
    ends_earlier: bool
    by: ActorRecord


def rules_of(policy: Policy, tag: Callable[[str, str], Tag]) -> PolicyRules:
    """Spell a policy for the record; what is listed is a set, and sorted, so that equal policies are equal bytes."""
    return PolicyRules(
        least_assurance=policy.least_assurance,
        kinds=tuple(sorted(set(policy.kinds))),
        actors=tuple(sorted({tag("actor", actor) for actor in policy.actors})),
        groups=tuple(sorted({tag("group", group) for group in policy.groups})),
        four_eyes=policy.four_eyes,
        quorum=policy.quorum,
        shown_within=policy.shown_within,
    )


def people_of(policy: Policy) -> Content | None:
    """Keep whom a policy names beside the header."""
    people = {"actors": list(policy.actors), "groups": list(policy.groups)}
    return Content.of(canonical(people, limit=POLICY_BYTES)) if policy.actors or policy.groups else None


def digest_of(interaction: str, name: str, revision: int, rules: PolicyRules) -> str:
    """Digest a policy: SHA-256 over its canonical JSON, lower-case hex. Names stand in it as tags."""
    return digest(
        {"interaction": interaction, "name": name, "revision": revision, "rules": rules.model_dump(mode="json")}
    )


def newest(changes: Iterable[PolicyChanged], interaction: str) -> PolicyChanged | None:
    """Find an interaction's newest change; `changes` are in the order of their stream."""
    found = None
    for change in changes:
        found = change if change.interaction == interaction else found
    return found


def judge_asking(command: PauseCommand, change: PolicyChanged | None, decision: Decision | None) -> None:
    """Let nothing be asked that its policy could not judge; `decision` is the lapse answer's.

    Raises:
        PauseRejected: nobody is named who asks, or the lapse answer would let the call run though nobody said so.
    """
    if change is None or change.rules is None:
        return
    if change.rules.four_eyes and command.asked_by is None:
        raise PauseRejected("asker_missing", "who asks may not answer by the policy in force; state asked_by")
    if decision in ("approve", "edit"):
        raise PauseRejected(
            "lapse_answer_forbidden",
            "a policy says who may let this call run, and a lapse answer is nobody's; let it reject, or leave it out",
        )


def rules_for(pause: Pause, changes: Sequence[PolicyChanged]) -> PolicyRules:
    """Find the rules a pause was made under.

    Raises:
        PolicyMismatch: they are not on record, are other ones, or a later change ended them.
    """
    paused, made_under = pause.paused, pause.paused.policy
    assert made_under is not None  # noqa: S101 - the caller asks for a pause that has one
    mine = [change for change in changes if change.interaction == paused.interaction.name]
    found = next((change for change in mine if change.revision == made_under.revision), None)
    if found is None or found.rules is None:
        raise PolicyMismatch(pause.id, rule="absent")
    digest_now = digest_of(paused.interaction.name, made_under.name, made_under.revision, found.rules)
    if found.policy != made_under or digest_now != made_under.digest:
        raise PolicyMismatch(pause.id, rule="digest_differs")
    if any(change.ends_earlier for change in mine if change.revision > made_under.revision):
        raise PolicyMismatch(pause.id, rule="changed")
    return found.rules


def judge_actor(paused: Paused, rules: PolicyRules, by: ActorRecord | None, groups: Iterable[Tag]) -> None:
    """Hold whoever answers against the rules.

    Raises:
        ActorMissing, ActorNotAllowed, AskerMayNotAnswer: the first rule that objects; named, never its value.
    """
    if by is None:
        raise ActorMissing(paused.originator_id, rule="answered_by")
    if ASSURANCES.index(by.assurance) < ASSURANCES.index(rules.least_assurance):
        raise ActorNotAllowed(paused.originator_id, rule="least_assurance")
    if by.kind not in rules.kinds:
        raise ActorNotAllowed(paused.originator_id, rule="kinds")
    named = rules.actors or rules.groups
    if named and by.tag not in rules.actors and not set(groups) & set(rules.groups):
        raise ActorNotAllowed(paused.originator_id, rule="actors" if not rules.groups else "groups")
    if rules.four_eyes and (paused.asked_by is None or principals(paused.asked_by) & principals(by)):
        raise AskerMayNotAnswer(paused.originator_id, rule="four_eyes")


def groups_of(actor: Actor | None, tag: Callable[[str, str], Tag]) -> tuple[Tag, ...]:
    """Fold the groups the host says somebody is a member of into tags."""
    return () if actor is None else tuple(tag("group", group) for group in actor.groups)


def sight(rules: PolicyRules) -> timedelta | None:
    """Tell how old a presentation may be that an answer cites; None where it need not cite any."""
    return None if rules.shown_within is None else timedelta(seconds=rules.shown_within)
