"""What happened to a pause, in eleven facts. Stored names and fields are decided for good."""

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer

from .axes import Scope
from .content import Content, Digest

Decision = Literal["answer", "approve", "edit", "reject", "respond"]

#: 16 hex of an HMAC under the ledger's identity key: comparable, not readable.
Tag = str


def rfc3339(moment: datetime) -> str:
    """Spell a moment as RFC 3339 in UTC with six decimals."""
    told = (moment if moment.tzinfo is UTC else moment.astimezone(UTC)).isoformat(timespec="microseconds")
    return f"{told[:26]}Z"


Moment = Annotated[AwareDatetime, PlainSerializer(rfc3339, when_used="json")]


class Stored(BaseModel):
    """A part of a fact. Written strictly; read leniently: a field this version does not know is let pass."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    FIELDS: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        cls.FIELDS = frozenset(cls.model_fields)

    def __init__(self, **fields: Any) -> None:
        if not fields.keys() <= self.FIELDS:
            unknown = ", ".join(sorted(fields.keys() - self.FIELDS))
            raise TypeError(f"{type(self).__name__} has no field {unknown}; name one of those in docs/facts.md")
        self.__pydantic_validator__.validate_python(fields, self_instance=self)

    # What is read is validated by pydantic itself, past this constructor: a newer version may have written more.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


class ActorRecord(Stored):
    """Who did something: a tag to compare by, how they were identified, and their id beside the header."""

    tag: Tag
    kind: Literal["person", "service", "rule", "unknown"]
    assurance: Literal["claimed", "authenticated", "signed"]
    method: str | None = None
    authenticated_at: Moment | None = None
    on_behalf_of: Tag | None = None
    who: Content | None = None


class Claim(Stored):
    """Who has taken up an owed turn: its fence, its holder and for how long (seconds)."""

    fence: int
    holder: Tag
    lease_seconds: int


class TokenRecord(Stored):
    """Which token was presented, without its text."""

    kid: str
    generation: int
    tag: Tag


class Policy(Stored):
    """The policy a pause was made under, and how many people have to agree by it."""

    name: str
    revision: int
    digest: Digest
    quorum: int = 1


class CallRecord(Stored):
    """Where the answer is folded in: the call's place, and whether the provider gave its id."""

    index: int
    origin: Literal["provider", "derived"]
    tool: str | None = None


class InteractionRecord(Stored):
    """Which interaction asked, and the digests of its schemas."""

    name: str
    revision: int
    request_schema: Digest
    response_schema: Digest


class CheckpointRecord(Stored):
    """Where the host keeps the turn."""

    store: str
    locator: str
    version: str


class TurnRecord(Stored):
    """The turn: its digest, and its bytes (with the lead) or where they are."""

    format: str
    digest: Digest
    content: Content | None = None
    checkpoint: CheckpointRecord | None = None


class RoundCall(Stored):
    """One reserved call of the round: its address, its pause where it is gated, and whether it had a result."""

    call_id: str
    pause: UUID | None = None
    done: bool = False


class RoundRecord(Stored):
    """The calls of one assistant message."""

    id: UUID
    lead: UUID
    calls: tuple[RoundCall, ...]


class OnLapse(Stored):
    """What happens when the window closes without an answer."""

    action: Literal["close", "answer"] = "close"
    response: Content | None = None


class RoutingRecord(Stored):
    """Whom the question is for: tags to compare by, their ids beside the header."""

    queue: str | None = None
    priority: int = 0
    groups: tuple[Tag, ...] = ()
    assignees: tuple[Tag, ...] = ()
    people: Content | None = None


class Agent(Stored):
    """Which agent asked."""

    name: str
    version: str | None = None
    model: str | None = None


class AxesRecord(Stored):
    """The axes an attempt stated, as tags."""

    scope: Tag | None = None
    session: Tag | None = None
    run: Tag | None = None
    call: Tag | None = None


class SiblingEnd(Stored):
    """How another pause of the round ended, and at which version of its stream."""

    pause: UUID
    version: int
    end: Literal["answered", "lapsed", "withdrawn"]


class Fact(Stored):
    """What happened. `NAME` and `REVISION` are what the store knows it by, for good.

    The first five fields are the row's place and its chain; they stand beside the header, not in it.
    """

    NAME: ClassVar[str]
    REVISION: ClassVar[int] = 1

    originator_id: UUID = Field(exclude=True)
    originator_version: int = Field(exclude=True)
    #: The digest of the row before; None where that row is in the same append.
    predecessor: bytes | None = Field(default=None, exclude=True, repr=False)
    #: The digest of this row, once stored.
    row_digest: bytes = Field(default=b"", exclude=True, repr=False)
    #: The position in the log, once stored, where the store tells it.
    position: int | None = Field(default=None, exclude=True)

    ledger: UUID
    pause: UUID
    scope: Scope | None
    at: Moment
    attempt: UUID
    writer: str
    trace: str | None = None

    @classmethod
    def topic(cls) -> str:
        """The stored name with its revision."""
        return f"{cls.NAME}@{cls.REVISION}"


class Paused(Fact):
    """A turn stopped, and asked."""

    NAME = "pause.paused"
    session_id: str
    run_id: str
    call_id: str
    call: CallRecord
    interaction: InteractionRecord
    request: Content
    turn: TurnRecord
    round: RoundRecord
    opens_at: Moment
    closes_at: Moment
    on_lapse: OnLapse
    occurrence: int
    supersedes: UUID | None = None
    generation: int = 0
    routing: RoutingRecord
    asked_by: ActorRecord | None = None
    agent: Agent | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    policy: Policy | None = None
    retention: str | None = None


class Answered(Fact):
    """A person answered, and the answer fits the question."""

    NAME = "pause.answered"
    number: int
    origin: Literal["person", "rule", "import"]
    by: ActorRecord | None = None
    submitted_by: ActorRecord | None = None
    response: Content
    decision: Decision
    shown: Digest
    effective: Content | None = None
    note: Content | None = None
    token: TokenRecord | None = None
    cites: tuple[UUID, ...] = ()
    policy: Policy | None = None

    @property
    def completes(self) -> bool:
        """Whether the pause holds its answer with this one: enough people agree on it, or one is enough."""
        return self.policy is None or self.number >= self.policy.quorum


class Consumed(Fact):
    """One attempt won the answer. With a claim, the turn is owed from here on."""

    NAME = "pause.consumed"
    claim: Claim | None = None
    lead: UUID
    siblings: tuple[SiblingEnd, ...] = ()
    answers: tuple[int, ...] = ()
    response_digest: Digest | None = None
    unstated_axes: tuple[str, ...] = ()
    key: Tag | None = None
    by: ActorRecord | None = None
    token: TokenRecord | None = None
    origin: Literal["redeem", "ready", "lapse"]


class Refused(Fact):
    """An attempt failed on one axis. The pause itself stands."""

    NAME = "pause.refused"
    step: int
    axis: str
    reason: str
    rule: str | None = None
    seen_version: int
    by: ActorRecord | None = None
    token: TokenRecord | None = None
    presented: AxesRecord
    at_pointer: str | None = None


class Continued(Fact):
    """The turn went on to its end."""

    NAME = "pause.continued"
    fence: int
    late: bool
    end: Literal["finished", "paused_again", "handed_over"]
    next: tuple[UUID, ...] = ()
    result: Digest | None = None


class Stalled(Fact):
    """The turn broke off, and is still owed."""

    NAME = "pause.stalled"
    fence: int
    cause: Literal["error", "cancelled", "consumer_gone", "shutdown", "released"]
    error_type: str | None = None
    entered: bool


class Recovered(Fact):
    """The owed turn was taken up again, under the next claim."""

    NAME = "pause.recovered"
    claim: Claim
    from_fence: int
    because: Literal["stalled", "lease_ended", "forced"]
    by: ActorRecord | None = None


class Withdrawn(Fact):
    """The host took the question back."""

    NAME = "pause.withdrawn"
    reason: Literal["host", "superseded", "moved_on", "stopped"]
    superseded_by: UUID | None = None
    by: ActorRecord | None = None
    note: Content | None = None


class Lapsed(Fact):
    """The window closed without enough answers."""

    NAME = "pause.lapsed"
    closed_at: Moment
    leeway_seconds: int
    answers_standing: tuple[int, ...] = ()


class Reissued(Fact):
    """A token was minted again."""

    NAME = "pause.reissued"
    generation: int
    ends_earlier: bool
    kid: str
    closes_at: Moment | None = None
    by: ActorRecord | None = None
    reason: Literal["lost", "rotated", "reminder", "restored"]


class Abandoned(Fact):
    """The turn was given up for good."""

    NAME = "pause.abandoned"
    fence: int | None = None
    reason: Literal["exhausted", "host", "erased"]
    by: ActorRecord | None = None
    note: Content | None = None


PauseFact = (
    Paused | Answered | Consumed | Refused | Continued | Stalled | Recovered | Withdrawn | Lapsed | Reissued | Abandoned
)

#: Every fact of a pause, in the order of its life.
FACTS: tuple[type[Fact], ...] = (
    Paused, Answered, Consumed, Refused, Continued, Stalled, Recovered, Withdrawn, Lapsed, Reissued, Abandoned,
)  # fmt: skip


def contents_of(value: Any) -> list[Content]:
    """List every content a fact holds, however deep."""
    if isinstance(value, Content):
        return [value]
    if isinstance(value, BaseModel):
        return [found for name in type(value).model_fields for found in contents_of(getattr(value, name))]
    return []
