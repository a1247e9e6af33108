"""Everything that can be said no to, and by which name.

    LedgerError
    ├── Refusal                         an authentic (or forged) token was turned down; the pause stands
    │   ├── TokenForged, TokenExpired, TokenNotYetValid                        step 1
    │   ├── ScopeMismatch, SessionMismatch, RunMismatch, CallMismatch          step 2
    │   ├── RequestMissing (and RequestErased), RequestMismatch                step 3
    │   ├── ActorMissing, ActorNotAllowed, AskerMayNotAnswer, AnsweredTwice,
    │   │   PolicyMismatch, PresentationMissing, PresentationStale,
    │   │   InteractionUnregistered, ResponseInvalid                           step 4
    │   ├── TurnMissing, TurnMismatch                                          step 5
    │   └── TokenSuperseded, AlreadyAnswered, AlreadyConsumed, PauseWithdrawn,
    │       PauseLapsed, NotAnswered, QuorumOpen                               step 6
    ├── InteractionConfigurationError   the host's mistake
    ├── PauseRejected, PauseConflict, PauseClosed, WindowOpen                  pausing and closing
    ├── RoundOpen                       the answer is kept; other calls of the round still wait
    ├── RecoveryError
    │   └── LeaseHeld, AlreadyContinued, NotConsumed, NothingOwed, TurnAbandoned
    ├── NotRedeemable                   the string is not one of our tokens
    ├── ErasureHeld, NotErasable        nothing was destroyed, and why
    ├── StoreUnavailable                the store could not speak; `outcome` says what is known
    │   └── TransactionStale            the host's own transaction, joined, has to be run again
    ├── VersionConflict                 a lost race, judged again before anybody hears of it
    ├── ViewBehind                      a view has not come to the position waited for (in `projections`)
    ├── LedgerCorrupt, SettingsCorrupt  what is stored cannot be trusted
    ├── LedgerTooNew                    or cannot be read by this version

No message holds a token, a key, a request, an answer or a message of a turn.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Literal
from uuid import UUID


class LedgerError(Exception):
    """Whatever this package raises on purpose."""


class Refusal(LedgerError):
    """An attempt that failed at one step, on one axis. The pause itself stands.

    Attributes:
        reason: The word that stands in streams, metrics and output for good.
        axis: What was judged: token, scope, session, run, call, request, actor, policy, presentation, response, turn or
            consumption.
        step: Which of the seven steps objected, 1 to 6.
        pause_id: The pause the token named; None where it named none.
        recorded: Whether the attempt stands in the ledger as a `Refused` fact.
        retryable: Whether the very same attempt may succeed later.
        rule: The rule within the axis that objected, a fixed word.
        at_pointer: Where in the response or its schema, as a JSON pointer of schema keywords; never the value.
    """

    reason: ClassVar[str] = "refused"
    axis: ClassVar[str] = ""
    step: ClassVar[int] = 0
    retryable: ClassVar[bool] = False
    says: ClassVar[str] = "the attempt was refused"

    def __init__(
        self,
        pause_id: UUID | None = None,
        *,
        recorded: bool = False,
        rule: str | None = None,
        at_pointer: str | None = None,
    ) -> None:
        super().__init__(pause_id)
        self.pause_id = pause_id
        self.recorded = recorded
        self.rule = rule
        self.at_pointer = at_pointer

    def __str__(self) -> str:
        about = f" (pause {self.pause_id})" if self.pause_id else ""
        detail = "".join(f"; {name}: {value}" for name, value in self.details().items() if value)
        return f"{self.reason}: {self.says}{about}{detail}"

    def details(self) -> dict[str, Any]:
        """List what may be told beside the reason."""
        return {"rule": self.rule, "at": self.at_pointer}


class TokenForged(Refusal):
    """Our prefix, but not our seal: a wrong checksum, version, key, ledger or audience."""

    reason, axis, step = "token_forged", "token", 1
    says = (
        "the token does not open here: it is of another ledger or store, its key is missing here or retired, or it "
        "was altered; check the store and the keys (PAUSELEDGER_KEYS_DIR), else have it minted again"
    )


class TokenExpired(Refusal):
    """The window for answering has closed."""

    reason, axis, step = "token_expired", "token", 1
    says = "the window for answering has closed; the host may pause again with the next occurrence"


class TokenNotYetValid(Refusal):
    """The window for answering has not opened yet."""

    reason, axis, step, retryable = "token_not_yet_valid", "token", 1, True
    says = "the window for answering has not opened yet; try again later"


class ScopeMismatch(Refusal):
    """Another tenant's pause."""

    reason, axis, step = "scope_mismatch", "scope", 2
    says = "the token is not bound to the scope stated; redeem it under the tenant that paused"


class SessionMismatch(Refusal):
    """Another conversation's pause."""

    reason, axis, step = "session_mismatch", "session", 2
    says = "the token is not bound to the session stated; redeem it in the conversation that asked"


class RunMismatch(Refusal):
    """Another turn's pause."""

    reason, axis, step = "run_mismatch", "run", 2
    says = "the token is not bound to the run stated; redeem it for the run that stopped"


class CallMismatch(Refusal):
    """Another call's pause."""

    reason, axis, step = "call_mismatch", "call", 2
    says = "the token is not bound to the call stated; redeem it for the call that waits"


class RequestMissing(Refusal):
    """The pause is not in this store."""

    reason, axis, step = "request_missing", "request", 3
    says = "the pause is not in this store; check that the right store is opened"


class RequestErased(RequestMissing):
    """What was asked was erased: `request_missing` under the rule `erased`."""

    says = "what was asked was erased on purpose, and the pause is over; the host may ask anew"

    def __init__(self, pause_id: UUID | None = None) -> None:
        super().__init__(pause_id, rule="erased")


class RequestMismatch(Refusal):
    """What was asked is not what the token says was asked."""

    reason, axis, step = "request_mismatch", "request", 3
    says = "the stored request is not the one the token was minted for; have the ledger checked"


class ActorMissing(Refusal):
    """The policy wants to know who answers."""

    reason, axis, step = "actor_missing", "actor", 4
    says = "the interaction wants to know who answers; state `answered_by`"


class ActorNotAllowed(Refusal):
    """The policy does not let this actor answer."""

    reason, axis, step = "actor_not_allowed", "actor", 4
    says = "this actor may not answer this pause; the rule named is one of the policy it was made under"


class AskerMayNotAnswer(Refusal):
    """Four eyes: who asked may not answer."""

    reason, axis, step = "asker_may_not_answer", "actor", 4
    says = "who asked may not answer; somebody else has to"


class AnsweredTwice(Refusal):
    """One person counts once towards a quorum."""

    reason, axis, step = "answered_twice", "actor", 4
    says = "this actor has given another answer already, and each counts once; another person has to"


class PolicyMismatch(Refusal):
    """The policy on record is not the one the pause was made under: it was changed since, or is not there.

    Policies stand in the ledger and their revisions only go up, so the very same attempt never succeeds later.
    """

    reason, axis, step = "policy_mismatch", "policy", 4
    says = "the policy on record is not the one the pause was made under; withdraw it, and ask again under the new one"


class PresentationMissing(Refusal):
    """The policy wants the answer to cite what was shown."""

    reason, axis, step = "presentation_missing", "presentation", 4
    says = "the answer has to cite what its giver was shown; record that by `presented`, and pass its id as cites"


class PresentationStale(Refusal):
    """The answer cites something shown before it changed."""

    reason, axis, step = "presentation_stale", "presentation", 4
    says = "what the answer cites is no longer what is asked; show it anew"


class InteractionUnregistered(Refusal):
    """This process does not know the interaction at the revision paused."""

    reason, axis, step, retryable = "interaction_unregistered", "response", 4, True
    says = "the interaction is not registered here as it was when pausing; register that revision and try again"


class ResponseInvalid(Refusal):
    """The answer does not fit the question.

    Attributes:
        broke: Whether a function of the host's own raised on it, so that the fault may as well be that one's.
    """

    reason, axis, step, retryable = "response_invalid", "response", 4, False
    says = "the answer does not fit the interaction's response schema or its cross-check; send another answer"

    def __init__(
        self,
        pause_id: UUID | None = None,
        *,
        recorded: bool = False,
        rule: str | None = None,
        at_pointer: str | None = None,
        broke: bool = False,
    ) -> None:
        super().__init__(pause_id, recorded=recorded, rule=rule, at_pointer=at_pointer)
        self.broke = broke

    def details(self) -> dict[str, Any]:
        """List what may be told beside the reason."""
        where = "the host's own rule raised, and its log says where (rule_failed)" if self.broke else None
        return {**super().details(), "broke": where}


class TurnMissing(Refusal):
    """The durable checkpoint of the turn is gone."""

    reason, axis, step = "turn_missing", "turn", 5
    says = "the paused turn is not in its checkpoint any more; nothing was consumed"


class TurnMismatch(Refusal):
    """The durable checkpoint of the turn was altered."""

    reason, axis, step = "turn_mismatch", "turn", 5
    says = "the stored turn is not the one that was paused; nothing was consumed"


class TokenSuperseded(Refusal):
    """A newer token was minted and ended this one."""

    reason, axis, step = "token_superseded", "token", 6
    says = "a newer token ended this one; use the newest, or have it minted again"


class AlreadyAnswered(Refusal):
    """Another answer was given first."""

    reason, axis, step = "already_answered", "consumption", 6
    says = "another answer was given first; redeem the stored one with STORED (--stored)"

    def __init__(
        self, pause_id: UUID | None = None, *, at: datetime | None = None, by: str | None = None, recorded: bool = False
    ) -> None:
        super().__init__(pause_id, recorded=recorded)
        self.at, self.by = at, by

    def details(self) -> dict[str, Any]:
        """List when, and by whom."""
        return {"answered_at": self.at and self.at.isoformat(), "answered_by": self.by}


class AlreadyConsumed(Refusal):
    """Another attempt was first.

    Attributes:
        at: When the pause was consumed (UTC).
        by: Who consumed it, as far as they were named.
        own: Whether it was this very `attempt_key`, from another process; then going on is `recover`'s business.
        state: The state of the pause, when `own`.
    """

    reason, axis, step = "already_consumed", "consumption", 6
    says = "the pause was consumed by another attempt; nothing is left to redeem"

    def __init__(
        self,
        pause_id: UUID | None = None,
        *,
        at: datetime | None = None,
        by: str | None = None,
        own: bool = False,
        state: str | None = None,
        recorded: bool = False,
    ) -> None:
        super().__init__(pause_id, recorded=recorded)
        self.at, self.by, self.own, self.state = at, by, own, state

    def details(self) -> dict[str, Any]:
        """List when, by whom, and whether it was the caller's own key."""
        said = {"consumed_at": self.at and self.at.isoformat(), "consumed_by": self.by}
        return {**said, "own attempt, go on with recover; state": self.state} if self.own else said


class PauseWithdrawn(Refusal):
    """The host took the question back."""

    reason, axis, step = "withdrawn", "consumption", 6
    says = "the question was taken back"

    def __init__(
        self,
        pause_id: UUID | None = None,
        *,
        at: datetime | None = None,
        why: str | None = None,
        recorded: bool = False,
    ) -> None:
        super().__init__(pause_id, recorded=recorded)
        self.at, self.why = at, why

    def details(self) -> dict[str, Any]:
        """List when and why."""
        return {"withdrawn_at": self.at and self.at.isoformat(), "because": self.why}


class PauseLapsed(Refusal):
    """The window closed without an answer."""

    reason, axis, step = "lapsed", "consumption", 6
    says = "the window closed without an answer"


class NotAnswered(Refusal):
    """STORED was presented, and nothing is stored."""

    reason, axis, step, retryable = "not_answered", "consumption", 6, True
    says = "no answer is stored yet; present one, or wait until it is given"


class QuorumOpen(Refusal):
    """Not enough people have given the same answer. A valid one that was presented is kept.

    Attributes:
        missing: How many more people have to answer, at least.
    """

    reason, axis, step, retryable = "quorum_open", "consumption", 6, True
    says = "more people have to answer first; the answer presented is kept, and STORED redeems once enough agree"

    def __init__(self, pause_id: UUID | None = None, *, missing: int | None = None, recorded: bool = False) -> None:
        super().__init__(pause_id, recorded=recorded)
        self.missing = missing

    def details(self) -> dict[str, Any]:
        """List how many are missing, and nothing of who said what."""
        return {"missing": self.missing}


#: Every kind of refusal by its reason word. These words stand in streams, metrics and output for good.
REFUSALS: dict[str, type[Refusal]] = {
    kind.reason: kind
    for kind in (
        TokenForged, TokenExpired, TokenNotYetValid,
        ScopeMismatch, SessionMismatch, RunMismatch, CallMismatch,
        RequestMissing, RequestMismatch,
        ActorMissing, ActorNotAllowed, AskerMayNotAnswer, AnsweredTwice,
        PolicyMismatch, PresentationMissing, PresentationStale,
        InteractionUnregistered, ResponseInvalid,
        TurnMissing, TurnMismatch,
        TokenSuperseded,
        AlreadyAnswered, AlreadyConsumed, PauseWithdrawn, PauseLapsed, NotAnswered, QuorumOpen,
    )
}  # fmt: skip


class InteractionConfigurationError(LedgerError):
    """The host's mistake: something is not stated, not wired or stated twice. Nothing was read or redeemed."""


class PauseRejected(LedgerError):
    """What was to be paused cannot be carried. Nothing was stored.

    Attributes:
        name: What is wrong, a fixed word such as `duplicate_key` or `turn_too_large`.
        says: The same as a sentence.
    """

    def __init__(self, name: str, says: str) -> None:
        super().__init__(f"{name}: {says}")
        self.name, self.says = name, says


class PauseConflict(LedgerError):
    """The same round is paused already, but otherwise: another request, window, routing or set of calls.

    Attributes:
        pause_id: The pause that stands.
        differs: What differs from it.
    """

    def __init__(self, pause_id: UUID, differs: str) -> None:
        super().__init__(
            f"pause {pause_id} stands already with another {differs}; "
            "withdraw it, or pass another occurrence or idempotency_key"
        )
        self.pause_id, self.differs = pause_id, differs


class PauseClosed(LedgerError):
    """The same round was paused before and is over.

    Attributes:
        pause_id: The pause that is over.
        state: How it ended.
        next_occurrence: What to pass as `occurrence` to ask again; nothing is automatic.
    """

    _OVER: ClassVar[str] = "nothing can be done with it any more; to ask again, pause with another occurrence"
    _SAYS: ClassVar[dict[str, str]] = {
        "answered": "its answer is stored; redeem that, or withdraw the pause",
        "owed": "its turn was handed out, and whoever holds it settles it; to give it up, settle it as abandoned",
        "stalled": "recover its turn to go on with it; to give it up, settle it as abandoned",
    }

    def __init__(self, pause_id: UUID, state: str, next_occurrence: int | None = None) -> None:
        again = f"to ask again, pass occurrence={next_occurrence}"
        says = self._SAYS.get(state, self._OVER) if next_occurrence is None else again
        super().__init__(f"pause {pause_id} is {state}; {says}")
        self.pause_id, self.state, self.next_occurrence = pause_id, state, next_occurrence


class WindowOpen(LedgerError):
    """A pause cannot lapse while its window is open.

    Attributes:
        closes_at: When it may (UTC), leeway included.
    """

    def __init__(self, pause_id: UUID, closes_at: datetime) -> None:
        super().__init__(f"pause {pause_id} may still be answered until {closes_at.isoformat()}; lapse it after that")
        self.pause_id, self.closes_at = pause_id, closes_at


class RoundOpen(LedgerError):
    """The answer is kept, and the round cannot go on yet, or goes on elsewhere.

    Attributes:
        pause_id: The pause that was answered.
        open: The call ids of the round that still wait for somebody.
        continued_by_other: The round is complete and another attempt consumed it, this answer included.
    """

    def __init__(self, pause_id: UUID, open: Sequence[str] = (), *, continued_by_other: bool = False) -> None:  # noqa: A002
        if continued_by_other:
            says = "the answer counted, and another attempt continues the round"
        else:
            says = f"the answer is kept; calls still open: {', '.join(open)}"
        super().__init__(f"pause {pause_id}: {says}")
        self.pause_id, self.open, self.continued_by_other = pause_id, tuple(open), continued_by_other


class RecoveryError(LedgerError):
    """A turn cannot be taken up again, and why.

    Attributes:
        pause_id: The pause asked about.
    """

    says: ClassVar[str] = "the turn cannot be recovered"

    def __init__(self, pause_id: UUID, detail: str = "") -> None:
        super().__init__(f"pause {pause_id}: {self.says}{detail and '; '}{detail}")
        self.pause_id = pause_id


class LeaseHeld(RecoveryError):
    """A worker still holds the turn."""

    says = "a worker holds the turn; try again when its lease has ended"

    def __init__(self, pause_id: UUID, until: datetime, fence: int) -> None:
        super().__init__(pause_id, f"fence {fence}, until {until.isoformat()}")
        self.until, self.fence = until, fence


class AlreadyContinued(RecoveryError):
    """The turn went on to its end."""

    says = "the turn was continued to its end; nothing is owed"


class NotConsumed(RecoveryError):
    """Nobody has answered yet."""

    says = "the pause still waits for its answer; nothing is owed yet"


class NothingOwed(RecoveryError):
    """The round closed without any answer, or its turn was never asked for."""

    says = "nothing is owed"


class TurnAbandoned(RecoveryError):
    """The turn was given up for good."""

    says = "the turn was given up for good"


class NotRedeemable(LedgerError):
    """The string cannot be redeemed here, and why.

    Attributes:
        reason: no_pause_capability, no_decode_transport, not_a_capability_token, or switched_off (by the door).
    """

    _SAYS: ClassVar[dict[str, str]] = {
        "no_pause_capability": "no capability is wired here; wire the ledger's",
        "no_decode_transport": "the capability wired here decodes no tokens; wire the ledger's",
        "switched_off": "this surface is switched off, and no older engine is wired to take the token",
    }

    def __init__(self, reason: str) -> None:
        says = self._SAYS.get(reason, "this string is not a token of this ledger; hand it to the engine that issued it")
        super().__init__(f"{reason}: {says}")
        self.reason = reason


class StoreUnavailable(LedgerError):
    """The store could not speak: unreachable, locked, timed out, read-only, in recovery.

    Attributes:
        outcome: `not_started` when nothing was written for certain, `unknown` when the commit may have
            happened; then the same call (or attempt_key) tells.
        reached: False where no connection was to be had, so that whoever else asks at that moment hears the same.
    """

    def __init__(
        self, says: str, *, outcome: Literal["not_started", "unknown"] = "not_started", reached: bool = True
    ) -> None:
        after = (
            "nothing was written" if outcome == "not_started" else "it may have been written; repeat the call to learn"
        )
        super().__init__(f"{says} ({after})")
        self.outcome: Literal["not_started", "unknown"] = outcome
        self.reached = reached


class TransactionStale(StoreUnavailable):
    """A joined transaction of the host's cannot go on: its snapshot or its age rules it out.

    Nothing is lost: roll it back, and run it again from its beginning. Statements of the host's that came before still
    stand in it until then.
    """

    def __init__(self, says: str) -> None:
        super().__init__(f"{says}; roll the transaction back and run it again")


class ErasureHeld(LedgerError):
    """A legal hold or a retention floor keeps a round from being erased. Nothing was destroyed.

    Attributes:
        pause_id: The round's lead.
        says: What holds it.
    """

    def __init__(self, pause_id: UUID, says: str) -> None:
        super().__init__(f"pause {pause_id} is not erased: {says}")
        self.pause_id, self.says = pause_id, says


class NotErasable(LedgerError):
    """A pause was stored before its texts were encrypted: there is no key whose end would end them."""

    def __init__(self, pause_id: UUID) -> None:
        super().__init__(
            f"pause {pause_id} was stored in clear, before the ledger had a vault key; its texts end with the ledger"
        )
        self.pause_id = pause_id


class VersionConflict(LedgerError):
    """Somebody else appended to the stream first. Never leaves the capability: the attempt judges again."""


class LedgerCorrupt(LedgerError):
    """What is stored is not what was written.

    Attributes:
        stream: The stream that holds the altered row.
        version: Its version there.
        position: Its position in the log, where known.
    """

    def __init__(self, stream: UUID, version: int, says: str, *, position: int | None = None) -> None:
        where = f", position {position} of the log" if position is not None else ""
        super().__init__(
            f"stream {stream}, version {version}{where}: {says}; decide nothing on it, and compare with a backup"
        )
        self.stream, self.version, self.position = stream, version, position


class SettingsCorrupt(LedgerError):
    """What was drawn when the ledger was made is not what stands among its settings.

    Attributes:
        setting: Which: its id, its identity key, its epoch or its schema's revision.
    """

    def __init__(self, setting: str) -> None:
        super().__init__(
            f"the ledger's {setting} is not what was written; decide nothing on it, and put its row back from a backup"
        )
        self.setting = setting


class LedgerTooNew(LedgerError):
    """A fact was written by a newer version of this package; this one decides nothing on it.

    Attributes:
        topic: The stored name and revision this version does not know.
    """

    def __init__(self, topic: str, stream: UUID | None = None) -> None:
        super().__init__(
            f"{topic!r} in stream {stream} is unknown to this version; upgrade pauseledger to decide on it"
        )
        self.topic, self.stream = topic, stream
