"""Steps 1 to 6: an attempt is judged in order, and only then is the pause consumed, exactly once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from . import axes as binding
from . import quorum, strict_json
from .authorising import Authorising
from .axes import Axes
from .changes import changed
from .closing import whole_second
from .commands import STORED, AnswerCommand, Receipt, ResumeOutcome
from .content import Content, ContentAlteredError, ContentErasedError
from .doubt import Doubt
from .envelope import DIGEST_BYTES, Opened, token_of
from .errors import (
    AlreadyAnswered,
    AlreadyConsumed,
    InteractionConfigurationError,
    InteractionUnregistered,
    LedgerCorrupt,
    Refusal,
    RequestErased,
    RequestMismatch,
    RequestMissing,
    ResponseInvalid,
    RoundOpen,
    StoreUnavailable,
    TokenExpired,
    TokenForged,
    TokenNotYetValid,
    TurnMismatch,
    VersionConflict,
)
from .facts import Consumed, Fact, Paused, PauseFact, TokenRecord
from .interactions import VALUE_BYTES, Objection, Registered, Verdict
from .outcomes import Outcomes, placed
from .pause import Pause
from .pausing import plain
from .ports import Found
from .recording import Refusing, token_record
from .round import (
    Attempt,
    GivenAnswer,
    Round,
    answer,
    consume,
    judge_consumption,
    judge_generation,
    judge_own,
    stored_answer,
)
from .services import RELOADS, RENEWALS, Services
from .stamp import Stamp
from .turn import PausedTurn
from .turns import read_turn


@dataclass(slots=True, repr=False)
class Redemption:
    """One attempt on one token. Judged anew after each lost race, by what the streams say then."""

    services: Services
    command: AnswerCommand
    axes: Axes
    unstated: frozenset[str]
    consumes: bool
    require_turn: bool
    attempt: UUID = field(default_factory=uuid4)
    _validated: GivenAnswer | None = None
    _turn: PausedTurn | None = None
    _presented: TokenRecord | None = None
    _settled: tuple[Round, ResumeOutcome] | None = None
    _doubt: Doubt = field(default_factory=Doubt)

    async def redeem(self) -> ResumeOutcome:
        """Run the six steps and consume; see `HumanInteractionCapability.resume`."""
        done = await self._attempt()
        assert isinstance(done, ResumeOutcome)  # noqa: S101 - `consumes` decides which it is
        return done

    async def answer(self) -> Receipt:
        """Run steps 1 to 5 and keep the answer; see `HumanInteractionCapability.answer`."""
        done = await self._attempt()
        assert isinstance(done, Receipt)  # noqa: S101 - `consumes` decides which it is
        return done

    async def _attempt(self) -> ResumeOutcome | Receipt:
        opened = self._open()
        position: int | None = None
        late = False
        for reload in range(RELOADS):
            found: Found | None = None
            stamp = self.services.stamp(self.attempt)
            # Between reads the clock may be behind the store's, so a window is told not to be open by a read alone.
            again = reload > 0 or self._is_early(opened, stamp.now)
            try:
                if not again:
                    late = self._judge_token(opened, stamp.now)
                found = await self._doubt.find(self.services.pauses, opened.pause_id)
                stamp = self.services.stamp(self.attempt)
                won = await self._if_won(opened, found, stamp) if reload else None
                if won is not None:
                    return won
                # The read has corrected the clock: a process that slept may hold an old time.
                late = self._judge_token(opened, stamp.now) if again else late or self._is_late(opened, stamp.now)
                facts = await self._judge(opened, found, stamp, late=late)
            except Refusal as refusal:
                if "scope" in self.unstated and isinstance(refusal, (AlreadyAnswered, AlreadyConsumed)):
                    # Who was first is told to the same scope alone, and none was judged.
                    refusal.by = None
                by = self.command.answered_by or self.command.submitted_by
                refusing = Refusing(self.services, stamp, self.axes, opened, by)
                raise await refusing.record(refusal, found) from refusal.__cause__
            assert found.round is not None  # noqa: S101 - step 3 judged it
            done = await self._append(opened.pause_id, found.round, facts, position, stamp)
            if isinstance(done, (ResumeOutcome, Receipt)):
                return done
            position = done if done is not None else position
        raise StoreUnavailable(f"pause {opened.pause_id} is too busy; {RELOADS} attempts lost their race; try again")

    # Step 1

    def _open(self) -> Opened:
        try:
            opened = self.services.seal.open(token_of(self.command.envelope))
        except TokenForged as forged:
            self.services.refused(forged)
            raise
        if opened is None:
            raise InteractionConfigurationError("the envelope holds no token of this ledger; use recognise first")
        return opened

    def _judge_token(self, opened: Opened, now: datetime) -> bool:
        """Judge the window and the axes. Returns whether the window is over, which the streams may still excuse."""
        if self._is_early(opened, now):
            raise TokenNotYetValid(opened.pause_id)
        late = self._is_late(opened, now)
        if not late:
            binding.judge(opened, self.axes, self.unstated)
        return late

    def _is_early(self, opened: Opened, now: datetime) -> bool:
        return now.timestamp() < opened.terms.opens - self.services.leeway.total_seconds()

    def _is_late(self, opened: Opened, now: datetime) -> bool:
        return now.timestamp() >= opened.terms.closes + self.services.leeway.total_seconds()

    # Steps 3 to 6, on what the streams say

    async def _judge(self, opened: Opened, found: Found, stamp: Stamp, *, late: bool) -> list[PauseFact]:
        if late:
            await self._judge_late(opened, found)
        if found.round is None:
            raise RequestMissing(opened.pause_id)
        pause = found.round.of(opened.pause_id)
        turn_altered = _judge_request(pause, opened, found)
        await self._judge_response(pause)
        if turn_altered:
            raise TurnMismatch(pause.id)
        if self.require_turn or not self.consumes:
            if not _same_turn(found.round.lead.paused, opened):
                raise TurnMismatch(pause.id)
            if self._needs_turn(found, pause):
                await self._read_turn(found, pause)
        found.require_whole(beside=pause.id)
        return self._decide(opened, found, stamp)

    async def _judge_late(self, opened: Opened, found: Found) -> None:
        """Excuse a window that is over for a pause that holds its answer, where no other one is presented."""
        pause = found.round.of(opened.pause_id) if found.round else None
        if pause is None or not await self._presents_stored(pause):
            raise TokenExpired(opened.pause_id)
        binding.judge(opened, self.axes, self.unstated)

    async def _presents_stored(self, pause: Pause) -> bool:
        """Tell it from the answer alone: who presents it is for step 4, and steps 1 and 2 are still to be judged."""
        stored = stored_answer(pause)
        if self._kept(pause):
            return True
        if stored is None or self.command.response is STORED:
            return stored is not None
        try:
            return stored.clear() == (await self._validate(pause)).canonical
        except (ResponseInvalid, InteractionUnregistered, ContentAlteredError, ContentErasedError):
            return False

    async def _validate(self, pause: Pause) -> GivenAnswer:
        """Hold the answer against its schema and rules, once, however often the attempt judges again."""
        if self._validated is None:
            registered = registered_as_paused(self.services, pause)
            self._validated = await validate_answer(self.services, registered, pause, self.command)
        return self._validated

    async def _judge_response(self, pause: Pause) -> None:
        """Step 4: authority first, then the answer, then whether its person has given another."""
        if self.command.response is STORED:
            return
        if pause.paused.policy is not None and not self._kept(pause):
            await Authorising(self.services, self.command).judge(pause)
        try:
            given = await self._validate(pause)
        except ResponseInvalid:
            # Whoever has answered already is told so first.
            quorum.judge_once(pause, self.services.record_of(self.command.answered_by), None)
            raise
        if pause.votes and not self._kept(pause) and not pause.consumed:
            quorum.judge_once(pause, given.fields["by"], given.canonical)

    async def _read_turn(self, found: Found, pause: Pause) -> None:
        """Step 5: the turn out of its durable checkpoint, read once."""
        assert found.round is not None  # noqa: S101 - step 3 judged it
        if self._turn is None:
            self._turn = await read_turn(self.services, found.round.lead, pause.id)
            found.readable.add(pause.id)

    def _needs_turn(self, found: Found, pause: Pause) -> bool:
        """Nobody is given the turn of a pause that is over: that it can be read is enough, and one reads it for all."""
        over = pause.consumed or pause.withdrawn
        return self._kept(pause) or not over or pause.id not in found.readable

    def _decide(self, opened: Opened, found: Found, stamp: Stamp) -> list[PauseFact]:
        round_ = found.round
        assert round_ is not None  # noqa: S101 - step 3 judged it
        pause = round_.of(opened.pause_id)
        if self._kept(pause):
            if pause.consumed and not self.consumes:
                return []
            if pause.consumed and quorum.counted(pause, self.attempt):
                raise RoundOpen(pause.id, continued_by_other=True)
        else:
            judge_generation(pause, opened.terms.generation, opened.terms.epoch, found.epoch)
        judge_consumption(pause, self._key())
        answered = answer(round_, pause.id, self._given(opened), stamp)
        if not self.consumes:
            return answered
        after = round_.after(answered)
        if not answered:
            quorum.judge_complete(pause)
        consumed = consume(after, stamp, self._as_attempt(opened))
        if consumed:
            settled = after.after(consumed)
            self._settled = settled, self._outcomes().build(settled, settled.of(pause.id), self._turn)
        return [*answered, *consumed]

    def _kept(self, pause: Pause) -> bool:
        """Whether this attempt's own answer stands on the pause already."""
        stands = pause.votes or ((pause.answered,) if pause.answered else ())
        return any(answered.attempt == self.attempt for answered in stands)

    def _given(self, opened: Opened) -> GivenAnswer | None:
        if self._validated is None:
            return None
        return GivenAnswer(self._validated.canonical, {**self._validated.fields, "token": self._token(opened)})

    def _token(self, opened: Opened) -> TokenRecord | None:
        if self._presented is None:
            self._presented = token_record(self.services, opened)
        return self._presented

    def _as_attempt(self, opened: Opened) -> Attempt:
        return Attempt(
            origin="redeem",
            lease_seconds=self.services.lease_seconds,
            owed=self.require_turn,
            unstated_axes=tuple(axis for axis in binding.AXES if axis in self.unstated),
            key=self._key(),
            by=self.services.record_of(self.command.answered_by),
            token=self._token(opened),
            presented=opened.pause_id,
        )

    def _key(self) -> str | None:
        key = self.command.attempt_key
        return None if key is None else self.services.identity.tag("attempt", key)

    def _outcomes(self) -> Outcomes:
        return Outcomes(self.services.interactions)

    # Appending, and learning what became of it

    async def _append(
        self, pause_id: UUID, round_: Round, facts: list[PauseFact], position: int | None, stamp: Stamp
    ) -> ResumeOutcome | Receipt | int | None:
        """Append what was decided. An int or None means: judge again."""
        if facts:
            try:
                stored = await self.services.pauses.append(facts)
            except VersionConflict:
                return None
            except StoreUnavailable as gone:
                await self._doubt.arises(gone)
                return None
            position = _claimed_at(stored, round_) or stored[-1].position
        if self._settled is not None and any(isinstance(fact, Consumed) for fact in facts):
            settled, outcome = self._settled
            self.services.decided("consumed", settled.lead, attempt=stamp.attempt)
            await self._hold(settled.lead)
            return placed(outcome, position)
        settled = round_.after(facts)
        pause = settled.of(pause_id)
        if not self.consumes:
            self.services.decided("answered" if facts else "answered_before", pause, attempt=stamp.attempt)
            return Receipt(pause.id, pause.state, position, quorum.missing(pause))
        if facts:
            self.services.decided("answered", pause, attempt=stamp.attempt)
            return position
        waiting = settled.waiting(stamp.now)
        self.services.decided("round_open", pause, attempt=stamp.attempt)
        raise RoundOpen(pause.id, [other.paused.call_id for other in waiting])

    async def _if_won(self, opened: Opened, found: Found, stamp: Stamp) -> ResumeOutcome | None:
        """Hand out what this very attempt has won already, its acknowledgement lost."""
        if found.round is None or not self.consumes or not judge_own(found.round.lead, stamp):
            return None
        pause, lead = found.round.of(opened.pause_id), found.round.lead
        if self.require_turn:
            await self._read_turn(found, pause)
        assert lead.consumed is not None  # noqa: S101 - it was just judged to be this attempt's
        outcome = self._outcomes().build(found.round, pause, self._turn)
        # Somebody may have taken the turn up meanwhile: the newest claim is theirs, and this attempt's is the first.
        fence = lead.consumed.claim.fence if lead.consumed.claim else 0
        await self._hold(lead)
        return placed(changed(outcome, {"fence": fence}), lead.consumed.position)

    async def _hold(self, lead: Pause) -> None:
        """Have the lease run from now on, where what came between the read and the win took a good part of it."""
        consumed = lead.consumed
        if consumed is None or consumed.claim is None:
            return
        spent = (self.services.pauses.now() - consumed.at).total_seconds()
        if spent * RENEWALS > consumed.claim.lease_seconds:
            await self.services.hold(lead.id, consumed.claim.fence)


def _claimed_at(facts: Sequence[Fact], round_: Round) -> int | None:
    """Tell where in the log the lead's `Consumed` stands."""
    stands = (fact for fact in facts if isinstance(fact, Consumed) and fact.originator_id == round_.lead.id)
    return next((fact.position for fact in stands), None)


def registered_as_paused(services: Services, pause: Pause) -> Registered:
    """Find the interaction at the revision paused, its schemas unchanged.

    Raises:
        InteractionUnregistered: it is absent, or its schemas differ from those the pause was made with.
    """
    asked = pause.paused.interaction
    registered = services.interactions.of(asked.name, asked.revision)
    if registered is None:
        raise InteractionUnregistered(pause.id, rule="absent")
    if (registered.request.digest, registered.response.digest) != (asked.request_schema, asked.response_schema):
        raise InteractionUnregistered(pause.id, rule="schema_differs")
    return registered


async def validate_answer(
    services: Services, registered: Registered, pause: Pause, command: AnswerCommand
) -> GivenAnswer:
    """Hold an answer against the response schema and the cross-check, and prepare what is stored of it.

    Raises:
        ResponseInvalid: it does not fit; the rule and the place in the schema are named, never the value.
    """
    try:
        judging = (registered, pause, command.response)
        judged = _judge(*judging) if registered.prompt else await services.off_loop(_judge, *judging)
        verdict, canonical, effective = judged
    except strict_json.Unfit as unfit:
        raise ResponseInvalid(pause.id, rule=unfit.name) from None
    except Objection as objection:
        services.rule_failed(objection, pause.id)
        rule, pointer, broke = objection.rule, objection.pointer, objection.cause is not None
        raise ResponseInvalid(pause.id, rule=rule, at_pointer=pointer, broke=broke) from None
    by = services.record_of(command.answered_by)
    fields: dict[str, object] = {
        "origin": "rule" if by is not None and by.kind == "rule" else "person",
        "by": by,
        "submitted_by": services.record_of(command.submitted_by),
        "response": Content.of(canonical),
        "decision": verdict.decision,
        "shown": pause.paused.request.digest,
        "effective": None if effective is None else Content.of(effective),
        "cites": tuple(command.cites),
        "policy": pause.paused.policy,
    }
    return GivenAnswer(canonical, fields)


def _judge(registered: Registered, pause: Pause, response: Any) -> tuple[Verdict, bytes, bytes | None]:
    request = strict_json.reread(pause.paused.request.clear())
    given = strict_json.write_and_parse(plain(response), limit=VALUE_BYTES)[1]
    verdict = registered.judge(request, given)
    canonical = strict_json.canonical_of(verdict.response, limit=VALUE_BYTES)
    dispatches = verdict.decision in ("approve", "edit")
    effective = strict_json.canonical_of(verdict.effective, limit=VALUE_BYTES) if dispatches else None
    return verdict, canonical, effective


def _judge_request(pause: Pause, opened: Opened, found: Found) -> bool:
    """Step 3: hold the `Paused` row and its request against the token. Returns whether the turn alone is altered.

    Raises:
        RequestErased: there is nothing left to hold against it.
        RequestMismatch: they differ.
        LedgerCorrupt: another row of the stream is not what was written.
    """
    terms, paused = opened.terms, pause.paused
    altered = found.altered.get(pause.id, ())
    first = paused.originator_version
    whole = paused.row_digest[:DIGEST_BYTES] == terms.row_digest and first not in altered
    if paused.request.erased:
        raise RequestErased(pause.id)
    if not paused.request.intact or bytes.fromhex(paused.request.digest)[:DIGEST_BYTES] != terms.request_digest:
        raise RequestMismatch(pause.id)
    if whole:
        turn = paused.turn.content
        if altered:
            raise LedgerCorrupt(pause.id, altered[0], "the row is not what was written")
        return turn is not None and not turn.intact
    if not _says_the_same(paused, opened):
        raise RequestMismatch(pause.id)
    turn = paused.turn.content
    if _same_turn(paused, opened) and (turn is None or (turn.intact and turn.digest == paused.turn.digest)):
        raise RequestMismatch(pause.id)
    return True


def _same_turn(paused: Paused, opened: Opened) -> bool:
    """Tell whether a row names the turn that the token was minted for; of a round, the lead's row holds it."""
    return bytes.fromhex(paused.turn.digest)[:DIGEST_BYTES] == opened.terms.turn_digest


def _says_the_same(paused: Paused, opened: Opened) -> bool:
    """Tell whether the header still says what the token says, beside the turn."""
    terms = opened.terms
    return (
        paused.scope is not None
        and opened.binds("scope", *paused.scope.parts())
        and opened.binds("session", paused.session_id)
        and opened.binds("run", paused.run_id)
        and opened.binds("call", paused.call_id)
        and int(whole_second(paused.opens_at).timestamp()) == terms.opens
        and int(paused.closes_at.timestamp()) >= terms.closes
    )
