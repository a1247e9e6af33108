"""Pausing: a round is stored in one append, found again by its derived ids, and only then given tokens."""

import hashlib
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid4

from pydantic import BaseModel

from . import strict_json
from .authority import PolicyChanged, judge_asking
from .axes import AXIS_BYTES, require_stated, require_text
from .changes import restated
from .closing import whole_second, withdraw
from .commands import LapseAnswer, PauseCommand, PauseReceipt, Routing
from .content import Content, ContentAlteredError, ContentErasedError
from .doubt import Doubt
from .envelope import DIGEST_BYTES, Terms, axis_tag
from .errors import (
    InteractionConfigurationError,
    LedgerCorrupt,
    PauseClosed,
    PauseConflict,
    PauseRejected,
    StoreUnavailable,
    VersionConflict,
)
from .facts import (
    CallRecord,
    CheckpointRecord,
    Decision,
    InteractionRecord,
    OnLapse,
    Paused,
    PauseFact,
    RoundCall,
    RoundRecord,
    RoutingRecord,
    TurnRecord,
)
from .ids import candidate_months
from .interactions import VALUE_BYTES, Objection, Registered
from .pause import Pause, evolve
from .ports import Found, Minted
from .rehydration import NOT_DISPATCHED
from .round import Round
from .services import RELOADS, Services
from .stamp import Stamp
from .turn import TURN_BYTES, CheckpointReference, PausedTurn, ReservedCall, Turn
from .turns import checkpoint_store, require_bytes
from .words import is_word

#: A window may be this long at most (seconds): a hundred years.
LONGEST_WINDOW = 100 * 366 * 24 * 3600
LABELS = 16
#: Every row of a round lists its calls: so many may a message reserve, and so many be paused.
RESERVED = 256
#: A month is 16 bits of an id, counted from 2020.
MONTHS_KNOWN = range(2020, 7000)
GATED = 64
#: So many calls are named where another one was meant.
CALLS_SHOWN = 8
KEY_BYTES = 255
OCCURRENCES = 2**32
#: Turns of more bytes, or of more entries, are judged beside the event loop.
PROMPT_BYTES = 256 * 1024
PROMPT_ENTRIES = 512


@dataclass(frozen=True, slots=True)
class Gated:
    """One gated call, judged and ready to be written."""

    command: PauseCommand
    call: ReservedCall
    registered: Registered
    request: bytes = field(repr=False)
    lapse: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """A round, judged and ready to be written: its gated calls in the order of the message, and as they were given."""

    gated: tuple[Gated, ...]
    turn: PausedTurn
    turn_digest: bytes
    reference: CheckpointReference | None
    given: tuple[Gated, ...]

    @property
    def command(self) -> PauseCommand:
        """What the whole round has in common stands in each command; the lead's is taken."""
        return self.gated[0].command

    @property
    def turn_key(self) -> bytes:
        """What stands for the turn in the lead's id."""
        key = self.command.idempotency_key
        return self.turn_digest if key is None else key.encode()


@dataclass(slots=True)
class Pausing:
    """Pauses one round; see `HumanInteractionCapability.pause_round`."""

    services: Services
    _policies: Mapping[str, PolicyChanged] = field(default_factory=dict)

    async def pause(self, commands: Sequence[PauseCommand]) -> tuple[PauseReceipt, ...]:
        """Store the round, or find it again, and mint its tokens."""
        plan = await self._plan(commands)
        attempt, doubt = uuid4(), Doubt()
        for reload in range(RELOADS):
            stamp = self.services.stamp(attempt)
            months = self._months(plan, stamp.now)
            # Most rounds are new: the first append is tried without a look, and its conflict says that one is there.
            known_new = not reload and plan.command.supersedes is None
            found = await self._existing(plan, months[1:] if known_new else months, doubt)
            if found is not None:
                return await self._found_again(plan, found, stamp)
            facts = await self._write(plan, months[0], stamp)
            try:
                stored = await self.services.pauses.append(facts)
            except VersionConflict:
                continue
            except StoreUnavailable as gone:
                await doubt.arises(gone)
                continue
            paused = [evolve(None, fact) for fact in stored if isinstance(fact, Paused)]
            return self._receipts(plan, paused, existing=False)
        raise StoreUnavailable(f"the round is too busy; {RELOADS} attempts lost their race; try again")

    # Judging what came in

    async def _plan(self, commands: Sequence[PauseCommand]) -> Plan:
        if not commands:
            raise InteractionConfigurationError("a round needs at least one command")
        for command in commands:
            _judge_command(command)
        _judge_same_round(commands)
        self._policies = await self.services.policies.in_force([command.interaction for command in commands])
        turn, reference = await self._turn(commands[0].turn)
        if self._prompt(commands, turn):
            return self._judge_all(commands, turn, reference)
        return await self.services.off_loop(self._judge_all, commands, turn, reference)

    def _prompt(self, commands: Sequence[PauseCommand], turn: Turn) -> bool:
        """Tell whether judging takes less than a thread would; a host's own rules never run on the event loop."""
        known = [self.services.interactions.newest(command.interaction) for command in commands]
        size = PROMPT_BYTES if isinstance(turn.messages, (bytes, str)) else PROMPT_ENTRIES
        small = isinstance(turn.messages, Sized) and len(turn.messages) <= size
        return small and all(registered is not None and registered.prompt for registered in known)

    async def _turn(self, turn: Turn | CheckpointReference) -> tuple[Turn, CheckpointReference | None]:
        if not isinstance(turn, CheckpointReference):
            return turn, None
        _judge_reference(turn)
        text = await checkpoint_store(self.services, turn.store).read(turn)
        if text is None:
            raise PauseRejected("turn_missing", "the checkpoint named is not there; pass one that is recorded")
        require_bytes(text)
        return Turn(turn.format, text), turn

    def _judge_all(self, commands: Sequence[PauseCommand], given: Turn, reference: CheckpointReference | None) -> Plan:
        turn = self._read(given)
        calls = _calls_of(commands, turn)
        gated = [self._gate(command, call) for command, call in zip(commands, calls, strict=True)]
        digest = hashlib.sha256(turn.text).digest()
        return Plan(tuple(sorted(gated, key=lambda one: one.call.index)), turn, digest, reference, tuple(gated))

    def _read(self, turn: Turn) -> PausedTurn:
        try:
            text, entries = _text_of(turn)
        except strict_json.Unfit as unfit:
            name = "turn_too_large" if unfit.name == "too_large" else unfit.name
            raise PauseRejected(name, f"in the turn: {unfit.says}") from None
        if not isinstance(entries, list):
            raise PauseRejected("turn_broken", "the turn is not a list of entries; pass the conversation itself")
        read = self.services.transcripts.read(turn.format, text, entries)
        _judge_answerable(read)
        return read

    def _gate(self, command: PauseCommand, call: ReservedCall) -> Gated:
        registered = self.services.interactions.newest(command.interaction)
        if registered is None:
            known = self.services.interactions.names()
            raise InteractionConfigurationError(
                f"no interaction named {command.interaction!r} is registered, but {', '.join(known)}; register it"
                " before pausing (LedgerSettings.interactions, or --interactions)"
            )
        request, decision, lapse = _judge_contents(self.services, registered, command)
        judge_asking(command, self._policies.get(command.interaction), decision)
        return Gated(command, call, registered, request, lapse)

    # Finding it again

    async def _existing(self, plan: Plan, months: Sequence[int], doubt: Doubt) -> Found | None:
        for month in months:
            found = await doubt.find(self.services.pauses, self._lead_id(plan, month, plan.command.occurrence))
            if found.round is not None:
                return found
        return None

    def _months(self, plan: Plan, now: datetime) -> tuple[int, ...]:
        started = plan.command.run_started
        return candidate_months(started or now, given=started is not None)

    def _lead_id(self, plan: Plan, month: int, occurrence: int) -> UUID:
        axes = plan.command.axes
        assert axes.scope and axes.session_id and axes.run_id  # noqa: S101, PT018 - judged to be stated
        return self.services.identity.lead(
            month,
            axes.scope,
            session_id=axes.session_id,
            run_id=axes.run_id,
            turn_key=plan.turn_key,
            occurrence=occurrence,
        )

    async def _found_again(self, plan: Plan, found: Found, stamp: Stamp) -> tuple[PauseReceipt, ...]:
        round_ = found.round
        assert round_ is not None  # noqa: S101 - the caller found it
        found.require_whole()
        if _is_over(round_, stamp.now):
            state = round_.lead.state if round_.lead.state != "open" else "lapsed"
            raise PauseClosed(round_.lead.id, state, await self._next_occurrence(plan, stamp))
        by_call = {pause.paused.call_id: pause for pause in round_.pauses}
        if set(by_call) != {one.call.address for one in plan.gated}:
            raise PauseConflict(round_.lead.id, "set of calls")
        for one in plan.gated:
            self._judge_same(one, by_call[one.call.address])
        mine = round_.lead.paused.attempt == stamp.attempt
        return self._receipts(plan, round_.pauses, existing=not mine)

    def _judge_same(self, one: Gated, pause: Pause) -> None:
        paused = pause.paused
        asked = one.registered.interaction
        try:
            same_request = paused.request.clear() == one.request
        except ContentErasedError:
            raise PauseClosed(pause.id, "erased") from None
        except ContentAlteredError:
            raise LedgerCorrupt(pause.id, paused.originator_version, "the stored request was altered") from None
        if (asked.name, asked.revision) != (paused.interaction.name, paused.interaction.revision):
            raise PauseConflict(pause.id, "interaction")
        if not same_request:
            raise PauseConflict(pause.id, "request")
        window = timedelta(seconds=one.command.closes_in - one.command.opens_in)
        if paused.closes_at - paused.opens_at != window:
            raise PauseConflict(pause.id, "window length")
        routing, held = self._routing(one.command.routing), paused.routing
        if any(getattr(routing, name) != getattr(held, name) for name in ("queue", "priority", "groups", "assignees")):
            raise PauseConflict(pause.id, "routing")
        if paused.policy is not None and not self.services.policies.stands(pause):
            raise PauseConflict(pause.id, "policy")

    async def _next_occurrence(self, plan: Plan, stamp: Stamp) -> int | None:
        for occurrence in range(plan.command.occurrence + 1, min(plan.command.occurrence + RELOADS, OCCURRENCES)):
            ids = [self._lead_id(plan, month, occurrence) for month in self._months(plan, stamp.now)]
            found = [await self.services.pauses.find(lead) for lead in ids]
            if all(one.round is None or not _is_over(one.round, stamp.now) for one in found):
                return occurrence
        return None

    # Writing it

    async def _write(self, plan: Plan, month: int, stamp: Stamp) -> list[PauseFact]:
        lead_id = self._lead_id(plan, month, plan.command.occurrence)
        ids = [lead_id, *(self.services.identity.sibling(lead_id, one.call.address) for one in plan.gated[1:])]
        gated = {one.call.index: pause for one, pause in zip(plan.gated, ids, strict=True)}
        calls = tuple(
            RoundCall(call_id=call.address, pause=gated.get(call.index), done=call.done) for call in plan.turn.calls
        )
        round_ = RoundRecord(id=lead_id, lead=lead_id, calls=calls)
        turn = _turn_record(plan)
        siblings = turn if len(ids) == 1 else restated(turn, {"content": None})
        facts: list[PauseFact] = [
            self._paused(one, pause, stamp, round_, turn if at == 0 else siblings)
            for at, (one, pause) in enumerate(zip(plan.gated, ids, strict=True))
        ]
        return [*facts, *await self._superseded(plan, lead_id, stamp)]

    def _paused(self, one: Gated, pause: UUID, stamp: Stamp, round_: RoundRecord, turn: TurnRecord) -> Paused:
        command, asked = one.command, one.registered
        begins = whole_second(stamp.now)
        lapse = None if one.lapse is None else Content.of(one.lapse)
        governing = self._policies.get(command.interaction)
        return Paused(
            originator_id=pause,
            originator_version=1,
            predecessor=bytes(32),
            ledger=stamp.ledger,
            pause=pause,
            scope=command.axes.scope,
            at=stamp.now,
            attempt=stamp.attempt,
            writer=stamp.writer,
            session_id=command.axes.session_id or "",
            run_id=command.axes.run_id or "",
            call_id=one.call.address,
            call=_call_record(one.call),
            interaction=_interaction_record(
                asked.interaction.name, asked.interaction.revision, asked.request.digest, asked.response.digest
            ),
            request=Content.of(one.request),
            turn=turn,
            round=round_,
            opens_at=begins + timedelta(seconds=command.opens_in),
            closes_at=begins + timedelta(seconds=command.closes_in),
            on_lapse=_CLOSES if lapse is None else OnLapse(action="answer", response=lapse),
            occurrence=command.occurrence,
            supersedes=command.supersedes,
            generation=0,
            routing=self._routing(command.routing),
            asked_by=self.services.record_of(command.asked_by),
            agent=command.agent,
            labels=dict(command.labels),
            policy=None if governing is None else governing.policy,
        )

    def _routing(self, routing: Routing) -> RoutingRecord:
        if routing == _TO_NOBODY:
            return _ROUTED_TO_NOBODY
        people = {"groups": list(routing.groups), "assignees": list(routing.assignees)}
        named = bool(routing.groups or routing.assignees)
        return RoutingRecord(
            queue=routing.queue,
            priority=routing.priority,
            groups=tuple(self.services.identity.tag("group", group) for group in routing.groups),
            assignees=tuple(self.services.identity.tag("actor", person) for person in routing.assignees),
            people=Content.of(strict_json.canonical(people, limit=VALUE_BYTES), kind="person") if named else None,
        )

    async def _superseded(self, plan: Plan, lead_id: UUID, stamp: Stamp) -> list[PauseFact]:
        """Take back every question of the round that this one supersedes, in the same append."""
        old = plan.command.supersedes
        if old is None:
            return []
        found = await self.services.pauses.find(old)
        if found.round is None:
            raise PauseRejected("supersedes_unknown", "the pause to supersede is not in this store")
        found.require_whole()
        named = found.round.of(old).paused
        if (named.scope, named.session_id) != (plan.command.axes.scope, plan.command.axes.session_id):
            raise PauseRejected("supersedes_foreign", "the pause to supersede is of another scope or session")
        if found.round.lead.consumed:
            raise PauseClosed(old, found.round.lead.state)
        facts: list[PauseFact] = []
        for pause in found.round.pauses:
            if pause.is_open or pause.has_answer:
                by = self.services.record_of(plan.command.asked_by)
                facts += withdraw(pause, stamp, reason="superseded", superseded_by=lead_id, by=by)
        return facts

    # The tokens

    def _receipts(self, plan: Plan, pauses: Sequence[Pause], *, existing: bool) -> tuple[PauseReceipt, ...]:
        by_call = {pause.paused.call_id: pause for pause in pauses}
        return tuple(self._receipt(by_call[one.call.address], existing=existing) for one in plan.given)

    def _receipt(self, pause: Pause, *, existing: bool) -> PauseReceipt:
        closes_at = pause.paused.closes_at
        minted = mint(self.services, pause, closes_at)
        self.services.decided("found_again" if existing else "paused", pause, kid=minted.kid)
        return PauseReceipt(pause.id, minted.token, existing, closes_at, pause.paused.position, pause.lead_id)


def mint(services: Services, pause: Pause, closes_at: datetime) -> Minted:
    """Mint a token of a stored pause's newest generation."""
    return services.seal.mint(_terms_of(pause, services.pauses.epoch(), closes_at))


def _terms_of(paused_: Pause, epoch: int, closes_at: datetime) -> Terms:
    paused, pause = paused_.paused, paused_.id
    assert paused.scope is not None  # noqa: S101 - pausing requires it
    return Terms(
        pause_id=pause,
        row_digest=paused.row_digest[:DIGEST_BYTES],
        request_digest=bytes.fromhex(paused.request.digest)[:DIGEST_BYTES],
        turn_digest=bytes.fromhex(paused.turn.digest)[:DIGEST_BYTES],
        scope=axis_tag("scope", pause, *paused.scope.parts()),
        session=axis_tag("session", pause, paused.session_id),
        run=axis_tag("run", pause, paused.run_id),
        call=axis_tag("call", pause, paused.call_id),
        opens=int(paused.opens_at.timestamp()),
        closes=int(closes_at.timestamp()),
        generation=paused_.generation,
        epoch=epoch,
    )


def _judge_command(command: PauseCommand) -> None:
    if not isinstance(command, PauseCommand):
        raise InteractionConfigurationError(f"a round is made of PauseCommands, not of {type(command).__name__}")
    require_stated(command.axes)
    for name in ("opens_in", "closes_in", "occurrence"):
        if not isinstance(getattr(command, name), int) or isinstance(getattr(command, name), bool):
            of = "" if name == "occurrence" else " of seconds"
            raise PauseRejected("window_invalid", f"{name} must be a whole number{of}")
    if not 0 <= command.opens_in < command.closes_in <= LONGEST_WINDOW:
        raise PauseRejected("window_invalid", f"want 0 <= opens_in < closes_in <= {LONGEST_WINDOW} seconds")
    if not 0 <= command.occurrence < OCCURRENCES:
        raise PauseRejected("occurrence_invalid", f"want a whole number from 0 to {OCCURRENCES - 1}")
    started = command.run_started
    if started is not None and (started.tzinfo is None or started.year not in MONTHS_KNOWN):
        raise PauseRejected("run_started_invalid", "want an aware datetime from 2020 to 7000")
    if (
        command.idempotency_key is not None
        and not 0 < len(_utf8("idempotency_key", command.idempotency_key)) <= KEY_BYTES
    ):
        raise PauseRejected("idempotency_key_invalid", f"want 1 to {KEY_BYTES} bytes")
    words = [*command.labels, *command.labels.values(), *([command.routing.queue] if command.routing.queue else [])]
    if command.agent is not None:
        words += [word for word in (command.agent.name, command.agent.version, command.agent.model) if word]
    if len(command.labels) > LABELS or not all(map(is_word, words)):
        raise PauseRejected(
            "word_invalid",
            f"labels (at most {LABELS}), queue and agent are words of up to 64 letters, digits and _.:/-",
        )
    for person in (*command.routing.groups, *command.routing.assignees):
        if not isinstance(person, str) or not person.strip() or len(_utf8("routing", person)) > AXIS_BYTES:
            raise PauseRejected("routing_invalid", f"groups and assignees are ids of 1 to {AXIS_BYTES} bytes")


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise PauseRejected("lone_surrogate", f"{name} holds half a surrogate pair; pass valid Unicode") from None


def _judge_same_round(commands: Sequence[PauseCommand]) -> None:
    def common(command: PauseCommand) -> tuple[Any, ...]:
        axes = command.axes.model_copy(update={"call_id": ""})
        return (axes, command.occurrence, command.idempotency_key, command.run_started, command.supersedes)

    first = commands[0]
    for other in commands[1:]:
        if common(other) != common(first) or not (other.turn is first.turn or other.turn == first.turn):
            raise InteractionConfigurationError(
                "the commands of a round share scope, session, run, turn, occurrence, idempotency_key, run_started "
                "and supersedes; only the call, the interaction and its request differ"
            )


def _calls_of(commands: Sequence[PauseCommand], turn: PausedTurn) -> list[ReservedCall]:
    if len(turn.calls) > RESERVED or len(commands) > GATED:
        raise PauseRejected("too_many_calls", f"a message may reserve {RESERVED} calls, and {GATED} may be paused")
    for reserved in turn.calls:
        if max(len(reserved.address.encode()), len((reserved.tool or "").encode())) > AXIS_BYTES:
            raise PauseRejected("id_too_long", f"a call's id or tool name has more than {AXIS_BYTES} bytes")
    by_address = {call.address: call for call in turn.calls}
    calls = []
    for command in commands:
        call = by_address.get(command.axes.call_id or "")
        if call is None:
            known = ", ".join(map(repr, list(by_address)[:CALLS_SHOWN])) + ", ..." * (len(by_address) > CALLS_SHOWN)
            raise PauseRejected(
                "call_unknown", f"the turn's last assistant message does not reserve the call stated, but {known}"
            )
        if call.done:
            raise PauseRejected("call_done", "the turn holds a result of the call stated already")
        if call in calls:
            raise PauseRejected("call_twice", "two commands of the round state the same call")
        calls.append(call)
    return calls


def _judge_reference(where: CheckpointReference) -> None:
    """A reference stands in a header, which holds ids and words alone."""
    if not is_word(where.store):
        raise PauseRejected("checkpoint_invalid", "the checkpoint's store is a word of letters, digits and _.:/-")
    for part in (where.locator, where.version):
        if not 0 < len(require_text("the checkpoint", part)) <= AXIS_BYTES or not part.isprintable():
            raise PauseRejected("checkpoint_invalid", f"its locator and version are printable, 1 to {AXIS_BYTES} bytes")


def _judge_answerable(turn: PausedTurn) -> None:
    """Prove that every open call can be given a text: that is what each gets that nobody answers or lets through."""
    try:
        turn.fold({call.index: NOT_DISPATCHED for call in turn.calls if not call.done})
    except InteractionConfigurationError as impossible:
        raise PauseRejected(
            "call_unanswerable", f"a call of the turn takes no text as its result: {impossible}"
        ) from None


def _text_of(turn: Turn) -> tuple[bytes, Any]:
    if not isinstance(turn.messages, (bytes, str, list, tuple)):
        raise PauseRejected("turn_broken", "the turn's messages are a list of entries, or its JSON as bytes or text")
    if isinstance(turn.messages, (bytes, str)):
        entries = strict_json.parse(turn.messages, limit=TURN_BYTES)
        return turn.messages.encode() if isinstance(turn.messages, str) else bytes(turn.messages), entries
    return strict_json.write_and_parse(list(turn.messages), limit=TURN_BYTES)


def _judge_contents(
    services: Services, registered: Registered, command: PauseCommand
) -> tuple[bytes, Decision | None, bytes | None]:
    try:
        given = strict_json.write_and_parse(plain(command.request), limit=VALUE_BYTES)[1]
        request = registered.ask(given)
        text = strict_json.canonical_of(request, limit=VALUE_BYTES)
    except strict_json.Unfit as unfit:
        name = "request_too_large" if unfit.name == "too_large" else unfit.name
        raise PauseRejected(name, f"in the request: {unfit.says}") from None
    except Objection as objection:
        services.rule_failed(objection)
        raise PauseRejected("request_invalid", f"the request does not fit its interaction: {objection}") from None
    if command.on_lapse is None:
        return text, None, None
    return text, *_judge_lapse(services, registered, request, command.on_lapse)


def _judge_lapse(
    services: Services, registered: Registered, request: Any, on_lapse: LapseAnswer
) -> tuple[Decision, bytes]:
    try:
        given = strict_json.write_and_parse(plain(on_lapse.response), limit=VALUE_BYTES)[1]
        verdict = registered.judge(request, given)
        return verdict.decision, strict_json.canonical_of(verdict.response, limit=VALUE_BYTES)
    except strict_json.Unfit as unfit:
        raise PauseRejected(unfit.name, f"in the lapse answer: {unfit.says}") from None
    except Objection as objection:
        services.rule_failed(objection)
        raise PauseRejected(
            "lapse_answer_invalid", f"the lapse answer does not fit its interaction: {objection}"
        ) from None


def plain(value: Any) -> Any:
    """Take a pydantic model as the JSON it stands for, what was left out left out."""
    return value.model_dump(mode="json", exclude_unset=True, by_alias=True) if isinstance(value, BaseModel) else value


# Parts of a fact that many facts have in common are made once.
_CLOSES = OnLapse()
_TO_NOBODY, _ROUTED_TO_NOBODY = Routing(), RoutingRecord()


@lru_cache(1024)
def _call_record(call: ReservedCall) -> CallRecord:
    return CallRecord(index=call.index, origin="derived" if call.id is None else "provider", tool=call.tool)


@lru_cache(1024)
def _interaction_record(name: str, revision: int, request: str, response: str) -> InteractionRecord:
    return InteractionRecord(name=name, revision=revision, request_schema=request, response_schema=response)


def _turn_record(plan: Plan) -> TurnRecord:
    if plan.reference is not None:
        where = plan.reference
        return TurnRecord(
            format=where.format,
            digest=plan.turn_digest.hex(),
            checkpoint=CheckpointRecord(store=where.store, locator=where.locator, version=where.version),
        )
    content = Content.of(plan.turn.text)
    return TurnRecord(format=plan.turn.format, digest=content.digest, content=content)


def _is_over(round_: Round, now: datetime) -> bool:
    """Tell whether a round has nothing left to answer, to redeem or to recover into."""
    if round_.lead.consumed:
        return True
    ready_by_lapse = any(
        pause.is_open and round_.closed(pause, now) and pause.paused.on_lapse.action == "answer"
        for pause in round_.pauses
    )
    return not (round_.waiting(now) or round_.has_answer or ready_by_lapse)
