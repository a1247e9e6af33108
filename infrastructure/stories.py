"""Stories that tests tell: a store and its processes, a standard turn, pausing and redeeming, and pure decisions."""
# ruff: noqa: S101 - a story asserts

import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import UUID, uuid4

import psycopg
from eventsourcing.persistence import StoredEvent

from ..domain.axes import Axes, Scope
from ..domain.commands import STORED, AnswerCommand, PauseCommand, PauseReceipt, ResumeCommand
from ..domain.content import Content
from ..domain.continuation import recognise
from ..domain.envelope import Envelope
from ..domain.errors import LedgerError, Refusal
from ..domain.facts import (
    CallRecord,
    Fact,
    InteractionRecord,
    OnLapse,
    Paused,
    PauseFact,
    RoundCall,
    RoundRecord,
    RoutingRecord,
    TurnRecord,
)
from ..domain.interactions import APPROVAL, ASK_USER
from ..domain.kernel_resume import ResumedTurn, prepare
from ..domain.pause import Pause, evolve, replay
from ..domain.stamp import Stamp
from ..domain.turn import Turn
from .clock import StoreClock
from .keys import KeyFile
from .mapper import FRONT, LENGTH_BYTES, NO_PREDECESSOR, FactMapper, Registry, stored_digest
from .memory import MemoryRecorder
from .settings import LedgerSettings
from .store import LedgerRecorder
from .vault import Vault
from .wiring import MEMORY, Ledger, open_recorder, sqlite_path

FORMAT = "openai-chat"
SCOPE = Scope(tenant_id="acme")
#: Asks for one of two names, or another.
QUESTION = {
    "questions": [{"question": "Whose name?", "options": [{"label": "Anne"}, {"label": "Bob"}], "allow_other": True}]
}
ANSWER = {"answers": [{"question_id": "q1", "selections": ["Anne"]}]}
OTHER_ANSWER = {"answers": [{"question_id": "q1", "selections": ["Bob"]}]}
#: Fits no question: its label was not offered.
WRONG_ANSWER = {"answers": [{"question_id": "q1", "selections": ["Zed"]}]}
#: What `ANSWER` reads as, on its call.
ANSWER_TEXT = "q1: Anne"
REFUSED = "pause.refused@1"


class Row(NamedTuple):
    """A row as the store holds it, by direct SQL."""

    position: int
    stream: UUID
    version: int
    topic: str
    state: bytes

    @property
    def header(self) -> dict[str, Any]:
        """The fact's header, as it is stored."""
        end = FRONT + int.from_bytes(self.state[FRONT - LENGTH_BYTES : FRONT], "big")
        found: dict[str, Any] = json.loads(self.state[FRONT:end])
        return found


class MovedClock(StoreClock):
    """A store's clock that a story moves on."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = timedelta(0)

    def now(self) -> datetime:
        """Tell the store's time, moved on."""
        return super().now() + self.ahead


class StoryLedger(Ledger):
    """A ledger as one process has it, whose time a story can move on."""

    def __init__(self, stage: "Stage", settings: LedgerSettings, registry: Registry | None) -> None:
        super().__init__(stage.url, settings, registry)
        self._stage = stage
        self._moved = MovedClock()

    def _store(self) -> LedgerRecorder:
        return self._stage.memory or super()._store()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.pauses._clock = self._moved  # noqa: SLF001 - no public ledger takes another clock than its store's
        return self

    def wait(self, **later: float) -> None:
        """Let time pass for this process, as `timedelta` counts it. Renewals of leases go by the store's own clock."""
        self._moved.ahead += timedelta(**later)

    def go_to(self, moment: datetime) -> None:
        """Let it be a certain moment."""
        self._moved.ahead += moment - self._moved.now()


class Stage:
    """One store, its keys, and as many ledgers on it as there are processes in the story.

    Args:
        url: The store; tables of PostgreSQL must be there. `memory:` lives as long as the stage.
        keys: A folder for the keys, made where it is missing.
    """

    def __init__(self, url: str, keys: Path) -> None:
        self.url = url
        self.keys = keys
        self.memory = MemoryRecorder() if url == MEMORY else None
        KeyFile(keys).create()

    def ledger(self, *, registry: Registry | None = None, **settings: Any) -> StoryLedger:
        """Give a ledger to open: another process on the same store and keys."""
        return StoryLedger(self, LedgerSettings(keys_directory=self.keys, **settings), registry)

    def rows(self, stream: UUID | None = None) -> list[Row]:
        """Read every row, or those of one stream, past everything this package would read them with."""
        if self.memory is not None:
            found = [
                Row(at, UUID(str(row.originator_id)), row.originator_version, row.topic, row.state)
                for at, row in enumerate(self.memory._stored_events, 1)  # noqa: SLF001 - the raw rows, past every reader
            ]
        else:
            columns = "originator_id, originator_version, topic, state"
            position = "rowid" if self.url.startswith("sqlite") else "notification_id"
            found = [
                Row(at, UUID(str(named)), version, topic, bytes(state))
                for at, named, version, topic, state in self.sql(f"SELECT {position}, {columns} FROM {self._table}")  # noqa: S608 - constants
            ]
        return [row for row in sorted(found) if stream is None or row.stream == stream]

    def count(self, topic: str | None = None, stream: UUID | None = None) -> int:
        """Count raw rows."""
        return len([row for row in self.rows(stream) if topic is None or row.topic == topic])

    def overwrite(self, row: Row, state: bytes) -> None:
        """Put other bytes in a row's place, as somebody who owns the database and drops its guards."""
        if self.memory is not None:
            held = self.memory._stored_events  # noqa: SLF001 - the raw rows, past every guard
            held[row.position - 1] = replace(held[row.position - 1], state=state)
            return
        place, named = ("?", row.stream.hex) if self.url.startswith("sqlite") else ("%s", str(row.stream))
        with self._unguarded("no_update"):
            self.sql(
                f"UPDATE {self._table} SET state = {place}"  # noqa: S608 - constants
                f" WHERE originator_id = {place} AND originator_version = {place}",
                (state, named, row.version),
            )

    @contextmanager
    def _unguarded(self, guard: str) -> Iterator[None]:
        """Drop a guard; where the ledger would not open without it, put it back."""
        if self.url.startswith("sqlite"):
            self.sql(f"DROP TRIGGER IF EXISTS stored_events_{guard}")
            yield
        else:
            self.sql(f"ALTER TABLE {self._table} DISABLE TRIGGER stored_events_append_only")
            yield
            self.sql(f"ALTER TABLE {self._table} ENABLE ALWAYS TRIGGER stored_events_append_only")

    def alter(self, row: Row, altered: Callable[[bytes], bytes]) -> None:
        """Change a row's segments, as they are stored, and nothing else: its digests do not fit any more."""
        start = FRONT + int.from_bytes(row.state[FRONT - LENGTH_BYTES : FRONT], "big")
        self.overwrite(row, row.state[:start] + altered(row.state[start:]))

    def forge(self, row: Row, changed: Callable[[Any], Fact]) -> None:
        """Change a row's fact, and make every digest of it anew: a forger who knows the format and has the keys."""
        recorder = self.memory or open_recorder(self.url, LedgerSettings())
        pause = UUID(row.header["pause"])
        vault = Vault(self.ledger_id, KeyFile(self.keys).load_vault(), recorder.vault)
        vault.learn([pause], recorder.vault([pause]))
        mapper = FactMapper(self.ledger_id, vault=vault)
        before = stored_digest(self.rows(row.stream)[row.version - 2].state) if row.version > 1 else NO_PREDECESSOR
        fact = mapper.decode(StoredEvent(row.stream, row.version, row.topic, row.state), before).fact
        [(forged, _)] = mapper.encode([changed(fact)], vault.sealing([pause]))
        self.overwrite(row, forged.state)
        if recorder is not self.memory:
            recorder.close()

    @property
    def ledger_id(self) -> UUID:
        """The ledger's id, as its rows name it."""
        return UUID(self.rows()[0].header["ledger"])

    def forget(self) -> None:
        """Lose every row, as a backup does that is too old."""
        if self.memory is not None:
            self.memory._stored_events.clear()  # noqa: SLF001 - past every guard
            self.memory._stored_events_index.clear()  # noqa: SLF001 - the same
            self.memory._vault.clear()  # noqa: SLF001 - the same
            return
        with self._unguarded("no_delete"):
            self.sql(f"DELETE FROM {self._table}")  # noqa: S608 - constants
        if self.url.startswith("sqlite"):
            self.sql("DROP TRIGGER IF EXISTS vault_no_delete")
            self.sql("DELETE FROM vault")
        else:
            vault = self._table.replace("stored_events", "vault")
            self.sql(f"ALTER TABLE {vault} DISABLE TRIGGER vault_guard")
            self.sql(f"DELETE FROM {vault}")  # noqa: S608 - constants
            self.sql(f"ALTER TABLE {vault} ENABLE ALWAYS TRIGGER vault_guard")

    def sql(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Say one statement to the database itself, as its owner."""
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(sqlite_path(self.url))) as file, file:
                return file.execute(statement, values).fetchall()
        with psycopg.connect(self.url, autocommit=True) as connection:
            said = connection.execute(statement.encode(), values)
            return said.fetchall() if said.description else []

    @property
    def _table(self) -> str:
        return "stored_events" if self.url.startswith("sqlite") else "pauseledger.stored_events"


def turn(*calls: str | Mapping[str, Any], done: Sequence[str] = (), said: str = "Hello") -> Turn:
    """Make a turn of the OpenAI chat format that stopped at these calls; those in `done` have their result."""
    made = [call if isinstance(call, Mapping) else call_of(call) for call in calls or ("call_1",)]
    return Turn(
        FORMAT,
        [
            {"role": "user", "content": said},
            {"role": "assistant", "content": None, "tool_calls": made},
            *({"role": "tool", "tool_call_id": call, "content": "done before"} for call in done),
        ],
    )


def call_of(call_id: str, tool: str = "ask_user", arguments: str = "{}") -> dict[str, Any]:
    """Make one call of the OpenAI chat format."""
    return {"id": call_id, "type": "function", "function": {"name": tool, "arguments": arguments}}


def axes(call_id: str | None = "call_1", **others: Any) -> Axes:
    """State the standard axes, or others."""
    return Axes(**{"scope": SCOPE, "session_id": "session-1", "run_id": "run-1", "call_id": call_id, **others})


def ask(call_id: str = "call_1", **fields: Any) -> PauseCommand:
    """Ask the standard question at one call of the standard turn."""
    standard: dict[str, Any] = {"interaction": ASK_USER, "request": QUESTION, "turn": turn(), "axes": axes(call_id)}
    return PauseCommand(**{**standard, **fields})


def approve(call_id: str = "call_1", *, arguments: Mapping[str, Any] | None = None, **fields: Any) -> PauseCommand:
    """Ask whether one call of the standard turn may run."""
    request = {"tool": "transfer", "arguments": {"amount": 7, "to": "Bob"} if arguments is None else dict(arguments)}
    return ask(call_id, **{"interaction": APPROVAL, "request": request, **fields})


@dataclass(frozen=True)
class Asked:
    """A question that was put on the ledger, as whoever answers it sees it."""

    ledger: Ledger
    receipt: PauseReceipt
    axes: Axes

    @property
    def pause_id(self) -> UUID:
        """The pause's id."""
        return self.receipt.pause_id

    @property
    def token(self) -> str:
        """The token its person holds."""
        return self.receipt.token

    def at(self, ledger: Ledger) -> "Asked":
        """Give the same question as another process meets it."""
        return replace(self, ledger=ledger)

    def envelope(self, token: str | None = None) -> Envelope:
        """Recognise its token."""
        found = recognise(self.ledger.capability, token or self.token).envelope
        assert found is not None, "the token is not one of ours"
        return found

    async def redeem(self, response: Any = ANSWER, *, axes: Axes | None = None, **others: Any) -> ResumedTurn:
        """Redeem its token by `prepare`."""
        stated = axes or self.axes
        return await prepare(
            self.ledger.capability,
            envelope=self.envelope(others.pop("token", None)),
            response=response,
            scope=stated.scope,  # type: ignore[arg-type]  # a story may leave it out
            session_id=stated.session_id,  # type: ignore[arg-type]
            run_id=stated.run_id,  # type: ignore[arg-type]
            call_id=stated.call_id,  # type: ignore[arg-type]
            **others,
        )

    def command(self, response: Any = ANSWER, *, axes: Axes | None = None, **others: Any) -> ResumeCommand:
        """Make the command that redeems or answers it."""
        stated = axes or self.axes
        return ResumeCommand(
            self.envelope(others.pop("token", None)),
            response,
            stated.scope,
            stated.session_id,
            stated.run_id,
            stated.call_id,
            **others,
        )

    async def answer(self, response: Any = ANSWER, **others: Any) -> Any:
        """Answer it, and consume nothing."""
        said: AnswerCommand = self.command(response, **others)
        return await self.ledger.capability.answer(said)


async def asked(ledger: Ledger, command: PauseCommand | None = None, **fields: Any) -> Asked:
    """Pause the standard turn at its one call, or what a command says."""
    given = command or ask(**fields)
    return Asked(ledger, await ledger.capability.pause(given), given.axes)


async def asked_round(ledger: Ledger, *commands: PauseCommand) -> tuple[Asked, ...]:
    """Pause several calls of one turn."""
    receipts = await ledger.capability.pause_round(commands)
    return tuple(Asked(ledger, receipt, one.axes) for receipt, one in zip(receipts, commands, strict=True))


def round_of(*calls: str, **fields: Any) -> list[PauseCommand]:
    """Ask the standard question at every call of one turn."""
    stopped = fields.pop("turn", None) or turn(*calls)
    return [ask(call, turn=stopped, **fields) for call in calls]


async def refusal(stage: Stage, attempt: Awaitable[Any], kind: type[Refusal], *, writes: int = 1) -> Refusal:
    """Expect an attempt to be refused by exactly this kind, on record as `writes` more raw rows and nothing else."""
    before = stage.rows()
    try:
        await attempt
    except Refusal as refused:
        found = refused
    else:
        raise AssertionError(f"{kind.reason} was expected")
    assert type(found) is kind, f"{found.reason} instead of {kind.reason}"
    written = stage.rows()[len(before) :]
    assert [row.topic for row in written] == [REFUSED] * writes
    assert found.recorded is (writes > 0)
    said = [(row.header["step"], row.header["axis"], row.header["reason"], row.header["rule"]) for row in written]
    assert said == [(found.step, found.axis, found.reason, found.rule)] * writes
    return found


# Pure decisions


def a_paused(call: str = "call_1", *, request: bytes = b"{}", turn: bytes = b"[]", **fields: Any) -> Paused:
    """Make the first fact of a pause without any store: a round of one, open for an hour from 2030 on."""
    pause, begins = uuid4(), datetime(2030, 1, 1, tzinfo=UTC)
    content = Content.of(turn)
    standard: dict[str, Any] = {
        "originator_id": pause,
        "originator_version": 1,
        "predecessor": bytes(32),
        "row_digest": bytes(32),
        "ledger": UUID(int=1),
        "pause": pause,
        "scope": SCOPE,
        "at": begins,
        "attempt": uuid4(),
        "writer": "story/1",
        "session_id": "session-1",
        "run_id": "run-1",
        "call_id": call,
        "call": CallRecord(index=0, origin="provider"),
        "interaction": InteractionRecord(name=ASK_USER, revision=1, request_schema="0" * 64, response_schema="0" * 64),
        "request": Content.of(request),
        "turn": TurnRecord(format=FORMAT, digest=content.digest, content=content),
        "round": RoundRecord(id=pause, lead=pause, calls=(RoundCall(call_id=call, pause=pause),)),
        "opens_at": begins,
        "closes_at": begins + timedelta(hours=1),
        "on_lapse": OnLapse(),
        "occurrence": 0,
        "routing": RoutingRecord(),
    }
    return Paused(**{**standard, **fields})


@dataclass(frozen=True)
class Given:
    """What has happened to a pause; `when` decides on it, `then` holds what came of it against the expected facts.

    Example: `given(a_paused()).when(lambda pause, stamp: withdraw(pause, stamp, reason="host")).then(Withdrawn)`.
    """

    pause: Pause
    now: datetime
    _decided: Sequence[Fact] = ()
    _objected: LedgerError | None = None
    _attempt: UUID = field(default_factory=uuid4)

    def after(self, **later: float) -> "Given":
        """Let time pass, as `timedelta` counts it."""
        return replace(self, now=self.now + timedelta(**later))

    def when(self, decide: Callable[[Pause, Stamp], Sequence[PauseFact]]) -> "Given":
        """Decide, as a new attempt at this moment."""
        stamp = Stamp(ledger=UUID(int=1), now=self.now, attempt=self._attempt, writer="story/1", holder="0" * 16)
        try:
            decided: Sequence[PauseFact] = decide(self.pause, stamp)
        except LedgerError as objected:
            return replace(self, _decided=(), _objected=objected)
        return replace(self, pause=reduce(evolve, decided, self.pause), _decided=decided, _objected=None)

    def then(self, *kinds: type[Fact]) -> "Given":
        """Expect exactly these facts, and go on from them."""
        if self._objected is not None:
            raise self._objected
        assert [type(fact) for fact in self._decided] == list(kinds)
        return replace(self, _attempt=uuid4())

    def objected(self, kind: type[LedgerError]) -> LedgerError:
        """Expect that the decision objected by exactly this kind."""
        assert type(self._objected) is kind, f"{self._objected!r} instead of {kind.__name__}"
        return self._objected


def given(*facts: PauseFact) -> Given:
    """Bring a pause back from its facts; it is the moment of the last one."""
    pause = replay(facts)
    assert pause is not None, "a story begins with Paused"
    return Given(pause, pause.at)


def contents(turn: ResumedTurn) -> dict[str, Any]:
    """Tell what stands on each call after a redemption, by call id."""
    return {entry["tool_call_id"]: entry["content"] for entry in turn.history if entry.get("role") == "tool"}


def topics(rows: Iterable[Row]) -> list[str]:
    """Tell what was written, without the revision: `paused`, `answered`, ..."""
    return [row.topic.removeprefix("pause.").partition("@")[0] for row in rows]


__all__ = [
    "ANSWER", "ANSWER_TEXT", "APPROVAL", "FORMAT", "OTHER_ANSWER", "QUESTION", "REFUSED", "SCOPE", "STORED",
    "WRONG_ANSWER", "Asked", "Given", "MovedClock", "Row", "Stage", "StoryLedger", "a_paused", "approve", "ask",
    "asked", "asked_round", "axes", "call_of", "contents", "given", "refusal", "round_of", "topics", "turn",
]  # fmt: skip
