"""A hypothesis state machine drives every command with several actors, rounds, clocks and zombies against a model."""

import asyncio
import contextlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pauseledger import (
    ASK_USER,
    NOT_ANSWERED,
    NOT_DISPATCHED,
    STORED,
    Actor,
    AlreadyConsumed,
    AnswerCommand,
    Axes,
    LapseAnswer,
    LapseCommand,
    Ledger,
    LedgerError,
    LedgerSettings,
    PauseClosed,
    PauseCommand,
    RecoverCommand,
    Refusal,
    ReissueCommand,
    ResumeCommand,
    RoundOpen,
    Routing,
    Scope,
    SettleCommand,
    TokenForged,
    Turn,
    WithdrawCommand,
    open_ledger,
    prepare,
)
from pauseledger.infrastructure import pauses, refusals, wiring
from pauseledger.infrastructure.clock import StoreClock
from pauseledger.infrastructure.memory import MemoryRecorder
from pauseledger.infrastructure.sqlite import SQLiteRecorder
from pauseledger.infrastructure.store import LedgerRecorder, Snapshot

#: A failing run is made as short as it can be, for five minutes at most, before it is told.
pytestmark = pytest.mark.timeout(600)

LEASE = 60
BEGINNING = datetime(2026, 3, 5, 12, 0, tzinfo=UTC)
CALLS = ("c0", "c1", "c2", "c3")
GATED = (("c1",), ("c3", "c0"), ("c0", "c1", "c3"))
RUNS = {"r0": "s0", "r1": "s0", "r2": "s1"}
SETTLED_ENDS = ("finished", "paused_again", "handed_over")
OWN_STREAM = 16


# What is controlled: the store's time, and what happens just before an insert


class Clock:
    def __init__(self) -> None:
        self.now = BEGINNING


class Governed(LedgerRecorder):
    """A recorder whose time is the test's, and which lets others act between a load and its append."""

    clock: Clock
    before_insert: Callable[[set[UUID]], None] | None = None

    def load(self, streams: Any) -> Snapshot:
        return replace(super().load(streams), now=self.clock.now)

    def renew(self, pause: UUID, fence: int, seconds: float) -> bool:
        # Half a second less, so that the real time this takes never decides whether a whole second has passed.
        ahead = (self.clock.now - datetime.now(UTC)).total_seconds()
        return super().renew(pause, fence, seconds + ahead - 0.5)

    def insert_events(self, stored_events: Any, **more: Any) -> Any:
        if self.before_insert is not None:
            self.before_insert({UUID(str(row.originator_id)) for row in stored_events if "refused" in row.topic})
        return super().insert_events(stored_events, **more)


class GovernedMemory(Governed, MemoryRecorder):
    pass


class GovernedSQLite(Governed, SQLiteRecorder):
    pass


# What may be done


@dataclass(frozen=True)
class Advance:
    seconds: int


@dataclass(frozen=True)
class DrawEpoch:
    pass


@dataclass(frozen=True)
class Ask:
    run: str
    occurrence: int
    calls: tuple[str, ...]
    question: int = 0
    window: int = 300
    opens_in: int = 0
    lapse: str | None = None
    queue: str | None = None
    supersedes: tuple[str, int, str] | None = None

    @property
    def round(self) -> tuple[str, int]:
        return (self.run, self.occurrence)


@dataclass(frozen=True)
class Redeem:
    token: int
    response: str
    mode: str
    wrong: str | None = None
    key: str | None = None


@dataclass(frozen=True)
class Manage:
    pause: tuple[str, int, str]
    what: str
    wrong: str | None = None
    token: int | None = None
    ends_earlier: bool = False
    closes_in: int | None = None
    fence: int = 1
    end: str = "finished"


Step = Advance | DrawEpoch | Ask | Redeem | Manage


# The model, written from the contract


@dataclass
class Token:
    pause: tuple[str, int, str]
    generation: int
    epoch: int
    opens: int
    closes: int
    text: str = ""


@dataclass
class Gate:
    key: tuple[str, int, str]
    opens: int
    closes: int
    lapse: str | None
    answered: str | None = None
    lapsed: bool = False
    withdrawn: bool = False
    consumed: bool = False
    consumed_by: str | None = None
    generation: int = 0
    ends_below: int = 0
    token_closes: int | None = None
    own_refusals: int = 0
    refused: list[str] = field(default_factory=list)
    id: UUID | None = None

    @property
    def call(self) -> str:
        return self.key[2]

    @property
    def open(self) -> bool:
        return not (self.answered or self.lapsed or self.withdrawn or self.consumed)

    @property
    def stored(self) -> str | None:
        return self.answered or (self.lapse if self.lapsed else None)

    @property
    def holds_answer(self) -> bool:
        return self.stored is not None and not self.withdrawn


@dataclass
class Asked:
    ask: Ask
    gates: list[Gate]
    fence: int = 0
    claimed_at: int = 0
    renewed: tuple[int, int] | None = None
    recoveries: int = 0
    stalled: bool = False
    continued: bool = False
    abandoned: bool = False

    @property
    def lead(self) -> Gate:
        return self.gates[0]

    def state(self, gate: Gate) -> str:
        if gate is self.lead and self.fence:
            words = (("continued", self.continued), ("abandoned", self.abandoned), ("stalled", self.stalled))
            return next((word for word, holds in words if holds), "owed")
        words = (
            ("withdrawn", gate.withdrawn),
            ("consumed", gate.consumed),
            ("answered", gate.answered is not None),
            ("lapsed", gate.lapsed),
        )
        return next((word for word, holds in words if holds), "open")

    def told(self) -> str:
        by_call = {gate.call: gate for gate in self.gates}
        said = {
            call: "skipped" if call not in by_call else (by_call[call].stored if by_call[call].holds_answer else None)
            for call in CALLS
        }
        return ",".join(f"{call}={text or 'nobody'}" for call, text in said.items())


class Model:
    """Predicts the outcome of each command, and leaves each pause as the command should.

    `interlopers` act between what a command read and what it appends: at each of its appends the next one acts first,
    and the append conflicts where both go to the same stream. Then the command is judged again.
    """

    def __init__(self, leeway: int) -> None:
        self.leeway = leeway
        self.now = 0
        self.epoch = 0
        self.rounds: dict[tuple[str, int], Asked] = {}
        self.tokens: list[Token] = []
        self.interlopers: list[list[Step]] = []
        self.outcomes: list[str] = []
        self.touched: set[Any] = set()

    def play(self, step: Step, interlopers: list[list[Step]]) -> str:
        self.interlopers, self.outcomes, self.touched = [list(some) for some in interlopers], [], set()
        return self._play(step)

    def gate(self, key: tuple[str, int, str]) -> Gate:
        return next(gate for gate in self.rounds[key[:2]].gates if gate.key == key)

    def _play(self, step: Step) -> str:
        match step:
            case Advance():
                self.now += step.seconds
                return "later"
            case DrawEpoch():
                self.epoch += 1
                return "drawn"
            case Ask():
                return self._ask(step)
            case Redeem():
                return self._redeem(step)
        return self._manage(step)

    def _insert(self, *streams: Any) -> bool:
        if self.interlopers:
            acting, rest = self.interlopers[0], self.interlopers[1:]
            before, self.interlopers, self.touched = self.touched, [], set()
            self.outcomes += [self._play(step) for step in acting]
            meanwhile, self.interlopers, self.touched = self.touched, rest, before | self.touched
            if meanwhile & set(streams):
                return False
        self.touched |= set(streams)
        return True

    def _refuse(self, gate: Gate, reason: str) -> str:
        if not (gate.open and gate.own_refusals < OWN_STREAM and self._insert(gate.key)):
            # How often it is tried there is nobody's business: others act before the first try alone.
            self._insert(("refusals", gate.key))
            self.touched.add(("refusals", gate.key))
        else:
            gate.own_refusals += 1
        gate.refused.append(reason)
        return f"refused {reason}"

    def _closed(self, gate: Gate) -> bool:
        return self.now >= gate.closes + self.leeway

    def _waiting(self, round_: Asked) -> list[Gate]:
        return [gate for gate in round_.gates if gate.open and not self._closed(gate)]

    def _over(self, round_: Asked) -> bool:
        ready = any(gate.open and self._closed(gate) and gate.lapse for gate in round_.gates)
        answered = any(gate.holds_answer for gate in round_.gates)
        return round_.lead.consumed or not (self._waiting(round_) or answered or ready)

    # Pausing

    def _ask(self, ask: Ask) -> str:
        """The first append is tried without a look; where the round stands already, its conflict says so."""
        if ask.round in self.rounds:
            self._insert()
            return self._ask_again(ask, self.rounds[ask.round])
        while True:
            gates = [
                Gate((*ask.round, call), self.now + ask.opens_in, self.now + ask.window, ask.lapse)
                for call in sorted(ask.calls)
            ]
            superseded = []
            if ask.supersedes is not None:
                old = self.rounds[ask.supersedes[:2]]
                if RUNS[old.ask.run] != RUNS[ask.run]:
                    return "PauseRejected supersedes_foreign"
                if old.lead.consumed:
                    return f"PauseClosed {old.state(old.lead)} None"
                superseded = [gate for gate in old.gates if gate.open or gate.holds_answer]
            if not self._insert(*(gate.key for gate in (*gates, *superseded))):
                continue
            for gate in superseded:
                gate.withdrawn = True
            self.rounds[ask.round] = Asked(ask, gates)
            self._mint(ask, gates)
            return "paused"

    def _ask_again(self, ask: Ask, standing: Asked) -> str:
        if self._over(standing):
            later = range(ask.occurrence + 1, ask.occurrence + 9)
            free = next(
                n for n in later if (ask.run, n) not in self.rounds or not self._over(self.rounds[(ask.run, n)])
            )
            state = standing.state(standing.lead)
            return f"PauseClosed {'lapsed' if state == 'open' else state} {free}"
        was = standing.ask
        same = (set(was.calls), was.question, was.window - was.opens_in, was.queue)
        if same != (set(ask.calls), ask.question, ask.window - ask.opens_in, ask.queue):
            return "PauseConflict"
        self._mint(ask, standing.gates)
        return "existing"

    def _mint(self, ask: Ask, gates: list[Gate]) -> None:
        by_call = {gate.call: gate for gate in gates}
        for gate in (by_call[call] for call in ask.calls):
            closes = gate.closes if gate.token_closes is None else gate.token_closes
            self.tokens.append(Token(gate.key, gate.generation, self.epoch, gate.opens, closes))

    # Redeeming

    def _redeem(self, step: Redeem) -> str:
        kept = False
        while True:
            now, token = self.now, self.tokens[step.token]
            round_, gate = self.rounds[token.pause[:2]], self.gate(token.pause)
            if not (kept and gate.consumed):
                refused = self._objection(step, token, gate, kept=kept)
                if refused == "already_consumed" and step.key is not None and gate.consumed_by == step.key:
                    return f"own {round_.state(gate)}"
                if refused:
                    return self._refuse(gate, refused)
            if kept and gate.consumed:
                return "RoundOpen continued by other"
            fresh = step.response != "STORED" and gate.stored is None
            waiting = [other for other in self._waiting(round_) if not (fresh and other is gate)]
            if step.mode == "answer" or (waiting and fresh):
                if fresh and not self._insert(gate.key):
                    continue
                gate.answered = step.response if fresh else gate.answered
                if step.mode == "answer":
                    return f"receipt {round_.state(gate)}"
                kept = True
                continue
            if waiting:
                return f"RoundOpen {' '.join(other.call for other in waiting)}"
            if not self._insert(*(other.key for other in round_.gates)):
                continue
            gate.answered = step.response if fresh else gate.answered
            self._consume(round_, step.key, now, owed=step.mode == "prepare")
            return f"won {round_.fence} {round_.told()}"

    def _objection(self, step: Redeem, token: Token, gate: Gate, *, kept: bool) -> str | None:
        if self.now < token.opens - self.leeway:
            return "token_not_yet_valid"
        presents_stored = gate.stored is not None and step.response in ("STORED", gate.stored)
        if self.now >= token.closes + self.leeway and not presents_stored:
            return "token_expired"
        if step.wrong:
            return f"{step.wrong}_mismatch"
        if step.response == "invalid":
            return "response_invalid"
        # An answer that this very attempt has just had kept stands, whatever becomes of its token meanwhile.
        if not kept and (token.generation < gate.ends_below or token.epoch != self.epoch):
            return "token_superseded"
        if gate.withdrawn:
            return "withdrawn"
        if gate.consumed:
            return "already_consumed"
        if step.response == "STORED" and gate.stored is None:
            return "lapsed" if gate.lapsed else "not_answered"
        if step.response in ("STORED", gate.stored):
            return None
        if gate.answered:
            return "already_answered"
        return "lapsed" if gate.lapsed else None

    def _consume(self, round_: Asked, key: str | None, now: int, *, owed: bool) -> None:
        """Consume at the moment that was read, though time went on until the append."""
        for gate in round_.gates:
            gate.lapsed = gate.lapsed or gate.open
            gate.consumed, gate.consumed_by = True, key
        if owed:
            round_.fence, round_.claimed_at = 1, now

    # Everything else

    def _manage(self, step: Manage) -> str:
        round_, gate = self.rounds[step.pause[:2]], self.gate(step.pause)
        if step.what == "renew":
            overtaken = round_.renewed is not None and round_.renewed[0] > step.fence
            if overtaken or round_.continued or round_.abandoned:
                return "renewed False"
            round_.renewed = (step.fence, self.now + LEASE)
            return "renewed True"
        while True:
            if step.wrong:
                return self._refuse(gate, f"{step.wrong}_mismatch")
            done = getattr(self, f"_{step.what}")(step, round_, gate)
            if done is not None:
                return str(done)

    def _withdraw(self, step: Manage, round_: Asked, gate: Gate) -> str | None:
        if not gate.withdrawn:
            if gate.consumed or (gate.lapsed and not gate.lapse):
                return f"PauseClosed {round_.state(gate)} None"
            if not self._insert(gate.key):
                return None
            gate.withdrawn = True
        return f"receipt {round_.state(gate)}"

    def _lapse(self, step: Manage, round_: Asked, gate: Gate) -> str | None:
        if not (gate.lapsed and not gate.withdrawn and not gate.consumed):
            if not gate.open:
                return f"PauseClosed {round_.state(gate)} None"
            if not self._closed(gate):
                return "WindowOpen"
            if not self._insert(gate.key):
                return None
            gate.lapsed = True
        return f"receipt {round_.state(gate)}"

    def _reissue(self, step: Manage, round_: Asked, gate: Gate) -> str | None:
        if gate.withdrawn or gate.consumed or (gate.lapsed and not gate.lapse):
            return f"PauseClosed {round_.state(gate)} None"
        if gate.open and self._closed(gate):
            return "PauseClosed lapsed None"
        now, epoch = self.now, self.epoch
        if not self._insert(gate.key):
            return None
        gate.generation += 1
        gate.ends_below = gate.generation if step.ends_earlier else gate.ends_below
        gate.token_closes = gate.closes if step.closes_in is None else min(gate.closes, now + step.closes_in)
        self.tokens.append(Token(gate.key, gate.generation, epoch, gate.opens, gate.token_closes))
        return "reissued"

    def _settle(self, step: Manage, round_: Asked, gate: Gate) -> str | None:
        if not round_.fence:
            return "NothingOwed" if round_.lead.consumed else "NotConsumed"
        if not 1 <= step.fence <= round_.fence:
            return "InteractionConfigurationError"
        newest, finishes = step.fence == round_.fence, step.end in SETTLED_ENDS
        over = round_.continued or round_.abandoned
        changes = not round_.continued if finishes else newest and not over
        if step.end in ("stalled", "released") and round_.stalled:
            changes = False
        if changes:
            if not self._insert(round_.lead.key):
                return None
            round_.continued = round_.continued or finishes
            round_.abandoned = round_.abandoned or step.end == "abandoned"
            round_.stalled = round_.stalled or step.end in ("stalled", "released")
        return f"receipt {round_.state(round_.lead)}"

    def _recover(self, step: Manage, round_: Asked, gate: Gate) -> str | None:
        if round_.continued:
            return "AlreadyContinued"
        if round_.abandoned:
            return "TurnAbandoned"
        if round_.lead.consumed:
            return self._take_up(step, round_) if round_.fence else "NothingOwed"
        waiting = self._waiting(round_)
        if waiting:
            answered = any(other.holds_answer for other in round_.gates)
            return f"RoundOpen {' '.join(other.call for other in waiting)}" if answered else "NotConsumed"
        if not any(other.holds_answer or (other.open and other.lapse) for other in round_.gates):
            return "NothingOwed"
        now = self.now
        if not self._insert(*(other.key for other in round_.gates)):
            return None
        self._consume(round_, None, now, owed=True)
        round_.renewed = (round_.fence, self.now + LEASE)
        return f"won {round_.fence} {round_.told()}"

    def _take_up(self, step: Manage, round_: Asked) -> str | None:
        until = round_.claimed_at + LEASE
        if round_.renewed is not None and round_.renewed[0] == round_.fence:
            until = max(until, round_.renewed[1])
        if not (round_.stalled or self.now >= until or step.end == "forced"):
            return "LeaseHeld"
        now = self.now
        if not self._insert(round_.lead.key):
            return None
        if round_.recoveries == 5:
            round_.abandoned = True
            return "TurnAbandoned"
        round_.recoveries, round_.fence = round_.recoveries + 1, round_.fence + 1
        round_.claimed_at, round_.stalled = now, False
        round_.renewed = (round_.fence, self.now + LEASE)
        return f"won {round_.fence} {round_.told()}"


# The real thing


def turn_of(run: str) -> Turn:
    calls = [{"id": call, "type": "function", "function": {"name": "ask", "arguments": "{}"}} for call in CALLS]
    return Turn(
        "openai-chat",
        [{"role": "user", "content": f"go on, {run}"}, {"role": "assistant", "content": None, "tool_calls": calls}],
    )


def axes_of(key: tuple[str, int, str], wrong: str | None = None) -> Axes:
    run, _, call = key
    true = {"scope": "acme", "session": RUNS[run], "run": run, "call": call}
    said = {axis: "other" if axis == wrong else value for axis, value in true.items()}
    return Axes(
        scope=Scope(tenant_id=said["scope"]), session_id=said["session"], run_id=said["run"], call_id=said["call"]
    )


def request_of(question: int) -> Any:
    return {"questions": [{"question": f"Which {question}?", "options": [{"label": "A"}, {"label": "B"}]}]}


def response_of(word: str) -> Any:
    if word == "STORED":
        return STORED
    return {"answers": [{"question_id": "q1", "selections": ["Z" if word == "invalid" else word]}]}


def spelled(texts: dict[str, str | None]) -> str:
    words = {NOT_ANSWERED: "nobody", NOT_DISPATCHED: "skipped"}
    return ",".join(
        f"{call}={words.get(text or '') or (text or '').removeprefix('q1: ')}" for call, text in texts.items()
    )


class Real:
    """Performs the same steps on a ledger, and says what came of it in the model's words."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.tokens: list[str] = []
        self.ids: dict[tuple[str, int, str], UUID] = {}

    async def perform(self, ledger: Ledger, clock: Clock, step: Step) -> str:
        try:
            match step:
                case Advance():
                    clock.now += timedelta(seconds=step.seconds)
                    return "later"
                case DrawEpoch():
                    ledger.recorder.draw_epoch()
                    return "drawn"
                case Ask():
                    return await self._ask(ledger, step)
                case Redeem():
                    return await self._redeem(ledger, step)
                case Manage():
                    return await self._manage(ledger, step)
        except Refusal as refusal:
            if isinstance(refusal, AlreadyConsumed) and refusal.own:
                assert not refusal.recorded
                return f"own {refusal.state}"
            assert refusal.recorded, refusal
            return f"refused {refusal.reason}"
        except RoundOpen as open_:
            return "RoundOpen continued by other" if open_.continued_by_other else f"RoundOpen {' '.join(open_.open)}"
        except PauseClosed as closed:
            return f"PauseClosed {closed.state} {closed.next_occurrence}"
        except LedgerError as error:
            name = f" {error.name}" if hasattr(error, "name") else ""
            return f"{type(error).__name__}{name}"

    async def _ask(self, ledger: Ledger, ask: Ask) -> str:
        commands = [
            PauseCommand(
                interaction=ASK_USER,
                request=request_of(ask.question),
                turn=turn_of(ask.run),
                axes=axes_of((*ask.round, call)),
                opens_in=ask.opens_in,
                closes_in=ask.window,
                on_lapse=None if ask.lapse is None else LapseAnswer(response_of(ask.lapse)),
                routing=Routing(queue=ask.queue),
                occurrence=ask.occurrence,
                supersedes=None if ask.supersedes is None else self.ids[ask.supersedes],
            )
            for call in ask.calls
        ]
        receipts = await ledger.capability.pause_round(commands)
        for call, receipt in zip(ask.calls, receipts, strict=True):
            self.tokens.append(receipt.token)
            assert self.ids.setdefault((*ask.round, call), receipt.pause_id) == receipt.pause_id
        assert {receipt.round for receipt in receipts} == {self.ids[(*ask.round, min(ask.calls))]}
        assert len({receipt.existing for receipt in receipts}) == 1
        return "existing" if receipts[0].existing else "paused"

    async def _redeem(self, ledger: Ledger, step: Redeem) -> str:
        token = self.model.tokens[step.token]
        capability = ledger.capability
        assert capability.decode_token is not None
        envelope = capability.decode_token(self.tokens[step.token])
        assert envelope is not None
        axes, response = axes_of(token.pause, step.wrong), response_of(step.response)
        said = {"scope": axes.scope, "session_id": axes.session_id, "run_id": axes.run_id, "call_id": axes.call_id}
        if step.mode == "answer":
            receipt = await capability.answer(AnswerCommand(envelope, response, **said, answered_by=Actor("maria")))  # type: ignore[arg-type]
            return f"receipt {receipt.state}"
        if step.mode == "resume":
            command = ResumeCommand(envelope, response, **said, answered_by=Actor("ben"), attempt_key=step.key)  # type: ignore[arg-type]
            outcome = await capability.resume(command)
            assert outcome.turn is None
            return f"won {outcome.fence} {spelled({seen.interrupt_id: seen.text for seen in outcome.observations})}"
        turn = await prepare(capability, envelope=envelope, response=response, attempt_key=step.key, **said)  # type: ignore[arg-type]
        return self._won(turn, token.pause)

    def _won(self, turn: Any, key: tuple[str, int, str]) -> str:
        lead = next(gate for gate in self.model.rounds[key[:2]].gates)
        assert turn.idempotency_key == str(self.ids[lead.key])
        before, after = turn.history[:2], turn.history[2:]
        assert list(before) == turn_of(key[0]).messages
        assert all(entry["role"] == "tool" for entry in after)
        return f"won {turn.fence} {spelled({entry['tool_call_id']: entry['content'] for entry in after})}"

    async def _manage(self, ledger: Ledger, step: Manage) -> str:
        capability, pause_id, axes = ledger.capability, self.ids[step.pause], axes_of(step.pause, step.wrong)
        named: dict[str, Any] = {"pause_id": pause_id, "axes": axes}
        if step.token is not None:
            assert capability.decode_token is not None
            named = {"envelope": capability.decode_token(self.tokens[step.token]), "axes": axes}
        match step.what:
            case "withdraw":
                return f"receipt {(await capability.withdraw(WithdrawCommand(**named, note='no need'))).state}"
            case "lapse":
                return f"receipt {(await capability.lapse(LapseCommand(**named))).state}"
            case "reissue":
                receipt = await capability.reissue(
                    ReissueCommand(**named, ends_earlier=step.ends_earlier, closes_in=step.closes_in)
                )
                self.tokens.append(receipt.token)
                return "reissued"
            case "settle":
                command = SettleCommand(pause_id, axes, step.fence, step.end, error_type="Boom")  # type: ignore[arg-type]
                return f"receipt {(await capability.settle(command)).state}"
            case "renew":
                lead = self.model.rounds[step.pause[:2]].lead
                return f"renewed {await capability.renew(self.ids[lead.key], step.fence)}"
        if step.end == "forced":
            operator = ledger.operator(Actor("root"))
            turn = await operator.recover(RecoverCommand(pause_id=pause_id, reason="forced"))
        else:
            turn = await capability.recover(RecoverCommand(**named, by=Actor("worker")))
        return self._won(turn, step.pause)


# Rows, read without any code of the package


@dataclass(frozen=True)
class Row:
    version: int
    topic: str
    header: dict[str, Any]


def rows_of(recorder: LedgerRecorder) -> dict[UUID, list[Row]]:
    streams: dict[UUID, list[Row]] = {}
    for row in recorder.walk():
        state = bytes(row.state)
        length = int.from_bytes(state[36:40], "big")
        header = json.loads(state[40 : 40 + length])
        stream = row.originator_id if isinstance(row.originator_id, UUID) else UUID(row.originator_id)
        streams.setdefault(stream, []).append(Row(row.originator_version, row.topic.partition("@")[0][6:], header))
    return streams


SHIFTS = (1, 1, 10, 10, 20, 20, 40, 60, 61, 250, 700)
#: What a rule does is drawn evenly from a seed: drawn piece by piece it would be small and alike too often.
SEEDS = st.integers(0, 2**32 - 1)


class PauseMachine(RuleBasedStateMachine):
    """Every rule performs one command on one of several ledgers over one store; others may act in its midst."""

    leeway = 0

    def recorders(self, folder: Path) -> list[Governed]:
        shared = GovernedMemory()
        return [shared, shared, shared]

    def __init__(self) -> None:
        super().__init__()
        self.held = contextlib.ExitStack()
        folder = Path(self.held.enter_context(tempfile.TemporaryDirectory()))
        self.clock, self.model = Clock(), Model(self.leeway)
        self.real = Real(self.model)
        # Every conflict is the store's to tell here: the model knows nothing of what a process remembers.
        self.held.enter_context(mock.patch.object(pauses, "REMEMBERED", 0))
        self.held.enter_context(mock.patch.object(refusals, "REMEMBERED", 0))
        # Others act in the middle of an append, on a loop of their own while this one stands still.
        self.held.enter_context(mock.patch.object(pauses.EventSourcedPauses, "stay", lambda _: None))
        self.held.enter_context(mock.patch.object(StoreClock, "now", lambda _: self.clock.now))
        self.runner = self.held.enter_context(asyncio.Runner())
        self.stores = self.recorders(folder)
        self.ledgers: list[Ledger] = []
        self.rules_run = 0
        options = LedgerSettings(keys_directory=folder / "keys", leeway=self.leeway, lease=LEASE, threads=1)
        for store in self.stores:
            store.clock = self.clock
            with mock.patch.object(wiring, "open_recorder", lambda *_, store=store, **__: store):
                ledger = open_ledger("memory:", options)
                self.runner.run(ledger.__aenter__())
            self.ledgers.append(ledger)

    def teardown(self) -> None:
        try:
            for key in self.real.ids:
                self.runner.run(self.ledgers[0].story(self.real.ids[key]))
            for ledger in self.ledgers:
                self.runner.run(ledger.__aexit__(None, None, None))
        finally:
            self.held.close()

    # Performing a step, and others within it

    def step(self, step: Step, at: int, interlopers: list[list[Step]]) -> None:
        main, aside = self.ledgers[at % 2], self.ledgers[2]
        store, waiting, happened, tried = self.stores[at % 2], list(interlopers), [], set()

        def act(refused: set[UUID]) -> None:
            beside = refused - set(self.real.ids.values())
            if not waiting or beside & tried:
                return
            tried.update(beside)
            acting = waiting.pop(0)
            store.before_insert = None
            try:
                for one in acting:
                    happened.append(asyncio.run(self.real.perform(aside, self.clock, one)))
            finally:
                store.before_insert = act

        # Each of the two keeps its own list of tokens; the real one is read by index, so the model plays first.
        expected = self.model.play(step, interlopers)
        store.before_insert = act
        try:
            got = self.runner.run(self.real.perform(main, self.clock, step))
        finally:
            store.before_insert = None
        assert (got, happened) == (expected, self.model.outcomes), (step, interlopers)

    def chance(self, seed: int) -> Random:
        # Hypothesis repeats seeds: the place in the run makes them differ.
        self.rules_run += 1
        return Random(f"{seed}, {self.rules_run}")

    def pick_token(self, chance: Random, near: tuple[str, int] | None = None) -> int:
        """Tokens of the round last asked, or of the round `near`, more often than others."""
        count = len(self.real.tokens)
        close = [at for at, token in enumerate(self.model.tokens) if token.pause[:2] == near]
        if close and chance.random() < 0.7:
            return chance.choice(close)
        return chance.randrange(count) if chance.random() < 0.3 else max(0, count - chance.randint(1, 4))

    def redeem_of(self, chance: Random, near: tuple[str, int] | None = None) -> Redeem:
        response = chance.choice(("A", "A", "A", "A", "B", "B", "STORED", "STORED", "invalid"))
        mode = chance.choice(("answer", "answer", "prepare", "prepare", "prepare", "resume"))
        key = chance.choice((None, None, "k1", "k2")) if mode != "answer" else None
        return Redeem(self.pick_token(chance, near), response, mode, self.wrong_of(chance), key)

    def wrong_of(self, chance: Random) -> str | None:
        return chance.choice(("scope", "session", "run", "call")) if chance.random() < 0.08 else None

    def manage_of(self, chance: Random, *kinds: str, near: tuple[str, int] | None = None) -> Manage:
        what, token = chance.choice(kinds), self.pick_token(chance, near)
        pause = self.model.tokens[token].pause
        fence = self.model.rounds[pause[:2]].fence + chance.choice((0, 0, 0, 0, -1, -1, -2, 1))
        end = "finished"
        if what == "settle":
            end = chance.choice((*SETTLED_ENDS, "abandoned", *("stalled", "released") * 4))
        if what == "recover":
            end = chance.choice(("plain", "plain", "forced"))
        plain = what in ("settle", "renew") or end == "forced" or chance.random() < 0.5
        return Manage(
            pause,
            what,
            None if what == "renew" or end == "forced" else self.wrong_of(chance),
            None if plain else token,
            ends_earlier=chance.random() < 0.5,
            closes_in=chance.choice((None, None, 50)),
            fence=max(fence, 1 if what == "renew" else 0),
            end=end,
        )

    def ask_of(self, chance: Random) -> Ask:
        run = chance.choice(tuple(RUNS))
        free = next(n for n in range(99) if (run, n) not in self.model.rounds)
        same_session = [key for key in self.real.ids if RUNS[key[0]] == RUNS[run]]
        known = same_session if chance.random() < 0.9 else list(self.real.ids)
        occurrence = free if chance.random() < 0.8 else chance.randint(0, free)
        superseding = bool(known) and occurrence == free and chance.random() < 0.3
        return Ask(
            run,
            occurrence,
            chance.choice(GATED),
            window=chance.choice((60, 300, 3000)),
            opens_in=chance.choice((0, 0, 0, 0, 30)),
            lapse=chance.choice((None, None, "B")),
            supersedes=chance.choice(known) if superseding else None,
        )

    def act(self, step: Step, at: int, chance: Random) -> None:
        """Perform a step while others act within it, mostly on the same round."""
        near = self.round_of(step)
        self.step(step, at, [self.acting_of(chance, near) for _ in range(chance.choice((0, 0, 1, 1, 2, 3)))])

    def round_of(self, step: Step) -> tuple[str, int] | None:
        match step:
            case Ask():
                return step.supersedes[:2] if step.supersedes else step.round
            case Redeem():
                return self.model.tokens[step.token].pause[:2]
            case Manage():
                return step.pause[:2]
        return None

    def acting_of(self, chance: Random, near: tuple[str, int] | None) -> list[Step]:
        steps: list[Step] = []
        if chance.random() < 0.15:
            steps.append(Advance(chance.choice(SHIFTS)))
        if chance.random() < 0.02:
            steps.append(DrawEpoch())
        for _ in range(chance.choice((1, 1, 1, 2))):
            kinds = ("withdraw", "lapse", "reissue", "settle", "settle", "recover", "recover", "renew")
            redeems = chance.random() < 0.7
            steps.append(self.redeem_of(chance, near) if redeems else self.manage_of(chance, *kinds, near=near))
        return steps

    # The rules

    @initialize(ask=st.sampled_from(GATED), window=st.sampled_from((300, 3000)))
    def begins(self, ask: tuple[str, ...], window: int) -> None:
        self.step(Ask("r0", 0, ask, window=window), 0, [])

    @precondition(lambda self: len(self.model.rounds) < 8)
    @rule(seed=SEEDS)
    def pauses(self, seed: int) -> None:
        chance = self.chance(seed)
        self.act(self.ask_of(chance), seed, chance)

    @rule(seed=SEEDS, differs=st.sampled_from(("", "", "question", "window", "calls", "queue", "lapse")))
    def pauses_again(self, seed: int, differs: str) -> None:
        chance = self.chance(seed)
        ask = replace(chance.choice(list(self.model.rounds.values())).ask, supersedes=None)
        changes: dict[str, Any] = {
            "question": {"question": 1},
            "window": {"window": ask.window + 1},
            "calls": {"calls": next(calls for calls in GATED if calls != ask.calls)},
            "queue": {"queue": "night"},
            "lapse": {"lapse": "A"},
        }
        self.act(replace(ask, **changes.get(differs, {})), seed, chance)

    @rule(seed=SEEDS)
    def redeems(self, seed: int) -> None:
        chance = self.chance(seed)
        self.act(self.redeem_of(chance), seed, chance)

    @rule(seed=SEEDS)
    def redeems_again(self, seed: int) -> None:
        self.redeems(seed)

    @rule(seed=SEEDS)
    def manages(self, seed: int) -> None:
        chance = self.chance(seed)
        kinds = ("withdraw", "lapse", "lapse", "reissue", "recover", "settle")
        self.act(self.manage_of(chance, *kinds), seed, chance)

    @precondition(lambda self: any(asked.fence for asked in self.model.rounds.values()))
    @rule(seed=SEEDS)
    def goes_on(self, seed: int) -> None:
        chance = self.chance(seed)
        owed = [asked for asked in self.model.rounds.values() if asked.fence]
        live = [asked for asked in owed if not (asked.continued or asked.abandoned)]
        asked = chance.choice(live if live and chance.random() < 0.8 else owed)
        step = self.manage_of(chance, "settle", "settle", "recover", "recover", "recover", "renew")
        fence = max(1, asked.fence - chance.choice((0, 0, 0, 1)))
        step = replace(step, pause=chance.choice(asked.gates).key, token=None, fence=fence)
        self.act(step, seed, chance)

    @rule(seconds=st.sampled_from(SHIFTS))
    def time_passes(self, seconds: int) -> None:
        self.step(Advance(seconds), 0, [])

    @rule(seed=SEEDS)
    def epoch_is_drawn(self, seed: int) -> None:
        if self.chance(seed).random() < 0.05:
            self.step(DrawEpoch(), 0, [])

    @rule(seed=SEEDS)
    def forges(self, seed: int) -> None:
        chance = self.chance(seed)
        token = chance.choice(self.real.tokens)
        place = chance.randrange(4, len(token))
        letter = chance.choice([one for one in "abcXYZ019" if one != token[place]])
        decode = self.ledgers[0].capability.decode_token
        assert decode is not None
        with pytest.raises(TokenForged):
            decode(token[:place] + letter + token[place + 1 :])

    # What holds after every step

    @invariant()
    def states_agree(self) -> None:
        for asked in self.model.rounds.values():
            found = self.runner.run(self.ledgers[0].pauses.find(self.real.ids[asked.lead.key])).round
            assert found is not None
            assert [pause.id for pause in found.pauses] == [self.real.ids[gate.key] for gate in asked.gates]
            assert [pause.state for pause in found.pauses] == [asked.state(gate) for gate in asked.gates]

    @invariant()
    def rows_hold(self) -> None:
        streams = rows_of(self.stores[0])
        for rows in streams.values():
            assert [row.version for row in rows] == list(range(1, len(rows) + 1))
            moments = [row.header["at"] for row in rows]
            assert moments == sorted(moments), "time went back within a stream"
        for asked in self.model.rounds.values():
            self._round_holds(asked, streams)

    def _round_holds(self, asked: Asked, streams: dict[UUID, list[Row]]) -> None:
        ids = [self.real.ids[gate.key] for gate in asked.gates]
        lives = [streams[one] for one in ids]
        said = [Counter(row.topic for row in rows) for rows in lives]
        assert {counts["consumed"] for counts in said} in ({0}, {1})
        assert all(counts["paused"] == 1 and counts["answered"] <= 1 for counts in said)
        assert all(counts["continued"] <= 1 for counts in said)
        settling = {"continued", "stalled", "recovered", "abandoned"}
        assert not any(settling & counts.keys() for counts in said[1:]), "a settlement beside the lead's stream"
        claims = [row.header["claim"] for row in lives[0] if row.header.get("claim")]
        assert [claim["fence"] for claim in claims] == list(range(1, asked.fence + 1))
        for rows in lives:
            closes = next((row.version for row in rows if row.topic in ("withdrawn", "lapsed", "consumed")), len(rows))
            answers = next((row.version for row in rows if row.topic == "answered"), len(rows))
            late = [row.topic for row in rows[closes:] if row.topic in ("answered", "refused")]
            assert not late, "a fact after its pause was closed"
            assert not any(row.topic == "refused" for row in rows[min(answers, closes) :])
        self._refusals_hold(asked, streams)

    def _refusals_hold(self, asked: Asked, streams: dict[UUID, list[Row]]) -> None:
        refused: dict[str, Counter[str]] = {}
        for rows in streams.values():
            for row in rows:
                if row.topic == "refused":
                    refused.setdefault(row.header["pause"], Counter())[row.header["reason"]] += 1
        for gate in asked.gates:
            pause = self.real.ids[gate.key]
            own = sum(row.topic == "refused" for row in streams[pause])
            assert own == gate.own_refusals <= OWN_STREAM
            assert refused.get(str(pause), Counter()) == Counter(gate.refused)


class SQLiteMachine(PauseMachine):
    """The same on a file that several connections share, with clocks that may differ by a few seconds."""

    leeway = 5

    def recorders(self, folder: Path) -> list[Governed]:
        return [GovernedSQLite(folder / "ledger.db") for _ in range(3)]


def bounded(examples: int, steps: int) -> settings:
    asked = os.environ.get("PAUSELEDGER_EXAMPLES")
    return settings(
        max_examples=int(asked) if asked else examples,
        stateful_step_count=steps,
        derandomize=asked is None,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


TestInMemory = PauseMachine.TestCase
TestInMemory.settings = bounded(40, 40)
TestInSQLite = SQLiteMachine.TestCase
TestInSQLite.settings = bounded(8, 30)
