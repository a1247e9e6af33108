"""The event-sourced repository: pauses brought back from their streams, and facts appended to the library's log."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeVar, cast
from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.persistence import IntegrityError, Notification, StoredEvent
from eventsourcing.utils import Environment, EnvType

from ..domain.changes import restated
from ..domain.content import ContentKind
from ..domain.errors import (
    InteractionConfigurationError,
    LedgerCorrupt,
    LedgerTooNew,
    StoreUnavailable,
    VersionConflict,
)
from ..domain.facts import Fact, Paused, Refused
from ..domain.pause import Pause, PauseFact, replay
from ..domain.ports import Found, Tail
from ..domain.round import Round
from .clock import StoreClock
from .executor import Executor
from .keys import KeyRing
from .mapper import NO_KEYS, NO_PREDECESSOR, FactMapper, Registry, Written, stored_digest
from .refusals import RefusalStreams
from .shared_reads import SharedReads
from .store import LedgerFactory, LedgerRecorder, Snapshot, StreamConflict, VaultRow
from .vault import SEALED, DataKey, Sealing, Vault

T = TypeVar("T")

#: More bytes than this are packed, digested or proved beside the event loop.
LONG = 256 * 1024
#: Whoever finds a pause that somebody here is just writing to waits so long for that (seconds).
BRIEFLY = 0.2
#: Of so many streams that were written here the end is remembered, so that the store need not be asked for it.
REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class Appended:
    """The positions of rows in the log, in the order given; and the ledger's epoch, where it was read as well."""

    positions: Sequence[int]
    epoch: int | None


class Streams(Protocol):
    """How an event loop reaches the streams of a store. It raises what the recorder's methods raise."""

    async def load(self, streams: Sequence[UUID]) -> Snapshot:
        """Read whole streams and what goes with them."""
        ...

    async def append(self, rows: Sequence[StoredEvent], *, mints: bool, keys: Sequence[VaultRow] = ()) -> Appended:
        """Append rows, and new keys, all or none; the ledger's epoch is told where tokens are minted next."""
        ...

    async def vault(self, pauses: Sequence[UUID]) -> Sequence[VaultRow]:
        """Read the data keys of these pauses."""
        ...

    async def newest(self, stream: UUID) -> StoredEvent | None:
        """Read the newest row of a stream."""
        ...

    async def renew(self, pause: UUID, fence: int, seconds: float) -> bool:
        """Move a lease's end, unless a higher fence holds it."""
        ...

    async def close(self) -> None:
        """Close what is open."""
        ...


class ThreadedStreams:
    """Streams of a recorder whose calls block; they run in the executor."""

    def __init__(self, recorder: LedgerRecorder, executor: Executor) -> None:
        self._recorder = recorder
        self._run = executor

    async def load(self, streams: Sequence[UUID]) -> Snapshot:
        """Read whole streams and what goes with them."""
        return await self._run(self._recorder.load, streams)

    async def append(
        self,
        rows: Sequence[StoredEvent],
        *,
        mints: bool,
        keys: Sequence[VaultRow] = (),
        briefly: bool = False,  # noqa: ARG002 - threads are for stores where writers take turns, and none waits for a row
    ) -> Appended:
        """Append rows, all or none."""
        return await self._run(self._append, rows, mints, keys)

    async def vault(self, pauses: Sequence[UUID]) -> Sequence[VaultRow]:
        """Read the data keys of these pauses."""
        return await self._run(self._recorder.vault, pauses)

    def _append(self, rows: Sequence[StoredEvent], mints: bool, keys: Sequence[VaultRow]) -> Appended:
        positions = self._recorder.insert_events(rows, keys=keys)
        epoch: int | None = None
        if mints:
            # Whoever mints says what it means where it cannot be read: what was appended stands.
            with suppress(StoreUnavailable):
                epoch = self._recorder.epoch()
        return Appended(positions, epoch)

    async def newest(self, stream: UUID) -> StoredEvent | None:
        """Read the newest row of a stream."""
        return await self._run(self._newest, stream)

    def _newest(self, stream: UUID) -> StoredEvent | None:
        found = self._recorder.select_events(stream, desc=True, limit=1)
        return found[0] if found else None

    async def renew(self, pause: UUID, fence: int, seconds: float) -> bool:
        """Move a lease's end, unless a higher fence holds it."""
        return await self._run(self._recorder.renew, pause, fence, seconds)

    async def close(self) -> None:
        """Leave the recorder to whoever opened it."""


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
    """The `Pauses` port over the streams of a store. It belongs to one event loop."""

    def __init__(
        self,
        recorder: LedgerRecorder,
        executor: Executor,
        ledger_id: UUID,
        *,
        epoch: int,
        leeway: timedelta,
        registry: Registry | None = None,
        streams: Streams | None = None,
        ring: KeyRing | None = None,
    ) -> None:
        self.vault = Vault(ledger_id, ring, recorder.vault)
        self._of = (ledger_id, registry, ring)
        self.mapper = FactMapper(ledger_id, registry, self.vault)
        self.log = PauseLog(recorder, self.mapper)
        self._recorder = recorder
        self._run = executor
        self._streams = streams or ThreadedStreams(recorder, executor)
        self._leeway = leeway
        self._clock = StoreClock()
        self._epoch = epoch
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shared = SharedReads(self._settled, self._find)
        # By the numbers of streams: ids are hashed by a method of their own, slower than all the rest of a look.
        self._appending: dict[tuple[int, int], asyncio.Future[None]] = {}
        self._newest_append: dict[int, asyncio.Future[None]] = {}
        self._written: OrderedDict[int, int] = OrderedDict()
        self._refusals = RefusalStreams(self)

    def over(self, streams: Streams) -> "EventSourcedPauses":
        """Reach the same store over other streams: its clock is shared, and nothing that was read or written."""
        ledger_id, registry, ring = self._of
        other = EventSourcedPauses(
            self._recorder,
            self._run,
            ledger_id,
            epoch=self._epoch,
            leeway=self._leeway,
            registry=registry,
            streams=streams,
            ring=ring,
        )
        other._clock = self._clock
        return other

    def now(self) -> datetime:
        """Tell the store's time (UTC)."""
        return self._clock.now()

    def epoch(self) -> int:
        """Tell the epoch as the last read found it."""
        return self._epoch

    async def find(self, pause_id: UUID) -> Found:
        """Bring a pause and its round back, every row held against the chain.

        Of many that ask for one pause at once, all who asked before a read began share what it finds. Whoever finds
        that somebody here is just writing what comes next waits for that, briefly, and looks again: judged by what it
        found, it would only lose, and be judged once more.
        """
        self.stay()
        found = await self._shared.find(pause_id)
        ahead = self._ahead_of(found, pause_id)
        if ahead is None:
            return found
        written, _ = await asyncio.wait([ahead], timeout=BRIEFLY)
        return await self._shared.find(pause_id) if written else found

    async def _settled(self, pause_id: UUID) -> None:
        """Wait, briefly, while somebody here writes to a pause: a read would be outdated as soon as it is told."""
        under_way = self._newest_append.get(pause_id.int)
        if under_way is not None:
            await asyncio.wait([under_way], timeout=BRIEFLY)

    def _ahead_of(self, found: Found, pause_id: UUID) -> "asyncio.Future[None] | None":
        if not self._appending or found.round is None:
            return None
        return self._appending.get((pause_id.int, found.round.of(pause_id).version + 1))

    async def _find(self, pause_id: UUID) -> Found:
        snapshot, keys = await self._load([pause_id])
        first, altered = await self._long(snapshot.rows, self._replay, pause_id, snapshot, keys)
        if first is None:
            return Found(None, snapshot.epoch, {})
        members = [call.pause for call in first.paused.round.calls if call.pause is not None]
        if members == [pause_id]:
            return self._found([first], {pause_id: altered}, snapshot)
        lead = first.lead_id
        ordered = [lead, *(member for member in members if member != lead)]
        if pause_id not in ordered:
            raise LedgerCorrupt(pause_id, 1, "the pause is not among those of its round")
        snapshot, keys = await self._load(ordered)
        return await self._long(snapshot.rows, self._find_round, ordered, snapshot, keys)

    async def append(self, facts: Sequence[Fact]) -> tuple[Fact, ...]:
        """Append all or none.

        Raises:
            VersionConflict: a stream went on meanwhile.
            StoreUnavailable: the store could not speak, or another rule of it objected.
            InteractionConfigurationError: texts are encrypted here, and the keys for that are not in the ring.
        """
        self.stay()
        return await self.append_in_turn(facts)

    async def append_in_turn(self, facts: Sequence[Fact], written: Written | None = None) -> tuple[Fact, ...]:
        """Append behind whoever writes the same versions here; `written` are their rows, where these are made."""
        places = [(fact.originator_id.int, fact.originator_version) for fact in facts]
        while ahead := [self._appending[place] for place in places if place in self._appending]:
            # Somebody here is writing that version.
            await asyncio.wait(ahead)
        # Where this process wrote that version since the stream was last read, the store need not be asked.
        if any(self._written.get(stream, 0) >= version for stream, version in places):
            raise VersionConflict(f"stream {facts[0].originator_id} went on")
        ended = asyncio.get_running_loop().create_future()
        self._appending |= dict.fromkeys(places, ended)
        self._newest_append |= dict.fromkeys([stream for stream, _ in places], ended)
        try:
            appended = await self._append(facts, written or await self._encoded(facts))
            self._remember(places)
        finally:
            ended.set_result(None)
            for place in places:
                self._appending.pop(place, None)
                self._shared.wrote(place[0])
                if self._newest_append.get(place[0]) is ended:
                    del self._newest_append[place[0]]
        return appended

    def stay(self) -> None:
        """Belong to the running event loop: locks and connections are of one.

        Raises:
            InteractionConfigurationError: another loop asks.
        """
        here = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = here
        elif self._loop is not here:
            raise InteractionConfigurationError("the ledger belongs to another event loop; open one in each")

    def _remember(self, places: Iterable[tuple[int, int]]) -> None:
        for stream, version in places:
            self._written[stream] = version
        while len(self._written) > REMEMBERED:
            self._written.popitem(last=False)

    async def _sealing(self, facts: Sequence[Fact]) -> Sealing:
        """Find the keys that facts are sealed with; a pause's first fact brings its own."""
        # A refused attempt on a pause that is not in this store names no scope. Keys made for it would stand in the way
        # of those that come with the pause.
        pauses = {fact.pause for fact in facts if type(fact) in SEALED and fact.scope is not None}
        new = {fact.pause for fact in facts if type(fact) is Paused}
        return await self.sealing_of(pauses - new if new else pauses, new)

    async def sealing_of(self, pauses: Collection[UUID], new: Collection[UUID] = (), *, making: bool = True) -> Sealing:
        """Find the keys of these pauses, and make those of new ones; without `making`, none."""
        unknown = self.vault.unknown(pauses)
        if unknown:
            self.vault.learn(unknown, await self._streams.vault(unknown))
        return self.vault.sealing(pauses, new, making=making)

    async def _encoded(self, facts: Sequence[Fact]) -> Written:
        sealing = await self._sealing(facts)
        if any(type(fact) is Paused and fact.turn.content and fact.turn.content.size > LONG for fact in facts):
            return Written(await self._run(self.mapper.encode, facts, sealing), sealing)
        return Written(self.mapper.encode(facts, sealing), sealing)

    async def _append(self, facts: Sequence[Fact], written: Written) -> tuple[Fact, ...]:
        rows, sealing = written.rows, written.sealing
        mints = any(type(fact) is Paused for fact in facts)
        try:
            # Tokens are minted for what was paused, and nothing was read before: they have to be of the ledger's epoch.
            appended = await self._streams.append([row for row, _ in rows], mints=mints, keys=sealing.made)
        except StreamConflict:
            # Perhaps somebody else brought the keys of a pause first.
            self.vault.contested(row.pause for row in sealing.made)
            raise VersionConflict(f"stream {facts[0].originator_id} went on") from None
        except IntegrityError as broken:
            raise StoreUnavailable(f"the store turned the append down: {broken}") from None
        self.vault.keep(sealing)
        if appended.epoch is not None:
            self._epoch = appended.epoch
        elif mints:
            raise StoreUnavailable("stored, and no token can be minted for it yet", outcome="unknown")
        return tuple(
            restated(fact, {"row_digest": digest, "position": position})
            for fact, (_, digest), position in zip(facts, rows, appended.positions, strict=True)
        )

    async def refuse(self, stream: UUID, write: Callable[[Tail], Refused | None], *, of: UUID | None) -> bool:
        """Append to a refusal stream; it judges again like any writer.

        Those that come while another one is being written are written together, in one append.
        """
        return await self._refusals.refuse(stream, write, of=of)

    async def newest(self, stream: UUID) -> StoredEvent | None:
        """Read the newest row of a stream, whatever was known of it here."""
        newest = await self._streams.newest(stream)
        self._written.pop(stream.int, None)
        return newest

    async def chained(self, stream: UUID) -> list[Fact]:
        """Read a whole stream as facts, as far as they can be read."""
        snapshot, _ = await self._load([stream])
        facts, _ = self._decode(stream, snapshot.rows)
        return facts

    async def renew(self, lead: UUID, fence: int, seconds: int) -> bool:
        """Renew a lease."""
        return await self._streams.renew(lead, fence, seconds)

    async def story(self, streams: Sequence[UUID], *, keys_of: Sequence[UUID] = ()) -> tuple[Fact, ...]:
        """Read whole streams as facts, in the order given and by version; the chain is proved.

        The keys of a pause come with its own stream. `keys_of` are the pauses of other streams whose texts will be
        read: asked for later, their keys are looked up then, which blocks.

        Raises:
            LedgerCorrupt: a row is not what was written.
        """
        snapshot, keys = await self._load(streams)
        if keys_of:
            keys |= self.vault.opening(await self._streams.vault(keys_of))
        return await self._long(snapshot.rows, self._tell, streams, snapshot, keys)

    def facts(self, *, gt: int = 0) -> Iterator[Fact | LedgerTooNew | LedgerCorrupt]:
        """Walk the whole log; what cannot be read comes as the error that says why. Blocks."""
        for row in self._recorder.walk(gt):
            try:
                yield self.mapper.to_domain_event(row)
            except (LedgerTooNew, LedgerCorrupt) as unreadable:
                yield unreadable

    async def standing(self, pauses: Sequence[UUID], kind: ContentKind) -> Mapping[UUID, bool]:
        """Tell of each pause that has keys whether this one still stands."""
        return {row.pause: getattr(row, kind) is not None for row in await self._streams.vault(pauses)}

    async def require_eraser(self, kind: ContentKind) -> None:
        """Make sure, before anything is written of it, that such keys may be destroyed here."""
        await self._run(self._recorder.require_eraser, kind)

    async def destroy(self, pauses: Sequence[UUID], kind: ContentKind) -> None:
        """Destroy one key of each of these pauses for good, and forget it here."""
        await self._run(self._recorder.destroy, pauses, kind)
        self.vault.forget(pauses)

    async def scrub(self) -> bool:
        """Overwrite what destroyed keys left in the store's own files; False where this connection could not.

        Raises:
            StoreUnavailable: the store could not speak.
        """
        try:
            return await self._run(self._recorder.scrub)
        except InteractionConfigurationError:
            return False

    async def close(self) -> None:
        """Close the streams, once what is under way is written."""
        await self._refusals.ended()
        await self._streams.close()

    async def _load(self, streams: Sequence[UUID]) -> tuple[Snapshot, dict[int, DataKey]]:
        asked = time.monotonic()
        snapshot = await self._streams.load(streams)
        self._clock.correct(snapshot.now, asked)
        self._epoch = snapshot.epoch
        keys = self.vault.learn(streams, snapshot.keys)
        for stream in streams:
            if stream.int in self._written:
                # What the store says now counts: it may have been set back to an earlier state.
                self._written[stream.int] = sum(row.originator_id == stream for row in snapshot.rows)
        return snapshot, keys

    async def _long(self, rows: Sequence[StoredEvent], function: Callable[..., T], *args: object) -> T:
        if sum(len(row.state) for row in rows) > LONG:
            return await self._run(function, *args)
        return function(*args)

    def _find_round(self, ordered: list[UUID], snapshot: Snapshot, keys: Mapping[int, DataKey]) -> Found:
        replayed = {member: self._replay(member, snapshot, keys) for member in ordered}
        missing = next((member for member, (pause, _) in replayed.items() if pause is None), None)
        if missing is not None:
            raise LedgerCorrupt(missing, 1, "a pause of the round is missing")
        pauses = [cast("Pause", replayed[member][0]) for member in ordered]
        return self._found(pauses, {member: breaks for member, (_, breaks) in replayed.items()}, snapshot)

    def _found(self, pauses: list[Pause], altered: dict[UUID, tuple[int, ...]], snapshot: Snapshot) -> Found:
        lease = snapshot.leases.get(pauses[0].id)
        until = lease.until if lease is not None and lease.fence == pauses[0].fence else None
        return Found(Round(tuple(pauses), self._leeway, until), snapshot.epoch, altered)

    def _replay(
        self, stream: UUID, snapshot: Snapshot, keys: Mapping[int, DataKey]
    ) -> tuple[Pause | None, tuple[int, ...]]:
        facts, altered = self._decode(stream, snapshot.rows, keys)
        if facts and not isinstance(facts[0], Paused):
            if altered:
                raise LedgerCorrupt(stream, altered[0], "the row is not what was written")
            # A stream of another kind, of refusals or switches: whoever names it as a pause is told there is none.
            return None, ()
        pause = replay(cast("Iterable[PauseFact]", facts))
        if pause is not None and pause.id != stream:
            raise LedgerCorrupt(stream, 1, "the stream does not begin with its own pause")
        return pause, altered

    def _decode(
        self, stream: UUID, rows: Sequence[Notification], keys: Mapping[int, DataKey] = NO_KEYS
    ) -> tuple[list[Fact], tuple[int, ...]]:
        facts, altered, before = [], [], NO_PREDECESSOR
        mine = [row for row in rows if row.originator_id == stream]
        for expected, row in enumerate(mine, start=1):
            if row.originator_version != expected:
                raise LedgerCorrupt(stream, expected, "the stream has a gap", position=row.id)
            decoded = self.mapper.decode(row, before, keys)
            if not decoded.whole:
                altered.append(expected)
            before = stored_digest(bytes(row.state))
            facts.append(decoded.fact)
        return facts, tuple(altered)

    def _tell(self, streams: Sequence[UUID], snapshot: Snapshot, keys: Mapping[int, DataKey]) -> tuple[Fact, ...]:
        told: list[Fact] = []
        for stream in streams:
            facts, altered = self._decode(stream, snapshot.rows, keys)
            if altered:
                raise LedgerCorrupt(stream, altered[0], "the row is not what was written")
            told += facts
        return tuple(told)
