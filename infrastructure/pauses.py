"""The event-sourced repository: pauses brought back from their streams, and facts appended to the library's log."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.persistence import IntegrityError, Notification
from eventsourcing.utils import Environment, EnvType

from ..domain.errors import LedgerCorrupt, LedgerTooNew, StoreUnavailable, VersionConflict
from ..domain.facts import Fact, Paused, Refused
from ..domain.pause import Pause, PauseFact, replay
from ..domain.ports import Found, Tail
from ..domain.recording import REFUSAL_STREAM
from ..domain.round import Round
from ..domain.services import RELOADS
from .clock import StoreClock
from .executor import Executor
from .mapper import NO_PREDECESSOR, FactMapper, Registry, stored_digest
from .store import LedgerFactory, LedgerRecorder, Snapshot, StreamConflict


class PauseLog(Application[UUID]):
    """The library's application over one of our stores: its recorder, its mapper, its notification log."""

    name = "pauseledger"

    def __init__(self, recorder: LedgerRecorder, mapper: FactMapper) -> None:
        self._ledger_recorder = recorder
        self._fact_mapper = mapper
        super().__init__()

    def construct_env(self, name: str, env: EnvType | None = None) -> Environment:
        """Take nothing from the host's environment: its own applications may be configured there."""
        return Environment(name, env or {})

    def construct_factory(self, env: Environment) -> LedgerFactory:  # noqa: ARG002 - the library's signature
        """Stand on the store that was opened, whatever the environment names."""
        return LedgerFactory(self._ledger_recorder)

    def construct_mapper(self) -> FactMapper:
        """Map by the closed registry."""
        return self._fact_mapper


class EventSourcedPauses:
    """The `Pauses` port over a recorder whose calls block; they run in the executor."""

    def __init__(
        self,
        recorder: LedgerRecorder,
        executor: Executor,
        ledger_id: UUID,
        *,
        epoch: int,
        leeway: timedelta,
        registry: Registry | None = None,
    ) -> None:
        self.mapper = FactMapper(ledger_id, registry)
        self.log = PauseLog(recorder, self.mapper)
        self._recorder = recorder
        self._run = executor
        self._leeway = leeway
        self._clock = StoreClock()
        self._epoch = epoch

    def now(self) -> datetime:
        """Tell the store's time (UTC)."""
        return self._clock.now()

    def epoch(self) -> int:
        """Tell the epoch as the last read found it."""
        return self._epoch

    async def find(self, pause_id: UUID) -> Found:
        """Bring a pause and its round back, every row held against the chain."""
        return await self._run(self._find, pause_id)

    async def append(self, facts: Sequence[Fact]) -> tuple[Fact, ...]:
        """Append all or none.

        Raises:
            VersionConflict: a stream went on meanwhile.
            StoreUnavailable: the store could not speak, or another rule of it objected.
        """
        return await self._run(self._append, facts)

    async def refuse(self, stream: UUID, write: Callable[[Tail], Refused | None]) -> bool:
        """Append to a refusal stream; it judges again like any writer."""
        return await self._run(self._refuse, stream, write)

    async def renew(self, lead: UUID, fence: int, seconds: int) -> bool:
        """Renew a lease."""
        return await self._run(self._recorder.renew, lead, fence, seconds)

    async def story(self, streams: Sequence[UUID]) -> tuple[Fact, ...]:
        """Read whole streams as facts, in the order given and by version; the chain is proved.

        Raises:
            LedgerCorrupt: a row is not what was written.
        """
        return await self._run(self._story, streams)

    def facts(self, *, gt: int = 0) -> Iterator[Fact | LedgerTooNew | LedgerCorrupt]:
        """Walk the whole log; what cannot be read comes as the error that says why. Blocks."""
        for row in self._recorder.walk(gt):
            try:
                yield self.mapper.to_domain_event(row)
            except (LedgerTooNew, LedgerCorrupt) as unreadable:
                yield unreadable

    # Everything below blocks, and runs in the executor.

    def _find(self, pause_id: UUID) -> Found:
        snapshot = self._load([pause_id])
        first, altered = self._replay(pause_id, snapshot)
        if first is None:
            return Found(None, snapshot.epoch, snapshot.now, {})
        members = [call.pause for call in first.paused.round.calls if call.pause is not None]
        if set(members) == {pause_id}:
            return self._found([first], {pause_id: altered}, snapshot)
        lead = first.lead_id
        ordered = [lead, *(member for member in members if member != lead)]
        if pause_id not in ordered:
            raise LedgerCorrupt(pause_id, 1, "the pause is not among those of its round")
        snapshot = self._load(ordered)
        replayed = {member: self._replay(member, snapshot) for member in ordered}
        missing = next((member for member, (pause, _) in replayed.items() if pause is None), None)
        if missing is not None:
            raise LedgerCorrupt(missing, 1, "a pause of the round is missing")
        pauses = [cast("Pause", replayed[member][0]) for member in ordered]
        return self._found(pauses, {member: breaks for member, (_, breaks) in replayed.items()}, snapshot)

    def _found(self, pauses: list[Pause], altered: dict[UUID, tuple[int, ...]], snapshot: Snapshot) -> Found:
        lease = snapshot.leases.get(pauses[0].id)
        until = lease.until if lease is not None and lease.fence == pauses[0].fence else None
        return Found(Round(tuple(pauses), self._leeway, until), snapshot.epoch, snapshot.now, altered)

    def _load(self, streams: Sequence[UUID]) -> Snapshot:
        snapshot = self._recorder.load(streams)
        self._clock.correct(snapshot.now)
        self._epoch = snapshot.epoch
        return snapshot

    def _replay(self, stream: UUID, snapshot: Snapshot) -> tuple[Pause | None, tuple[int, ...]]:
        facts, altered = self._decode(stream, snapshot.rows)
        if facts and not isinstance(facts[0], Paused):
            if altered:
                raise LedgerCorrupt(stream, altered[0], "the row is not what was written")
            # A stream of another kind, of refusals or switches: whoever names it as a pause is told there is none.
            return None, ()
        pause = replay(cast("Iterable[PauseFact]", facts))
        if pause is not None and pause.id != stream:
            raise LedgerCorrupt(stream, 1, "the stream does not begin with its own pause")
        return pause, altered

    def _decode(self, stream: UUID, rows: Sequence[Notification]) -> tuple[list[Fact], tuple[int, ...]]:
        facts, altered, before = [], [], NO_PREDECESSOR
        mine = [row for row in rows if row.originator_id == stream]
        for expected, row in enumerate(mine, start=1):
            if row.originator_version != expected:
                raise LedgerCorrupt(stream, expected, "the stream has a gap", position=row.id)
            decoded = self.mapper.decode(row, before)
            if not decoded.whole:
                altered.append(expected)
            before = stored_digest(bytes(row.state))
            facts.append(decoded.fact)
        return facts, tuple(altered)

    def _story(self, streams: Sequence[UUID]) -> tuple[Fact, ...]:
        snapshot = self._load(streams)
        told: list[Fact] = []
        for stream in streams:
            facts, altered = self._decode(stream, snapshot.rows)
            if altered:
                raise LedgerCorrupt(stream, altered[0], "the row is not what was written")
            told += facts
        return tuple(told)

    def _append(self, facts: Sequence[Fact]) -> tuple[Fact, ...]:
        rows = self.mapper.encode(facts)
        try:
            positions = self._recorder.insert_events([row for row, _ in rows])
        except StreamConflict:
            raise VersionConflict(f"stream {facts[0].originator_id} went on") from None
        except IntegrityError as broken:
            raise StoreUnavailable(f"the store turned the append down: {broken}") from None
        return tuple(
            fact.model_copy(update={"row_digest": digest, "position": position})
            for fact, (_, digest), position in zip(facts, rows, positions, strict=True)
        )

    def _refuse(self, stream: UUID, write: Callable[[Tail], Refused | None]) -> bool:
        for _ in range(RELOADS):
            fact = write(self._tail(stream))
            if fact is None:
                return False
            try:
                self._append([fact])
            except VersionConflict:
                continue
            return True
        return False

    def _tail(self, stream: UUID) -> Tail:
        newest = self._recorder.select_events(stream, desc=True, limit=1)
        if not newest:
            return Tail(version=0, head=NO_PREDECESSOR, at=None)
        if newest[0].originator_version < REFUSAL_STREAM:
            # Its time is needed beside its digest: many processes write here, and time never goes back in a stream.
            last = self.mapper.decode(newest[0], NO_PREDECESSOR).fact
            return Tail(version=last.originator_version, head=last.row_digest, at=last.at)
        facts, _ = self._decode(stream, self._load([stream]).rows)
        last = facts[-1]
        written = frozenset(
            (fact.axis, fact.at.replace(minute=0, second=0, microsecond=0))
            for fact in facts
            if isinstance(fact, Refused)
        )
        return Tail(version=last.originator_version, head=last.row_digest, at=last.at, written=written)
