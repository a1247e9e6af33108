"""What a host asks for, and what it gets back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, final, get_args
from uuid import UUID

from .axes import Axes, Scope, as_stated, require_name, require_text
from .closing import ReissueReason, WithdrawReason
from .envelope import Envelope
from .errors import InteractionConfigurationError
from .facts import Agent
from .pause import State
from .settlement import End
from .turn import CheckpointReference, PausedTurn, Turn
from .words import require_one_of, require_word

#: A pause is routed to at most this many groups, and to as many people.
PEOPLE = 256
#: An answer cites at most so many presentations.
CITED = 8
#: A note may have this many bytes.
NOTE_BYTES = 64 * 1024
#: A priority lies between this and its negative.
PRIORITIES = 1_000_000
#: A pause stays open this long where the host does not say (seconds): one week.
DEFAULT_WINDOW = 7 * 24 * 3600


@final
class StoredAnswer:
    """The type of `STORED`."""

    def __repr__(self) -> str:
        return "STORED"


#: Redeem the answer given earlier by `answer`. `None` can be a valid answer, so it cannot stand for this.
STORED: Final = StoredAnswer()


ActorKind = Literal["person", "service", "rule", "unknown"]
Assurance = Literal["claimed", "authenticated", "signed"]


@dataclass(frozen=True, slots=True)
class Actor:
    """Who does something, as the host knows them. The id is kept beside the facts, a tag of it within them.

    Attributes:
        id: The host's own id of the person or service.
        assurance: How sure the host is: claimed by the caller, authenticated, or signed.
        method: How they were authenticated, a short word such as `oidc` or `password`.
        authenticated_at: When (UTC).
        on_behalf_of: Another's id, for whom this is done.
        groups: The groups the host knows them to be in, for a policy that names groups. They are not stored.
    """

    id: str = field(repr=False)
    kind: ActorKind = "person"
    assurance: Assurance = "claimed"
    method: str | None = None
    authenticated_at: datetime | None = None
    on_behalf_of: str | None = field(default=None, repr=False)
    groups: Sequence[str] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        """Take nobody for an actor, and no other words for what they are."""
        require_one_of("an actor's kind", self.kind, get_args(ActorKind))
        require_one_of("an actor's assurance", self.assurance, get_args(Assurance))
        if self.method is not None:
            require_word("an actor's method", self.method)
        for parameter, named in (("an actor's id", self.id), ("an actor's on_behalf_of", self.on_behalf_of)):
            if named is not None:
                require_name(parameter, named)
        if isinstance(self.groups, (str, bytes)) or not isinstance(self.groups, Sequence) or len(self.groups) > PEOPLE:
            raise InteractionConfigurationError(f"an actor's groups must be a list of at most {PEOPLE} ids")
        for group in self.groups:
            require_name("an actor's group", group)
        if self.authenticated_at is not None and getattr(self.authenticated_at, "tzinfo", None) is None:
            raise InteractionConfigurationError("an actor's authenticated_at has no time zone; pass an aware datetime")


@dataclass(frozen=True, slots=True)
class Routing:
    """Whom a question is for. Ids are kept beside the facts, tags of them within."""

    queue: str | None = None
    priority: int = 0
    groups: Sequence[str] = field(default=(), repr=False)
    assignees: Sequence[str] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        """Take no priority that does not compare, and no text for a list of names."""
        for parameter, names in (("groups", self.groups), ("assignees", self.assignees)):
            if isinstance(names, (str, bytes)) or not isinstance(names, Sequence) or len(names) > PEOPLE:
                raise InteractionConfigurationError(f"{parameter} must be a list of at most {PEOPLE} ids")
        if type(self.priority) is not int or not -PRIORITIES <= self.priority <= PRIORITIES:
            raise InteractionConfigurationError(f"priority must be a whole number from -{PRIORITIES} to {PRIORITIES}")


@dataclass(frozen=True, slots=True)
class LapseAnswer:
    """The answer a pause takes when its window closes without one; validated when pausing."""

    response: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class PauseCommand:
    """Stop a turn at one call, and ask.

    Attributes:
        interaction: The registered interaction's name.
        request: What is asked; fits the interaction's request schema.
        turn: The turn as it is, or where the host keeps it.
        axes: Scope, session, run and call, all stated.
        opens_in: Whole seconds from now until it may be answered.
        closes_in: Whole seconds from now until it may not be answered any more.
        on_lapse: Nothing, or the answer that stands when nobody gave one.
        supersedes: An earlier pause of the same session, whose round is withdrawn in the same append.
        occurrence: 0, and the next whole number to ask again what was asked before.
        idempotency_key: Stands in the turn's place when the pause's id is derived; at most 255 bytes.
        run_started: When the run started (UTC); it fixes the month in the id, so that a repeat finds the pause.
        labels: At most 16 listed words to listed words.
    """

    interaction: str
    request: Any = field(repr=False)
    turn: Turn | CheckpointReference
    axes: Axes
    opens_in: int = 0
    closes_in: int = DEFAULT_WINDOW
    on_lapse: LapseAnswer | None = None
    routing: Routing = field(default_factory=Routing)
    asked_by: Actor | None = None
    agent: Agent | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    supersedes: UUID | None = None
    occurrence: int = 0
    idempotency_key: str | None = field(default=None, repr=False)
    run_started: datetime | None = None

    def __post_init__(self) -> None:
        """Take nothing for what it is not."""
        for name, kinds in _PAUSE_FIELDS.items():
            if not isinstance(getattr(self, name), kinds):
                wanted = " or ".join(kind.__name__ for kind in kinds if kind is not _NONE)
                hint = "; pass the name it is registered under" if name == "interaction" else ""
                raise InteractionConfigurationError(f"{name} must be of type {wanted}{hint}")


_NONE = type(None)
_PAUSE_FIELDS: dict[str, tuple[type, ...]] = {
    "interaction": (str,),
    "turn": (Turn, CheckpointReference),
    "axes": (Axes,),
    "on_lapse": (LapseAnswer, _NONE),
    "routing": (Routing,),
    "asked_by": (Actor, _NONE),
    "agent": (Agent, _NONE),
    "labels": (Mapping,),
    "supersedes": (UUID, _NONE),
    "idempotency_key": (str, _NONE),
    "run_started": (datetime, _NONE),
}


def require_actor(name: str, actor: object) -> None:
    """Check that somebody is named as an actor.

    Raises:
        InteractionConfigurationError: they are not.
    """
    if not isinstance(actor, Actor):
        raise InteractionConfigurationError(f"{name} must be an Actor; pass Actor(id), as in Actor('maria')")


def _is_uuid(value: object) -> bool:
    return isinstance(value, UUID)


@dataclass(frozen=True, slots=True)
class AnswerCommand:
    """Answer a pause, and consume nothing. The attributes are those of `ResumeCommand`."""

    envelope: Envelope
    response: Any = field(repr=False)
    scope: Scope | None = None
    session_id: str | None = None
    run_id: str | None = None
    call_id: str | None = None
    answered_by: Actor | None = None
    submitted_by: Actor | None = None
    attempt_key: str | None = field(default=None, repr=False)
    cites: Sequence[UUID] = ()

    def __post_init__(self) -> None:
        """Take nobody for somebody, no key that cannot be compared, and nothing cited that is no id."""
        for name, actor in (("answered_by", self.answered_by), ("submitted_by", self.submitted_by)):
            if actor is not None:
                require_actor(name, actor)
        if self.attempt_key is not None and not require_text("attempt_key", self.attempt_key).decode().strip():
            # All who forgot theirs would share it, and be told that another's win was their own.
            raise InteractionConfigurationError("attempt_key is blank; pass this attempt's own key, or leave it out")
        if not isinstance(self.cites, Sequence) or len(self.cites) > CITED or not all(map(_is_uuid, self.cites)):
            raise InteractionConfigurationError(
                f"cites must list at most {CITED} ids that `presented` gave, as UUIDs; pass [presentation.id]"
            )

    @property
    def axes(self) -> Axes:
        """The axes stated."""
        return as_stated(self.scope, self.session_id, self.run_id, self.call_id)


@dataclass(frozen=True, slots=True)
class ResumeCommand(AnswerCommand):
    """Redeem a token.

    Attributes:
        envelope: The token, recognised.
        response: The answer, or `STORED` for the one given earlier.
        answered_by: Whose answer it is.
        submitted_by: Who or what handed it in, where that is somebody else.
        attempt_key: The host's own key for this attempt, not blank; the same key learns that it won already.
        cites: The ids of presentations of the question to whoever answers; see `PresentCommand`.
    """


@dataclass(frozen=True, slots=True)
class _PauseNamed:
    """A pause named by its id, or by a token of it; the axes are stated, or an operator states who and why."""

    pause_id: UUID | None = None
    envelope: Envelope | None = None
    axes: Axes | None = None
    by: Actor | None = None


@dataclass(frozen=True, slots=True)
class PresentCommand(_PauseNamed):
    """Write down that somebody was shown a rendering of the question. The pause is named as by the other commands.

    Attributes:
        to: Who was shown it.
        rendering: What they were shown: the very bytes, or text (digested as UTF-8). They are not stored.
        by: What showed it, where that is somebody.
    """

    to: Actor | None = None
    rendering: bytes | str = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        """Take nobody for somebody, and nothing for something shown."""
        if not isinstance(self.to, Actor):
            raise InteractionConfigurationError("to must be the Actor who was shown the rendering")
        if not isinstance(self.rendering, (bytes, str)) or not self.rendering:
            raise InteractionConfigurationError("rendering must be what was shown, as bytes or text, and not empty")
        if isinstance(self.rendering, str):
            require_text("rendering", self.rendering)


@dataclass(frozen=True, slots=True)
class Presentation:
    """A presentation on record.

    Attributes:
        id: What an answer cites it by; the same for this person and this rendering.
        at: When it was shown (UTC), by the store's clock.
        digest: SHA-256 over the rendering, lower-case hex.
        existing: Whether it was written down a moment ago already; nothing was written then.
        position: Where in the log, or None.
    """

    id: UUID
    pause_id: UUID
    at: datetime
    digest: str
    existing: bool
    position: int | None


@dataclass(frozen=True, slots=True)
class RecoverCommand(_PauseNamed):
    """Take up an owed or ready turn. `reason="forced"` ends a lease that still runs; an operator's alone."""

    reason: Literal["forced"] | None = None


@dataclass(frozen=True, slots=True)
class ReissueCommand(_PauseNamed):
    """Mint a token again. `closes_in` (whole seconds from now) shortens its window, never beyond the pause's."""

    reason: ReissueReason = "lost"
    ends_earlier: bool = False
    closes_in: int | None = None

    def __post_init__(self) -> None:
        """Take no other reason."""
        require_one_of("reason", self.reason, get_args(ReissueReason))


@dataclass(frozen=True, slots=True)
class WithdrawCommand(_PauseNamed):
    """Take a question back."""

    reason: WithdrawReason = "host"
    note: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Take no other reason, and no note that cannot be kept."""
        require_one_of("reason", self.reason, get_args(WithdrawReason))
        if self.note is not None and len(require_text("note", self.note)) > NOTE_BYTES:
            raise InteractionConfigurationError(f"note has more than {NOTE_BYTES} bytes; pass less, or a reference")


@dataclass(frozen=True, slots=True)
class LapseCommand(_PauseNamed):
    """Write down that a window closed without an answer."""

    reason: Literal["closed"] = "closed"


@dataclass(frozen=True, slots=True)
class SettleCommand:
    """Say how an owed turn ended, under which fence. `next` names the pauses it stopped at again."""

    pause_id: UUID
    axes: Axes | None
    fence: int
    end: End
    next: Sequence[UUID] = ()
    error_type: str | None = None
    by: Actor | None = None

    def __post_init__(self) -> None:
        """Take no free text for a type of error, and no pause that is none."""
        if len(self.next) > PEOPLE or not all(isinstance(pause, UUID) for pause in self.next):
            raise InteractionConfigurationError(f"next must list at most {PEOPLE} pauses by their UUIDs")
        if self.error_type is not None:
            require_word("error_type", self.error_type)


@dataclass(frozen=True, slots=True)
class PauseReceipt:
    """A pause that is stored, and the token for whoever answers.

    Attributes:
        existing: Whether it had been paused before, by this very command.
        closes_at: The end of its window (UTC).
        position: Where in the log, or None.
        round: The lead's pause id, the same for every pause of one assistant message.
    """

    pause_id: UUID
    token: str = field(repr=False)
    existing: bool
    closes_at: datetime
    position: int | None
    round: UUID


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a pause is after a command, and where in the log that stands (None where nothing was written).

    Attributes:
        missing: How many more people have to answer, at least, where its policy wants several; else 0.
    """

    pause_id: UUID
    state: State
    position: int | None
    missing: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """What is folded in on one call. `text` is None where the call is left open for a dispatch."""

    interrupt_id: str
    tool_call_id: str | None
    text: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A call a person let through, for the host to run.

    Attributes:
        arguments: The effective arguments: those asked for, or those the person made of them.
        digest: SHA-256 over their canonical JSON, lower-case hex.
        idempotency_key: The same in every recovery, for the host's side effect.
    """

    pause_id: UUID
    interrupt_id: str
    tool_call_id: str | None
    tool: str
    arguments: Any = field(repr=False)
    digest: str
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Sibling:
    """Another pause of the round, and how it ended."""

    pause_id: UUID
    interrupt_id: str
    tool_call_id: str | None
    name: str
    end: Literal["answered", "lapsed", "withdrawn"]
    response: Any = field(default=None, repr=False)


@dataclass(frozen=True)
class ResumeOutcome:
    """What a redemption hands back.

    Attributes:
        interrupt_id: The call axis, always set.
        tool_call_id: The provider's id of the call, or None.
        turn: The paused turn out of its checkpoint; None only where it was not asked for.
        observations: One per call of the round that had no result, in the order of the calls.
        time_to_resolve_seconds: From the `Paused` to the `Answered` fact (to the `Lapsed` one where that answered).
        position: Where in the log the claim stands, or None.
        fence: The claim's fence; 0 where nothing is owed.
        idempotency_key: The lead's pause id; the same in every recovery.
        scope: The tenant whose pause it is.
    """

    name: str
    pause_id: UUID
    interrupt_id: str
    tool_call_id: str | None
    run_id: str
    session_id: str
    request: Any = field(repr=False)
    response: Any = field(repr=False)
    turn: PausedTurn | None = field(repr=False)
    observations: tuple[Observation, ...] = field(repr=False)
    dispatch: tuple[Dispatch, ...]
    siblings: tuple[Sibling, ...]
    answered_by: str | None = field(repr=False)
    paused_at: datetime
    time_to_resolve_seconds: float
    position: int | None
    fence: int
    idempotency_key: str
    scope: Scope | None = field(repr=False)
