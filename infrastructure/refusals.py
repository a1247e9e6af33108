"""Refusal streams: what a pause's own stream does not take, written down batch by batch."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol
from uuid import UUID

from eventsourcing.persistence import StoredEvent

from ..domain.errors import StoreUnavailable, VersionConflict
from ..domain.facts import Fact, Refused
from ..domain.ports import Tail
from ..domain.recording import REFUSAL_STREAM
from ..domain.services import RELOADS
from .mapper import NO_PREDECESSOR, FactMapper, Rows, Written
from .raising import anew
from .vault import Sealing

#: Of so many streams the end is remembered, so that the store need not be asked for it.
REMEMBERED = 1024


class Chains(Protocol):
    """What refusals are written by."""

    mapper: FactMapper

    async def newest(self, stream: UUID) -> StoredEvent | None:
        """Read the newest row of a stream."""
        ...

    async def chained(self, stream: UUID) -> list[Fact]:
        """Read a whole stream."""
        ...

    async def sealing_of(self, pauses: Collection[UUID], new: Collection[UUID] = (), *, making: bool = True) -> Sealing:
        """Find the keys of pauses."""
        ...

    async def append_in_turn(self, facts: Sequence[Fact], written: Written | None = None) -> tuple[Fact, ...]:
        """Append; raises as `Pauses.append` does."""
        ...


@dataclass(frozen=True, slots=True)
class _Refusal:
    """One that waits to be written, and whoever waits for it; they may have gone meanwhile."""

    write: Callable[[Tail], Refused | None]
    of: UUID | None
    written: "asyncio.Future[bool]"

    def end(self, done: bool) -> None:
        if not self.written.done():
            self.written.set_result(done)

    def fail(self, failed: Exception) -> None:
        if not self.written.done():
            self.written.set_exception(anew(failed))


@dataclass(slots=True)
class _Queue:
    """What waits for one refusal stream, and who writes it."""

    waiting: list[_Refusal] = field(default_factory=list)
    task: "asyncio.Task[None] | None" = None

    def take(self) -> list[_Refusal]:
        batch, self.waiting = self.waiting, []
        return batch


class RefusalStreams:
    """Writes refusals, of one stream one batch after another: those that come meanwhile go together in one append."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains
        self._refusing: dict[UUID, _Queue] = {}
        self._tails: OrderedDict[UUID, Tail] = OrderedDict()

    async def refuse(self, stream: UUID, write: Callable[[Tail], Refused | None], *, of: UUID | None) -> bool:
        """Append to a refusal stream; see `Pauses.refuse`."""
        refusal = _Refusal(write, of, asyncio.get_running_loop().create_future())
        queue = self._refusing.get(stream)
        if queue is None:
            queue = self._refusing[stream] = _Queue()
            queue.task = asyncio.create_task(self._write_down(stream, queue))
        queue.waiting.append(refusal)
        return await refusal.written

    async def ended(self) -> None:
        """Wait until what is under way is written."""
        tasks = [queue.task for queue in self._refusing.values() if queue.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _write_down(self, stream: UUID, queue: _Queue) -> None:
        """Write what waits for a refusal stream, batch by batch, until nothing does."""
        batch: list[_Refusal] = []
        try:
            while batch := queue.take():
                try:
                    written = await self._refuse(stream, batch)
                except Exception as failed:  # noqa: BLE001 - each of those who wait is told
                    for refusal in batch:
                        refusal.fail(failed)
                else:
                    for refusal, done in zip(batch, written, strict=True):
                        refusal.end(done)
        finally:
            del self._refusing[stream]
            # Left only where this task was cancelled: by a host that ends all of them, and others go on.
            for refusal in (*batch, *queue.take()):
                refusal.fail(StoreUnavailable("whoever wrote refusals down was cancelled", outcome="unknown"))

    async def _refuse(self, stream: UUID, batch: Sequence[_Refusal]) -> list[bool]:
        writes = [refusal.write for refusal in batch]
        for _ in range(RELOADS):
            tail = self._tails.pop(stream, None)
            if tail is None or tail.version < REFUSAL_STREAM <= tail.version + len(writes):
                tail = await self._tail(stream, len(writes))
            # No keys are made here: a transaction of a host's may hold the place of those that come with the pause.
            pauses = {refusal.of for refusal in batch if refusal.of is not None}
            sealing = await self._chains.sealing_of(pauses, making=False)
            facts, rows, after = self._chained(tail, writes, sealing)
            chain = [fact for fact in facts if fact is not None]
            with suppress(VersionConflict):
                if chain:
                    await self._chains.append_in_turn(chain, Written(rows, sealing))
                self._tails[stream] = after
                while len(self._tails) > REMEMBERED:
                    self._tails.popitem(last=False)
                return [fact is not None for fact in facts]
        return [False] * len(writes)

    def _chained(
        self, tail: Tail, writes: Sequence[Callable[[Tail], Refused | None]], sealing: Sealing
    ) -> tuple[list[Refused | None], Rows, Tail]:
        """Let each judge by the end that the one before it leaves."""
        facts: list[Refused | None] = []
        rows: Rows = []
        for write in writes:
            fact = write(tail)
            if fact is not None:
                rows += self._chains.mapper.encode([fact], sealing)
                written = tail.written | {_axis_and_hour(fact)}
                tail = Tail(version=fact.originator_version, head=rows[-1][1], at=fact.at, written=written)
            facts.append(fact)
        return facts, rows, tail

    async def _tail(self, stream: UUID, coming: int) -> Tail:
        """Read a refusal stream's end; all of it where those to come reach the bound past which what stands counts."""
        newest = await self._chains.newest(stream)
        if newest is None:
            return Tail(version=0, head=NO_PREDECESSOR, at=None)
        if newest.originator_version + coming < REFUSAL_STREAM:
            # Its time is needed beside its digest: many processes write here, and time never goes back in a stream.
            last = self._chains.mapper.decode(newest, NO_PREDECESSOR).fact
            return Tail(version=last.originator_version, head=last.row_digest, at=last.at)
        facts = await self._chains.chained(stream)
        last = facts[-1]
        written = frozenset(_axis_and_hour(fact) for fact in facts if isinstance(fact, Refused))
        return Tail(version=last.originator_version, head=last.row_digest, at=last.at, written=written)


def _axis_and_hour(fact: Refused) -> tuple[str, datetime]:
    return fact.axis, fact.at.replace(minute=0, second=0, microsecond=0)
