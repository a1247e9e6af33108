"""What is done to a pause beside answering it: withdraw, lapse, reissue, settle, recover."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from . import axes as binding
from . import closing, quorum, settlement
from .axes import Axes, require_stated
from .commands import (
    LapseCommand,
    PauseReceipt,
    PresentCommand,
    Receipt,
    RecoverCommand,
    ReissueCommand,
    ResumeOutcome,
    SettleCommand,
    WithdrawCommand,
)
from .doubt import Doubt
from .envelope import Opened, token_of
from .errors import (
    InteractionConfigurationError,
    LedgerCorrupt,
    PauseClosed,
    Refusal,
    RequestMismatch,
    RequestMissing,
    StoreUnavailable,
    TokenForged,
    TurnAbandoned,
    TurnMismatch,
    VersionConflict,
)
from .facts import Abandoned, Consumed, PauseFact, Recovered
from .outcomes import Outcomes, placed
from .pause import Pause
from .pausing import LONGEST_WINDOW, mint
from .ports import Found
from .recording import Refusing
from .round import Attempt, Round
from .services import RELOADS, Services
from .settlement import Settlement
from .stamp import Stamp
from .turn import PausedTurn
from .turns import read_turn

Named = WithdrawCommand | LapseCommand | ReissueCommand | RecoverCommand | SettleCommand | PresentCommand
Decide = Callable[[Round, Pause, Stamp], list[PauseFact]]


@dataclass(slots=True)
class Managing:
    """One command on one pause, judged again after each lost race.

    `trusted` commands come from an operator or from a claim's own holder, and state no axes.
    """

    services: Services
    command: Named
    trusted: bool = False
    _opened: Opened | None = None
    _turn: PausedTurn | None = None
    _stamp: Stamp | None = field(default=None)

    async def look(self) -> Pause:
        """Find the pause named, its axes judged and its rows whole; nothing is decided on it."""
        round_, pause_id, _ = await self._decide(lambda _round, _pause, _stamp: [])
        return round_.of(pause_id)

    async def withdraw(self) -> Receipt:
        """Take the question back."""
        command = self.command
        assert isinstance(command, WithdrawCommand)  # noqa: S101 - the capability's own
        by = self.services.record_of(command.by)
        return await self._receipt(
            "withdrawn",
            lambda _, pause, stamp: closing.withdraw(pause, stamp, reason=command.reason, by=by, note=command.note),
        )

    async def lapse(self) -> Receipt:
        """Write down that the window closed."""
        return await self._receipt("lapsed", lambda round_, pause, stamp: closing.lapse(round_, pause.id, stamp))

    async def settle(self) -> Receipt:
        """Say how the owed turn ended."""
        command = self.command
        assert isinstance(command, SettleCommand)  # noqa: S101 - the capability's own
        said = Settlement(
            fence=command.fence,
            end=command.end,
            next=tuple(command.next),
            error_type=command.error_type,
            by=self.services.record_of(command.by),
        )
        return await self.settle_as(said)

    async def settle_as(self, said: Settlement) -> Receipt:
        """Say how the owed turn ended, with a cause."""
        return await self._receipt(
            "settled", lambda round_, _, stamp: settlement.settle(round_.lead, said, stamp), of_lead=True
        )

    async def reissue(self) -> PauseReceipt:
        """Mint a token again, once the fact stands."""
        command = self.command
        assert isinstance(command, ReissueCommand)  # noqa: S101 - the capability's own
        kid = self.services.seal.minting_kid()

        def decide(round_: Round, pause: Pause, stamp: Stamp) -> list[PauseFact]:
            if command.closes_in is not None and (
                type(command.closes_in) is not int or not 0 < command.closes_in <= LONGEST_WINDOW
            ):
                raise InteractionConfigurationError("closes_in must be a whole number of seconds above 0")
            closes = None if command.closes_in is None else timedelta(seconds=command.closes_in)
            if pause.is_open and round_.closed(pause, stamp.now):
                raise PauseClosed(pause.id, "lapsed")
            return closing.reissue(
                pause,
                stamp,
                kid=kid,
                ends_earlier=command.ends_earlier,
                closes_at=None if closes is None else closing.whole_second(stamp.now) + closes,
                reason=command.reason,
                by=self.services.record_of(command.by),
            )

        round_, pause_id, facts = await self._decide(decide)
        pause = round_.of(pause_id)
        closes_at = pause.token_closes_at or pause.paused.closes_at
        minted = mint(self.services, pause, closes_at)
        self.services.decided("reissued", pause, kid=minted.kid)
        return PauseReceipt(pause.id, minted.token, True, closes_at, _position(facts), round_.lead.id)

    async def recover(self) -> ResumeOutcome:
        """Take the owed or ready turn up, and hand it out."""
        command = self.command
        assert isinstance(command, RecoverCommand)  # noqa: S101 - the capability's own
        if command.reason == "forced" and not self.trusted:
            raise InteractionConfigurationError("only an operator ends a lease that still runs; see ledger.operator")
        attempt = Attempt(
            origin="ready", lease_seconds=self.services.lease_seconds, by=self.services.record_of(command.by)
        )

        async def prove(round_: Round, pause: Pause, facts: list[PauseFact]) -> None:
            if self._turn is None:
                self._turn = await read_turn(self.services, round_.lead, pause.id)
            if not isinstance(facts[-1], Abandoned):
                self._outcome(round_.after(facts), pause.id)

        def decide(round_: Round, _: Pause, stamp: Stamp) -> list[PauseFact]:
            if round_.lead.claimed_by == stamp.attempt:
                return []
            lapsing = not any(pause.answered for pause in round_.pauses)
            said = Attempt("lapse", attempt.lease_seconds, by=attempt.by) if lapsing else attempt
            return settlement.recover(round_, stamp, said, forced=command.reason == "forced")

        round_, pause_id, facts = await self._decide(decide, prove)
        if facts and isinstance(facts[-1], Abandoned):
            self.services.decided("abandoned", round_.lead)
            raise TurnAbandoned(round_.lead.id, "it was taken up too often")
        self.services.decided("recovered", round_.lead)
        # Whoever held the turn before learns from its next renewal that a newer claim has taken over.
        await self.services.hold(round_.lead.id, round_.lead.fence)
        return placed(self._outcome(round_, pause_id), _position(facts))

    # What they have in common

    def _outcome(self, round_: Round, pause_id: UUID) -> ResumeOutcome:
        """Hand out the pause named; where it holds no answer, the first of its round that does."""
        named = round_.of(pause_id)
        pause = named if named.has_answer else next((one for one in round_.pauses if one.has_answer), named)
        return Outcomes(self.services.interactions).build(round_, pause, self._turn)

    async def _receipt(self, decision: str, decide: Decide, *, of_lead: bool = False) -> Receipt:
        round_, pause_id, facts = await self._decide(decide)
        pause = round_.lead if of_lead else round_.of(pause_id)
        if facts:
            self.services.decided(decision, pause)
        return Receipt(pause_id, pause.state, _position(facts), quorum.missing(pause))

    async def _decide(
        self,
        decide: Decide,
        prove: "Callable[[Round, Pause, list[PauseFact]], object] | None" = None,
    ) -> tuple[Round, UUID, list[PauseFact]]:
        pause_id = self._pause_id()
        attempt = self.services.stamp()
        doubt = Doubt()
        for _ in range(RELOADS):
            found: Found | None = None
            stamp = self.services.stamp(attempt.attempt)
            try:
                found = await doubt.find(self.services.pauses, pause_id)
                stamp = self.services.stamp(attempt.attempt)
                round_ = self._judge(found, pause_id)
                facts = decide(round_, round_.of(pause_id), stamp)
                if prove is not None and facts:
                    await prove(round_, round_.of(pause_id), facts)  # type: ignore[misc]
                elif prove is not None and self._turn is None:
                    self._turn = await read_turn(self.services, round_.lead, pause_id)
            except Refusal as refusal:
                axes = self.command.axes or Axes(scope=None, session_id=None, run_id=None, call_id=None)
                refusing = Refusing(self.services, stamp, axes, self._opened, self.command.by)
                raise await refusing.record(refusal, found) from refusal.__cause__
            if not facts:
                return round_, pause_id, facts
            try:
                stored = await self.services.pauses.append(facts)
            except VersionConflict:
                continue
            except StoreUnavailable as gone:
                await doubt.arises(gone)
                continue
            done: list[PauseFact] = list(stored)  # type: ignore[arg-type]
            return round_.after(done), pause_id, done
        raise StoreUnavailable(f"pause {pause_id} is too busy; {RELOADS} attempts lost their race; try again")

    def _pause_id(self) -> UUID:
        """Tell which pause is meant, and hold the axes stated against its token where one is given."""
        envelope = None if isinstance(self.command, SettleCommand) else self.command.envelope
        if (self.command.pause_id is None) == (envelope is None):
            raise InteractionConfigurationError("name the pause by pause_id or by envelope, exactly one of the two")
        if not self.trusted:
            if self.command.axes is None:
                raise InteractionConfigurationError("axes must be stated: scope, session_id, run_id and call_id")
            require_stated(self.command.axes)
        if envelope is None:
            if not isinstance(self.command.pause_id, UUID):
                raise InteractionConfigurationError("pause_id must be a UUID; pass uuid.UUID(text)")
            return self.command.pause_id
        try:
            self._opened = self.services.seal.open(token_of(envelope))
        except TokenForged as forged:
            self.services.refused(forged)
            raise
        if self._opened is None:
            raise InteractionConfigurationError("the envelope holds no token of this ledger; use recognise first")
        return self._opened.pause_id

    def _judge(self, found: Found, pause_id: UUID) -> Round:
        if self._opened is not None and self.command.axes is not None:
            binding.judge(self._opened, self.command.axes)
        if found.round is None:
            raise RequestMissing(pause_id)
        pause = found.round.of(pause_id)
        if not self.trusted and self.command.axes is not None:
            judge_plain(pause, self.command.axes)
        judge_whole(found)
        return found.round


def judge_plain(pause: Pause, stated: Axes) -> None:
    """Hold the axes stated against those a pause was made with, for commands without a token; step 2's names.

    Raises:
        ScopeMismatch, SessionMismatch, RunMismatch, CallMismatch: the first that differs.
    """
    held = pause.axes
    for (_, _, refusal), name in zip(binding.BINDING, Axes.model_fields, strict=True):
        if getattr(held, name) != getattr(stated, name):
            raise refusal(pause.id)


def judge_whole(found: Found) -> None:
    """Decide nothing on rows that were altered.

    Raises:
        RequestMismatch, TurnMismatch: the altered bytes are the request's or the turn's alone.
        LedgerCorrupt: they are others, and where.
    """
    assert found.round is not None  # noqa: S101 - the caller found it
    for pause in found.round.pauses:
        if pause.paused.turn.digest != found.round.lead.paused.turn.digest:
            raise TurnMismatch(pause.id)
        altered = found.altered.get(pause.id, ())
        if not altered:
            continue
        turn = pause.paused.turn.content
        if altered == (pause.paused.originator_version,):
            if not pause.paused.request.intact:
                raise RequestMismatch(pause.id)
            if turn is not None and not turn.intact:
                raise TurnMismatch(pause.id)
        raise LedgerCorrupt(pause.id, altered[0], "the row is not what was written")


def _position(facts: list[PauseFact]) -> int | None:
    """Tell where in the log the decision stands: the claim, where one was given."""
    claims = (fact for fact in facts if isinstance(fact, (Consumed, Recovered)) and fact.claim is not None)
    fact = next(claims, facts[-1] if facts else None)
    return None if fact is None else fact.position
